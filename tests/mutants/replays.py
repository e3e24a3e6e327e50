"""Mutants of the replay buffer: what transitions span, which rows they have, and how they are drawn."""

from __future__ import annotations

from pufferlib.training.replay_buffer import ReplayBuffer

from .edits import Edit
from .mutant import Mutant

__all__ = ["MUTANTS"]

CROSSED = (
    Edit(ReplayBuffer.add, "_terminations[_rows] | _batch.truncations[_rows]", "_terminations[_rows] & False"),
    Edit(ReplayBuffer.add, "_end(_ids[~_batch.masks])", "pass"),
)

MUTANTS = (
    Mutant(
        "replay_crosses_endings",
        "Transitions of several steps go on into the next episode.",
        CROSSED,
        checks=("transitions_as_defined",),
        portable=True,
    ),
    Mutant(
        "replay_ignores_masks",
        "The replay buffer stores reset rows and rows of absent agents.",
        (Edit(ReplayBuffer.add, "_batch.masks.nonzero()[0]", "np.arange(len(_batch.masks))"),),
        checks=("transitions_as_defined",),
        portable=True,
    ),
    Mutant(
        "replay_truncations_terminate",
        "The replay buffer stores truncations as terminations.",
        (
            Edit(
                ReplayBuffer.add,
                "_store(_agents, _places, _spans, _observations[_after], _terminations[_after])",
                "_store(_agents, _places, _spans, _observations[_after],"
                " _terminations[_after] | _batch.truncations[_after])",
                where="_batch.truncations[_rows]",
            ),
        ),
        checks=("transitions_as_defined",),
        portable=True,
    ),
    Mutant(
        "replay_discount_one_step_short",
        "The value after several steps is discounted by one step too few.",
        (Edit(ReplayBuffer.add, "(_num_open - _age + 1)[_due]", "(_num_open - _age)[_due]"),),
        checks=("transitions_as_defined",),
        portable=True,
    ),
    Mutant(
        "replay_rewards_one_step_off",
        "The rewards of several steps are discounted by one step too many.",
        (
            Edit(
                ReplayBuffer.add,
                "_gamma ** (_num_open - _age)[_extends]",
                "_gamma ** (_num_open - _age + 1)[_extends]",
            ),
        ),
        checks=("transitions_as_defined",),
        portable=True,
    ),
    Mutant(
        "replay_agents_mixed",
        "A row's observation is taken for the outcome of another agent's action.",
        (
            Edit(
                ReplayBuffer.add,
                "_agents = _ids[_rows]",
                "_agents = _ids[_rows][::-1]",
                where="_rows, _ids = _batch.masks.nonzero()[0], _batch.agent_ids",
            ),
        ),
        checks=("transitions_as_defined",),
        portable=True,
    ),
    Mutant(
        "replay_priorities_inherited",
        "A new transition has the priority of the one whose row it takes.",
        (
            Edit(
                ReplayBuffer._store,
                "_priorities[_slots] = _largest**_exponent",
                "_priorities[_slots] = np.where(_priorities[_slots] > 0, _priorities[_slots], _largest**_exponent)",
            ),
        ),
        checks=("priorities_as_defined",),
        portable=True,
    ),
    Mutant(
        "replay_priorities_stale",
        "Errors of transitions that have been overwritten become the priorities of those in their rows.",
        (Edit(ReplayBuffer.update_priorities, "_serials >= _num_added - _capacity", "_serials >= 0"),),
        checks=("priorities_as_defined",),
        portable=True,
    ),
)
