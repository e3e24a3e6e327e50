"""A kernel with its arguments: what is fixed is filled in once, what a launch is told is set for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cuda_ext.checking import CheckedKernel
from cuda_ext.data import Data, arguments_dtype, constants_of
from cuda_ext.device import DeviceKernel
from cuda_ext.functions import HostKernel, Shape, fitting
from cuda_ext.schema import KernelEnv

__all__ = ["Launcher"]


class Launcher:
    """Launches the kernel of an environment on the device of its data.

    fixed: what is the same in each launch (names of ``schema.LAUNCH`` and of parameters). On a device the constants
        among it are compiled in: with num_steps=1 the kernel takes fewer registers. network_width, num_weights: of
        a network that plays (see Shape).
    num_threads: of the host, if it plays. checked: have it play as a device would (see ``checking``).
    """

    def __init__(
        self, kernel: KernelEnv, data: Data, fixed: Mapping[str, Any], num_threads: int, checked: bool = False
    ) -> None:
        constants: dict[str, int | float] = {}
        network = (fixed.get("network_width", 0), fixed.get("num_weights", 0))
        shape = Shape.of(data.num_agents, fixed["observation_size"], *network)
        self.kernel: Any
        if checked:
            self.kernel = CheckedKernel(kernel, shape)
        elif data.device.type == "cpu":
            self.kernel = HostKernel(kernel, num_threads)
        else:
            constants = constants_of(kernel, fixed)
            self.kernel = fitting(lambda each: DeviceKernel(kernel, each, constants), shape)
        self.arguments = np.zeros((), arguments_dtype(kernel.schema, constants))
        self._names = frozenset(self.arguments.dtype.names or ())
        self.set({**fixed, **data.addresses})

    def set(self, values: Mapping[str, Any]) -> None:
        """Set what later launches are told, as far as it is not compiled in."""
        for name in self._names.intersection(values):
            self.arguments[name] = values[name]

    @property
    def checks_actions(self) -> bool:
        """Whether launches check actions themselves (see ``HostKernel.bound``)."""
        return isinstance(self.kernel, HostKernel)

    def bound(self, arguments: Any) -> Callable[[int], Any]:
        """Return what launches with other arguments than these, which may change; it is told the stream."""
        return self.kernel.bound(arguments, int(arguments["num_envs"]))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the threads of the host, if it plays."""
        if isinstance(self.kernel, HostKernel):
            self.kernel.close()

    def launch(self, num_envs: int, stream: int) -> None:
        """Play so many environments, as the arguments say. stream: its address; returns before a device is done."""
        self.arguments["num_envs"] = num_envs
        self.bound(self.arguments)(stream)
