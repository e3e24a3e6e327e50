"""The data recorded for an environment's rows: small values as they are, and a hash of each observation leaf."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch, VecEnv
from pufferlib.vectorization.core.messages import CrashCause, crash_cause

__all__ = ["ENV", "Crash", "Episode", "Leaf", "Reader", "Row", "RowSpec"]


ENV = -1  # in place of an agent's index: the whole environment
HASH_NBYTES = 8
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")  # an object's address, which changes from run to run


class Leaf(NamedTuple):
    """An array of a nested observation. name: its path, or "" if the observation is one array."""

    name: str
    dtype: str  # as NumPy writes it, such as "<f4"
    shape: tuple[int, ...]


class RowSpec(NamedTuple):
    """The arrays in a row of an environment.

    leaves: the leaves of each agent's observation, one entry per agent, or a single entry if all agents have the same.
    """

    agents_per_env: int
    leaves: tuple[tuple[Leaf, ...], ...]  # one per agent, or one for all
    actions: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each array of an agent's action

    @classmethod
    def of(cls, vec: VecEnv) -> RowSpec:
        """Return the RowSpec of a VecEnv's environments."""
        leaves = tuple(
            tuple(Leaf(leaf.name, leaf.dtype.str, leaf.shape) for leaf in layout.leaves)
            for layout in vec.observation_layouts
        )
        space = vec.single_action_space
        parts = getattr(space, "spaces", None) or (space,)
        actions = tuple((np.dtype(part.dtype).str, tuple(part.shape or ())) for part in parts)
        return cls(vec.agents_per_env, leaves[:1] if len(set(leaves)) == 1 else leaves, actions)

    def leaves_of(self, agent_index: int) -> tuple[Leaf, ...]:
        """Return the leaves of one agent's observation."""
        return self.leaves[agent_index if len(self.leaves) > 1 else 0]

    @property
    def num_leaves(self) -> int:
        """The largest number of leaves in any agent's observation."""
        return max(map(len, self.leaves))


class Episode(NamedTuple):
    """An episode that ended in a row. place: the agent's index, or ENV for an episode of the whole environment."""

    place: int
    total: float  # the sum of its rewards
    length: int


class Crash(NamedTuple):
    """The reason why an environment has no row.

    env_id: the environment that caused the crash, which may be another one in the same worker; None if it is unknown.
    text: the cause, which reads the same on every backend unless env_id is None. traceback: the exception's traceback;
    "" for a dead worker.
    """

    env_id: int | None
    text: str
    traceback: str = ""

    @classmethod
    def of(cls, cause: CrashCause) -> Crash:
        """Return the Crash that ``info["restarted"]`` describes.

        If the environment that failed is known, the text is the first line of what it did, without the addresses of
        objects, which may differ from run to run.
        """
        what = cause if cause.env_id is None else _ADDRESS.sub("0x…", cause.what)
        return cls(cause.env_id, what.strip().partition("\n")[0], cause.traceback.strip())


class Row(NamedTuple):
    """The rows of one environment from one step: arrays with one entry per agent, as in a Batch.

    ``episodes``, ``over`` and ``crash`` are not arrays; they have one value for the environment.
    """

    observations: Array
    hashes: Array  # (agents, leaves) uint64: of the bytes of each leaf
    rewards: Array
    terminations: Array
    truncations: Array
    masks: Array
    episodes: tuple[Episode, ...]
    over: bool  # whether the environment's episode is over
    crash: Crash | None = None


class Reader:
    """A reader that splits batches into the rows of single environments."""

    def __init__(self, vec: VecEnv) -> None:
        self.row_spec = RowSpec.of(vec)
        self._num_agents, self._multi_agent = vec.agents_per_env, vec.multi_agent
        self._cuts = [
            [(leaf.offset, leaf.offset + leaf.nbytes) for leaf in layout.leaves] for layout in vec.observation_layouts
        ]

    def infos(self, batch: Batch) -> dict[int, list[dict[str, Any]]]:
        """Return a batch's infos, grouped by env id."""
        env_infos: dict[int, list[dict[str, Any]]] = {}
        infos: Sequence[dict[str, Any]] = batch.infos
        for info in infos:
            env_infos.setdefault(info["env_id"], []).append(info)
        return env_infos

    def row(self, batch: Batch, index: int, infos: Sequence[Mapping[str, Any]]) -> Row:
        """Return the rows of the environment at ``index`` in a batch.

        All arrays except ``hashes`` are views, which expire with the batch. infos: the environment's infos in the
        batch.
        """
        mine = slice(index * self._num_agents, (index + 1) * self._num_agents)
        observations = batch.observations[mine]
        episodes, over, crash = [], False, None
        first_agent = int(batch.env_ids[index]) * self._num_agents
        for info in infos:
            cause = crash_cause(info)
            if cause is not None:
                crash = Crash.of(cause)
            agent_index = info["agent_id"] - first_agent if "agent_id" in info else ENV
            if info.get("env") is True and (agent_index == ENV or not self._multi_agent):
                over = True
            episode = _episode(agent_index, info.get("episode"))
            if episode is not None:
                episodes.append(episode)
        flags = (batch.terminations[mine], batch.truncations[mine], batch.masks[mine])
        hashes = self._hashes(observations)
        return Row(observations, hashes, batch.rewards[mine], *flags, tuple(sorted(episodes)), over, crash)

    def _hashes(self, observations: Array) -> Array:
        hashes = np.zeros((self._num_agents, self.row_spec.num_leaves), np.uint64)
        for agent_index, cuts in enumerate(self._cuts):
            row = observations[agent_index].tobytes()
            digests = [blake2b(row[start:stop], digest_size=HASH_NBYTES).digest() for start, stop in cuts]
            hashes[agent_index, : len(cuts)] = np.frombuffer(b"".join(digests), "<u8")
        return hashes


def _episode(agent_index: int, episode: Any) -> Episode | None:
    """Parse the "episode" entry of an info; return None if it is missing or cannot be parsed."""
    try:
        return Episode(agent_index, float(np.asarray(episode["r"]).item()), int(np.asarray(episode["l"]).item()))
    except (TypeError, KeyError, ValueError, IndexError):
        return None
