"""Films of a kernel's environments while they train: what was kept on the device is drawn as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cleanrl_demo.ppo_cuda import train
from pufferlib.errors import PlanError
from pufferlib.training.device_video import DeviceVideo
from tests.cleanrl_demo.test_ppo_cuda import SMALL, config, played

pytestmark = pytest.mark.beside

FILMED = (1, 6)
GAMES: dict[str, dict[str, Any]] = {
    "tag/grid": SMALL,
    "tag/continuous": {"num_taggers": 1, "num_runners": 2, "grid_length": 5.0, "episode_length": 9},
}


class Seen:
    """Instead of Videos: draws all it is shown."""

    def __init__(self) -> None:
        self.pictures: list[np.ndarray] = []
        self.calls: list[tuple[int, list[bool], list[float]]] = []

    def see_one(self, env_id: int, masks: Any, rewards: Any, draw: Any, num_steps: int) -> None:
        assert num_steps == 70
        self.pictures.append(draw())
        self.calls.append((env_id, masks.tolist(), rewards.tolist()))


@pytest.mark.parametrize("env", GAMES)
def test_what_is_drawn_later_is_what_was_there(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live, calls = [], []
    keep = DeviceVideo.take

    def take(device_video: DeviceVideo, step: int, batch: Any) -> None:
        keep(device_video, step, batch)
        live.extend(device_video.vec.render(env_ids=FILMED))
        columns = [part.view(8, 3)[list(FILMED)].tolist() for part in (batch.masks, batch.rewards)]
        calls.extend(zip(FILMED, *columns, strict=True))

    monkeypatch.setattr(DeviceVideo, "take", take)
    kwargs = {**GAMES[env], "render_mode": "rgb_array"}
    _, rollout, vec = played(config(env=env, env_kwargs=kwargs, video_envs=FILMED, rollout_length=25, runs="unused"))
    with vec:
        assert rollout.device_video is not None
        vec.stats(reset=True)  # type: ignore[call-arg]
        vec.render(env_ids=FILMED)
        # Of two of eight environments: what a state of one has, twice.
        pair = sum(part[0].nbytes for part in vec.states().values())  # type: ignore[attr-defined]
        assert vec.stats().device_to_host_nbytes == 2 * pair  # type: ignore[attr-defined]
        seen: Any = Seen()
        rollout.device_video.show(seen, rollout.device_video.tensors(), 70)
    live, calls = live[2:], calls[2:]  # after what they began with
    assert len(seen.pictures) == len(live) == 50 and seen.calls == calls
    assert all(np.array_equal(*pair) for pair in zip(seen.pictures, live, strict=True))
    assert len({picture.tobytes() for picture in live}) > 20  # and something happens


@pytest.mark.long
@pytest.mark.parametrize("env", ["tag/grid", "tag/continuous"])
def test_chosen_environments_are_filmed_while_they_train(env: str, tmp_path: Path) -> None:
    settings = {"env": env, "env_kwargs": GAMES[env], "total_steps": 2000, "runs": str(tmp_path)}
    result = train(config(**settings, video_envs=FILMED, video_every=1000))
    folder = result.run_folder
    assert folder is not None
    films = sorted((folder / "videos").iterdir())
    begun = [tuple(int(word) for word in film.stem.split("-")[1::2]) for film in films]
    assert {env_id for env_id, _ in begun} == set(FILMED) and {(1, 0), (6, 0)} < set(begun)
    assert all(step == 0 or 1000 <= step <= 2000 for _, step in begun) and len(begun) == 4
    for film in films:
        with Image.open(film) as pictures:
            assert 2 <= pictures.n_frames <= 10  # the picture of the reset, and one of each step
    plain = train(config(**settings | {"runs": None})).actor.policy.state_dict()
    assert all(torch.equal(part, plain[name]) for name, part in result.actor.policy.state_dict().items())


def test_films_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(PlanError, match=r"video_envs=\[8\] do not exist; use 0 to 7"):
        train(config(video_envs=(8,), runs="unused"))
    with pytest.raises(PlanError, match="but runs=None writes nothing"):
        train(config(video_envs=(0,)))
