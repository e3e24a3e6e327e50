"""The monkey: a process that kills and stops workers and sends signals to the learner, at random moments.

    python -m chaos.monkey BOARD NUM_ENVS NUM_WORKERS SEED MEAN_S LEARNER [LONG_S]

MEAN_S: seconds between two pranks, on average. LEARNER: its process. LONG_S: how long a worker is stopped now and then,
which is longer than a step may take. It needs nothing but Python, and ends with the learner.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .board import ANYTHING, GO, KILLED, SIGNALS, STOP, STOPPED, UNHANDLED, Board

TO_LEARNER = (signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD, signal.SIGWINCH)


class Monkey:
    """What it does, one prank at a time."""

    def __init__(self, board: Board, seed: int, learner: int, long_s: float) -> None:
        self.words, self.pids = board.words, board.pids
        self.random = random.Random(seed)
        self.learner, self.long_s = learner, long_s
        self.killed = [0] * len(self.pids)  # the last of each worker's processes that was

    def prank(self) -> None:
        """Kill a worker, stop one for a while, or send the learner a signal."""
        draw, words = self.random.random(), self.words
        if draw < 0.4:
            # One at a time: the kernel restarts a fork at each signal, and on a busy machine none would succeed.
            if not words[UNHANDLED]:
                words[UNHANDLED] = 1
                words[SIGNALS] += 1
                os.kill(self.learner, self.random.choice(TO_LEARNER))
        elif draw < 0.5:
            self.stop()
        else:
            self.kill(self.random.randrange(len(self.pids)))

    def kill(self, worker: int) -> None:
        """Kill a worker, if one is due, and this one has not been killed: the learner may not have noticed yet."""
        pid = self.pids[worker]
        if self.words[GO] == ANYTHING and pid != self.killed[worker] and self.to_worker(signal.SIGKILL, worker):
            self.killed[worker] = pid
            self.words[KILLED] += 1

    def stop(self) -> None:
        """Stop a worker for a while; now and then kill it as it lies there, or let it lie for too long."""
        worker = self.random.randrange(len(self.pids))
        pid = self.pids[worker]
        if not self.to_worker(signal.SIGSTOP, worker):
            return
        self.words[STOPPED] += 1
        draw = self.random.random()
        is_long = self.long_s and draw < 0.15
        time.sleep(self.long_s if is_long else self.random.expovariate(1 / 0.003))
        if draw > 0.9:
            self.kill(worker)
        if self.pids[worker] == pid:
            self.to_worker(signal.SIGCONT, worker)

    def to_worker(self, number: int, worker: int) -> bool:
        """Send a signal to a worker, if it is there; return whether it was."""
        pid = self.pids[worker]
        if not pid:
            return False
        with contextlib.suppress(ProcessLookupError, OSError):
            # A number that was given to another process meanwhile is no descendant of the learner's: over Ray there are
            # a fork server, an actor and the node's own process in between.
            if self.learner in ancestors(pid):
                os.kill(pid, number)
                return True
        return False


def ancestors(pid: int) -> Iterator[int]:
    """Yield the parent of a process, which must exist, and its parent, and so on."""
    while pid := int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]):
        yield pid


def main(arguments: list[str]) -> None:
    path, num_envs, num_workers, seed, mean_s, learner, *rest = arguments
    board = Board(Path(path), int(num_envs), int(num_workers))
    monkey = Monkey(board, int(seed), int(learner), float(rest[0]) if rest else 0.0)
    while not board.words[STOP] and os.getppid() == monkey.learner:
        time.sleep(min(1.0, monkey.random.expovariate(1 / float(mean_s))))
        if board.words[GO] and not board.words[STOP]:
            monkey.prank()


if __name__ == "__main__":
    main(sys.argv[1:])
