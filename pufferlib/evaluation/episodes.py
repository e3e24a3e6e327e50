"""The results of evaluations: ``Episodes`` of one policy, and ``Runs``, the results of several trainings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pufferlib.errors import MissingExtra, PlanError
from pufferlib.evaluation import statistics
from pufferlib.evaluation.parameters import BootstrapParameters
from pufferlib.evaluation.plot import plot
from pufferlib.evaluation.statistics import Estimate, Profile, Scores
from pufferlib.util.annotations import Array
from pufferlib.util.files import written_whole
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import not_one_of, says_what_was_meant

__all__ = ["CUT", "FAILED", "TERMINATED", "TRUNCATED", "Episodes", "Runs"]

TERMINATED, TRUNCATED, CUT, FAILED = "terminated", "truncated", "cut", "failed"
NUM_THRESHOLDS = 101  # of a plot
COLUMNS = ("returns", "lengths", "restarts", "seconds")  # with one number per episode


class _Statistics:
    """Statistics of results with scores by task. A subclass defines ``scores``."""

    def scores(self, name: str = "returns", *, failed: str = "refuse") -> dict[str, Array]:
        """Return the scores of each task, float64 (scores,), by the task's name. Arguments: see ``mean``."""
        raise NotImplementedError

    @says_what_was_meant(parameters=BootstrapParameters)
    def mean(self, name: str = "returns", *, failed: str = "refuse", **how: Unpack[BootstrapParameters]) -> Estimate:
        """Return the mean, over tasks of each task's mean, with its bootstrap interval.

        name: "returns", "lengths", "seconds", "restarts", or the name of an info. failed: "refuse" raises PlanError if
            an episode failed; "leave out" computes the statistic of the others. confidence: the probability that the
            interval is to have. num_resamples: how many times scores are drawn again. seed: of the drawing.

        The interval assumes no distribution; for fewer than about ten scores per task it is too narrow. Raises
        PlanError if there is no such name or no score.
        """
        return self._estimate(statistics.mean_of_tasks, name, failed, **how)

    @says_what_was_meant(parameters=BootstrapParameters)
    def iqm(self, name: str = "returns", *, failed: str = "refuse", **how: Unpack[BootstrapParameters]) -> Estimate:
        """Return the mean of the middle half of all tasks' scores together, with its bootstrap interval.

        Arguments and errors: see ``mean``.
        """
        return self._estimate(statistics.interquartile_mean, name, failed, **how)

    @says_what_was_meant(parameters=BootstrapParameters)
    def probability_of_improvement(
        self,
        other: _Statistics,
        name: str = "returns",
        *,
        failed: str = "refuse",
        **how: Unpack[BootstrapParameters],
    ) -> Estimate:
        """Return the probability that a score is above one of ``other`` in a random task, with its bootstrap interval.

        Equal scores count half. other: results for the same tasks. Other arguments and errors: see ``mean``. Raises
        PlanError for other tasks.
        """
        first, second = self.scores(name, failed=failed), other.scores(name, failed=failed)
        if first.keys() != second.keys():
            raise PlanError(f"one has the tasks {', '.join(first)}, the other {', '.join(second)}; use the same tasks")
        return _estimate(statistics.improvement, [*first.values()], [second[task] for task in first], **how)

    @says_what_was_meant(parameters=BootstrapParameters)
    def performance_profile(
        self,
        thresholds: Sequence[float] | Array,
        name: str = "returns",
        *,
        failed: str = "refuse",
        **how: Unpack[BootstrapParameters],
    ) -> Profile:
        """Return the share of scores above each threshold, with bootstrap intervals.

        thresholds: the numbers to compare scores with. Other arguments and errors: see ``mean``.
        """
        limits = np.asarray(thresholds, np.float64).reshape(-1)
        scores = [*self.scores(name, failed=failed).values()]

        def shares(drawn: Scores) -> Array:
            return statistics.profile(drawn, limits)

        low, high = statistics.bootstrap(shares, scores, **how)
        return Profile(limits, shares(scores), low, high)

    def plot(self, path: str | os.PathLike[str], name: str = "returns", *, failed: str = "refuse") -> Path:
        """Draw the scores of each task, and the performance profile, to an image file; return its path.

        name, failed: as for ``mean``. Raises MissingExtra if matplotlib is not installed.
        """
        scores = self.scores(name, failed=failed)
        together = np.concatenate([*scores.values()])
        thresholds = np.linspace(together.min(), together.max(), NUM_THRESHOLDS)
        return plot(scores, self.performance_profile(thresholds, name, failed=failed), name, Path(path))

    def _estimate(
        self, statistic: Callable[..., Array], name: str, failed: str, **how: Unpack[BootstrapParameters]
    ) -> Estimate:
        return _estimate(statistic, [*self.scores(name, failed=failed).values()], **how)


@dataclass(frozen=True, eq=False)
class Episodes(_Statistics):
    """The results of an evaluation: one row per episode, in the order of the seeds.

    All arrays have one element per episode, unless noted. In the statistics, the episodes of a task are drawn again:
    they concern this one policy. How much luck was in its training, only several trainings can show (``stack``).
    Two Episodes are equal if all arrays but the times and the restarts are.
    """

    tasks: Array  # str: the name of the task
    seeds: Array  # int64: the seed of the episode
    returns: Array  # float64: the sum of rewards over steps and agents; NaN if the episode failed
    lengths: Array  # int64: the number of steps
    endings: Array  # str: "terminated", "truncated" (an agent, in the last step), "cut" (at max_steps) or "failed"
    restarts: Array  # int64: how many times the episode was begun again after a failure
    seconds: Array  # float64: wall time from the reset to the last row, of the try that counts
    agent_returns: Array  # float64 (episodes, agents): each agent's sum of rewards
    infos: Mapping[str, Array] = field(default_factory=dict)  # by name: (episodes,), or (episodes, agents) for several
    agent_names: tuple[str, ...] = ()  # of the agents; () if there is one, or if the agent at an index can change
    wall_s: float = 0.0  # seconds that the evaluation took

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.seeds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Episodes):
            return NotImplemented
        mine, theirs = self._contents(), other._contents()
        return mine.keys() == theirs.keys() and all(_same(mine[name], theirs[name]) for name in mine)

    __hash__ = None  # type: ignore[assignment]

    def _contents(self) -> dict[str, Array]:
        names = ("tasks", "seeds", "returns", "lengths", "endings", "agent_returns")
        infos = {f"info {name}": values for name, values in self.infos.items()}
        return {**{name: getattr(self, name) for name in names}, **infos}

    def __repr__(self) -> str:
        num, failed = len(self), int((self.endings == FAILED).sum())
        mean = f", mean return {np.nanmean(self.returns):.4g}" if num > failed else ""
        return f"Episodes({num} episodes{mean}{f', {failed} failed' if failed else ''}, {self.wall_s:.1f} s)"

    def scores(self, name: str = "returns", *, failed: str = "refuse") -> dict[str, Array]:
        """Return the episodes' numbers of each task, float64 (episodes of the task,), by the task's name.

        name: "returns", "lengths", "seconds", "restarts", or the name of an info; of an info with a column for each
            agent, the mean over the agents that have one. failed: "refuse" or "leave out" episodes that failed, or that
            have no such info.

        Raises PlanError for another name, and for episodes that are refused.
        """
        if failed not in ("refuse", "leave out"):
            raise PlanError(not_one_of("failed", failed, ("refuse", "leave out")))
        numbers = self.numbers(name)
        missing = (self.endings == FAILED) | np.isnan(numbers)
        if missing.any() and failed == "refuse":
            seeds = ", ".join(map(str, self.seeds[missing][:8].tolist()))
            raise PlanError(
                f"{int(missing.sum())} of {len(self)} episodes have no {name} or failed, with the seeds {seeds}; a "
                'mean of the others may be biased: pass failed="leave out" if you accept that'
            )
        if missing.all():
            raise PlanError(f"no episode has {name}; there is nothing to compute")
        present = ~missing
        return {task: numbers[present & (self.tasks == task)] for task in dict.fromkeys(self.tasks[present].tolist())}

    def finished(self) -> Episodes:
        """Return the episodes that have an ending; an interrupted evaluation leaves others."""
        chosen = self.endings != ""
        columns = {
            name: getattr(self, name)[chosen] for name in (*COLUMNS, "tasks", "seeds", "endings", "agent_returns")
        }
        return replace(self, **columns, infos={name: values[chosen] for name, values in self.infos.items()})

    def numbers(self, name: str = "returns") -> Array:
        """Return one number per episode, float64 (episodes,), with NaN where there is none.

        name: as for ``scores``. Raises PlanError for another name, and for infos that are no numbers.
        """
        known = (*COLUMNS, *self.infos)
        if name not in known:
            raise PlanError(not_one_of("name", name, known))
        return _numbers(name, getattr(self, name) if name in COLUMNS else self.infos[name])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a dict for each episode, with values that JSON can hold; None stands for NaN."""
        several = self.agent_returns.shape[1] > 1
        for index in range(len(self)):
            row = {
                "task": str(self.tasks[index]),
                "seed": int(self.seeds[index]),
                "return": _plain(self.returns[index]),
                "length": int(self.lengths[index]),
                "ending": str(self.endings[index]),
                "restarts": int(self.restarts[index]),
                "seconds": _plain(self.seconds[index]),
            }
            if several:
                row["agent_returns"] = _plain(self.agent_returns[index])
            yield {**row, "infos": {name: _plain(values[index]) for name, values in self.infos.items()}}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``rows`` to a file, one line of JSON per episode. path: replaced, once all is written, if it exists."""
        with written_whole(path) as part, open(part, "w", encoding="utf-8") as file:
            for row in self.rows():
                file.write(json.dumps(row, allow_nan=False) + "\n")

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row per episode; its columns are copies.

        An info has a column of its name; one with a value for each agent has a column per agent, "name/0", "name/1".
        Raises MissingExtra if pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingExtra("a DataFrame needs pandas, which is not installed; run `pip install pandas`") from error
        names = ("tasks", "seeds", "returns", "lengths", "endings", "restarts", "seconds")
        columns = {name: getattr(self, name) for name in names}
        parts = dict(self.infos)
        if self.agent_returns.shape[1] > 1:
            parts["agent_returns"] = self.agent_returns
        for name, values in parts.items():
            if values.ndim == 1:
                columns[name] = values
            else:
                columns |= {f"{name}/{agent}": values[:, agent] for agent in range(values.shape[1])}
        return pandas.DataFrame(columns)

    @staticmethod
    def stack(runs: Sequence[Episodes]) -> Runs:
        """Return the results of several trainings as ``Runs``. runs: the Episodes of each, with the same tasks.

        Raises PlanError if there are no runs, or if their tasks differ.
        """
        return Runs(tuple(runs))


class Runs(_Statistics):
    """The results of several trainings (runs): each run's score in a task is the mean of its episodes.

    In the statistics, runs are drawn again, within each task. runs: the Episodes of each run.
    """

    def __init__(self, runs: Sequence[Episodes]) -> None:
        """Raises PlanError if there are no runs, or if their tasks differ."""
        tasks = [set(run.tasks.tolist()) for run in runs]
        if not tasks or any(names != tasks[0] for names in tasks):
            raise PlanError(f"{len(tasks)} runs with the tasks {tasks}; stack one or more, with the same tasks in all")
        self.runs = tuple(runs)

    def scores(self, name: str = "returns", *, failed: str = "refuse") -> dict[str, Array]:
        """Return the runs' scores of each task, float64 (runs,), by the task's name. name, failed: see Episodes."""
        of_runs = [run.scores(name, failed=failed) for run in self.runs]
        missing = [task for task in of_runs[0] if not all(task in scores for scores in of_runs)]
        if missing or len({len(scores) for scores in of_runs}) > 1:
            raise PlanError(f"some runs have no {name} in some tasks; every run needs an episode in each task")
        return {task: np.array([scores[task].mean() for scores in of_runs]) for task in of_runs[0]}


def _estimate(statistic: Callable[..., Array], *samples: Scores, **how: Unpack[BootstrapParameters]) -> Estimate:
    low, high = statistics.bootstrap(statistic, *samples, **how)
    return Estimate(float(statistic(*samples)), float(low), float(high))


def _numbers(name: str, values: Array) -> Array:
    """Return one float64 per episode. Raises PlanError for values that are no numbers."""
    try:
        numbers: Array = np.asarray(values, np.float64)
        if numbers.ndim == 2:
            present = ~np.isnan(numbers)
            counts = present.sum(1)
            sums = np.where(present, numbers, 0).sum(1)
            numbers = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    except (TypeError, ValueError):
        raise PlanError(f"the infos {name} are no numbers, but {values.dtype} of shape {values.shape}") from None
    if numbers.shape != (len(values),):
        raise PlanError(f"the infos {name} have the shape {values.shape}; statistics need one number per episode")
    return numbers


def info_column(values: Sequence[Mapping[int | None, object]], num_agents: int) -> Array:
    """Return the values of one info as an array, (episodes,) or, for several agents, (episodes, agents).

    values: for each episode, the values by agent index; a value for None counts for all agents. The array is float64
    with NaN for missing values if all are numbers, otherwise of objects with None.
    """
    shape = len(values), num_agents
    items = np.full(shape, None, object)
    for episode, by_agent in enumerate(values):
        for agent, value in by_agent.items():
            for index in range(num_agents) if agent is None else (agent,):
                items[episode, index] = value
    scalars = (int, float, np.integer, np.floating, np.bool_)
    if all(value is None or isinstance(value, scalars) for value in items.flat):
        items = np.array([[np.nan if value is None else float(value) for value in row] for row in items], np.float64)
        items = items.reshape(shape)
    return items[:, 0] if num_agents == 1 else items


def _same(first: Array, second: Array) -> bool:
    if first.shape != second.shape:
        return False
    if first.dtype == object or second.dtype == object:
        return all(_same_values(one, other) for one, other in zip(first.flat, second.flat, strict=True))
    return np.array_equal(first, second, equal_nan=first.dtype.kind in "fc" and second.dtype.kind in "fc")


def _same_values(first: Any, second: Any) -> bool:
    """Return whether two values of infos are equal, where NaN is equal to NaN."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same_values(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)) and type(first) is type(second):
        return len(first) == len(second) and all(map(_same_values, first, second))
    one, other = np.asarray(first), np.asarray(second)
    if one.dtype == object and one.shape == ():  # no array, and no number
        return bool(first == second)
    return _same(one, other)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold; NaN becomes None, and what JSON cannot hold becomes its text."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
