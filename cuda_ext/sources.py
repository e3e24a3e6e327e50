"""The programs to compile, each of which joins a schema's declaration, the shared code and an environment's file.

This file imports only the standard library and ``schema``, because setup.py uses it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_ext.schema import KernelEnv
from cuda_ext.staging import Staging

__all__ = [
    "CHECK_FLAGS",
    "FOLDER",
    "HOST_FLAGS",
    "LEARNER_KERNELS",
    "digest",
    "entry",
    "for_checks",
    "for_device",
    "for_host",
    "for_learner",
    "for_learner_checks",
    "for_learner_device",
    "learner_digest",
    "stems",
]

FOLDER = Path(__file__).parent
SHARED_WITH_LEARNER = (
    *("division.cuh", "exponentials.cuh", "group.cuh", "host.h", "host_threads.h", "layers.cuh", "on_chip.cuh"),
)
LANES = 256  # environments that the host plays side by side; their state should fit the nearest cache
INCLUDE = re.compile(r'#include "([\w./]+)"')
# The learner's kernels (learner/device.cuh) and the structures that they take.
LEARNER_KERNELS = {
    **dict.fromkeys(("learner_statistics", "learner_transpose", "learner_gradients"), "DeviceUpdate"),
    **dict.fromkeys(("learner_sum", "learner_norm", "learner_step"), "DeviceUpdate"),
    "learner_outputs": "DeviceOutputs",
    "learner_advantages": "DeviceAdvantages",
}
# No fused multiply-adds: host, device and NumPy must round alike.
# No code reads the floating-point exception flags, so a compiler may compute what a branch would skip. Indices do not
# wrap, unlike in Python's own flags for extensions, or no loop would be vectorized. Aligned code, or a kernel's speed
# would depend on its position in a library, by up to 30 %.
HOST_FLAGS = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"),
    *("-fno-wrapv", "-fno-strict-aliasing", "-fvisibility=hidden", "-pthread"),
    *("-falign-functions=64", "-falign-loops=32"),
)
CHECK_FLAGS = ("-O1",)  # for programs that play a few times only; they compile in half the time


def stems() -> list[str]:
    """Return the names of the modules that declare an environment: those with a .cuh file of the same stem."""
    return [file.stem for file in sorted(FOLDER.glob("*.cuh")) if file.with_suffix(".py").exists()]


def entry(kernel: KernelEnv) -> str:
    """Return a kernel's identifier.

    On a device, it is the name of the kernel's function; on the host, it is the prefix of its functions' names.
    """
    return "kernel_" + "".join(letter if letter.isalnum() else "_" for letter in kernel.name)


def digest(kernel: KernelEnv, *more: str) -> str:
    """Return a digest of what a kernel is compiled from: its schema, files, flags, and the texts in ``more``."""
    headers = set(FOLDER.glob("*.cuh")) - {FOLDER / f"{stem}.cuh" for stem in stems()}
    shared = [file.read_text() for file in sorted([*FOLDER.glob("*.h"), *headers])]
    texts = [
        kernel.schema.declaration(),
        str(kernel.side_by_side),
        Path(kernel.source).read_text(),
        *HOST_FLAGS,
        *more,
        *shared,
    ]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def for_host(kernel: KernelEnv) -> str:
    """Return a kernel's C++ program for the host; the program includes headers from FOLDER."""
    return "\n".join(
        [
            "#include <exception>",
            *_program(
                kernel,
                {"LANES": LANES, "LANE_SIZE": kernel.side_by_side} if kernel.side_by_side else {},
                kernel.schema.declaration(),
            ),
            f"#define HOST_KERNEL(name) {entry(kernel)}_##name",
            f'#define DIGEST "{digest(kernel)}"',
            '#include "host_main.h"',
            "",
        ]
    )


def for_checks(kernel: KernelEnv, macros: Mapping[str, Any], *, threads: bool = False) -> str:
    """Return a C++ program that runs a kernel on the host with the groups of threads that a device would use.

    It exports ``const char* <entry>_check(const Arguments*, unsigned num_blocks, unsigned num_threads, unsigned
    seed)``, which returns null, or an error text about barriers. ``seed`` determines the order in which the threads
    run; with 0, they run in the order of their numbers. macros: as in ``for_device``. threads: run each CUDA thread on
    a host thread instead of a fibre, for sanitizers.
    """
    mode = {"HOST_THREADS" if threads else "HOST_FIBRES": 1, "CUDA_KERNEL": "checked_kernel"}
    staging = Staging.of(kernel.schema, macros, use_registers=not threads)
    return "\n".join(
        [
            *_program(kernel, {**mode, **macros}, staging.declaration(kernel.schema, macros, {})),
            f'extern "C" __attribute__((visibility("default"))) const char* {entry(kernel)}_check(',
            "    const Arguments* launch, unsigned num_blocks, unsigned num_threads, unsigned seed) {",
            "    return host::launch(num_blocks, num_threads, seed, [launch] { checked_kernel(*launch); });",
            "}",
            "",
        ]
    )


def _program(kernel: KernelEnv, macros: Mapping[str, object], declaration: str) -> list[str]:
    return [
        *(f"#define {name} {value}" for name, value in macros.items()),
        '#include "host.h"',
        "namespace {",
        '#include "on_chip.cuh"',
        declaration,
        '#include "kernel.cuh"',
        f'#include "{kernel.source}"',
        "}",
    ]


def for_learner() -> str:
    """Return the C++ program of the learner for the host, which includes headers from FOLDER."""
    return f'#define DIGEST "{learner_digest()}"\n#include "learner/main.h"\n'


def for_learner_checks(*, threads: bool = False) -> str:
    """Return a C++ program that runs the learner's kernels for devices on the host.

    It exports ``const char* <kernel>_check(const Arguments*, unsigned num_blocks, unsigned seed)`` for each of
    LEARNER_KERNELS, where Arguments is its structure; otherwise as ``for_checks``.
    """
    mode = "HOST_THREADS" if threads else "HOST_FIBRES"
    lines = [f"#define {mode}", '#include "host.h"', '#include "learner/device.cuh"']
    for name, structure in LEARNER_KERNELS.items():
        lines += [
            f'extern "C" __attribute__((visibility("default"))) const char* {name}_check(',
            f"    const {structure}* arguments, unsigned num_blocks, unsigned seed) {{",
            f"    return host::launch(num_blocks, GROUP_SIZE, seed, [arguments] {{ {name}(*arguments); }});",
            "}",
        ]
    return "\n".join([*lines, ""])


def for_learner_device() -> str:
    """Return the CUDA program of the learner's kernels, with the headers of FOLDER inlined."""
    return _inlined(FOLDER / "learner" / "device.cuh", set()) + "\n"


def learner_digest(*more: str) -> str:
    """Return a digest of everything that the learner is compiled from: files, flags, and the texts in ``more``."""
    files = [*(FOLDER / "learner").glob("*.h"), *(FOLDER / "learner").glob("*.cuh")]
    files += [FOLDER / name for name in SHARED_WITH_LEARNER]
    texts = [*HOST_FLAGS, *more, *(file.read_text() for file in sorted(files))]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def for_device(kernel: KernelEnv, name: str, constants: Mapping[str, int | float], macros: Mapping[str, Any]) -> str:
    """Return a CUDA program with one kernel, called ``name``, with the headers of FOLDER inlined.

    constants: the values to compile in, keyed by name. macros: those of ``Shape.macros`` (see kernel.cuh).
    """
    defined = [f"#define {macro} {value}" for macro, value in {**macros, "CUDA_KERNEL": name}.items()]
    included: set[str] = set()
    files = (FOLDER / "on_chip.cuh", FOLDER / "kernel.cuh", Path(kernel.source))
    on_chip, *texts = [_inlined(file, included) for file in files]
    declaration = Staging.of(kernel.schema, macros).declaration(kernel.schema, macros, constants)
    return "\n".join([*defined, on_chip, declaration, *texts, ""])


def _inlined(file: Path, included: set[str]) -> str:
    """Return a file's text with its headers of FOLDER inserted, and #line directives for the original lines.

    included: the names of the headers that the program already contains. They are not inserted again; the names of
    newly inserted headers are added.
    """
    lines = [f'#line 1 "{file.name}"']
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = INCLUDE.fullmatch(line)
        if match is None or not (FOLDER / match[1]).is_file():
            lines.append("" if line == "#pragma once" else line)
            continue
        if match[1] not in included:
            included.add(match[1])
            lines.append(_inlined(FOLDER / match[1], included))
        lines.append(f'#line {number + 1} "{file.name}"')
    return "\n".join(lines)
