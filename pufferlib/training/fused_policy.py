"""The compiled learner behind a policy of ``pufferlib.models``, for trainers whose environments are on any backend.

The learner is ``cuda_ext.learner``, which is found by name, because this package must not import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pufferlib.errors import CallError, PlanError
from pufferlib.models import Actor
from pufferlib.models.networks import ActorCritic
from pufferlib.models.reading import Features, has_images

__all__ = ["FusedDistribution", "FusedPolicy"]

NUM_LOSSES = 5  # the first of cuda_ext.learner.fused.TERMS; the last is the gradient's norm
MOMENTS = ("means", "squares", "beta_powers")  # Adam's state


class FusedDistribution:
    """The distribution of a batch's actions, from which compiled code draws, with torch's random numbers.

    It draws the actions that ``Distribution`` would draw, up to rounding. batch: an ``InferenceBatch`` of the learner.
    row_shape: the shape of a row of its features.
    """

    def __init__(self, batch: Any, row_shape: Sequence[int]) -> None:
        self._batch = batch
        self._inputs = batch.features.reshape(-1, *row_shape)
        self.values, self._log_probs = torch.from_numpy(batch.values), torch.from_numpy(batch.log_probs)
        self._drawn = tuple(map(torch.from_numpy, (batch.discrete_actions, batch.continuous_actions)))
        self._exponentials, self._normals = (
            [*map(torch.from_numpy, batch.exponentials)],
            torch.from_numpy(batch.normals),
        )
        self._allowed: Any = None

    def infer(self, rows: Tensor, mask: Tensor | None) -> None:
        """Compute the distribution and the values of a batch, given its features and its masks of allowed options.

        rows: the features, or the observations that are numbers, if the InferenceBatch reads these.
        """
        np.copyto(self._inputs, rows.numpy(), "same_kind")
        self._allowed = None if mask is None else mask.contiguous().numpy()
        self._batch.infer()

    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Draw (discrete_actions, continuous_actions), once for a batch. generator: by default, torch's global one."""
        for part in self._exponentials:
            part.exponential_(generator=generator)
        if self._normals.shape[1]:
            self._normals.normal_(generator=generator)
        self._batch.draw(self._allowed)
        return self._drawn

    def log_prob(self, discrete_actions: Tensor, continuous_actions: Tensor) -> Tensor:
        """Return the log-probabilities, (rows,), of the actions that ``sample`` has returned. Others are refused."""
        if discrete_actions is not self._drawn[0] or continuous_actions is not self._drawn[1]:
            raise CallError(
                "only the actions that sample returned have log-probabilities here; use the actor for others"
            )
        return self._log_probs


class FusedPolicy:
    """An actor's policy that compiled code computes and updates. After each update, torch has the same weights.

    It stands in for two objects of a trainer: it is called like the actor, and ``param_groups``, ``state_dict`` and
    ``load_state_dict`` are those of an optimizer. torch computes features, except of observations that are one leaf of
    numbers, so observations and actions are those that the policy supports.

    actor: its policy is an MLP, or a class of yours that inherits MLP's ``forward`` and whose ``actor`` and ``critic``
    are networks that ``FusedLearner`` takes. advice: the end of the message if they are not. num_threads, settings: as
    for ``FusedLearner`` and its ``Settings``. Attribute learner: the FusedLearner, whose threads end with ``close``, or
    once nothing refers to this object any more. Changes of the torch weights take effect with ``load_state_dict``.

    Raises PlanError for other policies, and the errors of ``FusedLearner``.
    """

    def __init__(
        self, actor: Actor, advice: str, learning_rate: float, *, num_threads: int = 1, **settings: Any
    ) -> None:
        policy: Any = actor.policy
        if type(policy).forward is not ActorCritic.forward or not isinstance(policy.read, Features):
            images = " that reads images" if has_images(actor.seen_layout) else ""
            raise PlanError(
                f"the policy is a {type(policy).__name__}{images}, and the fused learner takes only MLPs of numbers; "
                f"{advice}"
            )
        fused: Any = import_module("cuda_ext.learner.fused")
        self._rows = fused.Rows
        networks = (policy.actor, policy.critic, policy.log_std)
        is_scaled = policy.read.scaled_columns()
        # Whether an observation is one leaf of numbers, which compiled code reads as its features.
        self._reads_numbers = is_scaled is not None and policy.read.layout.is_leaf
        self.learner: Any = fused.FusedLearner(
            *(*networks, actor.decisions.nvec, fused.Settings(**settings)),
            is_scaled=is_scaled,
            num_threads=num_threads,
        )
        self.param_groups: list[dict[str, Any]] = [{"lr": learning_rate}]
        self._actor, self._read = actor, policy.read
        self._batches: dict[int, FusedDistribution] = {}  # by number of rows

    def __call__(self, observations: Tensor) -> tuple[FusedDistribution, Tensor, None]:
        """Return (distribution of the allowed actions, values, None), as ``Actor`` does, without gradients.

        All that they hold is overwritten by the next call with as many rows.
        """
        num_rows = observations.shape[0]
        if num_rows not in self._batches:
            batch = self.learner.inference_batch(num_rows, reads_numbers=self._reads_numbers)
            shape = self._read.layout.shape if self._reads_numbers else batch.features.shape[1:]
            self._batches[num_rows] = FusedDistribution(batch, shape)
        distribution = self._batches[num_rows]
        # Without the hooks of a module's call, which take a microsecond, as all of this does for eight rows.
        rows = observations if self._reads_numbers else self._read.forward(observations)
        distribution.infer(rows, self._actor.mask(observations))
        return distribution, distribution.values, None

    @torch.no_grad()
    def rows(
        self,
        observations: Tensor,
        discrete_actions: Tensor,
        continuous_actions: Tensor,
        log_probs: Tensor,
        advantages: Tensor,
        returns: Tensor,
    ) -> Any:
        """Return the rows of a rollout, valid or not, in the form that ``update`` takes.

        observations: rows of the actor's ``seen_layout``. discrete_actions, continuous_actions: as ``Distribution``
        returns them. log_probs: of the actions, by the policy that played. The last three: float32 (rows,).
        """
        columns = (discrete_actions, continuous_actions, log_probs, advantages, returns)
        allowed = self._actor.mask(observations)
        arrays = (column.contiguous().numpy() for column in columns)
        return self._rows(
            self._features(observations), *arrays, allowed=None if allowed is None else allowed.contiguous().numpy()
        )

    def update(self, rows: Any, minibatches: Sequence[Tensor]) -> list[Tensor]:
        """Take a step of Adam for each minibatch, and copy the weights to the torch networks.

        rows: the result of ``rows``. minibatches: the indices of each minibatch's rows, int64. Returns for each
        minibatch the means of policy loss, value loss, entropy, approximate KL divergence, and share of clipped ratios,
        float64 (5,).
        """
        indices = [minibatch.numpy() for minibatch in minibatches]
        terms = self.learner.update(rows, indices, self.param_groups[0]["lr"])
        self.learner.save()
        return [*torch.from_numpy(terms[:, :NUM_LOSSES])]

    def require_plain_numbers(self) -> None:
        """Raise PlanError unless each feature is an observed number, possibly on a logarithmic scale.

        Only such features can be computed without torch, as the learner's ``play_steps`` does.
        """
        read = self._read
        if read.norm is not None:
            raise PlanError("policy_kwargs has normalize, which the compiled learner does not take; leave it out")
        if read.scaled_columns() is None:
            raise PlanError(
                f"observations of {read.layout.space} have discrete parts, or a class of yours reads them, which the "
                "compiled learner does not play; "
                "use ppo --learner fused, or ppo_cuda"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's state as tensors."""
        return {name: torch.from_numpy(getattr(self.learner, name).copy()) for name in MOMENTS}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore Adam's state, and take over the torch networks' weights. Raises ValueError if it does not fit."""
        self.learner.load()
        for name in MOMENTS:
            getattr(self.learner, name)[:] = state[name].numpy()

    def close(self) -> None:
        """End the learner's threads and free its memory; the torch networks keep the weights of the last update."""
        self.learner.close()

    def _features(self, observations: Tensor) -> Any:
        return self._read(observations).contiguous().numpy()
