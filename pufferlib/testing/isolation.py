"""Run the checks in a separate process, so that a call that hangs or crashes becomes a failed check."""

from __future__ import annotations

import codecs
import contextlib
import faulthandler
import itertools
import linecache
import mmap
import os
import re
import signal
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pufferlib.errors import PlanError
from pufferlib.testing import CHECKS, check_env
from pufferlib.testing.report import Report, Result
from pufferlib.testing.wording import is_foreign
from pufferlib.vectorization.core.messages import signal_name
from pufferlib.vectorization.processes.deferred_signals import deferred_signals
from pufferlib.vectorization.processes.sandbox import Sandbox, SandboxConnection, await_any

__all__ = ["IsolatedReport", "Printed", "check_isolated"]

POLL_S = 0.1
SILENCE_S = 2.0  # after which ``waiting`` is called for a call in progress
BETWEEN = 60  # times step_timeout: the limit of a check that makes its calls in other processes
GRACE_S = 2.0  # for the process to end by itself after its last message
STACK_S = 1.0  # for a process to write its stack
MAX_LINE = 1000  # characters of a printed line that are kept
ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")  # faulthandler's, of a path that is not ASCII
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
HEAD = struct.Struct("QI")  # the number of calls that have begun or ended, and the length of this call's name in bytes
BOARD_NBYTES = 4096


class IsolatedReport(NamedTuple):
    """The results of the checks in a separate process.

    ended: whether the process crashed, or hung and was killed. stack: the lines of the traceback that it left in that
    case, outermost first; empty if there is none. If the innermost frame is outside pufferlib, pufferlib's frames and
    those of its callers are left out. printed: a record of the environment's output.
    """

    report: Report
    ended: bool
    stack: tuple[str, ...]
    printed: Printed


class Printed:
    """A record of the environment's output: the number of lines, and the last three, cut to MAX_LINE characters.

    through: called with all output as it arrives.
    """

    def __init__(self, through: Callable[[str], object] | None = None) -> None:
        self.num_lines = 0
        self.last: deque[str] = deque(maxlen=3)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._through = through
        self._begun = ""  # a line that has not ended yet

    def end(self) -> None:
        """Count an unfinished last line as a line. Call this once, after the last output."""
        self.add(b"", final=True)

    def add(self, data: bytes, final: bool = False) -> None:
        """Add output, UTF-8, and pass it to ``through``.

        final: whether this is the last output, so that an unfinished line counts as a line.
        """
        text = self._decoder.decode(data, final)
        if self._through is not None and text:
            self._through(text)
        *lines, self._begun = (self._begun + text).split("\n")
        if final and self._begun:
            lines.append(self._begun)
        self._begun = self._begun[:MAX_LINE]
        for line in lines:
            self.last.append(line[:MAX_LINE])
            self.num_lines += 1


class _Board:
    """A memory-mapped file in which one process shows another the call that is in progress."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), BOARD_NBYTES)
        self._count = 0

    def note(self, call: str) -> None:
        """Store the call that is in progress. call: the call's name when it begins, or "" when it ends."""
        name = call.encode("utf-8", "replace")[: BOARD_NBYTES - HEAD.size]
        self._count += 1
        self._memory[HEAD.size : HEAD.size + len(name)] = name
        HEAD.pack_into(self._memory, 0, self._count, len(name))

    def read(self) -> tuple[int, str]:
        """Return how often a call has begun or ended, and the name of the call in progress, or ""."""
        count, nbytes = HEAD.unpack_from(self._memory, 0)
        return count, self._memory[HEAD.size : HEAD.size + nbytes].decode("utf-8", "replace")

    def close(self) -> None:
        self._memory.close()


def check_isolated(
    env: str,
    *,
    step_timeout: float = 30.0,
    only: Sequence[str] | None = None,
    before: Callable[[str], None] | None = None,
    after: Callable[[Result], None] | None = None,
    waiting: Callable[[str, float], None] | None = None,
    through: Callable[[str], object] | None = None,
    **arguments: Any,
) -> IsolatedReport:
    """Run ``check_env`` in a separate process, and return its report and the environment's output.

    If the process crashed or hung, the result also holds the stack at that moment.

    env: a registered name. only, before, after, arguments: as in ``check_env``.
    step_timeout: the time limit, in seconds, for each call of the environment, including its creation and resets;
        between calls, the limit is 60 times as long. If a limit is exceeded or the process crashes, the current check
        fails and later checks do not run.
    waiting: called repeatedly during a call that takes more than 2 s, with the call's description and the seconds that
        it has taken so far.
    through: called with the output as it arrives.

    Raises PlanError if step_timeout is not above 0, and the errors of ``check_env`` (as RuntimeError if they cannot be
    pickled).
    """
    if not step_timeout > 0:
        raise PlanError(f"step_timeout={step_timeout} is impossible; use seconds, more than 0")
    requested = [name for name in CHECKS if only is None or name in only]
    results: list[Result] = []
    printed = Printed(through)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        board_path, stack_path = Path(folder, "board"), Path(folder, "stack")
        board_path.write_bytes(bytes(BOARD_NBYTES))
        stack_path.touch()
        board = _Board(board_path)
        stack.callback(board.close)
        arguments["only"] = only
        with deferred_signals():
            sandbox = Sandbox(_serve, board_path, stack_path, env, arguments, through=printed.add)
            stack.enter_context(sandbox)
        play = _Play(sandbox, board, stack_path)
        for kind, content in play.messages(step_timeout, waiting):
            if kind == "before":
                begun_s = time.monotonic()
                if before is not None:
                    before(content)
            elif kind == "after":
                results.append(content)
                if after is not None:
                    after(content)
            elif kind == "raised":
                raise content
            else:
                # The first without a result has begun or is about to. If none is left, blame the last.
                name, *others = requested[len(results) :] or [results.pop().name]
                results.append(Result(name, "failed", content, time.monotonic() - begun_s))
                if after is not None:
                    after(results[-1])
                results += [Result(other, "not applicable", f"waits for {name}", waits_for=name) for other in others]
        printed.end()
        return IsolatedReport(Report(tuple(results)), play.ended, play.stack, printed)


class _Play:
    """The parent's view of the process that runs the checks."""

    def __init__(self, sandbox: Sandbox, board: _Board, stack_path: Path) -> None:
        self.ended = False  # before its last message
        self.stack: tuple[str, ...] = ()
        self._frames: list[tuple[str, str, str]] = []
        self._sandbox, self._board, self._stack_path = sandbox, board, stack_path

    def messages(self, step_timeout: float, waiting: Callable[[str, float], None] | None) -> Iterator[tuple[str, Any]]:
        """Yield the process's messages until it ends.

        If it crashes, or hangs and is killed, the last item is ("ended", description). step_timeout, waiting: as for
        ``check_isolated``.
        """
        last_read, since_s = (0, ""), time.monotonic()
        while True:
            await_any([self._sandbox], POLL_S)
            ended = self._sandbox.ended  # checked first: its last message has arrived by then
            for kind, content in self._sandbox.receive(tuple):
                if kind == "done":
                    self._sandbox.end(GRACE_S)
                    return
                yield kind, content
            call, now_s = self._board.read(), time.monotonic()
            if ended:
                self.ended = True
                yield "ended", self._how_it_died(call[1])
                return
            if call[0] != last_read[0]:
                last_read, since_s = call, now_s
            limit_s = step_timeout if call[1] else BETWEEN * step_timeout
            if now_s - since_s > limit_s:
                self.ended = True
                yield "ended", self._where_it_hangs(call[1], limit_s)
                return
            if waiting is not None and call[1] and now_s - since_s > SILENCE_S:
                waiting(call[1], now_s - since_s)

    def _how_it_died(self, call: str) -> str:
        self._sandbox.end()
        exitcode = self._sandbox.exitcode
        self._read_stack()
        if exitcode is None:
            how = "for an unknown reason"
        elif exitcode < 0:
            how = f"by signal {-exitcode} ({signal_name(-exitcode)})"
        else:
            how = f"with exit code {exitcode}"
        return f"{call or 'a call in this check'} ends the process, {how}{self._where()}"

    def _where_it_hangs(self, call: str, limit_s: float) -> str:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._sandbox.pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACK_S
        size = 0
        while time.monotonic() < deadline and (not size or size != self._stack_path.stat().st_size):
            size = self._stack_path.stat().st_size
            time.sleep(POLL_S / 2)
        self._sandbox.end()
        self._read_stack()
        if not call:
            return f"this check is not over after {limit_s:g} s{self._where()}"
        return f"{call} has not returned after {limit_s:g} s{self._where()}; --step-timeout gives it longer"

    def _read_stack(self) -> None:
        """Read the stack that the process wrote, and store its innermost frames that lie outside pufferlib.

        If the innermost frame is pufferlib's, all frames are stored.
        """
        text = ESCAPE.sub(lambda match: chr(int(match[1][1:], 16)), self._stack_path.read_text(errors="replace"))
        frames = FRAME.findall(text)  # innermost first
        theirs = list(itertools.takewhile(lambda frame: is_foreign(frame[0]), frames))
        self._frames = theirs or frames
        lines = []
        for file, number, function in reversed(self._frames):
            lines.append(f'File "{file}", line {number}, in {function}')
            if source := linecache.getline(file, int(number)).strip():
                lines.append(f"  {source}")
        self.stack = tuple(lines)

    def _where(self) -> str:
        return "".join(f", in {name} ({Path(file).name}, line {number})" for file, number, name in self._frames[:1])


# ------------------------------------------------------------------------------------------- in the other process


def _serve(channel: SandboxConnection, board_path: Path, stack_path: Path, env: str, arguments: dict[str, Any]) -> None:
    """Check an environment in the sandbox, and send the results through ``channel``.

    The call in progress is shown on the board. On a crash or SIGUSR1, the stack is written to ``stack_path``.
    """
    board = _Board(board_path)
    with stack_path.open("w") as stack:
        faulthandler.disable()  # if it is enabled already, enable() keeps handlers installed since, such as Ray's
        faulthandler.enable(stack, all_threads=False)
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        try:
            check_env(
                env,
                **arguments,
                before=lambda name: channel.send(("before", name)),
                after=lambda result: channel.send(("after", result)),
                noted=board.note,
            )
            channel.send(("done", None))
        except Exception as error:
            _send_error(channel, error)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.disable()


def _send_error(channel: SandboxConnection, error: Exception) -> None:
    try:
        channel.send(("raised", error))
    except Exception:  # the error cannot be pickled
        channel.send(("raised", RuntimeError(f"{type(error).__name__}: {error}")))
