"""Mutants of actions: what is sampled, what is stored of it, and which environment and agent it reaches."""

from __future__ import annotations

from cleanrl_demo import ppo
from pufferlib.evaluation.dealer import Dealer
from pufferlib.models.distributions import Decisions, Distribution

from .edits import Edit, both
from .mutant import LEARN, RECEIVE, UPDATE, Mutant

__all__ = ["MUTANTS"]

LOG_PROB = "_distribution.log_prob(_discrete, _continuous)"
SENT = "_decisions.actions(_discrete, _continuous)"
SEND = "_vec.send(_actions)"
NEWEST = "_rows, _new = _newest[_host.agent_ids], _range"

MUTANTS = (
    # ---------------------------------------------------------------------------------- actions
    Mutant(
        "argmax_play",
        "The most likely action is played instead of a sampled one.",
        (Edit(Distribution.sample, "(_log_probs - _clock.log()).argmax(1)", "_log_probs.argmax(1)"),),
        envs=("stochastic",),
    ),
    Mutant(
        "wrong_log_prob",
        "The stored log-probability is that of another row's action.",
        both(LEARN, LOG_PROB, "_distribution.log_prob(_discrete.roll(1, 0), _continuous)"),
        checks=("ratios_begin_at_one",),
    ),
    Mutant(
        "action_redrawn",
        "Actions are sampled twice: one is played, the other is trained on.",
        both(LEARN, SENT, "_decisions.actions(*_distribution.sample())", where="_distribution.sample(_generator)"),
        envs=("bandit", "squared"),
        everywhere=True,
    ),
    Mutant(
        "heads_swapped",
        "The update swaps the two discrete parts of an action.",
        (Edit(ppo.update, LOG_PROB, "_distribution.log_prob(_discrete.flip(1), _continuous)"),),
        envs=("spaces",),
        checks=("ratios_begin_at_one",),
    ),
    Mutant(
        "head_dropped",
        "The log-probability of an action leaves out all parts but the last.",
        (Edit(Distribution.log_prob, "reduce(torch.add, _terms)", "_terms[-1]"),),
        envs=("mixed", "spaces"),
        checks=("log_prob_sums",),
    ),
    Mutant(
        "dimension_dropped",
        "The log-probability of an action leaves out its first continuous part.",
        (Edit(Distribution.log_prob, "_log_densities.sum(1)", "_log_densities[:, 1:].sum(1)"),),
        envs=("continuous", "mixed"),
        checks=("log_prob_sums",),
    ),
    Mutant(
        "clipped_actions_stored",
        "The stored action is clipped to its bounds, the stored log-probability is that of the action before.",
        both(
            LEARN,
            "_stored[_rows] = _continuous",
            "_stored[_rows] = _continuous.clamp(-1, 1)",
            where="_discrete, _continuous = _distribution.sample(_generator)",
        ),
        envs=("continuous",),
        checks=("ratios_begin_at_one",),
    ),
    Mutant(
        "observation_transposed",
        "The update sees images transposed, play does not.",
        (
            Edit(
                ppo.update,
                "_distribution, _values, _state = _actor(_observations[_rows])",
                "_distribution, _values, _state = _actor(_observations[_rows].transpose(1, -1))",
            ),
        ),
        envs=("squared",),
        checks=("ratios_begin_at_one",),
    ),
    Mutant(
        "exploration_collapsed",
        "The initial policy plays almost one action only, and nothing rewards entropy.",
        (
            Edit(
                Decisions.distribution,
                "_logits, _mean, _std = _split(_outputs)",
                "_logits, _mean, _std = _split(_outputs)\n"
                "_logits = _logits + 8.0 * (torch.arange(_logits.shape[1]) == 0)",
            ),
            *both(
                UPDATE,
                "if _coefficient: _losses = _losses - _coefficient * _entropy",
                "if False: _losses = _losses - _coefficient * _entropy",
            ),
        ),
        checks=("begins_undecided", "entropy_grows"),
    ),
    # ---------------------------------------------------------------------------------- which rows they belong to
    Mutant(
        "actions_to_other_env",
        "Each environment plays the action of its neighbour in the batch.",
        both(
            LEARN,
            SENT,
            "_decisions.actions(*(part.roll(_vec.agents_per_env, 0) for part in (_discrete, _continuous)))",
            where=SEND,
        ),
        envs=("squared", "bandit"),
        everywhere=True,
    ),
    Mutant(
        "actions_one_row_off",
        "Each agent plays the action of the next agent of its environment.",
        both(
            LEARN,
            SENT,
            "_decisions.actions(*(part.unflatten(0, (-1, _vec.agents_per_env)).roll(1, 1).flatten(0, 1)"
            " for part in (_discrete, _continuous)))",
            where=SEND,
        ),
        envs=("multiagent", "population"),
    ),
    Mutant(
        "agents_observations_swapped",
        "Agents of one environment see one another's observations, but keep their own actions and rewards.",
        both(
            RECEIVE,
            "_frames(_batch.observations, _ids, _masks)",
            "_frames(_batch.observations.unflatten(0, (-1, _outcomes.agents_per_env)).flip(1).flatten(0, 1),"
            " _ids, _masks)",
            where="_rewards[_rows], _terminations[_rows] = _outcomes(_host)",
        ),
        envs=("multiagent",),
    ),
    Mutant(
        "previous_actions",
        "The actions that are sent are those for the previous batch.",
        both(
            LEARN,
            "_actions = _decisions.actions(_discrete, _continuous)",
            "newest = _decisions.actions(_discrete, _continuous)\n"
            "_actions, _learner.sent = getattr(_learner, 'sent', newest), newest",
            where="_distribution.sample(_learner.generator)",
        ),
        envs=("identity", "squared"),
        everywhere=True,
    ),
    Mutant(
        "timelines_by_place",
        "Rows are linked by their position in the batch, not by their agent.",
        (
            *both(RECEIVE, "_newest[_host.agent_ids] = _new", "_newest[: len(_host.agent_ids)] = _new", where=NEWEST),
            *both(RECEIVE, NEWEST, "_rows, _new = _newest[: len(_host.agent_ids)], _range"),
        ),
        envs=("identity",),
        backend="pool",
    ),
    Mutant(
        "actions_sorted",
        "Actions are sent, in training and in evaluation, as if batches were sorted by environment id.",
        (
            *both(LEARN, SEND, "_vec.send(_actions, env_ids=np.sort(_vec.host_batch.env_ids))"),
            Edit(Dealer._send, "_vec.send(_actions, env_ids=_slots)", "_vec.send(_actions, env_ids=np.sort(_slots))"),
        ),
        envs=("identity",),
        backend="pool",
    ),
)
