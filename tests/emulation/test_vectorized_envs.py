"""Environments that are vectorized already: each copy a row, its ends told once, its first rows masked."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
import warnings
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from matrix import covering
from row_tools import reset, step

import pufferlib
from pufferlib.emulation import emulate, wrap
from pufferlib.errors import PlanError, SpaceError

pytestmark = pytest.mark.beside

MODES = ("next_step", "same_step", "disabled")
GYMNASIUM_MODES = {"next_step": "NextStep", "same_step": "SameStep", "disabled": "Disabled"}
HAS_MODES = hasattr(gymnasium.vector, "AutoresetMode")  # from Gymnasium 1.1 on
ATARI = importlib.util.find_spec("ale_py") is not None


def length_of(copy: int, episode: int) -> int:
    """How long an episode lasts: from one step to six, and now and then in all copies at once."""
    return 1 + (copy * 2 + episode * 3) % 6


def is_truncated(copy: int, episode: int) -> bool:
    return (copy + episode) % 2 == 1


class Copies(gymnasium.vector.VectorEnv):  # type: ignore[type-arg]
    """Copies that see (copy, episode, tick) and are rewarded by their action and tick. It writes into live buffers.

    form: "masked" infos as Gymnasium gives them, "dense" ones as ALE and EnvPool do, or "nothing". With dense infos it
    leaves rewards and flags in first rows as well, which belong to no transition.
    """

    single_observation_space = spaces.Box(-1, 1000, (3,), np.float32)
    single_action_space = spaces.Discrete(5)

    def __init__(self, num_envs: int = 4, mode: str = "next_step", form: str = "masked") -> None:
        self.num_envs = num_envs
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.mode, self.form = mode, form
        self.metadata = {"autoreset_mode": GYMNASIUM_MODES[mode]}
        self.episodes, self.ticks = np.zeros((2, num_envs), np.int64)
        self.over = np.zeros(num_envs, np.bool_)
        self.buffer = np.zeros((num_envs, 3), np.float32)
        self.seeds: list[Any] = []
        self.is_closed = False

    def see(self) -> Any:
        self.buffer[:] = np.stack([np.arange(self.num_envs), self.episodes, self.ticks], 1)
        return self.buffer

    def start(self, places: Any) -> None:
        self.episodes[places] += 1
        self.ticks[places] = 0
        self.over[places] = False

    def infos(self, **masked: Any) -> dict[str, Any]:
        if self.form == "dense":
            ids = np.arange(self.num_envs, dtype=np.int32)
            return {"env_id": ids, "players": {"env_id": ids}, "lives": self.ticks, "inner": {"tick": self.ticks}}
        infos: dict[str, Any] = {}
        if self.form == "masked":
            noted = (self.ticks + self.episodes) % 3 == 0
            infos = {"note": np.where(noted, self.ticks, 0), "_note": noted}
        return infos | masked

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        mask = (options or {}).get("reset_mask")
        self.start(np.ones(self.num_envs, np.bool_) if mask is None else mask)
        infos = self.infos()
        if self.form == "masked" and mask is not None:
            infos["_note"] = infos["_note"] & mask
        return self.see(), infos

    def step(self, actions: Any) -> Any:
        assert actions.dtype == np.int64 and actions.shape == (self.num_envs,)
        assert self.mode == "next_step" or not self.over.any()
        started = self.over.copy()
        self.start(started)
        self.ticks += ~started
        ended = np.array(
            [
                tick == length_of(copy, episode)
                for copy, (episode, tick) in enumerate(zip(self.episodes, self.ticks, strict=True))
            ]
        )
        truncated = np.array([is_truncated(copy, episode) for copy, episode in enumerate(self.episodes)])
        terminations, truncations = ended & ~truncated, ended & truncated
        rewards = np.where(started, 0.0, actions + self.ticks / 8)
        self.over = ended.copy()
        self.actions = actions
        if self.form == "dense":
            rewards, terminations, truncations = rewards + 9 * started, terminations | started, truncations | started
        if self.mode != "same_step" or not ended.any():
            return self.see(), rewards, terminations, truncations, self.infos()
        finals = np.full(self.num_envs, None, object)
        for index in np.flatnonzero(ended):
            finals[index] = self.see()[index].copy()
        last = {key: np.array(value) for key, value in self.infos().items()}
        self.start(ended)
        masked = {"final_obs": finals, "_final_obs": ended, "final_info": last, "_final_info": ended}
        if self.form == "dense":
            masked = {"final_obs": np.stack([f if f is not None else np.zeros(3, np.float32) for f in finals])}
        return self.see(), rewards, terminations, truncations, self.infos() | masked

    def close(self, **kwargs: Any) -> None:
        self.is_closed = True


class Flat(gymnasium.vector.VectorEnv):  # type: ignore[type-arg]
    """Copies that give an array (copies,) where the space of each is (1,), alone or in a Dict."""

    single_action_space = spaces.Discrete(2)
    action_space = spaces.MultiDiscrete([2, 2, 2])
    num_envs = 3

    def __init__(self, nested: bool) -> None:
        leaf = spaces.Box(0, 9, (1,), np.float32)
        self.nested = nested
        self.single_observation_space = spaces.Dict(a=leaf, b=spaces.Discrete(3)) if nested else leaf
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 3)

    def see(self) -> Any:
        array = np.arange(3, dtype=np.float32)
        return {"a": array, "b": np.array([[0], [1], [2]])} if self.nested else array

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.see(), {}

    def step(self, actions: Any) -> Any:
        return self.see(), np.zeros(3), np.zeros(3, bool), np.zeros(3, bool), {}


@pytest.mark.parametrize("nested", [False, True])
def test_axes_of_length_one_are_reshaped_with_a_warning(nested: bool) -> None:
    with pytest.warns(UserWarning, match="is reshaped to"), pufferlib.make(lambda: Flat(nested), num_envs=1) as vec:
        vec.reset()
        for _ in range(3):
            rows = vec.observation_layout.unflatten(vec.step(np.zeros(3, int))[0])
            assert (rows["a"] if nested else rows).tolist() == [[0], [1], [2]]
            assert not nested or rows["b"].tolist() == [0, 1, 2]


class Oracle:
    """What the rows of Copies must be, copy by copy and in plain Python."""

    def __init__(self, num: int, mode: str, form: str) -> None:
        self.num, self.mode, self.form = num, mode, form
        self.episodes, self.ticks, self.returns = [0] * num, [0] * num, [0.0] * num
        self.over = [False] * num

    def begin(self, copy: int) -> None:
        self.episodes[copy] += 1
        self.ticks[copy] = 0
        self.returns[copy] = 0.0
        self.over[copy] = False

    def said(self, copy: int) -> dict[str, Any]:
        tick = self.ticks[copy]
        return {"note": tick} if self.form == "masked" and (tick + self.episodes[copy]) % 3 == 0 else {}

    def common(self) -> list[Any]:
        return (
            [(None, {"lives": list(self.ticks), "inner": {"tick": list(self.ticks)}})] if self.form == "dense" else []
        )

    def reset(self, mask: Any = None) -> Any:
        for copy in range(self.num):
            if mask is None or mask[copy]:
                self.begin(copy)
        infos = [
            (copy, self.said(copy)) for copy in range(self.num) if (mask is None or mask[copy]) and self.said(copy)
        ]
        return [[*self.seen(copy), 0.0, False, False, False] for copy in range(self.num)], self.common() + infos

    def seen(self, copy: int) -> list[int]:
        return [copy, self.episodes[copy], self.ticks[copy]]

    def step(self, actions: Any) -> Any:
        rows, infos = [], []
        for copy, action in enumerate(actions):
            if self.over[copy]:
                self.begin(copy)
                rows.append([*self.seen(copy), 0.0, False, False, False])
                if self.said(copy):
                    infos.append((copy, self.said(copy)))
                continue
            self.ticks[copy] += 1
            reward = action + self.ticks[copy] / 8
            self.returns[copy] += reward
            ended = self.ticks[copy] == length_of(copy, self.episodes[copy])
            cut = is_truncated(copy, self.episodes[copy])
            info = self.said(copy)
            seen = self.seen(copy)
            if ended:
                end = {"env": True, "episode": {"r": self.returns[copy], "l": self.ticks[copy]}}
                if self.mode == "next_step":
                    info |= end
                    self.over[copy] = True
                else:
                    final = {"final_obs": seen, "final_info": {**info, **end}}
                    self.begin(copy)
                    info = {**self.said(copy), **end, **final}
                    seen = self.seen(copy)
            rows.append([*seen, reward, ended and not cut, ended and cut, True])
            if info:
                infos.append((copy, info))
        return rows, self.common() + infos


def plain(value: Any) -> Any:
    """Arrays as lists, and episodes without their seconds, however deep."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key != "t"}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def rows_of(held: Any) -> list[Any]:
    columns = (held.rewards, held.terminations, held.truncations, held.masks)
    return [
        list(row) for row in zip(*held.observations.T.tolist(), *(column.tolist() for column in columns), strict=True)
    ]


@pytest.mark.parametrize("form", ["masked", "dense", "nothing"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num", [1, 4, 7])
def test_rows_are_what_each_copy_did(mode: str, form: str, num: int) -> None:
    rows, oracle = emulate(Copies(num, mode, form), check="always"), Oracle(num, mode, form)
    assert (rows.num_agents, rows.autoreset_mode) == (num, mode)
    held, (expected, infos) = reset(rows, 3), oracle.reset()
    assert (rows_of(held), plain(held.infos)) == (expected, infos)
    for tick in range(60):
        actions = (np.arange(num) + tick) % 5
        (over, held), (expected, infos) = step(rows, actions), oracle.step(actions.tolist())
        assert not over
        assert rows_of(held) == expected
        assert plain(held.infos) == infos
    assert sum(oracle.episodes) > 10 * num  # there was something to see
    rows.close()
    assert rows.env.is_closed


def test_times_of_episodes_pass() -> None:
    rows = emulate(Copies(1))
    reset(rows)
    for _ in range(30):
        for _, info in step(rows, np.zeros(1, np.int64))[1].infos:
            if "episode" in info:
                assert 0 < info["episode"]["t"] < 60
                assert {type(value) for value in info["episode"].values()} == {int, float}


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_in_the_middle_starts_all_copies(mode: str) -> None:
    rows, oracle = emulate(Copies(4, mode)), Oracle(4, mode, "masked")
    for steps in (0, 1, 5, 2):
        held, (expected, infos) = reset(rows), oracle.reset()
        assert (rows_of(held), plain(held.infos)) == (expected, infos)
        for _ in range(steps):
            (_, held), (expected, infos) = step(rows, np.full(4, 2)), oracle.step([2] * 4)
            assert (rows_of(held), plain(held.infos)) == (expected, infos)


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_some_copies_goes_on_with_the_others(mode: str) -> None:
    rows, oracle = emulate(Copies(4, mode)), Oracle(4, mode, "masked")
    reset(rows), oracle.reset()
    for tick in range(40):
        (_, held), (expected, infos) = step(rows, np.full(4, 2)), oracle.step([2] * 4)
        assert (rows_of(held), plain(held.infos)) == (expected, infos)
        if tick % 3 == 0:
            mask = np.arange(4) == tick % 4
            held, (expected, infos) = reset(rows, None, {"reset_mask": mask}), oracle.reset(mask)
            assert (rows_of(held), plain(held.infos)) == (expected, infos)


def test_seeds_and_options_go_to_the_vector_environment() -> None:
    env = Copies(4)
    rows = emulate(env)
    for seed in (5, None, 2**31 - 1, 2**31 - 4, 2**31):
        rows.reset(seed, None)
    assert env.seeds == [5, None, 2**31 - 5, 2**31 - 4, 2**31]  # the last copy's seed must not be too large


def test_infos_and_rows_are_owned() -> None:
    env = Copies(3, form="dense")
    rows = emulate(env)
    held = reset(rows)
    env.ticks += 100
    env.buffer += 100
    assert held.infos[0][1]["lives"].tolist() == [0] * 3
    assert held.observations[:, 2].tolist() == [0] * 3


def test_actions_are_the_environments_to_keep() -> None:
    env = Copies(3)
    rows, actions = emulate(env), np.array([1, 2, 3])
    reset(rows)
    step(rows, actions)
    actions[:] = 0
    assert env.actions.tolist() == [1, 2, 3]


class NativeCopies(pufferlib.PufferEnv):
    """The same copies, as a PufferEnv that steps all of them itself."""

    single_observation_space = Copies.single_observation_space
    single_action_space = Copies.single_action_space

    def __init__(self, num: int) -> None:
        self.num_agents = num
        self.episodes, self.ticks = np.zeros((2, num), np.int64)

    def see(self) -> None:
        self.observations[:] = np.stack([np.arange(self.num_agents), self.episodes, self.ticks], 1)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.episodes += 1
        self.ticks[:] = 0
        self.see()

    def step(self, actions: Any) -> None:
        fresh = ~self.alive
        self.episodes += fresh
        self.ticks = np.where(fresh, 0, self.ticks + 1)
        self.alive[:] = True
        self.rewards[:] = actions + self.ticks / 8
        for copy, (episode, tick) in enumerate(zip(self.episodes, self.ticks, strict=True)):
            flags = self.truncations if is_truncated(copy, episode) else self.terminations
            flags[copy] = tick == length_of(copy, episode)
        self.see()


def test_who_is_made_alive_between_two_steps_is_shown_and_counts() -> None:
    class Still(NativeCopies):
        def step(self, actions: Any) -> None:
            self.see()

    rows = emulate(Still(4))
    reset(rows)
    rows.env.alive[2] = False
    held = step(rows, np.zeros(4, np.int64))[1]
    assert (held.masks.tolist(), held.observations[2].tolist()) == ([True, True, False, True], [0, 0, 0])
    rows.env.alive[2] = True
    held = step(rows, np.zeros(4, np.int64))[1]
    assert (held.masks.tolist(), held.observations[2].tolist()) == ([True] * 4, [2, 1, 0])


@pytest.mark.parametrize("num", [2, 3, 7])
def test_a_pufferenv_may_step_its_copies_itself(num: int) -> None:
    rows, oracle = emulate(NativeCopies(num)), Oracle(num, "next_step", "nothing")
    held, (expected, infos) = reset(rows, 3), oracle.reset()
    over, overs = False, 0
    for tick in range(100):
        assert rows_of(held) == expected
        episodes = plain([(copy, {"env": True, **info}) for copy, info in held.infos if copy is not None])
        assert episodes == infos
        actions = (np.arange(num) + tick) % 5
        if over:
            over, held = False, reset(rows)
            overs += 1
        else:
            over, held = step(rows, actions)
        expected, infos = oracle.step(actions.tolist())
    assert min(oracle.episodes) > 10
    assert overs or num > 3  # that all end together comes to pass


class Recorded(gymnasium.Env[Any, Any]):
    """An environment with an info now and then, and nested infos; what it says depends on its seed."""

    action_space = spaces.Discrete(3)

    def __init__(self, space: Any = None) -> None:
        self.observation_space = spaces.Box(-1, 100, (2,), np.float64) if space is None else deepcopy(space)

    def see(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        self.tick, self.length = 0, int(self.np_random.integers(1, 6))
        return self.see(), {"length": self.length}

    def step(self, action: Any) -> Any:
        self.tick += 1
        over = self.tick == self.length
        info: dict[str, Any] = {"parts": {"tick": self.tick, "action": np.array([action])}} if self.tick % 2 else {}
        if over:
            info["success"] = "yes" if action else "no"
        return self.see(), float(action), over and self.length % 2 == 0, over and self.length % 2 == 1, info


NESTED = {
    "box": None,
    "discrete": spaces.Discrete(5, start=2),
    "flags": spaces.MultiBinary(3),
    "dict": spaces.Dict(
        b=spaces.Box(0, 9, (2, 2), np.uint8), a=spaces.Tuple([spaces.Discrete(4), spaces.Box(0, 1, ())])
    ),
    "one dtype": spaces.Tuple([spaces.Box(0, 1, (3,), np.float32), spaces.Dict(x=spaces.Box(0, 1, (), np.float32))]),
    "text": spaces.Dict(text=spaces.Text(5, charset="abc"), number=spaces.Discrete(3)),
}


def sync_vector(space: Any, num: int, mode: str | None = None) -> Any:
    kwargs = {"autoreset_mode": GYMNASIUM_MODES[mode]} if mode else {}
    return SyncVectorEnv([functools.partial(Recorded, space)] * num, **kwargs)


def played(vec: Any, seeds: Any, num_steps: int, mode: str) -> list[Any]:
    """What a VecEnv of three rows returns, infos without the ids of environments, in order of their rows."""
    seen = []
    vec.async_reset(seed=seeds)
    for tick in range(num_steps):
        batch = vec.recv()
        infos = [
            (info.get("agent_id"), plain({k: v for k, v in info.items() if k not in ("env_id", "agent_id")}))
            for info in batch.infos
        ]
        columns = (batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.masks)
        seen.append([*(column.tolist() for column in columns), sorted(infos, key=repr)])
        vec.send(np.arange(3) * tick % 3)
    return seen


if HAS_MODES:

    @pytest.mark.parametrize("space", NESTED.values(), ids=NESTED.keys())
    @pytest.mark.parametrize("mode", ["next_step", "same_step"])
    def test_gymnasiums_copies_are_as_if_each_had_been_made_by_itself(mode: str, space: Any) -> None:
        with pufferlib.make(functools.partial(Recorded, space), num_envs=3, autoreset_mode=mode) as vec:
            expected = played(vec, [7, 8, 9], 30, mode)
            layout = vec.observation_layout
        with pufferlib.make(functools.partial(sync_vector, space, 3, mode), num_envs=1) as vec:
            assert (vec.agents_per_env, vec.observation_layout) == (3, layout)
            assert played(vec, [7], 30, mode) == expected
        if mode == "same_step":  # as which the wrapper plays copies that nobody resets
            with pufferlib.make(functools.partial(sync_vector, space, 3, "disabled"), num_envs=1) as vec:
                assert played(vec, [7], 30, mode) == expected


@pytest.mark.parametrize("name", ["dict", "one dtype", "text"])
def test_rows_of_nested_observations_are_written_whole(name: str) -> None:
    """Padding included: row_tools poisons rows before each write."""
    rows = emulate(sync_vector(NESTED[name], 3))
    held = reset(rows, 4)
    for _ in range(5):
        batch = list(gymnasium.vector.utils.iterate(rows.env.observation_space, rows._observations))
        assert [row.tolist() for row in held.observations] == [
            rows.observation_layout.flatten(s).tolist() for s in batch
        ]
        held = step(rows, np.zeros(3, np.int64))[1]
    assert rows.env.copy is False  # or each observation would be copied twice


def test_gymnasiums_own_default_mode_is_known() -> None:
    default = "next_step" if int(gymnasium.__version__.split(".")[0]) else "same_step"
    with pufferlib.make(Recorded, num_envs=3, autoreset_mode=default) as vec:
        expected = played(vec, [7, 8, 9], 30, default)
    with pufferlib.make(functools.partial(sync_vector, None, 3), num_envs=1) as vec:
        assert played(vec, [7], 30, default) == expected


class Actor(Recorded):
    """Has nested actions, and says which it got."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict(a=spaces.Discrete(4, start=1), b=spaces.Box(-1, 1, (2,), np.float32))

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        observation, _, terminated, truncated, _ = super().step(0)
        return observation, float(action["a"]), terminated, truncated, {"b": action["b"]}


def test_nested_actions_reach_their_copies() -> None:
    rows = emulate(SyncVectorEnv([Actor] * 3))
    reset(rows, 1)
    discrete_actions, continuous_actions = (
        np.array([[0], [2], [3]]),
        np.array([[0.5, 1], [-1, 0], [0, 0.25]], np.float32),
    )
    _, held = step(rows, (discrete_actions, continuous_actions))
    assert held.rewards.tolist() == [1, 3, 4]
    if "final_info" not in str(held.infos):
        assert [info["b"].tolist() for _, info in held.infos] == continuous_actions.tolist()


if HAS_MODES:

    @pytest.mark.parametrize("mode", ["next_step", "same_step"])
    def test_episodes_that_a_recorder_counted_stay_its_own(mode: str) -> None:
        rows = emulate(gymnasium.wrappers.vector.RecordEpisodeStatistics(sync_vector(None, 2, mode)))
        reset(rows, 5)
        ends = []
        for _ in range(20):
            ends += [info for _, info in step(rows, np.ones(2, np.int64))[1].infos if "episode" in info]
        assert len(ends) > 4
        for info in ends:
            assert (float(info["episode"]["r"]), info["env"]) == (float(info["episode"]["l"]), True)
            assert isinstance(info["episode"]["r"], np.floating)  # as the recorder gives it
            if mode == "same_step":
                assert info["final_info"]["episode"] is info["episode"]


def test_a_vector_environment_cannot_be_wrapped_as_one() -> None:
    with pytest.raises(SpaceError, match="Copies holds 4 environments, and vectorized .* that makes it to pufferlib"):
        wrap(Copies())
    with pytest.raises(PlanError, match="Copies is vectorized, with a row for each of its copies: action_mask, max_ag"):
        emulate(Copies(), max_agents=3, action_mask=True)
    with pytest.raises(SpaceError, match="expected a Gymnasium or PettingZoo environment"):
        emulate(Copies)
    with pufferlib.make(Recorded, num_envs=2) as vec, pytest.raises(SpaceError, match="pass a function that makes one"):
        emulate(vec)


class Lame(Copies):
    """Breaks its promises, from the given call on."""

    def __init__(self, breaks: str, healthy: int = 0) -> None:
        super().__init__(3, form="dense")
        self.breaks, self.healthy = breaks, healthy

    def see(self) -> Any:
        seen = super().see()
        self.healthy -= 1
        if self.healthy >= 0:
            return seen
        return {"rows": seen[:2], "low": seen - 1, "kind": list(seen)}.get(self.breaks, seen)

    def infos(self, **masked: Any) -> dict[str, Any]:
        infos = super().infos(**masked)
        return infos | {"env_id": np.array([0, 2, 1])} if self.breaks == "ids" else infos

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, rewards[:1] if self.breaks == "rewards" else rewards, *rest


@pytest.mark.parametrize(
    ("breaks", "healthy", "says"),
    [
        ("rows", 0, r"returned observations of \(2, 3\); expected \(3, 3\), all 3 copies in each batch"),
        ("rows", 5, r"returned observations of \(2, 3\); expected"),
        ("kind", 5, "returned observations of list; expected"),
        ("ids", 0, r"Lame returned the copies \[0 2 1\]; expected all 3, in order"),
        ("rewards", 1, r"Lame.step returned rewards of shape \(1,\), .* expected \(3,\), one for each copy"),
    ],
)
def test_batches_that_do_not_fit_are_refused(breaks: str, healthy: int, says: str) -> None:
    rows = emulate(Lame(breaks, healthy))
    with pytest.raises(SpaceError, match=says):
        reset(rows)
        for _ in range(5):
            step(rows, np.zeros(3, np.int64))


def test_samples_are_checked_on_the_first_calls_or_always() -> None:
    class Foreign(Copies):
        def see(self) -> Any:
            return super().see().astype(np.complex64) if self.ticks.max() >= self.late else super().see()

    for check, late in (("first", 0), ("first", 1), ("always", 3)):
        env = Foreign(7)
        env.late = late  # type: ignore[attr-defined]
        rows = emulate(env, check=check)  # type: ignore[arg-type]
        with pytest.raises(SpaceError, match="copy 0 of Foreign: .*complex64"):
            reset(rows)
            for _ in range(3):
                step(rows, np.zeros(7, np.int64))


@pytest.mark.parametrize(
    ("healthy", "says"),
    [
        (1, r"not a batch of its space|observations at \('a',\)"),  # Gymnasium sees it from 1.1 on
        (2, r"observations at \('a',\) have shape \(1, 2\); expected \(4, 2\)"),
    ],
)
def test_a_leaf_of_another_shape_is_refused_by_name(healthy: int, says: str) -> None:
    class Nested(Copies):
        single_observation_space = spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Discrete(2))  # type: ignore[assignment]
        calls = 0

        def see(self) -> Any:
            self.calls += 1
            num = 1 if self.calls > healthy else self.num_envs
            return {"a": np.zeros((num, 2), np.float32), "b": np.zeros(self.num_envs, np.int64)}

    rows = emulate(Nested(4))
    reset(rows)
    with pytest.raises(SpaceError, match=says):
        for _ in range(2):
            step(rows, np.zeros(4, np.int64))


def test_an_unknown_autoreset_mode_is_refused() -> None:
    env = Copies()
    env.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(SpaceError, match=r"Copies.metadata\['autoreset_mode'\] is 'sometimes'; expected a gymnasium"):
        emulate(env)


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_several_vector_environments_side_by_side(backend: str) -> None:
    """Rows of environments that are vectorized carry the ids of their copies, whichever worker steps them."""
    kwargs = {"num_workers": 2, "batch_size": 2} if backend == "pool" else {"num_workers": 2}
    with pufferlib.make(functools.partial(Copies, 3), backend=backend, num_envs=3, seed=1, **kwargs) as vec:
        assert (vec.agents_per_env, vec.agents_per_batch) == (3, 9 if backend != "pool" else 6)
        oracles = [Oracle(3, "next_step", "masked") for _ in range(3)]
        vec.async_reset()
        first = set(range(3))
        for _ in range(30):
            batch = vec.recv()
            rows = np.column_stack([batch.observations, batch.rewards, *batch[2:4], batch.masks]).tolist()
            for index, env_id in enumerate(batch.env_ids.tolist()):
                oracle = oracles[env_id]
                expected, infos = oracle.reset() if env_id in first else oracle.step([1, 2, 3])
                first.discard(env_id)
                assert rows[3 * index : 3 * index + 3] == expected
                env_infos = [(i["agent_id"] - 3 * env_id, i) for i in batch.infos if i["env_id"] == env_id]
                assert [
                    (agent_index, {k: v for k, v in plain(i).items() if k not in ("env_id", "agent_id")})
                    for agent_index, i in env_infos
                ] == infos
            assert batch.agent_ids.tolist() == [
                3 * e + agent_index for e in batch.env_ids.tolist() for agent_index in range(3)
            ]
            vec.send(np.tile([1, 2, 3], len(batch.env_ids)))


def atari(num: int, **kwargs: Any) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AtariVectorEnv("breakout", num, num_threads=2, **{"max_num_frames_per_episode": 200, **kwargs})


@pytest.mark.extras
@pytest.mark.slow
@covering({"mode": ["NextStep", "SameStep"], "backend": ["serial", "multiprocessing"]})
def test_atari_vector_env_is_the_bare_env_row_by_row(backend: str, mode: str) -> None:
    num, bare = 3, atari(3, autoreset_mode=gymnasium.vector.AutoresetMode(mode))
    creator = functools.partial(atari, num, autoreset_mode=gymnasium.vector.AutoresetMode(mode))
    with pufferlib.make(creator, backend=backend, num_envs=1) as vec:
        observations, infos = vec.reset(seed=[11])
        expected, bare_infos = bare.reset(seed=11)
        assert np.array_equal(observations, expected)
        over, ends, total = np.zeros(num, np.bool_), 0, np.zeros(num)
        draw = np.random.default_rng(0)
        for _ in range(140):
            assert infos[0]["lives"].tolist() == bare_infos["lives"].tolist()
            actions = draw.integers(4, size=num)
            observations, rewards, terminations, truncations, infos = vec.step(actions)
            expected, *outcome, bare_infos = bare.step(actions)
            assert np.array_equal(observations, expected)
            for mine, theirs in zip((rewards, terminations, truncations), outcome, strict=True):
                assert mine.tolist() == theirs.tolist()
            assert vec.batch.masks.tolist() == (~over).tolist()
            total += rewards
            ended = terminations | truncations
            agent_infos = {info["agent_id"]: info for info in infos if "agent_id" in info}
            assert sorted(agent_infos) == np.flatnonzero(ended).tolist()
            for agent_index, info in agent_infos.items():
                assert (info["env"], info["episode"]["r"]) == (True, total[agent_index])
                if mode == "SameStep":
                    assert np.array_equal(info["final_obs"], bare_infos["final_obs"][agent_index])
            total[ended] = 0
            ends += ended.sum()
            over = ended if mode == "NextStep" else over
        assert ends >= 2 * num
    bare.close()


@pytest.mark.extras
@pytest.mark.slow
def test_atari_lives_that_are_only_reported_do_not_cost_a_transition() -> None:
    """With life_loss_info ALE flags the end of a life and plays on: the next row is no first row."""
    rows = emulate(atari(1, life_loss_info=True, max_num_frames_per_episode=108_000, noop_max=0))
    reset(rows, 3)
    lengths, masks, flags = [], [], []
    for tick in range(300):
        held = step(rows, np.array([tick % 4]))[1]
        masks.append(bool(held.masks[0]))
        flags.append(bool(held.terminations[0]))
        lengths += [info["episode"]["l"] for agent_index, info in held.infos if agent_index == 0]
    ends = [tick for tick, flag in enumerate(flags) if flag]
    assert len(ends) > 5
    games = [tick for tick, mask in enumerate(masks) if not mask]  # first rows of new games
    assert games
    assert {tick - 1 for tick in games} <= set(ends)
    assert len(games) < len(ends)
    bounds = [-1, *ends]
    assert lengths == [last - first - ((first + 1) in games) for first, last in pairwise(bounds)]


class EnvPoolMixin:
    """The name by which EnvPool is known."""


class Pool(EnvPoolMixin, Copies):
    """Has EnvPool's interface: seeds fixed at the start, the space of one copy, dense infos, its own options."""

    def __init__(self, num_envs: int, seed: int = 42) -> None:
        super().__init__(num_envs, form="dense")
        self.config = {"num_envs": num_envs, "batch_size": num_envs, "seed": seed}
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space
        self.metadata = {}

    def reset(self, env_id: Any = None, *, seed: Any = None, options: Any = None) -> Any:
        assert env_id is None
        if seed is not None:
            warnings.warn("EnvPool seeds are fixed", stacklevel=2)
        if options and set(options) - {"reset_mask"}:
            raise ValueError(f"Unsupported Gymnasium reset options for EnvPool: {sorted(options)}")
        return super().reset(options=options)


def test_envpool_gets_no_seed_and_says_so_once() -> None:
    rows = emulate(Pool(2))
    with pytest.warns(UserWarning, match=r"EnvPool takes seeds when it is made: .*envpool.make\(seed=42\)") as caught:
        reset(rows, 1), reset(rows, 2)
    assert len(caught) == 1
    rows, oracle = emulate(Pool(2, seed=3)), Oracle(2, "next_step", "dense")
    held, (expected, infos) = reset(rows, 1, {}), oracle.reset()  # who chose a seed is not warned
    for _ in range(20):
        assert (rows_of(held), plain(held.infos)) == (expected, infos)
        (_, held), (expected, infos) = step(rows, np.array([1, 2])), oracle.step([1, 2])
    with pytest.raises(ValueError, match="Unsupported Gymnasium reset options"):
        reset(rows, None, {"level": 3})


EXAMPLE = Path(__file__).parents[2] / "examples" / "vector_envs.py"


@pytest.mark.long
@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.parametrize("library", ["gymnasium", *(["ale"] if ATARI else [])])
def test_the_example_runs(library: str) -> None:
    command = [sys.executable, EXAMPLE, "--library", library, "--copies", "3", "--num-envs", "2", "--steps", "60"]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE.parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 x 3 copies, rows of Box(")
    assert re.search(r"^\d+ transitions in .* s, \d+ episodes", done.stdout, re.MULTILINE)
