"""The face for Stable-Baselines3 does what its own vector environments do, and its PPO learns over it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple
from mock_envs import FaultyEnv, HashEnv, HashPopulation
from tensor_batches import TENSORS, over_tensors

import pufferlib

pytest.importorskip("stable_baselines3")
from stable_baselines3 import PPO
from stable_baselines3.common import vec_env as sb3
from stable_baselines3.common.monitor import Monitor

from pufferlib.adapters.sb3 import DummyVecEnv, SB3VecEnv, SubprocVecEnv, make

pytestmark = [pytest.mark.extras, pytest.mark.beside]

NUM = 5
KINDS: list[Callable[..., Any]] = [DummyVecEnv, functools.partial(SubprocVecEnv, num_workers=2)]


class DictEnv(HashEnv):
    """HashEnv whose observations are a Dict, as Stable-Baselines3 takes them."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.observation_space = Dict(
            bits=MultiBinary(3), hash=Box(0, 255, (16,), np.uint8), kind=Discrete(7, start=-3)
        )

    def _observation(self) -> Any:
        b = self.digest
        bits = np.array([b[4] & 1, b[5] & 1, b[6] & 1], np.int8)
        return {"bits": bits, "hash": np.frombuffer(b, np.uint8).copy(), "kind": np.int64(b[1] % 7 - 3)}


class Drawn(gymnasium.Env[Any, Any]):
    """Draws what it shows, of any space, and takes actions of any other; episodes of three steps."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    @property
    def fixed(self) -> int:
        """What cannot be set."""
        return 5

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.tick += 1
        return self.observation_space.sample(), 0.5, self.tick == 3, False, {}


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.parametrize("env_creator", [HashEnv, DictEnv])
@pytest.mark.parametrize("kind", KINDS, ids=["dummy", "subproc"])
def test_plays_as_their_own(kind: Callable[..., Any], env_creator: Any) -> None:
    env_fns = [functools.partial(env_creator, index) for index in range(NUM)]
    theirs, ours = sb3.DummyVecEnv(env_fns), kind(env_fns)
    try:
        assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
        rng = np.random.default_rng(1)
        num_dones = 0
        for episode in range(2):  # the second without a seed, with options
            for envs in (theirs, ours):
                _ = envs.seed(7) if episode == 0 else envs.set_options({"level": 3})
            assert_same(ours.reset(), theirs.reset())
            assert ours.reset_infos == theirs.reset_infos
            for _ in range(60):
                actions = rng.integers(1000, size=NUM)
                (observations, rewards, dones, infos), theirs_now = ours.step(actions), theirs.step(actions)
                for info in infos:
                    if "terminal_observation" in info:
                        assert set(info.pop("episode")) == {"r", "l", "t"}  # theirs has it of Monitor
                assert_same((observations, rewards, dones, infos), theirs_now)
                assert ours.reset_infos == theirs.reset_infos
                num_dones += dones.sum()
        assert num_dones > 50
    finally:
        ours.close()


@pytest.mark.parametrize("kind", KINDS, ids=["dummy", "subproc"])
def test_environments_can_be_asked_and_set(kind: Callable[..., Any]) -> None:
    env_fns: list[Any] = [HashEnv] * 2 + [lambda: Monitor(HashEnv())]
    envs = kind(env_fns)
    try:
        assert envs.env_is_wrapped(Monitor) == [False, False, True]
        assert envs.env_is_wrapped(gymnasium.Wrapper, [1, 2]) == [False, True]
        assert envs.has_attr("mean_length") and not envs.has_attr("nothing")
        envs.set_attr("mean_length", [3], indices=2)
        assert envs.get_attr("mean_length") == [6, 6, [3]] and envs.get_attr("mean_length", -1) == [[3]]
        pids = envs.env_method("pid", indices=range(2))
        assert len(pids) == 2 and all(isinstance(pid, int) for pid in pids)
    finally:
        envs.close()


@pytest.mark.parametrize("kind", KINDS, ids=["dummy", "subproc"])
def test_what_cannot_be_set_raises_as_the_environment_does(kind: Callable[..., Any]) -> None:
    envs = kind([functools.partial(Drawn, Discrete(2), Discrete(2))] * 3)
    try:
        with pytest.raises(AttributeError, match="fixed"):
            envs.set_attr("fixed", 1)
        with pytest.raises(pufferlib.CallError, match=r"\[3\] do not exist"):
            envs.get_attr("tick", 3)
    finally:
        envs.close()


@pytest.mark.parametrize(
    ("observation_space", "names"),
    [
        (Dict(a=Dict(b=Box(0, 1, (2,)), c=Discrete(3)), d=Tuple([MultiBinary(2), Box(-1, 1, ())])),
         {"a/b", "a/c", "d/0", "d/1"}),
        (Dict({"0": Discrete(2), "kind/of": Box(0, 1, (1,))}), {"0", "kind/of"}),
        (Dict({"a/b": Discrete(2), "a": Dict(b=Box(0, 1, (1,)))}), {"a/b", "a.b"}),
        (Dict(text=Text(4), seen=Box(0, 1, (2,))), {"text/data", "text/length", "seen"}),
    ],
    ids=["nested", "flat", "slash", "text"],
)  # fmt: skip
def test_their_policies_read_leaves_and_act_in_bits(observation_space: Any, names: set[str]) -> None:
    envs = DummyVecEnv([functools.partial(Drawn, observation_space, MultiBinary(3))] * 2)
    if "a.b" not in names:
        PPO("MultiInputPolicy", envs, n_steps=4, batch_size=8, n_epochs=1, device="cpu").learn(8)
    space, observations = envs.observation_space, envs.reset()
    assert isinstance(space, Dict) and set(space) == set(observations) == names
    assert all(part.shape == (2, *(space[name].shape or ())) for name, part in observations.items())
    *_, infos = [envs.step(np.ones((2, 3), np.float32)) for _ in range(3)][-1]
    assert space.contains(infos[0]["terminal_observation"])
    with pytest.raises(pufferlib.ActionError, match="convert them"):
        envs.step(np.full((2, 3), 0.5, np.float32))
    envs.close()


def test_episodes_of_monitor_are_the_recorders() -> None:
    envs = DummyVecEnv([lambda: Monitor(HashEnv())])
    envs.reset()
    assert envs.envs[0].get_wrapper_attr("pid")() == envs.env_method("pid")[0]
    while True:
        _, _, dones, (info,) = envs.step(np.zeros(1, np.int64))
        if dones[0]:
            break
    assert info["episode"]["l"] == envs.envs[0].get_episode_lengths()[0]
    envs.close()


def test_a_crash_ends_an_episode_without_an_observation_to_bootstrap_from() -> None:
    envs = make(FaultyEnv, num_envs=2, on_error="restart")
    envs.reset()
    _, _, dones, infos = envs.step(np.array([991, 0]))
    assert (
        dones[0]
        and "restarted" in infos[0]
        and "terminal_observation" not in infos[0]
        and not infos[0]["TimeLimit.truncated"]
    )
    envs.close()


@over_tensors
@pytest.mark.parametrize("name", ["classic/cartpole", "tag/grid"])
def test_plays_over_tensors_as_over_arrays(name: str, kwargs: dict[str, Any]) -> None:
    agents: Any = "rows" if name == "tag/grid" else None  # an episode of tag ends for all of its agents
    envs, expected = (make(name, num_envs=3, seed=1, agents=agents, **more) for more in (kwargs, {}))
    rng, num_dones = np.random.default_rng(1), 0
    assert_same(envs.reset(), expected.reset())
    for _ in range(120):
        actions = rng.integers(envs.action_space.n, size=envs.num_envs)
        (observations, rewards, dones, infos), theirs = envs.step(actions), expected.step(actions)
        assert type(observations) is type(rewards) is np.ndarray
        for info in (*infos, *theirs[3]):
            info.get("episode", {}).pop("t", None)  # which is measured
        assert_same((observations, rewards, dones), theirs[:3])
        for info, other in zip(infos, theirs[3], strict=True):
            assert_same(info, other)
        num_dones += dones.sum()
    assert num_dones > 5
    envs.close()
    expected.close()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kwargs", [TENSORS["kernels"], TENSORS["tensors"]], ids=["kernels", "tensors"])
def test_their_ppo_learns_over_tensors(kwargs: dict[str, Any]) -> None:
    envs = make("classic/cartpole", num_envs=8, seed=1, **kwargs)
    agent = PPO("MlpPolicy", envs, n_steps=64, batch_size=128, n_epochs=8, learning_rate=2e-3, seed=1, device="cpu")
    agent.learn(64 * 8 * 6)
    lengths = [info["l"] for info in agent.ep_info_buffer]
    envs.close()
    assert np.mean(lengths[-20:]) > 60  # of random play: 22


def test_refuses_what_they_cannot_step() -> None:
    with pytest.raises(pufferlib.PlanError, match="same_step"):
        make(HashEnv, autoreset_mode="next_step")
    with pytest.raises(pufferlib.SpaceError, match="agents an environment"):
        make(HashPopulation, wrap_kwargs={"max_agents": 4})
    with pytest.raises(pufferlib.WorkerError, match="already plays environment 0; pass a function that makes a new"):
        DummyVecEnv([functools.partial(lambda env: env, HashEnv())] * 2)
    with (
        pufferlib.make(HashEnv, num_envs=4, batch_size=2, autoreset_mode="same_step") as vec,
        pytest.raises(pufferlib.PlanError, match="batch_size"),
    ):
        SB3VecEnv(vec)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("serial", marks=pytest.mark.long), "multiprocessing"])
def test_their_ppo_learns_bandit(backend: str) -> None:
    envs = make("ocean/bandit", num_envs=8, backend=backend, num_workers=2)
    agent = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=4, learning_rate=1e-2, seed=1, device="cpu")
    agent.learn(1024)
    observations, scores = envs.reset(), []
    for _ in range(10):
        observations, _, _, infos = envs.step(agent.predict(observations, deterministic=True)[0])
        scores += [info["score"] for info in infos]
    envs.close()
    assert np.mean(scores) >= 0.9


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_their_ppo_learns_as_two_agents(backend: str) -> None:
    envs = make("ocean/multiagent", num_envs=8, backend=backend, num_workers=2, agents="rows")
    agent = PPO("MlpPolicy", envs, n_steps=16, batch_size=64, n_epochs=4, learning_rate=1e-2, seed=1, device="cpu")
    agent.learn(16 * 16 * 10)
    observations, scores = envs.reset(), []
    for _ in range(10):
        observations, rewards, dones, infos = envs.step(agent.predict(observations, deterministic=True)[0])
        assert dones.all() and [info["episode"]["r"] for info in infos] == rewards.tolist()
        scores += rewards.tolist()
    envs.close()
    assert np.mean(scores) >= 0.95
