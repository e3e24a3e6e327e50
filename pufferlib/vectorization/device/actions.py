"""Checks of actions for a kernel, and their conversion to a tensor that a launch can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from pufferlib.errors import ActionError
from pufferlib.layout.action_values import ActionValues, checked_actions, dtype_error, shape_error, unreadable_error
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.tensors import as_numpy
from pufferlib.vectorization.device.block_shape import BlockShape

__all__ = ["Actions"]

WHOLE_NUMBERS = (np.dtype(np.int64), np.dtype(np.int32))  # choices as kernels read them; numbers are float32
UNSIGNED = {np.dtype(np.int64): np.uint64, np.dtype(np.int32): np.uint32}


class Actions:
    """A checker of the actions sent to a CUDA VecEnv.

    Values on the host are checked at every step. Reading values on a device means waiting for the device, so these are
    checked only at each environment's first step or, with ``always``, at every step. At a step without a check, the
    kernel plays an action outside the space as action 0, and NaN as the lower bound (kernel.cuh).

    data: a cuda_ext.data.Data, to whose device actions are copied. always: whether values on a device are checked at
    every step. launches_check: whether a launch of all environments checks the values itself.
    """

    def __init__(
        self,
        torch: Any,
        data: Any,
        space: gymnasium.Space[Any],
        shape: BlockShape,
        *,
        always: bool,
        launches_check: bool,
    ) -> None:
        self._torch, self._data, self._space = torch, data, space
        self._values = (ActionValues(space),)
        self._device = data.device
        self._agents_per_env = shape.agents_per_env
        self._launches_check = launches_check
        self._on_host = self._device.type == "cpu"
        self._always, self._waits = always, not self._on_host
        num_rows = shape.num_envs * shape.agents_per_env
        self._plain_shape = (num_rows, *shape.action_shape) if shape.synchronous else None
        is_box = isinstance(space, gymnasium.spaces.Box)
        self._options = None if is_box else np.asarray(getattr(space, "nvec", getattr(space, "n", None)))
        # As kernels read them; others are cast to the first.
        self._array_dtypes = (np.dtype(np.float32),) if is_box else WHOLE_NUMBERS
        self._dtypes = (torch.float32,) if is_box else (torch.int64, torch.int32)
        # The environments whose values on a device were never checked.
        self._unchecked: set[int] = set(range(shape.num_envs))

    def plain(self, actions: Any) -> Any:
        """Return actions as a tensor that a launch of all environments can read without a copy or another check.

        Its values are in the space, or the launch checks them, or no check is due. Returns None for all other actions,
        which ``checked`` must check or convert.
        """
        if type(actions) is np.ndarray:
            if not (self._on_host and actions.dtype in self._array_dtypes and actions.flags.carray):
                return None
            tensor = self._torch.from_numpy(actions)  # the same memory
        elif (
            type(actions) is self._torch.Tensor
            and actions.dtype in self._dtypes
            and actions.device == self._device
            and actions.is_contiguous()
        ):
            tensor = actions
        else:
            return None
        if tensor.shape != self._plain_shape:
            return None
        if self._launches_check:
            return tensor
        valid = not (self._always or self._unchecked) if self._waits else self._all_valid(tensor.numpy())
        return tensor if valid else None

    def _all_valid(self, array: Array) -> bool:
        """Return whether actions of a dtype that kernels read are in the space."""
        if self._options is None:
            return self._values[0].fit(array)
        # Negative actions, seen as unsigned, are too large.
        return bool((array.view(UNSIGNED[array.dtype]) < self._options).all())

    def checked(self, actions: Any, env_ids: Sequence[int], num_steps: int | None = None) -> Any:
        """Return actions as a tensor on the device, int32, int64 or, for a Box, float32, and contiguous.

        actions: (rows, …), for ``env_ids``; with num_steps, a table (num_steps, rows, …). Raises ActionError for a
        wrong shape or dtype, and for a value outside the space if a check is due.
        """
        torch = self._torch
        if self._waits and isinstance(actions, torch.Tensor) and actions.device.type == self._device.type:
            return self._checked_on_device(actions, env_ids, num_steps)
        array = self._checked_on_host(as_numpy(actions), env_ids, num_steps)
        if array.dtype not in self._array_dtypes or not array.dtype.isnative:
            array = array.astype(self._array_dtypes[0])
        if not array.flags.carray:
            array = array.copy()  # torch refuses other arrays, or warns
        tensor = torch.from_numpy(array)
        if not self._on_host:
            self._data.host_to_device_nbytes += array.nbytes
        return tensor.to(self._device)

    def _checked_on_host(self, actions: Any, env_ids: Sequence[int], num_steps: int | None) -> Array:
        if num_steps is not None:
            return self._checked_table(actions, env_ids, num_steps)
        (array,) = checked_actions(actions, self._values, env_ids, self._agents_per_env)
        return array.reshape(-1, *array.shape[2:])

    def _checked_table(self, actions: Any, env_ids: Sequence[int], num_steps: int) -> Array:
        try:
            table = np.asarray(actions)
        except (TypeError, ValueError) as error:  # ragged lists
            raise unreadable_error("actions", error) from error
        num_envs, space = len(env_ids), self._space
        shape = (num_envs * self._agents_per_env, *(space.shape or ()))
        self._require_shape(table, (num_steps, *shape))
        rows = table.reshape(-1, *shape[1:])
        try:
            checked_actions(rows, self._values, range(num_steps * num_envs), self._agents_per_env)
        except ActionError:
            for step, part in enumerate(table):
                castable = np.can_cast(part.dtype, space.dtype, "same_kind")  # type: ignore[arg-type]
                if castable and not self._values[0].fit(part):
                    try:
                        checked_actions(part, self._values, env_ids, self._agents_per_env)
                    except ActionError as error:
                        raise ActionError(f"in step {step} of the table, {error}") from None
            raise
        return table

    def _checked_on_device(self, actions: Any, env_ids: Sequence[int], num_steps: int | None) -> Any:
        space = self._space
        steps = () if num_steps is None else (num_steps,)
        self._require_shape(actions, (*steps, len(env_ids) * self._agents_per_env, *(space.shape or ())))
        if actions.is_complex() or (self._options is not None and actions.is_floating_point()):
            raise dtype_error("actions", actions.dtype, space.dtype)
        if self._due(actions, env_ids):
            array = actions.cpu().numpy()
            self._data.device_to_host_nbytes += array.nbytes
            self._checked_on_host(array, env_ids, num_steps)
            self._unchecked.difference_update(env_ids)
        if actions.dtype not in self._dtypes:
            actions = actions.to(self._dtypes[0])
        return actions.to(self._device).contiguous()

    def _due(self, actions: Any, env_ids: Sequence[int]) -> bool:
        """Return whether actions on a device must be checked now.

        During a graph capture, which cannot wait for the device, no check is due.
        """
        if not (self._always or (self._unchecked and not self._unchecked.isdisjoint(env_ids))):
            return False
        return not (actions.is_cuda and self._torch.cuda.is_current_stream_capturing())

    def _require_shape(self, actions: Any, shape: tuple[int, ...]) -> None:
        if tuple(actions.shape) != shape:
            num_envs = shape[-1 - len(self._space.shape or ())] // self._agents_per_env
            raise shape_error("actions", actions.shape, shape, self._agents_per_env, num_envs)
