"""Programs that tests start, and that end with the test whatever becomes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

__all__ = ["running"]


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own, speaking text; at the end, whoever is left in that is killed.

    Popen alone would wait for ever where a timeout has ended the test, as the program goes on.
    """
    with subprocess.Popen(command, text=True, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
