"""Measure the cost of a step in this process: other libraries' vector environments, our versions of them, and wrap.

    python -m benchmarks.adapter_overhead            half a minute; needs pufferlib[sb3]
    python -m benchmarks.adapter_overhead --page     only writes the tables of docs/adapters.md

The environments cost almost nothing and return what the row names. The figures are CPU time, which does not change on a
busy machine, in microseconds per step of an environment: median, least and greatest. Writes
benchmarks/results/adapter_overhead.json.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.envs import ReturningEnv
from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.ratios import MedianRange
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine

__all__ = ["PAGE", "RESULT", "text"]

NUM_ENVS, NUM_STEPS, REPEATS = 16, 1500, 7
ENDLESS = 10**9
RESULT = Path(__file__).parent / "results" / "adapter_overhead.json"
PAGE = Path(__file__).parent.parent / "docs" / "adapters.md"

Step = Callable[[], int]  # steps some environments and returns their number
Sides = Mapping[str, Callable[[Any], Step]]  # by column heading: makes a Step from an env_creator


def _vector(make: Callable[[list[Any]], Any]) -> Callable[[Any], Step]:
    def started(env_creator: Any) -> Step:
        envs = make([env_creator] * NUM_ENVS)
        envs.reset()
        actions = np.zeros(NUM_ENVS, np.int64)

        def step() -> int:
            envs.step(actions)
            return NUM_ENVS

        return step

    return started


def _single(wrapped: Callable[[Any], Any]) -> Callable[[Any], Step]:
    def started(env_creator: Any) -> Step:
        env = wrapped(env_creator())
        env.reset()

        def step() -> int:
            for _ in range(NUM_ENVS):
                _, _, terminated, truncated, _ = env.step(0)
                if terminated or truncated:
                    env.reset()
            return NUM_ENVS

        return step

    return started


def cases() -> dict[str, tuple[Sides, Any]]:
    """Return the sides to compare and the env_creator, by the name of the row."""
    import gymnasium
    from stable_baselines3.common import vec_env as sb3
    from stable_baselines3.common.monitor import Monitor

    import pufferlib
    from pufferlib.adapters import gymnasium_vector
    from pufferlib.adapters import sb3 as our_sb3

    dummies: Sides = {
        "ours": _vector(our_sb3.DummyVecEnv),
        "theirs": _vector(sb3.DummyVecEnv),
        "theirs, each in a Monitor": _vector(
            lambda creators: sb3.DummyVecEnv([lambda: Monitor(creators[0]()) for _ in creators])
        ),
    }
    syncs: Sides = {
        "our SyncVectorEnv": _vector(gymnasium_vector.SyncVectorEnv),
        "Gymnasium's": _vector(gymnasium.vector.SyncVectorEnv),
    }
    wraps: Sides = {"pufferlib.wrap(env)": _single(pufferlib.wrap), "env alone": _single(lambda env: env)}
    returning = functools.partial(functools.partial, ReturningEnv)
    return {
        "no episode ends": (dummies, returning("plain", ENDLESS)),
        "episodes of 20 steps": (dummies, returning("plain", 20)),
        "four entries in each info": (dummies, returning("info of four", ENDLESS)),
        "plain scalars": (syncs, returning("plain", ENDLESS)),
        "one entry in each info": (syncs, returning("info of one", ENDLESS)),
        "four entries": (syncs, returning("info of four", ENDLESS)),
        "one env, plain": (wraps, returning("plain")),
        "one env, float64 for a float32 space": (wraps, returning("observation float64")),
    }


def cost_us(step: Step, num_steps: int) -> float:
    """Return the CPU time per step of one environment, in microseconds."""
    done = 0
    begun = time.process_time()
    for _ in range(num_steps):
        done += step()
    return 1e6 * (time.process_time() - begun) / done


def measured(repeats: int = REPEATS, num_steps: int = NUM_STEPS) -> dict[str, dict[str, list[float]]]:
    """Return the cost of each side of each case in each repeat; the sides take turns."""
    costs: dict[str, dict[str, list[float]]] = {}
    for name, (sides, env_creator) in cases().items():
        steps = {side: start(env_creator) for side, start in sides.items()}
        for step in steps.values():
            cost_us(step, num_steps)
        costs[name] = {side: [] for side in sides}
        for _ in range(repeats):
            for side, step in steps.items():
                costs[name][side].append(cost_us(step, num_steps))
    return costs


def text(stored: Mapping[str, Any]) -> str:
    """Return a Markdown table for each group of rows that compare the same sides."""
    tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name, costs in stored["us_per_step"].items():
        tables.setdefault(tuple(costs), []).append(
            (name, *(f"{MedianRange.of(values):.2f}" for values in costs.values()))
        )
    heads = {
        "ours": "our `DummyVecEnv`",
        "theirs": "Stable-Baselines3's",
        "theirs, each in a Monitor": "that, each in a `Monitor`",
    }
    return "\n\n".join(table(("", *(heads.get(side, side) for side in sides)), rows) for sides, rows in tables.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page from the existing results")
    if not parser.parse_args().page:
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        facts = {"machine": machine(), "revision": version(), "date": date}
        RESULT.write_text(table_text({**facts, "us_per_step": measured()}))
    stored = json.loads(RESULT.read_text())
    print(stored["machine"], "", text(stored), sep="\n")
    write_page(PAGE, fill(PAGE.read_text(), {"adapter_overhead": text(stored)}))


if __name__ == "__main__":
    main()
