"""Access from the host to environments on a device: to fields directly, to methods through a reference environment."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pufferlib.errors import CallError, PlanError
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.messages import Failed
from pufferlib.vectorization.driver.control import each_value

__all__ = ["HostView"]


class HostView:
    """Access to the environments' methods and attributes from the host.

    data: a cuda_ext.data.Data. reference: the kernel's reference environment. A method of an environment is called on
    a copy of the reference that is set to the environment's state. Changes that the method makes to the copy are lost.
    """

    def __init__(self, data: Any, reference: Any) -> None:
        self._data, self._reference = data, reference
        self._states = {name: field for name, field in data.fields.items() if field.role == "state"}
        self._compared = [*data.parameters, *(name for name, field in data.fields.items() if field.role != "scratch")]

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], env_ids: Sequence[int]) -> list[Any]:
        results = []
        for env_id, env in zip(env_ids, self._of(env_ids), strict=True):
            with _named(env_id, f"call {name!r}"):
                value = getattr(env, name)
                results.append(value(*args, **kwargs) if callable(value) else value)
        return results

    def get(self, name: str, env_ids: Sequence[int]) -> list[Any]:
        field = self._states.get(name)
        if field is None:
            results = []
            for env_id, env in zip(env_ids, self._of(env_ids), strict=True):
                with _named(env_id, f"get {name!r}"):
                    results.append(getattr(env, name))
            return results
        values = self._data.pull(name)
        rows = [values[env_id] for env_id in env_ids]
        is_number = field.per == "env" and not field.size
        return [row.item() if is_number else row for row in rows]

    def set(self, name: str, values: Any, env_ids: Sequence[int]) -> None:
        """Set the state field ``name`` of environments.

        values: a list or tuple with one value per environment, or one value for all. Raises CallError for an unknown
        field or a value of the wrong type, PlanError for a wrong number of values or a value that does not fit.
        """
        field = self._states.get(name)
        if field is None:
            raise CallError(f"{name} is no state of these environments; there are {', '.join(self._states)}")
        array = self._data.pull(name)
        for env_id, value in zip(env_ids, each_value(values, len(env_ids)), strict=True):
            try:
                new = np.asarray(value)
                if new.dtype.kind not in {"b": "b", "f": "iuf"}.get(array.dtype.kind, "iu"):
                    raise CallError(f"{name} is {field.dtype}, and {value!r} came for environment {env_id}; convert it")
                array[env_id] = new
                if array.dtype.kind in "iu" and (array[env_id] != new).any():
                    raise ValueError(f"{field.dtype} does not hold all of its numbers")
            except ValueError as error:  # of another shape, ragged, or too large
                raise PlanError(
                    f"{name} cannot be {value!r:.80} in environment {env_id}: {error}; give {field.dtype} of shape "
                    f"{array.shape[1:]}"
                ) from None
        self._data.push(name, array)

    def states(self, env_ids: Any) -> dict[str, Any]:
        """Return the state fields of environments, as tensors on the device, (len(env_ids), …).

        env_ids: a sequence of ids, or a tensor on the device.
        """
        return {name: self._data.arrays[name][env_ids] for name in self._states}

    def environment(self, state: Mapping[str, Array]) -> Any:
        """Return a reference environment in a given state.

        state: one environment's fields from ``states``, as NumPy arrays.
        """
        env = copy.copy(self._reference)
        for name, array in state.items():
            value = array.view(np.uint32) if self._states[name].dtype == "uint32" else array
            setattr(env, name, value.item() if value.ndim == 0 else value.copy())
        return env

    def require_no_effect(self, options: Sequence[Mapping[str, Any] | None], env_ids: Sequence[int]) -> None:
        """Raise PlanError if options change the state in which the reference starts, because kernels ignore options.

        options: one mapping or None per environment. Raises WorkerError if the reference's reset raises.
        """
        tried: list[Any] = []
        for env_id, env_options in zip(env_ids, options, strict=True):
            if not env_options or env_options in tried:
                continue
            tried.append(env_options)
            with _named(env_id, "reset"):
                differing = self._differing(env_options)
            if differing:
                raise PlanError(
                    f"options={env_options!r} of environment {env_id} change {', '.join(differing)} in the reference, "
                    "and a kernel starts episodes by itself; leave them out, or use another backend"
                )

    def _differing(self, options: Mapping[str, Any]) -> list[str]:
        """Return the names of the parameters, constants and state fields that these options change in a reset."""
        states = []
        for reset_options in (None, dict(options)):
            env = copy.deepcopy(self._reference)
            env.reset(seed=0, options=reset_options)
            states.append({name: np.asarray(getattr(env, name)) for name in self._compared})
        plain, changed = states
        return [name for name, value in plain.items() if not np.array_equal(value, changed[name])]

    def _of(self, env_ids: Sequence[int]) -> Iterator[Any]:
        """Yield, for each environment, a copy of the reference that is set to the environment's state."""
        columns = {name: column.cpu().numpy() for name, column in self.states(env_ids).items()}
        self._data.device_to_host_nbytes += sum(column.nbytes for column in columns.values())
        for index in range(len(env_ids)):
            # A row of a vector is a NumPy scalar; as an array it can be viewed.
            yield self.environment({name: np.asarray(values[index]) for name, values in columns.items()})


@contextmanager
def _named(env_id: int, phase: str) -> Iterator[None]:
    """Convert a reference environment's exception to a WorkerError with the env id, as in the other backends."""
    try:
        yield
    except Exception as error:
        raise Failed.of(env_id, 0, phase, error).error() from error
