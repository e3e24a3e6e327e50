"""Vector environments of Gymnasium, ALE and EnvPool as RowEnvs, with one row per copy of the environment."""

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
from pufferlib.emulation.infos import add_episode, copy_value
from pufferlib.emulation.rows import HeldRows, Rows
from pufferlib.emulation.single_agent import Resetter, own_space
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.layout.pack import fills
from pufferlib.util.annotations import Array, RowActions

__all__ = ["VectorRows", "is_vectorized"]

Infos = dict[str, Any]

MODES = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}
FINAL_OBS = ("final_obs", "final_observation")  # Gymnasium's name since 1.0, and the one in 0.29
# Keys left out of infos: the ids in a batch, which are always all in order, and values handled separately.
SKIPPED = {"env_id", "agent_id", "final_info", *FINAL_OBS}
LARGEST_SEED = 2**31 - 1  # the largest seed that ALE's copies accept
ENVPOOL_SEED = 42  # the default of envpool.make
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def is_vectorized(env: object) -> bool:
    """Return whether env is a vector environment, judged by its class or its attributes."""
    if isinstance(env, type):
        return False
    if isinstance(env, gymnasium.Wrapper):  # Gymnasium 0.29 warns about attributes read through one
        env = env.unwrapped
    return isinstance(env, gymnasium.vector.VectorEnv) or (
        isinstance(getattr(env, "single_observation_space", None), gymnasium.Space)
        and isinstance(getattr(env, "single_action_space", None), gymnasium.Space)
        and isinstance(getattr(env, "num_envs", None), (int, np.integer))
    )


class VectorRows(HeldRows):
    """A vector environment as one environment with ``num_envs`` rows, one per copy.

    A copy's next episode starts without a reset by the caller, so the environment as a whole is never over.
    ``autoreset_mode`` determines how the next episode starts. The mode is ``metadata["autoreset_mode"]``. If that is
    missing, the mode of an EnvPool environment is next_step. The mode of any other environment is then same_step before
    Gymnasium 1.0, and next_step from 1.0 on.

    - next_step: after the last row of an episode, the copy's next row is the first of its next episode, with mask
      False, reward 0 and no flags; the action is ignored.
    - same_step: the row of the last transition holds the next episode's first observation, and its info has
      ``final_info`` and, if the vector environment returns the last observation, ``final_obs`` (a flat row).
    - disabled: copies whose episodes end are reset at once, by ``reset(options={"reset_mask": …})``, with infos as in
      same_step.

    Infos: the end of an episode adds ``{"env": True, "episode": {"r", "l", "t"}}`` to the copy's info. Values with a
    mask in Gymnasium's infos ("x" with "_x") go to the infos of the copies in the mask. Arrays without a mask, which
    ALE and EnvPool return in every step, stay together in one dict for the whole environment, {"lives": (num_envs,)
    int32, …}.

    The vector environment distributes a seed to its copies: seed, seed + 1, …; EnvPool's seeds are fixed when it is
    created. ``reset(options={"reset_mask": …})`` leaves the episodes of the copies outside the mask unchanged.

    check, bounds: as for ``wrap``.

    Raises SpaceError if a batch does not hold all copies (EnvPool or ALE with a ``batch_size``) or does not fit the
    spaces, for rewards or flags of the wrong shape, for flags that are neither bools nor 0 or 1, and for an unknown
    autoreset mode.
    """

    def __init__(self, env: Any, *, check: str = "first", **bounds: Any) -> None:
        self.env = env
        self._name = type(getattr(env, "unwrapped", env)).__name__
        if hasattr(env, "agents_per_env"):
            raise SpaceError(f"{self._name} steps environments for pufferlib; pass a function that makes one instead")
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
            env.copy = False  # observations go into rows before the next step: no copy is needed
        self._always = check == "always"
        self._check_reset = self._check_step = True
        self._observations: Any = None
        self._rewards, self._terminations, self._truncations, self._masks = 0.0, False, False, False
        self._due: Array | None = None  # copies that ended in the last step and start again in the next
        self._frames: Any = None  # ALE's frame count of each copy's episode
        self._tick = 0
        self._returns = np.zeros(num, np.float64)
        self._first_ticks = np.zeros(num, np.int64)  # the tick of each episode's first row
        self._starts_s = np.zeros(num, np.float64)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        mask = None if options is None else options.get("reset_mask")
        fresh = np.ones(self.num_agents, np.bool_) if mask is None else np.array(mask, np.bool_)
        if seed is not None and seed <= LARGEST_SEED < seed + self.num_agents - 1:
            seed -= self.num_agents  # the last copy's seed must not be too large
        observations, infos = self._reset(seed, options)
        self._hold(observations, infos, self._check_reset)
        self._check_reset = self._always
        self._rewards, self._terminations, self._truncations, self._masks = 0.0, False, False, False
        self._begin(fresh)
        if self._due is not None:
            self._due &= ~fresh
        self.infos = _listed(*_split(infos))

    def step(self, actions: RowActions) -> bool:
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
                f"expected {self._shape}, all {self.num_agents} copies in each batch: create it without a "
                "batch_size, and with one player a copy"
            )
        if check:
            try:
                samples = list(iterate(self._batched, observations))
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise SpaceError(
                    f"{self._name} returned observations that are not a batch of its space: {error}"
                ) from error
            for copy_index, sample in enumerate(samples):
                try:
                    self.observation_layout.check(sample)
                except SpaceError as error:
                    raise SpaceError(f"copy {copy_index} of {self._name}: {error}") from None
            ids = infos.get("env_id")
            if ids is not None and "_env_id" not in infos and list(ids) != list(range(self.num_agents)):
                raise SpaceError(f"{self._name} returned the copies {ids}; expected all {self.num_agents}, in order")
        self._observations = observations.reshape(self._shape) if reshaped else observations
        self._frames = infos.get("episode_frame_number")

    def _begin(self, copies: Array) -> None:
        """Reset the statistics of copies whose episodes begin in this tick. copies: (num_envs,) bool."""
        self._returns[copies] = 0.0
        self._first_ticks[copies] = self._tick
        self._starts_s[copies] = perf_counter()

    def _started(self, due: Array, infos: Infos) -> Array:
        """Reset the statistics of ``due``, and return which copies started a new episode in this step.

        due: the copies that ended in the last step. All of these copies have started new episodes, except with ALE's
        ``life_loss_info``, which flags the loss of a life although the game continues. due and the result are masks,
        bool (num_envs,).
        """
        self._due = None
        self._begin(due)
        frames = infos.get("episode_frame_number")
        if frames is None or self._frames is None:
            return due
        went_on = due & (frames > self._frames)
        self._first_ticks[went_on] -= 1
        started: Array = due & ~went_on
        return started

    def _end(self, ended: Array, infos: Infos) -> None:
        """Store the infos of a step in which episodes ended, with their statistics, as the class describes.

        In mode disabled, also resets the copies whose episodes ended and holds their first observations. ended:
        (num_envs,) bool, the copies whose episodes ended.
        """
        common, by_copy = _split(infos)
        copies = np.flatnonzero(ended).tolist()
        if self.autoreset_mode == "next_step":
            for copy_index in copies:
                self._add_end(by_copy.setdefault(copy_index, {}), copy_index)
            self._due = ended
            self.infos = _listed(common, by_copy)
            return
        finals: dict[int, Any] = {}
        if self.autoreset_mode == "same_step":
            lasts = {index: _picked(infos.get("final_info", {}), index) for index in copies}
            observations = next((infos[name] for name in FINAL_OBS if name in infos), None)
            if observations is not None:
                finals = {index: self.observation_layout.flatten(_picked(observations, index)) for index in copies}
        else:
            lasts = {index: by_copy.pop(index, {}) for index in copies}
            samples = list(iterate(self._batched, self._observations))
            finals = {index: self.observation_layout.flatten(samples[index]) for index in copies}
            observations, infos = self._reset(None, {"reset_mask": ended.copy()})
            self._hold(observations, infos, False)
            new_common, firsts = _split(infos)
            common = {**common, **new_common}
            by_copy = {**by_copy, **{index: firsts[index] for index in copies if index in firsts}}
        for index in copies:
            info, last = by_copy.setdefault(index, {}), lasts[index]
            if "episode" in info:  # from a recorder around the vector environment
                last.setdefault("episode", info["episode"])
            self._add_end(last, index)
            info.update({key: last[key] for key in ("env", "episode")}, final_info=last)
            if index in finals:
                info["final_obs"] = finals[index]
        self._begin(ended)
        self.infos = _listed(common, by_copy)

    def _add_end(self, info: Infos, index: int) -> None:
        info["env"] = True
        add_episode(info, self._returns[index], self._tick - self._first_ticks[index], self._starts_s[index])


class _EnvPoolReset:
    """A callable that resets an EnvPool environment, whose seeds were fixed when it was created.

    It ignores a seed, and warns once if EnvPool uses its default seed.
    """

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


def _is_envpool(env: object) -> bool:
    return any(base.__name__ == "EnvPoolMixin" for base in type(getattr(env, "unwrapped", env)).__mro__)


def _autoreset_mode(env: object) -> str:
    """Return a vector environment's autoreset mode. Raises SpaceError for an unknown one."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        old = int(gymnasium.__version__.split(".")[0]) < 1 and not _is_envpool(env)
        return "same_step" if old else "next_step"
    try:
        return MODES[getattr(mode, "value", mode)]
    except (KeyError, TypeError):
        raise SpaceError(
            f"{type(env).__name__}.metadata['autoreset_mode'] is {mode!r}; expected a gymnasium.vector.AutoresetMode"
        ) from None


def _writer(layout: Layout, batched: gymnasium.Space[Any], num: int) -> Callable[[Any, Rows], None]:
    """Return a function ``write(observations, rows)`` that copies a vector environment's observations into rows."""
    if layout.is_leaf:
        return lambda observations, rows: np.copyto(rows.observations, observations)
    if not _fixed(layout.space):
        write_row = observation_writer(layout, layout.flat_space, num)

        def write_each(observations: Any, rows: Rows) -> None:
            for sample, row in zip(iterate(batched, observations), rows.places, strict=True):
                write_row(sample, row)

        return write_each
    padded = sum(leaf.nbytes for leaf in layout.leaves) < layout.nbytes
    cache: dict[int, tuple[Rows, list[tuple[tuple[Any, ...], Array]]]] = {}

    def write_leaves(observations: Any, rows: Rows) -> None:
        entry = cache.get(id(rows))
        if entry is None:
            if len(cache) >= 16:  # a caller passes new rows each time, and the cache keeps them alive
                cache.clear()
            entry = cache[id(rows)] = (rows, list(_leaves(layout.unflatten(rows.observations))))
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
    """Return a function ``read(rows)`` that copies action rows into the form that a vector environment takes."""
    if layout.is_leaf:
        return lambda rows: rows.copy()
    space, unpack = layout.space, layout.unpack

    def read(rows: RowActions) -> object:
        action_rows = zip(*rows, strict=True) if isinstance(rows, tuple) else rows
        out: Any = create_empty_array(space, num)
        return concatenate(space, [unpack(row) for row in action_rows], out)

    return read


def _fixed(space: gymnasium.Space[Any]) -> bool:
    """Return whether all leaves of a space have a fixed size, so that a batch holds one array per leaf."""
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
    """Split a vector environment's infos into (common, by_copy).

    common: the values without a mask. by_copy: one info per copy that has values, by the copy's index. The masks
    themselves and the keys in SKIPPED are left out. The results share no arrays with the infos.
    """
    common: Infos = {}
    by_copy: dict[int, Infos] = {}
    for key, value in infos.items():
        if key in SKIPPED or _is_mask(key, infos):
            continue
        mask = infos.get(f"_{key}")
        if mask is not None:
            for index in np.flatnonzero(mask).tolist():
                by_copy.setdefault(index, {})[key] = _picked(value, index)
        elif isinstance(value, dict):
            inner, parts = _split(value)
            if inner:
                common[key] = inner
            for index, part in parts.items():
                by_copy.setdefault(index, {})[key] = part
        else:
            common[key] = copy_value(value)
    return common, by_copy


def _picked(value: Any, index: int) -> Any:
    """Return the part of a batched value that belongs to the copy ``index``; it shares no arrays with the value."""
    if isinstance(value, dict):
        return {
            key: _picked(item, index)
            for key, item in value.items()
            if not _is_mask(key, value) and (f"_{key}" not in value or value[f"_{key}"][index])
        }
    return copy_value(value[index])


def _is_mask(key: str, infos: Infos) -> bool:
    return key[:1] == "_" and key[1:] in infos


def _listed(common: Infos, by_copy: dict[int, Infos]) -> list[tuple[int | None, Infos]]:
    listed: list[tuple[int | None, Infos]] = [(None, common)] if common else []
    listed += [(index, by_copy[index]) for index in sorted(by_copy)]
    return listed
