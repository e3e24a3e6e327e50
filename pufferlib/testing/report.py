"""The results of the conformance checks, and their report."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Report", "Result", "Status"]

Status = Literal["passed", "failed", "warning", "not applicable"]


@dataclass(frozen=True)
class Result:
    """The result of one check.

    status: "passed", "failed", "warning" (pufferlib copes, but other libraries may not) or "not applicable".
    text: an explanation, with a remedy if there is a problem; may be "".
    """

    name: str  # the check's name
    status: Status
    text: str
    seconds: float = 0.0  # the time that the check took
    waits_for: str = ""  # the failed check that this one needs


@dataclass(frozen=True)
class Report:
    """The results of the requested checks, in the order of ``pufferlib.testing.CHECKS``.

    Show them with ``print(report)``, or in a test with ``assert report.passed, str(report)``.
    """

    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed. Warnings do not count."""
        return not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results of the checks that failed."""
        return tuple(result for result in self if result.status == "failed")

    @property
    def warnings(self) -> tuple[Result, ...]:
        """The results of the checks that ended with a warning."""
        return tuple(result for result in self if result.status == "warning")

    @property
    def seconds(self) -> float:
        """The total time that the checks took, in seconds."""
        return sum(result.seconds for result in self)

    def __getitem__(self, name: str) -> Result:
        """Return the result of the check with this name. Raises KeyError if the report has none."""
        for result in self:
            if result.name == name:
                return result
        raise KeyError(f"{name!r} was not checked; these were: {', '.join(result.name for result in self)}")

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    @property
    def waiting(self) -> dict[str, list[str]]:
        """The names of the checks that were not run, keyed by the name of the failed check that is the cause."""
        waiting: dict[str, list[str]] = {}
        for result in self:
            if result.waits_for:
                waiting.setdefault(result.waits_for, []).append(result.name)
        return waiting

    @property
    def summary(self) -> str:
        """The number of checks per status, such as "18 passed, 1 failed, 2 not applicable"."""
        counts = Counter(result.status for result in self)
        statuses: tuple[Status, ...] = ("passed", "warning", "failed", "not applicable")
        return ", ".join(f"{counts[status]} {status}" for status in statuses if counts[status])

    def __str__(self) -> str:
        width = max((len(result.name) for result in self), default=0)
        rows = [(result.status, result.name, result.text) for result in self if not result.waits_for]
        for cause, names in self.waiting.items():
            rows.append(("not applicable", "", f"until {cause} passes: {', '.join(names)}"))
        lines = []
        for status, name, text in rows:
            head = f"{status:<14}  {name:<{width}}  "
            lines.append(textwrap.fill(head + text, 120, subsequent_indent=" " * len(head)).rstrip())
        return "\n".join([*lines, self.summary])
