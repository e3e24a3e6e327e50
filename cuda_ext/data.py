"""The data manager, which holds a schema's arrays on a device, and counts the bytes copied to and from it.

Arrays are torch tensors, so that one allocator serves environments and learner. Kernels receive the tensors' addresses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cuda_ext.schema import CONSTANTS, LAUNCH, Field, KernelEnv, Schema
from pufferlib.errors import KernelError
from pufferlib.util.annotations import Array

__all__ = ["MOST_ELEMENTS", "Data", "arguments_dtype", "constants_of", "parameters_of"]

MOST_ELEMENTS = 2**31 - 1  # the limit of a field's elements and of rows: the largest int in a kernel


def arguments_dtype(schema: Schema, constants: Mapping[str, Any] | None = None) -> np.dtype[Any]:
    """Return the NumPy dtype of ``struct Env``. constants: names that are compiled in and therefore left out."""
    kinds = {"int": np.int32}
    members: list[tuple[str, Any]] = [(name, kinds.get(ctype, np.uint64)) for name, ctype in LAUNCH]
    members += [(parameter.name, np.dtype(parameter.dtype)) for parameter in schema.parameters]
    members += [(field.name, np.uint64) for field in schema.all_fields]
    return np.dtype([member for member in members if member[0] not in (constants or ())], align=True)


def constants_of(kernel: KernelEnv, values: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the values to compile into a kernel for a device, keyed by name.

    values: the values of all parameters and, optionally, of names in CONSTANTS. If num_steps is given, each launch
    plays that many steps; a kernel for num_steps=1 needs fewer registers.
    """
    names = [*CONSTANTS, *(parameter.name for parameter in kernel.schema.parameters if parameter.constant)]
    return {name: values[name] for name in names if name in values}


class Data:
    """The device arrays of ``num_envs`` environments with ``num_agents`` agents each.

    parameters: the values of the schema's parameters, keyed by name.
    arrays: torch tensors, keyed by field name. Const fields hold the reference's value, or no elements if it is None.
        All other fields are zero at first, and kernels write to them. Their shape is (num_envs,) if the field is
        per="env", and (num_envs, num_agents) if it is per="agent"; a field with a ``size`` has another axis.
    host_to_device_nbytes, device_to_host_nbytes: bytes copied so far to and from the device. A step of a kernel
        copies no bytes.

    Raises KernelError if a field would have more than MOST_ELEMENTS elements, if the reference lacks a parameter or a
    const field, or if a parameter's value does not fit its dtype.
    """

    def __init__(self, kernel: KernelEnv, num_envs: int, num_agents: int, device: Any, reference: Any) -> None:
        import torch

        self._torch = torch
        self.parameters = parameters_of(kernel, reference)
        self.device = torch.device(device)
        self.num_envs, self.num_agents = num_envs, num_agents
        self.fields = {field.name: field for field in kernel.schema.all_fields}
        self.host_to_device_nbytes = self.device_to_host_nbytes = 0
        self.arrays: dict[str, Any] = {}
        for field in self.fields.values():
            num = math.prod(self._shape(field))
            if num > MOST_ELEMENTS:
                raise KernelError(
                    f'{field.name} of "{kernel.name}" would have {num:,} elements for num_envs={num_envs}, and kernels '
                    f"count to {MOST_ELEMENTS:,}; use fewer environments"
                )
        for field in self.fields.values():
            if field.role == "const":
                value = _attribute(kernel, reference, field.name)
                array = np.zeros(0, field.dtype) if value is None else np.ascontiguousarray(value, field.dtype)
                self.arrays[field.name] = self._pushed(array)
            else:
                self.arrays[field.name] = self.zeros(self._shape(field), field.dtype)
        # Cached, because torch takes several times longer to return an address than NumPy to set a struct's member.
        self.addresses = {name: array.data_ptr() for name, array in self.arrays.items()}

    def _shape(self, field: Field) -> tuple[int, ...]:
        """Return the shape of a field's array; for a const field, whose array has the shape of its value, return ()."""
        if field.role == "const":
            return ()
        shape = (self.num_envs, self.num_agents) if field.per == "agent" else (self.num_envs,)
        return (*shape, self.parameters[field.size]) if field.size else shape

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a new tensor of zeros on the device; for uint32 an int32 tensor, which torch can index and compare."""
        kind = getattr(self._torch, "int32" if dtype == "uint32" else dtype)
        return self._torch.zeros(shape, dtype=kind, device=self.device)

    def pull(self, name: str) -> Array:
        """Return a copy of a field as a NumPy array, once the launches on the current stream are done.

        Raises KernelError for unknown names.
        """
        field = self._field(name)
        copy: Array = self.arrays[name].detach().to("cpu", copy=True).numpy()
        self.device_to_host_nbytes += copy.nbytes
        return copy.view(np.uint32) if field.dtype == "uint32" else copy

    def push(self, name: str, values: Any) -> None:
        """Set a field's values.

        Raises KernelError for an unknown or const field, for a wrong shape or dtype, and for integers that do not fit.
        """
        field, target = self._field(name), self.arrays[name]
        array = np.ascontiguousarray(values)
        if field.role == "const":
            raise KernelError(f"{name} is const: its value is fixed when the environments are made")
        if array.shape != tuple(target.shape) or not np.can_cast(array.dtype, field.dtype, "same_kind"):
            raise KernelError(
                f"{name} holds {field.dtype} {tuple(target.shape)}, but got {array.dtype} {array.shape}; convert it"
            )
        fitted = array.astype(field.dtype, copy=False)
        if fitted.dtype.kind in "iu" and (fitted != array).any():
            raise KernelError(
                f"{name} holds {field.dtype}, but got numbers from {array.min()} to {array.max()}; use smaller ones"
            )
        target.copy_(self._pushed(fitted))

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
            "name; add the attribute, or remove the name from the schema"
        ) from None


def parameters_of(kernel: KernelEnv, reference: Any) -> dict[str, Any]:
    """Return the reference's values of the schema's parameters, keyed by name.

    Raises KernelError if the reference lacks a parameter, or if a value does not fit its parameter's dtype.
    """
    values = {}
    for parameter in kernel.schema.parameters:
        value = _attribute(kernel, reference, parameter.name)
        try:
            with np.errstate(over="ignore"):
                number = np.dtype(parameter.dtype).type(value).item()
            scalar = np.ndim(value) == 0 and not isinstance(value, (str, bytes))  # float32("0.5") is also a number
            fits = scalar and bool(number == value or (parameter.dtype == "float32" and math.isfinite(number)))
        except (OverflowError, TypeError, ValueError):
            fits = False
        if not fits:
            raise KernelError(f'parameter {parameter.name}={value!r} of "{kernel.name}" is no {parameter.dtype}')
        values[parameter.name] = number
    return values
