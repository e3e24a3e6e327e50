"""A coordinator's workers over Ray: one actor each, which is replaced where it dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pufferlib.errors import PlanError, PlatformError, PufferError, WorkerError
from pufferlib.population.pool import Content
from pufferlib.population.task_runner import CLOSE_S, Lost, Order, Raised, Supply, Task, TaskRunner, late
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.processes.start import portable
from pufferlib.vectorization.ray.connection import Connection, Placement, plain, reason

__all__ = ["Actors", "RemoteTaskRunner"]

MOST_DEATHS = 3  # of one worker's actors in a row, before any has made its environments
SLICE_S = 0.5  # between two looks at the cluster's head


class RemoteTaskRunner:
    """The actor: a ``TaskRunner``."""

    def start(self, sealed: bytes, path: Sequence[str]) -> str:
        """Make the environments, and return where this is, in words.

        path: where the coordinator's process finds modules, as does this one where there are such folders here.
        """
        import ray

        sys.path += [folder for folder in path if folder not in sys.path and os.path.isdir(folder)]
        env, make_kwargs, torch_threads = transfer.loads(sealed)
        self._task_runner = TaskRunner(env, make_kwargs, torch_threads)
        address: Any = ray.util.get_node_ip_address  # without annotations
        return f" on node {ray.get_runtime_context().get_node_id()[:8]} at {address()}"

    def work(self, sealed: bytes, order: Order, *contents: Content) -> Any:
        """Do a task. Ray has fetched the contents."""
        import cloudpickle

        self._task_runner.take(order, contents)
        result = self._task_runner.work(cloudpickle.loads(sealed), order)
        # Not every exception can be pickled; its traceback can.
        return result._replace(cause=None) if isinstance(result, Raised) else result

    def close(self) -> None:
        """Close the environments."""
        if hasattr(self, "_task_runner"):
            self._task_runner.close()


@dataclass
class RemoteWorker:
    """A worker, whichever actor it is now.

    handle, call: Ray's; the call is under way. number: of the task that is done; None of another call, or of a task
    that is of no interest any more. place: of the actor in words, "" before it has made its environments. has: digests
    of the contents that it has been sent. since_s: when the call began, on the clock of ``time.monotonic``.
    """

    index: int
    handle: Any = None
    call: Any = None
    number: int | None = None
    place: str = ""
    deaths: int = 0  # in a row, before its environments were made
    since_s: float = 0.0
    has: set[str] = field(default_factory=set)


class Actors:
    """Workers that are actors of Ray. Arguments: as ``Coordinator`` has them."""

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
        self._sealed = portable((env, make_kwargs, torch_threads), "actors need")
        self._connection = connection = Connection(address)
        try:
            self._placement = Placement(connection, placement, resources, num_actors)
        except BaseException:
            connection.release()
            raise
        self._ray = connection.ray
        self._refs: dict[str, Any] = {}  # of contents in Ray's object store, by digest
        self._waited_s = 0.0  # for the first actor, since there was none
        self._members = [RemoteWorker(index) for index in range(num_actors)]
        try:
            for member in self._members:
                self._start(member)
        except BaseException:
            self._placement.remove()
            connection.release()
            raise

    def _start(self, member: RemoteWorker) -> None:
        """Have a new actor in a worker's place."""
        self._connection.require()
        kind = self._ray.remote(RemoteTaskRunner).options(
            max_restarts=0, max_task_retries=0, **self._placement.options(member.index)
        )
        member.handle, member.place, member.number, member.has = kind.remote(), "", None, set()
        member.call = member.handle.start.remote(self._sealed, sys.path)

    def idle(self) -> Iterator[int]:
        for member in self._members:
            if member.call is None and not member.place:  # it could not be made for whoever asked before
                self._start(member)
        return (member.index for member in self._members if member.call is None)

    def give(self, worker: int, number: int, task: Task) -> None:
        self._connection.require()
        member = self._members[worker]
        sealed = _sealed(task)
        order, new = self._supply.order(task, member.has)
        live = {entry.digest for entry in (*order.entries, *order.learners)}
        self._refs = {digest: ref for digest, ref in self._refs.items() if digest in live}
        for digest, content in new.items():
            if digest not in self._refs:
                self._refs[digest] = self._ray.put(content)
        member.number, member.since_s = number, time.monotonic()
        member.call = member.handle.work.remote(sealed, order, *(self._refs[digest] for digest in new))

    def collect(self) -> list[tuple[int, Any]]:
        self._connection.check()
        calls = {member.call: member for member in self._members if member.call is not None}
        start_s = time.monotonic()
        ready, others = self._ray.wait(list(calls), timeout=SLICE_S)
        self._waited_s += time.monotonic() - start_s
        if ready and others:
            ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        found = []
        for call in ready:
            member, number = calls[call], calls[call].number
            result = self._hear(member)
            if number is not None:
                found.append((number, result))
        found += self._end_late(calls[call] for call in others if call not in ready)
        self._require_placed()
        return found

    def _end_late(self, members: Iterable[RemoteWorker]) -> list[tuple[int, Lost]]:
        """Kill the actors whose tasks have taken too long, also tasks of no interest, which nothing else would end."""
        found = []
        for member in members:
            timeout_s, number = self._timeout_s, member.number
            if timeout_s is None or not member.place or time.monotonic() - member.since_s <= timeout_s:
                continue
            lost = late(f"actor {member.index}{member.place}", timeout_s)
            self._restart(member)
            if number is not None:
                found.append((number, lost))
        return found

    def _hear(self, member: RemoteWorker) -> Any:
        """Return what a call has brought back, and replace the actor if it is gone."""
        call, number, member.call, member.number = member.call, member.number, None, None
        try:
            result = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if number is None and not member.place:
                raise (
                    cause
                    if isinstance(cause, PufferError)
                    else WorkerError(
                        f"actor {member.index} could not make its environments: {plain(error)}", worker=member.index
                    )
                ) from None
            return Raised(plain(error), plain(error), member.place, None)
        except self._ray.exceptions.RayError as error:
            return self._replace(member, reason(error))
        if not member.place:
            member.place, member.deaths = result, 0
        return result._replace(where=member.place) if isinstance(result, Raised) else result

    def _replace(self, member: RemoteWorker, how: str) -> Lost:
        member.deaths += not member.place
        if member.deaths >= MOST_DEATHS:
            member.deaths = 0  # who asks again has it tried again
            raise WorkerError(
                f"actor {member.index} died {MOST_DEATHS} times before it had made its environments; the last time: "
                f"{how}",
                worker=member.index,
            )
        lost = Lost(f"actor {member.index}{member.place}: {how}")
        self._restart(member)
        return lost

    def _restart(self, member: RemoteWorker) -> None:
        self._ray.kill(member.handle)
        self._start(member)

    def _require_placed(self) -> None:
        """Raise PlatformError where no actor is there, and none has been for long."""
        if any(member.place for member in self._members):
            self._waited_s = 0.0
        elif self._waited_s > self._start_s:
            raise PlatformError(
                f"no actor has made its environments within {self._start_s:g} s: {self._placement.want()}"
            )

    def abandon(self) -> None:
        for member in self._members:
            member.number = None

    def close(self) -> None:
        if self._connection.alive():
            closing = [member.handle.close.remote() for member in self._members if member.place]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
            for member in self._members:
                self._ray.kill(member.handle)
            self._placement.remove()
        self._refs.clear()
        self._connection.release()


def _sealed(task: Task) -> bytes:
    """Return the bytes of a task's call for an actor. Raises PlanError."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(task.call))
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise PlanError(f"task {task.name!r} cannot be pickled, as actors need: {error}") from error
