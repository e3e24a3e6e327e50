"""examples/thread_backend.py, a backend that docs/design.md shows, keeps the laws of all backends.

The exceptions are those of a worker that dies or hangs: a thread can do neither alone.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import test_contract
import test_failures
import test_restarts
import test_vectorization
import test_ways_out
from mock_envs import HashEnv

import pufferlib
from examples import thread_backend
from pufferlib import construct, vectorization
from pufferlib.vectorization.core.backend import Backend
from pufferlib.vectorization.worker.worker import Worker

pytestmark = pytest.mark.beside


@pytest.fixture(autouse=True)
def known_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(construct.KINDS, "threads", "Threads")
    monkeypatch.setattr(vectorization, "Threads", thread_backend.Threads, raising=False)


def laws_of_every_backend() -> Iterator[tuple[Callable[..., None], dict[str, Any]]]:
    """Yield the tests of test_contract.py that every backend passes, each with its other parameters."""
    for name, law in vars(test_contract).items():
        marks = [mark.args for mark in getattr(law, "pytestmark", ()) if mark.name == "parametrize"]
        if name.startswith("test_") and ("backend", test_contract.BACKENDS) in marks:
            others = {names: values for names, values in marks if names != "backend"}
            for values in itertools.product(*others.values()):
                yield law, dict(zip(others, values, strict=True))


MORE: list[tuple[Callable[..., None], dict[str, Any]]] = [
    (test_vectorization.test_a_batch_is_valid_until_the_second_recv_after_it, {}),
    (
        test_failures.test_an_exception_names_environment_worker_and_traceback,
        {"action": 994, "says": "Unpicklable: has a lock inside"},
    ),
    (test_failures.test_an_exception_in_init_is_raised_by_make, {}),
    (test_restarts.test_only_an_environment_that_raises_is_restarted, {"batch_size": 6, "mode": "next_step"}),
    (test_restarts.test_only_an_environment_that_raises_is_restarted, {"batch_size": 4, "mode": "same_step"}),
    (test_ways_out.test_autoreset_modes_are_gymnasiums_too, {"word": "same_step"}),
    (test_ways_out.test_errors_about_sizes_say_where_make_takes_them, {}),
    (test_ways_out.test_what_the_repr_shows_can_be_read, {}),
]
LAWS = [*laws_of_every_backend(), *MORE]


@pytest.mark.parametrize(("law", "more"), LAWS, ids=[f"{law.__name__[5:]}-{[*more.values()]}" for law, more in LAWS])
def test_laws(law: Callable[..., None], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_restarts, "NUM_WORKERS", 2)
    law(backend="threads", **more)


def test_most_of_the_contract_is_among_the_laws() -> None:
    assert len([*laws_of_every_backend()]) >= 12


@pytest.mark.parametrize("batch_size", [2, 5])
def test_trajectories_are_those_of_serial(batch_size: int) -> None:
    counts = {"num_envs": 5, "num_workers": 2, "batch_size": batch_size}
    test_vectorization.assert_identical(("threads",), "nested", counts, seed=3, mode="next_step", delay_s=0.001)


def test_a_thread_cannot_be_killed_and_that_is_said() -> None:
    is_late = threading.Event()

    class Slow(HashEnv):
        def step(self, action: Any) -> Any:
            assert is_late.wait(60)
            return super().step(action)

    with pufferlib.make(Slow, backend="threads", num_envs=2, num_workers=2, step_timeout=0.2) as vec:
        vec.reset()
        vec.send(np.zeros(2, np.int64))
        with pytest.raises(pufferlib.PlanError, match=r"took longer than step_timeout=0.2 s, and a thread cannot be"):
            vec.recv()
        is_late.set()
        batch = None
        while batch is None:
            with contextlib.suppress(pufferlib.PlanError):  # at each look, as long as it is late
                batch = vec.recv()
        assert batch.observations.shape[0] == 2  # the late rows are not lost


def test_the_interface_has_five_methods() -> None:
    assert Backend.__abstractmethods__ == {"start", "submit", "poll", "kill", "close"}


def test_a_worker_that_ends_by_a_fault_of_its_own_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with pufferlib.make(HashEnv, backend="threads", num_envs=4, num_workers=2) as vec:
        vec.reset(seed=1)
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "execute", lambda self, request: 1 / 0)
            vec.send(np.zeros(4, np.int64))
            with pytest.raises(pufferlib.WorkerError, match=r"worker \d, with .* ended with ZeroDivisionError"):
                while True:
                    vec.recv()
                    vec.send(np.zeros(4, np.int64))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "dropped by reset", RuntimeWarning)  # the other worker's end
            vec.reset(seed=1)
        expected = pufferlib.make(HashEnv, num_envs=4)
        assert vec.step(np.zeros(4, np.int64))[0].shape == expected.reset()[0].shape
        expected.close()


def test_the_example_prints_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    thread_backend.main()
    out = capsys.readouterr().out
    assert out.startswith("Threads(num_envs=4, num_workers=2, batch_size=2, agents_per_env=1): ")
    assert out.endswith(" steps/s\n")


def test_kinds_are_called_like_classes() -> None:
    with vectorization.Serial(HashEnv, num_envs=2) as vec:
        assert isinstance(vec, vectorization.Serial) and not isinstance(vec, vectorization.Pool)
    assert not isinstance(3, vectorization.Serial)
    assert "worker_threads" in (vectorization.Multiprocessing.__doc__ or "")
    assert repr(vectorization.Pool) == "Pool" and repr(vec).startswith("Serial(")
    with pytest.raises(TypeError, match="^Pool is no class and cannot be subclassed"):

        class Mine(vectorization.Pool):  # type: ignore[valid-type, misc]
            pass

    with pytest.raises(TypeError, match=r"^Pool\(\) has no argument num_env; did you mean num_envs\?"):
        vectorization.Pool(HashEnv, num_env=2)  # type: ignore[call-arg]
