"""The counts of a VecEnv, each worker's share of its environments, and the environments' seeds."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.util import cgroups
from pufferlib.util.annotations import Array
from pufferlib.util.suggestions import not_one_of

__all__ = ["AUTORESET_MODES", "Plan", "Seeds", "available_cpus", "checked_count", "checked_seed", "reset_seeds"]

AUTORESET_MODES = ("next_step", "same_step", "disabled")


@dataclass(frozen=True)
class Plan:
    """The validated counts of a VecEnv, and each worker's share of its environments.

    ``shares[w]``: the env ids of worker w, a range. Shares differ in size by at most one environment. first_env: the
    lowest env id; above 0 only in a Ray actor, which holds only some of a VecEnv's environments.
    """

    num_envs: int
    num_workers: int
    batch_size: int
    shares: tuple[range, ...]
    first_env: int = 0

    @classmethod
    def of(cls, num_envs: int, num_workers: int | None, batch_size: int | None, first_env: int = 0) -> Plan:
        """Return a plan with these counts. Raises PlanError for impossible counts.

        num_workers: by default, the number of available CPUs, but at most num_envs. batch_size: by default, num_envs.
        """
        num_envs = checked_count("num_envs", num_envs)
        num_workers = (
            min(num_envs, available_cpus()) if num_workers is None else checked_count("num_workers", num_workers)
        )
        batch_size = num_envs if batch_size is None else checked_count("batch_size", batch_size)
        if num_workers > num_envs:
            raise PlanError(f"num_workers={num_workers} is more than num_envs={num_envs}; use 1 to {num_envs}")
        if batch_size > num_envs:
            raise PlanError(f"batch_size={batch_size} is more than num_envs={num_envs}; use 1 to {num_envs}")
        bounds = [first_env + num_envs * worker // num_workers for worker in range(num_workers + 1)]
        shares = tuple(range(start, stop) for start, stop in itertools.pairwise(bounds))
        return cls(num_envs, num_workers, batch_size, shares, first_env)

    @property
    def synchronous(self) -> bool:
        """Whether every batch holds all environments in the order of their ids."""
        return self.batch_size == self.num_envs


def checked_count(name: str, value: object, least: int = 1, otherwise: str = "") -> int:
    """Return a count as an int. Raises PlanError if it is a bool, not a whole number, or below ``least``.

    otherwise: text appended to the error's advice, naming other allowed values.
    """
    advice = f"use {least} or more{otherwise}"
    try:
        count = operator.index(value)  # type: ignore[arg-type]  # refuses floats and strings, takes NumPy integers
    except TypeError:
        raise PlanError(f"{name}={value!r} is not a whole number; {advice}") from None
    if isinstance(value, (bool, np.bool_)) or count < least:
        raise PlanError(f"{name}={value!r} is impossible; {advice}")
    return count


def checked_mode(mode: object, known: Iterable[str] = AUTORESET_MODES) -> str:
    """Return the name of an autoreset mode. mode: the name, or a member of Gymnasium's AutoresetMode.

    known: the names that are allowed. Raises PlanError for any other mode.
    """
    known = tuple(known)
    word = mode.name.lower() if isinstance(mode, Enum) else mode
    if not isinstance(word, str) or word not in known:
        raise PlanError(not_one_of("autoreset_mode", mode, known, ", nor a gymnasium.vector.AutoresetMode"))
    return word


def available_cpus() -> int:
    """Return the number of CPUs that this process may keep busy, given its affinity and cgroup quotas; at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, _cgroup_cpus()))


def cpu_quota(root: Path = cgroups.ROOT, cgroup: Path = cgroups.MEMBERSHIP) -> float:
    """Return the tightest CPU quota of this process's control groups, in CPUs, such as 1.5; inf if there is none."""
    quotas = map(_quota, cgroups.folders("cpu", root, cgroup))
    return min((quota / period for quota, period in quotas if quota > 0), default=float("inf"))


def _cgroup_cpus(root: Path = cgroups.ROOT, cgroup: Path = cgroups.MEMBERSHIP) -> int:
    """Return ``cpu_quota`` rounded down to whole CPUs, at least 1; a large number without a quota."""
    quota = cpu_quota(root, cgroup)
    return max(1, int(quota)) if quota < float("inf") else 1 << 30


def _quota(folder: Path) -> tuple[int, int]:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            return (-1 if quota == "max" else int(quota)), int(period)
        return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return -1, 1


class Seeds:
    """The seeds of the environments' first resets, derived from one seed.

    ``seeds[i]``: the seed of environment i before any restart. After n restarts, environment i gets the low 31 bits of
    the first word of ``SeedSequence(seed, spawn_key=(i, n))``. If these bits are a seed that has been used before, the
    next word of the sequence is tried, so that no two environments play the same episodes.
    """

    def __init__(self, seed: int | None, num_envs: int) -> None:
        self.entropy = np.random.SeedSequence(seed).entropy
        self._used: set[int] = set()
        self._first = [self.draw(env_id) for env_id in range(num_envs)]

    def __getitem__(self, env_id: int) -> int:
        return self._first[env_id]

    def draw(self, env_id: int, restarts: int = 0) -> int:
        """Return an unused seed for the first reset of an environment that has been restarted ``restarts`` times.

        The seed counts as used from then on.
        """
        sequence = np.random.SeedSequence(self.entropy, spawn_key=(env_id, restarts))
        num_words = 1
        while True:
            seed = int(sequence.generate_state(num_words)[-1]) & 0x7FFFFFFF
            if seed not in self._used:
                self._used.add(seed)
                return seed
            num_words += 1


def checked_seed(seed: SupportsIndex | None) -> int | None:
    """Return ``seed`` as an int, or None if it is None. Raises PlanError if it is negative or not a whole number."""
    if seed is None:
        return None
    try:
        number = operator.index(seed)
    except Exception:  # any error of the user's object
        raise PlanError(f"seed={seed!r} is not a whole number; use None, or 0 or more") from None
    if number < 0:
        raise PlanError(f"seed={seed!r} is negative; use None, or 0 or more")
    return number


def reset_seeds(
    seed: SupportsIndex | Sequence[SupportsIndex | None] | None, env_ids: Sequence[int] | Array, num_envs: int
) -> tuple[list[int | None], Seeds | None]:
    """Return a reset's seeds, one per id in ``env_ids``, and the Seeds from which they were taken, if any.

    A seed is None for an environment that continues with its random generator. seed: None for all environments; a
    sequence with a number or None for each id; or a single number, from which the Seeds of all ``num_envs``
    environments are derived. The second result is these Seeds, or None if ``seed`` is not a single number. Raises
    PlanError for an invalid seed or a wrong number of seeds.
    """
    if seed is None:
        return [None] * len(env_ids), None
    if isinstance(seed, (Sequence, np.ndarray)):
        return _listed_seeds(seed, len(env_ids)), None
    seeds = Seeds(checked_seed(seed), num_envs)
    return [seeds[env_id] for env_id in env_ids], seeds


def _listed_seeds(seeds: Sequence[SupportsIndex | None] | Array, num_envs: int) -> list[int | None]:
    if getattr(seeds, "shape", None) == ():
        raise PlanError(f"seed={seeds!r} is not a whole number; use None, or 0 or more")
    if len(seeds) != num_envs:
        raise PlanError(f"{len(seeds)} seeds for {num_envs} environments; give one each, or a single number")
    return [checked_seed(seed) for seed in seeds]
