"""Replay an environment in new Python processes with chosen hash seeds."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from pufferlib.testing.play import Player, Subject, Trace, replay
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.processes.deferred_signals import deferred_signals
from pufferlib.vectorization.processes.sandbox import Sandbox, SandboxConnection, await_any

__all__ = ["ReplayResult", "replay_in_processes", "serve"]

TIMEOUT_S = 300.0


class ReplayResult(NamedTuple):
    """The result of a replay in another process.

    stage: the last stage that the replay reached: "started", "loaded" (the creator is loaded), "played" (trace is set),
    "stepped" (after_end is set) or "finished". after_end: the effect of a step after an episode's end; None if no
    episode ended. error: why the replay ended early; "" if it did not.
    """

    stage: str
    trace: Trace | None
    after_end: str | None
    error: str


def replay_in_processes(subject: Subject, seed: int, num_steps: int, hash_seeds: Sequence[int]) -> list[ReplayResult]:
    """Replay an environment in new processes, one per hash seed, and return their results.

    Each process also steps the environment once after an episode's end. hash_seeds: the processes' values of
    PYTHONHASHSEED. The processes run in parallel.
    """
    task = transfer.dumps((subject, seed, num_steps))
    results = [ReplayResult("started", None, None, "") for _ in hash_seeds]
    with contextlib.ExitStack() as stack:
        sandboxes = []
        for hash_seed in hash_seeds:
            environ = {"PYTHONHASHSEED": str(hash_seed)}
            with deferred_signals():
                sandbox = Sandbox(serve, task, fresh=True, environ=environ)
                sandboxes.append(stack.enter_context(sandbox))
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s and not all(sandbox.closed for sandbox in sandboxes):
            await_any([sandbox for sandbox in sandboxes if not sandbox.closed], 1.0)
            for index, sandbox in enumerate(sandboxes):
                ended = sandbox.ended  # checked first: its last message has arrived by then
                for fields in sandbox.receive(dict):
                    results[index] = results[index]._replace(**fields)
                if ended:
                    sandbox.end()
    return [_explained(result, sandbox) for result, sandbox in zip(results, sandboxes, strict=True)]


def _explained(result: ReplayResult, sandbox: Sandbox) -> ReplayResult:
    """Return a process's result; if its replay neither finished nor reported an error, add how the process ended."""
    if result.stage == "finished" or result.error:
        return result
    if sandbox.exitcode is not None and sandbox.exitcode < 0:
        return result._replace(error=f"the process was killed by signal {-sandbox.exitcode}")
    line = sandbox.lines(1)
    return result._replace(error=f"the process ended with exit code {sandbox.exitcode}" + (f": {line}" if line else ""))


def serve(channel: SandboxConnection, task: bytes) -> None:
    """Run a replay in a sandbox's process; send each stage, or an error, through ``channel``."""
    warnings.simplefilter("ignore")

    def report(**fields: Any) -> None:
        channel.send(fields)

    try:
        arguments = transfer.loads(task)  # here, so that errors are reported
        assert isinstance(arguments, tuple), arguments
        subject, seed, num_steps = arguments
        report(stage="loaded")
        player = Player(subject)
        report(stage="played", trace=replay(player, seed, num_steps))
        report(stage="stepped", after_end=_step_after_end(player, num_steps))
        player.reset()
        player.close()
        report(stage="finished")
    except Exception as error:
        report(error=f"{type(error).__name__}: {error}")


def _step_after_end(player: Player, num_steps: int) -> str | None:
    """Play to an episode's end, step once more, and describe the effect.

    Returns None if no episode ends within num_steps steps.
    """
    moment = player.reset()
    for _ in range(num_steps):
        last, moment = moment, player.step()
        if moment.over:
            break
    else:
        return None
    try:
        player.step(last.agents)
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "returns"
