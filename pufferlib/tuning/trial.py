"""Try plans in a subprocess: measure their speed, start-up time and memory, or report a failure.

The caller's process is not affected: no environment is created in it, and an environment that hangs or kills its
process ends only the trial.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from time import monotonic, perf_counter
from typing import Any, NamedTuple

from pufferlib.construct import make
from pufferlib.errors import PlatformError, PufferError, WorkerError
from pufferlib.telemetry.stats import Stats
from pufferlib.tuning.random_play import Player
from pufferlib.util.memory import memory_nbytes
from pufferlib.vectorization.core import transfer

__all__ = ["Outcome", "Trial", "TrialRunner", "serve"]

# The search path is sent first, because objects pickled by reference must be importable there, too.
_PROGRAM = """
import pickle, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = pickle.loads(connection.recv_bytes())
from pufferlib.tuning.trial import serve
serve(connection)
"""
_PR_SET_PDEATHSIG = 1
WARM_UP = 0.25  # in multiples of a trial's seconds


class Trial(NamedTuple):
    """The settings of one trial.

    plan: arguments for ``make``. windows: how many times, at most, to play for ``seconds`` and measure the speed.
    learner_s: as for ``Player``. limit_s: the time in seconds after which the trial is killed.
    """

    plan: Mapping[str, Any]
    seconds: float
    windows: int
    learner_s: float
    limit_s: float


class Outcome(NamedTuple):
    """The result of a trial. error: what failed, or "" if it succeeded; the other fields are valid only then.

    steps_per_s: environment steps per second, one value per window. startup_s: the time until the first batch, in
    seconds. memory_nbytes: the additional memory of all processes, with shared memory counted once. stats: the stats of
    all windows together.
    """

    error: str = ""
    steps_per_s: tuple[float, ...] = ()
    startup_s: float = 0.0
    memory_nbytes: int = 0
    stats: Stats | None = None


class TrialRunner:
    """A subprocess for trials of one environment, started on first use and restarted after it ends.

    arguments: the arguments of ``make`` that all plans share, including ``env``.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = transfer.dumps(dict(arguments))
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._output: Any = None

    def try_out(self, trial: Trial) -> Outcome:
        """Run a trial and return its outcome, even if the environment fails.

        Raises PlatformError if the system cannot start a process.
        """
        if self._process is None:
            self._start()
        assert self._connection is not None
        try:
            self._connection.send_bytes(pickle.dumps(trial))
            if self._connection.poll(trial.limit_s + 1):
                outcome: Outcome = pickle.loads(self._connection.recv_bytes())
                return outcome
            error = f"it did not end within {trial.limit_s:.0f} s"
        except (EOFError, OSError):
            error = self._ending(trial)
        self.close()
        return Outcome(error)

    def _start(self) -> None:
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = map(undo.enter_context, Pipe())
                output = undo.enter_context(tempfile.TemporaryFile())
                process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # only the caller handles Ctrl-C
                )
            except OSError as error:
                raise PlatformError(
                    error.errno, f"no process can be started to try plans in ({error.strerror}); end some others"
                ) from error
            undo.pop_all()
        theirs.close()
        self._process, self._connection, self._output = process, ours, output
        with contextlib.suppress(OSError):  # it has died already; ``try_out`` will report it
            ours.send_bytes(pickle.dumps(list(sys.path)))
            ours.send_bytes(self._arguments)

    def _ending(self, trial: Trial) -> str:
        assert self._process is not None
        code = self._process.wait()
        if code == -signal.SIGALRM:
            return f"it did not end within {trial.limit_s:.0f} s"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return f"the process died ({how})" + (f": {lines[-1]}" if lines else "")

    def close(self) -> None:
        """End the process, if any. The next trial starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        assert self._connection is not None
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)  # it ends itself unless it is in a trial
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # workers are in other groups, and end with their parent
        process.wait()
        self._output.close()

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -------------------------------------------------------------------------------------------- in the process


def serve(connection: Connection) -> None:
    """Run trials until the connection closes: the main function of a TrialRunner's process."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the alarm below ends this process
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the caller's thread waits, so it ends later
    arguments = transfer.loads(connection.recv_bytes())
    assert isinstance(arguments, Mapping), arguments
    with contextlib.suppress(EOFError):
        while True:
            trial: Trial = pickle.loads(connection.recv_bytes())
            # The kernel's alarm ends this process even if an environment hangs in compiled code and the caller ended.
            signal.setitimer(signal.ITIMER_REAL, trial.limit_s)
            outcome = _outcome(arguments, trial)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(pickle.dumps(outcome))


def _outcome(arguments: Mapping[str, Any], trial: Trial) -> Outcome:
    try:
        return _play(arguments, trial)
    except WorkerError as error:
        lines = error.remote_traceback.strip().splitlines() or [str(error)]
        return Outcome(str(error) if isinstance(error.__cause__, PufferError) else f"{lines[-1]}")
    except Exception as error:  # any error of the user's environment
        return Outcome(str(error) if isinstance(error, PufferError) else f"{type(error).__name__}: {error}")


def _play(arguments: Mapping[str, Any], trial: Trial) -> Outcome:
    before = memory_nbytes()
    start_s, deadline = perf_counter(), monotonic() + trial.limit_s
    shortened = {  # lists with one item per environment, cut to this plan's number
        name: value[: trial.plan["num_envs"]]
        for name, value in arguments.items()
        if name in ("env", "env_kwargs") and isinstance(value, (list, tuple))
    }
    with make(**{**arguments, **shortened, **trial.plan}) as vec:
        player = Player(vec, learner_s=trial.learner_s, timeout=trial.limit_s)
        player.play(0.0, alone=True)
        startup_s = perf_counter() - start_s
        player.play(WARM_UP * trial.seconds, alone=True)
        vec.stats(reset=True)
        rates = []
        for _ in range(trial.windows):
            rates.append(player.play(trial.seconds, alone=True))
            if monotonic() + 2 * trial.seconds > deadline:
                break
        stats = vec.stats()
        memory = memory_nbytes() - before
        return Outcome("", tuple(rates), startup_s, max(0, memory), stats)
