"""The start of worker processes."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.popen_fork
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

from pufferlib.errors import PlanError
from pufferlib.util.suggestions import not_one_of
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.processes.lifetime import death_of, end_group
from pufferlib.vectorization.processes.serve import Launch, run_worker
from pufferlib.vectorization.processes.thread_caps import imported_function

__all__ = ["Process", "pickle_task", "running_threads", "start_method", "starting"]

FORKED = ", or use context='fork', which copies all (not safe beside other threads)"


def start_method(context: str | None) -> str:
    """Return the start method for a context; for None, "fork" if that is safe, else "spawn".

    Forking takes milliseconds. It is safe on Linux while this process has only one Python thread, no CUDA context of
    torch, and no JAX, whose threads Python does not list. Raises PlanError for a context that this platform lacks.
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
    """Return the Python threads that are running.

    Before Python 3.13, threading.enumerate() still lists C++ threads that called Python and have ended. On Linux, which
    lists the running threads of a process, such threads are left out.
    """
    tasks = "/proc/self/task"
    if not os.path.isdir(tasks):
        return threading.enumerate()
    running = {None, *map(int, os.listdir(tasks))}  # None: about to start
    return [thread for thread in threading.enumerate() if thread.native_id in running]


class Process:
    """A worker process, the leader of its process group.

    death_fd: a descriptor that becomes readable once the process has ended; None after ``end``. It is also None if the
    platform has no such descriptor; then only the closing of its socket reveals that the process has ended.
    """

    def __init__(self, launch: Launch, context: str) -> None:
        if context != "fork":
            launch = launch._replace(task=pickle_task(launch.task, f"the start method {context!r} needs", FORKED))
        else:
            _ready_to_fork()
        with starting(context):
            self._process: BaseProcess = multiprocessing.get_context(context).Process(  # type: ignore[attr-defined]
                target=run_worker, args=(launch,), name="pufferlib-worker"
            )
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.death_fd = death_of(self.pid)

    def kill(self) -> None:
        """Kill the process, even if it is stopped. Call ``end`` afterwards."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self, grace_s: float) -> int | None:
        """Wait up to grace_s seconds for the process to end, kill its group, and return its exit code.

        The exit code is negative for a signal, and None if it is unknown.
        """
        exitcode = end_group(self._process, self.death_fd, grace_s)
        with contextlib.suppress(ValueError):  # SIGCHLD is ignored, or other code has waited: the exit code is unknown
            self._process.close()
        if self.death_fd is not None:
            os.close(self.death_fd)
            self.death_fd = None
        return exitcode


@functools.cache
def _ready_to_fork() -> None:
    """Import modules that every worker needs, and find the libraries that use threads, once for all forked workers.

    In each worker, this would take 10 ms of CPU time, more than the rest of its start.
    """
    import cloudpickle  # noqa: F401
    import threadpoolctl

    threadpoolctl.ThreadpoolController()  # it caches the resolved paths


def pickle_task(task: object, needs: str, more: str = "") -> bytes:
    """Serialize a task for a process that does not share this one's memory.

    needs: what requires pickling, as a clause for the error, such as "the start method 'spawn' needs". more: another
    way out, for the end of the error. Raises PlanError if the task cannot be pickled.
    """
    try:
        return transfer.dumps(task)
    except Exception as error:  # any error of the user's object
        raise PlanError(
            f"what makes the environments cannot be pickled, as {needs}: {error}; create such things in the "
            f"env_creator{more}"
        ) from error


@contextlib.contextmanager
def starting(context: str) -> Iterator[None]:
    """Prepare for the start of a multiprocessing process inside this context.

    The process does not run the user's script, does not warn about threads, and does not wait for OpenCV's threads,
    which exist only in its parent.
    """
    # A fork imports nothing; it must find the objects that the script defines in __main__.
    prepared = _opencv_paused() if context == "fork" else transfer.main_hidden()
    with _parenthood(), prepared, warnings.catch_warnings():
        # Python 3.12 counts the sleeping threads of NumPy's BLAS; start_method has counted Python's own.
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        try:
            yield
        except OSError as error:
            _close_forgotten_pipes(error)
            raise


_opencv_locks: dict[int, threading.Lock] = {}  # by process, as no thread would release a forked copy


@contextlib.contextmanager
def _opencv_paused() -> Iterator[None]:
    """End OpenCV's threads during a fork: a busy one may hold a lock, for which the child would wait forever.

    Afterwards OpenCV has one thread in the child, and its previous number in this process.
    """
    limit = imported_function("cv2", "setNumThreads")
    if limit is None:
        yield
        return
    with _opencv_locks.setdefault(os.getpid(), threading.Lock()):  # otherwise a second forking thread would restore 1
        threads = sys.modules["cv2"].getNumThreads()
        try:
            limit(1)  # ends all others
            yield
        finally:
            limit(threads)


@contextlib.contextmanager
def _parenthood() -> Iterator[None]:
    """Allow this process to have children even if it is a daemon of multiprocessing.

    multiprocessing forbids daemons to have children, because orphans could remain. Here, none can: the processes that
    are started here never outlive their parent.
    """
    config: dict[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    daemon = config.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            config["daemon"] = daemon


def _close_forgotten_pipes(error: OSError) -> None:
    """Close the pipes that multiprocessing leaves open when a fork fails."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is multiprocessing.popen_fork.Popen._launch.__code__:  # type: ignore[attr-defined]
            for name in ("parent_r", "parent_w", "child_r", "child_w"):
                if name in frame.f_locals:
                    os.close(frame.f_locals[name])
