"""Control: method calls on environments in workers and access to their attributes, through requests and replies."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from pufferlib.errors import CallError, PlanError
from pufferlib.vectorization.core.messages import Call, Died, Reply
from pufferlib.vectorization.driver.workers import Workers

__all__ = ["Control", "Replies", "each_value"]


class Control:
    """The calls that were sent to workers and still await replies."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._replies: weakref.WeakValueDictionary[int, Replies] = weakref.WeakValueDictionary()  # by ticket
        self._num_calls = 0

    def ask(
        self, action: str, name: str, env_ids: list[int], args: Sequence[object], kwargs: dict[str, object]
    ) -> Replies:
        """Send a call to environments; return its Replies, which ``take`` fills.

        action: "call", "get" or "set". args: the positional arguments of the call, or the values to set, one per
        environment. Raises CallError, and sends nothing, if a worker of these environments has died or if the call
        cannot be serialized.
        """
        workers, by_worker = self._workers, dict[int, list[int]]()
        for env_id in env_ids:
            by_worker.setdefault(workers.worker_of[env_id], []).append(env_id)
        gone = [worker for worker in by_worker if worker in workers.dead]
        if gone:
            raise CallError(f"workers {gone} have died; call reset, which starts them again, or close")
        self._num_calls += 1
        calls, values = {}, dict(zip(env_ids, args, strict=True)) if action == "set" else {}
        for worker, ids in by_worker.items():
            worker_args = tuple(values[env_id] for env_id in ids) if values else tuple(args)
            calls[worker] = Call(self._num_calls, action, name, ids, worker_args, kwargs)
        replies = self._replies[self._num_calls] = Replies(env_ids, by_worker)  # removed once nothing refers to it
        workers.submit(calls)
        return replies

    def take(self, reply: Reply) -> None:
        """Store a reply if a caller still awaits it."""
        replies = self._replies.get(reply.ticket)
        if replies is not None:
            replies.by_worker[reply.worker] = reply

    def lose(self, died: Died) -> None:
        """Record that a dead worker will never answer its calls."""
        for replies in self._replies.values():
            if died.worker in replies.ids_of and died.worker not in replies.by_worker:
                replies.lost = died.text


class Replies:
    """The replies received so far to one call.

    ids_of: the environments called, by worker. by_worker: the reply of each worker that has answered. lost: why a
    worker will never answer, or "".
    """

    def __init__(self, env_ids: list[int], ids_of: dict[int, list[int]]) -> None:
        self._env_ids, self.ids_of = env_ids, ids_of
        self.by_worker: dict[int, Reply] = {}
        self.lost = ""

    @property
    def complete(self) -> bool:
        """Whether all workers have answered."""
        return len(self.by_worker) == len(self.ids_of)

    def results(self) -> list[object]:
        """Return the results in the order of the call's env_ids. All workers must have answered.

        Raises WorkerError if an environment raised, or if its result cannot be pickled.
        """
        results: dict[int, object] = {}
        for worker, reply in self.by_worker.items():
            if reply.failed is not None:
                raise reply.failed.error()
            results.update(zip(self.ids_of[worker], reply.results, strict=True))
        return [results[env_id] for env_id in self._env_ids]


def each_value(values: object, num: int) -> Sequence[object]:
    """Return ``num`` values, one per environment.

    values: a list or tuple of the values, or one value for all environments. Raises PlanError for a list or tuple of
    another length.
    """
    if not isinstance(values, (list, tuple)):
        return (values,) * num
    if len(values) != num:
        raise PlanError(f"{len(values)} values for {num} environments; give one each, or one for all")
    return values
