"""Train with PPO in the style of CleanRL, one script over Gymnasium's vector environments.

Options: vectorizer, sync or async; curve, "seconds" to record returns over seconds. The value of a truncated episode's
last observation is added to its last reward.
Source: Schulman et al., arXiv:1707.06347 and arXiv:1506.02438.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical
from trainers.contestant import ENVS, Outcome, print_result, read_task
from trainers.network import Agent, features
from trainers.settings import Settings


def make(settings: Settings, vectorizer: str) -> VectorEnv[Any, Any, Any]:
    """Return the vector environment, which resets finished environments within the same step."""
    creators = [ENVS[settings.env]] * settings.num_envs
    kind = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[vectorizer]
    return RecordEpisodeStatistics(kind(creators, autoreset_mode=AutoresetMode.SAME_STEP))


def learn(
    env: VectorEnv[Any, Any, Any], agent: Agent, optimizer: torch.optim.Optimizer, settings: Settings
) -> tuple[int, list[tuple[float, float]]]:
    """Train for at least ``total_steps`` steps; return their number, and the curve.

    The curve has seconds and the mean return of the last hundred episodes, after each rollout.
    """
    began, points, latest = time.perf_counter(), list[tuple[float, float]](), deque[float](maxlen=100)
    length, num_envs = settings.rollout_length, settings.num_envs
    space = env.single_observation_space
    dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
    observations = torch.zeros((length, num_envs, *space.shape), dtype=dtype)
    actions = torch.zeros((length, num_envs), dtype=torch.int64)
    log_probs, rewards, ends, values = (torch.zeros((length, num_envs)) for _ in range(4))
    num_steps = 0
    observation = torch.as_tensor(env.reset(seed=settings.seed)[0])
    while num_steps < settings.total_steps:
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - num_steps / settings.total_steps)
        for step in range(length):
            observations[step] = observation
            with torch.no_grad():
                inputs = features(observation)
                distribution = Categorical(logits=agent.actor(inputs), validate_args=False)
                actions[step] = distribution.sample()
                log_probs[step] = distribution.log_prob(actions[step])
                values[step] = agent.critic(inputs).squeeze(1)
            next_observation, reward, terminations, truncations, infos = env.step(actions[step].numpy())
            rewards[step] = torch.as_tensor(reward)
            ends[step] = torch.as_tensor(terminations | truncations)
            if "episode" in infos:
                latest.extend(infos["episode"]["r"][infos["_episode"]])
            cut = truncations & ~terminations
            if cut.any():
                last = torch.as_tensor(np.stack(list(infos["final_obs"][cut])))
                with torch.no_grad():
                    promised = agent.critic(features(last)).squeeze(1)
                rewards[step, torch.as_tensor(cut)] += settings.gamma * promised
            observation = torch.as_tensor(next_observation)
        num_steps += length * num_envs
        if latest:
            points.append((time.perf_counter() - began, float(np.mean(latest))))

        with torch.no_grad():
            next_value = agent.critic(features(observation)).squeeze(1)
        advantages = torch.zeros_like(rewards)
        advantage = torch.zeros(num_envs)
        for step in reversed(range(length)):
            going_on = 1 - ends[step]
            delta = rewards[step] + settings.gamma * going_on * next_value - values[step]
            advantage = delta + settings.gamma * settings.gae_lambda * going_on * advantage
            advantages[step], next_value = advantage, values[step]
        returns = advantages + values
        flat = [column.flatten(0, 1) for column in (observations, actions, log_probs, advantages, returns)]
        for _ in range(settings.num_epochs):
            for rows in torch.randperm(length * num_envs).split(settings.minibatch_size):
                loss = loss_of(agent, settings, *(column[rows] for column in flat))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
                optimizer.step()
    return num_steps, points


def loss_of(
    agent: Agent,
    settings: Settings,
    observations: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
) -> Tensor:
    """Return PPO's loss on a minibatch."""
    inputs = features(observations)
    distribution = Categorical(logits=agent.actor(inputs), validate_args=False)
    ratios = (distribution.log_prob(actions) - old_log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratios.clamp(1 - settings.clip, 1 + settings.clip)
    policy_loss = -torch.min(ratios * advantages, clipped * advantages).mean()
    value_loss = 0.5 * (agent.critic(inputs).squeeze(1) - returns).square().mean()
    entropy = distribution.entropy().mean()
    return policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy


def evaluate(env: VectorEnv[Any, Any, Any], agent: Agent, settings: Settings) -> float:
    """Return the mean return of ``eval_episodes`` episodes, shared equally among the environments."""
    share, rest = divmod(settings.eval_episodes, settings.num_envs)
    remaining = share + (np.arange(settings.num_envs) < rest)
    returns: list[float] = []
    running = np.zeros(settings.num_envs)
    observation, _ = env.reset(seed=settings.seed + 1_000_000)
    while remaining.any():
        with torch.no_grad():
            logits = agent.actor(features(torch.as_tensor(observation)))
        actions = Categorical(logits=logits, validate_args=False).sample().numpy()
        observation, rewards, terminations, truncations, _ = env.step(actions)
        running += rewards
        over = terminations | truncations
        returns += running[over & (remaining > 0)].tolist()
        remaining[over & (remaining > 0)] -= 1
        running[over] = 0
    return float(np.mean(returns))


def main() -> None:
    settings, options, launched = read_task()
    torch.manual_seed(settings.seed)
    env = make(settings, options["vectorizer"])
    agent = Agent(env.single_observation_space, env.single_action_space.n, settings)
    optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5)
    began = time.time()
    num_steps, points = learn(env, agent, optimizer, settings)
    ended = time.time()
    num_parameters = sum(part.numel() for part in agent.parameters())
    final_return = evaluate(env, agent, settings)
    curve = points if options.get("curve") else ()
    print_result(Outcome(began, ended, num_steps, num_parameters, final_return, {}, curve), settings, launched)
    env.close()


if __name__ == "__main__":
    main()
