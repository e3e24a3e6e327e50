"""The matrix as a page of Markdown: docs/ocean_mutants.md."""

from __future__ import annotations

from ocean.suite.tasks import NUM_EPISODES

from .catalogue import MUTANTS
from .checks import CHECKS
from .matrix import Matrix
from .mutant import Mutant
from .trainings import COMMAND, CORRECT, NUM_MUTANT_EPISODES

__all__ = ["page"]

# `python -m benchmarks.report` writes the revision.
HEAD = """\
# Ocean's mutants

Each row is the demo trainer, or the library below it, with one deliberate bug; `tests/mutants/` has the edits. It is
trained from scratch on each environment of Ocean. A cell counts the trainings that were caught: those that ended below
the environment's bar or without a score. It is **bold** where the environment should catch the bug, with {num_seeds}
seeds; other cells have one seed unless they say otherwise, and · if all passed. With a bug marked † the trainer need
not pass any environment; with any other bug it still passes some. Checks need no training (`tests/mutants/checks.py`).
Only checks catch some bugs, and some of those are not trained at all.

A mutant's score is the mean of {num_mutant_episodes} fresh episodes, the correct trainer's of {num_episodes:,}.
In a checkout of the repository, this page is made by
`{command} --save benchmarks/results/ocean_mutants.json --page docs/ocean_mutants.md`.

<!-- begin revision_ocean_mutants -->

<!-- end revision_ocean_mutants -->
"""


def page(matrix: Matrix) -> str:
    """Return the matrix as a page of Markdown."""
    lines = [
        HEAD.format(
            command=COMMAND,
            num_seeds=len({examination.task.seed for examination in matrix.examinations}),
            num_mutant_episodes=NUM_MUTANT_EPISODES,
            num_episodes=NUM_EPISODES,
        ),
        "| mutant | " + " | ".join(matrix.envs) + " | checks |",
        "|---|" + ":-:|" * len(matrix.envs) + "---|",
    ]
    for name in matrix.rows:
        cells = [matrix.cell(name, env) for env in matrix.envs]
        texts = [f"**{cell.text}**" if cell.meant else cell.text for cell in cells]
        checks = ", ".join(f"`{check}`" for check, caught in matrix.checks(name).items() if caught)
        mark = " †" if MUTANTS[name].everywhere else ""
        lines.append(f"| {name}{mark} | {' | '.join(texts)} | {checks} |")
    if matrix.has_correct:
        lines.append(f"| *{CORRECT}* | {' | '.join(matrix.cell(None, env).text for env in matrix.envs)} | |")
    lines += ["", "## What is broken", ""]
    lines += ["| mutant | what it gets wrong | scores where it should be caught (bar) |", "|---|---|---|"]
    lines += [f"| {name} | {MUTANTS[name].description} | {_scores(matrix, MUTANTS[name])} |" for name in matrix.rows]
    lines += ["", "## What the checks require", ""]
    lines += [f"- `{name}`: {check.description}." for name, check in CHECKS.items()]
    faults = [f"- {name}: {'; '.join(sentences)}" for name, sentences in matrix.all_faults.items()]
    if faults:
        lines += ["", "## What is not as it should be", "", *faults]
    return "\n".join(lines) + "\n"


def _scores(matrix: Matrix, mutant: Mutant) -> str:
    """Return the least and the largest score in each environment that should catch a mutant."""
    texts = []
    for env in mutant.envs:
        verdicts = matrix.verdicts(mutant.name, env)
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        if scores:
            texts.append(f"{env} {min(scores):.2f}–{max(scores):.2f} ({verdicts[0].bar:.2f})")
    return ", ".join(texts)
