"""gymnax: classic control, bsuite, MinAtar and other environments in JAX."""

from __future__ import annotations

import dataclasses
from typing import Any

from pufferlib.environments import Example, Family, member
from pufferlib.environments._functional import Compiled, Functional, functions_of, load, shared, space_of

NAMES = (
    *("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    *(f"{game}-MinAtar" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
    *(f"{task}-bsuite" for task in ("Catch", "DeepSea", "DiscountingChain", "SimpleBandit", "UmbrellaChain")),
    *("BernoulliBandit-misc", "FourRooms-misc", "FrozenLake-misc", "MetaMaze-misc", "PointRobot-misc", "Pong-misc"),
    *("Reacher-misc", "Swimmer-misc"),
)  # MNISTBandit downloads its digits; MemoryChain and GaussianBandit return values outside their spaces
FAMILY = Family(
    names=("gymnax/*",),
    description="classic control, bsuite, MinAtar and others, in JAX",
    package="gymnax",
    extra="gymnax",
    examples=(
        Example("gymnax/CartPole-v1"),
        Example("gymnax/Breakout-MinAtar"),
        Example("gymnax/Pendulum-v1", {"max_steps_in_episode": 50}),
    ),
    members=tuple(f"gymnax/{name}" for name in NAMES),
)


@shared
def _parts(name: str, items: tuple[tuple[str, Any], ...] = ()) -> tuple[Any, Any, Compiled]:
    """Return a gymnax environment, its default parameters and its compiled functions.

    items: arguments of the environment's class, as pairs. Calls with equal arguments share the result.
    """
    env, params = load("gymnax").make(name, **dict(items))
    return env, params, functions_of(env)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> Functional:
    """Make a single copy of an environment; ``pufferlib.adapters.gymnax`` steps many copies in one call.

    kwargs: arguments of the environment's class, or fields of its parameters, such as ``max_steps_in_episode``, the
    number of steps after which an episode is truncated.
    """
    game = member(FAMILY, name)
    fields = {field.name for field in dataclasses.fields(_parts(game)[1])}
    env, params, functions = _parts(game, tuple(sorted((key, kwargs[key]) for key in kwargs if key not in fields)))
    params = dataclasses.replace(params, **{key: kwargs[key] for key in kwargs if key in fields})
    jax = load("jax")
    observation, _ = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    observation_space = space_of(env.observation_space(params), getattr(observation, "dtype", None))
    return Functional(functions, observation_space, space_of(env.action_space(params)), params)
