"""Data stored for each agent from row to row: recent frames, and the state of a recurrent policy.

A row whose mask is False is the first row of an episode, or of a new agent with the same id, and resets the agent's
data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from pufferlib.errors import PlanError
from pufferlib.layout import Layout, observation_layout
from pufferlib.models.networks import State
from pufferlib.models.reading import SMALLEST_IMAGE

__all__ = ["FrameStack", "Memory"]


class Memory:
    """The states of a recurrent policy, one per agent.

    initial: the state at the beginning of an episode, with one row per agent; it is stored, and never changed.
    """

    def __init__(self, initial: State) -> None:
        self._initial = initial
        self._states = tuple(part.clone() for part in initial)

    def of(self, agent_ids: Tensor, masks: Tensor) -> State:
        """Return these agents' states as new tensors, (rows, …); where a mask is False, the initial state.

        agent_ids: (rows,) int64; masks: (rows,) bool. Both are on the device of the states.
        """
        return tuple(
            torch.where(expand_masks(masks, stored), stored[agent_ids], initial[agent_ids])
            for stored, initial in zip(self._states, self._initial, strict=True)
        )

    def keep(self, agent_ids: Tensor, state: State) -> None:
        """Store the states that a policy returned for these agents' rows."""
        for stored, new in zip(self._states, state, strict=True):
            stored[agent_ids] = new

    def forget(self) -> None:
        """Reset the states of all agents."""
        self.keep(torch.arange(len(self._initial[0]), device=self._initial[0].device), self._initial)


class FrameStack:
    """A stack of each agent's last ``num_frames`` observations; an episode's first observation fills the whole stack.

    layout: the layout of one observation. As attributes, ``single`` is this layout, and ``layout`` is that of the
    stack. num_agents: the number of agents. device: the device of the observations. Boxes of images with channels last
    get more channels, 2-D Boxes a new first axis, and other Boxes a longer first axis; other observations become a
    Tuple. The oldest frames come first. Raises PlanError if num_frames is less than 1.
    """

    def __init__(
        self, layout: Layout, num_frames: int, num_agents: int, device: torch.device | str | None = None
    ) -> None:
        self.single, self.num_frames = layout, num_frames
        self.layout = stacked_layout(layout, num_frames)
        self._frames = torch.from_numpy(np.zeros((num_agents, num_frames, *layout.shape), layout.dtype)).to(device)

    def __call__(self, observations: Tensor, agent_ids: Tensor, masks: Tensor) -> Tensor:
        """Add observations to these agents' stacks and return the stacks, rows of ``layout``.

        observations: (rows, *single.shape), returned unchanged if num_frames is 1. agent_ids: (rows,) int64. masks:
        (rows,) bool, False where an episode begins.
        """
        if self.num_frames == 1:
            return observations
        newest = observations.unsqueeze(1)
        frames = torch.cat([self._frames[agent_ids, 1:], newest], 1)
        frames = torch.where(expand_masks(masks, frames), frames, newest)
        self._frames[agent_ids] = frames
        return _joined(self.single, frames)


def stacked_layout(layout: Layout, num_frames: int) -> Layout:
    """Return the layout of stacked observations; for one frame, ``layout`` itself.

    Raises PlanError if num_frames is less than 1.
    """
    if num_frames < 1:
        raise PlanError(f"frame_stack={num_frames} keeps no frame; use 1 for only the newest, 4 for the last four")
    if num_frames == 1:
        return layout
    if not _is_box(layout):
        return layout.repeated(num_frames)
    space: Any = layout.space
    low, high = (
        _joined(layout, torch.from_numpy(np.stack([bound] * num_frames)[None])).numpy()[0]
        for bound in (space.low, space.high)
    )
    return observation_layout(Box(low, high, dtype=space.dtype.type))


def newest(layout: Layout, num_frames: int, stacked: Tensor) -> Tensor:
    """Return the newest frame of each stacked row, for a layout whose space is not a Box."""
    return stacked if num_frames == 1 else stacked.reshape(len(stacked), num_frames, *layout.shape)[:, -1]


def _joined(layout: Layout, frames: Tensor) -> Tensor:
    """Convert frames, (rows, num_frames, *layout.shape), to rows of the stacked layout."""
    rows, num_frames, *shape = frames.shape
    if num_frames == 1:
        return frames[:, 0]
    if _is_box(layout) and len(shape) == 3 and min(shape[:2]) >= SMALLEST_IMAGE:  # channels last
        height, width, channels = shape
        return frames.permute(0, 2, 3, 1, 4).reshape(rows, height, width, num_frames * channels)
    if _is_box(layout) and len(shape) != 2:
        return frames.reshape(rows, -1, *shape[1:])
    return frames if _is_box(layout) else frames.reshape(rows, -1)


def _is_box(layout: Layout) -> bool:
    return layout.is_leaf and isinstance(layout.space, Box)


def expand_masks(masks: Tensor, values: Tensor) -> Tensor:
    """Reshape masks, (rows,), so that they broadcast to values, (rows, …)."""
    return masks.reshape(-1, *[1] * (values.dim() - 1))
