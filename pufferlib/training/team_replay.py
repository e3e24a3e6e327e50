"""The replay buffer of trainers for teams: sequences of the joint steps of all agents of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.layout import Layout
from pufferlib.training.replay_buffer import require_memory, size_note

__all__ = ["Sequences", "TeamReplay"]

NUM_REDRAWS = 64  # of sequences that begin with no transition, such as at a reset


class Sequences(NamedTuple):
    """A minibatch of sequences: in each, the joint steps of one environment's agents, one after another."""

    observations: Tensor  # (steps + 1, sequences, agents, *layout.shape)
    actions: Tensor  # (steps, sequences, agents, *action_shape)
    rewards: Tensor  # (steps, sequences, agents) float32, the outcomes of these actions; 0 where not acted
    acted: Tensor  # (steps, sequences, agents) bool: the agent was there, and its action had an outcome
    alive: Tensor  # (steps, sequences, agents) bool: the agent acted, and the step did not terminate it
    starts: Tensor  # (steps + 1, sequences, agents) bool: the agent's episode begins with this observation
    memory: Tensor  # (sequences, agents, memory_size) float32: the policy's state before the first observation

    def to(self, device: str) -> Sequences:
        """Return the columns on a device."""
        return Sequences(*(column.to(device) for column in self))


class TeamReplay:
    """The newest rows of each environment in the order of time, with all its agents side by side.

    A sequence may cross the end of an episode: ``acted`` is False in the step to the reset's row, and ``starts`` is
    True there. So a truncated episode's last observation is followed by a value, and a terminated one's is not.

    vec: the environments. layout: the layout of the stored observations. capacity: the number of steps of single agents
    that are kept; each environment has an equal share. action_shape, action_dtype: of one action. num_steps: the number
    of joint steps in a sequence. memory_size: the size of a recurrent policy's state, which is stored with each row; 0
    for a policy without one.

    Attributes: ``num_added``, the number of agents' steps ever added; ``capacity``, the number of rows that are kept;
    ``nbytes``, the size of a full buffer, and about that of its state.

    Raises PlanError if an environment's share is less than a sequence, or if the buffer does not fit in the available
    memory.
    """

    def __init__(
        self,
        vec: pufferlib.VecEnv,
        layout: Layout,
        capacity: int,
        action_shape: tuple[int, ...] = (),
        action_dtype: Any = np.int64,
        *,
        num_steps: int = 1,
        memory_size: int = 0,
    ) -> None:
        self.num_agents, self.num_steps = vec.agents_per_env, num_steps
        self.rows_per_env = capacity // (vec.num_envs * self.num_agents)
        if self.rows_per_env <= num_steps:
            least = (num_steps + 1) * vec.num_envs * self.num_agents
            raise PlanError(
                f"buffer_size={capacity} is less than a sequence of {num_steps} joint steps in each of {vec.num_envs} "
                f"environments with {self.num_agents} agents; use {least} or more"
            )
        kinds: dict[str, tuple[tuple[int, ...], Any]] = {
            "observations": (tuple(layout.shape), layout.dtype),
            "actions": (action_shape, action_dtype),
            "rewards": ((), np.float32),
            "masks": ((), np.bool_),
            "terminations": ((), np.bool_),
            "memory": ((memory_size,), np.float32),
        }
        self.num_added, self.capacity = 0, vec.num_envs * self.rows_per_env * self.num_agents
        sides = (vec.num_envs, self.rows_per_env, self.num_agents)
        self.nbytes = int(
            np.prod(sides) * sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in kinds.values())
        )
        require_memory(capacity, self.nbytes)
        self.columns = {name: np.zeros((*sides, *shape), kind) for name, (shape, kind) in kinds.items()}
        self.num_rows = np.zeros(vec.num_envs, np.int64)  # of each environment, ever

    def __len__(self) -> int:
        """Return the number of sequences that can be drawn."""
        return int(self._num_begins().sum())

    def note(self, total_steps: int) -> str:
        """Return a sentence that states the largest size of this buffer in the checkpoints of a run."""
        return size_note(self.nbytes * min(1.0, 2 * total_steps / self.capacity))  # with the rows of resets

    def add(
        self,
        batch: pufferlib.Batch,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminations: np.ndarray,
        memory: np.ndarray | None = None,
    ) -> int:
        """Add a batch's rows; return the number of agents' steps whose outcome they bring.

        batch: a Batch of arrays. observations: the policy's inputs, (rows, *layout.shape). actions: what was decided
        for these rows, (rows, *action_shape). rewards, terminations: the outcomes of the previous actions, (rows,).
        memory: the policy's states before these rows, (rows, memory_size). Nothing of the arguments is kept.
        """
        env_ids = batch.env_ids
        slots = self.num_rows[env_ids] % self.rows_per_env
        masks = batch.masks
        values: dict[str, np.ndarray | None] = {
            "observations": observations,
            "actions": actions,
            "rewards": np.where(masks, rewards, 0),
            "masks": masks,
            "terminations": terminations,
            "memory": memory,
        }
        for name, rows in values.items():
            if rows is not None:
                self.columns[name][env_ids, slots] = rows.reshape(len(env_ids), self.num_agents, *rows.shape[1:])
        self.num_rows[env_ids] += 1
        num_steps = int(masks.sum())
        self.num_added += num_steps
        return num_steps

    def sample(self, num_sequences: int, generator: torch.Generator) -> Sequences:
        """Return sequences, drawn uniformly with replacement from those that begin with a transition.

        generator: a generator on the CPU. ``len(self)`` must be 1 or more.
        """
        counts = self._num_begins()
        bounds = counts.cumsum()
        env_ids, begins = self._draw(num_sequences, bounds, counts, generator)
        masks = self.columns["masks"]
        for _ in range(NUM_REDRAWS):
            idle = (~masks[env_ids, (begins + 1) % self.rows_per_env].any(1)).nonzero()[0]
            if not len(idle):
                break
            env_ids[idle], begins[idle] = self._draw(len(idle), bounds, counts, generator)
        slots = (begins + np.arange(self.num_steps + 1)[:, None]) % self.rows_per_env  # (num_steps + 1, num_sequences)

        def rows(name: str, of: slice) -> Tensor:
            return torch.from_numpy(self.columns[name][env_ids, slots[of]])

        all_rows, before, after = slice(None), slice(None, -1), slice(1, None)
        acted = rows("masks", after)
        return Sequences(
            rows("observations", all_rows),
            rows("actions", before),
            rows("rewards", after),
            acted,
            acted & ~rows("terminations", after),
            ~rows("masks", all_rows),
            rows("memory", slice(0, 1))[0],
        )

    def state(self) -> dict[str, Any]:
        """Return all stored rows and their numbers."""
        used = min(int(self.num_rows.max()), self.rows_per_env)
        columns = {name: torch.from_numpy(column[:, :used].copy()) for name, column in self.columns.items()}
        num_rows = torch.from_numpy(self.num_rows.copy())
        return {"columns": columns, "num_rows": num_rows, "num_added": self.num_added}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned, from a buffer for the same environments and capacity."""
        self.num_rows[:], self.num_added = state["num_rows"].numpy(), state["num_added"]
        for name, values in state["columns"].items():
            self.columns[name][:, : values.shape[1]] = values.numpy()

    def _num_begins(self) -> np.ndarray:
        """Return for each environment the number of rows with which a sequence can begin."""
        begins: np.ndarray = np.maximum(np.minimum(self.num_rows, self.rows_per_env) - self.num_steps, 0)
        return begins

    def _draw(
        self, num: int, bounds: np.ndarray, counts: np.ndarray, generator: torch.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the (environments, slots) of first rows. bounds, counts: of ``_num_begins``, sums and numbers."""
        drawn = torch.randint(int(bounds[-1]), (num,), generator=generator).numpy()
        env_ids = bounds.searchsorted(drawn, side="right")
        oldest = np.maximum(self.num_rows - self.rows_per_env, 0)
        ages = drawn - (bounds - counts)[env_ids]
        return env_ids, (oldest[env_ids] + ages) % self.rows_per_env
