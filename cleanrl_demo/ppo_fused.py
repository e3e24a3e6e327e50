"""PPO for environments that are kernels, with a learner that is compiled, too: seconds of torch become tenths.

    python -m cleanrl_demo.ppo_fused --env classic/cartpole
    puffer train classic/cartpole --algorithm ppo_fused

An iteration plays ``rollout_length`` steps of all environments, estimates advantages, and updates an actor and a critic
in minibatches. One call of compiled code (cuda_ext/learner) makes all updates of an iteration; torch only initializes
the networks, shuffles rows and saves the policy. The policy is an ordinary MLP, and its file like any other trainer's.
On a GPU (``--device cuda``) the iteration is one CUDA graph of kernels from the same source, as in ``ppo_cuda.py``: the
host reads no value during an iteration, so invalid rows are not left out of minibatches but ignored in them.

A rollout has a row for each step and agent: the observation, the action and the action's outcome. Nothing is learnt
from a transition whose outcome has its mask unset. After a truncation, the next row has the episode's last observation,
whose value is added; the next episode begins one row later (autoreset_mode="next_step").

Source: Schulman et al., arXiv:1707.06347 (PPO) and arXiv:1506.02438 (GAE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import pufferlib
from cuda_ext.learner.device import DeviceLearner, DeviceRows
from cuda_ext.learner.fused import TERMS, Rows
from pufferlib.errors import PlanError
from pufferlib.models import Origin
from pufferlib.training import SCHEDULES, FusedPolicy, Result, RunConfig, Session, main, rate_at, resumed, run
from pufferlib.training.cuda_graphs import GraphedIteration, Reading, on_own_stream
from pufferlib.training.kernel_actions import KernelActions, pair
from pufferlib.training.minibatches import UNITS
from pufferlib.training.results import charts_of_stats
from pufferlib.vectorization.device.episodes import EpisodeSums


@dataclass(frozen=True)
class Config(RunConfig):
    """Train a policy with PPO on kernel environments, by compiled code. One step is one action of one agent."""

    algorithm: ClassVar[str] = "ppo_fused"

    env: str = "classic/cartpole"
    """an environment with a kernel, such as classic/cartpole, tag/grid or ocean/squared (docs/kernels.md lists them),
    or your own module:KERNEL"""
    backend: str = "cuda"
    """cuda, which runs kernels"""
    device: str = "host"
    """host, which runs the kernels and the learner on the CPU; or cuda, cuda:1, which run them on a GPU"""
    graphs: bool = True
    """on a GPU, capture iterations in a CUDA graph; otherwise each kernel is launched separately"""
    num_threads: int = 1
    """number of threads that learn on the host; it does not change any result"""
    rollout_length: int = 64
    """steps of each environment between updates"""
    learning_rate: float = 2e-3
    """learning rate at the start"""
    schedule: str = "linear"
    """schedule of the learning rate: linear or cosine, which fall to 0, or constant"""
    num_epochs: int = 6
    minibatch_size: int = 256
    """number of rows in a minibatch, about; the sizes of an update's minibatches differ by one row at most, or by one
    environment's rows"""
    minibatch_units: str = "rows"
    """what is shuffled into minibatches: rows, or environments, all of whose rows are in one minibatch"""
    gradient_groups: int = 16
    """groups of a minibatch's rows whose gradients are computed at the same time, at most; how results are rounded
    depends on it. A GPU needs many, such as 256"""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    advantage_floor: float = 0.1
    """minimum of the standard deviation by which advantages are divided"""
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        if self.device == "host":
            object.__setattr__(self, "device", "cpu")  # what torch calls it
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "num_threads", "rollout_length", "num_epochs")
        self.require("2 or more", lambda value: value >= 2, "minibatch_size")
        self.require("1 to 1,024", lambda value: 1 <= value <= 1024, "gradient_groups")
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma", "gae_lambda")
        self.require("more than 0", lambda value: value > 0, "clip", "advantage_floor", "max_grad_norm")
        self.require(", ".join(SCHEDULES), lambda value: value in SCHEDULES, "schedule")
        self.require(", ".join(UNITS), lambda value: value in UNITS, "minibatch_units")
        self.require("cuda", lambda value: value == "cuda", "backend")
        self.require("None: all environments", lambda value: value in (None, self.num_envs), "batch_size")
        self.require("1: policies here see one observation", lambda value: value == 1, "frame_stack")
        self.require("False: kernels do not report lives", lambda value: not value, "episodic_life")
        self.require("(): nothing is filmed here; ppo_cuda films", lambda value: not value, "video_envs")
        self.require("False: this learner is compiled code", lambda value: not value, "compile")


class Learner:
    """The training state, which checkpoints save. actor: the policy in torch, with the newest weights."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: Config) -> None:
        self.actor = origin.actor(vec.observation_layout, vec.single_action_space)
        if self.actor.recurrent:
            raise PlanError(f"policy={config.policy!r} has a memory, which this trainer does not keep; use ppo_lstm")
        self.policy = FusedPolicy(
            self.actor,
            'use policy="mlp", or ppo_cuda',
            config.learning_rate,
            num_threads=config.num_threads,
            clip=config.clip,
            entropy_coefficient=config.entropy_coefficient,
            value_coefficient=config.value_coefficient,
            advantage_floor=config.advantage_floor,
            max_grad_norm=config.max_grad_norm,
            most_groups=config.gradient_groups,
        )
        self.policy.require_plain_numbers()
        self.fused = self.policy.learner
        self.on_device = None if config.device == "cpu" else DeviceLearner(self.fused, config.device)
        self.generator = torch.Generator(config.device).manual_seed(config.seed)
        self.num_steps = 0

    def save(self) -> None:
        """Copy the weights to the torch networks, from the device if they are learnt there."""
        (self.fused if self.on_device is None else self.on_device).save()

    def state(self) -> dict[str, Any]:
        """Return the training state as plain values and tensors."""
        self.save()
        return {
            "weights": self.actor.policy.state_dict(),
            "optimizer": self.policy.state_dict(),
            "generator": self.generator.get_state(),
            "num_steps": self.num_steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned."""
        self.actor.policy.load_state_dict(state["weights"])
        self.policy.load_state_dict(state["optimizer"])
        if self.on_device is not None:
            self.on_device.load()
        self.generator.set_state(state["generator"])
        self.num_steps = state["num_steps"]


class Rollout:
    """The rows of a rollout, as arrays (steps, rows, …). The observations have one step more."""

    def __init__(self, vec: Any, learner: Learner, config: Config) -> None:
        self.vec, self.learner, self.config = vec, learner, config
        self.num_steps, self.num_rows = config.rollout_length, vec.agents_per_batch
        self.observations = torch.zeros((self.num_steps + 1, self.num_rows, *vec.single_observation_space.shape))
        self.kernel_actions = KernelActions(learner.actor.decisions, "cpu")

    def begin(self) -> None:
        """Store the first observations of newly reset environments."""
        self.observations[-1] = self.vec.recv().observations

    def play(self) -> None:
        """Play ``rollout_length`` steps from the last stored observations, and store them.

        Rewards are clipped to plus or minus ``reward_clip`` unless that is None.
        """
        self.observations[0] = self.observations[-1]
        steps = self.vec.rollout(self.num_steps, policy=self.learner.fused)
        self.observations[1:] = steps.observations
        actions = self.kernel_actions.of_policy(steps.actions.view(self.num_steps * self.num_rows, -1))
        self.discrete_actions, self.continuous_actions = (part.numpy() for part in pair(actions))
        self.log_probs, self.rewards = steps.log_probs.numpy(), steps.rewards.numpy()
        flags = (steps.terminations, steps.truncations, steps.masks)
        self.terminations, self.truncations, self.masks = (column.numpy() for column in flags)
        if self.config.reward_clip is not None:
            np.clip(self.rewards, -self.config.reward_clip, self.config.reward_clip, out=self.rewards)

    def rows(self) -> Rows:
        """Return the rows to learn from, step by step, with their advantages."""
        fused, config, num_rows = self.learner.fused, self.config, self.rewards.size
        read: Any = self.learner.actor.policy.read
        with torch.no_grad():
            features = read(self.observations.flatten(0, 1)).numpy()
        values = fused.values(features).reshape(self.num_steps + 1, self.num_rows)
        ends = (self.terminations, self.truncations)
        advantages = fused.advantages(self.rewards, values, *ends, self.masks, config.gamma, config.gae_lambda)
        return Rows(
            features[:num_rows],
            self.discrete_actions,
            self.continuous_actions,
            self.log_probs.reshape(-1),
            advantages.reshape(-1),
            (advantages + values[:-1]).reshape(-1),
            masks=self.masks.reshape(-1),
        )

    def minibatches(self) -> list[np.ndarray]:
        """Return the rows of an epoch's minibatches, shuffled. Invalid rows are left out."""
        masks, generator = self.masks.reshape(-1), self.learner.generator
        num_rows = int(masks.sum())
        num_minibatches = max(
            1, min(round(num_rows / self.config.minibatch_size), num_rows // 2)
        )  # of two rows or more
        if self.config.minibatch_units == "rows":
            order = torch.randperm(masks.size, generator=generator).numpy()
            return np.array_split(order[masks[order]], num_minibatches)
        parts = (part.numpy() for part in rows_of_environments(self.config, masks.size, num_minibatches, generator))
        return [part[masks[part]] for part in parts]


def rows_of_environments(
    config: Config, num_rows: int, num_minibatches: int, generator: torch.Generator
) -> list[Tensor]:
    """Return the rows of an epoch's minibatches, each of which has all rows of some environments, shuffled."""
    envs = torch.randperm(config.num_envs, generator=generator, device=generator.device)
    rows = torch.arange(num_rows, device=generator.device).view(config.rollout_length, config.num_envs, -1)
    return [rows[:, part].flatten() for part in envs.tensor_split(min(num_minibatches, config.num_envs))]


def update(learner: Learner, rollout: Rollout, learning_rate: float) -> dict[str, float]:
    """Train on a rollout for ``num_epochs`` epochs; return the last epoch's mean losses, keyed by TensorBoard name.

    Afterwards, the torch networks have the new weights.
    """
    rows = rollout.rows()
    epochs = [rollout.minibatches() for _ in range(rollout.config.num_epochs)]
    terms = learner.fused.update(rows, [minibatch for epoch in epochs for minibatch in epoch], learning_rate)
    learner.fused.save()
    means = terms[-len(epochs[-1]) :].mean(0).tolist()
    return {f"losses/{name}": mean for name, mean in zip(TERMS, means, strict=True)}


class DeviceRollout:
    """The rows of a rollout on a device, as tensors (steps, rows, …). The observations have one step more."""

    def __init__(self, vec: Any, learner: Learner, fused: DeviceLearner, config: Config) -> None:
        self.vec, self.learner, self.fused, self.config = vec, learner, fused, config
        self.num_steps, self.num_rows = config.rollout_length, vec.agents_per_batch
        shape = (self.num_steps + 1, self.num_rows, *vec.single_observation_space.shape)
        self.observations = torch.zeros(shape, device=fused.device)
        self.kernel_actions = KernelActions(learner.actor.decisions, fused.device)
        self.most_steps = self.num_steps * self.num_rows

    def begin(self) -> None:
        """Store the first observations of newly reset environments."""
        self.observations[-1] = self.vec.recv().observations

    def minibatches(self) -> list[Tensor]:
        """Return the rows of an epoch's minibatches, shuffled. Invalid rows are among them."""
        num_minibatches, generator = max(1, round(self.most_steps / self.config.minibatch_size)), self.learner.generator
        if self.config.minibatch_units == "rows":
            order = torch.randperm(self.most_steps, generator=generator, device=self.fused.device)
            return [*order.tensor_split(num_minibatches)]
        return rows_of_environments(self.config, self.most_steps, num_minibatches, generator)

    def play_and_update(self) -> tuple[Tensor, ...]:
        """Play a rollout, train on it for ``num_epochs`` epochs, and return the results, without waiting for them.

        The results are the number of valid steps, the last epoch's mean losses, and sums over the finished episodes.
        """
        config, fused = self.config, self.fused
        self.observations[0] = self.observations[-1]
        # The rollout begins with the batch's rows, which a graph finds where they were when it was captured.
        self.vec.batch.observations.copy_(self.observations[0])
        steps = self.vec.rollout(self.num_steps, policy=fused)
        self.observations[1:] = steps.observations
        bound = config.reward_clip
        rewards = steps.rewards if bound is None else steps.rewards.clamp(-bound, bound)
        features, values = fused.features_and_values(self.observations.view(-1, *self.observations.shape[2:]))
        actions = self.kernel_actions.of_policy(steps.actions.view(self.most_steps, -1))
        columns = (rewards, values.view(self.num_steps + 1, -1), steps.terminations, steps.truncations, steps.masks)
        advantages, returns = fused.advantages(*columns, config.gamma, config.gae_lambda)
        rows = DeviceRows(
            features[: self.most_steps],
            *pair(actions),
            steps.log_probs.flatten(),
            advantages.flatten(),
            returns.flatten(),
            masks=steps.masks.flatten(),
        )
        epochs = [self.minibatches() for _ in range(config.num_epochs)]
        terms = fused.update(rows, [minibatch for epoch in epochs for minibatch in epoch])
        sums = self.vec.episode_sums(reset=True)
        episodes = (sums.num_episodes, sums.num_steps, sums.scores, sums.returns)
        return steps.masks.sum(), terms[-len(epochs[-1]) :].mean(0), *episodes


def learn_on_device(session: Session, learner: Learner, fused: DeviceLearner, config: Config) -> None:
    """Do what ``learn`` does on a device. An iteration's results are read while the next iteration runs.

    They are read at once if it is time to save newest.pt, or if the stretch of steps may end with this iteration.
    """
    with on_own_stream(config.device):
        rollout = DeviceRollout(session.vec, learner, fused, config)
        iterate = GraphedIteration(rollout.play_and_update, learner.generator, config)
        for last_step in session.stretches():
            rollout.begin()
            session.report.phase("learning")
            previous: Reading | None = None
            known_steps = learner.num_steps  # without the previous iteration's, even if they have been read
            while learner.num_steps < last_step:
                lrnow = rate_at(config.schedule, config.learning_rate, known_steps, config.total_steps)
                fused.learning_rate.fill_(lrnow)
                reading = Reading(iterate(), [lrnow])
                if previous is not None:
                    report_iteration(session, learner, previous)
                known_steps = learner.num_steps
                previous, due = reading, session.is_due()
                if due or learner.num_steps + rollout.most_steps >= last_step:
                    report_iteration(session, learner, previous)
                    previous = None
                if due:
                    session.save_newest()
            learner.save()


def report_iteration(session: Session, learner: Learner, reading: Reading) -> None:
    """Wait for the results of an iteration on a device, report them, and add its steps to the learner's."""
    num_steps, losses, num_episodes, num_ended_steps, scores, returns = reading.values()
    learner.num_steps += int(num_steps)
    episodes = EpisodeSums(num_episodes, num_ended_steps, scores, returns, session.vec.agent_names).stats()
    scalars = {f"losses/{name}": mean for name, mean in zip(TERMS, losses.tolist(), strict=True)}
    charts = charts_of_stats(episodes) if episodes.num_episodes else {}
    session.report.update(learner.num_steps, {**scalars, "charts/learning_rate": reading.rates[0], **charts})


def learn(session: Session, learner: Learner, config: Config) -> None:
    """Alternate between playing and updating until ``total_steps`` transitions have been learnt from."""
    if learner.on_device is not None:
        learn_on_device(session, learner, learner.on_device, config)
        return
    vec: Any = session.vec
    rollout = Rollout(vec, learner, config)
    for last_step in session.stretches():
        rollout.begin()
        while session.goes_on(last_step):
            session.report.phase("environments")
            rollout.play()
            if not rollout.masks.any():  # a short rollout may have nothing but the rows that start episodes
                continue
            session.report.phase("learning")
            lrnow = rate_at(config.schedule, config.learning_rate, learner.num_steps, config.total_steps)
            losses = update(learner, rollout, lrnow)
            learner.num_steps += int(rollout.masks.sum())
            episodes = vec.episode_stats(reset=True)
            charts = charts_of_stats(episodes) if episodes.num_episodes else {}
            session.report.update(learner.num_steps, {**losses, "charts/learning_rate": lrnow, **charts})


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a policy, evaluate it on fresh seeds, and return the result.

    env: a KernelEnv to use instead of config.env.
    """
    return run(config, Learner, learn, env=env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``session.resumed``); return its settings and its result."""
    return resumed(folder, Config, Learner, learn, env, total_steps, trust)


if __name__ == "__main__":
    main(Config, train)
