"""Draw the work of workers and learner over time, with synchronous batches and on a pool, for docs/how.md.

    python -m benchmarks.timeline

It plays both, with steps that sleep for 5 ms on average, exponentially distributed, and a learner that takes 2 ms.
Writes docs/pictures/timeline.svg and benchmarks/results/timeline.json. The environment times its steps by the system's
monotonic clock, which all processes of a machine share; the shares are those of vec.stats().
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import pufferlib
from benchmarks.drawing import Drawing
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "pictures" / "timeline.svg"
RESULTS = ROOT / "benchmarks" / "results" / "timeline.json"
NUM_ENVS, NUM_WORKERS = 16, 4
PLANS = {"synchronous": ("multiprocessing", NUM_ENVS), "pool": ("pool", NUM_ENVS // 4)}  # name: backend, batch size
STEP_S, LEARNER_S, SHOWN_S, PLAYED_S = 0.005, 0.002, 0.15, 4.0


class Sleeper(gymnasium.Env):
    """An environment whose steps sleep, and report their beginning and end in the info."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        began_s = time.monotonic()
        time.sleep(self.np_random.exponential(STEP_S))
        return np.zeros(1, np.float32), 0.0, False, False, {"began_s": began_s, "ended_s": time.monotonic()}


def play(backend: str, batch_size: int) -> dict[str, Any]:
    """Play, and return the steps of the drawn part, in seconds since its beginning, and stats() of the whole."""
    options = dict(num_envs=NUM_ENVS, num_workers=NUM_WORKERS, batch_size=batch_size, seed=1)
    with pufferlib.make(Sleeper, backend=backend, **options) as vec:
        steps: list[tuple[int, float, float]] = []
        thoughts: list[tuple[float, float]] = []
        actions = np.zeros(batch_size, np.int64)
        vec.async_reset()
        for _ in range(20):  # warm-up
            vec.recv()
            vec.send(actions)
        vec.stats(reset=True)
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + PLAYED_S:
            batch = vec.recv()
            thinks_s = time.monotonic()
            steps += [(info["env_id"], info["began_s"], info["ended_s"]) for info in batch.infos if "began_s" in info]
            time.sleep(LEARNER_S)
            thoughts.append((thinks_s, time.monotonic()))
            vec.send(actions)
        stats = vec.stats()
    start_s = begin_s + PLAYED_S / 2
    end_s = start_s + SHOWN_S
    return {
        "backend": backend,
        "batch_size": batch_size,
        "steps": [(i, round(a - start_s, 5), round(b - start_s, 5)) for i, a, b in steps if b > start_s and a < end_s],
        "thoughts": [(round(a - start_s, 5), round(b - start_s, 5)) for a, b in thoughts if b > start_s and a < end_s],
        "steps_per_s": len(steps) / PLAYED_S,
        "waits": float(stats.waits),
        "busy": float(np.mean(stats.busy)),
        "verdict": stats.verdict,
    }


def draw(played: dict[str, dict[str, Any]]) -> None:
    """Draw a panel for each plan, with a row for each worker and one for the learner."""
    left, width, row_height = 90, 690, 18
    panel = 26 + (NUM_WORKERS + 1) * (row_height + 4) + 16
    drawing = Drawing(left + width + 40, panel * len(played) + 34)
    for number, (name, plan) in enumerate(played.items()):
        top = 24 + panel * number
        title = f"{name}: batches of {plan['batch_size']} of {NUM_ENVS}, {plan['steps_per_s']:,.0f} steps/s"
        drawing.text(8, top, title, bold=True)
        for index in range(NUM_WORKERS + 1):
            y = top + 10 + index * (row_height + 4)
            drawing.box(left, y, width, row_height, fill="#f2f2f2", line="none")
            drawing.text(8, y + 13, f"worker {index}" if index < NUM_WORKERS else "learner")
        for env_id, begin, end in plan["steps"]:
            worker, env_index = divmod(env_id, NUM_ENVS // NUM_WORKERS)
            bar(
                drawing,
                left,
                width,
                begin,
                end,
                top + 10 + worker * (row_height + 4),
                row_height,
                "#2a9d8f" if env_index % 2 else "#8ac5bd",
            )
        for begin, end in plan["thoughts"]:
            bar(drawing, left, width, begin, end, top + 10 + NUM_WORKERS * (row_height + 4), row_height, "#e76f51")
    bottom = panel * len(played) + 16
    for ms in range(0, round(SHOWN_S * 1000) + 1, 25):
        drawing.text(left + width * ms / 1000 / SHOWN_S, bottom, f"{ms} ms", anchor="middle")
    drawing.write(OUT)


def bar(drawing: Drawing, left: int, width: int, begin: float, end: float, y: float, height: int, fill: str) -> None:
    """Draw the part of an interval that lies within the panel."""
    x0, x1 = (left + width * min(max(moment / SHOWN_S, 0), 1) for moment in (begin, end))
    drawing.box(x0, y, max(x1 - x0, 0.5), height, fill=fill, line="#ffffff")


def main() -> None:
    played = {name: play(*plan) for name, plan in PLANS.items()}
    RESULTS.write_text(json.dumps({"machine": machine(), "revision": version(), **played}) + "\n")
    draw(played)
    for name, plan in played.items():
        print(f"{name}: {plan['steps_per_s']:,.0f} steps/s, waits {plan['waits']:.0%}, busy {plan['busy']:.0%}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    main()
