"""Films of the episodes of chosen seeds."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image, ImageSequence

import pufferlib
from pufferlib.errors import PlanError

pytestmark = pytest.mark.beside


class PictureEnv(gymnasium.Env):
    """Lasts as many steps as its seed says, and draws the seed and the time; dies once if it finds a file."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, render_mode: str | None = None, trap: str = "") -> None:
        self.render_mode, self.trap = render_mode, Path(trap)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed, self.time = seed, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.seed == 7 and self.time == 3 and self.trap.is_file():
            self.trap.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, np.float32), 1.0, self.time == 2 + self.seed % 5, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((16, 16, 3), (10 * self.seed, 50 * self.time, 0), np.uint8)


def colours(path: Path) -> list[tuple[int, ...]]:
    with Image.open(path) as image:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    return [tuple(frame[0, 0].tolist()) for frame in frames]


@pytest.mark.filterwarnings("ignore:environment . .* died:RuntimeWarning", "ignore:.*worker.*:RuntimeWarning")
@pytest.mark.parametrize("num_envs", [1, 4])
def test_the_chosen_seeds_are_filmed_wherever_they_are_played(tmp_path: Path, num_envs: int) -> None:
    trap = tmp_path / "trap"
    trap.touch()
    how: dict[str, Any] = {"seeds": range(20), "num_envs": num_envs, "num_workers": min(2, num_envs)}
    films = tmp_path / "films"
    filmed = pufferlib.evaluate(
        PictureEnv, "random", videos=[7, 16], videos_folder=films, env_kwargs={"trap": str(trap)}, **how
    )
    assert not trap.exists() and filmed.restarts[7] >= 1
    plain = pufferlib.evaluate(PictureEnv, "random", backend="serial", **{**how, "num_workers": None})
    assert np.array_equal(filmed.returns, plain.returns) and np.array_equal(filmed.lengths, plain.lengths)
    assert {path.name for path in films.iterdir()} == {"seed-7-return-4.gif", "seed-16-return-3.gif"}
    for seed, length in ((7, 4), (16, 3)):
        expected = [(10 * seed, 50 * time, 0) for time in range(length + 1)]
        np.testing.assert_allclose(colours(films / f"seed-{seed}-return-{length}.gif"), expected, atol=8)


def test_films_are_named_by_task_or_joined_in_one_file(tmp_path: Path) -> None:
    how: dict[str, Any] = {"seeds": range(6), "videos": (1, 4), "backend": "serial", "num_envs": 2}
    pufferlib.evaluate(PictureEnv, "random", tasks={"a b": {}, "c": {}}, videos_folder=tmp_path / "films", **how)
    names = {f"{task}-seed-{seed}-return-{2 + seed}.gif" for task in ("a-b", "c") for seed in (1, 4)}
    assert {path.name for path in (tmp_path / "films").iterdir()} == names
    pufferlib.evaluate(PictureEnv, "random", videos_folder=tmp_path / "both.gif", **how)
    assert len(colours(tmp_path / "both.gif")) == 4 + 7


def test_what_cannot_be_filmed_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    class Plain(PictureEnv):
        metadata = {"render_modes": ["human"]}

        def step(self, action: Any) -> Any:
            raise AssertionError("it is played")

    how: dict[str, Any] = {"seeds": range(6), "backend": "serial", "num_envs": 2, "videos_folder": tmp_path / "films"}
    with pytest.raises(PlanError, match=r"no episode to film has the seeds \[9\]; use some of those .*, 0, 1, 2, 3, …"):
        pufferlib.evaluate(PictureEnv, "random", videos=[2, 9], **how)
    with pytest.raises(PlanError, match="has human, and not rgb_array"):
        pufferlib.evaluate(Plain, "random", videos=[2], **how)
    assert not (tmp_path / "films").exists()
