"""Measure the cost of backend="ray" and of Ray used by hand, with environments that sleep and that do nothing.

    python -m benchmarks.ray_backend [--repeats 5] [--seconds 3] [--out FILE]

*sleep*: 32 environments whose steps sleep 5 ms on average, in two actors, each with one process per environment on its
node; batches hold the first 8 or 16 environments to finish, or all. The ideal is 32 / mean. *overhead*: environments
that cost nothing, in two actors; the figure is the time of a batch divided by its environments. By hand means an actor
for each environment and one call for each step: ``ray.get`` of all calls, or ``ray.wait`` for the first half. Writes
benchmarks/results/ray.json, and from that the table in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import pufferlib
from benchmarks.envs import PlainEnv
from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine

RESULTS = Path(__file__).parent / "results" / "ray.json"
PAGE = Path(__file__).parent / "README.md"
MEAN_S = 5e-3
SPREADS = (0.0, 1.0)
BATCHES = (8, 16, 32)
NUM_ACTORS = 2
ENVS_PER_ACTOR = (1, 4, 16, 64, 256)
BY_HAND = (2, 8, 16)  # actors of one environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repeats", type=int, default=5, help="of each figure; the results hold the median and the range"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each repeat")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    system_config = {"worker_niceness": 0}  # as when pufferlib starts Ray itself
    ray.init("local", include_dashboard=False, logging_level=logging.ERROR, num_cpus=4, _system_config=system_config)
    report: dict[str, Any] = {
        "machine": machine(),
        "revision": version(),
        "ray": ray.__version__,
        "load": os.getloadavg()[0],
    }
    command = f"python -m benchmarks.ray_backend --repeats {options.repeats} --seconds {options.seconds:g}"
    report |= {"command": command, "sleep": [], "overhead": []}
    for spread, batch_size in itertools.product(SPREADS, BATCHES):
        share = share_of_ideal(spread, batch_size, options)
        report["sleep"].append({"spread": spread, "batch_size": batch_size, **share})
        print(json.dumps(report["sleep"][-1]), flush=True)
    for num in ENVS_PER_ACTOR:
        report["overhead"].append({"how": "backend", "envs_per_actor": num, **backend_us(num, options)})
        print(json.dumps(report["overhead"][-1]), flush=True)
    for num in BY_HAND:
        for method, play in (("ray.get", get_all), ("ray.wait", wait_for_half)):
            report["overhead"].append({"how": method, "actors": num, **by_hand_us(num, play, options)})
            print(json.dumps(report["overhead"][-1]), flush=True)
    ray.shutdown()
    options.out.write_text(table_text(report))
    if options.out == RESULTS:
        write_page(PAGE, fill(PAGE.read_text(), {"ray": table(report)}))
    print(table(report))


def spread_of(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def share_of_ideal(spread: float, batch_size: int, options: Any) -> dict[str, float]:
    """Return the share of 32 / mean that an arrangement reaches."""
    creator = functools.partial(PlainEnv, mean_s=MEAN_S, spread=spread, kind="sleep", episode_length=10**9)
    shares = []
    with pufferlib.make(
        creator,
        backend="ray",
        num_envs=32,
        num_workers=NUM_ACTORS,
        batch_size=batch_size,
        seed=1,
        backend_kwargs={"local_workers": 16},
    ) as vec:
        actions = np.zeros(batch_size, np.int64)
        vec.async_reset()
        play_for(vec, actions, 1.0)
        for _ in range(options.repeats):
            vec.stats(reset=True)
            num, seconds = play_for(vec, actions, options.seconds)
            shares.append(num * batch_size / seconds / (32 / MEAN_S))  # a step takes longer than its sleep
    return spread_of(shares)


def backend_us(num: int, options: Any) -> dict[str, float]:
    """Return the microseconds per step of an environment."""
    num_envs = NUM_ACTORS * num
    with pufferlib.make(PlainEnv, backend="ray", num_envs=num_envs, num_workers=NUM_ACTORS, seed=1) as vec:
        actions = np.zeros(num_envs, np.int64)
        vec.reset()
        vec.send(actions)
        play_for(vec, actions, 0.5)
        timings = [play_for(vec, actions, options.seconds) for _ in range(options.repeats)]
    return spread_of([1e6 * seconds / batches / num_envs for batches, seconds in timings])


def play_for(vec: pufferlib.VecEnv, actions: Any, seconds: float) -> tuple[int, float]:
    """Receive batches and answer them; return their number and the seconds."""
    num, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        vec.recv()
        vec.send(actions)
        num += 1
    return num, time.perf_counter() - start_s


# --------------------------------------------------------------------------------------------------- by hand


class Alone:
    """A simple actor that holds one environment."""

    def __init__(self) -> None:
        self.env = PlainEnv()
        self.env.reset(seed=1)

    def step(self, action: int) -> Any:
        result = self.env.step(action)
        if result[2]:
            self.env.reset()
        return result


def by_hand_us(num: int, play: Any, options: Any) -> dict[str, float]:
    import ray

    actors = [ray.remote(Alone).options(num_cpus=0).remote() for _ in range(num)]
    ray.get([actor.step.remote(0) for actor in actors])
    play(actors, 0.5)
    timings = [play(actors, options.seconds) for _ in range(options.repeats)]
    for actor in actors:
        ray.kill(actor)
    return spread_of([1e6 * seconds / steps for steps, seconds in timings])


def get_all(actors: list[Any], seconds: float) -> tuple[int, float]:
    import ray

    steps, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        results = ray.get([actor.step.remote(0) for actor in actors])
        np.stack([result[0] for result in results])
        steps += len(actors)
    return steps, time.perf_counter() - start_s


def wait_for_half(actors: list[Any], seconds: float) -> tuple[int, float]:
    import ray

    steps, half, start_s = 0, max(1, len(actors) // 2), time.perf_counter()
    of_ref = {actor.step.remote(0): actor for actor in actors}
    while time.perf_counter() - start_s < seconds:
        ready, _ = ray.wait(list(of_ref), num_returns=half)
        np.stack([result[0] for result in ray.get(ready)])
        for ref in ready:
            actor = of_ref.pop(ref)
            of_ref[actor.step.remote(0)] = actor
        steps += half
    return steps, time.perf_counter() - start_s


def table(report: dict[str, Any]) -> str:
    """Return the table of the README."""
    about = f"{report['machine']}, Ray {report['ray']}; load before it {report['load']:.1f}; `{report['command']}`."
    lines = [about, "", "| | median (min – max) |", "| --- | --- |"]
    for entry in report["sleep"]:
        text = " – ".join(f"{entry[name]:.2f}" for name in ("min", "max"))
        name = f"32 envs that sleep 5 ms ± {entry['spread']:.0%}, two actors, batches of {entry['batch_size']}"
        name += ": share of 32 / mean"
        lines.append(f"| {name} | {entry['median']:.2f} ({text}) |")
    for entry in report["overhead"]:
        text = " – ".join(f"{entry[name]:.1f}" for name in ("min", "max"))
        name = f"{NUM_ACTORS} actors of {entry['envs_per_actor']}" if entry["how"] == "backend" else ""
        name = name or f"by hand, {entry['actors']} actors of one, `{entry['how']}`"
        lines.append(f"| {name}: µs an env-step | {entry['median']:.1f} ({text}) |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
