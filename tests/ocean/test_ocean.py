"""What holds for every environment of Ocean, found by the registry: a newcomer's file is tested by being there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import pufferlib
from ocean.suite import tasks
from pufferlib import registry
from pufferlib.testing import CHECKS, check_env
from pufferlib.training.random_policy import random_actor

pytestmark = pytest.mark.beside

NAMES = [entry.name.removeprefix("ocean/") for entry in registry.names() if entry.name.startswith("ocean/")]
LEARNABLE = [name.removeprefix("ocean/") for name in tasks.names()]
SECTIONS = ("Observation", "Actions", "Reward", "Ending", "Score", "Catches", "Source")
# All checks in the short form, too, are for one of each kind, and for every newcomer; these have one there.
ALIKE = {"bandit", "bell", "continuous", "identity", "memory", "mixed", "password", "performance", "stochastic"}
ALIKE |= {"spaces", "truncation", "uneven"}
IN_INTERPRETERS = {"pickles", "processes", "backends", "step_after_end"}  # checks for which interpreters are started
QUICK = {"performance": {"mean_s": 0}, "uneven": {"step_s": 0}}
NUM_SCORES = 1000
each_environment = pytest.mark.parametrize("name", NAMES)
each_learnable = pytest.mark.parametrize("name", LEARNABLE)


def scores(name: str, player: Callable[[pufferlib.VecEnv], Callable[[pufferlib.Batch], Any]]) -> np.ndarray:
    """What the first agents to finish score; player(vec) gives what plays."""
    values: list[float] = []
    with pufferlib.make(f"ocean/{name}", num_envs=20, seed=1) as vec:
        play = player(vec)
        vec.async_reset()
        while True:
            batch = vec.recv()
            values += [info["score"] for info in batch.infos if "score" in info]
            if len(values) >= NUM_SCORES:
                return np.array(values)
            vec.send(play(batch))


def solver(vec: pufferlib.VecEnv) -> Callable[[pufferlib.Batch], Any]:
    """What plays as ``solve`` says."""

    def play(batch: pufferlib.Batch) -> Any:
        actions = vec.call("solve", env_ids=batch.env_ids.tolist())
        if not isinstance(actions[0], dict):
            return np.concatenate(actions)
        flat = [vec.action_layout.flatten(action) for action in actions]
        if isinstance(flat[0], tuple):
            return tuple(np.stack(parts) for parts in zip(*flat, strict=True))
        return np.stack(flat)

    return play


def require_mean(values: np.ndarray, stated: float) -> None:
    assert ((values >= 0) & (values <= 1)).all()
    assert abs(values.mean() - stated) <= 6 * values.std() / len(values) ** 0.5 + 1e-6


@each_environment
def test_the_docstring_says_what_one_needs_to_know(name: str) -> None:
    text = sys.modules[registry.creator(f"ocean/{name}").__module__].__doc__ or ""
    class_name = "".join(map(str.capitalize, name.split("_")))
    assert re.match(rf"{class_name}: \w.*\.\n\n", text)
    assert [heading for heading in re.findall(r"^([A-Z]\w+) ", text, re.MULTILINE) if heading in SECTIONS] == [
        *SECTIONS
    ]


@each_environment
def test_it_is_drawn_in_the_terminal_and_in_colour(name: str) -> None:
    creator = registry.creator(f"ocean/{name}")
    for mode in ("ansi", "rgb_array"):
        env = creator(render_mode=mode)
        assert mode in env.metadata["render_modes"]
        env.reset(seed=1)
        picture = env.render()
        if mode == "ansi":
            assert isinstance(picture, str) and picture.strip()
        else:
            assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    plain = creator()
    plain.reset(seed=1)
    assert plain.render() is None
    with pytest.raises(ValueError, match='use "ansi", "rgb_array" or None'):
        creator(render_mode="human")


def require_conformance(name: str, checks: Iterable[str] = CHECKS) -> None:
    report = check_env(f"ocean/{name}", env_kwargs=QUICK.get(name, {}), num_steps=300, only=checks)
    assert report.passed, str(report)
    warnings = {result.name for result in report if result.status == "warning"}
    assert warnings <= {"other_seeds"}  # of those that draw nothing by default


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ALIKE else []) for name in NAMES]
)
def test_check_env_passes(name: str) -> None:
    require_conformance(name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if number % 3 == 0 else [pytest.mark.long])
        for number, name in enumerate(sorted(ALIKE))
    ],
)
def test_check_env_passes_within_this_process(name: str) -> None:
    require_conformance(name, set(CHECKS) - IN_INTERPRETERS)


@each_environment
def test_what_can_be_learnt_has_a_bar_between_chance_and_best(name: str) -> None:
    env_creator = registry.creator(f"ocean/{name}")
    if name in LEARNABLE:
        assert 0 <= env_creator.chance < env_creator.bar < env_creator.best <= 1
        assert tasks.catches(f"ocean/{name}")
    else:
        assert getattr(env_creator, "bar", None) is env_creator.chance is env_creator.best is None


@each_learnable
def test_solve_reaches_the_best_score_and_passes(name: str) -> None:
    values, env_creator = scores(name, solver), registry.creator(f"ocean/{name}")
    require_mean(values, env_creator.best)
    assert values.mean() >= env_creator.bar


@each_learnable
def test_uniform_play_scores_chance_and_does_not_pass(name: str) -> None:
    values, env_creator = scores(name, random_actor), registry.creator(f"ocean/{name}")
    require_mean(values, env_creator.chance)
    assert values.mean() < env_creator.bar
