"""Gymnasium environments whose reset and step are JAX functions that run on the CPU.

JAX starts threads, which make forking unsafe, and reserves most of a GPU's memory. It is therefore imported only when
an environment is made. In worker processes, JAX is restricted to the CPU by default; in the main process, only the
environments' state is kept on the CPU. To step many copies of an environment in one call, on any device, use
``pufferlib.adapters.gymnax``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Hashable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.errors import PlanError, SpaceError

__all__ = ["Compiled", "Functional", "Functions", "compiled", "ends", "functions_of", "load", "shared", "space_of"]


class Functions(NamedTuple):
    """An environment's reset and step as functions that JAX can compile. params: any pytree.

    reset(key, params) returns (state, observation, infos); step(key, state, action, params) returns (state,
    observation, reward, terminated, truncated, infos).
    """

    reset: Callable[..., Any]
    step: Callable[..., Any]


class Compiled(NamedTuple):
    """The compiled form of ``Functions``: each function also returns the next key, before its other values.

    JAX compiles a function when it is first called.
    """

    reset: Callable[..., Any]
    step: Callable[..., Any]

    def __deepcopy__(self, memo: object) -> Compiled:
        return self  # otherwise each copy of an environment, such as a planner's, would be compiled again


def load(module: str) -> ModuleType:
    """Import and return JAX, or a module that imports JAX.

    In a worker process, restricts JAX to the CPU first, unless JAX_PLATFORMS is set.
    """
    if multiprocessing.parent_process() is not None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # else each worker would claim most of a GPU's memory
    return importlib.import_module(module)


def shared(parts: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a function's results by its arguments. Calls with unhashable arguments are not cached."""
    cached = functools.cache(parts)

    @functools.wraps(parts)
    def call(*arguments: Hashable) -> object:
        try:
            hash(arguments)
        except TypeError:
            return parts(*arguments)
        return cached(*arguments)

    return call


def compiled(functions: Functions) -> Compiled:
    """Return the compiled form of an environment's functions.

    Environments with the same functions should share the result, because compilation takes longer than thousands of
    steps.
    """
    jax = load("jax")

    def reset(key: object, params: object) -> tuple[Any, ...]:
        key, now = jax.random.split(key)
        return (key, *functions.reset(now, params))

    def step(key: object, state: object, action: object, params: object) -> tuple[Any, ...]:
        key, now = jax.random.split(key)
        return (key, *functions.step(now, state, action, params))

    return Compiled(jax.jit(reset), jax.jit(step))


class Functional(gymnasium.Env[Any, Any]):
    """A Gymnasium environment that calls compiled JAX functions and keeps its state in JAX arrays.

    Observations are NumPy arrays or integers, or dicts of these; infos hold Python numbers or NumPy arrays. All
    randomness, including that of later episodes, derives from the seed of ``reset``. A deep copy is independent and
    cheap, because it shares the compiled functions.

    functions: the compiled reset and step. params: the last argument of both functions. last_infos: whether infos are
    returned only at an episode's end. picture: a function that returns the image of a state, uint8, for the render mode
    "rgb_array"; None if states cannot be drawn. Raises PlanError for a render mode that is not supported.
    """

    def __init__(
        self,
        functions: Compiled,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        params: object = None,
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
        self._key: object = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            jax = load("jax")
            cpu = jax.local_devices(backend="cpu")[0]
            with jax.default_device(cpu):  # JAX computes on the device that holds the key
                self._key = jax.device_put(jax.random.key(int(self.np_random.integers(1 << 31))), cpu)
        self._key, self._state, *result = self._functions.reset(self._key, self._params)
        observation, infos = load("jax").device_get(result)
        return _fitted(self.observation_space, observation), {} if self._last_infos else _plain(infos)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._key, self._state, *result = self._functions.step(self._key, self._state, action, self._params)
        observation, reward, terminated, truncated, infos = load("jax").device_get(result)
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


def _fitted(space: spaces.Space[Any], value: Any) -> Any:
    """Return an observation in its space's form: a dict for a Dict, an integer for a Discrete, else an array."""
    if isinstance(space, spaces.Dict):
        return {key: _fitted(part, value[key]) for key, part in space.spaces.items()}
    return np.int64(value) if isinstance(space, spaces.Discrete) else np.asarray(value, space.dtype)


def _plain(value: Any) -> Any:
    """Return infos with all scalars converted to Python numbers."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value if np.ndim(value) else np.asarray(value).item()


# --------------------------------------------------------------------------------- environments with gymnax's interface


LIMITS = ("max_timesteps", "max_steps_in_episode")  # the name in Craftax, and in gymnax


def space_of(space: Any, dtype: Any = None) -> gymnasium.Space[Any]:
    """Convert a gymnax space to a Gymnasium space. Raises SpaceError unless it is a Box or a Discrete.

    dtype: the dtype of a Box, if the actual observations have a dtype other than the gymnax space's.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind != "Box":
        raise SpaceError(f"{space} is a gymnax {kind}; only Box and Discrete spaces are supported")
    dtype = np.dtype(dtype or space.dtype)  # some spaces are int32 and their observations float32
    low, high = (np.broadcast_to(np.asarray(bound), space.shape).astype(dtype) for bound in (space.low, space.high))
    return spaces.Box(low, high, space.shape, dtype.type)


def functions_of(env: Any) -> Compiled:
    """Return the compiled functions of an environment object with gymnax's interface."""

    def reset(key: object, params: object) -> tuple[Any, ...]:
        observation, state = env.reset_env(key, params)
        return state, observation, {}

    def step(key: object, state: object, action: object, params: object) -> tuple[Any, ...]:
        observation, state, reward, done, infos = env.step_env(key, state, action, params)
        infos = {name: infos[name] for name in infos if name != "discount"}  # discount only repeats terminated
        return state, observation, reward, *ends(env, state, done, params), infos

    return compiled(Functions(reset, step))


def ends(env: Any, state: object, done: Any, params: Any) -> tuple[Any, Any]:
    """Return (terminated, truncated) of a step.

    done: the flag that the step returned. If the environment has the method ``is_truncated`` (since gymnax 1.0), done
    means that the step terminated the episode. Otherwise, done means that the episode ended for any reason. Such an end
    is a truncation if the episode would have continued without its time limit, the field of ``params`` named in
    ``LIMITS``; if there is no such field, every end is a termination.
    """
    if hasattr(env, "is_truncated"):
        return done, env.is_truncated(state, params) & ~done
    limits = {name: np.iinfo(np.int32).max for name in LIMITS if hasattr(params, name)}
    terminal = env.is_terminal(state, dataclasses.replace(params, **limits)) if limits else done
    return done & terminal, done & ~terminal
