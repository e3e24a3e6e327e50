"""Doom, seen from within."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_gymnasium

FAMILY = Family(
    names=("Vizdoom*",),
    description="Doom, seen from within",
    package="vizdoom",
    extra="vizdoom",
    examples=(Example("VizdoomBasic-v1", slow=True),),
    registers="vizdoom.gymnasium_wrapper",
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return an environment as its package has it."""
    return from_gymnasium(FAMILY, name, **kwargs)
