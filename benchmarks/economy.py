"""Compare the kernel of economy/covid with its NumPy reference, on one core each or on a device and a core.

    python -m benchmarks.economy                a minute, on the host; --short: seconds
    python -m benchmarks.economy --device cuda  the kernel on a GPU, with 256 to 16,384 environments

Three sides take turns: the kernel by ``step`` of a CUDA VecEnv, on the host with one thread; the equations in NumPy,
vectorised over all environments, with their masks and observations but without the padding of rows; and the PettingZoo
reference on ``backend="serial"``, a few environments one after another. All play the same random actions. Prints rates
as medians with the least and the greatest of interleaved repeats: by CPU time on the host, so that other programs
disturb less, and by the clock beside a device.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

import pufferlib
from cuda_ext.references.economy_covid import masks, observations
from cuda_ext.references.economy_data import NUM_STATES, load
from cuda_ext.references.economy_model import NUM_CHOICES, NUM_LEVELS, Model
from pufferlib.tuning.bench import machine

NUM_ENVS, NUM_SERIAL_ENVS = 256, 4
DEVICE_ENVS = (256, 2_048, 16_384)
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


def vec_step(vec: pufferlib.VecEnv, device: str = "host") -> Callable[[], None]:
    """Return a function that plays a step of all environments of a VecEnv, on a GPU ten steps that it waits for."""
    actions: Any = np.random.default_rng(1).integers(0, NUM_CHOICES, vec.agents_per_batch)
    if device != "host":
        actions = torch.from_numpy(actions).to(device)
    vec.reset()

    def step() -> None:
        vec.step(actions)

    def ten_steps() -> None:
        for _ in range(10):
            vec.step(actions)
        torch.cuda.synchronize()

    return step if device == "host" else ten_steps


def rate(step: Callable[[], None], num_envs: int, seconds: float, clock: Callable[[], float]) -> float:
    """Return environment steps per second of a clock. num_envs: environment steps of a call."""
    calls, start_s = 0, clock()
    while (spent_s := clock() - start_s) < seconds:
        step()
        calls += 1
    return calls * num_envs / spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help='"host", "cuda" or "cuda:1"')
    parser.add_argument("--short", action="store_true", help="two repeats of short turns")
    options = parser.parse_args()
    device, (turn_s, num_repeats) = options.device, (0.2, 2) if options.short else (TURN_S, NUM_REPEATS)
    on_host = device == "host"
    clock = time.process_time if on_host else time.perf_counter
    kwargs: dict[str, Any] = {"backend_kwargs": {"threads": 1}} if on_host else {}
    with contextlib.ExitStack() as stack:

        def opened(num_envs: int, **kwargs: Any) -> pufferlib.VecEnv:
            return stack.enter_context(pufferlib.make("economy/covid", num_envs=num_envs, seed=1, **kwargs))

        kernels = {
            f"kernel, {'1 thread' if on_host else f'{num_envs:,}'}": (
                vec_step(opened(num_envs, backend="cuda", device=device, **kwargs), device),
                num_envs * (1 if on_host else 10),
            )
            for num_envs in ((NUM_ENVS,) if on_host else DEVICE_ENVS)
        }
        sides = {
            **kernels,
            "equations in NumPy": (numpy_step(NUM_ENVS), NUM_ENVS),
            "reference, serial": (vec_step(opened(NUM_SERIAL_ENVS)), NUM_SERIAL_ENVS),
        }
        for step, _ in sides.values():
            step()
        repeats = [{name: rate(*side, turn_s, clock) for name, side in sides.items()} for _ in range(num_repeats)]
        name_of_device = device if on_host else torch.cuda.get_device_name()
    print(f"{machine()}; {name_of_device}\n{'side':20} {'steps a second':>34} {'times the equations':>20}")
    for name in sides:
        rates = [repeat[name] for repeat in repeats]
        ratio = median(repeat[name] / repeat["equations in NumPy"] for repeat in repeats)
        print(f"{name:20} {median(rates):14,.0f} ({min(rates):,.0f} – {max(rates):,.0f}) {ratio:20.2f}")


if __name__ == "__main__":
    main()
