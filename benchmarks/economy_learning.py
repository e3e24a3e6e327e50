"""Train 51 governors and a planner together on economy/covid, and compare them with fixed policies.

    python -m benchmarks.economy_learning            five seeds, each four minutes of CPU time
    python -m benchmarks.economy_learning --draw     seconds: the pictures and the table, from existing results
    python -m benchmarks.economy_learning --search   half a minute: the policies that coordinate ascent finds
    python -m benchmarks.economy_learning --short    seconds of training, which store nothing

Trains with ``cleanrl_demo.ppo_cuda`` on the host, by the settings in ``pufferlib/training/defaults.toml``. A seed that
was stopped continues from its last checkpoint, and one that has a result is skipped. After each seed, 64 episodes are
played with sampled actions, and one with the most likely ones. Fixed policies are next to them: held (the levels of the
first day), closed (level 10 for half a year, then 1), real (what states and Congress did in 437 days) and searched
(``search``: what is best for each state if no subsidies are paid, over 540 days or over 437). Writes
benchmarks/results/economy-learning.jsonl, a line for each seed, and docs/economy.md with its pictures.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import pufferlib
from benchmarks.lines import append, lines_of, table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.revisions import version
from cleanrl_demo.ppo_cuda import Config, resume, train
from cuda_ext.references.economy_covid import recorded_actions
from cuda_ext.references.economy_data import FIRST_DAY, NUM_STATES, load
from cuda_ext.references.economy_model import NUM_CHOICES, NUM_LEVELS, Model
from pufferlib.models import Actor
from pufferlib.training.checkpoints import FILE
from pufferlib.training.settings import family_settings
from pufferlib.tuning.bench import machine
from pufferlib.util.annotations import Array

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "economy-learning.jsonl"
SEARCHED = RESULTS.with_name("economy-searched.json")
PAGE = ROOT / "docs" / "economy.md"
PICTURES = ROOT / "docs" / "pictures"
ENV = "economy/covid"
NUM_DAYS, NUM_REAL_DAYS, NUM_EPISODES, NUM_ERRORS = 540, 437, 64, 3.0
COOLDOWN = 28  # days, of a governor
NUM_CHECKPOINTS = 10  # of a training, to continue from
CLOSED_DAYS = 196  # closed for 180 days, and until the governors may act again


class Policy(NamedTuple):
    """What was done: the levels of stringency of the states, (days, 51), and the levels of subsidies, (days,)."""

    levels: Array
    subsidies: Array


class Outcome(NamedTuple):
    """What came of a policy, (days,): deaths, the unemployed in percent of the population, rewards of a day.

    governors: their mean over the states. planner: its own.
    """

    deaths: Array
    unemployment: Array
    governors: Array
    planner: Array


def fixed_policies() -> dict[str, Policy]:
    """Return the policies to compare with, by name; some end after NUM_REAL_DAYS. Those of a search are as stored."""
    recorded = Policy(*recorded_actions(Model(load(), enforce_masks=False)))
    no_subsidies = np.zeros(NUM_DAYS, np.int64)
    held = np.repeat(recorded.levels[:1], NUM_DAYS, axis=0)
    closed = np.ones_like(held)
    closed[:CLOSED_DAYS] = NUM_LEVELS
    stored = json.loads(SEARCHED.read_text()) if SEARCHED.exists() else {}
    return {
        "held": Policy(held, no_subsidies),
        "closed": Policy(closed, no_subsidies),
        "real": recorded,
        **{name: unpacked(policy) for name, policy in stored.items()},
    }


def search(num_days: int, num_sweeps: int = 3) -> Policy:
    """Return levels that coordinate ascent finds, each for COOLDOWN days, without subsidies.

    It raises the sum of each state's rewards, starting from level 5. No state's rewards depend on another's levels, so
    all states are searched at once. A sweep tries all ten levels of a period, from the first period to the last.
    """
    model, periods = Model(load(), enforce_masks=False), [*range(0, num_days, COOLDOWN)]
    levels = np.full((len(periods), NUM_STATES), 5)
    tried, no_subsidies = np.arange(1, NUM_LEVELS + 1), np.zeros(NUM_LEVELS, np.int64)
    for _ in range(num_sweeps):
        before = model.starts(NUM_LEVELS)
        for period in range(len(periods)):
            state, sums = before, np.zeros((NUM_LEVELS, NUM_STATES))
            for day in range(periods[period], num_days):
                of_day = np.repeat(levels[[day // COOLDOWN]], NUM_LEVELS, axis=0)
                if day // COOLDOWN == period:
                    of_day[:] = tried[:, np.newaxis]
                after = model.step(state, of_day, no_subsidies)
                sums += model.rewards(model.indices(state, after))[:, :NUM_STATES]
                state = after
            levels[period] = tried[sums.argmax(axis=0)]
            for _ in range(COOLDOWN):
                before = model.step(before, np.repeat(levels[[period]], NUM_LEVELS, axis=0), no_subsidies)
    return Policy(np.repeat(levels, COOLDOWN, axis=0)[:num_days], np.zeros(num_days, np.int64))


def outcome(policy: Policy) -> Outcome:
    """Play a policy by the equations, and return what comes of it."""
    model = Model(load(), enforce_masks=False)
    state, people = model.starts(1), float(model.population.sum(dtype=np.float64))
    days = []
    for levels, subsidy in zip(policy.levels, policy.subsidies, strict=True):
        after = model.step(state, levels[np.newaxis], np.array([subsidy]))
        rewards = model.rewards(model.indices(state, after))[0].astype(np.float64)
        unemployed = after.unemployed.sum(dtype=np.float64)
        days.append((after.deaths().sum(dtype=np.float64), 100 * unemployed / people, rewards[:-1].mean(), rewards[-1]))
        state = after
    return Outcome(*np.array(days).T)


def played(actor: Actor, num_episodes: int, *, greedy: bool, seed: int = 0) -> tuple[Array, Policy]:
    """Play whole episodes; return the rewards, (episodes, days, 2), and what was done in the first episode.

    The rewards are the governors' mean over the states, and the planner's.
    """
    generator, rewards, policy = torch.Generator().manual_seed(seed), [], []
    with pufferlib.make(ENV, backend="cuda", device="host", num_envs=num_episodes, seed=seed) as vec:
        observations: Any = vec.reset()[0]
        for _ in range(NUM_DAYS):
            with torch.inference_mode():
                distribution = actor(observations)[0]
                actions, _ = distribution.mode() if greedy else distribution.sample(generator)
            observations, of_day, *_ = vec.step(actions.squeeze(1))  # type: ignore[arg-type]
            of_day = np.asarray(of_day, np.float64).reshape(num_episodes, -1)
            rewards.append(np.stack([of_day[:, :-1].mean(1), of_day[:, -1]], axis=1))
            policy.append(done(np.asarray(observations)[NUM_STATES]))
    levels, subsidies = zip(*policy, strict=True)
    return np.stack(rewards, axis=1), Policy(np.stack(levels), np.array(subsidies))


def done(row: Array) -> tuple[Array, int]:
    """Return the states' levels and the level of subsidies in the planner's row of observations."""
    levels = row[-3 - NUM_STATES : -3] * NUM_LEVELS
    return np.rint(levels).astype(np.int64), round(float(row[-2]) * (NUM_CHOICES - 1))


def figures(rewards: Array) -> dict[str, list[float]]:
    """Return sums of rewards, for governors and planner: means, standard errors, and means of the first days."""
    sums, first = rewards.sum(axis=1), rewards[:, :NUM_REAL_DAYS].sum(axis=1)
    errors = sums.std(axis=0, ddof=1) / np.sqrt(len(sums)) if len(sums) > 1 else np.zeros(2)
    parts = {"sums": sums.mean(axis=0), "errors": errors, "first": first.mean(axis=0)}
    return {name: values.round(4).tolist() for name, values in parts.items()}


def packed(policy: Policy) -> dict[str, Any]:
    """Return a policy in few characters: for each state, and for the planner, each change as "day:level"."""

    def changes(levels: Array) -> str:
        days = np.flatnonzero(np.diff(levels, prepend=-1))
        return " ".join(f"{day}:{levels[day]}" for day in days)

    states = load().state_names.tolist()
    return {
        "days": len(policy.levels),
        "levels": dict(zip(states, map(changes, policy.levels.T), strict=True)),
        "subsidies": changes(policy.subsidies),
    }


def unpacked(stored: Mapping[str, Any]) -> Policy:
    """Return the policy that ``packed`` was called with."""

    def levels(changes: str) -> Array:
        days, values = np.array([change.split(":") for change in changes.split()], int).T
        return np.repeat(values, np.diff(days, append=stored["days"]))

    return Policy(np.stack([*map(levels, stored["levels"].values())], axis=1), levels(stored["subsidies"]))


def settings(seed: int, runs: Path, **changes: Any) -> Config:
    """Return a training's settings; it checkpoints so that a stopped one can continue."""
    values = {**family_settings(ENV, Config)[1], **changes}
    values.setdefault("checkpoint_every", values.get("total_steps", Config.total_steps) // NUM_CHECKPOINTS)
    return Config(**{**values, "env": ENV, "device": "host", "seed": seed, "eval_episodes": 1, "runs": str(runs)})


def trained(seed: int, runs: Path, **changes: Any) -> Any:
    """Return a seed's Result, of a training that begins or continues below ``runs``."""
    of_seed = runs / f"seed-{seed}"
    stopped = sorted(of_seed.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime)
    return resume(stopped[-1].parent)[1] if stopped else train(settings(seed, of_seed, **changes))


def measured(seed: int, runs: Path, num_episodes: int = NUM_EPISODES, **changes: Any) -> dict[str, Any]:
    """Train one seed, and return what is stored of it."""
    before, began = os.getloadavg()[0], time.process_time()
    result = trained(seed, runs, **changes)
    cpu_seconds = time.process_time() - began  # of this process: without what it did before it was stopped
    sampled, policy = played(result.actor, num_episodes, greedy=False, seed=1_000 + seed)
    greedy, _ = played(result.actor, 1, greedy=True)
    return {
        "seed": seed,
        "machine": machine(),
        "revision": version(),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        "seconds": round(result.seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "num_steps": result.num_steps,
        "episodes": num_episodes,
        **figures(sampled),
        "argmax": figures(greedy)["sums"],
        "policy": packed(policy),
    }


@functools.cache
def fixed_outcomes() -> dict[str, Outcome]:
    """Return what comes of the fixed policies, by name."""
    return {name: outcome(policy) for name, policy in fixed_policies().items()}


def bars(line: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each group whether a seed is NUM_ERRORS standard errors above held and closed, and above real."""
    results = {}
    for number, group in enumerate(("governors", "planner")):
        sums = {name: getattr(of, group).sum() for name, of in fixed_outcomes().items()}
        least = line["sums"][number] - NUM_ERRORS * line["errors"][number]
        results[f"{group} above held and closed"] = bool(least > max(sums["held"], sums["closed"]))
        results[f"{group} above real"] = bool(line["first"][number] > sums["real"])
    return results


def result_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of docs/economy.md."""
    periods = ("540 days", f"first {NUM_REAL_DAYS} days", "540 days, most likely actions")
    sums_of = [f"{group}, {period}" for period in periods for group in ("governors", "planner")]
    heads = ["policy", *sums_of, "minutes", "CPU minutes"]
    rows = []
    for name, of in fixed_outcomes().items():
        groups = (of.governors, of.planner)
        complete = len(of.deaths) == NUM_DAYS
        sums = [f"{group.sum():.1f}" if complete else "" for group in groups]
        rows.append([name, *sums, *(f"{group[:NUM_REAL_DAYS].sum():.1f}" for group in groups), "", "", "", ""])
    for line in lines:
        sums = [f"{mean:.1f} ± {error:.2f}" for mean, error in zip(line["sums"], line["errors"], strict=True)]
        minutes = [line["seconds"] / 60, line["cpu_seconds"] / 60]
        others = [f"{value:.1f}" for value in (*line["first"], *line["argmax"], *minutes)]
        rows.append([f"learnt, seed {line['seed']}", *sums, *others])
    counts = [f"{name}: {sum(bars(line)[name] for line in lines)}" for name in (bars(lines[0]) if lines else ())]
    verdict = f"Of {len(lines)} seeds, by {NUM_ERRORS:.0f} standard errors or, in the days of real, by the mean: "
    verdict += "; ".join(counts) + "."
    return f"{table(heads, rows)}\n\n{verdict if lines else 'No seed has been trained yet.'}"


def policies_to_draw(lines: Sequence[Mapping[str, Any]]) -> dict[str, Policy]:
    """Return an episode of the seed whose governors are in the middle, and the fixed policies."""
    learnt = sorted(lines, key=lambda line: line["sums"][0])
    middle = {"learnt": unpacked(learnt[len(learnt) // 2]["policy"])} if learnt else {}
    fixed = {name: policy for name, policy in fixed_policies().items() if name != f"searched, {NUM_REAL_DAYS} days"}
    return {**middle, **fixed}


def draw(policies: Mapping[str, Policy], folder: Path = PICTURES) -> None:
    """Draw the stringency by state and day, and deaths, unemployment and subsidies next to history."""
    _draw_levels(policies, folder / "economy-levels.png")
    _draw_outcomes(policies, folder / "economy-outcomes.png")


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_levels(policies: Mapping[str, Policy], path: Path) -> None:
    figure = _figure(11, 6.2)
    panels = figure.subplots(1, len(policies), sharex=True, sharey=True)
    for (name, policy), axes in zip(policies.items(), panels, strict=True):
        image = axes.imshow(
            policy.levels.T, aspect="auto", interpolation="nearest", cmap="viridis", vmin=1, vmax=NUM_LEVELS,
            extent=(0.5, len(policy.levels) + 0.5, NUM_STATES - 0.5, -0.5),
        )  # fmt: skip
        axes.set(title=name, xlabel="day", xlim=(0, NUM_DAYS))
    panels[0].set_yticks(range(NUM_STATES), load().state_names.tolist(), fontsize=5.5)
    figure.colorbar(image, ax=panels, label="stringency, 1 open to 10 closed", fraction=0.03)
    figure.savefig(path, dpi=100, format="png")


def _draw_outcomes(policies: Mapping[str, Policy], path: Path) -> None:
    figure, data = _figure(11, 3.6), load()
    deaths, unemployment, subsidies = figure.subplots(1, 3)
    for name, policy in policies.items():
        of = outcome(policy) if name == "learnt" else fixed_outcomes()[name]
        days = np.arange(1, len(of.deaths) + 1)
        deaths.plot(days, of.deaths / 1e3, label=name)
        unemployment.plot(days, of.unemployment, label=name)
        if policy.subsidies.any():
            subsidies.step(days, policy.subsidies, where="mid", label=name, color=deaths.lines[-1].get_color())
    history: dict[str, Any] = {"color": "black", "linestyle": ":", "label": "history"}
    deaths.plot(np.arange(len(data.deaths)), data.deaths.sum(axis=1, dtype=np.float64) / 1e3, **history)
    rates = data.unemployment @ (data.population / data.population.sum())
    months = data.unemployment_days - FIRST_DAY
    unemployment.step(months[months >= -31], rates[months >= -31], where="post", **history)
    deaths.set(title="deaths", ylabel="thousand", xlabel="day", yscale="log", ylim=(3, None))
    unemployment.set(title="unemployment", ylabel="percent", xlabel="day", xlim=(0, NUM_DAYS))
    subsidies.set(title="subsidies", ylabel="level, of 20", xlabel="day", xlim=(0, NUM_DAYS))
    subsidies.set_ylim(0, max(8, subsidies.get_ylim()[1]))
    for axes in (deaths, unemployment, subsidies):
        axes.spines[["top", "right"]].set_visible(False)
    deaths.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=100, format="png")


def publish(lines: Sequence[Mapping[str, Any]]) -> None:
    """Draw the pictures, and write the page's table."""
    draw(policies_to_draw(lines))
    write_page(PAGE, fill(PAGE.read_text(), {"economy_learning": result_table(lines)}))


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--runs", type=Path, default=Path("runs/economy"), help="folder of the trainings")
    parser.add_argument("--draw", action="store_true", help="train nothing")
    parser.add_argument("--search", action="store_true", help="search for the best levels, and train nothing")
    parser.add_argument("--short", action="store_true", help="train for a few episodes, and store nothing")
    options = parser.parse_args(arguments)
    if options.short:
        small = {"num_envs": 1, "total_steps": 60_000, "num_epochs": 1}
        line = measured(options.seeds[0], options.runs / "short", num_episodes=2, **small)
        say(result_table([line]))
        return
    if options.search:
        policies = {f"searched, {num_days} days": packed(search(num_days)) for num_days in (NUM_DAYS, NUM_REAL_DAYS)}
        SEARCHED.write_text(table_text(policies))
    measured_seeds = {line["seed"] for line in lines_of(RESULTS)}
    missing = [seed for seed in options.seeds if seed not in measured_seeds]
    for seed in [] if options.draw or options.search else missing:
        append(RESULTS, **measured(seed, options.runs))
        say(result_table(lines_of(RESULTS)))
    publish(sorted(lines_of(RESULTS), key=lambda line: line["seed"]))


if __name__ == "__main__":
    main()
