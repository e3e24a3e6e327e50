"""The learner on a device: kernels play a policy's steps, estimate advantages and update the networks.

The results equal those of ``FusedLearner`` on the host to the bit. Nothing waits for the device, and after the first
call with arrays of the same sizes a CUDA graph can capture each method but ``load`` and ``save``.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cuda_ext import nvrtc, sources
from cuda_ext.checking import PLAYING
from cuda_ext.device import DeviceFunctions
from cuda_ext.functions import cache_folder, compile_command, loaded
from cuda_ext.learner.fused import FusedLearner
from cuda_ext.learner.library import (
    NUM_TERMS,
    TILE,
    DeviceAdvantages,
    DeviceOutputs,
    DeviceUpdate,
    Network,
    Update,
)
from cuda_ext.network import CHUNK
from pufferlib.errors import KernelError, SpaceError

__all__ = ["DeviceLearner", "DeviceRows"]

BLOCK_SIZE, TILE_FLOATS, STRUCT_NBYTES = 256, 11264, 64  # as in device.cuh; more than Statistics and ScaledStep take
VECTORS = ("weights", "gradients", "means", "squares")


@dataclass(frozen=True)
class DeviceRows:
    """The rows to learn from, as contiguous tensors on the learner's device: the columns of ``fused.Rows``."""

    features: Tensor
    discrete_actions: Tensor
    continuous_actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    allowed: Tensor | None = None
    masks: Tensor | None = None


class DeviceLearner:
    """A copy, on a device, of a FusedLearner's networks and of Adam's state, which kernels update.

    learner: whose weights and state are copied, and which gets them back by ``save``. device: a CUDA device; or "cpu",
    on which fibres play the kernels with a block's threads in shuffled order, for tests, thousands of times slower.
    Attribute learning_rate: float64 (1,), on the device, which ``update`` reads.

    Raises MissingExtra without CuPy or NVRTC, KernelError if a row of a network does not fit in shared memory, if the
    kernels do not compile or the device is not supported. All methods raise SpaceError for tensors of another device,
    dtype or shape than stated, and KernelError if fibres find a barrier that not all threads of a block reach.
    """

    def __init__(self, learner: FusedLearner, device: Any) -> None:
        self._learner, self.device = learner, torch.zeros(0, device=device).device
        self._arguments, is_scaled, nvec = learner.layout()
        self._rows = [_tile_rows(network) for network in (self._arguments.actor, self._arguments.critic)]
        self._kernels: Any
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                self._kernels = _OnDevice()
        else:
            self._kernels = _OnFibres()
        self._is_scaled, self._nvec = (torch.from_numpy(part).to(self.device) for part in (is_scaled, nvec))
        num_weights = self._arguments.num_weights
        self._vectors = self._zeros(4, num_weights)
        self.weights, self.gradients, self.means, self.squares = self._vectors
        self.beta_powers = self._zeros(2, dtype=torch.float64)
        self.learning_rate = self._zeros(1, dtype=torch.float64)
        self._transposed = self._zeros(sum(map(_transposed_size, (self._arguments.actor, self._arguments.critic))))
        self._next_step = self._zeros(STRUCT_NBYTES, dtype=torch.uint8)
        self._bounds: dict[tuple[int, ...], Tensor] = {}  # of minibatches, by their sizes
        self.load()

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device)

    # --------------------------------------------------------------------------------------------------- weights

    def load(self) -> None:
        """Copy weights and Adam's state from the learner on the host."""
        for name in (*VECTORS, "beta_powers"):
            getattr(self, name).copy_(torch.from_numpy(getattr(self._learner, name)))

    def save(self) -> None:
        """Copy weights and Adam's state to the learner on the host, and the weights to its torch networks. Waits."""
        for name in (*VECTORS, "beta_powers"):
            np.copyto(getattr(self._learner, name), getattr(self, name).cpu().numpy())
        self._learner.save()

    # ------------------------------------------------------------------------------------------ playing, learning

    def values(self, features: Tensor) -> Tensor:
        """Return the critic's values, float32 (rows,). features: float32 (rows, num_inputs)."""
        outputs = self._empty(len(features), 1)
        self._address("features", features, torch.float32, (len(features), self._arguments.critic.num_inputs))
        self._outputs(is_actor=False, features=features, outputs=outputs, stream=self._stream())
        return outputs[:, 0]

    def features_and_values(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the networks' inputs, float32 (rows, num_inputs), and the critic's values, float32 (rows,).

        observations: float32 (rows, …), of num_inputs numbers. Those of ``is_scaled`` are converted.
        """
        count, num_inputs = len(observations), self._arguments.critic.num_inputs
        observations = observations.reshape(count, -1)
        self._address("observations", observations, torch.float32, (count, num_inputs))
        features, outputs = self._empty(count, num_inputs), self._empty(count, 1)
        self._outputs(is_actor=False, features=features, outputs=outputs, stream=self._stream(), inputs=observations)
        return features, outputs[:, 0]

    def require_playable(self, launcher: Any, num_inputs: int, num_outputs: int, num_continuous: int) -> None:
        """Raise KernelError unless ``play_steps`` can play these environments; as ``FusedLearner.require_playable``."""
        self._learner.require_sizes(num_inputs, num_outputs, num_continuous)

    def play_steps(
        self, launcher: Any, num_steps: int, slot_step: int, inputs: Tensor, observations: Tensor, logits: Tensor,
        stream: int,
    ) -> None:  # fmt: skip
        """Play steps of all environments; ``rollout(policy=…)`` of a CUDA VecEnv on the device calls this.

        As ``FusedLearner.play_steps``, on a stream.
        """
        launcher.set({"policy_log_std": self.weights[self._arguments.log_std :].data_ptr()})
        arguments, num_rows = launcher.arguments, len(inputs)
        features = self._empty(num_rows, self._arguments.actor.num_inputs)
        launch, shift = launcher.bound(arguments), num_rows if slot_step else 0
        for step in range(num_steps):
            first = step * shift
            self._outputs(
                is_actor=True, features=features, outputs=logits[first : first + num_rows], stream=stream, inputs=inputs
            )
            arguments["first_slot"] = step * slot_step
            launch(stream)
            inputs = observations[first : first + num_rows]

    def _outputs(
        self, *, is_actor: bool, features: Tensor, outputs: Tensor, stream: int, inputs: Tensor | None = None
    ) -> None:
        """Compute a network's outputs. inputs: observations, which are converted to features first."""
        layout, tile_rows = self._arguments, self._rows[not is_actor]
        arguments = DeviceOutputs(
            *(layout.actor if is_actor else layout.critic, len(features), tile_rows),
            *(self.weights[0 if is_actor else layout.critic_weights :].data_ptr(),),
            *(0 if inputs is None else inputs.data_ptr(), self._is_scaled.data_ptr()),
            *(features.data_ptr(), outputs.data_ptr()),
        )
        self._launch("learner_outputs", arguments, -(-len(features) // tile_rows), stream)

    def advantages(
        self,
        rewards: Tensor,
        values: Tensor,
        terminations: Tensor,
        truncations: Tensor,
        masks: Tensor,
        gamma: float,
        gae_lambda: float,
    ) -> tuple[Tensor, Tensor]:
        """Return generalized advantage estimates and returns, (num_steps, num_agents); as ``FusedLearner.advantages``.

        A return is an advantage plus the value of its observation.
        """
        shape = tuple(rewards.shape)
        if len(shape) != 2:
            raise SpaceError(f"rewards: a tensor with shape {shape}; give one with 2 dimensions")
        advantages, returns = self._empty(2, *shape)
        flags = {"terminations": terminations, "truncations": truncations, "masks": masks}
        arguments = DeviceAdvantages(
            *shape,
            self._address("rewards", rewards, torch.float32, shape),
            self._address("values", values, torch.float32, (shape[0] + 1, shape[1])),
            *(self._address(name, column, torch.bool, shape) for name, column in flags.items()),
            *(gamma, gae_lambda, advantages.data_ptr(), returns.data_ptr()),
        )
        self._launch("learner_advantages", arguments, -(-shape[1] // BLOCK_SIZE), self._stream())
        return advantages, returns

    def update(self, rows: DeviceRows, minibatches: Sequence[Tensor]) -> Tensor:
        """Take a step of Adam for each minibatch, and return their terms, float64 (len(minibatches), len(TERMS)).

        minibatches: the indices of each minibatch's rows, int64, on the device; invalid rows may be among them. The
        values of discrete actions and of indices are not checked, which would wait for the device; the nearest that
        exist are read. As ``FusedLearner.update``.
        """
        count, sizes = len(rows.features), tuple(map(len, minibatches))
        terms = self._zeros(len(sizes), NUM_TERMS + 1, dtype=torch.float64)
        if not sum(sizes):
            return terms
        if count == 0:
            raise SpaceError("minibatches have rows, and there are 0 rows")
        order = torch.cat(list(minibatches)).to(torch.int64).clamp(0, count - 1)
        if sizes not in self._bounds:  # a copy from the host, which a graph's capture does not allow
            self._bounds[sizes] = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device=self.device)
        statistics = self._zeros(len(sizes), STRUCT_NBYTES, dtype=torch.uint8)
        num_groups = [_num_groups(size, self._arguments.most_groups) for size in sizes]
        gradients = self._empty(max(num_groups), self._arguments.num_weights)
        group_terms = self._zeros(max(num_groups), NUM_TERMS, dtype=torch.float64)
        actions = torch.minimum(rows.discrete_actions.clamp(min=0), self._nvec - 1)
        update = self._rows_of(rows, actions)
        update.order, update.bounds, update.terms = (part.data_ptr() for part in (order, self._bounds[sizes], terms))
        update.num_minibatches = len(sizes)
        arguments = DeviceUpdate(
            *(update, 0, *self._rows),
            *(
                part.data_ptr()
                for part in (
                    *(self.learning_rate, statistics, self._transposed),
                    *(gradients, group_terms, self._next_step),
                )
            ),
        )
        launch = functools.partial(self._launch, arguments=arguments, stream=self._stream())
        launch("learner_statistics", num_blocks=len(sizes))
        num_weight_blocks = -(-update.num_weights // BLOCK_SIZE)
        for number, groups in enumerate(num_groups):
            if groups == 0:
                continue
            arguments.minibatch = number
            launch("learner_transpose", num_blocks=2)
            launch("learner_gradients", num_blocks=2 * groups)
            launch("learner_sum", num_blocks=num_weight_blocks)
            launch("learner_norm", num_blocks=1)
            launch("learner_step", num_blocks=num_weight_blocks)
        return terms

    def _rows_of(self, rows: DeviceRows, actions: Tensor) -> Update:
        """Return the arguments of an update on rows. actions: the discrete ones to learn from."""
        update, count = Update.from_buffer_copy(self._arguments), len(rows.features)
        heads = update.heads
        heads.nvec = self._nvec.data_ptr()
        update.observations = self._address("features", rows.features, torch.float32, (count, update.actor.num_inputs))
        update.discrete_actions = self._address("discrete_actions", actions, torch.int64, (count, heads.num_discrete))
        update.continuous_actions = self._address(
            "continuous_actions", rows.continuous_actions, torch.float32, (count, heads.num_continuous)
        )
        for name in ("log_probs", "advantages", "returns"):
            setattr(update, name, self._address(name, getattr(rows, name), torch.float32, (count,)))
        for name, shape in (("allowed", (count, heads.num_options)), ("masks", (count,))):
            column = getattr(rows, name)
            setattr(update, name, None if column is None else self._address(name, column, torch.bool, shape))
        for name in (*VECTORS, "beta_powers"):
            setattr(update, name, getattr(self, name).data_ptr())
        return update

    def _address(self, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
        """Return the address of a tensor's data. Raises SpaceError unless the tensor is as kernels expect it."""
        actual = tensor.device, tensor.dtype, tuple(tensor.shape), tensor.is_contiguous()
        if actual != (self.device, dtype, shape, True):
            raise SpaceError(
                f"{name} are {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
                f"{'' if tensor.is_contiguous() else ', not contiguous'}; they have to be a contiguous tensor, {dtype} "
                f"{shape} on {self.device}"
            )
        return tensor.data_ptr()

    def _stream(self) -> int:
        return torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0

    def _launch(self, name: str, arguments: ctypes.Structure, num_blocks: int, stream: int) -> None:
        if num_blocks:
            self._kernels.launch(name, arguments, num_blocks, stream)


class _OnDevice:
    """The kernels on the current CUDA device."""

    def __init__(self) -> None:
        self._functions = DeviceFunctions(
            "the fused learner", sources.LEARNER_KERNELS, nvrtc.learner_cubin_file, 'device="host"'
        )

    def launch(self, name: str, arguments: ctypes.Structure, num_blocks: int, stream: int) -> None:
        packed = np.frombuffer(bytes(arguments), np.uint8).view(np.dtype((np.void, ctypes.sizeof(arguments))))
        self._functions.bound(name, packed.reshape(()), num_blocks, BLOCK_SIZE)(stream)


class _OnFibres:
    """The kernels on fibres of this process, as ``checking.CheckedKernel`` has them."""

    def __init__(self) -> None:
        self._library = _library_of_fibres()
        self._order_seeds = itertools.count(1)

    def launch(self, name: str, arguments: ctypes.Structure, num_blocks: int, stream: int) -> None:
        play = getattr(self._library, f"{name}_check")
        play.argtypes, play.restype = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), ctypes.c_char_p
        with PLAYING:
            wrong = play(ctypes.byref(arguments), num_blocks, next(self._order_seeds))
        if wrong is not None:
            raise KernelError(f"{name} would hang on a device: {wrong.decode()}")


@functools.cache
def _library_of_fibres() -> ctypes.CDLL:
    command = compile_command("the fused learner", sources.CHECK_FLAGS)
    path = cache_folder() / f"learner-fibres-{sources.learner_digest(*command)}.so"
    return loaded(path, command, sources.for_learner_checks(), "the fused learner does not compile:\n{}".format)


def _tile_rows(network: Network) -> int:
    """Return the rows of a tile that fit in shared memory. Raises KernelError if none does."""
    widths = [-(-width // CHUNK) * CHUNK for width in network.widths[: network.num_layers]]
    row_floats = sum(widths) + 2 * max(widths) + NUM_TERMS + network.num_inputs
    rows = min(TILE, TILE_FLOATS // row_floats)
    if rows == 0:
        raise KernelError(
            f"a row of the policy takes {4 * row_floats:,} bytes of shared memory, and there are {4 * TILE_FLOATS:,}; "
            'use smaller layers, or device="host"'
        )
    return int(rows if rows < 4 else rows // 4 * 4)  # threads compute four rows each


def _transposed_size(network: Network) -> int:
    widths = network.widths[: network.num_layers]
    return int(sum(outputs * (-(-inputs // CHUNK) * CHUNK) for inputs, outputs in itertools.pairwise(widths)))


def _num_groups(num_rows: int, most_groups: int) -> int:
    """Return the number of a minibatch's groups of rows, as ``divide`` of update.h does."""
    num_tiles = -(-num_rows // TILE)
    return -(-num_tiles // -(-num_tiles // most_groups)) if num_tiles else 0
