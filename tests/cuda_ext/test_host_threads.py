"""The host's threads: they wait for each other where they must, end with what started them, and stand a fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kernel_programs
import pytest
from kernel_programs import REPORTED

from cuda_ext import sources

pytestmark = pytest.mark.beside

FOLDER = Path(sources.__file__).parent
HEADER = "host_threads.h"

PROGRAM = """
#include <unistd.h>
#include "host_threads.h"
int main() {
    for (int num_threads = 1; num_threads < 5; ++num_threads) {
        std::vector<int> seen(1000);
        host::ThreadPool pool(num_threads, 0);
        for (int launch = 0; launch < 300; ++launch) {
            const int num = 1 + launch * 7 % 1000, grain = 1 + launch % 9;
            if (launch % 100 == 99) usleep(1000);  // until all are asleep
            pool.run(num, grain, [&](int first, int last) {
                for (int k = first; k < last; ++k) seen[k] += 1;
            });
            for (int k = 0; k < 1000; ++k) {
                if (seen[k] != (k < num)) return 1;
                seen[k] = 0;
            }
        }
    }
    return 0;
}
"""
RACES = {  # what orders the memory of two threads
    "done": ("num_done.fetch_add(1, std::memory_order_release)", "num_done.fetch_add(1, std::memory_order_relaxed)"),
    "left": ("num_left.store(team.num_parts)", "num_left.store(team.num_parts, std::memory_order_relaxed)"),
}


def watched(folder: Path, fault: tuple[str, str] = ("", "")) -> tuple[int, str]:
    """Run the program with ThreadSanitizer, with a fault if there is one."""
    text = (FOLDER / HEADER).read_text()
    assert fault[0] in text
    (folder / HEADER).write_text(text.replace(*fault) if fault[0] else text)
    return kernel_programs.run(PROGRAM, folder, folder, "thread")


def test_threads_of_a_pool_do_not_race(tmp_path: Path) -> None:
    assert watched(tmp_path) == (0, "")


@pytest.mark.parametrize("race", ["done", pytest.param("left", marks=pytest.mark.long)])
def test_a_race_would_be_noticed(race: str, tmp_path: Path) -> None:
    for _ in range(10):  # on a busy machine threads seldom meet
        code, said = watched(tmp_path, RACES[race])
        if code:
            break
    assert (code, "WARNING: ThreadSanitizer: data race" in said) == (REPORTED, True), said


FORKING = """
import os, time
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # whose own end with a fork
import numpy as np
import pufferlib
from cuda_ext import functions

def threads():
    return len(os.listdir("/proc/self/task"))

def come_to(number):
    deadline = time.monotonic() + 60
    while threads() != number and time.monotonic() < deadline:  # those that were waited for are listed a little longer
        time.sleep(0.01)
    assert threads() == number, (threads(), number)

def play(vec):
    for _ in range(20):
        rows = vec.step(np.arange(vec.num_envs) % 2)
    return b"".join(np.asarray(column).tobytes() for column in rows[:4])

functions.THREAD_NS = 0
made = dict(backend="cuda", device="host", num_envs=2000, seed=1)
with pufferlib.make("classic/cartpole", backend_kwargs={"threads": 1}, **made) as vec:
    vec.reset()
    play(vec)
    expected = play(vec)
alone = threads()
vec = pufferlib.make("classic/cartpole", backend_kwargs={"threads": 4}, **made)
vec.reset()
play(vec)
come_to(alone + 3)
child = os.fork()
found = play(vec)  # of the child and of the parent
assert found == expected
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    come_to(alone + 3)
else:
    come_to(4)
vec.close()
come_to(alone if child else 1)
print("done", flush=True)
if not child:
    os._exit(0)
left = pufferlib.make("classic/cartpole", backend_kwargs={"threads": 4}, **made)
left.reset()  # and is closed by nobody
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_a_fork_has_threads_of_its_own_and_none_are_left() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\ndone\n"), done.stderr
