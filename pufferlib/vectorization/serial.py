"""Serial: all environments in the calling process, stepped in turn. The plain case, and the one to debug with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pufferlib.vectorization.crew import CLOSE_S, Crew
from pufferlib.vectorization.messages import Call, Done, EnvFace, Failed, Ready, Reset
from pufferlib.vectorization.plan import Plan
from pufferlib.vectorization.slab import Slab, SlabShape
from pufferlib.vectorization.vecenv import VecEnv
from pufferlib.vectorization.worker import Worker, WorkerTask

__all__ = ["Serial"]


class Serial(VecEnv):
    """A VecEnv whose environments run in this process, each stepped as soon as its action is sent."""

    backend = "serial"

    def _make_crew(
        self, plan: Plan, task: Callable[[int, range], WorkerTask], *, context: str | None, entropy: Any, **kwargs: Any
    ) -> Crew:
        return InPlace(task(0, range(plan.num_envs)))


class InPlace(Crew):
    """One worker, run at once whenever it is asked for something."""

    def __init__(self, task: WorkerTask) -> None:
        self.shares = (task.env_ids,)
        self.dead = set()
        self._messages: list[Any] = []
        self._worker = Worker(task, self._messages.append)

    def start(self) -> EnvFace:
        self._worker.build()
        for message in self.poll(0):
            if isinstance(message, Ready):
                return message.face
            assert isinstance(message, Failed), message
            self.close()
            raise message.error()
        raise AssertionError("a worker's build always answers")

    def attach(self, shape: SlabShape) -> Slab:
        slab = Slab.private(shape)
        self._worker.attach(slab)
        return slab

    def step(self, env_ids: Sequence[int], laps: Sequence[int]) -> None:
        with self._all_answer(env_ids):
            self._worker.step(env_ids, laps)

    def step_all(self, lap: int) -> None:
        env_ids = self.shares[0]
        self.step(env_ids, [lap] * len(env_ids))

    def seal(self, request: Reset | Call) -> Reset | Call:
        return request

    def send(self, worker: int, sealed: Reset | Call) -> None:
        if isinstance(sealed, Reset):
            with self._all_answer([order.env_id for order in sealed.orders]):
                self._worker.reset(sealed)
        else:
            self.interruptible = True  # a call changes nothing that has to fit together
            self._worker.call(sealed)
            self.interruptible = False

    @contextlib.contextmanager
    def _all_answer(self, env_ids: Sequence[int]) -> Iterator[None]:
        """Let environments that Ctrl-C kept from answering fail, or recv would wait for them for ever."""
        try:
            yield
        except BaseException as error:
            answered: set[int | None] = set()
            for message in self._messages:
                answered.update(message.env_ids if isinstance(message, Done) else [message.env_id])
            self._messages += [
                Failed.of(env_id, 0, "step, interrupted", error) for env_id in env_ids if env_id not in answered
            ]
            self.interruptible = True
            raise

    def poll(self, timeout: float | None) -> list[Any]:
        messages = self._messages[:]
        self._messages.clear()
        return messages

    def revive(self) -> list[int]:
        return []

    def mend(self) -> list[int]:
        self._messages.clear()
        return []

    def close(self, grace_s: float = CLOSE_S) -> list[Any]:
        self._worker.close()
        return self.poll(0)
