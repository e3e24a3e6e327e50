"""BlockShape: the counts and shapes on which a CUDA VecEnv's arrays depend."""

from __future__ import annotations

from dataclasses import dataclass

from pufferlib.vectorization.core.vecenv import VecEnv

__all__ = ["BlockShape"]


@dataclass(frozen=True)
class BlockShape:
    """The counts and shapes on which the arrays of a block depend.

    synchronous: whether each batch holds all environments, ordered by env id. final_observations: whether a block also
    holds the last observations of ended episodes.
    """

    num_envs: int
    batch_size: int
    agents_per_env: int
    multi_agent: bool
    observation_shape: tuple[int, ...]  # of one row
    action_shape: tuple[int, ...]  # of one row
    synchronous: bool
    final_observations: bool

    @classmethod
    def of(cls, vec: VecEnv) -> BlockShape:
        """Return the BlockShape for the counts and spaces of a VecEnv."""
        return cls(
            vec.num_envs,
            vec.batch_size,
            vec.agents_per_env,
            vec.multi_agent,
            tuple(vec.single_observation_space.shape or ()),
            tuple(vec.single_action_space.shape or ()),
            vec.batch_size == vec.num_envs,
            vec.autoreset_mode == "same_step",
        )
