"""Compare the host's kernels of two revisions, each on one core, in processes that take turns.

    git worktree add ../before f19f4292
    (cd ../before && python setup.py build_ext --inplace)
    python -m benchmarks.host_kernels ../before         eight minutes; --short: seconds

Each turn is a process that plays one kernel with the code of one tree: single steps with given actions, and rollouts of
random actions. It reports steps per second of CPU time, so other programs disturb less. The figures are medians of the
turns, with the least and the greatest, and the median of the ratios within pairs of turns. Writes
benchmarks/results/host-kernels.json and the table of docs/kernels.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.ratios import MedianRange, ratios
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine

__all__ = ["KERNELS", "table_of"]

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "host-kernels.json", ROOT / "docs" / "kernels.md"
CROWD = {"num_taggers": 5, "num_runners": 100, "num_nearest": 10, "full_observation": False, "grid_length": 20.0}
KERNELS: dict[str, tuple[int, dict[str, Any]]] = {  # the number of environments, and their arguments
    "classic/cartpole": (4_096, {}),
    "ocean/squared": (1_024, {}),
    "tag/grid": (1_000, {"num_taggers": 4, "grid_length": 100, "full_observation": False}),
    "tag/continuous": (100, CROWD),
}
WAYS = ("steps", "rollout")
NUM_TURNS, TURN_S = 9, 1.5
# Uses only what both trees have.
CHILD = """
import json, sys, time
import numpy as np
import pufferlib
env, num_envs, kwargs, seconds = json.loads(sys.argv[1])
options = dict(device="host", num_envs=num_envs, seed=1, env_kwargs=kwargs, backend_kwargs={"threads": 1})
with pufferlib.make(env, backend="cuda", **options) as vec:
    vec.reset()
    space = vec.single_action_space
    most = getattr(space, "n", getattr(space, "nvec", None))
    actions = np.random.default_rng(1).integers(0, most, (vec.agents_per_batch, *(space.shape or ())))
    rates = {}
    ways = ("steps", lambda: vec.step(actions), 1), ("rollout", lambda: vec.rollout(20, keep=False), 20)
    for way, play, steps in ways:
        play()
        calls, begin = 0, time.process_time()
        while (spent := time.process_time() - begin) < seconds:
            play()
            calls += 1
        rates[way] = calls * steps * num_envs / spent
print(json.dumps(rates))
"""


def rates_of(tree: Path, env: str, seconds: float) -> dict[str, float]:
    """Return the environment steps per second of each way, by a process with a tree's code."""
    num_envs, kwargs = KERNELS[env]
    command = [sys.executable, "-c", CHILD, json.dumps([env, num_envs, kwargs, seconds])]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{env} does not play in {tree}:\n{done.stderr[-2000:]}")
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def table_of(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    rows = []
    for env, ways in results["kernels"].items():
        for way, sides in ways.items():
            cells = [f"{MedianRange.of(sides[side]):,.0f}" for side in ("before", "now")]
            rows.append([f"`{env}`", way, *cells, f"{MedianRange.of(ratios(sides['now'], sides['before'])):.2f}"])
    heads = ["kernel", "played by", f"`{results['before']}`", f"`{results['revision']}`", "times as fast"]
    return f"{results['machine']}; environment steps per second of CPU time.\n\n{table(heads, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tree", type=Path, help="a checkout of the earlier revision, with its extensions built in place"
    )
    parser.add_argument("--short", action="store_true", help="one turn, of 0.1 s; nothing is written")
    options = parser.parse_args()
    num_turns, seconds = (1, 0.1) if options.short else (NUM_TURNS, TURN_S)
    trees = {"before": options.tree.resolve(), "now": ROOT}
    kernels: dict[str, Any] = {env: {way: {side: [] for side in trees} for way in WAYS} for env in KERNELS}
    for index in range(num_turns):
        for env in KERNELS:
            for side in sorted(trees, reverse=index % 2 == 1):
                for way, rate in rates_of(trees[side], env, seconds).items():
                    kernels[env][way][side].append(rate)
    revisions = {"revision": version(), "before": version(trees["before"])}
    results = {"machine": machine(), **revisions, "kernels": kernels}
    print(table_of(results))
    if not options.short:
        RESULTS.write_text(table_text(results))
        write_page(PAGE, fill(PAGE.read_text(), {"host_kernels": table_of(results)}))


if __name__ == "__main__":
    main()
