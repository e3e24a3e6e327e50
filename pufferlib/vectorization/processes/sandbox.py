"""Sandbox: a process for a function that may print, hang, crash or leave processes behind.

None of that harms this process. The sandbox's process is forked if that is safe, or else starts as a new Python. It
ends, with the processes that it has started, when the sandbox is closed, or when this process ends.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from typing import TypeAlias, TypeVar

from pufferlib.errors import PlatformError
from pufferlib.util.annotations import Function
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.processes.deferred_signals import as_before, deferred_signals
from pufferlib.vectorization.processes.lifetime import (
    LifePipe,
    death_of,
    die_with_parent,
    end_group,
    fill_standard_fds,
)
from pufferlib.vectorization.processes.start import start_method, starting

__all__ = ["Sandbox", "await_any", "serve"]

SandboxConnection: TypeAlias = "Connection[object, object]"

KEPT_NBYTES = 64 << 10  # of the output, from its end
CHUNK_NBYTES = 64 << 10
MOST_CHUNKS = 16  # read at a time, since the process may print without end
POLL_S = 0.05  # where no descriptor shows that a process has ended

# The search path comes first, because objects pickled by reference must be importable in the new process.
_PROGRAM = """
import pickle, sys
with open(int(sys.argv[1]), "rb") as task:
    sys.path[:] = pickle.load(task)
    from pufferlib.vectorization.processes.sandbox import serve
    serve(task.read(), *map(int, sys.argv[2:]))
"""

Sent = TypeVar("Sent")

_open: weakref.WeakSet[Sandbox] = weakref.WeakSet()


class Sandbox:
    """A process that calls ``function(channel, *arguments)`` and can send objects to this one.

    fresh: whether to start a new Python; by default, only if a fork is not safe. A new Python receives the function and
    the arguments as pickles. environ: environment variables to set in a new Python. through: a function that is
    called with each piece of the output, in bytes, when ``receive`` or ``end`` reads it.

    channel: this end of a duplex multiprocessing connection; the function gets the other end. output: the last
    KEPT_NBYTES bytes of what the process and its descendants have written to stdout and stderr. pid: the id of the
    process, and of its process group. exitcode: after ``end``, the exit code of the process, negative for a signal;
    None before, and if it is unknown.

    Raises PlatformError if the system cannot start a process; errors raised by pickling propagate. Construct it within
    ``deferred_signals``, or Ctrl-C may leave a process to which nothing refers.
    """

    def __init__(
        self,
        function: Function,
        *arguments: object,
        fresh: bool | None = None,
        environ: Mapping[str, str] | None = None,
        through: Callable[[bytes], object] | None = None,
    ) -> None:
        self._through = through
        self.output = b""
        self._objects: list[object] = []  # that ``receive`` has not returned yet
        self.exitcode: int | None = None
        self.closed = False
        fresh = start_method(None) != "fork" if fresh is None else fresh
        task = b""
        if fresh:
            task = pickle.dumps(list(sys.path)) + transfer.dumps((function, arguments))
        with ExitStack() as undo, ExitStack() as theirs, deferred_signals():
            try:
                fill_standard_fds()
                self.channel, channel = Pipe()
                undo.callback(self.channel.close)
                theirs.callback(channel.close)
                self._output, output = Pipe(duplex=False)
                undo.callback(self._output.close)
                theirs.callback(output.close)
                self._life = LifePipe()
                undo.callback(self._life.close)
                self._process: subprocess.Popen[bytes] | BaseProcess
                if fresh:
                    file = theirs.enter_context(tempfile.TemporaryFile())  # a pipe would wait until the process reads
                    file.write(task)
                    file.seek(0)
                    fds = [file.fileno(), channel.fileno(), self._life.reader.fileno(), output.fileno()]
                    self._process = subprocess.Popen(
                        [sys.executable, "-c", _PROGRAM, *map(str, fds)],
                        pass_fds=fds,
                        stdin=subprocess.DEVNULL,
                        stdout=output.fileno(),
                        stderr=output.fileno(),
                        env={**os.environ, **(environ or {})},
                    )
                else:
                    context = multiprocessing.get_context("fork")
                    self._process = context.Process(target=self._run, args=(channel, output, function, arguments))
                    with starting("fork"):
                        self._process.start()
            except OSError as error:
                raise PlatformError(
                    error.errno, f"no process can be started ({error.strerror}); end some others"
                ) from error
            undo.pop_all()
        os.set_blocking(self._output.fileno(), False)
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._death_fd = death_of(self.pid)
        _open.add(self)

    # ----------------------------------------------------------------------------------------------- this process

    @property
    def ended(self) -> bool:
        """Whether the process has ended. Processes that it has started may still run."""
        if self.closed:
            return True
        if self._death_fd is not None:
            return bool(wait([self._death_fd], 0))
        code = self._process.poll() if isinstance(self._process, subprocess.Popen) else self._process.exitcode
        return code is not None

    def receive(self, kind: type[Sent]) -> list[Sent]:
        """Return, without waiting, the objects that have arrived, and add what the process has printed to ``output``.

        It may be called after ``end`` as well. kind: the type that all objects must have. Raises TypeError for an
        object of another type.
        """
        if not self.closed:
            self._read()
        objects, self._objects = self._objects, []
        for item in objects:
            if not isinstance(item, kind):
                raise TypeError(f"the process sent {item!r:.200}, which is no {kind.__name__}")
        return objects  # type: ignore[return-value]

    def _read(self) -> None:
        try:
            while not self.channel.closed and self.channel.poll():
                self._objects.append(self.channel.recv())
        except (EOFError, OSError):  # its end is closed; the processes that it has started may still print
            self.channel.close()
        self._read_output()

    def _read_output(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(MOST_CHUNKS):
                data = b"" if self._output.closed else os.read(self._output.fileno(), CHUNK_NBYTES)
                if not data:
                    self._output.close()  # else it would end every wait
                    return
                self.output = (self.output + data)[-KEPT_NBYTES:]
                if self._through is not None:
                    self._through(data)

    @property
    def handles(self) -> list[SandboxConnection | int]:
        """The objects to pass to ``multiprocessing.connection.wait``.

        At least one of them becomes ready when the process sends an object, prints or ends.
        """
        handles: list[SandboxConnection | int] = [pipe for pipe in (self._output, self.channel) if not pipe.closed]
        return handles if self._death_fd is None else [*handles, self._death_fd]

    def lines(self, count: int) -> str:
        """Return the last ``count`` lines of the output, joined by newlines."""
        return "\n".join(self.output.decode(errors="replace").strip().splitlines()[-count:])

    def end(self, grace_s: float = 0.0) -> None:
        """Wait up to grace_s seconds for the process to end, kill its process group, and close this sandbox.

        Safe to call again.
        """
        if self.closed:
            return
        deadline_s = time.monotonic() + grace_s
        while not self.ended and (left_s := deadline_s - time.monotonic()) > 0:
            wait(self.handles, left_s if self._death_fd is not None else min(left_s, POLL_S))
            self._read()
        with deferred_signals():
            if isinstance(self._process, subprocess.Popen):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)  # including the processes that it has started
                self._process.kill()  # it may not have created its group yet
                self.exitcode = self._process.wait()
            else:
                self.exitcode = end_group(self._process, self._death_fd, 0.0)
                with suppress(ValueError):  # SIGCHLD is ignored, or other code has waited
                    self._process.close()
            try:
                self._read()
            finally:  # ``through`` may raise
                self.closed = True
                if self._death_fd is not None:
                    os.close(self._death_fd)
                for resource in (self.channel, self._output, self._life):
                    resource.close()
                _open.discard(self)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # ----------------------------------------------------------------------------------------------- the process

    def _run(
        self, channel: SandboxConnection, output: SandboxConnection, function: Function, arguments: Sequence[object]
    ) -> None:
        """Call the function with stdout and stderr going to ``output``. The forked process runs this."""
        for sandbox in _open:  # so that their processes end with this process's parent, not with this process
            sandbox._life.leave()
        self._life.leave()
        self.channel.close()
        self._output.close()
        die_with_parent(self._life.reader)  # in a group of its own, which Ctrl-C does not reach, before signals do
        as_before()
        _call(channel, output.fileno(), function, arguments)


def await_any(sandboxes: Iterable[Sandbox], timeout_s: float) -> None:
    """Wait until a process of the sandboxes has sent or printed something, or has ended; at most timeout_s seconds.

    Without a descriptor that shows the end of processes (see ``death_of``), this waits for at most POLL_S seconds.
    """
    sandboxes = list(sandboxes)
    if any(sandbox._death_fd is None for sandbox in sandboxes):
        timeout_s = min(timeout_s, POLL_S)
    wait([handle for sandbox in sandboxes for handle in sandbox.handles], timeout_s)


def serve(task: bytes, channel_fd: int, life_fd: int, output_fd: int) -> None:
    """Load a function and its arguments, and call the function. A new Python runs this."""
    life: SandboxConnection = Connection(life_fd, writable=False)
    die_with_parent(life)  # before loading, which runs the user's code
    call = transfer.loads(task)
    assert isinstance(call, tuple), call
    _call(Connection(channel_fd), output_fd, *call)


def _call(channel: SandboxConnection, output_fd: int, function: Function, arguments: Sequence[object]) -> None:
    """Call the function with stdout and stderr going to output_fd, line by line, so that a crash loses no lines."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(output_fd, fd)
        setattr(sys, name, open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False))
    os.close(output_fd)
    function(channel, *arguments)
