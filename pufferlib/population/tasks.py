"""Tasks, and the workers that run them, each with a VecEnv and a copy of the pool.

A coordinator (task_queue.py) gives tasks to its ``TaskWorkers``: ``LocalWorkers`` in this process, or ``RayWorkers``
(ray_workers.py). These ask the ``Supply`` for the weights that a worker lacks, and pass the task and the weights to the
worker's ``TaskRunner``, which runs the task. The coordinator then collects the task's result: a ``FailedTask`` if the
task raised an exception, or a ``LostTask`` if its worker died or was ended because the task timed out.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pufferlib import make
from pufferlib.population.pool import Content, Entry, PolicyPool, digest_of
from pufferlib.vectorization import VecEnv

__all__ = [
    "CLOSE_S",
    "FailedTask",
    "LocalWorkers",
    "LostTask",
    "PoolUpdate",
    "Supply",
    "Task",
    "TaskRunner",
    "TaskWorkers",
    "seed_of",
]

CLOSE_S = 5.0  # for a running task to end and for its environments to close

Call = Callable[[VecEnv, PolicyPool], Any]


@dataclass(frozen=True)
class Task:
    """A piece of work with a VecEnv, such as a rollout, an evaluation or training.

    name: the task's name, for messages. call: a function that returns the task's result; it is called with the worker's
    VecEnv, which it must reset first, and with a copy of the pool; changes to the copy are discarded. On Ray actors,
    the function and its result must be picklable. All randomness should come from a seed that is part of the task, so
    that the result does not depend on the worker. policies: the ids of the policies whose weights the copy needs;
    learners have the weights that were published last.
    """

    name: str
    call: Callable[[VecEnv, PolicyPool], Any]
    policies: Sequence[int] = ()


def seed_of(sequence: np.random.SeedSequence) -> int:
    """Return a seed for a task, in the range that environments accept."""
    return int(sequence.generate_state(1)[0]) & 0x7FFFFFFF


class FailedTask(NamedTuple):
    """The result of a task that raised an exception.

    text: the exception's type and message. trace: the traceback as text. where: text that locates the worker in
    messages; may be "". cause: the exception; None if it is not available, as from a Ray actor.
    """

    text: str
    trace: str
    where: str = ""
    cause: BaseException | None = None


class LostTask(NamedTuple):
    """The result of a task whose worker died or was ended because the task timed out.

    reason: what happened, as text. advice: what the user can do, without a final period; it ends the message of the
    error that is raised once the task has been lost too often.
    """

    reason: str
    advice: str = "See what ends the process, such as a segfault or a lack of memory"

    @classmethod
    def late(cls, where: str, timeout_s: float) -> LostTask:
        """Return the result of a task that exceeded task_timeout. where: text that identifies the worker."""
        return cls(
            f"{where}: it had not ended after task_timeout={timeout_s:g} s",
            "See what it waits for, such as an environment that hangs, or raise task_timeout",
        )


class TaskWorkers(Protocol):
    """The interface of a coordinator's workers, each of which runs one task at a time."""

    def idle(self) -> Iterator[int]:
        """Yield the indices of idle workers."""

    def give(self, worker: int, number: int, task: Task) -> None:
        """Start a task on an idle worker. number: the number that identifies the task in ``collect``."""

    def collect(self) -> list[tuple[int, Any]]:
        """Wait for results, for a limited time; return those that have arrived as (number, result).

        A result may be a FailedTask or a LostTask.
        """

    def abandon(self) -> None:
        """Discard the results of all tasks started so far, including results that arrive later."""

    def close(self) -> None:
        """End the workers."""


# ------------------------------------------------------------------------------------------- what a worker is sent


class PoolUpdate(NamedTuple):
    """The information from which a worker makes its copy of the pool for a task.

    entries, learners: the entries of the pool's frozen policies and learners; each learner's entry has the digest of
    its current content. contents: the contents of the task's policies that the worker lacks, by digest.
    """

    entries: Sequence[Entry]
    learners: Sequence[Entry]
    contents: Mapping[str, Content]

    def digests(self) -> set[str]:
        """Return the digests of all contents that are still in use."""
        return {entry.digest for entry in (*self.entries, *self.learners)}


class Supply:
    """A supplier of a pool's contents: it finds the policies' origins and weights that a worker lacks for a task."""

    def __init__(self, pool: PolicyPool) -> None:
        self._pool = pool
        self._copies: dict[int, tuple[int, Entry, Content]] = {}  # version, entry, content of learning actors

    def update(self, task: Task, digests: set[str]) -> PoolUpdate:
        """Return the update that a worker needs for a task.

        digests: the digests of the contents that the worker has, updated in place. Raises PlanError for an unknown
        policy.
        """
        pool = self._pool
        self._copies = {learner: copy for learner, copy in self._copies.items() if learner in pool.learners()}
        learners = {learner: self._learner(learner) for learner in pool.learners()}
        contents: dict[str, Content] = {}
        for policy in task.policies:
            entry, content = learners.get(policy) or (pool[policy], None)
            if entry.digest not in digests:
                contents[entry.digest] = content or pool._content(policy)
        entries = [pool[policy] for policy in range(len(pool))]
        update = PoolUpdate(entries, [entry for entry, _ in learners.values()], contents)
        digests &= update.digests()
        digests |= contents.keys()
        return update

    def _learner(self, learner: int) -> tuple[Entry, Content]:
        """Return a learner's entry and content.

        For a learner that is an actor, the weights are copied once per version, and the entry has the copy's digest.
        """
        entry, version = self._pool[learner], self._pool.version(learner)
        if entry.digest:
            return entry, self._pool._content(learner)
        if learner not in self._copies or self._copies[learner][0] != version:
            origin, weights = self._pool._content(learner)
            content = (origin, {name: value.detach().cpu().clone() for name, value in weights.items()})
            self._copies[learner] = (version, replace(entry, digest=digest_of(*content)), content)
        return self._copies[learner][1:]


# -------------------------------------------------------------------------------------------------- on the worker


class TaskRunner:
    """A runner of tasks, one at a time, with a VecEnv and the contents received so far.

    env, make_kwargs: the arguments of ``pufferlib.make``, whose errors are raised. torch_threads: the number of threads
    that torch uses while a task runs.
    """

    def __init__(self, env: Any, make_kwargs: Mapping[str, Any], torch_threads: int) -> None:
        self._threads = torch_threads
        self._contents: dict[str, Content] = {}
        self._vec = make(env, **make_kwargs)

    def run(self, call: Call, update: PoolUpdate) -> Any:
        """Run a task's call with a copy of the pool; return its result, or a FailedTask if it raised an exception.

        Before that, stores the update's contents, and drops those that are no longer in use.
        """
        for digest in self._contents.keys() - update.digests():
            del self._contents[digest]
        self._contents.update(update.contents)
        pool = PolicyPool.copied(update.entries, update.learners, self._contents)
        with _torch_threads(self._threads):
            try:
                return call(self._vec, pool)
            except Exception as error:  # a task may raise anything; the coordinator reports it
                return FailedTask(f"{type(error).__name__}: {error}", traceback.format_exc(), cause=error)

    def close(self) -> None:
        """Close the environments."""
        self._vec.close()


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class LocalWorkers:
    """A coordinator's only worker, in this process.

    timeout_s: the time limit of a task in seconds. With a limit, each task runs in its own thread. By default, there is
    no limit, and tasks run in the calling thread.
    """

    def __init__(
        self,
        supply: Supply,
        env: Any,
        make_kwargs: Mapping[str, Any],
        torch_threads: int,
        timeout_s: float | None = None,
    ) -> None:
        self._supply, self._timeout_s = supply, timeout_s
        self._make = partial(TaskRunner, env, make_kwargs, torch_threads)
        self._task_runner: TaskRunner | None = self._make()  # None: the last one was left to a task that hangs
        self._digests: set[str] = set()
        self._attempt: Attempt | None = None  # whose result has not been collected

    def idle(self) -> Iterator[int]:
        if self._attempt is None:
            yield 0

    def give(self, worker: int, number: int, task: Task) -> None:
        if self._task_runner is None:
            self._task_runner, self._digests = self._make(), set()
        attempt = Attempt(number, self._task_runner, task.call, self._supply.update(task, self._digests))
        if self._timeout_s is None:
            attempt.run()  # here, not in its thread
        else:
            attempt.start()
        self._attempt = attempt

    def collect(self) -> list[tuple[int, Any]]:
        attempt = self._attempt
        if attempt is None:
            return []
        result: Any
        if self._timeout_s is not None:
            remaining_s = self._timeout_s - (time.monotonic() - attempt.start_s)
            attempt.join(min(max(0.0, remaining_s), threading.TIMEOUT_MAX))
        if self._timeout_s is not None and attempt.is_alive():
            result, self._task_runner = LostTask.late("in this process", self._timeout_s), None
            attempt.leave()
        else:
            result = attempt.result  # read only now, because the thread may just have ended
        self._attempt = None
        return [] if attempt.number is None else [(attempt.number, result)]

    def abandon(self) -> None:
        if self._attempt is not None:
            self._attempt.number = None

    def close(self) -> None:
        if self._attempt is not None and self._attempt.is_alive():
            self._attempt.leave().join(CLOSE_S)
        elif self._task_runner is not None:
            self._task_runner.close()


class Attempt(threading.Thread):
    """A thread that runs a task and can be abandoned.

    number: the number of the task; None if its result is no longer needed. result: the task's result, valid once the
    task has ended.
    """

    def __init__(self, number: int, task_runner: TaskRunner, call: Call, update: PoolUpdate) -> None:
        super().__init__(name="pufferlib task", daemon=True)  # a task that hangs must not keep the process alive
        self.number: int | None = number
        self.start_s = time.monotonic()
        self.result: Any = FailedTask("it ended its thread", "", " in this process")
        self._task_runner, self._call, self._update = task_runner, call, update

    def run(self) -> None:
        self.result = self._task_runner.run(self._call, self._update)

    def leave(self) -> threading.Thread:
        """Start a thread that closes the environments as soon as possible, killing hung workers; return the thread."""
        thread = threading.Thread(target=self._clear, name="pufferlib task's end", daemon=True)
        thread.start()
        return thread

    def _clear(self) -> None:
        self._task_runner.close()  # cannot close a serial VecEnv while the task is in its step
        self.join()
        self._task_runner.close()
