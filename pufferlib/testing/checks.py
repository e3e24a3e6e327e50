"""The conformance checks, one per property, ordered so that each follows the checks that it needs.

A check takes a CheckContext and returns (status, text). A check is not run, and is reported as not applicable, if one
that it needs has failed or was not run itself. Reports therefore name causes rather than consequences.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from pufferlib.emulation import emulate, wrap
from pufferlib.errors import PufferError, WorkerError
from pufferlib.testing.backends import trace_rows
from pufferlib.testing.context import HASH_SEEDS, CheckContext
from pufferlib.testing.play import Player, parting
from pufferlib.testing.report import Status
from pufferlib.testing.wording import duration, error_text, first_line, shown_space

__all__ = ["ALL", "Check"]

Verdict = tuple[Status, str]


class Check(NamedTuple):
    """A named check. needs: the names of the checks that must have run, without failing, before this one can run."""

    name: str
    needs: tuple[str, ...]
    run: Callable[[CheckContext], Verdict]


ALL: list[Check] = []


def _check(*needs: str) -> Callable[[Callable[[CheckContext], Verdict]], Callable[[CheckContext], Verdict]]:
    def register(run: Callable[[CheckContext], Verdict]) -> Callable[[CheckContext], Verdict]:
        ALL.append(Check(run.__name__, needs, run))
        return run

    return register


@_check()
def make(context: CheckContext) -> Verdict:
    """Check that the creator makes an environment."""
    try:
        env = context.subject.make()
    except Exception as error:
        return "failed", f"making it raises {error_text(error)}"
    name = type(getattr(env, "unwrapped", env)).__name__
    with contextlib.suppress(Exception):
        getattr(env, "close", lambda: None)()
    return "passed", name


@_check("make")
def wraps(context: CheckContext) -> Verdict:
    """Check that the environment can be wrapped, and report its spaces."""
    raw, wrap_kwargs = context.subject.split()
    try:
        with context.subject.noting("wrapping the environment, which may reset it,"):
            env = wrap(raw, **wrap_kwargs)
        if not callable(env.observation_space):
            return (
                "passed",
                f"observations {shown_space(env.observation_space)}, actions {shown_space(env.action_space)}",
            )
        agents = getattr(env, "possible_agents", None)
        if not agents:
            with context.subject.noting("reset()"):
                env.reset()
            agents = env.agents
        kinds = {(shown_space(env.observation_space(agent)), shown_space(env.action_space(agent))) for agent in agents}
        text = "; ".join(f"observations {observation}, actions {action}" for observation, action in sorted(kinds)[:3])
        return "passed", f"{len(agents)} agents: {text}{'; …' if len(kinds) > 3 else ''}"
    except PufferError as error:
        return "failed", f"pufferlib.wrap: {error}"
    except Exception as error:
        return "failed", f"pufferlib.wrap raises {error_text(error)}"
    finally:
        with contextlib.suppress(Exception):
            getattr(raw, "close", lambda: None)()


@_check("wraps")
def runs(context: CheckContext) -> Verdict:
    """Check that random steps and resets raise no exception."""
    rollout = context.rollout
    if rollout.error is not None:
        return "failed", f"{error_text(rollout.error)}, after {rollout.num_steps:,} random steps"
    ends = f"{len(rollout.lengths)} episode ends" if rollout.lengths else "no episode end"
    return "passed", f"{rollout.num_steps:,} random steps, {ends}"


@_check("wraps", "runs")
def types(context: CheckContext) -> Verdict:
    """Check that observations have the structure, shapes and dtypes of their space."""
    faults = context.rollout.faults
    if "type" in faults:
        return "failed", f"{faults['type']}; return what the space says, or change the space"
    if "shape" in faults:
        return "warning", (
            f"{faults['shape']}; pufferlib reshapes it at every step: return that shape, or change the space"
        )
    if "cast" in faults:
        return "warning", f"{faults['cast']}; pufferlib casts it at every step: return that dtype, or change the space"
    return "passed", "observations have the shapes and dtypes of their space"


@_check("types")
def ranges(context: CheckContext) -> Verdict:
    """Check that the values of observations lie within the bounds of their space."""
    fault = context.rollout.faults.get("range")
    if fault is not None:
        return "failed", f"{fault}; widen the space, or clip the observation"
    return "passed", "observations lie inside their space"


@_check("ranges")
def round_trip(context: CheckContext) -> Verdict:
    """Check that ``decode(flatten(observation)) == observation``."""
    fault = context.rollout.faults.get("round trip")
    if fault is not None:
        return "failed", f"{fault}; if it is longer than its bound, raise max_length=, else please report it"
    return "passed", "every flat observation decodes to what the environment returned"


@_check("runs")
def outcomes(context: CheckContext) -> Verdict:
    """Check that rewards are finite and that infos can be sent to another process."""
    fault = context.rollout.faults.get("outcome")
    return ("failed", fault) if fault else ("passed", "rewards are finite, infos can travel")


@_check("runs")
def ends(context: CheckContext) -> Verdict:
    """Report the lengths of episodes; suggest a truncation if all of them terminate after the same number of steps."""
    rollout = context.rollout
    lengths = rollout.lengths
    if not rollout.num_steps:
        return "not applicable", "no step was made"
    if not lengths:
        return "not applicable", f"no episode ended within {rollout.num_steps:,} steps; raise num_steps to see one"
    span = f"{min(lengths):,} to {max(lengths):,} steps" if min(lengths) < max(lengths) else f"{lengths[0]:,} steps"
    text = f"{len(lengths)} episodes of {span}, {rollout.num_truncated} ended by truncation"
    if len(lengths) > 2 and min(lengths) == max(lengths) > 1 and not rollout.num_truncated:
        text += (
            "; if that length is a time limit and no part of the task, return it as truncated, "
            "so that learners know that there was more to come"
        )
    return "passed", text


@_check("runs")
def agents(context: CheckContext) -> Verdict:
    """Check that agents come and go by PettingZoo's rules, and that masks always allow at least one agent an action."""
    rollout = context.rollout
    if not rollout.num_alive:
        return "not applicable", "one agent" if rollout.num_steps else "no step was made"
    if "agents" in rollout.faults:
        return "failed", rollout.faults["agents"]
    if "odd agents" in rollout.faults:
        return "warning", rollout.faults["odd agents"]
    alive = sorted(rollout.num_alive)
    text = f"{alive[0]} to {alive[-1]} alive at once" if len(alive) > 1 else f"{alive[0]} alive at once"
    return "passed", f"{text}, {rollout.num_spawned} spawned{', action masks' if rollout.masked else ''}"


@_check("ranges")
def live_buffers(context: CheckContext) -> Verdict:
    """Check that the environment does not overwrite observations that it has returned."""
    fault = context.rollout.faults.get("live")
    if fault is not None:
        return "warning", (
            f"{fault}: it is a view of the environment's own buffer; pufferlib copies it at once, "
            "others that keep it will not: return a copy"
        )
    return "passed", "observations are not overwritten later"


@_check("ranges")
def global_generators(context: CheckContext) -> Verdict:
    """Check that the environment does not draw from the process's global random generators."""
    if not context.drawn:
        return "passed", "random, numpy.random and torch are left alone"
    draws = [f"{name} (in {', '.join(sorted(calls))})" for name, calls in sorted(context.drawn.items())]
    return "failed", (
        f"it draws from the global generator of {' and of '.join(draws)}, which reset(seed) must not seed and which "
        "other code draws from too; draw from self.np_random"
    )


@_check("global_generators")
def clock(context: CheckContext) -> Verdict:
    """Check that trajectories depend neither on the time of day nor on the speed of play."""
    traces = context.traces
    if parting(traces["first"], traces["second"]) is not None:
        return "not applicable", "two runs by the same clock differ already: see seeding"
    where = parting(traces["first"], traces["later"])
    if where is not None:
        return "failed", (
            f"by another clock the {where}; count steps instead of seconds, and seed from reset(seed) alone"
        )
    return "passed", "the same by another clock"


@_check("global_generators", "clock")
def seeding(context: CheckContext) -> Verdict:
    """Check that the same seed and actions give the same trajectory."""
    traces = context.traces
    where = parting(traces["first"], traces["second"])
    if where is not None:
        unseeded = "go on with the same generator where seed is None" if where.endswith("without seed") else None
        return "failed", (
            f"two environments with the same seed and actions differ: {where}; "
            f"{unseeded or 'call super().reset(seed=seed), and draw from self.np_random alone'}"
        )
    return "passed", f"the same {context.replay_steps} steps with the same seed and actions"


@_check("seeding")
def reseeding(context: CheckContext) -> Verdict:
    """Check that ``reset(seed)`` gives the same trajectory after other episodes as in a new environment."""
    if context.leftovers is not None:
        return "warning", (
            f"reset(seed) of an environment that has played before differs from that of a new one: "
            f"{context.leftovers}; reset all state in reset(seed), or evaluations cannot be repeated"
        )
    return "passed", "reset(seed) resets all state"


@_check("seeding")
def other_seeds(context: CheckContext) -> Verdict:
    """Check that a different seed gives a different trajectory."""
    if parting(context.traces["first"], context.traces["other seed"]) is None:
        return "warning", (
            f"seeds {context.seed} and {context.seed + 1} give the same {context.replay_steps} steps; right if "
            "nothing is random, else use the seed in reset"
        )
    return "passed", "another seed gives another trajectory"


@_check("ranges")
def rows(context: CheckContext) -> Verdict:
    """Check that the environment can be emulated as a fixed number of rows, and played on the serial backend."""
    raw, wrap_kwargs = context.subject.split()
    try:
        env = emulate(raw, **wrap_kwargs)
        trace_rows(context.subject, "serial", context.replay_steps, context.seed)
    except WorkerError as error:
        return "failed", f"as rows: {error_text(error.__cause__ or error)}"
    except PufferError as error:
        return "failed", f"as rows: {error}"
    finally:
        with contextlib.suppress(Exception):
            getattr(raw, "close", lambda: None)()
    shape, space = (env.num_agents, *(env.observation_space.shape or ())), env.action_space
    return "passed", f"observations {env.observation_space.dtype} {shape}, actions {shown_space(space)} a row"


@_check("wraps")
def pickles(context: CheckContext) -> Verdict:
    """Check that the creator can be pickled, and loaded in a new process."""
    try:
        cloudpickle.dumps(context.subject)
    except Exception as error:
        return "failed", f"the creator cannot be pickled ({error_text(error)}); let it make what it needs, not hold it"
    for result in context.replays:
        if result.stage == "started":
            return "failed", (
                f"the creator cannot be loaded in another process ({result.error}); "
                "put it into a module that can be imported from here"
            )
    return "passed", "the creator travels to other processes"


@_check("pickles", "runs", "seeding")
def processes(context: CheckContext) -> Verdict:
    """Check that new processes, with different hash seeds, play the same trajectory as this process."""
    traces = []
    for result in context.replays:
        if result.trace is None:
            return "failed", f"it works in this process, but raises in another one: {result.error}"
        traces.append(result.trace)
    where = parting(*traces)
    if where is not None:
        (once_more,) = context.replay_in_processes(HASH_SEEDS[:1])
        if once_more.trace is not None and parting(traces[0], once_more.trace) is None:
            return "failed", (
                f"with another PYTHONHASHSEED the {where}; it depends on the order of a set or on hash(): "
                "sort the set, or use a dict"
            )
        return "failed", (
            f"from one process to the next the {where}; it depends on something that differs between them, such as "
            "id(), the process number, a temporary file or a generator of its own"
        )
    where = parting(context.traces["first"], traces[0])
    if where is not None:
        return "failed", (
            f"in a new process the {where}; it depends on what happened before in this one: "
            "keep state on self, and none in the class or the module"
        )
    return "passed", f"the same in other processes, with PYTHONHASHSEED {' and '.join(map(str, HASH_SEEDS))}"


@_check("rows", "processes")
def backends(context: CheckContext) -> Verdict:
    """Check that the serial, multiprocessing and pool backends return the same rows, bit for bit."""
    num_steps = max(8, context.replay_steps // 4)
    counts = {"serial": {}, "multiprocessing": {"num_workers": 2}, "pool": {"num_workers": 2, "batch_size": 2}}
    traces = {}
    for backend, numbers in counts.items():
        try:
            traces[backend] = trace_rows(context.subject, backend, num_steps, context.seed, num_envs=3, **numbers)
        except PufferError as error:
            return "failed", f"{backend}: {first_line(error)}"
    for backend, env_id in itertools.product(list(counts)[1:], range(3)):
        one, other = traces["serial"][env_id], traces[backend][env_id]
        if one != other:
            index = next(i for i, (first, second) in enumerate(zip(one, other, strict=True)) if first != second)
            return "failed", (
                f"environment {env_id} of 3 differs on serial and {backend}, after {index} steps; environments in one "
                "process share something: keep state on self, and none in the class or the module"
            )
    return "passed", f"3 environments, {num_steps} steps: the same to the bit on {', '.join(counts)}"


@_check("types", "ranges", "outcomes", "agents", "seeding")
def api(context: CheckContext) -> Verdict:
    """Check that the wrapped environment passes Gymnasium's check_env, or PettingZoo's API and seed tests."""
    if context.leftovers is not None:
        return "not applicable", "these tests reset(seed) an environment that has played: see reseeding"
    if "odd agents" in context.rollout.faults:
        return "not applicable", "these tests are as strict about agents as PettingZoo: see agents"
    player = Player(context.subject)
    player.close()
    if player.multi_agent and context.rollout.masked:
        return "not applicable", "PettingZoo's tests do not see action masks in flat observations, and act against them"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if player.multi_agent:
                from pufferlib.testing.pettingzoo_api import require_api

                require_api(lambda: _wrapped(context), context.replay_steps)
                return "passed", "PettingZoo's parallel_api_test and parallel_seed_test, on the wrapped environment"
            env = _wrapped(context)
            parameters = inspect.signature(gymnasium_check_env).parameters  # Gymnasium 0.29 has no skip_close_check
            skipped = {name: True for name in ("skip_render_check", "skip_close_check") if name in parameters}
            gymnasium_check_env(env, **skipped)
            return "passed", "Gymnasium's check_env, on the wrapped environment"
    except Exception as error:
        return "failed", f"{'PettingZoo' if player.multi_agent else 'Gymnasium'}'s test: {error_text(error)}"


@_check("processes")
def step_after_end(context: CheckContext) -> Verdict:
    """Check that a step after an episode's end neither ends the process nor prevents a reset.

    pufferlib itself never makes such a step.
    """
    result = context.replays[0]
    if result.stage == "played":
        return "warning", f"a step after an episode's end ends the process ({result.error}); pufferlib never makes one"
    if result.stage == "stepped":
        return "failed", f"the reset after it raises {result.error}"
    if result.after_end is None:
        return "not applicable", "no episode ended"
    return "passed", f"it {result.after_end}, and reset starts an episode; pufferlib never makes one"


@_check("ranges")
def close(context: CheckContext) -> Verdict:
    """Check that the environment can be closed, even twice."""
    env = _wrapped(context)
    env.reset(seed=context.seed)
    try:
        env.close()
    except Exception as error:
        return "failed", f"close() raises {error_text(error)}"
    try:
        env.close()
    except Exception as error:
        return "warning", f"close() a second time raises {error_text(error)}; let it do nothing then"
    return "passed", "closes, and a second time too"


@_check("runs")
def speed(context: CheckContext) -> Verdict:
    """Report the time that steps and resets take, for information only."""
    step_s, reset_s = np.array(context.rollout.step_s), np.array(context.rollout.reset_s)
    if not step_s.size:
        return "not applicable", "no step was made"
    return "passed", f"a step takes {_timing(step_s)}; a reset {_timing(reset_s)}"


def _timing(seconds: Any) -> str:
    middle, most = np.percentile(seconds, [50, 99])
    return f"{duration(middle)} (99 in 100 within {duration(most)})"


def _wrapped(context: CheckContext) -> Any:
    raw, wrap_kwargs = context.subject.split()
    return wrap(raw, **wrap_kwargs)
