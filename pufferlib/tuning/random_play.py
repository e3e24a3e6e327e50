"""Random play of a VecEnv, as fast as it goes: what benchmarks and autotune measure with."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.vectorization import Batch, VecEnv

__all__ = ["CLEARLY", "Actor", "Player"]

CLEARLY = 1.1  # times as fast as serial: below, processes are not worth having
NUM_DRAWS = 16  # batches of actions that are drawn beforehand, so that drawing is not what is measured


class Player:
    """Keeps a VecEnv's environments playing, and counts.

    learner_s: how long each batch keeps the learner, which is a loop that does nothing and needs a core.
    timeout: seconds that one batch may take, or RecvTimeout is raised.
    """

    def __init__(self, vec: VecEnv, *, learner_s: float = 0.0, timeout: float | None = None) -> None:
        self.vec, self._actor = vec, Actor(vec)
        self._learner_s, self._timeout = learner_s, timeout
        self.batch_size = vec.agents_per_batch // vec.agents_per_env
        self._waiting: list[Batch] = []  # received and not answered
        self._coming = vec.num_envs
        vec.async_reset()

    def turn(self, seconds: float, *, alone: bool = False) -> float:
        """Play for about these seconds; return environment steps per second.

        Afterwards no batch is under way, since what went on in the background would slow the turns of others; alone:
        there are no others, and everything goes on but the last batch.
        """
        vec, batch_size, learner_s = self.vec, self.batch_size, self._learner_s
        start_s = perf_counter()
        deadline = start_s + seconds
        for batch in self._waiting:
            vec.send(self._actor.actions(batch.observations), env_ids=batch.env_ids.tolist())
            self._coming += batch_size
        self._waiting, steps = [], 0
        while self._coming >= batch_size:
            batch = vec.recv(self._timeout)
            steps += batch_size
            if learner_s:
                thought_s = perf_counter() + learner_s
                while perf_counter() < thought_s:
                    pass
            if perf_counter() < deadline:
                vec.send(self._actor.actions(batch.observations))
            else:
                self._waiting.append(batch._replace(observations=_kept(batch.observations)))
                self._coming -= batch_size
                if alone:
                    break
        return steps / (perf_counter() - start_s)


def _kept(observations: Any) -> Any:
    """Return a copy of a batch's observations, an array or a tensor."""
    return observations.copy() if isinstance(observations, np.ndarray) else observations.clone()


class Actor:
    """Actions for whole batches: drawn beforehand, or on the spot where there are masks."""

    def __init__(self, vec: VecEnv) -> None:
        vec.action_space.seed(0)
        self._drawn = [vec.action_space.sample() for _ in range(NUM_DRAWS)]
        self._turn = 0
        masked = has_mask(vec.observation_layout.space)
        self._masks: Callable[[Any], Any] | None = vec.observation_layout.unflatten if masked else None
        self._space = vec.single_action_space
        self._generator = np.random.default_rng(0)
        if masked and not isinstance(self._space, (spaces.Discrete, spaces.MultiDiscrete)):
            self._masks = None

    def actions(self, observations: Any) -> Any:
        """Return actions for the rows of a batch."""
        if self._masks is None:
            self._turn = (self._turn + 1) % NUM_DRAWS
            return self._drawn[self._turn]
        mask = self._masks(observations)[ACTION_MASK].reshape(len(observations), -1)
        scores = self._generator.random(mask.shape) * mask
        if isinstance(self._space, spaces.Discrete):
            return scores.argmax(1) + self._space.start
        assert isinstance(self._space, spaces.MultiDiscrete)
        parts = np.split(scores, np.cumsum(self._space.nvec.ravel())[:-1], axis=1)
        return np.stack([part.argmax(1) for part in parts], 1).reshape(len(observations), *self._space.shape)
