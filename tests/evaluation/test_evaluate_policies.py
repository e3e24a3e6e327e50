"""Policies in ``evaluate``: networks whose sampled actions do not depend on where and when episodes are played."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from mock_envs import HashEnv
from torch import nn

import pufferlib
from pufferlib.errors import CheckpointError, MissingExtra, PlanError, SpaceError
from pufferlib.evaluation.noise import gumbels, normals, uniforms
from pufferlib.models import Actor, Distribution, Origin, make_policy, read_policy, save_policy

pytestmark = pytest.mark.beside

PLANS: list[dict[str, Any]] = [
    {"backend": "serial", "num_envs": 1},
    {"backend": "serial", "num_envs": 11, "batch_size": 4},
    {"backend": "multiprocessing", "num_envs": 7, "num_workers": 2},
    {"backend": "pool", "num_envs": 9, "num_workers": 2},
    {"backend": "pool", "num_envs": 20, "num_workers": 2, "batch_size": 3},
]


class Chaotic(gymnasium.Env[Any, Any]):
    """Amplifies the last bits of an action, and of what it depends on: its state is a chaotic function of all of it."""

    def __init__(self, shape: tuple[int, ...] = (5,), continuous: bool = False) -> None:
        image = len(shape) == 3
        self.shape, self.continuous = shape, continuous
        self.observation_space = spaces.Box(0, 255 if image else 1, shape, np.uint8 if image else np.float32)
        self.action_space = spaces.Box(-1, 1, (3,), np.float32) if continuous else spaces.Discrete(7)

    def observe(self) -> Any:
        values = np.abs(np.sin(self.state * np.arange(1, 1 + np.prod(self.shape)))).reshape(self.shape)
        return (255 * values).astype(np.uint8) if len(self.shape) == 3 else values.astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state, self.left = self.np_random.random(), int(self.np_random.geometric(0.08))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        number = float(np.sum(action, dtype=np.float64)) if self.continuous else int(action) / 7
        self.state = 3.99 * ((self.state + number) % 1.0) * (1 - (self.state + number) % 1.0)
        self.left -= 1
        return self.observe(), self.state, self.left <= 0, False, {}


def network(kind: str, env: Any, **kwargs: Any) -> nn.Module:
    torch.manual_seed(1)
    with pufferlib.make(env) as vec:
        policy = make_policy(kind, vec.observation_layout, vec.single_action_space, **kwargs)
    for weights in policy.parameters():
        nn.init.normal_(weights, std=0.3)  # far from uniform actions
    return policy


def image() -> Any:
    return Chaotic((36, 36, 3))


def continuous() -> Any:
    return Chaotic((5,), continuous=True)


KINDS = [
    pytest.param("mlp", Chaotic, 16, marks=pytest.mark.long),
    pytest.param("mlp", Chaotic, 5, marks=pytest.mark.long),
    ("mlp", continuous, 16),
    pytest.param("lstm", Chaotic, 16, marks=pytest.mark.long),
    ("lstm", Chaotic, 3),
    pytest.param("cnn", image, 5, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kind", "env", "policy_batch"), KINDS)
def test_a_sampled_network_plays_the_same_everywhere(kind: str, env: Any, policy_batch: int) -> None:
    policy = network(kind, env, **({} if kind == "cnn" else {"hidden_size": 37}))
    num_episodes = 12 if kind == "cnn" else 30
    how = {"episodes": num_episodes, "policy_batch": policy_batch}
    first = pufferlib.evaluate(env, policy, **PLANS[0], **how)
    assert len({*first.returns.tolist()}) == num_episodes
    for plan in PLANS[1:]:
        assert pufferlib.evaluate(env, policy, **plan, **how) == first, plan
    greedy = pufferlib.evaluate(env, policy, greedy=True, **PLANS[3], **how)
    assert greedy != first and greedy == pufferlib.evaluate(env, policy, greedy=True, **PLANS[1], **how)


def test_a_memory_starts_again_with_each_episode_and_each_retry() -> None:
    class Counting(nn.Module):
        def initial_state(self, num_rows: int) -> Any:
            return (torch.full((num_rows, 1), 3.0),)

        def forward(self, observations: Any, state: Any, action_mask: Any) -> Any:
            (counts,) = state
            logits = nn.functional.one_hot(counts[:, 0].long() - 3, 12) * 1e6
            return logits, torch.zeros(len(counts)), (counts + 1,)

    for plan in PLANS:
        assert len(pufferlib.evaluate(Clock, Counting(), episodes=25, **plan)) == 25


class Clock(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(12)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(1, 9))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert action == self.time, "the policy's memory counts otherwise"
        self.time += 1
        return np.array([self.time], np.float32), 1.0, self.time == self.length, False, {}


def test_files_modules_and_actors_are_one_policy_and_are_left_as_they_were(tmp_path: Path) -> None:
    policy = network("lstm", Chaotic, hidden_size=8)
    save_policy(tmp_path / "policy.pt", policy, Origin("lstm", {"hidden_size": 8}, f"{__name__}:Chaotic"))
    with pufferlib.make(Chaotic) as vec:
        actor = Actor(lambda *spaces: policy, vec.observation_layout, vec.single_action_space)
    saved = read_policy(tmp_path)
    policy.train()
    random_state, num_threads = torch.random.get_rng_state(), torch.get_num_threads()
    how = {"episodes": 12, "backend": "serial"}
    first = pufferlib.evaluate(Chaotic, policy, **how)
    for other in (tmp_path, str(tmp_path / "policy.pt"), saved, actor):
        assert pufferlib.evaluate(Chaotic, other, **how) == first
    assert policy.training and all(module.training for module in policy.modules())
    assert torch.equal(torch.random.get_rng_state(), random_state) and torch.get_num_threads() == num_threads
    with pytest.raises(CheckpointError, match="there is no file"):
        pufferlib.evaluate(Chaotic, "nowhere.pt", **how)
    with pytest.raises(CheckpointError, match="holds a policy for other observations or actions"):
        pufferlib.evaluate(HashEnv, tmp_path, **how)


def test_functions_may_return_tensors_with_gradients() -> None:
    layer = nn.Linear(5, 3)

    def policy(batch: Any) -> Any:
        return layer(torch.from_numpy(batch.observations)).clamp(-1, 1)

    how = {"episodes": 30, "backend": "serial", "policy_batch": 4}
    assert pufferlib.evaluate(continuous, policy, num_envs=3, **how) == pufferlib.evaluate(continuous, policy, **how)


def test_modules_with_another_interface_are_refused_with_the_way_out() -> None:
    class Model(nn.Linear):
        def predict(self) -> None: ...

    how = {"episodes": 2, "backend": "serial"}
    with pytest.raises(PlanError, match=r"Sequential.forward\(input.*cannot be called with .* a function of a batch"):
        pufferlib.evaluate(Chaotic, nn.Sequential(nn.Linear(5, 7)), **how)
    with pytest.raises(PlanError, match="pass the model instead of its policy"):
        pufferlib.evaluate(Chaotic, Model(5, 7), **how)


def test_without_torch_the_error_names_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for policy in ("random", tmp_path):
        with pytest.raises(MissingExtra, match="torch"):
            pufferlib.evaluate(Chaotic, policy, episodes=2, backend="serial")


def test_sampled_models_predict_no_row_that_fills_the_batch() -> None:
    rows = []

    class Model:
        action_space = spaces.Discrete(7)

        def predict(self, observations: Any, state: Any, episode_start: Any, deterministic: bool) -> Any:
            rows.append(len(observations))
            return np.random.randint(0, 7, len(observations)), None  # from the shared generator, as models do

    how = {"episodes": 6, "policy_batch": 5, "backend": "serial", "fresh": "never"}
    result = pufferlib.evaluate(Chaotic, Model(), num_envs=2, **how)
    assert rows == [1] * result.lengths.sum()
    assert pufferlib.evaluate(Chaotic, Model(), num_envs=5, **how) == result


# ------------------------------------------------------------------------------------------------- random numbers


def test_random_numbers_belong_to_seed_step_and_agent_and_are_distributed_as_they_should() -> None:
    seeds, steps, agents = (part.ravel() for part in np.mgrid[0:40, 0:40, 0:5])
    numbers = uniforms(seeds, steps, agents, 6)
    assert numbers.shape == (8000, 6) and len(np.unique(numbers)) > 47_900 and 0 < numbers.min() < numbers.max() < 1
    order = np.random.default_rng(1).permutation(8000)
    np.testing.assert_array_equal(uniforms(seeds[order], steps[order], agents[order], 6), numbers[order])
    np.testing.assert_array_equal(uniforms(seeds, steps, agents, 3), numbers[:, :3])
    assert abs(np.corrcoef(numbers.T) - np.eye(6)).max() < 0.05
    assert abs(numbers.mean(0) - 0.5).max() < 0.02 and abs(numbers.var(0) - 1 / 12).max() < 0.005
    assert abs(gumbels(numbers).mean() - np.euler_gamma) < 0.02
    standard = normals(numbers)
    assert standard.shape == (8000, 3) and abs(standard.mean()) < 0.02 and abs(standard.std() - 1) < 0.02


def test_sampled_actions_have_the_probabilities_of_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5]]).repeat(20_000, 1)
    parts = torch.split(logits, [2, 2], dim=1)
    mean, std = torch.full((20_000, 1), 2.0), torch.full((20_000, 1), 0.5)
    numbers = uniforms(np.arange(20_000), np.zeros(20_000, int), np.zeros(20_000, int), 6)
    noise = (torch.from_numpy(part).float() for part in (gumbels(numbers[:, :4]), normals(numbers[:, 4:])))
    discrete, free = Distribution(parts, mean, std).sample_with(*noise)
    expected = [part.softmax(1)[0, 1].item() for part in parts]
    np.testing.assert_allclose(discrete.float().mean(0).numpy(), expected, atol=0.015)
    assert abs(free.mean().item() - 2) < 0.02 and abs(free.std().item() - 0.5) < 0.02


class Free(gymnasium.Env[Any, Any]):
    """Checks its actions, and returns them as rewards."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Dict(
        bounded=spaces.Box(-3, 5, (2,), np.float32),
        switch=spaces.Discrete(3, start=4),
        half=spaces.Box(2, np.inf, (1,), np.float32),
        free=spaces.Box(-np.inf, np.inf, (1,), np.float32),
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        info = {name: float(np.asarray(value).reshape(-1)[0]) for name, value in action.items()}
        return np.zeros(1, np.float32), 0.0, True, False, info


def test_random_actions_fill_the_action_space() -> None:
    names = ("bounded", "switch", "half", "free")
    result = pufferlib.evaluate(Free, "random", episodes=600, infos=names, backend="serial", num_envs=100)
    bounded, switch, half, free = (result.infos[name] for name in names)
    assert abs(bounded.mean() - 1) < 0.3 and bounded.min() < -2.8 and bounded.max() > 4.8
    assert np.bincount(switch.astype(int), minlength=7)[4:].min() > 150
    assert half.min() >= 2 and abs(half.mean() - 3) < 0.2 and abs(free.std() - 1) < 0.15


# ----------------------------------------------------------------------------------------------- Stable-Baselines3


@pytest.mark.extras
@pytest.mark.slow
def test_models_of_stable_baselines3_play_the_same_everywhere() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    model = sb3.PPO("MlpPolicy", Chaotic(), seed=1, device="cpu", policy_kwargs={"net_arch": [8]})
    before = torch.random.get_rng_state()
    for greedy in (True, False):
        how = {"seeds": range(3, 12), "greedy": greedy}
        first = pufferlib.evaluate(Chaotic, model, **PLANS[0], **how)
        for plan in (PLANS[1], PLANS[3]):
            assert pufferlib.evaluate(Chaotic, model, **plan, **how) == first
    assert torch.equal(torch.random.get_rng_state(), before)
    returns, lengths = evaluate_policy(model, Monitor(Seeded(3)), 1, return_episode_rewards=True)
    greedy_one = pufferlib.evaluate(Chaotic, model, seeds=[3], greedy=True, backend="serial", policy_batch=1)
    assert greedy_one.lengths.tolist() == lengths and greedy_one.returns.tolist() == pytest.approx(returns, rel=1e-5)
    with pytest.raises(SpaceError, match="the model observes"):
        pufferlib.evaluate(image, model, episodes=2, backend="serial")


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_the_noise_matrix_of_a_model_belongs_to_the_episode_and_the_model_is_left_as_it_was(kind: str) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    how = {"seed": 1, "device": "cpu", "use_sde": True, "policy_kwargs": {"net_arch": [8]}}
    model = getattr(sb3, kind)("MlpPolicy", continuous(), **how)
    model.policy.set_training_mode(True)
    distribution = getattr(model.policy, "actor", model.policy).action_dist
    matrix = distribution.exploration_mat.clone()
    how = {"seeds": range(4), "max_steps": 6, "fresh": "never"}
    first = pufferlib.evaluate(continuous, model, **PLANS[0], **how)
    assert model.policy.training and torch.equal(distribution.exploration_mat, matrix)
    model.policy.reset_noise()  # what the model holds is not what episodes are played with
    assert pufferlib.evaluate(continuous, model, **PLANS[1], **how) == first
    model.sde_sample_freq = 2
    assert pufferlib.evaluate(continuous, model, **PLANS[1], **how) != first


class Seeded(Chaotic):
    """Begins every episode with one seed, whatever it is reset with."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=self.seed, options=options)


# ---------------------------------------------------------------------------------------------------------- kernels


def test_kernels_on_the_host_play_what_their_references_play() -> None:
    pytest.importorskip("cuda_ext")
    policy = network("mlp", "ocean/squared", hidden_size=8)
    how = {"episodes": 20, "infos": ("score",), "max_steps": 20}
    first = pufferlib.evaluate("ocean/squared", policy, backend="serial", num_envs=3, **how)
    for num_envs, batch_size in ((4, None), (7, 3)):
        plan = {"num_envs": num_envs, "batch_size": batch_size, "device": "host"}
        result = pufferlib.evaluate("ocean/squared", policy, backend="cuda", **plan, **how)
        assert result == first
