"""The short form of the chaos suite, and proof that its checker sees a single wrong row.

The long form is ``make chaos``. Each path is played in a process of its own, which ends by itself if anything hangs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pufferlib import _native

from . import learner
from .arrangements import Arrangement
from .checker import Violation

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[3]
EVERY_PHASE = {"asleep", "reset", "stepping", "packing"}
PATHS = ("compiled", "portable") if _native.available else ("portable",)
LIMIT_S = 120.0  # a hang ends here, with the stack of the learner


def run(*arguments: Any, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.laws.chaos.run", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)


# The counts that the two paths have to reach together in the long form: half each.
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("path", "part"),
    [
        (PATHS[0], 0.2),
        *(pytest.param(path, 1.0, marks=pytest.mark.long) for path in PATHS),
    ],
)
def test_every_row_is_the_one_that_was_due(path: str, part: float, tmp_path: Path) -> None:
    done = run("--short", "--part", part, "--path", path, "--limit", LIMIT_S, "--out", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    totals = json.loads((tmp_path / "report.json").read_text())["totals"]
    phases = set(totals["deaths by phase"])
    assert phases >= (EVERY_PHASE | {"between claim and commit"} if path == "compiled" else EVERY_PHASE), totals
    assert totals["deaths"] >= part * 25 and totals["transitions"] >= part * 250_000, totals
    assert 0 < totals["crash rows"] <= totals["most crash rows"], totals
    assert {"SIGKILL", "SIGBUS", "SIGABRT", "exit 3", "timeout"} <= set(totals["deaths by cause"]), totals
    assert totals["errors"] > 0 and totals["stops sent"] > 0 and totals["signals to the learner"] > 0, totals


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_over_ray_too(tmp_path: Path) -> None:
    """Whether a process dies, or the actor that it belongs to."""
    path = "compiled" if _native.available else "portable"
    done = run("--only", "ray, processes", "--part", 0.03, "--path", path, "--out", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    totals = json.loads((tmp_path / "report.json").read_text())["totals"]
    assert {"an actor", "a process of an actor"} == set(totals["deaths by phase"]), totals
    assert totals["transitions"] >= 900 and 0 < totals["crash rows"] <= totals["most crash rows"], totals


# ------------------------------------------------------------------------------------------- one wrong row


class Tampering:
    """A VecEnv of which one batch, once environments are in mid-episode, is not what the workers have written."""

    def __init__(self, vec: Any, tamper: Callable[[Any, Any, Any], Any]) -> None:
        self._vec, self._tamper, self._countdown = vec, tamper, 100
        self._last: Any = None  # copies of the rows of the batch before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vec, name)

    def recv(self, timeout: float) -> Any:
        batch = self._vec.recv(timeout)
        self._countdown -= 1
        if self._countdown < 0 and batch.masks.all() and not batch.infos and self._tamper is not None:
            tamper, self._tamper = self._tamper, None  # type: ignore[assignment]
            batch = tamper(self._vec, batch, self._last) or batch
        self._last = tuple(column.copy() for column in rows_of(batch))
        return batch


def rows_of(batch: Any) -> tuple[Any, ...]:
    return (*batch[:4], batch.masks)


def swap(vec: Any, batch: Any, last: Any) -> None:
    for column in rows_of(batch):
        column[[0, 1]] = column[[1, 0]]


def swap_words(vec: Any, batch: Any, last: Any) -> None:
    batch.observations[[0, 1], 4:] = batch.observations[[1, 0], 4:]


def double(vec: Any, batch: Any, last: Any) -> None:
    for column in rows_of(batch):
        column[1] = column[0]


def deliver_again(vec: Any, batch: Any, last: Any) -> None:
    for column, old in zip(rows_of(batch), last, strict=True):
        column[0] = old[0]


def drop(vec: Any, batch: Any, last: Any) -> Any:
    vec.send(np.zeros(len(batch.masks), np.int64))
    return vec.recv(60)


def forget_a_flag(vec: Any, batch: Any, last: Any) -> None:
    batch.masks[0] = False


def crash_for_no_reason(vec: Any, batch: Any, last: Any) -> Any:
    for column in rows_of(batch):
        column[0] = 0
    batch.truncations[0] = True
    cause = "worker 0, with environments 0 to 3, was killed by signal 9 (SIGKILL)"
    return batch._replace(infos=batch.infos + [{"env_id": int(batch.env_ids[0]), "restarted": cause}])


WRONG = [(swap, "misrouted"), (swap_words, "torn"), (double, "misrouted"), (deliver_again, "doubled"), (drop, "lost"),
         (forget_a_flag, "wrong"), (crash_for_no_reason, "crash")]  # fmt: skip
QUIET = Arrangement("single", "multiprocessing", 8, 2, 8, transitions=200_000, deaths=0, faults=0, mean_s=60.0)


@pytest.mark.parametrize("available", [True, False] if _native.available else [False])
@pytest.mark.parametrize(("tamper", "kind"), WRONG, ids=lambda change: getattr(change, "__name__", change))
def test_one_wrong_row_is_seen(
    tamper: Callable[[Any, Any, Any], Any], kind: str, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "available", available)
    with pytest.raises(Violation) as caught:
        learner.play(QUIET, seed=3, wrap=lambda vec: Tampering(vec, tamper))
    assert caught.value.kind == kind, caught.value


def test_a_ring_that_is_right_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seen above is what was tampered with, and nothing else."""
    seen = Counter[str]()

    def count(vec: Any, batch: Any, last: Any) -> None:
        seen["tampered"] += 1

    result = learner.play(QUIET._replace(transitions=20_000), seed=3, wrap=lambda vec: Tampering(vec, count))
    assert seen["tampered"] == 1 and result["transitions"] >= 20_000


# Faults put into the compiled loop, of which the environment says which one occurs, once: text, and what stands in its
# place; where it is noticed, and how.
BROKEN = {
    "        self.columns.write_ids(slot, env_id)\n": (
        "        self.columns.write_ids(slot, env_id ^ 1 if FAULT == 1 and 3000 < self.num_done <= 3002 else env_id)\n"
    ),
    "            memcpy(observations.data + slot[0] * observations.nbytes, puf_data(observation), "
    "observations.nbytes)\n": (
        "            if not (FAULT == 2 and self.num_done == 3001):\n"
        "                memcpy(observations.data + slot[0] * observations.nbytes, puf_data(observation), "
        "observations.nbytes)\n"
    ),
    "        result = stepper.act()\n": (
        "        if FAULT == 3 and self.num_done == 3001:\n            stepper.act()\n        result = stepper.act()\n"
    ),
    'cdef object NDARRAY = numpy.ndarray\n': (
        'cdef object NDARRAY = numpy.ndarray\n'
        'cdef int FAULT = int(__import__("os").environ.get("CHAOS_FAULT", "0"))\n'
    ),
}  # fmt: skip
NOTICED = [
    (1, "synchronous, infos", ("misrouted", "doubled")),
    (1, "pool, infos", ("misrouted", "doubled")),
    (2, "synchronous, infos", ("doubled",)),
    (2, "pool, infos", ("misrouted", "doubled")),
    (3, "synchronous, infos", ("lost",)),
    (3, "pool, infos", ("lost",)),
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not _native.available, reason="there is no compiled path to break")
def test_a_ring_that_swaps_or_doubles_or_drops_one_row_fails(tmp_path: Path) -> None:
    """The short form is test_one_wrong_row_is_seen, which alters rows that have arrived and compiles nothing."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "pufferlib", "tests"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    folder = tmp_path / "pufferlib/_native"
    for path in folder.glob("*.so"):
        path.unlink()
    for module in (_native.pack, _native.infos, _native.ring, _native.agents, _native.fast_path, _native.staging):
        shutil.copy(module.__file__, folder)
        (folder / f"{module.__name__.rpartition('.')[2]}.pyx").unlink()  # only one has to be built
    source = folder / "step_loop.pyx"
    text = source.read_text()
    for old, new in BROKEN.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    source.write_text(text)
    setup = (tmp_path / "setup.py").read_text()
    assert setup.count('"-O2"') == 1
    (tmp_path / "setup.py").write_text(setup.replace('"-O2"', '"-O0"'))  # built sooner, and as wrong
    built = subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tmp_path,
                           capture_output=True, text=True)  # fmt: skip
    assert built.returncode == 0, built.stderr
    result = run("--path", "compiled", "--only", "synchronous, infos", "--part", 0.05, cwd=tmp_path, CHAOS_FAULT="0")
    assert result.returncode == 0, result.stderr
    for fault, arrangement, kinds in NOTICED:
        done = run("--path", "compiled", "--only", arrangement, "--part", 0.3, "--limit", LIMIT_S, cwd=tmp_path,
                   CHAOS_FAULT=str(fault))  # fmt: skip
        assert done.returncode != 0, (fault, arrangement)
        assert any(f"Violation: {kind}:" in done.stderr for kind in kinds), (fault, arrangement, done.stderr)
