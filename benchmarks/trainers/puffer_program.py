"""Train one of three environments with PuffeRL, by the interface of PufferLib 3 alone; print the mean return as JSON.

    python puffer_program.py ENVIRONMENT SEED STEPS

The same program runs with PufferLib 3.0.0 and with this project, each in a virtual environment of its own. The mean is
that of the episodes in the last quarter of the training.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import torch
from gymnasium import spaces

arguments, sys.argv = sys.argv[1:], sys.argv[:1]  # load_config reads the rest
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the trainer prints goes to standard error

import pufferlib  # noqa: E402
import pufferlib.emulation  # noqa: E402
import pufferlib.models  # noqa: E402
import pufferlib.vector  # noqa: E402
from pufferlib import pufferl  # noqa: E402


class Team(pettingzoo.ParallelEnv):  # type: ignore[misc]
    """Three agents that each see a cue and have to answer with its number, for eight steps."""

    metadata = {"name": "team", "render_modes": []}
    render_mode = None
    num_cues, num_steps = 4, 8

    def __init__(self) -> None:
        self.possible_agents = ["a", "b", "c"]
        self.agents: list[str] = []
        self.generator = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (self.num_cues,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(self.num_cues)

    def observations(self) -> dict[str, Any]:
        self.cues = {agent: self.generator.integers(self.num_cues) for agent in self.possible_agents}
        return {agent: np.eye(self.num_cues, dtype=np.float32)[cue] for agent, cue in self.cues.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.agents, self.tick = list(self.possible_agents), 0
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        rewards = {agent: float(actions[agent] == cue) for agent, cue in self.cues.items()}
        over = dict.fromkeys(self.possible_agents, self.tick == self.num_steps)
        observations = self.observations()
        infos: dict[str, Any] = {agent: {} for agent in self.possible_agents}
        if self.tick == self.num_steps:
            self.agents = []
        return observations, rewards, over, dict.fromkeys(self.possible_agents, False), infos


class Recall(pufferlib.PufferEnv):  # type: ignore[misc, name-defined]
    """Eight agents that see a bit, then four times nothing, and are rewarded if their last action is the bit."""

    num_blanks = 4

    def __init__(self, buf: Any = None, seed: int = 0) -> None:
        self.single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 8
        super().__init__(buf)
        self.generator = np.random.default_rng(seed)

    def begin(self) -> None:
        self.bits = self.generator.integers(2, size=self.num_agents)
        self.tick = 0
        self.observations[:, 0], self.observations[:, 1] = 2 * self.bits - 1, 0

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.begin()
        return self.observations, []

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.rewards[:], self.terminals[:], infos = 0, False, []
        self.observations[:, 0], self.observations[:, 1] = 0, self.tick == self.num_blanks
        if self.tick > self.num_blanks:
            self.rewards[:] = np.asarray(actions).reshape(-1) == self.bits
            self.terminals[:] = True
            infos = [{"episode_return": float(self.rewards.mean())}]
            self.begin()
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def close(self) -> None:
        pass


def cartpole(buf: Any = None, seed: int = 0) -> Any:
    env = pufferlib.EpisodeStats(gymnasium.make("CartPole-v1"))
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


def team(buf: Any = None, seed: int = 0) -> Any:
    env = pufferlib.MultiagentEpisodeStats(Team())
    return pufferlib.emulation.PettingZooPufferEnv(env=env, buf=buf, seed=seed)


# Environment: its creator, the arguments of vector.make, and settings of the trainer.
POOL = {"backend": "Multiprocessing", "num_envs": 8, "num_workers": 2, "batch_size": 4, "overwork": True}
TASKS: dict[str, Any] = {
    "cartpole": (cartpole, POOL, {"bptt_horizon": 64, "minibatch_size": 256, "learning_rate": 0.003}),
    "team": (team, {"backend": "Serial", "num_envs": 8}, {"bptt_horizon": 16, "minibatch_size": 192}),
    "recall": (Recall, {"backend": "Serial", "num_envs": 4}, {"bptt_horizon": 20, "minibatch_size": 320}),
}


def main() -> None:
    name, seed, steps = arguments[0], int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    creator, plan, settings = TASKS[name]
    vecenv = pufferlib.vector.make(creator, **plan)
    policy = pufferlib.models.Default(vecenv.driver_env, hidden_size=64)
    recurrent = name == "recall"
    if recurrent:
        policy = pufferlib.models.LSTMWrapper(vecenv.driver_env, policy, input_size=64, hidden_size=64)
    with tempfile.TemporaryDirectory() as folder:
        train = pufferl.load_config("default")["train"]
        train.update(env=name, seed=seed, device="cpu", optimizer="adam", use_rnn=recurrent, data_dir=folder)
        train.update({"batch_size": "auto", "update_epochs": 4, "learning_rate": 0.005, "total_timesteps": steps})
        train.update(settings)
        trainer = pufferl.PuffeRL(train, vecenv, policy)
        start_s, returns, lengths = time.perf_counter(), [], {}
        while trainer.global_step < steps:
            trainer.evaluate()
            late = trainer.global_step > 0.75 * steps
            for key, values in trainer.stats.items():
                if key.endswith("episode_return"):
                    new = values[lengths.get(key, 0) :] if len(values) >= lengths.get(key, 0) else values
                    returns += [float(value) for value in new] if late else []
            trainer.train()  # a log empties the lists
            lengths = {key: len(values) for key, values in trainer.stats.items()}
        seconds = time.perf_counter() - start_s
        trainer.close()
    result = {"mean_return": float(np.mean(returns)), "episodes": len(returns), "seconds": seconds}
    print(json.dumps({**result, "steps": int(trainer.global_step)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
