"""Any calls in any order, right and wrong, on any backend, with failures: each is answered as the model says.

``api_model.py`` has the model, ``api_arguments.py`` what is drawn from. Hypothesis looks for orders for which it does
not hold; seeded walks show that what is worth looking at is reached. ``make fuzz`` looks longer.
"""

from __future__ import annotations

import collections
import random
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from api_arguments import DOMAINS
from api_model import Play
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from pufferlib import _native
from pufferlib.vectorization.core.arguments import options_per_env
from pufferlib.vectorization.driver.recovery import Recovery

pytestmark = [pytest.mark.slow, pytest.mark.beside]
SCHEDULER = "ring_scheduler" if _native.available else "portable_scheduler"
SHARE = 0.35  # of the examples that a profile has others make, as each of these starts processes
MOST_WALKS, NUM_CALLS = 150, 70
RICH = (6, 56, 18, 54, 3, 31, 29, 11, 16, 25, 33)  # walks that reach everything between them, unless the times forbid
OFTEN = ("send", "recv", "recv", "step", "step_on", "async_reset", "reset", "call", "kill")  # than what is refused


class Calls(RuleBasedStateMachine):
    """A play whose calls Hypothesis chooses. Which it may choose never depends on what came of others: on timing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.play = Play(Path(self.folder.name))

    @initialize(**{name: st.sampled_from(values) for name, values in DOMAINS["make"].items()})
    def begin(self, **arguments: Any) -> None:
        self.play.make(**arguments)

    def teardown(self) -> None:
        try:
            self.play.finish()
        finally:
            self.folder.cleanup()
            for call, outcome, _ in self.play.seen:
                hypothesis.event(f"{call}: {outcome}")


def rule_of(name: str) -> Any:
    """Return the rule that makes one kind of call."""

    def call(self: Calls, **arguments: Any) -> None:
        getattr(self.play, name)(**arguments)

    call.__name__ = name
    return rule(**{argument: st.sampled_from(values) for argument, values in DOMAINS[name].items()})(call)


for name in DOMAINS:
    setattr(Calls, name, rule_of(name))


@pytest.mark.parametrize("part", [0.25, pytest.param(1.0, marks=pytest.mark.long)])
def test_any_calls_in_any_order(part: float) -> None:
    settings = hypothesis.settings()
    run_state_machine_as_test(
        Calls,
        settings=hypothesis.settings(
            settings,
            max_examples=round(part * SHARE * settings.max_examples),
            stateful_step_count=50,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


def walk(seed: int, folder: Path, *backends: str) -> collections.Counter[tuple[str, str, str]]:
    """Make random calls, on these backends or on any; return how often which has had which outcome on which."""
    chance = random.Random(seed)
    plans = [plan for plan in DOMAINS["make"]["plan"] if not backends or plan[0] in backends]
    play = Play(folder)
    said = []
    try:
        for index in range(NUM_CALLS):
            name = chance.choice([*DOMAINS, *OFTEN, *OFTEN]) if index else "make"
            if name == "close" and index < NUM_CALLS / 2:
                continue
            arguments: dict[str, Any] = {argument: chance.choice(values) for argument, values in DOMAINS[name].items()}
            if name == "make":
                arguments["plan"] = chance.choice(plans)
            said.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})")
            getattr(play, name)(**arguments)
    except BaseException:
        print(f"walk {seed}:", *said, sep="\n  ")
        raise
    finally:
        play.finish()
    return play.seen


# On every backend; where there are processes; and on one of them.
REACHED: dict[str, list[str]] = {
    "make": ["ok"],
    "make_wrong": ["refused"],
    "recv": ["batch", "CallError", "WorkerError", "crash row", "closed"],
    "send": ["ok", "refused by CallError", "closed"],
    "send_wrong": ["refused by ActionError"],
    "send_wrong_ids": ["refused by CallError"],
    "step": ["batch", "WorkerError", "refused by CallError", "closed"],
    "async_reset": ["all", "some", "all failing", "refused by CallError", "closed"],
    "reset": ["batch", "WorkerError", "refused by CallError", "closed"],
    "reset_wrong": ["refused by PlanError"],
    "reset_wrong_ids": ["refused by CallError"],
    "call": ["call", "get", "set", "render", "stats", "closed"],
    "call_wrong": ["refused by WorkerError", "refused by PlanError", "refused by CallError"],
    "sabotage": ["ok"],
    "close": ["ok"],
}
REACHED_BY_PROCESSES: dict[str, list[str]] = {
    "recv": ["RecvTimeout"],
    "reset_unsendable": ["refused by CallError"],
    "kill": ["killed"],
}
REACHED_ANYWHERE: dict[str, list[str]] = {
    "recv": ["batch filled"],
    "send": ["raise", "exit", "unpicklable", "kill", "slow"],
    "async_reset": ["dropped", "some failing"],
    "call": ["call WorkerError", "call CallError"],
}


def missing(seen: collections.Counter[tuple[str, str, str]]) -> list[tuple[str, ...]]:
    """Return what is to be reached and was not."""
    wanted: list[tuple[str, ...]] = []
    for backend in ("serial", "multiprocessing", "pool"):
        for reached in (REACHED,) if backend == "serial" else (REACHED, REACHED_BY_PROCESSES):
            wanted += [(call, outcome, backend) for call, results in reached.items() for outcome in results]
    wanted += [(call, outcome) for call, results in REACHED_ANYWHERE.items() for outcome in results]
    seen_anywhere = {(call, outcome) for call, outcome, _ in seen}
    return [item for item in wanted if not (seen[item] if len(item) == 3 else item in seen_anywhere)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fewest_walks", [1, pytest.param(20, marks=pytest.mark.long)])
def test_all_that_matters_is_reached(tmp_path: Path, fewest_walks: int) -> None:
    """Each call with each outcome, within so many walks."""
    seen: collections.Counter[tuple[str, str, str]] = collections.Counter()
    for number, seed in enumerate([*RICH, *sorted({*range(MOST_WALKS)} - {*RICH})]):
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen += walk(seed, folder)
        if number >= fewest_walks and not missing(seen):
            break
    print(*sorted(f"{' '.join(what)}: {count}" for what, count in seen.items()), sep="\n")
    assert not missing(seen)


ORDER, LOSE, OPTIONS = Recovery.order, Recovery.lose, options_per_env


def leaves_no_crash(slab: Any, slot: int) -> None:
    for array in slab.rows(slot)[:5]:
        array[...] = 0


def takes_any(env_ids: Any, num_envs: int) -> list[int]:
    return [int(env_id) % num_envs for env_id in np.asarray(env_ids, dtype=np.int64).reshape(-1)] or [0]


def reseeds(self: Any, env_id: int, slot: int, seed: Any = None, options: Any = None) -> Any:
    order = ORDER(self, env_id, slot, seed, options)
    return order._replace(seed=None if order.seed is None else order.seed + 1)


def repeats_seeds(self: Any, env_id: int) -> None:
    LOSE(self, env_id)
    self._first_seeds[env_id] = self.seeds[env_id]


def counts_twice(self: Any, env_id: int) -> None:
    LOSE(self, env_id)
    LOSE(self, env_id)


class AnyState(int):
    """Equals every state, so that no environment counts as in flight."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


# What is put in, in what all backends share, for the model to notice.
FAULTS: dict[str, tuple[str, Any]] = {
    "other seeds are given": ("driver.recovery.Recovery.order", reseeds),
    "a restart repeats a seed": ("driver.recovery.Recovery.lose", repeats_seeds),
    "restarts are counted twice": ("driver.recovery.Recovery.lose", counts_twice),
    "a failed reset loses its seed": ("driver.recovery.Recovery.retry_seed", lambda self, env_id, seed: None),
    "options go to others": ("driver.worker_vecenv.options_per_env", lambda options, num: OPTIONS(options, num)[::-1]),
    "infos are lost": ("driver.pending_infos.PendingInfos.take", lambda self, env_ids: []),
    "wrong ids are taken": ("driver.worker_vecenv.checked_ids", takes_any),
    "actions of those in flight are dropped": (
        "driver.worker_vecenv.WAITING",
        AnyState(),
    ),
    "crash rows do not end their episodes": ("driver.SCHEDULER.crash_rows", leaves_no_crash),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = FAULTS[fault]
    monkeypatch.setattr(f"pufferlib.vectorization.{name.replace('SCHEDULER', SCHEDULER)}", wrong)
    for seed in range(200):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            walk(seed, folder, "serial")
        except Exception:
            return
        except pytest.fail.Exception:  # no error where there should be one
            return
    pytest.fail("nothing was noticed")
