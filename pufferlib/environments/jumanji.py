"""Jumanji: games, packing and routing problems in JAX, with action masks."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, member
from pufferlib.environments._functional import Compiled, Functional, Functions, compiled, load, shared

NAMES = (
    *("BinPack-v2", "CVRP-v1", "Cleaner-v0", "Connector-v3", "FlatPack-v0", "Game2048-v1", "GraphColoring-v1"),
    *("JobShop-v0", "Knapsack-v1", "LevelBasedForaging-v0", "MMST-v0", "Maze-v0", "Minesweeper-v0", "MultiCVRP-v0"),
    *("PacMan-v1", "RobotWarehouse-v0", "RubiksCube-partly-scrambled-v0", "RubiksCube-v0", "SearchAndRescue-v0"),
    *("SlidingTilePuzzle-v0", "Snake-v1", "Sudoku-v0", "Sudoku-very-easy-v0", "TSP-v1", "Tetris-v0"),
)  # Sokoban downloads its levels
FAMILY = Family(
    names=("jumanji/*",),
    description="games, packing and routing in JAX, with action masks",
    package="jumanji",
    extra="jumanji",
    examples=(Example("jumanji/Snake-v1"), Example("jumanji/Tetris-v0"), Example("jumanji/LevelBasedForaging-v0")),
    members=tuple(f"jumanji/{name}" for name in NAMES),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> Functional:
    """Make an environment. kwargs: arguments of its class in Jumanji, such as ``time_limit``.

    An observation is a dict. Its "action_mask", if Jumanji provides one, is 1-D int8, with one element per choice. If
    Jumanji's mask has an element for each combination of several numbers, an action is a single number: the index of
    the combination, as in NumPy's ``unravel_index``. The reward is the sum over all agents; if there are several
    agents, ``infos["rewards"]`` has the reward of each.
    """
    functions, observed, acted = _parts(member(FAMILY, name), tuple(sorted(kwargs.items())))
    return Functional(functions, *copy.deepcopy((observed, acted)))


@shared
def _parts(name: str, items: tuple[tuple[str, object], ...]) -> tuple[Compiled, spaces.Space[Any], spaces.Space[Any]]:
    """Return an environment's compiled functions, observation space and action space.

    Calls with equal arguments share the result.
    """
    jumanji, specs, jnp = load("jumanji"), load("jumanji.specs"), load("jax.numpy")
    env = jumanji.make(name, **dict(items))
    observed = specs.jumanji_specs_to_gym_spaces(env.observation_spec)
    acted = specs.jumanji_specs_to_gym_spaces(env.action_spec)
    if "position" in observed.spaces and name.startswith("TSP-"):  # the position is -1 before the first city
        observed["position"] = spaces.Discrete(int(observed["position"].n) + 1, start=-1)
    sizes: tuple[int, ...] | None = None  # of an action whose combinations are masked
    masked = observed.spaces.get("action_mask")
    if masked is not None:
        num_choices = int(np.prod(masked.shape))
        observed["action_mask"] = spaces.MultiBinary(num_choices)
        if isinstance(acted, spaces.Box):  # MultiCVRP's, of integers; its bound is one too high
            acted = spaces.MultiDiscrete(np.full(*masked.shape))
        elif isinstance(acted, spaces.MultiDiscrete) and masked.shape == tuple(acted.nvec):
            acted, sizes = spaces.Discrete(num_choices), masked.shape

    def converted(timestep: Any) -> tuple[Any, dict[str, Any]]:
        observation = _tree(timestep.observation)
        if masked is not None:
            observation["action_mask"] = observation["action_mask"].reshape(-1).astype(jnp.int8)
        return observation, dict(timestep.extras)

    def reset(key: object, params: object) -> tuple[Any, ...]:
        state, timestep = env.reset(key)
        return state, *converted(timestep)

    def step(key: object, state: object, action: object, params: object) -> tuple[Any, ...]:
        if sizes is not None:
            action = jnp.stack(jnp.unravel_index(action, sizes))
        state, timestep = env.step(state, action)
        observation, infos = converted(timestep)
        over = timestep.last()
        lasting = jnp.any(timestep.discount > 0)  # of all agents
        if timestep.reward.ndim:
            infos["rewards"] = timestep.reward
        return state, observation, jnp.sum(timestep.reward), over & ~lasting, over & lasting, infos

    return compiled(Functions(reset, step)), observed, acted


def _tree(observation: Any) -> Any:
    """Convert a Jumanji observation to nested dicts."""
    if hasattr(observation, "_asdict"):
        fields = observation._asdict()
    elif dataclasses.is_dataclass(observation):
        fields = vars(observation)
    else:
        return observation
    return {key: _tree(value) for key, value in fields.items()}
