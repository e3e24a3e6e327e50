"""Continuous Tag among 1,100 agents: the kernel plays what its reference plays, in ten scenes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import FIBRES, LOOPS, Player

import pufferlib
from cuda_ext.references.tag_continuous import TagContinuous
from cuda_ext.schema import KernelEnv
from cuda_ext.tag_continuous import KERNEL

pytestmark = pytest.mark.beside

NUM_AGENTS, NUM_PARTS = 1_100, 44
ANYWHERE = np.random.default_rng(1).uniform(0, 1, (NUM_AGENTS, 3))
DEFAULTS: dict[str, Any] = {
    "num_taggers": 100, "grid_length": 1, "full_observation": False, "num_nearest": 10, "max_speed": 0.05,
    "max_acceleration": 0.01, "min_acceleration": -0.01, "tagging_distance": 0.005,
}  # fmt: skip
SCENES: dict[str, dict[str, Any]] = {
    "few are tagged": {"tagging_distance": 0.001, "episode_length": 400},
    "many are tagged at once": {"tagging_distance": 0.03, "episode_length": 120},
    "one tagger": {"num_taggers": 1, "tagging_distance": 0.02},
    "one runner": {"num_taggers": NUM_AGENTS - 1, "tagging_distance": 0.001, "num_nearest": 3},
    "nobody leaves": {
        "runner_exits_game_after_tagged": False, "num_nearest": 32, "edge_hit_penalty": -0.5, "episode_length": 150
    },
    "all go to the edge": {"max_speed": 1, "max_acceleration": 1, "step_reward_for_runner": 0.1},
    "on one spot": {"start": "fixed", "starts": ANYWHERE * 0 + 0.5, "tagging_distance": 0},
    "in a corner": {"start": "fixed", "starts": ANYWHERE * [0.02, 0.02, 6], "tagging_distance": 0.0005},
    "on a line": {"start": "fixed", "starts": ANYWHERE * [1, 0, 0], "num_nearest": 1, "max_turn": 0, "min_turn": 0},
    "from a pool": {"start": "pool", "episode_length": 60, "skill_level_tagger": 0.3, "step_penalty_for_tagger": -0.01},
}  # fmt: skip


class InTurn(TagContinuous):
    """The reference, which observes for some agents in each step: for all of them a step would take 70 ms, not 5."""

    def _observe(self, agents: Any) -> Any:
        rows = np.zeros((len(agents), *self._observation_space.shape), np.float32)
        some = np.flatnonzero(agents % NUM_PARTS == self.t % NUM_PARTS)
        rows[some] = super()._observe(agents[some])
        return rows


def assert_same(kernel: KernelEnv, scene: str, num_steps: int, kernel_players: Sequence[Player]) -> None:
    """Compare all state and rows of one environment, to the bit; of observations those of InTurn."""
    env_kwargs = {**DEFAULTS, **SCENES[scene]}
    env_kwargs["num_runners"] = NUM_AGENTS - env_kwargs["num_taggers"]
    arguments: dict[str, Any] = {"num_envs": 1, "seed": 3, "env_kwargs": env_kwargs}
    rng = np.random.default_rng(2)
    actions = rng.integers(0, 11, (NUM_AGENTS, 2))
    with ExitStack() as stack:
        reference = stack.enter_context(pufferlib.make(InTurn, backend="serial", **arguments))
        kernels = {}
        for player in kernel_players:
            kernels[player.name] = stack.enter_context(player.make(kernel, **arguments))
        for vec in (reference, *kernels.values()):
            vec.reset()
        for step in range(num_steps + 1):
            for player, kernel_vec in kernels.items():
                for name, one, other in compared(reference, kernel_vec):
                    assert one.tobytes() == other.tobytes(), f"{scene}, {player}, step {step}: {name} differs"
            drawn = rng.integers(0, 11, (NUM_AGENTS, 2))
            actions = np.where(rng.random((NUM_AGENTS, 1)) < 0.5, actions, drawn)  # or none would get far
            for vec in (reference, *kernels.values()):
                vec.step(actions)


def compared(reference: Any, vec: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what has to be the same: its name, the reference's and the kernel's."""
    for name, field in vec.data.fields.items():
        if field.role == "state":
            yield name, np.asarray(reference.get_attr(name)).astype(field.dtype), vec.data.pull(name)
    ours, theirs = vec.host_batch, reference.batch
    for name in ("rewards", "terminations", "truncations", "masks"):
        yield name, getattr(theirs, name), np.asarray(getattr(ours, name))
    some = slice(reference.get_attr("t")[0] % NUM_PARTS, None, NUM_PARTS)
    yield "observations", theirs.observations[some], np.asarray(ours.observations)[some]


# For which fibres are compiled once, in the short form, whose steps the long one begins with.
SOME = ("many are tagged at once", "one tagger", "in a corner", "from a pool")


@pytest.mark.parametrize(
    ("scene", "num_steps"),
    [*((scene, 10) for scene in SOME), *(pytest.param(scene, 200, marks=pytest.mark.long) for scene in SCENES)],
)
def test_the_kernel_plays_what_its_reference_plays(scene: str, num_steps: int) -> None:
    assert_same(KERNEL, scene, num_steps, [LOOPS, FIBRES])


@pytest.mark.gpu
@pytest.mark.parametrize("num_steps", [10, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("scene", SCENES)
def test_the_kernel_plays_what_its_reference_plays_on_a_device(scene: str, num_steps: int, device: str) -> None:
    assert_same(KERNEL, scene, num_steps, [Player("device", device, {})])


def test_a_kernel_that_looks_not_far_enough_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops at the ring of cells beyond which nobody is nearer than the nearest, rather than the last it keeps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text, sound = Path(KERNEL.source).read_text(), "(unsigned)(nearest[env.num_nearest - 1] >> 32)"
    assert text.count(sound) == 1
    source = tmp_path / "tag_continuous.cuh"
    source.write_text(text.replace(sound, "(unsigned)(nearest[0] >> 32)"))
    with pytest.raises(AssertionError, match="few are tagged, fibres, step 0: observations differs"):
        assert_same(dataclasses.replace(KERNEL, source=str(source)), "few are tagged", 10, [FIBRES])
