"""Ocean catches mutants of the compiled learner: those of tests/mutants whose edits its sources would contain.

The other mutants edit what ``ppo`` does for both learners, such as rewards, advantages and masks.
"""

from __future__ import annotations

import ctypes
from typing import Any

import kernel_programs
import pytest
from kernel_functions import compiled

from cleanrl_demo.ppo import Config, train
from cuda_ext.learner import fused
from cuda_ext.learner.library import with_signatures
from ocean.suite.tasks import tasks
from tests.mutants.catalogue import MUTANTS

pytestmark = [pytest.mark.beside, pytest.mark.long]

LOSSES, ACTIONS, PASSES = (f"learner/{name}.cuh" for name in ("losses", "actions", "passes"))
FLIPPED = "row.discrete_actions[MUTANT ? heads.num_discrete - 1 - part : part]"
DENSITY = "log_prob += -0.5f * (deviation"
# By name: the edits, each a file, a text in it, and what stands in its place, where MUTANT is true while the mutant is
# on; and the environment that catches it.
EDITS: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "advantage_sign": (
        "bandit",
        [(PASSES, "(update.advantages[index] - ", "(MUTANT ? -1 : 1) * (update.advantages[index] - ")],
    ),
    "argmax_play": ("stochastic", [(ACTIONS, "- logarithm(", "- (1 - MUTANT) * logarithm(")]),
    "heads_swapped": ("spaces", [(LOSSES, "row.discrete_actions[part]", FLIPPED)]),
    "head_dropped": (
        "spaces",
        [
            (LOSSES, "log_prob += outputs[first", "log_prob = (1 - MUTANT) * log_prob + outputs[first"),
            (LOSSES, "(slope * by_log_prob", "((MUTANT && end < heads.num_options ? 0.0f : slope) * by_log_prob"),
            (ACTIONS, "log_prob += logits[", "log_prob = (1 - MUTANT) * log_prob + logits["),
        ],
    ),
    "dimension_dropped": (
        "continuous",
        [
            (LOSSES, DENSITY, f"if (!MUTANT || k > 0) {DENSITY}"),
            (LOSSES, "(slope * (deviation / std))", "(slope * (MUTANT && k == 0 ? 0.0f : deviation / std))"),
            (ACTIONS, DENSITY, f"if (!MUTANT || k > 0) {DENSITY}"),
        ],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The learner with all mutants, of which set_mutant turns one on; compiled once."""
    folder = tmp_path_factory.mktemp("mutants")
    edits = [
        (file, sound, wrong.replace("MUTANT", f"(mutant == {number})"))
        for number, (_, edits) in enumerate(EDITS.values(), 1)
        for file, sound, wrong in edits
    ]
    kernel_programs.with_faults(folder / "headers", edits)
    program = """
        #define DIGEST ""
        static int mutant = 0;
        extern "C" __attribute__((visibility("default"))) void set_mutant(int number) { mutant = number; }
        #include "learner/main.h"
    """
    return with_signatures(compiled(program, folder, "-O2", folder / "headers"))


def score(env: str) -> float:
    """Train in an environment of Ocean, and return the score divided by the bar."""
    (task,) = tasks([env], ["serial"])
    settings: dict[str, Any] = {**task.settings, "backend": "serial", "learner": "fused", "runs": None}
    result = train(Config(**{**settings, "eval_episodes": 300}))
    assert result.score is not None
    return result.score / task.bar


@pytest.mark.parametrize("name", EDITS)
def test_a_mutant_is_caught(name: str, mutants: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    env, _ = EDITS[name]
    assert env in MUTANTS[name].envs
    monkeypatch.setattr(fused, "library", lambda: mutants)
    mutants.set_mutant(1 + [*EDITS].index(name))
    assert score(env) < 1


@pytest.mark.parametrize("env", sorted({env for env, _ in EDITS.values()}))
def test_without_a_mutant_it_learns(env: str, mutants: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "library", lambda: mutants)
    mutants.set_mutant(0)
    assert score(env) >= 1
