"""Launching worker processes, and seeing to it that they end: with the parent at the latest, whatever ends it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import multiprocessing
import multiprocessing.connection
import multiprocessing.popen_fork
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from pufferlib import transfer
from pufferlib.errors import PlanError
from pufferlib.suggestions import not_one_of
from pufferlib.vectorization import telemetry
from pufferlib.vectorization.doorbell import (
    PLAYED_FRAME,
    SHARE,
    STEP,
    Channel,
    done_frame,
    infos_payload,
    lap_of,
    messages_of,
    pickled_frame,
    sealed_frame,
    steps_of,
)
from pufferlib.vectorization.messages import Call, Done, Failed, InfosMessage, Played, Reply, Reset
from pufferlib.vectorization.signals import as_before
from pufferlib.vectorization.slab import Slab, ring_of
from pufferlib.vectorization.worker import Worker, seed_globals

__all__ = [
    "Launch",
    "LifePipe",
    "Process",
    "death_of",
    "die_with_parent",
    "end_group",
    "frames_of",
    "limit_imported",
    "limit_threads",
    "portable",
    "running_threads",
    "start_method",
    "starting",
]

FORKED = ", or use context='fork', which copies all (not safe beside other threads)"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Launch(NamedTuple):
    """What a worker process is given."""

    worker: int
    task: Any  # WorkerTask; packed by ``portable`` unless the process is forked
    sock: socket.socket
    life: Any  # a Connection: the read end of the life pipe
    entropy: Any
    worker_threads: int | None
    spin: int
    generation: int  # how many processes had this worker's place before


def start_method(context: str | None) -> str:
    """Return "fork", "spawn" or "forkserver": the one asked for, else fork where it is safe and spawn elsewhere.

    Forking is safe while the process has one Python thread, no CUDA context and no JAX, whose threads are none of
    Python's; then it takes milliseconds.
    """
    available = multiprocessing.get_all_start_methods()
    if context is not None:
        if context not in available:
            raise PlanError(not_one_of("context", context, available))
        return context
    if not sys.platform.startswith("linux") or "jax" in sys.modules or len(running_threads()) > 1:
        return "spawn"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "spawn"
    return "fork"


def running_threads() -> list[threading.Thread]:
    """Return the Python threads that run.

    A thread of C++ that called Python once stays in Python's own list after its end (before 3.13); Linux's knows.
    """
    tasks = "/proc/self/task"
    if not os.path.isdir(tasks):
        return threading.enumerate()
    running = {None, *map(int, os.listdir(tasks))}  # None: about to start
    return [thread for thread in threading.enumerate() if thread.native_id in running]


class LifePipe:
    """A pipe that nobody writes to and whose write end only the parent holds: its end is the parent's end."""

    def __init__(self) -> None:
        self.reader, self._writer = multiprocessing.connection.Pipe(duplex=False)

    def leave(self) -> None:
        """In a child: close the write end, whose last holder the parent must be."""
        self._writer.close()

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


class Process:
    """One worker process, in a process group of its own.

    death_fd: readable once the process has ended; None where the platform has none (the socket's end tells, then).
    """

    def __init__(self, launch: Launch, context: str) -> None:
        if context != "fork":
            launch = launch._replace(task=portable(launch.task, f"the start method {context!r} needs", FORKED))
        else:
            _ready_to_fork()
        with starting(context):
            self._process: Any = multiprocessing.get_context(context).Process(  # type: ignore[attr-defined]
                target=run_worker, args=(launch,), name="pufferlib-worker"
            )
            try:
                self._process.start()
            except OSError as error:
                _close_forgotten_pipes(error)
                raise
        self.pid: int = self._process.pid
        self.death_fd = death_of(self.pid)

    def kill(self) -> None:
        """Kill the process, also one that is stopped; ``end`` then sees to the rest."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self, grace_s: float) -> int | None:
        """Wait for the process for grace_s, kill its group, and return its exit code, negative for a signal."""
        exitcode = end_group(self._process, self.death_fd, grace_s)
        with contextlib.suppress(ValueError):  # SIGCHLD is ignored, or another has waited: nobody knows how it ended
            self._process.close()
        if self.death_fd is not None:
            os.close(self.death_fd)
            self.death_fd = None
        return exitcode


@functools.cache
def _ready_to_fork() -> None:
    """Import what every worker needs, and find the libraries that have threads, once for all workers forked later.

    A worker that does so itself takes 10 ms of a processor, more than the rest of its start.
    """
    import cloudpickle  # noqa: F401
    import threadpoolctl

    threadpoolctl.ThreadpoolController()  # it keeps the paths that it has resolved


def death_of(pid: int) -> int | None:
    """Return a descriptor that is readable once a process has ended; None where the platform has none."""
    with contextlib.suppress(AttributeError, OSError):  # Linux before 5.3, or not Linux
        return os.pidfd_open(pid)
    return None


def end_group(process: Any, death_fd: int | None, grace_s: float) -> int | None:
    """Wait for a process for grace_s, kill it and the group that it has founded, and return its exit code.

    process: multiprocessing's, which nobody has joined yet. death_fd: of ``death_of``. The code is negative for a
    signal, and None where nobody knows how it ended.
    """
    if death_fd is None:
        process.join(grace_s)
    else:  # not joined yet, so that its number, which is its group's too, can't have been given to another
        ended = select.poll()  # select.select refuses descriptors above 1023
        ended.register(death_fd, select.POLLIN)
        ended.poll(1000 * grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what was started in it goes too
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # it may have had no time yet to found its group
    process.join()
    exitcode: int | None = process.exitcode
    return exitcode


def portable(task: Any, needs: str, more: str = "") -> bytes:
    """Return a task for a process that has not our memory. Raises PlanError, with who needs that and other ways out."""
    try:
        return transfer.dumps(task)
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise PlanError(
            f"what makes the environments cannot be pickled, as {needs}: {error}; create such things in the "
            f"env_creator{more}"
        ) from error


@contextlib.contextmanager
def starting(context: str) -> Any:
    """Start a process of multiprocessing within this: it neither runs the user's script, nor warns of threads, nor
    waits for threads of OpenCV's that only its parent has."""
    # A fork imports nothing, and what its environments define in __main__ has to be found there.
    prepared = _opencv_at_rest() if context == "fork" else transfer.main_hidden()
    with _parenthood(), prepared, warnings.catch_warnings():
        # Python 3.12 counts the sleeping threads of NumPy's BLAS; start_method has counted Python's own.
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        yield


_resting: dict[int, threading.Lock] = {}  # by process, for whoever is forked has a copy that nobody will release


@contextlib.contextmanager
def _opencv_at_rest() -> Any:
    """Let OpenCV have no threads of its own: one that was at work when this process was forked may hold a lock, for
    which OpenCV would wait in the child for ever. There it has one thread from then on, here as many as before."""
    limit = _imported("cv2", "setNumThreads")
    if limit is None:
        yield
        return
    with _resting.setdefault(os.getpid(), threading.Lock()):  # else two threads that fork would put back each other's 1
        threads = sys.modules["cv2"].getNumThreads()
        try:
            limit(1)  # which ends the others
            yield
        finally:
            limit(threads)


def _imported(module: str, name: str) -> Any:
    """Return what a module that is imported already has by a name, else None.

    Not all of one may be: another thread is about to, or it is a folder that an uninstalled package has left behind.
    """
    return getattr(sys.modules.get(module), name, None)


@contextlib.contextmanager
def _parenthood() -> Any:
    """Let this process have children even if it is a daemon of multiprocessing.

    Those may not, as they would leave orphans behind; ours end with their parent, whatever ends it.
    """
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    daemon = config.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            config["daemon"] = daemon


def _close_forgotten_pipes(error: OSError) -> None:
    """Close the pipes of a process that could not be forked, which multiprocessing leaves open."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is multiprocessing.popen_fork.Popen._launch.__code__:  # type: ignore[attr-defined]
            for name in ("parent_r", "parent_w", "child_r", "child_w"):
                if name in frame.f_locals:
                    os.close(frame.f_locals[name])


# ------------------------------------------------------------------------------------------- in the worker


def run_worker(launch: Launch) -> None:
    """Serve requests until they end. The target of a worker process."""
    die_with_parent(launch.life)
    as_before()  # once a Ctrl-C in the terminal, which goes to the parent's whole group, does not come here
    sys.stdout = _NamedStream(1, f"worker {launch.worker}")
    sys.stderr = _NamedStream(2, f"worker {launch.worker}")
    channel = Channel(launch.sock)
    ring: Any = None

    def emit(message: Any) -> bool:
        if isinstance(message, InfosMessage) and _put_infos(ring, launch.worker, message):
            return True
        frames, as_meant = frames_of(message, launch.worker)
        for frame in frames:
            if ring is None:
                channel.send(frame)
            else:
                channel.send_and_tell(frame, ring.announce, urgent=not (as_meant and isinstance(message, InfosMessage)))
        return as_meant

    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has closed its end altogether
        try:
            worker = _begin(launch, emit)
        except Exception as error:  # the creators can't be unpickled here, say
            emit(Failed.of(None, launch.worker, "start", error))
            return
        if worker.task.face is None:
            worker.build()
        try:
            slab = _take_slab(channel, launch.worker)
            if slab is not None:
                ring = ring_of(slab)
                worker.attach(slab, ring)
                _serve(channel, worker, launch.spin)
        finally:
            worker.close()
    sys.stdout.flush()
    sys.stderr.flush()


def _begin(launch: Launch, emit: Callable[[Any], bool]) -> Worker:
    if launch.worker_threads is not None:
        limit_threads(launch.worker_threads)
    task = launch.task
    if isinstance(task, bytes):
        task = transfer.loads(task)
    seed_globals(launch.entropy, launch.worker, launch.generation)

    return Worker(task, emit, made=lambda: limit_imported(launch.worker_threads))


def _take_slab(channel: Channel, worker: int) -> Slab | None:
    """Return the slab, which comes first of all; None if the parent closes instead."""
    data, fds, _, _ = socket.recv_fds(channel.sock, 1, 1)
    if not data:
        return None
    for frame in channel.frames(0):
        (shape,) = messages_of(frame, worker)
        slab = Slab.attach(shape, fds[0])
        os.close(fds[0])
        return slab
    return None


def _serve(channel: Channel, worker: Worker, spin: int) -> None:
    frames = channel.frames(0 if worker.stand is not None else spin)
    while True:
        if worker.stand is not None:
            worker.stand.serve(spin)  # steps come past the socket, and each frame in it is announced there
            frame = next(frames, None)
        else:
            worker.clock(telemetry.BUSY)
            worker.rest()
            frame = next(frames, None)
            worker.clock(telemetry.WAITED)
        if frame is None:
            return
        if frame.kind == SHARE:
            worker.step_share(lap_of(frame))
            continue
        if frame.kind == STEP:
            worker.step(*steps_of(frame))
            continue
        for request in messages_of(frame, worker.task.worker):
            if isinstance(request, Reset):
                worker.reset(request)
            elif isinstance(request, Call):
                worker.call(request)
            else:  # it could not be unpickled here, as this answer says
                worker.emit(request)


def _put_infos(ring: Any, worker: int, message: InfosMessage) -> bool:
    """Send infos through shared memory; False if they do not fit, or cannot be pickled."""
    (env_id,) = message.env_ids
    try:
        put: bool = ring.put_info(worker, env_id, infos_payload(message.infos))
    except Exception:  # whatever a user's object raises when it is pickled; the frame's maker knows what to say
        return False
    return put


def frames_of(message: Any, worker: int) -> tuple[list[bytes], bool]:
    """Return the frames of a message, and whether they say what it says.

    What can't be pickled becomes a failure of its environment alone.
    """
    if isinstance(message, Played):
        return [PLAYED_FRAME], True
    try:
        if isinstance(message, Failed):
            return [pickled_frame(message._replace(exception=_portable(message.exception)))], True
        if isinstance(message, Reply):
            if message.failed is not None:
                failed = message.failed
                message = message._replace(failed=failed._replace(exception=_portable(failed.exception)))
            return [sealed_frame(message)], True
        if isinstance(message, Done):
            return [done_frame(message)], True
        return [sealed_frame(message) if isinstance(message, InfosMessage) else pickled_frame(message)], True
    except Exception as error:  # whatever a user's object raises when it is pickled
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


def _portable(error: BaseException | None) -> BaseException | None:
    """Return an exception if it survives a round trip through pickle, else None."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error


def die_with_parent(life: Any) -> None:
    """Found a process group, and have the kernel kill it when the parent ends, however it does.

    The life pipe's end raises a signal for whoever asked for one, within milliseconds, also while the GIL is held and
    also if the process is stopped. PR_SET_PDEATHSIG would follow the thread that created us instead.
    """
    os.setpgid(0, 0)
    if hasattr(fcntl, "F_SETSIG"):
        own = os.open(f"/proc/self/fd/{life.fileno()}", os.O_RDONLY)  # opened anew: flags belong to an opening
        fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(own, select.POLLIN)
        if poll.poll(0):  # it had ended before we asked
            os.killpg(0, signal.SIGKILL)
        life.close()
    else:
        threading.Thread(target=_kill_at_end_of, args=(life,), daemon=True).start()


def _kill_at_end_of(life: Any) -> None:
    with contextlib.suppress(OSError):
        select.select([life], [], [])
    os.killpg(0, signal.SIGKILL)


def limit_threads(threads: int) -> None:
    """Cap the threads of BLAS and OpenMP, loaded already or later: workers share the cores among themselves.

    No thread of this process may be in BLAS meanwhile.
    """
    import threadpoolctl

    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    controller = threadpoolctl.ThreadpoolController()
    controller.limit(limits=threads)
    for library in controller.lib_controllers:
        # In a forked process OpenBLAS starts all its threads again to change their number, and each spins for 10 ms.
        # They end here; those that are allowed start when there is work for them.
        loaded = library.dynlib if hasattr(library, "dynlib") else library._dynlib  # threadpoolctl before 3.2
        if library.internal_api == "openblas" and hasattr(loaded, "blas_thread_shutdown_"):
            loaded.blas_thread_shutdown_()


def limit_imported(threads: int | None) -> None:
    """Cap the threads of torch and OpenCV, which an environment may have imported; None for no limit."""
    if threads is not None:
        for module, name in (("torch", "set_num_threads"), ("cv2", "setNumThreads")):
            if (limit := _imported(module, name)) is not None:
                limit(threads)


class _NamedStream(io.TextIOBase):
    """A stream to a descriptor that puts the worker's name before each line, and writes whole lines at once."""

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
