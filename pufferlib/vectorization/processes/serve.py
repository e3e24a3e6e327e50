"""The main function of a worker process.

It executes requests from a channel, and sends messages through it, until the channel closes.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

from pufferlib.telemetry import timeline
from pufferlib.util.annotations import Entropy
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.core.frames import (
    STEP,
    done_frame,
    infos_payload,
    messages_of,
    pickled_frame,
    sealed_frame,
    steps_of,
)
from pufferlib.vectorization.core.messages import (
    Call,
    Done,
    EnvSpec,
    Failed,
    InfosMessage,
    Message,
    Reply,
    Reset,
    Step,
)
from pufferlib.vectorization.core.slab import Slab, SlabShape, ring_of
from pufferlib.vectorization.processes.channel import Channel
from pufferlib.vectorization.processes.deferred_signals import as_before
from pufferlib.vectorization.processes.lifetime import die_with_parent
from pufferlib.vectorization.processes.thread_caps import limit_imported, limit_threads
from pufferlib.vectorization.worker.worker import Worker, WorkerTask, seed_globals

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["Launch", "frames_of", "run_worker"]


class Launch(NamedTuple):
    """The arguments of a worker process."""

    worker: int
    task: tuple[WorkerTask, EnvSpec | None] | bytes  # for ``Worker``; serialized by ``pickle_task`` unless forked
    sock: socket.socket
    life: Connection[object, object]  # the read end of the life pipe
    entropy: Entropy
    worker_threads: int | None
    spin: int
    generation: int  # the number of earlier processes of this worker


def run_worker(launch: Launch) -> None:
    """Make a worker's environments, and serve requests until the channel closes. A worker process runs this."""
    die_with_parent(launch.life)
    as_before()  # once it has left the parent's group, to which a terminal sends Ctrl-C
    if sys.__stdout__ is not None:  # otherwise it was closed, and its descriptor may be another file's
        sys.stdout = _NamedStream(1, f"worker {launch.worker}")
    if sys.__stderr__ is not None:
        sys.stderr = _NamedStream(2, f"worker {launch.worker}")
    channel = Channel(launch.sock)
    ring: Ring | None = None

    def emit(message: Message) -> bool:
        if isinstance(message, InfosMessage) and ring is not None and _put_infos(ring, launch.worker, message):
            return True
        frames, complete = frames_of(message, launch.worker)
        for frame in frames:
            if ring is None:
                channel.send(frame)
            else:
                channel.send_and_tell(frame, ring.announce, urgent=not (complete and isinstance(message, InfosMessage)))
        return complete

    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has closed its end
        try:
            worker = _begin(launch, emit)
        except Exception as error:  # such as creators that cannot be unpickled here
            emit(Failed.of(None, launch.worker, "start", error))
            return
        worker.build()
        try:
            slab = _take_slab(channel, launch.worker)
            if slab is not None:
                ring = ring_of(slab)
                worker.attach(slab, ring)
                _serve(channel, worker, launch.spin)
        finally:
            worker.close()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _begin(launch: Launch, emit: Callable[[Message], bool]) -> Worker:
    if launch.worker_threads is not None:
        limit_threads(launch.worker_threads)
    launch_task = transfer.loads(launch.task) if isinstance(launch.task, bytes) else launch.task
    assert isinstance(launch_task, tuple), launch_task
    task, env_spec = launch_task
    assert isinstance(task, WorkerTask), task
    seed_globals(launch.entropy, launch.worker, launch.generation)

    return Worker(task, emit, env_spec, make_hook=lambda: limit_imported(launch.worker_threads))


def _take_slab(channel: Channel, worker: int) -> Slab | None:
    """Receive the slab, which the parent sends first; return None if the parent closes the channel instead."""
    data, fds, _, _ = socket.recv_fds(channel.sock, 1, 1)
    if not data:
        return None
    for frame in channel.frames(0):
        (shape,) = messages_of(frame, worker)
        assert isinstance(shape, SlabShape), shape
        slab = Slab.attach(shape, fds[0])
        os.close(fds[0])
        return slab
    return None


def _serve(channel: Channel, worker: Worker, spin: int) -> None:
    frames = channel.frames(0 if worker.step_loop is not None else spin)
    while True:
        if worker.step_loop is not None:
            worker.step_loop.serve(spin)  # steps come through the ring, which also announces each frame in the socket
            frame = next(frames, None)
        else:
            worker.clock(timeline.BUSY)
            frame = next(frames, None)
            worker.clock(timeline.WAITED)
        if frame is None:
            return
        if frame.kind == STEP:
            worker.execute(Step(*steps_of(frame)))
            continue
        for request in messages_of(frame, worker.task.worker):
            if isinstance(request, (Reset, Call)):
                worker.execute(request)
            else:  # a failure to unpickle it
                worker.emit(request)


def _put_infos(ring: Ring, worker: int, message: InfosMessage) -> bool:
    """Send infos through shared memory; return False if they do not fit or cannot be pickled."""
    (env_id,) = message.env_ids
    try:
        return ring.put_info(worker, env_id, infos_payload(message.infos))
    except Exception:  # any error of the user's object; ``frames_of`` reports it
        return False


def frames_of(message: Message, worker: int) -> tuple[list[bytes], bool]:
    """Return the frames of a message, and whether they hold all of the message.

    If the infos of one environment cannot be pickled, a Failed replaces that environment's part of the message, and
    other environments are not affected. A Reply whose results cannot be pickled is replaced by a failed Reply.
    """
    try:
        if isinstance(message, Failed):
            return [pickled_frame(message._replace(exception=_picklable(message.exception)))], True
        if isinstance(message, Reply):
            if message.failed is not None:
                failed = message.failed
                message = message._replace(failed=failed._replace(exception=_picklable(failed.exception)))
            return [sealed_frame(message)], True
        if isinstance(message, Done):
            return [done_frame(message)], True
        return [sealed_frame(message) if isinstance(message, InfosMessage) else pickled_frame(message)], True
    except Exception as error:  # any error of the user's object
        if isinstance(message, Reply):
            failed = Failed(None, message.worker, "reply", f"the result cannot be pickled: {error}", "", None)
            return [pickled_frame(message._replace(results=[], failed=failed))], False
        if not isinstance(message, (Done, InfosMessage)):
            raise
    frames = []
    for index, env_id in enumerate(message.env_ids):
        infos = [info for info in message.infos if info["env_id"] == env_id]
        try:
            if isinstance(message, InfosMessage):
                frames.append(sealed_frame(InfosMessage([env_id], infos)))
            else:
                frames.append(done_frame(Done([env_id], [message.overs[index]], infos)))
        except Exception as error:
            keys = sorted({str(key) for info in infos for key in info})
            text = f"its info (keys {keys}) cannot be pickled: {error}"
            frames.append(pickled_frame(Failed(env_id, worker, "step", text, "", None)))
    return frames, False


def _picklable(error: BaseException | None) -> BaseException | None:
    """Return an exception if it survives a round trip through pickle, else None."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error


class _NamedStream(io.TextIOBase):
    """A stream that writes complete lines to a descriptor, each prefixed with the worker's name.

    ``flush`` also writes a line that is still incomplete, and ends it.
    """

    encoding = "utf-8"

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._line = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        self._put(lines)
        return len(text)

    def flush(self) -> None:
        if self._line:
            self._put([self._line])
            self._line = ""

    def _put(self, lines: list[str]) -> None:
        if lines:
            text = "".join(f"[{self._name}] {line}\n" for line in lines)
            with contextlib.suppress(OSError):
                os.write(self._fd, text.encode(self.encoding, "backslashreplace"))
