"""A file of JSON lines for figures as they come; each line is complete even if the program is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["append", "lines_of"]


def append(path: Path | None, **figure: Any) -> None:
    """Add a line to a file in one write; do nothing if there is no path."""
    if path is None:
        return
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, json.dumps(figure).encode() + b"\n")
    finally:
        os.close(handle)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the figures of a file, without lines that a full disk cut short; [] if there is no file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
