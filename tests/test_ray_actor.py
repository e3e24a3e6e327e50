"""What an actor does, without Ray: calls that overtake each other, over workers of this machine."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
from mock_envs import HashEnv

from pufferlib import _native
from pufferlib.vectorization.doorbell import sealed_frame
from pufferlib.vectorization.launch import portable
from pufferlib.vectorization.messages import Reset, ResetOrder
from pufferlib.vectorization.ray_actor import STEPS, TOLD, Format, GroupTask, Work, opened
from pufferlib.vectorization.worker import WorkerTask

NUM_ENVS = 4


class Slow(HashEnv):
    """One whose steps take a while, so that calls come meanwhile."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


@pytest.mark.skipif(not _native.available, reason="only the compiled path has a ring")
def test_one_call_at_a_time_sleeps_at_the_rings_door() -> None:
    """Two would undo each other's notice of being asleep, and who sleeps unnoticed wakes after a slice of time."""
    work = Work()
    tasks = [WorkerTask(n, range(n, n + 1), [Slow], {}, "next_step", True, True) for n in range(NUM_ENVS)]
    work.start(portable(GroupTask(tasks, False, False, "fork", 1, 0, 1, None), ""), Format("float32", True), [])
    sleeping, most = 0, 0
    await_row = work._flight.await_row

    def counted(timeout_s: float) -> None:
        nonlocal sleeping, most
        sleeping += 1
        most = max(most, sleeping)
        await_row(timeout_s)
        sleeping -= 1

    work._flight.await_row = counted  # type: ignore[method-assign]
    came: list[int] = []

    def call(number: int, requests: list[Any]) -> threading.Thread:
        def run() -> None:
            answer = opened(work.exchange(pickle.dumps((number, requests, NUM_ENVS))))
            came.extend(range(NUM_ENVS) if answer.env_ids is None else answer.env_ids)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def played() -> None:
        until_s = time.monotonic() + 30
        while len(came) < NUM_ENVS and time.monotonic() < until_s:
            time.sleep(0.001)
        assert sorted(came) == list(range(NUM_ENVS))
        came.clear()

    resets = [
        (TOLD, n, sealed_frame(Reset([ResetOrder(n, n, 1, None, False)]), by_value=True)) for n in range(NUM_ENVS)
    ]
    try:
        threads, number = [call(1, resets)], 1
        while len(came) < NUM_ENVS:
            threads[-1].join()
            number += 1
            threads.append(call(number, []))
        came.clear()
        for _ in range(5):
            for env_id in range(NUM_ENVS):
                number += 1
                threads.append(call(number, [(STEPS, [env_id], [np.zeros(1, np.int64).tobytes()])]))
            while len(came) < NUM_ENVS:
                threads[-1].join(0.02)
                number += not threads[-1].is_alive()
                if not threads[-1].is_alive():
                    threads.append(call(number, []))
            played()
        for thread in threads:
            thread.join(10)
    finally:
        work.close(5.0)
    assert most == 1
