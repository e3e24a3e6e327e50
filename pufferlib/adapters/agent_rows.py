"""AgentRows, which presents each agent of a multi-agent VecEnv as a separate environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pufferlib.errors import CallError, PlanError, SpaceError
from pufferlib.util.annotations import Options, ResetSeed
from pufferlib.vectorization import Batch, Infos, VecEnv
from pufferlib.vectorization.core.vecenv import Failures

if TYPE_CHECKING:
    from pufferlib.telemetry.stats import Stats

__all__ = ["AgentRows"]


OF_THE_ENV = ("env_id", "env", "episode", "final_info")  # keys that are not copied from an environment's info to agents
INSTEAD = "use pufferlib.make, whose masks mark the rows that count"


class AgentRows(VecEnv):
    """A VecEnv with one environment per row of ``vec``; ``num_envs`` is ``vec.num_envs * vec.agents_per_env``.

    The agents of an environment must have identical spaces and episodes that end together. Environment i is agent i % n
    of environment i // n of ``vec``, where n is ``vec.agents_per_env``. Batches are NumPy arrays; their ``env_ids`` are
    the ``agent_ids`` of ``vec``.

    Each row has at most one info: the agent's entries and those that its environment reports for no particular agent,
    except "env" and "episode". Sequences of seeds, options and attribute values have one entry per row; an environment
    uses only the entry of the first of its rows. ``call`` runs once per environment and repeats the result for each of
    its rows. If the environments of ``vec`` are themselves vectorized, each of their copies is a row, and copies may
    end their episodes at different times.

    Raises SpaceError if agents have different spaces. ``recv`` raises SpaceError if agents take turns, if an agent is
    absent while another acts, or if an agent's episode ends before another's in the same environment. ``async_reset``
    and ``send`` raise CallError if ``env_ids`` lists only some rows of an environment, or not in order.
    """

    def __init__(self, vec: VecEnv) -> None:
        self.vec = vec
        self.backend = vec.backend
        self._num_agents = num = vec.agents_per_env
        self._require_equal_spaces()
        self.num_envs, self.num_workers, self.batch_size = vec.num_envs * num, vec.num_workers, vec.batch_size * num
        self.agents_per_env, self.agents_per_batch = 1, vec.agents_per_batch
        self.multi_agent, self.copies_per_env, self.agent_names = False, 1, ()
        self.single_observation_space, self.single_action_space = vec.single_observation_space, vec.single_action_space
        self.observation_space, self.action_space = vec.observation_space, vec.action_space
        self.observation_layout, self.action_layout = vec.observation_layout, vec.action_layout
        self.observation_layouts, self.action_layouts = vec.observation_layouts[:1], vec.action_layouts[:1]
        self.autoreset_mode, self.metadata = vec.autoreset_mode, vec.metadata
        self.render_mode, self.spec = vec.render_mode, vec.spec
        self._batch: Batch | None = None

    def _name(self, agent_index: int) -> str:
        return repr(self.vec.agent_names[agent_index]) if self.vec.agent_names else f"at index {agent_index}"

    def _require_equal_spaces(self) -> None:
        for what, layouts in (("observes", self.vec.observation_layouts), ("takes", self.vec.action_layouts)):
            for agent_index, layout in enumerate(layouts):
                if layout.space != layouts[0].space:
                    raise SpaceError(
                        f"agent {self._name(agent_index)} {what} {layout.space}, and agent {self._name(0)} "
                        f'{layouts[0].space}, but agents="rows" is for agents with equal spaces; pad them with '
                        "SuperSuit's pad_observations_v0 and pad_action_space_v0, or use pufferlib.make, which pads"
                    )

    # ----------------------------------------------------------------------------------------- asynchronous use

    def async_reset(
        self, seed: ResetSeed = None, options: Options = None, env_ids: Sequence[int] | None = None
    ) -> None:
        if seed is not None and np.ndim(seed):  # type: ignore[arg-type]  # which takes a list with None, too
            seed = list(seed)[:: self._num_agents]  # type: ignore[arg-type]  # one per row
        if options is not None and not isinstance(options, Mapping):
            options = list(options)[:: self._num_agents]
        self.vec.async_reset(seed, options, self._complete_envs(env_ids))

    def send(self, actions: object, env_ids: Sequence[int] | None = None) -> None:
        self.vec.send(actions, self._complete_envs(env_ids))

    def recv(self, timeout: float | None = None) -> Batch:
        self.vec.recv(timeout)
        batch = self.vec.host_batch
        assert batch is not None
        if self.vec.copies_per_env == 1:
            self._require_equal_lives(batch)
        infos = self._infos(batch.infos, batch.agent_ids.tolist())
        self._batch = batch = batch._replace(env_ids=batch.agent_ids, infos=infos)
        return batch

    def _require_equal_lives(self, batch: Batch) -> None:
        shape = (-1, self._num_agents)
        ends, masks = (batch.terminations | batch.truncations).reshape(shape), batch.masks.reshape(shape)
        for uneven, what, others in (
            (masks != masks.max(1, keepdims=True, initial=False), "is absent", "acts"),
            (ends & ~ends.all(1, keepdims=True), "has ended its episode", "goes on"),
        ):
            if uneven.any():
                index, agent_index = np.argwhere(uneven)[0].tolist()
                other = int(np.flatnonzero(~uneven[index])[0])
                raise SpaceError(
                    f"agent {self._name(agent_index)} of environment {batch.env_ids[index]} {what} while agent "
                    f'{self._name(other)} {others}, but agents="rows" is for agents that live equally long; wrap the '
                    f"environment in SuperSuit's black_death_v3, or {INSTEAD}"
                )

    def _infos(self, infos: Sequence[dict[str, Any]], agent_ids: Sequence[int]) -> Infos:
        """Merge a batch's infos into one dict per row, with the row's number as ``env_id``; omit rows without infos.

        Raises SpaceError if agents take turns.
        """
        rows: dict[int, dict[str, Any]] = {}
        shared: list[dict[str, Any]] = []
        for info in infos:
            if info.get("active_agent") is not None and "agent_id" in info:
                raise SpaceError(
                    f'agents take turns (now {info["active_agent"]!r} does), but agents="rows" is for agents that all '
                    "act in each step; use pufferlib.make, whose infos name the agent whose turn it is"
                )
            if "agent_id" in info:
                agent_info = {key: part for key, part in info.items() if key != "agent_id"}
                rows.setdefault(info["agent_id"], {}).update(agent_info, env_id=info["agent_id"])
            else:
                shared.append(info)
        for info in shared:
            first = info["env_id"] * self._num_agents
            for row in range(first, first + self._num_agents):
                _share(info, rows.setdefault(row, {"env_id": row}))
        return Infos([rows[row] for row in sorted(rows) if len(rows[row]) > 1], agent_ids, 1)

    def _complete_envs(self, rows: Sequence[int] | None) -> list[int] | None:
        """Return the environments of these rows; None, which stands for all rows, is returned unchanged.

        Raises CallError unless ``rows`` lists every row of each environment, in order.
        """
        if rows is None:
            return None
        num, ids = self._num_agents, [int(row) for row in rows]
        env_ids = [row // num for row in ids[::num]]
        if ids != [env_id * num + agent_index for env_id in env_ids for agent_index in range(num)]:
            raise CallError(
                f"rows {ids[:8]} are not all rows of their environments, whose {num} agents act and start together; "
                "name all rows of an environment, in order"
            )
        return env_ids

    # -------------------------------------------------------------------------------------------------- control

    @property
    def batch(self) -> Batch | None:
        return self._batch

    @property
    def host_batch(self) -> Batch | None:
        return self._batch

    @property
    def restarts(self) -> list[int]:
        return [count for count in self.vec.restarts for _ in range(self._num_agents)]

    @property
    def failures(self) -> Failures:
        return Failures(*([count for count in counts for _ in range(self._num_agents)] for counts in self.vec.failures))

    def call(self, name: str, *args: object, env_ids: Sequence[int] | None = None, **kwargs: object) -> list[object]:
        envs, per_row = self._envs_of(env_ids)
        results = dict(zip(envs, self.vec.call(name, *args, env_ids=envs, **kwargs), strict=True))
        return [results[env_id] for env_id in per_row]

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[object]:
        envs, per_row = self._envs_of(env_ids)
        values = dict(zip(envs, self.vec.get_attr(name, env_ids=envs), strict=True))
        return [values[env_id] for env_id in per_row]

    def set_attr(self, name: str, values: object, env_ids: Sequence[int] | None = None) -> None:
        envs, per_row = self._envs_of(env_ids)
        if isinstance(values, (list, tuple)):
            if len(values) != len(per_row):
                raise PlanError(f"{len(values)} values for {len(per_row)} rows; give one each, or one for all")
            values = [values[per_row.index(env_id)] for env_id in envs]
        self.vec.set_attr(name, values, env_ids=envs)

    def _envs_of(self, rows: Sequence[int] | None) -> tuple[list[int], list[int]]:
        """Return two lists: the distinct environments of these rows, and the environment of each row.

        Raises CallError if a row does not exist.
        """
        ids = list(range(self.num_envs)) if rows is None else [int(row) for row in rows]
        if wrong := [row for row in ids if not 0 <= row < self.num_envs]:
            raise CallError(f"rows {wrong[:8]} do not exist; there are 0 to {self.num_envs - 1}")
        per_row = [row // self._num_agents for row in ids]
        return list(dict.fromkeys(per_row)), per_row

    def stats(self, *, reset: bool = False) -> Stats:
        return self.vec.stats(reset=reset)

    def close(self) -> None:
        self.vec.close()

    @property
    def closed(self) -> bool:
        return self.vec.closed

    def __repr__(self) -> str:
        return f"AgentRows({self.vec!r})"


def _share(info: dict[str, Any], row: dict[str, Any]) -> None:
    """Copy an environment's info entries into ``row``, an agent's info.

    The keys in OF_THE_ENV and the keys that ``row`` already has are left out. If both infos have a "final_info", merge
    the environment's into the agent's in the same way.
    """
    for key, part in info.items():
        if key not in OF_THE_ENV:
            row.setdefault(key, part)
    if "final_info" in info and "final_info" in row:
        row["final_info"] = dict(row["final_info"])
        _share(info["final_info"], row["final_info"])
