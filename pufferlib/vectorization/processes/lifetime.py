"""Ending worker processes, no later than their parent, however the parent ends."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.connection
import os
import select
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

__all__ = ["LifePipe", "death_of", "die_with_parent", "end_group", "fill_standard_fds"]


def fill_standard_fds() -> None:
    """Open the null device in place of each closed standard stream. Raises OSError if the system refuses.

    Otherwise a pipe or socket opened next would have its number, and what environments print would go there.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


class LifePipe:
    """A pipe that carries no data. Only the parent holds the write end, which therefore closes when the parent ends."""

    def __init__(self) -> None:
        self.reader, self._writer = multiprocessing.connection.Pipe(duplex=False)

    def leave(self) -> None:
        """Close the write end in a child, so that only the parent holds it."""
        self._writer.close()

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


def death_of(pid: int) -> int | None:
    """Return a descriptor that becomes readable once a process has ended; None if the platform has none."""
    with contextlib.suppress(AttributeError, OSError):  # Linux before 5.3, or not Linux
        return os.pidfd_open(pid)
    return None


def end_group(process: BaseProcess, death_fd: int | None, grace_s: float) -> int | None:
    """Wait up to grace_s seconds for a process to end, kill it and its process group, and return its exit code.

    process: a multiprocessing process that has not been joined yet. death_fd: the result of ``death_of``. The exit code
    is negative for a signal, and None if it is unknown.
    """
    if death_fd is None:
        process.join(grace_s)
    else:  # not joined yet, so that no other process or group has its id
        ended = select.poll()  # select.select refuses descriptors above 1023
        ended.register(death_fd, select.POLLIN)
        ended.poll(1000 * grace_s)
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # including the processes that it started
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # it may not have created its group yet
    process.join()
    return process.exitcode


def die_with_parent(life: Connection[object, object]) -> None:
    """Move this process into its own process group, which is killed when the parent ends, however it ends.

    On Linux, the kernel kills the group within milliseconds after the life pipe closes, even while the GIL is held or
    the process is stopped. PR_SET_PDEATHSIG would instead react to the end of the thread that created this process.
    Elsewhere, a thread of this process waits for the pipe to close, and kills the group.

    life: the read end of the parent's LifePipe, which belongs to this function afterwards.
    """
    os.setpgid(0, 0)
    if hasattr(fcntl, "F_SETSIG"):
        life_fd = os.open(f"/proc/self/fd/{life.fileno()}", os.O_RDONLY)  # flags belong to an open file description
        fcntl.fcntl(life_fd, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(life_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(life_fd, select.POLLIN)
        if poll.poll(0):  # the parent had ended before F_SETOWN
            os.killpg(0, signal.SIGKILL)
        life.close()
    else:
        threading.Thread(target=_kill_at_end_of, args=(life,), daemon=True).start()


def _kill_at_end_of(life: Connection[object, object]) -> None:
    with contextlib.suppress(OSError, EOFError):
        life.poll(None)  # select.select refuses descriptors above 1023
    os.killpg(0, signal.SIGKILL)
