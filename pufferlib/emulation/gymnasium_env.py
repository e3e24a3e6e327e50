"""Gymnasium environments as rows for workers, and as Gymnasium environments with flat spaces for users."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from pufferlib.emulation.action_masks import ACTION_MASK, has_mask, mask_plan
from pufferlib.emulation.common import observation_writer
from pufferlib.emulation.infos import add_episode, copy_value
from pufferlib.emulation.rows import FastStep, RowEnv, Rows
from pufferlib.emulation.single_agent import Caller
from pufferlib.errors import CallError
from pufferlib.util.annotations import AgentId, Array, RowActions

__all__ = ["EmulatedEnv", "GymnasiumRows"]


class GymnasiumRows(RowEnv):
    """A single-agent environment as one row.

    Between ``step`` and ``write_observations``, a GymnasiumRows holds the environment's own observation object, which
    is thus copied only once, into the row. action_mask: whether the mask moves from the infos to the observation.
    check, bounds: as for ``wrap``.
    """

    def __init__(self, env: Any, *, action_mask: bool = False, check: str = "first", **bounds: Any) -> None:
        caller = Caller(env, bounds, action_mask, check)
        self.env = env
        self.num_agents = 1
        self.multi_agent = False
        self.observation_layout = caller.observation_layout
        self.action_layout = caller.action_layout
        self.observation_layouts = (caller.observation_layout,)
        self.action_layouts = (caller.action_layout,)
        self.observation_space = caller.observation_layout.flat_space
        self.action_space = caller.action_layout.flat_space
        self.infos = []
        self._caller = caller
        packer, unpacker = caller.observation_layout.packer, caller.action_layout.unpacker
        if packer is not None and (unpacker is not None or caller.action_layout.is_leaf):
            scalar = isinstance(self.action_space, spaces.Discrete) and self.action_space.dtype != np.int64
            fast_unpacker = None if caller.action_layout.is_leaf and not scalar else unpacker
            space = caller.raw_observation_space  # a pair looks like an observation and an info
            pairs = isinstance(space, spaces.Tuple) and len(space.spaces) == 2
            masks = mask_plan(caller.raw_action_space) if action_mask else None
            self.fast = FastStep(env, caller.raw_step, packer, fast_unpacker, False, not pairs, masks)
        self._write = observation_writer(caller.observation_layout, self.observation_space)
        self._unpack = caller.action_layout.unpack
        self._pair = len(caller.action_layout.components) == 2
        self._mask_in_info = action_mask
        self._observation: object = None

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self.take_reset(self._caller.raw_reset(seed, options))

    def take_reset(self, result: Any) -> None:
        self._observation, info = self._caller.regular_reset(result)
        self._reward, self._terminated, self._truncated, self._acted = 0.0, False, False, False
        self._return, self._length, self._start_s = 0.0, 0, perf_counter()
        self.infos = self._owned(info)

    def step(self, actions: RowActions) -> bool:
        action = self._unpack((actions[0][0], actions[1][0]) if self._pair else actions[0])
        return self.take(self._caller.raw_step(action))

    def take(self, result: Any) -> bool:
        self._observation, reward, terminated, truncated, info = self._caller.regular_step(result)
        self._reward, self._terminated, self._truncated, self._acted = reward, terminated, truncated, True
        self._return += reward
        self._length += 1
        over = terminated or truncated
        if info or over:
            self.infos = self._owned(info)
            if over:
                last = self.infos[0][1] if self.infos else {}
                last["env"] = True
                add_episode(last, self._return, self._length, self._start_s)
                self.infos = [(0, last)]
        else:
            self.infos = []
        return over

    def row_of(self, observation: object, info: Any = None, agent: AgentId = None) -> Array:
        return super().row_of(self._caller.observed(observation, info or {}))

    @property
    def settled(self) -> bool:
        return self._caller.settled

    @property
    def totals(self) -> tuple[float, int, float]:
        return self._return, self._length, self._start_s

    @totals.setter
    def totals(self, totals: tuple[float, int, float]) -> None:
        self._return, self._length, self._start_s = totals

    def _owned(self, info: dict[str, Any]) -> list[tuple[int | None, dict[str, Any]]]:
        owned = copy_value(info)
        if self._mask_in_info:
            owned.pop(ACTION_MASK, None)
        return [(0, owned)] if owned else []

    def write_observations(self, rows: Rows) -> None:
        self._write(self._observation, rows.places[0])

    def write_outcome(self, rows: Rows) -> None:
        rows.rewards[0] = self._reward
        rows.terminations[0] = self._terminated
        rows.truncations[0] = self._truncated
        rows.masks[0] = self._acted


class ForeignEnv(gymnasium.Env[Any, Any]):
    """A gymnasium.Env around an environment of another class, such as an environment of old gym.

    ``env`` is the raw environment; attributes that Gymnasium does not define are looked up in it.
    """

    def __init__(self, env: Any, caller: Caller) -> None:
        self.env = env
        self.observation_space = caller.raw_observation_space
        self.action_space = caller.raw_action_space
        self.metadata = dict(getattr(env, "metadata", None) or {"render_modes": []})
        self.render_mode = getattr(env, "render_mode", None)
        self._caller = caller

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._caller.reset(seed, options)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._caller.step(action)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self._caller.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


class EmulatedEnv(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A Gymnasium environment with flat spaces around any single-agent environment.

    observation_space, action_space: ``observation_layout.flat_space`` and ``action_layout.flat_space``; the layouts
    convert to the original structure and back. ``env`` and ``unwrapped`` lead to the raw environment, through a
    ForeignEnv unless it is a gymnasium.Env. The caller owns returned observations and infos. If observations have an
    "action_mask", info["action_mask"] repeats it.

    Raises SpaceError for spaces that cannot be flattened, for returned values that do not fit them (fully checked in
    the first reset and the first step, or always with check="always") and for an action of the wrong shape or kind;
    ActionError for an action outside its space; CallError for a step before the first reset.
    """

    def __init__(self, env: Any, *, action_mask: bool = False, check: str = "first", **bounds: Any) -> None:
        RecordConstructorArgs.__init__(self, action_mask=action_mask, check=check, **bounds)
        self._caller = caller = Caller(env, bounds, action_mask, check)
        super().__init__(env if isinstance(env, gymnasium.Env) else ForeignEnv(env, caller))
        self._kwargs = {"action_mask": action_mask, "check": check, **bounds}
        self.observation_layout = caller.observation_layout
        self.action_layout = caller.action_layout
        self.observation_space = self.observation_layout.flat_space
        self.action_space = self.action_layout.flat_space
        self._masks = has_mask(caller.raw_observation_space)
        self._was_reset = False
        self._is_plain = False  # whether the compiled path may read steps

    @property
    def raw(self) -> Any:
        """The environment that was wrapped."""
        return self._caller.env

    @property
    def wrap_kwargs(self) -> dict[str, Any]:
        """The arguments of ``wrap`` with which this environment was made."""
        return dict(self._kwargs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if isinstance(self.env, ForeignEnv):
            observation, info = self.env.reset(seed=seed, options=options)
        else:
            observation, info = self._caller.reset(seed, options)
        self._was_reset = True
        return self.observation_layout.flatten(observation), self._info(observation, info)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._was_reset:
            raise CallError("step before reset; call reset() first")
        result = self._caller.raw_step(self.action_layout.unpack_checked(action))
        packer = self.observation_layout.packer
        if self._is_plain and packer is not None:
            values: tuple[Any, float, bool, bool, dict[str, Any]] | None = packer.flat_step(result, copy_value)
            if values is not None:
                return values
        observation, reward, terminated, truncated, info = self._caller.regular_step(result)
        row, info = self.observation_layout.flatten(observation), self._info(observation, info)
        self._is_plain = self._caller.settled and not (self._masks or self._caller.action_mask)
        return row, reward, terminated, truncated, info

    def close(self) -> None:
        self._caller.close()

    def _info(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        owned: dict[str, Any] = copy_value(info)
        if self._masks and ACTION_MASK not in owned:
            owned[ACTION_MASK] = copy_value(observation[ACTION_MASK])
        return owned
