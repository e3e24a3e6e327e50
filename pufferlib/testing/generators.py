"""Detect draws from the global random generators, which environments must not use."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

__all__ = ["drawn_from", "generator_states"]


def generator_states() -> dict[str, Any]:
    """Return the states of the global generators, keyed by name; include torch's only if torch has been imported."""
    states: dict[str, Any] = {"random": random.getstate()}
    legacy: Any = np.random.get_state()
    states["numpy.random"] = (legacy[1].tobytes(), *legacy[2:])
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def drawn_from(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Return the names of the generators whose state changed between two calls of ``generator_states``."""
    return {name for name, state in before.items() if after[name] != state}
