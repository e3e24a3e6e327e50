"""gymnax's environments as a source: many copies, compiled by JAX into one call, are one environment of as many rows.

    make_env = functools.partial(pufferlib.adapters.gymnax.Copies, "CartPole-v1", num_envs=256)
    vec = pufferlib.make(make_env)

docs/adapters.md says what differs.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np

from pufferlib.adapters.seam import needs
from pufferlib.errors import PlanError, SpaceError

with needs("gymnax", "gymnax"):
    import gymnax
    import jax
    import jax.numpy as jnp

__all__ = ["Copies"]

Array = np.ndarray[Any, Any]

MODES = {"next_step": "NextStep", "same_step": "SameStep"}


class Copies:
    """Copies of a gymnax environment, as a vector environment of Gymnasium's kind.

    name: gymnax's id, or an environment object of gymnax's kind. params: its parameters, by default its own.
    autoreset_mode: "next_step", or "same_step", as gymnax itself has it; then infos have ``final_obs`` and its mask.
    env_kwargs: for its constructor. Where no seed was ever given to ``reset``, one is drawn. Raises PlanError for
    another mode, SpaceError for spaces that are neither Box nor Discrete.
    """

    render_mode: str | None = None
    spec: Any = None

    def __init__(
        self, name: Any, num_envs: int, params: Any = None, autoreset_mode: str = "next_step", **env_kwargs: Any
    ) -> None:
        if autoreset_mode not in MODES:
            raise PlanError(f"autoreset_mode={autoreset_mode!r} is not one of {', '.join(map(repr, MODES))}")
        if isinstance(name, str):
            env, default = gymnax.make(name, **env_kwargs)
        else:
            env, default = name, name.default_params
        params = default if params is None else params
        self.env, self.params, self.num_envs = env, params, num_envs
        self.metadata = {"autoreset_mode": MODES[autoreset_mode], "render_modes": []}
        key = jax.random.key(0)
        shown, _ = jax.eval_shape(env.reset, key, params)
        self.single_observation_space = _space(env.observation_space(params), getattr(shown, "dtype", None))
        self.single_action_space = _space(env.action_space(params), None)
        self._reset = jax.jit(jax.vmap(env.reset, (0, None)))
        self._step = jax.jit(jax.vmap(self._play, (0, 0, 0, None, 0, 0)))
        self._waits = autoreset_mode == "next_step"
        self._split = jax.jit(lambda key: tuple(jax.random.split(key)))
        self._key: Any = None
        self._states: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Return (observations, infos) of new episodes of all copies."""
        if seed is not None or self._key is None:
            drawn = np.random.SeedSequence().generate_state(1)[0] if seed is None else seed
            self._key = jax.random.key(int(drawn))
        observations, self._states = self._reset(self._keys(), self.params)
        self._due, self._firsts = np.zeros(self.num_envs, np.bool_), observations
        return np.asarray(observations), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Return (observations, rewards, terminations, truncations, infos). actions: (num_envs, …)."""
        keys = self._keys()
        self._states, told = self._step(keys, self._states, actions, self.params, self._due, self._firsts)
        observations, firsts, finals, rewards, terminations, truncations = told
        terminations, truncations = np.asarray(terminations), np.asarray(truncations)
        ended = terminations | truncations
        infos: dict[str, Any] = {}
        if self._waits:
            self._due, self._firsts = ended, firsts
        elif ended.any():
            observations, infos = firsts, {"final_obs": np.asarray(finals), "_final_obs": ended}
        return np.asarray(observations), np.asarray(rewards, np.float64), terminations, truncations, infos

    def _play(self, key: Any, held: Any, action: Any, params: Any, due: Any, first: Any) -> tuple[Any, tuple[Any, ...]]:
        """Step one copy; one that is due shows its first observation instead, and stays in the state it has."""
        firsts, state, reward, terminated, truncated, told = self.env.step(key, held, action, params)
        state = jax.tree.map(functools.partial(jnp.where, due), held, state)
        terminated = jnp.asarray(terminated, bool) & ~due
        truncated = jnp.asarray(truncated, bool) & ~due & ~terminated
        final = told["final_observation"]
        return state, (jnp.where(due, first, final), firsts, final, reward * ~due, terminated, truncated)

    def close(self) -> None:
        """Nothing is open."""

    def _keys(self) -> Any:
        self._key, key = self._split(self._key)
        return jax.random.split(key, self.num_envs)


def _space(space: Any, dtype: Any) -> gymnasium.Space[Any]:
    kind = type(space).__name__
    if kind == "Discrete":
        return gymnasium.spaces.Discrete(int(space.n))
    if kind != "Box":
        raise SpaceError(f"{space} is of gymnax's kind {kind}; copies have rows of a Box or a Discrete only")
    shown = np.dtype(dtype or space.dtype)  # some say int32 and show float32
    low, high = (np.broadcast_to(np.asarray(bound), space.shape).astype(shown) for bound in (space.low, space.high))
    return gymnasium.spaces.Box(low, high, space.shape, shown.type)
