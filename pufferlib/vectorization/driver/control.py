"""Control: call methods and access attributes of environments in workers, through requests and replies."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence

from pufferlib.errors import CallError, PlanError, RecvTimeout
from pufferlib.vectorization.core.backend import Backend
from pufferlib.vectorization.core.messages import Call, Died, Reply

__all__ = ["Control", "each_value"]


class Control:
    """The calls sent to workers, and the replies received so far.

    pump(deadline): waits for messages and handles them; returns False if none came in time. raise_error: raises the
    next failure that workers have reported, if any.
    """

    def __init__(self, backend: Backend, pump: Callable[[float | None], bool], raise_error: Callable[[], None]) -> None:
        self._backend, self._pump, self._raise_error = backend, pump, raise_error
        self._worker_of = [worker for worker, share in enumerate(backend.shares) for _ in share]
        self._replies: weakref.WeakValueDictionary[int, Replies] = weakref.WeakValueDictionary()  # by ticket
        self._num_calls = 0

    def take(self, reply: Reply) -> None:
        """Store a reply if a caller still awaits it."""
        replies = self._replies.get(reply.ticket)
        if replies is not None:
            replies.append(reply)
            replies.awaited.discard(reply.worker)

    def lose(self, died: Died) -> None:
        """Record that a dead worker will never answer its calls."""
        for replies in self._replies.values():
            if died.worker in replies.awaited:
                replies.lost = died.text

    def ask(
        self, action: str, name: str, env_ids: list[int], args: Sequence[object], kwargs: dict[str, object]
    ) -> Callable[[float | None], list[object]]:
        """Send a call to environments; return a function that waits a number of seconds for the results.

        action: "call", "get" or "set". args: the arguments of the call, or the values to set, one per environment.
        After a RecvTimeout the returned function may be called again. It need not be called at all.
        """
        backend = self._backend
        by_worker: dict[int, list[int]] = {}
        for env_id in env_ids:
            by_worker.setdefault(self._worker_of[env_id], []).append(env_id)
        gone = [worker for worker in by_worker if worker in backend.dead]
        if gone:
            raise CallError(f"workers {gone} have died; call reset, which starts them again, or close")
        self._num_calls += 1
        ticket = self._num_calls
        replies = self._replies[ticket] = Replies()  # removed once no caller refers to them
        replies.awaited = set(by_worker)
        sealed, values = {}, dict(zip(env_ids, args, strict=True)) if action == "set" else {}
        for worker, share in by_worker.items():
            worker_args = tuple(values[env_id] for env_id in share) if values else tuple(args)
            sealed[worker] = backend.seal(Call(ticket, action, name, share, worker_args, kwargs))
        backend.send_each(sealed)

        def wait(timeout: float | None) -> list[object]:
            deadline = None if timeout is None else time.monotonic() + timeout
            while len(replies) < len(by_worker):
                if not self._pump(deadline):
                    raise RecvTimeout(f"{len(replies)} of {len(by_worker)} workers have answered within {timeout} s")
                if replies.lost:
                    self._raise_error()
                    raise CallError(f"{replies.lost}, before it answered; call again")
            for reply in replies:
                if reply.failed is not None:
                    raise reply.failed.error()
            results = {
                env_id: result
                for reply in replies
                for env_id, result in zip(by_worker[reply.worker], reply.results, strict=True)
            }
            return [results[env_id] for env_id in env_ids]

        return wait


class Replies(list[Reply]):
    """The answers received so far to one Call. (A class, because a plain list has no weak references.)

    awaited: the workers that have not answered yet. lost: why one of them never will, or "".
    """

    awaited: set[int]
    lost = ""


def each_value(values: object, num: int) -> Sequence[object]:
    """Return ``num`` values, one per environment, given as a list or tuple, or as one value for all."""
    if not isinstance(values, (list, tuple)):
        return (values,) * num
    if len(values) != num:
        raise PlanError(f"{len(values)} values for {num} environments; give one each, or one for all")
    return values
