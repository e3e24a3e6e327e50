"""Kernels that are wrong, or watched: an environment that is declared here, and programs of threads for sanitizers."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

import pufferlib
from cuda_ext import sources
from cuda_ext.functions import Shape, compiler_command
from cuda_ext.schema import CTYPES, LAUNCH, Field, KernelEnv, Parameter, Schema

COMPILER = compiler_command()
REPORTED = 99  # the exit code where a sanitizer has reported something


class Counting(pufferlib.PufferEnv):
    """Each agent sees the sum of what all have done so far."""

    single_observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    single_action_space = Discrete(5)

    def __init__(self, num_agents: int = 4, length: int = 3, wrong: int = 0) -> None:
        self.num_agents, self.length, self.wrong = num_agents, length, wrong
        super().__init__()

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.t, self.total = 0, 0
        self.observations[:] = 0

    def step(self, actions: Any) -> None:
        self.t += 1
        self.total += int(actions.sum())
        self.observations[:] = self.total
        self.truncations[:] = self.t == self.length


SCHEMA = Schema(
    (Parameter("length", "int32"), Parameter("wrong", "int32")), (Field("total", "int32", per="env", reset="zero"),)
)
COUNTING = """
__device__ void start(const Env& env, int e, const Group& group) {}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    int sum = 0;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        sum += action(env, e, a, row, 5);
        env.truncations[row + a] = env.t[e] >= env.length;
    }
    sum = group.sum(sum);
    if (group.rank == 0) env.total[e] += sum;
    // HERE
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    for (int a = group.rank; a < env.num_agents; a += group.size) observations[a] = (float)env.total[e];
}
"""


def counting(folder: Path, *, more: str = "", schema: Schema = SCHEMA, source: str = COUNTING) -> KernelEnv:
    """Return a kernel that is written to a folder. more: lines at the end of its step."""
    path = folder / "counting.cuh"
    path.write_text(source.replace("// HERE", more))
    return KernelEnv("counting", str(path), f"{__name__}:Counting", schema)


def with_faults(folder: Path, faults: Iterable[tuple[str, str, str]]) -> None:
    """Copy the sources of cuda_ext to a folder, with faults of which the program's variable ``fault`` turns one on.

    faults: file, such as "learner/main.h", sound text, and unsound text, in which FAULT is
    true while ``fault`` is the number of this fault, from 1.
    """
    files = (file for pattern in ("*.h", "*.cuh") for file in sources.FOLDER.rglob(pattern))
    texts = {file.relative_to(sources.FOLDER).as_posix(): file.read_text() for file in files}
    for number, (name, sound, unsound) in enumerate(faults, 1):
        assert sound in texts[name], sound
        texts[name] = texts[name].replace(sound, unsound.replace("FAULT", f"(fault == {number})"))
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def program(kernel: KernelEnv, shape: Shape, num_envs: int, values: Mapping[str, Any], num_launches: int) -> str:
    """Return a C++ program that plays launches of two steps with random actions, one thread for each of CUDA.

    values: of num_agents, observation_size, and all parameters.
    """
    rows = num_envs * values["num_agents"]
    floats = rows * values["observation_size"]
    num_of = {"agent": rows, "env": num_envs, "launch": 1, "seeds": num_envs, "ended": num_envs}
    num_of |= {"observations": floats, "final_observations": floats}
    arrays = {
        field.name: (CTYPES[field.dtype], num_of[field.per] * (values[field.size] if field.size else 1))
        for field in kernel.schema.all_fields
    }
    for name, ctype in LAUNCH:
        if ctype.endswith("*") and name not in ("env_ids", "actions", "slot_ids"):
            kind = ctype.removeprefix("const ").removesuffix("*").replace("void", "long long")  # options of a policy
            arrays[name] = kind, num_of.get(name, rows)
    lines = [f"env.{name} = ({kind}*)calloc({num}, sizeof({kind}));" for name, (kind, num) in arrays.items()]
    lines += [f"env.{name} = {value};" for name, value in {**values, "num_envs": num_envs, "num_steps": 2}.items()]
    launch = f"if ({sources.entry(kernel)}_check(&env, {shape.num_blocks(num_envs)}, {shape.block_size}, 1)) return 1;"
    return "\n".join(
        [
            "#include <cstdlib>",
            "static int fault = 0;",
            sources.for_checks(kernel, shape.macros, threads=True),
            "int main(int, char** arguments) {",
            "if (arguments[1]) fault = atoi(arguments[1]);",
            "Arguments env = {};",
            *lines,
            "env.resets = 1;",
            launch,
            "env.resets = 0;",
            f"for (int k = 0; k < {num_launches}; ++k) {launch}",
            "return 0;",
            "}",
            "",
        ]
    )


def run(text: str, folder: Path, headers: Path, sanitizer: str) -> tuple[int, str]:
    """Compile a program with a sanitizer and run it; return its exit code and what it said."""
    return play(build(text, folder, headers, sanitizer), sanitizer)


def build(text: str, folder: Path, headers: Path, sanitizer: str) -> Path:
    """Compile a program with a sanitizer, and return where it is."""
    binary = folder / "program"
    flags = [*sources.HOST_FLAGS, "-O0", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    command = [*COMPILER, *flags, "-I", str(headers), "-x", "c++", "-", "-o", str(binary)]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return binary


def play(binary: Path, sanitizer: str, fault: int = 0) -> tuple[int, str]:
    """Run a program that a sanitizer watches, with one of its faults turned on; return its exit code and its words."""
    options = f"halt_on_error=1:exitcode={REPORTED}:detect_leaks=0"
    environment = {**os.environ, "TSAN_OPTIONS": options, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": options}
    fixed = sanitizer == "thread" and addresses_can_be_fixed()
    command = [*(["setarch", "-R"] if fixed else []), str(binary), str(fault)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    return done.returncode, done.stderr


@functools.cache
def addresses_can_be_fixed() -> bool:
    """Whether memory can be where ThreadSanitizer expects it, also on a kernel that spreads addresses widely."""
    return shutil.which("setarch") is not None and not subprocess.run(["setarch", "-R", "true"]).returncode
