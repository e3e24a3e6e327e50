"""The data manager: the arrays of a schema on one device, owned once; what crosses to it and back is counted.

Arrays are torch tensors, so that one allocator serves environments and learner, and kernels are given their addresses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cuda_ext.schema import CONSTANTS, LAUNCH, Field, KernelEnv, Schema
from pufferlib.errors import KernelError

__all__ = ["MOST_ELEMENTS", "Data", "arguments_dtype", "constants_of", "parameters_of"]

Array = np.ndarray[Any, Any]
MOST_ELEMENTS = 2**31 - 1  # of a field, or rows: what a kernel's int counts


def arguments_dtype(schema: Schema, constants: Mapping[str, Any] | None = None) -> np.dtype[Any]:
    """Return ``struct Env`` as NumPy has it. constants: what is compiled in, and so is no member."""
    kinds = {"int": np.int32}
    members: list[tuple[str, Any]] = [(name, kinds.get(ctype, np.uint64)) for name, ctype in LAUNCH]
    members += [(each.name, np.dtype(each.dtype)) for each in schema.parameters]
    members += [(each.name, np.uint64) for each in schema.all_fields]
    return np.dtype([member for member in members if member[0] not in (constants or ())], align=True)


def constants_of(kernel: KernelEnv, values: Mapping[str, Any]) -> dict[str, int | float]:
    """Return what is known when a kernel is compiled for a device. values: of all parameters, and what CONSTANTS names.

    num_steps among the values makes a kernel that plays one step a launch, which takes fewer registers.
    """
    names = [*CONSTANTS, *(each.name for each in kernel.schema.parameters if each.constant)]
    return {name: values[name] for name in names if name in values}


class Data:
    """The arrays of ``num_envs`` environments of ``num_agents`` agents.

    parameters: the value of each of the schema's.
    arrays: torch tensors by the field's name: (num_envs,) for what is "per env", (num_envs, num_agents) for what is
        "per agent", with a last axis where it has a ``size``; zero at first. Const ones hold their value, None as no
        elements. What a kernel writes is seen in them.
    host_to_device_nbytes, device_to_host_nbytes: what ``push`` and ``pull`` have carried so far; 0 per step.
    """

    def __init__(self, kernel: KernelEnv, num_envs: int, num_agents: int, device: Any, reference: Any) -> None:
        import torch

        self._torch = torch
        self.parameters = parameters_of(kernel, reference)
        self.device = torch.device(device)
        self.num_envs, self.num_agents = num_envs, num_agents
        self.fields = {each.name: each for each in kernel.schema.all_fields}
        self.host_to_device_nbytes = self.device_to_host_nbytes = 0
        self.arrays: dict[str, Any] = {}
        for each in self.fields.values():
            num = math.prod(self._shape(each))
            if num > MOST_ELEMENTS:
                raise KernelError(
                    f'{each.name} of "{kernel.name}" would have {num:,} elements for num_envs={num_envs}, and kernels '
                    f"count to {MOST_ELEMENTS:,}; use fewer environments"
                )
        for each in self.fields.values():
            if each.role == "const":
                value = _attribute(kernel, reference, each.name)
                array = np.zeros(0, each.dtype) if value is None else np.ascontiguousarray(value, each.dtype)
                self.arrays[each.name] = self._pushed(array)
            else:
                self.arrays[each.name] = self.zeros(self._shape(each), each.dtype)
        # NumPy sets the members of a struct several times faster than torch is asked for an address.
        self.addresses = {name: array.data_ptr() for name, array in self.arrays.items()}

    def _shape(self, field: Field) -> tuple[int, ...]:
        """Return the shape of a field's array; () of what is const."""
        if field.role == "const":
            return ()
        shape = (self.num_envs, self.num_agents) if field.per == "agent" else (self.num_envs,)
        return (*shape, self.parameters[field.size]) if field.size else shape

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a new tensor of zeros on the device. uint32 is kept as int32, which torch can index and compare."""
        kind = getattr(self._torch, "int32" if dtype == "uint32" else dtype)
        return self._torch.zeros(shape, dtype=kind, device=self.device)

    def pull(self, name: str) -> Array:
        """Return a field as a NumPy array of its own. Waits for what is under way."""
        field = self._field(name)
        found: Array = self.arrays[name].detach().to("cpu", copy=True).numpy()
        self.device_to_host_nbytes += found.nbytes
        return found.view(np.uint32) if field.dtype == "uint32" else found

    def push(self, name: str, values: Any) -> None:
        """Set a field. Raises KernelError for a wrong shape or dtype, and for what is const."""
        field, target = self._field(name), self.arrays[name]
        array = np.ascontiguousarray(values)
        if field.role == "const":
            raise KernelError(f"{name} is const: it has the value that it had when the environments were made")
        if array.shape != tuple(target.shape) or not np.can_cast(array.dtype, field.dtype, "same_kind"):
            raise KernelError(
                f"{name} holds {field.dtype} {tuple(target.shape)}, and {array.dtype} {array.shape} came; convert it"
            )
        target.copy_(self._pushed(array.astype(field.dtype)))

    def _pushed(self, array: Array) -> Any:
        self.host_to_device_nbytes += array.nbytes
        plain = array.view(np.int32) if array.dtype == np.uint32 else array
        return self._torch.from_numpy(plain.copy()).to(self.device)

    def _field(self, name: str) -> Field:
        if name not in self.fields:
            raise KernelError(f"there is no field {name}; there are {', '.join(self.fields)}")
        return self.fields[name]


def _attribute(kernel: KernelEnv, reference: Any, name: str) -> Any:
    try:
        return getattr(reference, name)
    except AttributeError:
        raise KernelError(
            f'the schema of "{kernel.name}" has {name}, and its reference {kernel.reference} has no attribute of that '
            "name; give it one, or take it out of the schema"
        ) from None


def parameters_of(kernel: KernelEnv, reference: Any) -> dict[str, Any]:
    """Return the value of each parameter, from the reference. Raises KernelError for what is no such number."""
    values = {}
    for each in kernel.schema.parameters:
        value = _attribute(kernel, reference, each.name)
        try:
            with np.errstate(over="ignore"):
                number = np.dtype(each.dtype).type(value).item()
            one = np.ndim(value) == 0 and not isinstance(value, (str, bytes))  # float32("0.5") is a number, too
            fits = one and bool(number == value or (each.dtype == "float32" and math.isfinite(number)))
        except (OverflowError, TypeError, ValueError):
            fits = False
        if not fits:
            raise KernelError(f'parameter {each.name}={value!r} of "{kernel.name}" is no {each.dtype}')
        values[each.name] = number
    return values
