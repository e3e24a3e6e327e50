"""Serial: step all environments in the calling process, one after another. Use it to debug environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from pufferlib.vectorization.core.backend import CLOSE_S, Backend, Sealed
from pufferlib.vectorization.core.messages import Call, EnvSpec, Failed, Ready, Reset
from pufferlib.vectorization.core.plan import Plan
from pufferlib.vectorization.core.slab import Slab, SlabShape, ring_of
from pufferlib.vectorization.driver.call_guard import LEAVE_S, CallGuard, shut
from pufferlib.vectorization.driver.worker_vecenv import WorkerVecEnv
from pufferlib.vectorization.processes.start import start_method
from pufferlib.vectorization.worker.worker import Worker, WorkerTask

__all__ = ["Serial"]


class Serial(WorkerVecEnv):
    """A VecEnv whose environments run in this process, each stepped as soon as its action is sent."""

    backend = "serial"

    def _make_backend(
        self, plan: Plan, task: Callable[[int, range], WorkerTask], *, context: str | None, entropy: Any, **kwargs: Any
    ) -> Backend:
        if context is not None:
            start_method(context)  # unused here, but an invalid name is an error, as in the other backends
        return SerialBackend(task(0, range(plan.num_envs)))


class SerialBackend(Backend):
    """A backend with one worker in this process, which executes each request at once."""

    near = True
    watched = False  # the process cannot kill itself and continue

    def __init__(self, task: WorkerTask) -> None:
        self.shares = (task.env_ids,)
        self.dead = set()
        self.held_envs = {}
        self.call_guard = CallGuard()
        self.spin = 0
        self._messages: list[Any] = []
        self._ring: Any = None
        self._worker = Worker(task, self._emit, refuses_late=True)

    def _emit(self, message: Any) -> bool:
        self._messages.append(message)
        if self._ring is not None:
            self._ring.announce(urgent=True)
        return True

    def start(self) -> EnvSpec:
        if self._worker.task.env_spec is not None:
            return self._worker.task.env_spec
        self._worker.build()
        for message in self.poll(0):
            if isinstance(message, Ready):
                self.held_envs = message.held_envs
                return message.env_spec
            assert isinstance(message, Failed), message
            self.refusal = message
            self.close()
            raise message.error()
        raise AssertionError("a worker's build always answers")

    def attach(self, shape: SlabShape) -> tuple[Slab, Any]:
        slab = Slab.private(shape)
        self._ring = ring_of(slab)
        if self._ring is not None:
            self._ring.hold_infos()
        self._worker.attach(slab, self._ring)
        return slab, self._ring

    def step(self, env_ids: Sequence[int], slots: Sequence[int]) -> None:
        (self._worker if self._worker.step_loop is None else self._worker.step_loop).step(env_ids, slots)

    def play(self, block: int) -> None:
        """Step all environments into a block, on the compiled path."""
        step_loop = self._worker.step_loop
        assert step_loop is not None
        step_loop.step_all(block)

    def seal(self, request: Reset | Call) -> Reset | Call:
        return request

    def send(self, worker: int, sealed: Sealed) -> None:
        if isinstance(sealed, Reset):
            self._worker.reset(sealed)
        else:
            assert isinstance(sealed, Call), sealed
            self.interruptible = True  # a call leaves no state half changed
            self._worker.call(sealed)
            self.interruptible = False

    def pids(self) -> list[int]:
        return [0]

    def poll(self, timeout: float | None) -> list[Any]:
        messages = self._messages[:]
        self._messages.clear()
        return messages

    def restart(self, worker: int) -> None:
        raise AssertionError("this very process does not die and live on")

    def kill(self, worker: int, cause: str) -> None:
        raise AssertionError("nobody watches this very process")

    def close(self, grace_s: float = CLOSE_S) -> list[Any]:
        self.closing = True
        self.left_open = not shut(self.call_guard, max(grace_s, LEAVE_S))
        if self.left_open:
            warnings.warn(
                f"another thread is in a step since {grace_s:.0f} s, so its environments were not closed",
                RuntimeWarning,
                stacklevel=2,
            )
            return []
        self._worker.close()
        return self.poll(0)
