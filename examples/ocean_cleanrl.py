"""Ocean examines PPO in the style of single-file scripts: a correct version, and the most common one.

puffer ocean --trainer examples.ocean_cleanrl:train --backend serial
puffer ocean --trainer examples.ocean_cleanrl:train_naive --backend serial

The script uses only Gymnasium's vector environments. They start an episode in the step after the end of the last one:
the row of that step leads from one episode to the next, its action was ignored, and its reward belongs to no episode.
``train_naive`` learns from such rows as from any other, and treats truncation as termination, so that a truncated
episode has no further value. Both versions are correct if episodes only terminate, or if nothing depends on the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from ocean.suite.tasks import Cannot, Task
from pufferlib import registry
from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv, SyncVectorEnv

NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 32, 4, 4
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP = 3e-3, 0.99, 0.95, 0.2
ENTROPY_COEFFICIENT, VALUE_COEFFICIENT, MAX_GRAD_NORM = 0.01, 0.5, 0.5


def train(task: Task) -> Callable[[Any], Any]:
    """Train on a task, handling the ends of episodes correctly, and return a function that plays."""
    return learn(task, careful=True)


def train_naive(task: Task) -> Callable[[Any], Any]:
    """Train on a task, treating truncation as termination, and return a function that plays."""
    return learn(task, careful=False)


class Agent(nn.Module):
    """An actor and a critic, two small networks."""

    def __init__(self, num_inputs: int, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.discrete = isinstance(action_space, spaces.Discrete)
        num_outputs = int(action_space.n) if self.discrete else int(np.prod(action_space.shape))
        self.actor, self.critic = network(num_inputs, num_outputs, 0.01), network(num_inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(num_outputs))

    def distribution(self, observations: Tensor) -> Categorical | Normal:
        outputs = self.actor(observations)
        return Categorical(logits=outputs) if self.discrete else Normal(outputs, self.log_std.exp())

    def evaluate(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values, (rows,) each."""
        distribution = self.distribution(observations)
        log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
        if not self.discrete:
            log_probs, entropies = log_probs.sum(1), entropies.sum(1)
        return log_probs, entropies, self.critic(observations).squeeze(1)


def network(num_inputs: int, num_outputs: int, last_scale: float) -> nn.Sequential:
    sizes, scales = (num_inputs, 64, 64, num_outputs), (2**0.5, 2**0.5, last_scale)
    layers: list[nn.Module] = []
    for fan_in, fan_out, scale in zip(sizes[:-1], sizes[1:], scales, strict=True):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.orthogonal_(linear.weight, scale)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def make_envs(task: Task) -> Any:
    """Return a task's environments as a Gymnasium vector environment. Raises Cannot for unsupported spaces."""
    with task.make(num_envs=1, batch_size=1) as vec:
        if vec.agents_per_env > 1:
            raise Cannot(f"this script trains one agent per environment, and {task.env} has several")
        if len(vec.observation_layout.leaves) > 1 or not isinstance(
            vec.single_action_space, (spaces.Discrete, spaces.Box)
        ):
            raise Cannot(f"this script supports no nested spaces and no actions of several parts, as {task.env} has")
    make = registry.creator(task.env)
    if task.backend == "serial":
        return SyncVectorEnv([make] * task.num_envs)
    return AsyncVectorEnv([make] * task.num_envs, max_concurrency=os.cpu_count())


def learn(task: Task, careful: bool) -> Callable[[Any], Any]:
    """Train on a task. careful: bootstrap from truncated episodes, and leave out the rows between episodes."""
    torch.set_num_threads(1)  # such small networks are slower with more
    torch.manual_seed(task.seed)
    envs = make_envs(task)
    agent = Agent(int(np.prod(envs.single_observation_space.shape)), envs.single_action_space)
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
    num_iterations = task.total_steps // (NUM_STEPS * task.num_envs)
    observations = flat(envs.reset(seed=task.seed)[0])
    resetting = torch.zeros(task.num_envs)  # 1 if the next step only starts an episode
    for iteration in range(num_iterations):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - iteration / num_iterations)
        steps = []
        for _ in range(NUM_STEPS):
            with torch.no_grad():
                actions = agent.distribution(observations).sample()
                log_probs, _, values = agent.evaluate(observations, actions)
            next_observations, rewards, terminations, truncations, _ = envs.step(
                playable(actions, envs.single_action_space)
            )
            terminated, truncated = torch.as_tensor(terminations).float(), torch.as_tensor(truncations).float()
            rewards = torch.as_tensor(rewards, dtype=torch.float32)
            steps.append((observations, actions, log_probs, values, rewards, terminated, truncated, resetting))
            observations, resetting = flat(next_observations), torch.maximum(terminated, truncated)
        columns = [torch.stack(column) for column in zip(*steps, strict=True)]
        *_, values, rewards, terminated, truncated, skipped = columns
        if not careful:
            terminated, skipped = torch.maximum(terminated, truncated), torch.zeros_like(skipped)
        with torch.no_grad():
            advantages = estimates(
                values, agent.critic(observations).squeeze(1), rewards, terminated, torch.maximum(terminated, truncated)
            )
        update(agent, optimizer, columns[:3], advantages, advantages + values, skipped == 0)
    envs.close()

    def play(batch: Any) -> np.ndarray:
        with torch.no_grad():
            return playable(agent.distribution(flat(batch.observations)).sample(), envs.single_action_space)

    return play


def flat(observations: np.ndarray) -> Tensor:
    """Return observations as float32 rows."""
    return torch.as_tensor(observations, dtype=torch.float32).flatten(1)


def playable(actions: Tensor, action_space: spaces.Space[Any]) -> np.ndarray:
    """Return actions as an array for their space; continuous ones are clipped to its bounds."""
    if isinstance(action_space, spaces.Discrete):
        return actions.numpy()
    return actions.numpy().clip(action_space.low, action_space.high)


def estimates(values: Tensor, last_values: Tensor, rewards: Tensor, terminated: Tensor, ended: Tensor) -> Tensor:
    """Return generalised advantage estimates, (steps, environments).

    terminated: 1 where no further reward could follow. ended: 1 where the next row belongs to another episode. The row
    after an episode's last action observes its final state, so the value of that state is the next row's.
    """
    advantages, next_values, advantage = torch.zeros_like(values), last_values, torch.zeros_like(last_values)
    for step in reversed(range(len(values))):
        delta = rewards[step] + GAMMA * next_values * (1 - terminated[step]) - values[step]
        advantage = delta + GAMMA * GAE_LAMBDA * (1 - ended[step]) * advantage
        advantages[step], next_values = advantage, values[step]
    return advantages


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    decisions: list[Tensor],
    advantages: Tensor,
    returns: Tensor,
    mask: Tensor,
) -> None:
    """Update the agent from the rows whose mask is True, (steps, environments).

    decisions: observations, actions and log-probabilities, (steps, environments, …).
    """
    rows = [column[mask] for column in (*decisions, advantages, returns)]
    for _ in range(NUM_EPOCHS):
        for indices in torch.randperm(len(rows[0])).chunk(NUM_MINIBATCHES):
            observations, actions, old_log_probs, batch_advantages, batch_returns = (column[indices] for column in rows)
            log_probs, entropies, values = agent.evaluate(observations, actions)
            ratios = (log_probs - old_log_probs).exp()
            batch_advantages = (batch_advantages - batch_advantages.mean()) / (batch_advantages.std() + 1e-8)
            objectives = torch.min(ratios * batch_advantages, ratios.clamp(1 - CLIP, 1 + CLIP) * batch_advantages)
            errors = 0.5 * (values - batch_returns).square()
            loss = (VALUE_COEFFICIENT * errors - objectives - ENTROPY_COEFFICIENT * entropies).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
            optimizer.step()
