"""Make one library's vectorizer in one arrangement, and play on command.

    python child.py FILE TASK          the file of a library, without .py, and a Task as JSON

Reads commands and writes answers, one line of JSON each. benchmarks/peers.py runs it in the library's virtual
environment.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import traceback
from statistics import median
from time import perf_counter, sleep
from typing import Any

from player import NotHandled, Player, Task
from processes import cpu_s, descendants

WARM_UP_AT_MOST_S = 10.0  # limit for warm-up steps

PACKAGES = (
    *("ale-py", "envpool", "gymnasium", "minigrid", "mpe2", "numpy", "pettingzoo", "pufferlib"),
    *("stable-baselines3", "supersuit", "tianshou", "torch", "torchrl"),
)


def main() -> None:
    file, task = sys.argv[1], Task(**json.loads(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the output of libraries goes to standard error
    try:
        module = importlib.import_module(file)
        player = module.start(task)
        about = {"versions": versions(), **(module.about() if hasattr(module, "about") else {})}
    except NotHandled as error:
        print(json.dumps({"not_handled": str(error)}), file=answers)
        return
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"[:400]}), file=answers)
        return
    print(json.dumps({"ready": about}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        kind = command.pop("kind")
        try:
            answer = {"play": play, "wait": wait, "idle": idle}[kind](player, **command)
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), file=answers)
    player.close()


def play(player: Player, seconds: float, warm_up_s: float, warm_up_steps: int = 0) -> dict[str, Any]:
    """Play as fast as possible, after a warm-up; return the steps, seconds, and CPU seconds of all processes."""
    recv, send, *_ = player
    pids = (os.getpid(), *descendants(os.getpid()))
    for period, least in ((warm_up_s, warm_up_steps), (seconds, 0)):
        steps, cpu_start_s = 0, sum(map(cpu_s, pids))
        start = now = perf_counter()
        deadline = start + period
        while now < deadline or (steps < least and now < start + WARM_UP_AT_MOST_S):
            steps += recv()
            send()
            now = perf_counter()
    return {"steps": steps, "seconds": now - start, "cpu_s": sum(map(cpu_s, pids)) - cpu_start_s}


def wait(player: Player, seconds: float, warm_up_s: float, think_s: float, warm_up_steps: int = 0) -> dict[str, Any]:
    """Play with a learner that computes for think_s between batch and actions; return the times in ``recv``."""
    recv, send, *_ = player
    for period, least in ((warm_up_s, warm_up_steps), (seconds, 0)):
        steps, waits, sends = 0, [], []
        start = now = perf_counter()
        deadline = start + period
        while now < deadline or (steps < least and now < start + WARM_UP_AT_MOST_S):
            before = perf_counter()
            steps += recv()
            received = perf_counter()
            thought = received + think_s
            while (now := perf_counter()) < thought:
                pass
            send()
            waits.append(received - before)
            sends.append(perf_counter() - now)
    waits.sort()
    return {
        "steps": steps,
        "seconds": now - start,
        "wait_us": 1e6 * median(waits),
        "wait_p99_us": 1e6 * waits[int(0.99 * len(waits))],
        "send_us": 1e6 * median(sends),
    }


def idle(player: Player, seconds: float, warm_up_s: float, warm_up_steps: int = 0) -> dict[str, Any]:
    """Play, pause for some seconds while holding a batch, and continue.

    Returns the shares of a CPU that this process and the others used during the pause; the time from ``send`` to the
    return of ``recv``, as the median of the batches before the pause (usual) and for the first one after it (first);
    and the difference, divided by the number of other processes, which all had gone to sleep (late).
    """
    recv, send, *_ = player
    usual = []
    steps = recv()
    now = perf_counter()
    deadline, last = now + max(warm_up_s, 0.2), now + WARM_UP_AT_MOST_S
    while (start := now) < deadline or (steps < warm_up_steps and now < last):
        send()
        steps += recv()
        now = perf_counter()
        usual.append(now - start)
    pids = descendants(os.getpid())
    before = [cpu_s(pid) for pid in (os.getpid(), *pids)]
    sleep(seconds)
    used = [now - then for now, then in zip([cpu_s(pid) for pid in (os.getpid(), *pids)], before, strict=True)]
    start = perf_counter()
    send()
    recv()
    first = perf_counter() - start
    send()
    return {
        "parent_cpu": used[0] / seconds,
        "workers_cpu": sum(used[1:]) / seconds,
        "first_us": 1e6 * first,
        "usual_us": 1e6 * median(usual),
        "late_us": 1e6 * (first - median(usual)) / max(1, len(pids)),
        "num_processes": len(pids),
    }


def versions() -> dict[str, str]:
    """Return the versions of the installed packages of PACKAGES."""
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


if __name__ == "__main__":
    main()
