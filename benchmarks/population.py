"""Measure population sizes on Leduc poker by solver, the cost of many policies in one batch, and evaluations.

    python -m benchmarks.population [--only leduc|router|evaluation] [--page]

Leduc: with exact best responses, both players add one policy in each iteration, starting from uniform play, until the
population's NashConv is 0.5 or less. Seconds are the CPU time of the process, including the game's enumeration.
Router: ``Router.act`` on one batch of 1,024 rows with MLPs of two layers of 64, for 1 to 64 policies: in blocks of
neighbouring rows or scattered, stacked or one after another. All take turns, in a different order in each repeat;
ratios of CPU time are taken within a repeat.
Evaluation: a table of 40 policies per seat, 20 episodes of Leduc poker per cell, MLPs of two layers of 64, a tenth of
the table in a turn: by ``Evaluator`` in this process, over 1 to 4 Ray actors of a coordinator, and as in MALib: one
environment, one episode after another, with a lookup of the acting policy in each step, which computes one row (without
MALib's two Ray calls in each step, for weights and for actions). This last one plays cells of the table for a few
seconds. All take turns, in a different order in each repeat; ratios are taken within a repeat, of wall time, since
actors are compared.
Writes benchmarks/results/population.json and the tables of docs/population.md; --page writes only these.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_limits

import pufferlib
from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.revisions import version
from pufferlib.models import MLP, Origin
from pufferlib.population import (
    Coordinator,
    Evaluator,
    ExactOracle,
    Fixed,
    PayoffTable,
    PolicyPool,
    Router,
    psro,
    solvers,
)
from pufferlib.population.games import GameEnv
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

__all__ = ["evaluation", "leduc", "routing", "sections"]

RESULT = Path(__file__).parent / "results" / "population.json"
PAGE = Path(__file__).parent.parent / "docs" / "population.md"
LEVELS = (1.0, 0.5)
MOST = {"last": 120}  # policies at which the run gives up; self-play cycles
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
TABLE, TURN_ROWS, NUM_TURNS, CELL_EPISODES, EVALUATION_ENVS, NUM_ACTORS, LOOP_S = 40, 4, 5, 20, 80, (1, 2, 3, 4), 3.0
WAYS = (("blocks", True), ("scattered", True), ("blocks", False), ("scattered", False))


def leduc(name: str) -> dict[str, Any]:
    """Return the population's size, and the seconds, at which its NashConv reached each of the levels."""
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
    """An environment of one row that does nothing."""

    single_observation_space = spaces.Box(-1, 1, (16,), np.float32)
    single_action_space = spaces.Discrete(6)

    def step(self, actions: Any) -> None:
        pass


def routing() -> dict[str, Any]:
    """Return the seconds per call for each number of policies and way, a list over the repeats each."""
    rng = np.random.default_rng(1)
    with pufferlib.make(Rows, num_envs=NUM_ROWS, seed=1) as vec:
        pool = PolicyPool()
        for _ in range(max(NUM_POLICIES)):
            pool.add(MLP(vec.observation_layout, vec.single_action_space), Origin("mlp"))
        vec.async_reset()
        first = vec.recv()
        observations = rng.normal(size=first.observations.shape).astype(np.float32)
        batch = first._replace(observations=observations, masks=np.ones_like(first.masks))
        cases: dict[str, Any] = {}
        for count in NUM_POLICIES:
            for order, stack in WAYS if count > 1 else WAYS[:1]:
                policies = np.arange(NUM_ROWS) * count // NUM_ROWS
                if order == "scattered":
                    rng.shuffle(policies)
                router = Router(pool, vec, Fixed([(int(policy),) for policy in policies]), stack=stack, seed=1)
                router.act(first)
                cases[f"{count} {order} {'stacked' if stack else 'one by one'}"] = (router.act, batch)
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(NUM_REPEATS):
            for name in rng.permutation(list(cases)).tolist():
                act, argument = cases[name]
                start, calls = process_time(), 0
                while process_time() - start < WINDOW_S:
                    act(argument)
                    calls += 1
                times[name].append((process_time() - start) / calls)
    return times


def one_at_a_time(pool: PolicyPool, layout: Any, action_space: Any) -> Callable[[int], int]:
    """Return a function that plays cells of the table for LOOP_S, one episode at a time, and returns their number."""
    env = GameEnv("leduc_poker")
    actors = {policy: pool.actor(policy, layout, action_space) for policy in range(2 * TABLE)}
    observation = env.reset()[0]["player_0"]
    assert np.array_equal(layout.flatten(observation), np.append(observation["action_mask"], observation["state"]))
    matchups = cycle((one, TABLE + other) for one in range(TABLE) for other in range(TABLE))

    def episode(matchup: tuple[int, int]) -> float:
        policies = dict(zip(env.possible_agents, matchup, strict=True))
        observations, _ = env.reset()
        returns = 0.0
        while env.agents:
            actions = dict.fromkeys(env.agents, 0)
            for agent, observation in observations.items():
                if observation["action_mask"].any():
                    row = torch.from_numpy(np.append(observation["action_mask"], observation["state"]))
                    distribution, _, _ = actors[policies[agent]](row[None])
                    actions[agent] = int(distribution.sample()[0][0])
            observations, rewards, *_ = env.step(actions)
            returns += rewards[env.possible_agents[0]]
        return returns

    def play_cells(number: int) -> int:
        start, num_episodes = perf_counter(), 0
        with torch.inference_mode():
            while perf_counter() - start < LOOP_S:
                matchup = next(matchups)
                for _ in range(CELL_EPISODES):
                    episode(matchup)
                num_episodes += CELL_EPISODES
        return num_episodes

    return play_cells


def evaluation() -> dict[str, Any]:
    """Return the episodes per second, and per CPU second of this process, of each way, a list over the turns each."""
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    pool = PolicyPool()
    ways: dict[str, Callable[[int], int]] = {}

    def evaluated(where: Any, number: int) -> int:
        rows = range(number * TURN_ROWS, (number + 1) * TURN_ROWS)
        table = PayoffTable(2, [rows, range(TABLE, 2 * TABLE)])
        return Evaluator(where, pool, min_episodes=CELL_EPISODES, task_episodes=CELL_EPISODES)(table)

    with ExitStack() as stack:
        env = partial(GameEnv, "leduc_poker")
        vec = stack.enter_context(pufferlib.make(env, num_envs=EVALUATION_ENVS, seed=1))
        for _ in range(2 * TABLE):
            pool.add(MLP(vec.observation_layout, vec.single_action_space), Origin("mlp"))
        ways["one at a time"] = one_at_a_time(pool, vec.observation_layout, vec.single_action_space)
        ways["in process"] = partial(evaluated, vec)
        for num_actors in NUM_ACTORS:
            coordinator = Coordinator(pool, env, num_actors=num_actors, num_envs=EVALUATION_ENVS, start_timeout=600.0)
            ways[f"{num_actors} actors"] = partial(evaluated, stack.enter_context(coordinator))
        for way in ways.values():
            way(0)  # starts the actors, which fetch weights
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(NUM_TURNS):
            for name in rng.permutation(list(ways)).tolist():
                start, cpu_start = perf_counter(), process_time()
                num_episodes = ways[name](number)
                speeds[name].append(num_episodes / (perf_counter() - start))
                cpu[name].append(num_episodes / (process_time() - cpu_start))
    return {"episodes_per_s": speeds, "episodes_per_cpu_s": cpu, "load": os.getloadavg()[1], "nice": os.nice(0)}


def sections(results: dict[str, Any]) -> dict[str, str]:
    """Return the Markdown tables by their names."""
    lines = [
        "| solver | policies each at NashConv 1.0 | at 0.5 | seconds | MALib's Table 3, policies | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, result in results.get("leduc", {}).items():
        sizes, seconds = result["sizes"], result["seconds"]
        size, theirs = MALIB.get(name, ("not published", "not published"))
        reached = sizes.get("0.5", f"never (at {result['size']} still {result['nash_conv']:.1f})")
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
            cells.append(_ratio_text(one, took, "{:.2f}"))
        rows.append(f"| {count} | {' | '.join(cells)} |")
    if one:
        rows += ["", f"One policy: {median(one) * 1e6:,.0f} µs a batch. {results['machine']}."]
    return {"leduc": "\n".join(lines), "router": "\n".join(rows), "evaluation": _evaluation_table(results)}


def _evaluation_table(results: dict[str, Any]) -> str:
    if "evaluation" not in results:
        return ""
    measured = results["evaluation"]
    episodes, cpu = measured["episodes_per_s"], measured["episodes_per_cpu_s"]
    alone, first = "one at a time", "1 actors"
    rows = [
        "| evaluated by | episodes/s | ratio to one at a time | the same by CPU time | ratio to one actor |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, speeds in episodes.items():
        cells = [
            {"in process": "`Evaluator` in this process", first: "1 actor"}.get(name, name),
            f"{median(speeds):,.0f} ({min(speeds):,.0f}–{max(speeds):,.0f})",
            _ratio_text(speeds, episodes[alone], "{:.1f}"),
            "–" if "actors" in name else _ratio_text(cpu[name], cpu[alone], "{:.1f}"),
            _ratio_text(speeds, episodes[first], "{:.2f}") if "actors" in name else "–",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    conditions = f"Niceness {measured['nice']}, load {measured['load']:.1f} over five minutes. {results['machine']}."
    return "\n".join([*rows, "", conditions])


def _ratio_text(numbers: list[float], others: list[float], form: str) -> str:
    """Return the median, minimum and maximum of the ratios within repeats as text."""
    ratios = sorted(number / other for number, other in zip(numbers, others, strict=True))
    return f"{form} ({form}–{form})".format(median(ratios), ratios[0], ratios[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("leduc", "router", "evaluation"))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if not options.page:
        results |= {"machine": machine(), "revision": version()}
        with threadpool_limits(1):
            torch.set_num_threads(1)
            if options.only in (None, "leduc"):
                results["leduc"] = {name: leduc(name) for name in SOLVERS}
            if options.only in (None, "router"):
                results["router"] = routing()
            if options.only in (None, "evaluation"):
                results["evaluation"] = evaluation()
        with written_whole(RESULT) as part:
            part.write_text(table_text(results))
    write_page(PAGE, fill(PAGE.read_text(), sections(results)))
    for table in sections(results).values():
        print(table, end="\n\n")


if __name__ == "__main__":
    main()
