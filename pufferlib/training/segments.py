"""Rollouts as segments, each a fixed number of one agent's steps: their storage, and draws by priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pufferlib.errors import PlanError

__all__ = ["Segments", "prioritized"]


class Segments:
    """Columns of (num_segments, horizon, \\*shape), which batches fill one step at a time.

    Each agent fills a segment of its own, then the next free one; ``is_full`` is True when all are complete. Batches
    may have any agents, in any order. The steps of an agent that finds no segment free are dropped.

    columns: (shape, dtype) by name. device: where the columns are; ``on_host`` names the ones that stay on the CPU.
    Raises PlanError if there are fewer segments than agents, or no steps.
    """

    def __init__(
        self,
        num_agents: int,
        num_segments: int,
        horizon: int,
        columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        device: str | torch.device = "cpu",
        on_host: tuple[str, ...] = (),
    ) -> None:
        if num_segments < num_agents:
            raise PlanError(f"{num_segments} segments are too few for {num_agents} agents; use one for each, or more")
        if horizon < 1:
            raise PlanError(f"horizon={horizon}; a segment needs one step or more, and two for an advantage")
        self.num_agents, self.num_segments, self.horizon = num_agents, num_segments, horizon
        # The last row takes the steps of agents without a segment.
        self._rows = {
            name: torch.zeros(
                num_segments + 1, horizon, *shape, dtype=dtype, device="cpu" if name in on_host else device
            )
            for name, (shape, dtype) in columns.items()
        }
        self.start()

    def start(self) -> None:
        """Give each agent its first segment. Earlier steps are overwritten, not cleared."""
        self._segment = torch.arange(self.num_agents)
        self._step = torch.zeros(self.num_agents, dtype=torch.int64)
        self._num_begun, self._num_complete = self.num_agents, 0

    @property
    def is_full(self) -> bool:
        """Whether all segments are complete."""
        return self._num_complete == self.num_segments

    def __getitem__(self, name: str) -> Tensor:
        """Return a column, (num_segments, horizon, \\*shape), as a view."""
        return self._rows[name][: self.num_segments]

    def add(self, agent_ids: Any, values: Mapping[str, Tensor]) -> None:
        """Store one step of each of these agents. agent_ids: (rows,) int. values: by name of a column, (rows, …)."""
        ids = torch.tensor(agent_ids)  # a copy, as torch warns of arrays that cannot be written
        segments, steps = self._segment[ids], self._step[ids]
        for name, rows in values.items():
            column = self._rows[name]
            column[segments.to(column.device), steps.to(column.device)] = rows.to(column.device, column.dtype)
        self._step[ids] = steps + 1
        ended = ids[(steps + 1 == self.horizon).nonzero()[:, 0]]
        if len(ended):
            self._num_complete += int((self._segment[ended] < self.num_segments).sum())
            next_segments = self._num_begun + torch.arange(len(ended))
            self._segment[ended] = next_segments.clamp(max=self.num_segments)
            self._step[ended] = 0
            self._num_begun = min(self.num_segments, self._num_begun + len(ended))


def prioritized(advantages: Tensor, num: int, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """Return (indices, weights) of ``num`` different segments, drawn by the size of their advantages.

    advantages: (segments, steps). alpha: the exponent of a segment's priority, the sum of its advantages' magnitudes; 0
    draws uniformly. weights: (num, 1), (segments * probability) ** -beta, which with beta=1 undo what the draw prefers.

    Source: Schaul et al., arXiv:1511.05952, section 3.
    """
    priorities = torch.nan_to_num(advantages.abs().sum(1) ** alpha, 0.0, 0.0, 0.0) + 1e-6
    probabilities = priorities / priorities.sum()
    indices = torch.multinomial(probabilities, num)
    return indices, (len(advantages) * probabilities[indices, None]) ** -beta
