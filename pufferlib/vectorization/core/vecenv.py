"""VecEnv: many environments behind one object, with the same user interface on every backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, SupportsIndex

import gymnasium
from gymnasium.envs import registration

from pufferlib.errors import CallError
from pufferlib.layout import Layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import Array, EnvCreator, Metadata, Options, ResetSeed
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.messages import EnvSpec

if TYPE_CHECKING:
    from pufferlib.telemetry.stats import Stats

__all__ = ["Failures", "VecEnv"]


class Failures(NamedTuple):
    """Why environments were made again: counts, in the order of the env ids."""

    at_fault: list[int]  # the environment raised, or its worker died while it stepped or reset this environment
    unexplained: list[int]  # its worker died while it did neither, or nobody knows what it did


class VecEnv(ABC):
    """A set of environments that are stepped together, created by ``pufferlib.make``.

    In Serial, Multiprocessing, Pool and Ray, workers step the environments; in CUDA, kernels on a device do.
    A batch holds ``batch_size`` environments, each with ``agents_per_env`` rows, one row per agent.
    """

    backend: str  # its name in ``make``

    num_envs: int  # environments
    num_workers: int  # workers that step them; 1 for this process, or for a device
    batch_size: int  # environments in a batch
    agents_per_env: int  # rows of an environment
    agents_per_batch: int  # rows of a batch
    multi_agent: bool  # True if an environment has several agents; then an info has an agent_id
    single_observation_space: gymnasium.Space[object]  # of one row
    single_action_space: gymnasium.Space[object]  # of one row
    observation_space: gymnasium.Space[object]  # of a batch
    action_space: gymnasium.Space[object]  # of a batch
    observation_layout: Layout  # of a row of observations
    action_layout: ActionLayout  # of a row of actions
    observation_layouts: tuple[Layout, ...]  # one per agent index; an agent may observe less than a row holds
    action_layouts: tuple[ActionLayout, ...]  # one per agent index
    agent_names: tuple[str, ...]  # one per agent index; () for one agent, or if the agent at an index can change
    copies_per_env: int  # environments in each environment, one row each; above 1 if it is itself vectorized
    autoreset_mode: str  # "next_step", "same_step" or "disabled"
    metadata: Metadata  # of an environment, with "autoreset_mode" as a gymnasium.vector.AutoresetMode
    render_mode: str | None  # of each environment
    spec: registration.EnvSpec | None  # of an environment; None if it has none

    def _look_like(
        self, env_spec: EnvSpec, num_envs: int, batch_size: int, autoreset_mode: str, num_workers: int = 1
    ) -> None:
        """Set this VecEnv's public attributes from an EnvSpec (messages.py) and the other arguments.

        autoreset_mode: the mode if env_spec has none.
        """
        self.num_envs, self.num_workers, self.batch_size = num_envs, num_workers, batch_size
        self.agents_per_env = env_spec.num_agents
        self.copies_per_env = 1 if env_spec.autoreset_mode is None else env_spec.num_agents
        self.agents_per_batch = batch_size * env_spec.num_agents
        self.multi_agent = env_spec.multi_agent
        self.single_observation_space = env_spec.observation_space
        self.single_action_space = env_spec.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(env_spec.observation_space, self.agents_per_batch)
        self.action_space = gymnasium.vector.utils.batch_space(env_spec.action_space, self.agents_per_batch)
        self.observation_layout = env_spec.observation_layout
        self.action_layout = env_spec.action_layout
        self.observation_layouts = env_spec.observation_layouts
        self.action_layouts = env_spec.action_layouts
        self.agent_names = env_spec.agent_names
        self.autoreset_mode = autoreset_mode = env_spec.autoreset_mode or autoreset_mode
        self.metadata = {**env_spec.metadata, "autoreset_mode": gymnasium_autoreset_mode(autoreset_mode)}
        self.render_mode = env_spec.render_mode
        self.spec = env_spec.spec

    # ------------------------------------------------------------------------------------------ synchronous use

    def reset(
        self, seed: ResetSeed = None, options: Options = None, env_ids: Sequence[int] | None = None
    ) -> tuple[Array, Infos]:
        """Start new episodes and return (observations, infos) of the next batch.

        observations: (rows, \\*single_observation_space.shape). seed, options, env_ids: see ``async_reset``. With
        ``env_ids``, the rows of all other environments are returned unchanged, and every mask in ``batch`` is False.
        Without ``env_ids``, actions already sent are executed first, and their rows dropped.
        Raises the errors of ``async_reset`` and ``recv``; also CallError for ``env_ids`` if batch_size < num_envs.
        """
        if env_ids is not None and self.batch_size < self.num_envs:
            raise CallError(
                f"reset(env_ids=…) returns all rows, but batch_size={self.batch_size} is less than "
                f"num_envs={self.num_envs}; use async_reset(env_ids=…), whose rows come by recv"
            )
        self.async_reset(seed, options, env_ids)
        batch = self.recv()
        return batch.observations, batch.infos

    def step(self, actions: object) -> tuple[Array, Array, Array, Array, Infos]:
        """Send actions and return (observations, rewards, terminations, truncations, infos) of the next batch.

        Raises the errors of ``send`` and ``recv``.
        """
        self.send(actions)
        return self.recv()[:5]

    # ----------------------------------------------------------------------------------------- asynchronous use

    @abstractmethod
    def async_reset(
        self, seed: ResetSeed = None, options: Options = None, env_ids: Sequence[int] | None = None
    ) -> None:
        """Start new episodes; ``recv`` returns their first rows.

        seed: an int from which the seeds of all environments are derived; a sequence with one seed (or None) for each
            environment to reset; or None for no new seeds. An environment without a new seed continues with its random
            generator; for its first reset, it gets a seed that is derived from ``make(seed=…)``.
        options: a mapping for all environments, or a sequence with one mapping (or None) for each environment to reset.
        env_ids: the environments to reset, none of which may be in flight; by default, all of them, once the actions
            already sent have been executed and their rows dropped.

        Raises PlanError for an invalid seed or options; CallError for env_ids that do not exist or are in flight, or
        for options that cannot be serialized; PlatformError if a worker that died cannot be replaced.
        """

    @abstractmethod
    def send(self, actions: object, env_ids: Sequence[int] | None = None) -> None:
        """Send actions to environments; ``recv`` returns the resulting rows.

        actions: (rows, \\*single_action_space.shape), one row per agent; for a Tuple space, a tuple of such arrays.
            They are copied. Actions of rows without a living agent, and of rows whose next step starts an episode
            (autoreset), are ignored, but must be valid as well.
        env_ids: the environments to which the actions belong, in the order of the actions; by default, the environments
            of the last batch.

        Raises ActionError for a wrong shape or dtype, a discrete value outside the space, or a number that is not
        finite; CallError if an environment is not waiting for an action. In either case, nothing is sent. Finite
        numbers beyond the bounds of a float Box are passed to the environment unchanged.
        """

    @abstractmethod
    def recv(self, timeout: float | None = None) -> Batch:
        """Return the next batch. timeout: how many seconds to wait for it; by default, without a limit.

        Raises WorkerError if an environment raised or a worker died; the VecEnv can then be reset or closed. Raises
        RecvTimeout if no batch is ready in time; no row is lost, so that the next call can return the batch. Raises
        CallError if fewer environments are in flight than a batch holds, or if an environment that the batch waits for
        has failed; PlanError for a timeout that is no number.
        """

    @property
    @abstractmethod
    def batch(self) -> Batch | None:
        """The last batch that ``recv``, ``reset`` or ``step`` has received; None before the first."""

    @property
    @abstractmethod
    def host_batch(self) -> Batch | None:
        """The last batch as NumPy arrays, in the memory that the environments wrote; None before the first.

        It is valid as long as the batch is. With ``device``, it can be read without waiting for the device, except on
        the backend "cuda" with a GPU, where it is a copy from the GPU.
        """

    @property
    @abstractmethod
    def restarts(self) -> list[int]:
        """How many times each environment was lost, by env id: it or its worker failed, so that it is made again.

        It counts from the failure on, although the environment is made again only by its next reset.
        """

    # ------------------------------------------------------------------------- for callers that deal out episodes

    @property
    def failures(self) -> Failures:
        """How many of its ``restarts`` each environment has caused, and of how many the cause is unknown.

        In all others, its worker died while it stepped or reset another environment.
        """
        return Failures([0] * self.num_envs, [0] * self.num_envs)

    @property
    def ready(self) -> bool:
        """Whether ``recv`` would return at once; False if that is not known without waiting."""
        return False

    def idle(self, env_ids: Sequence[int]) -> None:
        """Complete the next batches with rows of waiting environments, without stepping these environments.

        Use it if there is work for fewer environments than a batch holds. The rows have mask False, and their other
        contents have no meaning. The environments' episodes are over: reset them before they are sent another action,
        which is refused with autoreset_mode="disabled", and is answered by a reset in the other modes. env_ids: the
        environments. Raises CallError if an environment is not waiting for an action.
        """
        self.async_reset([0] * len(env_ids), env_ids=env_ids)

    def remake(self, env_ids: Sequence[int], creators: Sequence[EnvCreator] | None = None) -> None:
        """Replace each of these environments with a new one at its next ``reset`` or ``async_reset``.

        Resets at the end of an episode do not count. If that call has no seed, the new environment gets one that none
        has had, which is derived from the VecEnv's seed.

        With the backend "cuda" this does nothing, since a reset of a kernel's environment leaves nothing of its state.
        env_ids: the environments. creators: callables without arguments, one for each, that make these environments
        from then on, with the same spaces as the others; by default those that made the present ones. Raises CallError
        if this VecEnv cannot replace environments, or if there is not one creator for each.
        """
        raise CallError(f"a {self._title} cannot make its environments again; make another one")

    # -------------------------------------------------------------------------------------------------- control

    @abstractmethod
    def call(self, name: str, *args: object, env_ids: Sequence[int] | None = None, **kwargs: object) -> list[object]:
        """Call method ``name`` of each environment and return the results; for a plain attribute, return its values.

        env_ids: the environments, in the order of the results; by default, all. Each environment first executes the
        actions already sent to it. Results from other processes are copies. Raises WorkerError if an environment raises
        or has no such attribute; CallError if env_ids are invalid, if the arguments cannot be serialized, or if a
        worker has died.
        """

    @abstractmethod
    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[object]:
        """Return attribute ``name`` of each environment. env_ids and errors: see ``call``."""

    @abstractmethod
    def set_attr(self, name: str, values: object, env_ids: Sequence[int] | None = None) -> None:
        """Set attribute ``name`` of each environment. env_ids and errors: see ``call``.

        values: a list or tuple with one value per environment, or one value for all. Raises PlanError if their number
        is wrong.
        """

    def render(self, env_ids: Sequence[int] | None = None) -> list[object]:
        """Return the result of each environment's ``render()``. env_ids and errors: see ``call``."""
        return self.call("render", env_ids=env_ids)

    @abstractmethod
    def stats(self, *, reset: bool = False) -> Stats:
        """Return ``Stats``: where the time went, and which settings would be faster. Print it for a table.

        It covers the time since ``make`` or the last ``stats(reset=True)``: the environments' step and reset times, the
        fraction of time each worker was busy, the shares of time that the learner spent inside and outside ``send`` and
        ``recv``, and a verdict as text. Recording adds about 1 % to the time of a step. Raises CallError if
        ``backend_kwargs={"telemetry": False}`` has turned recording off.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all environments and end all workers. It can be called again, after any error, and from any thread."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether ``close`` has been called."""

    @property
    def _title(self) -> str:
        """The name of this VecEnv in error messages."""
        return type(self).__name__

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise CallError(
            f"a {self._title} cannot be pickled or copied, as its workers belong to one object in one process; "
            "pass on a function that makes one, such as functools.partial(pufferlib.make, …), and call it there"
        )

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def gymnasium_autoreset_mode(name: str) -> object:
    """Return Gymnasium's AutoresetMode with this name, or the name itself if Gymnasium (0.29) has no such enum."""
    mode = getattr(gymnasium.vector, "AutoresetMode", None)
    return name if mode is None else mode[name.upper()]
