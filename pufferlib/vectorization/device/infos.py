"""The infos of a batch on a device. Making them waits for the device and copies columns to the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from pufferlib.util.annotations import Array

__all__ = ["Deferred", "Endings"]


@dataclasses.dataclass(frozen=True)
class Endings:
    """The data from which a batch's infos are made: columns of the batch, as tensors on the device, and env ids.

    env_ids: the environment of each slot. mean_step_s: the mean time from one step of an environment to its next, in
    seconds.
    """

    terminations: Any
    truncations: Any
    masks: Any
    ended: Any
    returns: Any
    lengths: Any
    scores: Any
    final_observations: Any
    env_ids: range | Array
    num_agents: int
    multi_agent: bool
    mean_step_s: float

    def copy(self) -> Endings:
        """Return, without waiting for the device, a copy whose columns are new tensors on the device."""
        return dataclasses.replace(
            self, **{name: column.clone() for name, column in vars(self).items() if hasattr(column, "clone")}
        )

    def infos(self) -> tuple[list[dict[str, Any]], int]:
        """Return the infos, and the number of bytes that were copied to the host for them."""
        num_agents = self.num_agents
        over = ((self.terminations | self.truncations) & self.masks).cpu().numpy().reshape(-1, num_agents)
        nbytes = over.nbytes
        if not over.any():
            return [], nbytes
        ended = self.ended.cpu().numpy()
        returns = self.returns.cpu().numpy().reshape(-1, num_agents)
        lengths = self.lengths.cpu().numpy().reshape(-1, num_agents)
        scores = self.scores.cpu().numpy()
        nbytes += ended.nbytes + returns.nbytes + lengths.nbytes + scores.nbytes
        finals = None
        if self.final_observations is not None and ended.any():
            nbytes += self.final_observations.nbytes
            finals = self.final_observations.cpu().numpy()
        env_ids, mean_step_s = np.asarray(self.env_ids), self.mean_step_s
        infos = []
        for slot in np.flatnonzero(over.any(axis=1)).tolist():
            env_id, length = int(env_ids[slot]), int(lengths[slot][over[slot]].max())
            items: list[tuple[int | None, dict[str, Any]]] = [
                (int(agent), {"episode": _episode(returns[slot, agent], lengths[slot, agent], mean_step_s)})
                for agent in np.flatnonzero(over[slot])
            ]
            if ended[slot] and self.multi_agent:
                items.append((None, {"env": True, "episode": _episode(returns[slot].sum(), length, mean_step_s)}))
            elif ended[slot]:
                items[0][1]["env"] = True
            if ended[slot] and not np.isnan(scores[slot]):
                items[-1][1]["score"] = float(scores[slot])
            for agent_index, info in items:
                if finals is not None and ended[slot]:
                    last = dict(info)
                    info.pop("score", None)
                    if agent_index is not None:
                        info["final_obs"] = finals[slot * num_agents + agent_index].copy()  # the next step writes there
                    info["final_info"] = last
                info["env_id"] = env_id
                if agent_index is not None:
                    info["agent_id"] = env_id * num_agents + agent_index
                infos.append(info)
        return infos, nbytes


def _episode(episode_return: Any, length: Any, mean_step_s: float) -> dict[str, Any]:
    return {"r": float(episode_return), "l": int(length), "t": int(length) * mean_step_s}


@dataclasses.dataclass(frozen=True)
class Deferred:
    """A source of infos that makes them when ``read`` is called.

    make: a function that returns the infos; it raises CallError or ClosedError if they can no longer be read.
    """

    make: Callable[[], list[dict[str, Any]]]
    count = None

    def read(self) -> list[dict[str, Any]]:
        """Return the infos."""
        return self.make()

    def column(self, name: str, num_rows: int) -> None:
        """Return None: columns are always computed from the dicts."""

    def keys(self) -> None:
        """Return None: keys are always computed from the dicts."""
