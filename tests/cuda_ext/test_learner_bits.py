"""The compiled learner's results are the same to the bit for every instruction set and any number of threads."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernel_functions import ROOT
from learner_cases import Case, fused_of

from cuda_ext import sources
from cuda_ext.learner import fused
from cuda_ext.learner.library import VARIANTS, library
from pufferlib.errors import KernelError

pytestmark = pytest.mark.beside

LARGE = Case(num_inputs=5, hidden=(33, 64, 17), num_rows=1500, num_minibatches=1)


def bits(case: Case, **kwargs: Any) -> tuple[bytes, ...]:
    """The weights, gradients and terms after a few updates, and the values of all rows."""
    learner, rows = fused_of(case, **kwargs), case.rows()
    terms = [learner.update(rows, case.minibatches(epoch), 1e-2) for epoch in range(3)]
    parts: list[Any] = [learner.weights, learner.gradients, *terms, learner.values(rows.features)]
    return tuple(part.tobytes() for part in parts)


@pytest.mark.parametrize("case", [LARGE, replace(LARGE, activation="relu", objective="a2c", num_rows=77)])
def test_every_instruction_set_has_the_same_bits(case: Case) -> None:
    variants = VARIANTS[: library().learner_num_variants()]
    assert len({bits(case, variant=variant) for variant in variants}) == 1


def test_any_number_of_threads_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "THREAD_NS", 0.0)  # however little there is to do
    assert len({bits(LARGE, num_threads=num_threads) for num_threads in (1, 2, 3, 5)}) == 1


def test_a_variant_that_the_processor_lacks_is_refused() -> None:
    with pytest.raises(KernelError, match="variant='sse9' does not run on this processor; use baseline"):
        fused_of(LARGE, variant="sse9")


@pytest.mark.long
@pytest.mark.parametrize("compiler", [name for name in ("c++", "clang++") if shutil.which(name)])
def test_every_instruction_set_compiles(compiler: str, tmp_path: Path) -> None:
    flags = [*sources.HOST_FLAGS, "-O0", "-shared", "-fPIC", f"-I{ROOT / 'cuda_ext'}"]
    command = [compiler, *flags, "-x", "c++", "-", "-o", str(tmp_path / "learner.so")]
    done = subprocess.run(command, input=sources.for_learner(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_slow_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library(), "learner_num_variants", lambda: 1)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.warns(UserWarning, match="lacks AVX2 or FMA, .* slower than torch; use ppo or ppo_cuda"):
        fused_of(Case())
