"""Worker: construction, resets and steps of one worker's environments, with THE autoreset.

A Worker runs in a worker process, in a Ray actor, or in the caller's process. The compiled loop handles the plain case
of next-step autoreset without this file, and shares the set ``over`` with it.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pufferlib.emulation import emulate, is_wrapped
from pufferlib.emulation.infos import copy_value
from pufferlib.emulation.rows import FastAgents, FastRows, FastStep, RowEnv, Rows
from pufferlib.errors import PufferError, SpaceError
from pufferlib.telemetry.timeline import Stopwatch
from pufferlib.util.annotations import AgentInfos, Array, Entropy, EnvCreator, Info, Keywords, RowActions
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.core.messages import (
    Attach,
    Call,
    Done,
    EnvSpec,
    Failed,
    InfosMessage,
    Message,
    Ready,
    Reply,
    Request,
    Reset,
    Step,
)
from pufferlib.vectorization.core.sharing import Claims, HeldEnv, HeldEnvs
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.core.step_watchdog import Limits, word_of

if TYPE_CHECKING:
    from pufferlib._native import step_loop as compiled
    from pufferlib._native.ring import Ring

__all__ = ["Worker", "WorkerTask", "seed_globals"]


class WorkerTask(NamedTuple):
    """The arguments of a worker.

    env_ids: the worker's share of the environments. creators: one per environment of the share, called as
    ``creator()``. wrap_kwargs: the keyword arguments of ``emulate``.
    """

    worker: int
    env_ids: range
    creators: list[EnvCreator]
    wrap_kwargs: Keywords
    autoreset_mode: str
    announce_each: bool  # announce each environment when it finishes, rather than all those of a request together
    first_finished: bool  # on the compiled path: slots are claimed when rows are finished
    limits: Limits = Limits()


class Worker:
    """One worker's share of the environments: it makes, resets, steps and closes them.

    emit: a function that sends a message, to which every answer is passed. It returns True if the whole message was
    sent, and False if a part of it, such as infos that cannot be pickled, was replaced by a failure. env_spec: the
    EnvSpec of the VecEnv's environments if it is known, as for a worker that replaces a dead one; each environment is
    then made by its first reset, or by a call before that. refuses_late: whether a step or reset that took longer than
    the task's limits fails once it returns, as in a worker without a watchdog. make_hook: a function that is called
    after each environment has been made.
    """

    def __init__(
        self,
        task: WorkerTask,
        emit: Callable[[Message], bool],
        env_spec: EnvSpec | None = None,
        *,
        refuses_late: bool = False,
        make_hook: Callable[[], None] = lambda: None,
    ) -> None:
        self.task = task
        self.emit = emit
        self._make_hook = make_hook
        limits = task.limits if refuses_late else Limits()
        self.step_limit_s, self.reset_limit_s = (limit or 0.0 for limit in limits)  # 0 for no limit
        self.envs: dict[int, RowEnv] = {}
        self._claims = Claims()
        self._holdings: HeldEnvs | None = None  # during build: the environments that creators held before it
        self._held_envs: dict[int, HeldEnv] = {}  # the ones that the creators returned
        self._env_spec = env_spec
        self._wrapped: set[int] = set()  # environments that users wrapped themselves
        self._early: set[int] = set()  # environments made by a call, before the reset that would make them
        self._num_resets = 0
        self.step_loop: compiled.StepLoop | None = None  # on the compiled path: it receives requests and commits rows
        self.reset_s = 0.0  # seconds of the last step that its reset took
        self.over: set[int] = set()  # environments whose next action starts an episode instead (next_step)
        self._same_step = task.autoreset_mode == "same_step"
        self._next_step = task.autoreset_mode == "next_step"
        self._actions: dict[int, RowActions] = {}
        self._done = Done([], [], [])  # on the portable path: results not announced yet

    def build(self) -> None:
        """Make the environments and emit Ready, or Failed; do nothing if each is made by its first reset."""
        if self._env_spec is None:
            self._make_all()

    def _make_all(self) -> None:
        self._holdings = HeldEnvs(dict(zip(self.task.env_ids, self.task.creators, strict=True)))
        for env_id in self.task.env_ids:
            try:
                self._make(env_id)
            except (Exception, SystemExit) as error:
                self.failed(env_id, "__init__", error)
                return
        assert self._env_spec is not None
        self._holdings = None
        self.emit(Ready(self.task.worker, self._env_spec, self._held_envs))

    def _make(self, env_id: int) -> None:
        """Make an environment, replacing any existing one with its id."""
        first = self.task.env_ids[0]
        self._unmake(env_id)
        self._wrapped.add(env_id)  # while it is made: its errors are unrelated to make's wrap_kwargs
        transfer.register()
        raw_env = self.task.creators[env_id - first]()
        if not is_wrapped(raw_env):
            self._wrapped.discard(env_id)
        held_env = None if self._holdings is None else self._holdings.find(raw_env)
        self._claims.claim(env_id, raw_env, held_env)
        if held_env is not None:
            self._held_envs[env_id] = held_env
        env = self.envs[env_id] = emulate(raw_env, **self.task.wrap_kwargs)
        env_spec = EnvSpec.of(env)
        if self._env_spec is None:
            self._env_spec = env_spec
        try:
            require_same_spec(self._env_spec, first, env_spec, env_id)
        except SpaceError:
            self._unmake(env_id)
            raise
        self._make_hook()

    def _unmake(self, env_id: int) -> None:
        """Close and remove an environment if it exists. An error that its ``close`` raises becomes a warning."""
        self._claims.release(env_id)
        env = self.envs.pop(env_id, None)
        if env is not None:
            try:
                env.close()
            except (Exception, SystemExit) as error:  # its first failure is reported elsewhere
                warnings.warn(f"environment {env_id}, which is made again, raised in close: {error!r}", stacklevel=2)

    def attach(self, slab: Slab, ring: Ring | None = None) -> None:
        """Attach the slab that holds the actions to read and the rows to write. ring: None on the portable path."""
        self._actions = {env_id: slab.action(env_id) for env_id in self.task.env_ids}
        self._doing = slab.doing[self.task.worker].data
        self._num_ids = slab.shape.num_ids
        self._telemetry = slab.shape.telemetry
        self._stopwatch, self._first_env = Stopwatch(slab.times, slab.histogram), slab.shape.first_env
        self._worker_times = slab.worker_times[self.task.worker].data
        self._clocked_s = perf_counter()
        self._rows: Callable[[int], Rows] = slab.rows
        self._commit: Callable[[int, int, bool, list[Info]], None] = self._announce
        if ring is not None:
            self.step_loop = compiled_step_loop(self, slab, ring)
            self._rows, self._commit = self.step_loop.rows, self.hand_over
            for env_id, env in self.envs.items():
                adopt(self.step_loop, slab, env_id, env)
        self._slab = slab
        self.rest()

    def execute(self, request: Request) -> None:
        """Execute a request and emit its answers."""
        if isinstance(request, Step):
            (self if self.step_loop is None else self.step_loop).step(*request)
        elif isinstance(request, Reset):
            self.reset(request)
        elif isinstance(request, Attach):
            self.attach(*request)
        else:
            assert isinstance(request, Call), request
            self.call(request)
        self.rest()

    def rest(self) -> None:
        """Clear the activity word, because no step or reset is being executed."""
        self._doing[0] = 0

    def clock(self, kind: int) -> None:
        """Add the seconds since this method last ran to ``worker_times[kind]``. The compiled loop does this itself.

        kind: BUSY or WAITED, of telemetry/timeline.py.
        """
        now_s = perf_counter()
        self._worker_times[kind] += now_s - self._clocked_s
        self._clocked_s = now_s

    def step(self, env_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Step environments in the given order, on the portable path; each writes its rows to its slot."""
        for env_id, slot in zip(env_ids, slots, strict=True):
            self._doing[0] = word_of(slot, env_id, self._num_ids, is_reset=False)  # slots differ from step to step
            self.advance(env_id, slot)
        self.flush()

    def advance(self, env_id: int, slot: int) -> bool:
        """Step an environment, or reset it if a reset is due; return whether its next step may take the fast path."""
        env, stopwatch = self.envs[env_id], self._stopwatch
        self.reset_s = 0.0
        if env_id in self.over:
            self.over.discard(env_id)
            try:
                self._restart(env_id, env)
                self._deliver(env_id, slot, env, False)
            except (Exception, SystemExit) as error:
                self.failed(env_id, "reset", error)
            return self._is_plain(env_id)
        timed, index = False, env_id - self._first_env
        if self._telemetry:
            timed = stopwatch.left_out[index] == 0
            stopwatch.left_out[index] -= not timed
        start_s = perf_counter() if timed or self.step_limit_s else 0.0
        try:
            over = env.step(self._actions[env_id])
            if self.step_limit_s:
                self.check_time("step", perf_counter() - start_s)
        except (Exception, SystemExit) as error:
            self.failed(env_id, "step", error)
            return False
        self._conclude(env_id, slot, env, over)
        if timed:
            stopwatch.record(index, perf_counter() - start_s - self.reset_s)
        return self._is_plain(env_id)

    def check_time(self, phase: str, seconds: float) -> None:
        """Raise TimeoutError if a step or reset took longer than its limit."""
        if seconds > (self.reset_limit_s if phase == "reset" else self.step_limit_s):
            self.refuse_late(phase, seconds)

    def refuse_late(self, phase: str, seconds: float) -> None:
        """Raise TimeoutError for a step or reset that took ``seconds``, longer than its limit."""
        limit_s = self.reset_limit_s if phase == "reset" else self.step_limit_s
        raise TimeoutError(f"{phase} took {seconds:.3g} s, longer than {phase}_timeout={limit_s:g} s")

    def finish(self, env_id: int, slot: int, result: object) -> bool:
        """Finish a step whose raw ``step`` returned ``result``; return whether the next step may take the fast path."""
        env = self.envs[env_id]
        self.reset_s = 0.0
        try:
            over = env.take(result)
        except (Exception, SystemExit) as error:
            self.failed(env_id, "step", error)
            return False
        self._conclude(env_id, slot, env, over)
        return self._is_plain(env_id)

    def finish_reset(self, env_id: int, slot: int, result: object) -> bool:
        """Finish a reset whose raw ``reset`` returned ``result``.

        Return whether the next step may take the fast path.
        """
        env = self.envs[env_id]
        try:
            env.take_reset(result)
            self._deliver(env_id, slot, env, False)
        except (Exception, SystemExit) as error:
            self.failed(env_id, "reset", error)
        return self._is_plain(env_id)

    def finish_restart(self, env_id: int, slot: int, result: object, last: Info, observation: object) -> bool:
        """Finish a same-step reset whose raw ``reset`` returned ``result``.

        Return whether the next step may take the fast path. The row already holds the outcome of the episode's last
        step. last, observation: the info and the observation of that step.
        """
        observations = np.asarray(observation)[np.newaxis]
        return self.finish_restart_of_several(env_id, slot, result, [(0, last)], observations)

    def finish_restart_of_several(
        self, env_id: int, slot: int, result: object, final: AgentInfos, observations: Array
    ) -> bool:
        """Finish a same-step reset of several agents; see ``finish_restart``.

        final, observations: the infos and observations of the agents' last rows.
        """
        env = self.envs[env_id]
        try:
            env.take_reset(result)
            self._deliver_with_finals(env_id, slot, env, final, observations)
        except (Exception, SystemExit) as error:
            self.failed(env_id, "reset", error)
        return self._is_plain(env_id)

    def _is_plain(self, env_id: int) -> bool:
        return env_id not in self.over and env_id in self.envs and self.envs[env_id].settled

    def _conclude(self, env_id: int, slot: int, env: RowEnv, over: bool) -> None:
        """Write the rows of a step, and start the next episode if one is due: THE autoreset."""
        phase = "step"
        try:
            if over and self._next_step:
                self.over.add(env_id)
            if over and self._same_step:
                rows = self._rows(slot)
                env.write_observations(rows)
                env.write_outcome(rows)
                final, observations = env.infos, rows.observations.copy()
                phase = "reset"
                self._restart(env_id, env)
                self._deliver_with_finals(env_id, slot, env, final, observations)
            else:
                self._deliver(env_id, slot, env, over)
        except (Exception, SystemExit) as error:
            self.over.discard(env_id)
            self.failed(env_id, phase, error)

    def _deliver(self, env_id: int, slot: int, env: RowEnv, over: bool) -> None:
        """Write an environment's current rows and commit them."""
        rows = self._rows(slot)
        env.write_observations(rows)
        env.write_outcome(rows)
        self._commit(env_id, slot, over, self._infos(env_id, env) if env.infos else [])

    def _deliver_with_finals(self, env_id: int, slot: int, env: RowEnv, final: AgentInfos, observations: Array) -> None:
        """Write the first observations of an episode over the last ones of the previous episode, and commit the rows.

        The rows keep the outcome of the previous episode's last step. final, observations: the infos and the
        observations of that step.
        """
        rows = self._rows(slot)
        env.write_observations(rows)
        env.infos = _with_finals(final, env, rows.terminations | rows.truncations, observations)
        self._commit(env_id, slot, True, self._infos(env_id, env))

    def _restart(self, env_id: int, env: RowEnv, seed: int | None = None, options: Info | None = None) -> None:
        self._doing[0] |= 1
        start_s = perf_counter()
        env.reset(seed, options)
        self.reset_s = perf_counter() - start_s
        self._stopwatch.record_reset(env_id - self._first_env, self.reset_s)
        if self.reset_limit_s:
            self.check_time("reset", self.reset_s)

    def _announce(self, env_id: int, slot: int, over: bool, infos: list[Info]) -> None:
        """Commit rows on the portable path: at once if ``announce_each`` is set, otherwise at the next ``flush``."""
        done = self._done
        done.env_ids.append(env_id)
        done.overs.append(over)
        done.infos.extend(infos)
        if self.task.announce_each:
            self.flush()

    def flush(self) -> None:
        """Announce any results that have not been announced yet, on the portable path."""
        if self._done.env_ids:
            done, self._done = self._done, Done([], [], [])
            self.emit(done)

    def hand_over(self, env_id: int, slot: int, over: bool, infos: list[Info]) -> None:
        """Commit rows on the compiled path, at once, unless a failure to send their infos was emitted instead.

        The infos arrive before the rows, or with them.
        """
        step_loop = self.step_loop
        assert step_loop is not None
        if not infos or step_loop.holds_infos or self.emit(InfosMessage([env_id], infos)):
            step_loop.commit(env_id, slot, over, infos)

    def reset(self, request: Reset) -> None:
        """Reset environments, making them again first if their order is ``fresh``; each writes its rows to its slot."""
        for env_id, slot, seed, options, fresh, creator in request.orders:
            self.over.discard(env_id)
            self._num_resets += 1
            self._doing[0] = word_of(self._num_resets, env_id, self._num_ids, is_reset=True)
            phase = "__init__"
            try:
                if creator is not None:
                    self._early.discard(env_id)  # another creator has made it
                    self.task.creators[env_id - self.task.env_ids[0]] = creator
                if fresh:
                    self._make_again(env_id)
                phase, env = "reset", self.envs[env_id]
                self._restart(env_id, env, seed, options)
                self._deliver(env_id, slot, env, False)
            except (Exception, SystemExit) as error:
                self.failed(env_id, phase, error, seed)
            if self.step_loop is not None:
                self.step_loop.flush()
                self.step_loop.resume(env_id, self._is_plain(env_id))
            else:
                self.flush()

    def _make_again(self, env_id: int) -> None:
        """Make an environment that replaces a crashed one, unless a call has already made it."""
        if env_id in self._early:
            self._early.discard(env_id)
        else:
            self._make(env_id)
            if self.step_loop is not None:
                adopt(self.step_loop, self._slab, env_id, self.envs[env_id])

    def call(self, request: Call) -> None:
        """Call a method, or get or set an attribute, of environments; emit a Reply with the results.

        If an environment raises, the Reply holds that failure, and the environments after it are left out.
        """
        results: list[object] = []
        failed = None
        for index, env_id in enumerate(request.env_ids):
            try:
                if env_id not in self.envs:
                    self._make_again(env_id)
                    self._early.add(env_id)
                env = self.envs[env_id].env
                if request.action == "set":
                    _set_attribute(env, request.name, request.args[index])
                    results.append(None)
                    continue
                value = _get_attribute(env, request.name)
                if request.action == "call" and callable(value):
                    value = value(*request.args, **request.kwargs)
                results.append(value)
            except (Exception, SystemExit) as error:
                failed = Failed.of(env_id, self.task.worker, f"{request.action} {request.name!r}", error)
                break
        self.emit(Reply(request.ticket, self.task.worker, results, failed))

    def close(self) -> None:
        """Close every environment, even if some raise; emit Failed for each that raises."""
        for env_id, env in self.envs.items():
            try:
                env.close()
            except (Exception, SystemExit) as error:
                self.failed(env_id, "close", error)
        self.envs = {}
        self._claims.release()

    def _infos(self, env_id: int, env: RowEnv) -> list[Info]:
        first_agent = env_id * env.num_agents
        infos = []
        for agent_index, info in env.infos:
            info["env_id"] = env_id
            if agent_index is not None:
                info["agent_id"] = first_agent + agent_index
            infos.append(info)
        env.infos = []
        return infos

    def failed(self, env_id: int, phase: str, error: BaseException, seed: int | None = None) -> None:
        """Emit Failed for an environment that raised. seed: the seed of the reset that raised, if any."""
        if isinstance(error, PufferError) and env_id not in self._wrapped:
            error.speak_of_make()
        self.emit(Failed.of(env_id, self.task.worker, phase, error, seed))


def compiled_step_loop(worker: Worker, slab: Slab, ring: Ring) -> compiled.StepLoop:
    """Return the compiled loop for a worker's environments."""
    from pufferlib._native import step_loop

    share, first_finished = worker.task.env_ids, worker.task.first_finished
    scratch = Slab.private(replace(slab.shape, num_blocks=1, block_size=1, ring_nbytes=0))
    return step_loop.StepLoop(ring, slab, scratch, worker, share, worker.task.worker, first_finished, copy_value)


def adopt(loop: compiled.StepLoop, slab: Slab, env_id: int, env: RowEnv) -> None:
    """Register an environment with the compiled loop, with a stepper if it has a fast path."""
    from pufferlib._native import agents, step_loop

    fast, actions, stepper = env.fast, slab.action(env_id), None
    actions = actions if isinstance(actions, tuple) else (actions,)
    if isinstance(fast, FastStep):
        stepper = step_loop.Stepper(env, *fast[:2], actions, *fast[2:])
    elif isinstance(fast, FastAgents):
        stepper = step_loop.Stepper.of_agents(agents.ParallelAgents(env, env_id, actions, copy_value, *fast))
    elif isinstance(fast, FastRows):
        stepper = step_loop.Stepper.of_agents(agents.NativeAgents(env, env_id, actions, copy_value, *fast))
    loop.adopt(env_id, stepper)


def _with_finals(final: AgentInfos, env: RowEnv, ended: Array, observations: Array) -> AgentInfos:
    """Return the new episode's infos, with the last step's infos added as final_info.

    Each agent whose episode ended also gets final_obs, and a final_info even if it is empty. Episode statistics stay at
    the top level, as in every autoreset mode.
    """
    firsts: dict[int | None, Info] = {}
    for agent_index, info in env.infos:
        firsts.setdefault(agent_index, {}).update(info)
    lasts: dict[int | None, Info] = {}
    for agent_index, info in final:
        lasts.setdefault(agent_index, {}).update(info)
    for agent_index in np.flatnonzero(ended).tolist():
        lasts.setdefault(agent_index, {})
    for agent_index, last in lasts.items():
        info = firsts.setdefault(agent_index, {})
        if "episode" in last:
            info["episode"] = last["episode"]
        if "env" in last:
            info["env"] = last["env"]
        if agent_index is not None and ended[agent_index]:
            observation = observations[agent_index]
            info["final_obs"] = observation.copy() if observation.ndim else observation
        info["final_info"] = last
    return list(firsts.items())


def require_same_spec(first: EnvSpec, first_id: int, env_spec: EnvSpec, env_id: int) -> None:
    """Raise SpaceError unless two environments have the same rows: agents, shapes, dtypes and layouts."""

    def rows(env_spec: EnvSpec) -> dict[str, object]:
        observation, action = env_spec.observation_layout, env_spec.action_layout
        return {
            "number of agents": env_spec.num_agents,
            "observations": (env_spec.observation_space.shape, env_spec.observation_space.dtype),
            "observation leaves": getattr(observation, "leaves", None),
            "kind of actions": type(env_spec.action_space),
            "actions": (env_spec.action_space.shape, env_spec.action_space.dtype),
            "action leaves": getattr(action, "leaves", None),
        }

    expected, actual = rows(first), rows(env_spec)
    for name in expected:
        if expected[name] != actual[name]:
            raise SpaceError(
                f"environments {first_id} and {env_id} differ in their {name}: {expected[name]} and {actual[name]}; "
                "all environments of one VecEnv must fill the same rows, so make one VecEnv for each kind"
            )


def _get_attribute(env: object, name: str) -> object:
    getter = getattr(env, "get_wrapper_attr", None)  # Gymnasium's lookup through wrappers
    return getattr(env, name) if getter is None else getter(name)


def _set_attribute(env: object, name: str, value: object) -> None:
    setter = getattr(env, "set_wrapper_attr", None)
    if setter is None:
        setattr(env, name, value)
    else:
        setter(name, value)


def seed_globals(entropy: Entropy, worker: int, generation: int) -> None:
    """Seed the global generators of this worker process, for environments that draw from them.

    These are the generators of random, NumPy and, if it is imported, torch. Environments should draw from the generator
    that ``reset(seed)`` seeds. If this function did not seed the global generators, environments that use them would
    draw the same numbers in every forked process.

    generation: the number of earlier processes of this worker.
    """
    seed = int(np.random.SeedSequence(entropy, spawn_key=(worker, generation, 1)).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
