"""Pages of Markdown: make tables, and replace the texts between marks while all else stays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.revisions import MARK, recorded, results_of, revision_text
from pufferlib.util.files import written_whole

__all__ = ["fill", "mark", "table", "with_revisions", "without_revisions", "write_page"]


def fill(page: str, texts: Mapping[str, str]) -> str:
    """Return a page with these texts between its marks; texts without a mark on the page are ignored."""

    def replaced(match: re.Match[str]) -> str:
        text = texts.get(match[1])
        return match[0] if text is None else mark(match[1], text)

    return re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", replaced, page, flags=re.DOTALL)


def mark(name: str, text: str = "") -> str:
    """Return a text between its marks."""
    return f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_revisions(page: str) -> str:
    """Return a page that names the revision of each of its results and counts, by git, the commits since."""
    names = {match[1]: match[2] for match in MARK.finditer(page)}
    texts = {}
    for name, results in names.items():
        revisions = [recorded(content) for content in results_of(results)]
        texts[name] = revision_text(set().union(*revisions)) if revisions else "Not measured yet."
    return fill(page, texts)


def without_revisions(page: str) -> str:
    """Return a page without its texts on revisions, whose counts change with every commit, for a comparison."""
    return MARK.sub(lambda match: mark(match[1]), page)


def write_page(path: Path, page: str) -> None:
    """Write a page with the revisions of its results."""
    with written_whole(path) as part:
        part.write_text(with_revisions(page))
