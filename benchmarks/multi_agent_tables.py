"""The tables of docs/multi_agent.md, from the results of multi_agent.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import table
from benchmarks.ratios import MeanInterval

__all__ = ["PAGE", "sections"]

PAGE = Path(__file__).parent.parent / "docs" / "multi_agent.md"
NOT_YET = "Not measured yet."
NAMES = {
    "maddpg": "MADDPG",
    "attention": "MADDPG with MAAC's critic",
    "ddpg": "DDPG for each agent",
    "benchmarl": "BenchMARL's MADDPG",
    "mappo": "MAPPO",
    "ppo": "PPO without the state",
    "qmix": "QMIX",
    "vdn": "VDN",
    "iql": "IQL",
}
AGENTS_PAID = 2  # the two-step game pays both agents, and the paper counts it once
# By task: what a mean return is divided by, and the bars: algorithm, least and largest mean; None: no bound.
TEAMS: dict[str, tuple[float, dict[str, tuple[float | None, float | None]]]] = {
    "two-step": (AGENTS_PAID, {"qmix": (8, None), "vdn": (None, 7), "iql": (None, None)}),
    "foraging": (1, {"qmix": (0.9, None), "vdn": (0.9, None), "iql": (None, None)}),
}
# Of tasks with one side: the algorithm whose mean should not be below the interval of the other's, and the other.
PAIRS = (
    *((task, "maddpg", "ddpg") for task in ("simple", "spread", "speaker-listener")),
    ("spread", "attention", "ddpg"),
    *((task, "maddpg", "benchmarl") for task in ("spread-continuous", "speaker-listener-continuous")),
    ("spread-ppo", "mappo", "ppo"),
)
SIDES = {  # of scenarios with two sides, in the order of the agents
    "adversary": ("adversary", "agents"),
    "push": ("adversary", "agent"),
    "tag": ("adversaries", "prey"),
    "crypto": ("Eve", "Alice and Bob"),
}


def sections(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the Markdown tables by their names. A row appears when two seeds of its algorithms are there."""
    return {
        "multi_agent_teams": _teams(results["runs"]),
        "multi_agent_pairs": _pairs(results["runs"]),
        "multi_agent_sides": _sides(results["pairings"]),
    }


def _teams(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for task, (divisor, bars) in TEAMS.items():
        for algorithm, (least, largest) in bars.items():
            returns = [value / divisor for value in _returns(runs, task, algorithm)]
            if len(returns) < 2:
                continue
            bar = "" if least is None else f"≥ {least:g}"
            bar = bar if largest is None else f"≤ {largest:g}"
            interval, rounding = MeanInterval.of(returns), 0.005
            met = (least is None or interval.mean > least - rounding) and (
                largest is None or interval.mean < largest + rounding
            )
            judged = ("yes" if met else "no") if bar else "–"
            rows.append([task, NAMES[algorithm], f"{interval:.2f}", bar or "–", str(len(returns)), judged])
    heads = ("environment", "algorithm", "mean return", "bar", "seeds", "met")
    return table(heads, rows) if rows else NOT_YET


def _pairs(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for task, *names in PAIRS:
        ours, others = (_returns(runs, task, name) for name in names)
        if min(len(ours), len(others)) < 2:
            continue
        seeds = " and ".join(sorted({str(len(ours)), str(len(others))}))
        first, second = MeanInterval.of(ours), MeanInterval.of(others)
        compared = NAMES[names[0]], f"{first:.2f}", NAMES[names[1]], f"{second:.2f}"
        rows.append([task, *compared, seeds, _judged(first, second)])
    heads = ("environment", "algorithm", "mean return", "next to", "mean return", "seeds", "")
    return table(heads, rows) if rows else NOT_YET


def _sides(pairings: Sequence[Mapping[str, Any]]) -> str:
    """Compare what a side that MADDPG trained gets against DDPG's other side with what DDPG's gets against MADDPG's."""
    rows = []
    for task, sides in SIDES.items():
        for number, side in enumerate(sides):
            returns: dict[str, list[float]] = {"maddpg": [], "ddpg": []}
            for item in pairings:
                if item["task"] == task:
                    returns[(item["first"], item["second"])[number][0]].append(item["returns"][number])
            ours, others = returns["maddpg"], returns["ddpg"]
            if min(len(ours), len(others)) < 2:
                continue
            pairs = " and ".join(sorted({str(len(ours)), str(len(others))}))
            first, second = MeanInterval.of(ours), MeanInterval.of(others)
            rows.append([task, side, f"{first:.2f}", f"{second:.2f}", pairs, _judged(first, second)])
    heads = ("scenario", "side", "MADDPG's against DDPG's", "DDPG's against MADDPG's", "pairs", "")
    return table(heads, rows) if rows else NOT_YET


def _returns(runs: Sequence[Mapping[str, Any]], task: str, algorithm: str) -> list[float]:
    return [run["mean_return"] for run in runs if (run["task"], run["algorithm"]) == (task, algorithm)]


def _judged(ours: MeanInterval, others: MeanInterval) -> str:
    """Return how our mean lies to the other's: above; level, within the lower half of its interval; or below."""
    if ours.mean > others.mean:
        return "above"
    return "level" if ours.mean >= others.low else "below"
