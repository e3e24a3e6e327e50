"""What is kept of an environment's rows: values where they are small, hashes of observations, leaf by leaf."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from pufferlib.vectorization import Batch, VecEnv

__all__ = ["ENV", "Crash", "Episode", "Leaf", "Reader", "Row", "RowSpec"]

Array = np.ndarray[Any, Any]

ENV = -1  # in place of an agent's: the environment as a whole
HASH_NBYTES = 8
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")  # where an object happens to lie; never the same twice
_RAISED = re.compile(r"environment (?P<env_id>\d+) \(worker \d+\) (?P<what>raised in .*)")
_DIED = re.compile(
    r"worker \d+, with environments? [\d to]+, "
    r"(?P<what>.*?) while environment (?P<env_id>\d+) was in its (?P<phase>\w+)"
)


class Leaf(NamedTuple):
    """One array of a nested observation. name: its path, "" of an observation that is one array anyway."""

    name: str
    dtype: str  # as NumPy writes it, such as "<f4"
    shape: tuple[int, ...]


class RowSpec(NamedTuple):
    """What rows look like. leaves: of each agent; all leaves of the others where ``alike``."""

    agents_per_env: int
    leaves: tuple[tuple[Leaf, ...], ...]  # one an agent, or one for all
    actions: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each array that an agent's action consists of

    @classmethod
    def of(cls, vec: VecEnv) -> RowSpec:
        """Return the face of a VecEnv's environments."""
        leaves = tuple(
            tuple(Leaf(leaf.name, leaf.dtype.str, leaf.shape) for leaf in layout.leaves)
            for layout in vec.observation_layouts
        )
        space = vec.single_action_space
        parts = getattr(space, "spaces", None) or (space,)
        actions = tuple((np.dtype(part.dtype).str, tuple(part.shape or ())) for part in parts)
        return cls(vec.agents_per_env, leaves[:1] if len(set(leaves)) == 1 else leaves, actions)

    def leaves_of(self, place: int) -> tuple[Leaf, ...]:
        """Return the leaves of one agent's observation."""
        return self.leaves[place if len(self.leaves) > 1 else 0]

    @property
    def num_leaves(self) -> int:
        """The most leaves of an agent."""
        return max(map(len, self.leaves))


class Episode(NamedTuple):
    """An episode that ended in a row. place: the agent's, or ENV."""

    place: int
    total: float  # the sum of its rewards
    length: int


class Crash(NamedTuple):
    """Why an environment has no row: what happened, in words that are the same on every backend.

    env_id: the environment at fault, which is another one where that took a shared worker with it; None if nobody was.
    traceback: from there; "" of a dead worker.
    """

    env_id: int | None
    text: str
    traceback: str = ""

    @classmethod
    def of(cls, cause: str) -> Crash:
        """Return what ``info["restarted"]`` says, without what depends on workers and on addresses."""
        line, _, rest = cause.strip().partition("\n")
        found = _RAISED.match(line)
        if found is not None:
            return cls(int(found["env_id"]), _ADDRESS.sub("0x…", found["what"]), rest.strip())
        found = _DIED.match(line)
        if found is not None:
            return cls(int(found["env_id"]), f"ended its worker, which {found['what']}, in its {found['phase']}")
        return cls(None, line)


class Row(NamedTuple):
    """One environment's rows of one step: first its agents', shaped as in a Batch, then what is told of all."""

    observations: Array
    hashes: Array  # (agents, leaves) uint64: of the bytes of each leaf
    rewards: Array
    terminations: Array
    truncations: Array
    masks: Array
    episodes: tuple[Episode, ...]
    over: bool  # the environment's episode is
    crash: Crash | None = None


class Reader:
    """Takes batches apart."""

    def __init__(self, vec: VecEnv) -> None:
        self.row_spec = RowSpec.of(vec)
        self._num_agents, self._multi_agent = vec.agents_per_env, vec.multi_agent
        self._cuts = [
            [(leaf.offset, leaf.offset + leaf.nbytes) for leaf in layout.leaves] for layout in vec.observation_layouts
        ]

    def infos(self, batch: Batch) -> dict[int, list[dict[str, Any]]]:
        """Return a batch's infos by environment."""
        told: dict[int, list[dict[str, Any]]] = {}
        for info in batch.infos:
            told.setdefault(info["env_id"], []).append(info)
        return told

    def row(self, batch: Batch, index: int, infos: Sequence[Mapping[str, Any]]) -> Row:
        """Return the rows of a batch's environment ``index``, as views that expire with the batch."""
        mine = slice(index * self._num_agents, (index + 1) * self._num_agents)
        observations = batch.observations[mine]
        episodes, over, crash = [], False, None
        first_agent = int(batch.env_ids[index]) * self._num_agents
        for info in infos:
            if "restarted" in info:
                crash = Crash.of(info["restarted"])
            place = info["agent_id"] - first_agent if "agent_id" in info else ENV
            if info.get("env") is True and (place == ENV or not self._multi_agent):
                over = True
            episode = _episode(place, info.get("episode"))
            if episode is not None:
                episodes.append(episode)
        flags = (batch.terminations[mine], batch.truncations[mine], batch.masks[mine])
        hashes = self._hashes(observations)
        return Row(observations, hashes, batch.rewards[mine], *flags, tuple(sorted(episodes)), over, crash)

    def _hashes(self, observations: Array) -> Array:
        hashes = np.zeros((self._num_agents, self.row_spec.num_leaves), np.uint64)
        for place, cuts in enumerate(self._cuts):
            row = observations[place].tobytes()
            digests = [blake2b(row[start:stop], digest_size=HASH_NBYTES).digest() for start, stop in cuts]
            hashes[place, : len(cuts)] = np.frombuffer(b"".join(digests), "<u8")
        return hashes


def _episode(place: int, told: Any) -> Episode | None:
    """Return an episode's return and length; None where there are none, as in an entry of the environment's own."""
    try:
        return Episode(place, float(np.asarray(told["r"]).item()), int(np.asarray(told["l"]).item()))
    except (TypeError, KeyError, ValueError, IndexError):
        return None
