"""Pages of Markdown: tables, and texts between marks that are written anew while all else stays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["fill", "table"]


def fill(page: str, texts: Mapping[str, str]) -> str:
    """Return a page with these texts between its marks; those that it does not have are left out."""

    def replaced(found: re.Match[str]) -> str:
        text = texts.get(found[1])
        return found[0] if text is None else f"<!-- begin {found[1]} -->\n{text}\n<!-- end {found[1]} -->"

    return re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", replaced, page, flags=re.DOTALL)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
