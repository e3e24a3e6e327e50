"""Play the environments of a VecEnv with a script, in whatever order their rows arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from pufferlib.recording.rows import Reader, Row
from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch, VecEnv

__all__ = ["After", "Arrival", "Part", "play"]

Action = tuple[Array, ...]  # of all of an environment's agents, one array for each component of the action space
After = Callable[[int, int], None] | None


class Arrival(NamedTuple):
    """The rows that have just arrived from one environment.

    batch_index: the environment's index in the batch. is_last: whether the episode is over and the VecEnv does not
    reset environments itself, so that ``play`` will reset this environment instead of sending it an action.
    """

    env_id: int
    batch: Batch
    batch_index: int
    row: Row
    is_last: bool


class Part(Protocol):
    """The interface of a script, which chooses the actions of environments and receives their rows."""

    def is_done(self, env_id: int) -> bool:
        """Return whether this environment needs no further steps."""

    def take(self, arrival: Arrival) -> None:
        """Receive the next rows of an environment that is not done."""

    def action(self, env_id: int) -> Action:
        """Return the action that follows the last rows of an environment that is not done."""

    def progress(self) -> tuple[int, int]:
        """Return the number of rows received so far, and the number of rows to receive in total."""


def play(vec: VecEnv, reader: Reader, seeds: tuple[int, ...], part: Part, after: After) -> None:
    """Reset all environments, and play them with a script until all are done.

    vec: a VecEnv with on_error="restart", so that every action and reset yields rows. seeds: the seed of each
    environment's first reset. part: the script. after: if not None, called after each batch with the number of steps so
    far and the total number.

    If environments that are done are needed to fill a batch, they are reset, which is always allowed and needs no
    action.
    """
    batch_size = vec.agents_per_batch // vec.agents_per_env
    disabled = vec.autoreset_mode == "disabled"
    vec.async_reset(seed=seeds)
    coming = vec.num_envs
    overs: set[int] = set()
    waiting: dict[int, None] = {}  # a set in the order of arrival
    while True:
        batch = vec.recv()
        coming -= batch_size
        infos = reader.infos(batch)
        ids = batch.env_ids.tolist()
        for index, env_id in enumerate(ids):
            waiting[env_id] = None
            if not part.is_done(env_id):
                row = reader.row(batch, index, infos.get(env_id, ()))
                is_last = disabled and row.over and row.crash is None
                (overs.add if is_last else overs.discard)(env_id)
                part.take(Arrival(env_id, batch, index, row, is_last))
        if after is not None:
            after(*(max(0, rows - vec.num_envs) for rows in part.progress()))
        if all(map(part.is_done, range(vec.num_envs))):
            return
        actions: dict[int, Action] = {}
        resets, spare = [], []
        for env_id in waiting:
            if part.is_done(env_id):
                spare.append(env_id)
            elif env_id in overs:
                resets.append(env_id)
            else:
                actions[env_id] = part.action(env_id)
        resets += spare[: max(0, batch_size - coming - len(actions) - len(resets))]
        if actions:
            joined = tuple(map(np.concatenate, zip(*actions.values(), strict=True)))
            # Send without env_ids if possible, as learners do: the fast path.
            everyone = list(actions) == ids
            vec.send(joined if len(joined) > 1 else joined[0], env_ids=None if everyone else list(actions))
        if resets:
            vec.async_reset(env_ids=resets)
        coming += len(actions) + len(resets)
        for env_id in (*actions, *resets):
            del waiting[env_id]
