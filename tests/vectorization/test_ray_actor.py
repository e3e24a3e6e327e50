"""What an actor does, without Ray: calls that overtake each other, over workers of this machine."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from mock_envs import HashEnv

from pufferlib import _native
from pufferlib.telemetry.timeline import RESET
from pufferlib.vectorization.core.frames import complete_frames, messages_of, sealed_frame
from pufferlib.vectorization.core.messages import Failed, Reset, ResetOrder
from pufferlib.vectorization.processes.start import pickle_task
from pufferlib.vectorization.ray.actor import REQUEST, STEPS, ActorService, ActorTask, Format, unpacked_answer
from pufferlib.vectorization.worker.worker import WorkerTask

NUM_ENVS = 4


class Slow(HashEnv):
    """One whose steps take a while, so that calls come meanwhile."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


class Failing(HashEnv):
    """An environment whose resets have an info with the seed and whose step raises if its action is 1."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"seed": seed}

    def step(self, action: Any) -> Any:
        if action == 1:
            raise RuntimeError("action 1")
        return super().step(action)


pytestmark = [pytest.mark.beside, pytest.mark.skipif(not _native.available, reason="only the compiled path has a ring")]


def begun(env: type[HashEnv], first_env: int = 0, *, in_place: bool = False) -> ActorService:
    """Return an actor with a worker per environment, or with one, in this process, for all."""
    work = ActorService()
    shares = [range(n, n + 1) for n in range(first_env, first_env + NUM_ENVS)]
    if in_place:
        shares = [range(first_env, first_env + NUM_ENVS)]
    tasks = [
        WorkerTask(share[0], share, [functools.partial(env)] * len(share), {}, "next_step", True, True)
        for share in shares
    ]
    task = ActorTask(tasks, None, in_place, in_place, "fork", 1, 0, 1, None)
    work.start(pickle_task(task, ""), Format("float32", True), [])
    return work


def resets() -> list[Any]:
    orders = [ResetOrder(env_id, env_id, 1, None, False) for env_id in range(NUM_ENVS)]
    return [(REQUEST, order.env_id, sealed_frame(Reset([order]), by_value=True)) for order in orders]


def step_of(env_id: int) -> tuple[Any, ...]:
    return (STEPS, [env_id], [np.zeros(1, np.int64).tobytes()])


def test_a_row_that_a_dead_worker_leaves_behind_a_slot_that_is_being_filled_is_nobodys() -> None:
    """Its death is told at once, and its environment gets crash rows; so the row, which comes later, must not count."""
    work, seen, number = begun(HashEnv), list[int](), 0

    def answer(*requests: Any) -> Any:
        nonlocal number
        number += 1
        answered = unpacked_answer(work.exchange(pickle.dumps((number, list(requests), NUM_ENVS))))
        seen.extend(range(NUM_ENVS) if answered.env_ids is None else answered.env_ids)
        return answered

    try:
        answer(*resets())
        while len(seen) < NUM_ENVS:
            answer()
        seen.clear()
        work._scheduler.mark_sent([0])
        slot = work._ring.claim(0)  # as its worker does, which then takes long to write
        counted = work._scheduler.fast_path.counted()
        with work._changed:
            work._do(*step_of(1))
        while work._scheduler.fast_path.counted() == counted:
            time.sleep(0.001)
        pid = work._workers.pids[1]
        os.kill(pid, signal.SIGKILL)
        frames = b""
        while b"" == frames:
            frames = answer().frames
        assert seen == []
        work._ring.commit(slot, False, False)
        while work._scheduler.num_coming > 0:
            answer()
        assert 1 not in seen
    finally:
        work.close(5.0)


def test_one_call_at_a_time_sleeps_at_the_rings_door() -> None:
    """Two would undo each other's notice of being asleep, and who sleeps unnoticed wakes after a slice of time."""
    work = begun(Slow)
    sleeping, most = 0, 0
    await_row = work._await_row

    def counted(timeout_s: float) -> None:
        nonlocal sleeping, most
        sleeping += 1
        most = max(most, sleeping)
        await_row(timeout_s)
        sleeping -= 1

    work._await_row = counted  # type: ignore[method-assign]
    came: list[int] = []

    def call(number: int, requests: list[Any]) -> threading.Thread:
        def run() -> None:
            answer = unpacked_answer(work.exchange(pickle.dumps((number, requests, NUM_ENVS))))
            came.extend(range(NUM_ENVS) if answer.env_ids is None else answer.env_ids)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def played() -> None:
        until_s = time.monotonic() + 30
        while len(came) < NUM_ENVS and time.monotonic() < until_s:
            time.sleep(0.001)
        assert sorted(came) == list(range(NUM_ENVS))
        came.clear()

    try:
        threads, number = [call(1, resets())], 1
        while len(came) < NUM_ENVS:
            threads[-1].join()
            number += 1
            threads.append(call(number, []))
        came.clear()
        for _ in range(5):
            for env_id in range(NUM_ENVS):
                number += 1
                threads.append(call(number, [step_of(env_id)]))
            while len(came) < NUM_ENVS:
                threads[-1].join(0.02)
                if not threads[-1].is_alive():
                    number += 1
                    threads.append(call(number, []))
            played()
        for thread in threads:
            thread.join(10)
    finally:
        work.close(5.0)
    assert most == 1


@pytest.mark.parametrize("in_place", [False, True])
def test_an_actor_and_its_workers_have_the_ids_of_the_vecenv(in_place: bool) -> None:
    """An actor of environments 6 to 9 answers with rows, infos, errors and times of environments 6 to 9."""
    first_env, number = 6, 0
    work = begun(Failing, first_env, in_place=in_place)
    ids = list(range(first_env, first_env + NUM_ENVS))

    def answers(*requests: Any) -> tuple[list[int], list[Any]]:
        """Return the environments whose rows came, and the messages."""
        nonlocal number
        env_ids, messages, more = list[int](), list[Any](), True
        while more:
            number += 1
            answer = unpacked_answer(work.exchange(pickle.dumps((number, list(requests), NUM_ENVS))))
            if answer.observations is not None:
                env_ids += ids if answer.env_ids is None else answer.env_ids
            for frame in complete_frames(bytearray(answer.frames)):
                messages += messages_of(frame, 0)
            requests, more = (), answer.more
        return env_ids, messages

    def resets_of(env_ids: list[int]) -> list[Any]:
        by_worker: dict[int, list[ResetOrder]] = {}
        for env_id in env_ids:
            worker = 0 if in_place else env_id - first_env
            by_worker.setdefault(worker, []).append(ResetOrder(env_id, 0, env_id, None, False))
        return [(REQUEST, worker, sealed_frame(Reset(orders), by_value=True)) for worker, orders in by_worker.items()]

    try:
        env_ids, messages = answers(*resets_of(ids))
        assert sorted(env_ids) == ids
        infos = [info for message in messages for info in message.infos]
        assert sorted((info["env_id"], info["agent_id"], info["seed"]) for info in infos) == [(n, n, n) for n in ids]
        actions = np.array([0, 1, 0, 0]).tobytes()  # 1: raise
        env_ids, messages = answers((STEPS, None, [actions]))
        failed = next(message for message in messages if isinstance(message, Failed))
        assert (failed.env_id, failed.phase) == (7, "step")
        assert failed.worker == (first_env if in_place else 7)
        assert 7 not in env_ids
        env_ids, messages = answers(*resets_of([7]))
        assert env_ids == [7]
        env_ids, messages = answers((STEPS, None, [bytes(len(actions))]))
        assert sorted(env_ids) == ids
        times, histogram, _ = work.times()
        assert len(times) == len(histogram) == NUM_ENVS
        assert (times[:, RESET, 0] > 0).all()
    finally:
        work.close(5.0)
