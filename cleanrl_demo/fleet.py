"""A fleet of Ray actors: it requests rollouts, replaces actors that die, and counts what was lost with them.

A fleet is independent of learning. Its actors are of any class with ``close()`` and ``play(seed, version, weights)``,
which returns a ``RolloutReport`` and the rollout.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from cleanrl_demo.report import Report
from pufferlib.errors import MissingExtra, PlanError, PlatformError, PufferError, WorkerError
from pufferlib.vectorization.ray.connection import head_of, plain, reason, require_address, require_answer

MOST_DEATHS = 3  # in a row, of one actor, without a rollout in between
WAIT_S = 1.0  # between refreshes of the dashboard
PATIENCE_S = 30.0  # without any rollout, before a message is printed
CLOSE_S = 5.0  # for actors to close their environments


class RolloutReport(NamedTuple):
    """An actor's report on a rollout, without its rows."""

    version: int  # of the policy that played it
    node: str
    num_steps: int
    seconds: float  # since the actor's previous rollout
    infos: list[list[dict[str, Any]]]  # by batch, reduced to numbers, with env_id and agent_id unique in the fleet


@dataclass
class FleetActor:
    """An actor of the fleet, which keeps its index when its process is replaced."""

    index: int
    handle: Any
    life: int = 0  # the number of earlier processes
    deaths: int = 0  # the latest of these in a row, without a rollout
    node: str = ""
    steps_per_s: float = 0.0  # in the last rollout


class Fleet:
    """A context manager for a run's actors: each plays one rollout at a time, and is replaced if it dies.

    num_lost: how many rollouts were lost with actors or nodes that died; the open episodes of their environments were
    lost as well. num_dropped: how many rollouts were older than ``max_lag`` when they arrived.
    """

    def __init__(self, ray: Any, report: Report, config: Any, kind: type[Any], *arguments: Any) -> None:
        """kind: the actors' class, called with an index and ``arguments``. config: see ``appo_ray.Config``."""
        self.ray, self.report, self.config, self.arguments = ray, report, config, arguments
        self.kind = ray.remote(num_cpus=config.cpus_per_actor, scheduling_strategy="SPREAD")(kind)
        self.members = [FleetActor(index, self._new(index)) for index in range(config.num_actors)]
        self.plays: dict[Any, tuple[FleetActor, Any]] = {}  # by the report's reference, with the rollout's
        self.waiting: list[FleetActor] = []  # for the next version, if no lag is allowed
        self.num_lost = self.num_dropped = self.num_deaths = 0

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        """Print what was lost, and end all actors; those that are playing get a few seconds to finish."""
        self._sum_up()
        try:
            self.ray.wait(
                [member.handle.close.remote() for member in self.members],
                num_returns=len(self.members),
                timeout=CLOSE_S,
            )
        finally:
            for member in self.members:
                self.ray.kill(member.handle)
            # One time limit for all: if the head is gone, plays on other nodes never end.
            for report_ref in self.ray.wait(list(self.plays), num_returns=len(self.plays), timeout=CLOSE_S)[0]:
                if self._look_at(report_ref):
                    self._look_at(self.plays[report_ref][1])

    def broadcast(self, version: int, policy: nn.Module) -> None:
        """Put the weights of a policy version where actors can fetch them."""
        weights = {name: part.cpu().numpy() for name, part in policy.state_dict().items()}
        self.version, self.weights = version, self.ray.put(weights)

    def begin(self, seed: int) -> None:
        """Reset all environments, and ask all actors for rollouts. Unfinished rollouts and episodes are dropped."""
        self.seed = seed
        self.plays.clear()
        self.waiting = list(self.members)
        self._ask_waiting()

    def gather(self, count: int) -> tuple[list[Any], list[int]]:
        """Return ``count`` rollouts, ordered by actor, and the lag of each in policy versions.

        An actor is asked for its next rollout when one has arrived or, if no lag is allowed, when all have. Raises
        WorkerError if an actor's environment or policy raises, or if an actor dies repeatedly; other pufferlib errors
        of actors are raised unchanged.
        """
        results: list[tuple[int, Any, int]] = []
        while len(results) < count:
            if not self.plays:
                self._ask_waiting()
            report_ref = self._first()
            member, rollout_ref = self.plays.pop(report_ref)
            try:
                rollout_report: RolloutReport = self.ray.get(report_ref)
            except self.ray.exceptions.RayError as error:
                self._look_at(rollout_ref)
                self._lose(member, error)
                continue
            member.deaths, member.node = 0, rollout_report.node
            member.steps_per_s = rollout_report.num_steps / rollout_report.seconds
            for infos in rollout_report.infos:
                self.report.infos(infos)
            self.waiting.append(member)
            if self.config.max_lag:
                self._ask_waiting()
            lag = self.version - rollout_report.version
            if lag > self.config.max_lag:
                self.num_dropped += 1
                continue
            try:
                results.append((member.index, self.ray.get(rollout_ref), lag))
            except self.ray.exceptions.RayError:  # its node is gone, as the actor's next play will show
                self.num_lost += 1
        results.sort(key=lambda result: result[0])
        return [rollout for _, rollout, _ in results], [lag for *_, lag in results]

    def charts(self) -> dict[str, float]:
        """Return the steps per second of actors and nodes, and the numbers of losses, keyed by TensorBoard name."""
        speeds: dict[str, float] = {}
        for member in self.members:
            if member.steps_per_s:
                node = f"actors/{member.node}"
                speeds[node] = speeds.get(node, 0.0) + member.steps_per_s
                speeds[f"{node}/{member.index}"] = member.steps_per_s
        lost = {"dropped_rollouts": self.num_dropped, "lost_rollouts": self.num_lost, "lost_actors": self.num_deaths}
        return {**{f"charts/{name}": count for name, count in lost.items() if count}, **speeds}

    def _look_at(self, reference: Any) -> bool:
        """Read the result of a play that is not used; return whether the play failed.

        Ray logs the traceback of an error that is never read.
        """
        try:
            self.ray.get(reference, timeout=CLOSE_S)
        except self.ray.exceptions.RayError:
            return True
        return False

    def _sum_up(self) -> None:
        if self.num_lost:
            self._say(
                f"lost: {self.num_deaths} actor(s), {self.num_lost} rollout(s), and the open episodes of "
                f"{self.num_deaths * self.config.num_envs} environments"
            )
        if self.num_dropped:
            self._say(f"dropped: {self.num_dropped} rollout(s), older than max_lag={self.config.max_lag}")

    def _new(self, index: int) -> Any:
        return self.kind.remote(index, *self.arguments)

    def _ask_waiting(self) -> None:
        while self.waiting:
            self._ask(self.waiting.pop(0))

    def _ask(self, member: FleetActor) -> None:
        """Ask an actor for a rollout."""
        seed = int(np.random.SeedSequence([self.seed, member.index, member.life]).generate_state(1)[0])
        report_ref, rollout_ref = member.handle.play.options(num_returns=2).remote(seed, self.version, [self.weights])
        self.plays[report_ref] = member, rollout_ref

    def _first(self) -> Any:
        """Wait for the first play to finish or fail, and return the reference to its report."""
        since_s, waits = time.monotonic(), True
        while True:
            ready, _ = self.ray.wait(list(self.plays), timeout=WAIT_S)
            if ready:
                return ready[0]
            self.report.phase("environments")
            if waits and time.monotonic() - since_s > PATIENCE_S:
                waits = False
                free = self.ray.available_resources().get("CPU", 0)
                self._say(
                    f"no rollout for {PATIENCE_S:.0f} s: {len(self.plays)} actors play, or wait for "
                    f"{self.config.cpus_per_actor:g} CPUs each, of which {free:g} are free now"
                )

    def _lose(self, member: FleetActor, error: Any) -> None:
        """Replace an actor that died.

        Raises the error of its environment or policy, or WorkerError if it died too often.
        """
        cause: Any = getattr(error, "cause", None)
        if isinstance(error, self.ray.exceptions.RayTaskError) and not isinstance(cause, self.ray.exceptions.RayError):
            raise self._explained(member, cause, plain(error)) from None
        lost = isinstance(cause, self.ray.exceptions.RayError)  # what the play needed, such as the weights
        num_envs, death = self.config.num_envs, reason(cause if lost else error)
        self.num_lost += 1
        self.num_deaths += 1
        member.deaths += 1
        member.life += 1
        member.steps_per_s = 0.0
        where = f"actor {member.index}" + (f" on {member.node}" if member.node else "")
        if member.deaths == MOST_DEATHS:
            raise WorkerError(
                f"{where} died {MOST_DEATHS} times without having come to the end of a rollout; the last time: {death}",
                worker=member.index,
            )
        first = member.index * num_envs
        self.report.infos([{"env_id": env_id, "restarted": death} for env_id in range(first, first + num_envs)])
        self._say(
            f"{where} died: {death}. A rollout and the open episodes of its {num_envs} environments are lost; "
            "another one takes its place"
        )
        self.ray.kill(member.handle)
        member.handle = self._new(member.index)
        self._ask(member)

    def _explained(self, member: FleetActor, cause: Any, trace: str) -> PufferError:
        """Convert an actor's error to a WorkerError that names the actor; return other pufferlib errors unchanged."""
        if isinstance(cause, PufferError) and not isinstance(cause, WorkerError):
            return cause
        env_id = getattr(cause, "env_id", None)
        return WorkerError(
            f"actor {member.index}: {cause if isinstance(cause, WorkerError) else trace}",
            env_id=None if env_id is None else member.index * self.config.num_envs + env_id,
            worker=member.index,
            remote_traceback=getattr(cause, "remote_traceback", trace),
        )

    def _say(self, text: str) -> None:
        self.report.console.print(text, soft_wrap=True, markup=False)


@contextmanager
def connected(config: Any) -> Iterator[Any]:
    """Connect to Ray, and yield its module. An existing connection is used if there is one.

    Otherwise the address is config's or, if that is None, RAY_ADDRESS; without either, Ray is started on this machine
    and ends with the context. config: as for ``Fleet``. Raises MissingExtra without Ray; PlanError if there is no Ray
    at the address, or this process is connected to another one; PlatformError if Ray does not start.
    """
    ray = ray_module()
    if ray.is_initialized():
        require_address(config.address, head_of(ray))
        yield ray
        return
    address = config.address or os.environ.get("RAY_ADDRESS") or "local"
    num_cpus = max(os.cpu_count() or 1, math.ceil(config.num_actors * config.cpus_per_actor))
    ray_options = {"num_cpus": num_cpus, "include_dashboard": False} if address == "local" else {}
    with ExitStack() as stack:
        _quieten(stack)
        stack.callback(ray.shutdown)
        try:
            require_answer(address)
            ray.init(address, log_to_driver=False, logging_level="ERROR", **ray_options)
        except (OSError, ValueError) as error:
            raise PlanError(
                f"address={address!r} is no Ray that can be reached ({error}); start one with `ray start --head`, or "
                "leave the address out for one on this machine"
            ) from error
        except Exception as error:  # Ray raises plain Exception if a node does not start within half a minute
            raise PlatformError(f"Ray did not start: {error} Try again when the machine is less busy") from error
        yield ray


def _quieten(stack: ExitStack) -> None:
    """Keep Ray from printing a paragraph on each actor's death to standard output; the fleet prints a line."""
    from ray._private import worker

    original = getattr(worker, "print_to_stdstream", None)
    if original is not None:
        worker.print_to_stdstream = lambda *_, **__: None
        stack.callback(setattr, worker, "print_to_stdstream", original)


def ray_module() -> Any:
    """Import and return Ray. Raises MissingExtra if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra('cleanrl_demo.appo_ray needs Ray: pip install "pufferlib[ray]"') from error
    return ray


def node_name() -> str:
    """Return a short and unique name for this node."""
    ray = ray_module()
    return f"{ray.util.get_node_ip_address()}-{ray.get_runtime_context().get_node_id()[:4]}"
