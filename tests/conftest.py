"""What holds for every test: no display, drawn examples that CI can repeat, and nothing left behind."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from pufferlib.vectorization.processes.start import running_threads

pytest_plugins = ["devices"]  # fixtures: who plays kernels

# What [dev] leaves out, as it is large or asks for other versions: `make test-adapters` has it.
WANTED = {"tianshou": "tianshou", "gymnax": "gymnax", "envpool": "envpool", "cleanrl_scripts": "cleanrl"}
WANTED["rllib"] = "lz4"  # which comes with RLlib
collect_ignore = [f"adapters/test_adapter_{name}.py" for name, package in WANTED.items() if find_spec(package) is None]

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # of whatever runs in the same process later

# No deadlines: on a busy machine they fail correct code. `--hypothesis-profile thorough` looks longer.
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Python's own helpers, whose processes and descriptors are private to them.
TRACKER: Any = resource_tracker._resource_tracker
FORK_SERVER: Any = forkserver._forkserver
RERUN_IN_CI = 5  # in each process: among thousands that watch processes, one may fail for what else the machine does
GRACE_S = 10.0  # what a test has stopped may take this long to be gone
LAST_WORDS_S = 60.0  # what should have ended has this long to do so
STDERR = pytest.StashKey[int]()
SHM = Path("/dev/shm")
OWN_FDS = Path("/proc/self/fd")
HAS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # not every kernel tells them
LEAKY_FDS = ("pipe:", "socket:", "/memfd:", "anon_inode:[pidfd]", "anon_inode:[eventpoll]", "anon_inode:[eventfd]")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the true standard error, for the last words of a run that hangs, and let Ctrl-C reach what tests start.

    A shell starts `make test &` with SIGINT ignored, which every process below would inherit. CI repeats up to
    RERUN_IN_CI tests that fail, each once, and names them; a test that has used up its time is never repeated.
    """
    if hasattr(config.option, "rerun_except"):
        config.option.rerun_except = ["from pytest-timeout"]
        if os.environ.get("CI"):
            config.option.reruns, config.option.max_suite_reruns = 1, RERUN_IN_CI
    config.stash[STDERR] = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """End the whole run, showing where it is, if a test outlives its timeout: what that raised may have been lost.

    An exception out of a signal handler is, in a destructor say, or while a test has SIGALRM to itself.
    """
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit_s + LAST_WORDS_S, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage among what stays: that took a quarter of the time in which tests are read."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what the imported libraries hold out of collections from here on: each walked half a million objects.

    That took a fifth of a second, after most tests that start processes, and again in processes that they forked.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run also if what a test has left, a thread say, keeps the interpreter from ending."""
    faulthandler.dump_traceback_later(LAST_WORDS_S, exit=True, file=config.stash[STDERR])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a CI run that skipped a test, unless for want of a GPU: a test that never runs proves nothing."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = {report.nodeid for report in reporter.stats.get("skipped", ())}  # of files as well
    # Not by their keywords: the name of the folder that all lies in is one of them.
    may_be = {item.nodeid for item in getattr(session, "items", ()) if item.get_closest_marker("gpu")}
    if os.environ.get("CI") and not skipped <= may_be:
        reporter.write_line("\nA test was skipped that is not marked gpu, and CI takes that for a failure.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a child process, a thread, a shared-memory file or a descriptor; end what it left.

    Only what appeared during the test counts, so that fixtures of a wider scope may hold a VecEnv.
    """
    before = {watch: watch() for watch in (child_processes, threads, shared_memory, descriptors)}
    yield
    left = [f"{watch.__name__}: {name}" for watch in before for name in leftovers(watch, before[watch])]
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch takes one thread: more only help large networks, and on a busy machine wait for each other."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def leftovers(watch: Callable[[], dict[object, str]], before: dict[object, str]) -> list[str]:
    """Return what ``watch`` sees and did not see before, after a grace; what can be ended is."""
    if watch().keys() <= before.keys():
        return []
    # Cycles may hold what is already closed by its last user. Those of this test are young mostly, and quickly found.
    gc.collect(1)
    if not watch().keys() <= before.keys():
        gc.collect()
    deadline = time.monotonic() + GRACE_S
    while new := {key: name for key, name in watch().items() if key not in before and not foreign(key)}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    for key in new:
        if isinstance(key, psutil.Process):
            key.kill()
            key.wait(GRACE_S)
        elif isinstance(key, Path):
            key.unlink(missing_ok=True)
    return list(new.values())


def child_processes() -> dict[object, str]:
    """All descendants but Python's own helpers, which end with this process."""
    helpers = {TRACKER._pid, FORK_SERVER._forkserver_pid}
    if descendants() <= helpers:
        return {}
    return {
        process: f"{process.pid} {command_line(process)}"
        for process in psutil.Process().children(recursive=True)
        if process.pid not in helpers
    }


def descendants() -> set[int]:
    """Return the pids of this process's children, and theirs, in a thirtieth of the time of walking all processes."""
    pids, parents = set[int](), [os.getpid()]
    while parents:
        tasks = f"/proc/{parents.pop()}/task"
        with contextlib.suppress(OSError):  # it has ended
            for task in os.listdir(tasks):
                with open(f"{tasks}/{task}/children") as file:
                    children = {*map(int, file.read().split())} - pids
                pids |= children
                parents += children
    return pids if HAS_CHILDREN else {*psutil.pids()}  # all, which is more than the helpers


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join([process.status(), *process.cmdline()])[:120]
    except psutil.Error:
        return "gone"


def threads() -> dict[object, str]:
    return {thread: repr(thread) for thread in running_threads()}


def shared_memory() -> dict[object, str]:
    return {path: str(path) for path in SHM.iterdir()} if SHM.is_dir() else {}


def foreign(key: object) -> bool:
    """Return whether a program that is not ours has mapped this file of /dev/shm."""
    if not isinstance(key, Path):
        return False
    ours = {os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))}
    for pid in set(psutil.pids()) - ours:
        try:
            if str(key) in Path(f"/proc/{pid}/maps").read_text():
                return True
        except OSError:  # gone, or not ours to read
            continue
    return False


def descriptors() -> dict[object, str]:
    """Pipes, sockets, memory files and kernel handles of this process, but not those of Python's own helpers."""
    if not OWN_FDS.is_dir():
        return {}
    helpers = {TRACKER._fd, FORK_SERVER._forkserver_alive_fd}
    seen: dict[object, str] = {}
    for name in os.listdir(OWN_FDS):
        try:
            target = os.readlink(OWN_FDS / name)
        except OSError:  # the listing's own
            continue
        if target.startswith(LEAKY_FDS) and int(name) not in helpers:
            seen[name, target] = f"{name} -> {target}"
    return seen


@pytest.fixture
def no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what tells PufferLib's version count as not imported, and not called."""
    monkeypatch.setattr("pufferlib.compat.versions.calls", set())
    for name in ("pufferlib.frameworks", "pufferlib.frameworks.cleanrl", "pufferlib.cleanrl", "pufferlib.pufferl"):
        monkeypatch.delitem(sys.modules, name, raising=False)
