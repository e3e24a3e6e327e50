"""What is written as functions of JAX, as an environment of Gymnasium's: one copy, stepped on the CPU.

JAX starts threads, beside which nothing can be forked, and takes most of a GPU for itself. So it is imported where an
environment is made; a worker process has it on the CPU alone, and in this one an environment's state lies there. Many
copies in one call, on whatever device there is: ``pufferlib.adapters.gymnax``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.errors import PlanError, SpaceError

__all__ = ["Compiled", "Functional", "Functions", "compiled", "ends", "functions_of", "load", "shared", "space_of"]


class Functions(NamedTuple):
    """What an environment is, as functions that JAX can compile; params: any tree that they ask for.

    reset(key, params) returns (state, observation, infos); step(key, state, action, params) returns (state,
    observation, reward, terminated, truncated, infos).
    """

    reset: Callable[..., Any]
    step: Callable[..., Any]


class Compiled(NamedTuple):
    """``Functions`` that take the key and return the next one before the rest, compiled when they are called first."""

    reset: Callable[..., Any]
    step: Callable[..., Any]

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self  # else copies of an environment, as a planner makes them, would each be compiled anew


def load(module: str) -> Any:
    """Import a module that imports JAX."""
    if multiprocessing.parent_process() is not None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # or each worker would claim most of a GPU's memory
    return importlib.import_module(module)


def shared(parts: Callable[..., Any]) -> Callable[..., Any]:
    """Have calls with the same arguments share what a function returns; where some have no hash, each has its own."""
    kept = functools.cache(parts)

    @functools.wraps(parts)
    def call(*arguments: Any) -> Any:
        try:
            hash(arguments)
        except TypeError:
            return parts(*arguments)
        return kept(*arguments)

    return call


def compiled(functions: Functions) -> Compiled:
    """Return what environments share that are alike: compiling takes longer than thousands of steps."""
    jax = load("jax")

    def reset(key: Any, params: Any) -> Any:
        key, now = jax.random.split(key)
        return (key, *functions.reset(now, params))

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        key, now = jax.random.split(key)
        return (key, *functions.step(now, state, action, params))

    return Compiled(jax.jit(reset), jax.jit(step))


class Functional(gymnasium.Env[Any, Any]):
    """An environment whose state JAX holds, and whose observations and infos are NumPy's and Python's.

    Its chance follows from the seed of ``reset``, also in the episodes after it. A deep copy goes on by itself, and is
    cheap. last_infos: whether infos are told where an episode ends only. picture: returns an image of a state, uint8,
    where it can be drawn; it is, on request, with the render mode "rgb_array". Raises PlanError for another mode.
    """

    def __init__(
        self,
        functions: Compiled,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        params: Any = None,
        last_infos: bool = False,
        render_mode: str | None = None,
        picture: Callable[[Any], Any] | None = None,
    ) -> None:
        modes = ["rgb_array"] if picture is not None else []
        if render_mode is not None and render_mode not in modes:
            raise PlanError(f"render_mode={render_mode!r} is not one of {modes}; use one of these or None")
        self.metadata = {"render_modes": modes}
        self.render_mode = render_mode
        self.observation_space, self.action_space = observation_space, action_space
        self._functions, self._params, self._last_infos, self._picture = functions, params, last_infos, picture
        self._key: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            jax = load("jax")
            cpu = jax.local_devices(backend="cpu")[0]
            with jax.default_device(cpu):  # where the key lies is computed all that follows from it
                self._key = jax.device_put(jax.random.key(int(self.np_random.integers(1 << 31))), cpu)
        self._key, self._state, *told = self._functions.reset(self._key, self._params)
        observation, infos = load("jax").device_get(told)
        return _fitted(self.observation_space, observation), {} if self._last_infos else _plain(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._key, self._state, *told = self._functions.step(self._key, self._state, action, self._params)
        observation, reward, terminated, truncated, infos = load("jax").device_get(told)
        over = bool(terminated or truncated)
        infos = _plain(infos) if over or not self._last_infos else {}
        return (
            _fitted(self.observation_space, observation),
            float(reward),
            bool(terminated),
            bool(truncated),
            infos,
        )

    def render(self) -> Any:
        if self._picture is None or self.render_mode is None:
            return None
        return np.asarray(self._picture(self._state))


def _fitted(space: Any, value: Any) -> Any:
    """Return an observation in the form of its space: a Dict's parts by name, a Discrete's as an integer."""
    if isinstance(space, spaces.Dict):
        return {key: _fitted(part, value[key]) for key, part in space.spaces.items()}
    return np.int64(value) if isinstance(space, spaces.Discrete) else np.asarray(value, space.dtype)


def _plain(value: Any) -> Any:
    """Return infos with numbers as Python has them."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value if np.ndim(value) else np.asarray(value).item()


# ------------------------------------------------------------------------------------------ what is of gymnax's kind


LIMITS = ("max_timesteps", "max_steps_in_episode")  # as Craftax calls it, and as gymnax does


def space_of(space: Any, dtype: Any = None) -> gymnasium.Space[Any]:
    """Return a space of gymnax's kind as Gymnasium's; dtype: of what is shown. Raises SpaceError for other kinds."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind != "Box":
        raise SpaceError(f"{space} is of gymnax's kind {kind}; copies have rows of a Box or a Discrete only")
    shown = np.dtype(dtype or space.dtype)  # some say int32 and show float32
    low, high = (np.broadcast_to(np.asarray(bound), space.shape).astype(shown) for bound in (space.low, space.high))
    return spaces.Box(low, high, space.shape, shown.type)


def functions_of(env: Any) -> Compiled:
    """Return the functions of an environment object of gymnax's kind, compiled."""

    def reset(key: Any, params: Any) -> Any:
        observation, state = env.reset_env(key, params)
        return state, observation, {}

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        observation, state, reward, done, infos = env.step_env(key, state, action, params)
        infos = {name: infos[name] for name in infos if name != "discount"}  # whether it has terminated
        return state, observation, reward, *ends(env, state, done, params), infos

    return compiled(Functions(reset, step))


def ends(env: Any, state: Any, done: Any, params: Any) -> tuple[Any, Any]:
    """Return (terminated, truncated) of a step that told the one, or, as before gymnax 1.0, an end of either kind.

    Such an end is a truncation if without a limit of time there would have been none. The limit is one of the
    parameters in ``LIMITS``; where there is none of these, every end terminates.
    """
    if hasattr(env, "is_truncated"):
        return done, env.is_truncated(state, params) & ~done
    limits = {name: np.iinfo(np.int32).max for name in LIMITS if hasattr(params, name)}
    terminal = env.is_terminal(state, dataclasses.replace(params, **limits)) if limits else done
    return done & terminal, done & ~terminal
