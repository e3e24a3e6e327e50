"""Environments that are vectorized already, Gymnasium's, ALE's and EnvPool's: one environment whose copies are rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from pufferlib.emulation.common import observation_writer
from pufferlib.emulation.infos import add_episode, own
from pufferlib.emulation.rows import HeldRows, Rows
from pufferlib.emulation.single_agent import Resetter, own_space
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.layout.pack import fills

__all__ = ["VectorRows", "is_vectorized"]

Array = np.ndarray[Any, Any]
Infos = dict[str, Any]

MODES = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}
FINAL_OBS = ("final_obs", "final_observation")  # Gymnasium's name, and that of 0.29
# Not told: the copies of a batch, which are all of them in order, and what has a place of its own.
UNTOLD = {"env_id", "agent_id", "final_info", *FINAL_OBS}
LARGEST_SEED = 2**31 - 1  # of ALE's copies
ENVPOOL_SEED = 42  # which envpool.make takes where it is given none
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def is_vectorized(env: Any) -> bool:
    """Return whether env is a vector environment, by its class or by what it has."""
    if isinstance(env, type):
        return False
    if isinstance(env, gymnasium.Wrapper):  # Gymnasium 0.29 warns when attributes are asked for through one
        env = env.unwrapped
    return isinstance(env, gymnasium.vector.VectorEnv) or (
        isinstance(getattr(env, "single_observation_space", None), gymnasium.Space)
        and isinstance(getattr(env, "single_action_space", None), gymnasium.Space)
        and isinstance(getattr(env, "num_envs", None), (int, np.integer))
    )


class VectorRows(HeldRows):
    """A vector environment as one environment of ``num_envs`` rows, one a copy.

    Its copies start again by themselves, each in its own time, so that the environment as a whole is never over. How
    they do that is theirs: ``autoreset_mode``, which is what ``metadata["autoreset_mode"]`` says, and where that says
    nothing next_step, or same_step before Gymnasium 1.0.

    - next_step: the row after a copy's last one is its first: mask False, reward 0, no flags, its action ignored.
    - same_step: the row of the last transition shows the next episode's first observation, its info has ``final_obs``
      (a flat row) and ``final_info``.
    - disabled: copies that end are reset at once, by ``reset(options={"reset_mask": …})``, and told of as in same_step.

    Infos: a copy's end adds ``{"env": True, "episode": {"r", "l", "t"}}`` to those of its place. What Gymnasium's infos
    mask ("x" beside "_x") is told of the places that it is masked for. Arrays without a mask, which ALE and EnvPool
    give in every step, stay together: one dict of the environment, {"lives": (num_envs,) int32, …}.

    A seed reaches the copies as the vector environment spreads it: seed, seed + 1, …; EnvPool's are fixed when it is
    made. ``reset(options={"reset_mask": …})`` leaves the episodes of the other copies as they are.

    Raises SpaceError where a batch does not hold all copies (a ``batch_size`` of EnvPool or ALE) or fit the spaces.
    """

    def __init__(self, env: Any, *, check: str = "first", **bounds: Any) -> None:
        self.env = env
        self._name = type(getattr(env, "unwrapped", env)).__name__
        if hasattr(env, "agents_per_env"):
            raise SpaceError(f"{self._name} steps environments for pufferlib; pass what makes one of them instead")
        self.num_agents = num = int(env.num_envs)
        self.multi_agent = True
        self.autoreset_mode = _autoreset_mode(env)
        space = own_space(env.single_observation_space)
        self.observation_layout = observation_layout(space, **bounds)
        self.action_layout = action_layout(own_space(env.single_action_space), **bounds)
        self.observation_layouts = (self.observation_layout,) * num
        self.action_layouts = (self.action_layout,) * num
        self.observation_space = self.observation_layout.flat_space
        self.action_space = self.action_layout.flat_space
        self.infos = []
        self._batched = batch_space(space, num)
        self._shape = (num, *self.observation_layout.shape) if self.observation_layout.is_leaf else None
        self._write = _writer(self.observation_layout, self._batched, num)
        self._read = _reader(self.action_layout, num)
        self._reset = _EnvPoolReset(env) if _is_envpool(env) else Resetter(env, self._name)
        self._step = env.step
        if type(env) in (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv):
            env.copy = False  # observations go into rows before the next ones are made: its own copy is one too many
        self._always = check == "always"
        self._check_reset = self._check_step = True
        self._observations: Any = None
        self._rewards: Any = 0.0
        self._terminations: Any = False
        self._truncations: Any = False
        self._masks: Any = False
        self._due: Array | None = None  # copies that ended in the last step and start again in the next
        self._frames: Any = None  # ALE's count of the frames of each copy's episode
        self._tick = 0
        self._returns = np.zeros(num, np.float64)
        self._births = np.zeros(num, np.int64)  # the tick of each episode's first row
        self._starts_s = np.zeros(num, np.float64)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        mask = None if options is None else options.get("reset_mask")
        fresh = np.ones(self.num_agents, np.bool_) if mask is None else np.array(mask, np.bool_)
        if seed is not None and seed <= LARGEST_SEED < seed + self.num_agents - 1:
            seed -= self.num_agents  # the last copy's must not be too large
        observations, infos = self._reset(seed, options)
        self._hold(observations, infos, self._check_reset)
        self._check_reset = self._always
        self._rewards, self._terminations, self._truncations, self._masks = 0.0, False, False, False
        self._begin(fresh)
        if self._due is not None:
            self._due &= ~fresh
        self.infos = _listed(*_split(infos))

    def step(self, actions: Any) -> bool:
        observations, rewards, terminations, truncations, infos = self._step(self._read(actions))
        rewards, terminations, truncations = np.asarray(rewards), np.asarray(terminations), np.asarray(truncations)
        if not rewards.shape == terminations.shape == truncations.shape == (self.num_agents,):
            raise SpaceError(
                f"{self._name}.step returned rewards of shape {rewards.shape}, terminations of {terminations.shape} "
                f"and truncations of {truncations.shape}; expected ({self.num_agents},), one for each copy"
            )
        for flags in (terminations, truncations):
            if flags.dtype.kind != "b" and not (flags.dtype.kind in "iuf" and ((flags == 0) | (flags == 1)).all()):
                raise SpaceError(
                    f"{self._name}.step returned the flags {flags!r:.80}; expected bools, one for each copy"
                )
        self._tick += 1
        self._masks = True
        if self._due is not None:
            started = self._started(self._due, infos)
            masks = self._masks = ~started
            rewards = np.where(started, 0, rewards)
            terminations, truncations = terminations & masks, truncations & masks
        self._hold(observations, infos, self._check_step)
        self._check_step = self._always
        self._rewards, self._terminations, self._truncations = rewards, terminations, truncations
        self._returns += rewards
        if np.count_nonzero(terminations) or np.count_nonzero(truncations):
            self._end(np.logical_or(terminations, truncations), infos)
        else:
            self.infos = _listed(*_split(infos)) if infos else []
        return False

    def write_observations(self, rows: Rows) -> None:
        self._write(self._observations, rows)

    def _hold(self, observations: Any, infos: Infos, check: bool) -> None:
        shape = getattr(observations, "shape", None)
        reshaped = self._shape is not None and shape != self._shape
        if reshaped and not (shape and fills(shape, self.observation_layout.shape, self.num_agents)):
            raise SpaceError(
                f"{self._name} returned observations of {getattr(observations, 'shape', type(observations).__name__)}; "
                f"expected {self._shape}, all {self.num_agents} copies in each batch: make it without a batch_size "
                "of its own, and with one player a copy"
            )
        if check:
            try:
                samples = list(iterate(self._batched, observations))
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise SpaceError(
                    f"{self._name} returned observations that are no batch of its space: {error}"
                ) from error
            for place, sample in enumerate(samples):
                try:
                    self.observation_layout.check(sample)
                except SpaceError as error:
                    raise SpaceError(f"copy {place} of {self._name}: {error}") from None
            ids = infos.get("env_id")
            if ids is not None and "_env_id" not in infos and list(ids) != list(range(self.num_agents)):
                raise SpaceError(f"{self._name} returned the copies {ids}; expected all {self.num_agents}, in order")
        self._observations = observations.reshape(self._shape) if reshaped else observations
        self._frames = infos.get("episode_frame_number")

    def _begin(self, places: Array) -> None:
        """Begin the statistics of the episodes whose first rows are at these places, in this tick."""
        self._returns[places] = 0.0
        self._births[places] = self._tick
        self._starts_s[places] = perf_counter()

    def _started(self, due: Array, infos: Infos) -> Array:
        """Return which of the copies that ended in the last step have started again in this one.

        All, but for ALE's with ``life_loss_info``: it flags the end of a life, and then plays on.
        """
        self._due = None
        self._begin(due)
        frames = infos.get("episode_frame_number")
        if frames is None or self._frames is None:
            return due
        went_on = due & (frames > self._frames)
        self._births[went_on] -= 1
        started: Array = due & ~went_on
        return started

    def _end(self, ended: Array, infos: Infos) -> None:
        """Take the ends of this step into the infos, and have those copies start again if they do not by themselves."""
        common, told = _split(infos)
        places = np.flatnonzero(ended).tolist()
        if self.autoreset_mode == "next_step":
            for place in places:
                self._add_end(told.setdefault(place, {}), place)
            self._due = ended
            self.infos = _listed(common, told)
            return
        finals: dict[int, Any] = {}
        if self.autoreset_mode == "same_step":
            lasts = {place: _picked(infos.get("final_info", {}), place) for place in places}
            found = next((infos[name] for name in FINAL_OBS if name in infos), None)
            if found is not None:
                finals = {place: self.observation_layout.flatten(_picked(found, place)) for place in places}
        else:
            lasts = {place: told.pop(place, {}) for place in places}
            samples = list(iterate(self._batched, self._observations))
            finals = {place: self.observation_layout.flatten(samples[place]) for place in places}
            observations, infos = self._reset(None, {"reset_mask": ended.copy()})
            self._hold(observations, infos, False)
            now, firsts = _split(infos)
            common, told = {**common, **now}, {**told, **{place: firsts[place] for place in places if place in firsts}}
        for place in places:
            info, last = told.setdefault(place, {}), lasts[place]
            if "episode" in info:  # of a recorder around the vector environment
                last.setdefault("episode", info["episode"])
            self._add_end(last, place)
            info.update({key: last[key] for key in ("env", "episode")}, final_info=last)
            if place in finals:
                info["final_obs"] = finals[place]
        self._begin(ended)
        self.infos = _listed(common, told)

    def _add_end(self, info: Infos, place: int) -> None:
        info["env"] = True
        add_episode(info, self._returns[place], self._tick - self._births[place], self._starts_s[place])


class _EnvPoolReset:
    """Resets an EnvPool environment, whose seeds are fixed; says so once, where nobody has chosen them."""

    def __init__(self, env: Any) -> None:
        self._env = env
        config = getattr(getattr(env, "unwrapped", env), "config", {})
        self._warn = config.get("seed") == ENVPOOL_SEED

    def __call__(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        if seed is not None and self._warn:
            self._warn = False
            warnings.warn(
                f"EnvPool takes seeds when it is made: its episodes follow from envpool.make(seed={ENVPOOL_SEED}), the "
                "default; give envpool.make a seed, and each environment another",
                stacklevel=4,
            )
        return self._env.reset(options=options) if options else self._env.reset()


def _is_envpool(env: Any) -> bool:
    return any(base.__name__ == "EnvPoolMixin" for base in type(getattr(env, "unwrapped", env)).__mro__)


def _autoreset_mode(env: Any) -> str:
    """Return how a vector environment's copies start again. Raises SpaceError for a mode that nobody knows."""
    told = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if told is None:
        old = int(gymnasium.__version__.split(".")[0]) < 1 and not _is_envpool(env)
        return "same_step" if old else "next_step"
    try:
        return MODES[getattr(told, "value", told)]
    except (KeyError, TypeError):
        raise SpaceError(
            f"{type(env).__name__}.metadata['autoreset_mode'] is {told!r}; expected a gymnasium.vector.AutoresetMode"
        ) from None


def _writer(layout: Layout, batched: gymnasium.Space[Any], num: int) -> Callable[[Any, Rows], None]:
    """Return write(observations, rows) for batches of a vector environment."""
    if layout.is_leaf:
        return lambda observations, rows: np.copyto(rows.observations, observations)
    if not _fixed(layout.space):
        write_row = observation_writer(layout, layout.flat_space, num)

        def write_each(observations: Any, rows: Rows) -> None:
            for sample, row in zip(iterate(batched, observations), rows.places, strict=True):
                write_row(sample, row)

        return write_each
    padded = sum(leaf.nbytes for leaf in layout.leaves) < layout.nbytes
    known: dict[int, tuple[Rows, list[tuple[tuple[Any, ...], Array]]]] = {}

    def write_leaves(observations: Any, rows: Rows) -> None:
        entry = known.get(id(rows))
        if entry is None:
            if len(known) >= 16:  # someone makes new rows each time; keeping them would keep their memory
                known.clear()
            entry = known[id(rows)] = (rows, list(_leaves(layout.unflatten(rows.observations))))
        if padded:
            rows.observations[...] = 0
        for path, target in entry[1]:
            source = observations
            for key in path:
                source = source[key]
            if source.shape != target.shape:
                if fills(source.shape, target.shape[1:], num):
                    np.copyto(target, source.reshape(target.shape))
                    continue
                raise SpaceError(f"observations at {path} have shape {source.shape}; expected {target.shape}")
            np.copyto(target, source)

    return write_leaves


def _reader(layout: ActionLayout, num: int) -> Callable[[Any], Any]:
    """Return read(rows) giving the actions as a vector environment takes them, its own to keep."""
    if layout.is_leaf:
        return lambda rows: rows.copy()
    space, unpack = layout.space, layout.unpack

    def read(rows: Any) -> Any:
        each = zip(*rows, strict=True) if isinstance(rows, tuple) else rows
        out: Any = create_empty_array(space, num)
        return concatenate(space, [unpack(row) for row in each], out)

    return read


def _fixed(space: gymnasium.Space[Any]) -> bool:
    """Return whether all leaves of a space have a fixed size, so that batches hold one array a leaf."""
    if isinstance(space, spaces.Dict):
        return all(map(_fixed, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return all(map(_fixed, space.spaces))
    return isinstance(space, LEAVES)


def _leaves(nested: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Array]]:
    if isinstance(nested, (dict, tuple)):
        for key, part in nested.items() if isinstance(nested, dict) else enumerate(nested):
            yield from _leaves(part, (*path, key))
    else:
        yield path, nested


def _split(infos: Infos) -> tuple[Infos, dict[int, Infos]]:
    """Return what a vector environment's infos say of all copies together, and of single places; owned."""
    common: Infos = {}
    told: dict[int, Infos] = {}
    for key, value in infos.items():
        if key in UNTOLD or _is_mask(key, infos):
            continue
        mask = infos.get(f"_{key}")
        if mask is not None:
            for place in np.flatnonzero(mask).tolist():
                told.setdefault(place, {})[key] = _picked(value, place)
        elif isinstance(value, dict):
            inner, parts = _split(value)
            if inner:
                common[key] = inner
            for place, part in parts.items():
                told.setdefault(place, {})[key] = part
        else:
            common[key] = own(value)
    return common, told


def _picked(value: Any, place: int) -> Any:
    """Return one place's share of a batched value, owned."""
    if isinstance(value, dict):
        return {
            key: _picked(item, place)
            for key, item in value.items()
            if not _is_mask(key, value) and (f"_{key}" not in value or value[f"_{key}"][place])
        }
    return own(value[place])


def _is_mask(key: str, infos: Infos) -> bool:
    return key[:1] == "_" and key[1:] in infos


def _listed(common: Infos, told: dict[int, Infos]) -> list[tuple[int | None, Infos]]:
    listed: list[tuple[int | None, Infos]] = [(None, common)] if common else []
    listed += [(place, told[place]) for place in sorted(told)]
    return listed
