"""Try plans in a subprocess: measure their speed, start-up time and memory, or report a failure.

The caller's process is not affected: no environment is created in it, and an environment that hangs or kills its
process ends only the trial.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from time import monotonic, perf_counter
from typing import Any, NamedTuple

from pufferlib.construct import make
from pufferlib.errors import PufferError, WorkerError
from pufferlib.telemetry.stats import Stats
from pufferlib.tuning.random_play import Player
from pufferlib.util.memory import memory_nbytes
from pufferlib.vectorization.core.messages import signal_name
from pufferlib.vectorization.processes.deferred_signals import deferred_signals
from pufferlib.vectorization.processes.sandbox import Sandbox, SandboxConnection, await_any

__all__ = ["Outcome", "Trial", "TrialRunner", "serve"]

WARM_UP = 0.25  # in multiples of a trial's seconds
GRACE_S = 1.0  # beyond a trial's limit, for it to end by itself


class Trial(NamedTuple):
    """The settings of one trial.

    plan: arguments for ``make``. windows: the maximum number of speed measurements. seconds: the duration of each
    measurement. learner_s: as for ``Player``. limit_s: the time in seconds after which the trial is killed.
    """

    plan: Mapping[str, Any]
    seconds: float
    windows: int
    learner_s: float
    limit_s: float


class Outcome(NamedTuple):
    """The result of a trial. error: what failed, or ""; the other fields are valid only if ``error`` is "".

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
        self._arguments = dict(arguments)
        self._sandbox: Sandbox | None = None

    def try_out(self, trial: Trial) -> Outcome:
        """Run a trial and return its outcome; if the environment fails or hangs, the outcome has an error.

        Raises PlatformError if the system cannot start a process.
        """
        if self._sandbox is None:
            with deferred_signals():
                self._sandbox = Sandbox(serve, self._arguments, fresh=True)  # without this process's memory
        sandbox = self._sandbox
        with contextlib.suppress(OSError):  # it has died
            sandbox.channel.send(trial)
        deadline_s, ended = monotonic() + trial.limit_s + GRACE_S, False
        while not ended and (left_s := deadline_s - monotonic()) > 0:
            await_any([sandbox], left_s)
            ended = sandbox.ended  # checked first: its last outcome has arrived by then
            for outcome in sandbox.receive(Outcome):
                return outcome
        self.close()
        return Outcome(_how_it_died(sandbox) if ended else f"it did not end within {trial.limit_s:.0f} s")

    def close(self) -> None:
        """End the process, if any. The next trial starts a new one."""
        if self._sandbox is not None:
            self._sandbox.end()
            self._sandbox = None

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _how_it_died(sandbox: Sandbox) -> str:
    code, line = sandbox.exitcode or 0, sandbox.lines(1)
    how = f"signal {-code} ({signal_name(-code)})" if code < 0 else f"exit code {code}"
    return f"the process died ({how})" + (f": {line}" if line else "")


# -------------------------------------------------------------------------------------------- in the process


def serve(channel: SandboxConnection, arguments: Mapping[str, Any]) -> None:
    """Run the trials that arrive through the channel and send their outcomes, until the channel closes."""
    with contextlib.suppress(EOFError):
        while True:
            trial = channel.recv()
            assert isinstance(trial, Trial), trial
            channel.send(_outcome(arguments, trial))


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
