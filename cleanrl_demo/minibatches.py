"""Minibatches of the rows that an update learns from: two rows in each at least, or nothing would be learnt.

Advantages are taken less their mean: that of a lone row is zero.
"""

from __future__ import annotations

from typing import Any

import torch

from pufferlib.errors import PlanError

__all__ = ["require_rows", "shares"]


def require_rows(config: Any, num_rows: int) -> None:
    """Raise PlanError if ``num_minibatches``, where a trainer has that, leave fewer than two rows in each.

    num_rows: the most that an update may have.
    """
    num_minibatches = getattr(config, "num_minibatches", None)
    if num_minibatches is None or num_rows >= 2 * num_minibatches:
        return
    use = f"1 to {num_rows // 2}, or larger rollouts" if num_rows > 1 else "larger rollouts"
    raise PlanError(
        f"num_minibatches={num_minibatches} of the {num_rows} rows that an update has at most leave fewer than two in "
        f"each, from which nothing is learnt; use {use}"
    )


def shares(rows: torch.Tensor, num_minibatches: int, at_least: int = 2) -> tuple[torch.Tensor, ...]:
    """Return rows in so many minibatches, whose sizes differ by one at most.

    at_least: in each, if need be of fewer minibatches, as where few of a rollout's rows are real.
    """
    return rows.tensor_split(max(1, min(num_minibatches, len(rows) // at_least)))
