"""One interface to single-agent environments with different conventions: each step returns Gymnasium's five values."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from pufferlib.emulation.action_masks import ACTION_MASK, mask_size, masked_space, pack_mask
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout

__all__ = ["Caller", "Resetter", "checked_flag", "own_attribute", "own_space", "scalar_reward"]


class Caller:
    """A caller of one environment's reset and step, which converts the results to Gymnasium's API and checks them.

    It also accepts: a reset that returns only the observation; a step that returns four values, with a truncation
    marked by info["TimeLimit.truncated"]; a reset without the argument ``seed`` (then ``env.seed`` is called if it
    exists) or ``options``, with one warning for each argument that is dropped; infos that are None; flags and rewards
    of any numeric type. Rewards that are a list are summed, and info["rewards"] keeps the list; flags that are a list
    count as True if all of them are.

    Observations are not copied; they may be views of the environment's live buffers.
    """

    def __init__(self, env: Any, bounds: Mapping[str, Any], action_mask: bool, check: str) -> None:
        self.env = env
        self.name = type(getattr(env, "unwrapped", env)).__name__
        self.raw_observation_space = own_space(env.observation_space)
        self.raw_action_space = own_space(env.action_space)
        space = self.raw_observation_space
        if action_mask:
            size = mask_size(self.raw_action_space)
            if size is None:
                raise SpaceError(f"action_mask=True, but {self.raw_action_space} of {self.name} has no choices to mask")
            space = masked_space(space, size)
        self.action_mask = action_mask
        self.observation_layout: Layout = observation_layout(space, **bounds)
        self.action_layout: ActionLayout = action_layout(self.raw_action_space, **bounds)
        self._reset = Resetter(env, self.name)
        self.raw_step = env.step
        self._always = check == "always"
        self._check_reset = self._check_step = True
        base = getattr(env, "unwrapped", None)
        # An environment that omits super().reset(seed=seed) has no seeded generator: Caller sets one.
        self._unseeded = base if isinstance(base, gymnasium.Env) and base._np_random is None else None

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; return the observation, in the structure of ``observation_layout``, and the info."""
        return self.regular_reset(self.raw_reset(seed, options))

    def raw_reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the environment and return its result unchanged.

        If a seed is given, and the Gymnasium environment had no ``np_random`` when this Caller was made, first gives it
        an ``np_random`` with that seed, because its ``reset`` may omit ``super().reset(seed=seed)``.
        """
        if seed is not None and self._unseeded is not None:
            self._unseeded._np_random, _ = seeding.np_random(seed)
        return self._reset(seed, options)

    def regular_reset(self, result: object) -> tuple[Any, dict[str, Any]]:
        """Check the result of the environment's reset; return its observation and info in the form of ``reset``."""
        observation, info = self._split(result)
        try:
            observation = self.observed(observation, info, self._check_reset)
        except SpaceError:
            if isinstance(result, tuple) and len(result) == 2 and not isinstance(result[1], Mapping):
                message = f"{self.name}.reset returned the info {result[1]!r:.60}; expected a dict"
                if result[0] in self.raw_observation_space:
                    raise SpaceError(message) from None
            raise
        self._check_reset = self._always
        return observation, info

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one step with an action of the raw action space; return Gymnasium's five values."""
        return self.regular_step(self.raw_step(action))

    def regular_step(self, result: tuple[Any, ...]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Check the result of the environment's step, convert it to Gymnasium's five values and return these."""
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
            if not (type(reward) is float and type(terminated) is bool and type(truncated) is bool):
                reward, terminated, truncated, info = self._regular(reward, terminated, truncated, info)
        elif len(result) == 4:
            observation, reward, done, info = result
            reward, done, _, info = self._regular(reward, done, False, info)
            truncated = done and checked_flag(info.get("TimeLimit.truncated", False), "truncation", self.name)
            terminated = done and not truncated
        else:
            raise SpaceError(
                f"{self.name}.step returned {len(result)} values; expected observation, reward, terminated, truncated "
                "and info"
            )
        if info is None:
            info = {}
        elif not isinstance(info, dict):
            if not isinstance(info, Mapping):
                raise SpaceError(f"{self.name}.step returned the info {info!r:.60}; expected a dict")
            info = dict(info)
        if self._check_step or self.action_mask:
            observation = self.observed(observation, info, self._check_step)
            self._check_step = self._always
        return observation, reward, terminated, truncated, info

    @property
    def settled(self) -> bool:
        """Whether the full checks are done, so that only the shape and dtype of observations are still checked."""
        return not self._check_step

    def close(self) -> None:
        """Close the environment if it has a ``close``."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def observed(self, observation: object, info: dict[str, Any], check: bool = False) -> object:
        """Return an observation in the structure of ``observation_layout``, with its mask if ``action_mask`` is set.

        check: whether to check the observation fully.
        """
        if self.action_mask:
            mask = pack_mask(self.raw_action_space, info.get(ACTION_MASK))
            observation = {"observation": observation, ACTION_MASK: mask}
        if check:
            self.observation_layout.check(observation)
        return observation

    def _split(self, result: object) -> tuple[Any, dict[str, Any]]:
        if isinstance(result, tuple) and len(result) == 2 and (result[1] is None or isinstance(result[1], Mapping)):
            if not _is_observation(result, self.raw_observation_space):
                return result[0], {} if result[1] is None else dict(result[1])
        return result, {}

    def _regular(self, reward: Any, terminated: object, truncated: object, info: Any) -> tuple[float, bool, bool, Any]:
        if isinstance(reward, (list, tuple, np.ndarray)) and np.size(reward) != 1:
            info = {**(info or {}), "rewards": reward}
            reward = sum(reward) if isinstance(reward, (list, tuple)) else reward.sum()
        reward = scalar_reward(reward, self.name)
        terminated = checked_flag(terminated, "termination", self.name)
        truncated = checked_flag(truncated, "truncation", self.name)
        return reward, terminated, truncated, {} if info is None else info


def _is_observation(pair: tuple[Any, Any], space: spaces.Space[Any]) -> bool:
    """Return whether a pair that looks like (observation, info) is itself an observation, of a Tuple of two spaces.

    Suppose that the second space is a Dict, and the second item of ``pair`` is not None. If ``pair`` is (observation,
    info), then its first item is an observation, and so itself a pair that ends in a mapping. Therefore, if the first
    item is not such a pair, ``pair`` is an observation. In all other cases, ``pair in space`` decides. That test comes
    second because it is False for values that need a cast, such as float64 to float32.
    """
    if not isinstance(space, spaces.Tuple) or len(space.spaces) != 2:
        return False
    if isinstance(space.spaces[1], spaces.Dict) and pair[1] is not None and not _ends_in_mapping(pair[0]):
        return True
    return pair in space


def _ends_in_mapping(value: Any) -> bool:
    try:
        return len(value) == 2 and isinstance(value[1], Mapping)
    except (TypeError, LookupError):
        return False


class Resetter:
    """A callable that resets an environment with the seed and options that its ``reset`` accepts.

    If ``reset`` takes no seed but the environment has a method ``seed``, that method is called with the seed before
    ``reset``. Any other value that ``reset`` does not accept is dropped, with one warning per argument.
    """

    def __init__(self, env: Any, name: str) -> None:
        self._env = env
        self._name = name
        self._accepted = _accepted_arguments(env)
        self._warned: set[str] = set()

    def __call__(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        keywords: dict[str, Any] = {}
        if seed is not None:
            if "seed" in self._accepted:
                keywords["seed"] = seed
            elif callable(getattr(self._env, "seed", None)):
                self._env.seed(seed)
            else:
                self._warn("seed", "its episodes cannot be reproduced")
        if options is not None:
            if "options" in self._accepted:
                keywords["options"] = options
            elif options:
                self._warn("options", "they are not passed on")
        return self._env.reset(**keywords)

    def _warn(self, argument: str, consequence: str) -> None:
        if argument not in self._warned:
            self._warned.add(argument)
            warnings.warn(f"{self._name}.reset takes no {argument}: {consequence}", stacklevel=5)


def scalar_reward(reward: Any, name: str) -> float:
    """Convert a reward, of any numeric type or an array of one element, to a float.

    Raises SpaceError for an array of another size, or a value that ``float`` refuses with TypeError or ValueError.
    name: the environment's name, for the message.
    """
    if type(reward) is float:
        return reward
    try:
        return float(np.asarray(reward).item() if isinstance(reward, (list, tuple, np.ndarray)) else reward)
    except (TypeError, ValueError):
        raise SpaceError(f"{name}.step returned the reward {reward!r}; expected a number") from None


def checked_flag(value: object, what: str, name: str) -> bool:
    """Convert a flag, 0 or 1 of any numeric type, to a bool. Several flags in an array are True if all of them are.

    Raises SpaceError for any other value, and for an empty array. what, name: the flag's and the environment's names,
    for the message.
    """
    if type(value) is bool:
        return value
    if type(value) is np.bool_:
        return bool(value)
    try:
        array = np.asarray(value)
        fine = array.dtype.kind in "biuf" and array.size > 0 and bool(((array == 0) | (array == 1)).all())
    except Exception:  # ragged lists, tensors on another device, any error of __array__
        fine = False
    if not fine:
        raise SpaceError(f"{name}.step returned the {what} {value!r:.60}; expected a bool")
    return bool(array.all())


def _accepted_arguments(env: Any) -> set[str]:
    """Return which of "seed" and "options" the ``reset`` methods of an environment and all its wrappers accept."""
    accepted = {"seed", "options"}
    while True:
        try:
            parameters = inspect.signature(env.reset).parameters
        except (TypeError, ValueError):  # builtins and some extension types have no signature
            return accepted
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            accepted &= set(parameters)
        if not any(base.__name__ == "Wrapper" for base in type(env).__mro__):  # Gymnasium's, or old gym's
            return accepted
        env = env.env


def own_attribute(env: object, name: str) -> Any:
    """Return an environment's attribute without running code of its class.

    Returns None if the attribute is missing, or is a property or method. The function does not read ``__dict__``: that
    would create a dict of the attributes, after which CPython 3.11 and 3.12 read the attributes more slowly.
    """
    of_class = inspect.getattr_static(type(env), name, None)
    if hasattr(type(of_class), "__get__") and not inspect.ismemberdescriptor(of_class):
        return None  # a property or a method
    try:
        return object.__getattribute__(env, name)
    except AttributeError:
        return None


def own_space(space: object) -> gymnasium.Space[Any]:
    """Return a Gymnasium space unchanged, or convert a space of old gym. Raises SpaceError for any other object."""
    if isinstance(space, gymnasium.Space):
        return space
    kind = next((base.__name__ for base in type(space).__mro__ if base.__name__ in _CONVERSIONS), None)
    if kind is None:
        raise SpaceError(
            f"expected a gymnasium space, got {space!r} of {type(space).__module__}.{type(space).__name__}"
        )
    converted = _CONVERSIONS[kind](space)
    assert isinstance(converted, gymnasium.Space)
    return converted


_CONVERSIONS: dict[str, Any] = {
    "Box": lambda old: spaces.Box(old.low, old.high, old.shape, old.dtype),
    "Discrete": lambda old: spaces.Discrete(int(old.n), start=int(getattr(old, "start", 0))),
    "MultiDiscrete": lambda old: spaces.MultiDiscrete(old.nvec),
    "MultiBinary": lambda old: spaces.MultiBinary(old.n),
    "Dict": lambda old: spaces.Dict({key: own_space(part) for key, part in old.spaces.items()}),
    "Tuple": lambda old: spaces.Tuple([own_space(part) for part in old.spaces]),
}
