"""Level-based foraging: Gymnasium environments with several agents; their Tuple spaces have one element per agent."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.environments._tuple_agents import TupleAgents
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("Foraging-*",),
    description="level-based foraging, agents in a Tuple",
    package="lbforaging",
    extra="lbforaging",
    examples=(Example("Foraging-8x8-3p-3f-v3"),),
)


def env_creator(
    name: str = FAMILY.examples[0].name, agents: bool = False, **kwargs: object
) -> GymnasiumEnv | TupleAgents:
    """Make one of the environments of the package lbforaging, unchanged. kwargs: arguments of ``gymnasium.make``.

    agents: whether each player is an agent of its own, with its own rewards. If not, one agent plays all of them with
    Tuples, and gets the sum of the rewards.
    """
    env = from_gymnasium(FAMILY, name, **kwargs)
    return TupleAgents(env) if agents else env
