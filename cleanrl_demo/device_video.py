"""Films of environments that are a kernel: their states, kept on the device while it plays, and drawn on the host.

A step copies the states of the few environments that are filmed, on the device, which a CUDA graph can hold; the host
reads those of a rollout at once, while the next one runs, and has the reference environment draw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cleanrl_demo.video import Videos

__all__ = ["DeviceVideo"]


class DeviceVideo:
    """What environments of a CUDA are in after each step of a rollout: (steps, envs, …), by the names of their states.

    env_ids: those that are filmed. masks, rewards: (steps, envs, agents), of the same steps.
    """

    def __init__(self, vec: Any, env_ids: Sequence[int], num_steps: int) -> None:
        self.vec, self.env_ids = vec, env_ids
        self._ids = torch.tensor(env_ids, dtype=torch.int64, device=vec.device)
        self._rows = (len(env_ids), vec.agents_per_env)
        self.states = {
            name: state.new_zeros((num_steps, *state.shape)) for name, state in vec.states(self._ids).items()
        }
        self.masks = torch.zeros((num_steps, *self._rows), dtype=torch.bool, device=vec.device)
        self.rewards = torch.zeros((num_steps, *self._rows), device=vec.device)

    def take(self, step: int, batch: Any) -> None:
        """Keep what a step has led to, whose batch this is. Nothing is waited for."""
        for name, state in self.vec.states(self._ids).items():
            self.states[name][step] = state
        for column, values in ((self.masks, batch.masks), (self.rewards, batch.rewards)):
            column[step] = values.view(-1, self._rows[1])[self._ids]

    def tensors(self, num_steps: int | None = None) -> tuple[Tensor, ...]:
        """Return what ``show`` takes, of the first steps or of all, on the device."""
        return tuple(tensor[:num_steps] for tensor in (self.masks, self.rewards, *self.states.values()))

    def show(self, videos: Videos, tensors: Sequence[Tensor], num_steps: int) -> None:
        """Draw what is to be filmed. tensors: on the host. num_steps: of training, before these."""
        masks, rewards, *values = (tensor.numpy() for tensor in tensors)
        states = dict(zip(self.states, values, strict=True))
        for step in range(len(masks)):
            for env_index, env_id in enumerate(self.env_ids):

                def draw(step: int = step, env_index: int = env_index) -> Any:
                    return self.vec.twin({name: state[step, env_index] for name, state in states.items()}).render()

                videos.see_one(env_id, masks[step, env_index], rewards[step, env_index], draw, num_steps)
