"""Optimizers by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pufferlib.errors import PlanError

__all__ = ["OPTIMIZERS", "MatrixMuon", "make_optimizer"]

OPTIMIZERS = ("adam", "muon")


def make_optimizer(
    name: str, parameters: Iterable[Tensor], learning_rate: float, betas: tuple[float, float], eps: float
) -> torch.optim.Optimizer:
    """Return the optimizer of this name: "adam", or "muon" (``MatrixMuon``), whose momentum is the first of ``betas``.

    betas, eps: those of Adam; Muon uses neither the second beta nor eps. Raises PlanError for another name.
    """
    if name == "adam":
        return torch.optim.Adam(parameters, learning_rate, betas, eps)
    if name == "muon":
        return MatrixMuon(parameters, learning_rate, betas[0])
    raise PlanError(f"optimizer={name!r} is none; use {' or '.join(OPTIMIZERS)}")


class MatrixMuon(torch.optim.Optimizer):
    """``torch.optim.Muon`` for parameters with two or more axes, and SGD with Nesterov momentum for all others.

    A parameter with more than two axes, such as a convolution's, is updated as a matrix with a row for each index of
    its first axis. Matrices with more rows than columns take longer steps, by the square root of the ratio. There is no
    weight decay. Raises PlanError for a torch without Muon, which came with 2.9.

    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float, momentum: float = 0.95) -> None:
        muon: Any = getattr(torch.optim, "Muon", None)
        if muon is None:
            raise PlanError(f"torch {torch.__version__} has no Muon; install torch>=2.9, or use optimizer=adam")
        parameters = list(parameters)
        super().__init__(parameters, {"lr": learning_rate})
        matrices = [part for part in parameters if part.ndim >= 2]
        self._matrices = [(part, nn.Parameter(part.detach().flatten(1))) for part in matrices]
        vectors = [part for part in parameters if part.ndim < 2]
        inner: dict[str, tuple[list[Any], Any, dict[str, Any]]] = {
            "muon": ([view for _, view in self._matrices], muon, {"weight_decay": 0.0, "adjust_lr_fn": "original"}),
            "sgd": (vectors, torch.optim.SGD, {"nesterov": True}),
        }
        self._inner = {
            name: kind(parts, lr=learning_rate, momentum=momentum, **options)
            for name, (parts, kind, options) in inner.items()
            if parts
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters that have gradients. closure: returns the loss, which this method then returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, view in self._matrices:
            view.data = part.data.flatten(1)  # the policy may have been moved, or its gradients replaced
            view.grad = None if part.grad is None else part.grad.flatten(1)
        for optimizer in self._inner.values():
            for group in optimizer.param_groups:
                group["lr"] = self.param_groups[0]["lr"]
            optimizer.step()
        for part, view in self._matrices:
            if not part.data.is_contiguous():  # then the view is a copy
                part.data.copy_(view.data.view_as(part))
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both optimizers, and the learning rate."""
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"groups": groups, **{name: optimizer.state_dict() for name, optimizer in self._inner.items()}}

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore the state that ``state_dict`` returned."""
        for group, values in zip(self.param_groups, state_dict["groups"], strict=True):
            group.update(values)
        for name, optimizer in self._inner.items():
            optimizer.load_state_dict(state_dict[name])
