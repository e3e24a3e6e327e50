"""The replay buffer by its definition, for tests and checks: transitions of lists of rows, priorities of a list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import pufferlib
from pufferlib.layout import observation_layout
from pufferlib.training import ReplayBuffer
from pufferlib.vectorization.core.infos import Infos

__all__ = ["GAMMA", "PLAIN", "batch_of", "buffer", "expected_of", "fed", "fill", "priorities_differ", "stored"]

PLAIN = observation_layout(spaces.Box(-np.inf, np.inf, (2,), np.float64))
GAMMA = 0.5  # sums of few rewards are exact


def stored(replay: ReplayBuffer) -> list[tuple[Any, ...]]:
    """Return all transitions of a replay buffer as plain tuples, the oldest first."""
    begin = max(0, replay.num_added - replay.capacity)
    slots = torch.arange(begin, replay.num_added) % replay.capacity
    return list(zip(*(column[slots].tolist() for column in replay.columns), strict=True))


def buffer(
    num_envs: int = 1, agents_per_env: int = 1, batch_size: int = 1, capacity: int = 1_000, **arguments: Any
) -> ReplayBuffer:
    """Return a buffer for environments that do not exist."""
    rows = batch_size * agents_per_env
    vec: Any = SimpleNamespace(num_envs=num_envs, agents_per_env=agents_per_env, agents_per_batch=rows)
    return ReplayBuffer(vec, PLAIN, capacity, gamma=GAMMA, **arguments)


def batch_of(agent_ids: Any, rewards: Any, terminations: Any, truncations: Any, masks: Any) -> pufferlib.Batch:
    """Return a batch without observations. Each argument has a value per row."""
    return pufferlib.Batch(
        observations=np.zeros((len(agent_ids), 2)),
        rewards=np.array(rewards, np.float32),
        terminations=np.array(terminations, np.bool_),
        truncations=np.array(truncations, np.bool_),
        infos=Infos([], agent_ids, 1),
        env_ids=agent_ids,
        agent_ids=agent_ids,
        masks=np.array(masks, np.bool_),
    )


def expected_of(history: Sequence[tuple[Any, ...]], n_step: int) -> list[tuple[Any, ...]]:
    """Return the transitions of one agent, by the definition, from the list of its rows.

    history: (observation, action, reward, terminated, truncated, mask) of each row; the last four are the outcome of
    the action of the row before.
    """
    transitions = []
    for begin in range(len(history) - 1):
        total, steps, terminated = 0.0, 0, False
        for after in history[begin + 1 : begin + 1 + n_step]:
            if not after[5]:
                break
            total += GAMMA**steps * after[2]
            steps, terminated = steps + 1, bool(after[3])
            if after[3] or after[4]:
                break
        if steps:
            observation, action = history[begin][:2]
            transitions.append((observation, action, total, terminated, history[begin + steps][0], GAMMA**steps))
    return transitions


def fed(
    replays: Sequence[ReplayBuffer],
    rng: np.random.Generator,
    num_envs: int,
    agents_per_env: int,
    batch_size: int,
    num_batches: int,
    rate: float,
) -> list[list[tuple[Any, ...]]]:
    """Feed buffers the same random rows, and return each agent's list of rows, as ``expected_of`` takes it.

    An observation is the agent's number, and how many rows it has had before. rate: of endings and of absences.
    """
    lives: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs * agents_per_env)]
    for _ in range(num_batches):
        env_ids = rng.permutation(num_envs)[:batch_size]
        ids = (env_ids[:, None] * agents_per_env + np.arange(agents_per_env)).reshape(-1)
        observations = np.array([(agent, len(lives[agent])) for agent in ids], np.float64)
        masks = (observations[:, 1] > 0) & (rng.random(len(ids)) > rate)
        flags = rng.random((2, len(ids))) < rate
        rewards, actions = rng.integers(-8, 8, len(ids)), rng.integers(0, 9, len(ids))
        batch = batch_of(ids, rewards, flags[0], flags[1], masks)
        for agent, *row in zip(ids, observations.tolist(), actions, batch.rewards, *flags, masks, strict=True):
            lives[agent].append(tuple(row))
        for replay in replays:
            lent_observations, lent_actions = observations.copy(), actions.copy()
            num_steps = replay.add(batch, lent_observations, lent_actions, batch.rewards, batch.terminations)
            assert num_steps == masks.sum()
            lent_observations[:], lent_actions[:] = math.nan, -1  # a batch's memory is lent
    return lives


def fill(replay: ReplayBuffer, num_rows: int) -> None:
    """Add one-step transitions of agent 0; the reward of each is how many had been added before."""
    ids = np.zeros(1, np.int64)
    for _ in range(num_rows):
        for mask in (False, True):
            batch = batch_of(ids, [replay.num_added], [False], [False], [mask])
            replay.add(batch, np.zeros((1, 2)), ids, batch.rewards, batch.terminations)


def priorities_differ(
    replay: ReplayBuffer, calls: Sequence[tuple[int, int, Sequence[float]]], num_rows: int = 64
) -> bool:
    """Return whether priorities, draws and weights differ from those of a list.

    replay: an empty buffer that draws by priority. calls: for each, (the number of transitions to add, which of the
    samples so far to update, from the last one, and four errors).
    """
    fill(replay, 1)
    priorities, largest, samples = [1.0], 1.0, []
    for count, ago, errors in calls:
        fill(replay, count)
        priorities += [largest] * count
        samples.append(replay.sample(4, torch.Generator().manual_seed(count)).serials)
        serials = samples[-1 - ago % len(samples)]
        replay.update_priorities(serials, torch.tensor(errors))
        for serial, error in zip(serials, np.array(errors, np.float32), strict=True):
            if serial >= len(priorities) - replay.capacity:
                priorities[serial] = abs(float(error)) + 1e-6
                largest = max(largest, priorities[serial])
    drawn = replay.sample(num_rows, torch.Generator().manual_seed(1), 0.7)
    powers = np.array(priorities[-replay.capacity :]) ** replay.priority_exponent
    probabilities, indices = powers / powers.sum(), drawn.serials - len(priorities) + len(powers)
    counts = np.bincount(indices, minlength=len(powers))
    weights = (len(powers) * probabilities[indices]) ** -0.7
    assert drawn.weights is not None
    return (
        # One draw from each equal share: the parts of two shares at most come to no draw, or to one too many.
        bool(np.any(np.abs(counts - num_rows * probabilities) >= 2))
        or not np.allclose(drawn.weights.numpy(), weights / weights.max(), rtol=1e-5)
        or drawn.transitions.rewards.tolist() != drawn.serials.tolist()
    )
