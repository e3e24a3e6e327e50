"""All mutants by name, and functions that put one into this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pufferlib.errors import PlanError

from . import actions, checked, memories, replays, rewards
from .edits import mutated
from .mutant import Mutant

__all__ = ["MUTANTS", "infect", "infected"]

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for module in (rewards, actions, memories, checked, replays) for mutant in module.MUTANTS
}


def infect(name: str) -> None:
    """Put a mutant into this process, for good.

    Raises PlanError for an unknown name, LookupError for a mutant whose edits no longer fit.
    """
    if name not in MUTANTS:
        raise PlanError(f"mutant={name!r} is unknown; there are {', '.join(MUTANTS)}")
    for function, code in mutated(MUTANTS[name].edits):
        function.__code__ = code


@contextlib.contextmanager
def infected(name: str) -> Iterator[None]:
    """Put a mutant into this process until the context ends."""
    healthy = [(function, function.__code__) for function, _ in mutated(MUTANTS[name].edits)]
    infect(name)
    try:
        yield
    finally:
        for function, code in healthy:
            function.__code__ = code
