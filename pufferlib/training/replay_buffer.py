"""The replay buffer of the off-policy trainers: transitions of one or several steps, drawn uniformly or by priority."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.layout import Layout
from pufferlib.training.sum_tree import SumTree
from pufferlib.util.memory import memory_at_hand, memory_text

__all__ = ["ReplayBuffer", "Sample", "Transitions"]

EPSILON = 1e-6  # added to the magnitude of an error, so that no transition has the priority 0


class Transitions(NamedTuple):
    """Columns of transitions, one row each. A next observation is the true one, never that of a later episode.

    A transition spans m steps: as many as the buffer's ``n_step``, or fewer where the episode ended, or where the
    agent's last action has no outcome. The target for its action's value is
    ``rewards + discounts * where(terminations, 0, value of next_observations)``.
    """

    observations: Tensor  # (rows, *layout.shape) of layout.dtype
    actions: Tensor  # (rows, *action_shape) of action_dtype
    rewards: Tensor  # (rows,) float32: the sum of gamma**k * reward k, for k from 0 to m - 1
    terminations: Tensor  # (rows,) bool: the last step terminated the episode; not set by truncations
    next_observations: Tensor  # like observations: what the agent observed after the last step
    discounts: Tensor  # (rows,) float32: gamma**m

    def to(self, device: str) -> Transitions:
        """Return the columns on a device."""
        return Transitions(*(column.to(device) for column in self))


class Sample(NamedTuple):
    """A minibatch of transitions, and what their draw by priority requires."""

    transitions: Transitions
    serials: np.ndarray  # (rows,) int64: how many transitions had been added before this one
    weights: Tensor | None  # (rows,) float32, the importance-sampling weights; None after a uniform draw


def require_memory(buffer_size: int, nbytes: int) -> None:
    """Raise PlanError if a buffer of this size, which takes ``nbytes``, does not fit in the available memory."""
    at_hand = memory_at_hand()
    if nbytes > at_hand:
        needs = f"needs {memory_text(nbytes)}, and {memory_text(at_hand)} are at hand"
        raise PlanError(f"buffer_size={buffer_size} {needs}; use {int(buffer_size * 0.8 * at_hand / nbytes)} or less")


def size_note(nbytes: float) -> str:
    """Return a sentence that states the largest size of a buffer in the checkpoints of a run."""
    size = memory_text(nbytes) if nbytes >= 2**30 else f"{math.ceil(10 * nbytes / 2**20) / 10:.1f} MiB"
    return f"checkpoints have the replay buffer, {size} at most; --no-keep-buffer leaves it out"


class ReplayBuffer:
    """The newest ``capacity`` transitions of all agents, whichever batches their rows arrive in.

    An action's outcome arrives with the same agent's next row; until then each agent's newest rows are stored
    separately. A transition is stored only if the next row's mask is set, so there are none of reset rows, crash rows
    and absent agents. Rows whose mask is not set end the agent's open transitions, which then span fewer steps.

    vec: the environments. layout: the layout of the stored observations. action_shape, action_dtype: of one action.
    n_step: the number of steps that a transition spans at most. gamma: the discount of a step. priority_exponent: the
    power of a transition's priority to which it is drawn; 0 draws uniformly.

    Attributes: ``num_added``, the number of transitions ever added; ``num_steps``, the number of steps ever received,
    which is larger while transitions of several steps are open; ``nbytes``, the size of a full buffer, and about that
    of its state.

    Raises PlanError if a batch has more than ``capacity`` rows, or if the buffer does not fit in the available memory.
    Sources: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015; Schaul et al.,
    arXiv:1511.05952 (priorities, in proportion to errors).
    """

    def __init__(
        self,
        vec: pufferlib.VecEnv,
        layout: Layout,
        capacity: int,
        action_shape: tuple[int, ...] = (),
        action_dtype: Any = np.int64,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        priority_exponent: float = 0.0,
    ) -> None:
        if capacity < vec.agents_per_batch:
            raise PlanError(f"buffer_size={capacity} is less than the {vec.agents_per_batch} rows of a batch")
        kinds = (
            (layout.shape, layout.dtype),
            (action_shape, np.dtype(action_dtype)),
            ((), np.dtype(np.float32)),
            ((), np.dtype(np.bool_)),
            (layout.shape, layout.dtype),
            ((), np.dtype(np.float32)),
        )  # of Transitions
        self.nbytes = capacity * sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in kinds)
        require_memory(capacity, self.nbytes)
        self.capacity, self.n_step, self.gamma, self.priority_exponent = capacity, n_step, gamma, priority_exponent
        self.num_added, self.num_steps = 0, 0
        self.columns = Transitions(*(torch.from_numpy(np.zeros((capacity, *shape), dtype)) for shape, dtype in kinds))
        self.priorities = SumTree(capacity) if priority_exponent else None  # to the power of priority_exponent
        self.largest_priority = 1.0  # that of transitions without an error so far
        # Each agent's open transitions: those whose first action has its outcome, then the newest row, which waits.
        num_agents = vec.num_envs * vec.agents_per_env
        self._observations = np.zeros((num_agents, n_step, *layout.shape), layout.dtype)
        self._actions = np.zeros((num_agents, n_step, *action_shape), action_dtype)
        self._rewards = np.zeros((num_agents, n_step))  # discounted sums so far
        self._first = np.zeros(num_agents, np.int64)  # the place of the oldest; the next ones are at the next places
        self._num_open = np.zeros(num_agents, np.int64)  # without the newest row

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def note(self, total_steps: int) -> str:
        """Return a sentence that states the largest size of this buffer in the checkpoints of a run."""
        return size_note(self.nbytes * min(1.0, total_steps / self.capacity))

    def add(
        self,
        batch: pufferlib.Batch,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminations: np.ndarray,
    ) -> int:
        """Add the transitions that a batch completes; return the number of steps whose outcome it brings.

        The batch brings the outcomes of the agents' previous actions. Its own observations and actions are stored as
        the agents' newest rows. batch: a Batch of arrays. observations: the policy's inputs for its rows, (rows,
        *layout.shape). actions: what was decided for these rows, (rows, *action_shape). rewards, terminations: the
        outcomes of the previous actions, (rows,). Nothing of the arguments is kept.
        """
        rows, ids = batch.masks.nonzero()[0], batch.agent_ids
        agents = ids[rows]
        if self.n_step > 1:
            self._end(ids[~batch.masks])
        num_open, first = self._num_open[agents], self._first[agents]
        for age in range(self.n_step):  # add the reward to each open transition; the oldest has waited longest
            extends = age <= num_open
            places = (first + age)[extends] % self.n_step
            self._rewards[agents[extends], places] += self.gamma ** (num_open - age)[extends] * rewards[rows][extends]
        ends = terminations[rows] | batch.truncations[rows]
        for age in range(self.n_step):
            due = (age <= num_open) & (ends | (num_open - age == self.n_step - 1))
            if due.any():
                after = rows[due]
                spans = (num_open - age + 1)[due]
                self._store(agents[due], first[due] + age, spans, observations[after], terminations[after])
        is_full = num_open == self.n_step - 1
        self._first[agents] = (first + (is_full & ~ends)) % self.n_step
        self._num_open[agents] = np.where(ends, 0, np.minimum(num_open + 1, self.n_step - 1))
        newest = (self._first[ids] + self._num_open[ids]) % self.n_step
        self._observations[ids, newest], self._actions[ids, newest], self._rewards[ids, newest] = (
            observations,
            actions,
            0,
        )
        self.num_steps += len(rows)
        return len(rows)

    def end(self) -> None:
        """End all agents' open transitions, before their environments are reset; they then span fewer steps."""
        self._end(np.arange(len(self._num_open)))

    def sample(self, num_rows: int, generator: torch.Generator, importance_exponent: float = 1.0) -> Sample:
        """Return ``num_rows`` transitions, drawn with replacement.

        generator: a generator on the CPU. importance_exponent: for draws by priority, how far the weights undo what the
        draw prefers; 1 does so fully. Weights are (len(buffer) * probability) ** -importance_exponent, divided by the
        largest of the minibatch. Draws by priority are stratified: one from each of ``num_rows`` equal shares of the
        total.
        """
        if self.priorities is None:
            rows = torch.randint(len(self), (num_rows,), generator=generator)
            return Sample(self._rows(rows), self._serials(rows.numpy()), None)
        shares = torch.rand(num_rows, dtype=torch.float64, generator=generator).numpy()
        found_rows = self.priorities.find((np.arange(num_rows) + shares) / num_rows * self.priorities.total)
        probabilities = self.priorities[found_rows] / self.priorities.total
        weights = (len(self) * probabilities) ** -importance_exponent
        scaled = torch.from_numpy((weights / weights.max()).astype(np.float32))
        return Sample(self._rows(torch.from_numpy(found_rows)), self._serials(found_rows), scaled)

    def update_priorities(self, serials: np.ndarray, errors: Tensor) -> None:
        """Set the priorities of sampled transitions to the magnitudes of their errors; without priorities, do nothing.

        Transitions that have been overwritten since they were sampled are left out: their rows hold others. serials:
        those of the Sample. errors: (rows,), temporal-difference errors.
        """
        if self.priorities is None:
            return
        current = serials >= self.num_added - self.capacity
        magnitudes = np.abs(errors.detach().cpu().numpy().astype(np.float64))[current] + EPSILON
        self.priorities[serials[current] % self.capacity] = magnitudes**self.priority_exponent
        self.largest_priority = max(self.largest_priority, float(magnitudes.max(initial=0.0)))

    def state(self) -> dict[str, Any]:
        """Return all stored transitions with their priorities, and the counts. Call ``end`` before it."""
        state: dict[str, Any] = {
            "columns": [column[: len(self)].clone() for column in self.columns],
            "num_added": self.num_added,
            "num_steps": self.num_steps,
        }
        if self.priorities is not None:
            state["priorities"] = torch.from_numpy(self.priorities[np.arange(len(self))])
            state["largest_priority"] = self.largest_priority
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned, from a buffer of the same capacity."""
        self.num_added, columns = state["num_added"], state["columns"]
        self.num_steps = state.get("num_steps", self.num_added)  # without it: an older file, of one-step transitions
        self.columns.discounts.fill_(self.gamma)
        for column, values in zip(self.columns, columns, strict=len(columns) == len(self.columns)):
            column[: len(values)] = values
        if self.priorities is not None:
            self.largest_priority = state["largest_priority"]
            self.priorities[np.arange(len(self))] = state["priorities"].numpy()

    def _end(self, agents: np.ndarray) -> None:
        """End these agents' open transitions with the observations of their newest rows, whose actions are dropped."""
        num_open, first = self._num_open[agents], self._first[agents]
        newest = (first + num_open) % self.n_step
        for age in range(self.n_step - 1):
            due = age < num_open
            if due.any():
                after = self._observations[agents[due], newest[due]]
                self._store(agents[due], first[due] + age, (num_open - age)[due], after, np.zeros(len(after), np.bool_))
        self._num_open[agents] = 0

    def _store(
        self,
        agents: np.ndarray,
        places: np.ndarray,
        spans: np.ndarray,
        next_observations: np.ndarray,
        terminations: np.ndarray,
    ) -> None:
        """Move open transitions, at these places modulo n_step, into the buffer. spans: their numbers of steps."""
        places = places % self.n_step
        values: Sequence[np.ndarray] = (
            self._observations[agents, places],
            self._actions[agents, places],
            self._rewards[agents, places],
            terminations,
            next_observations,
            self.gamma**spans,
        )
        slots = (self.num_added + np.arange(len(agents))) % self.capacity
        for column, rows in zip(self.columns, values, strict=True):
            column.numpy()[slots] = rows
        if self.priorities is not None:
            self.priorities[slots] = self.largest_priority**self.priority_exponent
        self.num_added += len(agents)

    def _rows(self, rows: Tensor) -> Transitions:
        return Transitions(*(column[rows] for column in self.columns))

    def _serials(self, slots: np.ndarray) -> np.ndarray:
        """Return the serial number of the transition in each slot: the newest one congruent to it."""
        newest = self.num_added - 1
        serials: np.ndarray = newest - (newest - slots) % self.capacity
        return serials
