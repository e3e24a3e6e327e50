"""Report a kernel's registers, memory and concurrent blocks, by compiling it with NVRTC, without a device."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pufferlib.emulation import emulate
from pufferlib.vectorization.device.kernel_lookup import kernel_of, reference_of
from pufferlib.vectorization.device.policy import LOGITS, NETWORK, NO_POLICY, num_continuous_of

__all__ = ["HIDDEN", "LAUNCHES", "KernelUsage", "architectures", "kernel_usage", "policy_of"]

# The launches for which backend "cuda" compiles kernels, with their constants and the precision of their network.
LAUNCHES: dict[str, dict[str, Any]] = {
    "step": {"policy": NO_POLICY, "num_steps": 1},
    "step, logits": {"policy": LOGITS, "num_steps": 1},
    "rollout": {"policy": NO_POLICY},
    "rollout, network": {"policy": NETWORK},
    "rollout, bfloat16": {"policy": NETWORK, "precision": "bfloat16"},
}
HIDDEN = (64, 64)  # outputs of the network's hidden layers


class KernelUsage(NamedTuple):
    """The resources that a launch of a kernel needs.

    num_agents: the number of agents per environment. observation_size: the number of elements of an observation. shape:
    the launch's ``cuda_ext.functions.Shape``. cubin: the compiled kernel, a ``cuda_ext.nvrtc.Cubin``. occupancy: the
    kernel's ``cuda_ext.occupancy.Occupancy``.
    """

    num_agents: int
    observation_size: int
    shape: Any
    cubin: Any
    occupancy: Any


def architectures() -> tuple[str, list[str], list[str]]:
    """Return NVRTC's version and two lists of architectures: those that it supports, and those that it does not.

    Together, the lists contain all architectures for which usage is reported, such as "sm_90". Raises MissingExtra if
    NVRTC is not installed.
    """
    nvrtc, occupancy = importlib.import_module("cuda_ext.nvrtc"), importlib.import_module("cuda_ext.occupancy")
    supported = {f"sm_{number}" for number in nvrtc.architectures()}
    reported = list(occupancy.MULTIPROCESSORS)
    version = "{}.{}".format(*nvrtc.version())
    return (
        version,
        [name for name in reported if name in supported],
        [name for name in reported if name not in supported],
    )


def policy_of(num_inputs: int, num_outputs: int, hidden: Sequence[int] = HIDDEN) -> Any:
    """Return a torch.nn.Sequential with tanh after its hidden layers."""
    nn = importlib.import_module("torch").nn
    pairs = itertools.pairwise([num_inputs, *hidden, num_outputs])
    layers = [part for sizes in pairs for part in (nn.Linear(*sizes), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def kernel_usage(env: Any, launch: str, architecture: str, env_kwargs: Mapping[str, Any] | None = None) -> KernelUsage:
    """Compile a kernel as backend "cuda" does, and return the resources that it needs.

    env, env_kwargs: as in ``make(backend="cuda")``. launch: a key of LAUNCHES. architecture: one that NVRTC supports,
    such as "sm_90". Raises KernelError if the kernel does not compile, MissingExtra if NVRTC is not installed.
    """
    data, functions, network, nvrtc, occupancy = (
        importlib.import_module(f"cuda_ext.{name}") for name in ("data", "functions", "network", "nvrtc", "occupancy")
    )
    kernel = kernel_of(env)
    reference = reference_of(kernel)(**(env_kwargs or {}))
    rows: Any = emulate(reference)
    size = int(np.prod(rows.observation_space.shape))
    num_continuous = num_continuous_of(rows.action_space)
    values = {**data.parameters_of(kernel, reference), "num_agents": rows.num_agents, "observation_size": size}
    values["num_continuous"] = num_continuous
    constants = data.constants_of(kernel, {**values, **LAUNCHES[launch]})
    described: dict[str, Any] = {}
    if LAUNCHES[launch]["policy"] == NETWORK:
        nvec = np.atleast_1d(getattr(rows.action_space, "nvec", getattr(rows.action_space, "n", 0)))
        num_outputs = num_continuous or int(nvec.sum())
        precision, options = LAUNCHES[launch].get("precision", "float32"), () if num_continuous else nvec.tolist()
        described = network.described(policy_of(size, num_outputs), size, num_outputs, options, precision)

    def compiled(shape: Any) -> tuple[Any, Any]:
        return shape, nvrtc.compiled(kernel, shape, constants, architecture)

    wanted = functions.Shape.of(rows.num_agents, size, **described)
    shape, cubin = functions.fitting(compiled, wanted)
    return KernelUsage(
        rows.num_agents, size, shape, cubin, occupancy.Occupancy.of(cubin, shape.block_size, architecture)
    )
