"""Models of Stable-Baselines3 as policies for ``pufferlib.evaluate``, which finds this file by name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pufferlib.adapters.common import LeafRows
from pufferlib.errors import SpaceError
from pufferlib.evaluation.noise import uniforms
from pufferlib.evaluation.policies import Act, PolicyBatch
from pufferlib.models.seeded import fixed_threads
from pufferlib.util.annotations import Array
from pufferlib.vectorization import VecEnv

__all__ = ["SB3Player", "sb3_policy"]


@contextmanager
def sb3_policy(model: Any, vec: VecEnv, *, num_slots: int, greedy: bool, torch_threads: int) -> Iterator[Act]:
    """Yield the function that plays a model in a VecEnv. Afterwards, restore the model, all generators and torch's
    threads.

    model: a Stable-Baselines3 model, or anything with its ``predict``. num_slots: one more than the largest env_id.
    greedy, torch_threads: as for ``evaluate``. Raises SpaceError for a model of other spaces.
    """
    import torch

    player = SB3Player(model, vec, num_slots, greedy=greedy)
    with fixed_threads(torch_threads), torch.random.fork_rng(devices=()):
        states = random.getstate(), np.random.get_state()
        generator = getattr(player.action_space, "_np_random", None)
        network = getattr(model, "policy", None)
        trained = [module for module in getattr(network, "modules", list)() if module.training]
        noise = [(part, dict(vars(part))) for part in _noise_distributions(network)]
        try:
            yield player
        finally:
            for module in trained:  # ``predict`` ends the training mode
                module.training = True
            for part, attributes in noise:
                vars(part).update(attributes)
            random.setstate(states[0])
            np.random.set_state(states[1])
            if player.action_space is not None:
                player.action_space._np_random = generator


class SB3Player:
    """A model of Stable-Baselines3 as a function of a PolicyBatch, with a state for each agent if the model has one.

    If ``greedy``, the model predicts all rows at once. Otherwise, it predicts one row at a time, as it draws from the
    global generators, which are seeded for each row with the episode's seed, the step and the agent; rows that fill the
    batch get zeros. The noise matrix of a model with ``use_sde``, which ``predict`` does not draw, is drawn in the same
    way as often as in training: every ``sde_sample_freq`` steps or, if that is -1, for each episode.
    """

    def __init__(self, model: Any, vec: VecEnv, num_slots: int, *, greedy: bool) -> None:
        self._model, self._greedy, self._num_agents = model, greedy, vec.agents_per_env
        self._num_envs = vec.num_envs  # env_ids from here on are those of rows that fill a batch
        self._leaf_rows = LeafRows(vec.observation_layout)
        self._num_ids = num_slots * vec.agents_per_env
        self._states: tuple[Array, ...] | None = None  # each (layers, agent ids, …)
        self.action_space = getattr(model, "action_space", None)
        self._has_sde = bool(getattr(model, "use_sde", False))
        expected = getattr(model, "observation_space", None)
        if expected is not None and not _alike(expected, self._leaf_rows.space):
            raise SpaceError(
                f"the model observes {expected}, but the environments have {self._leaf_rows.space}; evaluate it in an "
                "environment like the one that it was trained in"
            )

    def __call__(self, batch: PolicyBatch) -> Array:
        """Return the actions for the rows of a batch."""
        if self._greedy:
            return self._predicted(batch, slice(None))
        agents = batch.agent_ids % self._num_agents
        seeds, steps = batch.seeds.repeat(self._num_agents), batch.steps.repeat(self._num_agents)
        words = _words(seeds, steps, agents)
        if self._has_sde:
            every = self._model.sde_sample_freq
            noise_words = _words(seeds, steps - steps % every if every > 0 else 0 * steps, agents)
        is_played = (batch.env_ids < self._num_envs).repeat(self._num_agents)
        actions: Array | None = None
        for row in np.flatnonzero(is_played).tolist():
            if self._has_sde:
                self._seed(int(noise_words[row]))
                self._model.policy.reset_noise()
            self._seed(int(words[row]))
            action = self._predicted(batch, slice(row, row + 1))
            if actions is None:
                actions = np.zeros((len(words), *action.shape[1:]), action.dtype)
            actions[row] = action[0]
        assert actions is not None
        return actions

    def _seed(self, word: int) -> None:
        """Seed all generators from which a model may draw."""
        import torch

        random.seed(word)
        np.random.seed(word)
        torch.manual_seed(word)
        if self.action_space is not None:
            self.action_space.seed(word)

    def _predicted(self, batch: PolicyBatch, rows: slice) -> Array:
        ids, starts = batch.agent_ids[rows], ~batch.masks[rows]
        states = None if self._states is None else tuple(part[:, ids] for part in self._states)
        observations = self._leaf_rows.of(batch.observations[rows])
        actions, states = self._model.predict(
            observations, state=states, episode_start=starts, deterministic=self._greedy
        )
        if states is not None:
            if self._states is None:
                shapes = [(part.shape[0], self._num_ids, *part.shape[2:]) for part in states]
                self._states = tuple(np.zeros(shape, part.dtype) for shape, part in zip(shapes, states, strict=True))
            for stored, part in zip(self._states, states, strict=True):
                stored[:, ids] = part
        result: Array = np.asarray(actions)
        return result


def _words(seeds: Array, steps: Array, agents: Array) -> Array:
    """Return a seed of 32 bits for the generators of each row, int64 (rows,)."""
    words: Array = (uniforms(seeds, steps, agents, 1)[:, 0] * 2.0**32).astype(np.int64)
    return words


def _noise_distributions(network: Any) -> list[Any]:
    """Return the distributions of a policy network, or of its actor, that hold a noise matrix (gSDE)."""
    distributions = (getattr(part, "action_dist", None) for part in (network, getattr(network, "actor", None)))
    return [distribution for distribution in distributions if hasattr(distribution, "exploration_mat")]


def _alike(first: Any, second: Any) -> bool:
    """Return whether two spaces have elements of the same shapes, if images may have their channels first or last."""
    if hasattr(first, "spaces") or hasattr(second, "spaces"):
        one, other = (getattr(space, "spaces", None) for space in (first, second))
        return (
            isinstance(one, dict)
            and isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_alike(one[name], other[name]) for name in one)
        )
    return sorted(first.shape or ()) == sorted(second.shape or ())
