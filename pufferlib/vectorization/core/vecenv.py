"""VecEnv: many environments behind one object. What users see, whatever runs the environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np

from pufferlib.errors import CallError
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.infos import Infos

__all__ = ["VecEnv"]

Array = np.ndarray[Any, Any]


class VecEnv(ABC):
    """Many environments stepped at once; see ``pufferlib.make``, which makes one.

    Serial, Multiprocessing, Pool and Ray have workers step them (driver/worker_vecenv.py), CUDA has kernels.
    """

    backend: ClassVar[str]  # its word in ``make``

    num_envs: int  # environments
    num_workers: int  # that step them: processes, or 1 where this process or a device does
    batch_size: int  # environments in a batch
    agents_per_env: int  # rows of an environment
    agents_per_batch: int  # rows of a batch
    multi_agent: bool  # True where an environment has several agents, whose infos are told apart
    single_observation_space: gymnasium.Space[Any]  # of one row
    single_action_space: gymnasium.Space[Any]  # of one row
    observation_space: gymnasium.Space[Any]  # of a batch
    action_space: gymnasium.Space[Any]  # of a batch
    observation_layout: Any  # a ``Layout``: what a row of observations holds
    action_layout: Any  # an ``ActionLayout``: what a row of actions becomes
    observation_layouts: tuple[Any, ...]  # one a place, of its agent, which may see less than a row holds
    action_layouts: tuple[Any, ...]  # one a place
    agent_names: tuple[str, ...]  # one a place; () where there is one agent, or where places change hands
    copies_per_env: int  # environments in each environment: more than 1 where that is vectorized already, a row each
    autoreset_mode: str  # "next_step", "same_step" or "disabled"
    metadata: dict[str, Any]  # an environment's, and "autoreset_mode" as Gymnasium has it
    render_mode: str | None  # of each environment
    spec: Any  # an environment's; None where it has none

    def _look_like(
        self, env_spec: Any, num_envs: int, batch_size: int, autoreset_mode: str, num_workers: int = 1
    ) -> None:
        """Copy the attributes of an EnvSpec (messages.py)."""
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
        self, seed: int | Sequence[int] | None = None, options: Any = None, env_ids: Sequence[int] | None = None
    ) -> tuple[Array, Infos]:
        """Start new episodes and return (observations, infos) of the next batch.

        Actions already sent are executed first and their rows dropped. seed, options, env_ids: as ``async_reset`` has
        them; with ``env_ids`` the rows of the others come back unchanged, all masks False.
        """
        if env_ids is not None and self.batch_size < self.num_envs:
            raise CallError(
                f"reset(env_ids=…) returns all rows, but batch_size={self.batch_size} is less than "
                f"num_envs={self.num_envs}; use async_reset(env_ids=…), whose rows come by recv"
            )
        self.async_reset(seed, options, env_ids)
        batch = self.recv()
        return batch.observations, batch.infos

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, Infos]:
        """Send actions and return (observations, rewards, terminations, truncations, infos) of the next batch."""
        self.send(actions)
        return self.recv()[:5]

    # ----------------------------------------------------------------------------------------- asynchronous use

    @abstractmethod
    def async_reset(
        self, seed: int | Sequence[int] | None = None, options: Any = None, env_ids: Sequence[int] | None = None
    ) -> None:
        """Start new episodes; their first rows come by ``recv``.

        seed: starts the derivation of all seeds anew; a sequence: one an environment; None: each environment goes on
            with its own generator (its first reset is seeded by ``make(seed=…)``).
        options: a mapping for all, or a sequence of one an environment.
        env_ids: only these, which must not be in flight. None: all; actions already sent are executed first, and
            their rows dropped.

        Also mends what Ctrl-C has torn; earlier batches are then no longer valid, and worker processes new ones.
        """

    @abstractmethod
    def send(self, actions: Any, env_ids: Sequence[int] | None = None) -> None:
        """Have environments play actions, whose rows come by ``recv``.

        actions: (rows, \\*single_action_space.shape), one row an agent, of the last batch, or of ``env_ids`` in that
            order; for a Tuple space, a tuple of such arrays. Copied. Actions of rows without a living agent, and of
            rows that start an episode next (autoreset), are ignored, but have to be in the space as well.
        Raises ActionError for a wrong shape or dtype, a discrete value outside of the space, or a number that is not
        finite; CallError for environments that do not wait. Nothing is sent then. Finite numbers beyond the bounds of a
        float Box reach the environment as they are.
        """

    @abstractmethod
    def recv(self, timeout: float | None = None) -> Batch:
        """Return the next batch, waiting for it up to ``timeout`` seconds (None: for ever).

        Raises WorkerError if an environment raised or a worker died; the object can then be reset or closed.
        Raises RecvTimeout, and loses nothing; CallError if so few environments are in flight that no batch can come.
        """

    @property
    @abstractmethod
    def batch(self) -> Batch | None:
        """The last batch that ``recv`` returned, whole; None before the first."""

    @property
    @abstractmethod
    def host_batch(self) -> Batch | None:
        """The same as NumPy arrays, where the environments wrote them: of use with ``device``, as nothing waits for it.

        Valid as long as the batch is.
        """

    @property
    @abstractmethod
    def restarts(self) -> list[int]:
        """How often each environment has been made anew because it, or its worker, failed."""

    # -------------------------------------------------------------------------------------------------- control

    @abstractmethod
    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Return, for each environment, the result of its method ``name``, or its attribute if it is not callable.

        The environments finish first what was sent to them. Results of other processes are copies.
        """

    @abstractmethod
    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Return attribute ``name`` of each environment."""

    @abstractmethod
    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Set attribute ``name``. values: a list or tuple of one an environment, or one value for all."""

    def render(self, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Return what ``render()`` of each environment returns."""
        return self.call("render", env_ids=env_ids)

    @abstractmethod
    def stats(self, *, reset: bool = False) -> Any:
        """Return where the time went since the beginning, or since ``stats(reset=True)``, and what would be faster.

        Step and reset times of environments, busy shares of workers, shares of the learner, and a verdict in words;
        print it. It is noted all the time, for about a hundredth of it.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all environments. Safe to call again, after any error, and from any thread."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether ``close`` has been called."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CallError(
            f"a {type(self).__name__} cannot be pickled or copied, as its workers belong to one object in one process; "
            "pass on what makes one, such as functools.partial(pufferlib.make, …), and call that there"
        )

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def gymnasium_autoreset_mode(name: str) -> Any:
    """Return Gymnasium's AutoresetMode of this name, or the name where Gymnasium (0.29) has none."""
    mode = getattr(gymnasium.vector, "AutoresetMode", None)
    return name if mode is None else mode[name.upper()]
