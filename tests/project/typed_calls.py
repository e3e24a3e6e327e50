"""Calls that mypy must accept, and calls that it must refuse.

mypy reads this file with the others, and nothing runs it. A call that is refused has an ignored error; strict mypy
reports it if the error is gone. pufferlib/util/parameters.py explains how the parameters are declared.
"""

from __future__ import annotations

import gymnasium
import torch

import pufferlib
from pufferlib.adapters import dm_env, gymnasium_vector, sb3, torchrl
from pufferlib.emulation import RowEnv, emulate
from pufferlib.util.parameters import Unpack
from pufferlib.vectorization import CUDA, Pool, VecEnv
from pufferlib.vectorization.core.parameters import MakeParameters


def agent_type(agent: object) -> str:
    return str(agent)


def make_forwarded(**kwargs: Unpack[MakeParameters]) -> VecEnv:
    return pufferlib.make("ocean/squared", **kwargs)


def calls_of_make() -> None:
    vec: VecEnv = pufferlib.make(
        ["ocean/squared", lambda: gymnasium.make("CartPole-v1")],
        backend="pool",
        num_envs=2,
        env_args=(3,),
        env_kwargs=[{"length": 3}, {}],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        device=torch.device("cpu"),
        max_restarts=None,
        step_timeout=3,
        backend_kwargs={"spin": 0},
    )
    vec.close()
    pufferlib.make("ocean/squared", num_env=2)  # type: ignore[call-arg]
    pufferlib.make("ocean/squared", max_length=2)  # type: ignore[call-arg]
    pufferlib.make("ocean/squared", num_envs="2")  # type: ignore[arg-type]
    pufferlib.make("ocean/squared", backend=Pool)  # type: ignore[arg-type]
    pufferlib.make("ocean/squared", env_kwargs=3)  # type: ignore[arg-type]
    pufferlib.make(num_envs=2)  # type: ignore[call-arg]
    pufferlib.make(3)  # type: ignore[arg-type]


def calls_that_forward_to_make() -> None:
    make_forwarded(backend="serial", copy=True)
    CUDA("tag/grid", num_envs=2, device="host")
    CUDA("tag/grid", backend="cuda")  # type: ignore[call-arg]
    CUDA("tag/grid", num_envs="2")  # type: ignore[arg-type]
    sb3.make("ocean/squared", num_envs=2, agents="rows")
    sb3.make("ocean/squared", num_env=2)  # type: ignore[call-arg]
    sb3.make("ocean/squared", num_envs="2")  # type: ignore[arg-type]
    torchrl.make("ocean/squared", one_hot=True, agents="rows", seed=1)
    torchrl.make("ocean/squared", agents=2)  # type: ignore[arg-type]
    gymnasium_vector.make("ocean/squared", seed="1")  # type: ignore[arg-type]
    dm_env.make("ocean/squared", seed=1)
    dm_env.make("ocean/squared", agents="rows")  # type: ignore[call-arg]


def calls_of_wrap(env: object) -> None:
    pufferlib.wrap(env, max_length=3, bounds={"a.b": {"max_length": 4}}, agent_type=agent_type, check="always")
    rows: RowEnv = emulate(env, max_agents=3, observation_space=gymnasium.spaces.Discrete(3), state=True)
    rows.close()
    pufferlib.wrap(env, max_len=3)  # type: ignore[call-arg]
    pufferlib.wrap(env, num_envs=3)  # type: ignore[call-arg]
    pufferlib.wrap(env, max_length="3")  # type: ignore[arg-type]
    pufferlib.wrap(env, check="never")  # type: ignore[arg-type]
    emulate(env, max_agent=3)  # type: ignore[call-arg]
    emulate(env, state="yes")  # type: ignore[arg-type]
