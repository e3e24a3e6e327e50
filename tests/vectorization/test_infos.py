"""Infos: the same dicts on every backend and path, whenever they are read, and one key of all rows without dicts."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import struct
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_envs import HashPopulation
from test_paths import on_both, plain

import pufferlib
from pufferlib import _native
from pufferlib.vectorization import Infos

pytestmark = pytest.mark.beside

NUM_ENVS = 5
PLANS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "multiprocessing": {"backend": "multiprocessing", "num_workers": 2},
    "batches in order": {"backend": "multiprocessing", "num_workers": 2, "batch_size": 2},
    "pool": {"backend": "pool", "num_workers": 2, "batch_size": 2},
}


class Telling(gymnasium.Env[Any, Any]):
    """Tells in each step what a list says for it; an episode has as many steps as that."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, tales: list[Any], first: Any = None) -> None:
        self.tales, self.first, self.tick = tales, {} if first is None else first, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.tick = 0
        return np.zeros(1, np.float32), self.first

    def step(self, action: Any) -> Any:
        info = self.tales[self.tick]
        self.tick += 1
        return np.zeros(1, np.float32), 0.5, self.tick == len(self.tales), False, info


class Sub(dict[str, Any]):
    """A dict that is more than one."""


class Word(str):
    """A text that is more than one."""


def values() -> st.SearchStrategy[Any]:
    """Draw what infos hold: what has a place in records, and what does not."""
    numbers = st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.int8, np.uint64, np.longlong])
    numbers = st.builds(lambda kind, value: kind(value), numbers, st.integers(0, 100))
    arrays = st.sampled_from(
        [
            np.arange(6).reshape(2, 3), np.arange(6.0).reshape(2, 3).T, np.zeros(0), np.float32(1.5).reshape(()),
            np.arange(4)[::2], np.zeros(2000), np.array(["a", "bc"]), np.array([None]), np.arange(3, dtype=">i4"),
            np.ones((1,) * 9), np.array([True, False]), np.ma.masked_array([1.0, 2.0], [True, False]),
        ]
    )  # fmt: skip
    simple = st.one_of(
        st.floats(), st.integers(), st.integers(-(2**70), 2**70), st.booleans(), st.none(), st.text(max_size=4),
        st.sampled_from(["\ud800", "é" * 200, "x" * 255, "x" * 256, Word("word"), b"bytes", 1j, np.complex64(1j)]),
        st.sampled_from([np.bool_(True), np.str_("text"), np.datetime64("2001-01-01"), Discrete(3)]),
    )  # fmt: skip
    return st.one_of(
        simple, numbers, arrays, st.lists(simple, max_size=2), st.dictionaries(st.text(max_size=2), simple)
    )


def tales() -> st.SearchStrategy[list[Any]]:
    """Draw what an environment tells in the steps of an episode: few sets of keys, some of them odd."""
    keys = st.sampled_from(["lives", "score", "a", "b", "env", "episode", "env_id", "agent_id", "ü", Word("lives"), 3])
    infos = st.dictionaries(keys, values(), max_size=4)
    return st.lists(st.one_of(infos, infos.map(Sub), st.none()), min_size=1, max_size=5)


@pytest.mark.parametrize(
    "plan",
    [
        "serial",
        *(pytest.param(plan, marks=pytest.mark.long) for plan in ("multiprocessing", "batches in order")),
        "pool",
    ],
)
@settings(max_examples=12)
@given(st.lists(tales(), min_size=NUM_ENVS, max_size=NUM_ENVS), st.sampled_from(["next_step", "same_step"]))
def test_infos_of_both_paths_are_the_same_whenever_they_are_read(
    plan: str, tales_of_envs: list[list[Any]], mode: str
) -> None:
    in_order = plan != "pool"  # which batch an environment is in depends on time there, so its own infos are compared

    def play() -> list[Any]:
        batches: list[Any] = []
        creators = [lambda tale=tale: Telling(tale, tale[0]) for tale in tales_of_envs]
        with pufferlib.make(creators, seed=1, autoreset_mode=mode, **PLANS[plan]) as vec:
            vec.async_reset()
            for step in range(14):
                infos = vec.recv().infos
                assert isinstance(infos, Infos)
                # Read at once, later, or (where batches are the same each time) never but counted.
                batches.append([list(infos), infos, len(infos) if in_order else infos][step % 3])
                vec.send(np.zeros(vec.agents_per_batch, int))
        gc.collect()
        if in_order:
            return [infos if isinstance(infos, int) else plain(infos) for infos in batches]
        every = [info for infos in batches for info in infos]
        return [[plain(info) for info in every if info["env_id"] == env_id] for env_id in range(NUM_ENVS)]

    if not _native.available:
        play()
        return
    compiled, portable = on_both(play)
    if not in_order:
        for ours, others in zip(compiled, portable, strict=True):
            del ours[len(others) :], others[len(ours) :]
    assert compiled == portable


@pytest.mark.parametrize("plan", PLANS)
def test_infos_are_the_rows_own(plan: str) -> None:
    """Each is its own environment's and step's, with keys that change, also where they are read much later."""

    class Counting(Telling):
        def __init__(self, env_index: int) -> None:
            super().__init__([])
            self.index, self.total = env_index, 0

        def step(self, action: Any) -> Any:
            self.total += 1
            info: dict[str, Any] = {"who": self.index, "when": self.total}
            if self.total % 3 == 0:
                info = {"when": self.total, "who": self.index, f"key {self.total % 7}": np.full(3, self.total)}
            if self.total % 5 == 0:
                info["object"] = [self.total]
            return np.zeros(1, np.float32), 0.0, False, False, info

    batches = []
    with pufferlib.make(Counting, num_envs=NUM_ENVS, seed=1, **PLANS[plan]) as vec:
        vec.async_reset()
        vec.recv()
        vec.send(np.zeros(vec.agents_per_batch, int))
        for _ in range(60):
            batch = vec.recv()
            batches.append((batch.env_ids.tolist(), batch.infos))
            vec.send(np.zeros(vec.agents_per_batch, int))
    steps = dict.fromkeys(range(NUM_ENVS), 0)
    for env_ids, infos in batches:
        by_env = {info["env_id"]: info for info in infos}
        assert [info["env_id"] for info in infos] == [env_id for env_id in env_ids if env_id in by_env]
        for env_id, info in by_env.items():
            steps[env_id] += 1
            total = steps[env_id]
            assert (info["who"], info["when"], info["agent_id"]) == (env_id, total, env_id)
            assert info.get("object") == ([total] if total % 5 == 0 else None)
            if total % 3 == 0:
                assert info[f"key {total % 7}"].tolist() == [total] * 3
    assert sum(steps.values()) > 50


def sequence(backend: str) -> Any:
    tales: list[Any] = [{"a": 1}, {"a": 2, "b": "two"}, {}]
    vec = pufferlib.make(Telling, env_args=[tales], num_envs=2, num_workers=2, backend=backend)
    vec.reset()
    for _ in range(5):
        infos = vec.step(np.zeros(2, int))[4]
    return vec, infos


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_a_sequence_is_as_good_as_a_list(backend: str) -> None:
    vec, infos = sequence(backend)
    with vec:
        expected = [{"a": 1, "env_id": i, "agent_id": i} for i in range(2)]
        assert len(infos) == 2 and infos and isinstance(infos, Infos) and not isinstance(infos, list)
        assert infos == expected and expected == infos and infos != expected[:1] and infos != (1, 2)
        assert infos + [{}] == [*expected, {}] and [{}] + infos == [{}, *expected]
        assert infos[0] is infos[0] and infos[-1] == expected[-1] and infos[:1] == expected[:1]
        assert type(infos[:1]) is list and type(infos + []) is list and type(infos.copy()) is list
        assert list(infos) == [*infos] == infos.copy() == expected and list(reversed(infos)) == expected[::-1]
        assert pickle.loads(pickle.dumps(infos)) == expected == copy.deepcopy(infos) and repr(infos) == repr(expected)
        assert expected[1] in infos and infos.index(expected[1]) == 1 and infos.count(expected[0]) == 1
        with pytest.raises(IndexError):
            infos[2]
        with pytest.raises(TypeError):
            hash(infos)
        infos[0]["mine"] = 1  # what is read is the reader's
        assert infos[0]["mine"] == 1
        next_infos = vec.step(np.zeros(2, int))[4]
        empty = vec.step(np.zeros(2, int))[4]
        assert next_infos[0]["b"] == "two" and [info for info in empty if "env" not in info] == []
        vec.reset()
        assert not vec.batch.infos and vec.batch.infos == [] and len(vec.batch.infos) == 0


@pytest.mark.parametrize("pickled", [False, True], ids=["records", "pickled"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_column_is_one_key_of_all_rows(plan: str, pickled: bool) -> None:
    kinds: dict[str, Any] = {
        "int": 3, "float": 2.5, "bool": True, "np.int8": np.int8(3), "np.float16": np.float16(2.5),
        "array": np.arange(6, dtype=np.uint8).reshape(2, 3), "np.bool_": np.bool_(True), "text": "word", "none": None,
    }  # fmt: skip
    if pickled:
        kinds["list"] = [1]
    tales: list[Any] = [{**kinds, "own": 0}, {}] * 8
    creators = [lambda i=i: Telling(tales if i % 2 else [{}] * 16) for i in range(NUM_ENVS)]
    with pufferlib.make(creators, seed=1, **PLANS[plan]) as vec:
        vec.async_reset()
        for _ in range(20):
            batch = vec.recv()
            # From records while nobody has read them, and from the dicts.
            unread = {name: batch.infos.column(name) for name in [*kinds, "env_id", "missing"]}
            read, by_env = batch.infos.copy(), {info["env_id"]: info for info in batch.infos}
            for name, (values, mask) in unread.items():
                again, same_mask = batch.infos.column(name)
                assert plain(values) == plain(again) and plain(mask) == plain(same_mask)
                assert mask.tolist() == [name in by_env.get(env_id, ()) for env_id in batch.env_ids.tolist()]
                assert len(values) == len(batch.env_ids) and values is not again
                expected = gymnasium_column(read, name, batch.env_ids.tolist())
                assert plain(values) == plain(np.zeros(len(mask)) if expected is None else expected)
            vec.send(np.zeros(vec.agents_per_batch, int))


def gymnasium_column(infos: list[dict[str, Any]], name: str, env_ids: list[int]) -> Any:
    """Return what Gymnasium's vector environments make of a key."""

    class Vector(gymnasium.vector.VectorEnv):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.num_envs = len(env_ids)

    columns: dict[str, Any] = {}
    for info in infos:
        if name in info:
            columns = Vector()._add_info(columns, {name: info[name]}, env_ids.index(info["env_id"]))
    return columns.get(name)


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_a_column_takes_what_does_not_fit_as_objects(backend: str) -> None:
    env_infos = [{"x": 1}, {"x": None}, {"x": np.zeros(2)}, {"x": "text"}]
    creators = [lambda info=info: Telling([info] * 9) for info in env_infos]
    with pufferlib.make(creators, num_workers=2, backend=backend) as vec:
        vec.reset()
        for _ in range(4):
            values, mask = vec.step(np.zeros(4, int))[4].column("x")
            assert values.dtype == object and mask.all()
            assert plain(list(values)) == plain([info["x"] for info in env_infos])


def test_a_column_of_agents_has_a_row_each() -> None:
    results = []
    for backend in ("serial", "multiprocessing"):
        plan: dict[str, Any] = {"backend": backend, "num_envs": 3, "num_workers": 2, "wrap_kwargs": {"max_agents": 4}}
        with pufferlib.make(HashPopulation, seed=1, **plan) as vec:
            vec.reset()
            episodes = 0
            for _ in range(60):
                infos = vec.step(np.zeros(vec.agents_per_batch, int))[4]
                values, mask = infos.column("episode")
                of_agents = {
                    info["agent_id"]: info["episode"] for info in infos if "episode" in info and "agent_id" in info
                }
                assert np.flatnonzero(mask).tolist() == sorted(of_agents) and len(mask) == vec.agents_per_batch
                assert all(values[agent] == episode for agent, episode in of_agents.items())
                episodes += len(of_agents)
            assert episodes > 5
            results.append(episodes)
    assert results[0] == results[1]


class Names(pufferlib.PufferEnv):
    """Two agents; the environment's own info has keys of ours."""

    single_observation_space, single_action_space = Box(0, 1, (1,), np.float32), Discrete(2)
    num_agents = 2

    def __init__(self, infos: Any) -> None:
        self.infos = infos

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return None

    def step(self, actions: Any) -> Any:
        return self.infos


@pytest.mark.parametrize("agent_id", [77, 50_000_000, -1, "foo", [1], None, 2**70, True])
def test_an_environments_own_info_may_have_any_agent_id(agent_id: Any) -> None:
    copies = []
    for backend in ("serial", "multiprocessing"):
        with pufferlib.make(Names, env_args=[{"agent_id": agent_id, "x": 5}], num_envs=2, backend=backend) as vec:
            vec.reset()
            for _ in range(4):
                infos = vec.step(np.zeros(4, int))[4]
            columns = infos.column("x"), infos.column("agent_id")
            assert not any(mask.any() for _, mask in columns)
            copies.append(infos.copy())
            assert plain(copies[-1]) == plain([{"agent_id": agent_id, "x": 5, "env_id": env_id} for env_id in range(2)])
            assert not infos.column("x")[1].any()
    assert plain(copies[0]) == plain(copies[1])


def test_of_one_agent_the_environments_own_info_counts() -> None:
    class Alone(Names):
        num_agents = 1

        def step(self, actions: Any) -> Any:
            return {"x": 5}

    for backend in ("serial", "multiprocessing"):
        with pufferlib.make(Alone, env_args=[None], num_envs=2, backend=backend) as vec:
            vec.reset()
            for _ in range(4):
                infos = vec.step(np.zeros(2, int))[4]
            for _ in range(2):  # from records, and from the dicts
                assert infos.column("x")[0].tolist() == [5, 5] and infos.column("x")[1].all()
                infos.copy()


def test_keys_that_never_repeat_arrive_too() -> None:
    """More sets of keys than a worker keeps, each told once or twice."""

    class Inventing(Telling):
        def step(self, action: Any) -> Any:
            self.tick += 1
            return np.zeros(1, np.float32), 0.0, False, False, {f"{self.tick // 2}": self.tick, "same": 1}

    with pufferlib.make(Inventing, env_args=[[]], num_envs=2, num_workers=1, backend="multiprocessing") as vec:
        vec.reset()
        for tick in range(1, 1500):
            infos = vec.step(np.zeros(2, int))[4]
            assert [info[f"{tick // 2}"] for info in infos] == [tick] * 2
            assert [*infos[0]] == [f"{tick // 2}", "same", "env_id", "agent_id"]


class Crashing(Telling):
    """Kills its worker in a step."""

    def step(self, action: Any) -> Any:
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.tick += 1
        return np.zeros(1, np.float32), 0.0, False, False, {"tick": self.tick, f"of {os.getpid()}": os.getpid()}


@pytest.mark.parametrize("backend", ["multiprocessing", "pool"])
def test_infos_outlive_their_worker(backend: str) -> None:
    """Infos kept unread through a reset, a restart and the end say what they said; new workers have new keys."""
    with pufferlib.make(
        Crashing, env_args=[[]], num_envs=4, num_workers=2, backend=backend, on_error="restart", seed=1
    ) as vec:
        vec.reset()
        steps = [vec.step(np.zeros(4, int))[4] for _ in range(5)]
        pids = vec.call("__getattribute__", "tick")
        steps.append(vec.step(np.array([0, 1, 0, 0]))[4])  # worker 0 dies
        steps += [vec.step(np.zeros(4, int))[4] for _ in range(5)]
        vec.reset()
        steps.append(vec.step(np.zeros(4, int))[4])
    assert pids == [5] * 4
    for tick, infos in enumerate(steps[:5], 1):
        assert [(info["env_id"], info["tick"]) for info in infos] == [(env_id, tick) for env_id in range(4)]
    crashed = [info for info in steps[5] if "restarted" in info]
    assert {info["env_id"] for info in crashed} <= {0, 1} and 1 in {info["env_id"] for info in crashed}
    assert all([*info] == ["env_id", "restarted"] for info in crashed)
    assert [info["tick"] for info in steps[-2] if info["env_id"] > 1] == [11, 11]
    workers = [{value for info in infos for key, value in info.items() if key == f"of {value}"} for infos in steps]
    assert all(len(pids) == 2 for pids in (workers[0], workers[-2])) and len(workers[0] | workers[-2]) == 3
    assert [info["tick"] for info in steps[-1]] == [1] * 4


@pytest.mark.skipif(not _native.available, reason=f"there is no compiled path: {_native.reason}")
def test_a_column_finds_its_key_in_records_of_different_schemas() -> None:
    both, second = _native.infos.Schema(("a", "b"), 0), _native.infos.Schema(("b",), 1)
    items = [both, both, second, None, second, both, _native.infos.Schema(("a",), 2)]
    data = b""
    for row, item in enumerate(items):
        values = [(1 if key == "a" else 2) * 10 + row for key in (item.keys if item else ())]
        body = b"".join(b"\x03" + value.to_bytes(8, "little") for value in values)
        number = 0 if item is None else item.number
        data += struct.pack("<IHHIIII", 24 + len(body), number, 4, 0, row, row, 0) + body
    records = _native.infos.Records(items, data, 1)
    for key, expected in (("a", [10, 11, 0, 0, 0, 15, 16]), ("b", [20, 21, 22, 0, 24, 25, 0]), ("c", [0] * 7)):
        column = records.column(key, 7)
        assert column is not None
        assert column[0].tolist() == expected and column[1].tolist() == [value > 0 for value in expected], key


@pytest.mark.skipif(not _native.available, reason=f"there is no compiled path: {_native.reason}")
def test_a_record_is_stored_without_a_list_for_it() -> None:
    """A sixth of the parent's time for a batch with infos went into such lists, and a call to forget each."""
    counts = (32, 2, 1, 64, 1 << 12)
    ring = _native.ring.Ring(np.zeros(_native.ring.Ring.nbytes(*counts), np.uint8), *counts)
    record = (24 + 9).to_bytes(4, "little") + bytes(2) + (4).to_bytes(2, "little") + bytes(16) + b"\x03" + bytes(8)
    assert ring.put_info(0, 0, b"\2" + pickle.dumps((0, ("a",)))) and ring.take_infos() == []
    assert all(ring.put_info(0, env_id, b"\1" + record) for env_id in range(16))
    before = len(gc.get_objects())
    pickled = ring.take_infos()
    assert len(gc.get_objects()) - before < 16
    assert pickled == [] and all(ring.store.has(env_id) for env_id in range(16))


@pytest.mark.skipif(not _native.available, reason=f"there is no compiled path: {_native.reason}")
def test_records_of_a_row_that_is_lost_are_dropped() -> None:
    """A worker that dies between its info and its row leaves a record, which is not the next row's."""
    counts = (4, 2, 1, 64, 1 << 12)
    ring = _native.ring.Ring(np.zeros(_native.ring.Ring.nbytes(*counts), np.uint8), *counts)
    head, keys = b"\1", b"\2" + pickle.dumps((0, ("a",)))
    record = (24 + 9).to_bytes(4, "little") + bytes(2) + (4).to_bytes(2, "little") + bytes(16) + b"\x03" + bytes(8)
    assert ring.put_info(0, 0, keys) and ring.put_info(0, 1, head + record)
    assert ring.take_infos() == [] and ring.store.has(1) and not ring.store.has(0)
    ring.drop_infos(1)
    assert not ring.store.has(1)
    assert ring.put_info(0, 0, head + record) and ring.take_infos() == [] and ring.store.has(0)
    ring.drop_infos()
    assert not ring.store.has(0)
    ring.empty_box(0)  # the next worker numbers its schemas from 0
    assert ring.put_info(0, 0, b"\2" + pickle.dumps((0, ("b", "c")))) and ring.take_infos() == []
    assert ring.put_info(0, 1, b"\x80pickled") and ring.take_infos() == [(0, 1, b"\x80pickled")]
