"""Odd but common environments: old gym's API, its spaces, lists for numbers, live buffers, forgotten seeds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.utils.env_checker import check_env
from row_tools import SpacesEnv, reset, step, without_time

import pufferlib
from pufferlib.emulation import emulate, wrap
from pufferlib.errors import SpaceError

pytestmark = pytest.mark.beside


class Odd:
    """Not a gymnasium.Env at all: old gym's API, with nothing but what is called."""

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Discrete(4)
    seeds: tuple[int, ...] = ()

    def reset(self) -> Any:
        self.tick = 0
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        assert type(action) is int
        self.tick += 1
        return np.full(1, self.tick, np.float32), float(action), self.tick == 3, {}


class TimeLimited(Odd):
    def step(self, action: Any) -> Any:
        observation, reward, done, _ = super().step(action)
        return observation, reward, done, {"TimeLimit.truncated": True} if done else {}


class OldSeed(Odd):
    def seed(self, seed: int | None = None) -> None:
        self.seeds = (*self.seeds, seed)


class ListReward(Odd):
    def step(self, action: Any) -> Any:
        observation, reward, done, info = super().step(action)
        return observation, [reward], done, info


class ArrayReward(Odd):
    def step(self, action: Any) -> Any:
        observation, reward, done, info = super().step(action)
        return observation, np.array([reward], np.float32), np.bool_(done), info


class IntsForFlags(Odd):
    def step(self, action: Any) -> Any:
        observation, reward, done, _ = super().step(action)
        return observation, int(reward), int(done), 0, None


class ListsForFlags(Odd):
    def step(self, action: Any) -> Any:
        observation, reward, done, _ = super().step(action)
        return observation, reward, [True, done], np.array([False, False]), {}


class NoneForInfo(Odd):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(), None


class ListObservation(Odd):
    def step(self, action: Any) -> Any:
        observation, reward, done, info = super().step(action)
        return observation.tolist(), reward, done, info


ODD = [Odd, TimeLimited, OldSeed, ListReward, ArrayReward, IntsForFlags, ListsForFlags, NoneForInfo, ListObservation]


@pytest.mark.parametrize("creator", ODD)
@pytest.mark.filterwarnings("ignore:.*takes no seed")
def test_odd_envs_step_like_any_other(creator: Any) -> None:
    env, rows = wrap(creator()), emulate(creator())
    for seed in (7, None):
        observation, info = env.reset(seed=seed)
        held = reset(rows, seed)
        assert (observation.tolist(), info, held.observations.tolist()) == ([0], {}, [[0]])
        for tick in (1, 2, 3):
            observation, reward, terminated, truncated, info = env.step(np.int64(2))
            over, held = step(rows, np.array([2]))
            ended = tick == 3
            cut = ended and creator is TimeLimited
            assert (observation.tolist(), reward, terminated, truncated) == ([tick], 2.0, ended and not cut, cut)
            assert [type(value) for value in (reward, terminated, truncated, info)] == [float, bool, bool, dict]
            assert (held.observations.tolist(), held.rewards.tolist(), over) == ([[tick]], [2.0], ended)
            assert (held.terminations[0], held.truncations[0], held.masks[0]) == (ended and not cut, cut, True)
        assert without_time(held.infos) == [(0, {"env": True, "episode": {"r": 6.0, "l": 3}, **info})]
    if creator is OldSeed:
        assert rows.env.seeds == env.raw.seeds == (7,)
    env.close()
    rows.close()


@pytest.mark.parametrize("creator", ODD)
@pytest.mark.filterwarnings("ignore:.*takes no seed")
def test_odd_envs_pass_check_env(creator: Any) -> None:
    env = wrap(creator())
    check_env(env, skip_render_check=True)
    assert isinstance(env.unwrapped, gymnasium.Env)
    assert env.unwrapped.tick is env.raw.tick
    assert not hasattr(env.unwrapped, "nothing")


def test_spaces_of_old_gym_become_gymnasiums() -> None:
    old: Any = {
        name: type(name, (), {}) for name in ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
    }

    def make(name: str, **attributes: Any) -> Any:
        space = old[name]()
        space.__dict__.update(attributes)
        return space

    env: Any = Odd()
    low, high = np.zeros(1, np.float32), np.ones(1, np.float32)
    parts = {
        "box": make("Box", low=low, high=high, shape=(1,), dtype=np.dtype(np.float32)),
        "bits": make("MultiBinary", n=2),
        "tuple": make("Tuple", spaces=[make("MultiDiscrete", nvec=np.array([2, 3]))]),
    }
    env.observation_space = make("Dict", spaces=parts)
    env.action_space = make("Discrete", n=4)
    wrapped = wrap(env)
    expected = Dict(
        {"box": Box(0, 1, (1,), np.float32), "bits": MultiBinary(2), "tuple": Tuple([MultiDiscrete([2, 3])])}
    )
    assert wrapped.observation_layout.space == expected
    assert wrapped.action_space == Discrete(4)
    env.action_space = make("Box", low=low, high=high, shape=(1,), dtype=np.dtype(np.float32))
    assert wrap(env).action_space == Box(0, 1, (1,), np.float32)


def test_a_seed_or_options_that_cannot_be_passed_are_one_warning() -> None:
    rows = emulate(Odd())
    with pytest.warns(UserWarning, match=r"Odd.reset takes no seed: its episodes cannot be reproduced") as caught:
        reset(rows, 1)
        reset(rows, 2)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"Odd.reset takes no options") as caught:
        reset(rows, None, {"a": 1})
        reset(rows, None, {"a": 1})
    assert len(caught) == 1


def test_a_seed_passes_only_where_every_wrapper_takes_it() -> None:
    class Passing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            return self.env.reset(**kwargs)

    class Seedless(SpacesEnv):
        def reset(self, options: Any = None) -> Any:  # type: ignore[override]
            return super().reset(options=options)

    with pytest.warns(UserWarning, match="takes no seed"):
        held = reset(emulate(Passing(Seedless(Discrete(2), Discrete(2)))), 1, {"a": 1})
    assert held.infos == [(0, {"options": {"a": 1}})]


def test_an_env_that_forgets_to_seed_its_generator_is_seeded() -> None:
    class Forgetful(gymnasium.Env[Any, Any]):
        observation_space = Box(0, 1, (1,), np.float64)
        action_space = Discrete(2)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return self.np_random.random(1), {}

        def step(self, action: Any) -> Any:
            return self.np_random.random(1), 0.0, False, False, {}

    env = wrap(Forgetful())
    check_env(env, skip_render_check=True)
    assert env.reset(seed=5)[0] == wrap(Forgetful()).reset(seed=5)[0] == np.random.default_rng(5).random(1)


def test_an_env_keeps_a_generator_of_its_own_making() -> None:
    class OwnGenerator(SpacesEnv):
        def __init__(self) -> None:
            super().__init__(Discrete(2), Discrete(2))
            self._np_random = self.generator = np.random.default_rng(0)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {}

    env = OwnGenerator()
    reset(emulate(env), 1)
    assert env._np_random is env.generator


def test_a_pair_that_is_an_observation_is_no_info() -> None:
    class Pair(Odd):
        observation_space: Any = Tuple([Discrete(3), Dict(a=Discrete(2))])

        def reset(self) -> Any:
            return 1, {"a": 1}

    rows = emulate(Pair())
    held = reset(rows)
    assert rows.observation_layout.decode(held.observations[0]) == (1, {"a": 1})
    assert held.infos == []


@pytest.mark.parametrize("front", [np.array([1.0, 2.0]), np.array([1, 2], np.int16), [1.0, 2.0], (1, 2)], ids=repr)
@pytest.mark.parametrize("info", [None, {}, {"a": 1}])
@pytest.mark.filterwarnings("ignore:.*is cast to float32")
def test_so_is_one_that_has_to_be_cast_and_with_an_info_it_has_one(front: Any, info: Any) -> None:
    """What has to be cast is not in the space, and tells nothing apart by that."""

    class Pair(Odd):
        observation_space: Any = Tuple([Box(-9, 9, (2,), np.float32), Dict(a=Discrete(2))])
        action_space = Discrete(4)

        def __init__(self, result: Any) -> None:
            self.result = result

        def reset(self) -> Any:
            return self.result

    observation = front, {"a": 1}
    for result, expected_infos in ((observation, []), ((observation, info), [(0, info)] if info else [])):
        rows = emulate(Pair(result))
        held = reset(rows)
        first, second = rows.observation_layout.decode(held.observations[0])
        assert (first.tolist(), second) == ([1.0, 2.0], {"a": 1})
        assert held.infos == expected_infos


class LiveBuffers(gymnasium.Env[Any, Any]):
    """Hands out the one buffer that it works in, in observations and in infos."""

    observation_space = Dict(a=Box(0, 255, (2,), np.uint8), b=Box(-9, 999, (1,), np.float32))
    action_space = Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.buffers = {"a": np.zeros(2, np.uint8), "b": np.zeros(1, np.float32)}
        self.info = {"deep": {"list": [np.zeros(1)], "tuple": (np.zeros(1),)}}
        self.actions: list[Any] = []

    def _outcome(self, tick: int) -> Any:
        self.tick = tick
        for array in (*self.buffers.values(), self.info["deep"]["list"][0], self.info["deep"]["tuple"][0]):
            array[:] = tick
        return self.buffers, self.info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._outcome(100)

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        observation, info = self._outcome(self.tick + 1)
        return observation, 0.0, self.tick % 3 == 0, False, info


def test_views_of_live_buffers_are_copied_at_once() -> None:
    env = wrap(LiveBuffers())
    check_env(env, skip_render_check=True)
    results = [env.reset(seed=0), *(env.step(env.action_space.sample()) for _ in range(3))]
    for tick, (observation, *_, info) in enumerate(results, 100):
        decoded = env.observation_layout.decode(observation)
        assert (decoded["a"].tolist(), decoded["b"].tolist()) == ([tick] * 2, [tick])
        assert info["deep"]["list"][0] == info["deep"]["tuple"][0] == tick


def test_rows_hold_live_buffers_until_written() -> None:
    rows = emulate(LiveBuffers())
    held = [reset(rows)]
    actions = np.zeros((1, 2), np.float32)
    for tick in range(1, 4):
        actions[:] = tick / 10
        _, outcome = step(rows, actions)
        held.append(outcome)
    first = reset(rows)  # a same-step autoreset: written before this
    for tick, outcome in enumerate([*held, first]):
        tick %= 4
        assert rows.observation_layout.decode(outcome.observations[0])["b"] == 100 + tick
        assert outcome.infos[0][1]["deep"]["list"][0] == 100 + tick
    assert [float(action[0]) for action in rows.env.actions] == pytest.approx([0.1, 0.2, 0.3])


def test_observations_that_cast_are_cast_with_one_warning() -> None:
    class Wide(SpacesEnv):
        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return observation.astype(np.float64), *rest

    rows = emulate(Wide(Box(-1, 1, (2,), np.float32), Discrete(2), length=50))
    reset(rows)
    with pytest.warns(UserWarning, match="float64 is cast to float32") as caught:
        for _ in range(10):
            _, held = step(rows, np.array([1]))
    assert len(caught) == 1
    assert held.observations.dtype == np.float32


def test_a_reward_must_be_a_number_though_not_a_good_one() -> None:
    class Rewarding(SpacesEnv):
        reward: Any = None

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, self.reward, *rest

    env = wrap(Rewarding(Discrete(2), Discrete(2)))
    env.reset()
    with pytest.raises(SpaceError, match=r"Rewarding.step returned the reward None; expected a number"):
        env.step(0)
    env.raw.reward = float("nan")
    assert np.isnan(env.step(0)[1])
    env.raw.reward = np.float32(0.5)
    assert env.step(0)[1] == 0.5


@pytest.mark.parametrize("values", [2, 3, 6])
def test_a_step_of_another_length_is_an_error(values: int) -> None:
    class Short(SpacesEnv):
        def step(self, action: Any) -> Any:
            return (0, 0.0, False, False, {}, None)[:values]

    env = wrap(Short(Discrete(2), Discrete(2)))
    env.reset()
    with pytest.raises(SpaceError, match=f"Short.step returned {values} values"):
        env.step(0)


class Scalars(gymnasium.Env[Any, Any]):
    """Its observations lack axes of length 1, or have some too many, from the first reset on."""

    observation_space: Any = Dict(a=Box(0, 9, (1,), np.float32), b=Box(0, 9, (4,), np.uint8), c=Discrete(9))
    action_space = Discrete(2)

    def observe(self) -> Any:
        return {"a": np.float32(self.tick), "b": np.full((1, 4), self.tick, np.uint8), "c": np.array([self.tick])}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return self.observe(), 1.0, self.tick == 5, False, {}


class LoneScalar(Scalars):
    observation_space = Box(0, 9, (1,), np.float32)

    def observe(self) -> Any:
        return np.float32(self.tick)


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
@pytest.mark.parametrize("creator", [Scalars, LoneScalar])
@pytest.mark.filterwarnings("ignore:.*is reshaped to")
def test_axes_of_length_one_are_reshaped_at_every_step(creator: Any, backend: str, check: str) -> None:
    with pufferlib.make(creator, backend=backend, num_envs=2, num_workers=1, check=check) as vec:
        vec.reset()
        for tick in (1, 2, 3, 4, 5, 0, 1):
            observations, *_ = vec.step(np.zeros(2, int))
            for row in observations:
                expected = [tick] if creator is LoneScalar else {"a": [tick], "b": [tick] * 4, "c": tick}
                seen = vec.observation_layout.decode(row)
                if creator is Scalars:
                    seen = {key: value.tolist() for key, value in seen.items()}
                assert seen == expected


def test_axes_of_length_one_are_warned_of_once() -> None:
    env = wrap(Scalars())
    with pytest.warns(UserWarning, match=r"a: shape \(\) is reshaped to \(1,\)") as caught:
        env.reset()
        for _ in range(4):
            env.step(0)
    assert len(caught) == 1


def test_an_info_that_is_no_dict_is_named_rather_than_the_observation() -> None:
    class Misled(Odd):
        def reset(self) -> Any:
            return super().reset(), 5

    with pytest.raises(SpaceError, match="Misled.reset returned the info 5; expected a dict"):
        wrap(Misled()).reset()
