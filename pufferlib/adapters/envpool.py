"""EnvPool environments in a VecEnv, where a vector of copies counts as one environment with a row per copy.

    make_env = functools.partial(pufferlib.adapters.envpool.copies, "CartPole-v1", num_envs=64)
    vec = pufferlib.make(make_env)

EnvPool's threads step all copies in one call. docs/adapters.md lists the differences.
"""

from __future__ import annotations

import numpy as np

from pufferlib.adapters.common import needs

with needs("EnvPool", "envpool"):
    import envpool

__all__ = ["copies"]

SEEDS = 2**31  # EnvPool's seeds are C ints


def copies(name: str, num_envs: int, seed: int | None = None, env_index: int = 0, **kwargs: object) -> object:
    """Return ``num_envs`` copies of an EnvPool environment as one vector environment, made by ``envpool.make``.

    seed: determines all episodes; random by default. EnvPool accepts a seed only here, not in a reset. Copy i of
    environment k (``env_index``) gets the seed ``seed + k * num_envs + i``, so that no two copies play the same
    episodes. Seeds beyond EnvPool's range wrap around. kwargs: further arguments of ``envpool.make``.
    """
    first = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    first = (first + env_index * num_envs) % (SEEDS - num_envs)
    return envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=first, **kwargs)
