"""Arrangements: which VecEnvs the chaos suite plays, and how much of each."""

from __future__ import annotations

from typing import Any, NamedTuple

from .envs import Fault

__all__ = ["ARRANGEMENTS", "Arrangement"]

ALL = tuple(Fault)
QUICK = tuple(fault for fault in Fault if fault not in (Fault.HANG, Fault.STOP))  # where nothing ends a hang
FEW = (Fault.RAISE_IN_STEP, Fault.RAISE_IN_INIT, Fault.RAISE_IN_RESET, Fault.DIE_IN_PACKING)


class Arrangement(NamedTuple):
    """One VecEnv, how much of it is played (transitions, deaths of workers, faults), and what goes wrong meanwhile.

    thread: whether the learner has a second Python thread, so that its workers must not be forked any more.
    interrupts: whether signals raise KeyboardInterrupt in the learner's ``recv``. local_workers: over Ray, the
    processes of each of num_workers actors; 0: the actor itself.
    """

    kind: str
    backend: str
    num_envs: int
    num_workers: int
    batch_size: int
    mode: str = "next_step"
    transitions: int = 100_000
    deaths: int = 30
    faults: int = 60
    repertoire: tuple[Fault, ...] = QUICK
    step_timeout: float | None = None
    on_error: str = "restart"
    context: str | None = None
    thread: bool = False
    interrupts: bool = False
    mean_s: float = 0.03  # between two pranks of the monkey
    short: float = 0.0  # how much of it the short form plays
    local_workers: int = 0

    @property
    def num_processes(self) -> int:
        """How many there are to be killed: workers, and actors that are none."""
        return self.num_workers * (1 + self.local_workers)

    def part(self, part: float) -> Arrangement:
        """Return a part of this, in which every fault occurs all the same."""
        return self._replace(
            transitions=int(self.transitions * part),
            deaths=max(1, round(self.deaths * part)),
            faults=max(len(self.repertoire), round(self.faults * part)),
        )


MP, POOL, RAY = "multiprocessing", "pool", "ray"
RARE: Any = {"deaths": 6, "faults": 20, "repertoire": FEW}  # where starting a worker takes a second
OFTEN: Any = {"interrupts": True, "mean_s": 0.01, "transitions": 40_000, "deaths": 20}
TIMED: Any = {"step_timeout": 0.4, "repertoire": ALL, "short": 0.1}
COPYING: Any = {"faults": 100, "repertoire": (*QUICK, *[Fault.DIE_IN_COPYING] * 6), "short": 0.1}
SLOW: Any = {"deaths": 30, "faults": 40, "transitions": 30_000, "mean_s": 0.1}  # where a call takes a millisecond
RAISING: Any = {"on_error": "raise", "transitions": 60_000}
ARRANGEMENTS: dict[str, Arrangement] = {
    "synchronous": Arrangement("in place", MP, 96, 2, 96, transitions=2_000_000, deaths=60, short=0.03),
    "synchronous, infos": Arrangement("single", MP, 15, 3, 15, mode="same_step", transitions=300_000, short=0.1),
    "synchronous, nested": Arrangement("nested", MP, 7, 3, 7, mode="disabled", deaths=40, short=0.1),
    "synchronous, wide": Arrangement("wide", MP, 6, 3, 6, transitions=15_000, deaths=30),
    "synchronous, timeouts": Arrangement("single", MP, 8, 2, 8, transitions=150_000, **TIMED),
    "ordered": Arrangement("in place", MP, 24, 3, 8, transitions=700_000, deaths=50),
    "ordered, agents": Arrangement("zoo", MP, 9, 2, 3, mode="same_step", transitions=150_000, deaths=50, short=0.1),
    "ordered, infos": Arrangement("single", MP, 10, 4, 4, mode="disabled", deaths=40),
    "pool": Arrangement("in place", POOL, 64, 4, 16, transitions=1_000_000, deaths=80, short=0.06),
    "pool, wide": Arrangement("wide", POOL, 6, 3, 2, transitions=20_000, deaths=100, mean_s=0.015, **COPYING),
    "pool, infos": Arrangement("single", POOL, 12, 3, 4, mode="disabled", transitions=150_000, deaths=50, short=0.15),
    "pool, nested": Arrangement("nested", POOL, 9, 2, 4, mode="same_step", transitions=100_000, deaths=50),
    "pool, agents": Arrangement("team", POOL, 10, 3, 3, transitions=200_000, deaths=50),
    "pool, crowded": Arrangement("single", POOL, 8, 8, 1, deaths=40),
    "pool, timeouts": Arrangement("single", POOL, 8, 2, 3, mode="same_step", **TIMED),
    "synchronous, raising": Arrangement("single", MP, 8, 2, 8, **RAISING),
    "pool, raising": Arrangement("single", POOL, 9, 3, 4, **RAISING, short=0.15),
    "pool, raising, wide": Arrangement("wide", POOL, 6, 3, 2, on_error="raise", transitions=5_000, deaths=30),
    "ordered, raising": Arrangement("in place", MP, 9, 3, 4, **RAISING),
    "synchronous, interrupts": Arrangement("single", MP, 6, 2, 6, **OFTEN),
    "pool, interrupts": Arrangement("single", POOL, 6, 2, 2, **OFTEN, short=0.1),
    "synchronous, thread": Arrangement("in place", MP, 8, 2, 8, thread=True, **RARE, short=0.2),
    "pool, spawn": Arrangement("single", POOL, 8, 2, 3, context="spawn", **RARE),
    "ordered, forkserver": Arrangement("single", MP, 8, 2, 3, context="forkserver", **RARE),
    "ray, actors": Arrangement("single", RAY, 8, 4, 3, **SLOW),
    "ray, processes": Arrangement("single", RAY, 12, 2, 4, mode="same_step", local_workers=2, **SLOW),
    "ray, synchronous": Arrangement("nested", RAY, 6, 3, 6, mode="disabled", **SLOW),
}  # fmt: skip
