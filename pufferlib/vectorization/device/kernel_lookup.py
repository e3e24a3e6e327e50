"""Lookup of the kernel, reference and device that the arguments of ``make`` select, with checks of each."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from pufferlib.errors import KernelError, MissingExtra, PlanError, RegistryError
from pufferlib.registry import explain_missing, load, named
from pufferlib.vectorization.core.arguments import checked_env_kwargs, require_one_each

__all__ = ["device_of", "kernel_of", "kernel_of_all", "reference_of", "require_kernel_spaces", "same_kwargs"]


def kernel_of(env: Any) -> Any:
    """Return the KernelEnv that ``env`` names, or ``env`` itself if it is a KernelEnv.

    Raises RegistryError if ``env`` has no kernel.
    """
    kind = importlib.import_module("cuda_ext.schema").KernelEnv
    stems = importlib.import_module("cuda_ext.sources").stems()
    if isinstance(env, str) and env.replace("/", "_") in stems:
        return named(f"cuda_ext.{env.replace('/', '_')}:KERNEL")
    kernel = named(env) if isinstance(env, str) and ":" in env else env
    if isinstance(kernel, kind):
        return kernel
    names = [named(f"cuda_ext.{stem}:KERNEL").name for stem in stems]
    raise RegistryError(
        f'{env!r} has no kernel, which backend "cuda" needs; these have one: {", ".join(names)}; '
        "for an environment of your own, pass a cuda_ext.schema.KernelEnv, or use another backend"
    )


def kernel_of_all(env: Any, num_envs: int | None) -> tuple[Any, int]:
    """Return the KernelEnv and the number of environments.

    env: as for ``kernel_of``, or a list with one item per environment. num_envs: by default, the length of this list,
    or 1 without a list. Raises PlanError for a list that contains different kernels, is empty, or does not have
    ``num_envs`` items; RegistryError if an item has no kernel.
    """
    if not isinstance(env, (list, tuple)):
        return kernel_of(env), 1 if num_envs is None else num_envs
    require_one_each(env, num_envs)
    kernels = [kernel_of(item) for item in env]
    others = [kernel for kernel in kernels if kernel != kernels[0]]
    if others:
        raise PlanError(
            f'env lists "{kernels[0].name}" and "{others[0].name}", but one kernel plays all environments; '
            "list one, or use another backend"
        )
    return kernels[0], len(kernels)


def reference_of(kernel: Any) -> Any:
    """Return the callable that makes a kernel's reference environment.

    Raises RegistryError if the callable does not exist, MissingExtra if a package that it needs is not installed.
    """
    try:
        with explain_missing(kernel.name):
            return load(kernel.reference)
    except (RegistryError, MissingExtra) as error:
        raise type(error)(f'"{kernel.name}" has the reference {kernel.reference}: {error}') from error


def same_kwargs(env_kwargs: Any, num_envs: int) -> dict[str, Any]:
    """Return the keyword arguments that all environments share. Raises PlanError if they are invalid or differ."""
    all_kwargs = checked_env_kwargs(env_kwargs, num_envs)
    if isinstance(env_kwargs, Sequence) and any(item != all_kwargs[0] for item in all_kwargs):
        raise PlanError("env_kwargs differ, but one kernel plays all environments alike; give one dict for all")
    return dict(all_kwargs[0])


def require_kernel_spaces(name: str, observed: gymnasium.Space[Any], acted: gymnasium.Space[Any]) -> None:
    """Raise KernelError unless kernels can write observations and read actions of these spaces.

    name: the kernel's name. observed, acted: the spaces of observations and of actions.
    """
    if observed.dtype != np.float32:
        raise KernelError(
            f'"{name}" observes {observed.dtype}, and kernels write float32; make its observations float32'
        )
    if isinstance(acted, gymnasium.spaces.Box):
        if acted.dtype != np.float32 or not (np.isfinite(acted.low) & np.isfinite(acted.high)).all():
            raise KernelError(f'"{name}" takes {acted}, and kernels take float32 Boxes with finite bounds')
    elif not isinstance(acted, (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete)):
        raise KernelError(f'"{name}" takes {acted}, and kernels take Discrete, MultiDiscrete or Box actions')
    if np.any(getattr(acted, "start", 0)):
        raise KernelError(f'"{name}" takes {acted}, and kernels number actions from 0; leave start out')


def device_of(torch: Any, device: Any) -> Any:
    """Return the torch.device that ``device`` names: for None the current CUDA device, for "host" the CPU.

    Raises PlanError if the device does not exist or cannot run kernels.
    """
    way_out = 'use device="host", which plays the same kernels on the CPU'
    try:
        torch_device = torch.device({None: "cuda", "host": "cpu"}.get(device, device))
    except (RuntimeError, TypeError) as error:
        raise PlanError(f"device={device!r} is none: {str(error).splitlines()[0]}; {way_out}") from None
    if torch_device.type == "cpu":
        return torch.device("cpu")
    if torch_device.type != "cuda":
        raise PlanError(f'device={device!r} runs no kernels; use "cuda", or {way_out[4:]}')
    count = torch.cuda.device_count()
    if (torch_device.index or 0) >= count:
        raise PlanError(f'device="{torch_device}": torch {torch.__version__} sees {count} CUDA devices; {way_out}')
    index = torch.cuda.current_device() if torch_device.index is None else torch_device.index
    return torch.device("cuda", index)
