"""A kernel with its arguments: fixed ones are set once, others for each launch."""

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

    fixed: arguments that are the same in each launch (names of ``schema.LAUNCH`` and of parameters). On a device the
        constants among them are compiled in: with num_steps=1 the kernel takes fewer registers. network_width,
        num_weights: of a network that plays (see Shape).
    num_threads: of the host, if it plays. checked: play on the host as a device would (see ``checking``).
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
            self.kernel = fitting(lambda shape: DeviceKernel(kernel, shape, constants), shape)
        self.arguments = np.zeros((), arguments_dtype(kernel.schema, constants))
        self._names = frozenset(self.arguments.dtype.names or ())
        self.set({**fixed, **data.addresses})

    def set(self, values: Mapping[str, Any]) -> None:
        """Set arguments of later launches; names that are compiled in are ignored."""
        for name in self._names.intersection(values):
            self.arguments[name] = values[name]

    @property
    def checks_actions(self) -> bool:
        """Whether launches check actions themselves (see ``HostKernel.bound``)."""
        return isinstance(self.kernel, HostKernel)

    def bound(self, arguments: Any) -> Callable[[int], Any]:
        """Return a function that takes a stream and launches with other arguments, which it reads at each call."""
        return self.kernel.bound(arguments, int(arguments["num_envs"]))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the threads of the host, if it plays."""
        if isinstance(self.kernel, HostKernel):
            self.kernel.close()

    def launch(self, num_envs: int, stream: int) -> None:
        """Play num_envs environments. stream: its address. Returns before a device has finished."""
        self.arguments["num_envs"] = num_envs
        self.bound(self.arguments)(stream)
