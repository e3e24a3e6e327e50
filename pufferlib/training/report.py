"""Reports of a run: a dashboard in a terminal, plain lines elsewhere, TensorBoard scalars, Weights & Biases."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, sleep, time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pufferlib
from pufferlib.training.recent_statistics import RecentStatistics
from pufferlib.training.results import EVENTS, RETURN_OF
from pufferlib.training.tracking import Tracker

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from pufferlib.training.dashboard import Dashboard

PHASES = ("environments", "inference", "learning")
NUM_PLAIN_LINES = 10
REFRESH_S = 0.25
ACTORS = "actors/"  # followed by a node, or by a node and an actor
# Of the time at most: drawing interrupts training. A thread would not, but would keep workers from forking.
DRAWING_SHARE = 0.02
WINDOW_S = 10.0  # over which the current speed is measured
EPISODE_CHARTS = {f"charts/{name}": name.removeprefix("episodic_") for name in
                  ("episodic_return", "episodic_length", "score", "restarts")}  # fmt: skip
DESCENDED = tuple(
    f"losses/{name}" for name in ("policy_loss", "value_loss", "td_loss")
)  # possibly followed by a team's name


def require_finite(num_steps: int, scalars: Mapping[str, float]) -> None:
    """Raise PlanError if a policy, value or TD loss is not finite, since nothing more would be learnt."""
    for name, value in scalars.items():
        if name.startswith(DESCENDED) and not math.isfinite(value):
            raise pufferlib.PlanError(
                f"{name} is {value} after {num_steps:,} steps, which turns weights to NaN; check that rewards and "
                "observations are finite and small (reward_clip, normalize_observations), or lower learning_rate"
            )


class Printer:
    """A replacement for rich's console on machines without rich, such as those that only train: it prints lines."""

    def print(self, line: str, **_: Any) -> None:
        print(line, flush=True)


def default_console() -> Console | Printer:
    """Return the console to which a run prints: rich's, or ``Printer`` if rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return Printer()
    return Console(highlight=False, emoji=False)


def _summary_writer(folder: Path, resumed_at: int | None) -> Any:
    """Return a writer of TensorBoard's files; None if tensorboard is not installed. Arguments: as for ``Report``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # TensorBoard reads files in the order of their names: by the second, then by text that ends with a count.
    seconds = {path.name.split(".")[3] for path in folder.glob(EVENTS)}
    while str(int(time())) in seconds:
        sleep(0.01)
    return SummaryWriter(str(folder), purge_step=None if resumed_at is None else resumed_at + 1)


class Report:
    """A context manager that reports a training run's progress; the trainer calls its methods.

    ``phase`` sets the trainer's phase, ``infos`` takes a batch's infos, ``update`` reports progress. TensorBoard
    and Weights & Biases get the same scalars at the same steps: those passed to ``update``, and

    - ``charts/SPS``: steps per second, the mean since training began or was resumed; ``charts/seconds``: seconds of
      training so far, including those before it was resumed;
    - ``charts/episodic_return``, ``episodic_length`` and ``score``: means over the last hundred episodes;
      ``charts/return_of/…``: with several agents, the mean return of each agent, or of each type of agent, in these
      episodes; ``charts/restarts``: the number of times that environments were restarted, if any;
    - ``charts/share_environments``, ``share_inference`` and ``share_learning``: each phase's share of the time so far;
    - ``infos/…``: the mean of the last hundred values of each number in users' own infos.

    With remote actors, the trainer also passes ``actors/…`` to ``update``: the steps per second of each actor and node.
    """

    def __init__(
        self,
        title: str,
        total_steps: int,
        folder: Path | None,
        console: Console | None = None,
        *,
        tracker: Tracker | None = None,
        resumed_at: int | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        """folder: for TensorBoard's files, if any. tracker: gets the same scalars as TensorBoard.

        The report starts and finishes the tracker. resumed_at: the step from which a run in the same folder is resumed;
        scalars stored at later steps are discarded. labels: the agents' labels (see ``results.labels_of``).
        """
        self.title, self.total_steps, self.folder, self.tracker = title, total_steps, folder, tracker
        self.resumed_at = resumed_at
        self.first_step = 0 if resumed_at is None else resumed_at  # from which speed is measured
        self.console = default_console() if console is None else console
        self.writer: Any = None  # TensorBoard's
        self.live: Live | None = None
        self.recent_statistics = RecentStatistics(labels)
        self.scalars: dict[str, float] = {}  # those of the last update
        self.num_steps = self.first_step
        self.line_index, self.next_refresh_s = -1, 0.0
        self.earlier_s = 0.0  # of training before it was resumed
        self.seconds = dict.fromkeys(PHASES, 0.0)  # of each phase
        self.current: str | None = None  # the phase since ``since_s``
        self.since_s = self.start_s = perf_counter()
        self.window: deque[tuple[float, int]] = deque()  # times, and the number of steps by then

    def __enter__(self) -> Report:
        if self.tracker is not None:
            assert self.folder is not None
            self.tracker.start(self.folder)
        if self.folder is not None:
            self.writer = _summary_writer(self.folder, self.resumed_at)
            if self.writer is None:
                note = "no curves are stored, because tensorboard is not installed"
                self.console.print(f"{self.title}  {note}", soft_wrap=True)
        self.since_s = self.start_s = perf_counter()
        self.window.append((self.start_s, self.first_step))
        if not isinstance(self.console, Printer) and self.console.is_terminal and not self.console.is_dumb_terminal:
            from rich.live import Live

            self.live = Live(self.dashboard(), console=self.console, auto_refresh=False)
            self.live.start(refresh=True)
        return self

    def phase(self, name: str) -> None:
        """Set the trainer's current phase: "environments" (waiting for them), "inference" or "learning".

        Also redraws the dashboard if that is due. Raises PlanError for any other name.
        """
        now = perf_counter()
        if self.current is not None:
            self.seconds[self.current] += now - self.since_s
        if name not in self.seconds:
            raise pufferlib.PlanError(f"phase={name!r} is not one of {', '.join(PHASES)}")
        self.current, self.since_s = name, now
        if now >= self.next_refresh_s and self.live is not None:
            self._refresh()

    def infos(self, infos: Sequence[Mapping[str, Any]]) -> None:
        """Add the infos of a batch to the statistics."""
        if infos:
            self.recent_statistics.take(infos)

    def reset(self) -> None:
        """Forget the unfinished episodes. Call it when all environments are reset."""
        self.recent_statistics.reset()

    def update(self, num_steps: int, scalars: Mapping[str, float]) -> None:
        """Report that the whole run has played ``num_steps`` steps, and store scalars, keyed by TensorBoard name.

        Once they are stored, raises PlanError if a loss is not finite (see ``require_finite``).
        """
        now = perf_counter()
        self.num_steps = num_steps
        self.window.append((now, num_steps))
        while now - self.window[0][0] > WINDOW_S and len(self.window) > 2:
            self.window.popleft()
        shares = {f"charts/share_{name}": share for name, share in self.shares().items()}
        self.scalars = {**scalars, **self.recent_statistics.charts()}
        measured = {"charts/SPS": self._steps_per_s()[1], "charts/seconds": self.elapsed_s(), **shares}
        stored = {**self.scalars, **measured, **self.recent_statistics.infos()}
        if self.writer is not None:
            for name, value in stored.items():
                self.writer.add_scalar(name, value, num_steps)
        if self.tracker is not None:
            self.tracker.log(num_steps, stored)
        if self.live is None:
            self._print_line()
        elif now >= self.next_refresh_s:
            self._refresh()
        require_finite(num_steps, scalars)

    def elapsed_s(self) -> float:
        """Return the seconds of training so far, including those before it was resumed."""
        return self.earlier_s + perf_counter() - self.start_s

    def shares(self) -> dict[str, float]:
        """Return each phase's share of the time so far; empty if no phase has been set."""
        seconds = dict(self.seconds)
        if self.current is not None:
            seconds[self.current] += perf_counter() - self.since_s
        total = sum(seconds.values())
        return {name: phase_s / total for name, phase_s in seconds.items()} if total else {}

    def state(self) -> dict[str, Any]:
        """Return the state for ``restore``, as plain values, which ``torch.load`` with ``weights_only`` can load."""
        seconds = dict(self.seconds)
        if self.current is not None:
            seconds[self.current] += perf_counter() - self.since_s
        return {"elapsed_s": self.elapsed_s(), "phase_seconds": seconds, "recent": self.recent_statistics.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned, in a Report that was made with ``resumed_at``."""
        self.earlier_s = state["elapsed_s"]
        self.seconds = dict(state["phase_seconds"])
        self.current = None
        self.recent_statistics.restore(state["recent"])

    def dashboard(self) -> Dashboard:
        """Return a dashboard of the current progress."""
        from pufferlib.training.dashboard import Dashboard

        present, mean = self._steps_per_s()
        agents = {name: value for name, value in self.scalars.items() if name.startswith(RETURN_OF)}
        episodes = {}
        for name, short in EPISODE_CHARTS.items():
            if name in self.scalars:
                episodes[short] = self.scalars[name]
            if short == "return":
                episodes |= {f"of {name.removeprefix(RETURN_OF)}": value for name, value in agents.items()}
        actors = {name: value for name, value in self.scalars.items() if name.startswith(ACTORS)}
        other_names = {*EPISODE_CHARTS, *agents, *actors}
        learning = {name: value for name, value in self.scalars.items() if name not in other_names}
        return Dashboard(
            self.title,
            self.num_steps,
            self.total_steps,
            self.elapsed_s(),
            self._seconds_left(),
            present,
            mean,
            self.shares(),
            episodes,
            {name.rpartition("/")[2].replace("_", " "): value for name, value in learning.items()},
            {name.removeprefix("infos/"): value for name, value in self.recent_statistics.infos().items()},
            {name.removeprefix(ACTORS): value for name, value in actors.items()},
        )

    def _steps_per_s(self) -> tuple[float, float]:
        """Return two speeds in steps per second: the current speed and the mean speed.

        The current speed is measured over about WINDOW_S seconds, the mean since training began or was resumed.
        """
        (then_s, then), (last_s, last) = self.window[0], self.window[-1]
        present = (last - then) / (last_s - then_s) if last_s > then_s else 0.0
        seconds = last_s - self.start_s
        return present, (last - self.first_step) / seconds if seconds else 0.0

    def _seconds_left(self) -> float:
        mean = self._steps_per_s()[1]
        return max(0, self.total_steps - self.num_steps) / mean if mean else float("inf")

    def _refresh(self) -> None:
        assert self.live is not None
        began_s = perf_counter()
        self.live.update(self.dashboard(), refresh=True)
        draw_s = perf_counter() - began_s
        self.next_refresh_s = began_s + max(REFRESH_S, draw_s / DRAWING_SHARE)

    def _print_line(self) -> None:
        progress = min(1.0, self.num_steps / self.total_steps)
        line_index = int(progress * (NUM_PLAIN_LINES - 1))  # the first at once, the last at the end
        if line_index == self.line_index:
            return
        self.line_index = line_index
        line = f"{self.title}  {progress:.0%}  {self.num_steps:,} steps  {self._steps_per_s()[1]:,.0f}/s"
        for name in ("charts/episodic_return", "charts/score"):
            if name in self.scalars:
                line += f"  {EPISODE_CHARTS[name]} {self.scalars[name]:.2f}"
        self.console.print(f"{line}  {self._seconds_left():.0f} s left", soft_wrap=True, markup=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.live is not None:
                self.live.update(self.dashboard())  # drawn when it stops, and left on the screen
                self.live.stop()
        finally:
            if self.writer is not None:
                self.writer.close()
            if self.tracker is not None:
                self.tracker.finish(failed=error is not None)
