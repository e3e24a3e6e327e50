"""EnvPool's environments as a source: its threads step many copies in one call, as the rows of one environment.

    make_env = functools.partial(pufferlib.adapters.envpool.copies, "CartPole-v1", num_envs=64)
    vec = pufferlib.make(make_env)

docs/adapters.md lists the differences.
"""

from __future__ import annotations

import numpy as np

from pufferlib.adapters.common import needs

with needs("EnvPool", "envpool"):
    import envpool

__all__ = ["copies"]

SEEDS = 2**31  # EnvPool's are a C int


def copies(name: str, num_envs: int, seed: int | None = None, env_index: int = 0, **kwargs: object) -> object:
    """Return a vector environment of num_envs copies of one of EnvPool's environments, made by ``envpool.make``.

    seed: EnvPool takes it here, not in a reset. Copy i of environment k gets seed + k * num_envs + i, so that no two
    copies play the same episode. None draws one. kwargs: for ``envpool.make``.
    """
    first = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    first = (first + env_index * num_envs) % (SEEDS - num_envs)
    return envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=first, **kwargs)
