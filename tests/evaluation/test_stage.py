"""The rows that wait for an evaluation's policy: the compiled path adds the same ones as the careful one."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from mock_envs import HashEnv, HashPopulation

import pufferlib
from pufferlib import _native
from pufferlib.evaluation import PolicyBatch
from pufferlib.vectorization import Batch
from pufferlib.vectorization.core.infos import Infos

pytestmark = pytest.mark.beside
needs_compiled = pytest.mark.skipif(not _native.available, reason=f"there is one path only: {_native.reason}")

NUM_ENVS, NUM_AGENTS, NUM_PLACES = 6, 2, 4


class CarefulRows:
    """In place of EpisodeRows: leaves every batch to Python."""

    def __init__(self, *arguments: object) -> None:
        pass

    def add(self, batch: Batch) -> int:
        return -1


class Watcher:
    """A policy whose actions depend on all bytes of a row. seen: the real rows of each call."""

    def __init__(self, num_envs: int) -> None:
        self.seen: list[list[tuple[Any, ...]]] = []
        self._num_envs = num_envs

    def __call__(self, batch: PolicyBatch) -> Any:
        num_agents = len(batch.agent_ids) // len(batch.env_ids)
        parts = [np.asarray(part).reshape(len(batch.env_ids), -1) for part in batch]
        assert (parts[4] == parts[3] * num_agents + np.arange(num_agents)).all()
        rows = [tuple(part[index].tobytes() for part in parts) for index in range(len(batch.env_ids))]
        self.seen.append(
            [row for row, env_id in zip(rows, batch.env_ids.tolist(), strict=True) if env_id < self._num_envs]
        )
        # Not of the slot, which another plan would change.
        actions = [
            [zlib.crc32(repr((row[:3], row[5:], agent)).encode()) % 9 for agent in range(num_agents)] for row in rows
        ]
        return np.array(actions, np.int64).reshape(-1)


@needs_compiled
@pytest.mark.parametrize("max_steps", [None, 4])
@pytest.mark.parametrize("env", [HashEnv, HashPopulation])
def test_a_policy_sees_the_same_rows_on_both_paths(
    env: Any, max_steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, results = _native.staging.EpisodeRows, list[Any]()
    num_added: list[int] = []

    class Counted:
        def __init__(self, *arguments: Any) -> None:
            self._rows = compiled(*arguments)

        def add(self, batch: Batch) -> int:
            num_added.append(self._rows.add(batch))
            return num_added[-1]

    how: dict[str, Any] = {"episodes": 40, "max_steps": max_steps, "policy_batch": 3, "fresh": "never"}
    if env is HashPopulation:
        how["wrap_kwargs"] = {"max_agents": 4}
    for plan in ({"backend": "serial", "num_envs": 2}, {"backend": "pool", "num_envs": 5, "num_workers": 2}):
        for kind in (CarefulRows, Counted):
            monkeypatch.setattr(_native.staging, "EpisodeRows", kind)
            policy = Watcher(plan["num_envs"])  # type: ignore[arg-type]
            results.append((pufferlib.evaluate(env, policy, **plan, **how), policy.seen))
    assert all(episodes == results[0][0] for episodes, _ in results)
    assert results[0][1] == results[1][1]
    assert {*map(len, results[0][1])} >= {1, 2}
    assert num_added.count(-1) > 40 and len(num_added) - num_added.count(-1) > 40


def rows(slots: list[int], **changes: Any) -> Batch:
    """Return a batch in which all agents of these environments go on, with some fields replaced."""
    num_rows = len(slots) * NUM_AGENTS
    fields = {
        "observations": np.arange(num_rows * 3, dtype=np.int16).reshape(num_rows, 3) + 1,
        "rewards": np.arange(num_rows, dtype=np.float32) + 1,
        "terminations": np.zeros(num_rows, np.bool_),
        "truncations": np.zeros(num_rows, np.bool_),
        "infos": Infos([], [], NUM_AGENTS),
        "env_ids": np.array(slots),
        "agent_ids": np.zeros(num_rows, np.int64),
        "masks": np.ones(num_rows, np.bool_),
    }
    return Batch(**{**fields, **changes})


def at(index: int, num: int = 2 * NUM_AGENTS) -> Any:
    return np.arange(num) == index


REFUSED = {
    "an environment without an episode": rows([0, 5]),
    "ids out of range": rows([0, NUM_ENVS]),
    "an id below 0": rows([0, -1]),
    "one place for two": rows([0, 4]),
    "a taken place": rows([0, 1]),
    "the last step": rows([0, 2]),
    "a termination": rows([0, 3], terminations=at(3)),
    "a truncation": rows([0, 3], truncations=at(0)),
    "flags of another type": rows([0, 3], terminations=np.zeros(4, np.uint8)),
    "rewards of another type": rows([0, 3], rewards=np.ones(4)),
    "observations of another type": rows([0, 3], observations=np.zeros((4, 3), np.uint16)),
    "observations of another width": rows([0, 3], observations=np.zeros((4, 2), np.int16)),
    "observations as a list": rows([0, 3], observations=[[0, 0, 0]] * 4),
    "observations that are no block": rows([0, 3], observations=np.zeros((3, 4), np.int16).T),
    "too few masks": rows([0, 3], masks=np.ones(3, np.bool_)),
    "ids as a list": rows([0, 3], env_ids=[0, 3]),
    "ids of another type": rows([0, 3], env_ids=np.array([0, 3], np.int32)),
    "ids in two dimensions": rows([0, 3], env_ids=np.array([[0], [3]])),
}


def staged() -> tuple[Any, PolicyBatch, tuple[Any, ...]]:
    """Return EpisodeRows with max_steps 5, its PolicyBatch, and its arrays by slot: place 1 is taken, by slot 1.

    The memory before and after the arrays by slot would do for further slots.
    """
    layer = PolicyBatch(
        np.zeros((NUM_PLACES * NUM_AGENTS, 3), np.int16),
        np.zeros(NUM_PLACES * NUM_AGENTS, np.float32),
        np.zeros(NUM_PLACES * NUM_AGENTS, np.bool_),
        NUM_ENVS + np.arange(NUM_PLACES),
        np.zeros(NUM_PLACES * NUM_AGENTS, np.int64),
        np.zeros(NUM_PLACES, np.int64),
        np.zeros(NUM_PLACES, np.int64),
    )
    heights = np.array([0, 1, 0, 0])
    episodes = np.array([5, 3, 1, 2, 0, 4, -1, 5])[1:-1]
    seeds = np.array([103, 100, 101, 102, 103, 104, 103, 103])[1:-1]
    steps = np.array([0, 0, 0, 4, 3, 0, 0, 0])[1:-1]
    returns = np.full((1 + NUM_ENVS + 1, NUM_AGENTS), 0.5)[1:-1]
    compiled = _native.staging.EpisodeRows(layer, heights, episodes, seeds, steps, returns, 5)
    return compiled, layer, (heights, episodes, seeds, steps, returns)


@needs_compiled
@pytest.mark.parametrize("case", REFUSED)
def test_the_compiled_path_leaves_a_batch_that_is_not_plain(case: str) -> None:
    compiled, layer, of_slots = staged()
    before = [np.array(part) for part in (*layer, *of_slots)]
    assert compiled.add(REFUSED[case]) == -1
    assert all(map(np.array_equal, before, (*layer, *of_slots)))
    assert compiled.add(rows([0, 3])) == 2


@needs_compiled
def test_the_compiled_path_counts_and_copies_a_plain_batch() -> None:
    compiled, layer, (heights, _, _, steps, returns) = staged()
    batch = rows([3, 0], masks=np.array([True, False, False, False]))
    assert compiled.add(batch) == 1
    assert steps.tolist() == [0, 0, 4, 4, 0, 0] and returns[3].tolist() == [1.5, 0.5] and (returns[:3] == 0.5).all()
    assert heights.tolist() == [1, 1, 0, 1]
    assert layer.env_ids.tolist() == [0, 7, 8, 3] and layer.seeds.tolist() == [100, 0, 0, 103]
    assert layer.steps.tolist() == [0, 0, 0, 4]
    places = [6, 7, 0, 1]
    for source, target in ((batch.observations, layer.observations), (batch.rewards, layer.rewards)):
        assert (target[places] == source).all() and not target[2:6].any()
    assert layer.masks.tolist() == [False] * 6 + [True, False]


def test_places_at_which_no_environment_waits_hold_earlier_rows() -> None:
    staged_rows: list[bytes] = []

    def policy(batch: PolicyBatch) -> Any:
        staged_rows.extend(row.tobytes() for row in batch.observations[batch.env_ids < 3])
        assert {row.tobytes() for row in batch.observations} <= {*staged_rows}
        empty = batch.env_ids >= 3
        assert (batch.env_ids[empty] == (3 + np.arange(8))[empty]).all() and not batch.masks[empty].any()
        assert (batch.steps[empty] == 1).all() and empty.sum() >= 5
        return np.zeros(8, np.int64)

    pufferlib.evaluate(HashEnv, policy, episodes=20, backend="serial", num_envs=3, policy_batch=8, fresh="never")
    assert len(staged_rows) > 40


def test_each_layer_is_filled_with_rows_that_were_there() -> None:
    slots: list[int] = []
    seen: set[bytes] = set()

    def policy(batch: PolicyBatch) -> Any:
        exists = batch.env_ids < 3
        assert exists.tolist() == [True] + [False] * 3  # all seeds have the same place
        seen.add(batch.observations[0].tobytes())
        assert {row.tobytes() for row in batch.observations} <= seen and (batch.seeds[exists] % 4 == 0).all()
        slots.append(int(batch.env_ids[0]))
        return np.zeros(4, np.int64)

    how: dict[str, Any] = {"backend": "serial", "num_envs": 3, "policy_batch": 4, "fresh": "never"}
    pufferlib.evaluate(HashEnv, policy, seeds=range(0, 48, 4), **how)
    assert slots[:3] == [0, 1, 2]


def test_a_limit_may_be_larger_than_any_integer_of_numpy() -> None:
    how: dict[str, Any] = {"episodes": 5, "backend": "serial"}
    policy = Watcher(5)
    assert pufferlib.evaluate(HashEnv, policy, max_steps=2**70, **how) == pufferlib.evaluate(HashEnv, policy, **how)
