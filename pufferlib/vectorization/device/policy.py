"""Choice of actions on a device: from a learner's logits, or by a small network between the steps of one launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pufferlib.vectorization.core.arguments import dtype_error, shape_error, unreadable_error

__all__ = ["LOGITS", "NETWORK", "NO_POLICY", "Chosen", "Policies"]

NO_POLICY, LOGITS, NETWORK = range(3)  # of policy.cuh


class Chosen(NamedTuple):
    """The actions chosen for each row, as tensors on the device.

    actions: int64, for ``send``. log_probs, entropies: float32 (rows,), of whole actions.
    """

    actions: Any
    log_probs: Any
    entropies: Any


class Policies:
    """The arguments with which launches choose actions.

    nvec: the number of options of each discrete action. num_options: their sum, the number of logits of a row.
    """

    def __init__(self, vec: Any, torch: Any) -> None:
        self._vec, self._torch = vec, torch
        space = vec.single_action_space
        self.nvec = np.asarray(getattr(space, "nvec", getattr(space, "n", None)), np.int32).reshape(-1)
        self.num_options = int(self.nvec.sum())
        self._tensors: list[Any] = []
        self._layers: dict[Any, int] = {}
        self.fixed = {
            "policy_nvec": vec._carried(self.nvec, self._tensors),
            "policy_num_choices": len(self.nvec),
            "policy_num_options": self.num_options,
            "actions_nbytes": 8,
        }

    def chosen(self, num_rows: int) -> Chosen:
        """Return new tensors for the choices of this many rows."""
        torch, device = self._torch, self._vec.device
        shape = (num_rows, *(self._vec.single_action_space.shape or ()))
        log_probs, entropies = torch.zeros((2, num_rows), dtype=torch.float32, device=device)
        return Chosen(torch.zeros(shape, dtype=torch.int64, device=device), log_probs, entropies)

    @staticmethod
    def addresses(chosen: Chosen) -> dict[str, int]:
        actions = chosen.actions.data_ptr()
        return {
            "actions": actions,
            "policy_actions": actions,
            "policy_log_probs": chosen.log_probs.data_ptr(),
            "policy_entropies": chosen.entropies.data_ptr(),
        }

    def layers(self, layers: Any) -> int:
        """Return the address of a network's layers, which are copied to the device once."""
        if layers not in self._layers:
            self._layers[layers] = self._vec._carried(np.array(layers, np.int32), self._tensors)
        return self._layers[layers]

    def checked(self, logits: Any, masks: Any, num_envs: int) -> tuple[Any, Any]:
        """Return logits as float32 and masks as bool or uint8, contiguous and on the device. Raises ActionError."""
        shape = (num_envs * self._vec.agents_per_env, self.num_options)
        logits = self._on_device("logits", logits, shape)
        if not logits.is_floating_point():
            raise dtype_error("logits", logits.dtype, "float32")
        if masks is not None:
            masks = self._on_device("masks", masks, shape)
            if masks.dtype not in (self._torch.bool, self._torch.uint8):
                raise dtype_error("masks", masks.dtype, "bool or uint8")
            masks = masks.contiguous()
        return logits.to(self._torch.float32).contiguous(), masks

    def _on_device(self, name: str, values: Any, shape: tuple[int, int]) -> Any:
        torch, vec = self._torch, self._vec
        try:
            tensor = values.detach() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
        except (TypeError, ValueError) as error:
            raise unreadable_error(name, error) from error
        if tuple(tensor.shape) != shape:
            num_agents = vec.agents_per_env
            options = f", and an option each of {vec.single_action_space}"
            raise shape_error(name, tensor.shape, shape, num_agents, shape[0] // num_agents, options)
        if tensor.device != vec.device:
            if tensor.device.type == "cpu":
                vec._data.host_to_device_nbytes += tensor.nbytes
            tensor = tensor.to(vec.device)
        return tensor
