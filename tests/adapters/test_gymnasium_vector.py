"""The Gymnasium face does what Gymnasium's own SyncVectorEnv does, under Gymnasium's own wrappers too."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium_peers import HAS_MODES, HAS_WRAPPERS, KINDS, ours, peer, quiet, running
from matrix import covering
from mock_envs import HashEnv

from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, make_vec
from pufferlib.errors import PlanError

pytestmark = pytest.mark.beside

FINAL_OBS = "final_obs" if HAS_WRAPPERS else "final_observation"
MODES = list(AutoresetMode) if HAS_MODES else [AutoresetMode.NEXT_STEP if HAS_WRAPPERS else AutoresetMode.SAME_STEP]


# ------------------------------------------------------------------------------------------- as Gymnasium's own


class Letters(spaces.Space[str]):
    """A custom space, of which Gymnasium knows nothing."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, *args: Any, **kwargs: Any) -> str:
        return "ab"[int(self.np_random.integers(2))] * int(self.np_random.integers(1, 5))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and set(x) <= {"a", "b"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Letters)


SPACES = [
    Discrete(3, start=-1),
    Box(-1, 1, (2, 2), np.float64),
    Box(0, 255, (), np.uint8),
    MultiDiscrete([2, 3]),
    MultiBinary(4),
    Text(6),
    Graph(Box(-1, 1, (2,)), Discrete(5)),
    Sequence(Discrete(4)),
    Letters(),
    Dict(a=Box(-1, 1, (3,), np.float64), b=Dict(c=Discrete(4), d=MultiBinary(2)), e=Tuple((Box(0, 9, (), np.int8),))),
    Tuple((Discrete(5), Dict(mission=Text(8), image=Box(0, 255, (4, 4), np.uint8), word=Letters()))),
]
if hasattr(spaces, "OneOf"):
    SPACES.append(spaces.OneOf([Discrete(3), Box(-1, 1, (2,))]))


class SampleEnv(gymnasium.Env[Any, Any]):
    """Draws its observations from its space, by its seed, and tells in its infos which action came, to the bit."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, observation_space: Any, action_space: Any = None, render_mode: str | None = None) -> None:
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = copy.deepcopy(Discrete(3) if action_space is None else action_space)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.tick, self.length = 0, int(self.np_random.integers(1, 6))
        return self.observation_space.sample(), {"length": self.length, "options": repr(options)}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        self.tick += 1
        over = self.tick == self.length
        info: dict[str, Any] = {"action": digest(action)}
        if self.tick % 2:
            info |= {"odd": {"array": np.arange(3) * self.tick, "text": "odd"}, "number": 0.5}
        truncated = self.length % 2 == 0
        return self.observation_space.sample(), self.tick / 3, over and not truncated, over and truncated, info

    def render(self) -> Any:
        return np.full((4, 4, 3), self.tick, np.uint8)


def digest(value: Any) -> str:
    return hashlib.md5(repr(bits(value)).encode()).hexdigest()


def bits(value: Any) -> Any:
    """What a value is to the last bit, types included."""
    if isinstance(value, dict):
        return {key: bits(part) for key, part in sorted(value.items())}
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [bits(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return type(value).__name__, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.ndarray):
        return [bits(part) for part in value.tolist()]
    return type(value).__name__, value


def assert_same(actual: Any, expected: Any) -> None:
    assert bits(actual) == bits(expected)


def in_mode(mode: AutoresetMode) -> dict[str, Any]:
    """The oracle's argument for an autoreset mode, if it has one."""
    return {"autoreset_mode": mode} if HAS_MODES else {}


@pytest.mark.filterwarnings("ignore:.*Casting input x")  # what has no dimensions comes as a number
@covering({
    "space": [pytest.param(space, id=str(space)) for space in SPACES],
    "mode": [pytest.param(mode, id=mode.name) for mode in MODES],
    "vectorizer": KINDS,
})  # fmt: skip
def test_every_space_and_mode_is_as_with_gymnasium(vectorizer: Any, mode: AutoresetMode, space: Any) -> None:
    env_fns = [functools.partial(SampleEnv, space, space)] * 3
    with running(vectorizer, env_fns, autoreset_mode=mode) as envs, \
            running(peer.SyncVectorEnv, env_fns, **in_mode(mode)) as oracle:  # fmt: skip
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            assert getattr(envs, name) == getattr(oracle, name)
        assert envs.autoreset_mode is mode is envs.metadata["autoreset_mode"]
        assert isinstance(envs, peer.VectorEnv)
        oracle.action_space.seed(1)
        assert_same(envs.reset(seed=5, options={"x": 1}), oracle.reset(seed=5, options={"x": 1}))
        for _ in range(12):
            actions = oracle.action_space.sample()
            actual, expected = envs.step(actions), oracle.step(actions)
            assert actual[0] in envs.observation_space
            assert_same(actual, expected)
            over = actual[2] | actual[3]
            if mode is AutoresetMode.DISABLED and over.any():
                assert_same(envs.reset(options={"reset_mask": over}), oracle.reset(options={"reset_mask": over}))


@covering({
    "actions": [
        np.array([[0.1], [0.3]]),  # more precise than the space's float32
        [[0.1], [0.3]],
        ([0.1], np.array([0.5], np.float16)),
        np.array([[1], [0]], np.int8),
    ],
    "vectorizer": KINDS,
})  # fmt: skip
def test_actions_of_other_types_arrive_as_with_gymnasium(vectorizer: Any, actions: Any) -> None:
    class Lenient(SampleEnv):
        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0, False, False, {"action": digest(action)}

    env_fns = [lambda: Lenient(Discrete(3), Box(-1, 1, (1,)))] * 2
    with running(vectorizer, env_fns) as envs, running(peer.SyncVectorEnv, env_fns) as oracle:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        for values in (actions, oracle.action_space.sample(), actions):
            if isinstance(values, np.ndarray) and values.dtype == np.int8:  # what casts without loss is cast
                assert_same(envs.step(values), oracle.step(values.astype(np.float32)))
            else:
                assert_same(envs.step(values), oracle.step(values))


@ours
def test_infos_are_only_what_environments_say(vectorizer: Any) -> None:
    plain = functools.partial(HashEnv, mean_length=2)
    recorded = [lambda: gymnasium.wrappers.RecordEpisodeStatistics(plain())] * 3
    with running(vectorizer, [plain] * 3) as envs, running(vectorizer, recorded) as recording:
        seen, keys = set(envs.reset(seed=0)[1]), set(recording.reset(seed=0)[1])
        for _ in range(30):
            *_, infos = envs.step([1, 2, 3])
            seen |= set(infos) | set(infos.get("final_info", ()) if HAS_WRAPPERS else ())
            *_, infos = recording.step([1, 2, 3])
            keys |= set(infos) | set(infos.get("final_info", ()) if HAS_WRAPPERS else ())
        finals = {FINAL_OBS, f"_{FINAL_OBS}", "final_info", "_final_info"}
        assert seen - finals == {"first", "_first", "tick", "_tick"}
        assert keys - seen - finals == ({"episode", "_episode"} if HAS_WRAPPERS else set())


@ours
def test_seeds_are_as_with_gymnasium(vectorizer: Any) -> None:
    class Seen(HashEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            observation, _ = super().reset(seed=seed)
            return observation, {"seed": repr(seed)}

    with running(vectorizer, [Seen] * 3) as envs:
        assert envs.reset()[1]["seed"].tolist() == ["None"] * 3
        assert envs.reset(seed=7)[1]["seed"].tolist() == ["7", "8", "9"]
        assert envs.reset(seed=[4, None, 5])[1]["seed"].tolist() == ["4", "None", "5"]
        infos = envs.reset(seed=[1, 2, 3], options={"reset_mask": np.array([False, True, True])})[1]
        assert infos["seed"].tolist() == [None, "2", "3"]
        with pytest.raises(ValueError, match="2 seeds for num_envs=3; give one each"):
            envs.reset(seed=[1, 2])
        if hasattr(gymnasium.Env, "np_random_seed"):
            envs.reset(seed=7)
            envs.reset()
            assert envs.np_random_seed == (7, 8, 9)


@ours
def test_environments_reset_by_their_creators_may_be_stepped(vectorizer: Any) -> None:
    def create(seed: int) -> Any:
        env = HashEnv(mean_length=1000)
        env.reset(seed=seed)
        return env

    with running(vectorizer, [functools.partial(create, seed) for seed in (3, 4)]) as envs:
        observations = envs.step([1, 2])[0]
    assert_same(observations, np.stack([create(3).step(1)[0], create(4).step(2)[0]]))


@ours
def test_copies_stay_and_views_live_for_two_waits(vectorizer: Any) -> None:
    env_fn = functools.partial(SampleEnv, SPACES[-2])
    with running(vectorizer, [env_fn] * 2) as envs:
        first, _ = envs.reset(seed=0)
        copied = copy.deepcopy(first)
        for _ in range(6):
            envs.step([0, 0])
        assert_same(first, copied)
    with running(vectorizer, [env_fn] * 2, copy=False) as envs:
        first, _ = envs.reset(seed=0)
        assert_same(first, copied)
        envs.step([0, 0])
        assert_same(first, copied)


@ours
def test_call_get_attr_set_attr_and_render(vectorizer: Any) -> None:
    with running(vectorizer, [functools.partial(SampleEnv, Discrete(9), render_mode="rgb_array")] * 3) as envs:
        assert envs.render_mode == "rgb_array"
        envs.reset(seed=0)
        envs.set_attr("tick", [5, 6, 7])
        assert envs.get_attr("tick") == (5, 6, 7)
        assert_same(envs.render(), tuple(np.full((4, 4, 3), tick, np.uint8) for tick in (5, 6, 7)))
        envs.set_attr("tick", 1)
        assert envs.call("tick") == (1, 1, 1)
        assert envs.call("step", 0)[0][1] == 2 / 3 if vectorizer is SyncVectorEnv else True
        with quiet(), pytest.raises(AttributeError):
            envs.get_attr("no_such_thing")
        with pytest.raises(ValueError, match="2 values for 3 environments"):
            envs.set_attr("tick", [1, 2])
        envs.step([0, 0, 0])  # calls have not gone between an action and its step


def test_sync_shows_its_environments() -> None:
    created = [HashEnv(), gymnasium.wrappers.TimeLimit(HashEnv(), 5)]
    with running(SyncVectorEnv, [lambda: created[0], lambda: created[1]]) as envs:
        assert envs.envs == created


if HAS_MODES:

    @covering({"vectorizer": KINDS, "as_spaces": [False, True]})
    def test_observation_spaces_may_differ_in_bounds(vectorizer: Any, as_spaces: bool) -> None:
        space_list = [Box(0, high, (2,)) for high in (1, 2)]
        batched = peer.utils.batch_differing_spaces(space_list)
        mode: Any = (batched, Box(0, 9, (2,))) if as_spaces else "different"
        with running(
            vectorizer, [functools.partial(SampleEnv, space) for space in space_list], observation_mode=mode
        ) as envs:
            assert envs.observation_space == batched
            assert envs.single_observation_space == (mode[1] if as_spaces else space_list[0])
            assert envs.reset(seed=1)[0] in batched


# ---------------------------------------------------------------------------------------------- their wrappers

VECTOR = (Box(-1, 1, (4,)), Box(-2, 2, (1,)))
IMAGE = (Box(0, 255, (8, 8, 3), np.uint8), Discrete(2))
NAMED = (Dict(a=Box(-1, 1, (2,)), b=Discrete(5)), Discrete(2))
rescaled = dict(min_obs=np.zeros(4, np.float32), max_obs=np.ones(4, np.float32))
WRAPPERS: dict[str, tuple[Any, Callable[[], dict[str, Any]], str]] = {  # spaces, arguments, packages it needs
    "VectorizeTransformObservation": (
        VECTOR, lambda: dict(wrapper=gymnasium.wrappers.ReshapeObservation, shape=(2, 2)), ""),
    "VectorizeTransformAction": (VECTOR, lambda: dict(wrapper=gymnasium.wrappers.ClipAction), ""),
    "VectorizeTransformReward": (
        VECTOR, lambda: dict(wrapper=gymnasium.wrappers.ClipReward, min_reward=0.5, max_reward=1), ""),
    "DictInfoToList": (VECTOR, dict, ""),
    "TransformObservation": (VECTOR, lambda: dict(func=lambda rows: rows / 2), ""),
    "FilterObservation": (NAMED, lambda: dict(filter_keys=["a"]), ""),
    "FlattenObservation": (NAMED, dict, ""),
    "GrayscaleObservation": (IMAGE, dict, ""),
    "ResizeObservation": (IMAGE, lambda: dict(shape=(4, 4)), "cv2"),
    "ReshapeObservation": (VECTOR, lambda: dict(shape=(2, 2)), ""),
    "RescaleObservation": (VECTOR, lambda: rescaled, ""),
    "DtypeObservation": (VECTOR, lambda: dict(dtype=np.float64), ""),
    "NormalizeObservation": (VECTOR, dict, ""),
    "TransformAction": (VECTOR, lambda: dict(func=lambda rows: rows / 2), ""),
    "ClipAction": (VECTOR, dict, ""),
    "RescaleAction": (VECTOR, lambda: dict(min_action=-1, max_action=1), ""),
    "TransformReward": (VECTOR, lambda: dict(func=lambda rewards: rewards * 2), ""),
    "ClipReward": (VECTOR, lambda: dict(min_reward=0.5, max_reward=1), ""),
    "NormalizeReward": (VECTOR, dict, ""),
    "RecordEpisodeStatistics": (VECTOR, dict, ""),
    "RecordVideo": (VECTOR, lambda: dict(video_folder="videos", episode_trigger=lambda episode: True), "moviepy"),
    "HumanRendering": (VECTOR, dict, "pygame cv2"),
    "ArrayConversion": (VECTOR, lambda: dict(env_xp=np, target_xp=np), "array_api_compat"),
    "JaxToNumpy": (VECTOR, dict, "array_api_compat jax"),
    "JaxToTorch": (VECTOR, dict, "array_api_compat jax torch"),
    "NumpyToTorch": (VECTOR, dict, "array_api_compat torch"),
}  # fmt: skip
INSTALLED = [name for name, (*_, packages) in WRAPPERS.items() if all(map(importlib.util.find_spec, packages.split()))]

if HAS_MODES:

    @covering({"name": INSTALLED, "vectorizer": KINDS})
    def test_every_wrapper_works_over_the_face(
        vectorizer: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        class Numeric(SampleEnv):  # those that convert arrays refuse texts in infos
            def step(self, action: Any) -> Any:
                *rest, info = super().step(action)
                return *rest, {key: value for key, value in info.items() if key == "number"}

            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                return super().reset(seed=seed)[0], {"length": self.length}

        (observation_space, action_space), arguments, _ = WRAPPERS[name]
        wrapper = getattr(gymnasium.wrappers.vector, name)
        env_fns = [functools.partial(Numeric, observation_space, action_space, "rgb_array")] * 2
        with running(vectorizer, env_fns) as envs, running(peer.SyncVectorEnv, env_fns) as plain:
            wrapped, oracle = wrapper(envs, **arguments()), wrapper(plain, **arguments())
            oracle.action_space.seed(1)
            assert_same(comparable(wrapped.reset(seed=5)), comparable(oracle.reset(seed=5)))
            for _ in range(8):
                actions = oracle.action_space.sample()
                assert_same(comparable(wrapped.step(actions)), comparable(oracle.step(actions)))
            wrapped.close()
            oracle.close()

    def test_no_wrapper_is_left_out() -> None:
        assert set(gymnasium.wrappers.vector.__all__) == set(WRAPPERS)


def comparable(values: Any) -> Any:
    """The values without what a clock said; tensors as arrays."""
    if isinstance(values, dict):
        return {key: comparable(part) for key, part in values.items() if key != "t"}
    if isinstance(values, (tuple, list)):
        return [comparable(part) for part in values]
    foreign = hasattr(values, "__array__") and not isinstance(values, (np.ndarray, np.generic))
    return np.asarray(values) if foreign else values


def test_vector_entry_points_name_the_face() -> None:
    gymnasium.register(
        "GymnasiumVecEnv-v0", HashEnv, vector_entry_point=functools.partial(make_vec, HashEnv), max_episode_steps=2
    )
    gymnasium.register(
        "FaceByName-v0",
        vector_entry_point="pufferlib.adapters.gymnasium_vector:make_vec",
        kwargs=dict(env="CartPole-v1", vectorizer="sync"),
    )
    try:
        if HAS_WRAPPERS:
            more = dict(vectorizer_kwargs=dict(max_concurrency=1), mean_length=1000)
            with contextlib.closing(gymnasium.make_vec("GymnasiumVecEnv-v0", num_envs=3, **more)) as envs:
                assert isinstance(envs, AsyncVectorEnv) and envs.num_envs == 3 and envs.spec.id == "GymnasiumVecEnv-v0"
                envs.reset(seed=0)
                envs.step([0, 1, 2])
                assert envs.step([0, 1, 2])[3].all()
            with contextlib.closing(gymnasium.make_vec("FaceByName-v0", num_envs=2)) as envs:
                assert isinstance(envs, SyncVectorEnv) and envs.single_observation_space.shape == (4,)
        else:
            custom = dict(vectorization_mode="custom", num_envs=2, vector_kwargs=dict(vectorizer="sync"))
            with contextlib.closing(gymnasium.make_vec("GymnasiumVecEnv-v0", **custom)) as envs:
                assert isinstance(envs, SyncVectorEnv) and envs.num_envs == 2
    finally:
        del gymnasium.registry["GymnasiumVecEnv-v0"], gymnasium.registry["FaceByName-v0"]


def test_actions_that_no_row_holds_reach_a_space_that_lacks_zero() -> None:
    """They travel beside the rows, which have to be in the space all the same."""
    vec = SyncVectorEnv([Started, Started])
    vec.reset()
    assert vec.step(np.array([5, 6], object))[1].tolist() == [5.0, 6.0]
    vec.close()


class Started(gymnasium.Env[Any, Any]):
    """Pays the number of the action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(action), False, False, {}


def clipped(env: Any) -> Any:
    return gymnasium.wrappers.ClipAction(env)


def flattened(env: Any) -> Any:
    return gymnasium.wrappers.FlattenObservation(env)


def length(envs: Any) -> int:
    """The steps of the first episode of environments that do nothing."""
    envs.reset(seed=3)
    for count in range(1, 600):
        _, _, terminations, truncations, _ = envs.step(np.zeros_like(envs.action_space.sample()))
        if (terminations | truncations).all():
            return count
    return 0


@covering({
    "env_id,arguments,expected": [
        ("MountainCar-v0", {}, 200),
        ("MountainCar-v0", {"max_episode_steps": 300}, 300),
        ("MountainCar-v0", {"max_episode_steps": 20}, 20),
        ("MountainCar-v0", {"max_episode_steps": 5, "goal_velocity": 0.1}, 5),
        ("MountainCarContinuous-v0", {"max_episode_steps": 7, "wrappers": [flattened, clipped]}, 7),
    ],
    "mode": ["sync", "async"],
    "by_spec": [False, True],
})  # fmt: skip
def test_make_vec_takes_what_gymnasiums_takes(
    mode: str, env_id: str, arguments: dict[str, Any], expected: int, by_spec: bool
) -> None:
    source: Any = gymnasium.spec(env_id) if by_spec else env_id
    vector_kwargs: dict[str, Any] = {"copy": False, "max_concurrency": 1} if mode == "async" else {"copy": False}
    with contextlib.closing(make_vec(source, 2, mode, vector_kwargs, **arguments)) as envs:
        assert isinstance(envs, SyncVectorEnv if mode == "sync" else AsyncVectorEnv) and not envs.copy
        assert length(envs) == expected
        if "goal_velocity" in arguments:
            assert [env.goal_velocity for env in envs.get_attr("unwrapped")] == [0.1, 0.1]
        if "wrappers" in arguments:
            layers = [(type(env), type(env.env)) for env in envs.envs] if mode == "sync" else []
            wrapped = gymnasium.wrappers.ClipAction, gymnasium.wrappers.FlattenObservation
            assert layers == [wrapped] * len(layers) and (layers or mode == "async")
        spec = envs.spec
    assert spec.id == env_id and spec.kwargs["vectorization_mode"] == mode and spec.kwargs["num_envs"] == 2
    if HAS_WRAPPERS:  # so is it from 1.0 on
        theirs = dict(vectorization_mode=mode, vector_kwargs={"copy": False})
        with contextlib.closing(gymnasium.make_vec(source, 2, **theirs, **arguments)) as envs:
            assert {**spec.kwargs, "vector_kwargs": {"copy": False}} == envs.spec.kwargs
    with contextlib.closing(make_vec(spec)) as again:  # what it was made with is in it
        assert type(again).__name__.lower().startswith(mode) and again.num_envs == 2 and not again.copy
        assert length(again) == expected and again.spec == spec


def test_make_vec_of_other_kinds() -> None:
    for env, limit, expected in (
        (lambda: gymnasium.make("MountainCar-v0"), 300, 300),
        (lambda: gymnasium.make("MountainCar-v0").unwrapped, 9, 9),
        (lambda: gymnasium.make("MountainCar-v0"), -1, 0),
        ("ocean/squared", 3, 3),
    ):
        with contextlib.closing(make_vec(env, 2, vectorizer="sync", max_episode_steps=limit)) as envs:
            assert length(envs) == expected
    with pytest.raises(PlanError, match="set the same argument twice"):
        make_vec("CartPole-v1", vectorization_mode="sync", vectorizer="async")
    with pytest.raises(PlanError, match="set the same argument twice"):
        make_vec("CartPole-v1", vector_kwargs={}, vectorizer_kwargs={})
    with pytest.raises(PlanError, match="vectorization_mode='asynch' is not 'async' or 'sync'; did you mean 'async'"):
        make_vec("CartPole-v1", vectorization_mode="asynch")
    with pytest.raises(PlanError, match="'vector_entry_point' is not 'async' or 'sync'"):
        make_vec(lambda: gymnasium.make("MountainCar-v0"), vectorization_mode="vector_entry_point")


@pytest.mark.skipif(not HAS_WRAPPERS, reason="Gymnasium has no vector environments of its own before 1.0")
def test_make_vec_of_an_id_with_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is imported, and what it has registered is as if the id had been named alone."""
    (tmp_path / "registers_on_import.py").write_text(
        'import gymnasium\ngymnasium.register("WithModule-v0", "gymnasium.envs.classic_control:CartPoleEnv")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with contextlib.closing(make_vec("registers_on_import:WithModule-v0", 2, "sync")) as envs:
            assert envs.spec.id == "WithModule-v0" and envs.spec.kwargs["num_envs"] == 2
    finally:
        gymnasium.registry.pop("WithModule-v0", None)


@pytest.mark.parametrize("mode", [3, True, ["async"]])
def test_make_vec_names_a_mode_of_another_type(mode: Any) -> None:
    with pytest.raises(PlanError, match=re.escape(f"vectorization_mode={mode!r} is not 'async' or 'sync'")):
        make_vec("CartPole-v1", 2, mode)


def test_make_vec_leaves_vector_entry_points_to_gymnasium() -> None:
    mode = gymnasium.VectorizeMode
    with contextlib.closing(make_vec("CartPole-v1", 3, mode.VECTOR_ENTRY_POINT, max_episode_steps=7)) as envs:
        assert type(envs).__name__ == "CartPoleVectorEnv" and envs.max_episode_steps == 7
    with contextlib.closing(make_vec(id="CartPole-v1", num_envs=3, vectorization_mode=mode.SYNC)) as envs:
        assert isinstance(envs, SyncVectorEnv) and envs.num_envs == 3


def test_envs_in_processes_say_what_to_use() -> None:
    with contextlib.closing(AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)) as envs:
        with pytest.raises(AttributeError, match=r"use get_attr\(name\)\[0\] or call\(name, …\)\[0\]"):
            print(envs.envs[0])
        assert not hasattr(envs, "envs")
        assert envs.get_attr("gravity")[0] == 9.8
