"""Figures as they come: a file of lines of JSON, of which each is whole whenever the program is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["append", "lines_of"]


def append(path: Path | None, **figure: Any) -> None:
    """Add a line to a file, in one write; to none, nothing."""
    if path is None:
        return
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, json.dumps(figure).encode() + b"\n")
    finally:
        os.close(handle)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the figures of a file; none where there is no file. What a full disk has cut short is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
