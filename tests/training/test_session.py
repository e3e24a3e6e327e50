"""Runs that stop and go on: checkpoints, resuming, and what a trainer is told."""

from __future__ import annotations

import enum
import re
import shutil
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pufferlib
from cleanrl_demo import dqn, maddpg, ppo, ppo_cuda, ppo_fused, ppo_lstm, ppo_selfplay, qmix, sac, td3
from pufferlib.cli import main
from pufferlib.errors import CheckpointError, PlanError, RegistryError
from pufferlib.evaluation.seeds import derived_seeds
from pufferlib.models import LSTM, MLP, load_policy, read_policy
from pufferlib.models.files import read_checkpoint, save_checkpoint
from pufferlib.training.checkpoints import FILE, KIND, NEWEST
from pufferlib.training.evaluation import Subject, evaluate, play
from pufferlib.training.minibatches import shares
from pufferlib.training.plot import read
from pufferlib.training.report import Report
from pufferlib.training.results import Episode, Result
from pufferlib.training.runs import read_config, read_run
from pufferlib.training.session import Session

pytestmark = pytest.mark.beside

SMALL = dict(
    backend="serial", num_envs=4, rollout_length=32, num_epochs=1, num_minibatches=2, total_steps=1_500, eval_episodes=8
)
EVERYTHING = dict(SMALL, normalize_observations=True, normalize_rewards=True, frame_stack=2, checkpoint_every=500)


def weights_of(result):
    return {name: value.clone() for name, value in result.policy.state_dict().items()}


def assert_same(one, other):
    assert one.episodes == other.episodes
    assert one.num_steps == other.num_steps
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


class Stop(Exception):
    """The power fails."""


def stop_at(monkeypatch, num_steps):
    update = Report.update

    def updated(self, done, scalars):
        update(self, done, scalars)
        if done >= num_steps:
            raise Stop

    monkeypatch.setattr(Report, "update", updated)


CONTINUOUS = dict(
    env="ocean/continuous", num_envs=4, total_steps=1_500, eval_episodes=8, checkpoint_every=500, learning_starts=100,
    steps_per_update=32, minibatch_size=16, n_step=3, policy_kwargs={"hidden_sizes": (8,)},
)  # fmt: skip
OF = {
    ppo: EVERYTHING,
    ppo_lstm: EVERYTHING,
    dqn: dict(
        env="ocean/squared", num_envs=4, total_steps=1_500, eval_episodes=8, frame_stack=2, checkpoint_every=500,
        learning_starts=100, steps_per_update=16, target_period=7, exploration_fraction=1.0, n_step=2,
        priority_exponent=0.5,
    ),
    sac: dict(CONTINUOUS, frame_stack=2, schedule="linear"),
    td3: dict(CONTINUOUS, learning_rate=1e-2),
    qmix: dict(
        env="ocean/multiagent", num_envs=4, total_steps=1_500, eval_episodes=8, checkpoint_every=500,
        learning_starts=100, steps_per_update=64, target_period=7, exploration_fraction=1.0, recurrent=True,
        sequence_length=2, minibatch_size=8, frame_stack=2, schedule="linear",
    ),
    maddpg: dict(
        env="ocean/multiagent", num_envs=4, total_steps=1_500, eval_episodes=8, checkpoint_every=500,
        learning_starts=100, steps_per_update=64, minibatch_size=8, num_critics=2, policy_frequency=2,
        critic="attention",
    ),
}  # fmt: skip
# The trainer with a memory stops and goes on as ppo does.
TRAINERS = [ppo, *(pytest.param(trainer, marks=pytest.mark.long) for trainer in (dqn, ppo_lstm))]


@pytest.mark.parametrize(
    ("trainer", "backend"),
    [
        (ppo, "serial"),
        pytest.param(dqn, "serial", marks=pytest.mark.long),
        pytest.param(sac, "serial", marks=pytest.mark.long),
        pytest.param(ppo_lstm, "multiprocessing", marks=pytest.mark.long),
        pytest.param(td3, "serial", marks=pytest.mark.long),
        pytest.param(qmix, "serial", marks=pytest.mark.long),
        pytest.param(maddpg, "serial", marks=pytest.mark.long),
        pytest.param(ppo, "multiprocessing", marks=pytest.mark.long),
        pytest.param(ppo_lstm, "serial", marks=pytest.mark.long),
        pytest.param(dqn, "multiprocessing", marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else value.Config.algorithm,
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(trainer, backend, tmp_path, monkeypatch):
    """What was kept is all that matters: weights, statistics, optimiser, generators, schedule, seeds, replay buffer."""
    settings = dict(OF[trainer], backend=backend, num_workers=2)
    complete = trainer.train(trainer.Config(**settings, runs=str(tmp_path / "whole")))
    with monkeypatch.context() as patched, pytest.raises(Stop):
        stop_at(patched, 1_150)
        trainer.train(trainer.Config(**settings, runs=str(tmp_path / "parts")))
    (folder,) = (tmp_path / "parts").iterdir()
    assert read_checkpoint(folder / FILE, KIND, FILE)["num_checkpoints"] == 2
    _, resumed = trainer.resume(folder)
    assert resumed.run_folder == folder
    assert_same(complete, resumed)
    for name, value in torch.load(folder / "policy.pt", weights_only=True)["weights"].items():
        assert torch.equal(value, weights_of(complete)[name])
    losses = {dqn: "td_loss", qmix: "td_loss", **dict.fromkeys((sac, td3, maddpg), "qf_loss")}
    loss = f"losses/{losses.get(trainer, 'value_loss')}"
    for tag in ("charts/episodic_return", "charts/score", loss):
        logged, told_whole = read(folder, tag), read(complete.run_folder, tag)
        assert np.array_equal(logged, told_whole), (
            tag
        )  # what was logged after the checkpoint is logged again, and equal
    other = trainer.train(trainer.Config(**{**settings, "checkpoint_every": None}, runs=None))
    assert any(not torch.equal(value, weights_of(other)[name]) for name, value in weights_of(complete).items())


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda module: module.Config.algorithm)
def test_a_run_that_is_killed_before_its_first_checkpoint_goes_on_from_newest(trainer, tmp_path, monkeypatch, capsys):
    """It is written by the clock, of which the run takes no notice; to go on from it ends the same each time."""
    monkeypatch.setattr("pufferlib.training.session.SAVING_SHARE", np.inf)
    settings = {**OF[trainer], "backend": "serial", "checkpoint_every": 100_000, "total_steps": 1_000}
    if trainer is dqn:
        settings["num_envs"] = 16  # it writes newest.pt after each step of all of them
    complete = trainer.train(trainer.Config(**settings, checkpoint_minutes=None, runs=str(tmp_path / "whole")))
    assert_same(
        complete, trainer.train(trainer.Config(**settings, checkpoint_minutes=0, runs=str(tmp_path / "noting")))
    )
    assert [path.name for path in (tmp_path / "noting").glob("*/*.pt")].count(NEWEST) == 0  # it has ended
    with monkeypatch.context() as patched, pytest.raises(Stop):
        stop_at(patched, 700)
        trainer.train(trainer.Config(**settings, checkpoint_minutes=0, runs=str(tmp_path / "killed")))
    (folder,) = (tmp_path / "killed").iterdir()
    checkpoint = read_checkpoint(folder / NEWEST, KIND, FILE)
    assert not (folder / FILE).exists() and 500 < checkpoint["learner"]["num_steps"] < 1_000
    assert len(play(Subject.of(folder, trust=True), num_episodes=2, backend="serial").episodes) == 2
    again = shutil.copytree(folder, tmp_path / "again")
    capsys.readouterr()
    _, resumed = trainer.resume(folder)
    output = capsys.readouterr().out
    assert (
        f"goes on at step {checkpoint['learner']['num_steps']:,} from newest.pt: environments are reset here" in output
    )
    assert_same(resumed, trainer.resume(again)[1])
    assert resumed.num_steps >= settings["total_steps"] and resumed.run_folder == folder
    assert (folder / FILE).exists() and not (folder / NEWEST).exists()


def test_a_checkpoint_that_leads_to_the_same_end_comes_before_a_newer_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pufferlib.training.session.SAVING_SHARE", np.inf)
    settings = dict(EVERYTHING, checkpoint_minutes=0)
    complete = ppo.train(ppo.Config(**settings, runs=str(tmp_path / "whole")))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt_at(patched, 900)
        ppo.train(ppo.Config(**settings, runs=str(tmp_path / "parts")))
    (folder,) = (tmp_path / "parts").iterdir()
    output = capsys.readouterr().out
    assert f"To go on: puffer train --resume {folder}\n" in output
    assert f"To go on from later, but not to the same end: puffer train --resume {folder / NEWEST}\n" in output
    again = shutil.copytree(folder, tmp_path / "again")
    assert_same(complete, ppo.resume(folder)[1])
    output = capsys.readouterr().out
    assert "from checkpoint.pt, to the same end as without the interruption; newest.pt has 8" in output
    assert f"To go on from there, to another end: puffer train --resume {folder / NEWEST}\n" in output
    later = read_checkpoint(again / NEWEST, KIND, FILE)["learner"]["num_steps"]
    assert later > read_checkpoint(again / FILE, KIND, FILE)["learner"]["num_steps"]
    assert main(["train", "--resume", str(again / NEWEST)]) == 0
    assert f"goes on at step {later:,} from newest.pt" in capsys.readouterr().out


def test_a_newer_checkpoint_stays_until_a_resumed_run_has_passed_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pufferlib.training.session.SAVING_SHARE", np.inf)
    with monkeypatch.context() as patched, pytest.raises(Stop):
        stop_at(patched, 1_000)
        ppo.train(ppo.Config(**EVERYTHING | dict(checkpoint_minutes=0), runs=str(tmp_path)))
    (folder,) = tmp_path.iterdir()

    def steps_of_checkpoints():
        return [read_checkpoint(folder / name, KIND, FILE)["learner"]["num_steps"] for name in (FILE, NEWEST)]

    exact, newest = before = steps_of_checkpoints()
    assert newest > exact + 200
    old = shutil.copy(folder / NEWEST, tmp_path / "old.pt")
    policy = (folder / "policy.pt").read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt_at(patched, exact + 100)
        ppo.resume(folder)
    assert steps_of_checkpoints() == before and (folder / "policy.pt").read_bytes() == policy
    output = capsys.readouterr().out
    assert f"newest.pt has {newest:,} steps, and is kept until this run has had more" in output
    assert f"What it has learnt in {newest:,} steps" in output
    ppo.resume(folder, total_steps=exact + 100)  # ends before it
    assert (folder / NEWEST).exists()
    ppo.resume(folder, total_steps=1_500)
    assert not (folder / NEWEST).exists()
    with pytest.raises(CheckpointError, match=rf"there is no file {re.escape(str(folder / NEWEST))};"):
        ppo.resume(folder / NEWEST)
    for content in (Path(old).read_bytes(), b"no checkpoint"):  # older, as after a kill, or of no use
        (folder / NEWEST).write_bytes(content)
        capsys.readouterr()
        ppo.resume(folder)
        assert "newest.pt" not in capsys.readouterr().out


def test_what_is_kept_by_the_clock_takes_little_of_the_time(tmp_path, monkeypatch):
    now_s, saved_s = [0.0], []
    monkeypatch.setattr("pufferlib.training.session.time.monotonic", lambda: now_s[0])
    save, update = Session.save, Report.update

    def saving(self, folder, file=FILE):
        save(self, folder, file)
        if file == NEWEST:
            saved_s.append(now_s[0])
            now_s[0] += 10.0

    def updating(self, *args):
        update(self, *args)
        now_s[0] += 20.0

    monkeypatch.setattr(Session, "save", saving)
    monkeypatch.setattr(Report, "update", updating)
    ppo.train(ppo.Config(**SMALL | dict(rollout_length=4, total_steps=1_200), runs=str(tmp_path)))
    assert len(saved_s) >= 2 and saved_s[0] == 60 and np.diff(saved_s).min() >= 500


@pytest.mark.parametrize(("trainer", "more"), [(ppo, {}), (ppo_lstm, {}), (ppo_selfplay, {"env": "tag/grid"})])
@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_minibatches_of_fewer_than_two_rows_are_refused(trainer, more, backend):
    def config(num_minibatches, **others):
        how = dict(backend=backend, num_envs=4, num_workers=1, rollout_length=5, total_steps=20, eval_episodes=1)
        return trainer.Config(**how | more | others, num_minibatches=num_minibatches, num_epochs=1, runs=None)

    text = "num_minibatches=11 with at most 20 rows per update: .* fewer than two rows; use 1 to 10, or"
    with pytest.raises(PlanError, match=text):
        trainer.train(config(11))
    with pytest.raises(PlanError, match="num_minibatches=1 with at most 1 rows .* use larger rollouts"):
        trainer.train(config(1, num_envs=1, rollout_length=1))
    if trainer is not ppo_selfplay:  # which plays hundreds of games in the end
        trainer.train(config(10))


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 2))
def test_minibatches_are_of_two_rows_or_more_and_of_all(num_rows, num_minibatches, at_least):
    parts = shares(torch.arange(num_rows), num_minibatches, at_least)
    sizes = [len(part) for part in parts]
    assert torch.cat(parts).tolist() == list(range(num_rows))
    assert min(sizes) >= min(at_least, num_rows) and max(sizes) - min(sizes) <= 1
    assert len(parts) == (num_minibatches if num_rows >= at_least * num_minibatches else max(1, num_rows // at_least))


def interrupt_at(monkeypatch, num_steps):
    update = Report.update

    def updated(self, done, scalars):
        update(self, done, scalars)
        if done >= num_steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(Report, "update", updated)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda module: module.Config.algorithm)
def test_a_run_that_is_broken_off_keeps_its_policy_and_says_what_can_be_done(trainer, tmp_path, monkeypatch, capsys):
    """Before its first checkpoint, and after; and a checkpoint stays what it was."""
    settings = {**OF[trainer], "backend": "serial"}
    complete = trainer.train(trainer.Config(**settings, runs=str(tmp_path / "whole")))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt_at(patched, 300)
        trainer.train(trainer.Config(**settings, runs=str(tmp_path / "early")))
    (folder,) = (tmp_path / "early").iterdir()
    output = capsys.readouterr().out
    assert "There is no checkpoint yet from which it could go on; a smaller --checkpoint-every makes some" in output
    assert (
        re.search(rf"What it has learnt in \d+ steps: puffer eval {folder}$", output, re.M) and "--resume" not in output
    )
    assert not (folder / FILE).exists()
    assert len(play(Subject.of(folder, trust=True), num_episodes=2, backend="serial").episodes) == 2
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt_at(patched, 700)
        trainer.train(trainer.Config(**settings, runs=str(tmp_path / "late")))
    (folder,) = (tmp_path / "late").iterdir()
    output = capsys.readouterr().out
    assert f"To go on: puffer train --resume {folder}\n" in output and f": puffer eval {folder}\n" in output
    learnt, checkpoint = (
        read_policy(folder / "policy.pt", trust=True).weights,
        read_checkpoint(folder / FILE, KIND, FILE),
    )
    assert 500 <= checkpoint["learner"]["num_steps"] < 700
    assert any(not torch.equal(value, checkpoint["learner"]["weights"][name]) for name, value in learnt.items())
    assert_same(complete, trainer.resume(folder)[1])


def test_a_run_that_is_broken_off_leaves_a_better_policy_alone(tmp_path, monkeypatch, capsys):
    """There is nothing to keep before anything is learnt, nor while the policy plays in the end."""
    from pufferlib.training import session

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    settings = {**SMALL, "runs": str(tmp_path / "a")}
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Report, "infos", interrupted)
        ppo.train(ppo.Config(**settings))
    (folder,) = (tmp_path / "a").iterdir()
    assert "puffer eval" not in capsys.readouterr().out and not (folder / "policy.pt").exists()
    with pytest.raises(CheckpointError, match="has no policy.pt: it is not a run's, or the run saved none"):
        Subject.of(folder)
    settings = {**SMALL, "runs": str(tmp_path / "b")}
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(session, "evaluate", interrupted)
        ppo.train(ppo.Config(**settings), Alone)
    (folder,) = (tmp_path / "b").iterdir()
    output = capsys.readouterr().out
    assert f": puffer eval {folder} --env my_module:make_env\n" in output
    assert f"To go on: puffer train my_module:make_env --resume {folder}\n" in output
    written = (folder / "policy.pt").stat().st_mtime_ns
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(session.Session, "stretches", interrupted)
        ppo.resume(folder, Alone, 2_000)
    assert "What it has learnt in " in capsys.readouterr().out
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(session.Session, "restore", interrupted)
        ppo.resume(folder, Alone, 2_000)
    assert "What it has learnt: puffer eval" in capsys.readouterr().out
    assert (folder / "policy.pt").stat().st_mtime_ns == written


def test_a_run_whose_settings_no_file_keeps_is_not_said_to_go_on(tmp_path, monkeypatch, capsys):
    from pufferlib.training import session

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(session, "evaluate", interrupted)
        ppo.train(ppo.Config(**{**SMALL, "runs": str(tmp_path), "env_kwargs": {"tool": object()}}), Alone)
    output = capsys.readouterr().out
    assert "It cannot go on, as no file can keep its settings" in output and "--resume" not in output


def test_a_module_that_is_not_found_is_looked_for_where_the_run_was_begun(tmp_path, monkeypatch):
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "an_own_game.py").write_text(f"from {__name__} import Alone\n")
    monkeypatch.chdir(tmp_path / "game")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path / "game")
        settings = {**SMALL, "total_steps": 200, "runs": str(tmp_path / "runs")}
        folder = ppo.train(ppo.Config(**settings, env="an_own_game:Alone")).run_folder
    sys.modules.pop("an_own_game")
    assert read_run(folder)["cwd"] == str(tmp_path / "game")
    for act in (lambda: ppo.resume(folder, total_steps=300), lambda: Subject.of(folder)):
        with pytest.raises(RegistryError, match="on the module search path$"):
            act()  # there it says no more than it did
    monkeypatch.chdir(tmp_path)
    says = "there is no module an_own_game .*; the run was begun in .*/game, where it may be found"
    for act in (lambda: ppo.resume(folder, total_steps=300), lambda: Subject.of(folder)):
        with pytest.raises(RegistryError, match=says):
            act()
    shutil.copy(folder / "policy.pt", tmp_path)
    with pytest.raises(RegistryError, match="on the module search path$"):
        Subject.of(tmp_path / "policy.pt")


def test_a_finished_run_goes_on_for_longer(tmp_path):
    config = ppo.Config(**SMALL, schedule="constant", runs=str(tmp_path))
    first = ppo.train(config)
    config, longer = ppo.resume(first.run_folder, total_steps=2_000)
    assert config.total_steps == 2_000
    assert 2_000 <= longer.num_steps < 2_130
    assert any(not torch.equal(value, weights_of(longer)[name]) for name, value in weights_of(first).items())
    assert ppo.resume(first.run_folder, total_steps=2_000)[1].num_steps == longer.num_steps  # nothing is left to do


class Alone(gymnasium.Env):
    """Without a name."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, tool=None):
        self.tool = tool

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        return self.reset()[0], float(action), bool(self.np_random.random() < 0.2), False, {}


def test_what_cannot_be_resumed_says_why(tmp_path):
    with pytest.raises(CheckpointError, match="there is no file .*checkpoint.pt"):
        ppo.resume(tmp_path)
    folder = ppo.train(ppo.Config(**SMALL, runs=str(tmp_path / "named"))).run_folder
    with pytest.raises(CheckpointError, match="is a run of ppo, not of ppo_lstm; resume it with that trainer"):
        ppo_lstm.resume(folder)
    content = (folder / "checkpoint.pt").read_bytes()
    for damaged in (b"", content[: len(content) // 2]):
        (folder / "checkpoint.pt").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="does not hold a complete pufferlib checkpoint"):
            ppo.resume(folder)
    (folder / "checkpoint.pt").write_bytes((folder / "policy.pt").read_bytes())
    with pytest.raises(CheckpointError, match="is not a pufferlib checkpoint"):
        ppo.resume(folder)
    settings = dict(SMALL, env_kwargs={"tool": max}, runs=str(tmp_path / "tool"))
    folder = ppo.train(ppo.Config(**settings), Alone).run_folder
    with pytest.raises(CheckpointError, match="has settings that no file can keep"):
        ppo.resume(folder, Alone)
    folder = ppo.train(ppo.Config(**SMALL, runs=str(tmp_path / "unnamed")), Alone).run_folder
    with pytest.raises(CheckpointError, match="is a run on an environment that was passed, not named; pass it again"):
        ppo.resume(folder)  # the environment that its settings name is another one
    with pytest.raises(CheckpointError, match="for other observations or actions"):
        ppo.resume(folder, "ocean/squared")
    assert "resumed" not in read_run(folder)  # what failed has left the folder as it was
    with pytest.raises(CheckpointError, match="total_steps=10 is less than the"):
        ppo.resume(folder, Alone, total_steps=10)
    assert ppo.resume(folder, Alone)[1].run_folder == folder


def test_statistics_stand_still_when_the_policy_plays(tmp_path):
    """They are in the policy's file, and neither the evaluation nor a player moves them."""
    config = ppo.Config(**{**EVERYTHING, "env": "CartPole-v1"}, runs=str(tmp_path))
    result = ppo.train(config)
    norm = result.policy.read.norm
    weights = torch.load(result.run_folder / "policy.pt", weights_only=True)["weights"]
    assert int(norm.count) == int(weights["read.norm.count"]) == result.num_steps
    assert torch.equal(norm.mean, weights["read.norm.mean"])
    with load_policy(result.run_folder / "policy.pt", greedy=True) as player:
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=1)
        for _ in range(20):
            observation, *_ = env.step(player.act(observation))
        assert torch.equal(player.policy.read.norm.mean, norm.mean)
        env.close()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_learning_rate_follows_its_schedule(schedule, monkeypatch):
    rates = []
    update = Report.update

    def updated(self, done, scalars):
        rates.append(scalars["charts/learning_rate"])
        update(self, done, scalars)

    monkeypatch.setattr(Report, "update", updated)
    ppo.train(ppo.Config(**SMALL, schedule=schedule, learning_rate=0.01, runs=None))
    done = np.linspace(0, 1, len(rates), endpoint=False)
    expected = {"linear": 1 - done, "cosine": (1 + np.cos(np.pi * done)) / 2, "constant": np.ones(len(rates))}
    np.testing.assert_allclose(rates, 0.01 * expected[schedule], atol=1e-3)
    with pytest.raises(pufferlib.PlanError, match="schedule='stairs' is out of bounds; use linear, cosine, constant"):
        ppo.train(ppo.Config(**SMALL, schedule="stairs", runs=None))


def test_a_policy_that_has_moved_far_enough_is_left_alone(monkeypatch):
    """By target_kl: each update ends after the first epoch, however many there might be."""
    seen = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self, *args: seen.append(1) or step(self, *args))
    settings = SMALL | dict(num_epochs=5, learning_rate=0.01, runs=None)
    ppo.train(ppo.Config(**settings, target_kl=0.0))
    few = len(seen)
    ppo.train(ppo.Config(**settings))
    assert 4 * few <= len(seen) - few <= 5 * few


class Fragile(Alone):
    def step(self, action):
        if self.np_random.random() < 0.02:
            raise ValueError("no further")
        return super().step(action)


def fails(seed):
    """Whether the episode of a seed fails, whatever is played."""
    env, over = Fragile(), False
    env.reset(seed=seed)
    try:
        while not over:
            _, _, over, *_ = env.step(0)
    except ValueError:
        return True
    return False


@pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:evaluation. the episode of seed:RuntimeWarning")
def test_training_goes_on_when_environments_fail():
    """Episodes that fail whenever they are played are left out of the evaluation."""
    with pytest.raises(pufferlib.WorkerError, match="no further"):
        ppo.train(ppo.Config(**SMALL, runs=None), Fragile)
    config = ppo.Config(**{**SMALL, "eval_episodes": 40}, on_error="restart", max_restarts=None, runs=None)
    seeds = derived_seeds(config.seed + 1_000_000, 40).tolist()
    num_failing = sum(map(fails, seeds))
    assert 0 < num_failing < 40
    assert len(ppo.train(config, Fragile).episodes) == 40 - num_failing


class FailsOnce(Alone):
    """Raises in the first episode of each seed, and not when it is played again. The seeds so far are the class's."""

    tried = set()

    def reset(self, *, seed=None, options=None):
        self.is_new = seed is not None and seed not in self.tried
        self.tried.add(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.is_new:
            raise ValueError("not at once")
        return super().step(action)


@pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning")
def test_an_episode_that_fails_is_played_once_more():
    FailsOnce.tried.clear()
    with pufferlib.make(FailsOnce, num_envs=2, on_error="restart", max_restarts=None) as vec:
        episodes = evaluate(vec, lambda batch: np.zeros(len(batch.masks), np.int64), 6, 1)
    assert len(episodes) == 6 and sum(vec.restarts) == 6


def test_a_run_without_its_buffer_refills_it_before_it_learns_on(tmp_path, monkeypatch):
    settings = {**OF[dqn], "keep_buffer": False, "backend": "serial", "runs": str(tmp_path)}
    folder = dqn.train(dqn.Config(**settings)).run_folder
    sizes, update = [], dqn.update
    monkeypatch.setattr(
        dqn, "update", lambda learner, *args: sizes.append(learner.replay.num_steps) or update(learner, *args)
    )
    dqn.resume(folder, total_steps=2_000)
    assert min(sizes) >= 100


class Telling(Alone):
    """Has info keys that pufferlib uses, too, and some of kinds that no file should hold."""

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {"env": "maze", "score": "3-2", Key.KILLS: 2, np.str_("deaths"): np.float32(1), "list": [1]}


class Key(str, enum.Enum):
    KILLS = "kills"


def test_users_infos_neither_break_a_run_nor_its_checkpoint(tmp_path):
    folder = ppo.train(ppo.Config(**SMALL, runs=str(tmp_path)), Telling).run_folder
    assert len(ppo.resume(folder, Telling, total_steps=2_000)[1].episodes) == 8
    assert read(folder, "infos/deaths").values[-1] == 1


def test_a_resumed_run_keeps_its_name_and_its_settings(tmp_path):
    folder = ppo.train(ppo.Config(**SMALL, runs=str(tmp_path))).run_folder
    config, _ = ppo.resume(folder, "ocean/squared", total_steps=2_000)
    assert config.env == "ocean/squared"
    with load_policy(folder / "policy.pt") as player:  # which makes the environment by its name
        assert player.act(np.zeros((7, 7), np.float32)) in range(8)
    assert read_config(folder)["total_steps"] == 2_000
    (again,) = read_run(folder)["resumed"]
    assert again["num_steps"] >= 1_500 and "command" in again


class Forgetful(MLP):
    """Leaves out a part of what it sees, at random."""

    def forward(self, observations, state=None, action_mask=None):
        return super().forward(nn.functional.dropout(observations, 0.2), state, action_mask)


def test_what_a_policy_draws_itself_repeats_with_the_seed_and_goes_on_with_the_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "helpers"))
    settings = SMALL | dict(policy=f"{__name__}:Forgetful", checkpoint_every=500)
    complete = ppo.train(ppo.Config(**settings, runs=str(tmp_path / "whole")))
    assert_same(complete, ppo.train(ppo.Config(**settings, runs=None)))
    with monkeypatch.context() as patched, pytest.raises(Stop):
        stop_at(patched, 1_150)
        ppo.train(ppo.Config(**settings, runs=str(tmp_path / "parts")))
    (folder,) = (tmp_path / "parts").iterdir()
    assert_same(complete, ppo.resume(folder, trust=True)[1])


def test_a_checkpoint_is_as_large_as_what_is_in_the_buffer(tmp_path):
    settings = {**OF[dqn], "total_steps": 300, "frame_stack": 1, "backend": "serial"}
    small = dqn.train(dqn.Config(**settings, buffer_size=400, runs=str(tmp_path / "a"))).run_folder
    large = dqn.train(dqn.Config(**settings, buffer_size=40_000, runs=str(tmp_path / "b"))).run_folder
    assert (large / FILE).stat().st_size < 1.1 * (small / FILE).stat().st_size


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch_size": 0}, "batch_size=0 is out of bounds; use 1 or more, or None"),
        ({"checkpoint_every": 0}, "checkpoint_every=0 is out of bounds; use 1 or more, or None"),
        ({"num_epochs": 0}, "num_epochs=0 is out of bounds; use 1 or more"),
        ({"total_steps": 0}, "total_steps=0 is out of bounds"),
        ({"total_steps": "1e5"}, "total_steps='1e5' is out of bounds; use 1 or more"),
        ({"eval_episodes": 0}, "eval_episodes=0 is out of bounds"),
        ({"gamma": 2.0}, "gamma=2.0 is out of bounds; use 0 to 1"),
        ({"advantage_floor": 0.0}, "advantage_floor=0.0 is out of bounds; use more than 0"),  # NaN of a single row
        ({"reward_clip": -1.0}, "reward_clip=-1.0 is out of bounds; use more than 0, or None"),
        ({"device": "nope"}, "device='nope' is none that torch knows; use cpu or cuda"),
        ({"device": {}}, "device={} is none that torch knows; use cpu or cuda"),
    ],
)
def test_settings_out_of_bounds_are_refused_before_anything_is_made(wrong, says):
    with pytest.raises(pufferlib.PlanError, match=says):
        ppo.Config(**wrong)


@pytest.mark.parametrize("trainer", [ppo, ppo_lstm, ppo_selfplay], ids=lambda module: module.Config.algorithm)
@pytest.mark.parametrize("name", ["clip", "advantage_floor", "max_grad_norm"])
def test_what_divides_and_clips_is_more_than_0_for_every_ppo(trainer, name):
    with pytest.raises(pufferlib.PlanError, match=f"{name}=0.0 is out of bounds; use more than 0"):
        trainer.Config(**{name: 0.0})


def test_rollouts_that_are_large_for_total_steps_are_reported(capsys):
    says = "of up to 128 steps (32 of each of 4 environments), and ends with the one that reaches total_steps=200"
    ppo.train(ppo.Config(**SMALL | dict(total_steps=200), runs=None))
    assert f"ocean/squared  learns from whole rollouts, {says}; fewer num_envs" in capsys.readouterr().out
    ppo.train(ppo.Config(**SMALL | dict(total_steps=700), runs=None))
    assert "whole rollouts" not in capsys.readouterr().out


def test_a_result_is_shown_in_a_line():
    episodes = [Episode(0, value, 5, None) for value in (1.0, 2.0)]
    result = Result(None, 1_500, 0.0, 2.345, episodes, Path("runs/a"))
    assert repr(result) == "Result(num_steps=1500, seconds=2.3, mean_return=1.5 of 2 episodes, run_folder='runs/a')"


@pytest.mark.parametrize(("trainer", "way_out"), [(ppo, "cpu"), (ppo_cuda, "host"), (ppo_fused, "host")])
def test_a_gpu_that_torch_does_not_see_is_refused(trainer, way_out):
    with pytest.raises(PlanError, match=rf"device='cuda:99': torch .* sees \d+ CUDA devices; use device={way_out}"):
        trainer.train(trainer.Config(device="cuda:99", num_envs=4, runs=None))


def test_a_folder_for_runs_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for runs in ("file", "file/below"):
        with pytest.raises(pufferlib.PlanError, match="a file"):
            ppo.train(ppo.Config(**SMALL, runs=str(tmp_path / runs)))


def test_a_checkpoint_that_names_code_elsewhere_is_trusted_on_request_only(tmp_path):
    folder = ppo.train(ppo.Config(**SMALL, runs=str(tmp_path))).run_folder
    checkpoint = read_checkpoint(folder / FILE, KIND, FILE)
    evil = {**checkpoint["config"], "env": "subprocess:check_output"}
    save_checkpoint(folder / FILE, KIND, {**checkpoint, "config": evil})
    with pytest.raises(CheckpointError, match="names code that is not in the current folder, subprocess:check_output"):
        ppo.resume(folder)
    assert ppo.resume(folder, "ocean/squared")[1].num_steps >= 1_500


def test_a_memory_that_learns_its_beginning_is_refused():
    class Learning(LSTM):
        def __init__(self, *spaces):
            super().__init__(*spaces, hidden_size=4)
            self.first = nn.Parameter(torch.zeros(4))

        def initial_state(self, num_rows):
            return self.first.expand(num_rows, -1), torch.zeros(num_rows, 4)

    config = ppo_lstm.Config(**SMALL, runs=None)
    object.__setattr__(config, "policy", Learning)
    with pytest.raises(pufferlib.PlanError, match="learns its initial state"):
        ppo_lstm.train(config)
