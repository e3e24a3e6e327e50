"""Serial: all environments in the calling process, stepped one after another. Use it to debug environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pufferlib.errors import PlanError
from pufferlib.util.annotations import Entropy
from pufferlib.vectorization.core.backend import CLOSE_S, Backend
from pufferlib.vectorization.core.messages import Attach, Call, EnvSpec, Message, Request
from pufferlib.vectorization.core.plan import Plan
from pufferlib.vectorization.driver.factory import BackendKind
from pufferlib.vectorization.processes.start import start_method
from pufferlib.vectorization.worker.worker import Worker, WorkerTask

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["Serial", "SerialBackend"]


class SerialBackend(Backend):
    """A backend with one worker in this process, which executes each request at once."""

    reads_mailboxes = True  # ``step_all`` takes their place
    in_process = True
    watched = False  # the worker itself raises once a step has taken too long

    def __init__(self, task: WorkerTask) -> None:
        self.shares = (task.env_ids,)
        self._task = task
        self._messages: list[Message] = []
        self._ring: Ring | None = None
        self._worker: Worker | None = None

    def _emit(self, message: Message) -> bool:
        self._messages.append(message)
        if self._ring is not None:
            self._ring.announce(urgent=True)
        return True

    def start(self, worker: int, env_spec: EnvSpec | None = None) -> int:
        self._worker = Worker(self._task, self._emit, env_spec, refuses_late=True)
        self._worker.build()
        return 0

    def submit(self, requests: Mapping[int, Request]) -> None:
        assert self._worker is not None
        for request in requests.values():
            if isinstance(request, Attach):
                self._ring = request.ring
                if self._ring is not None:
                    self._ring.hold_infos()
            self.interruptible = isinstance(request, Call)  # an interrupted call leaves no state half changed
            self._worker.execute(request)
            self.interruptible = False

    def player(self) -> Callable[[int], None]:
        assert self._worker is not None and self._worker.step_loop is not None
        play: Callable[[int], None] = self._worker.step_loop.step_all
        return play

    def poll(self, timeout: float | None) -> list[Message]:
        messages = self._messages[:]
        self._messages.clear()
        return messages

    def kill(self, worker: int, cause: str) -> None:
        raise PlanError("the serial backend's worker is this process, which cannot be killed")

    def close(self, grace_s: float = CLOSE_S) -> list[Message]:
        if self._worker is not None:
            self._worker.close()
        return self.poll(0)


def make_backend(
    plan: Plan, task: Callable[[int, range], WorkerTask], *, context: str | None, entropy: Entropy
) -> SerialBackend:
    """Return a SerialBackend for a plan's environments."""
    if context is not None:
        start_method(context)  # unused here, but an invalid name is an error, as in the other backends
    return SerialBackend(task(0, range(plan.num_envs)))


Serial = BackendKind(
    "serial",
    "Serial",
    make_backend,
    doc="""A VecEnv whose environments run in this process, each stepped as soon as its action is sent.""",
)
