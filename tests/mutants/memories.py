"""Mutants of recurrent policies: states that are carried, reset and assigned to agents."""

from __future__ import annotations

from cleanrl_demo import ppo_lstm
from pufferlib.models.per_agent import Memory

from .edits import Edit
from .mutant import Mutant

__all__ = ["MUTANTS"]

STATES = "torch.where(_masks, _states[_ids], _initial[_ids])"
NOT_RESET = Edit(Memory.of, STATES, "_states[_ids]")
NOT_RESET_IN_UPDATE = Edit(ppo_lstm.Rollout.receive, "_starts[_rows] = ~_host.masks", "_starts[_rows] = False")

MUTANTS = (
    Mutant(
        "state_not_carried",
        "The state that the policy returns is dropped: every row is played with the initial state.",
        (Edit(Memory.keep, "_states[_ids] = _new", "pass"),),
        envs=("memory",),
        checks=("ratios_begin_at_one",),
    ),
    Mutant(
        "state_not_reset",
        "Play carries the state into the next episode, the update resets it.",
        (NOT_RESET,),
        envs=("bell",),
        checks=("ratios_begin_at_one",),
    ),
    Mutant(
        "state_not_reset_in_update",
        "The update carries the state into the next episode, play resets it.",
        (NOT_RESET_IN_UPDATE,),
        checks=("ratios_begin_at_one",),
    ),
    Mutant(
        "state_never_reset",
        "Play and the update both carry the state into the next episode.",
        (NOT_RESET, NOT_RESET_IN_UPDATE),
        envs=("bell",),
    ),
    Mutant(
        "state_by_place",
        "States are stored by position in the batch, not by agent.",
        (
            Edit(Memory.of, STATES, "torch.where(_masks, _states[: len(_ids)], _initial[_ids])"),
            Edit(Memory.keep, "_states[_ids] = _new", "_states[: len(_ids)] = _new"),
        ),
        envs=("memory",),
        backend="pool",
    ),
    Mutant(
        "segments_out_of_order",
        "The update unrolls the memory over each agent's rows backwards.",
        (Edit(ppo_lstm.Rollout.lines, "np.stack(_lines)", "np.stack(_lines[::-1])"),),
        envs=("memory",),
        checks=("ratios_begin_at_one",),
    ),
)
