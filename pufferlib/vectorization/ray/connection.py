"""Connect to a Ray cluster, reserve its resources for actors, and check that its head still answers."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

from pufferlib.errors import MissingExtra, PlanError, PlatformError
from pufferlib.util.suggestions import not_one_of
from pufferlib.vectorization.core.plan import available_cpus

__all__ = ["Connection", "Placement", "head_of", "plain", "reason", "require_address", "require_answer"]

GROUPS = ("PACK", "STRICT_PACK", "STRICT_SPREAD")
CHECK_S = 1.0  # how often the head is checked
REACH_S = 5.0  # the time for the machine at an address to answer
LOST_S = 15.0  # without an answer, the head counts as gone; after 60 s Ray ends this process, with a note in a log

COLOR = re.compile(r"\x1b\[\d+m")  # in Ray's tracebacks
GUESSES = re.compile(r" (Some common causes include|There are some potential root causes).*")  # after a death's reason

_users = 0  # the number of uses of the connection that was made here
_is_local = False  # whether that connection is to a Ray that was started here
_session = 0  # counts the connections, so that users of an ended one can distinguish the next


class Connection:
    """A use of this process's connection to Ray; a connection made here ends with its last use.

    is_local: whether this Ray was started here. head: host:port of the cluster's head, None with a ray:// address.
    Raises MissingExtra if Ray is not installed, PlatformError if no cluster answers at the address or Ray cannot be
    started here, PlanError if this process is already connected to another cluster.
    """

    def __init__(self, address: str | None) -> None:
        global _users, _is_local, _session
        try:
            import ray
        except ImportError as error:
            raise MissingExtra(
                "backend='ray' needs Ray; install it with pip install 'pufferlib[ray]', or use backend='pool'"
            ) from error
        self.ray: Any = ray
        self._lost = ""  # how it was lost, or ""; permanent, as actors are no longer told to end
        self._looked_s = self._answered_s = time.monotonic()
        if not ray.is_initialized():
            _session += 1
            _users, _is_local = 0, address is None and not os.environ.get("RAY_ADDRESS")
            self._connect("local" if _is_local else address)
            self._counted = True
        else:
            self._counted = _users > 0
        _users += self._counted
        self._session = _session
        self.is_local = _is_local and self._counted
        self.head = head_of(ray)
        try:
            require_address(address, self.head)
        except PlanError:
            self.release()
            raise

    def _connect(self, address: str | None) -> None:
        settings: dict[str, Any] = {"logging_level": logging.ERROR}
        if _is_local:
            # Workers run at this process's priority, as in other backends; Ray's default is a lower one.
            settings.update(include_dashboard=False, num_cpus=available_cpus(), _system_config={"worker_niceness": 0})
        before = os.environ.get("RAY_USAGE_STATS_ENABLED")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            require_answer(address)
            self.ray.init(address, **settings)
        except Exception as error:  # ConnectionError, OSError, and a plain Exception if a node does not start
            if _is_local:
                raise PlatformError(f"Ray could not be started here: {error}") from error
            raise PlatformError(
                f"no Ray cluster answers at address={address!r}: {error}; start one with ray start --head, or leave "
                "address out for one of our own"
            ) from error
        finally:
            if before is None:
                del os.environ["RAY_USAGE_STATS_ENABLED"]
            else:
                os.environ["RAY_USAGE_STATS_ENABLED"] = before

    def alive(self) -> bool:
        """Return whether the connection still exists, so that actors can be told to end."""
        return not self._lost and self._session == _session and bool(self.ray.is_initialized())

    def check(self) -> None:
        """Check, at most once in CHECK_S seconds, that the cluster's head answers.

        Raises PlatformError if it has not answered for LOST_S seconds, or if this connection has ended.
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
        """Raise PlatformError if this connection has ended; Ray would otherwise silently connect to some cluster."""
        if self._session != _session or not self.ray.is_initialized():
            self._lost = "this process is no longer connected to Ray; somebody has called ray.shutdown"
        if self._lost:
            raise PlatformError(self._lost)

    def release(self) -> None:
        """Release this use of the connection; the last release ends it."""
        global _users
        if self._counted and self._session == _session:
            self._counted = False
            _users -= 1
            if _users == 0 and self.ray.is_initialized():
                self.ray.shutdown()


def head_of(ray: Any) -> str | None:
    """Return host:port of the head to which this process is connected, or None for a ray:// connection."""
    client: Any = ray.util.client.ray  # without annotations
    return None if client.is_connected() else str(ray.get_runtime_context().gcs_address)


def require_answer(address: str | None) -> None:
    """Raise OSError if nothing answers at an address of the form host:port; Ray would keep trying for minutes."""
    if match := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or ""):
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


def require_address(asked: str | None, head: str | None) -> None:
    """Raise PlanError if an address (host:port) differs from that of the head to which this process is connected."""
    if asked is not None and head is not None and re.fullmatch(r"[^/]+:\d+", asked) and not _same(asked, head):
        raise PlanError(
            f"address={asked!r}, but this process is connected to the Ray at {head}; call ray.shutdown first, or leave "
            "address out"
        )


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
        self._connection, self._ray, self._strategy, self._group = connection, connection.ray, strategy, None
        grouped = isinstance(strategy, str) and strategy in GROUPS
        if isinstance(strategy, str) and strategy not in ("SPREAD", "DEFAULT", *GROUPS):
            known = ("SPREAD", "DEFAULT", *GROUPS)
            raise PlanError(not_one_of("placement", strategy, known, ", nor a scheduling strategy of Ray's"))
        reserved: dict[str, float] = {"num_cpus": 0 if connection.is_local and not grouped else 1}
        if resources is not None:
            reserved = dict(resources)
        items = reserved.items()
        if not all(isinstance(name, str) and isinstance(num, (int, float)) and num >= 0 for name, num in items):
            raise PlanError(f"resources={resources!r} is not a mapping of names to numbers, 0 or more")
        reserved.setdefault("num_cpus", 0)
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        self._asked = {names.get(name, name): num for name, num in reserved.items() if num}
        names_of_ray = [name for name in ("num_cpus", "num_gpus", "memory") if name in reserved]
        fixed: dict[str, Any] = {name: reserved.pop(name) for name in names_of_ray}
        self._options: dict[str, Any] = {**fixed, "resources": reserved}
        if not grouped:
            self._options["scheduling_strategy"] = strategy
            return
        bundle = self._asked
        if not bundle:
            raise PlanError(f"placement={strategy!r} reserves what actors need, so name some resources")
        self._group = self._ray.util.placement_group([bundle] * num_actors, strategy=strategy)

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
