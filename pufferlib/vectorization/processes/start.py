"""Start worker processes."""

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
from typing import Any

from pufferlib.errors import PlanError
from pufferlib.util.suggestions import not_one_of
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.processes.lifetime import death_of, end_group
from pufferlib.vectorization.processes.serve import Launch, run_worker
from pufferlib.vectorization.processes.thread_caps import imported_function

__all__ = ["Process", "portable", "running_threads", "start_method", "starting"]

FORKED = ", or use context='fork', which copies all (not safe beside other threads)"


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
    limit = imported_function("cv2", "setNumThreads")
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
