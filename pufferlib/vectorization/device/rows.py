"""Blocks: a batch's rows on a device, which launches fill slot by slot."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pufferlib.errors import CallError, ClosedError
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.batch import IDS, Batch, poison
from pufferlib.vectorization.core.infos import Infos, Source
from pufferlib.vectorization.device.block_shape import BlockShape
from pufferlib.vectorization.device.infos import Deferred, Endings
from pufferlib.vectorization.device.launchers import Launchers
from pufferlib.vectorization.device.policy import LOGITS, Chosen, Policies
from pufferlib.vectorization.device.states import Ids
from pufferlib.vectorization.device.streams import BlockStream, CurrentStream

__all__ = ["OUT", "Block", "array_of"]

# The columns of a batch that a caller may provide: the argument ``out`` of ``CUDA.send``, in this order.
OUT = ("observations", "rewards", "terminations", "truncations", "masks")


class Block:
    """The rows of a batch on the device, and the ids of their environments.

    torch: the module. launchers: the launchers that fill the block. streams: the caller's current stream. num_slots:
    how many environments the block holds. stream: the BlockStream of the launches that fill it. addresses: those of the
    columns, by the names of a launch's arguments; 0 for a column that the block lacks.
    """

    def __init__(
        self, torch: Any, block_shape: BlockShape, launchers: Launchers, streams: CurrentStream, num_slots: int
    ) -> None:
        self._torch, self._shape, self._launchers, self._streams = torch, block_shape, launchers, streams
        num_agents = block_shape.agents_per_env
        rows, device = num_slots * num_agents, launchers.device
        shape = (rows, *block_shape.observation_shape)

        def zeros(shape: Any, dtype: Any) -> Any:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.observations = zeros(shape, torch.float32)
        self.rewards = zeros(rows, torch.float32)
        self.terminations, self.truncations, self.masks = (zeros(rows, torch.bool) for _ in range(3))
        self.returns, self.lengths = zeros(rows, torch.float64), zeros(rows, torch.int32)
        self.ended = zeros(num_slots, torch.bool)
        self.scores = torch.full((num_slots,), float("nan"), dtype=torch.float64, device=device)
        self.env_ids = torch.arange(num_slots, dtype=torch.int64, device=device)
        self.agent_ids = torch.arange(rows, dtype=torch.int64, device=device)
        self.final_observations = zeros(shape, torch.float32) if block_shape.final_observations else None
        names = (
            "observations",
            "rewards",
            "terminations",
            "truncations",
            "masks",
            "returns",
            "lengths",
            "ended",
            "scores",
        )
        columns = {name: getattr(self, name) for name in names}
        columns["final_observations"] = self.final_observations
        columns["slot_ids"] = None if block_shape.synchronous else self.env_ids
        self.addresses = {name: 0 if column is None else column.data_ptr() for name, column in columns.items()}
        self._block_columns = tuple(columns[name] for name in OUT)  # in whose place a caller's may be
        self._fills_block = True
        self._columns = self._in_batch()
        self._agent_indices = torch.arange(num_agents, dtype=torch.int64, device=device)
        self._actions: Any = None
        self._arguments: Any = None  # of a step of all environments
        self._play: Any = None
        self._choosing: Any = None  # the same for a kernel that chooses actions
        self._choose: Any = None
        self._chosen: Chosen | None = None
        self._arrays: tuple[Array, ...] | None = None
        self._handed: tuple[Array, ...] | None = None  # the arrays that the batch was returned as
        self.ids: Ids = range(0)
        self.num_filled = 0
        self.buffer_index = 0
        self.stream = BlockStream(torch, device, streams, block_shape)

    def begin(self, out: Sequence[Any] | None = None) -> None:
        """Empty the block, so that launches can fill it again. Infos that need the old rows can no longer be read.

        out: tensors that the launches fill in the place of the block's own columns ``OUT``, until the next call; see
        ``require_fitting``.
        """
        self.ids, self.num_filled = range(0), 0
        self.buffer_index += 1
        if out is not None or not self._fills_block:
            self._fill_columns(self._block_columns if out is None else out)
            self._fills_block = out is None

    def _fill_columns(self, columns: Sequence[Any]) -> None:
        """Set the tensors that launches fill as the columns ``OUT``."""
        self.observations, self.rewards, self.terminations, self.truncations, self.masks = columns
        self._columns = self._in_batch()
        self._arrays = None
        addresses = {name: column.data_ptr() for name, column in zip(OUT, columns, strict=True)}
        self.addresses.update(addresses)
        for arguments in (self._arguments, self._choosing):
            if arguments is not None:
                for name, address in addresses.items():
                    arguments[name] = address

    def require_fitting(self, out: Sequence[Any]) -> None:
        """Raise CallError unless these tensors can take the place of the block's own columns ``OUT``."""
        if len(out) != len(OUT):
            raise CallError(f"out has {len(out)} tensors; give {len(OUT)}: {', '.join(OUT)}")
        for name, tensor, column in zip(OUT, out, self._block_columns, strict=True):
            if not isinstance(tensor, self._torch.Tensor):
                description = type(tensor).__name__
            elif (tensor.shape, tensor.dtype, tensor.device) != (column.shape, column.dtype, column.device):
                description = f"{tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}"
            elif not tensor.is_contiguous():
                description = "not contiguous"
            else:
                continue
            wanted = f"{tuple(column.shape)}, {column.dtype}, on {column.device}, and contiguous"
            raise CallError(f"the {name} of out are {description}; give a tensor that is {wanted}")

    def fill(self, ids: Ids) -> None:
        """Record the environments whose rows a launch has just filled."""
        if self._shape.synchronous:
            self.ids = range(self._shape.num_envs)
        elif self.num_filled == 0:
            self.ids = ids
        elif isinstance(ids, range) and isinstance(self.ids, range) and self.ids.stop == ids.start:
            self.ids = range(self.ids.start, ids.stop)
        else:
            self.ids = np.concatenate([np.asarray(self.ids), np.asarray(ids)])
        self.num_filled += len(ids)

    def play_all(self, actions: Any) -> bool:
        """Launch a step of all environments of a synchronous VecEnv; the launch reads the actions without a copy.

        Return False, and play nothing, if the launch finds an action outside the space.
        """
        if self._arguments is None:
            self._arguments, self._play = self._prepared(self._launchers.step)
        self._arguments["actions"] = actions.data_ptr()
        self._arguments["actions_nbytes"] = actions.element_size()
        return not self._play(self._streams.current())

    def choose_all(self, policies: Policies, logits: Any, masks: Any, greedy: bool) -> Chosen:
        """Launch a step of all environments with actions that the kernel chooses from logits; return the choices."""
        if self._chosen is None:
            launcher = self._launchers.variant(policy=LOGITS, num_steps=1, step_slots=0)
            self._chosen = policies.chosen(len(self.rewards))
            launcher.set({**policies.fixed, **policies.addresses(self._chosen)})
            self._choosing, self._choose = self._prepared(launcher)
        self._choosing["policy_logits"] = logits.data_ptr()
        self._choosing["policy_masks"] = 0 if masks is None else masks.data_ptr()
        self._choosing["policy_greedy"] = greedy
        self._choose(self._streams.current())
        return self._chosen

    def _prepared(self, launcher: Any) -> tuple[Any, Any]:
        """Return a launcher's arguments for a step of all environments, and the function that launches with them."""
        arguments = launcher.arguments.copy()
        for name, address in self.addresses.items():
            arguments[name] = address
        for name in ("first_env", "env_ids", "seeds", "resets", "first_slot"):
            arguments[name] = 0
        arguments["num_envs"], arguments["by_env"] = self._shape.num_envs, 1
        return arguments, launcher.bound(arguments)

    def take_actions(self, actions: Any, env_ids: Ids | None) -> Any:
        """Copy actions to the tensor that the launch reads, and return that tensor.

        env_ids: the environments to which the actions belong, if the tensor is ordered by env id; None if the actions
        belong to the slots that are filled next.
        """
        num_agents, batch_size = self._shape.agents_per_env, self._shape.batch_size
        if self._actions is None or self._actions.dtype != actions.dtype:
            rows = batch_size * num_agents
            self._actions = actions.new_zeros((rows, *actions.shape[1:]))
        if env_ids is None:
            first = self.num_filled * num_agents
            self._actions[first : first + len(actions)] = actions
        else:
            ids = self._torch.as_tensor(np.asarray(env_ids), device=self._launchers.device)
            by_env = self._actions.reshape(batch_size, num_agents, *actions.shape[1:])
            by_env[ids] = actions.reshape(len(ids), num_agents, *actions.shape[1:])
        return self._actions

    def copy_rows(self, source: Block, env_ids: Array) -> None:
        """Copy these environments' rows from another block, with masks False.

        In both blocks, slot i must hold environment i.
        """
        num_agents, device = self._shape.agents_per_env, self._launchers.device
        rows = (env_ids[:, None] * num_agents + np.arange(num_agents)).reshape(-1)
        chosen = self._torch.as_tensor(rows, device=device)
        for name in ("observations", "rewards", "terminations", "truncations"):
            getattr(self, name)[chosen] = getattr(source, name)[chosen]
        self.masks[chosen] = False
        self.ended[self._torch.as_tensor(env_ids, device=device)] = False

    def batch(self, *, copied: bool, as_arrays: bool) -> Batch:
        """Return the rows as a Batch.

        copied: whether to copy the rows, so that the Batch stays valid forever. as_arrays: whether to return NumPy
        arrays, with infos read at once, rather than tensors.
        """
        shape = self._shape
        if not shape.synchronous:
            agent_ids = self.env_ids[:, None] * shape.agents_per_env + self._agent_indices
            self.agent_ids.copy_(agent_ids.reshape(-1))
        if not (copied or as_arrays):
            infos = self._infos(None, Deferred(functools.partial(self._read_in_time, self.buffer_index)))
            return Batch(*self._columns[:4], infos, *self._columns[4:])
        if as_arrays:
            arrays = self.arrays()
            self._handed = arrays
            if copied:
                arrays = tuple(array.copy() for array in arrays)
            return Batch.of(arrays, self._infos(self._read(self._endings())))
        columns = tuple(column.clone() for column in self._columns)
        endings = self._endings().copy()
        return Batch.of(columns, self._infos(None, Deferred(functools.partial(self._read, endings))))

    def _in_batch(self) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
        """Return the columns in the order of ``Batch.of``."""
        flags, ids = (self.terminations, self.truncations), (self.env_ids, self.agent_ids)
        return self.observations, self.rewards, *flags, *ids, self.masks

    def _infos(self, dicts: list[dict[str, Any]] | None, source: Source | None = None) -> Infos:
        return Infos(dicts, self.ids, self._shape.agents_per_env, source)

    def arrays(self) -> tuple[Array, ...]:
        """Return the rows as arrays: on the host, views that are the same objects each time; from a GPU, copies.

        If each batch holds all environments, its arrays of ids never change and are read-only, as in other backends.
        """
        if self._arrays is not None:
            return self._arrays
        self._streams.current()
        arrays = tuple(array_of(column) for column in self._columns)
        if self._shape.synchronous:
            for index in IDS:
                arrays[index].flags.writeable = False
        if self._launchers.device.type == "cpu":
            self._arrays = arrays
        else:
            self._launchers.count_read(sum(array.nbytes for array in arrays))
        return arrays

    def expire(self, debug: bool) -> None:
        """End the validity of the batch.

        debug: whether to overwrite its observations and rewards with NaN, and its flags and masks with True; tensors
        that the caller has provided stay as they are.
        """
        if debug and self._fills_block:
            for column in (self.observations, self.rewards):
                column.fill_(float("nan"))
            for column in (self.terminations, self.truncations, self.masks):
                column.fill_(True)
            if self._handed is not None:  # the copies of a GPU's rows
                poison(self._handed)
        self._handed = None

    def _endings(self) -> Endings:
        shape, stats = self._shape, self._launchers.stats()
        return Endings(
            self.terminations,
            self.truncations,
            self.masks,
            self.ended,
            self.returns,
            self.lengths,
            self.scores,
            self.final_observations,
            self.ids,
            shape.agents_per_env,
            shape.multi_agent,
            stats.seconds * shape.num_envs / max(1, stats.num_env_steps),
        )

    def _read(self, endings: Endings) -> list[dict[str, Any]]:
        """Return the infos of these endings, and count the bytes copied to the host unless the launchers are closed."""
        infos, nbytes = endings.infos()
        self._launchers.count_read(nbytes)
        return infos

    def _read_in_time(self, buffer_index: int) -> list[dict[str, Any]]:
        """Return the infos of the batch with this buffer index.

        Raises CallError if the block has been filled again, ClosedError if the launchers are closed.
        """
        if self.buffer_index != buffer_index:
            raise CallError("these infos are of a batch that is no longer valid; read them before the second recv")
        if self._launchers.closed:
            raise ClosedError("these infos are on the device of a CUDA that is closed; read them before close")
        self._streams.current()
        return self._read(self._endings())


def array_of(tensor: Any) -> Array:
    """Return a tensor as an array: a view if it is on the host, otherwise a copy, which waits for the device."""
    array: Array = tensor.detach().cpu().numpy()
    return array
