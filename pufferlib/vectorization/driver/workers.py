"""Workers: starting, replacing and ending a backend's workers, which end no later than this process."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pufferlib.errors import PlanError
from pufferlib.vectorization.core.backend import CLOSE_S, Backend, InPlace, Seals
from pufferlib.vectorization.core.call_errors import closed_error
from pufferlib.vectorization.core.messages import (
    Attach,
    Call,
    Died,
    EnvSpec,
    Failed,
    Message,
    Ready,
    Request,
    Reset,
    Step,
)
from pufferlib.vectorization.core.sharing import HeldEnv
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.driver.call_guard import LEAVE_S, NOBODY, new_guard, shut
from pufferlib.vectorization.worker.worker import require_same_spec

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["Workers"]


class Workers:
    """The workers of one VecEnv, run by a backend.

    backend: the backend. Check ``closed`` before using it.
    title: the VecEnv's name in errors.
    shares: the environments of each worker.
    worker_of: the worker of each environment.
    pids: each worker's process id, 0 if the worker is dead or has no process on this machine.
    dead: the workers that have died and have not been replaced.
    in_place: whether the workers execute a request while it is submitted, so that no message comes later.
    call_guard: the guard that admits one thread at a time to the VecEnv's calls.
    closed: whether ``close`` has been called.
    closed_because: why it was called, as text that ClosedErrors include; "" if the user called it.
    left_open: whether ``close`` gave up waiting for a thread in a step; another ``close`` tries again.
    held_envs: for each environment that existed before its creator was called, where a creator held that environment,
        keyed by env id; filled by ``start``.
    refusal: the message from a worker that made ``start`` raise WorkerError, or None.
    """

    def __init__(self, backend: Backend, title: str) -> None:
        self.backend, self.title = backend, title
        self.shares = backend.shares
        self.worker_of = {env_id: worker for worker, share in enumerate(self.shares) for env_id in share}
        self.pids = [0] * len(self.shares)
        self.dead: set[int] = set()
        self.in_place = isinstance(backend, InPlace)
        self._seal = backend.seal if isinstance(backend, Seals) else None
        self.call_guard = new_guard()
        self.closed, self.closed_because, self.left_open, self._ended = False, "", False, False
        self.held_envs: dict[int, HeldEnv] = {}
        self.refusal: Failed | Died | None = None
        self._env_spec: EnvSpec | None = None
        self._attach: Attach | None = None
        self._owner = os.getpid()
        if not self.in_place:  # otherwise a forked process has a copy that it can use and close
            open_workers.add(self)
            _close_before_joining()

    def require_open(self) -> None:
        """Raise ClosedError once ``close`` has been called, by this or another thread."""
        if self.closed:
            raise closed_error(self.title, self.closed_because)

    # ------------------------------------------------------------------------------------------- beginning

    def start(self, env_spec: EnvSpec | None = None) -> EnvSpec:
        """Start all workers and return their EnvSpec, once they have made their environments.

        env_spec: the EnvSpec, if it is known already: this method then does not wait, and each environment is made by
            its first reset.

        Raises WorkerError if an environment cannot be made or a worker dies, SpaceError if environments differ, and the
        errors of ``Backend.start``; the workers are then closed.
        """
        try:
            for worker in range(len(self.shares)):
                self.pids[worker] = self.backend.start(worker, env_spec)
            self._env_spec = self._await_ready() if env_spec is None else env_spec
        except BaseException:
            self.close()
            raise
        return self._env_spec

    def _await_ready(self) -> EnvSpec:
        """Wait until all workers are ready, and return their common EnvSpec."""
        specs: dict[int, EnvSpec] = {}
        while len(specs) < len(self.shares):
            for message in self.backend.poll(None):
                if not isinstance(message, Ready):
                    assert isinstance(message, (Failed, Died)), message
                    self.refusal = message
                    raise message.error()
                specs[message.worker] = message.env_spec
                self.held_envs.update(message.held_envs)
        for worker, share in enumerate(self.shares):
            require_same_spec(specs[0], self.shares[0][0], specs[worker], share[0])
        return specs[0]

    def attach(self, slab: Slab, ring: Ring | None) -> None:
        """Attach all workers, and any that replace them, to a slab.

        ring: the slab's Ring; None on the portable path.
        """
        self._attach = Attach(slab, ring)
        self.backend.submit(dict.fromkeys(range(len(self.shares)), self._attach))

    # -------------------------------------------------------------------------------------------- requests

    def submit(self, requests: Mapping[int, Request]) -> None:
        """Submit one request to each of several workers. Raises ClosedError if ``close`` has been called."""
        self.require_open()
        self.backend.submit(requests)

    def step(self, env_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Start a step of these environments: environment ``env_ids[i]`` writes its rows to slot ``slots[i]``.

        Raises ClosedError if ``close`` has been called.
        """
        if self.closed:
            self.require_open()  # raises; no other call on the way of a step
        if len(self.shares) == 1:
            self.backend.submit({0: Step(env_ids, slots)})
            return
        by_worker: dict[int, tuple[list[int], list[int]]] = {}
        for env_id, slot in zip(env_ids, slots, strict=True):
            worker_ids, worker_slots = by_worker.setdefault(self.worker_of[env_id], ([], []))
            worker_ids.append(env_id)
            worker_slots.append(slot)
        self.backend.submit({worker: Step(*step) for worker, step in by_worker.items()})

    def seal(self, requests: Mapping[int, Reset | Call]) -> Mapping[int, Request]:
        """Serialize requests for ``submit`` if the backend serializes requests; return them unchanged if it does not.

        Raises CallError if a request cannot be serialized.
        """
        if self._seal is None:
            return requests
        return {worker: self._seal(request) for worker, request in requests.items()}

    # ---------------------------------------------------------------------------------------------- deaths

    def mark_dead(self, worker: int) -> None:
        """Record that a worker has died."""
        self.dead.add(worker)
        self.pids[worker] = 0

    def restart(self, worker: int) -> None:
        """Replace a dead worker without waiting for the new one; a Reset makes each of its environments again.

        Raises the errors of ``Backend.start``; the worker then stays dead.
        """
        assert self._attach is not None
        self.require_open()
        self.pids[worker] = self.backend.start(worker, self._env_spec)
        self.backend.submit({worker: self._attach})
        self.dead.discard(worker)

    def revive(self) -> None:
        """Replace all dead workers; see ``restart``."""
        for worker in sorted(self.dead):
            self.restart(worker)

    # ---------------------------------------------------------------------------------------------- ending

    def close(self, grace_s: float = CLOSE_S) -> list[Message]:
        """Close all environments and end the workers, by force after grace_s seconds; return the last messages.

        A call in progress in another thread first raises ClosedError there. It is safe to call this again, even after
        Ctrl-C has interrupted it.
        """
        if self.closed and not self.left_open:  # an interrupted close: the workers have had their time
            grace_s = 0.0
        self.closed = True
        if self._ended or not (self.in_place or os.getpid() == self._owner):  # a forked child has no workers
            return []
        self.left_open = False
        if not shut(self.call_guard, max(grace_s, LEAVE_S)):  # a thread is stuck in user code
            self._abandon(grace_s)
            return []
        messages = self.backend.close(grace_s)
        if self._attach is not None:
            self._attach.slab.close()
        self._ended = True
        open_workers.discard(self)
        return messages

    def _abandon(self, grace_s: float) -> None:
        """Kill the workers. If the backend cannot kill them, warn, and set ``left_open``."""
        try:
            for worker in set(range(len(self.shares))) - self.dead:
                self.backend.kill(worker, "it was closed")
        except PlanError:
            self.left_open = True
            warnings.warn(
                f"another thread is still in a step after {grace_s:.0f} s, so the environments were not closed",
                RuntimeWarning,
                stacklevel=4,  # the caller of ``VecEnv.close``
            )

    def leave_in_child(self) -> None:
        """Refuse all calls in a forked child, to which no worker belongs."""
        self.call_guard.owner = NOBODY


open_workers: weakref.WeakSet[Workers] = weakref.WeakSet()


def _leave_all_in_child() -> None:
    for workers in list(open_workers):
        workers.leave_in_child()
    open_workers.clear()


def _close_all() -> None:
    for workers in list(open_workers):
        workers.close()


def _close_before_joining() -> None:
    """Register with multiprocessing, once in each process, a finalizer that closes all workers when the process ends.

    A process that multiprocessing started runs no atexit handlers, but joins its children. Without the finalizer, the
    process and its workers would wait for each other.
    """
    global _closing_pid
    if _closing_pid != os.getpid():  # a fork loses the parent's registrations
        _closing_pid = os.getpid()
        multiprocessing.util.Finalize(None, _close_all, exitpriority=10)


_closing_pid = 0

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_in_child)
atexit.register(_close_all)
