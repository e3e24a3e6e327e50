"""Definitions of the benchmarks: libraries, participants, workloads, targets.

A participant is written ``library arrangement@w2b8``: two processes, batches of eight environments. Without w a library
has one process for each environment; without b a batch holds all environments. The library ``ours@abc1234`` is that
commit of this project.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = [
    "COPIES",
    "FLOORS",
    "LIBRARIES",
    "OURS",
    "Library",
    "Participant",
    "Target",
    "Workload",
    "floor_of",
    "library_of",
]


class Library(NamedTuple):
    """A library that takes part.

    venv: the virtual environment it runs in. file: in benchmarks/vectorizers. package: reported with its version,
    unless the title has that. variables: of its environment. old_games: whether it runs on the Gymnasium and games that
    PufferLib needs, whose costs differ. own_games: whether it steps only its own, native games.
    """

    title: str
    venv: str
    file: str
    package: str = ""
    variables: Mapping[str, str] = {}
    old_games: bool = False
    own_games: bool = False


LIBRARIES = {
    "ours": Library("this project", "ours", "ours", "pufferlib"),
    "ours-old": Library("this project (ours-old)", "ours-old", "ours", "pufferlib", old_games=True),
    "ours-program": Library(
        "this project, called as PufferLib 3", "ours-old", "pufferlib_30", "pufferlib", old_games=True
    ),
    "ours-program-new": Library(
        "this project, called as PufferLib 3 (Gymnasium 1.4)", "ours", "pufferlib_30", "pufferlib"
    ),
    "ours-portable": Library("this project, nothing compiled", "ours", "ours", variables={"PUFFERLIB_NATIVE": "0"}),
    "bare": Library("a bare Python loop", "ours", "bare"),  # in the venv with all environments
    "bare-old": Library("a bare Python loop (Gymnasium 0.29)", "ours-old", "bare", old_games=True),
    "gymnasium": Library("Gymnasium", "gymnasium", "gymnasium_vector", "gymnasium"),
    "sb3": Library("Stable-Baselines3", "sb3", "stable_baselines", "stable-baselines3"),
    "tianshou": Library("Tianshou", "tianshou", "tianshou_vector", "tianshou"),
    "torchrl": Library("TorchRL", "torchrl", "torchrl_vector", "torchrl"),
    "pufferlib-0.7": Library("PufferLib 0.7.3", "pufferlib-0.7", "pufferlib_07", old_games=True),
    "pufferlib-3.0": Library("PufferLib 3.0.0", "pufferlib-3.0", "pufferlib_30", old_games=True),
    "envpool": Library("EnvPool", "envpool", "envpool_native", "envpool", own_games=True),
    "supersuit": Library("SuperSuit", "supersuit", "supersuit_vector", "supersuit"),
    "ale": Library("ALE's own vector environment", "gymnasium", "ale_vector", "ale-py"),
}
OURS = ("ours", "ours-old", "ours-portable")
FLOORS = ("bare", "bare-old")
COPIES, CALLS = "bare copies", "bare calls"  # of observations, by C; their difference is the time of the copies


class Participant(NamedTuple):
    """One library in one arrangement. num_workers, batch_size: None if the name has none."""

    library: str
    arrangement: str
    num_workers: int | None
    batch_size: int | None

    @classmethod
    def of(cls, name: str) -> Participant:
        match = re.fullmatch(r"(\S+) ([\w-]+)(?:@(?:w(\d+))?(?:b(\d+))?)?", name)
        if match is None or (match[1] not in LIBRARIES and not match[1].startswith("ours@")):
            raise ValueError(f"{name!r} is not 'library arrangement@w2b8' with one of {', '.join(LIBRARIES)}")
        return cls(match[1], match[2], *(None if count is None else int(count) for count in match.group(3, 4)))


def library_of(name: str) -> Library:
    """Return the library of a participant: one of LIBRARIES, or a commit of ours, whose venv is named after it."""
    library = Participant.of(name).library
    if library in LIBRARIES:
        return LIBRARIES[library]
    return LIBRARIES["ours"]._replace(title=f"this project at {library.partition('@')[2]}", venv=library)


def floor_of(name: str, names: Collection[str]) -> str:
    """Return the participant whose time to subtract from a participant's: one that steps the same environments alone.

    For COPIES: one that also makes the same calls. names: all participants. Without a bare loop on old games, all step
    the same games.
    """
    if name == COPIES:
        return CALLS
    old = "bare-old steps"
    return old if old in names and library_of(name).old_games else "bare steps"


@dataclass(frozen=True)
class Target:
    """A goal: a ratio of steps per second, or a limit on another figure.

    of: our participant, or several, of which the one with the best median counts. over: the participants to compare
    with; the least ratio counts. rate: a limit in steps per second to compare with. at_least: the ratio; None: ahead,
    by the sign test. figure, at_most: in place of steps per second, a figure of ``ratios.figures`` or "overhead", and
    its upper limit, or with ``over`` that of its ratio to one participant's. floor: the participant whose figure is
    reported next to ours.
    """

    text: str
    of: str | tuple[str, ...]
    over: tuple[str, ...] = ()
    rate: float | None = None
    at_least: float | None = None
    figure: str = ""
    at_most: float = 0.0
    floor: str = ""


@dataclass(frozen=True)
class Workload:
    """Environments to step, the participants that step them, and the targets.

    env, env_kwargs, num_envs: the environments. kind: "play"; "wait", with a learner that computes for think_s; "idle",
    with a pause. window_s: the length of a turn, halved in the short form. short: whether the short form includes this.
    repeats: turns of each participant. new_processes: whether each repeat is played by new processes.
    """

    name: str
    title: str
    participants: tuple[str, ...]
    targets: tuple[Target, ...] = ()
    env: str = "plain"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 32
    kind: str = "play"
    think_s: float = 0.0
    window_s: float = 0.3
    short: bool = True
    repeats: int = 7
    new_processes: bool = False
    cell: Mapping[str, Any] = field(default_factory=dict)  # its position in the grid or in a table

    def needed(self, name: str) -> bool:
        """Return whether a participant is in the short form: ours, the floor, native ones, those in targets."""
        named = [participant for target in self.targets for participant in target.over]
        library = Participant.of(name).library.partition("@")[0]  # another revision of ours is ours
        return name in named or library in (*OURS, *FLOORS, "ale", "envpool")

    def task(self, name: str) -> dict[str, Any]:
        """Return the fields of a participant's Task; see vectorizers/player.py."""
        participant = Participant.of(name)
        return {
            "arrangement": participant.arrangement,
            "env": self.env,
            "env_kwargs": dict(self.env_kwargs),
            "num_envs": self.num_envs,
            "num_workers": participant.num_workers or self.num_envs,
            "batch_size": participant.batch_size or self.num_envs,
        }
