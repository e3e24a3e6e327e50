"""Pages of Markdown: tables, and texts between marks that are written anew while all else stays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.revisions import MARK, recorded, results_of, revision_text
from pufferlib.util.files import written_whole

__all__ = ["fill", "mark", "table", "with_revisions", "without_revisions", "write_page"]


def fill(page: str, texts: Mapping[str, str]) -> str:
    """Return a page with these texts between its marks; those that it does not have are left out."""

    def replaced(match: re.Match[str]) -> str:
        text = texts.get(match[1])
        return match[0] if text is None else mark(match[1], text)

    return re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", replaced, page, flags=re.DOTALL)


def mark(name: str, text: str = "") -> str:
    """Return a text between its marks."""
    return f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_revisions(page: str) -> str:
    """Return a page that says at which revision each of its results was measured, counted from git now."""
    names = {match[1]: match[2] for match in MARK.finditer(page)}
    texts = {}
    for name, results in names.items():
        revisions = [recorded(content) for content in results_of(results)]
        texts[name] = revision_text(set().union(*revisions)) if revisions else "Not measured yet."
    return fill(page, texts)


def without_revisions(page: str) -> str:
    """Return a page without what it says of revisions, whose counts change with every commit: to be compared."""
    return MARK.sub(lambda match: mark(match[1]), page)


def write_page(path: Path, page: str) -> None:
    """Write a page, with the revisions of its results."""
    with written_whole(path) as part:
        part.write_text(with_revisions(page))
