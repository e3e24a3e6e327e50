"""An environment that raises or a worker that dies is a WorkerError at the next recv, and nothing else is lost."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from matrix import covering
from mock_envs import FaultyEnv, HashEnv, fails_in_init

import pufferlib

pytestmark = pytest.mark.beside

BACKENDS = ("serial", "multiprocessing", "pool")
PARALLEL = ("multiprocessing", "pool")
ROOT = Path(__file__).parents[2]


def actions(num: int, **special: int) -> Any:
    array = np.zeros(num, np.int64)
    for index, action in special.items():
        array[int(index[1:])] = action
    return array


@covering({
    "backend": BACKENDS,
    "action,says": [(991, "ValueError: the emulator caught fire"), (993, "SystemExit: 3"),
                    (994, "Unpicklable: has a lock inside")],
})  # fmt: skip
def test_an_exception_names_environment_worker_and_traceback(backend: str, action: int, says: str) -> None:
    with pufferlib.make(functools.partial(FaultyEnv, mean_length=1000), backend=backend, num_envs=4, num_workers=2,
                        seed=0) as vec:  # fmt: skip
        vec.reset()
        vec.send(actions(4, _2=action))
        with pytest.raises(pufferlib.WorkerError) as caught:
            vec.recv()
        error = caught.value
        assert error.env_id == 2
        assert error.worker == (0 if backend == "serial" else 1)
        assert says in str(error)
        assert "in step" in error.remote_traceback and "mock_envs.py" in error.remote_traceback
        with pytest.raises(pufferlib.CallError, match=r"environment 2 failed.*async_reset\(env_ids=\[2\]\)"):
            vec.send(actions(4))
        vec.async_reset(env_ids=[2])
        batch = vec.recv()  # the other rows were not lost
        assert batch.masks.tolist() == [True, True, False, True]
        vec.step(actions(4))


class FailsFirst(HashEnv):
    """Raises in its first reset, before it has looked at the seed."""

    tried = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if not self.tried:
            self.tried = True
            raise ValueError("not yet")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reset_that_failed_still_owes_its_seed(backend: str) -> None:
    """Or the episodes from then on could not be repeated."""
    with pufferlib.make(FailsFirst, backend=backend, num_envs=2, num_workers=2, seed=7) as vec:
        with pytest.raises(pufferlib.WorkerError, match="not yet"):
            vec.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the other one has failed, too
            vec.reset()
        seeds = pufferlib.vectorization.core.plan.Seeds(7, 2)
        assert vec.get_attr("last_seed") == [seeds[0], seeds[1]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exception_in_init_is_raised_by_make(backend: str) -> None:
    with pytest.raises(pufferlib.WorkerError, match="RuntimeError: no such ROM") as caught:
        pufferlib.make(fails_in_init, backend=backend, num_envs=3, num_workers=2)
    assert caught.value.env_id == 1
    assert "fails_in_init" in caught.value.remote_traceback


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_info_that_cannot_be_sent_is_an_error_of_its_environment_alone(backend: str) -> None:
    with pufferlib.make(functools.partial(FaultyEnv, mean_length=1000), backend=backend, num_envs=3, num_workers=1,
                        seed=0) as vec:  # fmt: skip
        vec.reset()
        vec.send(actions(3, _1=995))
        if backend == "serial":  # nothing is sent anywhere
            assert any("handle" in info for info in vec.recv().infos)
            return
        with pytest.raises(pufferlib.WorkerError, match=r"info .*'handle'.* cannot be pickled") as caught:
            vec.recv()
        assert caught.value.env_id == 1


@pytest.mark.parametrize("backend", PARALLEL)
@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_killed_worker_is_noticed_within_a_second_and_reset_revives_it(backend: str) -> None:
    with pufferlib.make(functools.partial(FaultyEnv, mean_length=1000), backend=backend, num_envs=4, num_workers=2,
                        seed=0) as vec:  # fmt: skip
        vec.reset()
        vec.send(actions(4, _3=992))
        began = time.monotonic()
        with pytest.raises(pufferlib.WorkerError, match=r"environments 2 to 3, was killed by signal 9 \(SIGKILL\)"):
            vec.recv()
        assert time.monotonic() - began < 1
        assert (
            vec._workers.pids[1] == 0 < vec._workers.pids[0]
        )  # another process may get its number, and stats would read that one's time
        vec.reset()
        for _ in range(3):
            vec.step(actions(4))
        again = pufferlib.vectorization.core.plan.Seeds(0, 4)
        assert vec.get_attr("last_seed", env_ids=[2, 3]) == [again.draw(env_id, restarts=1) for env_id in (2, 3)]


class Crashing(HashEnv):
    """Ends its process when its action says how."""

    def step(self, action: Any) -> Any:
        faulthandler.disable()  # pytest's, which a fork inherits, would tell of it on the terminal
        if action == 1:
            ctypes.string_at(0)  # a crash in C
        if action == 2:
            os.abort()
        if action == 3:
            os._exit(3)
        if action == 4:
            raise KeyboardInterrupt  # which nobody but the user may
        return super().step(action)


@covering(
    {
        "backend": PARALLEL,
        "action,exitcode,says": [
            (1, -11, r"signal 11 \(SIGSEGV\)"),
            (2, -6, r"signal 6 \(SIGABRT\)"),
            (3, 3, "exit code 3"),
            (4, 1, "exit code 1"),
        ],
    }
)
def test_a_crash_in_c_is_an_error_that_says_where(backend: str, action: int, exitcode: int, says: str) -> None:
    with pufferlib.make(functools.partial(Crashing, mean_length=1000), backend=backend, num_envs=4, num_workers=2,
                        seed=0) as vec:  # fmt: skip
        vec.reset()
        vec.send(actions(4, _1=action))
        with pytest.raises(
            pufferlib.WorkerError, match=rf"environments 0 to 1, .*{says} while environment 1 was"
        ) as caught:
            vec.recv()
        error = caught.value
        assert (error.env_id, error.worker, error.exitcode) == (1, 0, exitcode)
        vec.reset()
        vec.step(actions(4))


@pytest.mark.parametrize("backend", PARALLEL)
def test_a_worker_killed_while_it_waits_is_an_error_too(backend: str) -> None:
    with pufferlib.make(HashEnv, backend=backend, num_envs=2, num_workers=2, seed=0) as vec:
        vec.reset()
        os.kill(vec.call("pid")[1], signal.SIGKILL)
        vec.send(actions(2))
        with pytest.raises(pufferlib.WorkerError) as caught:
            vec.recv()
        assert (caught.value.env_id, caught.value.worker, caught.value.exitcode) == (None, 1, -9)


@pytest.mark.parametrize("backend", PARALLEL)
def test_a_call_of_a_dead_worker_is_refused_rather_than_waited_for(backend: str) -> None:
    with pufferlib.make(FaultyEnv, backend=backend, num_envs=2, num_workers=2, seed=0) as vec:
        vec.reset()
        os.kill(vec.call("pid")[1], signal.SIGKILL)
        with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
            vec.call("pid")
        with pytest.raises(pufferlib.CallError, match=r"workers \[1\] have died; call reset"):
            vec.call("pid")
        assert vec.call("pid", env_ids=[0])
        vec.reset()
        assert len(vec.call("pid")) == 2


@covering({"backend": PARALLEL, "context": ["fork", "spawn", "forkserver"]})
def test_every_start_method_works_for_local_creators(backend: str, context: str) -> None:
    secret = 3

    class Local(HashEnv):
        def step(self, action: Any) -> Any:
            return super().step(action + secret)

    with pufferlib.make(lambda: Local(), backend=backend, num_envs=2, num_workers=2, context=context, seed=0) as vec:
        vec.reset()
        for _ in range(5):
            vec.step(actions(2))


PROGRAM = """
import numpy as np, os, sys, time
sys.path.insert(0, {tests!r})
import pufferlib, mock_envs
print("main runs", flush=True)
vec = pufferlib.make(mock_envs.HashEnv, backend="pool", num_envs=4, num_workers=2, context={context!r})
vec.reset()
vec.step(np.zeros(4, np.int64))
print(*[process.pid for process in vec._workers.backend._processes.values()], flush=True)
{end}
"""


def run_program(end: str, context: str) -> tuple[subprocess.Popen[str], list[int]]:
    code = PROGRAM.format(tests=str(ROOT / "tests/helpers"), context=context, end=textwrap.dedent(end))
    path = Path(os.environ["PYTEST_TMP"]) / "program.py"
    path.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "main runs\n"
    return process, [int(word) for word in process.stdout.readline().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@covering({"context": ["fork", "spawn"],
           "end": ["os.kill(os.getpid(), 9)", "os._exit(1)", "raise KeyError", "sys.exit()", "pass"]})  # fmt: skip
def test_workers_end_with_their_parent(end: str, context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))
    process, pids = run_program(end, context)
    rest, _ = process.communicate(timeout=100)
    assert "main runs" not in rest, "a worker has run the script again"
    deadline = time.monotonic() + 60  # a worker that lives on does so for ever
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(map(gone, pids))


@pytest.mark.slow
def test_a_worker_that_hangs_does_not_hang_close() -> None:
    vec = pufferlib.make(functools.partial(FaultyEnv, mean_length=1000), backend="pool", num_envs=2, num_workers=2)
    vec.reset()
    vec.send(actions(2, _0=996))
    for _ in range(1000):  # until the other one has come
        with pytest.raises(pufferlib.RecvTimeout, match=r"\[(0|0, 1)\] are in flight") as waited:
            vec.recv(timeout=0.05)
        if "[0]" in str(waited.value):
            break
    else:
        raise AssertionError(str(waited.value))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vec.close()
    assert any("was killed" in str(warning.message) for warning in caught)
    vec.close()


@pytest.mark.parametrize("part", ["attach_slab", "Recovery", "StepWatchdog", "Dispatcher", "WorkerVecEnv"])
@pytest.mark.parametrize("backend", PARALLEL)
def test_an_interrupt_late_in_make_leaves_no_worker(backend: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    gc.collect()  # what tests before this one have left
    before = set(psutil.Process().children()), num_fds()
    with monkeypatch.context() as patch:
        patch.setattr(f"pufferlib.vectorization.driver.factory.{part}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pufferlib.make(HashEnv, backend=backend, num_envs=2, num_workers=2)
    gc.collect()
    assert (set(psutil.Process().children()), num_fds()) == before


def num_fds() -> int:
    return psutil.Process().num_fds()
