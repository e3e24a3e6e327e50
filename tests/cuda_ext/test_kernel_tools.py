"""What keeps kernels right where there is no GPU: checked barriers, sanitizers, NVRTC; and libraries."""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import kernel_programs
import numpy as np
import pytest
import torch
from kernel_programs import COUNTING, REPORTED, SCHEMA, counting
from matrix import covering

import pufferlib
from cuda_ext import functions, nvrtc, sources
from cuda_ext.functions import Shape, explained
from cuda_ext.occupancy import MULTIPROCESSORS
from cuda_ext.schema import Field, KernelEnv, Parameter, Schema
from cuda_ext.staging import STAGED_NBYTES
from cuda_ext.tag_grid import KERNEL
from pufferlib.errors import KernelError, MissingExtra

pytestmark = pytest.mark.beside

QUICK_FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in sources.HOST_FLAGS)  # to compile, not to run


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(kernel: KernelEnv, num_agents: int = 4, **kwargs: Any) -> Any:
    arguments: dict[str, Any] = {"num_envs": 3, "env_kwargs": {"num_agents": num_agents}} | kwargs
    return pufferlib.make(kernel, backend="cuda", device="host", **arguments)


# ----------------------------------------------------------------------------------------------------------- barriers

NUM_AGENTS = {"a part of a warp": 4, "a block": 40}
WRONG = {
    "two barriers": "if (group.rank % 2) group.sync(); else\n group.sync();",
    "a barrier for some": "if (group.rank < 2) group.sync();",
    "a barrier for all but one": "if (group.rank == 1) return;\n group.sync();",
    "a loop of different lengths": "for (int k = 0; k <= group.rank % 2; ++k) group.sync();",
    "a sum for some": "if (group.rank) group.sum(1);",
    "another thing for some": "if (group.rank) group.any(true); else\n group.sync();",
    "a minimum for some": "if (group.rank) group.min(1);",
}
ODD = {
    "memory read before it is written": """
    #if GROUP_SIZE > 32
        __shared__ int word;
        if (group.rank == 3) env.total[e] = word;
        group.sync();
        word = 5;
    #endif
    """,
    "what the last one writes": "env.total[e] = group.rank;",
}
NUMBERS = {name: number for number, name in enumerate([*WRONG, *ODD], 1)}


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def odd(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> KernelEnv:
    """A kernel with all of WRONG and ODD, one of which ``wrong=`` turns on: compiled once for each shape."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_folder / "cache"))
    monkeypatch.setattr(sources, "HOST_FLAGS", QUICK_FLAGS)
    more = [f"if (env.wrong == {NUMBERS[name]}) {{\n{code}\n}}" for name, code in {**WRONG, **ODD}.items()]
    return counting(shared_folder, more="\n".join(more))


def odd_kwargs(name: str) -> dict[str, Any]:
    return {"env_kwargs": {"num_agents": 40, "wrong": NUMBERS[name]}, "backend_kwargs": {"checked": True}}


@pytest.mark.parametrize("num_agents", NUM_AGENTS.values(), ids=NUM_AGENTS)
@pytest.mark.parametrize("checked", [False, True])
def test_a_kernel_of_ones_own(num_agents: int, checked: bool, odd: KernelEnv) -> None:
    with make(odd, num_agents, backend_kwargs={"checked": checked}) as vec:
        vec.reset()
        actions = np.arange(3 * num_agents) % 5
        sums = actions.reshape(3, num_agents).sum(axis=1)
        for t in (1, 2, 3):
            observations, _, _, truncations, _ = vec.step(actions)
            np.testing.assert_array_equal(observations[:, 0], np.repeat(t * sums, num_agents))
            assert truncations.all() == truncations.any() == (t == 3)


@pytest.mark.parametrize("num_agents", NUM_AGENTS.values(), ids=NUM_AGENTS)
@pytest.mark.parametrize("name", WRONG)
def test_barriers_that_not_all_come_to(name: str, num_agents: int, odd: KernelEnv) -> None:
    before = Path(odd.source).read_text().partition(f"if (env.wrong == {NUMBERS[name]}) {{\n")[0]
    line = before.count("\n") + 2
    with make(odd, **{**odd_kwargs(name), "env_kwargs": {"num_agents": num_agents, "wrong": NUMBERS[name]}}) as vec:
        vec.reset()
        with pytest.raises(KernelError) as caught:
            vec.step(np.zeros(3 * num_agents, int))
    message = str(caught.value)
    assert message.startswith('"counting" would hang on a device: in block 0, thread ')
    assert f"counting.cuh:{line}" in message or f"counting.cuh:{line + 1}" in message
    assert message.endswith("all threads of a group must reach each of its barriers")


def test_who_has_ended_is_not_waited_for_in_a_warp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel.cuh lets nobody end early; a kernel of another make may."""
    monkeypatch.setattr(sources, "HOST_FLAGS", QUICK_FLAGS)
    text = sources.for_checks(counting(tmp_path), Shape.of(4, 1).macros)
    last = "if (threadIdx.x == 3) return;\n if (launch) __syncthreads(); else __syncwarp(15u);"
    library = functions.compiled_library(counting(tmp_path), text.replace("checked_kernel(*launch);", last))
    library.kernel_counting_check.restype = functions.ctypes.c_char_p
    assert library.kernel_counting_check(None, 1, 4, 7).endswith(b", and thread 3 has ended")
    assert not library.kernel_counting_check(functions.ctypes.byref(functions.ctypes.c_int()), 2, 4, 7)


def test_shared_memory_is_poisoned(odd: KernelEnv) -> None:
    """What a block reads before it writes is absurd, and not what the block before has left there."""
    with make(odd, **odd_kwargs("memory read before it is written")) as vec:
        vec.reset()
        for _ in range(2):
            vec.step(np.zeros(120, int))
            assert [total & 0xFFFFFFFF for total in vec.get_attr("total")] == [0xABABABAB] * 3


def test_threads_run_in_another_order_each_time(odd: KernelEnv) -> None:
    """What depends on their order shows itself: the last one to write."""
    with make(odd, num_envs=1, **odd_kwargs("what the last one writes")) as vec:
        vec.reset()
        seen = set()
        for _ in range(24):
            vec.step(np.zeros(40, int))
            seen.add(vec.get_attr("total")[0])
    assert len(seen) > 3


# ---------------------------------------------------------------------------------------------------------- sanitizers

GROUPS = {  # shape, taggers, runners, environments, whether all is seen
    "a part of a warp": (Shape(5, 5, 32, 632), 3, 2, 7, True),
    "a block": (Shape(39, 64, 64, 392), 30, 9, 2, False),
}
# What is put in: file, sound, unsound. In the order of the step: what another thread writes is read, or written twice.
STEP, SHARED = "tag_grid.cuh", "kernel.cuh"
SYNC, NO_SYNC = "    group.sync();\n", "    if (!FAULT) group.sync();\n"
RACES = {
    "no atomics": (
        STEP,
        "atomicAdd(&env.tagged[first + r], 1);",
        "if (FAULT) env.tagged[first + r] += 1; else atomicAdd(&env.tagged[first + r], 1);",
    ),
    "moves not waited for": (STEP, " : 0.0f;\n    }\n" + SYNC, " : 0.0f;\n    }\n" + NO_SYNC),
    "tags not waited for": (
        STEP,
        "            }\n        }\n    }\n" + SYNC,
        "            }\n        }\n    }\n" + NO_SYNC,
    ),
    "a start not waited for": (SHARED, "    start(env, e, group);\n" + SYNC, "    start(env, e, group);\n" + NO_SYNC),
}
ABSENT = """
        group.sync();
        for (int a = observes.rank; a < env.num_agents; a += group.size) {
            if (starts || env.masks[row + a]) continue;  // an agent that ended before observes zeros
            for (int k = 0; k < env.observation_size; ++k) rows[a * env.observation_size + k] = 0.0f;
        }
        group.sync();
"""
TILE_RACES = {"a tile read early": (SHARED, ABSENT, ABSENT.replace("group.sync();", "if (!FAULT) group.sync();"))}
OVERRUNS = {
    "a row too many": (STEP, "row = observations + a * size;", "row = observations + (a + FAULT) * size;"),
    "an agent too many": (STEP, "r = num_taggers; r < env.num_agents;", "r = num_taggers; r < env.num_agents + FAULT;"),
}
FAULTS = {**RACES, **TILE_RACES, **OVERRUNS}
Sanitized = Callable[..., tuple[int, str]]


def built(
    folder: Path, sanitizer: str, group: str, faults: Iterable[Any] = (), overrides: Mapping[str, Any] = {}
) -> Path:
    """Compile what plays tag/grid's kernel for some steps, with these faults. overrides: launch arguments."""
    headers = folder / "headers"
    kernel_programs.with_faults(headers, faults)
    shape, taggers, runners, num_envs, full = GROUPS[group]
    num_agents = taggers + runners
    values = {
        "num_agents": num_agents, "observation_size": 4 * num_agents + 1 if full else 10, "num_taggers": taggers,
        "num_nearest": 3, "full_observation": int(full), "grid_length": 1, "episode_length": 2,
        "wall_hit_penalty": 0.1, "tag_reward_for_tagger": 10, "tag_penalty_for_runner": 2,
        "step_cost_for_tagger": 0.01, "num_layouts": 0, **overrides,
    }  # fmt: skip
    kernel = dataclasses.replace(KERNEL, source=str(headers / "tag_grid.cuh"))
    return kernel_programs.build(
        kernel_programs.program(kernel, shape, num_envs, values, 3), folder, headers, sanitizer
    )


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """What plays such a kernel, with a fault of FAULTS or without: compiled once for all of them."""

    @functools.cache
    def compiled_once(sanitizer: str, group: str, spoilt: bool) -> Path:
        return built(tmp_path_factory.mktemp("sanitized"), sanitizer, group, FAULTS.values() if spoilt else ())

    def play(sanitizer: str, group: str, fault: str = "", spoilt: bool = True) -> tuple[int, str]:
        number = [*FAULTS].index(fault) + 1 if fault else 0
        return kernel_programs.play(compiled_once(sanitizer, group, spoilt), sanitizer, number)

    return play


@pytest.mark.long
@pytest.mark.parametrize("group", ["a part of a warp", "a block"])
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("spoilt", [True, False])
def test_sanitizers_are_silent(spoilt: bool, sanitizer: str, group: str, sanitized: Sanitized) -> None:
    """Also with the faults in it, as long as they are turned off."""
    assert sanitized(sanitizer, group, spoilt=spoilt) == (0, "")


@pytest.mark.parametrize(
    ("race", "group"),
    [
        *(pytest.param(race, "a part of a warp", marks=pytest.mark.long) for race in RACES),
        *itertools.product(RACES | TILE_RACES, ["a block"]),
    ],
)
def test_races_are_noticed(race: str, group: str, sanitized: Sanitized) -> None:
    code, said = sanitized("thread", group, race)
    assert (code, "WARNING: ThreadSanitizer: data race" in said) == (REPORTED, True), said


@pytest.mark.parametrize("overrun", OVERRUNS)
def test_overruns_are_noticed(overrun: str, sanitized: Sanitized) -> None:
    code, said = sanitized("address,undefined", "a block", overrun)
    assert (code, "ERROR: AddressSanitizer: heap-buffer-overflow" in said) == (REPORTED, True), said


# --------------------------------------------------------------------------------------------------------------- NVRTC

DEVICE_SHAPES = [  # taggers, runners, whether all is seen, how many nearest
    (4, 1, True, 1), (1000, 100, False, 1),
    *(
        pytest.param(shape, marks=pytest.mark.long)
        for shape in ((4, 1, False, 1), (10, 1, True, 1), (100, 5, False, 1), (990, 10, False, 1), (50, 50, False, 10))
    ),
]  # fmt: skip


@covering({"shape": DEVICE_SHAPES, "architecture": [*MULTIPROCESSORS], "steps": ["many", "one"]})
def test_registers_suffice(shape: tuple[int, int, bool, int], architecture: str, steps: str) -> None:
    taggers, runners, full, num_nearest = shape
    num_agents = taggers + runners
    size = 4 * num_agents + 1 if full else 2 * num_nearest + 4
    constants: dict[str, int | float] = {
        "num_agents": num_agents, "observation_size": size, "num_taggers": taggers, "num_nearest": num_nearest,
        "full_observation": int(full), "policy": 0, **({"num_steps": 1} if steps == "one" else {}),
    }  # fmt: skip
    cubin = nvrtc.compiled(KERNEL, Shape.of(num_agents, size), constants, architecture)
    assert cubin.code[:4] == b"\x7fELF"
    assert cubin.spilled_nbytes == cubin.stack_nbytes == 0
    assert 16 <= cubin.num_registers <= 128
    assert cubin.shared_nbytes <= functions.GROUP_TILE_NBYTES + STAGED_NBYTES


class WithLayers(kernel_programs.Counting):
    """Has parameters whose names are also arguments that describe a launch's network."""

    layers, options = 2, 3


@pytest.mark.long
@pytest.mark.parametrize("checked", [False, True])
def test_a_parameter_may_be_called_as_a_part_of_a_network(checked: bool, tmp_path: Path) -> None:
    parameters = (*SCHEMA.parameters, Parameter("layers", "int32"), Parameter("options", "int32"))
    kernel = counting(
        tmp_path, schema=Schema(parameters, SCHEMA.fields), more="if (group.rank == 0) env.total[e] += env.layers;"
    )
    kernel = dataclasses.replace(kernel, reference=f"{__name__}:WithLayers")
    with make(kernel, backend_kwargs={"checked": True} if checked else {}) as vec:
        vec.reset()
        policy = torch.nn.Sequential(torch.nn.Linear(1, 5))
        chosen = vec.rollout(1, policy=policy).actions
        assert vec.get_attr("total") == [2 + int(actions.sum()) for actions in chosen.reshape(3, 4)]


LACKING = COUNTING.replace("sum = group.sum(sum);", "sum = group.sum(sum) + env.speed[e];")
MESSAGE = (
    r'"counting" does not compile:\ncounting.cuh uses env.speed, which the schema of "counting" lacks; '
    r'add Field\("speed", …\) or Parameter\("speed", …\) to it\n'
)


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    kernel = counting(tmp_path, source=LACKING)
    with pytest.raises(KernelError, match=MESSAGE + r"(.*\n)*.*counting.cuh"):
        make(kernel)
    with pytest.raises(KernelError, match=MESSAGE):
        nvrtc.compiled(kernel, Shape.of(4, 1), {})
    clang = "counting.cuh:12:3: error: no member named 'speed' in '(anonymous namespace)::Env'"
    with pytest.raises(KernelError, match=MESSAGE):
        raise KernelError(explained(kernel, clang))
    assert "lacks" not in explained(kernel, "counting.cuh:12:3: error: expected ';'")


def test_other_mistakes_are_shown_as_the_compiler_puts_them(tmp_path: Path) -> None:
    kernel = counting(tmp_path, more="int x = ;")
    for compiling in (lambda: make(kernel), lambda: nvrtc.compiled(kernel, Shape.of(4, 1), {})):
        with pytest.raises(KernelError, match=r'^"counting" does not compile:\n(.*\n)*.*error: expected'):
            compiling()
    with pytest.raises(KernelError, match="there is no file .*nowhere.cuh; the kernel's source= names it"):
        make(dataclasses.replace(kernel, source=str(tmp_path / "nowhere.cuh")))


def test_without_nvrtc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc._library.cache_clear()
    monkeypatch.setattr(nvrtc, "_folders", lambda name: iter(()))
    monkeypatch.setattr(nvrtc, "NAMES", ())
    try:
        with pytest.raises(MissingExtra, match="compiling for a GPU needs NVRTC: pip install nvidia-cuda-nvrtc"):
            nvrtc.compiled(KERNEL, Shape.of(5, 21), {})
    finally:
        nvrtc._library.cache_clear()


# ---------------------------------------------------------------------------------------------------------- libraries


def sums(kernel: KernelEnv) -> list[int]:
    with make(kernel) as vec:
        vec.reset()
        vec.step(np.ones(12, int))
        return vec.get_attr("total")


@pytest.mark.long
def test_a_library_is_compiled_once_and_again_for_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "HOST_FLAGS", QUICK_FLAGS)
    compiler = shutil.which(kernel_programs.COMPILER[0])
    counted = tmp_path / "compiler"
    counted.write_text(f'#!/bin/sh\necho >> {tmp_path}/calls\nexec {compiler} "$@"\n')
    counted.chmod(0o755)
    monkeypatch.setenv("CXX", str(counted))
    for more, expected in (("", 4), ("if (group.rank == 0) env.total[e] += 3;", 7)):
        for _ in range(2):
            assert sums(counting(tmp_path, more=more)) == [expected] * 3
    assert len((tmp_path / "calls").read_text()) == 2
    libraries = list((tmp_path / "cache/pufferlib/kernels").iterdir())
    assert [path.suffix for path in libraries] == [".so"] * 2
    longer = Schema(SCHEMA.parameters, (Field("other", "float64", role="scratch"), *SCHEMA.fields))
    assert sums(counting(tmp_path, schema=longer)) == [4] * 3
    assert len((tmp_path / "calls").read_text()) == 3


@pytest.mark.parametrize("change", ["nothing", pytest.param("the kernel", marks=pytest.mark.long), "what all share"])
def test_a_built_library_is_used_as_long_as_it_is_of_this_source(
    change: str, tmp_path: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "HOST_FLAGS", QUICK_FLAGS)
    kernel = counting(tmp_path)
    library = shared_folder / "_host.so"
    if not library.exists():
        functions.compiled_library(kernel, sources.for_host(kernel))
        (built,) = (tmp_path / "cache/pufferlib/kernels").iterdir()
        shutil.move(built, library)
    spec = importlib.machinery.ModuleSpec("cuda_ext._host", None, origin=str(library))
    monkeypatch.setattr(functions.importlib.util, "find_spec", lambda name: spec)
    if change == "the kernel":
        counting(tmp_path, more="if (group.rank == 0) env.total[e] += 3;")
    if change == "what all share":
        digest = sources.digest
        monkeypatch.setattr(sources, "digest", lambda *texts: digest(*texts, "another kernel.cuh"))
    assert sums(kernel) == [7 if change == "the kernel" else 4] * 3
    compiled = list((tmp_path / "cache/pufferlib/kernels").glob("*.so"))
    assert len(compiled) == (0 if change == "nothing" else 1)


@pytest.mark.parametrize("kwargs", [{}, {"backend_kwargs": {"checked": True}}])
def test_without_a_compiler_it_says_so(kwargs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KernelError, match="has to be compiled .* there is no g\\+\\+: install a .* or name one in CXX"):
        make(counting(tmp_path), **kwargs)


@pytest.mark.parametrize("compiler", ["/nowhere/c++", "/bin/false"])
def test_a_compiler_that_does_not_work(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(KernelError, match='"counting"'):
        make(counting(tmp_path))
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_nowhere_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(KernelError, match="there is no .* to keep compiled kernels in: .*; set XDG_CACHE_HOME"):
        make(counting(tmp_path))
