"""Measure training that stays on the device: where its time goes, and the returns over the seconds of training.

    python -m benchmarks.gpu_train                              on a GPU
    python -m benchmarks.gpu_train --device host --short        the same program on the CPU, within 3 minutes
    python -m benchmarks.gpu_train --cases tag/grid:2000x5 --limit 60    one case, at most a minute
    python -m benchmarks.gpu_train --plot                       draws all results again

An iteration of cleanrl_demo.ppo_cuda is timed as a whole, and its parts separately: playing a rollout, the environments
of a rollout alone (with actions that are ready), and the update. Inference is the time of playing beyond the
environments. On a GPU each part is a CUDA graph timed by events, on the host it is timed by clocks. Parts take turns;
the figures are medians of repeats, with the least and the greatest. Two more figures are the share of an iteration in
which the host launches, and the bytes that cross the bus per step, by our counter and, on a GPU, by the memory copies
that torch.profiler sees. After each case, iterations of cleanrl_demo.ppo_fused are timed as a whole, with the same
rollouts and as many minibatches.

Then 12 agents learn continuous Tag with one network for all: on the device, over our pool on the CPU
(cleanrl_demo.ppo), and in a loop that steps one environment after another, like Gymnasium's SyncVectorEnv (the same
trainer on backend "serial"). The three take turns, seed by seed. Cases with a target come first; cases without time
left are listed. Writes benchmarks/results/gpu-train-<device>.json and docs/pictures/gpu-train-<device>.png, and with
``--lines`` a line of JSON for each figure as it comes; with ``--limit`` it draws nothing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import json
import math
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import RESULTS, Case, Clock, device_facts, timed
from benchmarks.gpu_fused import fused_figure
from benchmarks.lines import append, table_text
from benchmarks.ratios import MedianRange
from benchmarks.tag_learning import GAMES
from cleanrl_demo import ppo, ppo_cuda
from pufferlib.errors import KernelError
from pufferlib.training.cuda_graphs import GraphedIteration, on_own_stream
from pufferlib.training.plot import SECONDS_TAG, Curve, NoScalar, read
from pufferlib.training.results import RETURN_OF
from pufferlib.training.session import environments, origin_of, torch_set_up

__all__ = ["Measured", "memcpy_nbytes", "reached", "split", "table"]

PICTURES = Path("docs/pictures")
ROLLOUT_LENGTH = 32
SHORT = {
    "num_envs": (10, 100), "num_agents": (5, 20), "repeats": 3, "min_steps": 32, "min_s": 0.1, "most_s": 0.6,
    "seeds": 2, "learning_steps": 30_000, "learning_envs": 8,
}  # fmt: skip
LONG = {
    "num_envs": (100, 2_000, 10_000, 60_000), "num_agents": (5, 105, 1_000), "repeats": 5, "min_steps": 320,
    "min_s": 1.0, "most_s": 10.0, "seeds": 5, "learning_steps": 2_000_000, "learning_envs": 128,
}  # fmt: skip
TARGETS = {("tag/grid", 2_000, 5): 2e7, ("tag/grid", 2_000, 1_000): 2e6, ("tag/grid", 60_000, 5): 1e8}
TAG_12: Mapping[str, Any] = {**GAMES["tag/continuous"], "num_runners": 10}
WAYS = ("device", "pool", "one after another")
TEAMS = ("tagger", "runner")
FOR_LEARNING = ("tensorboard", "threadpoolctl")  # packages that store its curves and make its processes


@dataclass(frozen=True)
class Measured:
    """The figures of a case. Seconds are medians per iteration; rates are environment steps per second.

    launch_share: the share of an iteration in which the host launches; None on the host. *_nbytes_per_step: of all
    environments together; by_profiler is None on the host.
    """

    env: str
    num_envs: int
    num_agents: int
    median: float
    least: float
    greatest: float
    repeats: int
    whole_s: float
    environments_s: float
    inference_s: float
    training_s: float
    rest_s: float
    launch_share: float | None
    host_to_device_nbytes_per_step: float
    device_to_host_nbytes_per_step: float
    by_profiler: dict[str, float] | None


def cases(envs: Sequence[str], settings: Mapping[str, Any]) -> list[Case]:
    """Return all cases, those with a target first."""
    all_cases = [Case(*sizes) for sizes in itertools.product(envs, settings["num_envs"], settings["num_agents"])]
    return sorted(all_cases, key=lambda case: (case.env, case.num_envs, case.num_agents) not in TARGETS)


def split(whole_s: float, playing_s: float, environments_s: float, update_s: float) -> dict[str, float]:
    """Return the seconds of each part of an iteration; ``rest_s`` is the remainder, at least 0."""
    inference_s = max(0.0, playing_s - environments_s)
    return {
        "whole_s": whole_s,
        "environments_s": environments_s,
        "inference_s": inference_s,
        "training_s": update_s,
        "rest_s": max(0.0, whole_s - environments_s - inference_s - update_s),
    }


def measured(case: Case, device: str, settings: Mapping[str, Any]) -> Measured:
    """Return the figures of a case's iterations."""
    config = ppo_cuda.Config(
        env=case.env,
        env_kwargs=case.env_kwargs,
        num_envs=case.num_envs,
        device=device,
        rollout_length=ROLLOUT_LENGTH,
        runs=None,
    )
    with torch_set_up(config), environments(config, None) as vec, on_own_stream(config.device):
        where: torch.device = vec.device  # type: ignore[attr-defined]
        learner = ppo_cuda.Learner(vec, origin_of(config, None), config)
        vec.async_reset(seed=1)
        rollout = ppo_cuda.Rollout(vec, learner, config)
        rollout.begin()
        rollout.play()

        def step_environments() -> tuple[torch.Tensor, ...]:
            for step in range(ROLLOUT_LENGTH):
                rollout.step(step)
            return ()

        def play() -> tuple[torch.Tensor, ...]:
            rollout.play()
            return ()

        def train() -> tuple[torch.Tensor, ...]:
            return (ppo_cuda.update(learner, rollout, config),)

        iterate = ppo_cuda.iteration(rollout, config)
        parts = [
            iterate,
            *(GraphedIteration(part, learner.generator, config) for part in (play, step_environments, train)),
        ]

        def steps(part: Callable[[], Any]) -> Callable[[], int]:
            def call() -> int:
                part()
                return ROLLOUT_LENGTH

            return call

        for part in parts * (3 if where.type == "cuda" else 0):  # so that each graph is captured
            part()
        timings = in_turns([steps(part) for part in parts], settings, where)
        seconds = [ROLLOUT_LENGTH / median(rates) for rates in timings]
        vec.stats(reset=True)  # type: ignore[call-arg]
        iterate.play()  # launched one by one: our counter does not see a replayed graph
        counted: Any = vec.stats()
        rates = [rate * case.num_envs for rate in timings[0]]
        on_gpu = where.type == "cuda"
        return Measured(
            case.env,
            case.num_envs,
            case.num_agents,
            median(rates),
            min(rates),
            max(rates),
            len(rates),
            **split(*seconds),
            launch_share=launching_s(iterate, where) / seconds[0] if on_gpu else None,
            host_to_device_nbytes_per_step=counted.host_to_device_nbytes / ROLLOUT_LENGTH,
            device_to_host_nbytes_per_step=counted.device_to_host_nbytes / ROLLOUT_LENGTH,
            by_profiler=profiled(iterate, where) if on_gpu else None,
        )


def in_turns(
    parts: Sequence[Callable[[], int]], settings: Mapping[str, Any], device: torch.device
) -> list[list[float]]:
    """Return the steps per second of each part in each repeat. Parts take turns, so a load affects all alike.

    A part plays some steps and returns their number.
    """
    once = {**settings, "repeats": 1, "most_s": settings["most_s"] / settings["repeats"]}
    rates, num_calls = [], []
    for part in parts:
        part_rates, num_steps = timed(part, once, device)
        rates.append(part_rates)
        num_calls.append(max(1, num_steps // ROLLOUT_LENGTH))
    for _ in range(settings["repeats"] - 1):
        for part, part_rates, calls in zip(parts, rates, num_calls, strict=True):
            clock = Clock(device)
            num_steps = sum(part() for _ in range(calls))
            part_rates.append(num_steps / clock.seconds())
    return rates


def launching_s(iterate: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds in which the host launches an iteration: the duration of a call that does not wait."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize(device)
        start_s = time.perf_counter()
        iterate()
        times.append(time.perf_counter() - start_s)
    return median(times)


def profiled(iterate: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Return the bytes that cross the bus per step in each direction, by the copies that the profiler sees."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=activities) as profile:
            iterate()
            torch.cuda.synchronize(device)
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        copied = memcpy_nbytes(json.loads(path.read_text()))
    return {way: nbytes / ROLLOUT_LENGTH for way, nbytes in copied.items()}


def memcpy_nbytes(trace: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of all copies between host and device in a torch.profiler trace."""
    totals = {"HtoD": 0, "DtoH": 0}
    for event in trace["traceEvents"]:
        for way in totals:
            if event.get("cat") == "gpu_memcpy" and way in event["name"]:
                totals[way] += int(event["args"]["bytes"])
    return totals


# ------------------------------------------------------------------------------------------------ returns over seconds


def learnt(way: str, seed: int, device: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the curves of a run: seconds, steps and each team's mean return, all of the same length."""
    common: dict[str, Any] = {
        "env": "tag/continuous",
        "env_kwargs": TAG_12,
        "seed": seed,
        "total_steps": settings["learning_steps"],
        "num_envs": settings["learning_envs"],
        "rollout_length": ROLLOUT_LENGTH,
        "num_epochs": 4,
        "num_minibatches": 4,
        "learning_rate": 1e-3,
        "eval_episodes": 1,
        "checkpoint_every": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        if way == "device":
            result = ppo_cuda.train(ppo_cuda.Config(**common, device=device, runs=folder))
        else:
            backend = "pool" if way == "pool" else "serial"
            result = ppo.train(ppo.Config(**common, backend=backend, runs=folder))
        assert result.run_folder is not None
        seconds = read(result.run_folder, SECONDS_TAG)
        curves = {team: team_curve(result.run_folder, team) for team in TEAMS}
    steps = curves[TEAMS[0]].steps
    return {
        "way": way,
        "seed": seed,
        "num_steps": result.num_steps,
        "training_s": result.seconds,
        "seconds": np.interp(steps, seconds.steps, seconds.values).round(3).tolist(),
        "steps": steps.tolist(),
        "returns": {team: np.interp(steps, *curves[team]).round(4).tolist() for team in TEAMS},
    }


def team_curve(run_folder: Path, team: str) -> Curve:
    """Return the mean return of a team's agents; one trainer records it by team, the other by agent."""
    try:
        return read(run_folder, f"{RETURN_OF}{team}")
    except NoScalar:
        curves = [read(run_folder, f"{RETURN_OF}{team}_{agent_index}") for agent_index in range(TAG_12[f"num_{team}s"])]
    steps = curves[0].steps
    return Curve(steps, np.mean([np.interp(steps, *curve) for curve in curves], axis=0))


def reached(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what each way had reached when the fastest run ended: the median, the least and the greatest.

    A run without a record by then counts with its first record.
    """
    at_s = min((run["seconds"][-1] for run in runs), default=0.0)
    rows = []
    for way in dict.fromkeys(run["way"] for run in runs):
        way_runs = [run for run in runs if run["way"] == way]
        row: dict[str, Any] = {"way": way, "at_s": at_s, "seeds": len(way_runs)}
        columns = {"steps": [np.interp(at_s, run["seconds"], run["steps"]) for run in way_runs]}
        columns["steps_per_s"] = [run["num_steps"] / run["training_s"] for run in way_runs]
        for team in TEAMS:
            columns[team] = [np.interp(at_s, run["seconds"], run["returns"][team]) for run in way_runs]
        for name, values in columns.items():
            row[name] = [float(statistic(values)) for statistic in (median, min, max)]
        rows.append(row)
    return rows


# ------------------------------------------------------------------------------------------------------------- results


def table(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"{results['device']}; {results['machine']}; load {' – '.join(f'{load:.1f}' for load in results['load'])}",
        "",
        "| environment | agents | environments | env-steps/s from end to end | environments | inference | training "
        "| rest | launching | bytes/step to, from |",
        "| --- |" + " ---: |" * 9,
    ]
    for row in results["figures"]:
        shares = [row[f"{part}_s"] / row["whole_s"] for part in ("environments", "inference", "training", "rest")]
        launching = "—" if row["launch_share"] is None else f"{row['launch_share']:.1%}"
        lines.append(
            f"| {row['env']} | {row['num_agents']:,} | {row['num_envs']:,} | {row['median']:,.3g} "
            f"({row['least']:,.3g}–{row['greatest']:,.3g}) | {' | '.join(f'{share:.0%}' for share in shares)} "
            f"| {launching} | {row['host_to_device_nbytes_per_step']:g}, {row['device_to_host_nbytes_per_step']:g} |"
        )
    for (env, num_envs, num_agents), target in TARGETS.items():
        for row in results["figures"]:
            if (row["env"], row["num_envs"], row["num_agents"]) == (env, num_envs, num_agents):
                met = "met" if row["median"] >= target else "missed"
                lines.append(f"\nTarget {target:.0e} for {env} {num_envs:,} × {num_agents:,}: {met}.")
    lines += [f"\nLeft out: {item}." for item in results.get("left_out", ())]
    if not results["reached"]:
        return "\n".join(lines)
    lines += [
        "",
        f"| 12 agents, continuous Tag, after {results['reached'][0]['at_s']:.1f} s | agents' steps | steps/s at all "
        "| a tagger's return | a runner's |",
        "| --- |" + " ---: |" * 4,
    ]
    for row in results["reached"]:
        cells = [f"{MedianRange(*row[name]):,.0f}" for name in ("steps", "steps_per_s")]
        cells += [f"{MedianRange(*row[team]):.2f}" for team in TEAMS]
        lines.append(f"| {row['way']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help='"cuda", "cuda:1" or "host"')
    parser.add_argument("--short", action="store_true", help="few cases, and two seeds")
    parser.add_argument("--learning-steps", type=int, help="of all 12 agents; 2 million, short 30,000")
    parser.add_argument("--envs", nargs="+", default=["tag/grid", "tag/continuous"])
    parser.add_argument("--cases", type=Case.of, nargs="+", metavar="CASE", help="these alone, such as tag/grid:2000x5")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin nothing more after these")
    parser.add_argument("--lines", type=Path, help="a file that gets a line of JSON for each figure as it comes")
    parser.add_argument("--out", type=Path, help="the JSON file; by default benchmarks/results/gpu-train-<device>.json")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder of the picture")
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    if options.plot:
        from benchmarks.gpu_plots import plot_training

        for path in sorted(RESULTS.glob("gpu-train-*.json")):
            print(plot_training(path, options.pictures))
        return
    settings: dict[str, Any] = dict(SHORT if options.short else LONG)
    settings["learning_steps"] = options.learning_steps or settings["learning_steps"]
    device = torch.device("cpu" if options.device == "host" else options.device)
    load, start_s = os.getloadavg()[0], time.perf_counter()
    deadline_s = start_s + (options.limit or math.inf)
    figures: list[dict[str, Any]] = []
    by_fused: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    left_out = []
    append(options.lines, of="device", **device_facts(device))
    for case in options.cases or cases(options.envs, settings):
        try:
            if time.perf_counter() >= deadline_s:
                left_out.append(f"{case.text}, for want of time")
                continue
            figure = asdict(measured(case, options.device, settings))
            print(f"{case.text:32} {figure['median']:,.3g} env-steps/s", flush=True)
            append(options.lines, of="training", **figure)
            figures.append(figure)
            figure = fused_figure(case, options.device, ROLLOUT_LENGTH, settings)
            print(f"{case.text:32} {figure['median']:,.3g} env-steps/s by ppo_fused", flush=True)
            append(options.lines, of="training by ppo_fused", **figure)
            by_fused.append(figure)
        except torch.OutOfMemoryError:
            left_out.append(f"{case.text}, for want of memory")
            torch.cuda.empty_cache()
        except KernelError as error:
            left_out.append(f"{case.text} by ppo_fused: {error}")
    lacking = [package for package in FOR_LEARNING if importlib.util.find_spec(package) is None]
    if lacking:
        left_out.append(f"learning, for want of {', '.join(lacking)}")
    seeds = range(1, settings["seeds"] + 1) if not lacking else ()
    for seed, shift in itertools.product(seeds, range(len(WAYS))):
        if time.perf_counter() >= deadline_s:
            left_out.append(f"learning from seed {seed} on, for want of time")
            break
        runs.append(learnt(WAYS[(seed + shift) % len(WAYS)], seed, options.device, settings))
        append(
            options.lines,
            of="learning",
            **{name: runs[-1][name] for name in ("way", "seed", "num_steps", "training_s")},
        )
    results = {
        **device_facts(device),
        "command": shlex.join(["python", "-m", "benchmarks.gpu_train", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "load": [load, os.getloadavg()[0]],
        "seconds": round(time.perf_counter() - start_s, 1),
        "figures": figures,
        "by_fused": by_fused,
        "left_out": left_out,
        "runs": runs,
        "reached": reached(runs),
    }
    path = options.out or RESULTS / f"gpu-train-{re.sub(r'[^a-z0-9]+', '-', str(results['device']).lower())}.json"
    path.write_text(table_text(results))
    print("\n" + table(results))
    if options.limit is None:
        from benchmarks.gpu_plots import plot_training

        print(plot_training(path, options.pictures))


if __name__ == "__main__":
    main()
