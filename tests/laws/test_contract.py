"""What VecEnv promises beside its trajectories: order, seeds, memory, infos, autoreset, control, waiting."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.spaces import Box, Discrete
from mock_envs import HashEnv, TagEnv
from programs import running

import pufferlib
from pufferlib import _native
from pufferlib.layout import Layout, leaves
from pufferlib.vectorization.core.plan import Plan, Seeds, _cgroup_cpus, available_cpus
from pufferlib.vectorization.processes.start import starting

pytestmark = pytest.mark.beside

BACKENDS = ("serial", "multiprocessing", "pool")
PARALLEL = ("multiprocessing", "pool")
LongEnv = functools.partial(HashEnv, mean_length=10**6)
ROOT = Path(__file__).parents[2]


class Clock(gymnasium.Env[Any, Any]):
    """Observes how often it was stepped and reset; ends by truncation after ``length`` steps.

    gate: a file that each step waits for; "": none.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "secret": 7}

    def __init__(self, length: int = 3, gate: str = "", env_index: int = 0) -> None:
        self.observation_space = Box(0, 1e6, (2,), np.float64)
        self.action_space = Discrete(2)
        self.length, self.gate, self.env_index = length, gate, env_index
        self.render_mode = "ansi"
        self.num_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed_given, self.options = seed, options
        self.num_resets += 1
        self.tick = 0
        return np.array([self.num_resets, self.tick], np.float64), {"reset": self.num_resets}

    def step(self, action: Any) -> Any:
        while self.gate and not os.path.exists(self.gate):
            time.sleep(0.001)
        self.tick += 1
        over = self.tick >= self.length
        return np.array([self.num_resets, self.tick], np.float64), 0.5, False, over, {"last": 1} if over else {}

    def render(self) -> Any:
        return f"tick {self.tick}"

    def double(self, number: int) -> int:
        return 2 * number


# ------------------------------------------------------------------------------------------------ counts and order


@pytest.mark.parametrize(("num_envs", "num_workers"), [(1, 1), (7, 3), (64, 5), (5, 5)])
def test_shares_are_contiguous_and_differ_by_one_at_most(num_envs: int, num_workers: int) -> None:
    plan = Plan.of(num_envs, num_workers, None)
    assert [env_id for share in plan.shares for env_id in share] == list(range(num_envs))
    sizes = [len(share) for share in plan.shares]
    assert len(sizes) == num_workers and max(sizes) - min(sizes) <= 1


def test_default_counts_respect_affinity_and_quota(tmp_path: Path) -> None:
    assert 1 <= available_cpus() <= len(os.sched_getaffinity(0))
    cgroup_file = tmp_path / "cgroup"
    cgroup_file.write_text("0::/a/b\n")
    (tmp_path / "root/a/b").mkdir(parents=True)
    assert _cgroup_cpus(tmp_path / "root", cgroup_file) > 10**6
    (tmp_path / "root/a/cpu.max").write_text("350000 100000\n")
    (tmp_path / "root/a/b/cpu.max").write_text("max 100000\n")
    assert _cgroup_cpus(tmp_path / "root", cgroup_file) == 3
    (tmp_path / "root/a/b/cpu.max").write_text("20000 100000\n")
    assert _cgroup_cpus(tmp_path / "root", cgroup_file) == 1
    cgroup_file.write_text("4:cpu,cpuacct:/c\n")
    (tmp_path / "root/cpu/c").mkdir(parents=True)
    (tmp_path / "root/cpu/c/cpu.cfs_quota_us").write_text("200000")
    (tmp_path / "root/cpu/c/cpu.cfs_period_us").write_text("100000")
    assert _cgroup_cpus(tmp_path / "root", cgroup_file) == 2


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_small_batches_rotate_in_the_order_of_sending(backend: str) -> None:
    creator = functools.partial(HashEnv, mean_length=10**6, max_delay_s=0.003)
    with pufferlib.make(creator, backend=backend, num_envs=5, num_workers=3, batch_size=2) as vec:
        vec.async_reset()
        env_ids = []
        for _ in range(10):
            env_ids += vec.recv().env_ids.tolist()
            vec.send(np.zeros(2, np.int64))
        assert env_ids == [0, 1, 2, 3, 4] * 4
    with pufferlib.make(LongEnv, backend=backend, num_envs=4, num_workers=2, batch_size=2) as vec:
        vec.reset()
        vec.recv()
        vec.send(np.zeros(2, np.int64), env_ids=[3, 0])
        vec.send(np.zeros(2, np.int64), env_ids=[1, 2])
        assert vec.recv().env_ids.tolist() == [3, 0]
        assert vec.recv().env_ids.tolist() == [1, 2]


def test_a_pool_hands_back_the_first_to_finish_and_starves_none(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    creators = [functools.partial(Clock, 10**6, "" if env_id else str(gate)) for env_id in range(6)]
    with pufferlib.make(creators, backend="pool", num_workers=6, batch_size=2) as vec:
        vec.async_reset()
        while 0 not in vec.recv().env_ids:  # its process may be the last to start
            vec.send(np.zeros(2, np.int64))
        vec.send(np.zeros(2, np.int64))  # the slow one waits for the gate
        fast = []
        for _ in range(20):
            fast += vec.recv(timeout=60).env_ids.tolist()
            vec.send(np.zeros(2, np.int64))
        assert 0 not in fast  # forty rows of the five fast ones do not wait for the slow one
        gate.touch()
        vec.get_attr("tick")  # answered when all have finished
        soon = []
        for _ in range(3):
            soon += vec.recv().env_ids.tolist()
            vec.send(np.zeros(2, np.int64))
        assert sorted(soon) == [0, 1, 2, 3, 4, 5]


# ----------------------------------------------------------------------------------------------------------- seeds


def test_seeds_are_31_bits_distinct_and_derived_by_spawn_key() -> None:
    seeds = Seeds(5, 3000)
    drawn = [seeds[env_id] for env_id in range(3000)]
    assert len(set(drawn)) == 3000 and all(0 <= seed < 2**31 for seed in drawn)
    for env_id in (0, 17, 2999):
        sequence = np.random.SeedSequence(5, spawn_key=(env_id, 0))
        assert drawn[env_id] == int(sequence.generate_state(1)[0]) & 0x7FFFFFFF
    assert seeds.draw(0, restarts=1) not in drawn


def test_seeds_that_meet_are_drawn_again() -> None:
    seeds = Seeds(5, 1)
    again = seeds.draw(0)  # the same spawn key would give the same seed
    assert again != seeds[0]
    assert again == int(np.random.SeedSequence(5, spawn_key=(0, 0)).generate_state(2)[1]) & 0x7FFFFFFF


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_reach_first_resets_only_and_can_be_listed(backend: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=3, num_workers=2, seed=9) as vec:
        vec.reset()
        assert vec.get_attr("seed_given") == [Seeds(9, 3)[env_id] for env_id in range(3)]
        vec.reset()
        assert vec.get_attr("seed_given") == [None] * 3
        vec.reset(seed=4)
        assert vec.get_attr("seed_given") == [Seeds(4, 3)[env_id] for env_id in range(3)]
        vec.reset(seed=[7, 8, 9])
        assert vec.get_attr("seed_given") == [7, 8, 9]
        vec.reset(options={"level": 2})
        assert vec.get_attr("options") == [{"level": 2}] * 3
        vec.reset(options=[None, {"level": 1}, None])
        assert vec.get_attr("options") == [None, {"level": 1}, None]


class GlobalDraws(HashEnv):
    def step(self, action: Any) -> Any:
        observation, reward, _, _, _ = super().step(action)
        return observation, reward, False, False, {"global": float(np.random.random())}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_global_generators_differ_between_workers(context: str) -> None:
    with pufferlib.make(
        GlobalDraws, backend="multiprocessing", num_envs=2, num_workers=2, context=context, seed=1
    ) as vec:
        vec.reset()
        draws = [info["global"] for info in vec.step(np.zeros(2, np.int64))[4]]
        assert draws[0] != draws[1]


# ---------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_synchronous_batch_is_a_view_and_copy_makes_it_last(backend: str) -> None:
    with pufferlib.make(LongEnv, backend=backend, num_envs=4, num_workers=2) as vec:
        vec.reset()
        for _ in range(4):
            observations = vec.step(np.zeros(4, np.int64))[0]
            assert not observations.flags.owndata
            assert np.shares_memory(observations, vec._slab.observations)
    with pufferlib.make(LongEnv, backend=backend, num_envs=4, num_workers=2, copy=True) as vec:
        vec.reset()
        copied = [vec.step(np.zeros(4, np.int64))[0] for _ in range(6)]
        copies = [array.copy() for array in copied]
        for _ in range(6):
            vec.step(np.zeros(4, np.int64))
        assert all(np.array_equal(array, copy) for array, copy in zip(copied, copies, strict=True))


def test_neighbours_that_finish_together_are_a_view_of_the_slab() -> None:
    with pufferlib.make(LongEnv, backend="pool", num_envs=4, num_workers=1, batch_size=2) as vec:
        vec.async_reset()
        assert np.shares_memory(vec.recv().observations, vec._slab.observations)


# ------------------------------------------------------------------------------------------- infos and autoreset


@pytest.mark.parametrize("backend", BACKENDS)
def test_next_step_infos_masks_and_episodes(backend: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=2, num_workers=2) as vec:
        _, infos = vec.reset()
        assert infos == [{"reset": 1, "env_id": i, "agent_id": i} for i in range(2)]
        assert not vec.batch.masks.any()
        for tick in (1, 2, 3):
            observations, rewards, terminations, truncations, infos = vec.step(np.zeros(2, np.int64))
            assert observations.tolist() == [[1, tick]] * 2
            assert rewards.tolist() == [0.5, 0.5]
            assert truncations.all() == (tick == 3) and not terminations.any()
            assert vec.batch.masks.all()
        for env_id, info in enumerate(infos):
            assert info["episode"].pop("t") > 0
            assert info == {
                "last": 1, "env": True, "episode": {"r": 1.5, "l": 3}, "env_id": env_id, "agent_id": env_id
            }  # fmt: skip
        observations, rewards, _, truncations, infos = vec.step(np.ones(2, np.int64))
        assert observations.tolist() == [[2, 0]] * 2  # the action was ignored
        assert not rewards.any() and not truncations.any() and not vec.batch.masks.any()
        assert [info["reset"] for info in infos] == [2, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_step_infos_hold_the_final_observation(backend: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=2, num_workers=2, autoreset_mode="same_step") as vec:
        vec.reset()
        for _ in range(3):
            observations, rewards, _, truncations, infos = vec.step(np.zeros(2, np.int64))
        assert observations.tolist() == [[2, 0]] * 2  # the next episode's first
        assert rewards.tolist() == [0.5, 0.5] and truncations.all() and vec.batch.masks.all()
        for env_id, info in enumerate(infos):
            assert info["final_obs"].tolist() == [1, 3]
            assert info["final_info"]["last"] == 1
            assert (info["episode"]["r"], info["episode"]["l"], info["reset"]) == (1.5, 3, 2)
            assert (info["env_id"], info["agent_id"], info["env"]) == (env_id, env_id, True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_disabled_envs_wait_for_their_user(backend: str) -> None:
    creators = [functools.partial(Clock, length) for length in (1, 2, 3)]
    with pufferlib.make(creators, backend=backend, num_workers=2, autoreset_mode="disabled") as vec:
        vec.reset()
        vec.step(np.zeros(3, np.int64))
        before = vec.batch.observations.copy()
        observations, infos = vec.reset(env_ids=[0])
        assert observations.tolist() == [[2, 0], *before[1:].tolist()]
        assert [info["env_id"] for info in infos] == [0]
        assert not vec.batch.masks.any()
        assert vec.batch.truncations.tolist() == [False, False, False]
        observations, _, _, truncations, _ = vec.step(np.zeros(3, np.int64))
        assert observations.tolist() == [[2, 1], [1, 2], [1, 2]]
        assert truncations.tolist() == [True, True, False]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_reset_right_after_an_ending_eats_no_action(backend: str, mode: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=2, num_workers=2, autoreset_mode=mode) as vec:
        vec.reset()
        for _ in range(3):
            truncations = vec.step(np.zeros(2, np.int64))[3]
        assert truncations.all()
        first, _ = vec.reset()
        num_resets = first[0, 0]
        assert vec.step(np.zeros(2, np.int64))[0].tolist() == [[num_resets, 1]] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_reset_in_flight_executes_and_drops_what_was_sent(backend: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=4, num_workers=2, batch_size=2) as vec:
        vec.async_reset()
        vec.recv()
        vec.send(np.zeros(2, np.int64))
        observations, _ = vec.reset()
        assert observations.tolist() == [[2, 0]] * 2
        vec.async_reset()
        vec.async_reset()  # a second one is no error either
        assert vec.recv().observations.tolist() == [[4, 0]] * 2
        vec.recv()
        assert vec.get_attr("num_resets") == [4] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_few_can_be_reset_while_others_go_on(backend: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=4, num_workers=2, batch_size=2, env_args=[99]) as vec:
        vec.async_reset()
        first = vec.recv().env_ids.tolist()
        second = vec.recv().env_ids.tolist()
        vec.send(np.zeros(2, np.int64), env_ids=first)
        vec.async_reset(env_ids=second)
        seen = {}
        for _ in range(2):
            batch = vec.recv()
            seen.update(
                zip(batch.env_ids.tolist(), zip(batch.observations.tolist(), batch.masks, strict=True), strict=True)
            )
        assert all(seen[env_id] == ([1, 1], True) for env_id in first)
        assert all(seen[env_id] == ([2, 0], False) for env_id in second)


# --------------------------------------------------------------------------------------------------------- control


@pytest.mark.parametrize("backend", BACKENDS)
def test_control_reaches_chosen_envs(backend: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=5, num_workers=2, env_args=[99]) as vec:
        vec.reset()
        assert vec.metadata["secret"] == 7 and vec.render_mode == "ansi"
        assert vec.get_attr("env_index") == [0, 1, 2, 3, 4]
        assert vec.call("double", 21, env_ids=[3, 1]) == [42, 42]
        vec.set_attr("length", [2, 3], env_ids=[4, 0])
        assert vec.get_attr("length") == [3, 99, 99, 99, 2]
        vec.set_attr("length", 50)
        assert vec.get_attr("length", env_ids=[2, 0]) == [50, 50]
        vec.send(np.zeros(5, np.int64))
        assert vec.render(env_ids=[1]) == ["tick 1"]  # what was sent comes first
        assert vec.recv().observations.tolist() == [[1, 1]] * 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_recv_times_out_and_can_be_repeated(backend: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        pufferlib.make(Clock, backend=backend, num_envs=2, num_workers=2, env_args=[99, f"{folder}/gate"]) as vec,
    ):
        vec.reset()
        if backend == "serial":  # which has finished when send returns
            Path(folder, "gate").touch()
        vec.send(np.zeros(2, np.int64))
        if backend != "serial":
            with pytest.raises(pufferlib.RecvTimeout, match=r"no batch within 0\.01 s: 0 environments have finished"):
                vec.recv(timeout=0.01)
            Path(folder, "gate").touch()
        assert vec.recv(timeout=60).observations.tolist() == [[1, 1]] * 2


@pytest.mark.parametrize("backend", PARALLEL)
def test_worker_output_carries_the_workers_name(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    def creator(env_index: int) -> Any:
        print("hello from", env_index, "in", sys.stdout.encoding.upper())
        print("a warning", file=sys.stderr)
        return Clock()

    pufferlib.make(creator, backend=backend, num_envs=2, num_workers=2).close()
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [f"[worker {index}] hello from {index} in UTF-8" for index in range(2)]
    assert sorted(err.splitlines()) == ["[worker 0] a warning", "[worker 1] a warning"]


@pytest.mark.parametrize("backend", PARALLEL)
def test_environments_are_made_in_workers_alone(backend: str) -> None:
    with pufferlib.make(Clock, backend=backend, num_envs=2, num_workers=2) as vec:
        pids = {process.pid for process in vec._workers.backend._processes.values()}
        vec.set_attr("where", 0)
        assert os.getpid() not in pids and len(pids) == 2


def threads_of_blas() -> list[int]:
    import threadpoolctl

    return [info["num_threads"] for info in threadpoolctl.threadpool_info()]


def num_idle() -> int:
    """Return how many threads this process has besides the one that runs; 0 where an OpenBLAS cannot end its own."""
    import threadpoolctl

    libraries = threadpoolctl.ThreadpoolController().select(internal_api="openblas").lib_controllers
    loaded = [getattr(library, "dynlib", None) or library._dynlib for library in libraries]
    if not loaded or not all(hasattr(blas, "blas_thread_shutdown_") for blas in loaded):
        return 0
    return len(os.listdir("/proc/self/task")) - 1 if sys.platform.startswith("linux") else 0


class BlasEnv(Clock):
    def blas(self) -> Any:
        return threads_of_blas(), os.environ.get("OMP_NUM_THREADS"), num_idle()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_cap_their_threads_at_one(context: str) -> None:
    before = threads_of_blas()
    with pufferlib.make(BlasEnv, backend="pool", num_envs=1, num_workers=1, context=context) as vec:
        [(threads, variable, idle)] = vec.call("blas")
        assert all(number == 1 for number in threads) and variable == "1"
        assert context != "fork" or idle == 0  # none that a cap of one leaves without work
    assert threads_of_blas() == before
    unlimited = {"worker_threads": None}
    with pufferlib.make(BlasEnv, backend="pool", num_envs=1, context="fork", backend_kwargs=unlimited) as vec:
        assert vec.call("blas")[0][0] == before


class VisionEnv(Clock):
    def threads(self) -> int:
        import cv2

        return int(cv2.getNumThreads())

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index=env_index)
        self.threads()


@pytest.mark.extras
@pytest.mark.parametrize(("context", "settings"), [("fork", {}), ("spawn", {}), ("fork", {"worker_threads": None})])
def test_workers_have_no_more_threads_of_opencv(context: str, settings: dict[str, Any]) -> None:
    """Without a limit that tells that OpenCV was at rest at the fork: else a child may wait for ever."""
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        picture = np.zeros((720, 720, 3), np.uint8)
        cv2.resize(picture, (84, 84), interpolation=cv2.INTER_AREA)
        kwargs: Any = {"context": context, "backend_kwargs": settings}
        with pufferlib.make(VisionEnv, backend="pool", num_envs=1, num_workers=1, **kwargs) as vec:
            assert vec.call("threads") == [1] and cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


def test_an_opencv_without_functions_has_no_threads_to_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a folder imports that an uninstalled package has left behind, and so does what is about to be imported."""
    monkeypatch.setitem(sys.modules, "cv2", ModuleType("cv2"))
    with pufferlib.make(Clock, backend="pool", num_envs=2, num_workers=2, context="fork") as vec:
        vec.reset()


@pytest.fixture
def opencv(monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenCV as far as its threads go, of which it has three."""
    opencv: Any = ModuleType("cv2")
    opencv.threads = 3
    opencv.getNumThreads = lambda: opencv.threads
    opencv.setNumThreads = lambda threads: setattr(opencv, "threads", threads)
    monkeypatch.setitem(sys.modules, "cv2", opencv)
    return opencv


def test_two_threads_that_fork_leave_opencv_as_many_as_it_had(opencv: Any) -> None:
    began, met, left = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        began.wait()
        with starting("fork"):
            assert opencv.threads == 1
            met.set()
            left.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with starting("fork"):
        began.set()
        met.wait(0.2)  # which it does not, where one waits for the other
    left.set()
    thread.join()
    assert opencv.threads == 3


def test_who_was_forked_while_opencv_was_at_rest_forks_too(opencv: Any) -> None:
    with starting("fork"):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            with starting("fork"):
                os._exit(opencv.threads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1 and opencv.threads == 3


@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_an_idle_pool_uses_no_cpu() -> None:
    with pufferlib.make(LongEnv, backend="pool", num_envs=8, num_workers=4, batch_size=4) as vec:
        vec.async_reset()
        vec.recv()
        vec.get_attr("tick")  # answered when all have finished
        time.sleep(0.5)  # the last answer is followed by some work
        processes = [psutil.Process(), *psutil.Process().children()]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        time.sleep(1.0)
        after = [sum(process.cpu_times()[:2]) for process in processes]
        assert sum(after) - sum(before) < 0.05  # seconds of one second, over five processes


INTERRUPTED = """
import signal, sys, time; sys.path.insert(0, {tests!r})
import numpy as np, pufferlib
from test_contract import Clock
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
vec = pufferlib.make(Clock, backend="pool", num_envs=2, num_workers=2, env_args=[99, sys.argv[1]])
vec.reset()
vec.send(np.zeros(2, np.int64))
try:
    print("ready", flush=True)  # in here: whoever reads it may be quicker with the signal than we with the next line
    vec.recv()
except KeyboardInterrupt:
    open(sys.argv[1], "w").close()
    print(vec.recv().observations.tolist(), flush=True)
    vec.close()
    print("closed", flush=True)
"""


def test_ctrl_c_reaches_the_parent_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(tests=str(ROOT / "tests/laws")), str(tmp_path / "gate")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")])}
    with running(command, env=environment, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone in the foreground
        assert process.stdout.read() == "[[1.0, 1.0], [1.0, 1.0]]\nclosed\n"
        assert process.stderr.read() == ""


class Interrupted(Clock):
    def step(self, action: Any) -> Any:
        if action == 1:
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("compiled", [True, False])
def test_ctrl_c_inside_a_serial_environment_closes_the_vec(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "available", compiled and _native.available)
    closed: list[int] = []
    monkeypatch.setattr(Interrupted, "close", lambda self: closed.append(1), raising=False)
    with pufferlib.make(Interrupted, num_envs=3, env_args=[99]) as vec:
        vec.reset()
        with pytest.raises(KeyboardInterrupt):
            vec.step(np.array([0, 1, 0]))
        assert vec.closed and closed == [1, 1, 1]
        for call in (vec.recv, vec.reset, lambda: vec.send(np.zeros(3, np.int64)), lambda: vec.call("close")):
            with pytest.raises(pufferlib.errors.ClosedError, match="because KeyboardInterrupt ended a call"):
                call()


def test_spawn_is_chosen_where_threads_run() -> None:
    from pufferlib.vectorization.processes.start import start_method

    assert start_method(None) == "fork"
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert start_method(None) == "spawn"
        with pufferlib.make(Clock, backend="pool", num_envs=2, num_workers=2) as vec:
            vec.reset()
    finally:
        stop.set()
        thread.join()


def test_a_thread_of_c_that_has_ended_is_none_that_runs() -> None:
    """Ray's log from such threads, and Python before 3.13 lists them for ever."""
    import ctypes

    from pufferlib.vectorization.processes.start import running_threads, start_method

    libc = ctypes.CDLL(None)
    seen: list[threading.Thread] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def called(_: int) -> None:
        seen.append(threading.current_thread())

    ident = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(ident), None, called, None) == 0
    assert libc.pthread_join(ident, None) == 0
    assert isinstance(seen[0], threading._DummyThread)
    assert running_threads() == [threading.current_thread()]
    assert start_method(None) == "fork"


class Celsius(gymnasium.Space[float]):
    """A space of one's own, which pufferlib has to be taught."""

    def sample(self, *args: Any, **kwargs: Any) -> float:
        return float(self.np_random.integers(50))

    def contains(self, x: Any) -> bool:
        return isinstance(x, float)


class Thermometer(Clock):
    def __init__(self) -> None:
        super().__init__(99)
        self.observation_space = gymnasium.spaces.Dict(now=Celsius(), ticks=Box(0, 99, (1,), np.float32))

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return {"now": 21.5, "ticks": np.zeros(1, np.float32)}, {}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_know_the_custom_spaces_that_layouts_were_taught(context: str) -> None:
    leaves.registry.pop(Celsius, None)
    with pytest.raises(pufferlib.WorkerError, match="Celsius"):
        pufferlib.make(Thermometer, backend="pool", context=context)
    Layout.register(Celsius, lambda space: Box(-300, 10**4, (), np.float64), lambda space, x: np.array(x),
                    lambda space, x: float(x))  # fmt: skip
    try:
        with pufferlib.make(Thermometer, backend="pool", context=context) as vec:
            observations, _ = vec.reset()
            assert vec.observation_layout.decode(observations[0])["now"] == 21.5
    finally:
        leaves.registry.pop(Celsius)


def test_mixed_lengths_of_envs_share_one_vec() -> None:
    with pufferlib.make([functools.partial(TagEnv, num_agents=3, length=n) for n in (1, 2)], num_workers=1) as vec:
        assert (vec.agents_per_env, vec.agents_per_batch) == (3, 6)
        assert vec.observation_space.shape == (6, 3) and vec.action_space.shape == (6,)
        vec.reset()
        vec.step(np.zeros(6, np.int64))
        assert vec.batch.terminations.tolist() == [True] * 3 + [False] * 3
        lasts = [info for info in vec.batch.infos if "env" in info]
        assert [(info["env_id"], info["episode"]["l"], "agent_id" in info) for info in lasts] == [(0, 1, False)]
        assert len(vec.batch.infos) == 4  # one for each agent, one for the environment
