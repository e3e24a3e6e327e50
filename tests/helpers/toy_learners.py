"""Learners that learn nothing, each of which ends in its own way: tests put this file into a user's project.

`train` and `train_here` choose by the environment's name: for processes of their own, and for pytest's.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from ocean.suite.tasks import Cannot, Task


def train(task: Task) -> Any:
    print("learning", task.env, flush=True)
    return {
        "bandit": best_arm,
        "identity": hang,
        "memory": leave,
        "mixed": cannot,
        "multiagent": out_of_range,
        "password": badly,
        "squared": crash,
        "truncation": raises,
        "stochastic": number,
    }[task.env.removeprefix("ocean/")](task)


def number_of_threads(task: Task) -> Any:
    import torch

    raise RuntimeError(f"{torch.get_num_threads()} threads")


def train_here(task: Task) -> Any:
    print("learning", task.env, "on", task.backend, "from", task.seed)
    return {
        "bandit": best_arm,
        "continuous": raises,
        "identity": left,
        "memory": number,
        "mixed": cannot,
        "password": badly,
        "truncation": play_raises,
    }[task.env.removeprefix("ocean/")](task)


def best_arm(task: Task) -> Any:
    with task.make(num_envs=1, batch_size=1) as vec:
        solutions: list[Any] = vec.call("solve")
    (best,) = solutions
    return lambda batch: np.full(len(batch.masks), best[0])


def badly(task: Task) -> Any:
    return lambda batch: np.zeros(len(batch.masks), np.int64)


def out_of_range(task: Task) -> Any:
    return lambda batch: np.arange(len(batch.masks))


def left(task: Task) -> Any:
    return lambda batch: "left"


def number(task: Task) -> Any:
    return 3


def raises(task: Task) -> Any:
    swords: dict[str, Any] = {}
    return swords["of damocles"]


def play_raises(task: Task) -> Any:
    return lambda batch: batch.spells


def cannot(task: Task) -> Any:
    raise Cannot("toys have no mixed actions")


def leave(task: Task) -> Any:
    for line in range(100):
        print("line", line)
    sys.stdout.flush()
    os._exit(3)


def crash(task: Task) -> Any:
    print("this is the end", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(1000)


def hang(task: Task) -> Any:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    pathlib.Path("hanging.new").write_text(f"{os.getpid()} {child.pid}")
    os.replace("hanging.new", "hanging")
    time.sleep(1000)


def says_much(task: Task) -> Any:
    raise ValueError("x" * 300_000)


def leaves_thread(task: Task) -> Any:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return best_arm(task)


def leaves_process(task: Task) -> Any:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    pathlib.Path("hanging").write_text(str(child.pid))
    return best_arm(task)


def leaves_fork(task: Task) -> Any:
    child = os.fork()
    if not child:
        time.sleep(1000)
    pathlib.Path("hanging").write_text(str(child))
    print("forked", child > 0)  # not flushed
    os._exit(3)


def nameless_signal(task: Task) -> Any:
    signal.signal(signal.SIGRTMIN + 3, signal.SIG_DFL)  # pygame catches real-time signals where it has shown a window
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGRTMIN + 3])
    os.kill(os.getpid(), signal.SIGRTMIN + 3)
    time.sleep(1000)


def prints_much(task: Task) -> Any:
    for _ in range(1000):
        print("y" * 999)
    print("the end")
    os._exit(3)


def no_task() -> None:
    pass


not_callable = 3
