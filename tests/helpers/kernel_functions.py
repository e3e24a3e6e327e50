"""Functions of kernels, compiled for the host, for tests to call."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from cuda_ext.functions import compiler_command

ROOT = Path(__file__).parents[2]
COMPILER = compiler_command()
FLAGS = ["-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC"]


def compiled(program: str, folder: Path, level: str = "-O3", headers: Path = ROOT / "cuda_ext") -> ctypes.CDLL:
    """Compile a program that includes what lies in cuda_ext. Skips the test where there is no C++ compiler."""
    if shutil.which(COMPILER[0]) is None:
        pytest.skip("there is no C++ compiler")
    library = folder / "functions.so"
    command = [*COMPILER, *FLAGS, level, f"-I{headers}", "-x", "c++", "-", "-o", str(library)]
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))
