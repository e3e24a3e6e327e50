"""What ``--compile`` costs and gains: updates of ppo.py with torch.compile and without, by the rows of a minibatch.

The part of learner.py that compares torch with itself. Each size is compiled as by a first run: no results of earlier
compilations are read.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

import pufferlib
from benchmarks.envs import PlainEnv
from benchmarks.pages import table
from benchmarks.ratios import MedianRange, ratios
from cleanrl_demo import ppo
from pufferlib.models import Origin
from pufferlib.training.compilation import compiled

__all__ = ["SIZES", "compile_table", "measure_compile"]

SIZES = {"small": (64, 256, 4096), "large": (32, 256)}  # by kind of observation: 8 numbers, or images
NAMES = {"small": "MLP, 8 numbers", "large": "CNN, 4 × 84 × 84 bytes"}
NUM_MINIBATCHES, NUM_ENVS = 4, 32


def trainer_update(kind: str, size: int) -> tuple[ppo.Learner, Callable[[], Any]]:
    """Return a learner, and a function that updates it with an epoch of minibatches of random rows."""
    config = ppo.Config(num_epochs=1, num_minibatches=NUM_MINIBATCHES, num_envs=NUM_ENVS)
    generator = np.random.default_rng(0)
    with pufferlib.make(partial(PlainEnv, kind), backend="serial", num_envs=NUM_ENVS) as vec:
        torch.manual_seed(0)
        learner = ppo.make_learner(vec, Origin(), config)
        num_rows = NUM_MINIBATCHES * size
        rollout = ppo.Rollout(vec, learner.actor, learner.reward_processing, num_rows // NUM_ENVS)
    rows = slice(0, num_rows)
    observations = rollout.observations[rows].numpy()
    drawn = (
        generator.integers(256, size=observations.shape) if kind == "large" else generator.random(observations.shape)
    )
    observations[...] = drawn
    rollout.log_probs[rows] = -np.log(4)
    rollout.rewards[rows] = generator.normal(size=num_rows)
    rollout.masks[rows], rollout.next_index[rows] = True, np.arange(NUM_ENVS, NUM_ENVS + num_rows)
    return learner, lambda: ppo.update(learner, rollout, config)


def timed_once(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure_compile(repeats: int, sizes: Mapping[str, Sequence[int]] = SIZES) -> dict[str, Any]:
    """Time updates with and without torch.compile in turns; return their seconds by network, minibatch and side.

    first: the seconds of the first compiled update, most of which is compiling.
    """
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for kind, size in ((name, number) for name, numbers in sizes.items() for number in numbers):
        (_, eager), (learner, update) = trainer_update(kind, size), trainer_update(kind, size)
        torch.compiler.reset()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(mock.patch.dict("os.environ", {"TORCHINDUCTOR_CACHE_DIR": folder}))
            stack.enter_context(compiled([learner.actor.policy]))
            seconds: dict[str, Any] = {"first": timed_once(update), "eager": [], "compiled": []}
            timed_once(eager)
            for _ in range(repeats):
                for name, call in (("eager", eager), ("compiled", update)):
                    seconds[name].append(timed_once(call))
        results.setdefault(kind, {})[str(size)] = seconds
    print(compile_table(results), flush=True)
    return results


def compile_table(results: Mapping[str, Any]) -> str:
    """Return the Markdown table of what ``measure_compile`` returned, with the updates after which it has paid."""
    rows = []
    for kind, sizes in results.items():
        for size, seconds in sizes.items():
            eager, compiled_s = (statistics.median(seconds[name]) / NUM_MINIBATCHES for name in ("eager", "compiled"))
            gain = MedianRange.of(ratios(seconds["eager"], seconds["compiled"]))
            paid = f"{seconds['first'] / (eager - compiled_s):,.0f} minibatches" if eager > compiled_s else "never"
            row = [NAMES[kind], f"{int(size):,}", f"{1e3 * eager:.2f} ms", f"{gain:.2f}", f"{seconds['first']:.0f} s"]
            rows.append([*row, paid])
    heads = ("network", "rows of a minibatch", "torch takes", "compiled is … times as fast", "compiling takes")
    return table((*heads, "pays after"), rows)
