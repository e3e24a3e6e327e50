"""Workloads reported as overheads: the microseconds of a step beyond those of the environments stepped alone.

    returns-*    16 synthetic environments that return various values; single-returns-*: one environment
    replayed-*   results of real environments, replayed at 0.1 µs a step, in 16 and (single-replayed-*) one environment
    played-*     the real environments
    family-*     replays of the families in docs/environments.md that make over 1,000 steps a second
    agents-*     2, 4 and 16 synthetic agents under PettingZoo's interface; native-*: PufferEnvs
    infos-*      infos from two workers: unread, read in full, and one column of them
    calls-*      other ways to call: same_step, copy=True, actions in a list or from a Tuple space
    workers-*    32 real environments on two workers next to the serial backend: speed, and CPU time a step

"bare steps" is the floor. overhead_tables.py makes the tables: ``cell`` holds the table and the row of each workload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.participants import CALLS, COPIES, Target, Workload

__all__ = ["FAMILIES", "GYM_ASYNC", "GYM_SYNC", "REPLAYED", "RETURNED", "overhead_workloads"]

GYM_ASYNC, GYM_SYNC = "gymnasium async", "gymnasium sync"
FLOOR, OURS_SERIAL, OURS_WORKERS = "bare steps", "ours serial", "ours processes@w2"
ALONE = (OURS_SERIAL, OURS_WORKERS, GYM_SYNC, GYM_ASYNC, "sb3 dummy", "pufferlib-3.0 serial")
ONE_ENV = (OURS_SERIAL, GYM_SYNC, "sb3 dummy", "pufferlib-3.0 serial")
AGENTS = (OURS_SERIAL, OURS_WORKERS, "supersuit serial", "supersuit processes@w2", "pufferlib-3.0 serial")
NUM_ENVS = 16
SHARED = ("taxi", "frozen_lake", "half_cheetah", "reacher", "pong", "simple_tag")  # between two workers

RETURNED = (  # the keys of envs.RETURNS
    *("plain", "reward np.float64", "reward np.float32", "reward int", "reward 0-d", "flag np.bool_"),
    *("observation float64", "observation list", "observation bools", "observation number"),
    *("observation Dict of four float64", "info of one", "info of four", "info of eight"),
    *("info of one np.float64", "info of four np.float64", "info of eight np.float64", "info of an array"),
)

REPLAYED = {  # keys of envs.REAL_ENVS or games.GAMES: their names in tables, and their numbers of agents
    "cartpole": ("CartPole", 1),
    "pendulum": ("Pendulum", 1),
    "frozen_lake": ("FrozenLake", 1),
    "cliff_walking": ("CliffWalking", 1),
    "taxi": ("Taxi", 1),
    "lunar_lander": ("LunarLander", 1),
    "half_cheetah": ("HalfCheetah", 1),
    "reacher": ("Reacher", 1),
    "pong": ("Pong, gray 84×84", 1),
    "minigrid": ("MiniGrid Empty 8×8, images", 1),
    "simple_tag": ("simple_tag", 4),
    "simple_spread": ("simple_spread", 3),
    "pursuit": ("pursuit", 8),
    "knights_archers_zombies": ("knights_archers_zombies", 4),
}
SLOW = ("pursuit",)  # under 1,000 steps a second: replayed only
PICTURES = (  # recordings of families whose observations, of 100 kB and more, take longer to copy than all else takes
    *("ale-breakout-v5", "stable-retro-airstriker-genesis-v0", "vizdoombasic-v1"),
)
SHORT = ("half_cheetah", "simple_tag")  # with infos, and with several agents


class OfFamily(NamedTuple):
    """An environment of a family: its name, the stem of the family's file, and its number of agents."""

    name: str
    stem: str
    num_agents: int


def _families() -> Iterator[tuple[str, OfFamily]]:
    """Yield the environments with over 1,000 steps per second in ``make test-envs``, by the names of recordings."""
    replayed = ("CartPole-v1", "LunarLander-v3", "HalfCheetah-v5", "mpe/simple_tag_v3")  # which are in REPLAYED
    for file in sorted((Path(__file__).parent / "results" / "environments").glob("*.json")):
        content = json.loads(file.read_text())
        for example in content.get("environments", ()):
            if example.get("steps_per_s", {}).get("serial", 0) > 1000 and example["name"] not in replayed:
                recording = example["name"].replace("/", "-").lower()
                yield recording, OfFamily(example["name"], content["family"], example["agents"])


FAMILIES = dict(_families())


def _slug(name: str) -> str:
    return name.replace("_", "-").replace(" ", "-").replace(".", "-")


def _overhead(text: str, peer: str, at_most: float, of: str = OURS_SERIAL) -> tuple[Target, ...]:
    """Return a target for our overhead as a share of a peer's."""
    return (Target(text, of, (peer,), figure="overhead", at_most=at_most),)


OF_SYNC = _overhead("1/4 of SyncVectorEnv's overhead", GYM_SYNC, 1 / 4)
UNDER_SYNC = _overhead("under SyncVectorEnv's overhead", GYM_SYNC, 1)
OF_COPIES = _overhead("1.2× the time of copying the observations", COPIES, 1.2)
OF_SUPERSUIT = _overhead("1/4 of SuperSuit's overhead", "supersuit serial", 1 / 4)
OF_AGENTS = (*OF_SUPERSUIT, *_overhead("1/4 of PufferLib 3.0's overhead", "pufferlib-3.0 serial", 1 / 4))
OF_AGENTS_WITH_INFOS = (*OF_SUPERSUIT, *_overhead("1/3 of PufferLib 3.0's overhead", "pufferlib-3.0 serial", 1 / 3))


NOT_ABOVE_SYNC = (Target("no slower than SyncVectorEnv", OURS_SERIAL, (GYM_SYNC,), figure="step_us", at_most=1),)
NOT_ABOVE_AGENTS = (
    Target("no slower than SuperSuit", OURS_SERIAL, ("supersuit serial",), figure="step_us", at_most=1),
    Target("no slower than PufferLib 3.0", "ours-old serial", ("pufferlib-3.0 serial",), figure="step_us", at_most=1),
)


def _plain(text: str, of: str, figure: str, at_most: float) -> Target:
    """Return a target for our time as a multiple of that of plain steps in the same run."""
    kind, _, counts = of.partition("@")
    plain = f"ours {kind.split()[1].partition('-')[0]}-plain{counts and '@' + counts}"
    return Target(text, of, (plain,), figure=figure, at_most=at_most)


OF_PLAIN = _plain("1.3× the CPU time of plain steps", OURS_SERIAL, "cpu_us", 1.3)
OF_PLAIN_WORKERS = (
    _plain("infos unread: 1.8× the time of plain steps", OURS_WORKERS, "step_us", 1.8),
    _plain("read in full: 4× the time of plain steps", "ours processes-read@w2", "step_us", 4),
    _plain("one column: 2.2× the time of plain steps", "ours processes-column@w2", "step_us", 2.2),
)


def _returns() -> Iterator[Workload]:
    """Yield environments whose steps return few to all types that Gymnasium allows."""
    for name, num_envs in product(RETURNED, (NUM_ENVS, 1)):
        one = num_envs == 1
        slug = name.replace(" ", "-").replace(".", "-")
        is_scalar = not one and name.startswith(("reward", "flag"))
        yield Workload(
            f"{'single-' * one}returns-{slug}",
            f"{'one env that returns' if one else '16 envs that return'}: {name}",
            (*(ONE_ENV if one else ALONE), *OF_PLAIN.over * is_scalar, FLOOR),
            UNDER_SYNC if one else (*OF_SYNC, *(OF_PLAIN,) * is_scalar),
            env="returning",
            env_kwargs={"returns": name},
            num_envs=num_envs,
            window_s=0.1 if one else 0.2,
            short=False,
            cell={"table": "single" if one else "returns", "row": name},
        )


def _replayed() -> Iterator[Workload]:
    """Yield replays of real environments, without the cost of these and its variation."""
    for (name, (title, num_agents)), num_envs in product(REPLAYED.items(), (NUM_ENVS, 1)):
        one = num_envs == 1
        if one and num_agents > 1:
            continue
        participants = AGENTS if num_agents > 1 else ONE_ENV if one else ALONE
        yield Workload(
            f"{'single-' * one}replayed-{_slug(name)}",
            f"{title}, replayed, {'one env' if one else '16 envs'}{f' of {num_agents} agents' * (num_agents > 1)}",
            (*participants, FLOOR),
            UNDER_SYNC if one else OF_AGENTS if num_agents > 1 else OF_SYNC,
            env="replayed_agents" if num_agents > 1 else "replayed",
            env_kwargs={"recording": name},
            num_envs=num_envs,
            window_s=0.1 if one else 0.2,
            short=not one and name in SHORT,
            cell={
                "table": "single" if one else "replayed-agents" if num_agents > 1 else "replayed",
                "row": f"{title}, replayed" if one else title,
            },
        )


def _of_families() -> Iterator[Workload]:
    """Yield one workload for each example of a family, with only one other library, since there are many."""
    for recording, (name, _, num_agents) in FAMILIES.items():
        several, picture = num_agents > 1, recording in PICTURES
        yield Workload(
            f"family-{_slug(recording)}",
            f"{name}, replayed, 16 envs{f' of {num_agents} agents' * several}",
            (OURS_SERIAL, "supersuit serial" if several else GYM_SYNC, *(COPIES, CALLS) * picture, FLOOR),
            OF_SUPERSUIT if several else OF_COPIES if picture else OF_SYNC,
            env="replayed_agents" if several else "replayed",
            env_kwargs={"recording": recording},
            num_envs=NUM_ENVS,
            window_s=0.1,
            short=False,
            cell={"table": "families-agents" if several else "families", "row": name},
        )


def _played() -> Iterator[Workload]:
    """Yield the real environments. PufferLib 3.0 steps older versions, so its floor is a bare loop over those."""
    for name, (title, num_agents) in REPLAYED.items():
        if name in SLOW:
            continue
        yield Workload(
            f"played-{_slug(name)}",
            f"{title}, played, 16 envs{f' of {num_agents} agents' * (num_agents > 1)}",
            (*(AGENTS if num_agents > 1 else ALONE), "ours-old serial", FLOOR, "bare-old steps"),
            NOT_ABOVE_AGENTS if num_agents > 1 else NOT_ABOVE_SYNC,
            env=name,
            num_envs=NUM_ENVS,
            window_s=0.5,
            short=False,
            cell={"table": "played-agents" if num_agents > 1 else "played", "row": title},
        )


def _agents() -> Iterator[Workload]:
    """Yield environments of several agents: returned in dicts, or written in place by PufferEnvs (ours only)."""
    for num_agents, info in product((2, 4, 16), (False, True)):
        yield Workload(
            f"agents-{num_agents}{'-info' * info}",
            f"16 envs of {num_agents} agents{', an info each' * info}",
            (*AGENTS, FLOOR),
            OF_AGENTS_WITH_INFOS if info else OF_AGENTS,
            env="agents",
            env_kwargs={"num_agents": num_agents, "info": info},
            num_envs=NUM_ENVS,
            window_s=0.2,
            short=False,
            cell={"table": "agents", "row": f"{num_agents} agents{', an info each' * info}"},
        )
    for num_agents in (4, 64):
        yield Workload(
            f"native-{num_agents}",
            f"16 PufferEnvs of {num_agents} agents",
            (OURS_SERIAL, OURS_WORKERS, FLOOR),
            (Target("an overhead of 1.5 µs", OURS_SERIAL, figure="overhead", at_most=1.5),),
            env="native",
            env_kwargs={"num_agents": num_agents},
            num_envs=NUM_ENVS,
            window_s=0.2,
            short=False,
            cell={"table": "agents", "row": f"PufferEnv, {num_agents} agents"},
        )


def _infos() -> Iterator[Workload]:
    """Yield infos from two workers: unread, read in full, or one key read as a column."""
    ways = ("processes@w2", "processes-read@w2", "processes-column@w2")
    for name in RETURNED:
        if not name.startswith("info"):
            continue
        yield Workload(
            f"infos-{_slug(name.removeprefix('info of '))}",
            f"16 envs on two workers, {name}",
            (
                *(f"ours {way}" for way in ways),
                *(*OF_PLAIN_WORKERS[0].over, GYM_ASYNC, "pufferlib-3.0 processes@w2", FLOOR),
            ),
            OF_PLAIN_WORKERS,
            env="returning",
            env_kwargs={"returns": name},
            num_envs=NUM_ENVS,
            window_s=0.2,
            short=False,
            cell={"table": "infos", "row": name},
        )


def _calls() -> Iterator[Workload]:
    """Yield other ways to call the same environment. Gymnasium's SyncVectorEnv copies by default."""
    rows: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
        ("list", "actions in a list", "-list", "-list", {}),
        ("tuple", "actions of a Tuple space", "", "", {"actions": "tuple"}),
        ("same-step", "autoreset in the same step", "-same-step", "-same-step", {}),
        ("short", "episodes of ten steps", "", "", {"episode_length": 10}),
        ("short-same-step", "the same, autoreset in the same step", "-same-step", "-same-step", {"episode_length": 10}),
        ("copy", "batches to keep", "-copy", "", {}),
    )
    for name, title, ours, theirs, env_kwargs in rows:
        yield Workload(
            f"calls-{name}",
            f"16 envs, {title}",
            (f"ours serial{ours}", f"gymnasium sync{theirs}", FLOOR),
            _overhead("1/4 of SyncVectorEnv's overhead", f"gymnasium sync{theirs}", 1 / 4, f"ours serial{ours}"),
            env="returning",
            env_kwargs={"returns": "plain", **env_kwargs},
            num_envs=NUM_ENVS,
            window_s=0.2,
            short=False,
            cell={"table": "calls", "row": title},
        )


def _workers() -> Iterator[Workload]:
    """Yield environments whose steps take long enough for a second worker."""
    rows: list[tuple[str, str, str, dict[str, Any]]] = [(_slug(name), REPLAYED[name][0], name, {}) for name in SHARED]
    rows.append(("four-agents", "four agents, 10 µs a step", "agents", {"num_agents": 4, "busy_s": 1e-5}))
    for slug, title, env, env_kwargs in rows:
        yield Workload(
            f"workers-{slug}",
            f"{title}, 32 envs on two workers",
            (OURS_SERIAL, OURS_WORKERS, FLOOR),
            (Target("1.5× the serial backend", OURS_WORKERS, (OURS_SERIAL,), at_least=1.5),),
            env=env,
            env_kwargs=env_kwargs,
            num_envs=32,
            window_s=1.0,
            short=False,
            cell={"table": "workers", "row": title},
        )


def overhead_workloads() -> Iterator[Workload]:
    """Yield all workloads of this module."""
    for group in (_returns, _replayed, _of_families, _played, _agents, _infos, _calls, _workers):
        yield from group()
