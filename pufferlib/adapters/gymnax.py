"""gymnax environments for a VecEnv, which treats a vector of copies as one environment with one row per copy.

    make_env = functools.partial(pufferlib.adapters.gymnax.Copies, "CartPole-v1", num_envs=256)
    vec = pufferlib.make(make_env)

JAX steps all copies in one compiled call. Environments with gymnax's interface from before 1.0, such as Craftax, are
supported as well. For details, see docs/adapters.md.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pufferlib.adapters.common import needs
from pufferlib.environments._functional import ends, space_of
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.plan import checked_mode

with needs("JAX", "gymnax"):
    import jax
    import jax.numpy as jnp

__all__ = ["Copies"]


MODES = {"next_step": "NextStep", "same_step": "SameStep"}


class Copies:
    """A vector of copies of a gymnax environment, with the interface of Gymnasium's vector environments.

    name: a gymnax id, or an environment object with gymnax's interface, such as Craftax's. params: the environment's
    parameters, by default its default_params. autoreset_mode: "next_step" or, as in gymnax itself, "same_step". In mode
    "same_step", the infos of steps that end episodes have ``final_obs`` and its mask. env_kwargs: further arguments of
    ``gymnax.make``, if name is an id. If no ``reset`` has received a seed, a random one is used. Raises PlanError for
    another mode, SpaceError for spaces that are neither Box nor Discrete.
    """

    render_mode: str | None = None
    spec: object = None

    def __init__(
        self,
        name: Any,
        num_envs: int,
        params: object = None,
        autoreset_mode: object = "next_step",
        **env_kwargs: object,
    ) -> None:
        autoreset_mode = checked_mode(autoreset_mode, MODES)
        if isinstance(name, str):
            with needs("gymnax", "gymnax"):
                import gymnax
            env, default = gymnax.make(name, **env_kwargs)
        else:
            env, default = name, name.default_params
        params = default if params is None else params
        self.env, self.params, self.num_envs = env, params, num_envs
        self.metadata = {"autoreset_mode": MODES[autoreset_mode], "render_modes": []}
        key = jax.random.key(0)
        observation, _ = jax.eval_shape(env.reset, key, params)
        self.single_observation_space = space_of(env.observation_space(params), getattr(observation, "dtype", None))
        self.single_action_space = space_of(env.action_space(params))
        self._reset = jax.jit(jax.vmap(env.reset, (0, None)))
        self._step = jax.jit(self._play)
        self._waits = autoreset_mode == "next_step"
        self._split = jax.jit(lambda key: tuple(jax.random.split(key)))
        self._key: jax.Array | None = None
        self._states: object = None

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Array, dict[str, Any]]:
        """Start new episodes in all copies and return (observations, infos).

        seed: by default, the sequence of random numbers continues. options: ignored.
        """
        if seed is not None or self._key is None:
            drawn = np.random.SeedSequence().generate_state(1)[0] if seed is None else seed
            self._key = jax.random.key(int(drawn))
        observations, self._states = self._reset(self._keys(), self.params)
        self._due, self._firsts = np.zeros(self.num_envs, np.bool_), observations
        return np.asarray(observations), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Play one step and return (observations, rewards, terminations, truncations, infos).

        actions: (num_envs, …).
        """
        keys = self._keys()
        self._states, results = self._step(keys, self._states, actions, self.params, self._due, self._firsts)
        observations, firsts, finals, rewards, terminations, truncations = results
        terminations, truncations = np.asarray(terminations), np.asarray(truncations)
        ended = terminations | truncations
        infos: dict[str, Any] = {}
        if self._waits:
            self._due, self._firsts = ended, firsts
        elif ended.any():
            observations, infos = firsts, {"final_obs": np.asarray(finals), "_final_obs": ended}
        return np.asarray(observations), np.asarray(rewards, np.float64), terminations, truncations, infos

    def _play(
        self,
        keys: jax.Array,
        old_states: object,
        actions: jax.Array,
        params: object,
        due: jax.Array,
        firsts: jax.Array,
    ) -> tuple[Any, Any]:
        """Play one step in all copies, and start the next episode where one ends; return (states, results).

        due: (num_envs,) bool, the copies whose episodes ended in the previous step. These copies ignore their actions
        and keep their states, which are already those of the new episodes. Their observations are those in the argument
        ``firsts``, and their rewards are 0.

        The results are (observations, firsts, finals, rewards, terminations, truncations), each (num_envs, …). Where an
        episode ends, observations and finals are its last observation, and firsts is the first of the next episode.
        """
        keys = jax.vmap(jax.random.split)(keys)
        step = jax.vmap(self.env.step_env, (0, 0, 0, None))
        finals, states, rewards, done, _ = step(keys[:, 0], old_states, actions, params)
        flags = jax.vmap(functools.partial(ends, self.env), (0, 0, None))(states, done, params)
        terminated, truncated = (flag & ~due for flag in flags)
        ended = terminated | truncated
        # Resets are expensive; run them only if an episode ends.
        stay = (finals, states)
        starts, fresh = jax.lax.cond(ended.any(), lambda: self._new(keys[:, 1], params, stay), lambda: stay)
        states = jax.tree.map(functools.partial(_chosen, ended), fresh, states)
        states = jax.tree.map(functools.partial(_chosen, due), old_states, states)
        observations = _chosen(due, firsts, finals)
        firsts = _chosen(ended, starts, observations)
        return states, (observations, firsts, finals, rewards * ~due, terminated, truncated)

    def _new(self, keys: jax.Array, params: object, old: object) -> Any:
        """Start new episodes in all copies; return (observations, states), with the dtypes of the pair ``old``."""
        fresh = jax.vmap(self.env.reset_env, (0, None))(keys, params)
        return jax.tree.map(lambda new, old: new if new.dtype == old.dtype else new.astype(old.dtype), fresh, old)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _keys(self) -> jax.Array:
        self._key, key = self._split(self._key)
        return jax.random.split(key, self.num_envs)


def _chosen(flags: jax.Array, these: jax.Array, those: jax.Array) -> jax.Array:
    """Return ``these`` where flags (copies,) is True and ``those`` elsewhere; both are (copies, …)."""
    return jnp.where(flags.reshape(-1, *[1] * (these.ndim - 1)), these, those)
