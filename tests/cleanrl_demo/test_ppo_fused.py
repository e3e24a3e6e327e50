"""PPO with the compiled learner: it learns, resumes, saves an ordinary policy, and refuses what it cannot learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pufferlib
from cleanrl_demo import ppo_fused
from cleanrl_demo.ppo_fused import Config, DeviceRollout, Learner, Rollout, resume, train, update
from cuda_ext.learner.device import DeviceLearner
from cuda_ext.learner.fused import FusedLearner, Settings
from cuda_ext.references.exponentials import logarithm
from cuda_ext.references.sampling import sampled_numbers, words_of
from ocean.continuous import Continuous
from pufferlib.errors import KernelError, PlanError
from pufferlib.models import Origin, load_policy
from pufferlib.training.settings import family_settings

pytestmark = pytest.mark.beside

SETTINGS: dict[str, Any] = {"num_envs": 8, "rollout_length": 16, "runs": None, "eval_episodes": 10}


def config(**settings: Any) -> Config:
    return Config(**{**SETTINGS, **settings})


def environments(env: str, num_envs: int = 3, **kwargs: Any) -> Any:
    return pufferlib.make(env, backend="cuda", device="host", num_envs=num_envs, seed=1, **kwargs)


def weights(result: Any) -> dict[str, torch.Tensor]:
    return {**result.actor.policy.state_dict()}


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


CARTPOLE = config(
    num_envs=16, rollout_length=32, total_steps=30_000, minibatch_size=128, gamma=0.98, gae_lambda=0.9, eval_episodes=50
)


@pytest.mark.long
def test_it_learns_cartpole() -> None:
    result = train(CARTPOLE)
    assert result.num_steps >= 30_000
    assert result.mean_return > 150  # 22 by chance


@pytest.mark.parametrize("units", ["rows", "environments"])
def test_any_number_of_threads_learns_the_same(units: str) -> None:
    settings = config(total_steps=600, minibatch_units=units, num_envs=24)
    one, two = (train(replace(settings, num_threads=num_threads, device="host")) for num_threads in (1, 2))
    assert same(weights(one), weights(two))


def test_a_resumed_run_ends_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_every": 500, "runs": str(tmp_path), "env": "tag/grid"}
    settings["schedule"] = "constant"  # a linear one would end with the first half
    uninterrupted, half = (train(config(total_steps=total_steps, **settings)) for total_steps in (1500, 500))
    assert not same(weights(uninterrupted), weights(half))
    assert half.run_folder is not None
    _, rest = resume(half.run_folder, total_steps=1500)
    assert same(weights(uninterrupted), weights(rest))


def test_its_policy_is_an_ordinary_one(tmp_path: Path) -> None:
    result = train(config(total_steps=500, runs=str(tmp_path)))
    assert result.run_folder is not None
    with load_policy(result.run_folder) as player:
        assert same(player.policy.state_dict(), weights(result))
        env = pufferlib.registry.creator("classic/cartpole")()
        observation, _ = env.reset(seed=1)
        assert player.act(observation) in (0, 1)


def test_nothing_is_learnt_from_rows_that_start_episodes() -> None:
    settings = config(env_kwargs={"max_episode_steps": 5}, num_epochs=1)
    with environments("classic/cartpole", 8, env_kwargs=settings.env_kwargs) as vec:
        learner = Learner(vec, Origin(), settings)
        rollout = Rollout(vec, learner, settings)
        vec.async_reset()
        rollout.begin()
        rollout.play()
        assert 0 < rollout.masks.mean() < 1
        rows = np.concatenate(rollout.minibatches())
        assert sorted(rows.tolist()) == np.flatnonzero(rollout.masks.reshape(-1)).tolist()
        before = learner.fused.weights.copy()
        losses = update(learner, rollout, 1e-3)
        assert np.isfinite([*losses.values()]).all() and (learner.fused.weights != before).any()
        with torch.no_grad():
            _, values, _ = learner.actor(rollout.observations[0])
        actual = learner.fused.values(rollout.rows().features[:8])
        np.testing.assert_allclose(actual, values.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("env", "kwargs"), [("tag/grid", {}), ("classic/cartpole", {"max_episode_steps": 5})])
def test_minibatches_of_environments_have_all_rows_of_each(env: str, kwargs: dict[str, Any]) -> None:
    settings = config(env=env, num_envs=7, minibatch_units="environments", minibatch_size=32)
    with environments(env, settings.num_envs, env_kwargs=kwargs) as vec:
        rollout = Rollout(vec, Learner(vec, Origin(), settings), settings)
        vec.async_reset()
        rollout.begin()
        rollout.play()
        minibatches = rollout.minibatches()
        assert len(minibatches) > 2
        valid_rows = np.flatnonzero(rollout.masks.reshape(-1))
        assert sorted(np.concatenate(minibatches).tolist()) == valid_rows.tolist()
        env_sets = [{*(minibatch % rollout.num_rows // vec.agents_per_env).tolist()} for minibatch in minibatches]
        assert sorted(env for env_set in env_sets for env in env_set) == [*range(settings.num_envs)]


WIDE_GRID = {"grid_length": 99}  # nobody is tagged so soon


@pytest.mark.parametrize(
    ("env", "kwargs", "units", "tolerance"),
    [
        ("tag/grid", WIDE_GRID, "rows", 0.0),
        ("tag/grid", WIDE_GRID, "environments", 0.0),
        ("classic/pendulum", {}, "rows", 1e-5),  # torch rounds the logarithms of its large numbers in another way
    ],
)
def test_an_iteration_on_a_device_learns_what_the_host_does(
    env: str, kwargs: dict[str, Any], units: str, tolerance: float
) -> None:
    """On fibres. No row is invalid here, so both have the same minibatches."""
    settings = config(
        env=env, num_envs=4, rollout_length=6, minibatch_size=40, minibatch_units=units, num_epochs=2,
        reward_clip=0.005,
    )  # fmt: skip
    with environments(env, 4, env_kwargs=kwargs) as vec, environments(env, 4, env_kwargs=kwargs) as other:
        host, fibres = (Learner(vec, Origin(), settings) for _ in range(2))
        fibres.actor.policy.load_state_dict(host.actor.policy.state_dict())
        host.fused.load()
        fibres.fused.load()
        rollout = Rollout(vec, host, settings)
        on_device = DeviceLearner(fibres.fused, "cpu")
        device_rollout = DeviceRollout(other, fibres, on_device, settings)
        on_device.learning_rate.fill_(1e-2)
        for part, envs in ((rollout, vec), (device_rollout, other)):
            envs.async_reset()
            part.begin()
        for _ in range(2):
            rollout.play()
            assert rollout.masks.all()
            losses = update(host, rollout, 1e-2)
            other.batch.observations.fill_(7)  # where a graph reads them, a replay finds those of another step
            num_steps, means, *_ = device_rollout.play_and_update()
            assert int(num_steps) == rollout.masks.size
            expected = [*losses.values()]
            np.testing.assert_allclose(means.numpy(), expected, rtol=1e-12, atol=tolerance)  # summed in another order
            np.testing.assert_allclose(on_device.weights.numpy(), host.fused.weights, rtol=0, atol=tolerance)


def test_a_device_learns_nothing_from_rows_that_start_episodes() -> None:
    settings = config(env_kwargs={"max_episode_steps": 5}, num_epochs=1)
    with environments("classic/cartpole", 8, env_kwargs=settings.env_kwargs) as vec:
        learner = Learner(vec, Origin(), settings)
        rollout = DeviceRollout(vec, learner, DeviceLearner(learner.fused, "cpu"), settings)
        rollout.fused.learning_rate.fill_(1e-2)
        vec.async_reset()
        rollout.begin()
        num_steps, losses, num_episodes, *_ = rollout.play_and_update()
        assert 0 < num_steps < rollout.most_steps
        assert losses.isfinite().all() and num_episodes > 0
        rows = torch.cat(rollout.minibatches())
        assert sorted(rows.tolist()) == [*range(rollout.most_steps)]


class OnFibres(Learner):
    """A learner whose device is played by fibres."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.on_device = DeviceLearner(self.fused, "cpu")


def test_a_run_on_a_device_is_resumed_as_if_it_had_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_fused, "Learner", OnFibres)
    settings: dict[str, Any] = {"checkpoint_every": 300, "runs": str(tmp_path), "num_epochs": 1, "eval_episodes": 2}
    settings |= {"schedule": "constant", "num_envs": 4}
    uninterrupted, half = (train(config(total_steps=total_steps, **settings)) for total_steps in (600, 300))
    assert not same(weights(uninterrupted), weights(half))
    assert half.run_folder is not None
    _, rest = resume(half.run_folder, total_steps=600)
    assert same(weights(uninterrupted), weights(rest))


def test_the_rate_on_a_device_follows_the_steps_before_the_iteration_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration begins before the results of the previous one are read."""
    known: list[int] = []

    def rate(schedule: str, first: float, num_steps: int, total_steps: int) -> float:
        known.append(num_steps)
        return first

    monkeypatch.setattr(ppo_fused, "Learner", OnFibres)
    monkeypatch.setattr(ppo_fused, "rate_at", rate)
    train(config(num_envs=4, total_steps=4 * 16 * 4, num_epochs=1, eval_episodes=2))
    assert known[:2] == [0, 0] and 0 < known[2] < known[3] < 4 * 16 * 3


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_on_a_gpu_it_learns_cartpole(graphs: bool, cuda: str) -> None:
    assert train(replace(CARTPOLE, device=cuda, graphs=graphs)).mean_return > 150


@pytest.mark.gpu
@pytest.mark.parametrize("env", ["tag/grid", "classic/pendulum"])
def test_on_a_gpu_a_graph_replays_what_single_launches_learn(env: str, cuda: str) -> None:
    settings = config(env=env, device=cuda, num_envs=16, total_steps=16 * 16 * 5 * 6, schedule="constant")
    graphed, single = (train(replace(settings, graphs=graphs)) for graphs in (True, False))
    assert same(weights(graphed), weights(single))


def test_minibatches_have_two_rows_or_more() -> None:
    settings = config(num_envs=3, rollout_length=1, minibatch_size=2)
    with environments(settings.env, settings.num_envs) as vec:
        rollout = Rollout(vec, Learner(vec, Origin(), settings), settings)
        vec.async_reset()
        rollout.begin()
        rollout.play()
        assert [len(minibatch) for minibatch in rollout.minibatches()] == [3]


def test_nothing_is_learnt_from_a_rollout_without_valid_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    shares_of_valid_rows = []

    def updated(learner: Learner, rollout: Rollout, learning_rate: float) -> dict[str, float]:
        shares_of_valid_rows.append(rollout.masks.mean())
        return update(learner, rollout, learning_rate)

    monkeypatch.setattr(ppo_fused, "update", updated)
    train(config(num_envs=1, rollout_length=1, total_steps=9, env_kwargs={"max_episode_steps": 3}))
    assert shares_of_valid_rows == [1] * 9


def test_there_are_at_most_as_many_minibatches_as_environments() -> None:
    settings = config(num_envs=3, minibatch_units="environments", minibatch_size=2)
    with environments(settings.env, settings.num_envs) as vec:
        rollout = Rollout(vec, Learner(vec, Origin(), settings), settings)
        vec.async_reset()
        rollout.begin()
        rollout.play()
        env_sets = [{*(minibatch % 3).tolist()} for minibatch in rollout.minibatches()]
        assert sorted(map(sorted, env_sets)) == [[0], [1], [2]]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("env", ["tag/grid", "tag/continuous"])
def test_rollouts_play_what_single_steps_would(env: str, keep: bool) -> None:
    num_steps = 12
    with environments(env) as vec, environments(env) as other:
        learner = Learner(vec, Origin(), config(env=env))
        vec.reset()
        other.reset()
        is_scaled = learner.fused._is_scaled
        assert is_scaled.any() == (env == "tag/continuous")
        batch = other.batch
        for _ in range(2):  # the second continues where the first ended
            rollout = vec.rollout(num_steps, policy=learner.fused, keep=keep)
            for step in range(num_steps):
                observations = batch.observations.numpy()
                features = np.where(is_scaled, scaled(observations), observations)
                chosen = other.send_logits(torch.from_numpy(learner.fused.policy_outputs(features)))
                batch = other.recv()
                if keep or step == num_steps - 1:
                    expected = (chosen.actions, chosen.log_probs, batch.observations, batch.masks)
                    columns = (rollout.actions, rollout.log_probs, rollout.observations, rollout.masks)
                    for actual, column in zip(columns, expected, strict=True):
                        np.testing.assert_array_equal(actual[step] if keep else actual, column)


@pytest.mark.parametrize(("env", "size"), [("ocean/continuous", 1), ("classic/pendulum", 2)])
def test_rollouts_draw_numbers_from_normal_distributions(env: str, size: int) -> None:
    """size: the number to which 1 is scaled."""
    settings = config(env=env, num_envs=3)
    with environments(env) as vec, environments(env) as other:
        learner = Learner(vec, Origin(), settings)
        with torch.no_grad():
            learner.actor.policy.log_std.copy_(torch.linspace(0.2, -1, len(learner.actor.policy.log_std)))
        learner.fused.load()
        rollout = Rollout(vec, learner, settings)
        vec.async_reset()
        other.reset()
        rollout.begin()
        rollout.play()
        log_std = learner.actor.policy.log_std.detach().numpy()
        num_beyond = 0
        for step in range(settings.rollout_length):
            observations = other.batch.observations.numpy()
            means = learner.fused.policy_outputs(np.where(learner.fused._is_scaled, scaled(observations), observations))
            seed, episode, t = (np.array(other.get_attr(name)) for name in ("seed", "episode", "t"))
            numbers, log_probs, _ = sampled_numbers(means, log_std, words_of(seed, episode, t, 0, 2))
            rows = slice(3 * step, 3 * step + 3)
            np.testing.assert_array_equal(rollout.continuous_actions[rows], numbers)
            np.testing.assert_array_equal(rollout.log_probs[step], log_probs)
            num_beyond += (np.abs(numbers) > 1).sum()
            other.step(np.float32(size) * numbers)
            np.testing.assert_array_equal(rollout.observations[step + 1], other.batch.observations)
            np.testing.assert_array_equal(rollout.rewards[step], other.batch.rewards)
        assert num_beyond > 3
        entropies = vec.rollout(2, policy=learner.fused).entropies
        np.testing.assert_allclose(entropies, (log_std + 0.5 * np.log(2 * np.pi * np.e)).sum(), rtol=1e-6)
        learnt = rollout.rows()
        parts = torch.from_numpy(learnt.discrete_actions), torch.from_numpy(learnt.continuous_actions)
        distribution, _, _ = learner.actor(rollout.observations[:-1].flatten(0, 1))
        expected = distribution.log_prob(*parts).detach()
        np.testing.assert_allclose(learnt.log_probs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_numbers(seed: int) -> None:
    """To the bar of Ocean, with the settings that the command line begins with."""
    settings = family_settings("ocean/continuous", Config)[1] | {"eval_episodes": 200}
    score = train(Config(env="ocean/continuous", runs=None, seed=seed, **settings)).score
    assert score is not None and score >= Continuous.bar


def test_rollouts_that_it_cannot_play_are_refused() -> None:
    settings = config()
    with environments("classic/cartpole") as vec, environments("tag/grid") as other:
        learner = Learner(vec, Origin(), settings)
        other.reset()
        with pytest.raises(KernelError, match="the policy makes 2 logits of 4 numbers, and these environments take 5"):
            other.rollout(2, policy=learner.fused)
        other.rollout(2)  # nothing has changed
    options = FusedLearner(network(2), network(1), torch.zeros(0), [2], Settings())
    with environments("ocean/continuous") as vec:
        vec.reset()
        with pytest.raises(KernelError, match="the policy chooses 0 numbers, and an action of these environ"):
            vec.rollout(2, policy=options)
    with environments("classic/cartpole", backend_kwargs={"checked": True}) as vec:
        vec.reset()
        with pytest.raises(KernelError, match='the fused learner plays on the host only: device="host", without "chec'):
            vec.rollout(2, policy=learner.fused)


def network(num_outputs: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, num_outputs))


def scaled(numbers: np.ndarray) -> np.ndarray:
    """Numbers on the logarithmic scale of the compiled code, to the bit."""
    size = logarithm(1 + np.abs(numbers))
    return np.where(numbers < 0, -size, size)


class Table(torch.nn.Module):
    """A policy that is no MLP."""

    def __init__(self, layout: Any, space: Any) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": "lstm"}, "policy='lstm' has a memory, which this trainer does not keep; use ppo_lstm"),
        ({"policy_kwargs": {"normalize": True}}, "has normalize, which the compiled learner does not take; leave it"),
        ({"policy": f"{__name__}:Table"}, "is a Table, and the fused learner takes only MLPs of numbers; use pol"),
        ({"backend": "serial"}, "backend='serial' is out of bounds; use cuda"),
        ({"minibatch_units": "agents"}, "minibatch_units='agents' is out of bounds; use rows, environments"),
        ({"minibatch_size": 1}, "minibatch_size=1 is out of bounds; use 2 or more"),
        ({"gradient_groups": 0}, "gradient_groups=0 is out of bounds; use 1 to 1,024"),
        ({"frame_stack": 2}, "frame_stack=2 is out of bounds"),
        ({"video_envs": (0,)}, "nothing is filmed here"),
    ],
)
def test_what_it_cannot_do_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        train(config(**settings))
