"""A VecEnv beside others: threads, forked processes, daemons, signal handlers, other VecEnvs, a program's end."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from matrix import covering
from mock_envs import HashEnv

import pufferlib
from pufferlib.vectorization.processes.start import start_method

pytestmark = pytest.mark.beside

BACKENDS = ("serial", "multiprocessing", "pool")
PARALLEL = ("multiprocessing", "pool")
ROOT = Path(__file__).parents[2]


class GateEnv(gymnasium.Env[Any, Any]):
    """Counts its steps. Action 1 waits until the gate exists; close writes a line to the log."""

    observation_space = gymnasium.spaces.Box(-1, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, gate: Path | None = None, log: Path | None = None) -> None:
        self.gate, self.log = gate, log

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        while action == 1 and self.gate is not None and not self.gate.exists():
            time.sleep(0.001)
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, False, False, {}

    def close(self) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write("closed\n")


def zeros(num: int) -> Any:
    return np.zeros(num, np.int64)


def ones(num: int) -> Any:
    return np.ones(num, np.int64)


def trajectory(vec: pufferlib.VecEnv, num_steps: int = 6) -> list[Any]:
    """Return all observations of a seeded run; the same ones on every backend, whatever happened before."""
    random = np.random.default_rng(0)
    rows = [vec.reset(seed=3)[0].tolist()]
    return rows + [vec.step(random.integers(0, 900, vec.num_envs))[0].tolist() for _ in range(num_steps)]


@functools.cache
def trajectory_alone(num_envs: int) -> list[Any]:
    with pufferlib.make(HashEnv, num_envs=num_envs) as vec:
        return trajectory(vec)


def run(script: str, *arguments: str) -> str:
    """Run a program that can use this file, and has to end well and quietly; return what it prints."""
    rooms = [ROOT, *(ROOT / "tests" / room for room in ("helpers", "vectorization", "failures"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, rooms))}
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0 and not result.stderr, result.stderr
    return result.stdout


# -------------------------------------------------------------------------------------------------------- threads


class Actor(threading.Thread):
    """A thread that does something, and keeps what that returned or raised."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(name="actor")
        self.act = act
        self.result: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.act()
        except Exception as error:
            self.error = error


def await_entry(vec: pufferlib.VecEnv, actor: Actor) -> None:
    """Wait until a thread is in the middle of a call."""
    deadline = time.monotonic() + 60
    while vec._workers.call_guard.owner != actor.ident:
        assert time.monotonic() < deadline and actor.is_alive()
        time.sleep(0.001)


CALLS: dict[str, Callable[[pufferlib.VecEnv], Any]] = {
    "recv": lambda vec: vec.recv(),
    "send": lambda vec: vec.send(zeros(2)),
    "send some": lambda vec: vec.send(zeros(1), env_ids=[0]),
    "step": lambda vec: vec.step(zeros(2)),
    "async_reset": lambda vec: vec.async_reset(),
    "reset some": lambda vec: vec.reset(env_ids=[0]),
    "call": lambda vec: vec.call("close"),
    "get_attr": lambda vec: vec.get_attr("count"),
    "set_attr": lambda vec: vec.set_attr("count", 7),
    "render": lambda vec: vec.render(),
}


@covering({"backend": BACKENDS, "waits_in": ["step", "call"]})
def test_a_second_thread_is_refused_and_changes_nothing(backend: str, waits_in: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with pufferlib.make(functools.partial(GateEnv, gate), backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        vec.step(zeros(2))
        actor = Actor(lambda: vec.step(ones(2))[0].tolist() if waits_in == "step" else vec.call("step", 1))
        await_entry(vec, actor)
        for call in CALLS.values():
            with pytest.raises(pufferlib.CallError, match=f"thread 'actor' is in a call of this {vec._title}"):
                call(vec)
        assert vec.stats() is not None and vec.batch is not None  # what only looks is free to
        gate.touch()
        actor.join()
        assert actor.error is None
        if waits_in == "step":
            assert actor.result == [[2], [2]]
        assert vec.step(zeros(2))[0].tolist() == [[3], [3]]
        assert vec.get_attr("count") == [3, 3]


@covering({"backend": BACKENDS, "batch_size": [4, 2]})
def test_threads_that_jostle_lose_and_double_nothing(backend: str, batch_size: int) -> None:
    """Each call does all that it should, or nothing: as many rows come as actions go."""
    with pufferlib.make(GateEnv, backend=backend, num_envs=4, num_workers=2, batch_size=batch_size, copy=True) as vec:
        vec.async_reset()
        stop = threading.Event()
        order = threading.Lock()  # of the lists, not of the calls
        received, refused = [0] * 4, [0]
        waiting: list[list[int]] = []  # the environments of batches that were not answered yet

        def jostle(seed: int) -> None:
            random = np.random.default_rng(seed)
            ids: list[int] | None = None
            while not stop.is_set():
                try:
                    if random.random() < 0.5:
                        with order:
                            ids = waiting.pop() if waiting else None
                        if ids is not None:
                            vec.send(zeros(batch_size), env_ids=None if batch_size == 4 else ids)
                    else:
                        ids = None
                        came = vec.recv(timeout=0.01).env_ids.tolist()
                        with order:
                            waiting.append(came)
                            for env_id in came:
                                received[env_id] += 1
                except pufferlib.RecvTimeout:
                    continue
                except pufferlib.CallError as error:
                    refused[0] += "one thread at a time" in str(error)
                    if ids is not None:
                        with order:
                            waiting.append(ids)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            actors = [Actor(functools.partial(jostle, seed)) for seed in range(3)]
            began = time.monotonic()
            while time.monotonic() - began < 0.4 or not (min(received) > 9 and refused[0]):
                assert time.monotonic() - began < 60
                time.sleep(0.01)
            stop.set()
            for actor in actors:
                actor.join(timeout=60)
                assert not actor.is_alive() and actor.error is None, actor.error
        finally:
            stop.set()
            sys.setswitchinterval(interval)
        while vec._scheduler.num_coming:
            for env_id in vec.recv(timeout=60).env_ids.tolist():
                received[env_id] += 1
        assert [1 + count for count in vec.get_attr("count")] == received  # each reset and each step gave one row


@pytest.mark.parametrize("backend", PARALLEL)
def test_threads_take_turns_with_a_lock(backend: str) -> None:
    with pufferlib.make(GateEnv, backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        lock = threading.Lock()

        def act() -> None:
            for _ in range(50):
                with lock:
                    vec.step(zeros(2))

        actors = [Actor(act) for _ in range(3)]
        for actor in actors:
            actor.join()
            assert actor.error is None
        assert vec.step(zeros(2))[0].tolist() == [[151], [151]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_closing_ends_what_another_thread_waits_for(backend: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    vec = pufferlib.make(functools.partial(GateEnv, gate), backend=backend, num_envs=2, num_workers=2)
    vec.reset()
    actor = Actor(lambda: vec.step(ones(2)))
    await_entry(vec, actor)
    if backend == "serial":  # there a step cannot be left
        threading.Timer(0.1, gate.touch).start()
        vec.close(grace_s=60)
    else:
        time.sleep(0.2)  # it may wait on the short way first; both ways must end
        began = time.monotonic()
        vec.close(grace_s=0)
        assert time.monotonic() - began < 60
    actor.join(timeout=60)
    assert isinstance(actor.error, pufferlib.errors.ClosedError)
    with pytest.raises(pufferlib.errors.ClosedError):
        vec.recv()


def test_closing_does_not_wait_for_ever_for_another_threads_step(tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    vec = pufferlib.make(functools.partial(GateEnv, gate, log), num_envs=1)
    vec.reset()
    actor = Actor(lambda: vec.step(ones(1)))
    await_entry(vec, actor)
    with pytest.warns(RuntimeWarning, match="another thread is still in a step .* not closed") as caught:
        vec.close(grace_s=0)
    assert caught[0].filename == __file__
    assert not vec._finalizer.atexit  # the end of the process does not wait for it either
    gate.touch()
    actor.join()
    assert isinstance(actor.error, pufferlib.errors.ClosedError) and not log.exists()
    vec.close()  # now it can
    assert log.read_text() == "closed\n"


@pytest.mark.slow
def test_two_threads_make_at_once_and_main_is_itself_again() -> None:
    """ExtraLeaves threads, processes are spawned, and ``__main__`` is hidden meanwhile."""
    main = sys.modules["__main__"]

    def act() -> list[Any]:
        with pufferlib.make(HashEnv, backend="pool", num_envs=2, num_workers=1) as vec:
            assert vec._workers.backend._context == "spawn"  # type: ignore[attr-defined]
            return trajectory(vec)

    actors = [Actor(act) for _ in range(2)]
    for actor in actors:
        actor.join()
        assert actor.error is None and actor.result == trajectory_alone(2)
    assert sys.modules["__main__"] is main


def test_beside_a_cuda_context_processes_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = types.SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert start_method(None) == "spawn"
    cuda.is_initialized = lambda: False
    assert start_method(None) == "fork"


def test_beside_jax_processes_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_method(None) == "fork"
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    assert start_method(None) == "spawn"


# ------------------------------------------------------------------------------------------------------ processes


def in_a_fork(act: Callable[[], Any]) -> Any:
    """Return what ``act`` returns in a process forked from this one."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, pickle.dumps(act()))
        except BaseException as error:
            os.write(writer, pickle.dumps(repr(error)))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


@covering({"backend": PARALLEL, "batch_size": [4, 2]})
def test_a_forked_process_is_refused_and_cannot_disturb_its_parent(backend: str, batch_size: int) -> None:
    def try_all() -> list[str]:
        said = []
        for call in (lambda: vec.step(zeros(batch_size)), lambda: vec.send(zeros(batch_size)), lambda: vec.recv(),
                     lambda: vec.async_reset(), lambda: vec.call("pid")):  # fmt: skip
            try:
                call()
            except pufferlib.CallError as error:
                said.append(str(error))
        vec.close()
        return said

    with pufferlib.make(HashEnv, backend=backend, num_envs=4, num_workers=2, batch_size=batch_size, seed=3) as vec:
        vec.async_reset()
        before = vec.recv()
        rows = before.observations.tolist()
        said = in_a_fork(try_all)
        assert len(said) == 5 and all("make another in here" in text for text in said), said
        assert before.observations.tolist() == rows
        vec.send(zeros(batch_size))
        vec.recv()
        if batch_size == 4:
            assert trajectory(vec) == trajectory_alone(4)
            assert in_a_fork(vec.close) is None
            assert trajectory(vec) == trajectory_alone(4)


def test_a_serial_one_goes_on_in_a_forked_process() -> None:
    with pufferlib.make(HashEnv, num_envs=4) as vec:
        vec.reset()
        assert in_a_fork(lambda: trajectory(vec)) == trajectory_alone(4) == trajectory(vec)


def use_and_leave_open(sender: Any, context: str) -> None:
    vec = pufferlib.make(HashEnv, backend="pool", num_envs=4, num_workers=2, context=context)
    sender.send((multiprocessing.current_process().daemon, trajectory(vec), vec.call("pid")))
    open_vecs.append(vec)


open_vecs: list[pufferlib.VecEnv] = []


@pytest.mark.parametrize(("daemon", "context"), [(True, "fork"), (False, "fork"), (True, "spawn")])
def test_a_process_of_multiprocessing_uses_one_and_forgets_to_close_it(daemon: bool, context: str) -> None:
    """Daemons may have no children elsewhere, and others are joined before anything could close them."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=use_and_leave_open, args=(sender, context), daemon=daemon
    )
    process.start()
    sender.close()
    is_daemon, rows, pids = receiver.recv()
    assert is_daemon is daemon and rows == trajectory_alone(4)
    process.join(timeout=60)
    hung = process.exitcode is None
    process.kill()
    process.join()
    receiver.close()
    assert not hung and process.exitcode == 0
    process.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


class NestedEnv(HashEnv):
    """An environment that has a VecEnv of its own, and never closes it."""

    def __init__(self) -> None:
        super().__init__(mean_length=10**6)
        self.inner = pufferlib.make(GateEnv, backend="pool", num_envs=2, num_workers=2)
        self.inner.reset()

    def step(self, action: Any) -> Any:
        return super().step(self.inner.step(zeros(2))[0].sum())

    def pids(self) -> list[int]:
        return self.inner._workers.pids


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_vec_within_an_environment_of_another(backend: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as that a worker was killed, since it did not end
        vec = pufferlib.make(NestedEnv, backend=backend, num_envs=2, num_workers=2)
        vec.reset()
        for _ in range(3):
            vec.step(zeros(2))
        pids = [pid for pids in vec.call("pids") for pid in pids]
        assert len(set(pids)) == 4
        vec.close()
    if backend == "serial":
        del vec
        gc.collect()  # with what holds them, the inner ones end
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.extras
def test_workers_of_a_data_loader() -> None:
    """They are forked, and daemons: what came along refuses, and what they make themselves works."""
    torch = pytest.importorskip("torch")

    class Inherited(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return vec.step(zeros(4))[0].copy()

    class OwnWorkers(Inherited):
        def __getitem__(self, index: int) -> Any:
            with pufferlib.make(HashEnv, backend="pool", num_envs=4, num_workers=1) as pool:
                return np.array(trajectory(pool))

    with pufferlib.make(HashEnv, backend="pool", num_envs=4, num_workers=2) as vec:
        vec.reset()
        with pytest.raises(pufferlib.CallError, match="make another in here"):
            next(iter(torch.utils.data.DataLoader(Inherited(), num_workers=1)))
        rows = list(torch.utils.data.DataLoader(OwnWorkers(), num_workers=1))
        assert [batch[0].tolist() for batch in rows] == [trajectory_alone(4)]
        assert trajectory(vec) == trajectory_alone(4)


# ------------------------------------------------------------------------------------------------------ one another


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_at_once_and_any_may_be_closed_first(backend: str) -> None:
    """Workers of the later ones were forked while the earlier ones were open, and must not keep those alive."""
    make = functools.partial(pufferlib.make, HashEnv, backend=backend, num_envs=4, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vecs = [make() for _ in range(4)]
        for vec in vecs:
            vec.reset()
        for index in (0, 2, 3, 1):
            vecs[index].send(zeros(4))
            vecs[index].close(grace_s=30)  # or it warns that a worker was killed
            for other in vecs:
                if not other.closed:
                    assert trajectory(other) == trajectory_alone(4)


@covering({"backend": BACKENDS, "how": [pickle.dumps, copy.copy, copy.deepcopy]})
def test_it_cannot_be_copied_and_says_what_can(backend: str, how: Callable[[Any], Any]) -> None:
    with pufferlib.make(HashEnv, backend=backend, num_envs=4, num_workers=2) as vec:
        with pytest.raises(pufferlib.CallError, match=r"cannot be pickled or copied.*functools\.partial"):
            how({"env": vec} if how is copy.deepcopy else vec)
        assert trajectory(vec) == trajectory_alone(4)


# -------------------------------------------------------------------------------------------------------- signals


@pytest.fixture
def alarm() -> Iterator[Callable[..., None]]:
    """Give a function that sets what a signal does some seconds later: once, or again and again after others."""

    def set_alarm(after_s: float, act: Callable[[], Any], again_s: float = 0) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: act())
        signal.setitimer(signal.ITIMER_REAL, after_s, again_s)

    before = signal.getsignal(signal.SIGALRM)
    hooks = list(gc.callbacks)  # Hypothesis has one, in which a signal's exception is lost, and fails the test
    gc.callbacks.clear()
    yield set_alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.callbacks.extend(hooks)


def raise_(error: type[BaseException]) -> None:
    raise error


@covering({"backend": PARALLEL, "error": [TimeoutError, KeyboardInterrupt]})
def test_what_a_handler_raises_ends_a_wait_and_loses_nothing(
    backend: str, error: type[BaseException], alarm: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with pufferlib.make(functools.partial(GateEnv, gate), backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        vec.send(ones(2))
        for after_s in (0.05, 0.25):  # on the short way, and on the long one
            alarm(after_s, lambda: raise_(error))
            with pytest.raises(error):
                vec.recv()
        gate.touch()
        assert vec.recv().observations.tolist() == [[1], [1]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_handler_may_close_but_not_step(backend: str, alarm: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    vec = pufferlib.make(functools.partial(GateEnv, gate), backend=backend, num_envs=2, num_workers=2)
    vec.reset()
    said: list[str] = []

    def act() -> None:
        try:
            vec.step(zeros(2))
        except pufferlib.CallError as error:
            said.append(str(error))
        gate.touch()
        vec.close()

    alarm(0.1, act)
    with pytest.raises(pufferlib.errors.ClosedError):
        vec.step(ones(2))
        vec.recv()  # pragma: no cover
    assert "an environment or a signal handler called it" in said[0]


@pytest.mark.parametrize(
    ("backend", "batch_size"),
    [
        ("serial", 4),
        ("multiprocessing", 4),
        ("pool", 2),
        pytest.param("multiprocessing", 2, marks=pytest.mark.long),
        pytest.param("pool", 4, marks=pytest.mark.long),
    ],
)
def test_a_storm_of_signals_loses_no_row_or_closes(backend: str, batch_size: int, alarm: Any) -> None:
    """At any instruction: either the next call goes on with every row, or the VecEnv is closed and nothing is left."""
    random = np.random.default_rng(5)
    errors = [KeyboardInterrupt, TimeoutError, SystemExit]
    before = set(psutil.Process().children())
    reference = pufferlib.make(HashEnv, num_envs=4)
    expected = [reference.reset(seed=3)[0].tolist()]  # by tick
    num_interrupts = num_closed = 0
    armed = False

    def strike() -> None:
        if armed:
            raise errors[int(random.integers(3))]

    def start() -> pufferlib.VecEnv:
        vec = pufferlib.make(HashEnv, backend=backend, num_envs=4, num_workers=2, batch_size=batch_size)
        vec.async_reset(seed=3)
        return vec

    def compare() -> None:
        """Compare the last batch, unless that has been done: an interrupt between ``recv`` and here loses no row."""
        nonlocal compared
        batch = vec.batch
        if batch is None or batch is compared:
            return
        for env_id, row in zip(batch.env_ids.tolist(), batch.observations.tolist(), strict=True):
            if ticks[env_id] == len(expected):
                expected.append(reference.step(zeros(4))[0].tolist())
            assert row == expected[ticks[env_id]][env_id], (env_id, ticks[env_id])
            ticks[env_id] += 1
        compared = batch

    vec, ticks, compared = start(), [0] * 4, None  # ticks: of each environment, how many rows have been received
    try:
        deadline_s = time.monotonic() + 90
        while num_interrupts < 60 and time.monotonic() < deadline_s:
            try:
                try:
                    armed = True
                    # An exception in a destructor, or in a hook of the garbage collector, is lost: hence again.
                    alarm(float(random.uniform(2e-5, 3e-3)), strike, again_s=0.1)
                    while True:
                        if vec._scheduler.num_coming < batch_size:
                            vec.send(zeros(batch_size))
                        vec.recv()
                        armed = False
                        compare()
                        armed = True
                finally:
                    armed = False
            except (KeyboardInterrupt, TimeoutError, SystemExit, pufferlib.errors.ClosedError):
                num_interrupts += 1
            except pufferlib.WorkerError as error:  # it came within user code: an environment here, or unpickling
                assert backend == "serial" or "raised in unpickling" in str(error), error
                assert any(name in str(error) for name in ("TimeoutError", "SystemExit")), error
                num_interrupts += 1
                vec.close()
            if vec.closed:
                num_closed += 1
                assert set(psutil.Process().children()) <= before
                vec, ticks, compared = start(), [0] * 4, None
            else:
                compare()
        assert num_interrupts == 60
        print(f"{num_closed} of {num_interrupts} closed it")
        assert len(expected) > 50
    finally:
        vec.close()
        reference.close()


def test_ctrl_c_again_and_again_while_closing(tmp_path: Path, alarm: Any) -> None:
    """The environments have had their time then; workers and descriptors go all the same, at the next close."""
    gate = tmp_path / "gate"
    vec = pufferlib.make(functools.partial(GateEnv, gate), backend="pool", num_envs=2, num_workers=2)
    vec.reset()
    pids = vec._workers.pids
    vec.send(ones(2))  # neither ends
    alarm(0.2, lambda: raise_(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        vec.close(grace_s=60)
    with pytest.raises(pufferlib.errors.ClosedError):
        vec.recv()
    vec.close(grace_s=60)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


# ------------------------------------------------------------------------------------------------------ at the end


def test_a_generator_that_is_dropped_closes_its_vec(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def batches() -> Iterator[Any]:
        with pufferlib.make(functools.partial(GateEnv, log=log), backend="pool", num_envs=2, num_workers=2) as vec:
            yield vec.reset()[0]
            while True:
                yield vec.step(zeros(2))[0]

    generator = batches()
    assert [next(generator).tolist() for _ in range(2)] == [[[0], [0]], [[1], [1]]]
    del generator
    assert log.read_text() == "closed\n" * 2


LAST_WORDS = """
import functools, pathlib, sys, threading
import numpy as np, pufferlib, test_sharing as sharing
log = pathlib.Path(sys.argv[1])
class Trainer:
    def __init__(self):
        self.vec = pufferlib.make(functools.partial(sharing.GateEnv, log=log), backend=sys.argv[2], num_envs=2,
                                  num_workers=2)
        self.vec.reset()
        self.vec.step(np.zeros(2, int))
        self.loop = self.steps()
        next(self.loop)
    def steps(self):
        with self.vec:
            while True:
                yield self.vec.step(np.zeros(2, int))
    def __del__(self):
        self.vec.close()
        self.vec.close()
trainer = Trainer()
trainer.cycle = trainer
"""


ENDINGS = {
    "as it is": "",
    "by exit": "sys.exit()",
    "by a cycle": "del trainer; import gc; gc.collect()",
    "in flight": "trainer.vec.send(np.zeros(2, int))",
    "by a handler": "import atexit; atexit.register(trainer.vec.close)",
}


@covering({"backend": ["serial", "pool"], "how": [*ENDINGS]})
def test_a_program_that_ends_closes_its_environments_once_and_quietly(backend: str, how: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(LAST_WORDS + ENDINGS[how], str(log), backend)
    assert log.read_text() == "closed\n" * 2
