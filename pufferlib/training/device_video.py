"""Films of kernel environments: their states are recorded on the device and drawn on the host.

At each step, the states of the few filmed environments are copied within the device; a CUDA graph can capture these
copies. The host reads the states of a whole rollout at once, while the next one runs, and the reference environment
draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pufferlib.training.video import Videos

__all__ = ["DeviceVideo"]


class DeviceVideo:
    """A recorder of the states of filmed environments after each step of a rollout.

    env_ids: the environments to film. num_steps: the length of a rollout. states: tensors (steps, envs, …), keyed by
    the states' names. masks, rewards: tensors (steps, envs, agents), for the same steps.
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
        """Record the states after a step, and the masks and rewards in its batch, without waiting for the device."""
        for name, state in self.vec.states(self._ids).items():
            self.states[name][step] = state
        for column, values in ((self.masks, batch.masks), (self.rewards, batch.rewards)):
            column[step] = values.view(-1, self._rows[1])[self._ids]

    def tensors(self, num_steps: int | None = None) -> tuple[Tensor, ...]:
        """Return the tensors that ``show`` takes, on the device, for the first ``num_steps`` steps or for all."""
        return tuple(tensor[:num_steps] for tensor in (self.masks, self.rewards, *self.states.values()))

    def show(self, videos: Videos | None, tensors: Sequence[Tensor], num_steps: int) -> None:
        """Draw recorded steps, and add them to videos; do nothing if ``videos`` is None.

        tensors: the result of the method ``tensors``, copied to the host. num_steps: the number of training steps
        before the recorded ones.
        """
        if videos is None:
            return
        masks, rewards, *values = (tensor.numpy() for tensor in tensors)
        states = dict(zip(self.states, values, strict=True))
        for step in range(len(masks)):
            for env_index, env_id in enumerate(self.env_ids):

                def draw(step: int = step, env_index: int = env_index) -> Any:
                    return self.vec.twin({name: state[step, env_index] for name, state in states.items()}).render()

                videos.see_one(env_id, masks[step, env_index], rewards[step, env_index], draw, num_steps)
