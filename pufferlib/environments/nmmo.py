"""Neural MMO 2: 128 agents that gather, trade and fight."""

from __future__ import annotations

import importlib

from pufferlib.environments import Example, Family, member

FAMILY = Family(
    names=("nmmo/*",),
    description="128 agents that gather, trade and fight (Python 3.10)",
    package="nmmo",
    extra="nmmo",
    examples=(Example("nmmo/default", {"HORIZON": 40}),),
    members=("nmmo/default",),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> object:
    """Make a Neural MMO environment. kwargs: new values for the upper-case attributes of ``nmmo.config.Default``."""
    member(FAMILY, name)
    nmmo, config = importlib.import_module("nmmo"), importlib.import_module("nmmo.core.config")
    return nmmo.Env(type("Config", (config.Default,), kwargs)())
