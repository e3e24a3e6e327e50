"""Every kernel of cuda_ext plays what its reference plays, as loops and as a device would; a new file is found here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuda_ext
import pufferlib
from cuda_ext.schema import KernelEnv
from pufferlib.testing import check_kernel

KERNELS: list[KernelEnv] = [
    importlib.import_module(f"cuda_ext.{file.stem}").KERNEL
    for file in sorted(Path(str(cuda_ext.__file__)).parent.glob("*.cuh"))
    if file.with_suffix(".py").exists()
]
NAMES = [kernel.name for kernel in KERNELS]
CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "ocean/squared": [{"distance": 1}, {"distance": 2, "num_targets": 5}, {"num_targets": 24}],
    "tag/grid": [{"num_taggers": 3, "num_runners": 3, "grid_length": 4, "episode_length": 20}],
}
CASES = [(name, kwargs) for name in NAMES for kwargs in [{}, *CONFIGURATIONS.get(name, [])]]


@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=str)
def test_as_loops(name: str, kwargs: dict[str, Any]) -> None:
    report = check_kernel(name, device="host", env_kwargs=kwargs, num_envs=5, num_steps=150)
    assert report.passed, str(report)
    assert report.num_episodes > 0


@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=str)
def test_as_a_device_would(name: str, kwargs: dict[str, Any]) -> None:
    report = check_kernel(
        name, device="host", env_kwargs=kwargs, num_envs=7, num_steps=40, backend_kwargs={"checked": True}
    )
    assert report.passed, str(report)


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_is_the_same_as_its_steps(name: str) -> None:
    made: dict[str, Any] = dict(backend="cuda", device="host", num_envs=5, seed=1)
    with pufferlib.make(name, **made) as whole, pufferlib.make(name, **made) as single:
        whole.reset()
        single.reset()
        space = single.action_space
        space.seed(1)
        table = np.stack([space.sample() for _ in range(60)])
        played = whole.rollout(60, table)  # type: ignore[attr-defined]
        for step, actions in enumerate(table):
            single.step(actions)
            for column in ("observations", "rewards", "terminations", "truncations", "masks"):
                expected = getattr(single.batch, column)
                assert np.array_equal(getattr(played, column)[step], expected), (step, column)
        last = np.asarray(table[0])
        whole.step(last)
        single.step(last)
        assert np.array_equal(whole.batch.observations, single.batch.observations)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NAMES)
def test_a_random_rollout_repeats_with_its_seed(name: str) -> None:
    played = []
    for keep in (True, False):
        with pufferlib.make(name, backend="cuda", device="host", num_envs=5, seed=1) as vec:
            vec.reset()
            played.append(vec.rollout(60, keep=keep))  # type: ignore[attr-defined]
    assert np.array_equal(played[0].observations[-1], played[1].observations)
    assert len(np.unique(played[0].observations.numpy().reshape(60, -1), axis=0)) > 30  # it does not stand still


def test_the_score_of_a_policy_that_solves() -> None:
    with pufferlib.make("ocean/squared", backend="cuda", device="host", num_envs=20, seed=1) as vec:
        vec.reset()
        for _ in range(3):
            vec.step(np.concatenate(vec.call("solve")))
        assert vec.batch is not None
        assert [info["score"] for info in vec.batch.infos] == [1.0] * 20
