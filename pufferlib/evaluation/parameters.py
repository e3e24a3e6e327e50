"""The parameters of the statistics of results. The docstring of ``Episodes.mean`` explains them."""

# Without `from __future__ import annotations`: see pufferlib/util/parameters.py.

from typing import Annotated, TypedDict

__all__ = ["BootstrapParameters"]


class BootstrapParameters(TypedDict, total=False):
    """The parameters of a statistic's interval."""

    confidence: Annotated[float, 0.95]
    num_resamples: Annotated[int, 2000]
    seed: Annotated[int, 0]
