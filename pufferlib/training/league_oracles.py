"""Learned responses in leagues: the oracles for ``oracle = "ppo"`` and ``oracle = "dqn"`` in a league's file.

    oracle = "dqn"
    [oracle_kwargs]
    num_envs = 64
    total_steps = 10_000

``[oracle_kwargs]`` are fields of the trainer's ``Config``. ``num_envs``, ``backend``, ``num_workers`` and
``batch_size`` configure the VecEnv in which responses are learnt; payoffs are sampled in another VecEnv. In a league
with ``[workers]``, the workers learn the responses of all seats at the same time, each in its own VecEnv. Settings that
the league determines, such as the seed, are rejected; with ``[workers]``, so are the four settings of the VecEnv.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete

from pufferlib import VecEnv
from pufferlib.errors import PlanError
from pufferlib.population import ExactOracle, Mixture, PolicyPool, RemoteOracle, Seat, Setup
from pufferlib.training.oracles import LearnedOracle, trainer_of
from pufferlib.training.run_config import RunConfig
from pufferlib.util.toml import checked

VEC = ("num_envs", "backend", "num_workers", "batch_size")  # of the VecEnv in which responses are learnt
THE_LEAGUES = {
    "env", "env_kwargs", "wrap_kwargs", "on_error", "max_restarts", "step_timeout", "seed", "checkpoint_every",
    "checkpoint_minutes", "eval_episodes", "eval_greedy", "runs", "track", "track_project", "video_envs", "video_every",
    "keep_buffer",
}  # fmt: skip
LOGITS = "pufferlib.population.games:Logits"  # for games with numbered information states


def ppo_oracle(setup: Setup, **settings: Any) -> LeagueOracle:
    """Return an oracle that learns its responses with PPO."""
    return LeagueOracle(setup, trainer_of("ppo").Config, settings)


def dqn_oracle(setup: Setup, **settings: Any) -> LeagueOracle:
    """Return an oracle that learns its responses with DQN."""
    return LeagueOracle(setup, trainer_of("dqn").Config, settings)


class LeagueOracle:
    """An oracle that makes a new ``LearnedOracle`` for each request or, in a league with workers, a ``RemoteOracle``.

    The seeds of these oracles follow from the league's seed and the pool's size, so a league that is interrupted and
    resumed gives the same policies. nash_conv, evaluate: the methods of ``ExactOracle`` if the environments play a game
    and their observations are the numbers of its information states, else None. For such environments, the default
    ``policy`` is LOGITS, and the default ``gamma`` is 1. Raises PlanError for invalid settings.
    """

    def __init__(self, setup: Setup, kind: type[Any], settings: dict[str, Any]) -> None:
        self._setup = setup
        trainer_settings = checked(settings, kind, "[oracle_kwargs]")
        if unread := sorted(trainer_settings.keys() & THE_LEAGUES):
            raise PlanError(f"[oracle_kwargs] has {', '.join(unread)}, which the league sees to itself; leave it out")
        if setup.coordinator is not None and (vec_keys := sorted(trainer_settings.keys() & set(VEC))):
            raise PlanError(
                f"[oracle_kwargs] has {', '.join(vec_keys)}, but [workers] learn in the environments in which they "
                "play; move them to [evaluation]"
            )
        kind(**trainer_settings)  # raises before anything is opened
        vec_kwargs = {
            "num_envs": 64,
            "backend": "serial",
            **{name: trainer_settings[name] for name in VEC if name in trainer_settings},
        }
        if setup.coordinator is not None:
            vec_kwargs["num_envs"] = 1  # only to read its spaces
        self._vec = setup.make_env(**vec_kwargs, seed=setup.seed, as_torch=True)
        space = self._vec.observation_layout.space
        numbered = isinstance(space, Dict) and isinstance(space.spaces.get("state"), Discrete)
        game = setup.settings.game
        exact = ExactOracle(game, setup.pool) if game is not None and numbered else None
        if exact is not None:
            trainer_settings.setdefault("policy", LOGITS)
            trainer_settings.setdefault("gamma", 1.0)
        self.nash_conv = None if exact is None else exact.nash_conv
        self.evaluate = None if exact is None else exact.evaluate
        self._config = kind(**trainer_settings)

    def initial(self, seat: int) -> int:
        return self._learned().initial(seat)

    def respond(self, seat: int, mixture: Mixture) -> int:
        return self._learned().respond(seat, mixture)

    def respond_all(self, requests: Sequence[tuple[int, Mixture]]) -> list[int]:
        """Learn a response to each request, a seat and a mixture, and return the responses' ids in the pool.

        The league's workers, if any, learn the responses at the same time.
        """
        learned = self._learned()
        if isinstance(learned, RemoteOracle):
            return learned.respond_all(requests)
        return [self.respond(seat, mixture) for seat, mixture in requests]

    def close(self) -> None:
        """Close the oracle's VecEnv."""
        self._vec.close()

    def _learned(self) -> LearnedOracle | RemoteOracle:
        setup = self._setup
        seed = int(np.random.SeedSequence((setup.seed, len(setup.pool))).generate_state(1)[0])
        if setup.coordinator is None:
            return _learned_oracle(self._vec, setup.pool, seed, config=self._config, seats=setup.seats)
        return RemoteOracle(
            setup.coordinator(), partial(_learned_oracle, config=self._config, seats=setup.seats), seed=seed
        )


def _learned_oracle(
    vec: VecEnv, pool: PolicyPool, seed: int, *, config: RunConfig, seats: Sequence[Seat]
) -> LearnedOracle:
    return LearnedOracle(vec, pool, replace(config, seed=seed), seats=seats)
