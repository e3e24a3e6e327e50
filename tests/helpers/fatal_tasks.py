"""What tests of a coordinator over Ray send to actors. An actor imports this file, and not all the tests'."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import test_payoffs


class Deadly(test_payoffs.Pays):
    """Environment that ends its process in the middle of an episode, ``deaths`` times."""

    def __init__(self, folder: str, deaths: int) -> None:
        super().__init__(noise=1.0)
        self.folder, self.deaths = folder, deaths

    def step(self, actions: Any) -> None:
        if self.tick == 3:
            for number in range(self.deaths):
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(f"{self.folder}/{number}", os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
        super().step(actions)


def fails(vec: Any, pool: Any, way: str) -> Any:
    if way == "raises":
        raise OSError("on purpose")
    return lambda: way


def hangs_once(vec: Any, pool: Any, way: str) -> str:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(way, os.O_CREAT | os.O_EXCL))
        time.sleep(600)
    return "came"
