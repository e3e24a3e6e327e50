"""PufferLib 3's ``pufferl``: its settings, its trainer on ours, its loggers and its command."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from compat_programs import Native, Team, one, team
from gymnasium import spaces

torch = pytest.importorskip("torch")

import pufferlib  # noqa: E402
import pufferlib.cli  # noqa: E402
import pufferlib.pytorch  # noqa: E402
import pufferlib.vector  # noqa: E402
from pufferlib import pufferl  # noqa: E402
from pufferlib.models import Default, LSTMWrapper  # noqa: E402

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("no_version")]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Make torch compute on one core, as others are taken by other tests."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


class Cue(gymnasium.Env[Any, Any]):
    """The first observation shows which action is right; the reward is 1 for it in the last step of ``length``."""

    def __init__(self, length: int = 1, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(0, 1, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.length, self.continuous = length, continuous

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick, self.cue = 0, int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.cue], {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        right = int(action[0] > 0) if self.continuous else int(action)
        over = self.tick == self.length
        reward = float(over and right == self.cue)
        return np.zeros(2, np.float32), reward, over, False, {"right": reward} if over else {}


def cue(length: int = 1, continuous: bool = False, buf: Any = None, seed: int = 0) -> Any:
    return pufferlib.emulation.GymnasiumPufferEnv(Cue(length, continuous), buf=buf)


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """Return a function that returns the section [train] with changes, for small runs on the CPU."""

    def changed(**changes: Any) -> Any:
        train = pufferl.load_config("default", [])["train"]
        small = {"device": "cpu", "data_dir": str(tmp_path), "bptt_horizon": 8, "minibatch_size": 64, "env": "cue"}
        train.update({**small, "total_timesteps": 256, **changes})
        return train

    return changed


def trainer_of(config: Any, vecenv: Any, hidden_size: int = 32) -> Any:
    torch.manual_seed(1)
    policy: Any = Default(vecenv.driver_env, hidden_size)
    if config["use_rnn"]:
        policy = LSTMWrapper(vecenv.driver_env, policy, hidden_size, hidden_size)
    return pufferl.PuffeRL(config, vecenv, policy)


# ------------------------------------------------------------------------------------------------------------- settings


def test_settings_are_those_of_version_3() -> None:
    args = pufferl.load_config("default", [])
    assert (args["train"]["optimizer"], args["train"]["learning_rate"], args["train"]["use_rnn"]) == (
        *("muon", 0.015),
        False,
    )
    assert (args["vec"]["num_envs"], args["vec"]["num_workers"], args["policy_name"]) == (2, "auto", "Policy")
    assert (args["package"], args["fps"], args["env"], args["nothing"]) == (None, 15.0, {}, {})
    assert args["train"]["total_timesteps"] == 10_000_000
    assert pufferl.load_config("ocean/squared", [])["env_name"] == "ocean/squared"


def test_the_command_line_changes_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--train.learning-rate 1 --train.anneal_lr False --train.batch-size 512 --rnn-name Recurrent --tag x"
    options += " --env.length 3 --policy.hidden-size=64 --train.total-timesteps 1e6 --vec.backend Serial --load-id 7a"
    monkeypatch.setattr(sys, "argv", ["program", *options.split()])
    args = pufferl.load_config("default")
    train = args["train"]
    assert (train["learning_rate"], train["anneal_lr"], train["batch_size"], train["use_rnn"]) == (
        1.0,
        False,
        512,
        True,
    )
    assert (args["env"], args["policy"], args["tag"]) == ({"length": 3}, {"hidden_size": 64}, "x")
    assert (train["total_timesteps"], args["vec"]["backend"], args["load_id"]) == (1_000_000, "Serial", "7a")
    assert type(train["total_timesteps"]) is int


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--train.speed 3", "unrecognized arguments: --train.speed"),
        ("--train.seed 1.5", "'1.5' is no int"),
        ("--train.anneal-lr 3", "'3' is no bool"),
        ("--train.gamma high", "'high' is no float"),
        ("--env.length", "unrecognized arguments: --env.length"),
        ("stray", "unrecognized arguments: stray"),
    ],
)
def test_unknown_options_and_other_types_end_the_program(options: str, text: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        pufferl.load_config("default", options.split())
    assert stop.value.code == 2
    assert text in capsys.readouterr().err


def test_environments_of_pufferlib_are_named_as_missing() -> None:
    with pytest.raises(pufferlib.APIUsageError, match="No config for env_name puffer_breakout"):
        pufferl.load_config("puffer_breakout", [])


# -------------------------------------------------------------------------------------------------------------- trainer


def test_rewards_and_flags_lie_next_to_the_observations_they_came_with(settings: Any) -> None:
    """The Counter observes (seed, tick), is rewarded with its action, and ends each third step."""
    vecenv = pufferlib.vector.make(one, num_envs=4, backend="Serial")
    trainer = trainer_of(settings(bptt_horizon=16), vecenv)
    for _ in range(2):
        trainer.evaluate()
        ticks, actions = trainer.observations[..., 1], trainer.actions
        assert trainer.observations[..., 0].unique(dim=1).shape == (4, 1)  # a segment is of one agent
        assert sorted(trainer.observations[:, 0, 0].tolist()) == [42, 43, 44, 45]
        assert torch.equal(ticks[:, 1:], (ticks[:, :-1] + 1) % 4)
        assert torch.equal(trainer.terminals, ticks == 3)
        assert not trainer.truncations.any()
        assert torch.equal(trainer.masks[:, 1:], ticks[:, 1:] != 0)  # what answered the last row was ignored
        expected = torch.where(trainer.masks, actions.roll(1, 1).clamp(max=1).float(), torch.zeros(()))
        assert torch.equal(trainer.rewards[:, 1:], expected[:, 1:])
    assert trainer.global_step == 2 * 4 * 16
    assert {"action", "episode/r", "episode/l"} <= trainer.stats.keys()
    assert trainer.stats.keys().isdisjoint({"env_id", "agent_id", "env"})
    trainer._take_infos([{"wolf": {"env_id": 3, "score": 1.0}, "env_id": 3}])  # as of several agents
    assert trainer.stats["wolf/score"] == [1.0] and "wolf/env_id" not in trainer.stats
    trainer.close()


def test_truncations_are_kept_where_the_last_observation_is(settings: Any) -> None:
    for creator, keywords, is_kept in ((one, {"truncates": True}, True), (Native, {}, False)):
        vecenv = pufferlib.vector.make(creator, env_kwargs=keywords, num_envs=2, backend="Serial")
        trainer = trainer_of(settings(minibatch_size=16), vecenv)
        trainer.evaluate()
        assert bool(trainer.truncations.any()) is is_kept
        assert bool(trainer.terminals.any()) is not is_kept
        if not is_kept:  # the next episode began in the same step
            assert trainer.masks[:, 1:].all()
        trainer.close()


class TruncatedNative(Native):
    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        self.truncations[:], self.terminals[:] = self.terminals, False
        return result


def test_a_native_environments_truncation_adds_no_value_of_the_next_episode(settings: Any) -> None:
    trainer = trainer_of(settings(minibatch_size=16), TruncatedNative())
    trainer.evaluate()
    assert torch.equal(trainer.terminals, trainer.truncations)
    assert trainer.terminals.any()
    trainer.train()
    trainer.close()


def test_actions_of_absent_agents_are_not_learnt_from(settings: Any) -> None:
    """Agent i of a Team ends after i + 2 steps, and is absent until the next episode, whose first row is no outcome."""
    vecenv = pufferlib.vector.make(team, num_envs=2, backend="Serial")
    trainer = trainer_of(settings(bptt_horizon=20, minibatch_size=120), vecenv)
    trainer.evaluate()
    for row, agent in enumerate([0, 1, 2] * 2):
        ends = trainer.terminals[row].nonzero().flatten().tolist()
        assert [end % 5 for end in ends] == [agent + 2] * 4
        outcome_steps = [step for step in range(20) if 0 < step % 5 <= agent + 2]
        assert trainer.masks[row].nonzero().flatten().tolist() == outcome_steps
    trainer.train()
    trainer.close()


LONG = (pytest.mark.long, pytest.mark.timeout(600))
LEARNING = {
    "adam": ({"optimizer": "adam", "learning_rate": 0.03, "total_timesteps": 1500}, {"backend": "Serial"}, {}),
    "muon": ({}, {"backend": "Multiprocessing", "num_workers": 2, "batch_size": 4}, {}),
    "lstm": ({"use_rnn": True, "gamma": 0.9, "total_timesteps": 16000}, {"backend": "Serial"}, {"length": 2}),
    "continuous": ({"learning_rate": 0.02, "max_minibatch_size": 32}, {"backend": "Serial"}, {"continuous": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adam", *(pytest.param(kind, marks=LONG) for kind in LEARNING if kind != "adam")])
def test_it_learns(settings: Any, kind: str) -> None:
    changes, plan, creator = LEARNING[kind]
    vecenv = pufferlib.vector.make(cue, env_kwargs=creator, num_envs=8, seed=3, **plan)
    config = settings(**{"total_timesteps": 6000, "update_epochs": 4, "ent_coef": 0.01, **changes})
    trainer = trainer_of(config, vecenv)
    while trainer.global_step < config["total_timesteps"]:
        trainer.evaluate()
        trainer.train()
    trainer.stats.clear()
    for _ in range(4):
        trainer.evaluate()
    assert np.mean(trainer.stats["right"]) > 0.9  # 0.5 without learning
    trainer.close()


def test_train_logs_its_losses_and_anneals(settings: Any) -> None:
    vecenv = pufferlib.vector.make(cue, num_envs=8, backend="Serial")
    trainer = trainer_of(settings(), vecenv)  # 4 updates of one minibatch
    assert (trainer.total_epochs, trainer.total_minibatches, trainer.segments) == (4, 1, 8)
    rates, logs = [], None
    while trainer.global_step < 256:
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        assert trainer.evaluate() is trainer.stats
        logs = trainer.train()
    assert logs is not None
    assert rates == pytest.approx([0.015 * (1 + np.cos(np.pi * epoch / 4)) / 2 for epoch in range(4)])
    names = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac importance explained_variance".split()
    assert {f"losses/{name}" for name in names} <= logs.keys()
    assert logs["losses/importance"] == pytest.approx(1, abs=1e-5)  # one minibatch: the policy that played
    assert logs["losses/entropy"] == pytest.approx(np.log(2), abs=0.05)
    assert (logs["agent_steps"], logs["epoch"]) == (256, 4)
    assert 0 <= logs["environment/right"] <= 1
    assert {"SPS", "uptime", "learning_rate", "performance/learning"} <= logs.keys()
    assert trainer.stats == {}
    trainer.close()

    constant = trainer_of(settings(anneal_lr=False), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))
    constant.evaluate()
    constant.train()
    assert constant.optimizer.param_groups[0]["lr"] == 0.015
    constant.close()


class OwnUpdate(pufferl.PuffeRL):
    """As public programs do, it replaces ``train`` and uses the trainer's parts."""

    def train(self) -> Any:
        config, epoch = self.config, self.epoch
        self.profile("train", epoch)
        self.profile("train_misc", epoch, nest=True)
        zeros = torch.zeros(self.values.shape)
        clips = (config["vtrace_rho_clip"], config["vtrace_c_clip"])
        self.ratio[:] = 1
        advantages = pufferl.compute_puff_advantage(
            *(self.values, self.rewards, self.terminals, self.ratio, zeros, config["gamma"], config["gae_lambda"]),
            *clips,
        )
        chosen = torch.arange(self.segments)
        observations = self.observations[chosen].reshape(-1, *self.vecenv.single_observation_space.shape)
        self.profile("train_forward", epoch)
        with self.amp_context:
            logits, values = self.policy(observations, {"action": self.actions, "lstm_h": None, "lstm_c": None})
            _, logprobs, entropy = pufferlib.pytorch.sample_logits(logits, action=self.actions[chosen])
        ratio = (logprobs.reshape(advantages.shape) - self.logprobs).exp()
        returns = advantages + self.values
        value_loss = (values.view(returns.shape) - returns).square().mean()
        loss = value_loss - (ratio * advantages).mean() - 0.001 * entropy.mean()
        self.profile("learn", epoch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config["max_grad_norm"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.profile.end()
        self.scheduler.step()
        self.epoch += 1
        self.losses = {"policy_loss": float(loss.detach())}
        logs = self.mean_and_log()
        self.profile.clear()
        return logs


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_a_program_may_replace_the_update(settings: Any, precision: str) -> None:
    vecenv = pufferlib.vector.make(cue, num_envs=8, backend="Serial")
    policy = Default(vecenv.driver_env, hidden_size=16)
    trainer = OwnUpdate(settings(precision=precision, total_timesteps=12_800), vecenv, policy)
    logs: Any = {}
    while trainer.global_step < 12_800:
        trainer.evaluate()
        logs = trainer.train()
    trainer.stats.clear()
    for _ in range(4):
        trainer.evaluate()
    assert np.mean(trainer.stats["right"]) > 0.85  # 0.5 without learning
    shares = {name: value for name, value in logs.items() if name.startswith("performance/")}
    assert sorted(shares) == ["performance/environments", "performance/inference", "performance/train"]
    assert sum(shares.values()) == pytest.approx(1)
    assert not trainer.utilization.is_alive()
    trainer.close()
    assert trainer.utilization.stopped


def test_a_profile_has_the_seconds_of_phases_and_of_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    profile = pufferl.Profile(frequency=5)

    def wait(seconds: float) -> None:
        now_s[0] += seconds

    profile("play", 0)
    wait(1)
    profile("train", 0)
    wait(1)
    profile("copy", 0, nest=True)
    wait(2)
    profile("learn", 0)
    wait(4)
    profile.pop()
    wait(1)
    profile.end()
    wait(8)  # between phases
    assert profile.seconds == {"play": 1, "train": 8, "copy": 2, "learn": 4}
    assert profile.shares() == {"play": 1 / 9, "train": 8 / 9}
    profile("play", 1)
    profile("act", 1, nest=True)
    wait(1)
    profile.clear()
    profile.end()
    assert profile.seconds == {"play": 1, "act": 1}
    assert profile.shares() == {"play": 1}
    profile.clear()
    assert profile.shares() == {}


@pytest.mark.parametrize("call", ["evaluate", "train"])
def test_a_phase_that_fails_has_ended(settings: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    trainer = trainer_of(settings(), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))

    def fail(*_: Any) -> Any:
        raise RuntimeError("as asked")

    monkeypatch.setattr(trainer, "_act" if call == "evaluate" else "_learn", fail)
    with pytest.raises(RuntimeError, match="as asked"):
        getattr(trainer, call)()
    before = dict(trainer.profile.seconds)
    assert before.keys() == ({"environments", "inference"} if call == "evaluate" else {"learning"})
    trainer.profile.end()
    assert trainer.profile.seconds == before
    trainer.close()


@pytest.mark.parametrize("can_tell", [True, False])
def test_utilization_samples_the_gpu_as_far_as_torch_can_tell(monkeypatch: pytest.MonkeyPatch, can_tell: bool) -> None:
    def share() -> int:
        if can_tell:
            return 40
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (25, 100))
    monkeypatch.setattr(torch.cuda, "utilization", share)
    utilization = pufferl.Utilization(delay=0.01, maxlen=2)
    utilization.start()
    while len(utilization.gpu_mem) < 2:
        time.sleep(0.01)
    utilization.stop()
    utilization.join(60)
    assert [*utilization.gpu_mem] == [75, 75]
    assert [*utilization.gpu_util] == ([40, 40] if can_tell else [])


def test_utilization_is_sampled_until_it_is_stopped() -> None:
    utilization = pufferl.Utilization(delay=0.01, maxlen=3)
    assert utilization.daemon and not utilization.stopped
    utilization.start()
    while len(utilization.cpu_util) < 3:
        time.sleep(0.01)
    utilization.stop()
    utilization.join(60)
    assert not utilization.is_alive() and utilization.stopped
    assert all(value >= 0 for value in utilization.cpu_util)
    if sys.platform == "linux":
        assert all(0 < value < 100 for value in utilization.cpu_mem)
    unused = pufferl.Utilization()
    unused.stop()
    unused.start()
    unused.join(60)
    assert not unused.is_alive() and not unused.cpu_util


class Layered(LSTMWrapper):
    """As public policies do, it returns states with an axis of layers, (rows, 1, hidden) or (1, rows, hidden)."""

    axis = 1

    def forward_eval(self, observations: Any, state: Any) -> Any:
        for name in ("lstm_h", "lstm_c"):
            assert state[name].ndim == 2 or state[name].shape[self.axis] == 1
            state[name] = state[name].reshape(len(observations), -1)
        results = super().forward_eval(observations, state)
        for name in ("lstm_h", "lstm_c"):
            state[name] = state[name].unsqueeze(self.axis)
        return results


@pytest.mark.parametrize("axis", [0, 1])
def test_a_policy_may_return_states_with_an_axis_of_layers(settings: Any, axis: int) -> None:
    config = settings(use_rnn=True, min_lr_ratio=0.5, optimizer="adam", total_timesteps=128)
    vecenv = pufferlib.vector.make(cue, num_envs=8, batch_size=4, num_workers=2, backend="Multiprocessing")
    policy = Layered(vecenv.driver_env, Default(vecenv.driver_env, 32), 32, 32)
    policy.axis = axis
    trainer = pufferl.PuffeRL(config, vecenv, policy)
    for _ in range(2):
        trainer.evaluate()
        trainer.train()
    assert trainer.lstm_h.shape == trainer.lstm_c.shape == (8, 1, 32)
    assert trainer.lstm_h.abs().sum(2).all()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.015 / 2  # min_lr_ratio, of pufferlib-core
    trainer.close()


def test_a_program_may_replace_the_function_that_samples(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = pufferlib.pytorch.sample_logits
    monkeypatch.setattr(
        pufferlib.pytorch,
        "sample_logits",
        lambda logits, action=None: sample(logits - torch.tensor([0, 100.0]), action),
    )
    trainer = trainer_of(settings(), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))
    trainer.evaluate()
    trainer.train()
    assert not trainer.actions.any()
    trainer.close()


class Shaped(Cue):
    """Its action is a Box of a shape that need not be (n,); the first number counts."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(continuous=True)
        self.action_space = spaces.Box(-1, 1, shape, np.float32)

    def step(self, action: Any) -> Any:
        return super().step(action.reshape(-1))


def shaped(shape: tuple[int, ...], buf: Any = None, seed: int = 0) -> Any:
    return pufferlib.emulation.GymnasiumPufferEnv(Shaped(shape), buf=buf)


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_continuous_actions_have_the_shape_of_their_space(settings: Any, shape: Any) -> None:
    vecenv = pufferlib.vector.make(shaped, env_args=[shape], num_envs=8, backend="Serial")
    trainer = trainer_of(settings(), vecenv)
    trainer.evaluate()
    trainer.train()
    assert trainer.actions.shape == (8, 8, *shape)
    trainer.close()


class CoreVecenv:
    """A vecenv as of pufferlib-core, which has the teacher's actions after four rows, with tensors for arrays."""

    def __init__(self, vecenv: Any) -> None:
        self.vecenv = vecenv

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vecenv, name)

    def recv(self) -> Any:
        parts = [part if isinstance(part, list) else torch.tensor(part) for part in self.vecenv.recv()]
        *rows, infos, agent_ids, masks = parts
        return *rows, torch.zeros(len(agent_ids), dtype=torch.int32), infos, agent_ids, masks


def test_batches_may_be_those_of_pufferlib_core(settings: Any) -> None:
    trainers = []
    for wrapper in (lambda vecenv: vecenv, CoreVecenv):
        trainer = trainer_of(settings(), wrapper(pufferlib.vector.make(cue, num_envs=8, backend="Serial", seed=1)))
        trainer.evaluate()
        trainer.close()
        trainers.append(trainer)
    assert all(torch.equal(getattr(trainers[0], name), getattr(trainers[1], name)) for name in ("rewards", "actions"))


def test_a_horizon_of_one_step_plays_and_warns(settings: Any) -> None:
    vecenv = pufferlib.vector.make(cue, num_envs=8, backend="Serial")
    with pytest.warns(RuntimeWarning, match="bptt_horizon=1.*nothing is learnt"):
        trainer = trainer_of(settings(bptt_horizon=1, minibatch_size=8), vecenv)
    trainer.evaluate()
    trainer.train()
    assert (trainer.global_step, trainer.epoch) == (8, 1)
    trainer.close()


def test_a_run_shorter_than_a_batch_is_one_update(settings: Any) -> None:
    trainer = trainer_of(settings(total_timesteps=32), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))
    trainer.evaluate()
    assert trainer.train()["epoch"] == trainer.total_epochs == 1
    trainer.close()


def test_large_minibatches_are_computed_in_parts(settings: Any) -> None:
    vecenv = pufferlib.vector.make(cue, num_envs=8, backend="Serial")
    trainer = trainer_of(settings(max_minibatch_size=16, update_epochs=2), vecenv)
    assert (trainer.accumulate_minibatches, trainer.minibatch_segments, trainer.total_minibatches) == (4, 2, 8)
    steps: list[int] = []
    trainer.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    trainer.evaluate()
    trainer.train()
    assert len(steps) == 2
    trainer.close()


def test_a_part_of_a_minibatch_without_actions_to_learn_from_leaves_the_step(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(settings(max_minibatch_size=16), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))
    drawn = iter([[2, 3], [4, 5], [6, 7], [0, 1]])
    monkeypatch.setattr(
        "pufferlib.compat.trainer.prioritized", lambda *_: (torch.tensor(next(drawn)), torch.ones(2, 1))
    )
    steps: list[int] = []
    trainer.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    trainer.evaluate()
    trainer.masks[:2] = False
    trainer.train()
    assert len(steps) == 1
    assert all(part.grad is None for part in trainer.policy.parameters())
    trainer.close()


def test_bfloat16_and_observations_on_the_host(settings: Any) -> None:
    vecenv = pufferlib.vector.make(cue, num_envs=8, backend="Serial")
    trainer = trainer_of(settings(precision="bfloat16", cpu_offload=True, bptt_horizon="auto", batch_size=64), vecenv)
    assert trainer.config["bptt_horizon"] == 8
    trainer.evaluate()
    trainer.train()
    assert all(part.dtype == torch.float32 and part.isfinite().all() for part in trainer.policy.parameters())
    assert trainer.values.dtype == torch.float32
    trainer.close()


def test_compile_and_torch_deterministic_reach_torch(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda called, **options: (compiled.append(options), called)[1])
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    vecenv = pufferlib.vector.make(cue, num_envs=8, backend="Serial")
    trainer = trainer_of(settings(compile=True, compile_mode="default", compile_fullgraph=False), vecenv)
    assert compiled == [{"mode": "default", "fullgraph": False}] * 2  # forward and forward_eval
    assert torch.backends.cudnn.deterministic
    trainer.close()


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"batch_size": "auto", "bptt_horizon": "auto"}, pufferlib.APIUsageError, "both auto"),
        ({"batch_size": 32, "minibatch_size": 32}, pufferlib.APIUsageError, "8 agents are more than the 4 segments"),
        ({"minibatch_size": 128}, pufferlib.APIUsageError, "batch_size=64 is less than minibatch_size=128"),
        ({"minibatch_size": 60}, pufferlib.APIUsageError, "multiple of bptt_horizon=8"),
        ({"max_minibatch_size": 40}, pufferlib.APIUsageError, "multiple of max_minibatch_size=40"),
        ({"precision": "float16"}, pufferlib.APIUsageError, "precision='float16'; use float32 or bfloat16"),
        ({"optimizer": "sgd"}, ValueError, "optimizer='sgd'; use adam or muon"),
        ({"device": "cuda"}, pufferlib.APIUsageError, "use device=cpu"),
    ],
    ids=str,
)
def test_settings_that_exclude_each_other_are_refused(
    settings: Any, changes: Any, kind: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pufferlib.vector.make(cue, num_envs=8, backend="Serial") as vecenv, pytest.raises(kind, match=text):
        trainer_of(settings(**changes), vecenv)


def test_a_checkpoint_restores_weights_and_optimizer(settings: Any, tmp_path: Path) -> None:
    vecenv = pufferlib.vector.make(cue, num_envs=8, backend="Serial")
    trainer = trainer_of(settings(checkpoint_interval=1), vecenv)
    trainer.evaluate()
    trainer.train()
    folder = tmp_path / trainer.logger.run_id
    state = torch.load(folder / "trainer_state.pt", weights_only=True)
    weights = torch.load(folder / "model_000001.pt", weights_only=True)
    assert (state["global_step"], state["update"], state["model_name"]) == (64, 1, "model_000001.pt")

    resumed = trainer_of(settings(), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))
    resumed.policy.load_state_dict(weights)
    resumed.optimizer.load_state_dict(state["optimizer_state_dict"])
    for each_trainer in (trainer, resumed):
        for part in each_trainer.policy.parameters():
            part.grad = torch.ones_like(part)
        each_trainer.optimizer.step()
    for part, other in zip(trainer.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert torch.equal(part, other)
    resumed.close()

    path = trainer.close()
    assert path == trainer.close() == str(tmp_path / f"{trainer.logger.run_id}.pt")
    assert torch.load(path, weights_only=True).keys() == weights.keys()
    with pytest.raises(pufferlib.PufferError):
        trainer.evaluate()


def test_files_of_an_earlier_run_with_this_id_are_replaced(settings: Any, tmp_path: Path) -> None:
    trainer = trainer_of(settings(), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))
    trainer.logger.run_id = "7"  # as loggers give to a run that is continued
    (tmp_path / "7").mkdir()
    (tmp_path / "7/model_000000.pt").write_bytes(b"another")
    weights = torch.load(trainer.close(), weights_only=True)
    assert all(torch.equal(value, weights[name]) for name, value in trainer.policy.state_dict().items())


def test_advantages_are_written_in_place() -> None:
    from pufferlib.training.vtrace import vtrace_advantages

    torch.manual_seed(1)
    values, rewards, ratio = torch.randn(3, 2, 6)
    terminals, advantages = (torch.rand(2, 6) < 0.3).float(), torch.zeros(2, 6)
    arguments = (values, rewards, terminals, ratio)
    assert pufferl.compute_puff_advantage(*arguments, advantages, 0.9, 0.8, 1.0, 0.7) is advantages
    expected = vtrace_advantages(*arguments, 0.9, 0.8, 1.0, 0.7)
    assert torch.equal(advantages, expected)
    assert advantages[:, :-1].all()
    advantages.zero_()
    torch.ops.pufferlib.compute_puff_advantage(*arguments, advantages, 0.9, 0.8, 1.0, 0.7)
    assert torch.equal(advantages, expected)


def test_the_dashboard_shows_progress(settings: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(settings(), pufferlib.vector.make(cue, num_envs=8, backend="Serial"))
    trainer.evaluate()
    trainer.print_dashboard()
    text = capsys.readouterr().out
    assert "PuffeRL cue" in text
    assert "64 of 256 steps" in text
    trainer.stats, trainer.last_stats = trainer.last_stats.__class__(list), trainer.stats  # as after a log
    monkeypatch.setitem(sys.modules, "rich.console", None)
    trainer.print_dashboard()
    assert capsys.readouterr().out.startswith("64 of 256 steps: {'right': ")
    trainer.close()


# ---------------------------------------------------------------------------------------------- functions and loggers


def small_args(tmp_path: Path, **train: Any) -> Any:
    args = pufferl.load_config("classic/cartpole", [])
    args["vec"] = {"backend": "Serial", "num_envs": 4}
    args["train"].update(device="cpu", data_dir=str(tmp_path), bptt_horizon=8, minibatch_size=32, total_timesteps=64)
    args["train"].update(train)
    args["policy"] = {"hidden_size": 8}
    return args


def test_train_runs_an_environment_by_name_with_an_lstm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pufferlib.compat.pufferl.LAST_EVALUATIONS", 1)
    args = small_args(tmp_path, use_rnn=True)
    args["rnn_name"], args["rnn"] = "Recurrent", {"input_size": 8, "hidden_size": 8}
    logs = pufferl.train("classic/cartpole", args)
    assert logs[-1]["agent_steps"] == 64 + 32
    assert args["train"]["batch_size"] == "auto"  # the caller's settings are as they were
    (path,) = tmp_path.glob("*.pt")
    args["load_model_path"] = "latest"
    with pufferl.load_env("classic/cartpole", args) as vecenv:
        policy = pufferl.load_policy(args, vecenv)
    weights = torch.load(path, weights_only=True)
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())
    monkeypatch.chdir(tmp_path)
    exported = np.fromfile(pufferl.export("classic/cartpole", args), np.float32)
    assert np.array_equal(exported, np.concatenate([part.detach().numpy().ravel() for part in policy.parameters()]))
    with pytest.raises(pufferlib.APIUsageError, match="has no"):
        args["train"]["data_dir"] = str(tmp_path / "nothing")
        pufferl.load_policy(args, SimpleNamespace(driver_env=one()))


@pytest.mark.parametrize("changes", [{}, {"precision": "float8"}])
def test_a_training_that_fails_closes_its_logger(changes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args, closed = small_args(tmp_path), []
    args["train"].update(changes)
    logger = pufferl.NoLogger(args)
    monkeypatch.setattr(logger, "close", closed.append if not changes else lambda: closed.append(None))
    monkeypatch.setattr(pufferl.PuffeRL, "evaluate", lambda self: self.stopped)  # an AttributeError
    with pytest.raises((AttributeError, pufferlib.APIUsageError)):
        pufferl.train("classic/cartpole", args, logger=logger)
    (path,) = closed
    assert (path is None) == bool(changes) and (path is None or Path(path).exists())


def test_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(pufferlib.APIUsageError, match="cleanrl_demo.ppo_cuda"):
        pufferl.train("classic/cartpole", small_args(tmp_path))


def test_several_agents_are_wrapped_with_their_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pufferlib.registry.creator", lambda name: Team)
    with pufferl.load_env("a_team", {"env": {}, "vec": {"backend": "Serial"}}) as vecenv:
        vecenv.reset()
        infos = [info for _ in range(4) for info in vecenv.step(np.ones(3, int))[4]]
        assert [info["a2"]["episode_return"] for info in infos if "episode_return" in info.get("a2", {})] == [4]


def test_a_package_of_the_program_makes_environments_and_policies(tmp_path: Path, monkeypatch: Any) -> None:
    package, classes = ModuleType("my_games"), ModuleType("my_games.torch")
    package.env_creator = lambda name: cue  # type: ignore[attr-defined]
    classes.Policy = Default  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_games", package)
    monkeypatch.setitem(sys.modules, "my_games.torch", classes)
    args = {**small_args(tmp_path), "package": "my_games", "env": {"length": 2}}
    with pufferl.load_env("cue", args) as vecenv:
        assert vecenv.driver_env.env.length == 2
        assert isinstance(pufferl.load_policy(args, vecenv), Default)
    with pytest.raises(pufferlib.APIUsageError, match="package='no_games'"):
        pufferl.load_env("cue", {**args, "package": "no_games"})


def test_eval_saves_a_film(tmp_path: Path) -> None:
    from PIL import Image

    args = small_args(tmp_path)
    args |= {"save_frames": 3, "gif_path": str(tmp_path / "film.gif"), "env": {"render_mode": "rgb_array"}}
    for backend in ("Serial", "Multiprocessing"):
        args["vec"]["backend"] = backend
        pufferl.eval("classic/cartpole", args)
        with Image.open(tmp_path / "film.gif") as film:
            assert film.n_frames == 3
        assert args["vec"]["num_envs"] == 4
    with pufferlib.vector.make(cue, num_envs=2, backend="Multiprocessing") as vecenv:
        with pytest.raises(pufferlib.APIUsageError, match="use backend=Serial"):
            pufferl.eval("cue", args, vecenv)


@pytest.mark.parametrize("function", [pufferl.sweep, pufferl.profile, pufferl.autotune])
def test_what_is_not_there_says_what_to_use(function: Any) -> None:
    with pytest.raises(pufferlib.APIUsageError, match=f"{function.__name__} is not here; .*(use|call|torch)"):
        function()


def test_downsample() -> None:
    assert pufferl.downsample([1, 2, 3], 5) == [1, 2, 3]
    assert pufferl.downsample([1, 3, 5, 7, 9], 3) == [2, 6, 9]
    assert pufferl.downsample([1, 3, 5], 1) == [5]


def test_the_command_line_of_version_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("pufferlib.compat.pufferl.LAST_EVALUATIONS", 1)
    options = "--vec.backend Serial --vec.num-envs 4 --train.device cpu --train.bptt-horizon 8 --policy.hidden-size 8"
    options += f" --train.minibatch-size 32 --train.total-timesteps 32 --train.data-dir {tmp_path}"
    assert pufferlib.cli.main(["train", "classic/cartpole", *options.split()]) == 0
    assert "PuffeRL classic/cartpole" in capsys.readouterr().out
    assert len([*tmp_path.glob("*.pt")]) == 1
    assert pufferlib.cli.main(["train", "puffer_breakout"]) == 1
    assert "No config for env_name puffer_breakout" in capsys.readouterr().err
    assert pufferlib.cli.main(["sweep", "classic/cartpole", "--train.device", "cpu"]) == 1
    assert "sweep is not here" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["pufferl", "train"])
    with pytest.raises(pufferlib.APIUsageError, match="puffer train ENV"):
        runpy.run_path(str(Path(pufferlib.__file__).with_name("compat") / "modules/pufferl.py"), run_name="__main__")
    with pytest.raises(pufferlib.APIUsageError, match="'fly' is no mode"):
        pufferl.main(["fly", "classic/cartpole"])


class Recorder:
    """A module in place of wandb or neptune, which keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = Recorder()
        part.calls = self.calls
        self.__dict__[name] = part
        part.__dict__["name"] = name
        return part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((self.__dict__.get("name"), args, kwargs))
        return self

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name.replace("/", "_"))

    def __setitem__(self, name: str, value: Any) -> None:
        self.calls.append(("set", (name, value), {}))


def test_loggers_get_numbers_and_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    args = pufferl.load_config("default", ["--tag", "first"])
    wandb, neptune = Recorder(), Recorder()
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "neptune", neptune)  # type: ignore[arg-type]
    logger = pufferl.WandbLogger(args, load_id="seven")
    assert logger.run_id == "seven"
    logger.log({"SPS": 3}, 64)
    logger.close("model.pt")
    calls = {name: (positional, keywords) for name, positional, keywords in wandb.calls}
    assert calls["log"] == (({"SPS": 3},), {"step": 64})
    assert (calls["init"][1]["project"], calls["init"][1]["tags"]) == ("pufferlib", ["first"])
    assert calls["add_file"][0] == ("model.pt",)
    assert "finish" in calls

    other = pufferl.NeptuneLogger(args)
    other.log({"SPS": 3}, 64)
    other.close("model.pt")
    calls = {name: (positional, keywords) for name, positional, keywords in neptune.calls}
    assert calls["init_run"][1]["project"] == "pufferai/ablations"
    assert calls["append"] == ((3,), {"step": 64})
    assert calls["track_files"][0] == ("model.pt",)
    assert "stop" in calls
    assert pufferl.NoLogger(args).run_id.isdigit()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "artifacts/six").mkdir(parents=True)
    (tmp_path / "artifacts/six/model_9.pt").touch()
    other.run_id = "seven"
    other.neptune["model"].download = lambda destination: Path(destination, "model_1.pt").touch()
    assert other.download() == "artifacts/seven/model_1.pt"


@pytest.mark.parametrize("name", ["wandb", "neptune"])
def test_a_logger_without_its_package_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    kind = {"wandb": pufferl.WandbLogger, "neptune": pufferl.NeptuneLogger}[name]
    with pytest.raises(pufferlib.MissingExtra, match="pip install"):
        kind(pufferl.load_config("default", []))
