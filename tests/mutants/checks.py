"""Checks that find bugs without training, where training is known not to show them, or needs half a minute to.

PUFFERLIB_NATIVE=0 python -m tests.mutants.checks        # every mutant that names checks, as JSON
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from unittest import mock

import numpy as np
import torch

import pufferlib
from cleanrl_demo import ppo, ppo_lstm
from ocean.suite.tasks import demo_trainer
from pufferlib.models import Actor, Distribution

from .catalogue import MUTANTS, infected
from .replay_reference import buffer, expected_of, fed, priorities_differ, stored

__all__ = ["CHECKS", "Check", "checked", "checked_elsewhere"]

TOLERANCE = 1e-4  # between float32 results of two ways to compute the same number
SOLVED = ("multiagent", "spaces", "mixed", "identity")
OBSERVED = ("squared", "truncation", "identity")
TRAINED = ("squared", "spaces", "continuous", "stochastic", "memory", "bell")


@dataclass(frozen=True)
class Check:
    """A property of correct code. finds: returns True where the code violates it."""

    description: str
    finds: Callable[[], bool]

    def __call__(self) -> bool:
        """Return whether the code violates the property; code that raises does."""
        try:
            with redirect_stdout(StringIO()):
                return self.finds()
        except Exception:
            traceback.print_exc()
            return True


def _losses(trainer: Any, **settings: Any) -> list[dict[str, float]]:
    """Return the losses of each update of a short training, from random weights large enough for actions to matter."""
    losses: list[dict[str, float]] = []
    original_update, original_maker = trainer.update, trainer.make_learner

    def update(learner: Any, rollout: Any, config: Any) -> dict[str, float]:
        losses.append(original_update(learner, rollout, config))
        return losses[-1]

    def make_learner(*args: Any) -> Any:
        learner = original_maker(*args)
        (weights,) = learner.optimizer.param_groups[0]["params"]
        weights.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
        return learner

    defaults = {"backend": "serial", "num_envs": 4, "rollout_length": 16, "runs": None, "eval_episodes": 1}
    with mock.patch.object(trainer, "update", update), mock.patch.object(trainer, "make_learner", make_learner):
        trainer.train(trainer.Config(**{**defaults, **settings}))
    return losses


def _ratios_differ() -> bool:
    for env in TRAINED:
        trainer = demo_trainer(f"ocean/{env}")
        for losses in _losses(trainer, env=f"ocean/{env}", learning_rate=0.0, total_steps=60):
            if abs(losses["losses/approx_kl"]) > TOLERANCE or losses["losses/clipfrac"]:
                return True
    return False


def _entropy_falls() -> bool:
    """Leave entropy as the only objective: rewards are almost zero, and the critic learns nothing."""
    objective = {"reward_clip": 1e-9, "gamma": 0.0, "value_coefficient": 0.0, "entropy_coefficient": 1.0}
    for trainer, env in ((ppo, "bandit"), (ppo_lstm, "memory")):
        settings = {**objective, "env": f"ocean/{env}", "learning_rate": 1e-2, "total_steps": 300}
        entropies = [losses["losses/entropy"] for losses in _losses(trainer, **settings)]
        if not entropies[-1] > entropies[0]:
            return True
    return False


def _begins_decided() -> bool:
    with pufferlib.make("ocean/bandit", num_envs=4, seed=1) as vec:
        torch.manual_seed(1)
        space: Any = vec.single_action_space
        actor = Actor("mlp", vec.observation_layout, space)
        with torch.no_grad():
            distribution, *_ = actor(torch.from_numpy(vec.reset()[0]))
        return float(distribution.entropy().min()) < 0.99 * math.log(space.n)


def _log_prob_differs() -> bool:
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randn(5, n, generator=generator) for n in (2, 3)]
    mean, std = torch.randn(5, 3, generator=generator), torch.rand(5, 3, generator=generator) + 0.1
    discrete_actions = torch.stack([torch.randint(n, (5,), generator=generator) for n in (2, 3)], 1)
    continuous_actions = torch.randn(5, 3, generator=generator)
    expected = torch.distributions.Normal(mean, std).log_prob(continuous_actions).sum(1)
    for part, actions in zip(logits, discrete_actions.unbind(1), strict=True):
        expected = expected + torch.distributions.Categorical(logits=part).log_prob(actions)
    log_prob = Distribution(logits, mean, std).log_prob(discrete_actions, continuous_actions)
    return not torch.allclose(log_prob, expected, atol=TOLERANCE)


def _advantages_differ() -> bool:
    """Compare one agent's advantages: one terminated episode, one truncated episode, and the start of a third."""
    rewards, values = (np.random.default_rng(seed).normal(size=10).astype(np.float32) for seed in (1, 2))
    terminations, truncations, masks = (np.zeros(10, np.bool_) for _ in range(3))
    terminations[2] = truncations[6] = True
    masks[[0, 1, 2, 4, 5, 6]] = True  # 3 and 7 are final rows, 8 waits for its outcome, 9 belongs to no agent
    next_index = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 9])
    gamma, decay = 0.9, 0.9 * 0.8
    next_values = np.where(terminations, 0, values[next_index])
    deltas = rewards + gamma * next_values - values
    expected = np.zeros(10)
    for last in (2, 6):
        expected[last] = deltas[last]
        for row in (last - 1, last - 2):
            expected[row] = deltas[row] + decay * expected[row + 1]
    for trainer in (ppo, ppo_lstm):
        batches = [slice(row, row + 1) for row in range(9)]
        columns = (terminations, truncations, masks, next_index, batches)
        if not np.allclose(trainer.advantages(rewards, values, *columns, gamma, 0.8), expected, atol=TOLERANCE):
            return True
    return False


def _unsolved() -> bool:
    """Play each environment's own solution, in batches of half of the environments, so that ids and places differ."""
    for env in SOLVED:
        with pufferlib.make(f"ocean/{env}", num_envs=4, batch_size=2, seed=1) as vec:
            scores: list[float] = []
            vec.async_reset()
            for _ in range(40):
                batch = vec.recv()
                infos: Sequence[dict[str, Any]] = batch.infos
                scores += [info["score"] for info in infos if "score" in info]
                solutions = vec.call("solve", env_ids=batch.env_ids.tolist())
                vec.send(_rows(vec, solutions))
            if not scores or min(scores) < 1 - TOLERANCE:
                return True
    return False


def _rows(vec: pufferlib.VecEnv, solutions: Sequence[Any]) -> Any:
    """Return what ``solve`` of each environment returned as the flat actions of a batch."""
    if not isinstance(solutions[0], Mapping):
        return np.concatenate(solutions)
    flat = [vec.action_layout.flatten(action) for action in solutions]
    return tuple(map(np.stack, zip(*flat, strict=True))) if isinstance(flat[0], tuple) else np.stack(flat)


def _observations_differ() -> bool:
    """Compare each row, the last of an episode included, with its environment's observation."""
    for env in OBSERVED:
        with pufferlib.make(f"ocean/{env}", num_envs=4, batch_size=2, seed=1) as vec:
            vec.async_reset()
            for _ in range(40):
                batch = vec.recv()
                arrays: list[Any] = vec.get_attr("observations", env_ids=batch.env_ids.tolist())
                observations = np.concatenate(arrays)
                if not np.array_equal(batch.observations, observations):
                    return True
                vec.send(_rows(vec, vec.call("solve", env_ids=batch.env_ids.tolist())))
    return False


def _transitions_differ() -> bool:
    """Compare replay buffers with lists of rows: random endings, absences and orders of arrival."""
    for n_step in (1, 3):
        replay = buffer(4, 2, 3, n_step=n_step)
        lives = fed([replay], np.random.default_rng(n_step), 4, 2, 3, num_batches=60, rate=0.15)
        replay.end()
        if sorted(stored(replay)) != sorted(part for life in lives for part in expected_of(life, n_step)):
            return True
    return False


def _priorities_wrong() -> bool:
    """Compare draws with those of a list, where rows are overwritten and errors of former rows arrive late."""
    calls = [(7, 0, [8.0, 0.5, 3.0, 0.1]), (6, 1, [4.0, 9.0, 0.2, 6.0]), (5, 0, [0.1, 0.2, 0.3, 7.0])]
    late = [*calls, (8, 2, [5.0, 5.0, 5.0, 5.0]), (8, 0, [1.0, 2.0, 3.0, 4.0])]
    return any(priorities_differ(buffer(capacity=8, priority_exponent=0.7), late[:length]) for length in (2, 3, 4, 5))


CHECKS = {
    "ratios_begin_at_one": Check(
        "before the policy changes, the update computes the log-probabilities that play stored", _ratios_differ
    ),
    "entropy_grows": Check("where entropy is the only objective, the update increases it", _entropy_falls),
    "begins_undecided": Check("an untrained policy plays all actions about equally often", _begins_decided),
    "advantages_as_defined": Check(
        "advantages are the decayed sum of the temporal-difference errors up to the end of the episode",
        _advantages_differ,
    ),
    "log_prob_sums": Check("an action's log-probability is the sum of those of its parts, by torch", _log_prob_differs),
    "transitions_as_defined": Check(
        "the replay buffer's transitions are those of each agent's list of rows, of one and of several steps",
        _transitions_differ,
    ),
    "priorities_as_defined": Check(
        "the replay buffer draws by the last errors of the transitions that it has, new ones by the largest so far",
        _priorities_wrong,
    ),
    "solved": Check("solve(), played through wrapper and backend, earns the best score", _unsolved),
    "observations_arrive": Check(
        "rows hold the observations of their environments, the last one of an episode too", _observations_differ
    ),
}  # by the property that correct code has


def checked(names: Sequence[str | None]) -> dict[str, dict[str, bool]]:
    """Return whether each check finds a bug in this process, by mutant and check. None, "" in the result: no mutant."""
    results: dict[str, dict[str, bool]] = {}
    for name in names:
        checks = CHECKS if name is None else MUTANTS[name].checks
        with ExitStack() as stack:
            if name is not None:
                stack.enter_context(infected(name))
                stack.enter_context(redirect_stderr(StringIO()))  # tracebacks that the mutant causes
            results[name or ""] = {check: CHECKS[check]() for check in checks}
    return results


def checked_elsewhere() -> dict[str, dict[str, bool]]:
    """Return the same for all mutants and the unchanged code, from a process without the compiled path.

    That path would bypass some mutants, and it is chosen when pufferlib is imported. Prints to stderr what checks find
    in the unchanged code. Raises CalledProcessError if the process fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name],
        env={**os.environ, "PUFFERLIB_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results: dict[str, dict[str, bool]] = json.loads(done.stdout)
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(checked([None, *(name for name, mutant in MUTANTS.items() if mutant.checks)])))
