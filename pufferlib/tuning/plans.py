"""The plans that autotune chooses: arguments for ``make``, the reason, and a table of all plans considered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pufferlib.errors import PlanError
from pufferlib.util.memory import memory_text
from pufferlib.util.toml import read_toml, to_toml

__all__ = ["Row", "TunedPlan", "load_plan"]

KEYS = ("backend", "num_envs", "num_workers", "batch_size", "context", "backend_kwargs")


@dataclass
class Row:
    """A plan that was considered.

    plan: arguments for ``make``. expected: environment steps per second according to the model. steps_per_s: the
    measured steps per second, one value per window; empty if the plan was not tried or failed. startup_s: the time
    until the first batch, in seconds. memory_nbytes: the memory of all of the plan's processes, estimated before the
    trial and measured during it. untried: why the plan was not tried, or "". failed: how its trial failed, or "".
    """

    plan: dict[str, Any]
    expected: float
    memory_nbytes: int
    steps_per_s: tuple[float, ...] = ()
    startup_s: float = 0.0
    untried: str = ""
    failed: str = ""

    @property
    def median(self) -> float:
        """The median of ``steps_per_s``; 0.0 if it is empty."""
        return median(self.steps_per_s) if self.steps_per_s else 0.0

    @property
    def name(self) -> str:
        """The plan as text: backend, environments/workers/batch, and further arguments."""
        plan = self.plan
        extra = "".join(f" {key}={value}" for key, value in plan.get("backend_kwargs", {}).items())
        return f"{plan['backend']} {plan['num_envs']}/{plan.get('num_workers', 1)}/{plan['batch_size']}{extra}"

    @property
    def cells(self) -> tuple[str, str, str, str, str, str]:
        """The row's cells in a table: name, median of steps/s, their range, start-up time, memory, failure."""
        rates, measured = self.steps_per_s, bool(self.steps_per_s)
        return (
            self.name,
            rate_text(self.median) if measured else "",
            f"{rate_text(min(rates))}–{rate_text(max(rates))}" if measured else "",
            f"{self.startup_s:.1f} s" if measured else "",
            memory_text(self.memory_nbytes) if self.memory_nbytes else "",
            self.failed,
        )


HEADER = ("plan (environments/workers/batch)", "steps/s", "", "start", "memory", "")


class TunedPlan(Mapping[str, Any]):
    """A mapping of arguments for ``make``: ``pufferlib.make(env, **plan)``.

    table: the plans considered, measured ones first, the fastest at the top. reason: a sentence that explains the
    choice.
    """

    def __init__(self, arguments: Mapping[str, Any], table: Sequence[Row], reason: str) -> None:
        self._arguments = dict(arguments)
        self.table = tuple(table)
        self.reason = reason

    def __getitem__(self, key: str) -> Any:
        return self._arguments[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)

    def __repr__(self) -> str:
        return f"TunedPlan({self._arguments})"

    def __str__(self) -> str:
        return f"{table_text(self.table)}\n\n{self.reason}"

    def save(self, path: str | Path) -> Path:
        """Write the plan as TOML, with reason and table as comments, and return the path.

        ``pufferlib.load_plan`` reads the file.
        """
        path = Path(path)
        comment = "".join(f"# {line}".rstrip() + "\n" for line in str(self).splitlines())
        path.write_text(comment + "\n" + to_toml(self._arguments), encoding="utf-8")
        return path


def load_plan(path: str | Path) -> dict[str, Any]:
    """Read arguments for ``make`` from a TOML file, such as ``TunedPlan.save`` writes.

    Raises PlanError for a file that cannot be read, is not TOML, or has keys that do not belong to a plan.
    """
    plan = read_toml(path, "TunedPlan.save writes such files")
    foreign = sorted(set(plan) - set(KEYS))
    if foreign:
        raise PlanError(f"{path} has {', '.join(foreign)}, but a plan has {', '.join(KEYS)}; pass the rest to make")
    return plan


def untried_text(rows: Sequence[Row]) -> str:
    """Return a sentence that counts untried rows by reason; "" if all were tried."""
    reasons = [row.untried for row in rows if row.untried]
    counts = (f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))
    return f"Not tried: {', '.join(counts)}." if reasons else ""


def table_text(rows: Sequence[Row]) -> str:
    """Format rows as an aligned table of those that were tried, followed by ``untried_text``."""
    cells = [HEADER, *(row.cells for row in rows if not row.untried)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    lines = []
    for line in cells:
        middle = [text.rjust(width) for text, width in zip(line[1:5], widths[1:5], strict=True)]
        lines.append("  ".join([line[0].ljust(widths[0]), *middle, line[5]]).rstrip())
    return "\n".join([*lines, untried_text(rows)]).rstrip()


def rate_text(steps_per_s: float) -> str:
    """Format a rate below 1e12 with three significant digits: 873, 30.4k, 1.21M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if steps_per_s >= 0.9995 * scale:
            return f"{steps_per_s / scale:#.3g}".rstrip(".") + unit
    return f"{steps_per_s:#.3g}".rstrip(".")
