"""The trainers on a device, here on the host: what counts is learnt from, teams keep apart, processes learn as one."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from devices import ON_DEVICE, ON_HOST_AND_DEVICE, Player, array_of
from torch import Tensor

import pufferlib
from benchmarks.tag_learning import NUM_ERRORS, compared, trained
from cleanrl_demo import a2c_cuda, ppo, ppo_cuda
from cleanrl_demo.ppo_cuda import Config, Learner, Rollout, advantages, iteration, train, update
from pufferlib.errors import CheckpointError, PlanError
from pufferlib.models import Actor, Origin, load_policy, read_policy, save_policy
from pufferlib.models.files import read_checkpoint
from pufferlib.registry import creator
from pufferlib.training import teams as teams_module
from pufferlib.training.checkpoints import FILE, KIND
from pufferlib.training.minibatches import shuffled
from pufferlib.training.plot import read
from pufferlib.training.report import Report
from pufferlib.training.schedules import rate_at
from pufferlib.training.teams import teams_of

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {"num_taggers": 2, "grid_length": 5, "episode_length": 9}
SETTINGS: dict[str, Any] = {"device": "host", "num_envs": 8, "rollout_length": 6, "runs": None, "eval_episodes": 2}


on_host_and_device = pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)


def config(kind: Any = Config, **settings: Any) -> Any:
    return kind(**{"env": "tag/grid", "env_kwargs": SMALL, **SETTINGS, **settings})


def played(settings: Any, weights_seed: int = 1) -> tuple[Learner, Rollout, pufferlib.VecEnv]:
    """A learner, and a rollout that it has played in environments of its own."""
    torch.manual_seed(weights_seed)
    vec = pufferlib.make(settings.env, backend="cuda", device=settings.device, num_envs=settings.num_envs,
                         env_kwargs=settings.env_kwargs)  # fmt: skip
    learner = Learner(vec, Origin(*settings.made_as()), settings)
    rollout = Rollout(vec, learner, settings)
    vec.async_reset(seed=settings.seed)
    rollout.begin()
    rollout.play()
    return learner, rollout, vec


def test_advantages_are_those_of_the_other_trainer() -> None:
    generator = np.random.default_rng(0)
    num_steps, num_agents = 40, 7
    shape = (num_steps, num_agents)
    rewards, values = generator.normal(size=shape), generator.normal(size=(num_steps + 1, num_agents))
    ends = [generator.random(shape) < 0.2 for _ in range(2)]
    masks = generator.random(shape) < 0.8
    actual = advantages(
        *(torch.from_numpy(part) for part in (rewards, values, *ends, masks)), gamma=0.9, gae_lambda=0.8
    )
    # There, rows lie one after another, and point to the next one of their agent; the last row is nobody's.
    nobody = values.size

    def laid_out(column: np.ndarray) -> np.ndarray:
        return np.append(column.reshape(-1), np.zeros(nobody + 1 - column.size, column.dtype))

    next_index = np.minimum(np.arange(nobody + 1) + num_agents, nobody)
    batches = [slice(first, first + num_agents) for first in range(0, nobody, num_agents)]
    columns = [laid_out(part) for part in (rewards, values, *ends, masks)]
    wanted = ppo.advantages(*columns, next_index, batches, 0.9, 0.8)
    np.testing.assert_allclose(actual.numpy().reshape(-1), wanted[: rewards.size], rtol=1e-4, atol=1e-5)


@on_host_and_device
def test_a_rollout_holds_what_was_seen_done_and_got(player: Player) -> None:
    """The same seed and the actions that were noted give the same rows, one step at a time."""
    settings = config(rollout_length=25, separate=True, device=player.device)
    _, rollout, vec = played(settings)
    with vec, pufferlib.make("tag/grid", num_envs=8, env_kwargs=SMALL) as other:
        seen = other.reset(seed=settings.seed)[0]
        for step in range(25):
            assert np.array_equal(array_of(rollout.observations[step].flatten(0, 1)), seen)
            seen, *outcome, _ = other.step(array_of(rollout.actions[step].reshape(-1)))
            columns = (rollout.rewards, rollout.terminations, rollout.truncations)
            assert all(
                np.array_equal(array_of(column[step].reshape(-1)), expected)
                for column, expected in zip(columns, outcome, strict=True)
            )
            assert np.array_equal(array_of(rollout.masks[step].reshape(-1)), other.batch.masks)
        assert not rollout.masks.all() and rollout.terminations.any() and rollout.truncations.any()


@on_host_and_device
def test_continuous_actions_are_those_of_other_backends(player: Player) -> None:
    """From -1 to 1 they span the bounds, and beyond they are clipped."""
    settings = config(env="classic/pendulum", env_kwargs={}, rollout_length=25, device=player.device)
    learner, rollout, vec = played(settings)
    with vec, pufferlib.make("classic/pendulum", num_envs=8) as other:
        seen = other.reset(seed=settings.seed)[0]
        for step, actions in enumerate(rollout.actions.flatten(1, 2).cpu()):
            assert np.array_equal(array_of(rollout.observations[step].flatten(0, 1)), seen)
            seen, rewards, *_ = other.step(learner.actor.decisions.actions(actions[:, :0], actions))
            assert np.array_equal(array_of(rollout.rewards[step].reshape(-1)), rewards)
    assert rollout.actions.dtype == torch.float32 and 0.1 < (rollout.actions.abs() > 1).float().mean() < 0.6


@pytest.mark.parametrize("trainer", [ppo_cuda, a2c_cuda])
def test_rows_written_into_the_rollout_teach_what_copied_rows_teach(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(self: Rollout, step: int) -> None:
        self.vec.send(self.actions[step].flatten())
        batch = self.vec.recv()
        rows = (batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.masks)
        for column, values in zip(self._rows[step], rows, strict=True):
            column.copy_(values)

    weights = []
    for step in (Rollout.step, copied):
        monkeypatch.setattr(Rollout, "step", step)
        settings = config(trainer.Config, rollout_length=7)
        learner, rollout, vec = played(settings)
        with vec:
            iterate = iteration(rollout, settings, trainer.update)
            for _ in range(3):
                iterate()
            weights.append((learner.teams[0].weights, rollout.observations))
    assert rollout.masks.any() and all(torch.equal(*pair) for pair in zip(*weights, strict=True))


@on_host_and_device
@pytest.mark.parametrize("separate", [False, True])
def test_the_critic_reads_a_rollout_in_as_many_parts_as_there_are_minibatches(
    separate: bool, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values are those of each step, up to rounding, and the actions are the same."""
    settings = config(separate=separate, rollout_length=7, num_minibatches=3, device=player.device)
    learner, rollout, vec = played(settings)
    with vec:
        num_rows: list[int] = []
        for team in learner.teams:
            critic: Any = team.actor.policy.critic
            critic.register_forward_hook(lambda module, inputs, outputs: num_rows.append(len(outputs)))
        rollout.play()
        assert num_rows == [8 * agents * steps for agents in ((2, 1) if separate else (3,)) for steps in (3, 3, 2)]
        for team in learner.teams:
            seen = team.observations_of(rollout.observations)
            torch.testing.assert_close(team.rows_of(rollout.values), team.actor(seen)[1], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(Actor, "separable", False)
    _, by_step, other = played(settings)
    with other:
        by_step.play()
    assert torch.equal(rollout.actions, by_step.actions)
    torch.testing.assert_close(rollout.values, by_step.values, rtol=1e-4, atol=1e-5)


BY_ENVIRONMENT = {"minibatch_units": "environments"}


@on_host_and_device
@pytest.mark.parametrize(("trainer", "more"), [(ppo_cuda, {}), (ppo_cuda, BY_ENVIRONMENT), (a2c_cuda, {})])
def test_what_does_not_count_changes_nothing(trainer: Any, more: dict[str, Any], player: Player) -> None:
    weights = []
    for noise in (0.0, 1e3):
        settings = config(trainer.Config, rollout_length=25, device=player.device, **more)
        learner, rollout, vec = played(settings)
        with vec:
            idle = ~rollout.masks
            assert 0 < idle.sum() < idle.numel() / 2
            rollout.rewards += noise * idle
            rollout.log_probs += noise * idle
            rollout.observations[:-1] += noise * idle[..., None]
            trainer.update(learner, rollout, settings)
            weights.append(learner.teams[0].weights.detach().clone())
    assert torch.equal(*weights)


@pytest.mark.parametrize("num_minibatches", [1, 3, 7])
def test_minibatches_have_each_row_once_and_all_of_an_environment(num_minibatches: int) -> None:
    """5 steps of 7 environments of 3 agents."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.arange(105)
    draws = []
    for shape in (None, (5, 7), (5, 7)):
        minibatches = shuffled((rows, torch.stack([rows, -rows], 1)), num_minibatches, generator, shape)
        assert len(minibatches) == num_minibatches
        for ids, pairs in minibatches:
            assert torch.equal(pairs, torch.stack([ids, -ids], 1))
        draws.append(torch.cat([ids for ids, _ in minibatches]))
        assert torch.equal(draws[-1].sort().values, rows)
        counts = torch.stack([torch.bincount(ids // 3 % 7, minlength=7) for ids, _ in minibatches])
        assert counts.sum(1).max() - counts.sum(1).min() <= (1 if shape is None else 15)
        assert shape is None or set(counts.flatten().tolist()) <= {0, 15}
    assert not torch.equal(draws[1], draws[2]) and not torch.equal(draws[0], rows)


def test_what_is_shuffled_does_not_matter_where_a_minibatch_has_all() -> None:
    weights, before = [], torch.zeros(0)
    for units in ("rows", "environments"):
        settings = config(rollout_length=25, separate=True, minibatch_units=units, num_minibatches=1)
        learner, rollout, vec = played(settings)
        with vec:
            before = learner.teams[0].weights.detach().clone()
            update(learner, rollout, settings)
            weights.append(learner.teams[0].weights.detach())
    assert (weights[0] - before).abs().max() > 1e-4
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


@on_host_and_device
def test_a2c_is_ppo_that_learns_once_from_everything(player: Player) -> None:
    """Huang et al., arXiv:2205.09123."""
    steps = []
    for trainer, more in ((ppo_cuda, {"num_epochs": 1, "num_minibatches": 1}), (a2c_cuda, {})):
        settings = config(trainer.Config, rollout_length=25, device=player.device, **more)
        learner, rollout, vec = played(settings)
        with vec:
            before = learner.teams[0].weights.detach().clone()
            trainer.update(learner, rollout, settings)
            steps.append(learner.teams[0].weights.detach() - before)
    assert steps[0].abs().max() > 1e-4
    torch.testing.assert_close(*steps, rtol=1e-3, atol=1e-6)


@on_host_and_device
def test_teams_learn_apart_by_their_own_settings(player: Player) -> None:
    teams = {"tagger": {"learning_rate": 0.0}, "runner": {"schedule": "0:1e-3 100:0"}}
    settings = config(teams=teams, device=player.device)
    learner, rollout, vec = played(settings)
    with vec:
        tagger, runner = learner.teams
        before = [team.weights.detach().clone() for team in learner.teams]
        assert [team.set_rate(50, 1000) for team in learner.teams] == [0.0, 5e-4]
        update(learner, rollout, settings)
        assert torch.equal(tagger.weights, before[0]) and not torch.equal(runner.weights, before[1])
        # What a team does in a rollout is what its policy says, and the policies of all as one say the same.
        seen, policy = rollout.observations[0].flatten(0, 1), learner.actor
        logits = policy(seen)[0].log_probs[0].view(8, 3, -1)
        alone = [team.actor(seen)[0].log_probs[0].view(8, 3, -1) for team in learner.teams]
        torch.testing.assert_close(logits[:, :2], alone[0][:, :2])
        torch.testing.assert_close(logits[:, 2:], alone[1][:, 2:])
        shuffled = torch.randperm(24).to(seen.device)
        torch.testing.assert_close(
            policy(seen[shuffled], None, shuffled)[0].log_probs[0], logits.flatten(0, 1)[shuffled]
        )


@on_host_and_device
def test_weights_lie_where_a_gpu_reads_them_at_once(player: Player) -> None:
    """With 5 options, what is behind the actor's biases would begin between two words of 16 bytes."""
    learner, _, vec = played(config(separate=True, device=player.device))
    with vec:
        for team in learner.teams:
            places = [part.data_ptr() for part in team.actor.policy.parameters()]
            assert len(places) > 6 and not any(offset % 16 for offset in places)


@on_host_and_device
def test_teams_read_their_own_observations_and_obey_their_masks(player: Player, tmp_path: Path) -> None:
    """51 governors with 11 actions, of which they may take one every third day, and a planner with 21."""
    short = {"episode_length": 8, "action_cooldown": 3, "subsidy_interval": 5}
    more = {"env": "economy/covid", "env_kwargs": short, "separate": True, "device": player.device, "num_envs": 2}
    learner, rollout, vec = played(config(**more, rollout_length=9))
    with vec:
        governors = learner.teams[0]
        assert [team.actor.layout.shape for team in learner.teams] == [(75,), (484,)]
        drawn, masks = rollout.actions[..., 0].cpu(), rollout.observations[:-1].cpu()
        for actions, allowed in (
            (drawn[:8, :, :51], masks[:8, :, :51, :11]),
            (drawn[:8, :, 51:], masks[:8, :, 51:, :21]),
        ):
            assert allowed.gather(3, actions[..., None]).all() and not allowed.all() and actions.any()
        # The policy that is saved, which reads whole rows, says the same.
        seen = rollout.observations[:-1].flatten(0, 2)
        together = learner.actor(seen)[0].log_prob(rollout.actions.flatten(0, 2), seen[:, :0])
        torch.testing.assert_close(together.view_as(rollout.log_probs)[:8], rollout.log_probs[:8], rtol=1e-4, atol=1e-5)
        before = governors.weights.detach().clone()
        update(learner, rollout, config(**more))
        assert not torch.equal(governors.weights, before)
        save_policy(tmp_path / "policy.pt", learner.actor.policy, learner.origin)
    env = creator("economy/covid")(**short)
    with load_policy(tmp_path / "policy.pt", env) as policy:
        observations, infos = env.reset(seed=1)
        acted = policy.act(observations, infos)
        assert all(env.action_space(name).contains(acted[name]) for name in env.agents)
        for _ in range(2):
            observations, *_, infos = env.step(acted)
            acted = policy.act(observations, infos)
        assert acted["planner"] == 0


SHORT_ECONOMY = {"episode_length": 8, "action_cooldown": 3, "subsidy_interval": 5}


@pytest.mark.parametrize(
    "more",
    [
        {"env": "economy/covid", "env_kwargs": SHORT_ECONOMY, "separate": True, "num_envs": 2},
        {"env": "ocean/continuous", "env_kwargs": {}},
    ],
)
def test_the_compiled_learner_draws_and_learns_the_same(more: dict[str, Any]) -> None:
    """Up to rounding, with masks, and what a checkpoint holds goes on the same."""
    columns, steps, losses = [], [], []
    for name in ("torch", "fused"):
        settings = config(**more, rollout_length=18, learner=name, num_epochs=2, num_minibatches=1)
        learner, rollout, vec = played(settings)
        with vec:
            columns.append((rollout.actions, rollout.log_probs, rollout.values))
            before = [team.weights.detach().clone() for team in learner.teams]
            losses.append(update(learner, rollout, settings))
            steps.append([team.weights.detach() - old for team, old in zip(learner.teams, before, strict=True)])
            if name == "fused":
                other = Learner(vec, Origin(*settings.made_as()), settings)
                other.restore(learner.state())
                for one in (learner, other):
                    update(one, rollout, settings)
                assert all(
                    torch.equal(one.weights, same.weights) for one, same in zip(learner.teams, other.teams, strict=True)
                )
    assert columns[0][0].is_floating_point() or torch.equal(columns[0][0], columns[1][0])
    torch.testing.assert_close(*columns, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-5)
    for of_torch, of_fused in zip(*steps, strict=True):
        assert of_torch.abs().max() > 1e-4
        torch.testing.assert_close(of_torch, of_fused, rtol=1e-2, atol=1e-5)


def test_rewards_are_scaled_and_the_end_of_time_may_be_a_termination() -> None:
    columns = []
    for more in ({}, {"reward_scale": 0.5}, {"bootstrap": False}):
        _, rollout, vec = played(config(rollout_length=25, **more))
        with vec:
            columns.append((rollout.rewards, rollout.advantages(0.9, 0.8)))
            truncated = rollout.truncations & rollout.masks
    (rewards, plain), (scaled, _), (_, ended) = columns
    assert rewards.any() and torch.equal(scaled, rewards / 2)
    values = rollout.values[1:][truncated]
    assert truncated.any() and torch.allclose(plain[truncated] - ended[truncated], 0.9 * values, atol=1e-6)


def test_episodes_are_reported(tmp_path: Path) -> None:
    settings = config(num_envs=16, total_steps=2000, runs=str(tmp_path), separate=True)
    folder = train(settings).run_folder
    assert folder is not None
    length, *returns = (
        read(folder, f"charts/{name}").values
        for name in ("episodic_length", "episodic_return", "return_of/tagger", "return_of/runner")
    )
    assert len(length) > 5 and (length > 1).all() and (length <= 9).all()
    np.testing.assert_allclose(returns[0], 2 * returns[1] + returns[2], rtol=1e-4)


def test_schedules() -> None:
    assert [rate_at("linear", 2.0, step, 100) for step in (0, 50, 100, 150)] == [2.0, 1.0, 0.0, 0.0]
    assert rate_at("constant", 2.0, 50, 100) == 2.0 and 0.99 < rate_at("cosine", 2.0, 50, 100) < 1.01
    assert [rate_at("10:1 20:3 40:0", 9.0, step, 50) for step in (0, 10, 15, 20, 30, 99)] == [1, 1, 2, 3, 1.5, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "sudden"}, r"schedule='sudden' is none; use linear, cosine, constant, or \"0:1e-3 2e6:1e-4\""),
        ({"schedule": "5:1 5:2"}, "with growing steps"),
        (
            {"teams": {"tagger": {"lr": 1}}},
            "teams have agents, learning_rate, schedule, entropy_coefficient, and not lr",
        ),
        ({"backend": "pool"}, "backend='pool' is out of bounds; use cuda"),
        ({"frame_stack": 2}, "frame_stack=2 is out of bounds"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1.0 is out of bounds; use more than 0"),
        ({"episodic_life": True}, "episodic_life=True is out of bounds"),
        ({"policy_kwargs": {"normalize": True}}, "normalize=True, but this trainer does not update its statistics"),
        ({"policy": "lstm"}, "has a memory"),
        ({"teams": {"ghost": {}}}, "each of the agents .* has to be in one team"),
        ({"minibatch_units": "agents"}, "minibatch_units='agents' is out of bounds; use rows, environments"),
        (
            {**BY_ENVIRONMENT, "learner": "fused"},
            "minibatch_units='environments' is out of bounds; use rows, or --learner torch",
        ),
        (
            {**BY_ENVIRONMENT, "num_minibatches": 9},
            "num_minibatches=9 of num_envs=8 whole environments: use 1 to 8, or minibatch_units=rows",
        ),
    ],
)
def test_what_does_not_go_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        train(config(total_steps=10, **settings))


@pytest.mark.parametrize("learner", ["torch", "fused"])
def test_a_training_ends_where_numbers_become_nan(learner: str) -> None:
    """By the loss that was NaN first, and not by the actions that follow."""
    settings = config(env="classic/pendulum", env_kwargs={}, reward_scale=3e38, learner=learner, total_steps=2000)
    with pytest.raises(PlanError, match=r"losses/.*_loss is (inf|nan) after .* steps"):
        train(settings)


def test_a_training_ends_where_nothing_can_be_learnt_any_more() -> None:
    rewards = {**SMALL, "tag_reward_for_tagger": 3e38}  # whose squares no float32 holds
    with pytest.raises(PlanError, match=r"losses/.*_loss_tagger is (inf|nan) after .* steps"):
        a2c_cuda.train(config(a2c_cuda.Config, total_steps=100_000, env_kwargs=rewards, separate=True))


def test_teams_are_types_or_patterns() -> None:
    names = ("tagger_0", "tagger_1", "runner_0", "runner_1")
    assert teams_of(names, config()) == {"": [0, 1, 2, 3]}
    assert teams_of(names, config(separate=True)) == {"tagger": [0, 1], "runner": [2, 3]}
    odd = {"first": {"agents": ["*_0"]}, "second": {"agents": ["tagger_1", "runner_1"]}}
    assert teams_of(names, config(teams=odd)) == {"first": [0, 2], "second": [1, 3]}
    with pytest.raises(PlanError, match="has to be in one team"):
        teams_of(names, config(teams={"first": {"agents": ["*_0"]}}))


def test_a_policy_of_teams_is_for_this_trainer_alone() -> None:
    teams = {"places": {"all": [0, 1, 2]}}
    settings = ppo.Config(env="tag/grid", env_kwargs=SMALL, policy="teams", policy_kwargs=teams, runs=None)
    with pytest.raises(PlanError, match=r"goes by agents' places; use cleanrl_demo.ppo_cuda --separate"):
        ppo.train(settings)


@pytest.mark.parametrize("trainer", [ppo_cuda, a2c_cuda])
def test_a_run_that_is_resumed_ends_as_if_it_had_not_stopped(trainer: Any, tmp_path: Path) -> None:
    """And a seed repeats a run; and what is kept plays in a raw environment."""
    settings = config(trainer.Config, separate=True, total_steps=1000, checkpoint_every=500, schedule="constant")
    complete = trainer.train(settings).actor.policy.state_dict()
    half = trainer.train(replace(settings, total_steps=500, runs=str(tmp_path)))
    _, rest = trainer.resume(half.run_folder, total_steps=1000)
    resumed = rest.actor.policy.state_dict()
    assert all(torch.equal(complete[name], resumed[name]) for name in complete)
    assert not any(
        torch.equal(complete[name], part) for name, part in half.actor.policy.state_dict().items() if "weight" in name
    )
    env = creator("tag/grid")(**SMALL)
    observations, infos = env.reset(seed=1)
    with load_policy(half.run_folder / "policy.pt") as player:
        while env.agents:
            observations, *_, infos = env.step(player.act(observations, infos))


def test_a_run_from_before_weights_were_aligned_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(teams_module, "ALIGNMENT", 1)
        folder = train(config(total_steps=100, runs=str(tmp_path))).run_folder
        assert folder is not None
        shutil.copytree(folder, tmp_path / "copy")
        ppo_cuda.resume(folder, total_steps=300)
    ppo_cuda.resume(tmp_path / "copy", total_steps=300)
    ends = [read_policy(run).weights for run in (folder, tmp_path / "copy")]
    assert all(torch.allclose(weights, ends[1][name], atol=1e-5) for name, weights in ends[0].items())


def test_a_run_whose_weights_lie_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(teams_module, "ALIGNMENT", 2)
        folder = train(config(total_steps=100, runs=str(tmp_path))).run_folder
    assert folder is not None
    with pytest.raises(CheckpointError, match=r"different networks, .*: \d+ numbers of an optimizer for \d+ weights"):
        ppo_cuda.resume(folder, total_steps=300)


@pytest.mark.parametrize("trainer", [ppo_cuda, a2c_cuda])
def test_a_run_plays_no_more_than_it_announces(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result = trainer.train(config(trainer.Config, total_steps=10))
    announced = re.search(r"whole rollouts, of up to ([\d,]+) steps", capsys.readouterr().out)
    assert announced is not None
    most = int(announced[1].replace(",", ""))
    assert 10 <= result.num_steps <= most
    several = trainer.train(config(trainer.Config, total_steps=2 * most))
    assert 2 * most <= several.num_steps < 3 * most  # the rollout that reaches it is the last


@pytest.mark.parametrize("trainer", [ppo_cuda, a2c_cuda])
def test_a_run_that_is_killed_goes_on_from_newest(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the steps that its weights have learnt from; and the run itself takes no notice."""
    monkeypatch.setattr("pufferlib.training.session.SAVING_SHARE", np.inf)
    settings = config(trainer.Config, separate=True, total_steps=1000)
    complete = trainer.train(settings)
    noting = trainer.train(replace(settings, checkpoint_minutes=0, runs=str(tmp_path / "noting")))
    settings = replace(settings, schedule="constant")
    killed = replace(settings, checkpoint_minutes=0, runs=str(tmp_path / "killed"))
    assert complete.num_steps == noting.num_steps
    weights = complete.actor.policy.state_dict()
    assert all(torch.equal(weights[name], part) for name, part in noting.actor.policy.state_dict().items())
    update, steps = Report.update, list[int]()

    def stopped(self: Report, num_steps: int, scalars: Any) -> None:
        update(self, num_steps, scalars)
        steps.append(num_steps)
        if num_steps >= 600:
            raise InterruptedError

    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(Report, "update", stopped)
        trainer.train(killed)
    (folder,) = (tmp_path / "killed").iterdir()
    checkpoint = read_checkpoint(folder / "newest.pt", KIND, FILE)
    assert checkpoint["learner"]["num_steps"] == steps[-2] and not (folder / FILE).exists()
    short = trainer.train(replace(settings, total_steps=steps[-2])).actor.policy.state_dict()
    assert all(torch.equal(short[name], part) for name, part in checkpoint["learner"]["weights"].items())
    again = shutil.copytree(folder, tmp_path / "again")
    one, other = (trainer.resume(run_folder)[1].actor.policy.state_dict() for run_folder in (folder, again))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("more", [{}, {"separate": True}])
def test_minibatches_of_fewer_than_two_rows_are_refused(more: dict[str, Any]) -> None:
    settings = config(rollout_length=1, total_steps=1, **more)
    with pytest.raises(PlanError, match=r"num_minibatches=\d+ .* fewer than two rows") as refused:
        train(replace(settings, num_minibatches=10**6))
    num_rows = int(refused.value.args[0].split("at most ")[1].split()[0])
    assert train(replace(settings, num_minibatches=num_rows // 2)).num_steps > 0
    with pytest.raises(PlanError, match="fewer than two"):
        train(replace(settings, num_minibatches=num_rows // 2 + 1))


@pytest.mark.slow
@pytest.mark.parametrize("player", [pytest.param("loops", marks=pytest.mark.long), ON_DEVICE], indirect=True)
@pytest.mark.parametrize("units", ["rows", pytest.param("environments", marks=pytest.mark.long)])
def test_solves_squared_on_the_device(units: str, player: Player) -> None:
    more: dict[str, Any] = {"device": player.device, "minibatch_units": units, "runs": None}
    settings = Config(env="ocean/squared", num_envs=64, total_steps=60_000, learning_rate=5e-3, **more)
    assert train(settings).score >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "num_steps"), [(ppo_cuda, 100_000), (a2c_cuda, 200_000)])
@on_host_and_device
def test_solves_continuous_on_the_device(trainer: Any, num_steps: int, player: Player) -> None:
    settings = trainer.Config(
        env="ocean/continuous", num_envs=64, total_steps=num_steps, learning_rate=5e-3, device=player.device, runs=None
    )
    assert trainer.train(settings).score >= 0.95


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("game", "teams", "num_steps"),
    [
        ("tag/grid", ["tagger", "runner"], 200_000),
        ("tag/continuous", ["tagger"], 300_000),
    ],
)
def test_taggers_and_runners_learn_together(game: str, teams: list[str], num_steps: int) -> None:
    """`python -m benchmarks.tag_learning` has five seeds, and the runners of the continuous game, who take longer."""
    for row in compared(trained(game, 1, "host", num_steps), game, 1, "host"):
        assert row.num_errors >= NUM_ERRORS or row.team not in teams, row


def finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


@on_host_and_device
def test_bfloat16_learns_in_float32(player: Player) -> None:
    settings = config(precision="bfloat16", device=player.device)
    learner, rollout, vec = played(settings)
    with vec:
        losses = update(learner, rollout, settings)
        assert finite(losses) and learner.teams[0].weights.dtype == torch.float32
