"""Measure the cost of a call and a byte with backend="ray", and predict the speed of large clusters from it.

    python -m benchmarks.ray_scale [--repeats 3] [--seconds 0.5] [--plot]

Measures calls to one actor with local workers, as the backend ships them: small ones over its own sockets, large ones
through Ray. Fits ``ray_model`` to these, whose environments do nothing. Compares its forecasts with the speed of one,
two and three nodes of one machine, with environments that sleep, none of which the fit has seen. Then simulates 1 to
1,000 nodes. Writes benchmarks/results/ray_scale.json, and from it docs/benchmarks/ray_scale.png and the tables of
docs/ray.md. Takes four minutes; --plot only draws and writes from existing results.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import pufferlib
from benchmarks.envs import PlainEnv
from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.ray_model import Arrangement, Call, Costs, Forecast, Model, fitted, simulate
from benchmarks.report import PLOTS, RESULTS, ROOT
from benchmarks.revisions import version
from pufferlib.telemetry.durations import seconds_text
from pufferlib.tuning.bench import machine
from pufferlib.vectorization.core.plan import available_cpus

__all__ = ["learner_bound", "plot", "scenarios", "texts"]

STORED = RESULTS / "ray_scale.json"
PICTURE = PLOTS / "ray_scale.png"
PAGE = ROOT / "docs" / "ray.md"
# Environments per actor of the fitted calls, by observation and number of workers. (Nested ones have 1.1 kB.)
CALLS = {
    ("small", 1): (1, 2, 4, 8, 16, 32, 64, 128),
    ("small", 4): (4, 16, 64),
    ("nested", 1): (8, 32, 64, 128),
    ("large", 1): (1, 2, 4, 8, 32),
    ("large", 4): (8, 32),
}
SLEEP_S = 1e-3
NUM_NODES = (1, 2, 3)
SLEEPERS = ((1, 1), (8, 1), (8, 4), (32, 4), (128, 4))  # environments and workers per actor, whose steps sleep
POOLED = ((8, 1), (32, 4))  # the same in a pool: with as many environments in a batch as an actor has
SIZES = (1, 2, 4, 6, 10, 20, 40, 60, 100, 200, 400, 600, 1000)  # simulated nodes
BOUND, FULL = 0.9, 0.998  # of the learner's time: from which on it is the bottleneck, and has none left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repeats", type=int, default=3, help="of each figure; the results hold the median and the range"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each repeat")
    parser.add_argument("--plot", action="store_true", help="only draw the existing results, and write the tables")
    options = parser.parse_args()
    if not options.plot:
        STORED.write_text(table_text(measured(options)))
    report = json.loads(STORED.read_text())
    plot(report, PICTURE)
    write_page(PAGE, fill(PAGE.read_text(), texts(report)))
    print(f"Wrote {PICTURE.relative_to(ROOT)} and the tables of {PAGE.relative_to(ROOT)}")


# --------------------------------------------------------------------------------------------------- measuring


def measured(options: Any) -> dict[str, Any]:
    """Measure calls on one node, and sleeping environments on one to three; return the report."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    import ray
    from ray.cluster_utils import Cluster

    report: dict[str, Any] = {
        "machine": machine(), "revision": version(), "ray": ray.__version__,
        "load": os.getloadavg()[0], "cores": available_cpus(),
        "command": f"python -m benchmarks.ray_scale --repeats {options.repeats} --seconds {options.seconds:g}",
        "date": time.strftime("%Y-%m-%d"), "calls": [], "nodes": [],
    }  # fmt: skip
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 512 << 20})
    try:
        for num_nodes in NUM_NODES:
            cluster.add_node(num_cpus=1, object_store_memory=512 << 20)  # for an actor: the head has no CPU
            if num_nodes == 1:
                for (kind, num_workers), counts in CALLS.items():
                    for envs in counts:
                        creator = functools.partial(PlainEnv, kind)
                        figures = played(creator, cluster.address, 1, envs, num_workers, envs, options)
                        report["calls"].append({"envs": envs, "workers": num_workers, **figures})
                        print(json.dumps(report["calls"][-1]), flush=True)
            pooled = [(*sizes, sizes[0]) for sizes in POOLED] if num_nodes > 1 else []
            for envs, num_workers, batch in (*((*sizes, num_nodes * sizes[0]) for sizes in SLEEPERS), *pooled):
                creator = functools.partial(PlainEnv, mean_s=SLEEP_S, kind="sleep")
                figures = played(creator, cluster.address, num_nodes, envs, num_workers, batch, options)
                where = {"nodes": num_nodes, "envs": envs, "workers": num_workers, "batch": batch}
                report["nodes"].append({**where, **figures})
                print(json.dumps(report["nodes"][-1]), flush=True)
    finally:
        cluster.shutdown()
    return report


def played(
    creator: Any, address: str, num_actors: int, envs: int, num_workers: int, batch_size: int, options: Any
) -> dict[str, Any]:
    """Return the seconds per batch, the driver thread's CPU seconds per batch, a step's seconds, and a row's bytes."""
    with pufferlib.make(
        creator,
        backend="ray",
        num_envs=num_actors * envs,
        num_workers=num_actors,
        batch_size=batch_size,
        seed=1,
        backend_kwargs={"address": address, "local_workers": num_workers},
    ) as vec:
        actions = np.zeros(batch_size, np.int64)
        vec.async_reset()
        vec.recv()
        vec.send(actions)
        play_for(vec, actions, 0.3)
        vec.stats(reset=True)
        timings = [play_for(vec, actions, options.seconds) for _ in range(options.repeats)]
        step_s = float(vec.stats().step.mean_s)
        obs_nbytes = vec.observation_layout.nbytes
    batches, drivers = ([timing[column] for timing in timings] for column in (0, 1))
    return {"batch_s": spread_of(batches), "driver_s": spread_of(drivers), "step_s": step_s, "obs_nbytes": obs_nbytes}


def play_for(vec: pufferlib.VecEnv, actions: Any, seconds: float) -> tuple[float, float]:
    """Return the seconds of a batch, and the CPU seconds of this thread among them."""
    num, start_s, own_s = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - start_s < seconds or num < 3:
        vec.recv()
        vec.send(actions)
        num += 1
    return (time.perf_counter() - start_s) / num, (time.thread_time() - own_s) / num


def spread_of(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


# ---------------------------------------------------------------------------------------------------- modelling


def model_of(report: Mapping[str, Any]) -> Model:
    """Fit the model to the calls on one node: those over a socket, and those through Ray."""
    return Model(*(_costs_of(report, is_direct) for is_direct in (True, False)))


def _costs_of(report: Mapping[str, Any], is_direct: bool) -> Costs:
    drivers, rests = [], []
    for point in report["calls"]:
        call = Call(point["envs"], point["workers"], point["obs_nbytes"])
        if call.is_direct == is_direct:
            driver_s = point["driver_s"]["median"]
            drivers.append((call, driver_s))
            rests.append((call, max(1e-9, point["batch_s"]["median"] - driver_s)))
    return Costs(fitted(drivers), fitted(rests))


def comparisons(report: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], float, float]]:
    """Yield each measured point with sleeping environments, its steps per second, and the forecast of these."""
    model = model_of(report)
    for point in report["nodes"]:
        arrangement = Arrangement(
            point["nodes"], point["envs"], point["obs_nbytes"], point["step_s"], num_workers=point["workers"],
            batch_envs=point["batch"], cores=report["cores"],
        )  # fmt: skip
        yield point, point["batch"] / point["batch_s"]["median"], simulate(model, arrangement).steps_per_s


def scenarios() -> dict[str, Arrangement]:
    """Return the simulated scenarios by name. A node has 16 cores; a batch holds the first half of the environments."""
    node = Arrangement(1, 256, 32, 1e-3, num_workers=16, learner_s=1e-6)
    return {
        "256 envs an actor": node,
        "16 envs an actor": node._replace(envs_per_actor=16),
        "256 envs, 28 KiB rows": node._replace(obs_nbytes=4 * 84 * 84),
        "256 envs, learner of 10 µs a step": node._replace(learner_s=1e-5),
        "rollouts of 32 steps a call": node._replace(steps_per_call=32),
    }


def over_nodes(model: Model, scenario: Arrangement) -> list[Forecast]:
    """Return the forecast of a scenario for each number of nodes.

    Once the driver's thread has no time left, more nodes change nothing, and are not simulated.
    """
    forecasts: list[Forecast] = []
    for num in SIZES:
        if forecasts and forecasts[-1].busy > FULL:
            forecasts.append(forecasts[-1])
            continue
        batch_envs = max(1, num * scenario.envs_per_actor // 2)
        arrangement = scenario._replace(num_actors=num, batch_envs=batch_envs)
        forecasts.append(simulate(model, arrangement, num_calls=4 * num + 400))
    return forecasts


def learner_bound(forecasts: list[Forecast]) -> int | None:
    """Return the least number of nodes at which the driver's thread is the bottleneck; None: more than simulated."""
    return next((num for num, forecast in zip(SIZES, forecasts, strict=True) if forecast.busy >= BOUND), None)


# ------------------------------------------------------------------------------------------------------- report


def texts(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of docs/ray.md, by the names of their marks."""
    model = model_of(report)
    about = (
        f"{report['machine']}, Ray {report['ray']}; load before it {report['load']:.1f}; `{report['command']}`; "
        f"{report['date']}."
    )
    compared = list(comparisons(report))
    errors = [abs(forecast / reached - 1) for _, reached, forecast in compared]
    cost = ["| | a call | a worker in it | an environment in it | 1 KiB of rows |", "| --- |" + " ---: |" * 4]
    for way, costs in (("over a socket", model.direct), ("through Ray", model.through_ray)):
        for name, part in (("the learner's thread", costs.driver), ("the way and the actor", costs.rest)):
            cells = (seconds_text(value) for value in (part.call_s, part.worker_s, part.env_s, 1024 * part.byte_s))
            cost.append(f"| {way}: {name} | {' | '.join(cells)} |")
    reached_lines = [
        "| nodes | environments a node | workers a node | a batch | steps a second (min – max) | forecast | error |",
        "| ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for point, reached, forecast in compared:
        low, high = (point["batch"] / point["batch_s"][name] for name in ("max", "min"))
        batch = "of all" if point["batch"] == point["nodes"] * point["envs"] else "of one"
        figures = f"{reached:,.0f} ({low:,.0f} – {high:,.0f}) | {forecast:,.0f} | {forecast / reached - 1:+.0%}"
        reached_lines.append(f"| {point['nodes']} | {point['envs']} | {point['workers']} | {batch} | {figures} |")
    ahead = ["| | " + " | ".join(f"{num:,}" for num in (1, 10, 100, 1000)) + " | learner-bound from |"]
    ahead.append("| --- |" + " ---: |" * 5)
    for name, scenario in scenarios().items():
        forecasts = over_nodes(model, scenario)
        cells = [f"{forecasts[SIZES.index(num)].steps_per_s:,.0f}" for num in (1, 10, 100, 1000)]
        bound = learner_bound(forecasts)
        ahead.append(f"| {name} | {' | '.join(cells)} | {'more' if bound is None else f'{bound:,} nodes'} |")
    return {
        "scale_costs": "\n".join([about, "", *cost]),
        "scale_nodes": "\n".join(
            [*reached_lines, "", f"Errors: median {median(errors):.0%}, at most {max(errors):.0%}."]
        ),
        "scale_ahead": "\n".join(ahead),
    }


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Draw the cost of a call over its environments, measured and fitted, and the forecasts over nodes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    model = model_of(report)
    drawing = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(drawing)
    left, right = drawing.subplots(1, 2)
    calls = [point for point in report["calls"] if point["workers"] == 1]
    for number, nbytes in enumerate(sorted({point["obs_nbytes"] for point in calls})):
        points = [point for point in calls if point["obs_nbytes"] == nbytes]
        envs = [point["envs"] for point in points]
        us = {
            name: [1e6 * point["batch_s"][name] / point["envs"] for point in points]
            for name in ("median", "min", "max")
        }
        bars = np.abs(np.array([us["min"], us["max"]]) - us["median"])
        left.errorbar(envs, us["median"], bars, fmt="o", color=f"C{number}", capsize=3, label=f"{nbytes:,} bytes")
        grid = [int(count) for count in np.unique(np.geomspace(1, max(envs), 50).round())]
        left.plot(grid, [1e6 * total(model, Call(count, 1, nbytes)) / count for count in grid], color=f"C{number}")
    left.set(xscale="log", yscale="log", xlabel="environments an actor", ylabel="µs an environment's step")
    left.set_title("A call of one actor: measured, and as fitted", fontsize=10)
    for number, (name, scenario) in enumerate(scenarios().items()):
        forecasts = over_nodes(model, scenario)
        right.plot(SIZES, [forecast.steps_per_s for forecast in forecasts], color=f"C{number}", marker=".", label=name)
        bound = learner_bound(forecasts)
        if bound is not None:
            right.plot(bound, forecasts[SIZES.index(bound)].steps_per_s, color=f"C{number}", marker="s", markersize=9)
    right.set(xscale="log", yscale="log", xlabel="nodes of 16 cores, steps of 1 ms", ylabel="steps a second")
    right.set_title("Pools over Ray, forecast; a square: the learner's thread is full", fontsize=10)
    for panel in (left, right):
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110, format="png")


def total(model: Model, call: Call) -> float:
    """Return the seconds of a call, by the model."""
    return sum(cost.of(*call) for cost in (model.direct if call.is_direct else model.through_ray))


if __name__ == "__main__":
    main()
