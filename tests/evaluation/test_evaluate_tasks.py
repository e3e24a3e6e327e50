"""``evaluate`` with ``tasks``: every seed in every task, few environments at a time, the same on every backend."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mock_envs import HashEnv, NestedHashEnv

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.evaluation import PolicyBatch, uniforms
from pufferlib.evaluation.rules import EpisodeQueue, Rules

pytestmark = pytest.mark.beside

PLANS: list[dict[str, Any]] = [
    {"backend": "serial", "num_envs": 1},
    {"backend": "serial", "num_envs": 5, "batch_size": 2},
    {"backend": "multiprocessing", "num_envs": 4, "num_workers": 2},
    {"backend": "pool", "num_envs": 9, "num_workers": 2},
]


def noisy(batch: PolicyBatch) -> Any:
    return (uniforms(batch.seeds, batch.steps, batch.env_ids * 0, 1)[:, 0] * 9).astype(np.int64)


class Level(HashEnv):
    """A level pays its bonus in each step. It notes in a folder when it is made, and kills its worker on demand."""

    living, most_living = 0, 0

    def __init__(self, env_index: int = 0, level: int = 0, folder: str = "", dies: bool = False) -> None:
        super().__init__(env_index)
        self.level, self.folder, self.dies = level, folder, dies
        Level.living += 1
        Level.most_living = max(Level.living, Level.most_living)
        if folder:
            with open(f"{folder}/{level}", "a") as file:
                file.write("x")

    def step(self, action: Any) -> Any:
        if self.dies and self.tick == 2 and self.last_seed == 3 and not Path(self.folder, "died").exists():
            Path(self.folder, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        observation, reward, *rest = super().step(action)
        return observation, reward + self.level, *rest

    def close(self) -> None:
        Level.living -= 1


LEVELS = [{"level": level} for level in (3, 0, 20, 7)]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(PLANS[0], marks=pytest.mark.long),
        *PLANS[1:2],
        pytest.param(PLANS[2], marks=pytest.mark.long),
        PLANS[3],
    ],
)
def test_every_seed_is_played_in_every_task(plan: dict[str, Any], tmp_path: Path) -> None:
    how = {"seeds": range(6), "infos": ("tick",)}
    alone = [pufferlib.evaluate(Level, noisy, env_kwargs=level, backend="serial", **how) for level in LEVELS]
    Level.living = Level.most_living = 0
    env_kwargs = {"folder": str(tmp_path)}
    result = pufferlib.evaluate(Level, noisy, tasks=LEVELS, env_kwargs=env_kwargs, **plan, **how)
    assert result.tasks.tolist() == [name for name in ("level=3", "level=0", "level=20", "level=7") for _ in range(6)]
    assert result.seeds.tolist() == [*range(6)] * 4
    for name in ("returns", "lengths", "endings"):
        assert getattr(result, name).tolist() == [item for one in alone for item in getattr(one, name).tolist()]
    assert result.scores()["level=20"].tolist() == alone[2].returns.tolist()
    assert result.mean().value == pytest.approx(np.mean([one.returns.mean() for one in alone]))
    num_made = {path.name: len(path.read_text()) for path in tmp_path.iterdir()}
    assert sum(num_made.values()) <= plan["num_envs"] + 4 + 2  # one for each slot, task, and replay of the check
    if plan["backend"] == "serial":
        assert Level.most_living <= plan["num_envs"] and Level.living == 0


def test_tasks_are_creators_too_and_outlive_the_death_of_workers(tmp_path: Path) -> None:
    def easy() -> Any:
        return Level(level=1)

    tasks = {"easy": easy, "deadly": lambda: Level(level=5, folder=str(tmp_path), dies=True)}
    (tmp_path / "died").touch()
    expected = pufferlib.evaluate(None, noisy, tasks=tasks, seeds=range(8), backend="serial")
    assert [*expected.scores()] == ["easy", "deadly"] and not expected.restarts.any()
    (tmp_path / "died").unlink()
    result = pufferlib.evaluate(None, noisy, tasks=tasks, seeds=range(8), backend="pool", num_envs=4, num_workers=2)
    assert result == expected and result.restarts[8 + 3] and (tmp_path / "died").exists()
    several = pufferlib.evaluate(None, noisy, tasks=[easy, Level], seeds=[1], backend="serial")
    assert several.tasks.tolist() == ["easy", "Level"]


class Climbing(Level):
    """Remembers how often it was reset, from its second episode on."""

    num_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.num_resets += 1
        return super().reset(seed=seed, options={"played": min(self.num_resets, 2)})


def test_tasks_that_remember_are_found_and_stored_tasks_are_not_played_again(tmp_path: Path) -> None:
    how: dict[str, Any] = {"tasks": LEVELS, "seeds": range(4), "backend": "serial", "num_envs": 3}
    always = pufferlib.evaluate(Climbing, noisy, fresh="always", **how)
    with pytest.warns(RuntimeWarning, match=r"level=.*: the episode of seed .* had played before"):
        assert pufferlib.evaluate(Climbing, noisy, save=tmp_path / "a", **how) == always

    def played(batch: PolicyBatch) -> Any:
        raise AssertionError

    played.__module__, played.__qualname__ = noisy.__module__, noisy.__qualname__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pufferlib.evaluate(Climbing, played, save=tmp_path / "a", **how) == always


def test_an_environment_keeps_its_task_while_that_has_episodes() -> None:
    rules = Rules(np.tile(np.arange(5), 3), tasks=np.arange(3).repeat(5), creators=[dict] * 3)
    queue = EpisodeQueue(rules, [""] * 5 + ["cut"] * 3 + [""] * 7)
    env_tasks = [-1, -1]
    order = []
    for index in range(12):
        slot = index % 2
        episode = queue.take(env_tasks, slot)
        assert episode is not None
        env_tasks[slot] = rules.task_of(episode)
        order.append(env_tasks[slot])
    assert order == [0, 2] * 5 + [1, 1] and not queue and queue.take(env_tasks, 0) is None


def test_the_first_environments_are_shared_out_by_episodes() -> None:
    rules = Rules(np.tile(np.arange(10), 2), tasks=np.arange(2).repeat(10), creators=[dict] * 2)
    queue = EpisodeQueue(rules, [""] * 10 + ["cut"] * 6 + [""] * 4)
    assert queue.first_tasks(4) == [0, 0, 1, 0]  # of 10 and 4 episodes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tasks": []}, r"tasks=\[\] are none; pass a sequence"),
        ({"tasks": "Level"}, "tasks='Level' are none"),
        ({"tasks": LEVELS, "env": None}, "has arguments, but env=None; name the environment"),
        ({"tasks": [{"level": 1}, {"level": 1}]}, "several tasks are called level=1; pass a dict"),
        ({"tasks": LEVELS, "backend": "cuda"}, "which a kernel's share"),
        ({"tasks": LEVELS, "options": [{}, {}]}, "neither a mapping nor a sequence of 8"),
        ({"env": [Level, Level]}, "env lists 2 environments; pass them as tasks="),
    ],
)
def test_impossible_tasks_are_refused(arguments: dict[str, Any], says: str) -> None:
    how: dict[str, Any] = {"env": Level, "seeds": range(2), "backend": "serial", **arguments}
    with pytest.raises(PlanError, match=says):
        pufferlib.evaluate(how.pop("env"), "random", **how)


def test_a_task_with_other_spaces_fails_and_says_why() -> None:
    tasks = {"one": HashEnv, "other": NestedHashEnv}
    with pytest.warns(RuntimeWarning, match="other: the episode of seed .* failed 1 times: (?s:.*)environment"):
        result = pufferlib.evaluate(
            None, noisy, tasks=tasks, seeds=range(2), backend="serial", num_envs=1, max_restarts=0
        )
    assert (result.endings == "failed").tolist() == [False, False, True, True]
