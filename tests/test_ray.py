"""backend="ray" keeps the laws of VecEnv: those of the other backends' tests, with actors, and what Ray alone can break."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import test_contract
import test_failures
import test_misuse
import test_restarts
import test_vectorization

from pufferlib import backends
from pufferlib.vectorization import Ray

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.extras,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", include_dashboard=False, num_cpus=4, logging_level="error")
        yield
        ray.shutdown()


def actors() -> set[psutil.Process]:
    """The processes of actors of ours."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == ["ray::Group"]:
                found.add(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """As everywhere; but idle processes of Ray's come and go as it likes."""
    yield
    _, left = psutil.wait_procs(actors(), timeout=10)
    assert not left


def in_processes(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    """Have every actor's environments in processes of its node."""

    class Local(Ray):
        def _make_crew(self, *args: Any, **kwargs: Any) -> Any:
            return super()._make_crew(*args, local_workers=num, **kwargs)

    monkeypatch.setitem(backends.KINDS, "ray", Local)


ARRANGEMENTS = [
    ("nested", 5, 1, 5, "same_step", 0),
    ("population", 5, 2, 5, "next_step", 0),
    ("flat", 5, 2, 2, "next_step", 0),
    ("population", 5, 2, 5, "same_step", 2),
    ("nested", 6, 2, 3, "next_step", 2),
]


@pytest.mark.parametrize(("kind", "num_envs", "num_workers", "batch_size", "mode", "local_workers"), ARRANGEMENTS)
def test_trajectories_are_those_of_serial(
    kind: str,
    num_envs: int,
    num_workers: int,
    batch_size: int,
    mode: str,
    local_workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_processes(monkeypatch, local_workers)
    counts = dict(num_envs=num_envs, num_workers=num_workers, batch_size=batch_size)
    test_vectorization.assert_identical(("ray",), kind, counts, seed=3, mode=mode, delay_s=0.002)


IN_PLACE: list[tuple[Callable[..., None], Any]] = [
    (test_vectorization.test_rows_carry_their_ids, ()),
    (test_vectorization.test_a_batch_is_valid_until_the_second_recv_after_it, ()),
    (test_contract.test_seeds_reach_first_resets_only_and_can_be_listed, ()),
    (test_contract.test_a_synchronous_batch_is_a_view_and_copy_makes_it_last, ()),
    (test_contract.test_next_step_infos_masks_and_episodes, ()),
    (test_contract.test_same_step_infos_hold_the_final_observation, ()),
    (test_contract.test_disabled_envs_wait_for_their_user, ()),
    (test_contract.test_reset_in_flight_executes_and_drops_what_was_sent, ()),
    (test_contract.test_a_few_can_be_reset_while_others_go_on, ()),
    (test_contract.test_control_reaches_chosen_envs, ()),
    (test_contract.test_recv_times_out_and_can_be_repeated, ()),
    (test_failures.test_an_exception_names_environment_worker_and_traceback, (994, "Unpicklable: has a lock inside")),
    (test_failures.test_a_reset_that_failed_still_owes_its_seed, ()),
    (test_failures.test_an_exception_in_init_is_raised_by_make, ()),
    (test_failures.test_an_info_that_cannot_be_sent_is_an_error_of_its_environment_alone, ()),
    (test_restarts.test_an_environment_that_raises_is_made_anew_alone, (6, "next_step")),
    (test_restarts.test_an_environment_that_raises_is_made_anew_alone, (4, "same_step")),
    (test_restarts.test_after_max_restarts_it_raises, ()),
    (test_misuse.test_a_request_that_cannot_be_pickled_changes_nothing, ()),
    (test_misuse.test_what_cannot_be_unpickled_is_a_failure_of_its_environment, ()),
    (test_misuse.test_infos_of_dropped_rows_are_dropped_too, ()),
]
IN_PROCESSES: list[tuple[Callable[..., None], Any]] = [
    (test_contract.test_reset_in_flight_executes_and_drops_what_was_sent, ()),
    (test_contract.test_control_reaches_chosen_envs, ()),
    (test_failures.test_an_exception_names_environment_worker_and_traceback, (991, "ValueError: the emulator caught")),
    (test_failures.test_an_exception_in_init_is_raised_by_make, ()),
    (test_failures.test_an_info_that_cannot_be_sent_is_an_error_of_its_environment_alone, ()),
    (test_failures.test_a_call_of_a_dead_worker_is_refused_rather_than_waited_for, ()),
    (test_restarts.test_an_environment_that_raises_is_made_anew_alone, (6, "same_step")),
    (test_restarts.test_an_environment_that_raises_is_made_anew_alone, (4, "next_step")),
    (test_restarts.test_calls_reach_environments_that_are_being_restarted, ()),
]


def name_of(value: Any) -> str:
    return value.__name__.removeprefix("test_") if callable(value) else "-".join(map(str, value))


@pytest.mark.parametrize(("law", "args"), IN_PLACE, ids=name_of)
def test_laws(law: Callable[..., None], args: Any) -> None:
    law("ray", *args)


@pytest.mark.parametrize(("law", "args"), IN_PROCESSES, ids=name_of)
def test_laws_in_processes(law: Callable[..., None], args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_processes(monkeypatch, 1)
    law("ray", *args)
