"""PufferLib 3's compiled module ``_C``, whose import gives torch the operation ``compute_puff_advantage``."""

from __future__ import annotations

import torch
from torch import Tensor

from pufferlib.training.vtrace import vtrace_advantages

__all__ = ["compute_puff_advantage"]


def compute_puff_advantage(
    values: Tensor,
    rewards: Tensor,
    terminals: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    gamma: float,
    gae_lambda: float,
    vtrace_rho_clip: float,
    vtrace_c_clip: float,
) -> Tensor:
    """Write the advantages of segments into ``advantages``, and return it; all tensors are (segments, steps).

    The arguments are those of ``pufferlib.training.vtrace``.
    """
    clips = (vtrace_rho_clip, vtrace_c_clip)
    return advantages.copy_(vtrace_advantages(values, rewards, terminals, ratio, gamma, gae_lambda, *clips))


def _operation(*arguments: object) -> None:
    compute_puff_advantage(*arguments)  # type: ignore[arg-type]


_library = torch.library.Library("pufferlib", "FRAGMENT")
_library.define(
    "compute_puff_advantage(Tensor values, Tensor rewards, Tensor dones, Tensor importance, Tensor(a!) advantages, "
    "float gamma, float gae_lambda, float vtrace_rho_clip, float vtrace_c_clip) -> ()"
)
_library.impl("compute_puff_advantage", _operation, "CompositeExplicitAutograd")
