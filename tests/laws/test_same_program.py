"""One program, five backends: changing ``backend=`` and nothing else changes nothing that the program sees."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from matrix import covering

import pufferlib
from pufferlib.errors import PufferError

pytestmark = pytest.mark.beside

OTHERS = ["multiprocessing", "pool", "cuda"]  # and "ray" in test_ray.py
COLUMNS = ("observations", "rewards", "terminations", "truncations", "env_ids", "agent_ids", "masks")
GAMES: dict[str, dict[str, Any]] = {
    "classic/cartpole": {"max_episode_steps": 9},
    "ocean/squared": {},
    "tag/grid": {"num_taggers": 2, "num_runners": 1, "grid_length": 3, "episode_length": 7},
}
EACH_GAME = [*itertools.product(OTHERS, GAMES)]
NUM_ENVS, NUM_WORKERS = 5, 2


def make(backend: str, game: str = "classic/cartpole", **kwargs: Any) -> Any:
    defaults = {
        "num_envs": NUM_ENVS,
        "num_workers": NUM_WORKERS,
        "seed": 3,
        "device": "host",
        "env_kwargs": GAMES[game],
        **kwargs,
    }
    return pufferlib.make(kwargs.get("env", game), backend=backend, **{k: v for k, v in defaults.items() if k != "env"})


def seen(array: Any) -> Any:
    """What a program sees of an array or a tensor: its class, what it may do with it, its values."""
    if isinstance(array, torch.Tensor):
        return "tensor", array.dtype, array.device.type, array.tolist()
    assert isinstance(array, np.ndarray)
    return "array", array.dtype, array.flags.writeable, array.tolist()


def plain(value: Any) -> Any:
    """Infos without times; sums of rewards are rounded, as their order may differ."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items() if name != "t"}
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    return float(f"{value:.6g}") if isinstance(value, float) else value


def plain_all(batches: Any) -> list[Any]:
    return [[plain(info) for info in infos] for infos in batches]


def parts_of(batch: Any) -> Any:
    infos = [plain(info) for info in batch.infos]
    return {name: seen(getattr(batch, name)) for name in COLUMNS}, sorted(infos, key=lambda info: info["env_id"])


def actions_of(vec: Any, step: int, kind: str) -> Any:
    nvec = np.asarray(getattr(vec.single_action_space, "n", getattr(vec.single_action_space, "nvec", None)))
    most = 2 if kind == "bool" else nvec
    drawn = np.random.default_rng(step).integers(0, most, (vec.agents_per_batch, *vec.single_action_space.shape))
    kinds: dict[str, Callable[[Any], Any]] = {
        "int64": lambda actions: actions,
        "bool": lambda actions: actions.astype(bool),
        "bool tensor": lambda actions: torch.from_numpy(actions.astype(bool)),
        "list": lambda actions: actions.tolist(),
        "big-endian": lambda actions: actions.astype(">i8"),
        "uint64": lambda actions: actions.astype(np.uint64),
        "tensor": torch.from_numpy,
    }
    return kinds[kind](drawn if kind != "bool tensor" else drawn % 2)


def program(backend: str, game: str, kind: str = "int64", **kwargs: Any) -> list[Any]:
    """Play some steps, with resets of all and of some; return all that was seen."""
    with make(backend, game, **kwargs) as vec:
        vec.reset(options={"level": 3})
        trace = [parts_of(vec.batch), parts_of(vec.host_batch)]
        for step in range(24):
            if step == 12:
                vec.reset(seed=7, options=[None, {}, {"level": 1}, None, None])
                trace.append(parts_of(vec.batch))
            if step == 18:
                vec.reset(seed=[5, None, 6, None, None], env_ids=[4, 0, 2, 1, 3])
                trace.append(parts_of(vec.batch))
                vec.reset(env_ids=[1, 3])
                trace.append(parts_of(vec.batch))
            vec.step(actions_of(vec, step, kind))
            trace += [parts_of(vec.batch), parts_of(vec.host_batch)]
        trace += [vec.get_attr("t"), vec.call("render"), vec.render(env_ids=[2]), vec.set_attr("t", 3, env_ids=[1])]
        trace += [vec.get_attr("t"), vec.metadata, vec.spec, vec.agent_names, vec.restarts, vec.closed]
        trace += [vec.single_action_space, vec.single_observation_space, vec.observation_space, vec.action_space]
        trace += [vec.num_envs, vec.agents_per_env, vec.agents_per_batch, vec.render_mode, vec.multi_agent]
        trace.append(vec.stats().steps_per_s >= 0)
        vec.close(grace_s=5.0)
        return trace


@functools.cache
def program_of_serial(game: str, kind: str = "int64", **kwargs: Any) -> list[Any]:
    return program("serial", game, kind, **kwargs)


OUTPUTS: list[dict[str, Any]] = [
    {"as_torch": False, "device": "cpu", "autoreset_mode": "same_step", "on_error": "restart", "context": "spawn"},
    {"as_torch": False},
    {"as_torch": True},
    {},
    {"as_torch": False, "copy": True},
    {"as_torch": True, "copy": True, "autoreset_mode": "same_step"},
    {"as_torch": False, "debug": True, "check": "always"},
]


@covering({"backend,game": EACH_GAME, "output": OUTPUTS})
def test_every_output_is_that_of_serial(backend: str, output: dict[str, Any], game: str) -> None:
    assert program(backend, game, **output) == program_of_serial(game, **output)


KINDS = ["bool", "bool tensor", "list", "big-endian", "uint64", "tensor"]
ARRAYS: list[dict[str, Any]] = [
    {"as_torch": False},
    {"as_torch": False, "copy": True},
    {"as_torch": False, "autoreset_mode": "same_step"},
    {"as_torch": False, "debug": True, "check": "always"},
]


@pytest.mark.gpu
@covering({"kind": ["int64", *KINDS], "game": [*GAMES], "output": ARRAYS})
def test_arrays_of_a_device_are_those_of_serial(kind: str, game: str, output: dict[str, Any], device: str) -> None:
    assert program("cuda", game, kind, **output, device=device) == program_of_serial(game, kind, **output)


@covering({"backend,game": EACH_GAME, "kind": KINDS})
def test_any_kind_of_actions_plays_the_same(backend: str, kind: str, game: str) -> None:
    assert program(backend, game, kind, as_torch=False) == program_of_serial(game, kind, as_torch=False)


@pytest.mark.parametrize("backend", OTHERS)
def test_a_list_of_environments_is_one_each(backend: str) -> None:
    named = dict(env=["classic/cartpole"] * NUM_ENVS, num_envs=None, as_torch=False)
    assert program(backend, "classic/cartpole", **named) == program_of_serial("classic/cartpole", as_torch=False)


@covering(
    {
        "backend": OTHERS,
        "output": [{"as_torch": False}, {"as_torch": False, "copy": True}, {"as_torch": True}],
        "num_workers": [1, 2],
    }
)
def test_batches_of_some_environments(backend: str, output: dict[str, Any], num_workers: int) -> None:
    """Ids of a batch, also tensors, name whose actions are sent."""

    def trajectories(backend: str) -> Any:
        rows_of: dict[int, list[Any]] = {}
        kinds = set()
        with make(backend, batch_size=2, num_workers=num_workers, **output) as vec:
            vec.async_reset()
            while min(map(len, rows_of.values()), default=0) < 15 or len(rows_of) < NUM_ENVS:
                batch = vec.recv(timeout=60)
                kinds.add(tuple(seen(getattr(batch, name))[:3] for name in COLUMNS if name != "masks"))
                rows = [[seen(getattr(batch, name))[-1][row] for name in COLUMNS[:4]] for row in range(2)]
                ids = [int(env_id) for env_id in batch.env_ids]
                for env_id, row in zip(ids, rows, strict=True):
                    rows_of.setdefault(env_id, []).append(row)
                vec.send(np.array([len(rows_of[env_id]) % 2 for env_id in ids]), env_ids=batch.env_ids)
        if output.get("as_torch"):
            kinds = {tuple(column[:3] for column in kind) for kind in kinds}
        return {env_id: rows[:15] for env_id, rows in rows_of.items()}, kinds if not output.get("as_torch") else None

    assert trajectories(backend) == trajectories("serial")


@covering(
    {"backend": OTHERS, "mode": ["next_step", "same_step"], "output": [{"as_torch": False}, {"as_torch": True}, {}]}
)
def test_a_copy_is_handed_over_for_good(backend: str, mode: str, output: dict[str, Any]) -> None:
    """Infos, too, read after the object was closed, pickled or copied."""

    def parts_of_copies(backend: str) -> Any:
        batches = []
        with make(backend, copy=True, autoreset_mode=mode, **output) as vec:
            vec.reset()
            for step in range(25):
                vec.step(actions_of(vec, step, "int64"))
                batches.append(vec.batch)
        copies = pickle.loads(pickle.dumps([batch.infos for batch in batches]))
        assert all(type(infos) is list for infos in copies)
        for copied in (copies, copy.deepcopy([batch.infos for batch in batches])):
            assert plain_all(copied) == plain_all(batch.infos for batch in batches)
        assert len([] + batches[-1].infos + []) == len(copies[-1]) and sum(map(len, copies)) > 5
        return [parts_of(batch) for batch in batches]

    assert parts_of_copies(backend) == parts_of_copies("serial")


WRONG: dict[str, Callable[[Any], Any]] = {
    "shape": lambda vec: vec.send(np.zeros(NUM_ENVS + 1, int)),
    "dtype": lambda vec: vec.send(np.zeros(NUM_ENVS)),
    "NaN": lambda vec: vec.send(np.full(NUM_ENVS, np.nan)),
    "words": lambda vec: vec.send(["left"] * NUM_ENVS),
    "a mapping": lambda vec: vec.send({"action": 0}),
    "ids": lambda vec: vec.send(np.zeros(1, int), env_ids=[NUM_ENVS]),
    "ids twice": lambda vec: vec.async_reset(env_ids=torch.tensor([1, 1])),
    "options": lambda vec: vec.reset(options="hard"),
    "too few options": lambda vec: vec.reset(options=[{}]),
    "seed": lambda vec: vec.reset(seed=-1),
    "too few seeds": lambda vec: vec.reset(seed=[1]),
    "values": lambda vec: vec.set_attr("t", [1]),
    "method": lambda vec: vec.call("fly"),
    "attribute": lambda vec: vec.get_attr("wings", env_ids=[3]),
    "recv": lambda vec: vec.recv(),
    "pickle": pickle.dumps,
}
UNMADE: dict[str, dict[str, Any]] = {
    "env_args": {"env_args": 3},
    "env_kwargs": {"env_kwargs": 3},
    "unequal env_kwargs": {"env_kwargs": [{}]},
    "constructor": {"env_kwargs": {"wings": 2}},
    "context": {"context": "thread"},
    "device": {"device": "tpu", "as_torch": False},
    "no such device": {"device": "cuda:9", "as_torch": False},
    "check": {"check": "never"},
    "batch_size": {"batch_size": 9},
    "empty": {"env": [], "num_envs": None},
    "listed": {"env": ["classic/cartpole"] * 2},
}


def refusal(call: Callable[[], Any]) -> tuple[Any, str]:
    with pytest.raises(PufferError) as caught:
        call()
    return type(caught.value), str(caught.value).splitlines()[0]


@covering({"case": [*WRONG], "backend": OTHERS})
def test_what_is_wrong_is_refused_alike(backend: str, case: str) -> None:
    refusals = []
    for backend_name in ("serial", backend):
        with make(backend_name, as_torch=False) as vec:
            before = vec.reset()[0].copy()
            refusals.append(refusal(lambda vec=vec: WRONG[case](vec)))
            assert np.array_equal(vec.batch.observations, before)
    expected, actual = refusals
    assert actual[0] is expected[0]
    if case in ("shape", "dtype", "NaN", "words", "ids", "options", "seed", "values"):
        assert actual[1] == expected[1]


@covering({"case": [*UNMADE], "backend": OTHERS})
def test_what_cannot_be_made_is_refused_alike(backend: str, case: str) -> None:
    expected, actual = (
        refusal(lambda backend_name=backend_name: make(backend_name, **UNMADE[case]))
        for backend_name in ("serial", backend)
    )
    assert actual[0] is expected[0]
    if case not in ("constructor", "device", "no such device", "unequal env_kwargs"):
        assert actual[1] == expected[1]


def test_arrays_win_over_a_device_and_need_no_torch() -> None:
    with make("serial", as_torch=False, device="cpu") as vec:
        assert isinstance(vec.reset()[0], np.ndarray)
    with make("serial", device="host") as vec:
        assert isinstance(vec.reset()[0], torch.Tensor)
    with pytest.raises(pufferlib.PlanError, match="device='hots' cannot be used"):
        make("serial", as_torch=False, device="hots")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "torch", None)
        with make("serial", as_torch=False, device="host") as vec:
            assert isinstance(vec.reset()[0], np.ndarray)
