"""DQN in one file, built on send and recv, for any environment in the registry whose actions are Discrete.

    python -m cleanrl_demo.dqn --env CartPole-v1 --backend serial

The part of a trainer that is easiest to get wrong is in ``pufferlib.training.ReplayBuffer``, which pairs each agent's
row with the same agent's next row by ``agent_ids``, whichever batches the two rows arrive in. A pair is kept only if
the next row's mask is set, so that reset rows, crash rows and the padding of absent agents are never learnt from. If an
episode was truncated, the flag ``truncations`` is set in the next row, and the target includes the value of that row's
observation. If the episode terminated, the target is the rewards alone.

Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015 (DQN), and van Hasselt
et al., arXiv:1509.06461 (double DQN); Schaul et al., arXiv:1511.05952 (draws by priority).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn
from torch.optim import Adam

import pufferlib
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.models import Actor, FrameStack, Origin, make_policy
from pufferlib.models.networks import vision
from pufferlib.models.reading import Features, Frames, Images, has_images, images_of
from pufferlib.training import ReplayBuffer, Result, RewardProcessing, RunConfig, Session, main, rate_at, resumed, run

STEPS_PER_REPORT = 1000
NETWORK = "cleanrl_demo.dqn:QNetwork"
NEVER = torch.finfo(torch.float32).min  # the logit of an action that is not played


@dataclass(frozen=True)
class Config(RunConfig):
    """Train a policy with DQN. One step is one action of one agent. Raises PlanError for settings out of bounds."""

    algorithm: ClassVar[str] = "dqn"

    env: str = "CartPole-v1"
    """name of the environment (`puffer envs` lists them), Gymnasium id, or your own module:callable"""
    backend: str = "serial"
    """serial, multiprocessing or pool"""
    num_envs: int = 8
    total_steps: int = 50_000
    policy: str = "default"
    """mlp, cnn, or your own module:Class, a policy for pufferlib.models whose outputs are Q-values"""
    buffer_size: int = 100_000
    """number of transitions; the newest are kept"""
    keep_buffer: bool = True
    """save the buffer in checkpoints, which grow by its size; otherwise a resumed run refills it before it learns"""
    learning_starts: int = 1_000
    """steps before the first update"""
    steps_per_update: float = 2.0
    """steps per update, whatever the number of environments"""
    minibatch_size: int = 64
    learning_rate: float = 2.3e-3
    """learning rate at the start; it falls to 0"""
    gamma: float = 0.99
    n_step: int = 1
    """steps whose rewards a target adds up before it includes a value; fewer at the end of an episode"""
    priority_exponent: float = 0.0
    """power of its last error to which a transition is drawn, such as 0.6; 0 draws uniformly"""
    importance_exponent: float = 0.4
    """how far weights undo the draw by priority at the start; it rises to 1"""
    target_period: int = 32
    """updates between copies of the network to the target network"""
    start_epsilon: float = 1.0
    """share of random actions at the start"""
    end_epsilon: float = 0.04
    exploration_fraction: float = 0.2
    """share of total_steps over which epsilon falls from start_epsilon to end_epsilon"""
    max_grad_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma", "start_epsilon", "end_epsilon")
        self.require("0 to 1", lambda value: 0 <= value <= 1, "priority_exponent", "importance_exponent")
        self.require("more than 0, to 1", lambda value: 0 < value <= 1, "exploration_fraction")
        self.require("1 or more", lambda value: value >= 1, "minibatch_size", "target_period", "n_step")
        self.require("more than 0", lambda value: value > 0, "steps_per_update", "max_grad_norm")
        self.require("0 or more", lambda value: value >= 0, "learning_starts")
        if self.learning_starts >= self.total_steps:
            raise PlanError(f"learning_starts={self.learning_starts} is not less than total_steps={self.total_steps}")

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments."""
        network = NETWORK if self.policy == "default" else self.policy
        return "cleanrl_demo.dqn:Greedy", {"network": network, **self.policy_kwargs}


class QNetwork(nn.Module):
    """A network of two ReLU layers for observations of any structure, with Q-values as its outputs.

    Images in the observations first pass through three convolutions.
    """

    def __init__(self, observation_layout: Layout, action_space: gymnasium.Space[Any], hidden_size: int = 256) -> None:
        super().__init__()
        self.read: Frames | Images | Features
        first: nn.Module = nn.Identity()
        if has_images(observation_layout):
            self.read = images = images_of(observation_layout)
            first, size = vision(observation_layout, images, (32, 64, 64))
        else:
            self.read = features = Features(observation_layout)
            size = features.size
        layers = [nn.Linear(size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size), nn.ReLU()]
        self.layers = nn.Sequential(first, *layers, nn.Linear(hidden_size, int(cast("Any", action_space).n)))

    def forward(self, observations: Tensor, state: Any = None, action_mask: Tensor | None = None) -> tuple[Any, ...]:
        """Return (Q-values, each row's highest Q-value, the unchanged state)."""
        q_values = self.layers(self.read(observations))  # (rows, num_actions)
        return q_values, q_values.amax(1), state


class Greedy(nn.Module):
    """A policy for ``pufferlib.models`` that always plays the allowed action with the highest Q-value.

    Its logits leave no choice: sampling gives the same action. network, kwargs: arguments of ``make_policy`` for the
    network, whose outputs are the Q-values. Raises SpaceError if the actions are not Discrete, PlanError for
    ``normalize=True`` and for a network that has a memory or depends on agents' indices, and whatever
    ``make_policy`` raises.
    """

    def __init__(
        self, observation_layout: Layout, action_space: gymnasium.Space[Any], network: str = NETWORK, **kwargs: Any
    ) -> None:
        super().__init__()
        if not isinstance(action_space, Discrete):
            raise SpaceError(f"DQN plays Discrete actions, and not {action_space}; cleanrl_demo.ppo plays others too")
        if kwargs.get("normalize"):
            raise PlanError("normalize=True: DQN learns from observations of long ago, which statistics would not fit")
        self.network = make_policy(network, observation_layout, action_space, **kwargs)
        if hasattr(self.network, "initial_state"):
            raise PlanError(f"network={network!r} has a memory, which this trainer does not keep")
        if hasattr(self.network, "num_places"):
            raise PlanError(f"network={network!r} depends on agents' indices, which the replay buffer does not store")
        self.space = action_space

    def forward(self, observations: Tensor, state: Any = None, action_mask: Tensor | None = None) -> tuple[Any, ...]:
        """Return (logits, values, the unchanged state).

        logits: 0 for each row's allowed action with the highest Q-value, else NEVER. values: these highest Q-values.
        """
        q_values = allowed(self.network(observations, None, action_mask)[0], action_mask)
        values, best = q_values.max(1, keepdim=True)
        return torch.full_like(q_values, NEVER).scatter(1, best, 0.0), values.squeeze(1), state

    @torch.inference_mode()
    def choose(
        self, observations: Tensor, mask: Tensor | None, epsilon: float, generator: torch.Generator
    ) -> np.ndarray:
        """Return each row's best action or, with probability epsilon, a random allowed one: zero-based, int64 (rows,).

        generator: a generator on the CPU, where the choice is made.
        """
        q_values = self.network(observations, None, mask)[0].cpu()
        mask = None if mask is None else mask.cpu()
        random_actions = allowed(torch.rand(q_values.shape, generator=generator), mask)
        at_random = torch.rand(len(q_values), generator=generator) < epsilon
        return torch.where(at_random, random_actions.argmax(1), allowed(q_values, mask).argmax(1)).numpy()

    def actions(self, discrete_actions: np.ndarray) -> np.ndarray:
        """Convert zero-based discrete actions to the actions that ``VecEnv.send`` takes."""
        actions: np.ndarray = (discrete_actions + self.space.start).astype(self.space.dtype)
        return actions


def allowed(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return scores, (…, num_actions), with -inf for the actions that a bool mask forbids.

    Rows in which every action is forbidden, such as those of absent agents, stay unchanged.
    """
    return scores if mask is None else scores.masked_fill(~mask & mask.any(-1, keepdim=True), -torch.inf)


class Learner:
    """The training state, which checkpoints save. Raises SpaceError and PlanError as ``Greedy`` and the buffer do."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: Config) -> None:
        self.actor: Actor = origin.actor(vec.observation_layout, vec.single_action_space)
        self.actor.policy.to(config.device)
        self.policy = cast("Greedy", self.actor.policy)
        self.target = copy.deepcopy(self.policy.network).requires_grad_(False)
        self.compilable = (self.policy.network, self.target)
        self.optimizer = Adam(self.policy.network.parameters(), config.learning_rate, fused=True)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.reward_processing = RewardProcessing(vec, config.gamma, False, config.reward_clip, config.episodic_life)
        self.replay = ReplayBuffer(
            vec,
            self.actor.seen_layout,
            config.buffer_size,
            n_step=config.n_step,
            gamma=config.gamma,
            priority_exponent=config.priority_exponent,
        )
        self.num_steps, self.num_updates, self.keeps_buffer = 0, 0, config.keep_buffer
        self.note = self.replay.note(config.total_steps) if config.keep_buffer else ""

    def state(self) -> dict[str, Any]:
        """Return the training state as plain values and tensors."""
        return {
            "weights": self.actor.policy.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "replay": self.replay.state() if self.keeps_buffer else None,
            "num_steps": self.num_steps,
            "num_updates": self.num_updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned."""
        self.actor.policy.load_state_dict(state["weights"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        if state["replay"] is not None:
            self.replay.restore(state["replay"])
        self.num_steps, self.num_updates = state["num_steps"], state["num_updates"]


def targets(
    rewards: Tensor, terminations: Tensor, online: Tensor, target: Tensor, mask: Tensor | None, gamma: float | Tensor
) -> Tensor:
    """Return the double-DQN targets for the Q-values of the played actions, (rows,).

    rewards, terminations: (rows,), the outcomes of these actions. gamma: the discount of the next observations' values,
    a number or (rows,). online, target: (rows, num_actions), the Q-values of
    the next observations. ``online`` is from the trained network, and chooses the next action; ``target`` is from the
    target network, and gives that action's value. A single network would choose the actions that it overestimates.
    mask: bool (rows, num_actions), the actions allowed after the next observations; None allows all.
    Source: van Hasselt et al., arXiv:1509.06461, eq. 4.
    """
    best = allowed(online, mask).argmax(1, keepdim=True)
    return rewards + gamma * torch.where(terminations, 0.0, target.gather(1, best).squeeze(1))


def update(learner: Learner, config: Config) -> Tensor:
    """Take one gradient step on sampled transitions; return (mean loss, mean Q-value), float32 (2,).

    Before the first update, and again after every ``target_period`` updates, copies the network to the target network.
    """
    policy, target = learner.policy, learner.target
    if learner.num_updates % config.target_period == 0:
        target.load_state_dict(policy.network.state_dict())
    progress = min(1.0, learner.num_steps / config.total_steps)
    importance_exponent = config.importance_exponent + progress * (1 - config.importance_exponent)
    sample = learner.replay.sample(config.minibatch_size, learner.generator, importance_exponent)
    sampled = sample.transitions.to(config.device)
    mask = learner.actor.mask(sampled.observations)
    with torch.no_grad():
        next_mask = learner.actor.mask(sampled.next_observations)
        online, older = (net(sampled.next_observations, None, next_mask)[0] for net in (policy.network, target))
        td_target = targets(sampled.rewards, sampled.terminations, online, older, next_mask, sampled.discounts)
    q_values = policy.network(sampled.observations, None, mask)[0]
    old_val = q_values.gather(1, sampled.actions[:, None]).squeeze(1)
    if sample.weights is None:
        loss = nn.functional.mse_loss(old_val, td_target)
    else:
        loss = (sample.weights.to(config.device) * (old_val - td_target).square()).mean()
        learner.replay.update_priorities(sample.serials, old_val - td_target)
    learner.optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.network.parameters(), config.max_grad_norm)
    learner.optimizer.step()
    return torch.stack([loss.detach(), old_val.detach().mean()])


def epsilon_at(config: Config, num_steps: int) -> float:
    """Return the share of random actions after a number of steps."""
    falling = min(1.0, num_steps / (config.exploration_fraction * config.total_steps))
    return config.start_epsilon + falling * (config.end_epsilon - config.start_epsilon)


def due_updates(learner: Learner, config: Config) -> list[Tensor]:
    """Take the updates that are due after ``num_steps`` steps; return the results of each ``update``."""
    replay, metrics = learner.replay, list[Tensor]()
    lrnow = rate_at("linear", config.learning_rate, learner.num_steps, config.total_steps)
    learner.optimizer.param_groups[0]["lr"] = lrnow
    begun = len(replay) > 0 and replay.num_steps >= min(config.learning_starts, replay.capacity)
    if not begun and learner.num_steps > config.learning_starts:  # it was resumed without the buffer
        learner.num_updates = int((learner.num_steps - config.learning_starts) / config.steps_per_update)
    while begun and learner.num_updates * config.steps_per_update < learner.num_steps - config.learning_starts:
        metrics.append(update(learner, config))
        learner.num_updates += 1
    return metrics


def charts(learner: Learner, metrics: Sequence[Tensor]) -> dict[str, float]:
    """Return scalars to report, keyed by TensorBoard name. metrics: the results of the latest updates, if any."""
    scalars = {"charts/learning_rate": learner.optimizer.param_groups[0]["lr"]}
    if metrics:
        scalars["losses/td_loss"], scalars["losses/q_values"] = torch.stack(list(metrics)).mean(0).tolist()
    return scalars


def learn(session: Session, learner: Learner, config: Config) -> None:
    """Alternate between playing and learning until ``total_steps`` transitions have been added to the buffer."""
    vec, report, policy, replay = session.vec, session.report, learner.policy, learner.replay
    generator = learner.generator
    for last_step in session.stretches():
        learner.reward_processing.forget()
        metrics, reported = list[Tensor](), learner.num_steps // STEPS_PER_REPORT
        frames = FrameStack(learner.actor.layout, config.frame_stack, vec.num_envs * vec.agents_per_env, config.device)
        while session.goes_on(last_step):
            batch: Any = vec.recv()  # of tensors
            host = vec.host_batch
            assert host is not None
            report.phase("inference")
            epsilon = epsilon_at(config, learner.num_steps)
            observations = frames(batch.observations, batch.agent_ids, batch.masks)
            discrete_actions = policy.choose(observations, learner.actor.mask(observations), epsilon, generator)
            session.film()
            report.phase("environments")
            # Send before the updates, so that the environments step during them.
            vec.send(policy.actions(discrete_actions))
            rewards, terminations = learner.reward_processing(host)
            learner.num_steps += replay.add(host, observations.cpu().numpy(), discrete_actions, rewards, terminations)
            report.infos(batch.infos)

            report.phase("learning")
            metrics += due_updates(learner, config)
            if learner.num_steps // STEPS_PER_REPORT > reported or learner.num_steps >= last_step:
                reported = learner.num_steps // STEPS_PER_REPORT
                report.update(learner.num_steps, {"charts/epsilon": epsilon, **charts(learner, metrics)})
                metrics.clear()
            report.phase("environments")
        replay.end()


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a policy, evaluate it greedily on fresh seeds, and return the result.

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
