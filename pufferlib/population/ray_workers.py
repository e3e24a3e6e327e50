"""The workers of a coordinator as Ray actors, which are replaced when they die."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pufferlib.errors import PlanError, PlatformError, PufferError, WorkerError
from pufferlib.population.pool import Content
from pufferlib.population.tasks import CLOSE_S, FailedTask, LostTask, PoolUpdate, Supply, Task, TaskRunner
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.processes.start import pickle_task
from pufferlib.vectorization.ray.connection import Connection, location, plain, reason
from pufferlib.vectorization.ray.supervisor import RemoteActor, Supervisor

__all__ = ["RayWorkers", "RemoteTaskRunner"]

SLICE_S = 0.5  # longest wait between two checks of the cluster's head


class RemoteTaskRunner:
    """The class of the Ray actors. Each wraps a ``TaskRunner``, which ``start`` creates."""

    def start(self, payload: bytes, path: Sequence[str]) -> str:
        """Create the environments, and return the actor's location as text.

        payload: the serialized arguments of the ``TaskRunner``. path: the coordinator's ``sys.path``. Its folders that
        exist on this machine are appended to the actor's ``sys.path``.
        """
        sys.path += [folder for folder in path if folder not in sys.path and os.path.isdir(folder)]
        task = transfer.loads(payload)
        assert isinstance(task, tuple), task
        env, make_kwargs, torch_threads = task
        self._task_runner = TaskRunner(env, make_kwargs, torch_threads)
        return location()

    def run(self, payload: bytes, update: PoolUpdate, **contents: Content) -> Any:
        """Run a task; return its result, or a FailedTask if it raised an exception.

        payload: the task's pickled call. update: the update of the pool, without contents. contents: the update's
        contents, by digest; Ray fetches them because they are arguments.
        """
        import cloudpickle

        result = self._task_runner.run(cloudpickle.loads(payload), update._replace(contents=contents))
        # Not every exception can be pickled; its traceback can.
        return result._replace(cause=None) if isinstance(result, FailedTask) else result

    def close(self) -> None:
        """Close the environments, if they were created."""
        if hasattr(self, "_task_runner"):
            self._task_runner.close()


@dataclass(eq=False)
class RemoteWorker(RemoteActor):
    """A worker and its current actor. The location is known once the actor has created its environments.

    call: Ray's reference to the running call. number: the number of the running task; None if no task is running or its
    result is no longer needed. digests: the digests of the contents sent to the actor. since_s: the time at which the
    task started, a reading of ``time.monotonic``.
    """

    call: Any = None
    number: int | None = None
    since_s: float = 0.0
    digests: set[str] = field(default_factory=set)


class RayWorkers:
    """A coordinator's workers, each a Ray actor. Arguments: see ``Coordinator``."""

    def __init__(
        self,
        supply: Supply,
        env: Any,
        make_kwargs: Mapping[str, Any],
        torch_threads: int,
        timeout_s: float | None,
        *,
        num_actors: int,
        address: str | None,
        resources: Mapping[str, float] | None,
        placement: Any,
        start_timeout: float,
    ) -> None:
        self._supply, self._start_s, self._timeout_s = supply, start_timeout, timeout_s
        self._payload = pickle_task((env, make_kwargs, torch_threads), "actors need")
        self._refs: dict[str, Any] = {}  # of contents in Ray's object store, by digest
        self._waited_s = 0.0  # while no actor was ready
        self._workers = [RemoteWorker(index) for index in range(num_actors)]
        self._supervisor = Supervisor(
            Connection(address), RemoteTaskRunner, self._workers, resources=resources, placement=placement
        )
        self._connection, self._ray = self._supervisor.connection, self._supervisor.ray
        try:
            for worker in self._workers:
                self._start(worker)
        except BaseException:
            self._supervisor.close()
            raise

    def _start(self, worker: RemoteWorker) -> None:
        """Start a new actor for a worker, after killing the worker's current actor, if any."""
        self._supervisor.start(worker)
        worker.location, worker.number, worker.digests = "", None, set()
        worker.call = worker.handle.start.remote(self._payload, sys.path)

    def idle(self) -> Iterator[int]:
        for worker in self._workers:
            if worker.call is None and not worker.location:  # its actor could not start in an earlier run
                self._start(worker)
        return (worker.index for worker in self._workers if worker.call is None)

    def give(self, worker: int, number: int, task: Task) -> None:
        self._connection.require()
        remote = self._workers[worker]
        payload = _payload(task)
        update = self._supply.update(task, remote.digests)
        digests = update.digests()
        self._refs = {digest: ref for digest, ref in self._refs.items() if digest in digests}
        for digest, content in update.contents.items():
            if digest not in self._refs:
                self._refs[digest] = self._ray.put(content)
        refs = {digest: self._refs[digest] for digest in update.contents}
        remote.number, remote.since_s = number, time.monotonic()
        remote.call = remote.handle.run.remote(payload, update._replace(contents={}), **refs)

    def collect(self) -> list[tuple[int, Any]]:
        self._connection.check()
        running = {worker.call: worker for worker in self._workers if worker.call is not None}
        start_s = time.monotonic()
        ready, others = self._ray.wait(list(running), timeout=SLICE_S)
        self._waited_s += time.monotonic() - start_s
        if ready and others:
            ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        results = []
        for call, worker in running.items():
            number, running_s = worker.number, time.monotonic() - worker.since_s
            if call in ready:
                result = self._fetch_result(worker)
            elif self._timeout_s is not None and worker.location and running_s > self._timeout_s:
                result = LostTask.late(worker.name, self._timeout_s)
                self._start(worker)
            else:
                continue
            if number is not None:  # actors of abandoned tasks are also replaced: nothing else would end these tasks
                results.append((number, result))
        self._require_placed()
        return results

    def _fetch_result(self, worker: RemoteWorker) -> Any:
        """Return the result of a finished call; if the actor has died, replace it and return a LostTask.

        If a task raised an exception, returns a FailedTask. The result of a call of ``start`` becomes the worker's
        location. Raises WorkerError, or the PufferError that ``start`` raised, if the environments could not be
        created. Also raises WorkerError if too many of a worker's actors die while they create the environments.
        """
        call, worker.call, worker.number = worker.call, None, None
        try:
            result = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            if worker.location:
                return FailedTask(plain(error), plain(error), worker.location)
            cause = getattr(error, "cause", None)
            text = f"{worker.name} could not make its environments: {plain(error)}"
            raise (cause if isinstance(cause, PufferError) else WorkerError(text, worker=worker.index)) from None
        except self._ray.exceptions.RayError as error:
            if not worker.location:
                self._supervisor.count_death(worker, "before it had made its environments", reason(error))
            lost = LostTask(f"{worker.name}: {reason(error)}")
            self._start(worker)
            return lost
        if not worker.location:
            worker.location, worker.deaths = result, 0
        return result._replace(where=worker.location) if isinstance(result, FailedTask) else result

    def _require_placed(self) -> None:
        """Raise PlatformError if this process has waited longer than start_timeout without any actor being ready."""
        if any(worker.location for worker in self._workers):
            self._waited_s = 0.0
        elif self._waited_s > self._start_s:
            raise PlatformError(
                f"no actor has made its environments within {self._start_s:g} s: {self._supervisor.placement.want()}"
            )

    def abandon(self) -> None:
        for worker in self._workers:
            worker.number = None

    def close(self) -> None:
        with closing(self._supervisor):
            self._supervisor.ask_to_close([worker for worker in self._workers if worker.location], CLOSE_S)
        self._refs.clear()


def _payload(task: Task) -> bytes:
    """Serialize a task's call for an actor. Raises PlanError if it cannot be pickled."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(task.call))
    except Exception as error:  # pickling a user's object may raise anything
        raise PlanError(f"task {task.name!r} cannot be pickled, as actors need: {error}") from error
