"""The face for TorchRL keeps its specs, resets whom TorchRL resets, and its PPO loss learns over it."""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from mock_envs import FaultyEnv, HashEnv
from tensor_batches import over_tensors

import pufferlib

pytest.importorskip("torchrl")
import torch
from tensordict.nn import TensorDictModule
from torchrl.data import Bounded, Unbounded
from torchrl.envs import GymEnv, GymWrapper, SerialEnv, check_env_specs

from pufferlib.adapters.torchrl import TorchRLVecEnv, make
from pufferlib.errors import ClosedError

pytestmark = [pytest.mark.extras, pytest.mark.beside]

multiprocessing.set_start_method(None, force=True)  # TorchRL has set it, for all that comes after


@pytest.fixture(autouse=True)
def start_method_as_it_was() -> Iterator[None]:
    yield
    multiprocessing.set_start_method(None, force=True)


class Nested(gymnasium.Env[Any, Any]):
    """Draws all that it shows; three kinds of leaves, episodes of four steps."""

    def __init__(self) -> None:
        part = Dict(bits=MultiBinary(3), kind=Discrete(7))
        self.observation_space = Dict(part=part, seen=Box(-1, 1, (2,), np.float32))
        self.action_space = Discrete(3, start=2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.tick = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return self.observation_space.sample(), float(action), False, self.tick == 4, {}


@pytest.mark.parametrize("one_hot", [False, True])
def test_keeps_its_specs(one_hot: bool) -> None:
    env = make(Nested, one_hot=one_hot, num_envs=3)
    check_env_specs(env)
    rollout = env.rollout(10, break_when_any_done=False)
    assert rollout["part", "bits"].shape == (3, 10, 3) and rollout["seen"].dtype == torch.float32
    chosen = rollout["action"].long().argmax(-1) if one_hot else rollout["action"]
    torch.testing.assert_close(rollout["next", "reward"][..., 0], chosen.float() + 2)
    env.close()


class ActsIn(HashEnv):
    """HashEnv with actions of another space."""

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.action_space = action_space

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return super().step(np.int64(np.sum(action) > 0))


@pytest.mark.parametrize(
    "space", [MultiDiscrete([[3, 4], [2, 2]], start=[[1, 0], [0, 2]]), Box(-np.inf, np.inf, (2,), np.float32)], ids=str
)
@pytest.mark.parametrize("one_hot", [False, True])
def test_keeps_its_specs_with_actions_of(space: Any, one_hot: bool) -> None:
    env = make(functools.partial(ActsIn, space), one_hot=one_hot, num_envs=3)
    check_env_specs(env)
    env.close()


def test_actions_may_have_gradients_or_be_bits_as_floats() -> None:
    env = make(functools.partial(ActsIn, MultiBinary(3)), num_envs=2)
    action = torch.ones(2, 3, requires_grad=True)
    env.step(env.reset().set("action", action))
    env.close()


def test_a_reset_of_none_leaves_all_as_they_are() -> None:
    env = make(HashEnv, num_envs=2)
    now = env.rand_step(env.reset())["next"]
    again = env.reset(now.clone().set("_reset", torch.zeros(2, 1, dtype=torch.bool)))
    assert torch.equal(again["observation"], now["observation"])
    env.close()


def test_moves_to_another_device() -> None:
    env = make(HashEnv, num_envs=2).to("meta")
    assert env._reset()["observation"].device.type == "meta"  # TorchRL's reset reads flags, which meta has none of
    env.close()


def test_refuses_observations_by_names_that_torchrl_has_a_meaning_for() -> None:
    class Telling(Nested):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Dict(action=Discrete(3), seen=Box(-1, 1, (2,), np.float32))

    with pytest.raises(pufferlib.SpaceError, match="the key 'action'"):
        make(Telling)


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_rows_are_those_of_the_vec_env(backend: str) -> None:
    actions = torch.randint(1000, (50, 4), generator=torch.Generator().manual_seed(1))
    steps = iter(actions)
    env = make(HashEnv, num_envs=4, num_workers=2, seed=3, backend=backend)
    policy = TensorDictModule(lambda _: next(steps), in_keys=["observation"], out_keys=["action"])
    rollout = env.rollout(50, policy, break_when_any_done=False)
    env.close()
    with pufferlib.make(HashEnv, num_envs=4, seed=3, autoreset_mode="disabled") as vec:
        observations, _ = vec.reset()
        for t in range(50):
            np.testing.assert_array_equal(rollout["observation"][:, t], observations)
            observations, rewards, terminations, truncations, _ = vec.step(actions[t].numpy())
            for key, expected in (("reward", rewards), ("terminated", terminations), ("truncated", truncations)):
                np.testing.assert_array_equal(rollout["next", key][:, t, 0], expected)
            np.testing.assert_array_equal(rollout["next", "observation"][:, t], observations)
            over = np.flatnonzero(terminations | truncations)
            if len(over):
                observations, _ = vec.reset(env_ids=over)
    assert rollout["next", "truncated"].any() and rollout["next", "terminated"].any()


@over_tensors
def test_plays_over_tensors_as_over_arrays(kwargs: dict[str, Any]) -> None:
    rollouts = []
    for more in (kwargs, {}):
        actions = torch.Generator().manual_seed(1)
        policy = TensorDictModule(
            lambda seen, actions=actions: torch.randint(2, seen.shape[:-1], generator=actions),
            in_keys=["observation"],
            out_keys=["action"],
        )
        env = make("classic/cartpole", num_envs=3, seed=1, **more)
        rollouts.append(env.rollout(120, policy, break_when_any_done=False))
        env.close()
    for part, expected in zip(*(rollout.values(True, True) for rollout in rollouts), strict=True):
        assert torch.equal(part, expected)
    assert rollouts[0]["next", "done"].sum() > 5


class Lasting(gymnasium.Env[Any, Any]):
    """Counts its steps; the episode of environment i lasts 2 + 2 i of them."""

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, env_index: int = 0) -> None:
        self.length = 2 + 2 * env_index

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.tick < self.length, "played on after its end"
        self.tick += 1
        return np.full(1, self.tick, np.float32), 1.0, self.tick == self.length, False, {}


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_rollout_in_the_middle_of_collecting_leaves_the_collector_going(num_envs: int, backend: str) -> None:
    from torchrl.collectors import Collector

    env = make(Lasting, num_envs=num_envs, backend=backend)
    collector = Collector(env, frames_per_batch=5 * num_envs, total_frames=-1)
    seen = []
    for data, _ in zip(collector, range(4), strict=False):
        seen.append(data["next", "observation"][..., 0])
        evaluated = env.rollout(1000)  # to the first end, as the tutorial coding_ppo does
        assert evaluated.shape == (*env.batch_size, 2) and evaluated["next", "done"][..., -1, 0].any()
        assert torch.equal(evaluated["next", "observation"][..., 0], torch.tensor([1.0, 2]).expand(*env.batch_size, 2))
    first = seen[1][..., 0] if num_envs > 1 else seen[1][0]
    assert first.reshape(-1)[0] == 1  # environment 0, whose episode was over, has started again
    if num_envs > 1:
        assert first.tolist() == [1, 3, 3]  # the others go on
    collector.shutdown()


def test_a_rollout_of_kernels_leaves_the_collector_going() -> None:
    from torchrl.collectors import Collector

    env = make("classic/cartpole", num_envs=4, seed=1, backend="cuda", device="host")
    collector = Collector(env, frames_per_batch=80, total_frames=-1)
    for data, _ in zip(collector, range(5), strict=False):
        assert env.rollout(1000)["next", "done"].any()
        poles = data["next", "observation"][..., 2].abs()
        assert (poles[~data["next", "done"][..., 0]] < 0.21).all()  # none that has fallen is played
    collector.shutdown()


@pytest.mark.parametrize("kwargs", [{}, {"backend": "multiprocessing", "num_workers": 2}], ids=str)
def test_a_rollout_to_the_end_of_all_is_that_of_their_serial_env(kwargs: dict[str, Any]) -> None:
    theirs = SerialEnv(3, [lambda index=index: GymWrapper(Lasting(index), categorical_action_encoding=True)
                           for index in range(3)])  # fmt: skip
    ours = make(Lasting, num_envs=3, **kwargs)
    for _ in range(2):
        one, other = (env.rollout(10, break_when_any_done=False, break_when_all_done=True) for env in (ours, theirs))
        assert one.shape == (3, 6)
        for key in ("observation", "reward", "done", "terminated", "truncated"):
            assert torch.equal(one["next", key], other["next", key])
    with pytest.raises(pufferlib.CallError, match="leave out only those that are done"):
        ours.step(ours.rand_action(ours.reset()).set("_step", torch.tensor([True, False, True])))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_one_environment_has_the_specs_of_their_gym_env(name: str) -> None:
    theirs, ours = GymEnv(name, categorical_action_encoding=True), make(name, seed=1)
    assert ours.batch_size == theirs.batch_size == ()
    assert ours.observation_spec["observation"] == theirs.observation_spec["observation"]
    assert isinstance(ours.observation_spec["observation"], Bounded)
    assert ours.action_spec == theirs.action_spec and ours.reward_spec.shape == theirs.reward_spec.shape
    assert ours.done_spec.shape == theirs.done_spec.shape
    check_env_specs(ours)
    one, other = (env.rollout(20, break_when_any_done=False) for env in (ours, theirs))
    assert {key: part.shape for key, part in one.items(True, True)} == {
        key: part.shape for key, part in other.items(True, True)
    }
    ours.close()
    theirs.close()


def test_boxes_have_their_bounds_and_others_none() -> None:
    class Boxes(Nested):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Dict(
                bounded=Box(np.array([-1, -2], np.float32), np.array([1, np.inf], np.float32)),
                free=Box(-np.inf, np.inf, (3,), np.float32),
                kinds=MultiDiscrete([2, 3]),
                late=Discrete(3, start=5),
                whole=Box(-4, 4, (2,), np.int64),
            )

    env = make(Boxes, num_envs=2)
    check_env_specs(env)
    spec = env.observation_spec
    assert isinstance(spec["bounded"], Bounded) and isinstance(spec["free"], Unbounded)
    assert torch.equal(spec["bounded"].space.low, torch.tensor([[-1.0, -2]]).expand(2, 2))
    assert torch.equal(spec["bounded"].space.high, torch.tensor([[1, torch.inf]]).expand(2, 2))
    assert spec["whole"].space.high.tolist() == [[4, 4]] * 2 and spec["late"].space.low.tolist() == [5, 5]
    assert not spec["kinds"].is_in(torch.tensor([[1, 3], [0, 0]])) and spec["kinds"].is_in(torch.zeros(2, 2).long())
    env.close()


def test_agents_are_rows() -> None:
    env = make("ocean/multiagent", num_envs=2, agents="rows")
    assert env.batch_size == (4,)
    check_env_specs(env)
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["next", "done"].any() and rollout["next", "reward"].shape == (4, 6, 1)
    env.close()


def test_a_crash_is_not_bootstrapped_from() -> None:
    env = make(FaultyEnv, num_envs=2, on_error="restart")
    data = env.step(env.reset().set("action", torch.tensor([991, 0])))
    assert data["next", "terminated"][0] and not data["next", "truncated"][0]
    env.close()
    with pufferlib.make(HashEnv) as vec, pytest.raises(pufferlib.PlanError, match="disabled"):
        TorchRLVecEnv(vec)


@pytest.mark.slow
@pytest.mark.long
def test_their_ppo_loss_learns_bandit() -> None:
    from torchrl.collectors import Collector
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.manual_seed(1)
    env = make("ocean/bandit", num_envs=8, seed=1)
    net = TensorDictModule(torch.nn.Linear(1, 4), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        net, in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    critic = ValueOperator(torch.nn.Linear(1, 1), in_keys=["observation"])
    advantages, loss = GAE(gamma=0.9, lmbda=0.9, value_network=critic), ClipPPOLoss(actor, critic, entropy_coeff=0.0)
    optimizer = torch.optim.Adam(loss.parameters(), 0.1)
    collector = Collector(env, actor, frames_per_batch=64, total_frames=64 * 20)
    for data in collector:
        score = data["next", "reward"].mean()
        advantages(data)
        losses = loss(data)
        optimizer.zero_grad()
        sum(losses[key] for key in ("loss_objective", "loss_critic")).backward()
        optimizer.step()
    collector.shutdown()
    env.close()
    assert score >= 0.9


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_collectors_environment_plays_on_after_its_last_batch(num_envs: int) -> None:
    """Collectors close their environment with the last batch, and TorchRL's own environments start again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.collectors import Collector
    env = make(lambda: gymnasium.make("CartPole-v1", max_episode_steps=9), num_envs=num_envs, seed=1)
    collector = Collector(env, None, frames_per_batch=6 * num_envs, total_frames=12 * num_envs)
    assert [data.shape[-1] for data in collector] == [6, 6]
    collector.shutdown()
    assert env.vec.closed
    assert env.rollout(12, break_when_any_done=False).shape == (*env.batch_size, 12)
    env.close()
    assert env.vec.closed


def test_a_face_around_a_closed_vecenv_says_so() -> None:
    vec = pufferlib.make("CartPole-v1", num_envs=2, autoreset_mode="disabled")
    env = TorchRLVecEnv(vec)
    env.close()
    with pytest.raises(ClosedError, match="is closed"):
        env.reset()
