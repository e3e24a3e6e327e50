"""The end of worker processes: with their parent at the latest, whatever ends it."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.connection
import os
import select
import signal
import threading
from typing import Any

__all__ = ["LifePipe", "death_of", "die_with_parent", "end_group"]


class LifePipe:
    """A pipe that nobody writes to and whose write end only the parent holds: its end is the parent's end."""

    def __init__(self) -> None:
        self.reader, self._writer = multiprocessing.connection.Pipe(duplex=False)

    def leave(self) -> None:
        """In a child: close the write end, whose last holder the parent must be."""
        self._writer.close()

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


def death_of(pid: int) -> int | None:
    """Return a descriptor that is readable once a process has ended; None where the platform has none."""
    with contextlib.suppress(AttributeError, OSError):  # Linux before 5.3, or not Linux
        return os.pidfd_open(pid)
    return None


def end_group(process: Any, death_fd: int | None, grace_s: float) -> int | None:
    """Wait for a process for grace_s, kill it and the group that it has founded, and return its exit code.

    process: multiprocessing's, which nobody has joined yet. death_fd: of ``death_of``. The code is negative for a
    signal, and None where nobody knows how it ended.
    """
    if death_fd is None:
        process.join(grace_s)
    else:  # not joined yet, so that its number, which is its group's too, can't have been given to another
        ended = select.poll()  # select.select refuses descriptors above 1023
        ended.register(death_fd, select.POLLIN)
        ended.poll(1000 * grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what was started in it goes too
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # it may have had no time yet to found its group
    process.join()
    exitcode: int | None = process.exitcode
    return exitcode


def die_with_parent(life: Any) -> None:
    """Found a process group, and have the kernel kill it when the parent ends, however it does.

    The life pipe's end raises a signal for whoever asked for one, within milliseconds, also while the GIL is held and
    also if the process is stopped. PR_SET_PDEATHSIG would follow the thread that created us instead.
    """
    os.setpgid(0, 0)
    if hasattr(fcntl, "F_SETSIG"):
        own = os.open(f"/proc/self/fd/{life.fileno()}", os.O_RDONLY)  # opened anew: flags belong to an opening
        fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(own, select.POLLIN)
        if poll.poll(0):  # it had ended before we asked
            os.killpg(0, signal.SIGKILL)
        life.close()
    else:
        threading.Thread(target=_kill_at_end_of, args=(life,), daemon=True).start()


def _kill_at_end_of(life: Any) -> None:
    with contextlib.suppress(OSError):
        select.select([life], [], [])
    os.killpg(0, signal.SIGKILL)
