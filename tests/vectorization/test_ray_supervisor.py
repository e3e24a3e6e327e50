"""The supervision of actors and the use of the cluster, without Ray: starts, deaths, replacements and ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from pufferlib.errors import PlanError, PlatformError, WorkerError
from pufferlib.vectorization.core.plan import available_cpus
from pufferlib.vectorization.ray import connection as ray_connection
from pufferlib.vectorization.ray.connection import Connection
from pufferlib.vectorization.ray.supervisor import RemoteActor, Supervisor

pytestmark = pytest.mark.beside


class Gone(Exception):
    """The error of a call to a dead actor."""


class FakeRay:
    """The functions of Ray that are used here. log: their calls.

    An answer is a list: of the actor's number, or empty if the call fails, or None if it never ends.
    """

    exceptions = SimpleNamespace(RayError=Gone)

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.answers: dict[int, list[int] | None] = {}
        self.connected = False
        self.fails: BaseException | None = None
        client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False))
        self.util = SimpleNamespace(
            client=client,
            placement_group=self.placement_group,
            remove_placement_group=lambda group: self.log.append(("remove", group)),
        )

    def init(self, address: str, **settings: Any) -> None:
        self.log.append((address, settings, os.environ.get("RAY_USAGE_STATS_ENABLED")))
        if self.fails is not None:
            raise self.fails
        self.connected = True

    def is_initialized(self) -> bool:
        return self.connected

    def shutdown(self) -> None:
        self.log.append("shutdown")
        self.connected = False

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="127.0.0.1:1")

    def placement_group(self, bundles: Any, strategy: str) -> str:
        self.log.append((strategy, bundles))
        return "group"

    def remote(self, actor_class: type) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self.started(options)))

    def started(self, options: Any) -> Callable[[int], Any]:
        def start(number: int) -> Any:
            self.log.append(("start", number, options))
            close = SimpleNamespace(remote=lambda *arguments: ("close", number, *arguments))
            return SimpleNamespace(number=number, close=close)

        return start

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert self.connected and num_returns == len(calls)
        ended = [call for call in calls if self.answers[call[1]] is not None]
        return ended, [call for call in calls if call not in ended]

    def get(self, call: Any) -> Any:
        if not self.answers[call[1]]:
            raise Gone
        return call

    def kill(self, handle: Any) -> None:
        self.log.append(("kill", handle.number))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """A Ray in which nothing has happened; at the end, the test has left it."""
    fake = FakeRay()
    monkeypatch.setattr(ray_connection, "ray_module", lambda: fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield fake
    assert not fake.connected and "RAY_USAGE_STATS_ENABLED" not in os.environ


@pytest.fixture(autouse=True)
def without_usage_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)


def supervisor_of(num_actors: int, placement: str = "SPREAD", **options: Any) -> Supervisor[RemoteActor]:
    actors = [RemoteActor(index) for index in range(num_actors)]
    resources = {"num_cpus": 2, "simulator": 1}
    return Supervisor(Connection(None), object, actors, resources=resources, placement=placement, **options)


def test_an_actor_is_started_with_its_options_in_place_of_the_one_before(fake: FakeRay) -> None:
    supervisor = supervisor_of(1, max_concurrency=8)
    with closing(supervisor):
        (actor,) = supervisor._actors
        fake.log.clear()
        supervisor.start(actor, 5)
        supervisor.start(actor, 6)
        placed = {"num_cpus": 2, "resources": {"simulator": 1}, "scheduling_strategy": "SPREAD"}
        options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 8, **placed}
        assert fake.log == [("start", 5, options), ("kill", 5), ("start", 6, options)]
        assert actor.generation == 2
        supervisor.kill(actor)
        supervisor.kill(actor)
        assert fake.log[3:] == [("kill", 6)] and actor.handle is None


def test_deaths_are_counted_until_there_is_progress(fake: FakeRay) -> None:
    supervisor = supervisor_of(2)
    with closing(supervisor):
        actor = supervisor._actors[1]
        actor.location = " on node a"
        for _ in range(2):
            for _ in range(2):
                supervisor.count_death(actor, "before it had begun", "a fault")
            actor.deaths = 0
        for _ in range(2):  # after the error, the count begins again
            supervisor.count_death(actor, "before it had begun", "a fault")
            supervisor.count_death(actor, "before it had begun", "a fault")
            text = r"^actor 1 on node a died 3 times before it had begun; the last time: memory$"
            with pytest.raises(WorkerError, match=text) as caught:
                supervisor.count_death(actor, "before it had begun", "memory")
            assert caught.value.worker == 1


def test_the_end_of_actors_waits_for_those_that_close(fake: FakeRay) -> None:
    supervisor = supervisor_of(4, placement="PACK")
    assert fake.log[1] == ("PACK", [{"CPU": 2, "simulator": 1}] * 4)
    closes, fails, hangs, _ = supervisor._actors
    with closing(supervisor):
        supervisor.placement._group = None  # an actor in a group needs Ray's strategy
        for actor in (closes, fails, hangs):
            supervisor.start(actor, actor.index)
        supervisor.placement._group = "group"
        fake.answers = {0: [0], 1: [], 2: None}
        fake.log.clear()
        assert supervisor.ask_to_close(supervisor._actors, 5.0, 3) == ([(closes, ("close", 0, 3))], [hangs])
    assert fake.log == [("kill", 0), ("kill", 1), ("kill", 2), ("remove", "group"), "shutdown"]
    supervisor.close()
    assert fake.log[-1] == "shutdown" and fake.log.count("shutdown") == 1


def test_nothing_is_asked_of_a_ray_that_has_been_shut_down(fake: FakeRay) -> None:
    """Each call would start a new one."""
    supervisor = supervisor_of(1)
    (actor,) = supervisor._actors
    supervisor.start(actor, 0)
    fake.shutdown()
    fake.log.clear()
    with pytest.raises(PlatformError, match=r"somebody has called ray\.shutdown"):
        supervisor.start(actor, 1)
    with closing(supervisor):
        assert supervisor.ask_to_close([actor], 5.0) == supervisor.answers({("call", 0): actor}, 5.0) == ([], [])
    assert fake.log == ["shutdown"]  # which is harmless


def test_a_connection_is_released_if_a_supervisor_cannot_be_made(fake: FakeRay) -> None:
    with pytest.raises(PlanError, match="'NEAR' is not one of 'SPREAD'"):
        supervisor_of(1, placement="NEAR")
    assert fake.log[-1] == "shutdown"


def test_ctrl_c_while_actors_are_killed_still_releases_the_connection(fake: FakeRay) -> None:
    supervisor = supervisor_of(1)
    supervisor.start(supervisor._actors[0], 0)

    def interrupted(handle: Any) -> None:
        raise KeyboardInterrupt

    fake.kill = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        supervisor.close()
    assert fake.log[-1] == "shutdown"


def test_a_ray_that_is_started_here_has_enough_cpus_and_ends_with_its_last_use(fake: FakeRay) -> None:
    first = Connection(None, num_cpus=available_cpus() + 1)
    second = Connection(None, num_cpus=99)
    ((address, settings, usage),) = fake.log
    assert (address, settings["num_cpus"], usage) == ("local", available_cpus() + 1, "0")
    assert first.is_local and second.is_local
    first.release()
    first.release()
    assert fake.connected
    second.release()
    assert fake.log[1:] == ["shutdown"]


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (Exception("a node timed out"), PlatformError, "Ray could not be started here: a node timed out; try again"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_start_that_fails_or_is_interrupted_leaves_nothing(
    fake: FakeRay, error: BaseException, raised: type[BaseException], text: str | None
) -> None:
    fake.fails = error
    with pytest.raises(raised, match=text):
        Connection(None)
    assert fake.log[1:] == ["shutdown"]
    fake.fails = None
    Connection(None).release()


def test_the_address_in_the_environment_is_refused_at_once_if_nothing_answers(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(PlatformError, match=f"no Ray cluster answers at address='{address}': .*refused"):
            Connection(None)
    assert fake.log == []


def test_what_ray_prints_can_be_turned_off_while_a_connection_lasts(fake: FakeRay) -> None:
    worker = pytest.importorskip("ray._private.worker")
    original = worker.print_to_stdstream
    connection = Connection(None, log_to_driver=False)
    assert fake.log[0][1]["log_to_driver"] is False and worker.print_to_stdstream is not original
    connection.release()
    assert worker.print_to_stdstream is original
