"""An environment for skrl that runs on pufferlib's workers.

    env = pufferlib.adapters.skrl.make("ocean/squared", num_envs=64, backend="multiprocessing")
    SequentialTrainer(env=env, agents=agent).train()

For details, see docs/adapters.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from pufferlib.adapters.common import (
    AdapterParameters,
    ends_of,
    make_for,
    needs,
    recv_arrays,
    require_rows,
    require_synchronous,
    reset_arrays,
)
from pufferlib.util.annotations import Array, EnvSource
from pufferlib.util.parameters import Unpack
from pufferlib.util.renamed import renamed_members
from pufferlib.vectorization import VecEnv

with needs("skrl", "skrl"):
    import torch
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.utils.spaces.torch import (
        flatten_tensorized_space,
        tensorize_space,
        unflatten_tensorized_space,
        untensorize_space,
    )

__all__ = ["SkrlVecEnv", "make"]

LIBRARY, MODE = "skrl", "same_step"


class SkrlVecEnv(Wrapper):
    """A skrl Wrapper backed by a VecEnv.

    vec: a synchronous VecEnv with one agent per environment and ``autoreset_mode="same_step"``. Observations are
    (num_envs, values), flattened by skrl; rewards (float32) and flags are (num_envs, 1). All are copies on skrl's
    device. If episodes ended in a step, its infos are {"episode": {"return": …, "length": …}}, with the means over
    these episodes as tensors, which skrl's trainers log; otherwise they are {}. ``reset`` starts episodes the first
    time and after ``seed``; otherwise it returns the current observations, because the environments reset themselves.
    An episode that ends in a crash is reported as terminated, not truncated, so that nothing is bootstrapped from it.

    Raises PlanError if vec is not synchronous or has another autoreset mode; SpaceError if it has several agents per
    environment or mixed discrete and continuous actions.
    """

    def __init__(self, vec: VecEnv) -> None:
        require_rows(LIBRARY, MODE, vec)
        require_synchronous(LIBRARY, vec)
        super().__init__(vec)
        self.vec = vec
        self._seed: int | None = None
        self._observations: torch.Tensor | None = None

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observation space of one environment."""
        space: gymnasium.Space[Any] = self.vec.observation_layout.space
        return space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one environment; for a Dict or Tuple, the space of the array that encodes an action."""
        return self.vec.single_action_space

    @property
    def num_agents(self) -> int:
        """The number of agents per environment, always 1."""
        return 1

    def seed(self, seed: int) -> None:
        """Set the seed with which the next ``reset`` starts new episodes."""
        self._seed, self._observations = seed, None

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Start new episodes if this is the first reset, or the first after ``seed``; return (observations, {}).

        Any other reset starts nothing and returns the current observations, because the environments reset themselves.
        """
        if self._observations is None:
            self._observations = self._tensors(reset_arrays(self.vec, self._seed)[0])
            self._seed = None
        return self._observations, {}

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Play one step and return (observations, rewards, terminations, truncations, infos).

        actions: (num_envs, values).
        """
        space = self.action_space
        sent = untensorize_space(space, unflatten_tensorized_space(space, actions), squeeze_batch_dimension=False)
        self.vec.send(sent.reshape(self.vec.num_envs, *(space.shape or ())))
        batch = recv_arrays(self.vec)
        terminations, truncations = ends_of(batch)
        self._observations = self._tensors(batch.observations)
        row_infos: Sequence[dict[str, Any]] = batch.infos
        ended = [info["episode"] for info in row_infos if "episode" in info]
        infos = {"return": _mean(ended, "r"), "length": _mean(ended, "l")}
        return (
            self._observations,
            self._column(batch.rewards),
            self._column(terminations),
            self._column(truncations),
            {"episode": infos} if ended else {},
        )

    def state(self) -> None:
        """Return None, because there is no separate state: critics receive the policy's observations."""
        return None

    def render(self, *args: object, **kwargs: Any) -> list[Any]:
        """Render each environment and return the results."""
        return self.vec.call("render", *args, **kwargs)

    def close(self) -> None:
        """Close all environments; safe to call again."""
        self.vec.close()

    def _tensors(self, rows: Array) -> torch.Tensor:
        nested = self.vec.observation_layout.unflatten(rows.copy())
        flat: torch.Tensor = flatten_tensorized_space(
            tensorize_space(self.observation_space, nested, device=self.device)
        )
        return flat

    def _column(self, values: Array) -> torch.Tensor:
        return torch.tensor(values, device=self.device).unsqueeze(-1)


def make(env: EnvSource, **kwargs: Unpack[AdapterParameters]) -> SkrlVecEnv:
    """Return ``pufferlib.make(env, …)`` as a SkrlVecEnv.

    Takes the arguments of ``pufferlib.make``, and those below. Raises the errors of ``pufferlib.make`` and
    SkrlVecEnv.

    agents: "rows" makes each agent of a PettingZoo environment a separate environment. The agents must have identical
        spaces, and their episodes must end together; otherwise SpaceError is raised.
    """
    return SkrlVecEnv(make_for(LIBRARY, MODE, env, kwargs))


def _mean(episodes: list[dict[str, Any]], key: str) -> torch.Tensor | None:
    return torch.tensor(np.mean([episode[key] for episode in episodes])) if episodes else None


__getattr__ = renamed_members(__name__, {"Face": "SkrlVecEnv"})
