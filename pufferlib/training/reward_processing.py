"""Rewards and terminations for a learner: rewards scaled and bounded, lost lives treated as terminations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import pufferlib
from pufferlib.errors import SpaceError

EPSILON = 1e-8


class RewardProcessing:
    """A callable that takes a batch and returns (rewards, terminations).

    normalize: divide rewards by the running standard deviation of discounted returns (not of rewards), so that the
    critic's targets are of about the same size, however frequent rewards are. bound: the magnitude to which rewards are
    clipped, after any normalization; None: no bound. episodic_life: treat the loss of a life, a decrease of
    info["lives"], as the agent's termination, though the game continues.
    """

    def __init__(
        self, vec: pufferlib.VecEnv, gamma: float, normalize: bool, bound: float | None, episodic_life: bool
    ) -> None:
        self.gamma, self.normalize, self.bound, self.episodic_life = gamma, normalize, bound, episodic_life
        self.agents_per_env = vec.agents_per_env
        self.returns = np.zeros(vec.num_envs * vec.agents_per_env)
        self.lives: dict[int, float] = {}  # by agent id
        self.count, self.mean, self.variance = 0, 0.0, 1.0  # of all returns so far

    def __call__(self, batch: pufferlib.Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the rewards, (rows,) float32, and terminations, (rows,) bool, of a batch of arrays.

        Also updates the statistics if rewards are normalized, and the agents' lives if ``episodic_life`` is set. Raises
        SpaceError for a reward that is not finite, since weights would turn to NaN and remain so.
        """
        rewards, terminations = batch.rewards, batch.terminations
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            env_id, agent_index = divmod(int(batch.agent_ids[row]), self.agents_per_env)
            raise SpaceError(
                f"environment {env_id} gave agent {agent_index} the reward {rewards[row]}, which nothing can be learnt "
                "from; puffer check names the step"
            )
        if self.normalize:
            self._follow(batch)
            rewards = rewards / np.float32(np.sqrt(self.variance + EPSILON))
        if self.bound is not None:
            rewards = np.clip(rewards, -self.bound, self.bound)
        if self.episodic_life:
            for agent_id in batch.agent_ids[~batch.masks].tolist():  # a new game
                self.lives.pop(agent_id, None)
            if batch.infos:
                terminations = terminations | self._lost_lives(batch)
        return rewards, terminations

    def forget(self) -> None:
        """Forget the agents' returns and lives, but not the statistics."""
        self.returns[:] = 0
        self.lives.clear()

    def state(self) -> dict[str, Any]:
        """Return the statistics as plain numbers."""
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the statistics that ``state`` returned."""
        self.count, self.mean, self.variance = state["count"], state["mean"], state["variance"]

    def _follow(self, batch: pufferlib.Batch) -> None:
        """Update the agents' discounted returns, and the statistics of all returns, with a batch.

        Source: Chan, Golub, LeVeque, 1983.
        """
        ids, masks = batch.agent_ids, batch.masks
        returns = np.where(masks, self.gamma * self.returns[ids] + batch.rewards, 0)
        self.returns[ids] = np.where(batch.terminations | batch.truncations, 0, returns)
        new = returns[masks]
        if not len(new):
            return
        share = len(new) / (self.count + len(new))
        delta = float(new.mean()) - self.mean
        within = float(new.var())
        joined = self.variance + share * (within - self.variance) + share * (1 - share) * delta**2
        self.variance = joined if self.count else within
        self.mean += share * delta
        self.count += len(new)

    def _lost_lives(self, batch: pufferlib.Batch) -> np.ndarray:
        """Store the lives in a batch's infos; return a mask, (rows,) bool: True where the row's agent lost lives."""
        lost = np.zeros(len(batch.masks), np.bool_)
        lives = dict(pair for info in batch.infos if "lives" in info for pair in self._lives_of(info))
        for row in np.flatnonzero(np.isin(batch.agent_ids, list(lives))):
            agent_id = int(batch.agent_ids[row])
            left = lives[agent_id]
            lost[row] = bool(batch.masks[row]) and left < self.lives.get(agent_id, left)
            self.lives[agent_id] = left
        return lost

    def _lives_of(self, info: Mapping[str, Any]) -> Iterable[tuple[int, float]]:
        """Return (agent id, lives) pairs from an info; a vector environment's info has the lives of all copies."""
        first = int(info.get("agent_id", info["env_id"] * self.agents_per_env))
        return enumerate(np.ravel(info["lives"]).tolist(), first)
