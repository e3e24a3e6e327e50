"""Examinations, each in a separate process: a learner is trained on a task, and its play is scored.

The process can crash, hang or leak without harm to the next examination; if it fails, its last output is reported.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from ocean.suite.tasks import NUM_EPISODES, Cannot, Task
from pufferlib import evaluation, registry, vectorization
from pufferlib.errors import PlanError, PufferError
from pufferlib.layout import action_values
from pufferlib.training import evaluation as training_evaluation
from pufferlib.training.evaluation import evaluate
from pufferlib.training.random_policy import random_actor
from pufferlib.training.results import mean_score
from pufferlib.vectorization.core.messages import signal_name
from pufferlib.vectorization.core.plan import available_cpus
from pufferlib.vectorization.processes.deferred_signals import deferred_signals
from pufferlib.vectorization.processes.sandbox import Sandbox, SandboxConnection, await_any

__all__ = ["DEMO", "Examination", "Verdict", "examine", "examined", "learner", "score"]

DEMO = "ocean.suite.demo:train"
TIMEOUT_S = 600.0
GRACE_S = 5.0
MAX_RANDOM_STEPS = 1000  # within which a random episode is expected to end
NO_SCORE = "{env} reports no info['score'] at the end of an episode; see ocean/__init__.py"
NUM_LAST_LINES = 12  # of a failed learner's output
# Files whose frames lie between the process of an examination and a learner's code.
IN_FRONT = {
    module.__file__ for module in (sys.modules[__name__], training_evaluation, action_values, registry, importlib)
}
IN_FRONT |= {"<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"}
IN_FRONT |= {str(path) for package in (vectorization, evaluation) for path in Path(package.__path__[0]).rglob("*.py")}

Learner = Callable[[Task], Callable[[Any], Any]]


@dataclass(frozen=True)
class Verdict:
    """The result of examining a learner on a task. score: the mean over fresh episodes; None without a score."""

    score: float | None
    bar: float
    seconds: float
    """the duration of training, including making environments; without a score, the time until the failure"""
    error: str = ""
    """why there is no score; empty if there is one"""
    cannot: bool = False
    """whether the learner does not support the environment, and therefore raised ``Cannot``"""

    @property
    def passed(self) -> bool:
        """Whether the score reaches the bar."""
        return self.score is not None and self.score >= self.bar

    @property
    def failed(self) -> bool:
        """Whether the learner supports the environment but did not pass."""
        return not (self.passed or self.cannot)


@dataclass(frozen=True)
class Examination:
    """A task, and the name of the learner to examine on it."""

    task: Task
    learner: str = DEMO
    num_episodes: int = NUM_EPISODES
    """the number of fresh episodes in the mean score"""


def learner(name: str) -> Learner:
    """Return the function that a name such as "my_module:my_function" refers to.

    Raises PlanError if the name does not have this form, or if the function cannot be called with a task; also raises
    the errors of ``registry.load``.
    """
    module, _, function = name.partition(":")
    if not (module and function) and not name.endswith(".py"):
        word = module or function or "my_learner"
        raise PlanError(
            f"trainer={name!r} is not module:function, such as {word}:train for the function train(task) in {word}.py; "
            f"in the box is {DEMO}: PPO, with an LSTM where a memory is needed"
        )
    train = registry.load(name)
    try:
        inspect.signature(train).bind(None)
    except (TypeError, ValueError) as error:
        raise PlanError(f"trainer={name!r} cannot be called as train(task) ({error}); see ocean.suite") from error
    return train


def examine(task: Task, train: Learner, num_episodes: int = NUM_EPISODES) -> tuple[Verdict, Callable[[Any], Any]]:
    """Train on a task in this process; return the verdict and the learner's ``play``.

    Raises PlanError if a random episode ends without a score, the errors of ``score``, and those of the learner.
    """
    _require_scores(task)
    start_s = time.perf_counter()
    play = train(task)
    seconds = time.perf_counter() - start_s
    return Verdict(score(task, play, num_episodes), task.bar, seconds), play


def score(task: Task, play: Callable[[Any], Any], num_episodes: int = NUM_EPISODES) -> float:
    """Return the mean score of ``play`` over fresh episodes, on seeds that training has not seen.

    Raises PlanError if play is not callable, or if no episode has a score.
    """
    if not callable(play):
        raise PlanError(
            f"the trainer returned {play!r:.80}; it has to return a callable that takes a batch and returns its actions"
        )
    seed = int(np.random.SeedSequence([task.seed, 0x0CEA]).generate_state(1)[0])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the default is one per core, which workers need as well
    try:
        with task.make(seed=seed) as vec:
            mean = mean_score(evaluate(vec, play, num_episodes, seed))
    finally:
        torch.set_num_threads(num_threads)
    if mean is None:
        raise PlanError(NO_SCORE.format(env=task.env))
    return mean


def _require_scores(task: Task) -> None:
    """Raise PlanError if a random episode of a task's environment ends without a score; called before training."""
    with task.make(backend="serial", num_envs=1, batch_size=1) as vec:
        (episode,) = evaluate(vec, random_actor(vec, seed=task.seed), 1, task.seed, max_steps=MAX_RANDOM_STEPS)
    if episode.score is None and not episode.cut:
        raise PlanError(NO_SCORE.format(env=task.env))


# ------------------------------------------------------------------------------------------------ in other processes


def examined(
    examinations: Iterable[Examination],
    *,
    jobs: int = 1,
    timeout_s: float = TIMEOUT_S,
    began: Callable[[Examination], None] = lambda examination: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Examination, Verdict]]:
    """Run examinations, ``jobs`` at a time, each in a separate process; yield (examination, verdict) as each ends.

    If a learner raises, dies or takes longer than ``timeout_s`` seconds, its verdict has the reason instead of a score.
    began: called with each examination when it begins. meanwhile: called several times a second. When the generator
    ends, for whatever reason, it ends all processes. Learners' output is read only while the generator runs, so a
    learner that prints much may have to wait while the caller handles a result. If ``jobs`` is more than 1, the
    processes share the cores: in each process, torch's initial number of threads is the number of cores divided by
    ``jobs``.
    """
    import ocean.suite.demo  # noqa: F401  here and not in each process: torch takes seconds

    # By default each would have a thread per core; two such trainings on two cores would wait for each other.
    num_threads = None if jobs == 1 else max(1, available_cpus() // jobs)
    waiting, running = iter(examinations), list[_Running]()
    with contextlib.ExitStack() as stack:
        while True:
            while len(running) < jobs and (examination := next(waiting, None)) is not None:
                if examination.learner == DEMO:
                    import torch._dynamo  # noqa: F401  or the first optimizer of each process does, for a second
                with deferred_signals():
                    sandbox = stack.enter_context(Sandbox(_examine_in_process, examination, num_threads))
                running.append(_Running(examination, timeout_s, sandbox))
                began(examination)
            if not running:
                return
            await_any([job.sandbox for job in running], 0.1)
            meanwhile()
            for job in [job for job in running if job.over]:
                running.remove(job)
                yield job.examination, job.verdict()


class _Running:
    """An examination that runs in a sandbox."""

    def __init__(self, examination: Examination, timeout_s: float, sandbox: Sandbox) -> None:
        self.examination, self.sandbox, self._timeout_s = examination, sandbox, timeout_s
        self._start_s = time.monotonic()
        self._ended = False
        self._verdicts: list[Verdict] = []

    @property
    def over(self) -> bool:
        """Whether the process has sent a verdict, has ended, or has run out of time."""
        self._ended = self.sandbox.ended  # checked first: its last message has arrived by then
        self._verdicts += self.sandbox.receive(Verdict)
        return bool(self._verdicts) or self._ended or time.monotonic() - self._start_s > self._timeout_s

    def verdict(self) -> Verdict:
        """End the process and everything that it has started, and return its verdict.

        If it has sent none, return a verdict without a score, with the reason and the last lines of output.
        """
        seconds = time.monotonic() - self._start_s
        # If it has reported, it may have threads or processes that do not end.
        self.sandbox.end(GRACE_S if self._verdicts else 0.0)
        self._verdicts += self.sandbox.receive(Verdict)
        if self._verdicts:
            return self._verdicts[0]
        if self._ended:
            code = self.sandbox.exitcode or 0
            ending = f"died of signal {-code} ({signal_name(-code)})" if code < 0 else f"ended with exit code {code}"
        else:
            ending = f"took longer than {self._timeout_s:g} s, and was killed"
        lines = self.sandbox.lines(NUM_LAST_LINES)
        return Verdict(None, self.examination.task.bar, seconds, f"{ending}\n{lines}".strip())


def _examine_in_process(channel: SandboxConnection, examination: Examination, num_threads: int | None) -> None:
    """Run an examination in the sandbox, and send its verdict through ``channel``.

    num_threads: torch's number of threads; None leaves the default.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    task = examination.task
    start_s = time.perf_counter()
    try:
        verdict, _ = examine(task, learner(examination.learner), examination.num_episodes)
    except Cannot as error:
        verdict = Verdict(None, task.bar, time.perf_counter() - start_s, str(error), cannot=True)
    except BaseException as error:
        traceback.print_exc()
        text = "".join(traceback.format_exception(type(error), error, _from_learner_on(error))).strip()
        verdict = Verdict(None, task.bar, time.perf_counter() - start_s, text)
    channel.send(verdict)


def _from_learner_on(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the learner's first frame on.

    If the traceback has no frame of the learner, return None for a pufferlib error, else the whole traceback.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in IN_FRONT:
        trace = trace.tb_next
    return trace if trace is not None or isinstance(error, PufferError) else error.__traceback__
