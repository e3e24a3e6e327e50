"""Networks compiled by torch.compile while they learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pufferlib.errors import PlanError

__all__ = ["compiled", "require_compiler"]


@contextmanager
def compiled(networks: Iterable[nn.Module]) -> Iterator[None]:
    """Compile the ``forward`` of networks inside the block; afterwards they have their own again.

    A network is compiled when it is first called, and again for another number of rows, after which any number fits.
    """
    with ExitStack() as stack:
        for network in networks:
            stack.callback(_restore, network, vars(network).get("forward"))
            network.forward = torch.compile(network.forward)
        yield


def require_compiler(device: str) -> None:
    """Compile a sum on the device. Raises PlanError, with the reason, if torch.compile cannot."""
    try:
        torch.compile(_sum)(torch.zeros(2, device=device))
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise PlanError(
            f"compile=True, but torch.compile fails here: {reason}; install what that names (on a CPU, torch needs a "
            "C++ compiler, such as g++), or leave compile out"
        ) from error


def _sum(values: Tensor) -> Tensor:
    return values + values


def _restore(network: nn.Module, attribute: Any) -> None:
    """Remove the compiled ``forward``; then set the attribute that the network had instead of its class's, if any."""
    del network.forward
    if attribute is not None:
        network.forward = attribute
