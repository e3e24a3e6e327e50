"""Whether the rows of a VecEnv are what raw environments say, bit for bit: all that tests of real ones share."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from oracles import Moment, Tape, identical
from row_tools import same

from pufferlib.layout import observation_layout

__all__ = ["compare", "global_generators"]


def compare(
    vec: Any, tapes: Sequence[Tape], num_moments: int, generated: bool = False, timeout: float = 60
) -> Counter[str]:
    """Play vec until each environment has this many moments; return how often what happened.

    tapes: of the raw environments, one each. generated: agents appear while they run. Raises AssertionError at the
    first row that differs.
    """
    events: Counter[str] = Counter()
    positions = [0] * vec.num_envs
    rows = Comparison(vec, generated)
    vec.async_reset()
    while min(positions) < num_moments:
        batch = vec.recv(timeout=timeout)
        actions, num_infos = vec.action_space.sample(), 0  # random ones go to places without an agent
        for slot, env_id in enumerate(batch.env_ids.tolist()):
            moment = tapes[env_id][positions[env_id]]
            rows.expect(moment, batch, slot)
            rows.act(moment, actions, slot)
            events.update(moment.events)
            num_infos += len(moment.infos)
            positions[env_id] += 1
        assert len(batch.infos) == num_infos
        vec.send(actions)
    return events


def global_generators() -> str:
    return repr((random.getstate(), np.random.get_state()))


class Comparison:
    """Says whether the rows of a VecEnv are what the raw environments said, and makes rows of raw actions."""

    def __init__(self, vec: Any, generated: bool) -> None:
        self.vec = vec
        self.generated = generated  # agents, whose layouts are not known at the start
        self.layouts: dict[int, tuple[Any, Any]] = {}

    def expect(self, moment: Moment, batch: Any, slot: int) -> None:
        """Assert that one environment's rows of a batch are this moment."""
        n = self.vec.agents_per_env
        env_id = batch.env_ids[slot].item()
        where = slice(slot * n, (slot + 1) * n)
        assert batch.agent_ids[where].tolist() == list(range(env_id * n, (env_id + 1) * n))
        rewards = np.array([moment.rewards.get(agent_index, 0.0) for agent_index in range(n)], np.float32)
        assert batch.rewards.dtype == np.float32
        assert np.array_equal(batch.rewards[where], rewards)
        for flags, expected in ((batch.terminations, moment.terminations), (batch.truncations, moment.truncations)):
            assert flags[where].tolist() == [expected.get(agent_index, False) for agent_index in range(n)]
        assert batch.masks[where].tolist() == [agent_index in moment.rewards for agent_index in range(n)]
        actual = batch.observations[where]
        expected = np.zeros_like(actual)
        for agent_index, observation in moment.observations.items():
            layout = self.layout(agent_index, moment.spaces[agent_index])
            value = part(actual, agent_index, layout)
            if layout.is_leaf:  # of which decoding is the identity
                assert np.asarray(observation).dtype == value.dtype
                part(expected, agent_index, layout)[...] = observation
            else:
                assert same(layout.decode(value), observation)
                part(expected, agent_index, layout)[...] = value
        assert np.array_equal(actual, expected)  # which has zeros behind smaller observations, and for absent agents
        self.expect_infos(moment, [info for info in batch.infos if info["env_id"] == env_id], env_id * n)

    def expect_infos(self, moment: Moment, infos: list[Any], first_agent: int) -> None:
        assert len(infos) == len(moment.infos)
        for info in infos:
            agent_id = info.get("agent_id")
            expected = dict(moment.infos[None if agent_id is None else agent_id - first_agent])
            actual = {key: value for key, value in info.items() if key not in ("env_id", "agent_id", "episode")}
            episode = expected.pop("episode", None)
            assert identical(actual, expected)
            assert ("episode" in info) == (episode is not None)
            if episode is not None:
                assert info["episode"].keys() == {"r", "l", "t"}
                assert math.isclose(info["episode"]["r"], episode["r"], rel_tol=1e-12)
                assert info["episode"]["l"] == episode["l"]
                assert info["episode"]["t"] > 0

    def layout(self, agent_index: int, space: Any) -> Any:
        """Return the layout of an agent's observations: where agents are generated, of the space it was born with."""
        if not self.generated:
            return self.vec.observation_layouts[agent_index]
        if id(space) not in self.layouts:
            self.layouts[id(space)] = (space, observation_layout(space))
        return self.layouts[id(space)][1]

    def act(self, moment: Moment, actions: Any, slot: int) -> None:
        """Put the raw actions of an environment's agents into their rows."""
        for agent_index, action in moment.actions.items():
            layout = self.vec.action_layouts[agent_index]
            value = action if self.generated or layout.is_leaf else layout.flatten(action)
            row = slot * self.vec.agents_per_env + agent_index
            actions[row : row + 1].reshape(-1)[: np.size(value)] = np.ravel(value)


def part(rows: Any, agent_index: int, layout: Any) -> Any:
    """Return a view of an agent's flat observation at the start of its row, which may be larger."""
    row = rows[agent_index : agent_index + 1].reshape(-1)
    if row.dtype != layout.dtype:
        row = row.view(np.uint8)
    size = math.prod(layout.shape) * layout.dtype.itemsize // row.itemsize
    return row[:size].view(layout.dtype).reshape(layout.shape)
