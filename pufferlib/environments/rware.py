"""RWARE, robots in a warehouse: Gymnasium environments whose Tuple spaces have one element per robot."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.environments._tuple_agents import TupleAgents
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("rware-*",),
    description="robots in a warehouse, agents in a Tuple",
    package="rware",
    extra="rware",
    examples=(Example("rware-tiny-2ag-v2", {"max_steps": 50}),),
)


def env_creator(
    name: str = FAMILY.examples[0].name, agents: bool = False, **kwargs: object
) -> GymnasiumEnv | TupleAgents:
    """Make one of the package's environments, unchanged. kwargs: arguments of ``gymnasium.make``.

    agents: whether each robot is an agent of its own, with its own rewards. If not, one agent plays all of them with
    Tuples, and gets the sum of the rewards.
    """
    env = from_gymnasium(FAMILY, name, **kwargs)
    return TupleAgents(env) if agents else env
