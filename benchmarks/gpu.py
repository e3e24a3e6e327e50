"""Measure kernels on a device: environment steps per second, over numbers of environments and agents.

    python -m benchmarks.gpu                      all cases, under 8 minutes on a GPU
    python -m benchmarks.gpu --device host        the same program on a small scale, without a GPU
    python -m benchmarks.gpu --cases tag/grid:2000x5 --limit 60     one case, at most a minute
    python -m benchmarks.gpu --plot               measures nothing: draws the plots of all results

There are six ways to play: one launch per step through ``step`` of the VecEnv ("launch"), the same captured in a CUDA
graph ("graph"), one that also samples the actions from logits ("logits"), and ``rollout``, many steps in one launch,
with random actions ("rollout") and, for 5 agents, with a network of two hidden layers of 64 inside it ("network"), on a
GPU also with that network on tensor cores ("bfloat16"). Actions and logits lie on the device. Times are taken by device
events over at least 1,000 steps, or as many as fit into a few seconds; the figures are medians of repeats, with the
least and the greatest. The same run measures the bandwidth of a copy on the device, the sampler next to torch's, the
time to hand CuPy the arguments of a launch, WarpDrive's environments of the same sizes if it is installed
(benchmarks/warpdrive.py), and last the environment in NumPy on the CPU. First of all, the kernel is compared with its
reference. Cases with a target come first; cases without time left are listed. Writes
benchmarks/results/gpu-<device>.json, and with ``--lines`` each figure at once as a line of JSON.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import re
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

import pufferlib
from benchmarks.lines import append, table_text
from benchmarks.revisions import version
from cuda_ext.data import arguments_dtype
from pufferlib.testing.kernel_usage import policy_of
from pufferlib.tuning.bench import machine
from pufferlib.vectorization.device.kernel_lookup import kernel_of

__all__ = ["Case", "Figure", "cases", "measured"]

RESULTS = Path(__file__).parent / "results"
ENVS = ("tag/grid", "tag/continuous")
NUM_ENVS = (10, 100, 1_000, 2_000, 10_000, 60_000, 100_000)
NUM_AGENTS = (5, 105, 820, 1_000)
MEMORY_SHARE = 0.5  # of the device's memory, for a case at most
ROLLOUT_STEPS = 100
GRAPH_STEPS = 30  # a multiple of the blocks that take turns
NUM_REPEATS = 5
SHORT = {
    "num_envs": (10, 100, 1_000), "num_agents": (5, 105), "sampler_envs": (1_000,), "min_steps": 20, "min_s": 0.02,
    "repeats": 3,
}  # fmt: skip
LONG = {
    "num_envs": NUM_ENVS, "num_agents": NUM_AGENTS, "sampler_envs": (2_000, 60_000), "min_steps": 1_000, "min_s": 0.2,
    "repeats": NUM_REPEATS,
}  # fmt: skip
# Seconds: at most for one way to play a case; after which no case begins; of these, for WarpDrive's cases.
LIMITS = {"most_s": 4.0, "all_s": 420.0, "warpdrive_s": 100.0}
SAMPLER_TARGET = 5  # times torch's
# Targets in env-steps per second on one current GPU: derived by arithmetic, until measurements replace them.
TARGETS = {
    ("tag/grid", 2_000, 5, "launch"): 3e8,
    ("tag/grid", 2_000, 5, "graph"): 8e8,
    ("tag/grid", 2_000, 5, "rollout"): 4e9,
    ("tag/grid", 2_000, 5, "network"): 1e8,
    ("tag/grid", 60_000, 5, "launch"): 5e9,
    ("tag/grid", 60_000, 5, "graph"): 8e9,
    ("tag/grid", 60_000, 5, "rollout"): 1.2e10,
    ("tag/grid", 60_000, 5, "network"): 5e8,
    ("tag/grid", 2_000, 1_000, "launch"): 5e7,
    ("tag/grid", 2_000, 1_000, "graph"): 6.5e7,
    ("tag/grid", 2_000, 1_000, "rollout"): 7e7,
    ("tag/continuous", 2_000, 5, "launch"): 2e8,
    ("tag/continuous", 2_000, 105, "launch"): 3e7,
}


@dataclass(frozen=True)
class Case:
    """An environment, with its number of copies and of agents."""

    env: str
    num_envs: int
    num_agents: int

    @classmethod
    def of(cls, name: str) -> Case:
        """Return the case of a name such as tag/grid:2000x5. Raises ArgumentTypeError."""
        match = re.fullmatch(r"([\w/]+):(\d+)x(\d+)", name)
        if match is None or match[1] not in ENVS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no case; write ENV:NUM_ENVSxNUM_AGENTS, ENV one of {', '.join(ENVS)}"
            )
        return cls(match[1], int(match[2]), int(match[3]))

    @property
    def text(self) -> str:
        return f"{self.env} {self.num_envs:,} x {self.num_agents:,}"

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
        """The least bytes that a step of one environment reads and writes: rows, state and actions."""
        outcome, returns = 4 + 3, 2 * 8
        if self.env == "tag/grid":
            observation, state, action = 6 * 4, 2 * 2 * 4, 8
        else:
            observation, state, action = (7 * self.num_nearest + 1) * 4, 2 * 5 * 4 + 2, 2 * 8
        return self.num_agents * (observation + state + action + outcome + returns) + 2 * 4 + 2


@dataclass(frozen=True)
class Sampling:
    """Rows per second for which actions are sampled: the median of some repeats, the least and the greatest."""

    env: str  # the environment of the actions
    rows: int
    options: str  # of each choice
    way: str  # "ours", "torch" or "multinomial"
    median: float
    least: float
    greatest: float
    repeats: int


@dataclass(frozen=True)
class Figure:
    """Environment steps per second of a case: the median of some repeats, the least and the greatest."""

    env: str
    num_envs: int
    num_agents: int
    way: str  # "launch", "graph", "logits", "rollout", "network", "bfloat16", "numpy" or "warpdrive"
    median: float
    least: float
    greatest: float
    repeats: int
    share_of_bandwidth: float | None = None  # of a copy's bandwidth, by the bytes that a step must move
    steps: int | None = None  # of each environment, in a repeat


def cases(settings: dict[str, Any]) -> list[Case]:
    """Return all cases, those with a target first."""
    product = itertools.product(ENVS, settings["num_agents"], settings["num_envs"])
    all_cases = [Case(env, num_envs, num_agents) for env, num_agents, num_envs in product]
    targets = {Case(env, num_envs, num_agents) for env, num_envs, num_agents, _ in TARGETS}
    return sorted(all_cases, key=lambda case: case not in targets)


def drawn(vec: pufferlib.VecEnv, num_steps: int) -> np.ndarray[Any, Any]:
    """Return random actions, (num_steps, rows, …)."""
    space = vec.single_action_space
    most = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec  # type: ignore[attr-defined]
    return np.random.default_rng(1).integers(0, most, (num_steps, vec.agents_per_batch, *(space.shape or ())))


def timed(play: Callable[[], int], settings: dict[str, Any], device: torch.device) -> tuple[list[float], int]:
    """Return the steps per second of each repeat, and the steps in a repeat. play: plays and returns a step count."""
    play()  # compiles, allocates
    steps, start_s = 0, time.perf_counter()
    while steps == 0 or time.perf_counter() - start_s < 0.1 * settings["min_s"]:
        per_call = play()
        steps += per_call
    finish(device)
    per_s, repeats = steps / (time.perf_counter() - start_s), settings["repeats"]
    steps_per_repeat = min(max(settings["min_steps"], settings["min_s"] * per_s), settings["most_s"] / repeats * per_s)
    calls = max(1, round(steps_per_repeat / per_call))
    rates = []
    for _ in range(repeats):
        clock = Clock(device)
        for _ in range(calls):
            play()
        rates.append(calls * per_call / clock.seconds())
    return rates, calls * per_call


class Clock:
    """A stopwatch that starts when it is made: by events on a device, by the process's clock on the host."""

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


def figure(case: Case, way: str, timing: tuple[list[float], int], bandwidth: float | None = None) -> Figure:
    rates = [rate * case.num_envs for rate in timing[0]]
    middle = median(rates)
    share = middle * case.bytes_per_step / bandwidth if bandwidth else None
    size = case.env, case.num_envs, case.num_agents
    return Figure(*size, way, middle, min(rates), max(rates), len(rates), share, timing[1])


def measured(case: Case, device: str, settings: dict[str, Any], bandwidth: float) -> Iterator[Figure]:
    """Yield the figure of a case for each way to play."""
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

        nvec = options_of(vec)
        logits = torch.randn(vec.agents_per_batch, sum(nvec), device=where)
        num_inputs = int(np.prod(vec.single_observation_space.shape or ()))
        policy = network(num_inputs, sum(nvec)).to(where)

        def launch_of_logits() -> int:
            vec.send_logits(logits)  # type: ignore[attr-defined]
            vec.recv()
            return 1

        def rollout_of_network(precision: str = "float32") -> int:
            vec.rollout(ROLLOUT_STEPS, policy=policy, keep=False, precision=precision)  # type: ignore[attr-defined]
            return ROLLOUT_STEPS

        yield figure(case, "launch", timed(launch, settings, where), bandwidth)
        if where.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(GRAPH_STEPS):
                    vec.step(actions)

            def replay() -> int:
                graph.replay()
                return GRAPH_STEPS

            yield figure(case, "graph", timed(replay, settings, where), bandwidth)
        yield figure(case, "rollout", timed(rollout, settings, where), bandwidth)
        if case.num_agents == 5:
            yield figure(case, "network", timed(rollout_of_network, settings, where))
        if case.num_agents == 5 and where.type == "cuda":
            yield figure(case, "bfloat16", timed(partial(rollout_of_network, "bfloat16"), settings, where))
        yield figure(case, "logits", timed(launch_of_logits, settings, where))


def options_of(vec: pufferlib.VecEnv) -> list[int]:
    """Return the number of options of each choice of an action."""
    space: Any = vec.single_action_space
    return np.atleast_1d(getattr(space, "nvec", getattr(space, "n", None))).tolist()  # type: ignore[no-any-return]


def network(num_inputs: int, num_outputs: int) -> torch.nn.Sequential:
    torch.manual_seed(1)
    policy: torch.nn.Sequential = policy_of(num_inputs, num_outputs)
    return policy


def sampled(case: Case, device: str, settings: dict[str, Any]) -> Iterator[Sampling]:
    """Yield the rows per second of our sampler and of torch's, which take turns.

    "ours" and "torch" (Categorical) return actions, log-probabilities and entropies, "multinomial" only actions.
    """
    with pufferlib.make(
        case.env, backend="cuda", num_envs=case.num_envs, seed=1, env_kwargs=case.env_kwargs, device=device
    ) as vec:
        where: torch.device = vec.device  # type: ignore[attr-defined]
        vec.reset()
        rows, nvec = vec.agents_per_batch, options_of(vec)
        logits = torch.randn(rows, sum(nvec), device=where)

        def ours() -> int:
            vec.sample(logits)  # type: ignore[attr-defined]
            return 1

        def theirs() -> int:
            parts = [
                torch.distributions.Categorical(logits=part, validate_args=False) for part in logits.split(nvec, 1)
            ]
            actions = [part.sample() for part in parts]
            torch.stack(actions, 1)
            sum(part.log_prob(action) for part, action in zip(parts, actions, strict=True))
            sum(part.entropy() for part in parts)
            return 1

        def multinomial() -> int:
            torch.stack([torch.multinomial(part.softmax(1), 1) for part in logits.split(nvec, 1)], 1)
            return 1

        ways = {"ours": ours, "torch": theirs, "multinomial": multinomial}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(settings["repeats"]):
            for way, play in ways.items():
                rates[way] += timed(play, {**settings, "repeats": 1}, where)[0]
        for way, way_rates in rates.items():
            per_s = [rows * rate for rate in way_rates]
            options = " x ".join(map(str, nvec))
            yield Sampling(case.env, rows, options, way, median(per_s), min(per_s), max(per_s), len(per_s))


def numpy_figure(case: Case, settings: dict[str, Any]) -> Figure:
    """Return the figure of one environment in NumPy on one core."""
    with pufferlib.make(case.env, backend="serial", num_envs=1, seed=1, env_kwargs=case.env_kwargs) as vec:
        vec.reset()
        actions = drawn(vec, 1)[0]

        def step() -> int:
            vec.step(actions)
            return 1

        one = Case(case.env, 1, case.num_agents)
        return figure(one, "numpy", timed(step, {**settings, "min_steps": 20}, torch.device("cpu")))


def hold_against_reference(device: str) -> None:
    """Raise AssertionError unless kernel and reference return the same rows in 64 steps of 4 environments."""
    for case in (Case(env, 4, num_agents) for env in ENVS for num_agents in (5, 105)):
        options: dict[str, Any] = dict(num_envs=4, seed=7, env_kwargs={**case.env_kwargs, "grid_length": 6})
        with (
            pufferlib.make(case.env, backend="serial", **options) as plain,
            pufferlib.make(case.env, backend="cuda", device=device, **options) as kernel,
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


def argument_us() -> dict[str, list[float]]:
    """Return the µs of the array interface that CuPy reads from a launch's arguments: as a struct, and as its bytes.

    NumPy describes the fields of a struct again in each call, so cuda_ext/device.py passes the bytes.
    """
    times = {}
    for env in ENVS:
        struct = np.zeros((), arguments_dtype(kernel_of(env).schema))
        arrays = (struct, struct.view(np.dtype((np.void, struct.nbytes))))
        times[env] = [min(timeit.repeat(partial(interface, array), number=300)) / 300 * 1e6 for array in arrays]
    return times


def interface(array: np.ndarray[Any, Any]) -> Any:
    return array.__array_interface__


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a copy on the device reads and writes."""
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
    """Return whether the blocks and state of a case fit into the device's memory."""
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 4 * 2**30
    return case.num_envs * case.bytes_per_step * 4 < MEMORY_SHARE * total


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return the facts about machine, device and versions that a result records."""
    facts: dict[str, Any] = {
        "machine": machine(),
        "revision": version(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts["device"] = properties.name
        facts["memory_nbytes"] = properties.total_memory
        facts["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
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
    for row in results["figures"]:
        share = row["share_of_bandwidth"]
        lines.append(
            f"| {row['env']} | {row['num_agents']:,} | {row['num_envs']:,} | {row['way']} | {row['median']:,.3g} "
            f"({row['least']:,.3g}–{row['greatest']:,.3g}) | {'' if share is None else f'{share:.0%}'} |"
        )
    lines += [
        "",
        "| actions of | options | rows | sampler | rows/s: median (least–greatest) |",
        "| --- | ---: | ---: | --- | ---: |",
    ]
    for row in results["sampler"]:
        lines.append(
            f"| {row['env']} | {row['options']} | {row['rows']:,} | {row['way']} | {row['median']:,.3g} "
            f"({row['least']:,.3g}–{row['greatest']:,.3g}) |"
        )
    for ours, theirs in zip(results["sampler"][::3], results["sampler"][1::3], strict=True):
        ratio, size = ours["median"] / theirs["median"], f"{ours['rows']:,} rows of {ours['options']}"
        met = "met" if ratio >= SAMPLER_TARGET else "missed"
        lines.append(f"\nTarget {SAMPLER_TARGET} times torch's for {size}: {ratio:.1f}, {met}.")
    for (env, num_envs, num_agents, way), target in TARGETS.items():
        for row in results["figures"]:
            if (row["env"], row["num_envs"], row["num_agents"], row["way"]) == (env, num_envs, num_agents, way):
                met = "met" if row["median"] >= target else "missed"
                lines.append(f"\nTarget {target:.0e} for {env} {num_envs:,} × {num_agents:,}, {way}: {met}.")
    for env, (struct, nbytes) in results.get("argument_us", {}).items():
        lines.append(f"\nArguments of {env}, handed to CuPy: {nbytes:.2f} µs a launch; as a struct {struct:.2f} µs.")
    if "warpdrive" in results:
        lines.append(f"\nWarpDrive {results['warpdrive']}.")
    lines += [f"\nLeft out: {item}." for item in results.get("left_out", ())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help='"cuda", "cuda:1" or "host"')
    parser.add_argument("--short", action="store_true", help="few cases, for tests; on the host always")
    parser.add_argument("--num-agents", type=int, nargs="+", help="of an environment, in place of the usual numbers")
    parser.add_argument("--num-envs", type=int, nargs="+")
    parser.add_argument("--cases", type=Case.of, nargs="+", metavar="CASE", help="these alone, such as tag/grid:2000x5")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin nothing more after these")
    parser.add_argument("--out", type=Path, help="the JSON file; by default benchmarks/results/gpu-<device>.json")
    parser.add_argument("--lines", type=Path, help="a file that gets a line of JSON for each figure as it comes")
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    if options.plot:
        from benchmarks.gpu_plots import plot_kernels

        for path in sorted(set(RESULTS.glob("gpu-*.json")) - set(RESULTS.glob("gpu-train-*.json"))):  # gpu_train.py's
            print(plot_kernels(path, Path("docs/pictures")))
        return
    settings = {**LIMITS, **(SHORT if options.short or options.device == "host" else LONG)}
    for name in ("num_agents", "num_envs"):
        settings[name] = getattr(options, name) or settings[name]
    start_s = time.perf_counter()
    deadline_s = start_s + (options.limit or settings["all_s"])
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
        "argument_us": argument_us(),
        "figures": [],
        "left_out": [],
        "sampler": [],
    }
    chosen = options.cases or cases(settings)
    also = {name: results[name] for name in ("copy_bandwidth", "argument_us")}
    append(options.lines, of="device", **also, **device_facts(device))

    def keep(kind: str, measurement: Figure | Sampling) -> bool:
        """Store a figure; return whether time is left."""
        results[kind].append(asdict(measurement))
        append(options.lines, of="play", **asdict(measurement))
        return time.perf_counter() < deadline_s

    for case in chosen:
        reason = "" if fits(case, device) else "memory"
        reason = reason or ("" if time.perf_counter() < deadline_s else "time")
        if reason:
            results["left_out"].append(f"{case.text}, for want of {reason}")
            continue
        for measurement in measured(case, options.device, settings, bandwidth):
            print(f"{case.text:32} {measurement.way:8} {measurement.median:,.3g}", flush=True)
            if not keep("figures", measurement):
                results["left_out"].append(f"{case.text}, what comes after {measurement.way}, for want of time")
                break
    samplers = [Case(env, num_envs, 5) for env in ENVS for num_envs in settings["sampler_envs"]]
    for case in samplers:
        if time.perf_counter() >= deadline_s:
            results["left_out"].append(f"the sampler for {case.text}, for want of time")
            continue
        for sampling in sampled(case, options.device, settings):
            rows = f"{sampling.rows:>7,} rows of {sampling.options}"
            print(f"{case.env} {rows} {sampling.way:12} {sampling.median:,.3g}", flush=True)
            keep("sampler", sampling)
    from benchmarks import warpdrive  # here, since it imports this module

    left_s = max(1.0, deadline_s - time.perf_counter())
    limits = {**settings, "warpdrive_s": min(settings["warpdrive_s"], left_s)}
    theirs, results["warpdrive"] = warpdrive.figures_of(chosen, limits, device)
    for fields in theirs:
        keep("figures", Figure(**fields))
    for env, num_agents in dict.fromkeys((case.env, case.num_agents) for case in chosen):
        if time.perf_counter() >= deadline_s:
            results["left_out"].append(f"{env} of {num_agents:,} agents in NumPy, for want of time")
            continue
        keep("figures", numpy_figure(Case(env, 1, num_agents), settings))
    results["seconds"] = round(time.perf_counter() - start_s, 1)
    stem = re.sub(r"\W+", "-", str(results["device"]).lower())
    path = options.out or RESULTS / f"gpu-{stem}.json"
    path.write_text(table_text(results))
    print("\n" + table(results))


if __name__ == "__main__":
    main()
