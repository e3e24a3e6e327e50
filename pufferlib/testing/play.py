"""Play an environment with random actions, return its raw and its flat observations, and compare replays."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import random
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import Space, spaces

from pufferlib.emulation import wrap
from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.emulation.extra_leaves import AGENT_TYPE, STATE
from pufferlib.emulation.pettingzoo_rows import as_parallel
from pufferlib.emulation.single_agent import own_space
from pufferlib.environment import PufferEnv
from pufferlib.layout import Layout

__all__ = ["Moment", "Player", "Subject", "Trace", "ignore_call", "parting", "replay", "sampled"]

_SHORT = reprlib.Repr()
_SHORT.maxother = 60
ADDED = {ACTION_MASK, AGENT_TYPE, STATE}  # keys that emulation adds next to "observation"


def ignore_call(call: str) -> None:
    """Do nothing; this is the default of ``noted``."""


@dataclass(frozen=True)
class Subject:
    """The environment under test: its creator, and the arguments with which it is created and wrapped.

    noted: called with a description at the start of each call of the environment, and with "" at the call's end. It is
    not pickled: an unpickled copy has the default.
    """

    creator: Callable[..., Any]
    env_args: tuple[Any, ...] = ()
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)
    noted: Callable[[str], None] = ignore_call

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "noted": ignore_call}

    @contextlib.contextmanager
    def noting(self, call: str) -> Iterator[None]:
        """Report the start and the end of a call of the environment to ``noted``."""
        self.noted(call)
        try:
            yield
        finally:
            self.noted("")

    def make(self) -> Any:
        """Return a new environment from the creator."""
        with self.noting("making the environment"):
            return self.creator(*self.env_args, **self.env_kwargs)

    def split(self) -> tuple[Any, dict[str, Any]]:
        """Return a new environment, unwrapped if the creator wraps it, and the arguments to ``wrap`` it with."""
        env = self.make()
        if hasattr(type(env), "wrap_kwargs"):
            return env.raw, dict(env.wrap_kwargs)
        return env, dict(self.wrap_kwargs)


class Moment(NamedTuple):
    """The result of a reset or step. Its dicts are keyed by agent; a single-agent environment's only key is None."""

    rows: dict[Any, Any]  # flat observations
    raw: dict[Any, Any]  # the environment's observations
    rewards: dict[Any, float]
    terminations: dict[Any, bool]
    truncations: dict[Any, bool]
    infos: dict[Any, Any]
    agents: tuple[Any, ...]  # alive now
    seconds: float  # taken by the wrapped environment

    @property
    def over(self) -> bool:
        """Whether the episode is over."""
        return not self.agents


class Player:
    """A player that takes random actions in an environment.

    The actions depend only on the seed that is passed to ``start_actions``, the action spaces and the action masks.
    before, after: called before and after each reset and step of the environment; after receives the method's name.
    """

    def __init__(
        self,
        subject: Subject,
        before: Callable[[], None] | None = None,
        after: Callable[[str], None] | None = None,
    ) -> None:
        raw, wrap_kwargs = subject.split()
        self._subject = subject
        self._num_resets = self._num_steps = 0  # steps of this episode
        self.native = isinstance(raw, PufferEnv)
        self._returned: tuple[str, Any] = ("", None)  # the raw environment's last call: method, result
        if not self.native:
            raw = as_parallel(raw)
            raw = self._watched(raw)
        self.raw = raw
        with subject.noting("wrapping the environment, which may reset it,"):
            self.env = wrap(raw, **wrap_kwargs)
        self.multi_agent = callable(getattr(self.env, "observation_space", None))
        self._before, self._after = before, after
        self._samplers: dict[Any, tuple[Space[Any], Space[Any]]] = {}  # the agent's space, and the copy that draws
        self._seed = 0
        self._alive: tuple[Any, ...] = ()
        self._infos: Mapping[Any, Any] = {}

    def _watched(self, env: Any) -> Any:
        """Replace env's reset and step with versions that also store their results in ``_returned``.

        Returns env, or a proxy if the methods of env cannot be replaced.
        """

        def watch(name: str) -> Callable[..., Any]:
            method = getattr(env, name)

            @functools.wraps(method)  # the signature shows whether it takes a seed
            def watched(*args: Any, **kwargs: Any) -> Any:
                self._returned = (name, None)
                result = method(*args, **kwargs)
                self._returned = (name, result)
                return result

            return watched

        reset, step = watch("reset"), watch("step")
        try:
            env.reset, env.step = reset, step
        except (AttributeError, TypeError):  # an extension type
            env = _Delegate(env)
            env.reset, env.step = reset, step
        return env

    def start_actions(self, seed: int) -> None:
        """Restart the sequence of random actions from a seed."""
        self._seed, self._samplers = seed, {}

    def layout(self, agent: Any) -> Layout:
        """Return the layout of an agent's observations."""
        layout = self.env.observation_layout
        return layout(agent) if self.multi_agent else layout  # type: ignore[no-any-return]

    def raw_space(self, agent: Any) -> Space[Any]:
        """Return the space of an agent's raw observations."""
        if self.native:
            return self.raw.single_observation_space  # type: ignore[no-any-return]
        space = self.raw.observation_space
        return own_space(space(agent) if self.multi_agent else space)

    def decoded(self, agent: Any, row: Any) -> Any:
        """Return an agent's observation, decoded from its flat row, without the leaves that emulation has added."""
        layout, raw = self.layout(agent), self.raw_space(agent)
        sample = layout.decode(row)
        inner = layout.space
        if not isinstance(inner, spaces.Dict) or inner == raw:
            return sample
        if has_mask(raw):  # the space already includes the added leaves
            return {name: sample[name] for name in cast(spaces.Dict, raw).spaces}
        return sample["observation"] if inner.spaces.keys() - ADDED == {"observation"} else sample

    def reset(self, seed: int | None = None) -> Moment:
        """Start an episode, and return its first moment."""
        self._num_resets, self._num_steps = self._num_resets + 1, 0
        with self._subject.noting(f"reset {self._num_resets}, with seed={seed},"):
            result, seconds = self._timed("reset", seed=seed)
        observations, infos = result
        if not self.multi_agent:
            observations, infos = {None: observations}, {None: infos}
        return self._moment(observations, {}, {}, {}, infos, seconds)

    def step(self, agents: Sequence[Any] | None = None) -> Moment:
        """Play one step, and return its moment.

        agents: the agents that act; by default, all that are alive, in which case the episode must not be over.
        """
        actions = {agent: self._action(agent) for agent in (self._alive if agents is None else agents)}
        action = actions if self.multi_agent else actions[None]
        self._num_steps += 1
        which = f"step {self._num_steps} after reset {self._num_resets}"
        with self._subject.noting(f"{which}, with action {_action_text(action)},"):
            result, seconds = self._timed("step", action)
        observation, reward, terminated, truncated, info = result
        if self.multi_agent:
            return self._moment(observation, reward, terminated, truncated, info, seconds)
        flags = {None: bool(terminated)}, {None: bool(truncated)}
        return self._moment({None: observation}, {None: float(reward)}, *flags, {None: info}, seconds)

    def close(self) -> None:
        """Close the environment, and ignore exceptions, because a separate check covers closing."""
        with contextlib.suppress(Exception), self._subject.noting("close()"):
            self.env.close()

    def _timed(self, method: str, *args: Any, **kwargs: Any) -> tuple[Any, float]:
        if self._before is not None:
            self._before()
        start_s = perf_counter()
        result = getattr(self.env, method)(*args, **kwargs)
        seconds = perf_counter() - start_s
        if self._after is not None:
            self._after(method)
        return result, seconds

    def _moment(
        self, rows: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any, seconds: float
    ) -> Moment:
        before = self._alive if rewards else ()
        if self.multi_agent:
            self._alive = tuple(self.env.agents)
        else:
            self._alive = () if terminations.get(None) or truncations.get(None) else (None,)
        self._infos = infos
        concerned = {agent: rows[agent] for agent in dict.fromkeys((*before, *self._alive)) if agent in rows}
        raw = concerned
        if not self.native:
            observations = self.raw_observations()
            raw = {agent: observations[agent] for agent in concerned if agent in observations}
        return Moment(concerned, raw, rewards, terminations, truncations, infos, self._alive, seconds)

    def raw_observations(self) -> dict[Any, Any]:
        """Return the observations of the raw environment's last reset or step, keyed by agent.

        If that call raised an exception, the result is empty or, for a single-agent environment, {None: None}.
        """
        method, observation = self._returned
        if isinstance(observation, tuple):
            if method == "step" or (len(observation) == 2 and isinstance(observation[1], (Mapping, type(None)))):
                observation = observation[0]  # else an old gym environment, whose reset returns only the observation
        if self.multi_agent:
            return dict(observation) if isinstance(observation, Mapping) else {}
        return {None: observation}

    def _action(self, agent: Any) -> Any:
        space = self.env.action_space(agent) if self.multi_agent else self.env.action_space
        sampled_space, sampler = self._samplers.get(agent, (None, None))
        if sampler is None or (sampled_space is not space and sampled_space != space):
            sampler = copy.deepcopy(space)  # the environment may sample from its space
            sampler.seed(random.Random(f"{self._seed} {len(self._samplers)}").getrandbits(31))
            self._samplers[agent] = space, sampler
        info = self._infos.get(agent)
        return sampled(sampler, info.get(ACTION_MASK) if isinstance(info, Mapping) else None)


def _action_text(action: Any) -> str:
    return _SHORT.repr(action.item() if isinstance(action, np.generic) else action)


class _Delegate:
    """A proxy for an environment whose methods cannot be replaced."""

    reset: Callable[..., Any]
    step: Callable[..., Any]

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def sampled(space: Space[Any], mask: Any) -> Any:
    """Return a random sample of a space; values that ``mask`` forbids are not drawn.

    A mask is used for a Discrete space if it has one entry per action, and for a MultiDiscrete space if it is a tuple.
    Any other mask is ignored.
    """
    if isinstance(space, spaces.Discrete) and np.shape(mask) == (space.n,):
        return space.sample(np.asarray(mask, np.int8))
    if isinstance(mask, tuple) and isinstance(space, spaces.MultiDiscrete):
        return space.sample(tuple(np.asarray(part, np.int8) for part in mask))
    return space.sample()


class Tick(NamedTuple):
    """An entry of a trace: the values that must be equal in every replay."""

    call: str  # "reset" or "step"
    agents: str
    observations: str
    rewards: str
    flags: str


Trace = list[Tick]


def replay(player: Player, seed: int, num_steps: int, action_seed: int | None = None) -> Trace:
    """Reset an environment with a seed, play it, and return a trace with ``num_steps`` entries, one per reset or step.

    The environment is reset without a seed after each episode, and once halfway. action_seed: the seed of the actions;
    by default, the same as ``seed``.
    """
    player.start_actions(seed if action_seed is None else action_seed)
    moment = player.reset(seed)
    trace = [_tick("reset", moment)]
    for index in range(1, num_steps):
        again = moment.over or index == num_steps // 2
        moment = player.reset() if again else player.step()
        trace.append(_tick("reset" if again else "step", moment))
    return trace


def _tick(call: str, moment: Moment) -> Tick:
    digest = hashlib.sha256()
    for row in moment.rows.values():
        digest.update(np.asarray(row).tobytes())
    flags = [(bool(moment.terminations[agent]), bool(moment.truncations[agent])) for agent in moment.terminations]
    rewards = [float(reward) for reward in moment.rewards.values()]
    # An agent's id may be any object, and its text may contain its address.
    agents = [agent if isinstance(agent, (str, int)) else type(agent).__name__ for agent in moment.rows]
    return Tick(call, str(agents), digest.hexdigest(), str(rewards), str(flags))


def parting(one: Trace, other: Trace) -> str | None:
    """Describe the first difference between two traces of the same length; return None if they are equal."""
    for index, (first, second) in enumerate(zip(one, other, strict=True)):
        for name in Tick._fields[1:]:
            if getattr(first, name) != getattr(second, name):
                if index == 0:
                    return f"{name} differ at the first reset"
                return f"{name} differ after {index} steps" + (", at a reset without seed" * (first.call == "reset"))
        if first.call != second.call:
            return f"episode ends differ after {index} steps"
    return None
