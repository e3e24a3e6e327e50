"""Replace files atomically, and name them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["file_name", "written_whole"]


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to; unless the block raises, move the file written there to ``path`` atomically.

    Also removes partial files for the same path that killed processes left behind.
    """
    target = Path(path)
    _clear(target)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _clear(target: Path) -> None:
    """Remove the partial files for a target that were left behind by processes that have ended."""
    parts = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.part")
    try:
        matches = [(name, parts.fullmatch(name)) for name in os.listdir(target.parent)]
    except OSError:  # writing there raises a clearer error
        return
    for name, match in matches:
        if match is not None and not _is_alive(int(match[1])):
            with contextlib.suppress(OSError):  # a leftover file does no harm
                (target.parent / name).unlink()


def _is_alive(pid: int) -> bool:
    """Return whether a process exists; True if that cannot be determined."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):
        pass
    return True


def file_name(text: str) -> str:
    """Convert a text to a file name that has no extension.

    Each run of characters other than ASCII letters and digits becomes a hyphen; at either end, it is removed.
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
