"""Compare SAC and TD3 with Stable-Baselines3's at equal steps, updates, networks and minibatches.

    python -m benchmarks.off_policy [--only pendulum-sac …] [--seeds 1 2 3] [--short] [--speed] [--page]

Both sides train with the same settings (TASKS), one update for each step after ``learning_starts``, one after another,
on one thread. Then each policy plays EPISODES fresh episodes without noise. ``met``: our mean over seeds is not below
the lower end of the 95 % interval of theirs, by Student's t. They differ in this: numbers without bounds, or
with bounds beyond -10 to 10, are on a logarithmic scale on our side, and SB3 halves the critics' loss, which Adam
undoes. Tasks of packages that are not installed are left out. Runs that the results hold already, with the same
settings, are skipped, so a stopped run can continue: all take about eleven hours of a core.

--speed compares the steps per second of SAC at one update a step, in turns: with environments whose steps cost nothing,
and with steps of 10 ms, during which a pool learns. --short tries both with few steps, and stores nothing. Writes
benchmarks/results/off_policy.json after each run, then the tables of docs/training.md; --page writes only these.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_limits

import pufferlib
from benchmarks.lines import by_task, table_text, ungrouped
from benchmarks.pages import fill, table, write_page
from benchmarks.ratios import MeanInterval, MedianRange, ratios
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

__all__ = ["PAGE", "RESULT", "TASKS", "sections", "store", "stored"]

FOLDER = Path(__file__).parent
RESULT = FOLDER / "results" / "off_policy.json"
PAGE = FOLDER.parent / "docs" / "training.md"
OURS, SB3 = "ours", "sb3"
EPISODES = 50
PENDULUM = {"env": "Pendulum-v1", "total_steps": 10_000, "learning_rate": 1e-3, "seeds": (1, 2, 3, 4, 5)}
LONG = {"total_steps": 100_000, "learning_starts": 10_000, "seeds": (1, 2, 3)}
WIDE = (400, 300)
# Each task's algorithm and settings; those of RL Baselines3 Zoo, with an earlier start of TD3 on Pendulum.
TASKS: dict[str, dict[str, Any]] = {
    "pendulum-sac": {**PENDULUM, "algorithm": "sac", "learning_starts": 100},
    "pendulum-td3": {**PENDULUM, "algorithm": "td3", "learning_starts": 1_000, "gamma": 0.98, "hidden_sizes": WIDE},
    "lunarlander-sac": {
        **LONG,
        "algorithm": "sac",
        "env": "LunarLanderContinuous-v3",
        "learning_rate": 7.3e-4,
        "tau": 0.01,
        "hidden_sizes": WIDE,
        "seeds": (1, 2, 3, 4, 5),
    },
    "halfcheetah-sac": {**LONG, "algorithm": "sac", "env": "HalfCheetah-v5"},
    "hopper-td3": {**LONG, "algorithm": "td3", "env": "Hopper-v5", "learning_rate": 1e-3, "hidden_sizes": WIDE},
}
COMMON = {
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "tau": 0.005,
    "minibatch_size": 256,
    "buffer_size": 100_000,
    "hidden_sizes": (256, 256),
}
NUM_TURNS = 5  # of --speed
STEPS_PER_TURN = {0.0: 2_000, 0.01: 1_000}  # by seconds of a step
MET_TIMES = {0.0: 1.1, 0.01: 1.5}


def settings_of(name: str) -> dict[str, Any]:
    """Return a task's settings, except its seeds."""
    return {key: value for key, value in {**COMMON, **TASKS[name]}.items() if key != "seeds"}


def train_ours(settings: Mapping[str, Any], seed: int, env: Any = None, **plan: Any) -> tuple[float, Any]:
    """Train with our trainer; return the seconds of training and the policy."""
    trainer = import_module(f"cleanrl_demo.{settings['algorithm']}")
    kwargs = {key: value for key, value in settings.items() if key not in ("algorithm", "hidden_sizes")}
    fixed = {"backend": "serial", "num_envs": 1, "eval_episodes": 1, "runs": None, "checkpoint_every": None}
    policy_kwargs = {"hidden_sizes": settings["hidden_sizes"]}
    config = trainer.Config(**{**fixed, **kwargs, **plan}, seed=seed, policy_kwargs=policy_kwargs)
    result = trainer.train(config, env)
    return result.seconds, result.actor


def train_sb3(settings: Mapping[str, Any], seed: int, env: Any = None) -> tuple[float, Any]:
    """Train with Stable-Baselines3; return the seconds of training and the model."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    vec_env = make_vec_env(settings["env"] if env is None else env, n_envs=1, seed=seed)
    kwargs: dict[str, Any] = {}
    if settings["algorithm"] == "td3":
        size = int(np.prod(vec_env.action_space.shape or ()))
        kwargs["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    model = getattr(stable_baselines3, settings["algorithm"].upper())(
        "MlpPolicy",
        vec_env,
        learning_rate=settings["learning_rate"],
        learning_starts=settings["learning_starts"],
        batch_size=settings["minibatch_size"],
        buffer_size=settings["buffer_size"],
        gamma=settings["gamma"],
        tau=settings["tau"],
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": list(settings["hidden_sizes"])},
        seed=seed,
        device="cpu",
        **kwargs,
    )
    began = time.perf_counter()
    model.learn(settings["total_steps"])
    return time.perf_counter() - began, model


def measure(name: str, side: str, seed: int, num_episodes: int = EPISODES, **changes: Any) -> dict[str, Any]:
    """Train on a task with one side, and return what is stored of it."""
    settings = {**settings_of(name), **changes}
    seconds, policy = (train_ours if side == OURS else train_sb3)(settings, seed)
    returns = pufferlib.evaluate(
        settings["env"], policy, episodes=num_episodes, greedy=True, backend="serial", seed=10_000 + seed
    ).returns
    outcome = {"mean_return": round(float(returns.mean()), 2), "seconds": round(seconds, 1)}
    return {"task": name, "side": side, "seed": seed, **outcome, "settings": settings}


class Sleeper(gymnasium.Env[Any, Any]):
    """An environment whose step sleeps; observations and rewards are constant, episodes have 200 steps."""

    observation_space = spaces.Box(-1, 1, (8,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.step_s:
            time.sleep(self.step_s)
        self.num_steps += 1
        return np.zeros(8, np.float32), 0.0, False, self.num_steps == 200, {}


def measure_speed(step_s: float, num_turns: int, num_steps: int) -> dict[str, Any]:
    """Train SAC with each side in turns; return the steps per second of each turn."""
    settings = {**COMMON, "algorithm": "sac", "env": "Pendulum-v1", "learning_starts": 100, "total_steps": num_steps}
    env = partial(Sleeper, step_s)
    plan: dict[str, Any] = {"backend": "pool", "num_envs": 8, "batch_size": 2, "num_workers": 8} if step_s else {}
    rates: dict[str, list[float]] = {OURS: [], SB3: []}
    for seed in range(num_turns):
        for side in (OURS, SB3) if seed % 2 else (SB3, OURS):
            seconds, _ = train_ours(settings, seed, env, **plan) if side == OURS else train_sb3(settings, seed, env)
            rates[side].append(round(num_steps / seconds, 1))
    return {"step_s": step_s, "num_steps": num_steps, **rates}


def sections(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the Markdown tables by their names."""
    rows = []
    for name, task in TASKS.items():
        runs = [run for run in results["runs"] if run["task"] == name]
        returns = {side: [run["mean_return"] for run in runs if run["side"] == side] for side in (OURS, SB3)}
        if min(map(len, returns.values())) < 2:
            continue
        intervals = [MeanInterval.of(values) for values in returns.values()]
        cells = [f"{interval:.1f}" for interval in intervals]
        seeds = " and ".join(sorted({str(len(values)) for values in returns.values()}))
        steps = f"{runs[0]['settings']['total_steps']:,}"  # fewer with --short
        met = "yes" if intervals[0].mean >= intervals[1].low else "no"
        rows.append([task["env"], task["algorithm"].upper(), *cells, steps, seeds, met])
    heads = ("environment", "algorithm", "ours", "SB3", "steps", "seeds", "met")
    speeds = []
    for entry in results.get("speed", ()):
        times = MedianRange.of(ratios(entry[OURS], entry[SB3]))
        cells = [f"{MedianRange.of(entry[side]):.0f}" for side in (OURS, SB3)]
        least = MET_TIMES[entry["step_s"]]
        met = f"{'yes' if times.median >= least else 'no'}, ≥ {least}"
        speeds.append([f"{1000 * entry['step_s']:.0f} ms", *cells, f"{times:.2f}", met])
    speed_heads = ("a step takes", "ours, steps/s", "SB3, steps/s", "ours is … times as fast", "met")
    return {
        "off_policy": table(heads, rows) if rows else "Not measured yet.",
        "off_policy_speed": table(speed_heads, speeds) if speeds else "Not measured yet.",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the task")
    parser.add_argument("--speed", action="store_true", help="compare speeds, and train nothing else")
    parser.add_argument("--short", action="store_true", help="try the program with few steps, and store nothing")
    parser.add_argument("--page", action="store_true", help="only write the tables")
    options = parser.parse_args()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        if options.short:
            try_out()
            return
        results = stored()
        if options.speed:
            entries = [measure_speed(step_s, NUM_TURNS, num_steps) for step_s, num_steps in STEPS_PER_TURN.items()]
            results["speed"] = [{**entry, **facts()} for entry in entries]
            store(results)
        elif not options.page:
            train_missing(results, options.only, options.seeds)
    texts = sections(results)
    write_page(PAGE, fill(PAGE.read_text(), texts))
    print(*texts.values(), sep="\n\n")


def try_out() -> None:
    """Try both sides on Pendulum with few steps, and both speeds; print the tables."""
    few = {"total_steps": 400, "buffer_size": 400, "learning_starts": 300, "hidden_sizes": (16,)}
    runs = [
        measure(name, side, seed, 2, **few)
        for name in ("pendulum-sac", "pendulum-td3")
        for side in (OURS, SB3)
        for seed in (1, 2)
    ]
    speed = [measure_speed(step_s, 1, 150) for step_s in STEPS_PER_TURN]
    print(*sections({"runs": runs, "speed": speed}).values(), sep="\n\n")


def train_missing(results: dict[str, Any], names: Sequence[str], seeds: Sequence[int] | None) -> None:
    """Train what the results do not hold yet, seed by seed, and store each run as it ends."""
    for name in names:
        try:
            gymnasium.make(TASKS[name]["env"]).close()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            print(f"{name} is left out: {error}", flush=True)
            continue
        settings = json.loads(json.dumps(settings_of(name)))  # as they are in the file
        for seed in seeds or TASKS[name]["seeds"]:
            for side in (OURS, SB3):
                key = (name, side, seed)
                others = [run for run in results["runs"] if (run["task"], run["side"], run["seed"]) != key]
                if any(run["settings"] == settings for run in results["runs"] if run not in others):
                    continue
                run = {**measure(*key), **facts()}
                order = list(TASKS)
                results["runs"] = sorted(
                    [*others, run], key=lambda item: (order.index(item["task"]), item["side"], item["seed"])
                )
                store(results)
                print(f"{name}, {side}, seed {seed}: {run['mean_return']:.1f} in {run['seconds']:.0f} s", flush=True)


def facts() -> dict[str, Any]:
    """Return the circumstances of a measurement."""
    load = round(os.getloadavg()[0], 1)
    return {"machine": machine(), "revision": version(), "date": time.strftime("%Y-%m-%d"), "load": load}


def store(results: Mapping[str, Any]) -> None:
    """Write the results, with a line for the runs of a task."""
    runs = by_task(results["runs"])
    with written_whole(RESULT) as part:
        part.write_text(table_text({key: value for key, value in {**results, "runs": runs}.items() if value}))


def stored() -> dict[str, Any]:
    """Return the results that ``store`` wrote; without a file, empty ones."""
    results = {"runs": {}, "speed": [], **(json.loads(RESULT.read_text()) if RESULT.exists() else {})}
    return {**results, "runs": ungrouped(results["runs"])}


if __name__ == "__main__":
    main()
