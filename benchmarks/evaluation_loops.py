"""Environments of known durations, and the loops with which others evaluate policies, for ``benchmarks.evaluation``.

All loops play the actions of a table, one row per step, so that an episode depends on its seed alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

import pufferlib

__all__ = [
    "LENGTHS",
    "Played",
    "Sleeping",
    "action_table",
    "game",
    "gymnasium_lockstep",
    "rounds",
    "send_and_recv",
    "stable_baselines",
]

MEAN = 100  # steps of an episode
NUM_ACTIONS = 1024  # in a table
# Draws of an episode's length: the mean of each is MEAN.
LENGTHS: dict[str, Callable[[np.random.Generator], float]] = {
    "exponential": lambda rng: rng.exponential(MEAN),
    "lognormal": lambda rng: rng.lognormal(np.log(MEAN) - 0.5, 1.0),
    "half and half": lambda rng: (0.2, 1.8)[int(rng.integers(2))] * MEAN,
}


class Sleeping(gymnasium.Env[Any, Any]):
    """Sleeps in each step of an episode, whose length is drawn at its reset.

    The last info has the time of the reset (begun_s) and that which the steps took (busy_s), and every info the number
    of the process (pid).
    """

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, lengths: str, sleep_s: float) -> None:
        self._draw, self._sleep_s = LENGTHS[lengths], sleep_s

    @classmethod
    def of(cls, lengths: str, sleep_s: float = 1e-3) -> Callable[[], Sleeping]:
        """Return a creator. lengths: a name in LENGTHS. sleep_s: the seconds of a step."""
        return partial(cls, lengths, sleep_s)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left, self._busy_s = max(1, round(self._draw(self.np_random))), 0.0
        self._begun_s = time.perf_counter()
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        start_s = time.perf_counter()
        if self._sleep_s:
            time.sleep(self._sleep_s)
        self._left -= 1
        self._busy_s += time.perf_counter() - start_s
        info = {"pid": os.getpid(), **({} if self._left else {"begun_s": self._begun_s, "busy_s": self._busy_s})}
        return np.zeros(4, np.float32), 1.0, self._left == 0, False, info


def game(name: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return a creator of a game, by its Gymnasium id; of MiniGrid's, with the image as the observation."""
    return partial(_game, name)


def _game(name: str) -> gymnasium.Env[Any, Any]:
    if name.startswith("MiniGrid"):
        from minigrid.wrappers import ImgObsWrapper

        return ImgObsWrapper(gymnasium.make(name))  # type: ignore[no-untyped-call]
    if name.startswith("ALE"):
        import ale_py

        gymnasium.register_envs(ale_py)
    return gymnasium.make(name)


def action_table(creator: Callable[[], Any]) -> np.ndarray:
    """Return the actions of the steps of every episode, (NUM_ACTIONS, …), drawn once."""
    env = creator()
    env.action_space.seed(1)
    actions = np.array([env.action_space.sample() for _ in range(NUM_ACTIONS)])
    env.close()
    return actions


class Played(NamedTuple):
    """The wall time of a loop, without making environments, and the episodes' lengths in order of their beginnings."""

    wall_s: float
    lengths: list[int]


def send_and_recv(creator: Any, seeds: Sequence[int], num_envs: int, num_workers: int) -> Played:
    """Step a pool until as many episodes have ended as there are seeds: what is left without dealing episodes.

    Environments reset themselves, and all play action 0. Of the lengths there is only the sum.
    """
    actions, num_steps, num_ended = np.zeros(1, np.int64), 0, 0
    plan: dict[str, Any] = {"num_envs": num_envs, "num_workers": num_workers, "batch_size": 1, "seed": int(seeds[0])}
    with pufferlib.make(creator, backend="pool", **plan) as vec:
        start_s = time.perf_counter()
        vec.async_reset()
        while num_ended < len(seeds):
            batch = vec.recv()
            num_steps += bool(batch.masks[0])
            num_ended += bool(batch.terminations[0] or batch.truncations[0])
            vec.send(actions)
        return Played(time.perf_counter() - start_s, [num_steps])


def gymnasium_lockstep(creator: Any, actions: np.ndarray, seeds: Sequence[int], num_envs: int) -> Played:
    """Play a fixed share of the episodes in each environment, which Gymnasium steps together and resets by itself.

    Only the first episode of each has its seed from the list; the others go on with the environment's generator.
    """
    envs = AsyncVectorEnv([creator] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    try:
        start_s = time.perf_counter()
        envs.reset(seed=[int(seed) for seed in seeds[:num_envs]])
        steps, lengths = np.zeros(num_envs, np.int64), [list[int]() for _ in range(num_envs)]
        resetting = np.zeros(num_envs, np.bool_)
        share = -(-len(seeds) // num_envs)
        while min(map(len, lengths)) < share:
            _, _, terminations, truncations, _ = envs.step(actions[steps % len(actions)])
            steps = np.where(resetting, 0, steps + 1)
            resetting = terminations | truncations
            for index in np.flatnonzero(resetting).tolist():
                lengths[index].append(int(steps[index]))
        return Played(time.perf_counter() - start_s, _in_turns([of_env[:share] for of_env in lengths]))
    finally:
        envs.close()


def rounds(creator: Any, actions: np.ndarray, seeds: Sequence[int], num_envs: int) -> Played:
    """Play rounds of one episode in each environment, each until the longest has ended, as lerobot-eval does.

    Environments whose episode has ended are stepped on, and what they do is ignored.
    """
    envs = AsyncVectorEnv([creator] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    try:
        start_s, lengths = time.perf_counter(), list[int]()
        for first in range(0, len(seeds), num_envs):
            chunk: list[int | None] = [int(seed) for seed in seeds[first : first + num_envs]]
            envs.reset(seed=chunk + [0] * (num_envs - len(chunk)))
            ended, step = np.zeros(num_envs, np.int64), 0
            ended[len(chunk) :] = -1
            while not ended.all():
                _, _, terminations, truncations, _ = envs.step(np.stack([actions[step % len(actions)]] * num_envs))
                step += 1
                ended = np.where((ended == 0) & (terminations | truncations), step, ended)
            lengths += ended[: len(chunk)].tolist()
        return Played(time.perf_counter() - start_s, lengths)
    finally:
        envs.close()


def stable_baselines(creator: Any, actions: np.ndarray, seeds: Sequence[int], num_envs: int) -> Played:
    """Play a fixed share of the episodes in each environment with Stable-Baselines3's ``evaluate_policy``.

    Environment i has the first seed plus i; later episodes go on with its generator.
    """
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import SubprocVecEnv

    class Model:
        def predict(
            self, observations: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
        ) -> tuple[Any, Any]:
            steps = np.where(episode_start, 0, 0 if state is None else state)
            return actions[steps % len(actions)], steps + 1

    envs = SubprocVecEnv([creator] * num_envs, start_method="fork")
    try:
        envs.seed(int(seeds[0]))
        start_s = time.perf_counter()
        _, lengths = evaluate_policy(
            Model(),
            envs,
            n_eval_episodes=len(seeds),
            return_episode_rewards=True,
            warn=False,
        )
        assert isinstance(lengths, list)
        return Played(time.perf_counter() - start_s, [int(length) for length in lengths])
    finally:
        envs.close()


def _in_turns(lengths: Sequence[Sequence[int]]) -> list[int]:
    """Return the lengths of all environments' first episodes, then of their second ones, and so on."""
    return [length for row in zip(*lengths, strict=True) for length in row]
