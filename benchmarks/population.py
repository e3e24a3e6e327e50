"""How large populations have to be for Leduc poker, by solver; and what many policies in one batch cost.

    python -m benchmarks.population [--only leduc|router] [--page]

Leduc: exact best responses, both players add one policy in each iteration, from uniform play on, until the population's
NashConv is 0.5 or less. Seconds are those of the process on one core (CPU time), all of it: the game's enumeration too.
Router: ``Router.act`` on one batch of 1,024 rows, MLPs of two layers of 64, for 1 to 64 policies: in blocks of
neighbouring rows or scattered, stacked or one after another. All take turns, in another order in each repeat; ratios
are taken within a repeat, of CPU time.
Writes benchmarks/results/population.json and the tables of docs/population.md; --page writes only these.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_limits

import pufferlib
from benchmarks.report import fill
from pufferlib.bench import machine
from pufferlib.files import written_whole
from pufferlib.models import MLP, Origin
from pufferlib.population import ExactOracle, Fixed, PolicyPool, Router, psro, solvers

__all__ = ["leduc", "routing", "sections"]

RESULT = Path(__file__).parent / "results" / "population.json"
PAGE = Path(__file__).parent.parent / "docs" / "population.md"
LEVELS = (1.0, 0.5)
MOST = {"last": 120}  # policies after which is given up; self-play has a cycle
SOLVERS: dict[str, Any] = {
    "alpha_rank": solvers.alpha_rank,
    "projected_replicator": solvers.projected_replicator,
    "fictitious_play": solvers.fictitious_play,
    "lp_nash": solvers.lp_nash,
    "uniform": solvers.uniform,
    "last": solvers.last,
}
MALIB = {"alpha_rank": (21, 1776), "fictitious_play": (40, 4862), "uniform": (60, 7562), "last": (None, None)}
NUM_ROWS, NUM_POLICIES, NUM_REPEATS, WINDOW_S = 1024, (1, 4, 16, 64), 9, 0.1
WAYS = (("blocks", True), ("scattered", True), ("blocks", False), ("scattered", False))


def leduc(name: str) -> dict[str, Any]:
    """Return at which sizes a population's NashConv was as low as each of the levels, and the seconds until then."""
    start = process_time()
    oracle, solver = ExactOracle("leduc_poker"), SOLVERS[name]
    evaluate = None if name in ("uniform", "last") else oracle.evaluate
    sizes: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for iteration in psro(oracle, oracle.table(), solver, evaluate=evaluate, measure=oracle.nash_conv):
        size, left = iteration.sizes[0], iteration.nash_conv
        assert left is not None
        for level in LEVELS:
            if left <= level and str(level) not in sizes:
                sizes[str(level)], seconds[str(level)] = size, process_time() - start
        if str(LEVELS[-1]) in sizes or size >= MOST.get(name, 400):
            return {"sizes": sizes, "seconds": seconds, "nash_conv": left, "size": size}
    raise AssertionError("the loop has no end")


class Rows(pufferlib.PufferEnv):
    """Nothing but a row."""

    single_observation_space = spaces.Box(-1, 1, (16,), np.float32)
    single_action_space = spaces.Discrete(6)

    def step(self, actions: Any) -> None:
        pass


def routing() -> dict[str, Any]:
    """Return seconds a call for each number of policies and way, one list over the repeats."""
    rng = np.random.default_rng(1)
    with pufferlib.make(Rows, num_envs=NUM_ROWS, seed=1) as vec:
        pool = PolicyPool()
        for _ in range(max(NUM_POLICIES)):
            pool.add(MLP(vec.observation_layout, vec.single_action_space), Origin("mlp"))
        vec.async_reset()
        first = vec.recv()
        observations = rng.normal(size=first.observations.shape).astype(np.float32)
        batch = first._replace(observations=observations, masks=np.ones_like(first.masks))
        turns: dict[str, Any] = {}
        for count in NUM_POLICIES:
            for order, stack in WAYS if count > 1 else WAYS[:1]:
                policies = np.arange(NUM_ROWS) * count // NUM_ROWS
                if order == "scattered":
                    rng.shuffle(policies)
                router = Router(pool, vec, Fixed([(int(policy),) for policy in policies]), stack=stack, seed=1)
                router.act(first)
                turns[f"{count} {order} {'stacked' if stack else 'one by one'}"] = (router.act, batch)
        found: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(NUM_REPEATS):
            for name in rng.permutation(list(turns)).tolist():
                act, seen = turns[name]
                start, calls = process_time(), 0
                while process_time() - start < WINDOW_S:
                    act(seen)
                    calls += 1
                found[name].append((process_time() - start) / calls)
    return found


def sections(results: dict[str, Any]) -> dict[str, str]:
    """Return the tables, Markdown, by their names."""
    lines = [
        "| solver | policies each at NashConv 1.0 | at 0.5 | seconds | MALib's Table 3, policies | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in results.get("leduc", {}).items():
        sizes, seconds = found["sizes"], found["seconds"]
        size, theirs = MALIB.get(name, ("not told", "not told"))
        reached = sizes.get("0.5", f"never (at {found['size']} still {found['nash_conv']:.1f})")
        took = f"{seconds['0.5']:.1f}" if "0.5" in seconds else "–"
        other = "never" if size is None else size
        their_s = "–" if theirs is None else theirs
        lines.append(f"| `{name}` | {sizes.get('1.0', 'never')} | {reached} | {took} | {other} | {their_s} |")
    routed = results.get("router", {})
    one = routed.get(f"1 {WAYS[0][0]} stacked", [])
    rows = [
        "| policies | "
        + " | ".join(f"{order}, {'stacked' if stack else 'one by one'}" for order, stack in WAYS)
        + " |",
        "| --- |" + " --- |" * len(WAYS),
    ]
    for count in NUM_POLICIES[1:] if one else ():
        cells = []
        for order, stack in WAYS:
            took = routed[f"{count} {order} {'stacked' if stack else 'one by one'}"]
            ratios = sorted(base / each for base, each in zip(one, took, strict=True))
            cells.append(f"{median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")
        rows.append(f"| {count} | {' | '.join(cells)} |")
    if one:
        rows += ["", f"One policy: {median(one) * 1e6:,.0f} µs a batch. {results['machine']}."]
    return {"leduc": "\n".join(lines), "router": "\n".join(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("leduc", "router"))
    parser.add_argument("--page", action="store_true")
    chosen = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if not chosen.page:
        results["machine"] = machine()
        with threadpool_limits(1):
            torch.set_num_threads(1)
            if chosen.only != "router":
                results["leduc"] = {name: leduc(name) for name in SOLVERS}
            if chosen.only != "leduc":
                results["router"] = routing()
        with written_whole(RESULT) as part:
            part.write_text(json.dumps(results, indent=1) + "\n")
    with written_whole(PAGE) as part:
        part.write_text(fill(PAGE.read_text(), sections(results)))
    for table in sections(results).values():
        print(table, end="\n\n")


if __name__ == "__main__":
    main()
