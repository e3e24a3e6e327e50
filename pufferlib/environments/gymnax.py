"""gymnax: classic control, bsuite, MinAtar and others, written in JAX."""

from __future__ import annotations

import dataclasses
from typing import Any

from pufferlib.environments import Example, Family, member
from pufferlib.environments._functional import Functional, functions_of, load, shared, space_of

NAMES = (
    *("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    *(f"{game}-MinAtar" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
    *(f"{task}-bsuite" for task in ("Catch", "DeepSea", "DiscountingChain", "SimpleBandit", "UmbrellaChain")),
    *("BernoulliBandit-misc", "FourRooms-misc", "FrozenLake-misc", "MetaMaze-misc", "PointRobot-misc", "Pong-misc"),
    *("Reacher-misc", "Swimmer-misc"),
)  # MNISTBandit downloads its digits; MemoryChain and GaussianBandit show what their spaces do not have
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
def _parts(name: str, items: tuple[tuple[str, Any], ...] = ()) -> Any:
    """Return gymnax's environment, its parameters, and its functions as all that are made alike share them."""
    env, params = load("gymnax").make(name, **dict(items))
    return env, params, functions_of(env)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return one copy of an environment; many in one call: ``pufferlib.adapters.gymnax``.

    kwargs: of its parameters, such as ``max_steps_in_episode``, after which it is truncated, and of its class.
    """
    known = member(FAMILY, name)
    fields = {each.name for each in dataclasses.fields(_parts(known)[1])}
    env, params, functions = _parts(known, tuple(sorted((key, kwargs[key]) for key in kwargs if key not in fields)))
    params = dataclasses.replace(params, **{key: kwargs[key] for key in kwargs if key in fields})
    jax = load("jax")
    shown, _ = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    observed = space_of(env.observation_space(params), getattr(shown, "dtype", None))
    return Functional(functions, observed, space_of(env.action_space(params)), params)
