"""Launch a kernel: set its fixed arguments once, and the others for each launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cuda_ext.checking import CheckedKernel
from cuda_ext.data import Data, arguments_dtype, constants_of
from cuda_ext.device import DeviceKernel
from cuda_ext.functions import HostKernel, Shape, fitting
from cuda_ext.schema import KernelEnv
from pufferlib.errors import KernelError

__all__ = ["Launcher"]


class Launcher:
    """An environment's kernel, ready to launch on the device of its data.

    fixed: the arguments that are the same in every launch, keyed by name: those of ``schema.LAUNCH``, of which
        observation_size is required, and the values of all parameters. A kernel for a device has those of
        ``schema.CONSTANTS`` and the parameters declared constant compiled in, which can make it cheaper; a kernel for
        num_steps=1, for example, needs fewer registers.
    num_threads: the maximum number of threads on the host. checked: whether to run the kernel on the host in the way
        that a device would (see ``checking``). network: the result of ``network.described`` for the network that
        chooses actions, if there is one.

    Raises KernelError if the network is in bfloat16 and the kernel runs on the host, unless ``checked``.
    """

    def __init__(
        self,
        kernel: KernelEnv,
        data: Data,
        fixed: Mapping[str, Any],
        num_threads: int,
        checked: bool = False,
        network: Mapping[str, Any] | None = None,
    ) -> None:
        constants: dict[str, int | float] = {}
        shape = Shape.of(data.num_agents, fixed["observation_size"], **(network or {}))
        self.kernel: Any
        if checked:
            self.kernel = CheckedKernel(kernel, shape)
        elif data.device.type == "cpu":
            if shape.tensor_cores:
                raise KernelError(
                    f'"{kernel.name}": a network in bfloat16 needs the tensor cores of a GPU, and device="host" has '
                    'none; use precision="float32", or backend_kwargs={"checked": True}, which plays them slowly'
                )
            self.kernel = HostKernel(kernel, num_threads)
        else:
            constants = constants_of(kernel, fixed)
            self.kernel = fitting(lambda shape: DeviceKernel(kernel, shape, constants), shape)
        self.arguments = np.zeros((), arguments_dtype(kernel.schema, constants))
        self._names = frozenset(self.arguments.dtype.names or ())
        self.set({**fixed, **data.addresses})

    def set(self, values: Mapping[str, Any]) -> None:
        """Set arguments for the next launches; ignore names that are not arguments, such as those compiled in."""
        for name in self._names.intersection(values):
            self.arguments[name] = values[name]

    @property
    def checks_actions(self) -> bool:
        """Whether launches check actions themselves (see ``HostKernel.bound``)."""
        return isinstance(self.kernel, HostKernel)

    def bound(self, arguments: Any) -> Callable[[int], Any]:
        """Return a function that takes a stream's address and launches the kernel on that stream.

        arguments: an array of one ``struct Env``, which the function reads at each call. Its ``num_envs`` must not
        change, because the number of blocks is computed here.
        """
        return self.kernel.bound(arguments, int(arguments["num_envs"]))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the threads of a HostKernel; do nothing for other kernels."""
        if isinstance(self.kernel, HostKernel):
            self.kernel.close()

    def launch(self, num_envs: int, stream: int) -> None:
        """Launch the kernel for num_envs environments, without waiting for a device. stream: the stream's address."""
        self.arguments["num_envs"] = num_envs
        self.bound(self.arguments)(stream)
