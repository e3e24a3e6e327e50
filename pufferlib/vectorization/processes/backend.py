"""Multiprocessing and Pool: workers in processes, connected by shared memory and one socket pair each."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import socket
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pufferlib import _native
from pufferlib.errors import CallError, PlatformError
from pufferlib.util.annotations import Entropy
from pufferlib.vectorization.core.backend import CLOSE_S, SLICE_S, Backend
from pufferlib.vectorization.core.frames import (
    infos_messages,
    messages_of,
    pickled_frame,
    sealed_frame,
    step_frame,
)
from pufferlib.vectorization.core.messages import (
    Attach,
    Call,
    Died,
    EnvSpec,
    Failed,
    Message,
    Request,
    Reset,
    Sealed,
    Step,
)
from pufferlib.vectorization.core.plan import Plan, available_cpus, checked_count
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.core.step_watchdog import STARTING, doing_of
from pufferlib.vectorization.driver.factory import BackendKind
from pufferlib.vectorization.processes.channel import Channel, yield_core
from pufferlib.vectorization.processes.deferred_signals import deferred_signals
from pufferlib.vectorization.processes.lifetime import LifePipe, fill_standard_fds
from pufferlib.vectorization.processes.serve import Launch
from pufferlib.vectorization.processes.start import Process, start_method
from pufferlib.vectorization.worker.worker import WorkerTask

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["SPIN", "Multiprocessing", "Pool", "ProcessBackend", "checked_settings", "default_spin"]

SPIN = 50  # yields; a wait that ends within them needs no wake-up of a sleeping core (30-40 us on a virtual machine)


def default_spin(num_workers: int) -> int:
    """Return how many times a waiting process yields its core before it sleeps.

    On the portable path with more workers than cores it is 0, because there each yield costs a poll of the selector.
    """
    return SPIN if _native.available or num_workers <= available_cpus() else 0


class SelectorKey(Protocol):
    """The fields of a ``selectors.SelectorKey`` that this module reads. data: the worker."""

    @property
    def fileobj(self) -> object: ...

    @property
    def data(self) -> int: ...


def checked_settings(worker_threads: object, spin: object) -> tuple[int | None, int | None]:
    """Return both settings, each as an int, or as None if it is None. Raises PlanError if either is invalid."""
    num_threads = None
    if worker_threads is not None:
        num_threads = checked_count("worker_threads", worker_threads, 1, ", or None for no limit")
    return num_threads, None if spin is None else checked_count("spin", spin, 0)


class ProcessBackend(Backend):
    """A backend whose workers are processes. A socket pair carries requests to each worker and its answers back."""

    reads_mailboxes = shared_memory = True

    def __init__(
        self,
        tasks: Sequence[WorkerTask],
        *,
        context: str | None,
        entropy: Entropy,
        worker_threads: object = 1,
        spin: object = None,
    ) -> None:
        num_threads, num_yields = checked_settings(worker_threads, spin)
        self.shares = tuple(task.env_ids for task in tasks)
        self._tasks = tasks
        self._context = start_method(context)
        self._by_value = self._context != "fork"  # a worker may have another __main__
        self._entropy = entropy
        self._worker_threads = num_threads
        self.spin = default_spin(len(tasks)) if num_yields is None else num_yields
        try:
            fill_standard_fds()
            self._selector = selectors.DefaultSelector()
            try:
                self._life = LifePipe()
            except OSError:
                self._selector.close()
                raise
        except OSError as error:
            raise not_startable("the parent's end of the workers", error) from error
        self._channels: dict[int, Channel] = {}
        self._processes: dict[int, Process] = {}
        self._generations = [0] * len(tasks)  # the number of processes each worker has had
        self._causes: dict[int, str] = {}  # why each worker was killed, for workers killed on purpose
        self._flushing: set[int] = set()  # workers whose socket was full
        self._slab: Slab | None = None
        self._deferred: list[Message] = []  # messages received outside ``poll``, for the next poll
        self._ring: Ring | None = None
        self._closed = False
        _backends.add(self)

    # ------------------------------------------------------------------------------------------- beginning

    def start(self, worker: int, env_spec: EnvSpec | None = None) -> int:
        context = self._context
        if self._generations[worker]:  # a process that has started threads since must not be forked
            context = start_method(None) if context == "fork" else context
            self._by_value = self._by_value or context != "fork"
        if self._slab is not None:
            self._slab.doing[worker] = STARTING
        self._start_worker(worker, context, env_spec)
        return self._processes[worker].pid

    @deferred_signals()
    def _start_worker(self, worker: int, context: str, env_spec: EnvSpec | None) -> None:
        who = f"worker {worker} of {len(self._tasks)}"
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise not_startable(who, error) from error
        try:
            launch = Launch(
                worker=worker,
                task=(self._tasks[worker], env_spec),
                sock=theirs,
                life=self._life.reader,
                entropy=self._entropy,
                worker_threads=self._worker_threads,
                spin=self.spin,
                generation=self._generations[worker],
            )
            process = Process(launch, context)
        except OSError as error:
            ours.close()
            raise not_startable(who, error) from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._generations[worker] += 1
        channel = Channel(ours)
        self._channels[worker] = channel
        self._processes[worker] = process
        self._selector.register(channel, selectors.EVENT_READ, worker)
        if process.death_fd is not None:
            self._selector.register(process.death_fd, selectors.EVENT_READ, worker)

    def kill(self, worker: int, cause: str) -> None:
        process = self._processes.get(worker)
        if process is not None:  # otherwise it has already died
            self._causes[worker] = cause
            process.kill()

    # --------------------------------------------------------------------------------- requests and answers

    def seal(self, request: Reset | Call) -> Sealed:
        try:
            return Sealed(request, sealed_frame(request, by_value=self._by_value))
        except Exception as error:  # any error of the user's object
            raise CallError(f"the request to the workers cannot be pickled: {error}") from error

    def submit(self, requests: Mapping[int, Request]) -> None:
        sealed = {
            worker: self.seal(request) if isinstance(request, (Reset, Call)) else request
            for worker, request in requests.items()
        }
        for worker, request in sealed.items():
            if worker not in self._channels:  # it is dead, which a message reports
                continue
            if isinstance(request, Step):
                if self._ring is None:
                    self._post(worker, step_frame(*request))
                else:
                    self._request(self._ring, worker, *request)
            elif isinstance(request, Attach):
                self._slab, self._ring = request
                self._give_slab(worker, request.slab)
            else:
                assert isinstance(request, Sealed), request
                self._post(worker, request.frame)

    def _give_slab(self, worker: int, slab: Slab) -> None:
        assert slab.fd is not None
        channel = self._channels[worker]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # dead: the next poll reports it
            socket.send_fds(channel.sock, [b"s"], [slab.fd])
            channel.post(pickled_frame(slab.shape))  # held in the socket, like later requests, until the worker reads

    def _request(self, ring: Ring, worker: int, env_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Post a request to a worker's mailbox, on the compiled path; wait while the mailbox is full.

        Messages that arrive meanwhile are kept for the next ``poll``. If the worker dies, nothing is posted.
        """
        while worker in self._channels and not ring.request(worker, env_ids, slots):
            self._deferred += self._answers(self._selector.select(SLICE_S / 100))

    def _summon(self, ring: Ring, worker: int) -> None:
        """Ask a worker, through its mailbox, to read its socket (on the compiled path)."""
        self._request(ring, worker, [_native.ring.CONTROL], [0])

    def _post(self, worker: int, frame: bytes) -> None:
        channel = self._channels[worker]
        channel.post(frame)
        if self._ring is not None:
            self._summon(self._ring, worker)
        if not channel.flush() and worker not in self._flushing:
            self._flushing.add(worker)
            self._selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)

    def poll(self, timeout: float | None) -> list[Message]:
        if self._deferred:
            messages, self._deferred = self._deferred, []
            return messages
        deadline = None if timeout is None else time.monotonic() + timeout
        yields = 0 if timeout == 0 else self.spin
        while not self._closed:  # a signal handler may close it
            left = SLICE_S if deadline is None else min(SLICE_S, max(0.0, deadline - time.monotonic()))
            self.interruptible = True  # what can be read stays readable
            events = self._selector.select(0 if yields else left)
            if yields and not events:
                yields -= 1
                yield_core()
                continue
            self.interruptible = False
            messages = self._answers(events)  # an event may bring only a part of a long message
            if messages or (deadline is not None and time.monotonic() >= deadline):
                return messages
        return []

    def _answers(self, events: Iterable[tuple[SelectorKey, int]]) -> list[Message]:
        messages: list[Message] = []
        for key, mask in events:
            worker = key.data
            channel = self._channels.get(worker)
            if channel is None:  # its death was noticed through the other descriptor
                continue
            if mask & selectors.EVENT_WRITE and channel.flush():
                self._flushing.discard(worker)
                self._selector.modify(channel, selectors.EVENT_READ, worker)
            frames, closed = channel.arrived()
            for frame in frames:
                messages += messages_of(frame, worker)
            if closed or key.fileobj is not channel:
                messages += self._bury(worker)
        return messages

    def _bury(self, worker: int) -> list[Message]:
        """Remove a worker that has ended or closed its socket, and kill it if it still runs.

        Return the infos that are left in the ring, and the worker's Died message.
        """
        exitcode, share, doing = self._forget(worker, grace_s=1.0), self.shares[worker], None
        # The rows that it has finished remain valid, and so do their infos.
        messages = [] if self._ring is None else infos_messages(self._ring.take_infos())
        if self._slab is not None:
            doing = doing_of(int(self._slab.doing[worker, 0]), self._slab.shape.num_ids)
            self._clean(worker)
        return [*messages, Died(worker, exitcode, share, doing, self._causes.pop(worker, ""))]

    def _clean(self, worker: int) -> None:
        """Remove from shared memory the requests and the activity word of a worker that has ended."""
        assert self._slab is not None
        self._slab.doing[worker] = 0
        if self._ring is not None:
            self._ring.empty_box(worker)

    @deferred_signals()
    def _forget(self, worker: int, grace_s: float) -> int | None:
        channel, process = self._channels.pop(worker), self._processes.pop(worker)
        self._flushing.discard(worker)
        self._selector.unregister(channel)
        if process.death_fd is not None:
            self._selector.unregister(process.death_fd)
        channel.close()
        return process.end(grace_s)

    # ---------------------------------------------------------------------------------------------- ending

    def close(self, grace_s: float = CLOSE_S) -> list[Message]:
        messages = self._end_workers(grace_s)
        for worker in list(self._channels):
            pid = self._processes[worker].pid
            self._forget(worker, grace_s=0.0)
            if grace_s > 0:  # otherwise killing them was intended
                warnings.warn(
                    f"worker {worker} (process {pid}) did not close its environments in {grace_s:.0f} s and was killed",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self._selector.close()
        self._life.close()
        self._closed = True
        _backends.discard(self)
        return [message for message in messages if isinstance(message, Failed)]

    def _end_workers(self, grace_s: float) -> list[Message]:
        """Ask all workers to close their environments and end; return the messages of the next grace_s seconds.

        Return earlier if all workers have ended.
        """
        messages: list[Message] = []
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                channel.sock.shutdown(socket.SHUT_WR)  # the end of the requests: close and exit
        deadline, ring = time.monotonic() + grace_s, self._ring
        unaware = [] if ring is None else list(self._channels)
        while self._channels and time.monotonic() < deadline:
            if ring is not None:  # the mailbox of a worker that never empties it may be full
                unaware = [worker for worker in unaware if not ring.request(worker, [_native.ring.CONTROL], [0])]
            messages += self.poll(max(0.0, min(SLICE_S, deadline - time.monotonic())))
        return messages

    def leave_in_child(self) -> None:
        """Close, in a forked child, the descriptors that only the parent may hold.

        Otherwise the workers would not notice the parent's death.
        """
        for channel in self._channels.values():
            channel.close()
        self._life.leave()


def not_startable(who: str, error: OSError) -> PlatformError:
    """Return a PlatformError for a process that could not be started, with a remedy.

    who: what could not be started, as text, such as "worker 0 of 4". error: the system's refusal of the process or of a
    resource that it needs.
    """
    files, processes = (resource.getrlimit(limit)[0] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    which = "on" if processes == resource.RLIM_INFINITY else f"of {processes}"
    ways_out = {
        errno.EMFILE: f"raise the limit of {files} open files (ulimit -n), of which a worker takes 4 here",
        errno.EAGAIN: f"raise the limit {which} processes (ulimit -u; in a container, its pids limit)",
        errno.ENOMEM: "free some memory",
    }
    way_out = ways_out.get(error.errno or 0, "raise the limit on processes or open files")
    return PlatformError(
        error.errno, f"{who} could not be started ({error.strerror or error}); use fewer workers, or {way_out}"
    )


_backends: weakref.WeakSet[ProcessBackend] = weakref.WeakSet()  # the open ones


def _leave_all_in_child() -> None:
    for backend in list(_backends):
        backend.leave_in_child()
    _backends.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_in_child)


def make_backend(
    plan: Plan,
    task: Callable[[int, range], WorkerTask],
    *,
    context: str | None,
    entropy: Entropy,
    worker_threads: object = 1,
    spin: object = None,
) -> ProcessBackend:
    """Return a ProcessBackend for a plan's environments."""
    tasks = [task(index, share) for index, share in enumerate(plan.shares)]
    return ProcessBackend(tasks, context=context, entropy=entropy, worker_threads=worker_threads, spin=spin)


Multiprocessing = BackendKind(
    "multiprocessing",
    "Multiprocessing",
    make_backend,
    ("worker_threads", "spin"),
    doc="""A VecEnv whose workers are processes; batches are returned in the order in which their actions were sent.

backend_kwargs: ``worker_threads`` (default 1): threads of BLAS, OpenMP, torch and OpenCV in each worker, None for no
limit (OpenCV has one thread in a forked worker even then); ``spin``: how many times a waiting process yields its core
before it sleeps, by default 50, or 0 on the portable path with more workers than cores.
""",
)

Pool = BackendKind(
    "pool",
    "Pool",
    make_backend,
    ("worker_threads", "spin"),
    first_finished=True,
    doc="""A VecEnv whose workers are processes; a batch holds the first environments to finish.

It is useful if ``num_envs`` is greater than ``batch_size``. backend_kwargs: see Multiprocessing.
""",
)
