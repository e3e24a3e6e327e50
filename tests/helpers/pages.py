"""The programs that documents show, and what they print."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ROOT", "Program", "play", "programs"]

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(
    r"""^```python(?: title="(\S+)")?\n(.*?)^```(?:\n+[^\n`]*\n*```text\n(?!\$ )(.*?)```)?""", re.DOTALL | re.MULTILINE
)


WALL_TIME = re.compile(r"\d+\.\d s\b")  # differs from run to run


class Program(NamedTuple):
    """title: of the file that it is saved as, or empty. output: what it prints, where "…" stands for anything."""

    title: str
    text: str
    output: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0]


def programs(document: str) -> list[Program]:
    """Return the programs of a document, which is named by its path in the repository."""
    return [Program(*parts) for parts in PROGRAM.findall((ROOT / document).read_text())]


def play(program: Program, names: dict[str, Any]) -> None:
    """Run a program over these names, and hold it to what it prints; a warning is an error."""
    out = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out):
        warnings.simplefilter("error")
        exec(compile(program.text, "<a document>", "exec"), names)
    printed, expected = (WALL_TIME.sub("…", text) for text in (out.getvalue(), program.output))
    anything = ".*".join(map(re.escape, expected.split("…")))
    assert printed == expected or re.fullmatch(anything, printed, re.DOTALL), program.text
