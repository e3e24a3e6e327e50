"""Faults that are planted in the compiled learner: the checks that compare it with torch find each of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kernel_programs
import numpy as np
import pytest
from kernel_functions import compiled
from learner_cases import Case, compare, compare_actions, compare_advantages, compare_calls, compare_tanh, fused_of

from cuda_ext.learner import fused
from cuda_ext.learner.library import with_signatures

pytestmark = pytest.mark.beside

# By name: a file, a text in it, and what stands in its place. FAULT is true while the fault is on.
FILES = ("losses.cuh", "actions.cuh", "update.h", "statistics.cuh", "passes.cuh", "tangent.cuh", "variant.h", "main.h")
LOSSES, ACTIONS, UPDATE, STATISTICS, PASSES, TANGENT, LOOPS, MAIN = (f"learner/{name}" for name in FILES)
FAULTS = {
    "sign of the entropy's derivative": (
        LOSSES,
        "? -probabilities[k] * (",
        "? (FAULT ? 1 : -1) * probabilities[k] * (",
    ),
    "sign of the value's derivative": (
        LOSSES,
        "error = *value - target",
        "error = (FAULT ? -1 : 1) * (*value - target)",
    ),
    "sign of the policy's loss": (
        LOSSES,
        "terms[POLICY_LOSS] = -share",
        "terms[POLICY_LOSS] = (FAULT ? share : -share)",
    ),
    "index of the chosen option": (LOSSES, "(k == chosen ?", "(k == chosen + FAULT ?"),
    "epsilon": (LOSSES, "/ step.root + step.epsilon)", "/ step.root + (FAULT ? 1e-3f : step.epsilon))"),
    "side on which a ratio is clipped": (LOSSES, "free <= clipped ?", "(FAULT ? free >= clipped : free <= clipped) ?"),
    "derivative by the standard deviation": (
        LOSSES,
        "deviation * deviation - 1.0f)",
        "deviation * deviation - (1 - FAULT))",
    ),
    "values after truncations": (
        LOSSES,
        "return terminated || truncated ?",
        "return terminated || (!FAULT && truncated) ?",
    ),
    "coefficient of the value's loss": (LOSSES, "(objective.value_co", "(FAULT ? 0.5f * error : objective.value_co"),
    "least ratio": (LOSSES, "least = 1.0f - objective.clip", "least = 1.0f - (FAULT ? 0.2f : objective.clip)"),
    "greatest ratio": (LOSSES, "most = 1.0f + objective.clip", "most = 1.0f + (FAULT ? 0.2f : objective.clip)"),
    "clocks of later parts": (
        ACTIONS,
        "exponentials + first * num_rows",
        "exponentials + (1 - FAULT) * first * num_rows",
    ),
    "clocks of later rows": (ACTIONS, "num_rows + row * n;", "num_rows + (1 - FAULT) * row * n;"),
    "chance of an option": (
        ACTIONS,
        "= logits[k] - logarithm(clocks[k])",
        "= FAULT ? logits[k] : logits[k] - logarithm(clocks[k])",
    ),
    "forbidden options": (ACTIONS, "allowed == nullptr ? nullptr", "FAULT || allowed == nullptr ? nullptr"),
    "noise of continuous parts": (ACTIONS, "means[k] + std * normals", "means[k] + (FAULT ? 1.0f : std) * normals"),
    "log-probability of an action": (
        ACTIONS,
        "log_prob += logits[chosen]",
        "log_prob = (1 - FAULT) * log_prob + logits[chosen]",
    ),
    "absent rows": (UPDATE, "update.masks[row] != 0", "update.masks[row] != FAULT * 2"),
    "correction of the second moment": (
        STATISTICS,
        "(1.0 - update.beta_powers[1])",
        "(1.0 - update.beta_powers[1 - FAULT])",
    ),
    "norm at which gradients are clipped": (STATISTICS, "norm > update.max_", "(1 - FAULT) * norm > update.max_"),
    "correction of the variance": (STATISTICS, "sqrt(squares / sum.count)", "sqrt(squares / (sum.count - FAULT))"),
    "minimum of the deviation": (
        STATISTICS,
        "deviation : update.advantage_",
        "deviation : FAULT ? 1.0 : update.advantage_",
    ),
    "rows of later tiles": (STATISTICS, "begin = (first + group.rank) * TILE", "begin = (1 - FAULT) * first * TILE"),
    "rows of later minibatches": (MAIN, "update->order + begin", "update->order + (1 - FAULT) * begin"),
    "terms of later minibatches": (MAIN, "update->terms + k * (", "update->terms + (1 - FAULT) * k * ("),
    "index of the transposed weights": (
        PASSES,
        "rows[(size_t)i * width + j]",
        "rows[(size_t)i * width + (j + FAULT) % width]",
    ),
    "index of the first group": (LOOPS, "for (int group = 1; group", "for (int group = 1 + FAULT; group"),
    "derivative of tanh": (PASSES, "1.0f - units[k] * units[k]", "1.0f - (1 - FAULT) * units[k] * units[k]"),
    "tanh of small numbers": (TANGENT, "x < -most ?", "!FAULT && x < -most ?"),
    "tanh of large numbers": (TANGENT, "x > most ?", "!FAULT && x > most ?"),
}
# Not wrong results, but refusals of the system, in the same form.
REFUSALS = {"memory": (MAIN, "data_ = (float*)aligned", "data_ = FAULT ? nullptr : (float*)aligned")}
CHECKS: tuple[Callable[[], None], ...] = (
    lambda: compare(Case(), num_epochs=4),
    lambda: compare(Case(max_grad_norm=100.0, has_absent=False)),
    lambda: compare(Case(value_coefficient=1.3, clip=0.4, advantage_floor=0.05, advantage_scale=0.01)),
    lambda: compare_calls(Case(num_minibatches=3)),
    compare_tanh,
    lambda: compare_actions(Case()),
    lambda: compare_advantages(fused_of(Case())),
)


WITHOUT_VECTORS = pytest.mark.filterwarnings("ignore:this processor lacks AVX2")  # the variants that are not compiled


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The learner with all faults, of which set_fault turns one on; compiled once."""
    folder = tmp_path_factory.mktemp("faulty")
    kernel_programs.with_faults(folder / "headers", (FAULTS | REFUSALS).values())
    program = """
        #define DIGEST ""
        #define PLAIN_ONLY
        static int fault = 0;
        extern "C" __attribute__((visibility("default"))) void set_fault(int number) { fault = number; }
        #include "learner/main.h"
    """
    return with_signatures(compiled(program, folder, "-O1", folder / "headers"))


@pytest.fixture
def with_faults(faulty: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Learners that are made in the test have the fault whose number is passed to set_fault."""
    monkeypatch.setattr(fused, "library", lambda: faulty)
    yield faulty.set_fault
    faulty.set_fault(0)


@pytest.mark.long
@WITHOUT_VECTORS
def test_without_a_fault_all_checks_pass(with_faults: Callable[[int], None]) -> None:
    for check in CHECKS:
        check()


@WITHOUT_VECTORS
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if number % 4 == 0 else [pytest.mark.long]) for number, name in enumerate(FAULTS)],
)
def test_a_fault_is_caught(name: str, with_faults: Callable[[int], None]) -> None:
    with_faults(1 + [*FAULTS].index(name))
    with pytest.raises(AssertionError):
        for check in CHECKS:
            check()


@WITHOUT_VECTORS
def test_without_memory_it_says_so_and_changes_nothing(with_faults: Callable[[int], None]) -> None:
    case = Case()
    learner, rows = fused_of(case), case.rows()
    before = learner.weights.copy()
    with_faults(1 + len(FAULTS))
    for call in (
        lambda: learner.update(rows, case.minibatches(), 1e-2),
        lambda: threaded(lambda: learner.values(rows.features)),  # a new thread has no memory yet
    ):
        with pytest.raises(MemoryError, match=r"the learner cannot allocate [\d,]+ bytes"):
            call()
    np.testing.assert_array_equal(learner.weights, before)
    with_faults(0)
    learner.update(rows, case.minibatches(), 1e-2)
    assert (learner.weights != before).any()


def threaded(function: Callable[[], Any]) -> Any:
    """Call a function in a new thread; return its result, or raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
