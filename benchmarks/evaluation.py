"""Measure evaluations: the wall time of exactly given episodes, next to other loops, and what kills change.

    python -m benchmarks.evaluation [--only PART …] [--short]

``lengths``: 10 slots play 400 episodes whose steps sleep for a millisecond, with lengths drawn from three distributions
of mean 100. ``games``: BipedalWalker, MiniGrid and an ALE game to its end. In each draw, ``pufferlib.evaluate``, also
without its test of the environments, and the loops of ``benchmarks.evaluation_loops`` take turns, in rotated order. In
``lengths``, so does a pool that is stepped by ``send`` and ``recv`` alone until as many episodes of its own have ended:
its time over that of its steps is what any loop over a pool needs.
``bias``: the mean length of 10,000 episodes on a pool, compared with serial play. ``kills``: 2,000 episodes, while 50
workers are killed.

A wall time begins when the environments exist. It is divided by that of the simulated list schedule of the very same
episodes: each goes to the slot that is free first. A step's duration is measured in the environments of the same draw.
The quotient by the sum of all episodes over the number of slots is stated as well.

Each figure is stored in benchmarks/results/evaluation.json as soon as it is there, and a stopped program goes on from
there, unless the revision is another one. ``bias`` and ``kills`` compare results and no times, so the machine may be
busy. At the end the tables of docs/evaluation.md are written. ``--short`` plays a tenth of two draws, and stores and
writes nothing.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import pufferlib
from benchmarks import evaluation_loops as loops
from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.ratios import MedianRange
from benchmarks.revisions import version
from pufferlib.evaluation.seeds import derived_seeds
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole
from pufferlib.vectorization.core.plan import available_cpus

__all__ = ["GAMES", "PAGE", "PARTS", "list_schedule", "sections", "stored"]

PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
RESULT = Path(__file__).parent / "results" / "evaluation.json"
NUM_SLOTS, NUM_EPISODES, NUM_DRAWS = 10, 400, 20
NUM_GAME_EPISODES, NUM_GAME_DRAWS = 100, 5
NUM_BIAS, NUM_KILLED, NUM_KILLS = 10_000, 2_000, 50
BAR = 1.03  # of the wall time over the list schedule
GAMES = {
    "BipedalWalker": "BipedalWalker-v3",
    "MiniGrid": "MiniGrid-DoorKey-8x8-v0",
    "Breakout": "ALE/Breakout-v5",
}
OURS = ("pufferlib", 'pufferlib, fresh="never"')
LOOPS: Mapping[str, Callable[..., loops.Played]] = {
    "Gymnasium, lockstep": loops.gymnasium_lockstep,
    "Stable-Baselines3": loops.stable_baselines,
    "LeRobot's loop": loops.rounds,
}
ALONE = "pufferlib, `send` and `recv` alone"
CONTENDERS = (*OURS, *LOOPS)
TIMED = (*CONTENDERS, ALONE)  # where the durations of steps are known

Figure = dict[str, Any]


def list_schedule(durations: Sequence[float], num_slots: int) -> float:
    """Return the time after which all tasks are done, if each goes to the slot that is free first, in order."""
    free = [0.0] * num_slots
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


# ------------------------------------------------------------------------------------------------------ wall times


class Setting(NamedTuple):
    """What contenders play. creator: of the environment. timed: whether its infos have the durations of its steps."""

    creator: Callable[[], Any]
    num_episodes: int
    num_workers: int
    timed: bool


def played(contender: str, setting: Setting, seeds: np.ndarray) -> Figure:
    """Return the wall time of a contender, and the lengths of its episodes.

    Those whose steps are timed are in the order in which they began. Of ALONE's there is only the sum.
    """
    creator, actions = setting.creator, loops.action_table(setting.creator)
    if contender not in OURS:
        if contender == ALONE:
            result = loops.send_and_recv(creator, seeds.tolist(), NUM_SLOTS, setting.num_workers)
        else:
            result = LOOPS[contender](creator, actions, seeds.tolist(), NUM_SLOTS)
        return {"wall_s": result.wall_s, "lengths": result.lengths}
    episodes = pufferlib.evaluate(
        creator,
        lambda batch: actions[batch.steps % len(actions)],
        seeds=seeds.tolist(),
        num_envs=NUM_SLOTS,
        num_workers=setting.num_workers,
        infos=("begun_s", "busy_s") if setting.timed else (),
        fresh="never" if "never" in contender else "auto",
    )
    figure: Figure = {"wall_s": episodes.wall_s, "lengths": episodes.lengths.tolist()}
    if setting.timed:
        figure["lengths"] = episodes.lengths[np.argsort(episodes.numbers("begun_s"))].tolist()
        figure["step_s"] = float(np.sum(episodes.numbers("busy_s")) / episodes.lengths.sum())
    return figure


def measured(case: str, setting: Setting, draw: int) -> Iterator[Figure]:
    """Yield a figure for each contender in one draw, in an order that is rotated from draw to draw."""
    seeds, step_s = derived_seeds(draw, setting.num_episodes), None
    contenders = TIMED if setting.timed else CONTENDERS
    first = draw % len(contenders)
    figures = []
    for contender in (*contenders[first:], *contenders[:first]):
        figure = {"case": case, "draw": draw, "contender": contender, **played(contender, setting, seeds)}
        step_s = figure.pop("step_s", step_s)
        figures.append(figure)
    for figure in figures:
        lengths = figure.pop("lengths")
        num_steps = sum(lengths)
        if step_s is not None:
            schedule_s = list_schedule([step_s * length for length in lengths], NUM_SLOTS)
            if figure["contender"] == ALONE:  # there is no end at which slots wait
                schedule_s = step_s * num_steps / NUM_SLOTS
            figure |= {"over_schedule": figure["wall_s"] / schedule_s}
            figure |= {"over_share": figure["wall_s"] * NUM_SLOTS / (step_s * num_steps)}
        yield {**figure, "num_steps": num_steps, "steps_per_s": num_steps / figure["wall_s"]}


def lengths_part(scale: float) -> Iterator[tuple[str, int, Callable[[], Iterator[Figure]]]]:
    """Yield (case, draw, a function that measures it) of the drawn lengths. scale: 1, or less for less work."""
    num_episodes = max(4 * NUM_SLOTS, round(scale * NUM_EPISODES))
    for draw in range(NUM_DRAWS if scale == 1 else 2):
        for name in loops.LENGTHS:
            setting = Setting(loops.Sleeping.of(name), num_episodes, NUM_SLOTS, True)
            yield name, draw, partial(measured, name, setting, draw)


def games_part(scale: float) -> Iterator[tuple[str, int, Callable[[], Iterator[Figure]]]]:
    """Yield the same of the games."""
    num_episodes = max(NUM_SLOTS, round(scale * NUM_GAME_EPISODES))
    for draw in range(NUM_GAME_DRAWS if scale == 1 else 1):
        for name, env in GAMES.items():
            setting = Setting(loops.game(env), num_episodes, min(NUM_SLOTS, available_cpus()), False)
            yield name, draw, partial(measured, name, setting, draw)


# ----------------------------------------------------------------------------------------------- the same episodes


def bias_part(scale: float) -> Iterator[tuple[str, int, Callable[[], Iterator[Figure]]]]:
    """Yield the comparison of pooled play with serial play."""
    yield "bias", 0, lambda: iter([_bias(round(scale * NUM_BIAS))])


def _bias(num_episodes: int) -> Figure:
    creator = loops.Sleeping.of("lognormal", sleep_s=0.0)
    how: dict[str, Any] = {"episodes": num_episodes, "seed": 1}
    pooled = pufferlib.evaluate(creator, _zeros, num_envs=NUM_SLOTS, num_workers=available_cpus(), **how)
    serial = pufferlib.evaluate(creator, _zeros, backend="serial", num_envs=1, **how)
    means = float(pooled.lengths.mean()), float(serial.lengths.mean())
    return {"case": "bias", "draw": 0, "num_episodes": num_episodes, "mean_length": means, "same": pooled == serial}


def kills_part(scale: float) -> Iterator[tuple[str, int, Callable[[], Iterator[Figure]]]]:
    """Yield the comparison of play whose workers are killed with play in peace."""
    yield "kills", 0, lambda: iter([_kills(round(scale * NUM_KILLED), round(scale * NUM_KILLS))])


def _kills(num_episodes: int, num_kills: int) -> Figure:
    creator = loops.Sleeping.of("exponential", sleep_s=1e-4)
    how: dict[str, Any] = {"episodes": num_episodes, "seed": 2, "num_envs": NUM_SLOTS}
    rng, pids, num_killed = np.random.default_rng(1), set[int](), 0

    def kill(num_finished: int, num_steps: int) -> None:
        nonlocal num_killed
        if num_killed < num_kills and num_finished * (num_kills + 1) >= (num_killed + 1) * num_episodes:
            workers = [child for child in psutil.Process().children(recursive=True) if child.pid in pids]
            if workers:
                os.kill(rng.choice(workers).pid, signal.SIGKILL)
                num_killed += 1

    def see(batch: Any, episodes: np.ndarray) -> None:
        pids.update(info["pid"] for info in batch.infos if "pid" in info)

    kwargs: dict[str, Any] = {"num_workers": NUM_SLOTS, "max_restarts": None, "progress": kill, "see": see}
    killed = pufferlib.evaluate(creator, _zeros, **how, **kwargs)
    calm = pufferlib.evaluate(creator, _zeros, backend="serial", **how)
    names = ("seeds", "returns", "lengths", "endings", "agent_returns")
    seeds = derived_seeds(2, num_episodes)
    return {
        "case": "kills",
        "draw": 0,
        "num_episodes": num_episodes,
        "num_kills": num_killed,
        "num_restarts": int(killed.restarts.sum()),
        "num_lost": len({*seeds.tolist()} - {*killed.seeds.tolist()}) + int((killed.endings == "failed").sum()),
        "num_doubled": len(killed) - len({*killed.seeds.tolist()}),
        "same": all(np.array_equal(getattr(killed, name), getattr(calm, name)) for name in names),
    }


def _zeros(batch: Any) -> np.ndarray:
    return np.zeros(len(batch.agent_ids), np.int64)


PARTS = {"lengths": lengths_part, "games": games_part, "bias": bias_part, "kills": kills_part}


# --------------------------------------------------------------------------------------------------------- results


def stored() -> dict[str, dict[str, Any]]:
    """Return the stored parts, by name."""
    return json.loads(RESULT.read_text())["by_part"] if RESULT.exists() else {}


def sections(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the texts of docs/evaluation.md, by the names of their marks. parts: the stored ones, by name."""
    figures = [figure for part in parts.values() for figure in part["figures"]]
    texts = dict.fromkeys(("evaluation_lengths", "evaluation_games", "evaluation_same"), "Not measured yet.")
    cases = [case for case in loops.LENGTHS if _of(figures, case)]
    if cases:
        rows = [
            [contender, *(_cell(_of(figures, case, contender), "over_schedule", "over_share") for case in cases)]
            for contender in TIMED
        ]
        num_draws = len({figure["draw"] for figure in _of(figures, cases[0])})
        head = f"over the list schedule; over sum / slots ({num_draws} draws)"
        texts["evaluation_lengths"] = table((head, *cases), rows)
    cases = [case for case in GAMES if _of(figures, case)]
    if cases:
        rows = [
            [contender, *(_cell(_of(figures, case, contender), "wall_s", "steps_per_s") for case in cases)]
            for contender in CONTENDERS
        ]
        texts["evaluation_games"] = table(("seconds (steps a second)", *cases), rows)
    rows = [
        [
            f"{figure['num_episodes']:,} episodes on a pool"
            + (f", {figure['num_kills']} workers killed" if "num_kills" in figure else ""),
            "the same" if figure["same"] else "not the same",
            *(str(figure[name]) if name in figure else "–" for name in ("num_lost", "num_doubled", "num_restarts")),
        ]
        for figure in figures
        if "same" in figure
    ]
    if rows:
        heads = "compared with serial play", "results, to the bit", "lost", "played twice", "begun again"
        texts["evaluation_same"] = table(heads, rows)
    return texts


def _of(figures: Sequence[Figure], case: str, contender: str | None = None) -> list[Figure]:
    return [item for item in figures if item["case"] == case and contender in (None, item["contender"])]


def _cell(figures: Sequence[Figure], first: str, second: str) -> str:
    if not figures:
        return "–"
    main, other = (MedianRange.of([figure[name] for figure in figures]) for name in (first, second))
    return f"{main:.2f}; {other.median:,.2f}"


def shortfalls(figures: Sequence[Figure]) -> list[str]:
    """Return the targets that the figures miss, as sentences."""
    missed = [f"{figure['case']}: {figure}" for figure in figures if not figure.get("same", True)]
    missed += [f"kills: {item}" for item in figures if item.get("num_lost") or item.get("num_doubled")]
    for case in loops.LENGTHS:
        ratios = [item["over_schedule"] for item in _of(figures, case, OURS[0])]
        if ratios and MedianRange.of(ratios).median > BAR:
            missed.append(f"{case}: {MedianRange.of(ratios):.3f} of the list schedule's time, and not {BAR}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--short", action="store_true", help="a tenth of two draws; stores nothing")
    options = parser.parse_args()
    facts = {"machine": machine(), "revision": version()}
    scale, parts = (0.1, {}) if options.short else (1, stored())
    for name in options.only:
        part: dict[str, Any] = {**facts, "figures": []}
        if name in parts and {key: parts[name][key] for key in facts} == facts:
            part = parts[name]
        for case, draw, measure in PARTS[name](scale):
            if any((figure["case"], figure["draw"]) == (case, draw) for figure in part["figures"]):
                continue
            for figure in measure():
                load = round(os.getloadavg()[0], 1)
                part["figures"].append({**figure, "date": time.strftime("%Y-%m-%d"), "load": load})
                print(part["figures"][-1], flush=True)
            parts[name] = part
            if not options.short:
                with written_whole(RESULT) as file:
                    file.write_text(table_text({"by_part": parts}))
    figures = [figure for part in parts.values() for figure in part["figures"]]
    print(*sections(parts).values(), *shortfalls(figures), sep="\n\n")
    if not options.short:
        write_page(PAGE, fill(PAGE.read_text(), sections(parts)))


if __name__ == "__main__":
    main()
