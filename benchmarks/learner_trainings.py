"""Whole trainings with the compiled learner, next to torch and Stable-Baselines3: the parts of learner.py that train.

All sides of a comparison have environments of the same rules, the same networks, epochs and minibatches, and train in
turns, seed by seed, on one thread. ``pufferlib.evaluate`` plays the learnt policies.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium

import pufferlib
from benchmarks.ratios import MedianRange, ratios
from cleanrl_demo import ppo, ppo_fused
from ocean.suite.tasks import tasks
from pufferlib.training.schedules import rate_at

__all__ = ["Entries", "measure_cartpole", "measure_ocean", "measure_vectorizers", "seconds_of"]

Entry = dict[str, float]
Entries = dict[str, list[Entry]]  # of each side, one per seed

CARTPOLE: dict[str, Any] = {
    "env": "classic/cartpole",
    "total_steps": 70_000,
    "num_epochs": 6,
    "learning_rate": 2e-3,
    "gamma": 0.98,
    "gae_lambda": 0.9,
    "entropy_coefficient": 0.0,
    "eval_episodes": 1,
    "runs": None,
}
FUSED = {"num_envs": 32, "rollout_length": 64, "minibatch_size": 128}
EAGER = {"backend": "serial", "num_envs": 32, "rollout_length": 64, "num_minibatches": 16}
SLEEPS = {"ocean/identity"}
# One setting for ppo and Stable-Baselines3: rollouts of 2,048 rows, minibatches of 512.
VECTORIZED: dict[str, Any] = {
    "backend": "serial",
    "num_envs": 8,
    "rollout_length": 256,
    "num_minibatches": 4,
    "num_epochs": 5,
    "schedule": "constant",
    "entropy_coefficient": 0.0,
    "eval_episodes": 1,
    "runs": None,
}
# Settings of our sides. "workers": two step one half of the environments while the policy chooses for the other half.
OURS: dict[str, dict[str, Any]] = {
    "torch": {"learner": "torch"},
    "fused": {"learner": "fused"},
    "workers": {"learner": "fused", "backend": "pool", "num_workers": 2, "batch_size": 4},
}
REQUIRED = {
    "CartPole-v1": (),
    "Pendulum-v1": (),
    "LunarLander-v3": ("Box2D",),
    "HalfCheetah-v5": ("mujoco", "imageio"),  # gymnasium[mujoco]
}


def timed(train: Callable[[], tuple[float, Any]], env: str, num_episodes: int, greedy: bool = False) -> Entry:
    """Train, and evaluate what ``train`` returns: the seconds of training alone, and a policy."""
    cpu_s = cpu_seconds()
    seconds, policy = train()
    cpu_s = cpu_seconds() - cpu_s
    returns = pufferlib.evaluate(env, policy, episodes=num_episodes, greedy=greedy, backend="serial").returns
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "mean_return": float(returns.mean()),
        "least_return": float(returns.min()),
    }


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the children that have ended, such as workers of a closed pool."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure_cartpole(seeds: Sequence[int], num_others: int) -> Entries:
    """Train on the kernel with ppo_fused with each seed, and with ppo on the first ones.

    With these also train Stable-Baselines3 on Gymnasium's CartPole, with the same settings, if it is installed.
    """
    entries: Entries = {"fused": [], "ppo": []} | ({"sb3": []} if find_spec("stable_baselines3") is not None else {})
    for index, seed in enumerate(seeds):
        settings = {**CARTPOLE, "seed": seed}
        sides = {
            "fused": training(ppo_fused, settings | FUSED),
            "ppo": training(ppo, settings | EAGER),
            "sb3": by_sb3(settings | EAGER | {"env": "CartPole-v1"}),
        }
        for name in entries if index < num_others else ("fused",):
            entry = timed(sides[name], "CartPole-v1", 100, greedy=True)
            entries[name].append(entry)
            returns = f"return {entry['mean_return']:.1f}, least {entry['least_return']:.0f}"
            print(f"{name} seed {seed}: {entry['seconds']:.2f} s, {returns}", flush=True)
    return entries


def training(trainer: Any, settings: Mapping[str, Any]) -> Callable[[], tuple[float, Any]]:
    """Return a function that trains with a trainer of cleanrl_demo."""

    def train() -> tuple[float, Any]:
        result = trainer.train(trainer.Config(**settings))
        return result.seconds, result.actor

    return train


def measure_ocean(seeds: Sequence[int], envs: Sequence[str] = ()) -> dict[str, Entries]:
    """Train ppo with both learners on Ocean's environments that need no memory and do not sleep, one after another."""
    results: dict[str, Entries] = {}
    for task in tasks(envs, backends=("serial",)):
        if task.needs_memory or task.env in SLEEPS:
            continue
        settings = {**task.settings, "backend": "serial", "runs": None}
        entries = results[task.env] = {"torch": [], "fused": []}
        for number, seed in enumerate(seeds):
            for learner in [*entries][:: 1 if number % 2 else -1]:
                cpu_s = time.process_time()
                result = ppo.train(ppo.Config(**{**settings, "seed": seed, "learner": learner, "eval_episodes": 1000}))
                cpu_s = time.process_time() - cpu_s
                entries[learner].append({"seconds": result.seconds, "cpu_s": cpu_s, "score": result.score or 0.0})
        scores = ", ".join(f"{name} {min(part['score'] for part in parts):.3f}" for name, parts in entries.items())
        print(f"{task.env}: {faster(entries)}; least score {scores}, bar {task.bar}", flush=True)
    sums = {
        name: sum(statistics.median(seconds_of(part[name])) for part in results.values()) for name in ("torch", "fused")
    }
    print(f"Ocean in all: {sums['fused']:.1f} s, {sums['fused'] / sums['torch']:.2f} of torch's", flush=True)
    return results


def measure_vectorizers(seeds: Sequence[int], total_steps: int) -> dict[str, Entries]:
    """Train ppo with both learners, and Stable-Baselines3 over DummyVecEnv, at one setting.

    ppo trains over Serial and, with the fused learner, also over a pool ("workers"). Beside them ("bare"), one
    environment takes as many steps with random actions. Leaves out Stable-Baselines3, and environments, that are not
    installed.
    """
    results: dict[str, Entries] = {}
    for env in (env for env, packages in REQUIRED.items() if all(map(find_spec, packages))):
        entries: Entries = {name: [] for name in OURS}
        results[env] = entries
        if find_spec("stable_baselines3") is not None:
            entries["sb3"] = []
        sides = [*entries]
        for number, seed in enumerate(seeds):
            for name in sides[:: 1 if number % 2 else -1]:
                settings = {**VECTORIZED, "env": env, "seed": seed, "total_steps": total_steps}
                train = by_sb3(settings) if name == "sb3" else training(ppo, {**settings, **OURS[name]})
                entries[name].append(timed(train, env, 50))
            entries.setdefault("bare", []).append(bare(env, seed, total_steps))
        returns = ", ".join(
            f"{name} {statistics.mean(entry['mean_return'] for entry in parts):.0f}"
            for name, parts in entries.items()
            if name != "bare"
        )
        sb3 = (
            f", {MedianRange.of(ratios(seconds_of(entries['sb3']), seconds_of(entries['fused']))):.2f} x sb3"
            if "sb3" in entries
            else ""
        )
        print(f"{env}: {faster(entries)}{sb3}; mean return {returns}", flush=True)
    return results


def rate_of_sb3(config: ppo.Config, left: float) -> float:
    """Return the learning rate of ``ppo`` for an update of Stable-Baselines3.

    left: the share of the steps that is left after the update's rollout, as Stable-Baselines3 passes it; below 0 if the
    last rollout goes beyond them. ``ppo`` takes the rate at the rollout's begin.
    """
    num_steps = round((1 - left) * config.total_steps) - config.num_envs * config.rollout_length
    return rate_at(config.schedule, config.learning_rate, max(0, num_steps), config.total_steps)


def bare(env: str, seed: int, num_steps: int) -> Entry:
    """Return the seconds that an environment takes for steps with random actions, and resets."""
    game = gymnasium.make(env)
    game.reset(seed=seed)
    game.action_space.seed(seed)
    actions = [game.action_space.sample() for _ in range(1000)]
    began, cpu_s = time.perf_counter(), time.process_time()
    for step in range(num_steps):
        *_, terminated, truncated, _ = game.step(actions[step % 1000])
        if terminated or truncated:
            game.reset()
    entry = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_s}
    game.close()
    return entry


def by_sb3(settings: Mapping[str, Any]) -> Callable[[], tuple[float, Any]]:
    """Return a function that trains with Stable-Baselines3's PPO over DummyVecEnv, with settings of ``ppo``."""
    config = ppo.Config(**settings)

    def train() -> tuple[float, Any]:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env

        model = PPO(
            "MlpPolicy",
            # By default make_vec_env asks for pictures, for which LunarLander computes particles in each step.
            make_vec_env(config.env, config.num_envs, config.seed, env_kwargs={"render_mode": None}),
            learning_rate=partial(rate_of_sb3, config),
            n_steps=config.rollout_length,
            batch_size=config.num_envs * config.rollout_length // config.num_minibatches,
            n_epochs=config.num_epochs,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            clip_range=config.clip,
            ent_coef=config.entropy_coefficient,
            vf_coef=config.value_coefficient / 2,  # its value loss is not halved
            max_grad_norm=config.max_grad_norm,
            seed=config.seed,
            device="cpu",
        )
        began = time.perf_counter()
        model.learn(config.total_steps)
        return time.perf_counter() - began, model

    return train


def seconds_of(entries: Sequence[Entry]) -> list[float]:
    """Return the seconds of training with each seed."""
    return [entry["seconds"] for entry in entries]


def faster(entries: Entries) -> str:
    """Return in words how fast the compiled learner trained."""
    times = MedianRange.of(ratios(seconds_of(entries["torch"]), seconds_of(entries["fused"])))
    return f"fused {statistics.median(seconds_of(entries['fused'])):.2f} s, {times:.2f} x torch"
