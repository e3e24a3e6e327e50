"""Stats: telemetry's records as figures, a table, a plot, and a verdict that may name a better plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pufferlib import _native
from pufferlib.errors import CallError
from pufferlib.telemetry.durations import (
    Times,
    UnpreemptedTimes,
    percent,
    pooled,
    scalars,
    seconds_text,
    share_of,
    times_of,
    times_text,
    unpreempted_times,
)
from pufferlib.telemetry.plot import plot
from pufferlib.telemetry.throughput_model import Arrangement, Load, steps_per_s
from pufferlib.telemetry.timeline import (
    BUSY,
    FILL_MAX,
    FILL_NUM,
    FILL_SUM,
    NUM_RECV,
    RECV,
    RESET,
    SEND,
    STEP,
    SUM,
    THOUGHT,
    WAITED,
    WEIGHT,
    Recorded,
    bucket_edges,
)
from pufferlib.util.annotations import Array

__all__ = ["POOL_BACKENDS", "Forecast", "Stats"]

POOL_BACKENDS = ("pool", "ray")  # their batches hold the first environments to finish
POOLS = (1.5, 2.0, 2.5, 3.0, 4.0)  # multiples of the batch that the verdict considers
FEW_POOLS = (2.0, 4.0)  # the same for batches of more than LARGE, whose simulation takes long
LARGE = 256
WORTH = 1.1  # times as fast: a smaller gain does not justify another plan
MUCH = 1.5  # the same for processes instead of serial, whose costs are known only roughly
NOTABLY = 1.05  # times as fast as another backend measured in the same run; below that, they are equal
NEARLY = 0.95  # of the best: a smaller pool that reaches this is named instead
LEARNER_BOUND = 0.8  # share of the time that the learner thinks
SLEEPLESS_S = 50e-6  # a shorter step is assumed not to sleep
SPIN_S = 30e-6  # the most CPU time that a wait costs before it is a sleep
# Seconds that unmeasured plans cost on top of steps and thinking: a row on serial; a batch, and each of its rows, on
# processes. Orders of magnitude, for the verdict on a plan of the other kind; autotune measures them.
SERIAL_ROW_S = 0.15e-6 if _native.available else 3e-6
PROCESS_BATCH_S = 7e-6 if _native.available else 60e-6
PROCESS_ROW_S = 0.1e-6 if _native.available else 3e-6


class Forecast(NamedTuple):
    """A plan and its throughput according to the model. gain: this throughput divided by the measured one."""

    backend: str
    num_envs: int
    num_workers: int
    batch_size: int
    steps_per_s: float
    gain: float


@dataclass(frozen=True)
class Stats:
    """Statistics on where a VecEnv's time went in one period.

    seconds: the time from the start of the first ``recv`` to the end of the last one, plus the time spent in sends and
        resets before the first ``recv``. steps_per_s: environment steps (not agent steps) received per second,
        including the first rows of episodes.
    step, reset: statistics pooled over environments. env_step, env_reset: one value per environment. Steps and resets
        include emulation; the percentiles of resets are NaN.
    histogram: uint64 (num_envs, 128), each environment's histogram of step times, with bucket edges ``edges``.
    spread: the standard deviation of step times divided by their mean. spread_within, spread_between: the parts of
        ``spread`` within environments and between them; their squares add up to the square of ``spread``. All three
        leave out the steps during which other programs used the core. preempted: the share of steps left out. own: the
        times of the remaining steps, one value per environment.
    busy: (num_workers,), the share of the time during which each worker had work.
    cpu, queued: the shares of the workers' busy time (on serial, of the whole time) spent on a core, and waiting for
        one; NaN if the system does not report them.
    waits: the share of the time that the learner, the thread that calls ``recv``, spends inside ``recv`` and ``send``.
        thinks: the share that it spends outside of them, which counts as thinking. think_cpu: the share of the thinking
        time (on serial, of the whole time) spent on a core.
    row_share: (num_envs,), each environment's share of the rows, from the recorded steps and resets; NaN without any.
    fill_mean_s, fill_max_s: the mean and the longest time, in seconds, from a batch's first sent action to its last
        row; NaN if none was recorded, as on the portable path.
    """

    backend: str
    num_envs: int
    num_workers: int
    batch_size: int
    agents_per_env: int
    cores: int
    seconds: float
    num_batches: int
    steps_per_s: float
    step: Times
    reset: Times
    env_step: Times
    env_reset: Times
    histogram: Array = field(repr=False)
    spread: float
    spread_within: float
    spread_between: float
    preempted: float
    own: UnpreemptedTimes = field(repr=False)
    busy: Array
    cpu: float
    queued: float
    waits: float
    thinks: float
    think_cpu: float
    row_share: Array
    fill_mean_s: float
    fill_max_s: float

    @classmethod
    def of(
        cls,
        recorded: Recorded,
        *,
        backend: str,
        num_envs: int,
        num_workers: int,
        batch_size: int,
        agents_per_env: int = 1,
        cores: int,
        resets_have_rows: bool = True,
    ) -> Stats:
        """Compute the stats of a recorded period.

        backend, num_envs, num_workers, batch_size: the plan with which it was recorded. cores: the number of CPU cores
        that the workers may use. resets_have_rows: False if the step that ends an episode resets, too (same_step).
        """
        times, histogram = recorded.times, recorded.histogram
        env_step, env_reset = times_of(times[:, STEP], histogram), times_of(times[:, RESET])
        step = scalars(times_of(pooled(times[:, STEP]), histogram.sum(0, keepdims=True)))
        reset = scalars(times_of(pooled(times[:, RESET])))
        weights = times[:, STEP, WEIGHT]
        cpu_s, queued_s = recorded.parent_cpu_s, recorded.parent_queued_s
        if backend != "serial":
            cpu_s, queued_s = float(recorded.worker_cpu_s.sum()), float(recorded.worker_queued_s.sum())
        # Steps that sleep most of the time are long without preemption.
        sleeps = cpu_s + queued_s < 0.5 * float(times[:, :, SUM].sum())
        unpreempted = unpreempted_times(env_step, histogram, 0.0 if sleeps else queued_s)
        within, between = _spreads(unpreempted)

        num_rows = times[:, STEP, WEIGHT] + (times[:, RESET, WEIGHT] if resets_have_rows else 0)
        parent = recorded.parent_times
        seconds = float(parent[RECV] + parent[SEND] + parent[THOUGHT])
        num_batches = int(parent[NUM_RECV])
        worked = float(times[:, :, SUM].sum())
        busy_s, waited_s = recorded.worker_times[:, BUSY], recorded.worker_times[:, WAITED]
        waited_s = np.minimum(waited_s, np.maximum(seconds - busy_s, 0))  # a wait may have begun before the period
        thought_s = float(parent[THOUGHT])
        if backend == "serial":
            busy_s, waited_s = np.array([worked]), np.array([seconds - worked])
            cpu = share_of(recorded.parent_cpu_s, seconds)
            queued = min(share_of(recorded.parent_queued_s, seconds), 1 - cpu)
            think_cpu = cpu
        else:
            num_waits = num_batches if batch_size == num_envs else weights.sum() / num_workers
            spun_s = np.minimum(waited_s, SPIN_S * num_waits)
            cpu = share_of(float((recorded.worker_cpu_s - spun_s).sum()), float(busy_s.sum()))
            queued = min(share_of(float(recorded.worker_queued_s.sum()), float(busy_s.sum())), 1 - cpu)
            if step.mean_s < SLEEPLESS_S and not math.isnan(cpu):  # a wait that yields also counts as one for a core
                queued = share_of(unpreempted.waited_s, float(busy_s.sum()))
                cpu = 1 - queued
            think_cpu = share_of(recorded.parent_cpu_s, thought_s)
        with np.errstate(invalid="ignore", divide="ignore"):
            busy = busy_s / (busy_s + waited_s)
        num_fills = float(parent[FILL_NUM])
        return cls(
            backend=backend,
            num_envs=num_envs,
            num_workers=1 if backend == "serial" else num_workers,
            batch_size=batch_size,
            agents_per_env=agents_per_env,
            cores=cores,
            seconds=seconds,
            num_batches=num_batches,
            steps_per_s=num_batches * batch_size / seconds if seconds > 0 else math.nan,
            step=step,
            reset=reset,
            env_step=env_step,
            env_reset=env_reset,
            histogram=histogram,
            spread=math.hypot(within, between),
            spread_within=within,
            spread_between=between,
            preempted=unpreempted.share,
            own=unpreempted,
            busy=busy,
            cpu=cpu,
            queued=queued,
            waits=1 - share_of(thought_s, seconds),
            thinks=share_of(thought_s, seconds),
            think_cpu=think_cpu,
            row_share=num_rows / (num_rows.sum() or math.nan),
            fill_mean_s=float(parent[FILL_SUM]) / num_fills if num_fills else math.nan,
            fill_max_s=float(parent[FILL_MAX]) if num_fills else math.nan,
        )

    @property
    def edges(self) -> Array:
        """The edges of the histogram's buckets in seconds, (129,).

        The last edge is only nominal, because the last bucket has no upper bound.
        """
        return bucket_edges()

    # --------------------------------------------------------------------------------------------- forecasts

    @cached_property
    def load(self) -> Load:
        """The step and reset times of the environments, as input to the model.

        If the system does not report CPU time, or the mean step is shorter than SLEEPLESS_S, steps are assumed to need
        a core throughout. Workers are assumed to wait for one another's cores only if there are more workers than
        cores; the rest of the waiting time is attributed to other programs, and counts as step time.
        """
        cpu, queued = self.cpu, self.queued
        if math.isnan(cpu) or self.step.mean_s < SLEEPLESS_S:
            cpu, queued = 1.0, 0.0
        queued = 0.0 if math.isnan(queued) else queued
        mutual = min(queued, max(0.0, 1 - self.cores / self.num_workers))
        num_resets = self.reset.num
        return Load(
            self.own.histogram,
            self.own.mean_s,
            self.own.std_s,
            cpu=min(1.0, (cpu + queued - mutual) / (1 - mutual)),
            net_share=1 - mutual,
            reset_share=num_resets / max(1.0, num_resets + self.step.num),
            reset_s=self.reset.mean_s if num_resets else 0.0,
        )

    @cached_property
    def _measured(self) -> tuple[Arrangement, float]:
        """The measured plan with its overhead per batch, and the ratio of measured to simulated throughput."""
        batch_s = self.batch_size / self.steps_per_s
        plan = Arrangement(
            self.num_envs,
            self.num_workers,
            self.batch_size,
            self.cores,
            think_s=self.thinks * batch_s,
            think_cpu=not self.think_cpu < 0.5,
            first_finished=self.backend in POOL_BACKENDS,
        )
        free = steps_per_s(self.load, plan)
        plan = replace(plan, overhead_s=max(0.0, batch_s - self.batch_size / free))
        return plan, self.steps_per_s / (steps_per_s(self.load, plan) if plan.overhead_s else free)

    def forecast(
        self, backend: str, num_envs: int, num_workers: int, batch_size: int, *, think_s: float | None = None
    ) -> Forecast:
        """Forecast the throughput of another plan with the same environments and learner, according to the model.

        think_s: the time in seconds that the learner thinks about a batch; by default, the measured time, scaled with
        the batch size.

        The overhead of a batch is the measured one; all of it scales with the batch size for a serial plan, half of it
        for other plans. If exactly one of the measured and the forecast plan is serial, rough constants replace the
        measured overhead. Raises CallError if the period has no batch, or no timed step.
        """
        if not self.num_batches or not self.step.num:
            raise CallError("nothing was measured in this period; play some batches first")
        measured, miss = self._measured
        ratio = batch_size / self.batch_size
        if (backend == "serial") == (self.backend == "serial"):
            overhead_s = measured.overhead_s * (ratio if backend == "serial" else (1 + ratio) / 2)
        else:
            miss, overhead_s = 1.0, SERIAL_ROW_S * batch_size if backend == "serial" else 0.0
        plan = replace(
            measured,
            num_envs=num_envs,
            num_workers=1 if backend == "serial" else num_workers,
            batch_size=batch_size,
            think_s=measured.think_s * ratio if think_s is None else think_s,
            overhead_s=overhead_s,
            first_finished=backend in POOL_BACKENDS,
        )
        if backend == "serial":  # one thread: no environment steps while the learner thinks
            rate = batch_size / (batch_size * self.load.row_s + plan.think_s + overhead_s)
        else:
            rate = miss * steps_per_s(self.load, plan)
            if self.backend == "serial":  # assume that the overhead of processes overlaps with nothing
                rate = 1 / (1 / rate + PROCESS_BATCH_S / batch_size + PROCESS_ROW_S)
        return Forecast(backend, num_envs, plan.num_workers, batch_size, rate, rate / self.steps_per_s)

    @cached_property
    def forecasts(self) -> tuple[Forecast, ...]:
        """Forecasts of other plans with the same batch size.

        The plans are a serial one, unless the present plan is serial; the present plan with more workers, if these are
        needed to keep all cores busy; and pools of up to four batches, if they have more environments than the present
        plan.
        """
        batch_size, num_workers = self.batch_size, self._best_workers(self.num_envs)
        pool = "ray" if self.backend == "ray" else "pool"
        kind = pool if self.backend in POOL_BACKENDS else "multiprocessing"
        plans = [] if self.backend == "serial" else [self.forecast("serial", batch_size, 1, batch_size)]
        if num_workers > self.num_workers:
            plans.append(self.forecast(kind, self.num_envs, num_workers, batch_size))
        worker_per_env = num_workers == self.num_envs  # then a pool has one, too
        for times in POOLS if batch_size <= LARGE else FEW_POOLS:
            num_envs = round(times * batch_size)
            if batch_size < num_envs != self.num_envs and num_envs > self.num_envs:
                workers = num_envs if worker_per_env else min(num_envs, max(num_workers, self.num_workers))
                plans.append(self.forecast(pool, num_envs, workers, batch_size))
        return tuple(plans)

    def _best_workers(self, num_envs: int) -> int:
        """Return how many workers keep all cores busy while some steps sleep; at least the current number."""
        needed = math.ceil(self.cores / max(self.load.cpu, self.cores / num_envs) - 0.25)  # rounds up above a quarter
        return max(self.num_workers if self.backend != "serial" else 1, min(num_envs, needed))

    # ----------------------------------------------------------------------------------------------- verdict

    @cached_property
    def verdict(self) -> str:
        """A sentence that names the limit of throughput, or says that nothing was measured.

        If the model predicts that another plan would be clearly faster, the sentence also names that plan and its gain.
        """
        if not self.num_batches or not self.step.num:
            return "nothing to judge yet: play some batches first"
        if self.thinks >= LEARNER_BOUND:
            return self._learner_bound()
        return self._judged(self.forecasts)

    def verdict_beside(self, fastest: str, times: float, measured: Collection[str]) -> str:
        """Return the verdict for a run that measured several backends, which therefore need no forecasts.

        measured: the names of these backends, including this one. fastest: the name of the recommended one. times: the
        recommended backend's throughput divided by this one's.
        """
        if not self.num_batches or not self.step.num:
            return self.verdict
        if fastest != self.backend:
            bound = self.verdict.partition(":")[0]
            more = f"{times:.2f} times as many" if times >= NOTABLY else "about as many"
            return f"{bound}: {fastest}, measured in turn with this, made {more} steps"
        if self.backend == "serial" and len(measured) > 1:
            return f"{self._serial_bound()}; nothing that was measured in turn with it is clearly faster"
        others = {*measured} - {self.backend}
        return self._judged([plan for plan in self.forecasts if plan.backend not in others])

    def _serial_bound(self) -> str:
        bound = "environment-bound" if self.load.row_s > SERIAL_ROW_S else "overhead-bound"
        return f"{bound}: a step takes {seconds_text(self.step.mean_s)}, on {_cores(self.cores)}: serial is right"

    def _judged(self, forecasts: Sequence[Forecast]) -> str:
        """Return the verdict, which may recommend one of these plans."""
        serial = next((plan for plan in forecasts if plan.backend == "serial"), None)
        others = [plan for plan in forecasts if plan.backend != "serial"]
        best = max((plan.gain for plan in others), default=1.0)
        measured, _ = self._measured
        steps_s = self.batch_size * self.load.row_s / self.num_workers
        dear = measured.overhead_s > steps_s + measured.think_s  # the overhead of a batch exceeds its steps
        if serial is not None and serial.gain >= max(1.0 if dear else WORTH, best):
            return (
                f"overhead-bound: a step takes {seconds_text(self.step.mean_s)}, and a batch of {self.batch_size} "
                f"{seconds_text(measured.overhead_s)} on top of its steps: serial is right, about "
                f"{times_text(serial.gain)}× this"
            )
        if best >= (MUCH if self.backend == "serial" else WORTH):
            return self._advice(others, best)
        if self.backend == "serial":
            return f"{self._serial_bound()}; no plan with processes would raise throughput by a tenth"
        if self.thinks >= 0.5:
            return self._learner_bound()
        used = self.steps_per_s * self.load.row_s * self.load.cpu / self.cores
        if used > LEARNER_BOUND:
            return (
                f"environment-bound: steps take {percent(used)} of the time of {_cores(self.cores)}; only faster "
                "environments or more cores would raise throughput"
            )
        if dear:
            return (
                f"overhead-bound: a batch of {self.batch_size} costs {seconds_text(measured.overhead_s)} on top of "
                "steps and thinking; larger batches share that among more steps"
            )
        return "balanced: no plan with this batch would raise throughput by a tenth"

    def _learner_bound(self) -> str:
        return (
            f"learner-bound: it thinks {percent(self.thinks)} of the time; environments that cost nothing would raise "
            f"throughput {1 / self.thinks:.2f}× at most"
        )

    def _advice(self, plans: list[Forecast], best: float) -> str:
        plan = next(plan for plan in plans if plan.gain >= NEARLY * best)
        parts = []
        if plans[0].num_envs == self.num_envs and plans[0].gain >= WORTH:  # the same plan with more workers
            parts.append(f"{plans[0].num_workers} workers rather than {self.num_workers}")
        if plan is not plans[0] or not parts:
            workers = f" on {plan.num_workers} workers" * (plan.num_workers != self.num_workers)
            parts.append(f"a pool of {plan.num_envs / plan.batch_size:.2g}× the batch{workers}")
        ratios = [plans[0].gain, plan.gain] if len(parts) > 1 else [plan.gain]
        text = f"{parts[0]} would raise throughput about {times_text(ratios[0])}×"
        if len(parts) > 1:
            text += f", {parts[1]} {times_text(ratios[1])}×"
        return f"environment-bound, {percent(self.spread)} spread: {text}"

    # ------------------------------------------------------------------------------------------------ output

    @property
    def _num_preempted(self) -> int:
        return round(self.preempted * self.step.num) if self.preempted else 0

    def __str__(self) -> str:
        return f"{self.table}\n\n{self.verdict}"

    @property
    def table(self) -> str:
        """The figures as text, without the verdict."""
        lines = [
            f"{self.backend}: {self.num_envs} environments, {self.num_workers} worker{'s' * (self.num_workers > 1)}, "
            f"batches of {self.batch_size}, {_cores(self.cores)}",
            f"{self.num_batches:,} batches in {seconds_text(self.seconds)}: {self.steps_per_s:,.0f} steps/s",
            "",
            f"{'':10}" + "".join(f"{name:>10}" for name in ("mean", "std", "median", "99 %", "longest")),
        ]
        for name, times in (("step", self.step), ("reset", self.reset)):
            lines.append(f"{name:10}" + "".join(f"{seconds_text(value):>10}" for value in times[1:]))
        if not math.isnan(self.fill_mean_s):
            values = (self.fill_mean_s, math.nan, math.nan, math.nan, self.fill_max_s)
            lines.append(f"{'batch':10}" + "".join(f"{seconds_text(value):>10}" for value in values))
        shares = [
            (
                "spread",
                self.spread,
                f"{percent(self.spread_within)} within, {percent(self.spread_between)} between"
                + (f"; without {self._num_preempted} preempted" if self._num_preempted else ""),
            ),
            (
                "busy",
                _mean(self.busy),
                f"workers, {percent(_least(self.busy))} to {percent(_most(self.busy))}",
            ),
            ("CPU", self.cpu, f"of a busy worker; {percent(self.queued)} waits for a core"),
            (
                "rows",
                _mean(self.row_share),
                f"of each environment, {percent(_least(self.row_share))} to {percent(_most(self.row_share))}",
            ),
            ("waits", self.waits, f"the learner, for batches; it thinks {percent(self.thinks)}"),
        ]
        lines.append("")
        lines += [f"{name:10}{percent(value):>10}  {text}" for name, value, text in shares]
        return "\n".join(lines)

    def plot(self, path: str | Path) -> Path:
        """Draw the stats to an image file and return its path. Raises MissingExtra if matplotlib is not installed."""
        return plot(self, path)


def _spreads(times: UnpreemptedTimes) -> tuple[float, float]:
    """Return the standard deviations of step times within environments and of the environments' mean step times.

    Both are divided by the mean of all step times; both are NaN if there are no step times.
    """
    known = times.num > 0
    if not known.any():
        return math.nan, math.nan
    weights, means = times.num[known] / times.num[known].sum(), times.mean_s[known]
    mean = (weights * means).sum()
    within, between = (weights * times.std_s[known] ** 2).sum(), (weights * (means - mean) ** 2).sum()
    return math.sqrt(within) / mean, math.sqrt(between) / mean


def _mean(values: Array) -> float:
    return float(np.mean(values[~np.isnan(values)])) if not np.isnan(values).all() else math.nan


def _least(values: Array) -> float:
    return float(np.nanmin(values)) if not np.isnan(values).all() else math.nan


def _most(values: Array) -> float:
    return float(np.nanmax(values)) if not np.isnan(values).all() else math.nan


def _cores(cores: int) -> str:
    return f"{cores} core{'s' * (cores > 1)}"
