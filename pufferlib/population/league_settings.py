"""The settings of a league, read from TOML: game, oracle, solver, evaluation, workers and stopping conditions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pufferlib import registry
from pufferlib.errors import PlanError
from pufferlib.population.games.trees import load_game
from pufferlib.population.matchmaking import Seat, seats_of
from pufferlib.population.response_oracles import Targets, targets_of
from pufferlib.population.solvers import SOLVERS, Solver
from pufferlib.util.suggestions import meant
from pufferlib.util.toml import checked, read_toml, to_toml
from pufferlib.vectorization import VecEnv

__all__ = ["ORACLES", "Evaluation", "Settings", "Stop", "Workers", "seats_for"]

HINT = "docs/population.md says what a league's file holds; examples/league.toml is one"
# Functions that return oracles, called like ``exact_oracle`` in league.py.
ORACLES = {
    "exact": "pufferlib.population.league:exact_oracle",
    "ppo": "pufferlib.training.league_oracles:ppo_oracle",
    "dqn": "pufferlib.training.league_oracles:dqn_oracle",
}


@dataclass(frozen=True)
class Stop:
    """The stopping conditions of a league, which stops when any of them holds. None disables a condition.

    nash_conv: NashConv is at most this value. iterations: this many iterations are complete; with 0, only the first
    policies are created. policies: a seat has this many policies. seconds: the league has run for this long in total.
    """

    nash_conv: float | None = None
    iterations: int | None = None
    policies: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """The settings for a league's payoffs.

    payoffs: "exact" if the oracle computes them, "sampled" if an ``Evaluator`` estimates them. min_episodes,
    max_episodes, half_width, greedy: arguments of the Evaluator, which exact payoffs do not need. The other fields are
    arguments of the VecEnv in which the league, or each of its workers, plays.
    """

    payoffs: Literal["exact", "sampled"] = "sampled"
    min_episodes: int = 100
    max_episodes: int | None = None
    half_width: float | None = None
    greedy: bool = False
    num_envs: int = 64
    backend: str = "serial"
    num_workers: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Workers:
    """The settings of the workers that evaluate and train policies.

    actors: the number of Ray actors, which does not affect a league's results; with 0, this process is the only worker.
    The other fields are arguments of ``Coordinator``. The settings of each worker's VecEnv are in ``Evaluation``.
    """

    actors: int = 0
    max_retries: int = 3
    task_timeout: float | None = None
    address: str | None = None


@dataclass(frozen=True)
class Settings:
    """The settings of a league. Raises PlanError if a value is invalid, or if values contradict each other.

    game: the game's name for ``load_game``. env: instead of a game, the name of an environment, or "module:function".
    seats: a mapping from each seat's name to a list of its agents' names or patterns of names (``tagger_*``); if empty,
    each agent has its own seat.
    oracle: one of ``ORACLES``, or "module:function". solver: one of ``SOLVERS``. env_kwargs, oracle_kwargs,
    solver_kwargs: keyword arguments of the environment, the oracle and the solver. seed: the seed of all randomness.
    stop: the stopping conditions. evaluation: how payoffs are computed. workers: the workers that run evaluation and
    training as tasks; if None, both run in this process, one after the other.
    """

    game: str | None = None
    env: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seats: Mapping[str, Any] = field(default_factory=dict)
    oracle: str = "exact"
    oracle_kwargs: Mapping[str, Any] = field(default_factory=dict)
    solver: str = "alpha_rank"
    solver_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    stop: Stop = Stop()
    evaluation: Evaluation = Evaluation()
    workers: Workers | None = None

    def __post_init__(self) -> None:
        if (self.game is None) == (self.env is None):
            fields = "neither game nor env" if self.game is None else f"game={self.game!r} and env={self.env!r}"
            raise PlanError(f'a league has {fields}; set one of them, such as game = "kuhn_poker"')
        if self.game is not None and self.seats:
            raise PlanError(f"[seats] has {dict(self.seats)}, but a game's players are its seats; leave it out")
        for seat, agents in self.seats.items():
            if not isinstance(agents, (list, tuple)) or not all(isinstance(agent, str) for agent in agents):
                raise PlanError(f'seat {seat} has {agents!r}; it takes a list of agents\' names, such as ["player_0"]')
        if self.solver not in SOLVERS:
            raise PlanError(f"solver={self.solver!r} is none; {meant(str(self.solver), SOLVERS)}")
        solver = SOLVERS[self.solver]
        names = list(inspect.signature(solver).parameters)[1:]
        for name in self.solver_kwargs:
            if name not in names:
                raise PlanError(f"solver {self.solver} takes no {name}; {meant(name, names)}")
        if self.solver_kwargs:
            self._try_solver()
        if self.oracle not in ORACLES and ":" not in self.oracle:
            hint = "module:function names one of your own"
            raise PlanError(f"oracle={self.oracle!r} is none; {meant(self.oracle, ORACLES)}; {hint}")
        if self.seed < 0:
            raise PlanError(f"seed={self.seed} is negative; use 0 or more")
        if self.stop == Stop():
            raise PlanError("nothing would end this league; [stop] takes nash_conv, iterations, policies and seconds")
        for name, value in asdict(self.stop).items():
            if value is not None and not value >= 0:  # also true of NaN
                raise PlanError(f"[stop] has {name}={value}; use 0 or more")
        if self.workers is not None:
            self._check_workers(self.workers)

    def _try_solver(self) -> None:
        """Raise PlanError if the solver does not accept ``solver_kwargs``, before any episode is played."""
        arguments = dict(self.solver_kwargs)
        if isinstance(arguments.get("num_iterations"), int):
            arguments["num_iterations"] = min(arguments["num_iterations"], 1)
        solver: Callable[..., Any] = SOLVERS[self.solver]
        try:
            solver(np.zeros((2, 2, 2)), **arguments)
        except (PlanError, TypeError, ValueError) as error:
            raise PlanError(f"solver {self.solver} does not take {dict(self.solver_kwargs)}: {error}") from error

    def _check_workers(self, workers: Workers) -> None:
        for name in ("actors", "max_retries"):
            if getattr(workers, name) < 0:
                raise PlanError(f"[workers] has {name}={getattr(workers, name)}; use 0 or more")
        if workers.task_timeout is not None and not 0 < workers.task_timeout < math.inf:
            raise PlanError(f"[workers] has task_timeout={workers.task_timeout}; use seconds above 0, or leave it out")
        if workers.address is not None and not workers.actors:
            raise PlanError(f"[workers] has address={workers.address!r} but no Ray actors; set actors = 2, or more")
        evaluation = self.evaluation
        if self.oracle == "exact" and evaluation.payoffs == "exact":
            raise PlanError(
                "[workers] has no tasks if the exact oracle also computes the payoffs; leave it out, or use "
                'payoffs = "sampled"'
            )
        if evaluation.backend == "ray":
            raise PlanError(
                '[evaluation] has backend="ray", which would run within each of the [workers]; use another backend, '
                "or no workers"
            )
        if evaluation.batch_size not in (None, evaluation.num_envs):
            raise PlanError(
                f"[evaluation] has batch_size={evaluation.batch_size}, which would make results depend on which of the "
                "[workers] plays; leave it out"
            )

    @classmethod
    def read(cls, path: str | Path) -> Settings:
        """Read settings from a TOML file. Raises PlanError if it cannot be read, or for an invalid key or value."""
        return cls.of(read_toml(path, HINT), str(path))

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Settings:
        """Return the settings for values read from TOML. Raises PlanError if they are invalid.

        source: the origin of the values, for error messages.
        """
        fields = checked(values, cls, source)
        for name, table_type in (("stop", Stop), ("evaluation", Evaluation), ("workers", Workers)):
            if name in fields:
                if not isinstance(fields[name], Mapping):
                    raise PlanError(f"{source} has {name}={fields[name]!r}; it takes a table: [{name}]")
                fields[name] = table_type(**checked(fields[name], table_type, f"{source}, [{name}],"))
        return cls(**fields)

    def stopping(self, **changes: Any) -> Settings:
        """Return a copy with changed stopping conditions. Raises PlanError for negative values.

        changes: new values for fields of ``Stop``; None leaves a field unchanged.
        """
        values = {name: value for name, value in changes.items() if value is not None}
        return replace(self, stop=replace(self.stop, **values))

    def with_actors(self, actors: int | None) -> Settings:
        """Return a copy with another number of actors, which does not affect results; None leaves the number unchanged.

        Raises PlanError if the league has no workers, or for a number below 0.
        """
        if actors is None:
            return self
        if self.workers is None:
            raise PlanError(
                f"actors={actors}, but this league has no [workers]; begin another one, whose file has them"
            )
        return replace(self, workers=replace(self.workers, actors=actors))

    def toml(self) -> str:
        """Return the settings as TOML text that ``read`` accepts."""
        return to_toml(asdict(self))

    def check(self) -> None:
        """Raise PlanError, RegistryError or MissingExtra if the game, environment or oracle is not available."""
        self.make_oracle()
        if self.game is not None:
            load_game(self.game)
        if self.env is not None:
            registry.creator(self.env)

    def solve(self) -> Solver:
        """Return the solver, with ``solver_kwargs`` bound."""
        solver: Callable[..., Any] = SOLVERS[self.solver]
        return partial(solver, **self.solver_kwargs) if self.solver_kwargs else solver

    def targets(self) -> Targets | None:
        """Return the argument ``targets`` of ``psro`` for the solver; None if its mixture is the only target."""
        return targets_of(self.solver)

    def make_oracle(self) -> Callable[..., Any]:
        """Return the function that creates the oracle.

        Raises RegistryError if the function does not exist, PlanError if it does not take one of ``oracle_kwargs``.
        """
        make = registry.load(ORACLES.get(self.oracle, self.oracle))
        parameters = inspect.signature(make).parameters.values()
        names = [
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ][1:]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            for name in self.oracle_kwargs:
                if name not in names:
                    raise PlanError(f"oracle {self.oracle} takes no {name}; {meant(name, names)}")
        return make


def seats_for(settings: Settings, vec: VecEnv) -> tuple[Seat, ...]:
    """Return the seats of a league's environments, by its settings. vec: a VecEnv of these environments.

    Raises PlanError if an agent has no seat, or a seat has no agent.
    """
    if not settings.seats:
        return seats_of(vec)
    patterns: Sequence[tuple[str, str]] = [
        (seat, pattern) for seat, patterns in settings.seats.items() for pattern in patterns
    ]

    def role(agent: str) -> str:
        for seat, pattern in patterns:
            if fnmatchcase(agent, pattern):
                return seat
        raise PlanError(f"agent {agent} has no seat; [seats] is {dict(settings.seats)}: add its name or a pattern")

    by_name = {seat.name: seat for seat in seats_of(vec, role)}
    empty = [seat for seat in settings.seats if seat not in by_name]
    if empty:
        raise PlanError(f"no agent has the seat {', '.join(empty)}; the agents are {', '.join(vec.agent_names)}")
    return tuple(by_name.values())
