"""The connection to a Ray cluster, the resources that actors reserve in it, and checks that its head still answers."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from pufferlib.errors import MissingExtra, PlanError, PlatformError
from pufferlib.util.suggestions import not_one_of
from pufferlib.vectorization.core.plan import available_cpus

__all__ = ["Connection", "Placement", "location", "plain", "ray_module", "reason"]

GROUPS = ("PACK", "STRICT_PACK", "STRICT_SPREAD")
CHECK_S = 1.0  # how often the head is checked
REACH_S = 5.0  # the time for the machine at an address to answer
LOST_S = 15.0  # without an answer, the head counts as gone; after 60 s Ray ends this process, with a note in a log

COLOR = re.compile(r"\x1b\[\d+m")  # in Ray's tracebacks
GUESSES = re.compile(r" (Some common causes include|There are some potential root causes).*")  # after a death's reason

_users = 0  # the number of uses of the connection that was made here
_is_local = False  # whether that connection is to a Ray that was started here
_session = 0  # counts the connections, so that users of an ended one can distinguish the next
_ending = ExitStack()  # ends that connection


class Connection:
    """A use of this process's connection to Ray, which is made here if the process has none.

    A connection that is made here ends with its last use.

    address: the cluster's address; by default the address in RAY_ADDRESS, else "local", which starts a Ray here.
    num_cpus: the least number of CPUs of a Ray that is started here. log_to_driver: whether a connection that is made
    here prints reports of Ray and its workers. is_local: whether this Ray was started here. head: host:port of the
    cluster's head, None with a ray:// address.

    Raises MissingExtra if Ray is not installed, PlatformError if no cluster answers at the address or Ray cannot be
    started here, PlanError if this process is already connected to another cluster.
    """

    def __init__(self, address: str | None, *, num_cpus: int = 0, log_to_driver: bool = True) -> None:
        global _users, _is_local, _session
        self.ray = ray = ray_module()
        self._lost = ""  # how it was lost, or ""; permanent, as actors are no longer told to end
        self._looked_s = self._answered_s = time.monotonic()
        if not ray.is_initialized():
            _session += 1
            asked = address or os.environ.get("RAY_ADDRESS") or "local"
            _users, _is_local = 0, asked == "local"
            _ending.close()  # of an earlier connection, which somebody else has ended
            try:
                self._connect(asked, num_cpus, log_to_driver)
            except BaseException:
                _ending.close()
                raise
            self._counted = True
        else:
            self._counted = _users > 0
        _users += self._counted
        self._session = _session
        self.is_local = _is_local and self._counted
        client = ray.util.client.ray.is_connected()
        self.head = head = None if client else str(ray.get_runtime_context().gcs_address)
        if address and head and re.fullmatch(r"[^/]+:\d+", address) and not _same(address, head):
            self.release()
            raise PlanError(
                f"address={address!r}, but this process is connected to the Ray at {head}; call ray.shutdown first, or "
                "leave address out"
            )

    def _connect(self, address: str, num_cpus: int, log_to_driver: bool) -> None:
        settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": log_to_driver}
        if _is_local:
            num_cpus = max(num_cpus, available_cpus())
            # Workers run at this process's priority, as in other backends; Ray's default is a lower one.
            settings.update(include_dashboard=False, num_cpus=num_cpus, _system_config={"worker_niceness": 0})
        before = os.environ.get("RAY_USAGE_STATS_ENABLED")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            _require_answer(address)
            if not log_to_driver:
                _print_no_deaths()
            _ending.callback(self.ray.shutdown)
            self.ray.init(address, **settings)
        except Exception as error:  # ConnectionError, OSError, and a plain Exception if a node does not start
            if _is_local:
                raise PlatformError(
                    f"Ray could not be started here: {error}; try again when the machine is less busy"
                ) from error
            raise PlatformError(
                f"no Ray cluster answers at address={address!r}: {error}; start one with ray start --head, or leave "
                "address out for one of our own"
            ) from error
        finally:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
            if before is not None:
                os.environ["RAY_USAGE_STATS_ENABLED"] = before

    def alive(self) -> bool:
        """Return whether the connection still exists, so that actors can be told to end."""
        return not self._lost and self._session == _session and bool(self.ray.is_initialized())

    def check(self) -> None:
        """Check, at most once in CHECK_S seconds, that the cluster's head answers.

        Raises PlatformError if the head has not answered for LOST_S seconds, or if this connection has ended. With a
        ray:// address, checks only that the connection has not ended.
        """
        now_s = time.monotonic()
        self.require()
        if self.head is None or now_s - self._looked_s < CHECK_S:
            return
        if now_s - self._looked_s > LOST_S:  # this has not been called for a long time
            self._answered_s = now_s
        self._looked_s = now_s
        host, _, port = self.head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CHECK_S).close()
        except OSError as error:
            if now_s - self._answered_s > LOST_S:
                self._lost = (
                    f"the head of the Ray cluster, at {self.head}, has not answered for {LOST_S:g} s ({error}); close "
                    "this, and connect to a cluster that lives"
                )
                raise PlatformError(self._lost) from error
        else:
            self._answered_s = time.monotonic()

    def require(self) -> None:
        """Raise PlatformError if this connection has ended, or if ``check`` has found that the head is gone.

        Without this check, Ray would silently connect to some cluster.
        """
        if self._session != _session or not self.ray.is_initialized():
            self._lost = "this process is no longer connected to Ray; somebody has called ray.shutdown"
        if self._lost:
            raise PlatformError(self._lost)

    def release(self) -> None:
        """Release this use of the connection. If the connection was made here, its last release ends it."""
        global _users
        if self._counted and self._session == _session:
            self._counted = False
            _users -= 1
            if _users == 0:
                _ending.close()


def ray_module() -> Any:
    """Import and return Ray. Raises MissingExtra if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            "this needs Ray; install it with pip install 'pufferlib[ray]', or use one machine, as backend='pool' does"
        ) from error
    return ray


def location() -> str:
    """Return the location of the actor that calls this, as text that follows its name in messages."""
    ray = ray_module()
    return f" on node {ray.get_runtime_context().get_node_id()[:8]} at {ray.util.get_node_ip_address()}"


def _print_no_deaths() -> None:
    """Keep Ray from printing a paragraph on each actor's death to standard output, until ``_ending`` is closed."""
    from ray._private import worker

    original = getattr(worker, "print_to_stdstream", None)
    if original is not None:
        worker.print_to_stdstream = lambda *_, **__: None
        _ending.callback(setattr, worker, "print_to_stdstream", original)


def _require_answer(address: str) -> None:
    """Raise OSError if nothing answers at an address of the form host:port; Ray would keep trying for minutes."""
    if match := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address):
        socket.create_connection((match[1].strip("[]"), int(match[2])), REACH_S).close()


def plain(error: Exception) -> str:
    """Return the text of a Ray error without color codes."""
    return COLOR.sub("", str(error))


def reason(error: Exception) -> str:
    """Return Ray's reason for a failed call: the line that states the cause if there is one, else the whole text."""
    text = plain(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "because" in line or "unavailable" in line]
    return GUESSES.sub("", telling[0]).rstrip(".") if telling else text


def _same(asked: str, head: str) -> bool:
    """Return whether two addresses (host:port) belong to the same cluster head."""
    (host, _, port), (its_host, _, its_port) = asked.rpartition(":"), head.rpartition(":")
    if port != its_port:
        return False
    try:
        return socket.gethostbyname(host.strip("[]")) == socket.gethostbyname(its_host.strip("[]"))
    except OSError:
        return host == its_host


class Placement:
    """The resources that each actor reserves, and the nodes on which it may run.

    strategy, resources: ``placement`` and ``resources`` of backend_kwargs. Raises PlanError if either is invalid.
    """

    def __init__(
        self, connection: Connection, strategy: Any, resources: Mapping[str, float] | None, num_actors: int
    ) -> None:
        self._ray, self._strategy, self._group = connection.ray, strategy, None
        known = ("SPREAD", "DEFAULT", *GROUPS)
        if isinstance(strategy, str) and strategy not in known:
            raise PlanError(not_one_of("placement", strategy, known, ", nor a scheduling strategy of Ray's"))
        grouped = isinstance(strategy, str) and strategy in GROUPS
        by_default = {"num_cpus": 0 if connection.is_local and not grouped else 1}
        reserved: dict[str, float] = dict(by_default if resources is None else resources)
        items = reserved.items()
        if not all(isinstance(name, str) and isinstance(num, (int, float)) and num >= 0 for name, num in items):
            raise PlanError(f"resources={resources!r} is not a mapping of names to numbers, 0 or more")
        reserved.setdefault("num_cpus", 0)
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        self._asked = {names.get(name, name): num for name, num in reserved.items() if num}
        self._options: dict[str, Any] = {"resources": reserved, "scheduling_strategy": strategy}
        names_of_ray = [name for name in ("num_cpus", "num_gpus", "memory") if name in reserved]
        self._options.update((name, reserved.pop(name)) for name in names_of_ray)
        if grouped:
            if not self._asked:
                raise PlanError(f"placement={strategy!r} reserves what actors need, so name some resources")
            self._group = self._ray.util.placement_group([self._asked] * num_actors, strategy=strategy)

    def options(self, index: int) -> dict[str, Any]:
        """Return Ray's options for starting an actor. index: the actor's bundle in the placement group."""
        if self._group is None:
            return self._options
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return {**self._options, "scheduling_strategy": strategy}

    def want(self) -> str:
        """Describe the resources that an actor requests and those that the cluster has, for errors."""
        ray = self._ray
        there = {name: num for name, num in ray.cluster_resources().items() if name in ("CPU", "GPU", *self._asked)}
        free = {name: num for name, num in ray.available_resources().items() if name in there}
        nodes = sum(node["Alive"] for node in ray.nodes())
        return (
            f"an actor asks for {self._asked} (placement {self._strategy!r}), and the cluster's {nodes} nodes have "
            f"{there}, of which {free} is free; ask for less in resources, use fewer workers, or add nodes"
        )

    def remove(self) -> None:
        """Remove the placement group, if there is one, and with it the reserved resources."""
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
            self._group = None
