"""Learnt responses in leagues: what ``oracle = "ppo"`` and ``oracle = "dqn"`` of a league's file stand for.

    oracle = "dqn"
    [oracle_kwargs]
    num_envs = 64
    total_steps = 10_000

``[oracle_kwargs]`` are fields of the trainer's ``Config``; ``num_envs``, ``backend``, ``num_workers`` and
``batch_size`` are those of the VecEnv in which responses are learnt; that in which payoffs are sampled is
another. What the league sees to itself, such as the seed, is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete

from cleanrl_demo import dqn, ppo
from cleanrl_demo.oracles import LearnedOracle
from pufferlib.errors import PlanError
from pufferlib.population import ExactOracle, Mixture, Setup
from pufferlib.toml import checked

VEC = ("num_envs", "backend", "num_workers", "batch_size")  # of the VecEnv in which responses are learnt
THE_LEAGUES = {
    "env", "env_kwargs", "wrap_kwargs", "on_error", "max_restarts", "seed", "checkpoint_every", "eval_episodes",
    "eval_greedy", "runs", "track", "track_project", "video_envs", "video_every", "keep_buffer",
}  # fmt: skip
LOGITS = "pufferlib.population.games:Logits"  # for games whose information states are numbered


def ppo_oracle(setup: Setup, **settings: Any) -> LeagueOracle:
    """Return responses that PPO learns."""
    return LeagueOracle(setup, ppo.Config, settings)


def dqn_oracle(setup: Setup, **settings: Any) -> LeagueOracle:
    """Return responses that DQN learns."""
    return LeagueOracle(setup, dqn.Config, settings)


class LeagueOracle:
    """A ``LearnedOracle`` that is made anew for each policy, from a seed that comes of the league's and of the pool.

    So a league that was interrupted goes on as it would have. nash_conv, evaluate: those of ``ExactOracle``, of games
    whose environments number information states; else None. Raises PlanError for what is no setting.
    """

    def __init__(self, setup: Setup, kind: type[Any], settings: dict[str, Any]) -> None:
        self._setup = setup
        known = checked(settings, kind, "[oracle_kwargs]")
        if unread := sorted(known.keys() & THE_LEAGUES):
            raise PlanError(f"[oracle_kwargs] has {', '.join(unread)}, which the league sees to itself; leave it out")
        kind(**known)  # raises before anything is opened
        how = {"num_envs": 64, "backend": "serial", **{name: known[name] for name in VEC if name in known}}
        self._vec = setup.make_env(**how, seed=setup.seed, as_torch=True)
        space = self._vec.observation_layout.space
        numbered = isinstance(space, Dict) and isinstance(space.spaces.get("state"), Discrete)
        game = setup.settings.game
        exact = ExactOracle(game, setup.pool) if game is not None and numbered else None
        if exact is not None:
            known.setdefault("policy", LOGITS)
            known.setdefault("gamma", 1.0)
        self.nash_conv = None if exact is None else exact.nash_conv
        self.evaluate = None if exact is None else exact.evaluate
        self._config = kind(**known)

    def initial(self, seat: int) -> int:
        return self._learned().initial(seat)

    def respond(self, seat: int, mixture: Mixture) -> int:
        return self._learned().respond(seat, mixture)

    def close(self) -> None:
        """Close the VecEnv."""
        self._vec.close()

    def _learned(self) -> LearnedOracle:
        drawn = np.random.SeedSequence((self._setup.seed, len(self._setup.pool))).generate_state(1)
        config = replace(self._config, seed=int(drawn[0]))
        return LearnedOracle(self._vec, self._setup.pool, config, seats=self._setup.seats)
