"""SAC in one file, built on send and recv, for any environment in the registry whose actions are a Box.

    python -m cleanrl_demo.sac --env Pendulum-v1 --backend serial

Actions are numbers from -1 to 1 here, in the replay buffer and in the entropy; ``Decisions.actions`` scales them to the
space's bounds. ``pufferlib.training.ReplayBuffer`` pairs each agent's row with the same agent's next row, whichever
batches they arrive in. A truncated episode's target includes the value of its true final observation, a terminated
one's does not. Updates follow the transitions, so their number depends neither on the number of environments nor on the
backend.

Source: Haarnoja et al., arXiv:1812.05905 (SAC with a learnt temperature).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import torch
from torch import Tensor, nn
from torch.optim import Adam

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.layout import Layout
from pufferlib.models import Actor, FrameStack, Origin
from pufferlib.models.critics import Critics, ReLUNetwork, num_continuous_actions
from pufferlib.training import (
    SCHEDULES,
    ReplayBuffer,
    Result,
    RewardProcessing,
    RunConfig,
    Session,
    as_one,
    main,
    rate_at,
    resumed,
    run,
)
from pufferlib.training.replay_buffer import Transitions

STEPS_PER_REPORT = 1000
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
METRICS = ("qf_loss", "qf_values", "actor_loss", "entropy", "alpha")


@dataclass(frozen=True)
class Config(RunConfig):
    """Train a policy with SAC. One step is one action of one agent. Raises PlanError for settings out of bounds."""

    algorithm: ClassVar[str] = "sac"

    env: str = "Pendulum-v1"
    """name of the environment (`puffer envs` lists them), Gymnasium id, or your own module:callable"""
    backend: str = "serial"
    """serial, multiprocessing or pool"""
    num_envs: int = 4
    total_steps: int = 50_000
    policy: str = "default"
    """default, or your own module:Class, a subclass of cleanrl_demo.sac.Policy"""
    buffer_size: int = 1_000_000
    """number of transitions; the newest are kept"""
    keep_buffer: bool = True
    """save the buffer in checkpoints, which grow by its size; otherwise a resumed run refills it before it learns"""
    learning_starts: int = 100
    """steps before the first update, with random actions"""
    steps_per_update: float = 1.0
    """steps per update, whatever the number of environments"""
    minibatch_size: int = 256
    learning_rate: float = 3e-4
    """learning rate at the start, of critics, actor and temperature"""
    schedule: str = "constant"
    """schedule of the learning rate: constant, or linear or cosine, which fall to 0"""
    gamma: float = 0.99
    n_step: int = 1
    """steps whose rewards a target adds up before it includes a value; fewer at the end of an episode"""
    tau: float = 0.005
    """share by which each update moves the target critics to the critics"""
    alpha: float | None = None
    """temperature, the weight of the entropy; None: learnt, so that the entropy becomes target_entropy"""
    target_entropy: float | None = None
    """entropy of actions between -1 and 1; None: minus the number of an action's elements"""
    eval_episodes: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma")
        self.require("more than 0, to 1", lambda value: 0 < value <= 1, "tau")
        self.require("1 or more", lambda value: value >= 1, "minibatch_size", "n_step")
        self.require("more than 0", lambda value: value > 0, "steps_per_update")
        self.require("0 or more", lambda value: value >= 0, "learning_starts")
        self.require("0 or more, or None", lambda value: value is None or value >= 0, "alpha")
        self.require(", ".join(SCHEDULES), lambda value: value in SCHEDULES, "schedule")
        if self.learning_starts >= self.total_steps:
            raise PlanError(f"learning_starts={self.learning_starts} is not less than total_steps={self.total_steps}")

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments."""
        return "cleanrl_demo.sac:Policy" if self.policy == "default" else self.policy, self.policy_kwargs


class Policy(nn.Module):
    """An actor, whose actions are a squashed normal distribution, and two critics, each of ReLU layers.

    For ``pufferlib.models`` it always plays the tanh of the mean: its standard deviation is 0. Raises SpaceError unless
    actions are a Box with finite bounds.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_sizes: Sequence[int] = (256, 256),
    ) -> None:
        super().__init__()
        self.num_actions = num_continuous_actions(action_space, "SAC")
        self.actor = ReLUNetwork(observation_layout, 2 * self.num_actions, hidden_sizes=hidden_sizes)
        self.critics = Critics(observation_layout, self.num_actions, hidden_sizes)

    def forward(self, observations: Tensor, state: Any = None, action_mask: Tensor | None = None) -> tuple[Any, ...]:
        """Return ((actions, standard deviations of 0), values, the unchanged state)."""
        actions = self.normal(observations)[0].tanh()
        return (actions, torch.zeros_like(actions)), self.critics(observations, actions).amin(0), state

    def normal(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (mean, standard deviation) of the normal distribution before the tanh, each (rows, actions)."""
        mean, log_std = self.actor(observations).chunk(2, 1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return (actions, their log-probabilities), (rows, num_actions) and (rows,), both with gradients.

        noise: (rows, num_actions), of the standard normal distribution. Source: arXiv:1812.05905, appendix C.
        """
        mean, std = self.normal(observations)
        unbounded = mean + std * noise
        log_normal = -0.5 * noise.square() - std.log() - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(u)**2), in the form that does not round to log(0)
        log_slope = 2 * (math.log(2) - unbounded - nn.functional.softplus(-2 * unbounded))
        return unbounded.tanh(), (log_normal - log_slope).sum(1)


class Learner:
    """The training state, which checkpoints save. Raises SpaceError and PlanError as ``Policy`` and the buffer do."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: Config) -> None:
        self.actor: Actor = origin.actor(vec.observation_layout, vec.single_action_space)
        self.policy = cast("Policy", self.actor.policy.to(config.device))
        lacking = [part for part in ("actor", "critics", "num_actions", "sample") if not hasattr(self.policy, part)]
        if lacking:
            advice = "make it a subclass of cleanrl_demo.sac.Policy"
            raise PlanError(f"policy={config.policy!r} has no {', '.join(lacking)}; {advice}")
        self.target = copy.deepcopy(self.policy.critics).requires_grad_(False)
        self.compilable = (self.policy.actor, self.policy.critics, self.target)
        self.actor_weights, self.qf_weights = as_one(self.policy.actor), as_one(self.policy.critics)
        self.target_weights = as_one(self.target)
        self.log_alpha = torch.zeros(1, device=config.device, requires_grad=config.alpha is None)
        if config.alpha is not None:
            self.log_alpha.fill_(config.alpha).log_()
        self.target_entropy = -self.policy.num_actions if config.target_entropy is None else config.target_entropy
        self.q_optimizer = Adam([self.qf_weights], config.learning_rate, fused=True)
        self.actor_optimizer = Adam([self.actor_weights], config.learning_rate, fused=True)
        self.a_optimizer = Adam([self.log_alpha], config.learning_rate, fused=True)
        self.optimizers = (self.q_optimizer, self.actor_optimizer, self.a_optimizer)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.reward_processing = RewardProcessing(vec, config.gamma, False, config.reward_clip, config.episodic_life)
        self.replay = ReplayBuffer(
            vec,
            self.actor.seen_layout,
            config.buffer_size,
            (self.policy.num_actions,),
            "float32",
            n_step=config.n_step,
            gamma=config.gamma,
        )
        self.num_steps, self.num_updates, self.keeps_buffer = 0, 0, config.keep_buffer
        self.note = self.replay.note(config.total_steps) if config.keep_buffer else ""

    def noise(self, num_rows: int, device: str) -> Tensor:
        """Return (num_rows, num_actions) numbers of the standard normal distribution, drawn on the CPU."""
        return torch.randn((num_rows, self.policy.num_actions), generator=self.generator).to(device)

    def state(self) -> dict[str, Any]:
        """Return the training state as plain values and tensors."""
        return {
            "weights": self.policy.state_dict(),
            "target": self.target.state_dict(),
            "log_alpha": self.log_alpha.detach().clone(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generator": self.generator.get_state(),
            "replay": self.replay.state() if self.keeps_buffer else None,
            "num_steps": self.num_steps,
            "num_updates": self.num_updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned."""
        self.policy.load_state_dict(state["weights"])
        self.target.load_state_dict(state["target"])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        if state["replay"] is not None:
            self.replay.restore(state["replay"])
        self.num_steps, self.num_updates = state["num_steps"], state["num_updates"]


def critic_loss(
    policy: Policy, target: Critics, sampled: Transitions, noise: Tensor, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (the sum of the critics' mean squared errors, their mean value).

    The target is the rewards, and after transitions that did not terminate the smaller value of the target critics for
    an action of the current policy, with its entropy. noise: as for ``Policy.sample``. Source: arXiv:1812.05905, eq. 5.
    """
    with torch.no_grad():
        next_actions, next_log_prob = policy.sample(sampled.next_observations, noise)
        min_qf_next = target(sampled.next_observations, next_actions).amin(0) - alpha * next_log_prob
        td_target = sampled.rewards + sampled.discounts * torch.where(sampled.terminations, 0.0, min_qf_next)
    qf_values = policy.critics(sampled.observations, sampled.actions)  # (2, rows)
    return (qf_values - td_target).square().mean(1).sum(), qf_values.detach().mean()


def actor_loss(policy: Policy, observations: Tensor, noise: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the actor's loss, its actions' log-probabilities without gradients). Source: arXiv:1812.05905, eq. 9."""
    actions, log_prob = policy.sample(observations, noise)
    min_qf = policy.critics(observations, actions).amin(0)
    return (alpha * log_prob - min_qf).mean(), log_prob.detach()


def alpha_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return the temperature's loss: alpha rises where the entropy is below the target.

    log_prob: (rows,). Source: arXiv:1812.05905, eq. 18.
    """
    return -(log_alpha * (log_prob + target_entropy)).mean()


def update(learner: Learner, config: Config) -> Tensor:
    """Update critics, actor and temperature with one minibatch, then move the targets; return METRICS, float32 (5,)."""
    policy, alpha = learner.policy, learner.log_alpha.detach().exp()
    sampled = learner.replay.sample(config.minibatch_size, learner.generator).transitions.to(config.device)
    noise = learner.noise(config.minibatch_size, config.device)
    qf_loss, qf_values = critic_loss(policy, learner.target, sampled, noise, alpha)
    cast(Tensor, learner.qf_weights.grad).zero_()
    qf_loss.backward()
    learner.q_optimizer.step()

    policy.critics.requires_grad_(False)  # the actor's loss needs no gradients of their weights
    noise = learner.noise(config.minibatch_size, config.device)
    pi_loss, log_prob = actor_loss(policy, sampled.observations, noise, alpha)
    cast(Tensor, learner.actor_weights.grad).zero_()
    pi_loss.backward()
    learner.actor_optimizer.step()
    policy.critics.requires_grad_(True)

    if config.alpha is None:
        learner.a_optimizer.zero_grad()
        alpha_loss(learner.log_alpha, log_prob, learner.target_entropy).backward()
        learner.a_optimizer.step()
    learner.target_weights.lerp_(learner.qf_weights, config.tau)
    return torch.stack([qf_loss.detach(), qf_values, pi_loss.detach(), -log_prob.mean(), alpha[0]])


def learn(session: Session, learner: Learner, config: Config) -> None:
    """Alternate between playing and learning until ``total_steps`` transitions have been added to the buffer."""
    vec, report, policy, replay = session.vec, session.report, learner.policy, learner.replay
    for last_step in session.stretches():
        learner.reward_processing.forget()
        metrics, reported = list[Tensor](), learner.num_steps // STEPS_PER_REPORT
        frames = FrameStack(learner.actor.layout, config.frame_stack, vec.num_envs * vec.agents_per_env, config.device)
        while session.goes_on(last_step):
            batch: Any = vec.recv()  # of tensors
            host = vec.host_batch
            assert host is not None
            report.phase("inference")
            observations = frames(batch.observations, batch.agent_ids, batch.masks)
            if learner.num_steps < config.learning_starts:
                shape = (len(observations), policy.num_actions)
                actions = 2 * torch.rand(shape, generator=learner.generator) - 1
            else:
                with torch.no_grad():
                    actions, _ = policy.sample(observations, learner.noise(len(observations), config.device))
            session.film()
            report.phase("environments")
            # Send before the updates, so that the environments step during them.
            vec.send(learner.actor.decisions.actions(actions[:, :0], actions))
            rewards, terminations = learner.reward_processing(host)
            rows = (observations.cpu().numpy(), actions.cpu().numpy())
            learner.num_steps += replay.add(host, *rows, rewards, terminations)
            report.infos(batch.infos)

            report.phase("learning")
            lrnow = rate_at(config.schedule, config.learning_rate, learner.num_steps, config.total_steps)
            for optimizer in learner.optimizers:
                optimizer.param_groups[0]["lr"] = lrnow
            begun = len(replay) > 0 and replay.num_steps >= min(config.learning_starts, replay.capacity)
            if not begun and learner.num_steps > config.learning_starts:  # it was resumed without the buffer
                learner.num_updates = int((learner.num_steps - config.learning_starts) / config.steps_per_update)
            while begun and learner.num_updates * config.steps_per_update < learner.num_steps - config.learning_starts:
                metrics.append(update(learner, config))
                learner.num_updates += 1
            if learner.num_steps // STEPS_PER_REPORT > reported or learner.num_steps >= last_step:
                reported = learner.num_steps // STEPS_PER_REPORT
                scalars = {"charts/learning_rate": lrnow}
                if metrics:
                    means = torch.stack(metrics).mean(0).tolist()
                    scalars |= {f"losses/{name}": mean for name, mean in zip(METRICS, means, strict=True)}
                report.update(learner.num_steps, scalars)
                metrics.clear()
            report.phase("environments")
        replay.end()


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a policy, evaluate its mean actions on fresh seeds, and return the result.

    env: a creator to use instead of config.env. Raises SpaceError if the actions are not a Box with finite bounds.
    """
    return run(config, Learner, learn, env=env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``session.resumed``); return its settings and its result."""
    return resumed(folder, Config, Learner, learn, env, total_steps, trust)


if __name__ == "__main__":
    main(Config, train)
