"""The PufferEnv of PufferLib 2 and 3, which makes its own buffers, returns them, and is its own vecenv."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib import environment
from pufferlib.compat.exceptions import APIUsageError
from pufferlib.compat.namespace import Namespace
from pufferlib.compat.spaces import joint_space
from pufferlib.emulation.infos import copy_value
from pufferlib.emulation.rows import RowEnv, Rows
from pufferlib.errors import SpaceError
from pufferlib.layout import action_layout, observation_layout
from pufferlib.util.annotations import RowActions

__all__ = [
    "TEACHER_ACTIONS",
    "BufferedEnv",
    "BufferedRows",
    "MissingYet",
    "SharedBuffers",
    "adopt",
    "adopt_version_1",
    "set_buffers",
]

TEACHER_ACTIONS = "teacher_actions"  # an attribute of environments for pufferlib-core, and a key of their infos here
_BUFFERS = ("observations", "rewards", "terminals", "truncations", "masks", "actions")


class SharedBuffers(dict[str, Any]):
    """The buffers for an environment that is being made: the first ``set_buffers`` makes them, later ones find them.

    An environment may pass them on to one inside, and then both have the same. Reading them earlier raises MissingYet.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in _BUFFERS:
            raise MissingYet(name)
        raise AttributeError(name)

    def __missing__(self, key: str) -> Any:
        raise MissingYet(key)

    def fit(self, env: Any) -> bool:
        """Return whether these are the buffers of an environment with this one's spaces and agents."""
        rows = (env.num_agents, *env.single_observation_space.shape)
        return bool(self) and self["observations"].shape == rows


class MissingYet(AttributeError, KeyError):
    """Raised for a buffer that ``set_buffers`` has yet to make."""


def set_buffers(env: Any, buf: Any = None) -> None:
    """Give an environment its buffers, one row per agent.

    observations: (num_agents, \\*single_observation_space.shape). rewards: (num_agents,) float32. terminals,
    truncations, masks: (num_agents,) bool; masks are True. actions: (num_agents, \\*single_action_space.shape), int32
    for discrete ones. buf: the arrays to use, by key (version 3) or by attribute (version 2); None makes new ones.
    Raises APIUsageError if buf lacks one of them.
    """
    makes_buffers = isinstance(buf, SharedBuffers) and not buf.fit(env)
    if buf is not None and not makes_buffers:
        try:
            arrays = {name: getattr(buf, name) if hasattr(buf, name) else buf[name] for name in _BUFFERS}
        except (TypeError, LookupError):
            raise APIUsageError(
                f"{type(env).__name__} got buf={buf!r:.80}, which must be None or have the arrays "
                f"{', '.join(_BUFFERS)}; a PufferEnv whose step returns infos alone passes nothing to "
                "super().__init__()"
            ) from None
        for name, array in arrays.items():
            setattr(env, name, array)
        return
    space, action_space, n = env.single_observation_space, env.single_action_space, env.num_agents
    shape = () if isinstance(action_space, spaces.Tuple) else (action_space.shape or ())
    dtype = action_space.dtype if isinstance(action_space, spaces.Box) else np.int32
    env.observations = np.zeros((n, *space.shape), space.dtype)
    env.rewards = np.zeros(n, np.float32)
    env.terminals, env.truncations, env.masks = np.zeros(n, bool), np.zeros(n, bool), np.ones(n, bool)
    env.actions = np.zeros((n, *shape), dtype)
    if makes_buffers:
        buf.update({name: getattr(env, name) for name in _BUFFERS})


class BufferedEnv(environment.PufferEnv):
    """A PufferEnv of PufferLib 2 and 3.

    The subclass sets ``single_observation_space``, ``single_action_space`` and ``num_agents``, and then calls
    ``super().__init__(buf)``, which makes the buffers of ``set_buffers``, ``observation_space`` and ``action_space`` of
    all agents, and ``agent_ids``. It defines ``reset(seed)``, which returns (observations, infos), and
    ``step(actions)``, which returns (observations, rewards, terminals, truncations, infos); both write the buffers
    themselves, infos are a list of dicts, and an episode's last step starts the next episode.

    ``async_reset``, ``recv`` and ``send`` use the environment as a vecenv. Instances get this class from
    ``PufferEnv.__init__``: programs subclass ``pufferlib.PufferEnv``.
    """

    emulated: Any = False
    done = False
    is_version_1 = False
    terminals: Any
    masks: Any
    actions: Any

    def __init__(self, buf: Any = None, *_: Any, **__: Any) -> None:
        """Check the spaces and make the buffers. Raises APIUsageError for missing or unsuitable attributes."""
        name = type(self).__name__
        for attribute in ("single_observation_space", "single_action_space", "num_agents"):
            if not _is_set(self, attribute):
                raise APIUsageError(f"{name} must set self.{attribute} before it calls super().__init__(buf)")
        for attribute in ("observation_space", "action_space"):
            if hasattr(self, attribute):
                raise APIUsageError(f"{name} must set single_{attribute} instead of {attribute}, which is made of it")
        if not isinstance(self.single_observation_space, spaces.Box):
            raise APIUsageError(
                f"{name}.single_observation_space must be a Box, got {self.single_observation_space}; write an "
                "environment with other spaces as a gymnasium.Env and wrap it in a GymnasiumPufferEnv"
            )
        if not isinstance(self.single_action_space, (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)):
            raise APIUsageError(
                f"{name}.single_action_space must be a Discrete, MultiDiscrete or Box, got {self.single_action_space}"
            )
        if not isinstance(self.num_agents, (int, np.integer)) or self.num_agents < 1:
            raise APIUsageError(f"{name}.num_agents must be an int of at least 1, got {self.num_agents!r}")
        environment.hold(self)
        set_buffers(self, buf)
        used = environment.attributes_used(type(self), BufferedEnv)
        if TEACHER_ACTIONS in used and not hasattr(self, TEACHER_ACTIONS):
            self.teacher_actions = np.zeros_like(self.actions)
        self.observation_space = joint_space(self.single_observation_space, self.num_agents)
        self.action_space = joint_space(self.single_action_space, self.num_agents)
        self.agent_ids = np.arange(self.num_agents)
        self.infos: list[Any] = []

    @property
    def driver_env(self) -> Any:
        """This environment."""
        return self

    @functools.cached_property  # unlike a property, programs may set it
    def agent_per_batch(self) -> int:
        """The number of rows; this is version 3's spelling."""
        return self.num_agents

    @functools.cached_property
    def agents_per_batch(self) -> int:
        """The number of rows."""
        return self.num_agents

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode; return (observations, list of infos). The subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} must write reset(seed)")

    def close(self) -> None:
        """Release resources. The subclass defines it, in version 1 if there are any."""
        if not self.is_version_1:
            raise NotImplementedError(f"{type(self).__name__} must write close()")

    def async_reset(self, seed: int | None = None) -> None:
        """Reset the environment; ``recv`` returns the first rows. Raises APIUsageError unless infos are a list."""
        _, self.infos = self.reset(seed)
        self._require_list()

    def send(self, actions: Any) -> None:
        """Step the environment; ``recv`` returns the rows. Raises APIUsageError unless infos are a list."""
        *_, self.infos = _checked(self, self.step(actions))
        self._require_list()

    def recv(self) -> tuple[Any, Any, Any, Any, list[Any], Any, Any]:
        """Return (observations, rewards, terminals, truncations, infos, agent_ids, masks), which are the buffers."""
        return (
            self.observations,
            self.rewards,
            self.terminals,
            self.truncations,
            self.infos,
            self.agent_ids,
            self.masks,
        )

    def _require_list(self) -> None:
        if not isinstance(self.infos, list):
            raise APIUsageError(f"{type(self).__name__} returned infos of type {type(self.infos).__name__}, not a list")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the reduced form for copies and pickles, which names the user's class, not the class of ``adopt``."""
        kind, reduced = type(self), super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or reduced[0] is not copyreg.__newobj__ or reduced[1] != (kind,):  # type: ignore[attr-defined]
            return reduced
        return _blank, (kind.__mro__[1],), *reduced[2:]

    def as_rows(self, check: str = "first") -> RowEnv:
        """Return the environment as a RowEnv for a worker."""
        return BufferedRows(self)


def _is_set(env: Any, attribute: str) -> bool:
    """Return whether an instance, or a class of its own below PufferEnv, sets an attribute."""
    kinds = [kind for kind in type(env).__mro__ if not issubclass(environment.PufferEnv, kind)]
    return attribute in vars(env) or any(
        attribute in vars(kind) for kind in kinds if kind is not BufferedEnv and kind is not object
    )


def _checked(env: Any, result: Any) -> Any:
    if not isinstance(result, tuple) or len(result) != 5:
        raise APIUsageError(
            f"{type(env).__name__}.step returned {type(result).__name__}; it must return observations, rewards, "
            "terminals, truncations and infos. A PufferEnv that returns infos alone takes no buf, and is vectorized by "
            "pufferlib.make"
        )
    return result


@functools.cache
def _variant(kind: Any) -> type:
    """Return a subclass of a user's class in which the methods of BufferedEnv come before those of PufferEnv."""
    return type(kind.__name__, (kind, BufferedEnv), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})


def _blank(kind: type) -> Any:
    """Return an instance of a user's class as ``adopt`` makes it, without attributes."""
    return object.__new__(_variant(kind))


def adopt(env: Any, *args: Any, **kwargs: Any) -> None:
    """Turn a PufferEnv, whose class called ``PufferEnv.__init__`` with these arguments, into a BufferedEnv."""
    kind: Any = type(env)
    env.__class__ = _variant(kind)
    BufferedEnv.__init__(env, *args, **kwargs)


def adopt_version_1(env: Any) -> None:
    """Turn a PufferEnv into a BufferedEnv if it is of version 1, whose methods use the rows in an attribute ``buf``.

    There, the constructor makes no rows, and vecenvs assign them.
    """
    kind: Any = type(env)
    if not {"buf", "terminals"} <= environment.attributes_used(kind):
        return
    environment.hold(env)
    env.__class__ = _variant(kind)
    actions = getattr(env, "actions", None)
    set_buffers(env)
    env.actions = env.actions if actions is None else actions
    env.buf = Namespace(**{name: getattr(env, name) for name in _BUFFERS})
    env.agent_ids, env.is_version_1 = np.arange(env.num_agents), True


class BufferedRows(RowEnv):
    """A BufferedEnv as rows, which starts its next episode by itself in the last step of an episode.

    If it has an attribute ``done`` that is True instead, the next step resets it, and ignores its actions.
    """

    autoreset_mode = "same_step"

    def __init__(self, env: BufferedEnv) -> None:
        self.env: Any = env
        self.num_agents = n = len(env.terminals)  # an environment around another passes this attribute on
        self.multi_agent = n > 1
        self._has_buffers, self._has_teacher = issubclass(type(env), BufferedEnv), hasattr(env, TEACHER_ACTIONS)
        self.observation_layout = observation_layout(env.single_observation_space)
        self.action_layout = action_layout(env.single_action_space)
        self.observation_layouts = (self.observation_layout,) * n
        self.action_layouts = (self.action_layout,) * n
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.infos = []

    def reset(self, seed: int | None, options: Any) -> None:
        env = self.env
        env.rewards[...] = 0
        env.terminals[...] = env.truncations[...] = False
        result = env.reset(seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise SpaceError(f"{type(env).__name__}.reset returned {type(result).__name__}, not (observations, infos)")
        self._keep(result[0], env.rewards, env.terminals, env.truncations)
        self._hold(result[1], is_reset=True)

    def step(self, actions: RowActions) -> bool:
        env = self.env
        if env.done:
            self.reset(None, None)
            return False
        env.actions[...] = actions
        *arrays, infos = _checked(env, env.step(env.actions))
        self._keep(*arrays)
        self._hold(infos, is_reset=False)
        return False

    def _keep(self, *arrays: Any) -> None:
        """Keep the rows of an environment: its buffers, or what it returned if it has none of its own."""
        env = self.env
        self._arrays = (env.observations, env.rewards, env.terminals, env.truncations) if self._has_buffers else arrays

    def _hold(self, infos: Any, *, is_reset: bool) -> None:
        index = None if self.multi_agent else 0
        infos = [infos] if isinstance(infos, Mapping) else infos or ()  # pufferlib-core allows one dict
        self.infos = [(index, copy_value(dict(info))) for info in infos if info]
        if self._has_teacher and (is_reset or self.env.teacher_actions.any()):
            self.infos.append((index, {TEACHER_ACTIONS: np.array(self.env.teacher_actions)}))

    def write_observations(self, rows: Rows) -> None:
        rows.observations[...] = self._arrays[0]

    def write_outcome(self, rows: Rows) -> None:
        _, rows.rewards[...], rows.terminations[...], rows.truncations[...] = self._arrays
        rows.masks[...] = self.env.masks
