"""Where the system refuses memory, descriptors or processes: an error that names the limit, or a fallback, said aloud.

Nothing is left behind by any of them (conftest.py looks after each test).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import multiprocessing.util
import os
import resource
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from mock_envs import HashEnv
from test_sharing import run, trajectory, trajectory_alone

import pufferlib
from pufferlib.errors import PlatformError
from pufferlib.util.memory import left_by, memory_at_hand, memory_there
from pufferlib.vectorization.core import slab
from pufferlib.vectorization.processes.backend import not_startable

pytestmark = pytest.mark.beside

PARALLEL = ("multiprocessing", "pool")
MIB = 2**20
OWN_FDS = Path("/proc/self/fd")


class WideEnv(gymnasium.Env[Any, Any]):
    """Observes some MiB of zeros."""

    def __init__(self, mib: int = 8) -> None:
        self.observation_space = gymnasium.spaces.MultiBinary(mib * MIB)  # which takes no memory, unlike a Box
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(self.observation_space.shape, np.int8), {}

    def step(self, action: Any) -> Any:
        return np.zeros(self.observation_space.shape, np.int8), 0.0, False, False, {}


@contextlib.contextmanager
def limited(which: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(which, (soft, hard))


def refuses(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


make = functools.partial(pufferlib.make, HashEnv, num_envs=4, num_workers=2)


# --------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_more_memory_than_there_is(backend: str) -> None:
    """The kernel would hand it out page by page, and kill any process once there is no more."""
    gib = 2 ** math.ceil(math.log2(memory_at_hand() / 2**30) + 1)
    says = rf"GiB of (shared )?memory for {gib} environments \([\d.]+ GiB are available\); use fewer"
    with pytest.raises(PlatformError, match=says):
        pufferlib.make(functools.partial(WideEnv, 1024), backend=backend, num_envs=gib, num_workers=1)


def test_what_a_control_group_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pufferlib.util.cgroups.folders", lambda controller: [tmp_path, tmp_path / "nothing"])
    system, limit = memory_there()
    assert MIB < system < math.inf and limit == math.inf
    (tmp_path / "memory.limit_in_bytes").write_text(f"{2**62}\n")  # version 1 has no word for "no limit"
    assert memory_there() == (system, math.inf)
    (tmp_path / "memory.max").write_text(f"{MIB}\n")
    assert memory_there() == (system, MIB)


def test_windows_is_refused_with_a_hint_at_wsl() -> None:
    """Before anything is imported that it has not got."""
    said = run("""
import sys
sys.platform = "win32"
for name in ("fcntl", "resource", "termios", "pwd", "numpy", "gymnasium"):
    sys.modules[name] = None
try:
    import pufferlib
except OSError as error:
    print(error)
""")
    assert said == "pufferlib needs Linux or macOS; on Windows, run it in WSL (wsl --install)\n"


def test_what_a_control_group_leaves(tmp_path: Path) -> None:
    stat = "anon 100\nfile 700\nactive_file 200\ninactive_file 300\ntotal_active_file 1\ntotal_inactive_file 2\n"
    (tmp_path / "memory.stat").write_text(stat)
    assert list(left_by(tmp_path)) == []
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert list(left_by(tmp_path)) == []
    (tmp_path / "memory.max").write_text("5000\n")
    assert list(left_by(tmp_path)) == [4500.0]  # what is kept of files goes when it is needed
    (tmp_path / "memory.limit_in_bytes").write_text("3000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("2900\n")
    assert list(left_by(tmp_path)) == [4500.0, 103.0]


@pytest.mark.parametrize("backend", PARALLEL)
def test_more_shared_memory_than_files_may_have(backend: str) -> None:
    with limited(resource.RLIMIT_FSIZE, 16 * MIB), pytest.raises(
        PlatformError, match=r"2\d(\.\d)? MiB of shared memory for 1 environments \(File too large\).*ulimit -f"
    ):  # fmt: skip
        pufferlib.make(WideEnv, backend=backend, num_envs=1)


def test_more_shared_memory_than_the_process_may_map() -> None:
    said = run("""
import resource
import psutil, pufferlib, test_platform
limit = psutil.Process().memory_info().vms + 200 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    pufferlib.make(test_platform.WideEnv, backend="pool", num_envs=8, num_workers=1, env_kwargs={"mib": 16})
except pufferlib.errors.PlatformError as error:
    print(error)
assert not psutil.Process().children()
with pufferlib.make(test_platform.WideEnv, backend="pool", num_envs=1) as vec:
    vec.reset()
""")
    assert "384 MiB of shared memory for 8 environments" in said and "raise the memory limit" in said


@pytest.fixture
def without_memfd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make memfd_create fail as in a sandbox; return the folder that stands for /dev/shm."""
    monkeypatch.setattr(os, "memfd_create", refuses(errno.ENOSYS))
    monkeypatch.setattr(slab, "_SHM", str(tmp_path / "shm"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "shm").mkdir()
    (tmp_path / "tmp").mkdir()
    return tmp_path / "shm"


def place_of(vec: pufferlib.VecEnv) -> Path:
    return Path(os.readlink(OWN_FDS / str(vec._slab.fd))).parent


def full(folders: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make writes to these folders fail as on a full disk."""
    allocate = os.posix_fallocate

    def allocate_elsewhere(fd: int, offset: int, length: int) -> None:
        if os.readlink(OWN_FDS / str(fd)).startswith(folders):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", allocate_elsewhere)


@pytest.mark.parametrize("backend", PARALLEL)
def test_without_memfd_a_file_in_memory_is_taken(backend: str, without_memfd: Path) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"memfd_create is refused here \(Function not implemented\).* share a file"
    ):
        vec = make(backend=backend)
    with vec:
        assert place_of(vec) == without_memfd
        assert trajectory(vec) == trajectory_alone(4)
        assert not list(without_memfd.iterdir())  # it has no name, so that nobody has to remove it


@pytest.mark.parametrize("exists", [True, False], ids=["full", "missing"])
def test_where_that_is_too_small_a_temporary_file_is_taken(
    exists: bool, without_memfd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose /dev/shm has 64 MB."""
    if exists:
        full((str(without_memfd),), monkeypatch)
    else:
        without_memfd.rmdir()
    says = "has no room for 0.* MiB: .*" if exists else ""
    with pytest.warns(RuntimeWarning, match=f"{says}slow if that is on a disk; set TMPDIR to a folder in memory"):
        vec = make(backend="pool")
    with vec:
        assert place_of(vec) == without_memfd.parent / "tmp"
        assert trajectory(vec) == trajectory_alone(4)
    assert not list((without_memfd.parent / "tmp").iterdir())


def test_no_room_anywhere(without_memfd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full((str(without_memfd.parent),), monkeypatch)
    says = r"0\.\d+ MiB of shared memory .*\(No space left on device; .*/tmp\).*set TMPDIR to a folder"
    with warnings.catch_warnings(), pytest.raises(PlatformError, match=says) as caught:
        warnings.simplefilter("error")
        make(backend="pool")
    assert caught.value.errno == errno.ENOSPC


def test_a_memfd_for_which_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuses(errno.ENOSPC))
    with pytest.raises(PlatformError, match=r"could not allocate .* MiB of shared memory for 4 environments"):
        make(backend="pool")


# -------------------------------------------------------------------------------------------------------- descriptors


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.long])])
def test_however_few_descriptors_there_are(context: str) -> None:
    """At each number of them either all works, or an error says so and nothing is left open."""
    num_made = refused = 0
    before = {name: os.readlink(OWN_FDS / name) for name in os.listdir(OWN_FDS) if (OWN_FDS / name).exists()}
    steps = range(30) if context == "fork" else range(0, 24, 6)
    if context == "spawn":
        make(backend="pool", context="spawn").close()  # which starts Python's own helper, for good
        before = {name: os.readlink(OWN_FDS / name) for name in os.listdir(OWN_FDS) if (OWN_FDS / name).exists()}
    for spare in steps:
        with limited(resource.RLIMIT_NOFILE, len(before) + spare):
            try:
                make(backend="pool", context=context).close()
                num_made += 1
            except PlatformError as error:
                refused += 1
                assert "open files (ulimit -n)" in str(error) and error.errno == errno.EMFILE
        after = {name: os.readlink(OWN_FDS / name) for name in os.listdir(OWN_FDS) if (OWN_FDS / name).exists()}
        assert len(after) == len(before), set(after.items()) ^ set(before.items())
    assert refused > 3 if context == "fork" else refused
    assert num_made > 3 or context == "spawn"


# ---------------------------------------------------------------------------------------------------------- processes


def nth_fork_fails(nth: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, count = os.fork, [0]

    def fail() -> int:
        count[0] += 1
        if count[0] >= nth:
            raise OSError(number, os.strerror(number))
        return fork()

    monkeypatch.setattr(os, "fork", fail)


@pytest.mark.parametrize(("number", "says"), [(errno.EAGAIN, r"limit (of \d+|on) processes \(ulimit -u"),
                                              (errno.ENOMEM, "free some memory")])  # fmt: skip
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_process_that_cannot_be_forked(
    nth: int, number: int, says: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    files = len(os.listdir(OWN_FDS))
    nth_fork_fails(nth, number, monkeypatch)
    with pytest.raises(PlatformError, match=f"worker {nth - 1} of 3 could not be started .*use fewer workers.*{says}"):
        make(backend="pool", num_workers=3)
    assert len(os.listdir(OWN_FDS)) == files
    assert not recwarn.list


def test_no_limit_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert "raise the limit on processes (ulimit -u" in str(not_startable("it", OSError(errno.EAGAIN, "no room")))


def test_a_process_that_cannot_be_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    make(backend="pool", context="spawn", num_workers=1).close()  # which starts Python's own helper, for good
    files = len(os.listdir(OWN_FDS))
    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", refuses(errno.EAGAIN))
    with pytest.raises(PlatformError, match=r"worker 0 of 2 could not be started .*ulimit -u"):
        make(backend="pool", context="spawn")
    assert len(os.listdir(OWN_FDS)) == files


def kill_a_worker(vec: pufferlib.VecEnv) -> None:
    pid = vec._workers.pids[1]
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("backend", PARALLEL)
def test_a_restart_that_finds_no_process_is_an_error_and_may_be_tried_again(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(backend=backend, on_error="restart") as vec:
        vec.reset()
        with monkeypatch.context() as patch:
            nth_fork_fails(1, errno.EAGAIN, patch)
            kill_a_worker(vec)
            with pytest.raises(pufferlib.WorkerError, match="SIGKILL.*a new one cannot be started: .*ulimit -u"):
                for _ in range(5):
                    vec.step(np.zeros(4, np.int64))
            for _ in range(3):
                with pytest.raises(PlatformError, match="worker 1 of 2 could not be started"):
                    vec.reset()
            files = len(os.listdir(OWN_FDS))
            with pytest.raises(PlatformError):
                vec.reset()
            assert len(os.listdir(OWN_FDS)) == files
        assert vec.reset()[0].shape == (4, 16)
        assert trajectory(vec) == trajectory_alone(4)
        assert vec.restarts == [0, 0, 1, 1]


@pytest.mark.parametrize("backend", PARALLEL)
def test_a_restart_beside_threads_of_what_cannot_be_pickled(backend: str) -> None:
    """What was forked then has to be spawned now, and cannot be."""
    lock = threading.Lock()

    def creator(env_index: int) -> HashEnv:
        assert not lock.locked()
        return HashEnv(env_index)

    stop = threading.Event()
    with pufferlib.make(creator, backend=backend, num_envs=4, num_workers=2, on_error="restart") as vec:
        vec.reset()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            kill_a_worker(vec)
            says = "a new one cannot be started: what makes the environments cannot be pickled, as .*'spawn' needs"
            with pytest.raises(pufferlib.WorkerError, match=says):
                for _ in range(5):
                    vec.step(np.zeros(4, np.int64))
            with pytest.raises(pufferlib.PlanError, match="cannot be pickled"):
                vec.reset()
        finally:
            stop.set()
            thread.join()
        vec.reset()
        assert trajectory(vec) == trajectory_alone(4)
