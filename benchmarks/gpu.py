"""Kernels on a device: steps of environments a second, over numbers of environments and agents.

    python -m benchmarks.gpu                      all cases, under 8 minutes on a GPU
    python -m benchmarks.gpu --device host        the same program where there is no GPU, in small
    python -m benchmarks.gpu --plot               nothing: it draws the plots of all results

Three ways to play: one launch a step through ``step`` of the VecEnv, the same captured in a CUDA graph, and
``rollout``, many steps in one launch with random actions. Actions lie on the device but for rollouts. Times are the
device's own (events) over at least 1,000 steps; medians of repeats with the least and the greatest. In the same run the
environment in NumPy on the CPU, and what a copy on the device makes of the memory's bandwidth. The kernel is held
against its reference first.
Writes benchmarks/results/gpu-<device>.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

import pufferlib
from pufferlib.bench import machine

__all__ = ["Case", "Figure", "cases", "measured"]

RESULTS = Path(__file__).parent / "results"
ENVS = ("tag/grid", "tag/continuous")
NUM_ENVS = (10, 100, 1_000, 2_000, 10_000, 60_000, 100_000)
NUM_AGENTS = (5, 105, 820, 1_000)
MEMORY_SHARE = 0.5  # of the device's, that a case may take
ROLLOUT_STEPS = 100
GRAPH_STEPS = 30  # a multiple of the blocks that take turns
NUM_REPEATS = 5
SHORT = {"num_envs": (10, 100, 1_000), "num_agents": (5, 105), "min_steps": 20, "min_s": 0.02, "repeats": 3}
LONG = {"num_envs": NUM_ENVS, "num_agents": NUM_AGENTS, "min_steps": 1_000, "min_s": 0.2, "repeats": NUM_REPEATS}
# Targets of env-steps a second on one GPU of today; facts of arithmetic, to be replaced by what is measured.
TARGETS = {
    ("tag/grid", 2_000, 5, "launch"): 3e8,
    ("tag/grid", 2_000, 5, "graph"): 8e8,
    ("tag/grid", 2_000, 5, "rollout"): 3e9,
    ("tag/grid", 60_000, 5, "graph"): 5e9,
    ("tag/grid", 2_000, 1_000, "launch"): 5e7,
    ("tag/continuous", 2_000, 5, "launch"): 2e8,
    ("tag/continuous", 2_000, 105, "launch"): 3e7,
}


@dataclass(frozen=True)
class Case:
    """One environment, so many of it, of so many agents."""

    env: str
    num_envs: int
    num_agents: int

    @property
    def env_kwargs(self) -> dict[str, Any]:
        if self.env == "tag/grid":
            return {"num_taggers": self.num_agents - 1, "grid_length": 100, "full_observation": False}
        num_taggers = max(1, self.num_agents // 20)
        return {
            "num_taggers": num_taggers,
            "num_runners": self.num_agents - num_taggers,
            "num_nearest": self.num_nearest,
            "grid_length": 20.0,
            "episode_length": 500,
            "full_observation": False,
            "tagging_distance": 0.02,
        }

    @property
    def num_nearest(self) -> int:
        return min(10, self.num_agents - 1)

    @property
    def bytes_per_step(self) -> int:
        """What one environment's step has to read and write at least, in bytes: rows, state and actions."""
        outcome, returns = 4 + 3, 2 * 8
        if self.env == "tag/grid":
            observation, state, action = 6 * 4, 2 * 2 * 4, 8
        else:
            observation, state, action = (7 * self.num_nearest + 1) * 4, 2 * 5 * 4 + 2, 2 * 8
        return self.num_agents * (observation + state + action + outcome + returns) + 2 * 4 + 2


@dataclass(frozen=True)
class Figure:
    """Environment steps a second of a case: the median of some repeats, and the least and the greatest."""

    env: str
    num_envs: int
    num_agents: int
    way: str  # "launch", "graph", "rollout" or "numpy"
    median: float
    least: float
    greatest: float
    repeats: int
    share_of_bandwidth: float | None = None  # of what a copy reaches, by the bytes that have to be moved


def cases(settings: dict[str, Any]) -> Iterator[Case]:
    for env in ENVS:
        for num_agents in settings["num_agents"]:
            for num_envs in settings["num_envs"]:
                yield Case(env, num_envs, num_agents)


def drawn(vec: pufferlib.VecEnv, num_steps: int) -> np.ndarray[Any, Any]:
    """Return random actions, (num_steps, rows, …)."""
    space = vec.single_action_space
    most = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec  # type: ignore[attr-defined]
    return np.random.default_rng(1).integers(0, most, (num_steps, vec.agents_per_batch, *(space.shape or ())))


def timed(play: Callable[[], int], settings: dict[str, Any], device: torch.device) -> list[float]:
    """Return steps a second of some repeats. play: plays, and returns how many steps that were."""
    play()  # compiles, allocates
    steps, start_s = 0, time.perf_counter()
    while steps == 0 or time.perf_counter() - start_s < 0.1 * settings["min_s"]:
        steps += play()
    finish(device)
    per_s = steps / (time.perf_counter() - start_s)
    calls = max(1, round(max(settings["min_steps"], settings["min_s"] * per_s) / play()))
    rates = []
    for _ in range(settings["repeats"]):
        steps, clock = 0, Clock(device)
        for _ in range(calls):
            steps += play()
        rates.append(steps / clock.seconds())
    return rates


class Clock:
    """Seconds since it was made: of events on a device, of the process on the host."""

    def __init__(self, device: torch.device) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
        finish(device)
        if self._events:
            self._events[0].record()
        self._start_s = time.perf_counter()

    def seconds(self) -> float:
        if not self._events:
            return time.perf_counter() - self._start_s
        self._events[1].record()
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) / 1e3


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def figure(case: Case, way: str, rates: list[float], bandwidth: float | None = None) -> Figure:
    rates = [rate * case.num_envs for rate in rates]
    share = median(rates) * case.bytes_per_step / bandwidth if bandwidth else None
    return Figure(
        case.env, case.num_envs, case.num_agents, way, median(rates), min(rates), max(rates), len(rates), share
    )


def measured(case: Case, device: str, settings: dict[str, Any], bandwidth: float) -> Iterator[Figure]:
    """Yield what a case makes in each way."""
    with pufferlib.make(
        case.env, backend="cuda", num_envs=case.num_envs, seed=1, env_kwargs=case.env_kwargs, device=device
    ) as vec:
        where: torch.device = vec.device  # type: ignore[attr-defined]
        vec.reset()
        actions = torch.from_numpy(drawn(vec, 1)[0]).to(where)

        def launch() -> int:
            vec.step(actions)
            return 1

        def rollout() -> int:
            vec.rollout(ROLLOUT_STEPS, keep=False)  # type: ignore[attr-defined]
            return ROLLOUT_STEPS

        yield figure(case, "launch", timed(launch, settings, where), bandwidth)
        yield figure(case, "rollout", timed(rollout, settings, where), bandwidth)
        if where.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(GRAPH_STEPS):
                    vec.step(actions)

            def replay() -> int:
                graph.replay()
                return GRAPH_STEPS

            yield figure(case, "graph", timed(replay, settings, where), bandwidth)


def numpy_figure(case: Case, settings: dict[str, Any]) -> Figure:
    """Return what one environment in NumPy makes, on one core, times nothing."""
    with pufferlib.make(case.env, backend="serial", num_envs=1, seed=1, env_kwargs=case.env_kwargs) as vec:
        vec.reset()
        actions = drawn(vec, 1)[0]

        def step() -> int:
            vec.step(actions)
            return 1

        one = Case(case.env, 1, case.num_agents)
        return figure(one, "numpy", timed(step, {**settings, "min_steps": 20}, torch.device("cpu")))


def hold_against_reference(device: str) -> None:
    """Raise AssertionError unless both play the same, 64 steps of 4 environments."""
    for case in (Case(env, 4, num_agents) for env in ENVS for num_agents in (5, 105)):
        made: dict[str, Any] = dict(num_envs=4, seed=7, env_kwargs={**case.env_kwargs, "grid_length": 6})
        with (
            pufferlib.make(case.env, backend="serial", **made) as plain,
            pufferlib.make(case.env, backend="cuda", device=device, **made) as kernel,
        ):
            plain.reset()
            kernel.reset()
            for actions in drawn(plain, 64):
                plain.step(actions)
                kernel.step(actions)
                ours, theirs = kernel.host_batch, plain.batch
                assert ours is not None and theirs is not None
                for name in ("observations", "rewards", "terminations", "truncations", "masks"):
                    assert np.array_equal(getattr(ours, name), getattr(theirs, name)), (case, name)


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes a second that a copy on the device reads and writes."""
    nbytes = 2**30 if device.type == "cuda" else 2**27
    source = torch.empty(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rates = []
    for _ in range(5):
        clock = Clock(device)
        for _ in range(10):
            target.copy_(source)
        rates.append(20 * nbytes / clock.seconds())
    return median(rates)


def fits(case: Case, device: torch.device) -> bool:
    """Whether a case's blocks and state fit in the device's memory."""
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 4 * 2**30
    return case.num_envs * case.bytes_per_step * 4 < MEMORY_SHARE * total


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return what a result has to say of where it was made."""
    facts: dict[str, Any] = {"machine": machine(), "torch": torch.__version__, "python": sys.version.split()[0]}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts["device"] = properties.name
        facts["memory_nbytes"] = properties.total_memory
        facts["driver"] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        import cupy

        facts["cupy"] = cupy.__version__
    else:
        facts["device"] = "host"
    return facts


def table(results: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"{results['device']}, copy {results['copy_bandwidth'] / 1e9:,.0f} GB/s; {results['machine']}",
        "",
        "| environment | agents | environments | way | env-steps/s: median (least–greatest) | of the bandwidth |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for each in results["figures"]:
        share = each["share_of_bandwidth"]
        lines.append(
            f"| {each['env']} | {each['num_agents']:,} | {each['num_envs']:,} | {each['way']} | {each['median']:,.3g} "
            f"({each['least']:,.3g}–{each['greatest']:,.3g}) | {'' if share is None else f'{share:.0%}'} |"
        )
    for (env, num_envs, num_agents, way), target in TARGETS.items():
        for each in results["figures"]:
            if (each["env"], each["num_envs"], each["num_agents"], each["way"]) == (env, num_envs, num_agents, way):
                met = "met" if each["median"] >= target else "missed"
                lines.append(f"\nTarget {target:.0e} for {env} {num_envs:,} × {num_agents:,}, {way}: {met}.")
    return "\n".join(lines)


def plot(paths: list[Path], folder: Path) -> list[Path]:
    """Draw steps a second over environments, a line for each number of agents, a panel for each way."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    drawn = []
    for path in paths:
        results = json.loads(path.read_text())
        ways = [way for way in ("launch", "graph", "rollout") if any(f["way"] == way for f in results["figures"])]
        size = (4.2 * len(ways), 3.2 * len(ENVS))
        pictures, panels = pyplot.subplots(len(ENVS), len(ways), figsize=size, sharex=True, sharey="row", squeeze=False)
        for env, line_of_panels in zip(ENVS, panels, strict=True):
            for way, panel in zip(ways, line_of_panels, strict=True):
                for num_agents in NUM_AGENTS:
                    of = (env, way, num_agents)
                    line = [f for f in results["figures"] if (f["env"], f["way"], f["num_agents"]) == of]
                    if line:
                        x, y = [f["num_envs"] for f in line], [f["median"] for f in line]
                        panel.loglog(x, y, "o-", label=f"{num_agents} agents")
                panel.set_title(f"{env}, {way}")
                panel.grid(alpha=0.3)
            line_of_panels[0].set_ylabel("environment steps a second")
        for panel in panels[-1]:
            panel.set_xlabel("environments")
        panels[0][0].legend()
        pictures.suptitle(results["device"])
        pictures.tight_layout()
        target = folder / f"{path.stem}.png"
        pictures.savefig(target, dpi=110)
        pyplot.close(pictures)
        drawn.append(target)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help='"cuda", "cuda:1" or "host"')
    parser.add_argument("--short", action="store_true", help="few cases, for tests; on the host always")
    parser.add_argument("--out", type=Path, help="the JSON file; by default benchmarks/results/gpu-<device>.json")
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    if options.plot:
        print(*plot(sorted(RESULTS.glob("gpu-*.json")), Path("docs/pictures")), sep="\n")
        return
    settings = SHORT if options.short or options.device == "host" else LONG
    with pufferlib.make("tag/grid", backend="cuda", device=options.device) as vec:
        device: torch.device = vec.device  # type: ignore[attr-defined]
    hold_against_reference(options.device)
    bandwidth = copy_bandwidth(device)
    results = {
        **device_facts(device),
        "command": "python -m benchmarks.gpu " + " ".join(sys.argv[1:]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "copy_bandwidth": bandwidth,
        "equal_to_reference": True,
        "figures": [],
    }
    for env in ENVS:
        for num_agents in settings["num_agents"]:
            results["figures"].append(asdict(numpy_figure(Case(env, 1, num_agents), settings)))
    for case in cases(settings):
        if not fits(case, device):
            continue
        for found in measured(case, options.device, settings, bandwidth):
            print(
                f"{found.env} {found.num_envs:>7,} x {found.num_agents:<5,} {found.way:8} {found.median:,.3g}",
                flush=True,
            )
            results["figures"].append(asdict(found))
    stem = re.sub(r"\W+", "-", str(results["device"]).lower())
    path = options.out or RESULTS / f"gpu-{stem}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + table(results))


if __name__ == "__main__":
    main()
