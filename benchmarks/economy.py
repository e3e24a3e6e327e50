"""Compare the host's kernel of economy/covid with its NumPy reference, each on one core.

    python -m benchmarks.economy                a minute; --short: seconds

Three sides take turns: the kernel by ``step`` of a CUDA VecEnv with one thread; the equations in NumPy, vectorised over
all environments, with their masks and observations but without the padding of rows; and the PettingZoo reference on
``backend="serial"``, a few environments one after another. All play the same random actions. Prints CPU-time rates, so
that other programs disturb less, as medians with the least and the greatest of interleaved repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np

import pufferlib
from cuda_ext.references.economy_covid import masks, observations
from cuda_ext.references.economy_data import NUM_STATES, load
from cuda_ext.references.economy_model import NUM_CHOICES, NUM_LEVELS, Model
from pufferlib.tuning.bench import machine

NUM_ENVS, NUM_SERIAL_ENVS = 256, 4
TURN_S, NUM_REPEATS = 2.0, 7


def numpy_step(num_envs: int) -> Callable[[], None]:
    """Return a function that plays a step of all environments by the equations, without a VecEnv."""
    model, random = Model(load()), np.random.default_rng(1)
    state = model.starts(num_envs)
    governors = random.integers(0, NUM_LEVELS + 1, (num_envs, NUM_STATES))
    planners = random.integers(0, NUM_CHOICES, num_envs)

    def step() -> None:
        nonlocal state
        after = model.step(state, governors, planners)
        model.rewards(model.indices(state, after))
        masks(model, after)
        observations(model, after)
        state = model.starts(num_envs) if after.t[0] == model.episode_length else after

    return step


def vec_step(vec: pufferlib.VecEnv) -> Callable[[], None]:
    """Return a function that plays a step of all environments of a VecEnv."""
    actions = np.random.default_rng(1).integers(0, NUM_CHOICES, vec.agents_per_batch)
    vec.reset()

    def step() -> None:
        vec.step(actions)

    return step


def rate(step: Callable[[], None], num_envs: int, seconds: float) -> float:
    """Return environment steps per second of CPU time."""
    calls, start_s = 0, time.process_time()
    while (spent_s := time.process_time() - start_s) < seconds:
        step()
        calls += 1
    return calls * num_envs / spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="two repeats of short turns")
    turn_s, num_repeats = (0.2, 2) if parser.parse_args().short else (TURN_S, NUM_REPEATS)
    kernel = pufferlib.make(
        "economy/covid", backend="cuda", device="host", num_envs=NUM_ENVS, seed=1, backend_kwargs={"threads": 1}
    )
    with kernel, pufferlib.make("economy/covid", num_envs=NUM_SERIAL_ENVS, seed=1) as serial:
        sides = {
            "kernel, 1 thread": (vec_step(kernel), NUM_ENVS),
            "equations in NumPy": (numpy_step(NUM_ENVS), NUM_ENVS),
            "reference, serial": (vec_step(serial), NUM_SERIAL_ENVS),
        }
        for step, _ in sides.values():
            step()
        repeats = [{name: rate(*side, turn_s) for name, side in sides.items()} for _ in range(num_repeats)]
    print(f"{machine()}\n{'side':20} {'environments':>12} {'steps per CPU second':>34} {'kernel is times':>16}")
    for name, (_, num_envs) in sides.items():
        rates = [repeat[name] for repeat in repeats]
        ratio = median(repeat["kernel, 1 thread"] / repeat[name] for repeat in repeats)
        print(f"{name:20} {num_envs:12} {median(rates):14,.0f} ({min(rates):,.0f} – {max(rates):,.0f}) {ratio:16.1f}")


if __name__ == "__main__":
    main()
