"""Minibatches of the rows to learn from.

Minibatches have at least two rows if possible: advantages are centred on their mean, so the advantage of a single row
would be zero, and nothing would be learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pufferlib.errors import PlanError

__all__ = ["UNITS", "by_weight", "require_rows", "require_shuffled", "shares", "shuffled"]

UNITS = ("rows", "environments")  # what is shuffled, of which all rows are then in one minibatch

# Random numbers in a graph: torch counts them in an unsigned int, and sampling actions takes a few.
MOST_DRAWN = 2**32 - 2**20
MOST_SHUFFLED = 2**31 - 1


def require_rows(config: Any, num_rows: int) -> None:
    """Raise PlanError if ``num_minibatches`` is too large for every minibatch to have at least two rows.

    If ``minibatch_units`` is "environments", also if there are fewer environments than minibatches. config: a trainer's
    settings; those without ``num_minibatches`` are accepted. num_rows: the largest number of rows that an update can
    have.
    """
    num_minibatches = getattr(config, "num_minibatches", None)
    if num_minibatches is None:
        return
    if getattr(config, "minibatch_units", "rows") == "environments" and config.num_envs < num_minibatches:
        raise PlanError(
            f"num_minibatches={num_minibatches} of num_envs={config.num_envs} whole environments: use 1 to "
            f"{config.num_envs}, or minibatch_units=rows"
        )
    if num_rows >= 2 * num_minibatches:
        return
    use = f"1 to {num_rows // 2}, or larger rollouts" if num_rows > 1 else "larger rollouts"
    raise PlanError(
        f"num_minibatches={num_minibatches} with at most {num_rows} rows per update: nothing is learnt from "
        f"minibatches with fewer than two rows; use {use}"
    )


def by_weight(
    rows: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], generator: torch.Generator
) -> np.ndarray[Any, Any]:
    """Return as many of the rows, each as often as its weight says: ``weight / mean(weights)`` times in expectation.

    The number of times is that quotient, rounded up or down at random (systematic sampling), so any learner can use
    weights. Equal weights return the rows unchanged, and draw nothing. rows: int64, indices of weights. weights: float,
    above 0.
    """
    weights = weights[rows]
    if not len(rows) or (weights == weights[0]).all():
        return rows
    ends = np.cumsum(weights, dtype=np.float64) * (len(rows) / np.sum(weights, dtype=np.float64))
    start = float(torch.rand((), generator=generator, device=generator.device))
    chosen = np.searchsorted(ends, np.arange(len(rows)) + start, side="right")
    return rows[np.minimum(chosen, len(rows) - 1)]  # the last end may be rounded down


def shares(rows: torch.Tensor, num_minibatches: int, at_least: int = 2) -> tuple[torch.Tensor, ...]:
    """Return rows split into ``num_minibatches`` minibatches, whose sizes differ by at most one.

    at_least: the minimum number of rows in a minibatch. If there are too few rows for ``num_minibatches`` of this size,
    the rows are split into fewer minibatches; fewer than twice ``at_least`` rows are not split.
    """
    return rows.tensor_split(max(1, min(num_minibatches, len(rows) // at_least)))


def shuffled(
    columns: Sequence[torch.Tensor],
    num_minibatches: int,
    generator: torch.Generator,
    shape: tuple[int, int] | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """Return ``num_minibatches`` minibatches of rows in random order; each has its rows of every column.

    The number of minibatches does not depend on the rows, since processes that train together need as many. columns:
    (rows, …), on the generator's device. shape: (steps, envs), to keep all rows of an environment in one minibatch;
    rows are then those of steps, environments and agents, in this order. The sizes of minibatches differ by a row, or
    by an environment's rows, at most.
    """
    if shape is None:
        order = torch.randperm(len(columns[0]), generator=generator, device=generator.device)
        parts = [column[order].tensor_split(num_minibatches) for column in columns]
        return list(zip(*parts, strict=True))
    order = torch.randperm(shape[1], generator=generator, device=generator.device)
    by_env = [column.unflatten(0, (*shape, -1)).transpose(0, 1).index_select(0, order) for column in columns]
    chunks = [[part.flatten(0, 2) for part in column.tensor_split(num_minibatches)] for column in by_env]
    return list(zip(*chunks, strict=True))


def require_shuffled(config: Any, rows: Sequence[int]) -> None:
    """Raise PlanError if a rollout has too many rows to shuffle on the GPU.

    rows: for each team, the number of rows. torch.randperm indexes rows with a signed 32-bit int, which limits the rows
    of any one team. It also draws a random number per row in every epoch, and in a CUDA graph torch counts the draws in
    an unsigned 32-bit int, which limits epochs times rows over all teams. If ``minibatch_units`` is "environments",
    the same holds for these.
    """
    if getattr(config, "minibatch_units", "rows") == "environments":
        rows = [config.num_envs] * len(rows)
    num_epochs = getattr(config, "num_epochs", 0)
    if torch.device(config.device).type != "cuda" or num_epochs == 0:
        return
    num_drawn = num_epochs * sum(rows) if config.graphs else 0
    if max(rows) <= MOST_SHUFFLED and num_drawn <= MOST_DRAWN:
        return
    message = f"a rollout has {max(rows):,} rows of a team, and {MOST_SHUFFLED:,} can be shuffled"
    if num_drawn > MOST_DRAWN:
        message = (
            f"num_epochs={num_epochs} of {sum(rows):,} rows draw more random numbers than a graph's {MOST_DRAWN:,}"
        )
    raise PlanError(f"{message}; use fewer num_envs, or a shorter rollout_length")
