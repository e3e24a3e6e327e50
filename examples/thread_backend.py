"""A backend in one file: each worker is a thread of this process, for environments that release the GIL.

docs/design.md, section 9, explains it. Workers announce their rows by messages: the portable path.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.vectorization.core.backend import CLOSE_S, Backend
from pufferlib.vectorization.core.messages import Died, EnvSpec, Message, Request
from pufferlib.vectorization.core.plan import Plan
from pufferlib.vectorization.driver.factory import BackendKind
from pufferlib.vectorization.worker.worker import Worker, WorkerTask

Requests = queue.SimpleQueue[Request | None]  # None ends the worker


class ThreadBackend(Backend):
    """A backend whose workers are threads. A queue carries requests to each; one deque takes all their messages."""

    in_process = True

    def __init__(self, plan: Plan, task: Callable[[int, range], WorkerTask], **_: Any) -> None:
        self.shares = plan.shares
        self._tasks = [task(worker, share) for worker, share in enumerate(plan.shares)]
        self._requests: dict[int, Requests] = {}
        self._messages: deque[Message] = deque()
        self._arrived = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, worker: int, env_spec: EnvSpec | None = None) -> int:
        requests = self._requests[worker] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(self._tasks[worker], env_spec, requests), daemon=True)
        self._threads.append(thread)
        thread.start()
        return 0  # it has no process of its own

    def _run(self, task: WorkerTask, env_spec: EnvSpec | None, requests: Requests) -> None:
        """Execute a worker's requests until None comes: the target of its thread."""
        try:
            worker = Worker(task, self._emit, env_spec)
            worker.build()
            while (request := requests.get()) is not None:
                worker.execute(request)
            worker.close()
        except Exception as error:  # of the worker itself: an environment's is a message already
            self._emit(Died(task.worker, None, task.env_ids, how=f"ended with {error!r}"))

    def _emit(self, message: Message) -> bool:
        self._messages.append(message)
        self._arrived.set()
        return True

    def submit(self, requests: Mapping[int, Request]) -> None:
        for worker, request in requests.items():
            self._requests[worker].put(request)

    def poll(self, timeout: float | None) -> list[Message]:
        if timeout != 0:
            self.interruptible = True  # the wait takes nothing, so an interrupt loses nothing
            self._arrived.wait(timeout)
            self.interruptible = False
        self._arrived.clear()
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def kill(self, worker: int, cause: str) -> None:
        raise PlanError(f"{cause}, and a thread cannot be killed; use backend='multiprocessing'")

    def close(self, grace_s: float = CLOSE_S) -> list[Message]:
        for requests in self._requests.values():
            requests.put(None)
        for thread in self._threads:
            thread.join(grace_s / len(self._threads))
        return self.poll(0)


Threads = BackendKind("threads", "Threads", ThreadBackend, doc="Workers are threads.", first_finished=True)


def main() -> None:
    with Threads("CartPole-v1", num_envs=4, num_workers=2, batch_size=2, seed=1) as vec:
        vec.async_reset()
        for _ in range(100):
            vec.send(np.zeros(2, np.int64), env_ids=vec.recv().env_ids)
        print(f"{vec}: {vec.stats().steps_per_s:,.0f} steps/s")


if __name__ == "__main__":
    main()
