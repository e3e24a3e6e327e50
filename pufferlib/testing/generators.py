"""The generators that all code of a process shares, which environments must leave alone."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

__all__ = ["drawn_from", "generator_states"]


def generator_states() -> dict[str, Any]:
    """Return what the next draw of each global generator depends on, by its name; torch's only if it is loaded."""
    states: dict[str, Any] = {"random": random.getstate()}
    legacy: Any = np.random.get_state()
    states["numpy.random"] = (legacy[1].tobytes(), *legacy[2:])
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def drawn_from(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Return the names of the generators that have been drawn from, or seeded, in between."""
    return {name for name, state in before.items() if after[name] != state}
