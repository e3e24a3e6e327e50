"""Checks: what shows a bug without training, where training is known not to show it, or only after half a minute.

PUFFERLIB_NATIVE=0 python -m cleanrl_demo.suite.checks        # every mutant that names some, as JSON
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
from cleanrl_demo.suite.mutants import MUTANTS, infected
from cleanrl_demo.suite.tasks import demo_trainer
from pufferlib.models import Actor, Distribution

__all__ = ["CHECKS", "Check", "checked", "checked_elsewhere"]

SMALL = 1e-4  # what float32 may make of two ways to the same number
SOLVED = ("multiagent", "spaces", "mixed", "identity")
SEEN = ("squared", "truncation", "identity")
LEARNT = ("squared", "spaces", "continuous", "stochastic", "memory", "bell")


@dataclass(frozen=True)
class Check:
    """Whether something is broken. finds: returns True where it is."""

    description: str
    finds: Callable[[], bool]

    def __call__(self) -> bool:
        """Return whether something is broken; what raises is, too."""
        try:
            with redirect_stdout(StringIO()):
                return self.finds()
        except Exception:
            traceback.print_exc()
            return True


def _losses(trainer: Any, **settings: Any) -> list[dict[str, float]]:
    """Return the losses of each update of a short training from random weights, so large that actions matter."""
    losses: list[dict[str, float]] = []
    learn, make = trainer.update, trainer.make_learner

    def update(learner: Any, rollout: Any, config: Any) -> dict[str, float]:
        losses.append(learn(learner, rollout, config))
        return losses[-1]

    def make_learner(*args: Any) -> Any:
        learner = make(*args)
        (weights,) = learner.optimizer.param_groups[0]["params"]
        weights.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
        return learner

    given = {"backend": "serial", "num_envs": 4, "rollout_length": 16, "runs": None, "eval_episodes": 1}
    with mock.patch.object(trainer, "update", update), mock.patch.object(trainer, "make_learner", make_learner):
        trainer.train(trainer.Config(**{**given, **settings}))
    return losses


def _ratios_differ() -> bool:
    for env in LEARNT:
        trainer = demo_trainer(f"ocean/{env}")
        for losses in _losses(trainer, env=f"ocean/{env}", learning_rate=0.0, total_steps=60):
            if abs(losses["losses/approx_kl"]) > SMALL or losses["losses/clipfrac"]:
                return True
    return False


def _entropy_falls() -> bool:
    """Rewards of next to nothing and a critic that learns nothing leave the entropy as all there is to gain."""
    alone = {"reward_clip": 1e-9, "gamma": 0.0, "value_coefficient": 0.0, "entropy_coefficient": 1.0}
    for trainer, env in ((ppo, "bandit"), (ppo_lstm, "memory")):
        settings = {**alone, "env": f"ocean/{env}", "learning_rate": 1e-2, "total_steps": 300}
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
    choices = torch.stack([torch.randint(n, (5,), generator=generator) for n in (2, 3)], 1)
    aims = torch.randn(5, 3, generator=generator)
    expected = torch.distributions.Normal(mean, std).log_prob(aims).sum(1)
    for part, chosen in zip(logits, choices.unbind(1), strict=True):
        expected = expected + torch.distributions.Categorical(logits=part).log_prob(chosen)
    found = Distribution(logits, mean, std).log_prob(choices, aims)
    return not torch.allclose(found, expected, atol=SMALL)


def _advantages_differ() -> bool:
    """One agent's line: an episode that is terminated, one that is truncated, and the beginning of a third."""
    rewards, values = (np.random.default_rng(seed).normal(size=10).astype(np.float32) for seed in (1, 2))
    terminations, truncations, real = (np.zeros(10, np.bool_) for _ in range(3))
    terminations[2] = truncations[6] = True
    real[[0, 1, 2, 4, 5, 6]] = True  # 3 and 7 are final rows, 8 waits for its outcome, 9 is nobody's
    following = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 9])
    gamma, decay = 0.9, 0.9 * 0.8
    after = np.where(terminations, 0, values[following])
    deltas = rewards + gamma * after - values
    expected = np.zeros(10)
    for last in (2, 6):
        expected[last] = deltas[last]
        for row in (last - 1, last - 2):
            expected[row] = deltas[row] + decay * expected[row + 1]
    for trainer in (ppo, ppo_lstm):
        batches = [slice(row, row + 1) for row in range(9)]
        lines = (terminations, truncations, real, following, batches)
        if not np.allclose(trainer.advantages(rewards, values, *lines, gamma, 0.8), expected, atol=SMALL):
            return True
    return False


def _unsolved() -> bool:
    """Batches hold half of the environments, so that ids and places differ."""
    for env in SOLVED:
        with pufferlib.make(f"ocean/{env}", num_envs=4, batch_size=2, seed=1) as vec:
            scores: list[float] = []
            vec.async_reset()
            for _ in range(40):
                batch = vec.recv()
                scores += [info["score"] for info in batch.infos if "score" in info]
                solved = vec.call("solve", env_ids=batch.env_ids.tolist())
                vec.send(_rows(vec, solved))
            if not scores or min(scores) < 1 - SMALL:
                return True
    return False


def _rows(vec: pufferlib.VecEnv, solved: Sequence[Any]) -> Any:
    """Return what ``solve`` of each environment returned as the flat actions of a batch."""
    if not isinstance(solved[0], Mapping):
        return np.concatenate(solved)
    flat = [vec.action_layout.flatten(action) for action in solved]
    return tuple(map(np.stack, zip(*flat, strict=True))) if isinstance(flat[0], tuple) else np.stack(flat)


def _seen_otherwise() -> bool:
    """Each row is compared with what its environment shows, the last row of an episode included."""
    for env in SEEN:
        with pufferlib.make(f"ocean/{env}", num_envs=4, batch_size=2, seed=1) as vec:
            vec.async_reset()
            for _ in range(40):
                batch = vec.recv()
                shown = np.concatenate(vec.get_attr("observations", env_ids=batch.env_ids.tolist()))
                if not np.array_equal(batch.observations, shown):
                    return True
                vec.send(_rows(vec, vec.call("solve", env_ids=batch.env_ids.tolist())))
    return False


CHECKS = {
    "ratios_begin_at_one": Check(
        "before the policy has changed, the update finds the probabilities that play has kept", _ratios_differ
    ),
    "entropy_grows": Check("where there is nothing else to gain, the update makes play more even", _entropy_falls),
    "begins_undecided": Check("an untrained policy plays all actions about equally often", _begins_decided),
    "advantages_as_defined": Check(
        "advantages are the decayed sum of what came otherwise than expected, up to the episode's end",
        _advantages_differ,
    ),
    "log_prob_sums": Check("a whole action's log-probability is the sum of its parts', by torch", _log_prob_differs),
    "solved": Check("solve(), played through wrapper and backend, earns all there is", _unsolved),
    "observations_arrive": Check("rows hold what their environments show, an episode's last one too", _seen_otherwise),
}  # by what is true of sound code


def checked(names: Sequence[str | None]) -> dict[str, dict[str, bool]]:
    """Return what checks find, by mutant and check, in this process: True for broken. None, as "": nothing's there."""
    found: dict[str, dict[str, bool]] = {}
    for name in names:
        wanted = CHECKS if name is None else MUTANTS[name].checks
        with ExitStack() as stack:
            if name is not None:
                stack.enter_context(infected(name))
                stack.enter_context(redirect_stderr(StringIO()))  # where checks say why, which is the mutant's doing
            found[name or ""] = {check: CHECKS[check]() for check in wanted}
    return found


def checked_elsewhere() -> dict[str, dict[str, bool]]:
    """Return the same of all mutants, and of the code as it is, from a process without the compiled path.

    That path would bypass some mutants, and whether it is there is settled when pufferlib is imported. What checks find
    in the code as it is, and why that process fails if it does, is said on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", "cleanrl_demo.suite.checks"],
        env={**os.environ, "PUFFERLIB_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, bool]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(checked([None, *(name for name, mutant in MUTANTS.items() if mutant.checks)])))
