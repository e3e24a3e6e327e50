"""Policies that decide on several steps at once, as those of robots do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pufferlib.errors import ActionError, PlanError
from pufferlib.evaluation.policies import PolicyBatch
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.tensors import as_numpy

__all__ = ["ChunkedPolicy"]


class ChunkedPolicy:
    """A function for ``evaluate`` that plays the next actions of a chunk, and asks for a new chunk when they are used.

    predict: a function that is called with a PolicyBatch and returns the next actions of each row, (rows, chunk, …); an
    array or tensor, or a tuple of these. It is called only when an episode in the batch needs a new chunk, always with
    all rows; the chunks of the others are ignored. num_steps: how many actions of a chunk are played; by default, all.
    An episode begins with a new chunk.

    Raises PlanError if num_steps is below 1; when called, ActionError for chunks of another shape.
    """

    def __init__(self, predict: Callable[[PolicyBatch], Any], num_steps: int | None = None) -> None:
        if num_steps is not None and num_steps < 1:
            raise PlanError(f"num_steps={num_steps} is impossible; use 1 or more, up to the length of a chunk")
        # Not "predict": what has it is a model of Stable-Baselines3.
        self.function, self.num_steps = predict, num_steps
        self._chunks: dict[int, tuple[Array, ...]] = {}  # by env_id: what is left of its chunk, (agents, steps, …)
        self._num_played: dict[int, int] = {}  # by env_id: how many actions of its chunk

    def __call__(self, batch: PolicyBatch) -> Any:
        """Return the actions for the rows of a batch: arrays (rows, …)."""
        env_ids, num_agents = batch.env_ids.tolist(), len(batch.agent_ids) // len(batch.env_ids)
        is_new = (batch.steps == 0).tolist()
        known = [position for position, env_id in enumerate(env_ids) if is_new[position] or env_id in self._chunks]
        waiting = known or range(len(env_ids))  # the others never began an episode: they are padding
        due = [position for position in waiting if is_new[position] or self._is_used(env_ids[position])]
        if due:
            predicted: Any = as_numpy(self.function(batch))
            self._joined = isinstance(predicted, tuple)
            parts = tuple(np.asarray(part) for part in (predicted if self._joined else (predicted,)))
            self._require_chunks(parts, len(batch.agent_ids))
            for position in due:
                rows = slice(position * num_agents, (position + 1) * num_agents)
                self._chunks[env_ids[position]] = tuple(part[rows].copy() for part in parts)
                self._num_played[env_ids[position]] = 0
        sources = [env_ids[waiting[0]]] * len(env_ids)  # padding plays any chunk
        for position in waiting:
            sources[position] = env_ids[position]
        chosen = [[part[:, self._num_played[env_id]] for part in self._chunks[env_id]] for env_id in sources]
        for position in waiting:
            self._num_played[env_ids[position]] += 1
        actions = tuple(np.concatenate(of_envs) for of_envs in zip(*chosen, strict=True))
        return actions if self._joined else actions[0]

    def _is_used(self, env_id: int) -> bool:
        chunks = self._chunks.get(env_id)
        return chunks is None or self._num_played[env_id] >= (self.num_steps or chunks[0].shape[1])

    def _require_chunks(self, parts: tuple[Array, ...], num_rows: int) -> None:
        for part in parts:
            if part.ndim < 2 or len(part) != num_rows or part.shape[1] < (self.num_steps or 1):
                needs = f"({num_rows}, {self.num_steps or '1 or more'}, …)"
                raise ActionError(f"the policy returned chunks of shape {part.shape}; they need {needs}")
