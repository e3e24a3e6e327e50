"""Autotune: measure an environment, try plans for it within a budget, and return the best one with the reason.

All trials run in subprocesses (``trial``): first one environment alone, then a few in one worker, to measure start-up
time, memory and step times. From these, each plan's throughput is forecast by the model behind ``VecEnv.stats()``, and
its memory is estimated. The promising plans that fit into memory are tried in rounds: after each round, the better ones
remain and are tried for longer. The measurements decide, not the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any

from pufferlib.construct import known_backends
from pufferlib.errors import PlanError, WorkerError
from pufferlib.registry import creator
from pufferlib.telemetry.durations import seconds_text, times_text
from pufferlib.telemetry.stats import Stats
from pufferlib.tuning.plans import Row, TunedPlan, load_plan
from pufferlib.tuning.random_play import CLEARLY
from pufferlib.tuning.trial import Outcome, Trial, TrialRunner
from pufferlib.util.memory import memory_at_hand, memory_text, nbytes_of
from pufferlib.util.suggestions import not_one_of, says_what_was_meant
from pufferlib.vectorization.core.arguments import misplaced
from pufferlib.vectorization.core.plan import Plan, available_cpus, checked_mode
from pufferlib.vectorization.processes.backend import SPIN, default_spin

__all__ = ["autotune", "load_plan"]

MULTIPLES = (1, 2, 3, 4)  # environments in a pool, in batches
ROUNDS = (0.5, 0.8, 1.0)  # shares of the budget at which the rounds end
TRIAL_S = (0.3, 0.8, 1.5)  # seconds of play of a trial, in each round
STAY = 3  # one in this many plans remains for the next round, and at least this many
PROMISING = 0.4  # of the best forecast: plans below that are not tried
ALIKE = 0.95  # of the best: of the plans above it, the one with the least memory is chosen
COARSE = 32 << 20  # bytes: a smaller saving is not worth a slower plan
MARGIN = 1.1  # for the error of a memory estimate


@says_what_was_meant(misplaced, "env_kwargs")
def autotune(
    env: Callable[..., Any] | str | Sequence[Callable[..., Any] | str],
    *,
    budget_s: float = 30.0,
    max_memory: float | str | None = None,
    backend: str | None = None,
    num_envs: int | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    learner_s: float | Callable[[int], float] = 0.0,
    seed: int = 0,
    env_args: Sequence[Any] = (),
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    autoreset_mode: Any = "next_step",
    context: str | None = None,
    after: Callable[[Sequence[Row]], None] | None = None,
) -> TunedPlan:
    """Find the fastest plan for an environment, for use as ``pufferlib.make(env, **plan)``.

    Plans differ in backend, numbers of environments and workers, batch size and ``spin``; arguments that are passed
    stay fixed. Without num_envs and batch_size, batches of different sizes compete, and the largest usually win: pass
    the batch size that your learner needs.

    budget_s: the time that the search may take, in seconds. The environment and one plan are always measured, even if
        that takes longer.
    max_memory: the additional memory that a plan may take, in bytes or as "500 MiB", "4 GB"; by default, four fifths of
        the available memory. A plan with a higher estimate is not tried.
    learner_s: the time in seconds that your learner takes for a batch, or a function from batch size to this time.
        The learner is assumed to need a core.
    env, seed, env_args, env_kwargs, wrap_kwargs, autoreset_mode, context: as for ``make``; pass them to ``make`` again.
    after: a function that is called after each trial of a plan, with the table of all plans so far.

    Raises PlanError if no plan fits into the memory and for invalid arguments; RegistryError or MissingExtra if the
    environment is unknown or its package is missing; WorkerError if the environment cannot be created or played;
    PlatformError if the system cannot start a process.
    """
    if not budget_s > 0:
        raise PlanError(f"budget_s={budget_s!r} leaves no time to measure; use 10 or more")
    if backend is not None and backend not in known_backends():
        raise PlanError(not_one_of("backend", backend, known_backends()))
    for name, many in (("env", env), ("env_kwargs", env_kwargs)):
        if isinstance(many, (list, tuple)):
            if num_envs not in (None, len(many)):
                raise PlanError(f"num_envs={num_envs}, but {name} lists {len(many)}; leave num_envs out")
            num_envs = len(many)
    if num_envs is not None:
        Plan.of(num_envs, num_workers, batch_size)
    else:
        Plan.of(max(num_workers or 1, batch_size or 1), num_workers, batch_size)
    makers = [creator(item) for item in env] if isinstance(env, (list, tuple)) else creator(env)  # type: ignore[arg-type]
    fixed = {"backend": backend, "num_envs": num_envs, "num_workers": num_workers, "batch_size": batch_size}
    arguments = {
        "env": makers,
        "seed": seed,
        "env_args": env_args,
        "env_kwargs": env_kwargs,
        "wrap_kwargs": wrap_kwargs,
        "autoreset_mode": checked_mode(autoreset_mode),
        "context": context,
    }
    limit = memory_at_hand() * 0.8 if max_memory is None else nbytes_of(max_memory)
    with ExitStack() as stack:
        # What an environment does to its process, such as starting threads, must not affect plans with workers.
        trial_runners = {kind: stack.enter_context(TrialRunner(arguments)) for kind in ("serial", "processes")}
        search = _Search(
            trial_runners, fixed, budget_s, limit, learner_s if callable(learner_s) else lambda _: learner_s
        )
        search.after = after
        return search.run()


class _Search:
    """A search for the fastest plan, with the results so far."""

    after: Callable[[Sequence[Row]], None] | None = None

    def __init__(
        self,
        trial_runners: Mapping[str, TrialRunner],
        fixed: Mapping[str, Any],
        budget_s: float,
        max_memory: float,
        learner_s: Callable[[int], float],
    ) -> None:
        self._trial_runners = trial_runners
        self._fixed = fixed
        self._begin_s, self._budget_s = monotonic(), budget_s
        self._max_memory = max_memory
        self._learner_s = learner_s
        self._cores = available_cpus()
        self._rows: list[Row] = []
        self._env_nbytes = self._process_nbytes = 0.0
        self._env_start_s = self._process_start_s = 0.0
        self._missed = 1.0  # the ratio of measured to estimated memory of plans, at least 1

    def run(self) -> TunedPlan:
        """Measure the environment, try plans, and return the best."""
        stats = self._look()
        self._rows = self._candidates(stats)
        self._refuse_too_large()
        expected = max(row.expected for row in self._rows if not row.untried)
        with_processes = [row for row in self._rows if not row.untried and row.plan["backend"] != "serial"]
        for row in with_processes[1:]:  # the best is tried in any case, as the model may be wrong
            if row.expected < PROMISING * expected:
                row.untried = "slow by the model"
        going = [row for row in self._rows if not row.untried]
        for number, (share, seconds) in enumerate(zip(ROUNDS, TRIAL_S, strict=True)):
            self._round(going, share * self._budget_s, seconds, last=number == len(ROUNDS) - 1)
            measured = sorted((row for row in going if row.steps_per_s), key=lambda row: -row.median)
            going = measured[: max(STAY, -(-len(measured) // STAY))]
            if number == 0 and going:
                going += self._spinning(going)
        return self._choice(stats)

    # ------------------------------------------------------------------------------------------------- a look

    def _look(self) -> Stats:
        """Play one environment, then a few in one worker; estimate memory and start-up times, and return the stats.

        If one environment in a worker exceeds the memory limit and no backend was passed, plays it without a worker,
        and restricts the search to serial plans. Raises PlanError if the environment exceeds the limit with the backend
        that was passed, or even without a worker; WorkerError if it cannot be played.
        """
        kind = "serial" if self._fixed["backend"] == "serial" else "multiprocessing"
        most = self._fixed["num_envs"] or 4
        limit_s = max(30.0, self._budget_s)
        one = self._try(_plan(kind, 1, 1, 1), 0.2 if most > 1 else 1.0, 1, limit_s)
        if one.error:
            raise WorkerError(f"the environment cannot be tried: {one.error}; `puffer check` says more")
        assert one.stats is not None
        several = min(4, most, int(self._max_memory / max(1, one.memory_nbytes)))
        if one.startup_s > self._budget_s / 8:
            several = 1
        self._env_nbytes = self._process_nbytes = one.memory_nbytes / 2
        self._env_start_s = one.startup_s
        if one.memory_nbytes > self._max_memory and self._fixed["backend"] is None:
            self._fixed = {**self._fixed, "backend": "serial"}  # another process does not fit
            return self._look()
        if one.memory_nbytes > self._max_memory:
            raise PlanError(
                f"nothing fits into max_memory={memory_text(self._max_memory)}: one environment takes "
                f"{memory_text(one.memory_nbytes)}; raise max_memory"
            )
        if several < 2:
            return one.stats
        more = self._try(_plan(kind, several, 1, several), min(1.5, 0.05 * self._budget_s), 1, limit_s)
        if more.error or more.stats is None:
            raise WorkerError(f"{several} environments in one worker cannot be tried: {more.error}")
        self._env_nbytes = max(4096.0, (more.memory_nbytes - one.memory_nbytes) / (several - 1))
        self._process_nbytes = max(0.0, one.memory_nbytes - self._env_nbytes)
        self._env_start_s = max(0.0, (more.startup_s - one.startup_s) / (several - 1))
        self._process_start_s = max(0.0, one.startup_s - self._env_start_s)
        return more.stats

    def _try(self, plan: dict[str, Any], seconds: float, windows: int, limit_s: float) -> Outcome:
        trial_runner = self._trial_runners["serial" if plan["backend"] == "serial" else "processes"]
        return trial_runner.try_out(Trial(plan, seconds, windows, self._learner_s(plan["batch_size"]), limit_s))

    # --------------------------------------------------------------------------------------------- candidates

    def _candidates(self, stats: Stats) -> list[Row]:
        """Return all plans that the fixed arguments allow, sorted by forecast, the fastest first.

        Two plans are moved to the front: the best serial plan and the best plan with processes. Both are thus tried
        even if there is no time for more.
        """
        rows = []
        for num_envs, batch_size in self._sizes():
            for plan in self._plans(num_envs, batch_size, stats):
                num_workers = plan.get("num_workers", 1)
                think_s = self._learner_s(batch_size)
                forecast = stats.forecast(plan["backend"], num_envs, num_workers, batch_size, think_s=think_s)
                rows.append(Row(plan, forecast.steps_per_s, round(self._memory(plan))))
        rows.sort(key=lambda row: -row.expected)
        first = {row.plan["backend"] == "serial": row for row in reversed(rows)}
        leading = [first[kind] for kind in (True, False) if kind in first]
        return leading + [row for row in rows if row not in leading]

    def _sizes(self) -> list[tuple[int, int]]:
        """Return the pairs of num_envs and batch_size to try."""
        num_envs, batch_size = self._fixed["num_envs"], self._fixed["batch_size"]
        least = self._fixed["num_workers"] or 1
        if num_envs and batch_size:
            return [(num_envs, batch_size)]
        if batch_size:
            sizes = [(times * batch_size, batch_size) for times in MULTIPLES]
        else:
            totals = [num_envs] if num_envs else [max(8, 4 * self._cores), max(32, 16 * self._cores)]
            sizes = [(total, -(-total // times)) for total in totals for times in MULTIPLES]
        sizes = list(dict.fromkeys(sizes))
        return [pair for pair in sizes if pair[0] >= least] or [(least, batch_size or least)]

    def _plans(self, num_envs: int, batch_size: int, stats: Stats) -> list[dict[str, Any]]:
        backend, num_workers = self._fixed["backend"], self._fixed["num_workers"]
        synchronous = num_envs == batch_size
        only = self._fixed["num_envs"] is not None and self._fixed["batch_size"] is not None
        backends = [backend] if backend else ["serial", "multiprocessing" if synchronous else "pool"]
        if not synchronous and not only and backend in (None, "serial"):
            backends = [name for name in backends if name != "serial"]  # it gains nothing from a smaller batch
        plans = []
        for name in backends:
            if name == "serial":
                plans.append(_plan("serial", num_envs, 1, batch_size))
                continue
            # As many workers as can have a core at once; if steps sleep, up to one per environment.
            asleep = round(self._cores / max(stats.load.cpu, self._cores / num_envs))
            counts = sorted({self._cores, 2 * self._cores, asleep, (self._cores + asleep) // 2})
            if num_workers:
                counts = [num_workers]
            elif stats.load.cpu < 0.5:
                counts.append(num_envs)
            plans += [_plan(name, num_envs, count, batch_size) for count in dict.fromkeys(counts) if count <= num_envs]
        return plans

    def _spinning(self, rows: Sequence[Row]) -> list[Row]:
        """Return a list of one row: a copy of the best plan that uses processes, but with the other value of ``spin``.

        The row is also added to the table. The list is empty if no plan uses processes, if the best plan that does runs
        on ray, or if serial is clearly faster.
        """
        best = next((row for row in rows if row.plan["backend"] != "serial"), None)
        if best is None or best.plan["backend"] == "ray" or best.median < rows[0].median / CLEARLY:
            return []
        spin = 0 if default_spin(best.plan["num_workers"]) else SPIN
        other = Row({**best.plan, "backend_kwargs": {"spin": spin}}, best.expected, best.memory_nbytes)
        self._rows.append(other)
        return [other]

    def _memory(self, plan: Mapping[str, Any]) -> float:
        """Return the estimated memory of a plan in bytes."""
        num_envs, processes = int(plan["num_envs"]), int(plan.get("num_workers", 0))
        return self._missed * (num_envs * self._env_nbytes + processes * self._process_nbytes)

    def _refuse_too_large(self) -> None:
        for row in self._rows:
            if not row.steps_per_s and not row.failed and MARGIN * self._memory(row.plan) > self._max_memory:
                row.memory_nbytes = round(self._memory(row.plan))
                row.untried = f"of more than {memory_text(self._max_memory)}"
        if all(row.untried.startswith("of more") or row.failed.startswith("more than") for row in self._rows):
            least = min(self._rows, key=lambda row: row.memory_nbytes)
            raise PlanError(
                f"nothing fits into max_memory={memory_text(self._max_memory)}: the smallest plan, {least.name}, would "
                f"take about {memory_text(least.memory_nbytes)} ({memory_text(self._env_nbytes)} an environment, "
                f"{memory_text(self._process_nbytes)} a process); use fewer environments or raise max_memory"
            )

    # ------------------------------------------------------------------------------------------------- trials

    def _round(self, rows: Sequence[Row], until_s: float, seconds: float, *, last: bool) -> None:
        """Try plans for ``seconds`` of play each; in the last round, up to three times each, in turns.

        until_s: the time since the search began, in seconds, after which no trial should end. A plan for which there is
        no time is not tried, and its row says so.
        """
        begun = False
        for _ in range(3 if last else 1):
            for row in rows:
                if last and len([other for other in rows if other.steps_per_s]) < 2:
                    return  # nothing to compare with
                if not self._in_time(row, rows, seconds, until_s):
                    row.untried = "" if row.steps_per_s else "for want of time"
                    continue
                self._measure(row, self._seconds(row, seconds), again=begun)
                if self.after is not None:
                    self.after(self._table())
            begun = True

    def _in_time(self, row: Row, rows: Sequence[Row], seconds: float, until_s: float) -> bool:
        """Return whether there is time to try a plan, that is, whether the trial should end before ``until_s``.

        The first serial trial and the first with processes may use the whole budget. If there is no time for any trial,
        the cheapest is still made.
        """

        def kind(row: Row) -> bool:
            return bool(row.plan["backend"] == "serial")

        tried = [other for other in self._rows if other.steps_per_s or other.failed]
        cost_s = self._cost_s(row, self._seconds(row, seconds))
        if kind(row) not in map(kind, tried):
            until_s = self._budget_s
        if cost_s <= until_s - (monotonic() - self._begin_s):
            return True
        return not tried and cost_s <= min(self._cost_s(other, self._seconds(other, seconds)) for other in rows)

    def _measure(self, row: Row, seconds: float, *, again: bool) -> None:
        self._refuse_too_large()  # with the estimates after the last trial
        if row.untried or row.failed:
            return
        estimate = self._memory(row.plan)
        limit_s = max(10.0, 3 * self._cost_s(row, seconds), 0.5 * self._budget_s)
        outcome = self._try(row.plan, seconds / 3, 3, limit_s)
        if outcome.error:
            row.failed, row.steps_per_s = outcome.error, ()
            return
        row.steps_per_s = row.steps_per_s * again + outcome.steps_per_s
        row.startup_s, row.memory_nbytes = outcome.startup_s, outcome.memory_nbytes
        if row.plan["backend"] == "serial":  # its process may have held this memory before the trial
            row.memory_nbytes = max(row.memory_nbytes, round(estimate))
        self._missed *= max(1.0, outcome.memory_nbytes / max(1.0, estimate))
        if outcome.memory_nbytes > self._max_memory:
            row.failed, row.steps_per_s = f"more than {memory_text(self._max_memory)}", ()
            self._refuse_too_large()

    def _seconds(self, row: Row, least: float) -> float:
        """Return the number of seconds to play a plan.

        It is ``least``, or more for slow batches if the budget allows.
        """
        return max(least, min(12 * self._batch_s(row), 0.1 * self._budget_s))

    def _batch_s(self, row: Row) -> float:
        return int(row.plan["batch_size"]) / max(row.median or row.expected, 1e-9)

    def _cost_s(self, row: Row, seconds: float) -> float:
        """Return the estimated duration of a trial in seconds, including start-up and shutdown."""
        per_worker = int(row.plan["num_envs"]) / min(int(row.plan.get("num_workers", 1)), self._cores)
        start_s = row.startup_s or self._process_start_s + per_worker * self._env_start_s
        return start_s + 0.2 + 1.3 * seconds + 6 * self._batch_s(row)  # every window ends with a batch

    # -------------------------------------------------------------------------------------------------- choice

    def _table(self) -> list[Row]:
        return sorted(self._rows, key=lambda row: -row.median)

    def _choice(self, stats: Stats) -> TunedPlan:
        measured = [row for row in self._table() if row.steps_per_s]
        if not measured:
            failed = next((row for row in self._rows if row.failed), self._rows[0])
            raise WorkerError(f"no plan could be played; {failed.name}: {failed.failed or failed.untried}")
        serial = [row for row in measured if row.plan["backend"] == "serial"]
        others = [row for row in measured if row.plan["backend"] != "serial"]
        best = measured[0]
        if serial and best.median < CLEARLY * serial[0].median:
            best = serial[0]
            alike = [row for row in serial if row.median >= ALIKE * best.median]
        else:
            alike = [row for row in others or measured if row.median >= ALIKE * best.median]
        best = min(alike, key=lambda row: ("backend_kwargs" in row.plan, row.memory_nbytes // COARSE, -row.median))
        reason = _reason(best, serial, others, stats)
        return TunedPlan(best.plan, self._table(), reason)


def _plan(backend: str, num_envs: int, num_workers: int, batch_size: int) -> dict[str, Any]:
    plan: dict[str, Any] = {"backend": backend, "num_envs": num_envs}
    if backend != "serial":
        plan["num_workers"] = num_workers
    return {**plan, "batch_size": batch_size}


def _reason(best: Row, serial: Sequence[Row], others: Sequence[Row], stats: Stats) -> str:
    backend, cores = best.plan["backend"], f"{stats.cores} core{'s' * (stats.cores > 1)}"
    step = f"a step takes {seconds_text(stats.step.mean_s)}, spread by {100 * stats.spread:.0f} %"
    if backend == "serial":
        if not others:
            return f"serial is right: {step}; nothing else was measured."
        ratio = others[0].median / best.median
        return f"serial is right: {step}, on {cores}; {others[0].name}, the next, makes {ratio:.2f} times as many."
    parts = [f"{backend} is right: {step}, on {cores}"]
    if serial:
        parts.append(f"{times_text(best.median / serial[0].median)} times serial")
    alternatives = [row for row in others if (row.plan["backend"] == "pool") != (backend == "pool")]
    if alternatives:
        name = "the best synchronous plan" if backend == "pool" else "the best pool"
        parts.append(f"{times_text(best.median / alternatives[0].median)} times {name}")
    return "; ".join(parts) + "."
