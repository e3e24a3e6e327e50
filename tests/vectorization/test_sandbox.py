"""What runs in a sandbox may print, hang, crash or leave processes behind, and this process goes on."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import running

from pufferlib.errors import PlatformError
from pufferlib.vectorization.processes import sandbox as module
from pufferlib.vectorization.processes.sandbox import Sandbox, SandboxConnection, await_any

pytestmark = pytest.mark.beside
WAYS = pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])


def until(condition: Callable[[], bool], *sandboxes: Sandbox) -> None:
    """Wait for a condition, and read what the sandboxes send meanwhile."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        await_any(sandboxes, 1.0)


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return state != "" and not state.startswith("Z")


def echo(channel: SandboxConnection, number: int, function: Callable[[], int]) -> None:
    channel.send((number, function()))
    channel.send(channel.recv())


@WAYS
def test_both_ends_exchange_objects(fresh: bool) -> None:
    received: list[Any] = []
    with Sandbox(echo, 1, lambda: 2, fresh=fresh) as sandbox:
        sandbox.channel.send("three")

        def complete() -> bool:
            received.extend(sandbox.receive(object))
            return len(received) == 2

        until(complete, sandbox)
        sandbox.end(60.0)
    assert received == [(1, 2), "three"]
    assert sandbox.exitcode == 0 and sandbox.output == b"" and sandbox.ended
    sandbox.end()


def test_an_object_of_another_type_is_refused() -> None:
    with Sandbox(echo, 1, int) as sandbox:
        with pytest.raises(TypeError, match=r"the process sent \(1, 0\), which is no str"):
            until(lambda: bool(sandbox.receive(str)), sandbox)


def print_and_fail(channel: SandboxConnection, how: str) -> None:
    print("printed to stdout")
    os.write(2, b"written to stderr \xff\n")
    subprocess.run([sys.executable, "-c", "print('printed by a child')"])
    if how == "raise":
        raise KeyError("banana")
    if how == "exit":
        os._exit(3)
    faulthandler.disable()  # pytest's
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


@WAYS
@pytest.mark.parametrize(("how", "exitcode"), [("raise", 1), ("exit", 3), ("crash", -signal.SIGSEGV)])
def test_the_output_and_the_end_are_known(how: str, exitcode: int, fresh: bool) -> None:
    through: list[bytes] = []
    with Sandbox(print_and_fail, how, fresh=fresh, through=through.append) as sandbox:
        until(lambda: sandbox.receive(object) == [] and sandbox.ended, sandbox)
    assert sandbox.exitcode == exitcode
    assert b"".join(through) == sandbox.output
    lines = sandbox.output.decode(errors="replace").splitlines()
    assert lines[:3] == ["printed to stdout", "written to stderr \ufffd", "printed by a child"]
    assert sandbox.lines(1) == ("KeyError: 'banana'" if how == "raise" else lines[2])
    assert how == "raise" or len(lines) == 3


def print_much(channel: SandboxConnection) -> None:
    while True:
        print("x" * 1000)


def test_of_much_output_the_end_is_kept_and_the_process_waits_until_it_is_read() -> None:
    count = 0

    def add(data: bytes) -> None:
        nonlocal count
        count += len(data)

    with Sandbox(print_much, through=add) as sandbox:
        until(lambda: sandbox.receive(object) == [] and count > 3 * module.KEPT_NBYTES, sandbox)
        assert len(sandbox.output) == module.KEPT_NBYTES
        assert count < 3 * module.KEPT_NBYTES + 2 * module.MOST_CHUNKS * module.CHUNK_NBYTES
        assert sandbox.lines(2).startswith("x" * 1000 + "\n")


def close_all(channel: SandboxConnection) -> None:
    sys.stdout.close()
    sys.stderr.close()
    os.closerange(1, 3)
    channel.close()
    time.sleep(1000)


def test_a_process_that_closes_its_ends_ends_no_wait() -> None:
    with Sandbox(close_all) as sandbox:
        until(lambda: sandbox.receive(object) == [] and sandbox.channel.closed and sandbox._output.closed, sandbox)
        start_s = time.monotonic()
        await_any([sandbox], 0.3)
        assert sandbox.ended is False and time.monotonic() - start_s > 0.25


def leave_children(channel: SandboxConnection) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    child = subprocess.Popen(command)
    forked = os.fork()
    if not forked:
        time.sleep(1000)
    channel.send([os.getpid(), child.pid, forked])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@WAYS
def test_the_processes_that_it_has_started_end_with_it(fresh: bool) -> None:
    received: list[list[int]] = []
    with Sandbox(leave_children, fresh=fresh) as sandbox:

        def complete() -> bool:
            received.extend(sandbox.receive(list))
            return sandbox.ended and len(received) == 1

        until(complete, sandbox)
        assert sandbox.pid == received[0][0] and alive(received[0][1])
    until(lambda: not any(map(alive, received[0])))


PARENT = """
import sys, time
sys.path[:0] = {path!r}
from test_sandbox import leave_and_wait
from pufferlib.vectorization.processes.sandbox import Sandbox, await_any
sandboxes = [Sandbox(leave_and_wait, fresh={fresh}) for _ in range(2)]
pids = []
while len(pids) < 2:
    await_any(sandboxes, 1.0)
    for sandbox in sandboxes:
        pids += sandbox.receive(list)
print(*pids[0], *pids[1], flush=True)
time.sleep(1000)
"""


def leave_and_wait(channel: SandboxConnection) -> None:
    leave_children(channel)
    time.sleep(1000)


@WAYS
def test_all_end_with_this_process_however_it_ends(fresh: bool) -> None:
    path = [os.path.dirname(__file__), *sys.path]
    command = [sys.executable, "-c", PARENT.format(path=path, fresh=fresh)]
    with running(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 6 and all(map(alive, pids))
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: not any(map(alive, pids)))


def report_environment(channel: SandboxConnection) -> None:
    channel.send((os.environ.get("PYTHONHASHSEED"), os.environ.get("HOME"), sys.flags.hash_randomization))


def test_a_new_python_has_the_environment_variables_that_are_given() -> None:
    received: list[Any] = []
    with Sandbox(report_environment, fresh=True, environ={"PYTHONHASHSEED": "0"}) as sandbox:

        def complete() -> bool:
            received.extend(sandbox.receive(tuple))
            return len(received) == 1

        until(complete, sandbox)
    assert received == [("0", os.environ.get("HOME"), 0)]


@WAYS
def test_without_a_process_nothing_is_left(fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    monkeypatch.setattr(os, "fork", refused)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(
        PlatformError, match=r"no process can be started \(Resource temporarily unavailable\); end some"
    ):
        Sandbox(echo, fresh=fresh)
    assert not before or len(os.listdir("/proc/self/fd")) == before


def fail_with_blank_lines(channel: SandboxConnection) -> None:
    print("reading the licence")
    sys.exit("the licence server refused the key\n\n")


def test_the_last_lines_are_those_with_text() -> None:
    with Sandbox(fail_with_blank_lines) as sandbox:
        until(lambda: sandbox.receive(object) == [] and sandbox.ended, sandbox)
    assert sandbox.lines(1) == "the licence server refused the key"


def test_a_new_python_that_starts_slowly_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent to it is more than a socket holds."""
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    start_s = time.monotonic()
    with Sandbox(len, bytes(8_000_000), fresh=True):
        assert time.monotonic() - start_s < 50


def test_an_error_of_through_leaves_nothing_open() -> None:
    def through(data: bytes) -> None:
        raise BrokenPipeError("nobody reads")

    sandbox = Sandbox(fail_with_blank_lines, through=through)
    while not sandbox.ended:
        time.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        sandbox.end()
    assert sandbox.closed and sandbox.channel.closed
    sandbox.end()


STREAMLESS = """
import os, sys
sys.path[:0] = {path!r}
import numpy as np, pufferlib, test_sandbox
from mock_envs import HashEnv
files = [open(f"{folder}/{{number}}", "w") for number in range({num_files})]  # whose descriptors are those of streams
results = os.open("{folder}/results", os.O_WRONLY | os.O_CREAT)
class Loud(HashEnv):
    def step(self, action):
        print("a step", flush=True)
        if {num_files} == 0:
            os.write(1, b"of C\\n")  # the null device takes it
        return super().step(action)
def play():
    with pufferlib.make(Loud, backend="multiprocessing", num_envs=2, num_workers=1, context={context!r}) as vec:
        vec.reset()
        vec.step(np.zeros(2, int))
def echo():
    with pufferlib.vectorization.processes.sandbox.Sandbox(test_sandbox.echo, 1, int, fresh={fresh}) as sandbox:
        sandbox.channel.send("there and back")
        sandbox.end(20.0)
        os.write(results, repr((sandbox.receive(object), sandbox.exitcode)).encode())
for call in (echo, play) if {fresh} else (play, echo):  # each has to do without the other's streams
    call()
for file in files:
    file.close()
"""


@WAYS
@pytest.mark.parametrize("num_files", [0, 3])
def test_closed_standard_streams_are_no_ones_pipes(fresh: bool, num_files: int, tmp_path: Path) -> None:
    """Their numbers are those of the files that a program opens first, or else of pipes and sockets."""
    path = [os.path.dirname(__file__), *sys.path]
    context = "spawn" if fresh else "fork"
    program = STREAMLESS.format(path=path, folder=tmp_path, num_files=num_files, context=context, fresh=fresh)
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program], check=True, timeout=60)
    assert (tmp_path / "results").read_text() == "([(1, 0), 'there and back'], 0)"
    assert not any((tmp_path / str(number)).read_text() for number in range(num_files))
