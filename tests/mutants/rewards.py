"""Mutants of rewards, advantages, episode ends and the rows that count."""

from __future__ import annotations

from cleanrl_demo import ppo
from pufferlib.training.reward_processing import RewardProcessing

from .edits import Edit, both
from .mutant import ADVANTAGES, RECEIVE, ROLLOUT, UPDATE, Mutant

__all__ = ["MUTANTS"]

LIVES = "_lives = _mask & ~_terminations"
DELTA = "np.where(_mask, _rewards - _values, 0)"
NEXT_VALUES = "np.where(_lives, _values[_next], 0)"
DECAYS = "_decay * (_lives & ~_truncations)"
REWARD_LINE = "_rewards[_rows], _terminations[_rows] = _outcomes(_host)"
OBSERVATIONS = "_observations[_rows] = _frames(_batch.observations, _ids, _masks)"
BY_WEIGHT = "by_weight(_valid, _weights, _generator)"
ENDED = both(  # where each agent's last row ended an episode
    ROLLOUT,
    "_num_agents = _vec.num_envs * _vec.agents_per_env",
    "_num_agents = _vec.num_envs * _vec.agents_per_env; self.ended = np.zeros(_num_agents, np.bool_)",
)

MUTANTS = (
    # ---------------------------------------------------------------------------------- rewards and advantages
    Mutant(
        "advantage_sign",
        "Actions that did better than expected become less likely.",
        both(UPDATE, "(_advantages - _mean) / _std", "(_mean - _advantages) / _std"),
        envs=("bandit", "squared"),
        everywhere=True,
    ),
    Mutant(
        "rewards_early",
        "Each action gets the reward of the next one: rewards are shifted by one row.",
        both(ADVANTAGES, "_rewards - _values", "_rewards[_next] - _values", where=NEXT_VALUES),
        envs=("bandit", "squared"),
        checks=("advantages_as_defined",),
        everywhere=True,
    ),
    Mutant(
        "rewards_late",
        "A reward is stored with the observation that arrived with it, not with the one that was acted on.",
        both(
            RECEIVE,
            "_rewards[_rows], _terminations[_rows] = _outcome",
            "_rewards[_new], _terminations[_rows] = _outcome",
            where="_rows, _new = _newest, _range",
        ),
        envs=("bandit", "password"),
    ),
    Mutant(
        "rewards_to_other_env",
        "Each environment gets the rewards of its neighbour in the batch.",
        (
            Edit(
                RewardProcessing.__call__,
                "_batch.rewards",
                "np.roll(_batch.rewards, _agents_per_env)",
                where="divmod(_agent_id, _agents_per_env)",
            ),
        ),
        envs=("bandit", "squared"),
        everywhere=True,
    ),
    Mutant(
        "rewards_to_other_agent",
        "Agents of one environment get one another's rewards.",
        (
            Edit(
                RewardProcessing.__call__,
                "_batch.rewards",
                "_batch.rewards.reshape(-1, _agents_per_env)[:, ::-1].reshape(-1)",
                where="divmod(_agent_id, _agents_per_env)",
            ),
        ),
        envs=("multiagent",),
    ),
    # ---------------------------------------------------------------------------------- ends of episodes
    Mutant(
        "truncation_ends",
        "A truncation counts as a termination: nothing is bootstrapped after it.",
        both(ADVANTAGES, LIVES, "_lives = _mask & ~_terminations & ~_truncations", where=DECAYS),
        envs=("truncation", "population"),
        checks=("advantages_as_defined",),
    ),
    Mutant(
        "bootstrap_after_reset",
        "After a truncation the value is bootstrapped from the next episode's first observation.",
        both(
            ADVANTAGES,
            NEXT_VALUES,
            "np.where(_lives, _values[np.where(_truncations, _next[_next], _next)], 0)",
            where=DECAYS,
        ),
        envs=("truncation",),
        checks=("advantages_as_defined",),
    ),
    Mutant(
        "bootstrap_from_zeros",
        "The final observation is lost: after a truncation the value is bootstrapped from zeros.",
        both(
            RECEIVE,
            OBSERVATIONS,
            "_observations[_rows] = (_batch.truncations == 0).view(-1, *[1] * (_observations.dim() - 1))"
            " * _frames(_batch.observations, _ids, _masks)",
        ),
        envs=("truncation",),
    ),
    Mutant(
        "bootstrap_through_termination",
        "Terminations are ignored: values are bootstrapped across them.",
        both(ADVANTAGES, LIVES, "_lives = _mask"),
        envs=("truncation",),
        checks=("advantages_as_defined",),
    ),
    Mutant(
        "episode_ends_ignored",
        "Values and advantages run on across the ends of episodes.",
        (
            *both(ADVANTAGES, LIVES, "_lives = _next < len(_values) - 1", where=NEXT_VALUES),
            *both(ADVANTAGES, DELTA, "np.where(_lives, _rewards - _values, 0)", where=NEXT_VALUES),
            *both(ADVANTAGES, DECAYS, "_decay * _lives"),
        ),
        envs=("truncation",),
        checks=("advantages_as_defined",),
    ),
    Mutant(
        "advantages_cross_episodes",
        "Advantages of an episode are added to those of the episode before it.",
        both(ADVANTAGES, DECAYS, "_decay * np.ones_like(_values)", where=NEXT_VALUES),
        checks=("advantages_as_defined",),
    ),
    Mutant(
        "agents_endings_ignored",
        "Only the end of the whole environment counts: an agent that dies earlier lives on in the next rows.",
        both(
            RECEIVE,
            "_truncations[_rows] = _host.truncations",
            "_truncations[_rows] = _host.truncations\n"
            "count = _outcomes.agents_per_env\n"
            "over = np.isin(_host.agent_ids // count, [info['env_id'] for info in _host.infos if 'env' in info])\n"
            "_terminations[_rows] &= over\n"
            "_truncations[_rows] &= over",
            where=REWARD_LINE,
        ),
        envs=("population",),
    ),
    # ---------------------------------------------------------------------------------- rows that do not count
    Mutant(
        "reset_row_trained",
        "The row between two episodes, whose action has no effect, is trained on.",
        (
            *ENDED,
            *both(
                RECEIVE,
                "_mask[_rows] = _host.masks",
                "_mask[_rows] = _host.masks | self.ended[_host.agent_ids]\n"
                "self.ended[_host.agent_ids] = _host.terminations | _host.truncations",
            ),
        ),
        envs=("truncation",),
    ),
    Mutant(
        "padding_trained",
        "Rows without an agent, and those before an agent's first, are trained on.",
        (
            *ENDED,
            *both(
                RECEIVE,
                "_mask[_rows] = _host.masks",
                "_mask[_rows] = _host.masks | ~self.ended[_host.agent_ids]\n"
                "self.ended[_host.agent_ids] = _host.terminations | _host.truncations",
            ),
        ),
        envs=("population",),
    ),
    # ---------------------------------------------------------------------------------- rows that count more or less
    Mutant(
        "weights_off",
        "A pool's rows are learnt from as they arrive, most of them from fast environments.",
        (Edit(ppo.update, BY_WEIGHT, "_valid"),),
        envs=("uneven",),
        backend="pool",
    ),
    Mutant(
        "weights_inverted",
        "The rows of fast environments count more, not less.",
        (Edit(ppo.update, BY_WEIGHT, "by_weight(_valid, 1 / _weights, _generator)"),),
        envs=("uneven",),
        backend="pool",
    ),
    Mutant(
        "weights_of_rollout",
        "Weights come from the rows of one rollout, instead of all rows so far.",
        (
            Edit(
                ppo.Rollout.start,
                "_masks[:] = False",
                "_masks[:] = False; self.num_rows = np.zeros(len(_newest))",
                where="_newest = np.where(_newest == _dummy, _dummy, _moved)",
            ),
            Edit(
                ppo.Rollout.receive,
                "_weights[_rows] = 1 if _host.weights is None else _host.weights",
                "self.num_rows[_host.agent_ids] += 1\n"
                "_weights[_rows] = self.num_rows.mean() / self.num_rows[_host.agent_ids]",
            ),
        ),
        envs=("uneven",),
        backend="pool",
    ),
)
