"""Trainings of mutants on environments, and a file of their results."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.lines import table_text
from ocean.suite.examining import Examination, Verdict
from ocean.suite.tasks import Task, tasks
from pufferlib.errors import PlanError
from pufferlib.util.files import written_whole

from .catalogue import MUTANTS

__all__ = ["COMMAND", "CORRECT", "NUM_MUTANT_EPISODES", "Results", "examinations", "mutant_of", "short"]

COMMAND = f"python -m {__package__}"
CORRECT = "correct trainer"
LEARNERS = f"{__package__}.learners"
NUM_MUTANT_EPISODES = 200  # mutants score far from the bars; a standard error is .02 at most near one
POOLED = ("identity", "uneven")  # environments that need a pool to show anything
LATER = (
    ("step_timeout", None),
    ("checkpoint_minutes", 1.0),
    ("learner", "torch"),
    ("fair", "weights"),
    ("compile", False),
)  # settings that are newer than stored results; with these values they change nothing, but for fair on a pool


def examinations(
    mutants: Sequence[str] = (), envs: Sequence[str] = (), seeds: Sequence[int] = (1,), *, all_seeds: bool = False
) -> list[Examination]:
    """Return the trainings of the matrix: first those that should catch a mutant, then those of the correct trainer.

    Mutants are trained with all seeds on environments that should catch them, elsewhere with the first one.
    mutants: by name; () for all and the correct trainer. all_seeds: use all seeds everywhere. Raises PlanError for an
    unknown mutant or environment.
    """
    for name in mutants:
        if name not in MUTANTS and name != CORRECT:
            raise PlanError(f"mutant={name!r} is unknown; there are {', '.join([*MUTANTS, CORRECT])}")
    chosen = [MUTANTS[name] for name in mutants if name != CORRECT] if mutants else list(MUTANTS.values())
    plain = [
        replace(task, backend="pool") if short(task) in POOLED else task for task in tasks(envs, ["serial"], seeds)
    ]
    pooled = [replace(task, backend="pool") for task in plain]
    meant, others = list[Examination](), list[Examination]()
    for mutant in chosen:
        if mutant.portable:
            continue
        for task in pooled if mutant.backend == "pool" else plain:
            examination = Examination(task, f"{LEARNERS}:{mutant.name}", NUM_MUTANT_EPISODES)
            if short(task) in mutant.envs:
                meant.append(examination)
            elif all_seeds or task.seed == seeds[0]:
                others.append(examination)
    correct = [] if mutants and CORRECT not in mutants else [Examination(task) for task in plain]
    return [*meant, *correct, *others]


def mutant_of(examination: Examination) -> str | None:
    """Return the name of the mutant that is trained, None for the correct trainer."""
    module, _, name = examination.learner.partition(":")
    return name if module == LEARNERS else None


def short(task: Task) -> str:
    """Return an environment's name without ocean/."""
    return task.env.partition("/")[2]


class Results:
    """Verdicts by examination, and the results of checks; written to a file, if there is one, after each of them.

    A stored verdict holds for the same mutant, by name, with the same settings, bar and number of episodes. It belongs
    to the code at the time of its training: after a change to an environment or a trainer, start another file. What
    other runs add to the file meanwhile stays there. Raises PlanError for a file that holds something else.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.trainings, self.checks = _read(file)

    def get(self, examination: Examination) -> Verdict | None:
        """Return the verdict of an examination, None if there is none yet."""
        training = self.trainings.get(_key(examination))
        if training is None:
            return None
        return Verdict(**{field.name: training[field.name] for field in fields(Verdict) if field.name in training})

    def add(self, examination: Examination, verdict: Verdict) -> None:
        """Store the verdict of an examination."""
        task, key = examination.task, _key(examination)
        names = {"mutant": mutant_of(examination), "env": short(task), "backend": task.backend, "seed": task.seed}
        self.trainings[key] = {**names, **asdict(verdict), "passed": verdict.passed, "key": key}
        self.save()

    def save(self) -> None:
        """Write the file, if there is one, with the trainings that other runs have added to it."""
        if self.file is None:
            return
        with _locked(self.file.parent):
            self.trainings = {**_read(self.file)[0], **self.trainings}
            with written_whole(self.file) as part:
                part.write_text(table_text({"checks": self.checks, "trainings": list(self.trainings.values())}))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an advisory lock of a folder, after waiting for other holders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # released when the process ends, however that happens
        yield
    finally:
        os.close(descriptor)


def _read(file: Path | None) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, bool]]]:
    """Return a file's trainings by key, and its checks; nothing if there is no file."""
    if file is None or not file.exists():
        return {}, {}
    try:
        content = json.loads(file.read_text())
        if not all({"score", "bar", "seconds"} <= training.keys() for training in content["trainings"]):
            raise ValueError("a training without its score")
        return {training["key"]: training for training in content["trainings"]}, dict(content["checks"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PlanError(
            f"{file} holds something else than results of `{COMMAND}`, and is left as it is; name another"
        ) from error


def _key(examination: Examination) -> str:
    """Return a digest of all that tells one examination from others."""
    task = examination.task
    settings = sorted(item for item in task.settings.items() if item not in LATER)
    identity = (task.env, task.backend, task.seed, task.bar, settings, mutant_of(examination))
    return hashlib.sha256(repr((identity, examination.num_episodes)).encode()).hexdigest()[:16]
