"""However the parent ends, its workers and all that their environments have started are gone at once.

What makes a session of its own (a daemon, ``start_new_session=True``) has left the reach of everybody but its
environment: its ``close`` has to end it, and where that is not called, nobody does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import covering
from mock_envs import HashEnv

import pufferlib

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0  # 1 s is promised, and milliseconds are usual; a busy machine may schedule nobody for a while
SLEEPS, HOLDS_THE_GIL = 991, 992


class GameEnv(HashEnv):
    """Starts a program that never ends by itself, as a game's server, and forks a process that inherits all it has."""

    def __init__(self, own_session: bool = False) -> None:
        super().__init__(mean_length=10**6)
        self.game = subprocess.Popen(["sleep", "600"], start_new_session=own_session)
        self.clone = 0 if own_session else os.fork()
        if self.clone == 0 and not own_session:
            time.sleep(600)
            os._exit(0)

    def step(self, action: Any) -> Any:
        if action == SLEEPS:
            time.sleep(600)
        if action == HOLDS_THE_GIL:
            sum(itertools.repeat(0, 1 << 62))
        return super().step(action)

    def pids(self) -> list[int]:
        return [os.getpid(), self.game.pid, *([self.clone] if self.clone else [])]


class TidyEnv(GameEnv):
    """Ends its program when it is closed."""

    def close(self) -> None:
        self.game.kill()
        self.game.wait()


PROGRAM = """
import json, os, signal, sys, threading, time
import numpy as np, pufferlib
from test_orphans import GameEnv

def tell(pids):
    print(json.dumps(pids), flush=True)

def pids_of(vec):
    return sum(vec.call("pids"), [])

def make(**kwargs):
    kwargs = {{"backend": "pool", "num_envs": 4, "num_workers": 4, "context": {context!r}, **kwargs}}
    vec = pufferlib.make(GameEnv, **kwargs)
    vec.reset()
    vec.step(np.zeros(4, np.int64))
    return vec

{body}
"""


@contextlib.contextmanager
def program(body: str, context: str = "fork", **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script without a main guard; end what it leaves. It hangs up nothing but by ending."""
    code = PROGRAM.format(body=textwrap.dedent(body), context=context)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), str(ROOT / "tests/failures")])
    pids: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, "PYTHONPATH": path, **environment},
    ) as process:  # fmt: skip
        process.reported_pids = pids  # type: ignore[attr-defined]
        try:
            yield process
        finally:
            for pid in [process.pid, *pids]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def read_pids(process: Any) -> list[int]:
    """Return the processes that a program tells of."""
    line = process.stdout.readline()
    assert line, "the program has ended too early"
    pids: list[int] = json.loads(line)
    process.reported_pids += pids
    return pids


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or before it was read
        return True


def assert_gone(pids: list[int]) -> float:
    """Wait until none of these lives; return how long that took."""
    began = time.monotonic()
    while alive := [pid for pid in pids if not gone(pid)]:
        assert time.monotonic() - began < DEADLINE_S, f"{alive} of {pids} live on"
        time.sleep(0.001)
    print(f"gone after {1000 * (time.monotonic() - began):.0f} ms")  # pytest -rP shows it
    return time.monotonic() - began


ENDS = {
    "killed": lambda process: process.kill(),
    "exception": "raise KeyError",
    "_exit": "os._exit(3)",
    "sys.exit": "sys.exit(3)",
    "abort": "os.abort()",
    "terminated": lambda process: process.terminate(),
}


# Those that end an interpreter as another one does are long; test_failures.py has them in short, of workers alone.
FORKED = [pytest.param(end, "fork", marks=[pytest.mark.long] if end in ("_exit", "sys.exit") else []) for end in ENDS]


@pytest.mark.parametrize(("end", "context"), [*FORKED, ("killed", "spawn"), ("killed", "forkserver")])
def test_what_environments_started_ends_with_the_parent(end: str, context: str) -> None:
    how = ENDS[end]
    body = f"""
    vec = make()
    tell(pids_of(vec))
    sys.stdin.readline()
    {how if isinstance(how, str) else "time.sleep(600)"}
    """
    with program(body, context) as process:
        pids = read_pids(process)
        assert len(set(pids)) == 12 and not any(map(gone, pids))
        if isinstance(how, str):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            how(process)
        process.wait(timeout=60)
        assert_gone(pids)


@pytest.mark.parametrize("native", ["", "0"], ids=["compiled", "portable"])
def test_whatever_the_workers_are_doing(native: str) -> None:
    """One is asleep in a step, one computes and keeps the GIL, one is stopped, one has nothing to do."""
    body = f"""
    vec = make()
    pids = pids_of(vec)
    os.kill(pids[6], signal.SIGSTOP)
    vec.send(np.array([{SLEEPS}, {HOLDS_THE_GIL}, 0, 0]))
    tell(pids)
    vec.recv()
    """
    with program(body, PUFFERLIB_NATIVE=native) as process:
        pids = read_pids(process)
        time.sleep(0.1)  # for the parent to be in recv; if it is not yet, the test is only easier
        process.kill()
        assert_gone(pids)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            """
            made = []
            thread = threading.Thread(target=lambda: made.append(make()))
            thread.start()
            thread.join()  # the thread that has forked them is gone, and they are not
            time.sleep(0.1)
            tell(pids_of(made[0]))
            time.sleep(600)
            """,
            id="made in a thread that has ended",
        ),
        pytest.param(
            f"""
            def act(vec):
                vec.send(np.full(4, {SLEEPS}))
                tell(pids)
                vec.recv()

            vec = make()
            pids = pids_of(vec)
            threading.Thread(target=act, args=(vec,)).start()
            """,
            id="used in a thread that the main thread waits for at its end",
        ),
    ],
)
def test_killed_with_threads(body: str) -> None:
    with program(body) as process:
        pids = read_pids(process)
        assert not any(map(gone, pids))
        time.sleep(0.1)
        process.kill()
        assert_gone(pids)


def test_the_main_thread_ends_while_a_daemon_thread_waits_for_rows() -> None:
    body = """
    def act(vec):
        while True:
            vec.step(np.zeros(4, np.int64))

    vec = make()
    tell(pids_of(vec))
    threading.Thread(target=act, args=(vec,), daemon=True).start()
    time.sleep(0.2)
    """
    with program(body) as process:
        pids = read_pids(process)
        assert process.wait(timeout=60) == 0
        assert_gone(pids)


def test_restarted_workers_leave_none_behind_either() -> None:
    """What a dead worker's environments started ends at once; what its successor's do, with the parent."""
    body = """
    vec = make(num_workers=2, on_error="restart", max_restarts=None)
    for _ in range(3):
        pids = pids_of(vec)
        tell(pids)
        os.kill(pids[0], signal.SIGKILL)
        while True:
            vec.step(np.zeros(4, np.int64))
            new = [] if vec._workers.dead else vec._workers.pids
            if new and new[0] != pids[0] and not vec._recovery.pending:
                break
    tell(pids_of(vec))
    time.sleep(600)
    """
    with program(body) as process:
        for _ in range(3):
            pids = read_pids(process)
            assert_gone(pids[:6])
        last = read_pids(process)
        assert not any(map(gone, last)) and set(last[6:]) == set(pids[6:])
        process.kill()
        assert_gone(last)


def test_a_session_of_its_own_is_ended_by_close_alone() -> None:
    body = """
    import functools
    vec = pufferlib.make(functools.partial(GameEnv, own_session=True), backend="pool", num_envs=1)
    tell(vec.call("pids")[0])
    time.sleep(600)
    """
    with program(body) as process:
        worker, game = read_pids(process)
        process.kill()
        assert_gone([worker])
        time.sleep(0.1)
        assert not gone(game), "then docs/design.md could promise more"
    with pufferlib.make(TidyEnv, backend="pool", num_envs=1, env_kwargs={"own_session": True}) as vec:
        pids = vec.call("pids")[0]
    assert_gone(pids)


@pytest.mark.parametrize("backend", ["multiprocessing", "pool"])
def test_a_death_is_noticed_though_a_process_lives_that_inherited_all(backend: str) -> None:
    """It holds the other ends of all pipes and sockets, which never close then."""
    with pufferlib.make(GameEnv, backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        (worker, *others), _ = vec.call("pids")
        assert not any(map(gone, others))
        vec.send(np.array([SLEEPS, 0]))
        began = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
            vec.recv(timeout=60)
        assert time.monotonic() - began < DEADLINE_S
        assert_gone(others)


@covering({"backend": ["multiprocessing", "pool"], "when": ["waiting", "in flight", "told"]})
def test_closing_after_a_death_is_quick_and_quiet(backend: str, when: str) -> None:
    """Gymnasium's AsyncVectorEnv waits for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vec = pufferlib.make(HashEnv, backend=backend, num_envs=4, num_workers=2)
        vec.reset()
        if when == "in flight":
            vec.send(np.zeros(4, np.int64))
        os.kill(vec._workers.pids[0], signal.SIGKILL)
        if when == "told":
            with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
                vec.call("pid")
        began = time.monotonic()
        vec.close(grace_s=60)
        assert time.monotonic() - began < DEADLINE_S


def test_closing_ends_what_environments_forgot() -> None:
    with pufferlib.make(GameEnv, backend="pool", num_envs=2, num_workers=2) as vec:
        vec.reset()
        pids = [pid for pids in vec.call("pids") for pid in pids]
    assert_gone(pids)


# ------------------------------------------------------------------------------------------------------ notebooks

KERNEL = """
import asyncio, json, signal, sys, traceback, types

cells = types.ModuleType("__main__")  # as in a kernel, it has no file
sys.modules["__main__"] = cells

def answer(word):
    print(word, file=answers, flush=True)

async def kernel():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            exec(json.loads(line), cells.__dict__)
            answer("done")
        except BaseException as error:
            answer(type(error).__name__)

answers = sys.stdout
asyncio.run(kernel())
"""


class Kernel:
    """An interpreter that runs cells one by one, in an event loop, beside a thread."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), str(ROOT / "tests/failures")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", KERNEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def begin(self, cell: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(textwrap.dedent(cell)) + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self, cell: str) -> str:
        self.begin(cell)
        return self.line()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.process.kill()
    kernel.process.communicate()


MAKE = """
import gymnasium, json, numpy as np, os, pufferlib, subprocess, time
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        self.game = subprocess.Popen(["sleep", "600"])
    def reset(self, *, seed=None, options=None):
        self.tick = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        time.sleep(600 if action else 0)
        self.tick += 1
        return np.full(1, self.tick, np.float32), 0.0, False, False, {}
    def pids(self):
        return [os.getpid(), self.game.pid]
vec = pufferlib.make(Env, backend="pool", num_envs=2, num_workers=2)
"""


@pytest.mark.slow
def test_a_notebook_makes_interrupts_goes_on_makes_again_and_is_killed(kernel: Kernel) -> None:
    assert kernel.run(MAKE) == "done"  # a class of a cell goes to spawned workers
    assert kernel.run("vec.reset(); assert vec.step(np.zeros(2, int))[0].tolist() == [[1], [1]]") == "done"
    kernel.begin("print(json.dumps(sum(vec.call('pids'), [])), flush=True)")
    first = json.loads(kernel.line())
    assert kernel.line() == "done"

    kernel.begin("print('begun', flush=True); vec.step(np.array([0, 1]))")
    assert kernel.line() == "begun"
    time.sleep(0.2)
    kernel.process.send_signal(signal.SIGINT)
    assert kernel.line() == "KeyboardInterrupt"
    assert kernel.run("vec.recv(timeout=0.05)") == "RecvTimeout"  # nothing is lost: the step goes on
    assert kernel.run("vec.step(np.zeros(2, int))") == "CallError"

    assert kernel.run("vec.close(grace_s=0)") == "done"
    assert_gone(first)
    assert kernel.run("vec = pufferlib.make(Env, backend='pool', num_envs=2, num_workers=2)") == "done"
    kernel.begin("vec.reset(); print(json.dumps(sum(vec.call('pids'), [])), flush=True)")
    second = json.loads(kernel.line())
    assert kernel.line() == "done"
    kernel.process.kill()
    assert_gone(second)
