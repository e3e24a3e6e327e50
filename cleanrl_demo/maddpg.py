"""MADDPG in one file, with MATD3 and attention critics as settings, built on send and recv, for several agents.

    python -m cleanrl_demo.maddpg --env ocean/multiagent --backend serial
    python -m cleanrl_demo.maddpg --num-critics 2 --policy-noise 0.2 --policy-frequency 2     # MATD3
    python -m cleanrl_demo.maddpg --critic attention                                          # or own: DDPG

Each agent has an actor, which sees the agent's observation alone, and critics, which see the environment's state and
the actions of all agents, in training only. The state is the leaf "state" (``--wrap.state``), or without it the
observations of all agents. Rewards are each agent's own, so agents may work together or against each other.

Actions are a Box, as numbers from -1 to 1, or Discrete, as one number per action: 1 for the one that was played, and in
the actor's loss and targets those of the Gumbel softmax, through which gradients pass. A truncated episode's target
includes the value of its true final observations; absent agents and those whose step terminated have none.

Source: Lowe et al., arXiv:1706.02275 (MADDPG); Ackermann et al., arXiv:1910.01465 (MATD3); Iqbal and Sha,
arXiv:1810.02912 (attention critics); Jang et al., arXiv:1611.01144 (Gumbel softmax).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim import Adam

import pufferlib
from cleanrl_demo.dqn import allowed
from pufferlib.errors import PlanError
from pufferlib.layout import Layout
from pufferlib.models import FrameStack, Origin
from pufferlib.models.agent_networks import AgentLayers
from pufferlib.models.critics import num_continuous_actions
from pufferlib.models.team_critics import AttentionCritic, CentralCritic, OwnCritic, own_features
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
CRITICS = {"central": CentralCritic, "own": OwnCritic, "attention": AttentionCritic}


@dataclass(frozen=True)
class Config(RunConfig):
    """Train agents with MADDPG. One step is one action of one agent. Raises PlanError for settings out of bounds."""

    algorithm: ClassVar[str] = "maddpg"

    env: str = "ocean/multiagent"
    """name of the environment (`puffer envs` lists them), or your own module:callable"""
    backend: str = "serial"
    """serial, multiprocessing or pool"""
    num_envs: int = 8
    total_steps: int = 1_000_000
    policy: str = "default"
    """default, or your own module:Class, a subclass of cleanrl_demo.maddpg.Policy"""
    critic: str = "central"
    """central; attention, which weighs the other agents; own, which sees its agent alone: DDPG for each agent"""
    buffer_size: int = 1_000_000
    """number of agents' steps; the newest are kept"""
    keep_buffer: bool = True
    """save the buffer in checkpoints, which grow by its size; otherwise a resumed run refills it before it learns"""
    learning_starts: int = 25_000
    """steps before the first update, with random actions"""
    steps_per_update: float = 100.0
    """steps per update, whatever the number of environments"""
    minibatch_size: int = 1024
    """joint steps in a minibatch"""
    learning_rate: float = 1e-2
    """learning rate at the start, of critics and actors"""
    schedule: str = "constant"
    """schedule of the learning rate: constant, or linear or cosine, which fall to 0"""
    gamma: float = 0.95
    tau: float = 0.01
    """share by which the target networks move to the networks"""
    num_critics: int = 1
    """critics of an agent, of whose values the smallest is the target's; MATD3 has 2"""
    policy_frequency: int = 1
    """updates of the critics per update of the actors and of the target networks; MATD3 has 2"""
    policy_noise: float = 0.0
    """standard deviation of the noise on the target actors' actions of a Box, which are -1 to 1; MATD3 has 0.2"""
    noise_clip: float = 0.5
    """bound on that noise"""
    exploration_noise: float = 0.1
    """standard deviation of the noise on the actions of a Box that are played in training"""
    output_penalty: float = 1e-3
    """weight of the actors' mean squared outputs in their loss"""
    max_grad_norm: float = 0.5
    """bound on the norm of the gradient of all agents' actors, and of all critics"""
    eval_greedy: bool = True
    """evaluate with the most likely action instead of a sampled one"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma")
        self.require("more than 0, to 1", lambda value: 0 < value <= 1, "tau")
        self.require("1 or more", lambda value: value >= 1, "minibatch_size", "policy_frequency", "num_critics")
        self.require("more than 0", lambda value: value > 0, "steps_per_update", "max_grad_norm")
        noises = ("policy_noise", "noise_clip", "exploration_noise", "output_penalty")
        self.require("0 or more", lambda value: value >= 0, "learning_starts", *noises)
        self.require(", ".join(SCHEDULES), lambda value: value in SCHEDULES, "schedule")
        self.require(", ".join(CRITICS), lambda value: value in CRITICS, "critic")
        if self.learning_starts >= self.total_steps:
            raise PlanError(f"learning_starts={self.learning_starts} is not less than total_steps={self.total_steps}")

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments, except the number of agents."""
        return "cleanrl_demo.maddpg:Policy" if self.policy == "default" else self.policy, self.policy_kwargs


class Policy(nn.Module):
    """The actors of an environment's agents, each of ReLU layers of its own. For a Box their standard deviation is 0.

    They read the observation, except the leaf "state". num_agents: the number of agents of an environment. Raises
    SpaceError unless actions are Discrete, or a Box with finite bounds.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        num_agents: int,
        hidden_sizes: Sequence[int] = (64, 64),
    ) -> None:
        super().__init__()
        self.num_places, self.hidden_sizes = num_agents, tuple(hidden_sizes)
        self.is_discrete = isinstance(action_space, Discrete)
        space: Any = action_space
        self.num_numbers = int(space.n) if self.is_discrete else num_continuous_actions(space, "MADDPG")
        self.read = own_features(observation_layout)
        self.layers = AgentLayers(num_agents, (self.read.size, *hidden_sizes, self.num_numbers))

    def forward(
        self,
        observations: Tensor,
        state: Any = None,
        action_mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Any, Tensor, Any]:
        """Return (logits, or (actions, standard deviations of 0); values of 0; the unchanged state)."""
        features = self.read(observations)
        if places is None:  # the rows of whole environments
            outputs = self.layers(features.unflatten(0, (-1, self.num_places))).flatten(0, 1)
        else:
            every = self.layers(features.unsqueeze(1).expand(-1, self.num_places, -1))
            outputs = every[torch.arange(len(places), device=places.device), places]
        actions = outputs if self.is_discrete else (outputs.tanh(), torch.zeros_like(outputs))
        return actions, outputs.new_zeros(len(outputs)), state

    def outputs(self, observations: Tensor) -> Tensor:
        """Return the outputs, (rows, agents, num_numbers). observations: (rows, agents, *layout.shape)."""
        features = self.read(observations.flatten(0, 1)).unflatten(0, observations.shape[:2])
        return cast(Tensor, self.layers(features))

    def numbers(self, outputs: Tensor, gumbels: Tensor | None, mask: Tensor | None) -> Tensor:
        """Return the actions' numbers, through which gradients pass. mask: bool, the allowed actions; None: all.

        gumbels: of the standard Gumbel distribution, if actions are Discrete. All shapes are those of the outputs.
        """
        return outputs.tanh() if gumbels is None else (allowed(outputs, mask) + gumbels).softmax(-1)


class Networks(nn.Module):
    """The actors and their critics; the target networks are a copy."""

    def __init__(self, policy: Policy, layout: Layout, config: Config) -> None:
        super().__init__()
        sizes = (policy.num_places, policy.num_numbers, policy.hidden_sizes)
        self.policy = policy
        self.critics = nn.ModuleList(CRITICS[config.critic](layout, *sizes) for _ in range(config.num_critics))

    def values(self, observations: Tensor, actions: Tensor, present: Tensor) -> Tensor:
        """Return each critic's values of the agents' actions, (num_critics, rows, agents)."""
        return torch.stack([critic(observations, actions, actions, present) for critic in self.critics])


class Learner:
    """The training state, which checkpoints save. Raises SpaceError and PlanError as ``Policy`` and the buffer do."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: Config) -> None:
        self.origin = replace(origin, policy_kwargs={**origin.policy_kwargs, "num_agents": vec.agents_per_env})
        self.actor = self.origin.actor(vec.observation_layout, vec.single_action_space)
        self.policy = cast("Policy", self.actor.policy)
        if not hasattr(self.policy, "numbers"):
            raise PlanError(f"policy={config.policy!r} does not fit; make it a subclass of cleanrl_demo.maddpg.Policy")
        self.networks = Networks(self.policy, self.actor.seen_layout, config).to(config.device)
        self.target = copy.deepcopy(self.networks).requires_grad_(False)
        self.compilable = (*self.networks.critics, *self.target.critics)
        self.actor_weights, self.qf_weights = as_one(self.policy), as_one(self.networks.critics)
        self.target_weights = as_one(self.target.policy), as_one(self.target.critics)
        self.optimizers = {
            "qf": Adam([self.qf_weights], config.learning_rate, fused=True),
            "actor": Adam([self.actor_weights], config.learning_rate, fused=True),
        }
        self.saved: dict[str, Any] = {"weights": self.networks, "target": self.target, **self.optimizers}
        self.generator = torch.Generator().manual_seed(config.seed)
        self.reward_processing = RewardProcessing(vec, config.gamma, False, config.reward_clip, config.episodic_life)
        kind = ((), "int64") if self.policy.is_discrete else ((self.policy.num_numbers,), "float32")
        self.replay = TeamReplay(vec, self.actor.seen_layout, config.buffer_size, *kind)
        self.num_steps, self.num_updates, self.keeps_buffer = 0, 0, config.keep_buffer
        self.note = self.replay.note(config.total_steps) if config.keep_buffer else ""

    def noise(self, shape: Sequence[int], device: str) -> Tensor:
        """Return numbers of the standard Gumbel distribution if actions are Discrete, else of the normal one."""
        if not self.policy.is_discrete:
            return torch.randn(*shape, generator=self.generator).to(device)
        return -torch.empty(*shape).exponential_(generator=self.generator).log().to(device)

    def mask(self, observations: Tensor) -> Tensor | None:
        """Return the masks of allowed actions, bool (rows, agents, num_numbers); None if there are none."""
        mask = self.actor.mask(observations.flatten(0, 1)) if self.policy.is_discrete else None
        return None if mask is None else mask.unflatten(0, observations.shape[:2])

    def state(self) -> dict[str, Any]:
        """Return the training state as plain values and tensors."""
        return {
            **{name: part.state_dict() for name, part in self.saved.items()},
            "generator": self.generator.get_state(),
            "replay": self.replay.state() if self.keeps_buffer else None,
            "num_steps": self.num_steps,
            "num_updates": self.num_updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned."""
        for name, part in self.saved.items():
            part.load_state_dict(state[name])
        self.generator.set_state(state["generator"])
        if state["replay"] is not None:
            self.replay.restore(state["replay"])
        self.num_steps, self.num_updates = state["num_steps"], state["num_updates"]


def mean_of(values: Tensor, valid: Tensor) -> Tensor:
    """Return the sum over agents of the mean of each one's valid values, (). Both are (…, rows, agents)."""
    return (torch.where(valid, values, 0.0).sum(-2) / valid.sum(-2).clamp(min=1)).sum()


def critic_loss(
    networks: Networks, target: Networks, sampled: Sequences, next_actions: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Return (the sum over agents and critics of the mean squared errors, the mean value).

    The target is the agent's reward and, if it is still alive, the smallest value of its target critics for
    ``next_actions``, the target actors' numbers, (rows, agents, num_numbers). Source: arXiv:1706.02275, eq. 6.
    """
    (before, after), acted, alive = sampled.observations, sampled.acted[0], sampled.alive[0]
    with torch.no_grad():
        min_qf_next = target.values(after, next_actions, alive).amin(0)
        td_target = sampled.rewards[0] + gamma * torch.where(alive, min_qf_next, 0.0)
    qf_values = networks.values(before, sampled.actions[0], acted)
    loss = torch.stack([mean_of(errors, acted) for errors in (qf_values - td_target).square()]).sum()
    return loss, qf_values.detach()[:, acted].mean()


def actor_loss(
    networks: Networks, sampled: Sequences, gumbels: Tensor | None, mask: Tensor | None, penalty: float
) -> Tensor:
    """Return minus the sum over agents of the first critic's mean value of the actor's action.

    The other agents' actions are those that were played. Adds ``penalty`` times the outputs' mean squares. gumbels,
    mask: as for ``Policy.numbers``. Source: arXiv:1706.02275, eq. 5.
    """
    observations, acted = sampled.observations[0], sampled.acted[0]
    outputs = networks.policy.outputs(observations)
    own_actions = networks.policy.numbers(outputs, gumbels, mask)
    values = networks.critics[0](observations, own_actions, sampled.actions[0], acted)
    return mean_of(penalty * outputs.square().mean(2) - values, acted)


def descend(loss: Tensor, weights: Tensor, optimizer: Adam, max_grad_norm: float) -> None:
    """Take one step down the loss, with a bounded gradient."""
    gradient = cast(Tensor, weights.grad)
    gradient.zero_()
    loss.backward()
    gradient.mul_((max_grad_norm / gradient.norm()).clamp(max=1))
    optimizer.step()


def update(learner: Learner, config: Config) -> Tensor:
    """Update the critics, and each ``policy_frequency``-th time the actors and targets; return (loss, mean value)."""
    networks, policy, target = learner.networks, learner.policy, learner.target
    sampled = learner.replay.sample(config.minibatch_size, learner.generator).to(config.device)
    if policy.is_discrete:
        sampled = sampled._replace(actions=one_hot(sampled.actions, policy.num_numbers).float())
    before, after = sampled.observations
    shape = (*sampled.actions.shape[1:3], policy.num_numbers)
    noise = learner.noise(shape, config.device)
    with torch.no_grad():
        gumbels = noise if policy.is_discrete else None
        next_actions = target.policy.numbers(target.policy.outputs(after), gumbels, learner.mask(after))
        if not policy.is_discrete:
            smoothing = (noise * config.policy_noise).clamp(-config.noise_clip, config.noise_clip)
            next_actions = (next_actions + smoothing).clamp(-1, 1)
    qf_loss, qf_values = critic_loss(networks, target, sampled, next_actions, config.gamma)
    descend(qf_loss, learner.qf_weights, learner.optimizers["qf"], config.max_grad_norm)
    if (learner.num_updates + 1) % config.policy_frequency == 0:
        networks.critics.requires_grad_(False)  # the actors' loss needs no gradients of their weights
        gumbels = learner.noise(shape, config.device) if policy.is_discrete else None
        loss = actor_loss(networks, sampled, gumbels, learner.mask(before), config.output_penalty)
        descend(loss, learner.actor_weights, learner.optimizers["actor"], config.max_grad_norm)
        networks.critics.requires_grad_(True)
        for weights, moved in zip((learner.actor_weights, learner.qf_weights), learner.target_weights, strict=True):
            moved.lerp_(weights, config.tau)
    return torch.stack([qf_loss.detach(), qf_values])


@torch.no_grad()
def choose(learner: Learner, observations: Tensor, at_random: bool, exploration_noise: float) -> tuple[Tensor, Tensor]:
    """Return (discrete_actions, continuous_actions), with exploration, for the rows of whole environments."""
    policy = learner.policy
    joint = observations.unflatten(0, (-1, policy.num_places))
    noise = learner.noise((*joint.shape[:2], policy.num_numbers), "cpu")
    outputs = torch.zeros_like(noise) if at_random else policy.outputs(joint).cpu()
    if policy.is_discrete:
        mask = learner.mask(joint)
        best = (allowed(outputs, None if mask is None else mask.cpu()) + noise).argmax(2)
        return best.reshape(-1, 1), noise.new_empty(len(observations), 0)
    uniform = 2 * torch.rand(noise.shape, generator=learner.generator) - 1
    actions = uniform if at_random else (outputs.tanh() + exploration_noise * noise).clamp(-1, 1)
    return torch.empty(len(observations), 0, dtype=torch.int64), actions.flatten(0, 1)


def learn(session: Session, learner: Learner, config: Config) -> None:
    """Alternate between playing and learning until ``total_steps`` steps have been added to the buffer."""
    vec, report, replay, actor = session.vec, session.report, learner.replay, learner.actor
    for last_step in session.stretches():
        learner.reward_processing.forget()
        metrics, reported = list[Tensor](), learner.num_steps // STEPS_PER_REPORT
        frames = FrameStack(actor.layout, config.frame_stack, vec.num_envs * vec.agents_per_env, config.device)
        while session.goes_on(last_step):
            batch: Any = vec.recv()  # of tensors
            host = vec.host_batch
            assert host is not None
            report.phase("inference")
            observations = frames(batch.observations, batch.agent_ids, batch.masks)
            at_random = learner.num_steps < config.learning_starts
            discrete_actions, continuous_actions = choose(learner, observations, at_random, config.exploration_noise)
            session.film()
            report.phase("environments")
            # Send before the updates, so that the environments step during them.
            vec.send(actor.decisions.actions(discrete_actions, continuous_actions))
            rewards, terminations = learner.reward_processing(host)
            actions = discrete_actions[:, 0] if learner.policy.is_discrete else continuous_actions
            learner.num_steps += replay.add(host, observations.cpu().numpy(), actions.numpy(), rewards, terminations)
            report.infos(batch.infos)

            report.phase("learning")
            lrnow = rate_at(config.schedule, config.learning_rate, learner.num_steps, config.total_steps)
            for optimizer in learner.optimizers.values():
                optimizer.param_groups[0]["lr"] = lrnow
            begun = len(replay) > 0 and replay.num_added >= min(config.learning_starts, replay.capacity // 2)
            if not begun and learner.num_steps > config.learning_starts:  # it was resumed without the buffer
                learner.num_updates = int((learner.num_steps - config.learning_starts) / config.steps_per_update)
            while begun and learner.num_updates * config.steps_per_update < learner.num_steps - config.learning_starts:
                metrics.append(update(learner, config))
                learner.num_updates += 1
            if learner.num_steps // STEPS_PER_REPORT > reported or learner.num_steps >= last_step:
                reported = learner.num_steps // STEPS_PER_REPORT
                scalars = {"charts/learning_rate": lrnow}
                if metrics:
                    scalars["losses/qf_loss"], scalars["losses/qf_values"] = torch.stack(metrics).mean(0).tolist()
                report.update(learner.num_steps, scalars)
                metrics.clear()
            report.phase("environments")


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train the agents, evaluate them on fresh seeds, and return the result. env: a creator instead of config.env."""
    return run(config, Learner, learn, env=env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``session.resumed``); return its settings and its result."""
    return resumed(folder, Config, Learner, learn, env, total_steps, trust)


if __name__ == "__main__":
    main(Config, train)
