"""The board: words in a file that the learner, the workers and the monkey have mapped."""

from __future__ import annotations

import functools
import mmap
import os
from pathlib import Path

__all__ = ["PHASES", "Board", "board_at"]

# What an environment says it is in the middle of. STARTING: nothing, as its process has not made it yet.
STARTING, INIT, RESETTING, STEPPING, PACKING = range(5)
PHASES = ("starting", "init", "reset", "stepping", "packing")

# Words at the head of the file.
STOP, GO, KILLED, STOPPED, SIGNALS, UNHANDLED = range(6)
NO_KILLS, ANYTHING = 1, 2  # values of GO
_HEAD, _PER_ENV = 16, 4
# Words of each environment: its phase; exceptions that it has raised, in all its lives; 1 if its next __init__ raises;
# the process that has made it.
PHASE, RAISED, UNMAKEABLE, PID = range(4)


class Board:
    """Words, as a memoryview of int64.

    STOP: the monkey has to end; GO: what it may do, 0 for nothing; KILLED, STOPPED: how many workers it has; SIGNALS:
    how many it has sent to the learner. After the head come the workers' process numbers, 0 for none, and each
    environment's words. UNHANDLED: 1 until the learner's handler has run for the last signal.
    """

    def __init__(self, path: Path, num_envs: int, num_workers: int) -> None:
        self.path, self.num_envs, self.num_workers = path, num_envs, num_workers
        nbytes = 8 * (_HEAD + num_workers + _PER_ENV * num_envs)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, nbytes)
            self.words = memoryview(mmap.mmap(fd, nbytes)).cast("q")
        finally:
            os.close(fd)
        self.pids = self.words[_HEAD : _HEAD + num_workers]
        self._envs = self.words[_HEAD + num_workers :]

    def env(self, env_id: int) -> memoryview:
        """Return the words of one environment."""
        return self._envs[_PER_ENV * env_id : _PER_ENV * (env_id + 1)]


@functools.lru_cache(maxsize=1)
def board_at(path: str, num_envs: int, num_workers: int) -> Board:
    """Return the board as this process sees it; restarted environments share it."""
    return Board(Path(path), num_envs, num_workers)
