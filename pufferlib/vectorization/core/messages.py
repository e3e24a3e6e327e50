"""Messages between a VecEnv and its workers: plain data, the same for workers in this process and in others."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import gymnasium
from gymnasium.envs import registration

from pufferlib.emulation.rows import RowEnv
from pufferlib.errors import WorkerError
from pufferlib.layout import Layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import EnvCreator, Info, Metadata
from pufferlib.vectorization.core.sharing import HeldEnv
from pufferlib.vectorization.core.slab import Slab, SlabShape
from pufferlib.vectorization.core.step_watchdog import Doing

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = [
    "Attach",
    "Call",
    "CrashCause",
    "Died",
    "Done",
    "EnvSpec",
    "Failed",
    "InfosMessage",
    "Message",
    "Ready",
    "Reply",
    "Request",
    "Reset",
    "ResetOrder",
    "Sealed",
    "Step",
    "action_spaces",
    "crash_cause",
    "located",
]


class EnvSpec(NamedTuple):
    """The spaces, layouts and metadata of an environment, read in the process that makes the environment."""

    num_agents: int
    multi_agent: bool
    observation_space: gymnasium.Space[object]
    action_space: gymnasium.Space[object]
    observation_layout: Layout
    action_layout: ActionLayout
    observation_layouts: tuple[Layout, ...]  # one per agent index
    action_layouts: tuple[ActionLayout, ...]  # one per agent index
    agent_names: tuple[str, ...]  # one per agent index, or ()
    metadata: Metadata
    render_mode: str | None
    autoreset_mode: str | None
    spec: registration.EnvSpec | None

    @classmethod
    def of(cls, env: RowEnv) -> EnvSpec:
        """Return the EnvSpec of an environment."""
        return cls(
            env.num_agents,
            env.multi_agent,
            env.observation_space,
            env.action_space,
            env.observation_layout,
            env.action_layout,
            tuple(getattr(env, "observation_layouts", (env.observation_layout,) * env.num_agents)),
            tuple(getattr(env, "action_layouts", (env.action_layout,) * env.num_agents)),
            env.agent_names,
            dict(getattr(env.env, "metadata", None) or {}),
            getattr(env.env, "render_mode", None),
            env.autoreset_mode,
            _picklable(getattr(env.env, "spec", None)),
        )


def action_spaces(env_spec: EnvSpec) -> tuple[gymnasium.Space[object], ...]:
    """Return the components of an EnvSpec's action space, each of which has its own array in the slab."""
    space = env_spec.action_space
    return tuple(space.spaces) if isinstance(space, gymnasium.spaces.Tuple) else (space,)


def _picklable(spec: registration.EnvSpec | None) -> registration.EnvSpec | None:
    """Return the specification, or None if it cannot be pickled (EnvPool's cannot)."""
    if spec is None:
        return None
    import cloudpickle

    try:
        cloudpickle.dumps(spec)
    except Exception:  # any error of the user's object
        return None
    return spec


# ------------------------------------------------------------------------------------------------ to a worker


class Attach(NamedTuple):
    """A request to read actions from a slab and write rows to it. ring: the slab's Ring; None on the portable path."""

    slab: Slab
    ring: Ring | None


class Step(NamedTuple):
    """A request to step environments in the given order; ``env_ids[i]`` writes its rows to slot ``slots[i]``."""

    env_ids: Sequence[int]
    slots: Sequence[int]


class ResetOrder(NamedTuple):
    """An order to reset one environment and write its rows to a slot.

    fresh: whether to replace the environment with a new one first. creator: what makes the new one, now and whenever it
    is made again; None for the creator that made the last one.
    """

    env_id: int
    slot: int
    seed: int | None
    options: dict[str, object] | None
    fresh: bool
    creator: EnvCreator | None = None


class Reset(NamedTuple):
    """A request to reset environments in the given order."""

    orders: list[ResetOrder]


class Call(NamedTuple):
    """A request to call, get or set attribute ``name`` of environments, and to answer with a Reply.

    ticket: the number that the Reply repeats. action: "call", "get" or "set". args: for "call", the positional
    arguments; for "set", one value per environment.
    """

    ticket: int
    action: str
    name: str
    env_ids: list[int]
    args: tuple[object, ...]
    kwargs: dict[str, object]


class Sealed(NamedTuple):
    """A request that is already serialized. frame: the bytes to send (core/frames.py)."""

    request: Reset | Call
    frame: bytes


Request = Attach | Step | Reset | Call | Sealed

# ------------------------------------------------------------------------------------------------ from a worker


class Ready(NamedTuple):
    """The message that a worker has made its environments.

    held_envs: the environments that were not made by calling their creators, because a creator already held them. Maps
    the env id of each of these environments to the place where it was held.
    """

    worker: int
    env_spec: EnvSpec
    held_envs: dict[int, HeldEnv]


class Done(NamedTuple):
    """The message that environments have written their rows.

    overs: for each environment, whether its episode is over. infos: the non-empty infos, with their ids.
    """

    env_ids: list[int]
    overs: list[bool]
    infos: list[Info]


class InfosMessage(NamedTuple):
    """The message with the infos of rows on the compiled path, where no Done is sent for rows.

    infos: the non-empty infos, with their ids.
    """

    env_ids: list[int]
    infos: list[Info]


class Failed(NamedTuple):
    """The message that an environment raised an exception, or, if env_id is None, that the worker did.

    phase: where it was raised, such as "__init__", "reset", "step", "close" or "unpickling". exception: None if it
    cannot be pickled. seed: the seed of the reset that raised. location: the node of a Ray actor's worker, as text to
    append to the worker's number; "" for other workers.
    """

    env_id: int | None
    worker: int
    phase: str
    summary: str
    remote_traceback: str
    exception: BaseException | None
    seed: int | None = None
    location: str = ""

    @classmethod
    def of(cls, env_id: int | None, worker: int, phase: str, error: BaseException, seed: int | None = None) -> Failed:
        """Return the message that reports an exception."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(env_id, worker, phase, f"{type(error).__name__}: {error}", text, error, seed)

    @property
    def text(self) -> str:
        """A description of the failure, with the remote traceback."""
        who = f"worker {self.worker}{self.location}"
        if self.env_id is not None:
            who = f"environment {self.env_id} ({who})"
        return f"{who} raised in {self.phase}: {self.summary}\n\n{self.remote_traceback}".rstrip()

    def error(self, note: str = "") -> WorkerError:
        """Return the error to raise for the failure. note: text to append to its message."""
        error = WorkerError(
            f"{self.text}\n\n{note}" if note else self.text,
            env_id=self.env_id,
            worker=self.worker,
            remote_traceback=self.remote_traceback,
        )
        error.__cause__ = self.exception
        return error


class Reply(NamedTuple):
    """The answer to a Call. results: one per environment, unless the call failed. failed: the first failure."""

    ticket: int
    worker: int
    results: list[object]
    failed: Failed | None


class Died(NamedTuple):
    """The message that a worker has ended unexpectedly.

    exitcode: the exit code of its process, negative for a signal; None if it is unknown. doing: the step or reset that
    it was executing. cause: why the VecEnv killed it, or "". location: as for Failed. how: how the worker ended, as
    text, if there is no exit code.
    """

    worker: int
    exitcode: int | None
    env_ids: range
    doing: Doing | None = None
    cause: str = ""
    location: str = ""
    how: str = ""

    @property
    def text(self) -> str:
        """A description of the worker's death."""
        first, last, doing = self.env_ids[0], self.env_ids[-1], self.doing
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        then = "" if self.cause or doing is None else f" while environment {doing.env_id} was in its {doing.phase}"
        return f"worker {self.worker}{self.location}, with {which}, {self.how_it_ended}{then}"

    @property
    def how_it_ended(self) -> str:
        """How the worker ended, as text such as "was killed by signal 9 (SIGKILL)"."""
        if self.cause:
            return f"was killed, as {self.cause}"
        code = self.exitcode
        if code is not None and code < 0:
            return f"was killed by signal {-code} ({signal_name(-code)})"
        return self.how or f"ended with {'an unknown exit code' if code is None else f'exit code {code}'}"

    def error(self, note: str = "") -> WorkerError:
        """Return the error to raise for the death. note: text to append to its description."""
        note = note and f"; {note}"
        return WorkerError(
            f"{self.text}{note}; call reset to start it again with new environments, or close",
            env_id=None if self.doing is None else self.doing.env_id,
            worker=self.worker,
            exitcode=self.exitcode,
        )


Message = Reset | Call | SlabShape | Ready | Done | InfosMessage | Failed | Reply | Died


def located(message: Message, first_worker: int, location: str) -> Message:
    """Return a message from a Ray actor's worker, with the worker's location and its number in the VecEnv.

    first_worker: the number in the VecEnv of the actor's worker 0. location: as for Failed.
    """
    if isinstance(message, Reply):
        failed = message.failed and message.failed._replace(
            worker=message.failed.worker + first_worker, location=location
        )
        return message._replace(worker=message.worker + first_worker, failed=failed)
    assert isinstance(message, (Failed, Died)), message
    return message._replace(worker=message.worker + first_worker, location=location)


class CrashCause(str):
    """The text in ``info["restarted"]`` of a crash row: a failure's or a death's, with its parts as attributes.

    env_id: the environment that raised, or that its worker was stepping or resetting when it died; None if that is
    unknown. what: what that environment did, in words that do not depend on the worker. traceback: the exception's; ""
    for a death.
    """

    env_id: int | None = None
    what: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, failure: Failed | Died) -> CrashCause:
        """Return the cause of a crash by a failure or a death."""
        cause = cls(failure.text)
        if isinstance(failure, Failed):
            cause.env_id, cause.traceback = failure.env_id, failure.remote_traceback
            cause.what = f"raised in {failure.phase}: {failure.summary}"
        elif failure.doing is not None:
            cause.env_id = failure.doing.env_id
            cause.what = f"ended its worker, which {failure.how_it_ended}, in its {failure.doing.phase}"
        return cause


def crash_cause(info: Mapping[str, object]) -> CrashCause | None:
    """Return the cause that the info of a crash row has; None for any other info, even one with a key "restarted"."""
    cause = info.get("restarted")
    return cause if isinstance(cause, CrashCause) else None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
