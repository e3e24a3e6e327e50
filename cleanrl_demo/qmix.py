"""QMIX, with VDN and IQL as settings, in one file, built on send and recv, for the agents of one team.

    python -m cleanrl_demo.qmix --env ocean/multiagent --backend serial
    python -m cleanrl_demo.qmix --mixer vdn                                    # or iql

All agents have one network, which reads an agent's observation and its index in the environment, and plays the action
with the highest Q-value. In training a mixer computes the team's value from the values of the agents' actions and the
environment's state: the leaf "state" (``--wrap.state``), which the agents do not read, or without it the observations
of all agents. VDN adds the values up; IQL learns each agent's from its own rewards.

``pufferlib.training.TeamReplay`` has the agents' rows side by side, as sequences of joint steps. Agents that are
absent, or whose step terminated, do not count in the team's value. A truncated episode's target includes the value of
its true final observations. Updates follow the steps, so their number depends neither on the number of environments nor
on the backend.

Source: Rashid et al., arXiv:1803.11485 (QMIX); Sunehag et al., arXiv:1706.05296 (VDN); Tampuu et al., arXiv:1511.08779
(IQL); van Hasselt et al., arXiv:1509.06461 (double Q-learning).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn
from torch.optim import Adam

import pufferlib
from cleanrl_demo.dqn import NEVER, allowed
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.models import FrameStack, Memory, Origin, State
from pufferlib.models.agent_networks import AgentNetwork, RecurrentAgentNetwork
from pufferlib.models.mixers import QMixer, TeamState, ValueSum
from pufferlib.models.running_norm import RunningNorm
from pufferlib.training import (
    SCHEDULES,
    Result,
    RewardProcessing,
    RunConfig,
    Session,
    TeamReplay,
    as_one,
    main,
    rate_at,
    resumed,
    run,
)
from pufferlib.training.team_replay import Sequences

STEPS_PER_REPORT = 1000
MIXERS = ("qmix", "vdn", "iql")
TEAM_REWARDS = ("mean", "sum")


@dataclass(frozen=True)
class Config(RunConfig):
    """Train a team with QMIX, VDN or IQL. One step is one action of one agent."""

    algorithm: ClassVar[str] = "qmix"

    env: str = "ocean/multiagent"
    """name of the environment (`puffer envs` lists them), or your own module:callable"""
    backend: str = "serial"
    """serial, multiprocessing or pool"""
    num_envs: int = 8
    total_steps: int = 50_000
    policy: str = "default"
    """default, or your own module:Class, a subclass of cleanrl_demo.qmix.Policy, or of RecurrentPolicy if recurrent"""
    mixer: str = "qmix"
    """qmix; vdn: the team's value is the sum of the agents' values; iql: each agent learns from its own rewards"""
    recurrent: bool = False
    """give agents a memory, a GRU; sequence_length is then the number of joint steps that it is learnt through"""
    sequence_length: int = 1
    """joint steps in a sequence, which begins with the memory that the agents had then"""
    team_reward: str = "mean"
    """the team's reward from its agents' rewards, for qmix and vdn: mean or sum"""
    standardize_rewards: bool = False
    """learn from rewards less their running mean, in standard deviations, so that a step without reward has a cost"""
    embed_size: int = 32
    """size of QMIX's mixing layer"""
    hypernet_size: int = 64
    """size of the layer of QMIX's hypernetworks; 0: they are linear"""
    buffer_size: int = 200_000
    """number of agents' steps; the newest are kept"""
    keep_buffer: bool = True
    """save the buffer in checkpoints, which grow by its size; otherwise a resumed run refills it before it learns"""
    learning_starts: int = 1_000
    """steps before the first update"""
    steps_per_update: float = 8.0
    """steps per update, whatever the number of environments"""
    minibatch_size: int = 64
    """sequences in a minibatch"""
    learning_rate: float = 5e-4
    """learning rate at the start"""
    schedule: str = "constant"
    """schedule of the learning rate: constant, or linear or cosine, which fall to 0"""
    gamma: float = 0.99
    target_period: int = 200
    """updates between copies of the networks to the target networks"""
    start_epsilon: float = 1.0
    """share of random actions at the start"""
    end_epsilon: float = 0.05
    exploration_fraction: float = 0.2
    """share of total_steps over which epsilon falls from start_epsilon to end_epsilon"""
    max_grad_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma", "start_epsilon", "end_epsilon")
        self.require("more than 0, to 1", lambda value: 0 < value <= 1, "exploration_fraction")
        counts = ("minibatch_size", "target_period", "sequence_length", "embed_size")
        self.require("1 or more", lambda value: value >= 1, *counts)
        self.require("more than 0", lambda value: value > 0, "steps_per_update", "max_grad_norm")
        self.require("0 or more", lambda value: value >= 0, "learning_starts", "hypernet_size")
        self.require(", ".join(SCHEDULES), lambda value: value in SCHEDULES, "schedule")
        self.require(", ".join(MIXERS), lambda value: value in MIXERS, "mixer")
        self.require(", ".join(TEAM_REWARDS), lambda value: value in TEAM_REWARDS, "team_reward")
        self.require("False: sequences of steps are not compiled", lambda value: not value, "compile")
        if self.learning_starts >= self.total_steps:
            raise PlanError(f"learning_starts={self.learning_starts} is not less than total_steps={self.total_steps}")

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments, except the number of agents."""
        default = f"cleanrl_demo.qmix:{'RecurrentPolicy' if self.recurrent else 'Policy'}"
        return default if self.policy == "default" else self.policy, self.policy_kwargs


class Policy(AgentNetwork):
    """The network that all agents of an environment share. It plays each row's allowed action with the highest Q-value.

    It reads the observation, except the leaf "state", and the agent's index. num_agents: the number of agents of an
    environment. Raises SpaceError if the actions are not Discrete.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        num_agents: int,
        hidden_size: int = 64,
    ) -> None:
        if not isinstance(action_space, Discrete):
            raise SpaceError(f"QMIX plays Discrete actions, and not {action_space}; cleanrl_demo.ppo plays others too")
        super().__init__(observation_layout, int(action_space.n), num_agents, hidden_size)

    def forward(
        self,
        observations: Tensor,
        state: State | None = None,
        action_mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, State | None]:
        """Return (logits, the highest Q-values, the next state). The logits of all but the best actions are NEVER."""
        q_values, state = self.outputs(observations, state, places)
        values, best = allowed(q_values, action_mask).max(1, keepdim=True)
        return torch.full_like(q_values, NEVER).scatter(1, best, 0.0), values.squeeze(1), state


class RecurrentPolicy(RecurrentAgentNetwork, Policy):
    """A Policy with a GRU, whose output is an agent's memory."""


class Networks(nn.Module):
    """The agents' network, and the mixer of their values, if any; the target networks are a copy."""

    def __init__(self, policy: Policy, layout: Layout, config: Config) -> None:
        super().__init__()
        self.policy = policy
        self.mixer: nn.Module | None = None
        if config.mixer == "vdn":
            self.mixer = ValueSum()
        elif config.mixer == "qmix":
            self.team_state = TeamState(layout, policy.num_places)
            sizes = (config.embed_size, config.hypernet_size)
            self.mixer = QMixer(policy.num_places, self.team_state.size, *sizes)

    def q_values(self, sampled: Sequences) -> Tensor:
        """Return the Q-values of all rows, (steps + 1, sequences, agents, num_actions)."""
        observations, starts = sampled.observations, sampled.starts
        q_values = self.policy.sequences(observations.flatten(1, 2), sampled.memory.flatten(0, 1), starts.flatten(1, 2))
        return cast(Tensor, q_values.unflatten(1, starts.shape[1:]))

    def mixed(self, values: Tensor, observations: Tensor, counting: Tensor) -> Tensor:
        """Return the teams' values, (steps, sequences, 1), or without a mixer the agents', (steps, sequences, agents).

        values: (steps, sequences, agents), of one action each. counting: bool, the agents whose values count.
        """
        values = torch.where(counting, values, 0.0)
        if self.mixer is None:
            return values
        states = self.team_state(observations, counting) if isinstance(self.mixer, QMixer) else values
        return cast(Tensor, self.mixer(values, states)).unsqueeze(-1)


class Learner:
    """The training state, which checkpoints save. Raises SpaceError and PlanError as ``Policy`` and the buffer do."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: Config) -> None:
        self.origin = replace(origin, policy_kwargs={**origin.policy_kwargs, "num_agents": vec.agents_per_env})
        self.actor = self.origin.actor(vec.observation_layout, vec.single_action_space)
        self.policy = cast("Policy", self.actor.policy)
        if getattr(self.policy, "recurrent", None) is not config.recurrent:
            kind = "RecurrentPolicy" if config.recurrent else "Policy"
            advice = f"make it a subclass of cleanrl_demo.qmix.{kind}"
            raise PlanError(f"policy={config.policy!r} does not fit recurrent={config.recurrent}; {advice}")
        self.networks = Networks(self.policy, self.actor.seen_layout, config).to(config.device)
        self.target = copy.deepcopy(self.networks).requires_grad_(False)
        self.weights, self.target_weights = as_one(self.networks), as_one(self.target)
        self.optimizer = Adam([self.weights], config.learning_rate, fused=True)
        self.reward_norm: RunningNorm | None = None
        if config.standardize_rewards:
            self.reward_norm = RunningNorm(torch.ones(1, dtype=torch.bool)).to(config.device)
            self.reward_norm.observing = True
        self.generator = torch.Generator().manual_seed(config.seed)
        self.reward_processing = RewardProcessing(vec, config.gamma, False, config.reward_clip, config.episodic_life)
        self.replay = TeamReplay(
            vec,
            self.actor.seen_layout,
            config.buffer_size,
            num_steps=config.sequence_length,
            memory_size=self.policy.hidden_size if config.recurrent else 0,
        )
        self.num_steps, self.num_updates, self.keeps_buffer = 0, 0, config.keep_buffer
        self.note = self.replay.note(config.total_steps) if config.keep_buffer else ""

    def state(self) -> dict[str, Any]:
        """Return the training state as plain values and tensors."""
        return {
            "weights": self.networks.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "reward_norm": None if self.reward_norm is None else self.reward_norm.state_dict(),
            "generator": self.generator.get_state(),
            "replay": self.replay.state() if self.keeps_buffer else None,
            "num_steps": self.num_steps,
            "num_updates": self.num_updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned."""
        self.networks.load_state_dict(state["weights"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.reward_norm is not None:
            self.reward_norm.load_state_dict(state["reward_norm"])
        self.generator.set_state(state["generator"])
        if state["replay"] is not None:
            self.replay.restore(state["replay"])
        self.num_steps, self.num_updates = state["num_steps"], state["num_updates"]


def td_loss(
    networks: Networks,
    target: Networks,
    sampled: Sequences,
    mask: Tensor | None,
    gamma: float,
    team_reward: str,
    reward_norm: RunningNorm | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (the mean squared error of the valid values, these values' mean).

    The target is the reward and, of the agents that are still alive, the target networks' value of the actions that the
    trained network prefers. mask: bool (steps + 1, sequences, agents, num_actions), the allowed actions; None allows
    all. team_reward: as in ``Config``; without a mixer agents have their own rewards. reward_norm: standardizes valid
    rewards. Source: arXiv:1803.11485, eq. 6.
    """
    observations, acted, alive, rewards = sampled.observations, sampled.acted, sampled.alive, sampled.rewards
    q_values = networks.q_values(sampled)
    old_val = q_values[:-1].gather(-1, sampled.actions.unsqueeze(-1)).squeeze(-1)
    if networks.mixer is not None:
        rewards = rewards.sum(-1, keepdim=True)
        if team_reward == "mean":
            rewards = rewards / acted.sum(-1, keepdim=True).clamp(min=1)
    is_valid, continues = acted, alive
    if networks.mixer is not None:
        is_valid, continues = (agents.any(-1, keepdim=True) for agents in (acted, alive))
    if reward_norm is not None:
        rewards = rewards.masked_scatter(is_valid, reward_norm(rewards[is_valid].unsqueeze(1)))
    with torch.no_grad():
        best = allowed(q_values[1:], None if mask is None else mask[1:]).argmax(-1, keepdim=True)
        next_val = target.mixed(target.q_values(sampled)[1:].gather(-1, best).squeeze(-1), observations[1:], alive)
        td_target = rewards + gamma * torch.where(continues, next_val, 0.0)
    mixed = networks.mixed(old_val, observations[:-1], acted)
    errors = torch.where(is_valid, mixed - td_target, 0.0)
    num_valid = is_valid.sum().clamp(min=1)
    return errors.square().sum() / num_valid, torch.where(is_valid, mixed, 0.0).sum().detach() / num_valid


def update(learner: Learner, config: Config) -> Tensor:
    """Take one gradient step on sampled sequences; return (the loss, the mean value), float32 (2,).

    Before the first update, and again after every ``target_period`` updates, copies the networks to the targets.
    """
    if learner.num_updates % config.target_period == 0:
        learner.target_weights.copy_(learner.weights)
    sampled = learner.replay.sample(config.minibatch_size, learner.generator).to(config.device)
    mask = learner.actor.mask(sampled.observations.flatten(0, 2))
    mask = None if mask is None else mask.unflatten(0, sampled.starts.shape)
    loss, mean = td_loss(
        learner.networks, learner.target, sampled, mask, config.gamma, config.team_reward, learner.reward_norm
    )
    gradient = cast(Tensor, learner.weights.grad)
    gradient.zero_()
    loss.backward()
    gradient.mul_((config.max_grad_norm / gradient.norm()).clamp(max=1))
    learner.optimizer.step()
    return torch.stack([loss.detach(), mean])


@torch.inference_mode()
def choose(learner: Learner, observations: Tensor, state: State | None, epsilon: float) -> tuple[Tensor, State | None]:
    """Return (zero-based actions of an epsilon-greedy policy, int64 (rows,), on the CPU; the next state).

    observations: the rows of whole environments, in order. Random actions are drawn from the allowed ones.
    """
    q_values, state = learner.policy.outputs(observations, state, None)
    mask = learner.actor.mask(observations)
    mask, q_values = None if mask is None else mask.cpu(), q_values.cpu()
    random_actions = allowed(torch.rand(q_values.shape, generator=learner.generator), mask)
    at_random = torch.rand(len(q_values), 1, generator=learner.generator) < epsilon
    return torch.where(at_random, random_actions, allowed(q_values, mask)).argmax(1), state


def learn(session: Session, learner: Learner, config: Config) -> None:
    """Alternate between playing and learning until ``total_steps`` steps have been added to the buffer."""
    vec, report, replay, actor = session.vec, session.report, learner.replay, learner.actor
    num_agents = vec.num_envs * vec.agents_per_env
    for last_step in session.stretches():
        learner.reward_processing.forget()
        metrics, reported = list[Tensor](), learner.num_steps // STEPS_PER_REPORT
        frames = FrameStack(actor.layout, config.frame_stack, num_agents, config.device)
        initial = actor.initial_state(num_agents)
        memory = None if initial is None else Memory(initial)
        while session.goes_on(last_step):
            batch: Any = vec.recv()  # of tensors
            host = vec.host_batch
            assert host is not None
            report.phase("inference")
            falling = learner.num_steps / (config.exploration_fraction * config.total_steps)
            epsilon = config.start_epsilon + min(1.0, falling) * (config.end_epsilon - config.start_epsilon)
            observations = frames(batch.observations, batch.agent_ids, batch.masks)
            before = None if memory is None else memory.of(batch.agent_ids, batch.masks)
            discrete_actions, after = choose(learner, observations, before, epsilon)
            if memory is not None:
                memory.keep(batch.agent_ids, cast(State, after))
            session.film()
            report.phase("environments")
            # Send before the updates, so that the environments step during them.
            vec.send(actor.decisions.actions(discrete_actions[:, None], torch.empty(len(discrete_actions), 0)))
            rewards, terminations = learner.reward_processing(host)
            rows = (observations.cpu().numpy(), discrete_actions.numpy(), rewards, terminations)
            learner.num_steps += replay.add(host, *rows, None if before is None else before[0].cpu().numpy())
            report.infos(batch.infos)

            report.phase("learning")
            lrnow = rate_at(config.schedule, config.learning_rate, learner.num_steps, config.total_steps)
            learner.optimizer.param_groups[0]["lr"] = lrnow
            begun = len(replay) > 0 and replay.num_added >= min(config.learning_starts, replay.capacity // 2)
            if not begun and learner.num_steps > config.learning_starts:  # it was resumed without the buffer
                learner.num_updates = int((learner.num_steps - config.learning_starts) / config.steps_per_update)
            while begun and learner.num_updates * config.steps_per_update < learner.num_steps - config.learning_starts:
                metrics.append(update(learner, config))
                learner.num_updates += 1
            if learner.num_steps // STEPS_PER_REPORT > reported or learner.num_steps >= last_step:
                reported = learner.num_steps // STEPS_PER_REPORT
                scalars = {"charts/epsilon": epsilon, "charts/learning_rate": lrnow}
                if metrics:
                    scalars["losses/td_loss"], scalars["losses/q_values"] = torch.stack(metrics).mean(0).tolist()
                report.update(learner.num_steps, scalars)
                metrics.clear()
            report.phase("environments")


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a team, evaluate it greedily on fresh seeds, and return the result.

    env: a creator to use instead of config.env. Raises SpaceError if the actions are not Discrete.
    """
    return run(config, Learner, learn, env=env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``session.resumed``); return its settings and its result."""
    return resumed(folder, Config, Learner, learn, env, total_steps, trust)


if __name__ == "__main__":
    main(Config, train)
