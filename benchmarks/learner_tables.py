"""The tables of learner.py on docs/training.md and docs/device_training.md, from its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from benchmarks.learner_compile import compile_table
from benchmarks.learner_curves import GOAL, curves_text
from benchmarks.learner_trainings import Entries, seconds_of
from benchmarks.pages import table
from benchmarks.ratios import MeanInterval, MedianRange, ratios

__all__ = ["sections"]

NOT_YET = "Not measured yet."
# What the compiled learner should reach: how many times as fast as the other side, by minibatch or environments.
UPDATES = {"eager": {"4096": 2.0, "256": 5.0, "64": 12.0}, "compiled": {"4096": 1.7, "256": 3.5, "64": 9.0}}
SIDES = {"eager": "torch, eager", "compiled": "torch.compile"}
TWO_THREADS = 0.85  # of what two copies on one thread reach together
ROLLOUTS = {"32": 8.0, "256": 3.0, "4096": 2.0}
CARTPOLE_S, CARTPOLE_TIMES = 1.0, 8.0
PYTHON_TIMES, OCEAN_SHARE = 2.0, 0.45
SB3_TIMES = {"HalfCheetah-v5": 2.0, "Pendulum-v1": 3.0, "LunarLander-v3": 3.0}

Row = tuple[str, ...]


def sections(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the Markdown of stored results by its name on the page."""
    texts = {"compile": compile_table, "curves": curves_text}
    return {"learner_speed": speed_table(results)} | {
        f"learner_{part}": text(results[part]["measured"]) if part in results else NOT_YET
        for part, text in texts.items()
    }


def speed_table(results: Mapping[str, Any]) -> str:
    """Return how the compiled learner's times lie to those of others, and to the bars, as far as they are measured."""
    parts: dict[str, Callable[[Any], list[Row]]] = {
        "update": update_rows,
        "rollout": rollout_rows,
        "cartpole": cartpole_rows,
        "ocean": ocean_rows,
        "vectorizers": vectorizer_rows,
    }
    rows = [row for part, rows_of in parts.items() if part in results for row in rows_of(results[part]["measured"])]
    heads = ("what", "takes", "next to", "reached", "bar", "met", "scores or returns")
    return table(heads, rows) if rows else NOT_YET


def update_rows(measured: Mapping[str, Any]) -> list[Row]:
    """Return the rows on updates, by minibatch."""
    rows = []
    for size, seconds in measured.items():
        what = f"update, 4,096 rows, 4 epochs, minibatches of {int(size):,}"
        takes = f"{1e3 * median(seconds['fused']):.1f} ms"
        for name, bars in UPDATES.items():
            if name in seconds:
                rows.append(faster(what, takes, SIDES[name], seconds[name], seconds["fused"], bars[size]))
        shares = MedianRange.of([0.5 * share for share in ratios(seconds["two copies"], seconds["two threads"])])
        takes = f"{1e3 * median(seconds['two threads']):.1f} ms on two threads"
        met = yes(shares.median >= TWO_THREADS)
        rows.append(
            (what, takes, "two copies of it at once", f"{shares:.2f} of their rate", f"≥ {TWO_THREADS}", met, "–")
        )
    return rows


def rollout_rows(measured: Mapping[str, Any]) -> list[Row]:
    """Return the rows on rollouts, by number of environments."""
    rows = []
    for num_envs, seconds in measured.items():
        takes = f"{1e3 * median(seconds['fused']):.1f} ms"
        what = f"rollout, 64 steps of {int(num_envs):,} CartPoles"
        bar = ROLLOUTS[num_envs]
        rows.append(faster(what, takes, "torch's policy and steps in turns", seconds["torch"], seconds["fused"], bar))
    return rows


def cartpole_rows(measured: Entries) -> list[Row]:
    """Return the rows on CartPole until it is solved."""
    fused = measured["fused"]
    wall_s, cpu_s = MedianRange.of(seconds_of(fused)), median(entry["cpu_s"] for entry in fused)
    what, takes = "`ppo_fused` on `classic/cartpole`, 70,000 steps", f"{wall_s.median:.2f} s"
    met = yes(wall_s.median <= CARTPOLE_S and all(entry["mean_return"] >= GOAL for entry in fused))
    reached = f"{wall_s:.2f} s, {cpu_s:.2f} CPU s"
    rows = [(what, takes, "–", reached, f"≤ {CARTPOLE_S} s, all seeds", met, solved(fused))]
    others = {
        "ppo": ("`ppo` on NumPy's CartPole", CARTPOLE_TIMES),
        "sb3": ("Stable-Baselines3 on Gymnasium's", None),
    }
    for side, (name, bar) in others.items():
        if theirs := measured.get(side):
            seconds = seconds_of(theirs), seconds_of(fused[: len(theirs)])  # of the seeds that both have trained with
            rows.append(faster(what, takes, name, *seconds, bar, solved(theirs)))
    return rows


def solved(entries: Sequence[Mapping[str, float]]) -> str:
    """Return in words with how many seeds CartPole is solved, and the least of the seeds' mean returns."""
    returns = [entry["mean_return"] for entry in entries]
    num_solved = sum(value >= GOAL for value in returns)
    return f"≥ {GOAL:.0f} with {num_solved} of {len(returns)} seeds, the least mean {min(returns):.0f}"


def ocean_rows(measured: Mapping[str, Entries]) -> list[Row]:
    """Return the rows on the environments of Ocean: the median of their ratios, and the sum of their seconds."""
    takes, times = {}, []
    for side in ("fused", "torch"):
        takes[side] = sum(median(seconds_of(entries[side])) for entries in measured.values())
    for entries in measured.values():
        times.append(median(seconds_of(entries["torch"])) / median(seconds_of(entries["fused"])))
    lower = [
        f"{name.removeprefix('ocean/')} {means['fused']:.3f}, not {means['torch']:.3f}"
        for name, entries in measured.items()
        if (means := below(entries, "score", "fused", "torch"))
    ]
    scores = f"lower: {'; '.join(lower)}" if lower else "none lower"
    what = f"`ppo --learner fused`, {len(measured)} environments of Ocean"
    reached, share = MedianRange.of(times), takes["fused"] / takes["torch"]
    text = f"{takes['fused']:.1f} s in all"
    return [
        (what, text, "`--learner torch`", f"{reached:.2f} times as fast, by environment", f"≥ {PYTHON_TIMES:g}",
         yes(reached.median >= PYTHON_TIMES), scores),
        (what, text, "`--learner torch`", f"{share:.2f} of its sum of seconds", f"≤ {OCEAN_SHARE}",
         yes(share <= OCEAN_SHARE), scores),
    ]  # fmt: skip


def vectorizer_rows(measured: Mapping[str, Entries]) -> list[Row]:
    """Return the rows on trainings at one setting, by environment, next to torch and Stable-Baselines3."""
    rows = []
    for env, entries in measured.items():
        what, bar = f"`ppo --learner fused` on {env}", SB3_TIMES.get(env)
        python_bar = PYTHON_TIMES if env == "CartPole-v1" else None
        rows.append(vectorizer_row(what, entries, "fused", "torch", "`--learner torch`", python_bar))
        if "sb3" in entries:
            rows.append(vectorizer_row(what, entries, "fused", "sb3", "Stable-Baselines3", bar))
        if "workers" in entries and "sb3" in entries:
            rows.append(vectorizer_row(f"{what}, a pool of 2 workers", entries, "workers", "sb3", "the same", bar))
    return rows


def vectorizer_row(what: str, entries: Entries, ours: str, theirs: str, other: str, bar: float | None) -> Row:
    """Return the row on one of our sides next to one of the others, with the returns of both."""
    takes = f"{median(seconds_of(entries[ours])):.1f} s, {median(entry['cpu_s'] for entry in entries[ours]):.1f} CPU s"
    if "bare" in entries:
        takes += f"; the bare environment {median(seconds_of(entries['bare'])):.1f} s"
    values = {side: [entry["mean_return"] for entry in entries[side]] for side in (ours, theirs)}
    returns = " next to ".join(
        f"{MeanInterval.of(of):.0f}" if len(of) > 1 else f"{of[0]:.0f}" for of in values.values()
    )
    lower = ", lower" if below(entries, "mean_return", ours, theirs) else ""
    seconds = seconds_of(entries[theirs]), seconds_of(entries[ours])
    return faster(what, takes, other, *seconds, bar, f"{returns}{lower}")


def faster(
    what: str,
    takes: str,
    other: str,
    theirs: Sequence[float],
    ours: Sequence[float],
    bar: float | None,
    scores: str = "–",
) -> Row:
    """Return the row on how many times as fast as another side the compiled learner is, from the seconds of both."""
    times = MedianRange.of(ratios(theirs, ours))
    judged = ("–", "–") if bar is None else (f"≥ {bar:g}", yes(times.median >= bar))
    return (what, takes, other, f"{times:.2f} times as fast", *judged, scores)


def below(entries: Entries, figure: str, ours: str, theirs: str) -> dict[str, float]:
    """Return both means over seeds if ours lies below the 95 % interval of theirs, else {}."""
    values = {side: [entry[figure] for entry in entries[side]] for side in (ours, theirs)}
    if len(values[theirs]) < 2:
        return {}
    means = {side: mean(of) for side, of in values.items()}
    return means if means[ours] < MeanInterval.of(values[theirs]).low else {}


def yes(met: bool) -> str:
    return "yes" if met else "**no**"
