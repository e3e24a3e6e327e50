"""League: a population that grows by PSRO, is stored in a folder, and can be resumed exactly where it stopped.

league.toml           the settings
pool/                 the policies
payoffs-12.npz        the payoff table as of iteration 12
metrics.jsonl         one line per iteration: sizes, NashConv, mixture, episodes, seconds
state.json            how much of these files is valid; replaced last, atomically, when an iteration is complete
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import pufferlib
from pufferlib.errors import CallError, CheckpointError, PlanError
from pufferlib.population.games.exact_oracle import ExactOracle
from pufferlib.population.games.game_env import GameEnv
from pufferlib.population.games.sequence_form import MAX_NODES
from pufferlib.population.games.trees import load_game
from pufferlib.population.league_settings import Settings, seats_for
from pufferlib.population.matchmaking import Mixture, Seat, product
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.playing import Evaluator
from pufferlib.population.pool import INDEX, PolicyPool
from pufferlib.population.response_oracles import Evaluate, Iteration, Oracle, psro
from pufferlib.population.task_queue import Coordinator
from pufferlib.util.files import written_whole

__all__ = ["League", "Setup", "exact_oracle", "make_env"]

SETTINGS, POOL, STATE, METRICS = "league.toml", "pool", "state.json", "metrics.jsonl"
NUM_TABLES = 2  # on disk, so that another process can read the last one while the next is written
FORMAT = "pufferlib league 1"


@dataclass(frozen=True)
class Setup:
    """The first argument of a function that creates a league's oracle; the ``oracle_kwargs`` are its other arguments.

    settings: the league's settings. pool: the pool for the new policies. seats: the league's seats; the oracle's
    methods take a seat's index in them. make_env: a function that creates a VecEnv of the league's environments from
    arguments of ``pufferlib.make``. seed: the seed of the oracle; all randomness should depend only on it and on
    ``len(pool)``, so that an interrupted league resumes with the same results. coordinator: a function that returns the
    league's coordinator; None if the league has no workers.
    """

    settings: Settings
    pool: PolicyPool
    seats: tuple[Seat, ...]
    make_env: Callable[..., pufferlib.VecEnv]
    seed: int
    coordinator: Callable[[], Coordinator] | None = None


def exact_oracle(setup: Setup, max_nodes: int = MAX_NODES) -> Oracle:
    """Return an oracle that computes best responses.

    Raises PlanError if the league has no game, or a game whose tree has more than ``max_nodes`` nodes.
    """
    if setup.settings.game is None:
        raise PlanError(f'oracle="exact" needs a game, and env={setup.settings.env!r} is none; name another oracle')
    return ExactOracle(setup.settings.game, setup.pool, max_nodes=max_nodes)


class League:
    """A league, as stored in its folder. Iterating over it continues the league until it stops.

    ::

        with League.begin(Settings.read("league.toml"), "leagues/kuhn") as league:
            for iteration in league:
                print(iteration.number, iteration.nash_conv)

    An iteration is yielded once all of it is on disk. Whatever ends the program, ``League.resume(folder)`` continues
    the league. The results are the same as without the interruption if the oracle and the payoffs are deterministic.
    The exact oracle and its payoffs always are; payoffs that are sampled with the backend "serial" or "multiprocessing"
    are deterministic if the environments are.

    folder, settings, seats: the league's folder, settings and seats. pool: the league's policies. table: the payoffs of
    the policies; None until the first iteration begins. rows: the lines of metrics.jsonl, one dict per iteration.
    state: the content of state.json, or None for a new league. trust: see ``resume``.
    """

    def __init__(
        self, folder: Path, settings: Settings, state: Mapping[str, Any] | None, *, trust: bool = False
    ) -> None:
        self.folder, self.settings = folder, settings
        self.rows: list[dict[str, Any]] = []
        self.table: PayoffTable | None = None
        self._vec: pufferlib.VecEnv | None = None
        self._coordinator: Coordinator | None = None
        self._oracle: Any = None
        self._metrics_nbytes = 0
        self._is_running = False  # whether an iteration has started and is not complete
        if state is None:
            has_pool = (folder / POOL / INDEX).exists()
            self.pool = PolicyPool.open(folder / POOL, trust=trust, num=0) if has_pool else PolicyPool(folder / POOL)
            return
        try:
            self._metrics_nbytes = int(state["metrics_nbytes"])
            lines = (folder / METRICS).read_bytes()[: self._metrics_nbytes].decode().splitlines()
            self.rows = [json.loads(line) for line in lines]
            self.pool = PolicyPool.open(folder / POOL, trust=trust, num=state["policies"])
            self.table = PayoffTable.load(folder / state["payoffs"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{folder} is damaged ({error!r}); begin a league in another folder") from error

    @classmethod
    def begin(cls, settings: Settings, folder: str | os.PathLike[str]) -> League:
        """Create the folder of a new league, and return the league.

        Raises CallError if the folder contains a league with a complete iteration, PlanError if the path is a file or
        leads through one, and the errors of ``Settings.check``.
        """
        folder = Path(folder)
        if (folder / STATE).exists():
            raise CallError(f"{folder} already holds a league; --resume {folder} continues it")
        settings.check()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise PlanError(f"{folder} is a file, or lies in one; name a folder for the league") from error
        _write(folder, settings)
        return cls(folder, Settings.read(folder / SETTINGS), None)  # the settings that a resumed league will have

    @classmethod
    def resume(
        cls, folder: str | os.PathLike[str], *, trust: bool = False, actors: int | None = None, **stop: Any
    ) -> League:
        """Return the league in a folder, ready to continue.

        actors: a new number of Ray actors. stop: new values for fields of ``Stop``. Both are saved; None leaves a value
        unchanged. trust: see ``read_policy``; must be True if policies come from a module that is neither pufferlib's
        nor in the current folder.
        Raises PlanError if there is no league, if its settings or a new value are invalid, or for actors of a league
        without workers; raises CheckpointError if the league is damaged.
        """
        folder = Path(folder)
        if not (folder / SETTINGS).is_file():
            leagues = sorted(folder.glob(f"*/{SETTINGS}")) if folder.is_dir() else []
            problem = f"it has no {SETTINGS}" if folder.is_dir() else "there is no such folder"
            advice = f"leagues are in it, such as {leagues[0].parent}" if leagues else "`puffer league run` makes one"
            raise PlanError(f"{folder} is no league: {problem}; {advice}")
        old_settings = Settings.read(folder / SETTINGS)
        settings = old_settings.stopping(**stop).with_actors(actors)
        if settings != old_settings:
            _write(folder, settings)
        state = None
        if (folder / STATE).exists():
            try:
                state = json.loads((folder / STATE).read_text())
                if state["format"] != FORMAT:
                    raise ValueError(f"its format is {state['format']!r}")
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise CheckpointError(f"{folder / STATE} is not a league's state ({error!r})") from error
        return cls(folder, settings, state, trust=trust)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seats of the league's game or environments."""
        if self.settings.game is not None:
            return tuple(Seat(f"player_{n}", (n,)) for n in range(load_game(self.settings.game).num_players()))
        return seats_for(self.settings, self.vec())

    @property
    def mixture(self) -> Mixture:
        """The mixture of the last complete iteration. Raises CallError if there is none."""
        if not self.rows or self.table is None:
            raise CallError(f"{self.folder} has no complete iteration yet; `puffer league run --resume {self.folder}`")
        return product(self.table.populations, self.rows[-1]["mixture"])

    def stopped(self) -> str | None:
        """Return the reason why the league has stopped, as a clause; None if it has not."""
        if not self.rows:
            return None
        row, stop = self.rows[-1], self.settings.stop
        if stop.nash_conv is not None and row["nash_conv"] is not None and row["nash_conv"] <= stop.nash_conv:
            return f"NashConv {row['nash_conv']:.3g} is at most {stop.nash_conv:g}"
        if stop.iterations is not None and row["iteration"] >= stop.iterations:
            return f"iteration {stop.iterations} was to be the last"
        if stop.policies is not None and max(row["sizes"]) >= stop.policies:
            return f"a seat has {max(row['sizes'])} policies"
        if stop.seconds is not None and row["seconds"] >= stop.seconds:
            return f"{stop.seconds:g} seconds are over"
        return None

    def vec(self) -> pufferlib.VecEnv:
        """Return the VecEnv in which the league plays, created at the first call and closed by ``close``."""
        if self._vec is None:
            evaluation = self.settings.evaluation
            self._vec = make_env(
                self.settings,
                num_envs=evaluation.num_envs,
                backend=evaluation.backend,
                num_workers=evaluation.num_workers,
                batch_size=evaluation.batch_size,
                seed=self.settings.seed,
            )
        return self._vec

    def coordinator(self) -> Coordinator:
        """Return the coordinator of the league's workers, created at the first call and closed by ``close``.

        Raises CallError if the league has no workers.
        """
        workers, evaluation = self.settings.workers, self.settings.evaluation
        if workers is None:
            raise CallError(f"{self.folder} has no workers; begin a league whose file has [workers]")
        if self._coordinator is None:
            env, env_kwargs = _env(self.settings, {})
            self._coordinator = Coordinator(
                self.pool,
                env,
                num_actors=workers.actors,
                max_retries=workers.max_retries,
                task_timeout=workers.task_timeout,
                address=workers.address,
                num_envs=evaluation.num_envs,
                backend=evaluation.backend,
                num_workers=evaluation.num_workers,
                env_kwargs=env_kwargs,
                as_torch=True,  # learners take tensors
            )
        return self._coordinator

    def who(self) -> str | None:
        """Return text about the workers: what they compute, and how many tasks they have completed and lost.

        Completed tasks are listed by worker. Both numbers count from the creation of the coordinator, and are left out
        before it. Returns None for a league without workers.
        """
        workers, evaluation = self.settings.workers, self.settings.evaluation
        if workers is None:
            return None
        worker_text = f"{workers.actors} actors of Ray" if workers.actors else "this process"
        remote_work = {"payoffs": evaluation.payoffs == "sampled", "responses": self.settings.oracle != "exact"}
        work = " and ".join(name for name, is_remote in remote_work.items() if is_remote)
        summary = f"{work} by {worker_text}, {evaluation.num_envs} environments each"
        if self._coordinator is None:
            return summary
        counts = [f"{self._coordinator.num_done[worker]:,}" for worker in range(max(1, workers.actors))]
        lost = self._coordinator.num_lost
        return f"{summary}; {' + '.join(counts)} tasks" + (f", {lost:,} lost and done again" if lost else "")

    def __iter__(self) -> Iterator[Iteration]:
        """Continue the league, and yield each new iteration once it is on disk.

        Raises CallError if an iteration of this object was interrupted, because the pool and the table then contain a
        part of that iteration; PlanError if the oracle cannot compute what the settings require.
        """
        if self._is_running:
            raise CallError(f"an iteration was interrupted; League.resume({str(self.folder)!r}) continues the league")
        settings, oracle = self.settings, self.oracle()
        measure = getattr(oracle, "nash_conv", None)
        evaluate: Evaluate | None = self._evaluate
        if settings.evaluation.payoffs == "exact":
            evaluate = getattr(oracle, "evaluate", None)
            if evaluate is None:
                raise PlanError(f'payoffs="exact", which oracle {settings.oracle} cannot compute; use "sampled"')
        if settings.stop.nash_conv is not None and measure is None:
            raise PlanError(f"[stop] has nash_conv, which oracle {settings.oracle} cannot compute; stop by iterations")
        if self.table is None:
            self.table = PayoffTable(len(self.seats))
        first, elapsed_s = (self.rows[-1]["iteration"], self.rows[-1]["seconds"]) if self.rows else (0, 0.0)
        if self.stopped() is not None:
            return
        loop = psro(
            oracle,
            self.table,
            settings.solve(),
            evaluate=evaluate,
            measure=measure,
            targets=settings.targets(),
        )
        start = perf_counter()
        self._is_running = True
        for iteration in loop:
            is_saved = bool(self.rows) and self.rows[-1]["iteration"] == first + iteration.number
            iteration = iteration._replace(number=first + iteration.number, seconds=elapsed_s + perf_counter() - start)
            if not is_saved:  # the first of a resumed league is saved already
                self._save(iteration)
                self._is_running = False
                yield iteration
            if self.stopped() is not None:
                self._is_running = False
                return
            self._is_running = True

    def oracle(self) -> Any:
        """Return the oracle, created at the first call; ``close`` closes it if it has a method ``close``."""
        if self._oracle is None:
            settings = self.settings
            coordinator = None if settings.workers is None else self.coordinator
            setup = Setup(settings, self.pool, self.seats, partial(make_env, settings), settings.seed, coordinator)
            self._oracle = settings.make_oracle()(setup, **settings.oracle_kwargs)
        return self._oracle

    def _evaluate(self, table: PayoffTable) -> None:
        """Play the episodes that the table lacks, with seeds that do not depend on earlier play in this process."""
        evaluation = self.settings.evaluation
        env_seed, router_seed = np.random.SeedSequence((self.settings.seed, len(self.pool))).generate_state(2).tolist()
        vec: pufferlib.VecEnv | Coordinator
        if self.settings.workers is None:
            vec = self.vec()
            vec.reset(seed=env_seed)
        else:
            vec = self.coordinator()
        Evaluator(
            vec,
            self.pool,
            min_episodes=evaluation.min_episodes,
            max_episodes=evaluation.max_episodes,
            half_width=evaluation.half_width,
            greedy=evaluation.greedy,
            seats=self.seats,
            seed=router_seed,
        )(table)

    def _save(self, iteration: Iteration) -> None:
        """Write an iteration to disk, and append it to ``rows``.

        The iteration becomes valid when state.json is replaced; outdated payoff tables are deleted afterwards.
        """
        assert self.table is not None
        row = {
            "iteration": iteration.number,
            "sizes": list(iteration.sizes),
            "nash_conv": iteration.nash_conv,
            "seconds": round(iteration.seconds, 3),
            "episodes": int(self.table.counts.sum()),
            "mixture": [marginal.tolist() for marginal in iteration.mixture.marginals],
        }
        line = json.dumps(row).encode() + b"\n"
        name = f"payoffs-{iteration.number}.npz"
        self.table.save(self.folder / name)
        with open(self.folder / METRICS, "ab") as file:
            file.truncate(self._metrics_nbytes)  # drop the line of an iteration that was not completed
            file.write(line)
        nbytes = self._metrics_nbytes + len(line)
        state = {"format": FORMAT, "payoffs": name, "policies": len(self.pool), "metrics_nbytes": nbytes}
        with written_whole(self.folder / STATE) as part:
            part.write_text(json.dumps(state))
        self.rows.append(row)
        self._metrics_nbytes = nbytes
        for path in self.folder.glob("payoffs-*.npz"):
            number = re.fullmatch(r"payoffs-(\d+)\.npz", path.name)
            if number is not None and not iteration.number - NUM_TABLES < int(number[1]) <= iteration.number:
                path.unlink()

    def close(self) -> None:
        """Close the VecEnv, the workers and the oracle, if they were created."""
        if self._vec is not None:
            self._vec.close()
            self._vec = None
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None
        if hasattr(self._oracle, "close"):
            self._oracle.close()
        self._oracle = None

    def __enter__(self) -> League:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def make_env(settings: Settings, env_kwargs: Mapping[str, Any] | None = None, **arguments: Any) -> pufferlib.VecEnv:
    """Create a VecEnv of a league's environments.

    env_kwargs: arguments of the environments, in addition to those in the settings. arguments: arguments of
    ``pufferlib.make``. If the league has a game and the exact oracle, the observations are by default the numbers of
    information states, which the oracle's policies read.
    """
    env, env_kwargs = _env(settings, env_kwargs or {})
    return pufferlib.make(env, env_kwargs=env_kwargs, **arguments)


def _env(settings: Settings, extra: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a league's environment and its keyword arguments, for ``pufferlib.make``."""
    env_kwargs = {**settings.env_kwargs, **extra}
    if settings.game is None:
        return settings.env, env_kwargs
    if settings.oracle == "exact":
        env_kwargs.setdefault("observation", "index")
    return partial(GameEnv, settings.game), env_kwargs


def _write(folder: Path, settings: Settings) -> None:
    with written_whole(folder / SETTINGS) as part:
        part.write_text(settings.toml(), encoding="utf-8")
