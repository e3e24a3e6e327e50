"""Your own policy: PPO on an environment of two agents, each of which sees a purse and six offers.

python examples/own_policy.py

A network that uses the structure of its observations and scores each offer with the same few weights learns more from
the same number of steps than one that sees 13 numbers in a row (``--policy default``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from torch import nn

NUM_OFFERS, LENGTH = 6, 16


class Market(ParallelEnv):
    """An environment that pays 1 for the best affordable offer. It shows a purse and the offers: price and quality."""

    metadata = {"name": "market"}
    possible_agents = ["ann", "bob"]

    def __init__(self):
        self.random = np.random.default_rng()

    def observation_space(self, agent):
        return spaces.Dict(
            purse=spaces.Box(0, 1, (1,), np.float32), offers=spaces.Box(0, 1, (NUM_OFFERS, 2), np.float32)
        )

    def action_space(self, agent):
        return spaces.Discrete(NUM_OFFERS)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.time = list(self.possible_agents), 0
        return self.observe(), {agent: {} for agent in self.agents}

    def observe(self):
        self.purses = {agent: self.random.uniform(0.2, 1, 1).astype(np.float32) for agent in self.agents}
        self.offers = {agent: self.random.random((NUM_OFFERS, 2), np.float32) for agent in self.agents}
        return {agent: {"purse": self.purses[agent], "offers": self.offers[agent]} for agent in self.agents}

    def step(self, actions):
        rewards = {}
        for agent, action in actions.items():
            prices, qualities = self.offers[agent].T
            values = np.where(prices <= self.purses[agent], qualities, -1)
            rewards[agent] = float(values[action] == values.max() > 0)
        self.time += 1
        truncations = dict.fromkeys(self.agents, self.time == LENGTH)
        infos = {agent: {} for agent in self.agents}
        result = self.observe(), rewards, dict.fromkeys(self.agents, False), truncations, infos
        self.agents = [agent for agent in self.agents if not truncations[agent]]
        return result


class OfferPolicy(nn.Module):
    """A policy that scores each offer together with the purse; the scores are the logits."""

    def __init__(self, observation_layout, action_space, hidden_size=32):
        super().__init__()
        self.layout = observation_layout
        self.encoder = nn.Sequential(
            nn.Linear(3, hidden_size),
            nn.Tanh(),
            nn.Linear(hidden_size, hidden_size),
            nn.Tanh(),
        )
        self.actor = nn.Linear(hidden_size, 1)
        self.critic = nn.Linear(hidden_size, 1)

    def forward(self, observations, state, action_mask):
        leaves = self.layout.unflatten(observations)  # views of each leaf
        purses = leaves["purse"].unsqueeze(1).expand(-1, NUM_OFFERS, -1)
        inputs = torch.cat([leaves["offers"], purses], dim=2)
        features = self.encoder(inputs)  # (rows, offers, hidden_size)
        logits = self.actor(features).squeeze(2)
        values = self.critic(features.mean(1)).squeeze(1)
        return logits, values, state


if __name__ == "__main__":
    import tyro

    from cleanrl_demo import ppo
    from pufferlib.training.results import summary

    sys.path.insert(0, str(Path(__file__).parent))  # workers import the environment by name
    defaults = {"env": "own_policy:Market", "policy": "own_policy:OfferPolicy", "gamma": 0.0, "learning_rate": 5e-3}
    config = tyro.cli(ppo.Config, default=ppo.Config(**defaults, total_steps=100_000, eval_episodes=100))
    print(summary(config, ppo.train(config)))
