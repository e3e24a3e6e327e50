"""Environments for RLlib: a ``vector_entry_point`` on pufferlib's workers, and a MultiAgentEnv for several agents.

    config = pufferlib.adapters.rllib.environment(PPOConfig(), "ocean/squared", num_envs=64, backend="multiprocessing")
    algorithm = config.build_algo()

For details, see docs/adapters.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from pufferlib.adapters.common import LeafRows, make_for, needs, require_rows
from pufferlib.adapters.gymnasium_rows import GymnasiumRowsVecEnv, Seeds
from pufferlib.emulation import wrap
from pufferlib.emulation.parameters import WrapParameters
from pufferlib.errors import PlanError, SpaceError
from pufferlib.registry import creator
from pufferlib.util.annotations import EnvSource, Function
from pufferlib.util.parameters import Unpack
from pufferlib.util.renamed import renamed_members
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.parameters import MakeParameters

with needs("RLlib", "rllib"):
    from ray.rllib.env.multi_agent_env import MultiAgentEnv
    from ray.tune.registry import register_env

__all__ = ["Agents", "RLlibVecEnv", "environment", "make"]

LIBRARY, MODE = "RLlib", "next_step"
_NUMBERS = itertools.count()


class RLlibVecEnv(GymnasiumRowsVecEnv):
    """A VectorEnv for RLlib backed by a VecEnv.

    vec: a synchronous VecEnv with one agent per environment and ``autoreset_mode="next_step"``. Observations, rewards
    and infos are the same as in GymnasiumRowsVecEnv, except that infos at an episode's end also have "env" and
    "episode". ``reset`` passes its seed to ``vec``, which derives the environments' seeds. If ``step`` raises
    WorkerError, RLlib recreates all environments. A vec with ``on_error="restart"`` replaces only the environments
    that failed, and ``step`` raises only after ``max_restarts`` restarts of an environment.

    Raises PlanError if vec is not synchronous or has another autoreset mode; SpaceError if it has several agents per
    environment or mixed discrete and continuous actions.
    """

    library = LIBRARY
    untold = ("env_id", "agent_id")

    def __init__(self, vec: VecEnv) -> None:
        require_rows(LIBRARY, MODE, vec)
        super().__init__(vec)

    def _seeds(self, seed: Seeds) -> Seeds:
        return seed


class Agents(MultiAgentEnv):
    """An RLlib MultiAgentEnv that wraps a PettingZoo environment or another multi-agent environment.

    env: a name, a creator, or an environment. Agents appear and disappear as in the environment. An observation of a
    Dict or Tuple space is a dict with one array per leaf, as in RLlibVecEnv; an action of such a space is one array, or
    a pair of arrays if it has both discrete and continuous parts. kwargs: arguments of ``wrap``. Raises SpaceError for
    an environment without ``possible_agents``, such as a Gymnasium environment, and the errors of ``wrap``.
    """

    def __init__(self, env: Any, **kwargs: Unpack[WrapParameters]) -> None:
        if isinstance(env, str) or callable(env):
            env = creator(env)()
        self.env = wrapped = wrap(env, **kwargs)
        possible = getattr(wrapped, "possible_agents", None)
        if not possible:
            raise SpaceError(
                f"{type(getattr(env, 'unwrapped', env)).__name__} has no possible_agents, whose spaces RLlib "
                "needs; use `environment` without `multi_agent` for one agent, else give it possible_agents"
            )
        super().__init__()
        self.possible_agents = list(possible)
        self.agents = list(possible)
        self._leaf_rows = {agent: LeafRows(wrapped.observation_layout(agent)) for agent in self.possible_agents}
        self.observation_spaces = {agent: leaf_rows.space for agent, leaf_rows in self._leaf_rows.items()}
        self.action_spaces = {agent: wrapped.action_space(agent) for agent in self.possible_agents}
        self.metadata = dict(wrapped.metadata)
        self.render_mode = wrapped.render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Start an episode and return (observations, infos), dicts with one entry per agent."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents = list(observations)
        return self._leaf_observations(observations), infos

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Play one step and return (observations, rewards, terminations, truncations, infos).

        All five are dicts with one entry per agent; terminations and truncations also have the key "__all__".
        """
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        self.agents = list(observations)  # RLlib includes agents that end in this step
        over = not self.env.agents
        cut = over and any(truncations.values())
        return (
            self._leaf_observations(observations),
            rewards,
            {**terminations, "__all__": over and not cut},
            {**truncations, "__all__": cut},
            infos,
        )

    def render(self) -> Any:
        """Render the environment and return the result."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _leaf_observations(self, observations: Mapping[Any, Any]) -> dict[Any, Any]:
        return {agent: self._leaf_rows[agent].of(row) for agent, row in observations.items()}


def make(env: EnvSource, **kwargs: Unpack[MakeParameters]) -> RLlibVecEnv:
    """Return ``pufferlib.make(env, …)`` as an RLlibVecEnv. Takes the arguments of ``make``.

    For use as the ``vector_entry_point`` of ``gymnasium.register``, bind env with functools.partial. Raises the errors
    of ``make`` and of RLlibVecEnv.
    """
    return RLlibVecEnv(make_for(LIBRARY, MODE, env, kwargs))


def environment(config: Any, env: Function | str, num_envs: int = 1, **kwargs: Any) -> Any:
    """Set the environment of an RLlib config and return the config.

    num_envs: the number of environments per env runner; each runner is a separate process. env, kwargs: the arguments
    of ``make``. If ``config.multi_agent(policies=…)`` was called before, env and kwargs are the arguments of ``Agents``
    instead, and RLlib steps the environments one after another.

    Raises PlanError if env is an environment rather than a name or a creator; if ``seed`` is given, because all runners
    would share it; and, for several agents, if kwargs has arguments that ``Agents`` does not take.
    """
    name = f"pufferlib-{next(_NUMBERS)}"
    if not (isinstance(env, str) or callable(env)):
        raise PlanError(f"env={env!r} is one environment, but RLlib makes several; pass a name or a creator")
    if "seed" in kwargs:
        raise PlanError(f"seed={kwargs['seed']!r} would be shared by all env runners; use config.debugging(seed=…)")
    if config.is_multi_agent:
        if foreign := sorted(kwargs.keys() - WrapParameters.__annotations__.keys()):
            raise PlanError(
                f"{', '.join(foreign)}: RLlib steps environments of several agents itself; leave that out, or bind an "
                "environment's own arguments with functools.partial"
            )
        register_env(name, lambda context: Agents(env, **kwargs))
        return config.environment(name).env_runners(num_envs_per_env_runner=num_envs)
    register_env(name, lambda context: make(env, num_envs=context["num_envs"], **kwargs))
    return config.environment(name).env_runners(
        num_envs_per_env_runner=num_envs, gym_env_vectorize_mode="vector_entry_point"
    )


__getattr__ = renamed_members(__name__, {"Face": "RLlibVecEnv"})
