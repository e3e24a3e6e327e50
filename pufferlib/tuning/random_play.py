"""Play a VecEnv with random actions at full speed, for the measurements of benchmarks and autotune."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.vectorization import Batch, VecEnv

__all__ = ["CLEARLY", "Player", "RandomActions"]

CLEARLY = 1.1  # times as fast as serial: below this, processes are not worth their cost
NUM_DRAWS = 16  # batches of actions drawn in advance, so that drawing is not measured


class Player:
    """A player of random actions that measures the speed of a VecEnv.

    learner_s: the time in seconds that a simulated learner, an empty loop that needs a core, spends on each batch.
    timeout: the time in seconds that one batch may take before RecvTimeout is raised; by default, no limit.
    """

    def __init__(self, vec: VecEnv, *, learner_s: float = 0.0, timeout: float | None = None) -> None:
        self.vec, self._actor = vec, RandomActions(vec)
        self._learner_s, self._timeout = learner_s, timeout
        self.batch_size = vec.agents_per_batch // vec.agents_per_env
        self._waiting: list[Batch] = []  # received, but not yet answered
        self._coming = vec.num_envs
        vec.async_reset()

    def play(self, seconds: float, *, alone: bool = False) -> float:
        """Play for about this many seconds; return environment steps per second.

        alone: whether there are no other players. Otherwise, ``play`` waits for all batches in progress before it
        returns, because they would slow the measurements of the other players.
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
                self._waiting.append(batch._replace(observations=_copied(batch.observations)))
                self._coming -= batch_size
                if alone:
                    break
        return steps / (perf_counter() - start_s)


def _copied(observations: Any) -> Any:
    """Return a copy of a batch's observations, an array or a tensor."""
    return observations.copy() if isinstance(observations, np.ndarray) else observations.clone()


class RandomActions:
    """A source of random actions for batches.

    Actions are drawn in advance or, if there are action masks and the space is Discrete or MultiDiscrete, for each
    batch.
    """

    def __init__(self, vec: VecEnv) -> None:
        vec.action_space.seed(0)
        self._drawn = [vec.action_space.sample() for _ in range(NUM_DRAWS)]
        self._index = 0
        masked = has_mask(vec.observation_layout.space)
        self._masks: Callable[[Any], Any] | None = vec.observation_layout.unflatten if masked else None
        self._space = vec.single_action_space
        self._generator = np.random.default_rng(0)
        if masked and not isinstance(self._space, (spaces.Discrete, spaces.MultiDiscrete)):
            self._masks = None

    def actions(self, observations: Any) -> Any:
        """Return random actions for the rows of a batch.

        If actions are drawn for each batch, only those that the action masks allow are drawn.
        """
        if self._masks is None:
            self._index = (self._index + 1) % NUM_DRAWS
            return self._drawn[self._index]
        mask = self._masks(observations)[ACTION_MASK].reshape(len(observations), -1)
        scores = self._generator.random(mask.shape) * mask
        if isinstance(self._space, spaces.Discrete):
            return scores.argmax(1) + self._space.start
        assert isinstance(self._space, spaces.MultiDiscrete)
        parts = np.split(scores, np.cumsum(self._space.nvec.ravel())[:-1], axis=1)
        return np.stack([part.argmax(1) for part in parts], 1).reshape(len(observations), *self._space.shape)
