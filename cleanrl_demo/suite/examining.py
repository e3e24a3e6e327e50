"""Examinations: a learner is trained on a task, and what it plays is scored. Each in a process of its own.

A process of its own can crash, hang or leak without harm to the next one, and its output is kept for the case that it
fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cleanrl_demo.evaluation import evaluate
from cleanrl_demo.results import mean_score
from cleanrl_demo.suite.tasks import NUM_EPISODES, Cannot, Task
from pufferlib import registry
from pufferlib.errors import PlanError
from pufferlib.vectorization.launch import start_method

__all__ = ["DEMO", "Examination", "Verdict", "examine", "examined", "learner", "score"]

DEMO = "cleanrl_demo.suite.demo:train"
TIMEOUT_S = 600.0
GRACE_S = 5.0
NUM_LAST_LINES = 12  # of a failed learner's output
PR_SET_PDEATHSIG = 1

Learner = Callable[[Task], Callable[[Any], Any]]


@dataclass(frozen=True)
class Verdict:
    """What came of a learner on a task. score: the mean over fresh episodes, None where it came to none."""

    score: float | None
    bar: float
    seconds: float
    """of training, with making the environments"""
    error: str = ""
    """why there is no score"""
    cannot: bool = False
    """whether the learner says that it was not meant for such an environment"""

    @property
    def passed(self) -> bool:
        """Whether the score reaches the bar."""
        return self.score is not None and self.score >= self.bar

    @property
    def failed(self) -> bool:
        """Whether it neither passed nor was meant to."""
        return not (self.passed or self.cannot)


@dataclass(frozen=True)
class Examination:
    """A learner, by name, on a task. mutant: the name of a fault that is put into the demo trainer (mutants.py)."""

    task: Task
    learner: str = DEMO
    mutant: str | None = None
    num_episodes: int = NUM_EPISODES
    """fresh ones, which the score is the mean of"""


def learner(name: str) -> Learner:
    """Return the function that ``module:function`` names. Raises PlanError where it takes no task."""
    found = registry.load(name)
    try:
        inspect.signature(found).bind(None)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"trainer={name!r} cannot be called as train(task) ({error}); see cleanrl_demo.suite"
        ) from error
    return found  # type: ignore[no-any-return]


def examine(task: Task, train: Learner, num_episodes: int = NUM_EPISODES) -> tuple[Verdict, Callable[[Any], Any]]:
    """Train on a task in this process; return the verdict, and what plays. What the learner raises is raised."""
    start_s = time.perf_counter()
    play = train(task)
    seconds = time.perf_counter() - start_s
    return Verdict(score(task, play, num_episodes), task.bar, seconds), play


def score(task: Task, play: Callable[[Any], Any], num_episodes: int = NUM_EPISODES) -> float:
    """Return the mean score over fresh episodes, on seeds that no training has seen. Raises PlanError for no player."""
    if not callable(play):
        raise PlanError(
            f"the trainer returned {play!r:.80}; it has to return what plays: a callable from a batch to its actions"
        )
    seed = int(np.random.SeedSequence([task.seed, 0x0CEA]).generate_state(1)[0])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # by default as many as there are cores, which workers need too
    try:
        with task.make(seed=seed) as vec:
            found = mean_score(evaluate(vec, play, num_episodes, seed))
    finally:
        torch.set_num_threads(num_threads)
    if found is None:
        raise PlanError(f"{task.env} reports no info['score'] at the end of an episode; see ocean/__init__.py")
    return found


# ------------------------------------------------------------------------------------------------ in other processes


def examined(
    examinations: Iterable[Examination],
    *,
    jobs: int = 1,
    timeout_s: float = TIMEOUT_S,
    began: Callable[[Examination], None] = lambda examination: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Examination, Verdict]]:
    """Yield verdicts as they come, of ``jobs`` examinations at once, each in a process of its own.

    A learner that raises, dies or takes longer than ``timeout_s`` seconds has no score; its verdict says why. began: is
    told what begins. meanwhile: called several times a second. Whatever ends this ends the processes.
    """
    context = multiprocessing.get_context(start_method(None))
    import cleanrl_demo.suite.demo  # noqa: F401  here and not in each process: torch takes seconds

    waiting, running = iter(examinations), dict[Any, _Running]()
    try:
        while True:
            while len(running) < jobs and (examination := next(waiting, None)) is not None:
                begun = _Running(context, examination, timeout_s)
                running[begun.process.sentinel] = begun
                began(examination)
            if not running:
                return
            ended = wait(list(running), 0.1)
            meanwhile()
            for sentinel in [*ended, *(key for key, each in running.items() if each.late and key not in ended)]:
                done = running.pop(sentinel)
                yield done.examination, done.verdict()
    finally:
        for each in running.values():
            each.kill()


class _Running:
    """An examination under way in a process."""

    def __init__(self, context: Any, examination: Examination, timeout_s: float) -> None:
        self.examination, self.timeout_s = examination, timeout_s
        file, path = tempfile.mkstemp(prefix="puffer-ocean-", suffix=".log")
        os.close(file)
        self.log = Path(path)
        self.receiver, sender = context.Pipe(duplex=False)
        arguments = (sender, examination, str(self.log), sys.path)
        self.process = context.Process(target=_examine_here, args=arguments)
        with warnings.catch_warnings():  # Python 3.12 counts the sleeping threads of NumPy's BLAS
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            self.process.start()
        sender.close()
        self.start_s = time.monotonic()

    @property
    def late(self) -> bool:
        return time.monotonic() - self.start_s > self.timeout_s

    def verdict(self) -> Verdict:
        """Return what came of it; what still runs is killed."""
        bar, seconds = self.examination.task.bar, time.monotonic() - self.start_s
        said = None
        with contextlib.suppress(EOFError):
            if self.receiver.poll():
                said = self.receiver.recv()
        if not self.late:
            self.process.join(GRACE_S)  # its sentinel says so a moment before it has ended
        late = said is None and self.process.is_alive()
        self.kill(keep_log=True)
        if isinstance(said, Verdict):
            verdict = said
        elif late:
            verdict = Verdict(None, bar, seconds, f"took longer than {self.timeout_s:g} s, and was killed")
        else:
            code = self.process.exitcode or 0
            how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            verdict = Verdict(None, bar, seconds, f"{how}\n{self._last_lines()}".strip())
        self.log.unlink(missing_ok=True)
        return verdict

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-NUM_LAST_LINES:])

    def kill(self, *, keep_log: bool = False) -> None:
        """End the process, and what it has started."""
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()
        self.receiver.close()
        if not keep_log:
            self.log.unlink(missing_ok=True)


def _examine_here(sender: Connection, examination: Examination, log: str, path: list[str]) -> None:
    """Be the process of an examination."""
    os.setpgid(0, 0)  # what it starts ends with it
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    sys.path[:] = path
    task = examination.task
    start_s = time.perf_counter()
    try:
        if examination.mutant is not None:
            importlib.import_module("cleanrl_demo.suite.mutants").infect(examination.mutant)
        verdict, _ = examine(task, learner(examination.learner), examination.num_episodes)
    except Cannot as error:
        verdict = Verdict(None, task.bar, time.perf_counter() - start_s, str(error), cannot=True)
    except BaseException as error:
        traceback.print_exc()
        text = "".join(traceback.format_exception(error)).strip()
        verdict = Verdict(None, task.bar, time.perf_counter() - start_s, text)
    sender.send(verdict)
