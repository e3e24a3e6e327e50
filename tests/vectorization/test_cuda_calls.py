"""Backend cuda refuses what cannot work: with the values, with a way out, and nothing changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from devices import ON_HOST_AND_DEVICE, Player, array_of

import pufferlib
from cuda_ext.tag_grid import KERNEL
from pufferlib.errors import (
    ActionError,
    CallError,
    ClosedError,
    KernelError,
    MissingExtra,
    PlanError,
    RegistryError,
    WorkerError,
)
from pufferlib.testing import check_kernel

pytestmark = pytest.mark.beside

SMALL = {"num_taggers": 2, "num_runners": 1, "grid_length": 3, "episode_length": 4}


def make(**kwargs: Any) -> Any:
    arguments = {"env_kwargs": SMALL, "num_envs": 4, "seed": 1, "device": "host", **kwargs}
    return pufferlib.make(arguments.pop("env", "tag/grid"), backend="cuda", **arguments)


@pytest.mark.parametrize("word", ["next_step", "same_step", "disabled"])
def test_modes_are_gymnasiums_too_and_counts_can_be_read(word: str) -> None:
    mode = getattr(gymnasium.vector, "AutoresetMode", {}) and gymnasium.vector.AutoresetMode[word.upper()]
    with make(autoreset_mode=mode or word, num_envs=4, batch_size=2) as vec:
        assert vec.autoreset_mode == word and vec.metadata["autoreset_mode"] == (mode or word)
        assert (vec.num_workers, vec.batch_size) == (1, 2) and "num_envs=4, batch_size=2, " in repr(vec)


def test_what_make_does_not_take_is_sent_to_what_does() -> None:
    with pytest.raises(TypeError, match=r"make\(\) has no argument threads; pass backend_kwargs=\{'threads': 2\}\."):
        make(threads=2)
    with pytest.raises(PlanError, match="backend_kwargs has thread, but backend 'cuda' knows .*; did you mean threads"):
        make(backend_kwargs={"thread": 2})
    for kernel in (KERNEL, "cuda_ext.tag_grid:KERNEL"):
        with pytest.raises(RegistryError, match='is a kernel, which backend "cuda" plays: add backend="cuda"'):
            pufferlib.make(kernel, backend="serial")


def test_a_comparison_ends_with_its_budget_and_reports_progress() -> None:
    reports: list[tuple[str, int, int]] = []

    def compared(**kwargs: Any) -> Any:
        reports.clear()
        return check_kernel("tag/grid", device="host", env_kwargs=SMALL, num_envs=2, after=log, **kwargs)

    def log(*progress: Any) -> None:
        reports.append(progress)

    report = compared(num_steps=3)
    steps = range(4)
    assert reports == [(mode, step, 3) for mode in ("next_step", "same_step") for step in steps]
    assert report.passed and report.budget is None and report.num_env_steps == 12 and "allow" not in str(report)
    report = compared(num_steps=10**6, budget=1e-9)  # a step in each mode
    assert reports == [(mode, step, 10**6) for mode in ("next_step", "same_step") for step in (0, 1)]
    assert report.passed and report.num_env_steps == 4
    assert str(report).endswith("over 4 steps and 0 episodes, as many as 1e-09 s allow")
    with pytest.raises(PlanError, match="budget=0 is impossible; use seconds"):
        compared(budget=0)


on_host_and_device = pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)


@pytest.fixture(params=ON_HOST_AND_DEVICE)
def vec(request: pytest.FixtureRequest) -> Iterator[Any]:
    with make(device="host" if request.param == "loops" else request.getfixturevalue("device")) as vec:
        yield vec


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"device": "cuda:7"}, PlanError, r'sees \d+ CUDA devices; use device="host", which plays the same kernels'),
        ({"device": "mps"}, PlanError, 'device=\'mps\' runs no kernels; use "cuda", or device="host"'),
        ({"device": "tpu"}, PlanError, "device='tpu' is none"),
        (
            {"env": "ocean/bell"},
            RegistryError,
            "'ocean/bell' has no kernel, .* these have one: classic/",
        ),
        ({"env": "tag/cube"}, RegistryError, "'tag/cube' has no kernel"),
        ({"env": "cuda_ext.references.tag_grid:TagGrid"}, RegistryError, "has no kernel"),
        ({"env": lambda: None}, RegistryError, "has no kernel"),
        ({"env_kwargs": [SMALL] * 3}, PlanError, "env_kwargs lists 3 dicts for 4 environments; give one each"),
        ({"env_kwargs": [SMALL] * 3 + [{}]}, PlanError, "env_kwargs differ, but one kernel plays all"),
        ({"env_kwargs": [3] * 4}, PlanError, r"env_kwargs=\[3, 3, 3, 3\] is no dict and no list of dicts"),
        ({"env_kwargs": 3}, PlanError, "env_kwargs=3 is no dict and no list of dicts; give one dict, or one each"),
        (
            {"env_kwargs": {"num_taggers": 0}},
            WorkerError,
            r"environment 0 \(worker 0\) raised in __init__: ValueError: num_taggers=0 is impossible",
        ),
        ({"env_args": 3}, PlanError, r"env_args=3 are no arguments; give a tuple, such as \(3,\)"),
        ({"context": "thread"}, PlanError, "context='thread' is not one of 'fork', 'spawn', 'forkserver'"),
        ({"env": []}, PlanError, "num_envs=4, but env lists 0 creators; leave num_envs out"),
        ({"env": [], "num_envs": None}, PlanError, "env is an empty list; give at least one creator"),
        ({"env": ["tag/grid"] * 3}, PlanError, "num_envs=4, but env lists 3 creators; leave num_envs out"),
        (
            {"env": ["tag/grid", "tag/continuous"], "num_envs": None},
            PlanError,
            'env lists "tag/grid" and "tag/continuous", but one kernel plays all environments; list one, or use',
        ),
        ({"env": ["tag/grid", "ocean/bell"], "num_envs": None}, RegistryError, "'ocean/bell' has no kernel"),
        ({"wrap_kwargs": {"max_agents": 3}}, PlanError, "a kernel's rows are flat already; leave it out"),
        ({"backend_kwargs": {"spin": 3}}, PlanError, "backend_kwargs has spin, but backend 'cuda' knows threads"),
        ({"backend_kwargs": {"threads": 0}}, PlanError, "threads=0 is impossible; use 1 or more"),
        ({"check": "never"}, PlanError, "check='never' is not 'first' or 'always'"),
        ({"on_error": "ignore"}, PlanError, "on_error='ignore' is not 'raise' or 'restart'"),
        ({"step_timeout": -1}, PlanError, "step_timeout=-1 is impossible; use seconds"),
        ({"num_workers": 5}, PlanError, "num_workers=5 is more than num_envs=4"),
        ({"autoreset_mode": "never"}, PlanError, "autoreset_mode='never' is not one of 'next_step', 'same_step'"),
        ({"batch_size": 5}, PlanError, "batch_size=5 is more than num_envs=4"),
        ({"num_envs": 0}, PlanError, "num_envs=0"),
        ({"seed": -1}, PlanError, "seed=-1"),
    ],
)
def test_what_cannot_be_made(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(**kwargs)


@pytest.mark.parametrize("devices", [0, 1])
def test_no_device(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(PlanError, match=r'device="cuda:1": torch .* sees [01] CUDA devices; use device="host", which'):
        make(device="cuda:1")
    with pytest.raises(PlanError, match='{"checked": True} is of the host; give device="host" too'):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        make(device="cuda:1", backend_kwargs={"checked": True})


@on_host_and_device
def test_the_device_of_one_is_a_device_for_another(player: Player) -> None:
    with make(device=player.device) as vec, make(device=vec.device) as another:
        assert another.device == vec.device
        assert vec.device.type == ("cpu" if player.device == "host" else "cuda")


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_ext.device import DeviceKernel
    from cuda_ext.functions import Shape
    from cuda_ext.tag_grid import KERNEL

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingExtra, match=r'needs CuPy: pip install "pufferlib\[cuda\]"; or use device="host"'):
        DeviceKernel(KERNEL, Shape.of(3, 13), {})


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r'tensors need torch: pip install "pufferlib'):
        make()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(11, int), r"actions have shape \(11,\), expected \(12,\): 3 row\(s\) for each of 4 environments"),
        (np.zeros((12, 1), int), r"actions have shape \(12, 1\), expected \(12,\)"),
        (np.zeros(12), r"actions have dtype float64, expected int64; convert them"),
        (np.full(12, np.nan), r"actions have dtype float64, expected int64; convert them"),
        (torch.zeros(12), r"actions have dtype float32, expected int64; convert them"),
        (["up"] * 12, "actions have dtype <U2, expected int64; convert them"),
        (None, "actions cannot be read as an array"),
        ({"action": 3}, "actions are arrays of rows, not dicts"),
        (torch.zeros(12, dtype=torch.bfloat16), "actions are a tensor that NumPy cannot read"),
        (torch.zeros(13, dtype=torch.int32), r"actions have shape \(13,\)"),
    ],
)
def test_wrong_actions(actions: Any, message: str, vec: Any) -> None:
    vec.reset()
    with pytest.raises(ActionError, match=message):
        vec.send(actions)
    vec.step(np.zeros(12, int))
    assert vec.get_attr("t") == [1] * 4


KINDS = [np.int64, np.int32, np.int16, np.uint8, np.uint64, ">i8", list, torch.int32, torch.int64, torch.uint8]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("env_ids", [None, [2, 0, 3, 1]])
def test_any_integers_are_actions(kind: Any, strided: bool, env_ids: Any, vec: Any) -> None:
    vec.reset()
    chosen = np.arange(12) % 5
    actions: Any = np.repeat(chosen, 2)[::2] if strided else chosen
    if kind is list:
        actions = actions.tolist()
    elif isinstance(kind, torch.dtype):
        actions = torch.from_numpy(np.repeat(chosen, 2)).to(kind)[::2] if strided else torch.from_numpy(chosen).to(kind)
    else:
        actions = actions.astype(kind)
    with pufferlib.make("cuda_ext.references.tag_grid:TagGrid", env_kwargs=SMALL, num_envs=4, seed=1) as serial:
        serial.reset()
        serial.send(chosen, env_ids)
        vec.send(actions, env_ids)
        np.testing.assert_array_equal(array_of(vec.recv().observations), serial.recv().observations)


def test_calls_out_of_order(vec: Any) -> None:
    with pytest.raises(CallError, match="there is no batch to act on yet; call reset, or async_reset and recv, first"):
        vec.send(np.zeros(12, int))
    with pytest.raises(
        CallError, match=r"cannot send: environment 0 has never been reset; call reset, or async_.*\[0\]"
    ):
        vec.send(np.zeros(3, int), env_ids=[0])
    with pytest.raises(
        CallError, match="0 environments are in flight, and a batch holds 4: .* call reset or async_reset first"
    ):
        vec.recv()
    vec.reset()
    with pytest.raises(CallError, match="recv could never return; send actions for more"):
        vec.recv()
    vec.send(np.zeros(6, int), env_ids=[0, 1])
    calls: list[tuple[Callable[[], None], str]] = [
        (lambda: vec.send(np.zeros(3, int), env_ids=[1]), "name only environments whose rows have been received"),
        (lambda: vec.send(np.zeros(12, int)), "the last batch has been answered already; call recv"),
    ]
    for call, way_out in calls:
        message = f"^cannot send: (environment 0 is in flight; )?environment 1 is in flight; {way_out}$"
        with pytest.raises(CallError, match=message):
            call()
    with pytest.raises(CallError, match="cannot reset: environment 1 is in flight; recv first"):
        vec.async_reset(env_ids=[1, 2])
    with pytest.raises(CallError, match="2 environments are in flight, and a batch holds 4"):
        vec.recv()
    vec.send(np.zeros(6, int), env_ids=[3, 2])
    assert vec.recv().masks.all()
    assert vec.get_attr("t") == [1] * 4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda vec: vec.reset(options=3), PlanError, "options=3 is neither a mapping nor a sequence of 4 of them"),
        (lambda vec: vec.reset(options=[{}] * 3), PlanError, "is neither a mapping nor a sequence of 4 of them"),
        (lambda vec: vec.reset(seed=[1, 2]), PlanError, "seed"),
        (lambda vec: vec.reset(seed=[1, 2, 3, 2**32]), PlanError, r"seeds \[4294967296\] are none for a kernel"),
        (lambda vec: vec.reset(seed=-3), PlanError, "seed=-3"),
        (lambda vec: vec.recv(timeout="1"), PlanError, "timeout='1' is no number of seconds; use one, or None for no"),
        (lambda vec: vec.reset(env_ids=[4]), CallError, r"env_ids=\[4\] do not exist; use 0 to 3"),
        (lambda vec: vec.reset(env_ids=[1, 1]), CallError, r"env_ids names \[1\] more than once"),
        (lambda vec: vec.send(np.zeros(3, int), env_ids=[9]), CallError, r"env_ids=\[9\] do not exist"),
        (
            lambda vec: vec.set_attr("acts", True),
            CallError,
            "acts is no state of these .* seed, episode, t, x, y",
        ),
        (lambda vec: vec.set_attr("speed", 3), CallError, "speed is no state of these environments"),
        (
            lambda vec: vec.set_attr("t", [1, 2]),
            PlanError,
            "2 values for 4 environments; give one each, or one for all",
        ),
        (
            lambda vec: vec.set_attr("x", [[1, 2]] * 4),
            PlanError,
            r"x cannot be \[1, 2\] in environment 0: .*broadcast.*; give int32 of shape \(3,\)",
        ),
        (lambda vec: vec.set_attr("x", 2**40), PlanError, "environment 0: int32 does not hold all of its"),
        (lambda vec: vec.set_attr("x", [[[1], [1, 2], 3]] * 4), PlanError, r"x cannot be \[\[1\], \[1, 2\], 3\]"),
        (lambda vec: vec.set_attr("alive", "no"), CallError, "alive is bool, and 'no' came for environment 0; convert"),
        (lambda vec: vec.set_attr("x", [1, 1.5, 2, 3]), CallError, "x is int32, and 1.5 came for environment 1"),
        (
            lambda vec: vec.get_attr("speed", env_ids=[2]),
            WorkerError,
            r"environment 2 \(worker 0\) raised in get 'speed': AttributeError: .* no attribute 'speed'",
        ),
        (lambda vec: vec.call("fly"), WorkerError, r"environment 0 \(worker 0\) raised in call 'fly': AttributeError"),
        (lambda vec: vec.data.push("x", np.zeros(3)), KernelError, r"x holds int32 \(4, 3\), but got float64 \(3,\)"),
        (
            lambda vec: vec.data.push("x", np.full((4, 3), 2**40)),
            KernelError,
            "x holds int32, but got numbers from 1099511627776 to 1099511627776; use smaller ones",
        ),
        (lambda vec: vec.data.push("layouts", 1), KernelError, "layouts is const: its value is fixed when the"),
        (lambda vec: vec.data.pull("speed"), KernelError, "there is no field speed; there are seed, episode, t"),
    ],
)
def test_wrong_calls_change_nothing(call: Callable[[Any], Any], error: Any, message: str, vec: Any) -> None:
    vec.reset()
    before = vec.data.pull("x"), vec.get_attr("seed"), vec.get_attr("episode")
    with pytest.raises(error, match=message):
        call(vec)
    np.testing.assert_array_equal(before[0], vec.data.pull("x"))
    assert before[1:] == (vec.get_attr("seed"), vec.get_attr("episode"))
    vec.step(np.zeros(12, int))
    assert vec.get_attr("t") == [1] * 4


@pytest.mark.parametrize("kwargs", [{}, {"actions": np.zeros(1)}, {"keep": False}])
def test_more_rows_than_a_kernel_counts_are_refused(kwargs: dict[str, Any], vec: Any) -> None:
    """12 rows a step: before anything is made of them."""
    vec.reset()
    alone = not kwargs.get("keep", True)
    num_steps = 2**31 if alone else 2**31 // 12 + 1
    advice = ", or keep=False" if not kwargs else ""
    message = (
        rf"num_steps={num_steps} of 12 rows each are more than a kernel's 2,147,483,647; play fewer at a time{advice}$"
    )
    with pytest.raises(CallError, match=message):
        vec.rollout(num_steps, **kwargs)
    vec.step(np.zeros(12, int))
    assert vec.get_attr("t") == [1] * 4


def test_more_environments_than_a_kernel_counts_are_refused() -> None:
    from cuda_ext.data import Data
    from cuda_ext.references.tag_grid import TagGrid

    message = (
        r'acts of "tag/grid" would have 2,684,354,560 elements for num_envs=536870912, and kernels count to 2,147,483'
    )
    with pytest.raises(KernelError, match=message):
        Data(KERNEL, 2**29, 5, "cpu", TagGrid())


def test_reset_of_some_is_synchronous() -> None:
    with make(batch_size=2) as vec, pytest.raises(CallError, match=r"use async_reset\(env_ids=…\), whose rows come by"):
        vec.reset(env_ids=[1])


@on_host_and_device
def test_infos_are_read_in_time(player: Player) -> None:
    with make(device=player.device, env_kwargs={**SMALL, "start": "fixed"}, num_envs=2) as vec:
        vec.reset()
        for _ in range(4):
            unread = vec.step(np.zeros(6, int))[-1]
        for _ in range(5):
            infos = vec.step(np.zeros(6, int))[-1]
        read = list(infos)
        assert [info["env_id"] for info in read if "env" in info] == [0, 1]
        for _ in range(3):
            vec.step(np.zeros(6, int))
        assert infos == read
        with pytest.raises(CallError, match="of a batch that is no longer valid; read them before the second recv"):
            len(unread)
        late = vec.step(np.zeros(6, int))[-1]
    assert infos == read
    with pytest.raises(ClosedError, match="is closed; read them before close"):
        len(late)


@on_host_and_device
def test_closed(player: Player) -> None:
    vec = make(device=player.device)
    vec.reset()
    vec.close()
    vec.close()
    assert vec.closed and "closed" in repr(vec)
    calls: list[Callable[[], Any]] = [
        vec.recv, vec.reset, vec.stats, lambda: vec.send(np.zeros(12, int)), lambda: vec.step(np.zeros(12, int)),
        lambda: vec.get_attr("x"), lambda: vec.set_attr("t", 0), lambda: vec.call("render"), vec.render,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ClosedError, match="this CUDA is closed; make a new one"):
            call()


@on_host_and_device
def test_valid_until_the_second_recv(player: Player) -> None:
    """With debug=True what has expired shows itself; with copy=True nothing expires."""
    with make(device=player.device, debug=True) as vec, make(device=player.device, copy=True) as copying:
        first, copied = vec.reset()[0], copying.reset()[0]
        before = first.clone()
        for _ in range(2):
            assert torch.equal(first, before)
            vec.step(np.zeros(12, int))
            copying.step(np.zeros(12, int))
        assert first.isnan().all() and torch.equal(copied, before)


@on_host_and_device
def test_attributes_and_calls_reach_a_twin(player: Player) -> None:
    with make(device=player.device, env_kwargs={**SMALL, "render_mode": "ansi"}) as vec:
        vec.reset()
        vec.set_attr("x", [[0, 0, 3]] * 4)
        vec.set_attr("y", [[0, 0, 3]] * 4)
        assert vec.render(env_ids=[2]) == ["...R\n....\n....\nT..."]
        assert vec.call("action_space", "runner_0", env_ids=[0, 1]) == [vec.single_action_space] * 2
        assert vec.get_attr("grid_length") == [3] * 4
        assert vec.restarts == [0] * 4


def test_statistics_count(vec: Any) -> None:
    actions = torch.zeros(12, dtype=torch.int64, device=vec.device)
    vec.reset()
    vec.stats(reset=True)
    assert not vec.batch.infos and vec.stats().device_to_host_nbytes == 12  # a flag of each row
    vec.step(actions)  # which a device's values are read of
    vec.stats(reset=True)
    for _ in range(3):
        vec.step(actions)
    stats = vec.stats()
    assert (stats.num_launches, stats.num_env_steps) == (3, 12)
    assert (stats.host_to_device_nbytes, stats.device_to_host_nbytes) == (0, 0)
    assert "12 environment steps in 3 launches" in str(stats) and stats.env_steps_per_s > 0
    list(vec.batch.infos)
    assert vec.stats().device_to_host_nbytes > 0


def test_an_episode_takes_its_share_of_the_time(vec: Any) -> None:
    """Also where many steps are one launch."""
    vec.reset()
    vec.stats(reset=True)
    batch = vec.rollout(vec.get_attr("episode_length")[0], keep=False)
    ends = [info["episode"] for info in batch.infos if info.get("env")]
    spent_s = vec.stats().seconds
    assert ends and all(0 < end["t"] <= spent_s for end in ends)


def test_a_reference_that_lacks_what_its_schema_has() -> None:
    import dataclasses

    from cuda_ext.schema import Field, Parameter, Schema
    from cuda_ext.tag_grid import KERNEL

    for schema in (
        Schema((*KERNEL.schema.parameters, Parameter("speed", "int32")), KERNEL.schema.fields),
        Schema(KERNEL.schema.parameters, (*KERNEL.schema.fields, Field("speed", "int32", per="launch", role="const"))),
    ):
        with pytest.raises(KernelError, match='of "tag/grid" has speed, and its reference .*TagGrid has no attribute'):
            make(env=dataclasses.replace(KERNEL, schema=schema))
    wrong = dataclasses.replace(KERNEL.schema.parameters[-2], dtype="int32")
    schema = Schema((*KERNEL.schema.parameters[:-2], wrong, KERNEL.schema.parameters[-1]), KERNEL.schema.fields)
    with pytest.raises(KernelError, match="parameter step_cost_for_tagger=.*0.01.* is no int32"):
        make(env=dataclasses.replace(KERNEL, schema=schema))


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("value", ["fast", "0.5", None, [1, 2], [1], 1 << 999], ids=lambda value: str(value)[:9])
def test_a_parameter_that_is_no_number_is_named(value: Any, dtype: str) -> None:
    from types import SimpleNamespace

    from cuda_ext.data import parameters_of
    from cuda_ext.schema import KernelEnv, Parameter, Schema

    kernel = KernelEnv("run", "run.cuh", "run:Run", Schema((Parameter("speed", dtype),)))
    with pytest.raises(KernelError, match=rf'parameter speed=.* of "run" is no {dtype}'):
        parameters_of(kernel, SimpleNamespace(speed=value))


def test_a_package_that_the_reference_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cuda_ext.references.tag_grid", raising=False)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(pufferlib.MissingExtra, match=r'pettingzoo is not installed; .*"pufferlib\[petti'):
        make(device="host", num_envs=2)


def test_a_reference_that_cannot_be_played_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr("cuda_ext.references.tag_grid.TagGrid.close", lambda self: closed.append(self))
    monkeypatch.setattr("cuda_ext.data.MOST_ELEMENTS", 1)
    with pytest.raises(KernelError, match="would have"):
        make(device="host", num_envs=2)
    assert len(closed) == 1
