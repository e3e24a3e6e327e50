"""A fleet of Ray actors: it requests rollouts, replaces actors that die, and counts lost rollouts.

A fleet is independent of learning. Its actors may be of any class with the methods ``close()`` and
``play(seed, version, weights)``; ``play`` returns a ``RolloutReport`` and the rollout.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import nn

import pufferlib
from pufferlib.errors import PlanError, PlatformError, PufferError, WorkerError
from pufferlib.training.report import Report
from pufferlib.training.run_config import RunConfig
from pufferlib.vectorization.core.messages import CrashCause
from pufferlib.vectorization.ray.connection import Connection, plain, ray_module, reason
from pufferlib.vectorization.ray.supervisor import RemoteActor, Supervisor

WAIT_S = 1.0  # between refreshes of the dashboard
PATIENCE_S = 30.0  # without any rollout, before a message is printed
CLOSE_S = 5.0  # for actors to close their environments


@dataclass(frozen=True)
class FleetConfig(RunConfig):
    """The settings of a run whose environments are played by actors."""

    num_actors: int = 2
    """number of actors: processes on any machines of the cluster, each with its own environments"""
    address: str | None = None
    """address of a running cluster: auto, or host:port; default: RAY_ADDRESS if set, else Ray starts on this machine"""
    cpus_per_actor: float = 1.0
    """CPUs that Ray reserves for an actor, its num_workers processes included"""
    backend: str = "serial"
    """backend of an actor's environments: serial, multiprocessing or pool"""
    num_envs: int = 16
    """environments of each actor; the learner has as many, for the evaluation at the end"""
    num_workers: int | None = 1
    """processes of an actor's environments; None: one for each core"""
    rollouts_per_update: int | None = None
    """rollouts per update: the first that arrive; default: as many as there are actors"""
    max_lag: int = 8
    """maximum age of an arriving rollout, in policy versions; older ones are dropped. 0: actors wait for new weights"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "num_actors")
        self.require("0 or more", lambda value: value >= 0, "max_lag")
        self.require("1 or more, or None", lambda value: value is None or value >= 1, "rollouts_per_update")
        self.require("more than 0", lambda value: value > 0, "cpus_per_actor")
        if self.num_actors > max(1, self.max_lag) * self.num_rollouts:
            raise PlanError(
                f"num_actors={self.num_actors} with rollouts_per_update={self.rollouts_per_update} play faster than is "
                f"learnt, and max_lag={self.max_lag} drops most of it; use more of either"
            )
        if self.max_lag == 0 and self.num_rollouts % self.num_actors:
            raise PlanError(
                f"max_lag=0 has all actors play the same weights, so rollouts_per_update={self.num_rollouts} has to be "
                f"a multiple of num_actors={self.num_actors}"
            )
        if self.video_envs:
            raise PlanError("video_envs: actors' environments are not filmed; puffer eval RUN --video films the policy")

    @property
    def num_rollouts(self) -> int:
        """The number of rollouts per update."""
        return self.num_actors if self.rollouts_per_update is None else self.rollouts_per_update

    def rows_per_update(self, vec: pufferlib.VecEnv) -> int:
        """Return the largest number of rows that an update can learn from: that of ``num_rollouts`` whole rollouts."""
        return super().rows_per_update(vec) * self.num_rollouts


class RolloutReport(NamedTuple):
    """An actor's report on a rollout, without its rows."""

    version: int  # of the policy that played it
    node: str
    num_steps: int
    seconds: float  # since the actor's previous rollout
    infos: list[list[dict[str, Any]]]  # by batch, reduced to numbers, with env_id and agent_id unique in the fleet


@dataclass(eq=False)
class FleetActor(RemoteActor):
    """An actor of the fleet, and its replacements after deaths.

    node: the node on which the last rollout was played; "" before the first rollout. location: the same, as text that
    follows the actor's name in messages.
    """

    node: str = ""
    steps_per_s: float = 0.0  # in the last rollout


class Fleet:
    """A context manager for a run's actors: each plays one rollout at a time, and is replaced if it dies.

    num_lost: the number of rollouts that were lost because an actor or a node died. The unfinished episodes of a dead
    actor's environments were lost as well. num_dropped: the number of rollouts that were older than ``max_lag`` when
    they arrived.
    """

    def __init__(
        self, connection: Connection, report: Report, config: FleetConfig, kind: type[Any], *arguments: Any
    ) -> None:
        """Prepare the actors, without starting them.

        connection: the connection to the cluster; the fleet releases it when it exits. kind: the actors' class, which
        is called with an index and ``arguments``.
        """
        self.report, self.config, self.arguments = report, config, arguments
        self.members = [FleetActor(index) for index in range(config.num_actors)]
        cpus = {"num_cpus": config.cpus_per_actor}
        self.supervisor = Supervisor(connection, kind, self.members, resources=cpus, placement="SPREAD")
        self.ray = self.supervisor.ray
        self.plays: dict[Any, tuple[FleetActor, Any]] = {}  # by the report's reference, with the rollout's
        self.waiting: list[FleetActor] = []  # for the next version, if no lag is allowed
        self.num_lost = self.num_dropped = self.num_deaths = 0

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        """Print the numbers of lost and dropped rollouts, if any, and end all actors.

        Actors that are playing get CLOSE_S seconds to finish.
        """
        with closing(self.supervisor):
            self._sum_up()
            self.supervisor.ask_to_close(self.members, CLOSE_S)
            plays = {ref: member for report, (member, rollout) in self.plays.items() for ref in (report, rollout)}
            self.supervisor.answers(plays, 0.0)  # Ray logs errors that are never read

    def broadcast(self, version: int, policy: nn.Module) -> None:
        """Store the weights of a policy version in Ray's object store, for the rollouts that are requested next."""
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

        Rollouts whose lag is above ``max_lag`` are dropped; the infos of all arriving rollouts go to the report. An
        actor is asked for its next rollout as soon as its last one has arrived. If no lag is allowed, however, all
        actors are asked together, once no rollout is outstanding. Raises WorkerError if an actor's environment or
        policy raises, or if an actor dies repeatedly; other pufferlib errors of actors are raised unchanged.
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
                self.supervisor.answers({rollout_ref: member}, CLOSE_S)  # or Ray logs it
                self._lose(member, error)
                continue
            member.deaths, member.node, member.location = 0, rollout_report.node, f" on {rollout_report.node}"
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
        """Return actors' and nodes' steps per second, and counts of dropped and lost rollouts and of lost actors.

        The keys are names for TensorBoard; counts of 0 are omitted.
        """
        speeds: dict[str, float] = {}
        for member in self.members:
            if member.steps_per_s:
                node = f"actors/{member.node}"
                speeds[node] = speeds.get(node, 0.0) + member.steps_per_s
                speeds[f"{node}/{member.index}"] = member.steps_per_s
        lost = {"dropped_rollouts": self.num_dropped, "lost_rollouts": self.num_lost, "lost_actors": self.num_deaths}
        return {**{f"charts/{name}": count for name, count in lost.items() if count}, **speeds}

    def _sum_up(self) -> None:
        if self.num_lost:
            self._say(
                f"lost: {self.num_deaths} actor(s), {self.num_lost} rollout(s), and the open episodes of "
                f"{self.num_deaths * self.config.num_envs} environments"
            )
        if self.num_dropped:
            self._say(f"dropped: {self.num_dropped} rollout(s), older than max_lag={self.config.max_lag}")

    def _ask_waiting(self) -> None:
        while self.waiting:
            self._ask(self.waiting.pop(0))

    def _ask(self, member: FleetActor) -> None:
        """Ask an actor for a rollout; start the actor first if it is not running."""
        if member.handle is None:
            self.supervisor.start(member, member.index, *self.arguments)
        num_earlier = member.generation - 1
        seed = int(np.random.SeedSequence([self.seed, member.index, num_earlier]).generate_state(1)[0])
        report_ref, rollout_ref = member.handle.play.options(num_returns=2).remote(seed, self.version, [self.weights])
        self.plays[report_ref] = member, rollout_ref

    def _first(self) -> Any:
        """Wait until any rollout finishes or fails, and return the reference to its report.

        Refreshes the dashboard meanwhile, and prints a message once after PATIENCE_S.
        """
        since_s, waits = time.monotonic(), True
        while True:
            self.supervisor.connection.check()
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
        """Replace an actor that died, or whose rollout needed an object that was lost.

        Counts and reports the losses, and asks the replacement for a rollout. If the actor's environment or policy
        raised instead, raises the error that ``_explained`` returns. Raises WorkerError if the actor died MOST_DEATHS
        times in a row.
        """
        cause: Any = getattr(error, "cause", None)
        if isinstance(error, self.ray.exceptions.RayTaskError) and not isinstance(cause, self.ray.exceptions.RayError):
            raise self._explained(member, cause, plain(error)) from None
        lost = isinstance(cause, self.ray.exceptions.RayError)  # what the play needed, such as the weights
        num_envs, death = self.config.num_envs, reason(cause if lost else error)
        self.num_lost += 1
        self.num_deaths += 1
        member.steps_per_s = 0.0
        self.supervisor.count_death(member, "without having come to the end of a rollout", death)
        first, cause = member.index * num_envs, CrashCause(death)
        self.report.infos([{"env_id": env_id, "restarted": cause} for env_id in range(first, first + num_envs)])
        self._say(
            f"{member.name} died: {death}. A rollout and the open episodes of its {num_envs} environments are lost; "
            "another one takes its place"
        )
        self.supervisor.kill(member)
        self._ask(member)

    def _explained(self, member: FleetActor, cause: Any, trace: str) -> PufferError:
        """Convert an error to a WorkerError that names the actor; return pufferlib errors of other types unchanged."""
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


def connect(config: FleetConfig) -> Connection:
    """Connect to Ray, or start Ray on this machine with CPUs for all actors; return the connection.

    The address is ``config.address`` or, by default, the one in RAY_ADDRESS; without either,
    or if it is "local", Ray is started. Raises PlanError if no Ray answers at the address, and the other errors of
    ``Connection``.
    """
    num_cpus = math.ceil(config.num_actors * config.cpus_per_actor)
    try:
        return Connection(config.address, num_cpus=num_cpus, log_to_driver=False)
    except PlatformError as error:
        address = config.address or os.environ.get("RAY_ADDRESS") or "local"
        if address == "local":
            raise
        raise PlanError(
            f"address={address!r} is no Ray that can be reached ({error.__cause__}); start one with `ray start --head`,"
            " or leave the address out for one on this machine"
        ) from error


def node_name() -> str:
    """Return a short and unique name for this node."""
    ray = ray_module()
    return f"{ray.util.get_node_ip_address()}-{ray.get_runtime_context().get_node_id()[:4]}"
