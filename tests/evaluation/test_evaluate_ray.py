"""``evaluate`` over Ray: the same episodes, also if an actor's environment fails."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mock_envs import HashEnv

import pufferlib

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.slow, pytest.mark.beside]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
        ray.init("local", include_dashboard=False, num_cpus=4, logging_level="error")
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """As everywhere; but idle processes of Ray's come and go as it likes."""
    yield
    processes = psutil.Process().children(recursive=True)
    actors = [process for process in processes if process.name().startswith("ray::Rollout")]
    _, left = psutil.wait_procs(actors, timeout=60)
    assert not left


class FailsOnce(HashEnv):
    def __init__(self, env_index: int = 0, folder: str = "") -> None:
        super().__init__(env_index)
        self.folder = folder

    def step(self, action: Any) -> Any:
        if self.folder and self.last_seed == 3 and not Path(self.folder, "failed").exists():
            Path(self.folder, "failed").touch()
            raise ValueError("this once")
        return super().step(action)


@pytest.mark.long
def test_ray_plays_what_serial_plays(tmp_path: Path) -> None:
    how = {"seeds": range(14), "infos": ("tick",)}
    expected = pufferlib.evaluate(FailsOnce, "random", backend="serial", **how)
    plan = {"backend": "ray", "num_envs": 4, "num_workers": 2, "env_kwargs": {"folder": str(tmp_path)}}
    for batch_size in (None, 3):
        result = pufferlib.evaluate(FailsOnce, "random", batch_size=batch_size, **plan, **how)
        assert result == expected
    assert (tmp_path / "failed").exists()
    tasks = {"short": {"mean_length": 3}, "long": {"mean_length": 9}}
    tasks_how: dict[str, Any] = {"seeds": range(3), "tasks": tasks}
    expected = pufferlib.evaluate(HashEnv, "random", backend="serial", **tasks_how)
    assert pufferlib.evaluate(HashEnv, "random", **{**plan, "env_kwargs": {}}, **tasks_how) == expected
