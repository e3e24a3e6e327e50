"""PufferEnvs as RowEnvs and, with one agent, as Gymnasium environments.

Their buffers have the shape of a batch, so observations are written to rows with a single copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from pufferlib.emulation.infos import add_episode, copy_value
from pufferlib.emulation.rows import FastRows, FastStep, HeldRows, RowEnv, Rows
from pufferlib.environment import PufferEnv, hold
from pufferlib.errors import CallError, SpaceError
from pufferlib.layout import action_layout, observation_layout
from pufferlib.util.annotations import Array

__all__ = ["NativeEnv", "NativeRow", "NativeRows", "native_rows"]

Check = Literal["first", "always"]


def native_rows(env: PufferEnv, *, check: Check = "first") -> RowEnv:
    """Return a PufferEnv as a RowEnv. check: see ``wrap``. Raises the errors of ``validate``."""
    validate(env)
    return NativeRow(env, check) if env.num_agents == 1 else NativeRows(env, check)


def validate(env: PufferEnv) -> None:
    """Raise SpaceError unless a PufferEnv has at least one agent and suitable spaces.

    Each of its spaces must be a Box, Discrete, MultiDiscrete or MultiBinary.
    """
    name = type(env).__name__
    for attribute in ("single_observation_space", "single_action_space"):
        space = getattr(env, attribute, None)
        if not isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary)):
            came = "nothing" if space is None else repr(space)
            raise SpaceError(
                f"{name}.{attribute} must be a Box, Discrete, MultiDiscrete or MultiBinary, got {came}; "
                "write an environment with nested spaces as a gymnasium.Env and pass it to pufferlib.wrap"
            )
    if not isinstance(env.num_agents, (int, np.integer)) or env.num_agents < 1:
        raise SpaceError(f"{name}.num_agents must be an int of at least 1, got {env.num_agents!r}")


def zero_outcome(env: PufferEnv) -> None:
    """Zero an environment's rewards and flags, as PufferEnv promises before each reset and step."""
    env.rewards.fill(0)  # takes half the time of [...] = 0
    env.terminations.fill(False)
    env.truncations.fill(False)


def validate_buffers(env: PufferEnv) -> None:
    """Raise SpaceError if a PufferEnv has replaced a buffer with an object of a wrong shape or dtype.

    A replaced ``rewards`` may also be float32.
    """
    space, agents = env.single_observation_space, env.num_agents
    assert space.shape is not None
    expected = {
        "observations": ((agents, *space.shape), (space.dtype,)),
        "rewards": ((agents,), (np.dtype(np.float64), np.dtype(np.float32))),
        "terminations": ((agents,), (np.dtype(np.bool_),)),
        "truncations": ((agents,), (np.dtype(np.bool_),)),
        "alive": ((agents,), (np.dtype(np.bool_),)),
    }
    for name, (shape, dtypes) in expected.items():
        buffer = getattr(env, name)
        came = (getattr(buffer, "shape", None), getattr(buffer, "dtype", type(buffer).__name__))
        if came[0] != shape or came[1] not in dtypes:
            raise SpaceError(
                f"{type(env).__name__}.{name} must be an array of shape {shape} and dtype {dtypes[0]}, got {came[0]} "
                f"of {came[1]}; write into it (self.{name}[:] = …) instead of replacing it"
            )


def infos_by_agent(env: PufferEnv, infos: object) -> list[tuple[int | None, dict[str, Any]]]:
    """Return copies of the non-empty infos of a reset or step, as (agent index, info) pairs.

    The index is None for an info about a multi-agent environment as a whole. Raises SpaceError unless ``infos`` is
    None, a mapping, or a sequence that is empty or holds one mapping or None per agent.
    """
    if infos is None:
        return []
    if isinstance(infos, Mapping):
        return [(None if env.num_agents > 1 else 0, copy_value(dict(infos)))] if infos else []
    if not isinstance(infos, Sequence) or len(infos) not in (0, env.num_agents):
        raise _wrong_infos(env, f"{infos!r:.80} as infos")
    by_agent: list[tuple[int | None, dict[str, Any]]] = []
    for agent_index, info in enumerate(infos):
        if not (type(info) is dict or info is None or isinstance(info, Mapping)):
            raise _wrong_infos(env, f"{info!r:.80} as the info of agent {agent_index}")
        if info:
            by_agent.append((agent_index, copy_value(dict(info))))
    return by_agent


def _wrong_infos(env: PufferEnv, returned: str) -> SpaceError:
    return SpaceError(
        f"{type(env).__name__} returned {returned}; expected None, one dict, or a sequence of {env.num_agents} dicts"
    )


class _Native(RowEnv):
    """The base class of NativeRow and NativeRows."""

    env: PufferEnv

    def __init__(self, env: PufferEnv, check: Check) -> None:
        hold(env)
        self.env = env
        self.num_agents = int(env.num_agents)
        self.multi_agent = self.num_agents > 1
        self.observation_layout = observation_layout(env.single_observation_space)
        self.action_layout = action_layout(env.single_action_space)
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.observation_layouts = (self.observation_layout,) * self.num_agents
        self.action_layouts = (self.action_layout,) * self.num_agents
        self.infos = []
        self._always = check == "always"
        self._check_reset = self._check_step = True
        self._start_s = 0.0

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        env = self.env
        zero_outcome(env)
        env.alive[...] = True
        self.take_reset(env.reset(seed=seed, options=options))

    def take_reset(self, result: object) -> None:
        if self._check_reset:
            self._check()
            self._check_reset = self._always
        self._start_s = perf_counter()
        self._begin()
        self.infos = infos_by_agent(self.env, result)

    def _begin(self) -> None:
        raise NotImplementedError

    def _check(self) -> None:
        validate_buffers(self.env)
        for agent in np.flatnonzero(self.env.alive):
            self.observation_layout.check(self.env.observations[agent, ...])


class NativeRow(_Native):
    """A single-agent PufferEnv as one row.

    A NativeRow computes with scalars, because each operation on arrays of length one would cost 0.4 us.
    """

    def __init__(self, env: PufferEnv, check: Check) -> None:
        super().__init__(env, check)
        self.fast = FastStep(env, env.step, self.observation_layout.packer, None, native=True, resets=True)

    def _begin(self) -> None:
        self._acted = False  # whether the held row's action counted
        self._reward, self._terminated, self._truncated = 0.0, False, False
        self._return, self._length = 0.0, 0

    def step(self, actions: Any) -> bool:
        env = self.env
        acted = bool(env.alive[0])
        env.rewards[0] = 0
        env.terminations[0] = False
        env.truncations[0] = False
        return self._hold(env.step(actions), acted)

    def take(self, result: object) -> bool:
        return self._hold(result, True)  # the fast path does not step absent agents

    def _hold(self, infos: object, acted: bool) -> bool:
        """Hold the row of a step that returned ``infos``; return whether the episode is over.

        acted: whether the step's action counted.
        """
        env = self.env
        self._acted = acted
        if self._check_step:
            self._check()
            self._check_step = self._always
        terminated, truncated = bool(env.terminations[0]), bool(env.truncations[0])
        over = terminated or truncated
        if over:
            env.alive[0] = False
        elif not env.alive[0]:
            over, truncated = True, acted  # gone without a flag
        self._terminated, self._truncated = terminated and acted, truncated and acted
        if acted:
            self._reward = reward = float(env.rewards[0])
            self._return += reward
            self._length += 1
        else:
            self._reward = 0.0
        self.infos = infos_by_agent(env, infos)
        if over and acted:
            info = self.infos[0][1] if self.infos else {}
            info["env"] = True
            add_episode(info, self._return, self._length, self._start_s)
            self.infos = [(0, info)]
        return over

    @property
    def settled(self) -> bool:
        return not self._check_step

    @property
    def totals(self) -> tuple[float, int, float]:
        return self._return, self._length, self._start_s

    @totals.setter
    def totals(self, totals: tuple[float, int, float]) -> None:
        self._return, self._length, self._start_s = totals

    def write_observations(self, rows: Rows) -> None:
        if self.env.alive[0] or self._acted:
            rows.observations[...] = self.env.observations
        else:
            rows.observations[...] = 0

    def write_outcome(self, rows: Rows) -> None:
        rows.rewards[0] = self._reward
        rows.terminations[0] = self._terminated
        rows.truncations[0] = self._truncated
        rows.masks[0] = self._acted


class NativeRows(_Native, HeldRows):
    """A multi-agent PufferEnv as rows, some of which may have no agent for a time.

    In most steps, all agents are alive and none appears or ends. ``take`` detects such steps by a few counts. It
    handles them with about a dozen NumPy calls, whatever the number of agents, and does not copy the rewards.
    """

    def __init__(self, env: PufferEnv, check: Check) -> None:
        super().__init__(env, check)
        agents = self.num_agents
        self.agent_names = tuple(f"agent_{agent_index}" for agent_index in range(agents))
        self._masks, self._rewards, self._terminations, self._truncations = False, 0.0, False, False
        self._absent: Array | None = None  # the rows without an agent
        self._returns = np.zeros(agents, np.float64)
        self._first_ticks = np.zeros(agents, np.int64)  # the tick of each agent's first row
        self._starts_s = np.zeros(agents, np.float64)
        self._tick = 0
        self._past_return = 0.0  # the return of agents whose row another agent has now
        self.before: Array | None = None  # the agents that act in this step; None: all
        self.fast = FastRows(env, self._returns, self._first_ticks, self._starts_s)

    def _begin(self) -> None:
        self._masks, self._rewards, self._terminations, self._truncations = False, 0.0, False, False
        self._absent = None if self.env.alive.all() else ~self.env.alive
        self._returns[...] = 0.0
        self._first_ticks[...] = 0
        self._starts_s[...] = self._start_s
        self._tick, self._past_return = 0, 0.0

    def step(self, actions: Any) -> bool:
        env = self.env
        self.before = None if np.count_nonzero(env.alive) == self.num_agents else env.alive.copy()
        zero_outcome(env)
        return self.take(env.step(actions))

    def take(self, result: object) -> bool:
        env, before = self.env, self.before
        if self._check_step:
            self._check()
            self._check_step = self._always
        self._tick += 1
        self.infos = infos_by_agent(env, result)
        if (
            before is None
            and not np.count_nonzero(env.terminations)
            and not np.count_nonzero(env.truncations)
            and np.count_nonzero(env.alive) == self.num_agents
        ):
            self._masks, self._rewards, self._terminations, self._truncations = True, env.rewards, False, False
            self._absent = None
            self._returns += env.rewards
            return False
        return self._come_and_go(np.ones(self.num_agents, np.bool_) if before is None else before)

    @property
    def settled(self) -> bool:
        return not (self._check_reset or self._check_step)

    @property
    def totals(self) -> tuple[float, int, float]:
        return self._past_return, self._tick, self._start_s

    @totals.setter
    def totals(self, totals: tuple[float, int, float]) -> None:
        self._past_return, self._tick, self._start_s = totals

    def _come_and_go(self, masks: Array) -> bool:
        """Hold the rows of a step in which agents are absent, end or appear; return whether the episode is over.

        masks: (num_agents,) bool, the agents whose actions counted.
        """
        env = self.env
        alive = env.alive
        # Drop flags and rewards of agents whose action did not count.
        terminations, truncations = env.terminations & masks, env.truncations & masks
        ended = terminations | truncations
        alive[env.terminations | env.truncations] = False
        vanished = masks & ~alive & ~ended  # gone without a flag: truncated
        truncations |= vanished
        ended |= vanished
        self._masks, self._terminations, self._truncations = masks, terminations, truncations
        self._rewards = np.where(masks, env.rewards, 0.0)
        self._returns += self._rewards
        self._absent = None if alive.all() else ~(alive | masks)
        over = not alive.any()
        if ended.any():
            self._add_episodes(ended)
        if over and masks.any():
            self._add_end()
        spawned = alive & ~masks
        if spawned.any():
            self._past_return += float(self._returns[spawned].sum())
            self._returns[spawned] = 0.0
            self._first_ticks[spawned] = self._tick
            self._starts_s[spawned] = perf_counter()
        return over

    def _add_episodes(self, ended: Array) -> None:
        infos = {agent: info for agent, info in self.infos if agent is not None}
        for agent in np.flatnonzero(ended).tolist():
            if agent not in infos:
                infos[agent] = {}
                self.infos.append((agent, infos[agent]))
            length = self._tick - self._first_ticks[agent]
            add_episode(infos[agent], self._returns[agent], length, self._starts_s[agent])

    def _add_end(self) -> None:
        info = next((info for agent_index, info in self.infos if agent_index is None), None)
        if info is None:
            info = {}
            self.infos.append((None, info))
        info["env"] = True
        add_episode(info, self._past_return + self._returns.sum(), self._tick, self._start_s)

    def write_observations(self, rows: Rows) -> None:
        rows.observations[...] = self.env.observations
        if self._absent is not None:
            rows.observations[self._absent] = 0


class NativeEnv(gymnasium.Env[Any, Any]):
    """A single-agent PufferEnv as a Gymnasium environment. ``env`` is the PufferEnv; the caller owns returned values.

    Raises SpaceError for spaces without a fixed shape, several agents, a buffer replaced by another kind of array,
    infos in a wrong form, and an action of the wrong shape or kind; ActionError for an action outside its space;
    CallError for a step before the first reset.
    """

    def __init__(self, env: PufferEnv) -> None:
        validate(env)
        if env.num_agents != 1:
            raise SpaceError(f"{type(env).__name__} has {env.num_agents} agents; a Gymnasium environment has one")
        hold(env)
        self.env = env
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.observation_layout = observation_layout(self.observation_space)
        self.action_layout = action_layout(self.action_space)
        self.metadata = dict(env.metadata)
        self.render_mode = env.render_mode
        self.spec = env.spec
        self._actions = np.zeros((1, *(self.action_space.shape or ())), self.action_space.dtype)
        self._was_reset = False

    @property
    def raw(self) -> PufferEnv:
        """The environment that was wrapped."""
        return self.env

    @property
    def wrap_kwargs(self) -> dict[str, Any]:
        """Always {}: of ``wrap``'s arguments, a PufferEnv accepts only ``check``, which has no effect here."""
        return {}

    @property
    def _np_random(self) -> np.random.Generator:  # gymnasium.Env and its checker read the generator here
        return self.env.np_random

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator) -> None:
        self.env.np_random = generator

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        zero_outcome(self.env)
        self.env.alive[...] = True
        infos = self.env.reset(seed=seed, options=options)
        validate_buffers(self.env)
        self._was_reset = True
        return self._observation(), self._info(infos)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._was_reset:
            raise CallError("step before reset; call reset() first")
        env = self.env
        self._actions[0] = self.action_layout.unpack_checked(action)
        zero_outcome(env)
        infos = env.step(self._actions)
        terminated, truncated = bool(env.terminations[0]), bool(env.truncations[0])
        truncated = truncated or not (terminated or env.alive[0])  # gone without a flag
        env.alive[0] = not (terminated or truncated)
        return self._observation(), float(env.rewards[0]), terminated, truncated, self._info(infos)

    def _observation(self) -> object:
        observation = self.env.observations[0, ...].copy()
        return observation[()] if isinstance(self.observation_space, Discrete) else observation

    def _info(self, infos: object) -> dict[str, Any]:
        return next((info for _, info in infos_by_agent(self.env, infos)), {})

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
