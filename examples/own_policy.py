"""A policy of one's own: PPO on an environment of two agents, each of which sees a purse and six offers.

python examples/own_policy.py

A network that reads the structure of its observations and scores every offer by the same few weights learns more from
the same steps than one that sees 13 numbers in a row (``--policy default``).
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
    """Pays 1 for the best offer that a buyer can afford. Observes purse and offers: price and quality, from 0 to 1."""

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
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self):
        self.purses = {agent: self.random.uniform(0.2, 1, 1).astype(np.float32) for agent in self.agents}
        self.offers = {agent: self.random.random((NUM_OFFERS, 2), np.float32) for agent in self.agents}
        return {agent: {"purse": self.purses[agent], "offers": self.offers[agent]} for agent in self.agents}

    def step(self, actions):
        rewards = {}
        for agent, action in actions.items():
            prices, qualities = self.offers[agent].T
            worth = np.where(prices <= self.purses[agent], qualities, -1)
            rewards[agent] = float(worth[action] == worth.max() > 0)
        self.time += 1
        over = dict.fromkeys(self.agents, self.time == LENGTH)
        infos = {agent: {} for agent in self.agents}
        result = self.seen(), rewards, dict.fromkeys(self.agents, False), over, infos
        self.agents = [agent for agent in self.agents if not over[agent]]
        return result


class OfferPolicy(nn.Module):
    """Scores each offer beside the purse, and chooses among the scores."""

    def __init__(self, observation_layout, action_space, hidden_size=32):
        super().__init__()
        self.layout = observation_layout
        self.judge = nn.Sequential(nn.Linear(3, hidden_size), nn.Tanh(), nn.Linear(hidden_size, hidden_size), nn.Tanh())
        self.choose, self.value = nn.Linear(hidden_size, 1), nn.Linear(hidden_size, 1)

    def forward(self, observations, state, action_mask):
        seen = self.layout.unflatten(observations)  # views, in the structure that the environment has
        purses = seen["purse"].unsqueeze(1).expand(-1, NUM_OFFERS, -1)
        judged = self.judge(torch.cat([seen["offers"], purses], dim=2))  # (rows, offers, hidden_size)
        return self.choose(judged).squeeze(2), self.value(judged.mean(1)).squeeze(1), state


if __name__ == "__main__":
    import tyro

    from cleanrl_demo import ppo
    from cleanrl_demo.results import summary

    sys.path.insert(0, str(Path(__file__).parent))  # where workers find the environment by name
    mine = {"env": "own_policy:Market", "policy": "own_policy:OfferPolicy", "gamma": 0.0, "learning_rate": 5e-3}
    config = tyro.cli(ppo.Config, default=ppo.Config(**mine, total_steps=100_000, eval_episodes=100))
    print(summary(config, ppo.train(config)))
