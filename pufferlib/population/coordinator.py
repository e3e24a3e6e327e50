"""Coordinator: assigns tasks to idle workers, in this process or over Ray, and returns each result exactly once."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from pufferlib.errors import CallError, ClosedError, PlanError, WorkerError
from pufferlib.population.actors import RayWorkers
from pufferlib.population.pool import PolicyPool
from pufferlib.population.task_runner import FailedTask, LocalWorkers, LostTask, Supply, Task, TaskWorkers
from pufferlib.vectorization.core.arguments import checked_seconds

__all__ = ["Coordinator"]


class Coordinator:
    """A group of workers that run tasks, each worker with its own VecEnv; a context manager.

    ::

        with Coordinator(pool, GameEnv, num_actors=4, num_envs=64, env_kwargs={"game": "leduc_poker"}) as coordinator:
            Evaluator(coordinator, pool, min_episodes=1000)(table)

    Each idle worker gets the next task. If a task is lost with its worker, a warning is issued, a new worker replaces
    the lost one, and the task is run again. A frozen policy's weights are sent to each worker at most once; a learner's
    weights, at most once per version.

    pool: the pool of the tasks' policies. env, make_kwargs: arguments of ``pufferlib.make`` in each worker. num_actors:
        the number of Ray actors; with 0, this process is the only worker, and Ray is not needed.
    max_retries: how often a lost task is run again; if it is then lost once more, ``run`` raises WorkerError.
    task_timeout: the time in seconds after which a task counts as lost, since a hanging task never ends; by default, no
        limit. The actor of such a task is killed; without actors, the thread in which the task runs is abandoned.
    torch_threads: the number of torch's threads during a task; with the same number, a task has the same result on all
        machines of the same kind.
    address, resources, placement: arguments of the backend "ray", for the actors. start_timeout: the time in seconds
        within which the first actor must have created its environments.

    Raises PlanError for invalid counts and times, and the errors of ``pufferlib.make`` and of Ray. If actors cannot
    create their environments, ``run`` raises the error.
    """

    def __init__(
        self,
        pool: PolicyPool,
        env: Callable[..., Any] | str | Sequence[Callable[..., Any] | str],
        *,
        num_actors: int = 0,
        max_retries: int = 3,
        task_timeout: float | None = None,
        torch_threads: int = 1,
        address: str | None = None,
        resources: Any = None,
        placement: Any = "SPREAD",
        start_timeout: float = 120.0,
        **make_kwargs: Any,
    ) -> None:
        if num_actors < 0 or max_retries < 0 or torch_threads < 1 or start_timeout <= 0:
            raise PlanError(
                f"{num_actors=}, {max_retries=}: use at least 0; {torch_threads=}: at least 1; {start_timeout=}: more "
                "than 0"
            )
        timeout_s = checked_seconds("task_timeout", task_timeout)
        self.pool = pool
        self.num_envs: int = make_kwargs.get("num_envs") or (1 if callable(env) or isinstance(env, str) else len(env))
        self.num_lost = 0  # how often tasks were lost with their workers
        self.num_done = Counter[int]()  # completed tasks by worker
        self._max_retries, self._closed, self._running = max_retries, False, False
        arguments = (env, make_kwargs, torch_threads, timeout_s)
        self._workers: TaskWorkers
        if num_actors == 0:
            self._workers = LocalWorkers(Supply(pool), *arguments)
        else:
            self._workers = RayWorkers(
                Supply(pool),
                *arguments,
                num_actors=num_actors,
                address=address,
                resources=resources,
                placement=placement,
                start_timeout=start_timeout,
            )

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Run tasks on idle workers; yield each task once, with its result, in the order of the tasks.

        tasks: an iterable; its next task is taken when a worker is idle. If the caller stops early, the results of
        running tasks are discarded. Raises WorkerError, with the task's name, if a task raises or is lost more than
        ``max_retries`` times; PlanError if a task refers to an unknown policy or cannot be pickled for an actor;
        CallError if another ``run`` has not ended; ClosedError after ``close``; and the errors of Ray.
        """
        self._require_open()
        if self._running:
            raise CallError("another run of this coordinator has not ended; finish or close it first")
        self._running = True
        try:
            yield from self._run(enumerate(tasks))
        finally:
            self._running = False
            self._workers.abandon()

    def _run(self, source: Iterator[tuple[int, Task]]) -> Iterator[tuple[Task, Any]]:
        lost_numbers: deque[int] = deque()  # tasks to be done again
        open_tasks: dict[int, Task] = {}  # by number
        workers: dict[int, int] = {}  # by the number of their task
        results: dict[int, Any] = {}  # that arrived before those of earlier tasks
        times_lost: Counter[int] = Counter()
        next_number, has_more = 0, True
        while True:
            for worker in self._workers.idle():
                if lost_numbers:
                    number = lost_numbers.popleft()
                else:
                    new = next(source, None) if has_more else None
                    if new is None:
                        has_more = False
                        break
                    number, open_tasks[new[0]] = new
                workers[number] = worker
                self._workers.give(worker, number, open_tasks[number])
            while next_number in results:
                yield open_tasks.pop(next_number), results.pop(next_number)
                next_number += 1
            if not open_tasks and not has_more:
                return
            for number, result in self._workers.collect():
                if isinstance(result, FailedTask):
                    raise WorkerError(
                        f"task {open_tasks[number].name!r} raised{result.where}: {result.text}",
                        remote_traceback=result.trace,
                    ) from result.cause
                if not isinstance(result, LostTask):
                    self.num_done[workers.pop(number)] += 1
                    results[number] = result
                    continue
                self.num_lost += 1
                times_lost[number] += 1
                name = open_tasks[number].name
                if times_lost[number] > self._max_retries:
                    raise WorkerError(
                        f"task {name!r} was lost {times_lost[number]} times, with its worker; the last time: "
                        f"{result.reason}. {result.advice}"
                    )
                warnings.warn(
                    f"task {name!r} was lost with its worker, and is done again, time {times_lost[number]} of "
                    f"{self._max_retries}: {result.reason}",
                    RuntimeWarning,
                    stacklevel=3,
                )
                lost_numbers.append(number)

    def close(self) -> None:
        """End all workers and close their environments. The results of running tasks are discarded."""
        if not self._closed:
            self._closed = True
            self._workers.close()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the coordinator is closed; make another one")
