"""``PufferEnv``: the base class of environments that write their rows in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import gymnasium
import numpy as np

from pufferlib.errors import CallError
from pufferlib.util import compat_names

__all__ = ["PufferEnv"]

__getattr__ = partial(compat_names.member, __name__)  # the names that PufferLib has here

Infos = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class PufferEnv:
    """The base class of environments that write a fixed number of rows in place, one row per agent.

    A subclass sets ``single_observation_space`` and ``single_action_space`` (for one agent; each a Box, Discrete,
    MultiDiscrete or MultiBinary), sets ``num_agents`` if it is not 1, and defines ``reset`` and ``step``:

        class Countdown(pufferlib.PufferEnv):
            single_observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
            single_action_space = gymnasium.spaces.Discrete(2)

            def reset(self, seed=None, options=None):
                super().reset(seed=seed)
                self.left = 10
                self.observations[:] = 1

            def step(self, actions):
                self.left -= 1
                self.observations[:] = self.left / 10
                self.rewards[:] = actions == 0
                self.terminations[:] = self.left == 0

    Before each ``reset`` or ``step``, ``rewards``, ``terminations`` and ``truncations`` are zeroed; before ``reset``,
    all agents are also marked ``alive``. After a step, agents that terminated or were truncated are no longer alive.
    The episode is over when no agent is alive. An environment whose agents come and go also writes ``alive``;
    pufferlib then zeroes the rows of absent agents.

    An environment may step many copies of a game with a few NumPy calls, one row per copy. A copy that ended in one
    step restarts in the next; its action, reward and flags in the step that restarts it are ignored. ``reset`` starts
    all copies; it is called automatically if all copies ended in the same step:

            def step(self, actions):
                fresh = ~self.alive
                self.left -= 1
                self.left[fresh] = 10
                self.alive[:] = True
                self.observations[:, 0] = self.left / 10
                self.rewards[:] = actions == 0
                self.terminations[:] = self.left == 0

    ``reset`` and ``step`` return infos: None, one dict (the environment's; with one agent, that agent's), or a sequence
    of ``num_agents`` dicts.

    ``pufferlib.wrap(env)`` returns a PufferEnv as a Gymnasium environment or, if it has several agents, as a PettingZoo
    environment. Without ``wrap``, ``step`` raises CallError unless the actions' shape is (num_agents, …), and ``reset``
    returns an empty dict in place of None. Unpacking this dict raises CallError.
    """

    single_observation_space: gymnasium.Space[Any]  # of one agent
    single_action_space: gymnasium.Space[Any]  # of one agent
    num_agents: int = 1  # the number of rows
    metadata: ClassVar[Mapping[str, Any]] = {"render_modes": []}  # as in Gymnasium
    render_mode: str | None = None  # the format that ``render`` returns
    spec: Any = None  # Gymnasium's EnvSpec, if the environment is registered

    def __new__(cls, *args: Any, **kwargs: Any) -> PufferEnv:
        """Create an environment with guards: methods around ``reset`` and ``step`` that detect Gymnasium-style use.

        The errors that the guards raise say how to use a PufferEnv. The guards are attributes of the instance. ``hold``
        deletes them, so that they cost nothing in environments that pufferlib steps. Classes that define how their
        instances are copied get no guards: a copy might hold methods bound to the original.
        """
        env = super().__new__(cls)
        if not any(hasattr(cls, name) for name in ("__setstate__", "__copy__", "__deepcopy__")):
            object.__setattr__(env, "reset", object.__getattribute__(env, "_reset_alone"))
            object.__setattr__(env, "step", object.__getattribute__(env, "_step_alone"))
        return env

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare environments of PufferLib 2 and 3; for others, pass the arguments on to the next base class.

        An environment is written for PufferLib if a constructor of its classes below PufferEnv has the parameter
        ``buf``, if their methods use an attribute ``terminals`` and none ``terminations``, or if there is no further
        base class and its class passes arguments here. It then gets the buffers and methods that PufferLib's PufferEnv
        has. For any other environment without a further base class, this does nothing.
        """
        next_init: Any = super().__init__
        is_last = getattr(next_init, "__objclass__", None) is object
        if _is_for_pufferlib(type(self)) or (is_last and (args or kwargs)):
            compat_names.member("pufferlib.environment", "adopt")(self, *args, **kwargs)
        elif not is_last:
            next_init(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the reduced form for copies and pickles, without the guards, which are bound to this environment."""
        reduced = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3:
            return reduced
        state, *slots = reduced[2] if isinstance(reduced[2], tuple) else (reduced[2],)
        if isinstance(state, dict):
            state = {name: value for name, value in state.items() if not _is_guard(value)}
        return (*reduced[:2], (state, *slots) if slots else state, *reduced[3:])

    @cached_property
    def observations(self) -> np.ndarray[Any, Any]:
        """The agents' observations, (num_agents, \\*single_observation_space.shape); not cleared between steps."""
        space = self.single_observation_space
        assert space.shape is not None
        return np.zeros((self.num_agents, *space.shape), space.dtype)

    @cached_property
    def rewards(self) -> np.ndarray[Any, Any]:
        """The agents' rewards in the last step, (num_agents,) float64; zeroed before each reset and step."""
        return np.zeros(self.num_agents, np.float64)

    @cached_property
    def terminations(self) -> np.ndarray[Any, Any]:
        """Whether each agent terminated in the last step, (num_agents,) bool; False before each reset and step."""
        return np.zeros(self.num_agents, np.bool_)

    @cached_property
    def truncations(self) -> np.ndarray[Any, Any]:
        """Whether each agent was truncated in the last step, (num_agents,) bool; False before each reset and step."""
        return np.zeros(self.num_agents, np.bool_)

    @cached_property
    def alive(self) -> np.ndarray[Any, Any]:
        """Whether each agent is alive, so that its next action counts, (num_agents,) bool."""
        return np.ones(self.num_agents, np.bool_)

    @cached_property
    def np_random(self) -> np.random.Generator:
        """The environment's random number generator; ``super().reset(seed=seed)`` seeds it."""
        return np.random.default_rng()

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Infos:
        """Start an episode. A subclass's ``reset`` calls this one first, which seeds ``np_random`` unless seed is None.

        options: the caller's, for subclasses; this method ignores them.
        """
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        return None

    def step(self, actions: np.ndarray[Any, Any]) -> Infos:
        """Play one step. actions: (num_agents, \\*single_action_space.shape), valid only during the call."""
        raise NotImplementedError(f"{type(self).__name__} must write step(actions)")

    def render(self) -> Any:
        """Return the rendering that ``render_mode`` selects.

        The rendering is a str for "ansi", and an image, uint8 (height, width, 3), for "rgb_array".
        Returns None unless a subclass overrides it.
        """
        return None

    def close(self) -> None:
        """Release resources. Does nothing unless a subclass overrides it."""

    def _reset_alone(self, *args: Any, **kwargs: Any) -> Any:
        infos = type(self).reset(self, *args, **kwargs)
        return _NoObservation(_how_to_hold(self)) if infos is None else infos

    def _step_alone(self, *args: Any, **kwargs: Any) -> Infos:
        expected = _actions_shape(self)
        if args and expected is not None and not _has_shape(args[0], expected):
            came = f"shape {args[0].shape}" if isinstance(args[0], np.ndarray) else f"{args[0]!r:.80}"
            raise CallError(f"step takes an array of actions of shape {expected}, got {came}: {_how_to_hold(self)}")
        return type(self).step(self, *args, **kwargs)


class _NoObservation(dict[str, Any]):
    """The empty dict that an unwrapped PufferEnv's ``reset`` returns in place of None.

    Unpacking it, or indexing it with an int, raises CallError.
    """

    def __init__(self, advice: str) -> None:
        super().__init__()
        self._advice = advice

    def __iter__(self) -> Iterator[str]:
        if not self:
            raise CallError(f"reset returned no observation: {self._advice}")
        return super().__iter__()

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int):
            raise CallError(f"reset returned no observation: {self._advice}")
        raise KeyError(key)

    def __repr__(self) -> str:
        return super().__repr__() if self else f"<no observation: {self._advice}>"

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)


def _is_for_pufferlib(kind: type) -> bool:
    below = kind.__mro__[: kind.__mro__.index(PufferEnv)]
    codes = [getattr(vars(base).get("__init__"), "__code__", None) for base in below]
    if any(code and "buf" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] for code in codes):
        return True
    names = attributes_used(kind)
    return "terminals" in names and not {"terminations", "buf"} & names


def attributes_used(kind: type, base: type = PufferEnv) -> set[str]:
    """Return the names of attributes and globals that the methods of a class and its bases below ``base`` use."""
    below = kind.__mro__[: kind.__mro__.index(base)]
    methods = [getattr(member, "__code__", None) for base in below for member in vars(base).values()]
    return {name for code in methods if code for name in code.co_names}


def hold(env: PufferEnv) -> None:
    """Remove the guards on ``reset`` and ``step``, for code that steps the environment as PufferEnv documents.

    If there were guards, also removes the guards of other PufferEnvs: those that are attributes of the environment, and
    those in an attribute that is a list, a tuple or a dict.
    """
    was_guarded = False
    attributes = object.__getattribute__(env, "__dict__")  # of itself, if it passes on those of another
    for name in ("reset", "step"):
        if _is_guard(attributes.get(name)):
            del attributes[name]
            was_guarded = True
    if was_guarded:
        for value in list(attributes.values()):
            parts = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            )
            for part in parts:
                if isinstance(part, PufferEnv):
                    hold(part)


def _is_guard(value: Any) -> bool:
    return getattr(value, "__func__", None) in (PufferEnv._reset_alone, PufferEnv._step_alone)


def _has_shape(actions: Any, shape: tuple[int, ...]) -> bool:
    try:
        return bool(np.shape(actions) == shape)
    except ValueError:  # ragged lists
        return False


def _actions_shape(env: PufferEnv) -> tuple[int, ...] | None:
    space = getattr(env, "single_action_space", None)
    return None if space is None or space.shape is None else (env.num_agents, *space.shape)


def _how_to_hold(env: PufferEnv) -> str:
    name, alone = type(env).__name__, env.num_agents == 1
    kind = "a Gymnasium" if alone else "a PettingZoo"
    return (
        f"{name} is a PufferEnv, which writes its rows in place (env.observations, env.rewards, …); "
        f"pufferlib.wrap(env) returns it as {kind} environment, pufferlib.make({name}, num_envs=…) vectorizes it"
    )
