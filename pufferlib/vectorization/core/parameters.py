"""The parameters of ``make`` and of the VecEnv classes, such as ``Serial``. The docstring of ``make`` explains them."""

# Without `from __future__ import annotations`: see pufferlib/util/parameters.py.

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypedDict

if TYPE_CHECKING:
    from pufferlib.vectorization.core.tensors import Device

__all__ = ["MakeParameters", "VecEnvParameters"]


class _BackendParameter(TypedDict, total=False):
    backend: Annotated[str, "serial"]


class VecEnvParameters(TypedDict, total=False):
    """The parameters of ``Serial``, ``Pool`` and the other VecEnv classes, apart from ``env``."""

    num_envs: int | None
    num_workers: int | None
    batch_size: int | None
    seed: int | None
    env_args: Annotated[Sequence[object], ()]
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None
    wrap_kwargs: Mapping[str, object] | None
    autoreset_mode: Annotated[str | Enum, "next_step"]
    context: str | None
    copy: Annotated[bool, False]
    as_torch: bool | None
    device: "Device | str | None"
    fair: str | int | None
    check: Annotated[str, "first"]
    debug: Annotated[bool, False]
    on_error: Annotated[str, "raise"]
    max_restarts: Annotated[int | None, 3]
    step_timeout: float | None
    reset_timeout: float | None
    backend_kwargs: Mapping[str, object] | None


class MakeParameters(_BackendParameter, VecEnvParameters, total=False):
    """The parameters of ``make``, apart from ``env``."""
