"""Files that are whole at any time, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["alone_in", "written_whole"]


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield where to write a file; afterwards, unless there was an error, it takes the place of what is at ``path``.

    What a process left that was killed while it wrote the same file is removed.
    """
    target = Path(path)
    _clear(target)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def alone_in(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Have no other process be here for the same folder meanwhile, so that a file can be read and written again."""
    import fcntl  # Windows has none

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # which ends with the process, however that ends
        yield
    finally:
        os.close(descriptor)


def _clear(target: Path) -> None:
    """Remove the parts of a file whose writers are gone."""
    parts = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.part")
    try:
        found = [(each, parts.fullmatch(each)) for each in os.listdir(target.parent)]
    except OSError:  # whoever writes there says so better
        return
    for name, match in found:
        if match is not None and not _is_alive(int(match[1])):
            with contextlib.suppress(OSError):  # in the way of nobody
                (target.parent / name).unlink()


def _is_alive(pid: int) -> bool:
    """Tell whether there is such a process; where that cannot be asked, there is."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):
        pass
    return True
