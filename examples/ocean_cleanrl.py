"""PPO as single-file scripts have it, under examination: right, and as it is most often written.

puffer ocean --trainer examples.ocean_cleanrl:train --backend serial
puffer ocean --trainer examples.ocean_cleanrl:train_naive --backend serial

It sees nothing of pufferlib but Gymnasium's vector environments. Those begin an episode in the step after its end: the
row of that step leads from one episode to the next, its action was ignored, and its reward is nobody's. ``train_naive``
learns from it like from any other, and takes an episode that was cut off for one that ended: whatever is done is worth
nothing more. Both are right where episodes only terminate, or where nothing depends on it.
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

from cleanrl_demo.suite.tasks import Cannot, Task
from pufferlib import registry
from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv, SyncVectorEnv

NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 32, 4, 4
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP = 3e-3, 0.99, 0.95, 0.2
ENTROPY_COEFFICIENT, VALUE_COEFFICIENT, MAX_GRAD_NORM = 0.01, 0.5, 0.5


def train(task: Task) -> Callable[[Any], Any]:
    """Train on a task with care for how episodes end, and return what plays."""
    return learn(task, careful=True)


def train_naive(task: Task) -> Callable[[Any], Any]:
    """Train on a task as if done were done, and return what plays."""
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

    def judge(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values, (rows,) each."""
        distribution = self.distribution(observations)
        log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
        if not self.discrete:
            log_probs, entropies = log_probs.sum(1), entropies.sum(1)
        return log_probs, entropies, self.critic(observations).squeeze(1)


def network(num_inputs: int, num_outputs: int, last_gain: float) -> nn.Sequential:
    sizes, gains = (num_inputs, 64, 64, num_outputs), (2**0.5, 2**0.5, last_gain)
    layers: list[nn.Module] = []
    for before, after, gain in zip(sizes[:-1], sizes[1:], gains, strict=True):
        linear = nn.Linear(before, after)
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def make_envs(task: Task) -> Any:
    """Return the environments of a task as Gymnasium has them. Raises Cannot for spaces that this script has not."""
    with task.make(num_envs=1, batch_size=1) as vec:
        if vec.agents_per_env > 1:
            raise Cannot(f"this script learns one agent an environment, and {task.env} has several")
        if len(vec.observation_layout.leaves) > 1 or not isinstance(
            vec.single_action_space, (spaces.Discrete, spaces.Box)
        ):
            raise Cannot(f"this script has no nested spaces and no actions of several parts, as {task.env} has")
    make = registry.creator(task.env)
    if task.backend == "serial":
        return SyncVectorEnv([make] * task.num_envs)
    return AsyncVectorEnv([make] * task.num_envs, max_concurrency=os.cpu_count())


def learn(task: Task, careful: bool) -> Callable[[Any], Any]:
    """Train on a task. careful: bootstrap where an episode was cut off, and leave out the rows between episodes."""
    torch.set_num_threads(1)  # networks so small are slower with more
    torch.manual_seed(task.seed)
    envs = make_envs(task)
    agent = Agent(int(np.prod(envs.single_observation_space.shape)), envs.single_action_space)
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
    num_iterations = task.total_steps // (NUM_STEPS * task.num_envs)
    seen = flat(envs.reset(seed=task.seed)[0])
    between = torch.zeros(task.num_envs)  # 1 where the next step only begins an episode
    for iteration in range(num_iterations):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - iteration / num_iterations)
        steps = []
        for _ in range(NUM_STEPS):
            with torch.no_grad():
                actions = agent.distribution(seen).sample()
                log_probs, _, values = agent.judge(seen, actions)
            after, rewards, terminations, truncations, _ = envs.step(playable(actions, envs.single_action_space))
            ended, cut = torch.as_tensor(terminations).float(), torch.as_tensor(truncations).float()
            rewards = torch.as_tensor(rewards, dtype=torch.float32)
            steps.append((seen, actions, log_probs, values, rewards, ended, cut, between))
            seen, between = flat(after), torch.maximum(ended, cut)
        columns = [torch.stack(column) for column in zip(*steps, strict=True)]
        *_, values, rewards, ended, cut, skipped = columns
        if not careful:
            ended, skipped = torch.maximum(ended, cut), torch.zeros_like(skipped)
        with torch.no_grad():
            advantages = estimates(values, agent.critic(seen).squeeze(1), rewards, ended, torch.maximum(ended, cut))
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
    """Return actions as their space has them; numbers out of its bounds are clipped."""
    if isinstance(action_space, spaces.Discrete):
        return actions.numpy()
    return actions.numpy().clip(action_space.low, action_space.high)


def estimates(values: Tensor, last_values: Tensor, rewards: Tensor, ended: Tensor, over: Tensor) -> Tensor:
    """Return generalised advantage estimates, (steps, environments).

    ended: 1 where nothing more was to be had. over: 1 where the next row is of another episode. What follows on the
    last row of an episode is its final observation, so that its value is the next row's.
    """
    advantages, next_values, advantage = torch.zeros_like(values), last_values, torch.zeros_like(last_values)
    for step in reversed(range(len(values))):
        delta = rewards[step] + GAMMA * next_values * (1 - ended[step]) - values[step]
        advantage = delta + GAMMA * GAE_LAMBDA * (1 - over[step]) * advantage
        advantages[step], next_values = advantage, values[step]
    return advantages


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    played: list[Tensor],
    advantages: Tensor,
    returns: Tensor,
    counted: Tensor,
) -> None:
    """Learn from the rows that count. played: observations, actions and log-probabilities, (steps, environments, …)."""
    rows = [column[counted] for column in (*played, advantages, returns)]
    for _ in range(NUM_EPOCHS):
        for chosen in torch.randperm(len(rows[0])).chunk(NUM_MINIBATCHES):
            seen, actions, old_log_probs, gains, aims = (column[chosen] for column in rows)
            log_probs, entropies, values = agent.judge(seen, actions)
            ratios = (log_probs - old_log_probs).exp()
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            gained = torch.min(ratios * gains, ratios.clamp(1 - CLIP, 1 + CLIP) * gains)
            errors = 0.5 * (values - aims).square()
            loss = (VALUE_COEFFICIENT * errors - gained - ENTROPY_COEFFICIENT * entropies).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
            optimizer.step()
