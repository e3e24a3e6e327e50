"""Mutants that no training shows, or that are not trained: checks alone catch them."""

from __future__ import annotations

from pufferlib.emulation.native import NativeRow, NativeRows
from pufferlib.emulation.rows import HeldRows
from pufferlib.layout.unpack import compile_unpack
from pufferlib.models.distributions import Distribution
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.worker.worker import Worker

from .edits import Edit, both
from .mutant import UPDATE, Mutant

__all__ = ["MUTANTS"]

OBSERVATIONS = "_rows.observations[...] = _env.observations"

MUTANTS = (
    Mutant(
        "entropy_sign",
        "Entropy is penalised instead of rewarded.",
        both(UPDATE, "_losses = _losses - _bonus", "_losses = _losses + _bonus"),
        checks=("entropy_grows",),
    ),
    Mutant(
        "log_prob_averaged",
        "The log-probability of several continuous parts is their mean instead of their sum.",
        (Edit(Distribution.log_prob, "_log_densities.sum(1)", "_log_densities.mean(1)"),),
        checks=("log_prob_sums",),
    ),
    Mutant(
        "agents_shuffled",
        "Agents of one environment have their rows in another order, in observations, actions and rewards alike.",
        (
            Edit(NativeRows.step, "_env.step(_actions)", "_env.step(_actions[::-1])"),
            Edit(
                NativeRows.write_observations,
                OBSERVATIONS,
                "_rows.observations[...] = _env.observations[::-1]",
            ),
            Edit(
                HeldRows.write_outcome,
                "_rows.rewards[...] = _rewards",
                "_rows.rewards[...] = np.broadcast_to(_rewards, _rows.rewards.shape)[::-1]",
            ),
        ),
        checks=("solved",),
    ),
    Mutant(
        "keys_swapped",
        "Parts of an action reach the environment under one another's keys.",
        (Edit(compile_unpack, "zip(_keys, _values, strict=True)", "zip(_keys[::-1], _values, strict=True)"),),
        checks=("solved",),
        portable=True,
    ),
    Mutant(
        "images_transposed",
        "Images arrive transposed, in play and in the update alike.",
        (
            Edit(
                NativeRow.write_observations,
                OBSERVATIONS,
                "_rows.observations[...] = _env.observations.swapaxes(1, -1)",
            ),
        ),
        checks=("observations_arrive",),
        portable=True,
    ),
    Mutant(
        "env_ids_ignored",
        "Batches claim to hold the rows of the first environments, whichever they hold.",
        (
            Edit(
                Batch.of,
                "_cls(_observations, _rewards, _terminations, _truncations, _infos, _env_ids, _agent_ids, _masks)",
                "_cls(_observations, _rewards, _terminations, _truncations, _infos,"
                " np.arange(len(_env_ids)), np.arange(len(_agent_ids)), _masks)",
            ),
        ),
        checks=("solved",),
        portable=True,
    ),
    Mutant(
        "final_observation_lost",
        "The row that ends an episode holds zeros.",
        (
            Edit(
                Worker._deliver,
                "_env.write_outcome(_rows)",
                "_env.write_outcome(_rows); _rows.observations[...] *= not _over",
                where="_commit(_env_id, _slot, _over, _infos)",
            ),
        ),
        checks=("observations_arrive",),
        portable=True,
    ),
)
