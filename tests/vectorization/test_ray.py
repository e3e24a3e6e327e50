"""backend="ray" keeps the laws of VecEnv: those of the other backends' tests, and what Ray alone can break."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compat_programs
import numpy as np
import psutil
import pytest
import test_contract
import test_failures
import test_misuse
import test_payoffs
import test_restarts
import test_same_program
import test_task_queue
import test_vectorization
import test_ways_out
from fatal_tasks import Deadly, fails, hangs_once
from matrix import covering
from mock_envs import HashEnv, LargeEnv, WideEnv
from pages import play, programs
from shadow import Shadow

import pufferlib
import pufferlib.vector
from pufferlib import construct
from pufferlib.errors import PlanError, WorkerError
from pufferlib.population import Coordinator, Task
from pufferlib.tuning import bench
from pufferlib.vectorization import Ray
from pufferlib.vectorization.ray.actor import SMALL_NBYTES
from pufferlib.vectorization.ray.backend import RayBackend

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.extras,
    pytest.mark.slow,
    pytest.mark.beside,
    pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning"),
]

LONG = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
        ray.init("local", include_dashboard=False, num_cpus=4, logging_level="error")
        yield
        ray.shutdown()


def actors() -> set[psutil.Process]:
    """The processes of actors of ours."""
    processes = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] in [["ray::WorkersActor"], ["ray::RemoteTaskRunner"]]:
                processes.add(process)
        except psutil.Error:
            continue
    return processes


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """As everywhere; but idle processes of Ray's come and go as it likes."""
    yield
    _, left = psutil.wait_procs(actors(), timeout=60)
    assert not left


def in_processes(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    """Run every actor's environments in processes of its node."""

    monkeypatch.setattr(Ray, "_make_backend", functools.partial(RayBackend, local_workers=num))


ARRANGEMENTS = [
    ("nested", 5, 2, 2, "next_step", 0),
    pytest.param("population", 5, 2, 5, "same_step", 2, marks=LONG),
    pytest.param("nested", 5, 1, 5, "same_step", 0, marks=LONG),
    pytest.param("population", 5, 2, 5, "next_step", 0, marks=LONG),
    pytest.param("flat", 5, 2, 2, "next_step", 0, marks=LONG),
    pytest.param("nested", 6, 2, 3, "next_step", 1, marks=LONG),
]


@pytest.mark.parametrize(("kind", "num_envs", "num_workers", "batch_size", "mode", "local_workers"), ARRANGEMENTS)
def test_trajectories_are_those_of_serial(
    kind: str,
    num_envs: int,
    num_workers: int,
    batch_size: int,
    mode: str,
    local_workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_processes(monkeypatch, local_workers)
    counts = dict(num_envs=num_envs, num_workers=num_workers, batch_size=batch_size)
    test_vectorization.assert_identical(("ray",), kind, counts, seed=3, mode=mode, delay_s=0.002)


IN_PLACE: list[Any] = [  # long: the same program or IN_PROCESSES shows it, or no actor has to do with it
    (test_vectorization.test_a_batch_is_valid_until_the_second_recv_after_it, ()),
    pytest.param(test_contract.test_disabled_envs_wait_for_their_user, (), marks=LONG),
    pytest.param(test_contract.test_reset_in_flight_executes_and_drops_what_was_sent, (), marks=LONG),
    (test_contract.test_a_few_can_be_reset_while_others_go_on, ()),
    pytest.param(test_contract.test_control_reaches_chosen_envs, (), marks=LONG),
    (test_failures.test_an_exception_names_environment_worker_and_traceback, (994, "Unpicklable: has a lock inside")),
    pytest.param(test_failures.test_an_info_that_cannot_be_sent_is_an_error_of_its_environment_alone, (), marks=LONG),
    pytest.param(test_restarts.test_only_an_environment_that_raises_is_restarted, (6, "next_step"), marks=LONG),
    pytest.param(test_misuse.test_what_cannot_be_unpickled_is_a_failure_of_its_environment, (), marks=LONG),
    pytest.param(test_ways_out.test_autoreset_modes_are_gymnasiums_too, ("same_step",), marks=LONG),
    pytest.param(test_ways_out.test_errors_about_sizes_say_where_make_takes_them, (), marks=LONG),
    pytest.param(test_ways_out.test_what_the_repr_shows_can_be_read, (), marks=LONG),
]
IN_PROCESSES: list[Any] = [
    pytest.param(test_contract.test_recv_times_out_and_can_be_repeated, (), marks=LONG),
    pytest.param(test_failures.test_an_exception_in_init_is_raised_by_make, (), marks=LONG),
    (test_failures.test_a_call_of_a_dead_worker_is_refused_rather_than_waited_for, ()),
    (test_restarts.test_only_an_environment_that_raises_is_restarted, (4, "same_step")),
    pytest.param(test_restarts.test_a_step_that_takes_too_long_crashes, ("first",), marks=LONG),
]


def name_of(value: Any) -> str:
    return value.__name__.removeprefix("test_") if callable(value) else "-".join(map(str, value))


@pytest.mark.parametrize(("law", "args"), IN_PLACE, ids=name_of)
def test_laws(law: Callable[..., None], args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_restarts, "NUM_WORKERS", 2)
    law("ray", *args)


@pytest.mark.parametrize(("law", "args"), IN_PROCESSES, ids=name_of)
def test_laws_in_processes(law: Callable[..., None], args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_processes(monkeypatch, 1)
    monkeypatch.setattr(test_restarts, "NUM_WORKERS", 2)
    monkeypatch.setattr(test_restarts, "STEP_TIMEOUT_S", 1.0)  # another test has a part of the machine
    law("ray", *args)


@pytest.mark.parametrize("local_workers", [0, 1], ids=["actor", "process"])
def test_a_death_costs_only_the_environments_of_its_worker(local_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor, or a process of one; every row is checked."""
    random, killed = np.random.default_rng(2), set[int]()
    in_processes(monkeypatch, local_workers)
    with test_restarts.make("ray", num_envs=4, num_workers=2, batch_size=3) as vec:
        shadow = Shadow(
            vec,
            HashEnv,
            seed=5,
            lethal=frozenset({test_restarts.KILLS}),
            may_crash=lambda env_id: env_id // 2 in killed,
        )
        shadow.async_reset()
        while shadow.num_crashes < 4 or shadow.num_steps < 200:
            batch = shadow.recv()
            actions = test_restarts.some_actions(random, 3, KILLS=0.02 if shadow.num_crashes < 4 else 0)
            killed.update((batch.env_ids[actions == test_restarts.KILLS] // 2).tolist())
            shadow.send(actions)
            causes = [info["restarted"] for info in batch.infos if "restarted" in info]
            ends = "was killed by signal 9" if local_workers else "was lost with its actor"
            assert all(" on node " in cause and ends in cause for cause in causes)


def test_a_wire_that_ends_takes_only_its_own_environments_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are small here, so they come directly; every row is checked, and what is placed again has a wire."""
    in_processes(monkeypatch, 1)
    creator = functools.partial(HashEnv, mean_length=10**6)  # so that there is an open episode to lose
    with test_restarts.make("ray", env=creator, num_envs=4, num_workers=2, batch_size=3) as vec:
        actor = vec._workers.backend._actors[1]  # type: ignore[attr-defined]
        shadow = Shadow(vec, creator, seed=5, may_crash=lambda env_id: env_id in actor.env_ids)
        says = "nothing has ended"

        def play() -> None:
            causes = [info["restarted"] for info in shadow.recv().infos if "restarted" in info]
            assert all(" on node " in cause and says in cause for cause in causes)
            shadow.send(np.zeros(3, np.int64))

        shadow.async_reset()
        for _ in range(10):
            play()
        ends = ["was lost with its actor", "was lost with the connection to its actor"]
        for num_lost, says in enumerate(ends, 1):  # noqa: B007  what play reads
            client = actor.client
            assert client is not None
            if num_lost == 1:
                os.kill(ray.get(actor.handle.__ray_call__.remote(lambda actor: os.getpid())), signal.SIGKILL)
            else:
                with socket.fromfd(client.fileno(), socket.AF_INET, socket.SOCK_STREAM) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
            # They come in any two batches.
            while shadow.num_crashes < num_lost * len(actor.env_ids) or actor.client in (None, client):
                play()
            for _ in range(30):
                play()
            assert shadow.num_crashes == num_lost * len(actor.env_ids)


def test_actors_whose_own_rows_are_few_are_called_directly_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of these observations are few enough for a wire, three are not."""
    in_processes(monkeypatch, 1)
    with pufferlib.make(WideEnv, backend="ray", num_envs=5, num_workers=2, batch_size=2, seed=5) as vec:
        assert [actor.client is None for actor in vec._workers.backend._actors] == [False, True]
        shadow = Shadow(vec, WideEnv, seed=5)
        shadow.async_reset()
        for _ in range(30):
            shadow.recv()
            shadow.send(np.zeros(2, np.int64))


def test_actors_that_cannot_be_reached_directly_are_called_through_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: Any) -> None:
        raise TimeoutError("timed out")

    in_processes(monkeypatch, 1)
    monkeypatch.setattr("pufferlib.vectorization.ray.calls.SocketClient", unreachable)
    says = r"actor \d on node .* cannot be reached directly at .* \(timed out\)"
    with (
        pytest.warns(RuntimeWarning, match=says) as seen,
        pufferlib.make(HashEnv, backend="ray", num_envs=4, num_workers=2, seed=5) as vec,
    ):
        shadow = Shadow(vec, HashEnv, seed=5)
        shadow.async_reset()
        for _ in range(10):
            shadow.recv()
            shadow.send(np.zeros(4, np.int64))
    assert len(seen) == 1


def test_a_killed_actor_is_an_error_that_says_where_and_reset_makes_another() -> None:
    with pufferlib.make(HashEnv, backend="ray", num_envs=4, num_workers=2, seed=0) as vec:
        vec.reset()
        os.kill(vec.call("pid")[2], signal.SIGKILL)
        vec.send(np.zeros(4, np.int64))
        with pytest.raises(pufferlib.WorkerError, match=r"worker 1 on node .*environments 2 to 3, was lost") as caught:
            vec.recv(timeout=30)
        assert caught.value.worker == 1
        vec.reset()
        vec.step(np.zeros(4, np.int64))


@pytest.mark.parametrize("batch_size", [pytest.param(4, marks=LONG), 2])
def test_an_actor_that_is_stopped_loses_nothing_when_it_goes_on(batch_size: int) -> None:
    """A batch of all waits for it, which a timeout tells; in a pool the others play on."""
    with pufferlib.make(HashEnv, backend="ray", num_envs=4, num_workers=2, batch_size=batch_size, seed=5) as vec:
        stopped = vec.call("pid")[2]
        shadow = Shadow(vec, HashEnv, seed=5)
        shadow.async_reset()
        shadow.recv()
        seen: list[int] = []

        def play(num: int) -> None:
            for _ in range(num):
                shadow.send(np.zeros(batch_size, np.int64))
                seen.extend(shadow.recv().env_ids.tolist())

        play(4)
        os.kill(stopped, signal.SIGSTOP)
        try:
            if batch_size == 2:
                play(20)  # of its own rows one batch at most was on its way
                assert not {2, 3} & set(seen[-30:])
            shadow.send(np.zeros(batch_size, np.int64))
            if batch_size == 4:
                finished = ""
                while "2 environments have finished" not in finished:
                    with pytest.raises(pufferlib.RecvTimeout, match=r"no batch within 0\.2 s: ") as timed_out:
                        vec.recv(timeout=0.2)
                    finished = str(timed_out.value)
        finally:
            os.kill(stopped, signal.SIGCONT)
        seen.clear()
        while not {2, 3} <= set(seen):
            seen.extend(shadow.recv().env_ids.tolist())
            shadow.send(np.zeros(batch_size, np.int64))
        assert vec.restarts == [0] * 4


@covering({"env": [HashEnv, LargeEnv], "num_workers": [1, 2]})
@LONG
def test_rows_are_writable_as_those_of_serial(env: type[HashEnv], num_workers: int) -> None:
    """Whatever the number of actors; and a partial reset finds the rows that it repeats."""
    assert LargeEnv.nbytes > SMALL_NBYTES
    counts = dict(num_envs=4, num_workers=num_workers, seed=0)
    with (
        pufferlib.make(env, backend="ray", **counts) as vec,  # type: ignore[arg-type]
        pufferlib.make(env, **counts) as serial,  # type: ignore[arg-type]
    ):
        before = vec.reset()[0].copy()
        serial.reset()
        for _ in range(5):
            before = vec.step(np.zeros(4, np.int64))[0].copy()
            serial.step(np.zeros(4, np.int64))
            for name in ("observations", "rewards", "terminations", "truncations", "env_ids", "agent_ids", "masks"):
                array, expected = getattr(vec.batch, name), getattr(serial.batch, name)
                assert (array.flags.writeable, array.dtype) == (expected.flags.writeable, expected.dtype), name
                assert np.array_equal(array, expected), name
        observations, _ = vec.reset(env_ids=[1])
        assert np.array_equal(observations[[0, 2, 3]], before[[0, 2, 3]])
        assert vec.batch.masks.tolist() == [False] * 4  # type: ignore[union-attr]
        copied = observations.copy()
        assert not np.array_equal(vec.step(np.zeros(4, np.int64))[0], copied)


SAME: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (test_same_program.test_every_output_is_that_of_serial, ({"as_torch": False}, "classic/cartpole")),
    (test_same_program.test_every_output_is_that_of_serial, ({}, "ocean/squared")),
    (test_same_program.test_every_output_is_that_of_serial, ({"as_torch": True, "copy": True}, "tag/grid")),
    (test_same_program.test_any_kind_of_actions_plays_the_same, ("bool", "ocean/squared")),
    (test_same_program.test_what_is_wrong_is_refused_alike, ("options",)),
    (test_same_program.test_what_is_wrong_is_refused_alike, ("method",)),
    (test_same_program.test_what_cannot_be_made_is_refused_alike, ("constructor",)),
]


def forms() -> Iterator[Any]:
    """Yield every second case of SAME over an actor; and, long, each case with each game over one actor and two."""
    for number, (test, args) in enumerate(SAME):
        games = [*test_same_program.GAMES] if args[1:] else [None]
        for game, num_workers in itertools.product(games, (1, 2)):
            case = args[:1] if game is None else (args[0], game)
            short = case == args and num_workers == 1 and number % 2 == 0
            name = "-".join(map(str, (test.__name__, *case, num_workers)))
            yield pytest.param(test, case, num_workers, id=name, marks=[] if short else LONG)


@pytest.mark.parametrize(("test", "args", "num_workers"), [*forms()])
def test_the_same_program(
    test: Callable[..., None], args: tuple[Any, ...], num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over the other four backends, whatever the number of actors."""
    monkeypatch.setattr(test_same_program, "NUM_WORKERS", num_workers)
    test("ray", *args)


@LONG
@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_same_program_over_some_environments(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    test_same_program.test_batches_of_some_environments("ray", {"as_torch": False}, num_workers)
    monkeypatch.setattr(test_same_program, "NUM_WORKERS", 1)
    test_same_program.test_a_copy_is_handed_over_for_good("ray", "same_step", {"as_torch": False})


def test_a_program_for_pufferlib() -> None:
    keywords = {"num_envs": 2, "num_workers": 1, "backend": "Ray"}
    with pufferlib.vector.make(compat_programs.one, env_kwargs={"length": 2}, **keywords) as vecenv:
        assert vecenv.reset(seed=5)[0].tolist() == [[5, 0], [6, 0]]
        for _ in range(2):
            observations, rewards, terminals, _, infos = vecenv.step(np.array([3, 4]))
    assert (observations.tolist(), rewards.tolist(), terminals.all()) == ([[5, 2], [6, 2]], [3, 4], True)
    assert [(info["action"], info["env_id"]) for info in infos] == [(3, 0), (4, 1)]


def test_actors_that_find_no_place_are_named_with_what_they_ask_for() -> None:
    with pytest.raises(pufferlib.PlatformError, match=r"not placed within 0.5 s: .*'GPU': 7.* have {'CPU': 4"):
        pufferlib.make(HashEnv, backend="ray", backend_kwargs={"resources": {"num_gpus": 7}, "start_timeout": 0.5})


@LONG
def test_bench_measures_it_and_names_it_where_ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = bench.compare_backends(HashEnv, backends=("serial", "ray"), num_envs=4, seconds=0.05, repeats=2)
    assert [(speed.backend, speed.batch_size, len(speed.steps_per_s)) for speed in speeds] == [
        ("serial", 4, 2),
        ("ray", 2, 2),
    ]
    with pytest.raises(pufferlib.PlanError, match="'serial', 'multiprocessing', 'pool', 'ray'$"):
        pufferlib.autotune(HashEnv, backend="threads")
    monkeypatch.setattr(construct, "find_spec", lambda name: None)
    with pytest.raises(pufferlib.PlanError, match="'serial', 'multiprocessing', 'pool'$"):
        pufferlib.autotune(HashEnv, backend="ray")


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"adress": "auto"}, "adress, but backend 'ray' knows address, resources"),
        ({"placement": "NEAR"}, "'NEAR' is not one of 'SPREAD'"),
        ({"local_workers": 3}, "local_workers=3 is more than an actor has environments; use 0 to 2"),
        ({"local_workers": True}, "local_workers=True is impossible; use 0 or more; 0 is the actor itself"),
        ({"resources": {"num_cpus": -1}}, "not a mapping of names to numbers"),
        ({"start_timeout": 0}, "start_timeout=0 is impossible"),
        ({"worker_threads": "x"}, "worker_threads='x' is not a whole number; use 1 or more"),
        ({"spin": -1}, "spin=-1 is impossible"),
    ],
)
def test_impossible_arguments_are_named(kwargs: Any, says: str) -> None:
    with pytest.raises(pufferlib.PlanError, match=says):
        pufferlib.make(HashEnv, backend="ray", num_envs=4, num_workers=2, backend_kwargs=kwargs)
    assert not actors()


class Closes(HashEnv):
    """Its ``close`` leaves a file."""

    def __init__(self, folder: Path, env_index: int) -> None:
        super().__init__()
        self.file = folder / str(env_index)

    def close(self) -> None:
        self.file.touch()


@pytest.mark.parametrize("local_workers", [0, 1], ids=["actor", "process"])
def test_environments_are_closed_if_make_fails_once_they_are_made(
    local_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*args: object, **kwargs: object) -> None:
        raise pufferlib.PlatformError("no memory")

    in_processes(monkeypatch, local_workers)
    monkeypatch.setattr("pufferlib.vectorization.driver.factory.attach_slab", refuses)
    with pytest.raises(pufferlib.PlatformError, match="no memory"):
        pufferlib.make(functools.partial(Closes, tmp_path), backend="ray", num_envs=2, num_workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize(
    ("number", "error", "says"),
    [
        (signal.SIGKILL, pufferlib.WorkerError, r"worker \d on node .*, was lost with its actor \("),
        (signal.SIGSTOP, pufferlib.PlatformError, r"actor \d on node .* did not answer within 1 s"),
    ],
)
def test_an_actor_that_ends_once_it_has_made_its_environments_is_reported(
    number: int, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, pids = RayBackend._attach, list[int]()

    def too_late(self: Any, slab: Any) -> None:
        pids.append(next(iter(actors())).pid)
        os.kill(pids[0], number)
        if number == signal.SIGSTOP:
            self._start_s = 1.0  # to be placed it may have longer
        attach(self, slab)

    monkeypatch.setattr(RayBackend, "_attach", too_late)
    try:
        with pytest.raises(error, match=says):
            pufferlib.make(HashEnv, backend="ray", num_envs=2, num_workers=1)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


LOCK = threading.Lock()  # which cannot be pickled


def test_an_evaluator_that_is_killed_while_it_plays_changes_no_result(tmp_path: Path) -> None:
    """The table is the same, bit for bit, in this process and over two actors, one of which dies; and they go on."""
    results = []
    for num_actors, deaths in ((0, 0), (2, 1)):
        with Coordinator(
            test_payoffs.pool_of_constants(),
            Deadly,
            num_actors=num_actors,
            num_envs=4,
            env_kwargs={"folder": str(tmp_path), "deaths": deaths},
        ) as coordinator:
            results.append(test_task_queue.evaluated(coordinator, max_episodes=9, half_width=0.9))
            assert coordinator.num_lost == deaths == len(list(tmp_path.iterdir()))

            def run(way: str, call: Any = fails, coordinator: Any = coordinator) -> Any:
                ((_, result),) = coordinator.run([Task(way, functools.partial(call, way=way))])
                return result

            with pytest.raises(
                WorkerError, match="task 'raises' raised(?: on node .*)?: OSError: on purpose"
            ) as caught:
                run("raises")
            assert "in fails" in caught.value.remote_traceback
            assert run("returns")() == "returns"
            if num_actors:
                with pytest.raises(PlanError, match="task 'holds' cannot be pickled, as actors need"):
                    run("holds", lambda vec, pool, way, lock=LOCK: None)
                # A healthy task may be late as well on a busy machine.
                coordinator._workers._timeout_s, coordinator._max_retries = 2.0, 50  # type: ignore[attr-defined]
                with pytest.warns(RuntimeWarning, match=r"actor \d on node .*: it had not ended after task_time"):
                    assert run(str(tmp_path / "hangs"), hangs_once) == "came"
                assert len(coordinator._workers._refs) == 4  # type: ignore[attr-defined]
    assert results[0].counts.min() == 5 < results[0].counts.max()
    assert test_task_queue.same(*results)


def test_what_actors_cannot_make_raises_as_in_this_process() -> None:
    with (
        Coordinator(test_payoffs.pool_of_constants(), "CartPole-v0.5", num_actors=1) as coordinator,
        pytest.raises(pufferlib.RegistryError, match="CartPole"),
    ):
        list(coordinator.run([Task("never", fails)]))


@LONG
def test_the_program_of_its_page_prints_what_that_says() -> None:
    play(programs("docs/ray.md")[0], {"__name__": "__main__"})
