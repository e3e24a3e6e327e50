"""PufferLib's wrappers: episode statistics, and small changes of observations, actions and interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.compat.utils import unroll_nested_dict

__all__ = [
    "ClipAction",
    "EpisodeStats",
    "GymToGymnasium",
    "MeanOverAgents",
    "MultiagentEpisodeStats",
    "PettingZooTruncatedWrapper",
    "PettingZooWrapper",
    "ResizeObservation",
]


class _Episode:
    """The sums over one episode of an agent's rewards and of the numbers in its infos."""

    def __init__(self) -> None:
        self.episode_return: Any = 0.0
        self.length = 0
        self.sums: dict[str, Any] = {}

    def add(self, reward: Any, info: Any) -> None:
        """Add one step."""
        self.episode_return = self.episode_return + reward
        self.length += 1
        for key, value in unroll_nested_dict(info):
            if not _is_number(value) or isinstance(value, (list, tuple)):
                continue
            if isinstance(value, np.generic):
                value = value.item()
            elif isinstance(value, np.ndarray) and value.dtype.kind in "biu":  # or small integers overflow
                value = value.astype(np.int64)
            try:
                self.sums[key] = self.sums.get(key, 0) + value
            except ValueError:  # the shape has changed: no sum
                self.sums[key] = None
            except TypeError:  # it had changed before
                continue

    def result(self) -> dict[str, Any]:
        """Return the sums with "episode_return" and "episode_length"."""
        sums = {key: value for key, value in self.sums.items() if value is not None}
        return {**sums, "episode_return": self.episode_return, "episode_length": self.length}


def _is_number(value: Any) -> bool:
    try:
        return bool(np.asarray(value).dtype.kind in "biuf") and not isinstance(value, (str, bytes))
    except Exception:  # ragged lists, objects
        return False


class _Forwarding:
    """A base class of wrappers whose other attributes are those of ``env``, private ones excepted."""

    env: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


class _Unregistered(_Forwarding, gymnasium.Env[Any, Any]):
    """A gymnasium.Env around an object that has only the methods of one; other attributes are the object's."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = getattr(env, "metadata", {"render_modes": []})
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if callable(getattr(self.env, "close", None)):
            self.env.close()


class _Wrapper(_Forwarding, gymnasium.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium wrapper of any object with the methods of a gymnasium.Env."""

    def __init__(self, env: Any) -> None:
        super().__init__(env if isinstance(env, gymnasium.Env) else _Unregistered(env))


class EpisodeStats(_Wrapper):
    """A Gymnasium wrapper whose infos are empty until an episode ends, and then hold the sums over the episode.

    The last info has "episode_return", "episode_length" and, for each number or array in the environment's infos, its
    sum over the episode, under the nested keys joined by "/".
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._episode = _Episode()

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; return the observation and the environment's info."""
        self._episode = _Episode()
        observation, info = self.env.reset() if seed is None else self.env.reset(seed=seed)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Play one step; return the environment's values with an info of the class's form."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._episode.add(reward, info)
        info = self._episode.result() if terminated or truncated else {}
        return observation, reward, terminated, truncated, info


class PettingZooWrapper:
    """A wrapper of a PettingZoo parallel environment, which passes on everything; names with "_" in front excepted."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} passes on no private attributes, such as {name!r}")
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode. options: passed on if they are not None."""
        keywords = {} if options is None else {"options": options}
        observations, infos = self.env.reset(seed=seed, **keywords)
        return observations, infos

    def step(self, actions: Any) -> Any:
        """Play one step."""
        return self.env.step(actions)

    def observe(self, agent: Any) -> Any:
        """Return an agent's observation, in an environment that offers it."""
        return self.env.observe(agent)

    def state(self) -> Any:
        """Return the state of the whole environment."""
        return self.env.state()

    def observation_space(self, agent: Any) -> Any:
        """Return an agent's observation space."""
        return self.env.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        """Return an agent's action space."""
        return self.env.action_space(agent)

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class PettingZooTruncatedWrapper(PettingZooWrapper):
    """A PettingZoo environment of the older interface, whose ``step`` returns no truncations: all are False."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode; return observations and infos, which are empty if the environment returns none."""
        result = self.env.reset(seed=seed)
        return result if isinstance(result, tuple) else (result, {agent: {} for agent in result})

    def step(self, actions: Any) -> Any:
        """Play one step; return five dicts by agent."""
        result = self.env.step(actions)
        if len(result) == 5:
            return result
        observations, rewards, dones, infos = result
        return observations, rewards, dones, dict.fromkeys(dones, False), infos


class MultiagentEpisodeStats(PettingZooWrapper):
    """``EpisodeStats`` for each agent of a PettingZoo environment; an agent's sums are in the info of its last step.

    Only the steps in which an agent has an info are counted.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.episodes: dict[Any, _Episode] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode; return the observations and the environment's infos."""
        self.episodes = {}
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        """Play one step; return the environment's values with infos of the class's form."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        sums = {}
        for agent, info in infos.items():
            episode = self.episodes.setdefault(agent, _Episode())
            episode.add(rewards.get(agent, 0), info)
            over = terminations.get(agent) or truncations.get(agent)
            sums[agent] = self.episodes.pop(agent).result() if over else {}
        return observations, rewards, terminations, truncations, sums


class MeanOverAgents(PettingZooWrapper):
    """A PettingZoo environment whose infos are one dict of the means over agents."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode; return the observations and an empty dict."""
        observations, _ = super().reset(seed, options)
        return observations, {}

    def step(self, actions: Any) -> Any:
        """Play one step; return the environment's values with the means of the infos' numbers, by nested keys."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        values: dict[str, list[Any]] = {}
        for info in infos.values():
            for key, value in unroll_nested_dict(info):
                if _is_number(value):
                    values.setdefault(key, []).append(value)
        means = {key: np.mean(items, 0) for key, items in values.items()}
        return observations, rewards, terminations, truncations, means


class ResizeObservation(_Wrapper):
    """A Gymnasium environment of 2-D images that keeps every ``downscale``-th row and column, as uint8.

    Raises ValueError unless downscale divides the height and the width.
    """

    def __init__(self, env: Any, downscale: int = 2) -> None:
        super().__init__(env)
        height, width = env.observation_space.shape
        if height % downscale or width % downscale:
            raise ValueError(f"downscale={downscale} must divide the height {height} and the width {width}")
        self.downscale = downscale
        shape = (height // downscale, width // downscale)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def _resized(self, observation: Any) -> Any:
        return observation[:: self.downscale, :: self.downscale]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode; return the small image and the info."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._resized(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Play one step; return the environment's values with the small image."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._resized(observation), reward, terminated, truncated, info


class ClipAction(_Wrapper):
    """A Gymnasium environment that accepts any number in a Box action, and clips it to the environment's bounds.

    Raises ValueError unless the action space is a Box.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"ClipAction needs a Box of actions, got {space}")
        limits: Any = np.finfo(space.dtype) if space.dtype.kind == "f" else np.iinfo(space.dtype)
        self.action_space = spaces.Box(limits.min, limits.max, space.shape, space.dtype.type)

    def step(self, action: Any) -> Any:
        """Play one step with the clipped action."""
        space: Any = self.env.action_space
        return self.env.step(np.clip(action, space.low, space.high))


class GymToGymnasium:
    """An environment of old gym with Gymnasium's interface: ``step`` returns five values, and truncated is False."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; return the observation and an info. seed: passed to the environment's ``seed``."""
        if seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        result = self.env.reset()
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        return result if is_pair else (result, {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Play one step; return five values."""
        observation, reward, done, *truncated, info = self.env.step(action)
        return observation, reward, done, bool(truncated and truncated[0]), info

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
