"""TD3, with DDPG as a setting, in one file, built on send and recv, for any environment whose actions are a Box.

    python -m cleanrl_demo.td3 --env Pendulum-v1 --backend serial
    python -m cleanrl_demo.td3 --num-critics 1 --policy-noise 0 --policy-frequency 1          # DDPG

Actions are numbers from -1 to 1 here, in the replay buffer and where noise is added; ``Decisions.actions`` scales them
to the space's bounds. ``pufferlib.training.ReplayBuffer`` pairs each agent's row with the same agent's next row,
whichever batches they arrive in. A truncated episode's target includes the value of its true final observation, a
terminated one's does not. Updates follow the transitions, so their number depends neither on the number of environments
nor on the backend.

Source: Fujimoto et al., arXiv:1802.09477 (TD3); Lillicrap et al., arXiv:1509.02971 (DDPG).
"""

from __future__ import annotations

import copy
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
METRICS = ("qf_loss", "qf_values")


@dataclass(frozen=True)
class Config(RunConfig):
    """Train a policy with TD3. One step is one action of one agent. Raises PlanError for settings out of bounds."""

    algorithm: ClassVar[str] = "td3"

    env: str = "Pendulum-v1"
    """name of the environment (`puffer envs` lists them), Gymnasium id, or your own module:callable"""
    backend: str = "serial"
    """serial, multiprocessing or pool"""
    num_envs: int = 4
    total_steps: int = 50_000
    policy: str = "default"
    """default, or your own module:Class, a subclass of cleanrl_demo.td3.Policy"""
    buffer_size: int = 1_000_000
    """number of transitions; the newest are kept"""
    keep_buffer: bool = True
    """save the buffer in checkpoints, which grow by its size; otherwise a resumed run refills it before it learns"""
    learning_starts: int = 10_000
    """steps before the first update, with random actions"""
    steps_per_update: float = 1.0
    """steps per update, whatever the number of environments"""
    minibatch_size: int = 256
    learning_rate: float = 3e-4
    """learning rate at the start, of critics and actor"""
    schedule: str = "constant"
    """schedule of the learning rate: constant, or linear or cosine, which fall to 0"""
    gamma: float = 0.99
    n_step: int = 1
    """steps whose rewards a target adds up before it includes a value; fewer at the end of an episode"""
    tau: float = 0.005
    """share by which the target networks move to the networks"""
    num_critics: int = 2
    """critics, of whose values the smallest is the target's; DDPG has 1"""
    policy_frequency: int = 2
    """updates of the critics per update of the actor and of the target networks; DDPG has 1"""
    policy_noise: float = 0.2
    """standard deviation of the noise on the target actor's actions, which are -1 to 1; DDPG has 0"""
    noise_clip: float = 0.5
    """bound on that noise"""
    exploration_noise: float = 0.1
    """standard deviation of the noise on the actions that are played in training"""
    eval_episodes: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma")
        self.require("more than 0, to 1", lambda value: 0 < value <= 1, "tau")
        self.require(
            "1 or more", lambda value: value >= 1, "minibatch_size", "n_step", "policy_frequency", "num_critics"
        )
        self.require("more than 0", lambda value: value > 0, "steps_per_update")
        noises = ("policy_noise", "noise_clip", "exploration_noise")
        self.require("0 or more", lambda value: value >= 0, "learning_starts", *noises)
        self.require(", ".join(SCHEDULES), lambda value: value in SCHEDULES, "schedule")
        if self.learning_starts >= self.total_steps:
            raise PlanError(f"learning_starts={self.learning_starts} is not less than total_steps={self.total_steps}")

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments."""
        name = "cleanrl_demo.td3:Policy" if self.policy == "default" else self.policy
        return name, {"num_critics": self.num_critics, **self.policy_kwargs}


class Policy(nn.Module):
    """An actor, whose actions are the tanh of its outputs, and one or two critics, each of ReLU layers.

    For ``pufferlib.models`` its standard deviation is 0. Raises SpaceError unless actions are a Box with finite bounds.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_sizes: Sequence[int] = (256, 256),
        num_critics: int = 2,
    ) -> None:
        super().__init__()
        self.num_actions = num_continuous_actions(action_space, "TD3")
        self.actor = ReLUNetwork(observation_layout, self.num_actions, hidden_sizes=hidden_sizes)
        self.critics = Critics(observation_layout, self.num_actions, hidden_sizes, num_critics)

    def forward(self, observations: Tensor, state: Any = None, action_mask: Tensor | None = None) -> tuple[Any, ...]:
        """Return ((actions, standard deviations of 0), values, the unchanged state)."""
        actions = self.act(observations)
        return (actions, torch.zeros_like(actions)), self.critics(observations, actions).amin(0), state

    def act(self, observations: Tensor) -> Tensor:
        """Return the actions, (rows, num_actions) from -1 to 1."""
        return cast(Tensor, self.actor(observations)).tanh()


class Learner:
    """The training state, which checkpoints save. Raises SpaceError and PlanError as ``Policy`` and the buffer do."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: Config) -> None:
        self.actor: Actor = origin.actor(vec.observation_layout, vec.single_action_space)
        self.policy = cast("Policy", self.actor.policy.to(config.device))
        lacking = [part for part in ("actor", "critics", "num_actions", "act") if not hasattr(self.policy, part)]
        if lacking:
            advice = "make it a subclass of cleanrl_demo.td3.Policy"
            raise PlanError(f"policy={config.policy!r} has no {', '.join(lacking)}; {advice}")
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self.compilable = tuple(part for net in (self.policy, self.target) for part in (net.actor, net.critics))
        self.actor_weights, self.qf_weights = as_one(self.policy.actor), as_one(self.policy.critics)
        self.targets = [
            (as_one(self.target.actor), self.actor_weights),
            (as_one(self.target.critics), self.qf_weights),
        ]
        self.q_optimizer = Adam([self.qf_weights], config.learning_rate, fused=True)
        self.actor_optimizer = Adam([self.actor_weights], config.learning_rate, fused=True)
        self.optimizers = (self.q_optimizer, self.actor_optimizer)
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
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        if state["replay"] is not None:
            self.replay.restore(state["replay"])
        self.num_steps, self.num_updates = state["num_steps"], state["num_updates"]


def critic_loss(
    policy: Policy, target: Policy, sampled: Transitions, noise: Tensor, policy_noise: float, noise_clip: float
) -> tuple[Tensor, Tensor]:
    """Return (the sum of the critics' mean squared errors, their mean value).

    The target is the rewards, and after transitions that did not terminate the smallest value of the target critics for
    the target actor's action with clipped noise. noise: (rows, num_actions), of the standard normal distribution.
    Source: arXiv:1802.09477, section 5.3.
    """
    with torch.no_grad():
        smoothing = (noise * policy_noise).clamp(-noise_clip, noise_clip)
        next_actions = (target.act(sampled.next_observations) + smoothing).clamp(-1, 1)
        min_qf_next = target.critics(sampled.next_observations, next_actions).amin(0)
        td_target = sampled.rewards + sampled.discounts * torch.where(sampled.terminations, 0.0, min_qf_next)
    qf_values = policy.critics(sampled.observations, sampled.actions)  # (num_critics, rows)
    return (qf_values - td_target).square().mean(1).sum(), qf_values.detach().mean()


def actor_loss(policy: Policy, observations: Tensor) -> Tensor:
    """Return minus the first critic's mean value of the actor's actions. Source: arXiv:1802.09477, algorithm 1."""
    loss: Tensor = -policy.critics[0](observations, policy.act(observations)).mean()
    return loss


def update(learner: Learner, config: Config) -> Tensor:
    """Update the critics with one minibatch; return (their loss, their mean value), float32 (2,).

    Each ``policy_frequency``-th call also updates the actor, and moves the target networks.
    """
    policy = learner.policy
    sampled = learner.replay.sample(config.minibatch_size, learner.generator).transitions.to(config.device)
    noise = learner.noise(config.minibatch_size, config.device)
    qf_loss, qf_values = critic_loss(policy, learner.target, sampled, noise, config.policy_noise, config.noise_clip)
    cast(Tensor, learner.qf_weights.grad).zero_()
    qf_loss.backward()
    learner.q_optimizer.step()
    if (learner.num_updates + 1) % config.policy_frequency == 0:
        policy.critics.requires_grad_(False)  # the actor's loss needs no gradients of their weights
        cast(Tensor, learner.actor_weights.grad).zero_()
        actor_loss(policy, sampled.observations).backward()
        learner.actor_optimizer.step()
        policy.critics.requires_grad_(True)
        for target_weights, weights in learner.targets:
            target_weights.lerp_(weights, config.tau)
    return torch.stack([qf_loss.detach(), qf_values])


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
                noise = learner.noise(len(observations), config.device)
                with torch.no_grad():
                    actions = (policy.act(observations) + config.exploration_noise * noise).clamp(-1, 1)
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
    """Train a policy, evaluate its actions without noise on fresh seeds, and return the result.

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
