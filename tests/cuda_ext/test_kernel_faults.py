"""Every kernel with any arguments as fibres, and as threads that sanitizers watch. Each check finds what is put in.

A new kernel is found here, and played with its default arguments; faults to put in have to be given.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kernel_programs
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kernel_programs import REPORTED
from matrix import covering
from test_tag_continuous import configs

import pufferlib
from cuda_ext import sources
from cuda_ext.functions import NUM_LANES, Shape
from cuda_ext.schema import CTYPES, KernelEnv
from pufferlib.testing import check_kernel

pytestmark = pytest.mark.beside

# All tests here play with device="host": a device has neither fibres nor the sanitizers of the host's compiler.


class Faults(NamedTuple):
    """Text of a kernel's file, and what may stand in its place. FAULT is true while the fault is on."""

    wrong: tuple[str, str]  # plays otherwise than the reference, if only in some order of threads
    race: tuple[str, str]
    overrun: tuple[str, str]


TAGS_EARLY = ("    }\n    group.sync();\n\n", "    }\n    if (!FAULT) group.sync();\n\n")  # before all have moved
SUMS_EARLY = ("    group.sync();  // all have read", "    if (!FAULT) group.sync();  // all have read")
FAULTS = {
    "classic/acrobot": Faults(
        ("env.t[e] >= env.max_episode_steps", "env.t[e] >= env.max_episode_steps + FAULT"),
        ("env.theta1[e] = theta1;", "env.theta1[FAULT ? 0 : e] = theta1;"),
        ("observations[5] =", "observations[5 + FAULT] ="),
    ),
    "classic/cartpole": Faults(
        ("env.t[e] >= env.max_episode_steps", "env.t[e] >= env.max_episode_steps + FAULT"),
        ("env.x[e] = x;", "env.x[FAULT ? 0 : e] = x;"),
        ("observations[3] =", "observations[3 + FAULT] ="),
    ),
    "classic/mountain_car": Faults(
        ("env.t[e] >= env.max_episode_steps", "env.t[e] >= env.max_episode_steps + FAULT"),
        ("env.position[e] = position;", "env.position[FAULT ? 0 : e] = position;"),
        ("observations[1] =", "observations[1 + FAULT] ="),
    ),
    "classic/pendulum": Faults(
        ("env.t[e] >= env.max_episode_steps", "env.t[e] >= env.max_episode_steps + FAULT"),
        ("env.theta_dot[e] = speed;", "env.theta_dot[FAULT ? 0 : e] = speed;"),
        ("observations[2] =", "observations[2 + FAULT] ="),
    ),
    "economy/covid": Faults(
        SUMS_EARLY,
        SUMS_EARLY,
        ("env.product[first + i] =", "env.product[first + i + FAULT] ="),
    ),
    "ocean/bandit": Faults(
        ("== env.best_arm", "== env.best_arm - FAULT"),
        ("env.noise[e] =", "env.noise[FAULT ? 0 : e] ="),
        ("env.scores[row] =", "env.scores[row + FAULT] ="),
    ),
    "ocean/continuous": Faults(
        ("env.t[e] >= NUM_STEPS", "env.t[e] >= NUM_STEPS - 90 * FAULT"),
        ("env.velocity[first + axis] = velocity;", "env.velocity[FAULT ? axis : first + axis] = velocity;"),
        ("observations[4 + axis] =", "observations[4 + axis + FAULT] ="),
    ),
    "ocean/memory": Faults(
        ("t >= env.length ?", "t >= env.length + FAULT ?"),
        ("answers[answer] = bit;", "env.answers[FAULT ? 0 : answers - env.answers + answer] = bit;"),
        ("observations[0] =", "observations[FAULT] ="),
    ),
    "ocean/password": Faults(
        ("k < env.t[e] ?", "k < env.t[e] - FAULT ?"),
        ("guesses[env.t[e] - 1] =", "env.guesses[FAULT ? 0 : guesses - env.guesses + env.t[e] - 1] ="),
        ("observations[k] =", "observations[k + FAULT] ="),
    ),
    "ocean/squared": Faults(
        ("(float)(1.0 - (double)nearest / env.distance)", "1.0f - (float)nearest / env.distance"),
        ("env.row[e] = y;", "env.row[FAULT ? 0 : e] = y;"),
        ("observations[cell] =", "observations[cell + FAULT] ="),
    ),
    "ocean/stochastic": Faults(
        ("env.t[e] < env.horizon", "env.t[e] < env.horizon + FAULT"),
        ("env.num_zeros[e] = num_zeros;", "env.num_zeros[FAULT ? 0 : e] = num_zeros;"),
        ("observations[0] =", "observations[FAULT] ="),
    ),
    "tag/continuous": Faults(TAGS_EARLY, TAGS_EARLY, ("env.tags[first + a] = 0;", "env.tags[first + a + FAULT] = 0;")),
    "tag/grid": Faults(TAGS_EARLY, TAGS_EARLY, ("env.tagged[i] = 0;", "env.tagged[i + FAULT] = 0;")),
}
KERNELS: dict[str, KernelEnv] = {
    kernel.name: kernel for kernel in (importlib.import_module(f"cuda_ext.{stem}").KERNEL for stem in sources.stems())
}


def test_each_kernel_has_faults() -> None:
    assert {*FAULTS} == {*KERNELS}
    for name, faults in FAULTS.items():
        text = Path(KERNELS[name].source).read_text()
        assert all(sound in text and "FAULT" not in text for sound, _ in faults), name


# ------------------------------------------------------------------------------------------------- any arguments

GROUPS = st.sampled_from([(1, 1, True, 1), (4, 7, False, 3), (3, 37, False, 5)])  # each compiled once
ARGUMENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "classic/acrobot": st.fixed_dictionaries({"max_episode_steps": st.integers(1, 40)}),
    "classic/cartpole": st.fixed_dictionaries({"max_episode_steps": st.integers(1, 40)}),
    "classic/mountain_car": st.fixed_dictionaries({"max_episode_steps": st.integers(1, 40)}),
    "ocean/bandit": st.fixed_dictionaries(
        {
            "num_actions": st.integers(2, 9),
            "reward_scale": st.floats(0.01, 1e6),
            "reward_noise": st.floats(0, 10),
            "arm_seed": st.integers(0, 9),
        }
    ),
    "classic/pendulum": st.fixed_dictionaries({"max_episode_steps": st.integers(1, 40)}),
    "ocean/continuous": st.fixed_dictionaries({"discrete": st.booleans()}),
    "ocean/memory": st.fixed_dictionaries({"length": st.integers(1, 9), "delay": st.integers(0, 9)}),
    "ocean/password": st.fixed_dictionaries({"length": st.integers(1, 7), "password_seed": st.integers(0, 9)}),
    "economy/covid": st.fixed_dictionaries(
        {
            **{name: st.integers(1, 40) for name in ("episode_length", "action_cooldown", "subsidy_interval")},
            **{name: st.booleans() for name in ("enforce_masks", "clip_transmission")},
            "first_vaccines": st.integers(1, 40),
            "vaccines_per_million": st.floats(0, 1e6),
            "max_annual_subsidy": st.floats(0, 1e6),
            "health_priority_of_governors": st.floats(0, 100),
            "health_priority_of_planner": st.floats(0, 100),
        }
    ),
    "ocean/squared": st.integers(1, 7).flatmap(
        lambda most: st.fixed_dictionaries({"distance": st.just(most), "num_targets": st.integers(1, 8 * most)})
    ),
    "ocean/stochastic": st.fixed_dictionaries({"p": st.floats(0.01, 0.99), "horizon": st.integers(1, 40)}),
    "tag/continuous": st.builds(
        lambda config, group: (
            config | dict(zip(("num_taggers", "num_runners", "full_observation", "num_nearest"), group, strict=True))
        ),
        configs,
        GROUPS,
    ),
    # tag/grid: see test_kernels.py
}


def check(kernel: KernelEnv, num_examples: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    """Compare a kernel, played by fibres, with its reference, for any arguments."""

    @settings(max_examples=num_examples, phases=phases)
    @given(ARGUMENTS.get(kernel.name, st.just({})), st.integers(1, 7), st.integers(0, 2**31))
    def compare(env_kwargs: dict[str, Any], num_envs: int, seed: int) -> None:
        report = check_kernel(
            kernel,
            device="host",
            env_kwargs=env_kwargs,
            num_envs=num_envs,
            num_steps=30,
            seed=seed,
            backend_kwargs={"checked": True},
        )
        assert report.passed, str(report)

    compare()


# A thread an environment, and a thread an agent. The others are compared with their references in test_every_kernel.py.
SHORT = ("classic/cartpole", "tag/grid")


def mostly_long(names: Iterable[str]) -> list[Any]:
    """Return the names of kernels as parameters, all but those of SHORT as long."""
    return [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long]) for name in names]


# In the long form, of kernels with many arguments; the others, which have a few small numbers, are compared in 30.
NUM_EXAMPLES = {"tag/continuous": 60, "economy/covid": 20}


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.long)], ids=["few", "many"])
@pytest.mark.parametrize("name", mostly_long(KERNELS))
def test_fibres_equal_the_reference(name: str, few: bool) -> None:
    check(KERNELS[name], 3 if few else NUM_EXAMPLES.get(name, 30))


@pytest.mark.parametrize("name", mostly_long(FAULTS))
def test_a_kernel_that_is_wrong_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (sound, unsound), source = FAULTS[name].wrong, Path(KERNELS[name].source)
    copy = tmp_path / source.name
    copy.write_text(source.read_text().replace(sound, unsound.replace("FAULT", "1"), 1))
    with pytest.raises(AssertionError, match=f"^{name}: the kernel differs after"):
        check(dataclasses.replace(KERNELS[name], source=str(copy)), 50, [Phase.generate])


# ------------------------------------------------------------------------------------------------------ sanitizers

SMALL: dict[str, list[dict[str, Any]]] = {  # arguments, short episodes above all
    "classic/acrobot": [{"max_episode_steps": 2}],
    "classic/cartpole": [{"max_episode_steps": 2}],
    "classic/mountain_car": [{"max_episode_steps": 2}],
    "classic/pendulum": [{"max_episode_steps": 2}],
    "ocean/bandit": [{"reward_noise": 1.0}],  # without it, nothing is drawn
    "ocean/memory": [{"length": 1, "delay": 0}],
    "ocean/password": [{"length": 2}],
    "economy/covid": [{"episode_length": 2}],
    "ocean/squared": [{"distance": 1}],
    "ocean/stochastic": [{"horizon": 2}],
    "tag/continuous": [
        {"num_taggers": 3, "num_runners": 2, "tagging_distance": 0.2, "episode_length": 2},
        {"num_taggers": 4, "num_runners": 36, "full_observation": False, "num_nearest": 3, "episode_length": 2},
    ],
    "tag/grid": [{"num_taggers": 3, "num_runners": 2, "grid_length": 1, "episode_length": 2}],
}
# tag/grid has more of this, and always, in test_kernel_tools.py.
SANITIZED = ("classic/cartpole 0", "tag/continuous 0")  # in the short form
CASES = [
    pytest.param((name, kwargs), id=(case := f"{name} {number}"), marks=[] if case in SANITIZED else [pytest.mark.long])
    for name in KERNELS
    for number, kwargs in enumerate(SMALL.get(name, [{}]))
]
EXPECTED = {  # which of the faults a sanitizer is to find, and what it says then
    "thread": (1, "WARNING: ThreadSanitizer: data race"),
    "address,undefined": (2, "ERROR: AddressSanitizer: heap-buffer-overflow"),
}


@pytest.mark.long
@covering({"case": CASES, "sanitizer": [*EXPECTED]})
def test_sanitizers(case: tuple[str, dict[str, Any]], sanitizer: str, tmp_path: Path) -> None:
    """They are silent as long as no fault is on, and then they are not."""
    name, kwargs = case
    source = Path(KERNELS[name].source)
    headers = tmp_path / "headers"
    kernel_programs.with_faults(headers, [(source.name, *fault) for fault in FAULTS[name][1:]])
    kernel = dataclasses.replace(KERNELS[name], source=str(headers / source.name))
    shape, values = launched(kernel, kwargs)
    text = kernel_programs.program(kernel, shape, shape.envs_per_block + 1, values, 3)
    binary = kernel_programs.build(text, tmp_path, headers, sanitizer)
    assert kernel_programs.play(binary, sanitizer) == (0, "")
    fault, words = EXPECTED[sanitizer]
    code, said = kernel_programs.play(binary, sanitizer, fault)
    assert (code, words in said) == (REPORTED, True), said


def launched(kernel: KernelEnv, kwargs: dict[str, Any]) -> tuple[Shape, dict[str, Any]]:
    """Return the shape of a launch, with blocks of one warp where they may be, and what it is told."""
    with pufferlib.make(KERNELS[kernel.name], backend="cuda", device="host", num_envs=1, env_kwargs=kwargs) as vec:
        data: Any = vec.data  # type: ignore[attr-defined]
        num_agents, size = vec.agents_per_env, int(np.prod(vec.single_observation_space.shape or ()))
        values = {**data.parameters, "num_agents": num_agents, "observation_size": size}
        for field in kernel.schema.fields:
            if field.role == "const":
                elements = [repr(element).lower() for element in data.pull(field.name).reshape(-1).tolist()]  # true
                numbers = f"static {CTYPES[field.dtype]} numbers[] = {{{', '.join(elements or ['0'])}}};"
                values[field.name] = f"[] {{ {numbers} return numbers; }}()"  # no code, which compiles slowly
    shape = Shape.of(num_agents, size)
    if shape.group_size <= NUM_LANES:
        shape = dataclasses.replace(shape, block_size=NUM_LANES)
    return shape, values
