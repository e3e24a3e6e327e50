"""Environments on a device seen from the host: their fields, and a reference environment in the place of each."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pufferlib.errors import CallError, PlanError
from pufferlib.vectorization.core.messages import Failed
from pufferlib.vectorization.driver.control import each_value

__all__ = ["HostView"]

Array = np.ndarray[Any, Any]


class HostView:
    """What ``call``, ``get_attr`` and ``set_attr`` reach. data: a cuda_ext.data.Data. reference: the environment."""

    def __init__(self, data: Any, reference: Any) -> None:
        self._data, self._reference = data, reference
        self._states = {name: field for name, field in data.fields.items() if field.role == "state"}
        self._compared = [*data.parameters, *(name for name, field in data.fields.items() if field.role != "scratch")]

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], env_ids: Sequence[int]) -> list[Any]:
        found = []
        for env_id, twin in zip(env_ids, self._of(env_ids), strict=True):
            with _named(env_id, f"call {name!r}"):
                value = getattr(twin, name)
                found.append(value(*args, **kwargs) if callable(value) else value)
        return found

    def get(self, name: str, env_ids: Sequence[int]) -> list[Any]:
        field = self._states.get(name)
        if field is None:
            found = []
            for env_id, twin in zip(env_ids, self._of(env_ids), strict=True):
                with _named(env_id, f"get {name!r}"):
                    found.append(getattr(twin, name))
            return found
        values = self._data.pull(name)
        rows = [values[env_id] for env_id in env_ids]
        return [row.item() if field.per == "env" else row for row in rows]

    def set(self, name: str, values: Any, env_ids: Sequence[int]) -> None:
        """Raises CallError for what is no field, and for a value of another kind than the field's."""
        field = self._states.get(name)
        if field is None:
            raise CallError(f"{name} is no state of these environments; there are {', '.join(self._states)}")
        array = self._data.pull(name)
        for env_id, value in zip(env_ids, each_value(values, len(env_ids)), strict=True):
            kind = np.asarray(value).dtype.kind
            if kind not in {"b": "b", "f": "iuf"}.get(array.dtype.kind, "iu"):
                raise CallError(f"{name} is {field.dtype}, and {value!r} came for environment {env_id}; convert it")
            array[env_id] = value
        self._data.push(name, array)

    def states(self, env_ids: Any) -> dict[str, Any]:
        """Return fields, tensors on the device, of environments that a tensor there names: (env_ids, …)."""
        return {name: self._data.arrays[name][env_ids] for name in self._states}

    def twin(self, state: Mapping[str, Array]) -> Any:
        """Return a reference environment in a state: NumPy's arrays of what ``states`` has of one environment."""
        twin = copy.copy(self._reference)
        for name, kept in state.items():
            value = kept.view(np.uint32) if self._states[name].dtype == "uint32" else kept
            setattr(twin, name, value.item() if value.ndim == 0 else value.copy())
        return twin

    def require_no_effect(self, options: Sequence[Mapping[str, Any] | None], env_ids: Sequence[int]) -> None:
        """Raise PlanError for options with which the reference would begin an episode that the kernel cannot begin."""
        tried: list[Any] = []
        for env_id, given in zip(env_ids, options, strict=True):
            if not given or given in tried:
                continue
            tried.append(given)
            with _named(env_id, "reset"):
                differing = self._differing(given)
            if differing:
                raise PlanError(
                    f"options={given!r} of environment {env_id} change {', '.join(differing)} in the reference, and a "
                    "kernel starts episodes by itself; leave them out, or use another backend"
                )

    def _differing(self, options: Mapping[str, Any]) -> list[str]:
        """Return what options change in a reference that is reset: parameters, constants and state."""
        states = []
        for given in (None, dict(options)):
            twin = copy.deepcopy(self._reference)
            twin.reset(seed=0, options=given)
            states.append({name: np.asarray(getattr(twin, name)) for name in self._compared})
        plain, changed = states
        return [name for name, value in plain.items() if not np.array_equal(value, changed[name])]

    def _of(self, env_ids: Sequence[int]) -> Iterator[Any]:
        """Yield the reference environment with the state of each environment, one after another."""
        columns = {name: each.cpu().numpy() for name, each in self.states(env_ids).items()}
        self._data.device_to_host_nbytes += sum(each.nbytes for each in columns.values())
        for place in range(len(env_ids)):
            # A row of a vector is a NumPy scalar; as an array it can be viewed.
            yield self.twin({name: np.asarray(values[place]) for name, values in columns.items()})


@contextmanager
def _named(env_id: int, phase: str) -> Iterator[None]:
    """Raise what a reference raises as a WorkerError that names its environment, as on the other backends."""
    try:
        yield
    except Exception as error:
        raise Failed.of(env_id, 0, phase, error).error() from error
