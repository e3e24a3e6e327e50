"""Evaluation in environments that are vectorized already, whose copies cannot be seeded and reset one at a time.

All other environments are evaluated by ``pufferlib.evaluation``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pufferlib
from pufferlib.training.results import Episode, EpisodeCollector, labels_of

__all__ = ["evaluate"]


def evaluate(
    vec: pufferlib.VecEnv,
    act: Callable[[Any], Any],
    num_episodes: int,
    seed: int,
    *,
    max_steps: int,
    see: Callable[[pufferlib.Batch], None] | None = None,
    after: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Reset the environments with ``seed``, play ``num_episodes`` episodes, and return them in the order of their ends.

    The number of episodes of each copy is fixed beforehand, because the episodes that finish first are mostly short
    ones. A copy whose episode is cut plays on until its end, and the rest is not counted. act: returns the flat actions
    for a batch. Other arguments: see ``pufferlib.training.evaluation.evaluate``.
    """
    num_copies = vec.num_envs * vec.copies_per_env
    share, rest = divmod(num_episodes, num_copies)
    num_left = [share + (copy < rest) for copy in range(num_copies)]
    finished, episodes, num_steps = EpisodeCollector(True, labels_of(vec)), list[Episode](), 0
    returns, lengths = np.zeros(num_copies), np.zeros(num_copies, np.int64)  # of the unfinished episodes
    cut: set[int] = set()  # copies that play on after their episode was cut
    vec.async_reset(seed=seed)
    while True:
        vec.recv()
        batch = vec.host_batch
        assert batch is not None
        if see is not None:
            see(batch)
        ids, masks = batch.agent_ids, batch.masks
        returns[ids] = np.where(masks, returns[ids] + batch.rewards, 0)  # a row without a transition begins an episode
        lengths[ids] = np.where(masks, lengths[ids] + 1, 0)
        num_steps += int(masks.sum())
        ended = finished.in_batch(batch.infos)
        over = {episode.env_id for episode in ended}
        late = [copy for copy in ids.tolist() if lengths[copy] >= max_steps and copy not in over | cut]
        ended = [episode for episode in ended if episode.env_id not in cut]
        ended += [finished.cut(copy, returns[copy, None], int(lengths[copy])) for copy in late]
        cut = (cut - over) | set(late)
        for episode in ended:
            if num_left[episode.env_id]:
                num_left[episode.env_id] -= 1
                episodes.append(episode)
        if after is not None:
            after(len(episodes), num_steps)
        if len(episodes) == num_episodes:
            return episodes
        vec.send(act(batch))
