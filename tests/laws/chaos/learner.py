"""The learner of the chaos suite: plays one arrangement while the monkey is at work, and has every row checked."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

import pufferlib
from pufferlib.errors import ClosedError
from pufferlib.vectorization.core.messages import Died
from pufferlib.vectorization.core.plan import Seeds
from pufferlib.vectorization.core.step_watchdog import doing_of

from .arrangements import Arrangement
from .board import (
    ANYTHING,
    GO,
    KILLED,
    NO_KILLS,
    PHASE,
    PHASES,
    PID,
    RAISED,
    SIGNALS,
    STARTING,
    STOP,
    STOPPED,
    UNHANDLED,
    Board,
)
from .checker import Checker
from .envs import KINDS, LETHAL, PLAIN
from .monkey import ancestors

__all__ = ["PATIENCE_S", "play"]

PATIENCE_S = float(os.environ.get("CHAOS_PATIENCE_S", "60"))  # a wait this long is a hang
TRACKER: Any = resource_tracker._resource_tracker  # Python's own helpers
FORK_SERVER: Any = forkserver._forkserver
SLACK = 10  # how far deaths and faults may be ahead of the transitions, in hundredths
SIGNALS_TAKEN = (signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD, signal.SIGWINCH)


class Tally:
    """Counts what has happened to workers, as the learner's own backend finds it."""

    def __init__(self, vec: Any, board: Board, checker: Checker) -> None:
        self.vec, self.board, self.checker = vec, board, checker
        self.phases: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        backend = self.backend = vec._workers.backend
        self._start, self._clean, self._bury = backend._start_worker, backend._clean, backend._bury
        backend._start_worker, backend._clean, backend._bury = self.start, self.clean, self.bury
        self._burying = False
        for worker, process in backend._processes.items():
            board.pids[worker] = process.pid

    @property
    def deaths(self) -> int:
        """How many workers have died."""
        return sum(self.checker.deaths)

    def release(self) -> None:
        """Count no more: the VecEnv is about to be closed."""
        backend = self.backend
        backend._start_worker, backend._clean, backend._bury = self._start, self._clean, self._bury
        del self.backend, self.vec, self._start, self._clean, self._bury

    def start(self, worker: int, context: str, env_spec: Any) -> None:
        for env_id in self.backend.shares[worker]:
            self.board.env(env_id)[PHASE] = STARTING
        self._start(worker, context, env_spec)
        self.board.pids[worker] = self.backend._processes[worker].pid

    def bury(self, worker: int) -> Any:
        self.board.pids[worker] = 0
        cause = self.backend._causes.get(worker, "")
        self._burying = True
        messages = self._bury(worker)
        self._burying = False
        self.checker.deaths[worker] += 1
        code = messages[-1].exitcode
        self.ends["timeout" if cause else signal.Signals(-code).name if code < 0 else f"exit {code}"] += 1
        return messages

    def clean(self, worker: int) -> None:
        """The worker has been reaped, and all is still as it has left it."""
        if self._burying:
            self.phases[self.phase_of(worker)] += 1
        self._clean(worker)

    def phase_of(self, worker: int) -> str:
        """Return what a dead worker was in the middle of."""
        slab, scheduler = self.vec._slab, self.vec._scheduler
        share = self.backend.shares[worker]
        doing = doing_of(int(slab.doing[worker, 0]), slab.shape.num_ids)
        if doing is None:
            starting = any(self.board.env(env_id)[PHASE] == STARTING for env_id in share)
            return "starting" if starting else "asleep"
        phase = PHASES[self.board.env(doing.env_id)[PHASE]]
        if self.backend._ring is not None and phase == "packing":
            if scheduler._mode == 2 and scheduler.fast_path.claimed_slot(doing.env_id) is not None:
                return "between claim and commit"
            if doing.env_id in scheduler.fast_path.landed() and owes(slab, worker):
                return "between commit and count"
        return "reset" if phase == "starting" else phase


class ActorTally:
    """The same over Ray: of what workers were in the middle nobody knows here, but of actors or of processes of theirs.

    Behind the workers' process numbers on the board are those of actors that are not workers themselves.
    """

    def __init__(self, vec: Any, board: Board, checker: Checker) -> None:
        self.board, self.checker, backend = board, checker, vec._workers.backend
        self.phases: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.backend = backend
        self._hooked = ("_bury", "_messages", "poll")
        for name in self._hooked:
            setattr(backend, name, functools.partial(getattr(self, name.strip("_")), getattr(backend, name)))
        self.look()

    @property
    def deaths(self) -> int:
        """How many workers have died."""
        return sum(self.checker.deaths)

    def release(self) -> None:
        """Count no more: the VecEnv is about to be closed."""
        for name in self._hooked:
            delattr(self.backend, name)
        del self.backend

    def bury(self, bury: Any, actor: Any, how: str) -> Any:
        messages = bury(actor, how)
        self.phases["an actor"] += 1
        self.ends["lost with its actor" if "was lost with" in how else how] += 1
        for message in messages:
            self.checker.deaths[message.worker] += 1
            self.forget(message)
        return messages

    def messages(self, messages: Any, actor: Any, frames: bytes) -> Any:
        received = messages(actor, frames)
        for message in received:
            if isinstance(message, Died):
                self.phases["a process of an actor"] += 1
                code = message.exitcode or 0
                self.ends[signal.Signals(-code).name if code < 0 else f"exit {code}"] += 1
                self.checker.deaths[message.worker] += 1
                self.forget(message)
        return received

    def forget(self, message: Any) -> None:
        for env_id in message.env_ids:
            self.board.env(env_id)[PID] = 0

    def poll(self, poll: Any, timeout: float | None) -> Any:
        messages = poll(timeout)
        self.look()
        return messages

    def look(self) -> None:
        """Put on the board who plays now."""
        pids, shares = self.board.pids, self.backend.shares
        for worker, share in enumerate(shares):
            pids[worker] = self.board.env(share[0])[PID]
        for actor in self.backend._actors if len(pids) > len(shares) else ():
            chain = []
            with contextlib.suppress(OSError):
                chain = list(ancestors(pids[actor.workers.start]))[:2] if pids[actor.workers.start] else []
            pids[len(shares) + actor.index] = chain[1] if len(chain) == 2 else 0  # behind its fork server


def owes(slab: Any, worker: int) -> bool:
    """Whether a worker has written rows that it has not counted; where that stands is told by ring.h."""
    shape, line = slab.shape, 64
    words = -(-shape.num_slots * 8 // line) * line
    flags = -(-shape.num_slots // line) * line
    box = 2 * line + shape.num_blocks * line + words + flags + worker * 3 * line
    return bool(slab.ring[box + 2 * line + 8 : box + 2 * line + 16].view(np.int64)[0])


class Script:
    """Draws actions, and as many faults as are due by now."""

    def __init__(self, arrangement: Arrangement, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.arrangement = arrangement
        self.repertoire: list[int] = []
        self.sent: Counter[str] = Counter()

    def actions(self, num: int, share: float, states: Any) -> Any:
        """Return actions. share: of the transitions, what has been played; states: of the agents, 0 in mid-episode."""
        actions = self.random.integers(0, PLAIN, num)
        if sum(self.sent.values()) < self.arrangement.faults * min(1.0, share + SLACK / 100):
            index = int(self.random.integers(num))
            if states[index] == 0:
                if not self.repertoire:
                    self.repertoire = self.random.permutation(self.arrangement.repertoire).tolist()
                actions[index] = fault = self.repertoire.pop()
                self.sent[next(entry.name for entry in self.arrangement.repertoire if entry == fault)] += 1
        return actions


@contextlib.contextmanager
def handlers(board: Board, interrupts: bool) -> Iterator[dict[str, Any]]:
    """Take the monkey's signals in Python, by interrupting what is armed where that is asked for."""
    seen: dict[str, Any] = {"num": 0, "armed": False}

    def take(number: int, frame: Any) -> None:
        seen["num"] += 1
        board.words[UNHANDLED] = 0
        if interrupts and number == signal.SIGALRM and seen["armed"]:
            seen["armed"] = False
            raise KeyboardInterrupt

    old = {number: signal.signal(number, take) for number in SIGNALS_TAKEN}
    try:
        yield seen
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def own_descriptors() -> int:
    helpers = {TRACKER._fd, FORK_SERVER._forkserver_alive_fd}
    return len(set(map(int, os.listdir("/proc/self/fd"))) - helpers)


def own_memory() -> int:
    """Return the bytes of this process's private and anonymous memory: shared rows are touched as they are used."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])


def children() -> set[int]:
    """Return the processes that this one has started, but not Python's own helpers, which end with it."""
    helpers = {TRACKER._pid, FORK_SERVER._forkserver_pid}
    return {
        int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()
    } - helpers


def play(arrangement: Arrangement, *, seed: int, wrap: Callable[[Any], Any] = lambda vec: vec) -> dict[str, Any]:
    """Play an arrangement, and return what has happened; raises Violation, or RecvTimeout for a hang.

    wrap: what stands between the learner and the VecEnv, to show what the checker sees of a broken one.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.ExitStack() as stack:
        if arrangement.backend == "ray":
            stack.enter_context(own_ray())
        return _watched(arrangement, seed, wrap)


@contextlib.contextmanager
def own_ray() -> Iterator[None]:
    """Run Ray within this context, so that what it starts and opens by itself is not counted as the VecEnv's."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with contextlib.redirect_stdout(sys.stderr):  # where it tells of each death
        ray.init("local", include_dashboard=False, num_cpus=4, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield
        finally:
            ray.shutdown()


def _watched(arrangement: Any, seed: int, wrap: Any) -> dict[str, Any]:
    gc.collect()
    before = own_descriptors(), children(), threading.active_count()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dropped by reset", RuntimeWarning)
        warnings.filterwarnings("ignore", ".*which is made again, raised in close", RuntimeWarning)
        result: dict[str, Any] = {}
        rest, num_vecs = arrangement, 0
        while result.get("closed by interrupts", 0) == num_vecs:  # each round has a VecEnv of its own
            board_args = (str(Path(folder, f"board {num_vecs}")), arrangement.num_envs, arrangement.num_processes)
            board = Board(Path(board_args[0]), *board_args[1:])
            with handlers(board, arrangement.interrupts) as seen:
                result = added(result, _play(rest, seed + num_vecs, board, board_args, seen, wrap))
            del board  # Python keeps the file of a mapping open
            num_vecs += 1
            rest = rest._replace(
                transitions=max(1, arrangement.transitions - result["transitions"]),
                deaths=max(0, arrangement.deaths - result["deaths"]),
                faults=max(0, arrangement.faults - sum(result["faults"].values())),
            )
    gc.collect()
    deadline = time.monotonic() + 60
    while children() - before[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    left = {
        "descriptors": own_descriptors() - before[0],
        "processes": len(children() - before[1]),
        "threads": threading.active_count() - before[2],
    }
    if arrangement.backend == "ray":  # which opens and keeps connections as it likes
        del left["descriptors"]
    assert not any(left.values()), f"left behind: {left}"
    return {**result, "left behind": left, "seconds": round(time.monotonic() - started_s, 1), "seed": seed}


def _play(
    arrangement: Any, seed: int, board: Board, board_args: Any, seen: dict[str, Any], wrap: Any
) -> dict[str, Any]:
    vec = pufferlib.make(
        functools.partial(KINDS[arrangement.kind], board=board_args),
        backend=arrangement.backend,
        num_envs=arrangement.num_envs,
        num_workers=arrangement.num_workers,
        batch_size=arrangement.batch_size,
        seed=seed,
        autoreset_mode=arrangement.mode,
        context=arrangement.context,
        on_error=arrangement.on_error,
        max_restarts=None,
        step_timeout=arrangement.step_timeout,
        backend_kwargs={"local_workers": arrangement.local_workers} if arrangement.backend == "ray" else None,
    )
    done = threading.Event()
    if arrangement.thread:
        threading.Thread(target=done.wait).start()
    limit_s = arrangement.step_timeout
    monkey = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.monkey", *map(str, board_args), str(seed), str(arrangement.mean_s),
         str(os.getpid()), *([] if limit_s is None else [str(4 * limit_s)])],
        cwd=Path(__file__).parents[len(__package__.split("."))],
    )  # fmt: skip
    try:
        checker = Checker(vec, board, arrangement.kind, Seeds(seed, arrangement.num_envs))
        tally = (ActorTally if arrangement.backend == "ray" else Tally)(vec, board, checker)
        learner = Learner(arrangement, wrap(vec), checker, tally, Script(arrangement, seed), board, seen)
        with contextlib.suppress(ClosedError):
            learner.run()
            checker.conclude()
        result = learner.report()
        tally.release()
        return result
    finally:
        board.words[STOP] = 1
        done.set()
        monkey.wait(PATIENCE_S)
        last = [board.env(env_id)[PID] for env_id in range(arrangement.num_envs)]
        for worker in range(arrangement.num_processes):
            board.pids[worker] = 0
        vec.close()
        await_end(last)


def added(total: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of two reports of ``Learner``; of waits and of memory the most."""

    def entry(key: str, value: Any) -> Any:
        if key not in total:
            return value
        if isinstance(value, dict):
            return dict(sorted((Counter(total[key]) + Counter(value)).items()))
        return (
            max(total[key], value) if key in ("path", "longest wait, s", "memory grown, bytes") else total[key] + value
        )

    return {key: entry(key, value) for key, value in result.items()}


def await_end(pids: list[int]) -> None:
    """Wait for processes of environments to be gone, which may be anybody's children."""
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} are left behind"
        time.sleep(0.01)


class Learner:
    """Sends and receives until all that was asked for has happened."""

    def __init__(self, arrangement: Arrangement, vec: Any, checker: Checker, tally: Tally | ActorTally, script: Script,
                 board: Board, seen: dict[str, Any]) -> None:  # fmt: skip
        self.arrangement, self.vec, self.checker, self.tally = arrangement, vec, checker, tally
        self.script, self.board, self.seen = script, board, seen
        self.num_errors = self.num_interrupts = self.num_user_resets = 0
        self.longest_s = 0.0
        self.has_killed_one = False
        self.is_closed = False  # by an interrupt
        self.last: Any = None  # the last batch
        self.memory: list[int] = []

    @property
    def share(self) -> float:
        return self.checker.num_transitions / max(1, self.arrangement.transitions)

    def run(self) -> None:
        self.reset()
        arrangement, words = self.arrangement, self.board.words
        end_s = 0.0
        while True:
            share = self.share
            if share > 0.3 and not self.memory:
                self.memory.append(own_memory())
            due = self.tally.deaths < arrangement.deaths * min(1.0, share + SLACK / 100)
            words[GO] = ANYTHING if due else NO_KILLS
            if share >= 1 and self.tally.deaths >= arrangement.deaths:
                break
            now_s = time.monotonic()
            if share < 1:
                end_s = now_s + PATIENCE_S
            assert now_s < end_s, f"nobody kills workers any more: {self.tally.deaths} of {arrangement.deaths}"
            self.exchange()
        words[GO] = 0
        self.settle()
        self.memory.append(own_memory())

    def exchange(self, *, calm: bool = False) -> Any:
        """Receive a batch and answer it; after an error, reset. Raises ClosedError if an interrupt has closed all."""
        try:
            self.seen["armed"] = not calm
            start_s = time.monotonic()
            try:
                batch = self.vec.recv(timeout=PATIENCE_S)
            except KeyboardInterrupt:
                self.num_interrupts += 1
                self.is_closed = self.vec.closed
                if self.is_closed:
                    raise ClosedError("an interrupt has closed the VecEnv") from None
                batch = self.vec.batch
                if batch is self.last:  # a wait was interrupted, before there was a batch
                    return self.exchange(calm=calm)
            self.seen["armed"] = False
            self.last = batch
            self.longest_s = max(self.longest_s, time.monotonic() - start_s)
            self.checker.receive(batch)
            self.answer(batch, calm)
            return batch
        except (pufferlib.WorkerError, pufferlib.CallError):
            if self.arrangement.on_error != "raise":
                raise
            self.num_errors += 1
        finally:
            self.seen["armed"] = False
        self.reset()
        return None

    def answer(self, batch: Any, calm: bool) -> None:
        checker, vec = self.checker, self.vec
        states = checker.state[batch.agent_ids]
        idle = len(states) == len(checker.state)  # all have been received: nobody has anything to do
        pid = self.board.pids[-1]  # over Ray an actor, which the monkey might spare
        if not calm and self.share > 0.5 and (idle or vec.backend == "ray") and pid and not self.has_killed_one:
            self.has_killed_one = True
            os.kill(pid, signal.SIGKILL)
        actions = self.script.actions(len(states), 0.0 if calm else self.share, states if not calm else states + 1)
        over = checker.over(batch.env_ids) if self.arrangement.mode == "disabled" else None
        if over is None or not over.any():
            checker.send(batch.env_ids, actions)
            vec.send(actions)
            return
        ended, others = batch.env_ids[over].copy(), batch.env_ids[~over].copy()
        checker.send_resets(ended)
        vec.async_reset(env_ids=ended.tolist())
        if len(others):
            agents = np.repeat(~over, checker.per_env)
            checker.send(others, actions[agents])
            vec.send(actions[agents], env_ids=others.tolist())

    def reset(self) -> None:
        self.num_user_resets += 1
        self.vec.async_reset()
        self.checker.send_all_resets()

    def settle(self) -> None:
        """Go on without disturbance until every environment has been heard of, and nothing is lost any more."""
        missing = set(range(self.arrangement.num_envs))
        deadline = time.monotonic() + PATIENCE_S
        while missing:
            batch = self.exchange(calm=True)
            if batch is None:  # an error that had not been told yet
                missing = set(range(self.arrangement.num_envs))
            else:
                missing -= set(batch.env_ids[batch.masks.reshape(len(batch.env_ids), -1).all(1)].tolist())
            assert time.monotonic() < deadline, f"environments {missing} do not come any more"

    def report(self) -> dict[str, Any]:
        checker, tally, board = self.checker, self.tally, self.board
        grown = self.memory[-1] - self.memory[0] if self.memory else 0
        assert grown < 24 << 20, f"memory has grown by {grown} bytes"
        raised = sum(board.env(env_id)[RAISED] for env_id in range(board.num_envs))
        return {
            "path": "compiled" if pufferlib._native.available else "portable",
            "transitions": checker.num_transitions,
            "first rows": checker.num_resets,
            "batches": checker.num_batches,
            "deaths": tally.deaths,
            "deaths by phase": dict(sorted(tally.phases.items())),
            "deaths by cause": dict(sorted(tally.ends.items())),
            "kills sent": board.words[KILLED],
            "stops sent": board.words[STOPPED],
            "signals to the learner": board.words[SIGNALS],
            "faults": dict(sorted(self.script.sent.items())),
            "deadly faults": sum(num for name, num in self.script.sent.items() if name in DEADLY),
            "exceptions raised": raised,
            "crash rows": checker.num_crashes,
            "most crash rows": sum(
                checker.deaths[worker] * len(share) for worker, share in enumerate(tally.backend.shares)
            ) + raised,
            "errors": self.num_errors,
            "interrupts": self.num_interrupts,
            "closed by interrupts": int(self.is_closed),
            "resets by the user": self.num_user_resets,
            "longest wait, s": round(self.longest_s, 3),
            "memory grown, bytes": grown,
        }  # fmt: skip


DEADLY = frozenset(fault.name for fault in LETHAL)
