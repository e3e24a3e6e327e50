"""Choice of actions on a device: from a learner's outputs, or by a small network between the steps of one launch."""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from pufferlib.errors import KernelError
from pufferlib.layout.action_values import dtype_error, shape_error, unreadable_error
from pufferlib.vectorization.device.block_shape import BlockShape
from pufferlib.vectorization.device.launchers import Launchers
from pufferlib.vectorization.device.states import Ids
from pufferlib.vectorization.device.streams import CurrentStream

__all__ = ["LOGITS", "NETWORK", "NO_POLICY", "Chosen", "Policies", "num_continuous_of"]

NO_POLICY, LOGITS, NETWORK = range(3)  # of policy.cuh


class Chosen(NamedTuple):
    """The actions chosen for each row, as tensors on the device.

    actions: int64 or, for a Box, float32, (rows, …), in the form that ``send`` takes; numbers may be beyond the bounds,
    to which the kernel clips them. log_probs: the log-probability of each row's complete action, float32 (rows,);
    numbers have the density that they have where -1 to 1 spans the bounds. entropies: the entropy of the distribution
    of that action, float32 (rows,).
    """

    actions: Any
    log_probs: Any
    entropies: Any


class Policies:
    """A chooser of actions on the device, with the arguments of the launches that choose them.

    torch: the module. space: the action space of a row. num_continuous: the number of numbers in an action, 0 unless
    the space is a Box. num_outputs: the number of a policy's outputs for a row: logits of all options, or means of
    numbers. fixed: the arguments that are the same in each launch that chooses actions.
    """

    def __init__(self, torch: Any, shape: BlockShape, space: gymnasium.Space[Any], launchers: Launchers) -> None:
        self._torch, self._shape, self._space, self._launchers = torch, shape, space, launchers
        self.num_continuous = num_continuous_of(space)
        self._tensors: list[Any] = []
        self._layers: dict[Any, int] = {}
        if isinstance(space, gymnasium.spaces.Box):
            low, high = (np.ravel(bounds) / 2 for bounds in (space.low, space.high))
            self.num_outputs = self.num_continuous
            self.fixed = {
                "policy_centers": launchers.to_device(high + low, self._tensors),
                "policy_spans": launchers.to_device(high - low, self._tensors),
                "policy_num_choices": 0,
            }
        else:
            nvec = np.asarray(getattr(space, "nvec", getattr(space, "n", None)), np.int32).reshape(-1)
            self.num_outputs, self.options = int(nvec.sum()), tuple(nvec.tolist())
            self.fixed = {
                "policy_nvec": launchers.to_device(nvec, self._tensors),
                "policy_num_choices": len(nvec),
            }
        self._dtype = torch.float32 if self.num_continuous else torch.int64
        self.fixed |= {"policy_num_options": self.num_outputs, "actions_nbytes": 4 if self.num_continuous else 8}

    def chosen(self, num_rows: int) -> Chosen:
        """Return new tensors for the choices of ``num_rows`` rows."""
        torch, device = self._torch, self._launchers.device
        shape = (num_rows, *self._shape.action_shape)
        log_probs, entropies = torch.zeros((2, num_rows), dtype=torch.float32, device=device)
        return Chosen(torch.zeros(shape, dtype=self._dtype, device=device), log_probs, entropies)

    def logits(self, num_rows: int) -> Any:
        """Return a new tensor for the outputs of ``num_rows`` rows."""
        shape = (num_rows, self.num_outputs)
        return self._torch.zeros(shape, dtype=self._torch.float32, device=self._launchers.device)

    @staticmethod
    def addresses(chosen: Chosen) -> dict[str, int]:
        actions = chosen.actions.data_ptr()
        return {
            "actions": actions,
            "policy_actions": actions,
            "policy_log_probs": chosen.log_probs.data_ptr(),
            "policy_entropies": chosen.entropies.data_ptr(),
        }

    def _layers_address(self, layers: Any) -> int:
        """Return the device address of a network's ``layers``, which are copied to the device on first use."""
        if layers not in self._layers:
            self._layers[layers] = self._launchers.to_device(np.array(layers, np.int32), self._tensors)
        return self._layers[layers]

    def checked(self, logits: Any, masks: Any, num_envs: int) -> tuple[Any, Any]:
        """Return logits as float32 and masks as bool or uint8 (or None), contiguous and on the device.

        Raises ActionError for a wrong shape or dtype, or for values that cannot be read; KernelError if actions are
        numbers.
        """
        self._require_options("logits choose")
        shape = (num_envs * self._shape.agents_per_env, self.num_outputs)
        logits = self._on_device("logits", logits, shape)
        if not logits.is_floating_point():
            raise dtype_error("logits", logits.dtype, "float32")
        if masks is not None:
            masks = self._on_device("masks", masks, shape)
            if masks.dtype not in (self._torch.bool, self._torch.uint8):
                raise dtype_error("masks", masks.dtype, "bool or uint8")
            masks = masks.contiguous()
        return logits.to(self._torch.float32).contiguous(), masks

    def sample(self, ids: Ids, logits: Any, masks: Any, *, greedy: bool, streams: CurrentStream) -> Chosen:
        """Choose and return actions for waiting environments, in one launch that plays no step.

        logits, masks: results of ``checked``.
        """
        launchers = self._launchers
        contiguous = isinstance(ids, range)
        tensors: list[Any] = []
        chosen = self.chosen(len(logits))
        launcher = launchers.variant(policy=LOGITS, num_steps=0, step_slots=0)
        launcher.set({**self.fixed, **self.addresses(chosen), "policy_greedy": greedy})
        launcher.set({"policy_logits": logits.data_ptr(), "policy_masks": 0 if masks is None else masks.data_ptr()})
        launcher.set({"first_env": ids[0] if contiguous else 0})
        launcher.set({"env_ids": 0 if contiguous else launchers.to_device(np.asarray(ids, np.int32), tensors)})
        launcher.launch(len(ids), streams.current())
        launchers.num_launches += 1
        return chosen

    def network_launcher(self, policy: Any, num_inputs: int, precision: str, tensors: list[Any]) -> Any:
        """Return a launcher that chooses actions with a network; append the network's weights to ``tensors``.

        policy: a torch.nn.Sequential from num_inputs numbers to logits. precision: "float32" or "bfloat16". Raises
        KernelError if no kernel can run it, or not in that precision on this device, or if actions are numbers.
        """
        self._require_options("a torch.nn.Sequential chooses")
        networks = importlib.import_module("cuda_ext.network")
        described = networks.described(policy, num_inputs, self.num_outputs, self.options, precision)
        # Before what is first copied to the device, as nothing is compiled during a capture.
        launcher = self._launchers.variant(policy=NETWORK, network=tuple(described.items()))
        network = networks.Network.of(policy, num_inputs, self.num_outputs, self._launchers.device, precision)
        launcher.set(
            {
                **self.fixed,
                "policy_network": network.weights.data_ptr(),
                "policy_layers": self._layers_address(network.layers),
                "policy_num_layers": len(network.layers),
            }
        )
        tensors.append(network.weights)
        return launcher

    def _require_options(self, chooses: str) -> None:
        """Raise KernelError if actions are numbers. chooses: the start of the message."""
        if self.num_continuous:
            raise KernelError(
                f"{chooses} among options, and these environments take {self._space}; draw actions with torch and send "
                "them, or play a cuda_ext.learner.fused.FusedLearner; on a GPU, a cuda_ext.learner.device.DeviceLearner"
            )

    def _on_device(self, name: str, values: Any, shape: tuple[int, int]) -> Any:
        torch, launchers = self._torch, self._launchers
        try:
            tensor = values.detach() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
        except (TypeError, ValueError) as error:
            raise unreadable_error(name, error) from error
        if tuple(tensor.shape) != shape:
            num_agents = self._shape.agents_per_env
            options = f", and a column for each option of {self._space}"
            raise shape_error(name, tensor.shape, shape, num_agents, shape[0] // num_agents, options)
        if tensor.device != launchers.device:
            if tensor.device.type == "cpu":
                launchers.data.host_to_device_nbytes += tensor.nbytes
            tensor = tensor.to(launchers.device)
        return tensor


def num_continuous_of(space: gymnasium.Space[Any]) -> int:
    """Return the number of numbers in a kernel's action: the elements of a Box, 0 for other spaces."""
    return math.prod(space.shape) if isinstance(space, gymnasium.spaces.Box) else 0
