"""A model of VecEnv's contract, and plays against it: any calls in any order, each answered as the model says.

``Play`` makes one call after another, of random arguments, right and wrong. It knows where each environment is on its
way, and plays each a second time in this process (a shadow), so that it knows which errors may come, and every row.

What it cannot know is when a VecEnv hears of a failure. There it reads the states of the environments, and accepts what
the failures allow; wherever there was none, they must be what the model says, after every call.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from api_arguments import LETHAL, MOST_ENVS, ODD_ACTIONS, SLOW, WRONG_ACTIONS, FuzzEnv
from mock_envs import HashEnv

import pufferlib
from pufferlib.vectorization.core.plan import Seeds
from pufferlib.vectorization.driver import scheduler

__all__ = ["Play"]

PATIENCE_S = 60.0  # what has not come by then hangs
AT_ONCE_S = 30.0  # an error that needs no waiting comes within this, on a busy machine too
NEW, WAITING, COMING, FAILED = "new", "waiting", "coming", "failed"
TRUTH = {
    scheduler.NEW: NEW,
    scheduler.WAITING: WAITING,
    scheduler.FLYING: COMING,
    scheduler.READY: COMING,
    scheduler.FAILED: FAILED,
}


class Command(NamedTuple):
    """What an environment was sent last: an action, or a reset with options.

    life: of which it was sent to. seed: what a reset gets, also one that an action leads to.
    """

    at: int
    what: str  # "step", "reset", "same" (a partial reset repeats its row)
    life: int
    seed: int | None
    action: int = 0
    options: Any = None


class Env:
    """What the model knows of one environment."""

    def __init__(self, due: int) -> None:
        self.state = NEW
        self.due: int | None = due  # the seed that its next reset gets, if none is given
        self.life = 0  # how often it was restarted
        self.shadows: dict[int, HashEnv] = {}  # one a life
        self.begins = True  # the next row is the first of an episode
        self.over = False
        self.command: Command | None = None
        self.row: Any = None  # the last one: observation, reward, terminated, truncated
        self.cause_at = -1.0  # of the last reason to fail, which may not have shown itself yet
        self.at_risk = False
        self.killed = False  # whether its worker was the reason
        self.num_causes = 0
        self.mark: int | None = 0  # an attribute that is set; None if unknown

    def endanger(self, at: float, killed: bool = False) -> None:
        """It, or its worker, is about to fail or has done so."""
        self.cause_at, self.at_risk, self.killed = max(at, self.cause_at), True, self.killed or killed
        self.num_causes += 1


class Play:
    """One VecEnv after another, and what the model knows of it. folder: for files that make environments fail.

    seen: how often which call has had which outcome.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.log: list[str] = []
        self.vec: Any = None
        self.clock = 0
        self.now = self.backend = ""

    # ------------------------------------------------------------------------------------------ what is called

    def make(self, plan: Any, mode: str, on_error: str, most: Any, lend: str, seed: int) -> None:
        """Make a VecEnv, if there is none that is open."""
        self.now = "make"
        if self.vec is not None and not self.vec.closed:
            return
        for file in self.folder.iterdir():
            file.unlink()
        self.backend, num_envs, num_workers, self.batch_size = plan
        self.mode, self.may_restart, self.may_raise = (
            mode,
            on_error == "restart",
            on_error == "raise" or most is not None,
        )
        self.num_envs, self.synchronous = num_envs, self.batch_size == num_envs
        self.copies = lend == "copy"
        creator = functools.partial(FuzzEnv, folder=str(self.folder), parent=os.getpid())
        self.vec = pufferlib.make(
            creator, backend=self.backend, num_envs=num_envs, num_workers=num_workers, batch_size=self.batch_size,
            seed=seed, autoreset_mode=mode, on_error=on_error, max_restarts=most, copy=self.copies,
            debug=lend == "debug",
        )  # fmt: skip
        self.shares = [range(num_envs)] if self.backend == "serial" else list(self.vec._workers.backend.shares)
        self.seeds = Seeds(seed, num_envs)
        self.drawn: dict[tuple[int, int], int] = {}
        self.envs = [Env(self.seeds[env_id]) for env_id in range(num_envs)]
        self.order: list[int] | None = []  # of departure; None after failures, where it may be another
        self.last_ids: list[int] | None = None
        self.only_resets = False
        self.num_errors = 0
        self.lent: list[tuple[Any, Any]] = []
        self.note("ok")

    def make_wrong(self, wrong: dict[str, Any], backend: str) -> None:
        """Impossible arguments are refused."""
        arguments = {"num_envs": 4, "num_workers": 2, "backend": backend, **wrong}
        if backend == "serial" and ({"context", "backend_kwargs"} & set(wrong)):
            return  # which mean nothing there, or something else
        with pytest.raises(pufferlib.PlanError):
            pufferlib.make(HashEnv, **arguments)
        self.seen["make_wrong", "refused", backend] += 1

    def async_reset(self, bits: int, who: str, seed: Any, options: Any, fault: str, index: int) -> None:
        """Reset all, or some."""
        if self.ready("async_reset", lambda: self.vec.async_reset()):
            ids = self.chosen(who, bits)
            self.sent_reset(ids, seed, options, fault, index, self.vec.async_reset)

    def reset(self, bits: int, who: str, seed: Any, options: Any, fault: str, index: int) -> None:
        """Reset, and receive."""
        if not self.ready("reset", lambda: self.vec.reset()):
            return
        ids = self.chosen(who, bits)
        if ids is not None and not self.synchronous:
            with self.refused(pufferlib.CallError):
                self.vec.reset(env_ids=ids)
            return
        self.sent_reset(ids, seed, options, fault, index, self.vec.reset)

    def reset_wrong(self, wrong: dict[str, Any], bits: int, who: str, method: str) -> None:
        """Seeds and options that are none."""
        if not self.ready("reset_wrong", None):
            return
        ids = self.chosen(who, bits)
        if ids is not None and (not self.idle(ids) or (method == "reset" and not self.synchronous)):
            return
        num = self.num_envs if ids is None else len(ids)
        kwargs = {name: list(range(90, 90 + num)) if value == "as long as" else value for name, value in wrong.items()}
        if "options" not in kwargs and wrong.get("seed") == "as long as":
            kwargs["seed"] = "a" * num
        with self.refused(pufferlib.PlanError):
            getattr(self.vec, method)(**kwargs, env_ids=ids)

    def reset_wrong_ids(self, wrong: Any) -> None:
        """Environments that do not exist."""
        if self.ready("reset_wrong_ids", None):
            with self.refused(pufferlib.CallError):
                self.vec.async_reset(env_ids=wrong)

    def reset_unsendable(self) -> None:
        """Options that cannot be sent to another process."""
        if self.ready("reset_unsendable", None) and self.backend != "serial":
            with self.refused(pufferlib.CallError):
                self.vec.async_reset(options={"generator": (character for character in "")})

    def send(self, to: str, bits: int, fault: str, index: int, salt: int) -> None:
        """Send actions for the last batch, or to some."""
        if not self.ready("send", lambda: self.vec.send(np.zeros(self.num_envs, np.int64))):
            return
        ids = None if to == "last" else self.chosen(to, bits)
        self.sent_actions(ids, fault, index, salt, self.vec.send)

    def send_wrong(self, to: str, wrong: str) -> None:
        """Actions that are none."""
        ids = self.last_ids if self.ready("send_wrong", None) and to == "last" else None
        if self.vec.closed or (to == "last" and ids is None):
            return
        named = None if to == "last" else self.of_state(WAITING) or [0]
        actions = WRONG_ACTIONS[wrong](np.zeros(len(named or ids or ()), np.int64))
        with self.refused(pufferlib.ActionError):
            self.vec.send(actions, env_ids=named)

    def send_wrong_ids(self, wrong: Any) -> None:
        """Actions to environments that do not exist."""
        if self.ready("send_wrong_ids", None):
            with self.refused(pufferlib.CallError):
                self.vec.send(np.zeros(1, np.int64), env_ids=wrong)

    def step(self, fault: str, index: int, salt: int) -> None:
        """Send, and receive."""
        if not self.ready("step", lambda: self.vec.step(np.zeros(self.num_envs, np.int64))):
            return
        self.sent_actions(None, fault, index, salt, self.vec.step)

    def step_on(self, salt: int) -> None:
        """Do what a learner does, a few times: whatever is in the way is cleared away."""
        if not self.ready("step_on", None):
            return
        for repetition in range(4):
            failed = self.of_state(FAILED, NEW) + [
                i for i in self.of_state(WAITING) if self.envs[i].over and self.mode == "disabled"
            ]
            if failed:
                self.async_reset(
                    2**MOST_ENVS - 1, "all" if self.envs[failed[0]].state == NEW else "failed", None, None, "none", 0
                )
            waiting = self.of_state(WAITING)
            ready = [env_id for env_id in waiting if not (self.mode == "disabled" and self.envs[env_id].over)]
            if ready:
                self.sent_actions(ready, "none", 0, salt + repetition, self.vec.send)
            self.recv(None)

    def recv(self, timeout: float | None) -> None:
        """Receive."""
        if not self.ready("recv", lambda: self.vec.recv(timeout=0)):
            return
        start_s = time.monotonic()
        try:
            outcome: Any = self.vec.recv(timeout=PATIENCE_S if timeout is None else timeout)
        except (pufferlib.CallError, pufferlib.WorkerError, pufferlib.RecvTimeout) as error:
            outcome = error
        if isinstance(outcome, pufferlib.CallError):
            assert time.monotonic() - start_s < AT_ONCE_S
        self.received(outcome, timeout)

    def call(self, kind: str, bits: int, who: str, salt: int) -> None:
        """Call methods, get and set attributes."""
        if not self.ready("call", lambda: self.vec.get_attr("env_index")):
            return
        ids = self.chosen(who, bits)
        asked = list(range(self.num_envs)) if ids is None else ids
        calm = not any(env.at_risk or env.state == FAILED for env in self.envs)
        expected: Any = None
        try:
            if kind == "call":
                result, expected = self.vec.call("double", salt, env_ids=ids), [2 * salt] * len(asked)
            elif kind == "get":
                result, expected = self.vec.get_attr("env_index", env_ids=ids), asked
                marks = self.vec.get_attr("mark", env_ids=ids)
                for env_id, mark in zip(asked, marks, strict=True):
                    assert not calm or self.envs[env_id].mark in (None, mark)
            elif kind == "set":
                result = self.vec.set_attr("mark", [salt] * len(asked) if salt % 2 else salt, env_ids=ids)
                for env_id in asked:
                    self.envs[env_id].mark = salt if calm else None  # it may have been lost before or after
            elif kind == "render":
                result, expected = self.vec.render(env_ids=ids), [f"environment {env_id}" for env_id in asked]
            else:
                result = None
                assert self.vec.stats() is not None
        except (pufferlib.WorkerError, pufferlib.CallError) as error:
            assert not calm, error
            self.heard(error)
            self.settle(f"{kind} {type(error).__name__}")
            return
        assert result == expected
        self.settle(kind)

    def call_wrong(self, kind: str, wrong: Any) -> None:
        """Calls that cannot be answered, or are answered by an error."""
        if not self.ready("call_wrong", None):
            return
        remote = (pufferlib.WorkerError, pufferlib.CallError)
        if kind == "name":
            with self.refused(*remote):
                self.vec.get_attr("no_such_attribute")
        elif kind == "raises":
            with self.refused(*remote):
                self.vec.call("fail", LETHAL["raise"])
        elif kind == "unpicklable" and self.backend != "serial":
            with self.refused(pufferlib.CallError):
                self.vec.call("double", (character for character in ""))
        elif kind == "values":
            with self.refused(pufferlib.PlanError):
                self.vec.set_attr("mark", [1] * (self.num_envs + 1))
        elif kind == "ids":
            with self.refused(pufferlib.CallError):
                self.vec.call("double", 1, env_ids=wrong)
        elif kind == "environment":
            with self.refused(pufferlib.CallError):
                self.vec.set_attr("mark", 1, env_ids=[self.num_envs])

    def kill(self, index: int) -> None:
        """Kill a worker, whatever it is doing."""
        if not self.ready("kill", None) or self.backend == "serial":
            return
        worker = index % len(self.shares)
        pid = self.vec._workers.pids[worker]
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it is dead, and has been buried
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # what is sent from now on, it does not do
        for env_id in self.shares[worker]:
            self.envs[env_id].endanger(self.clock, killed=True)
        self.order = None
        self.settle("killed")

    def sabotage(self, index: int) -> None:
        """Make an environment fail the next time it is constructed."""
        if self.ready("sabotage", None):
            file = self.folder / str(index % self.num_envs)
            if not file.exists():
                file.touch()
                self.envs[index % self.num_envs].endanger(math.inf)
                self.order = None
                self.note("ok")

    def close(self, times: int, grace: float) -> None:
        """Close; then nothing else works."""
        if self.vec is None or self.vec.closed:
            return
        for _ in range(times):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of workers that were killed
                self.vec.close(grace)
        assert self.vec.closed
        self.now = "close"
        self.check_lent()
        self.note("ok")

    def finish(self) -> None:
        """End the play."""
        if self.vec is not None:
            self.close(1, 5.0)

    # ------------------------------------------------------------------------------------------ the model

    def note(self, what: str) -> None:
        self.seen[self.now, what, self.backend] += 1

    def ready(self, name: str, again: Callable[[], Any] | None) -> bool:
        """Begin a call; False if there is nothing open. again: what a closed object must refuse."""
        self.now = name
        self.clock += 1
        if self.vec is None:
            return False
        if self.vec.closed:
            if again is not None:
                with pytest.raises(pufferlib.ClosedError):
                    again()
                self.note("closed")
            return False
        self.reconcile()
        return True

    def chosen(self, who: str, bits: int) -> list[int] | None:
        """Return environments, None for all."""
        if self.vec is None or self.vec.closed or who == "all":
            return None
        if who == "idle":
            those = [env_id for env_id in range(self.num_envs) if bits >> env_id & 1 and self.idle([env_id])]
        elif who in (FAILED, WAITING):
            those = self.of_state(who)
            if who == FAILED:
                those += [
                    env_id for env_id in self.of_state(WAITING) if self.envs[env_id].over and self.mode == "disabled"
                ]
        else:
            those = [env_id for env_id in range(self.num_envs) if bits >> env_id & 1]
        return those[:: -1 if bits & 1 else 1] or [bits % self.num_envs]

    def idle(self, ids: list[int]) -> bool:
        return not any(self.envs[env_id].state == COMING for env_id in ids)

    def of_state(self, *states: str) -> list[int]:
        return [env_id for env_id, env in enumerate(self.envs) if env.state in states]

    def worker_of(self, env_id: int) -> range:
        return next(share for share in self.shares if env_id in share)

    @contextlib.contextmanager
    def refused(self, *errors: type[Exception]) -> Iterator[None]:
        """Expect one of these errors, and that nothing changes."""
        before = [(env.state, env.due) for env in self.envs]
        with pytest.raises(errors) as caught:
            yield
        self.reconcile()
        for env, (state, due) in zip(self.envs, before, strict=True):
            assert env.at_risk or (env.state, env.due) == (state, due), caught.value
        self.settle(f"refused by {type(caught.value).__name__}")

    def sent_actions(self, ids: list[int] | None, fault: str, index: int, salt: int, call: Callable[..., Any]) -> None:
        """Send actions, one of them a fault, by ``send`` or ``step``."""
        targets = self.last_ids if ids is None else ids
        num = len(targets or range(self.num_envs))
        actions = np.arange(num) * 7 + salt
        if fault == "slow":
            actions[::2] = SLOW
        elif fault in LETHAL:
            actions[index % num] = LETHAL[fault]
        sent_values = ODD_ACTIONS[salt % len(ODD_ACTIONS)](actions)
        takes = targets is not None and all(
            self.envs[env_id].state == WAITING and not (self.mode == "disabled" and self.envs[env_id].over)
            for env_id in targets
        )
        named = {} if ids is None else {"env_ids": ids}
        if not takes:
            with self.refused(pufferlib.CallError):
                call(sent_values, **named)
            return
        assert targets is not None

        def sent() -> None:
            self.renew()
            for env_id, action in zip(targets, actions.tolist(), strict=True):
                env = self.envs[env_id]
                self.departed(env_id, Command(self.clock, "step", env.life, env.due, action))
                if action in LETHAL.values() and not env.begins:
                    self.endanger(env_id, action)
            self.only_resets = False

        self.called(lambda: call(sent_values, **named), sent, "ok" if fault == "none" else fault)

    def endanger(self, env_id: int, fault: int) -> None:
        kills = fault == LETHAL["kill"] and self.backend != "serial"
        self.order = None
        for other in self.worker_of(env_id) if kills else (env_id,):
            self.envs[other].endanger(self.clock + 0.5, killed=kills)

    def departed(self, env_id: int, command: Command) -> None:
        env = self.envs[env_id]
        env.state, env.command = COMING, command
        if self.order is not None:
            self.order.append(env_id)

    def sent_reset(
        self, ids: list[int] | None, seed: Any, options: Any, fault: str, index: int, call: Callable[..., Any]
    ) -> None:
        """Reset environments by ``async_reset`` or ``reset``; one of them may fail."""
        everything = ids is None
        targets = list(range(self.num_envs)) if ids is None else ids
        seeds: Any = [None if i % 3 == 2 else 50 + i for i in range(len(targets))] if seed == "each" else seed
        env_options: list[Any] = [None] * len(targets)
        if options == "one":
            env_options = [{"note": index}] * len(targets)
        elif options == "each":
            env_options = [{"note": i} if i % 2 else None for i in range(len(targets))]
        if fault in LETHAL:
            env_options = [*env_options]
            env_options[index % len(targets)] = {"fault": LETHAL[fault]}
        arguments = {
            "seed": seeds,
            "options": env_options if options == "each" or fault in LETHAL else env_options[0],
            "env_ids": ids,
        }
        if not everything and (not self.idle(targets) or self.vec._scheduler.stuck_reason):
            with self.refused(pufferlib.CallError):
                call(**arguments)
            return
        explicit = seeds if isinstance(seeds, list) else [None] * len(targets)
        if isinstance(seeds, int):
            explicit = [Seeds(seeds, self.num_envs)[env_id] for env_id in targets]
        alone, risky = not self.of_state(COMING), any(env.at_risk for env in self.envs)

        def sent() -> None:
            if everything:
                for env_id in self.of_state(COMING):  # is done before
                    self.play(env_id)
                self.order = []
                if isinstance(seeds, int):
                    self.seeds, self.drawn = Seeds(seeds, self.num_envs), {}
            self.only_resets = not everything and (alone or self.only_resets)
            self.renew()
            for env_id, own_seed, own_options in zip(targets, explicit, env_options, strict=True):
                env = self.envs[env_id]
                own_seed = env.due if own_seed is None else own_seed
                self.departed(env_id, Command(self.clock, "reset", env.life, own_seed, 0, own_options))
                if own_options and "fault" in own_options:
                    self.endanger(env_id, own_options["fault"])

        what = ("all" if everything else "some") + ("" if fault not in LETHAL else " failing")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.called(lambda: call(**arguments), sent, what)
        for warning in caught:
            assert "dropped by reset" in str(warning.message), warning.message
            assert risky and self.may_raise, warning.message
            self.seen[self.now, "dropped", self.backend] += 1
            self.num_errors += 1

    def called(self, call: Callable[[], Any], sent: Callable[[], None], what: str) -> None:
        """Make a call that sends, and perhaps receives as well; ``sent`` notes in between what was sent."""
        recv, received = self.vec.recv, []

        def patient_recv() -> Any:
            sent()
            received.append(True)
            return recv(timeout=PATIENCE_S)

        self.vec.recv = patient_recv
        try:
            outcome = call()
        except (pufferlib.WorkerError, pufferlib.CallError, pufferlib.RecvTimeout) as error:
            if not received:
                raise
            outcome = error
        finally:
            del self.vec.recv
        if received:
            self.received(outcome, timeout=None)
        else:
            sent()
            self.settle(what)

    def renew(self) -> None:
        """Note which environments were restarted: for a reason, and with the seed that is due."""
        for env_id, (env, life) in enumerate(zip(self.envs, self.vec.restarts, strict=True)):
            if life == env.life:
                continue
            assert env.life < life <= env.num_causes, (env_id, env.life, life, env.num_causes)
            key = env_id, life
            if key not in self.drawn:
                self.drawn[key] = self.seeds.draw(env_id, life)
            env.life, env.due, env.mark = life, self.drawn[key], 0

    def reconcile(self) -> None:
        """Compare the states with the model's. What failures may have changed, is as it is."""
        self.renew()
        assert self.vec._scheduler.in_flight is not None  # has the states brought up to date
        states = self.vec._scheduler.states
        for env_id, env in enumerate(self.envs):
            if env.cause_at == math.inf and not (self.folder / str(env_id)).exists():
                env.cause_at = self.clock + 0.5  # it has failed when it was made
            truth = TRUTH[states[env_id]]
            if truth == env.state:
                continue
            if truth == FAILED and env.at_risk and self.may_raise:
                command = env.command
                if env.state == COMING and command is not None and command.life == env.life and command.what == "reset":
                    env.due = command.seed  # it is still due
                env.state, env.begins = FAILED, True
                self.order = None
                self.seen[self.now, "failed", self.backend] += 1
            elif truth == COMING and env.state == WAITING and self.only_resets and self.synchronous:
                env.state, env.command = COMING, Command(self.clock, "same", env.life, None)
            else:
                raise AssertionError(f"environment {env_id} is {truth}, and should be {env.state}")

    def settle(self, what: str) -> None:
        """End a call: compare states, and what was lent."""
        self.reconcile()
        self.check_lent()
        self.note(what)

    def heard(self, error: Exception) -> None:
        """An error of a worker has a reason, and is told once."""
        if not isinstance(error, pufferlib.WorkerError):
            return
        share = range(self.num_envs) if error.worker is None else self.shares[error.worker]
        blamed = share if error.exitcode is not None or error.env_id is None else [error.env_id]
        assert any(self.envs[env_id].at_risk for env_id in blamed), error
        self.num_errors += 1
        assert self.num_errors <= sum(env.num_causes for env in self.envs), error

    # ------------------------------------------------------------------------------------------ what is received

    def received(self, outcome: Any, timeout: float | None) -> None:
        """Check what ``recv`` has returned or raised."""
        coming = self.of_state(COMING)
        fills = self.synchronous and self.only_resets and not self.of_state(NEW, FAILED)
        risky = any(env.at_risk for env in self.envs)
        enough = len(coming) >= self.batch_size or fills
        if isinstance(outcome, pufferlib.RecvTimeout):
            assert timeout is not None and enough, outcome
        elif isinstance(outcome, pufferlib.WorkerError):
            assert risky and self.may_raise, outcome
            self.heard(outcome)
        elif isinstance(outcome, pufferlib.CallError):
            assert not enough or (self.may_raise and (risky or self.of_state(FAILED))), outcome
        else:
            assert enough, f"{len(coming)} were in flight"
            self.check_batch(self.vec.batch, outcome)
            self.settle("batch" + (" filled" if len(coming) < self.batch_size else ""))
            return
        self.settle(type(outcome).__name__)

    def check_batch(self, batch: Any, outcome: Any) -> None:
        """Check a batch, row by row."""
        if len(outcome) == 2:
            assert outcome[0] is batch.observations and outcome[1] is batch.infos
        else:
            assert all(one is other for one, other in zip(outcome, batch, strict=False))
        ids = batch.env_ids.tolist()
        assert len(set(ids)) == len(ids) == self.batch_size
        if self.synchronous:
            assert ids == list(range(self.num_envs))
        elif self.order is not None and self.backend != "pool":
            assert ids == self.order[: self.batch_size]
        if self.order is not None:
            self.order = [env_id for env_id in self.order if env_id not in ids]
        assert batch.agent_ids.tolist() == ids
        assert (batch.rewards.dtype, batch.masks.dtype, batch.terminations.dtype) == (np.float32, np.bool_, np.bool_)
        infos: dict[int, dict[str, Any]] = {}
        for info in batch.infos:
            assert info["env_id"] in ids
            infos.setdefault(info["env_id"], {}).update(info)
        self.renew()
        for index, env_id in enumerate(ids):
            row = tuple(np.array(column[index]) for column in (*batch[:4], batch.masks))
            self.check_row(env_id, row, infos.get(env_id, {}))
        self.last_ids, self.only_resets = ids, False
        self.lent.append((batch, [np.array(part) for part in batch[:4]]))
        del self.lent[: -8 if self.copies else -2]

    def check_row(self, env_id: int, row: Any, info: dict[str, Any]) -> None:
        env = self.envs[env_id]
        command = env.command if env.state == COMING else Command(self.clock, "same", env.life, None)
        assert command is not None and (env.state == COMING or (env.state == WAITING and self.only_resets)), env_id
        env.state = WAITING
        if "restarted" in info:
            assert self.may_restart and env.at_risk, (env_id, info)
            assert [bool(np.any(value)) for value in row] == [False, False, False, True, False], row
            env.begins, env.over, env.row = True, False, row
            self.seen[self.now, "crash row", self.backend] += 1
            return
        if command.what == "same":
            assert env.row is not None
            self.same(env_id, row, (*env.row[:4], False))
            return
        if command.at > env.cause_at:
            env.at_risk = env.killed = False
        played = self.play(env_id)
        assert played is not None, (env_id, command)
        expected, expected_infos, final = played
        if final is not None:
            assert np.array_equal(info["final_obs"], final)
        assert expected_infos.items() <= info.items(), (env_id, expected_infos, info)
        self.same(env_id, row, expected)
        env.row = row

    def play(self, env_id: int) -> tuple[Any, dict[str, Any], Any] | None:
        """Send the shadow the environment's command; return row, infos and final observation, None if it fails."""
        env = self.envs[env_id]
        command = env.command
        assert command is not None
        resets = command.what == "reset" or env.begins
        fault = (
            (command.options or {}).get("fault")
            if resets
            else command.action
            if command.action in LETHAL.values()
            else None
        )
        if fault is not None:
            if command.life == env.life and command.what == "reset":
                env.due = command.seed
            return None
        if command.what == "same":
            return None
        shadow = env.shadows.get(command.life)
        if shadow is None and not resets:
            return None  # it was lost while it waited, which a crash row says next
        if shadow is None:
            assert command.seed is not None, (env_id, command)
            shadow = env.shadows[command.life] = HashEnv(env_id, mean_length=4)
        if resets:
            observation, infos = shadow.reset(seed=command.seed, options=command.options)
            infos = infos if command.seed is None else {**infos, "seed": command.seed}
            env.begins = env.over = False
            if command.life == env.life:
                env.due = None
            return (observation, 0.0, False, False, False), infos, None
        observation, reward, terminated, truncated, infos = shadow.step(command.action)
        ends, final = terminated or truncated, None
        if ends and self.mode == "same_step":
            final = observation
            observation, infos = shadow.reset()
        env.over = ends and self.mode != "same_step"
        env.begins = env.over and self.mode == "next_step"
        return (observation, reward, terminated, truncated, True), infos, final

    def same(self, env_id: int, row: Any, expected: Any) -> None:
        for is_, should in zip(row, expected, strict=True):
            assert np.array_equal(is_, np.asarray(should, is_.dtype)), (
                env_id,
                self.envs[env_id].command,
                row,
                expected,
            )

    def check_lent(self) -> None:
        """What was received last, and before, is as it was."""
        for batch, copies in self.lent:
            for array, copy in zip(batch[:4], copies, strict=True):
                assert np.array_equal(array, copy), "a batch that is still valid was overwritten"
