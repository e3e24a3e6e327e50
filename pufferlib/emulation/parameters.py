"""The parameters of ``wrap`` and ``emulate``; the docstring of ``wrap`` explains them."""

# Without `from __future__ import annotations`: see pufferlib/util/parameters.py.

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypedDict

import gymnasium

__all__ = ["BOUNDS", "WrapParameters"]


class _BoundParameters(TypedDict, total=False):
    max_length: int | None
    max_nodes: int | None
    max_edges: int | None
    bounds: Mapping[str, Mapping[str, int]] | None


class WrapParameters(_BoundParameters, total=False):
    """The parameters of ``wrap`` and ``emulate``, apart from ``env``."""

    max_agents: int | None
    observation_space: gymnasium.Space[Any] | None
    action_space: gymnasium.Space[Any] | None
    action_mask: bool | None
    state: Annotated[bool, False]
    agent_type: Annotated[bool | Callable[[Any], str], False]
    check: Annotated[Literal["first", "always"], "first"]


BOUNDS = tuple(_BoundParameters.__annotations__)  # what ``observation_layout`` and ``action_layout`` take
