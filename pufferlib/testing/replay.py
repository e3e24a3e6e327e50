"""Replay an environment in new Python processes with chosen hash seeds."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from pufferlib.testing.play import Player, Subject, Trace, replay
from pufferlib.vectorization.core import transfer

__all__ = ["ReplayResult", "replay_in_processes", "serve"]

TIMEOUT_S = 300.0

# Objects pickled by reference must be importable in the new process, so it first receives the search path.
_PROGRAM = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    sys.path[:] = pickle.load(file)
    from pufferlib.testing.replay import serve
    serve(file.read(), sys.argv[2])
"""


class ReplayResult(NamedTuple):
    """The result of a replay in another process.

    stage: the last stage that the replay reached: "started", "loaded" (the creator is loaded), "played" (trace is set),
    "stepped" (a step was tried after an episode's end; after_end describes its effect, or is None if no episode ended)
    or "finished". error: why the replay ended early; "" if it did not.
    """

    stage: str
    trace: Trace | None
    after_end: str | None
    error: str


def replay_in_processes(subject: Subject, seed: int, num_steps: int, hash_seeds: Sequence[int]) -> list[ReplayResult]:
    """Replay an environment, and step it after an episode's end, in a new process per hash seed; return the results.

    hash_seeds: the processes' values of PYTHONHASHSEED. The processes run in parallel.
    """
    payload = transfer.dumps((subject, seed, num_steps))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        task = os.path.join(folder, "task")
        with open(task, "wb") as file:
            pickle.dump(list(sys.path), file)
            file.write(payload)
        running = []
        for index, hash_seed in enumerate(hash_seeds):
            result = os.path.join(folder, str(index))
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, task, result],
                    env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            running.append((process, result))
        return [_result_of(process, result) for process, result in running]


def _result_of(process: subprocess.Popen[bytes], result: str) -> ReplayResult:
    try:
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, stderr = process.communicate()
    replay_result = ReplayResult("started", None, None, "")
    with contextlib.suppress(FileNotFoundError, EOFError), open(result, "rb") as file:
        while True:
            replay_result = replay_result._replace(**pickle.load(file))
    if replay_result.stage == "finished" or replay_result.error:
        return replay_result
    if process.returncode < 0:
        return replay_result._replace(error=f"the process was killed by signal {-process.returncode}")
    last = stderr.decode(errors="replace").strip().splitlines()[-1:]
    return replay_result._replace(error=last[0] if last else f"the process ended with exit code {process.returncode}")


def serve(payload: bytes, result: str) -> None:
    """Run a replay in a process that ``replay_in_processes`` has started; write each stage to the file ``result``."""
    warnings.simplefilter("ignore")
    with open(result, "wb") as file:

        def report(**fields: Any) -> None:
            pickle.dump(fields, file)
            file.flush()

        try:
            task = transfer.loads(payload)
            assert isinstance(task, tuple), task
            subject, seed, num_steps = task
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
    """Play to an episode's end, step once more, and describe the effect; return None if no episode ends in time."""
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
