"""Inference on batches of rows: the arrays that compiled code reads and writes, made once for a number of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ext.learner.library import Inference, Update
from cuda_ext.learner.rows import Floats, address

__all__ = ["InferenceBatch"]


class InferenceBatch:
    """The arrays with which a FusedLearner acts on a fixed number of rows. Both methods overwrite them.

    ``infer`` reads features, float32 (rows, num_inputs), and writes outputs, float32 (rows, num_outputs), and values,
    float32 (rows,). If features are an observation's numbers, it first converts them in place. ``draw`` reads outputs;
    exponentials, for each discrete part random numbers of the exponential distribution, float32 (rows, its options);
    and normals, of the standard normal distribution, float32 (rows, num_continuous). It writes discrete_actions, int64
    (rows, num_discrete), continuous_actions, float32 (rows, num_continuous), and log_probs, float32 (rows,).

    Both methods raise the errors of the learner's other methods. ``FusedLearner.inference_batch`` makes it.
    """

    def __init__(
        self,
        num_rows: int,
        update: Update,
        nvec: NDArray[np.int32],
        call: Callable[..., None],
        is_scaled: NDArray[np.bool_] | None,
    ) -> None:
        """update: the learner's arguments. call: a method of the learner that calls a compiled function by name.

        is_scaled: where features are an observation's numbers, for each whether its feature is on a logarithmic scale.
        """
        heads, self._num_rows, self._call = update.heads, num_rows, call
        self.features = self._floats(update.actor.num_inputs)
        self.outputs, self.values = (
            self._floats(heads.num_options + heads.num_continuous),
            np.zeros(num_rows, np.float32),
        )
        clocks = np.ones(num_rows * heads.num_options, np.float32)
        parts = np.split(clocks, num_rows * np.cumsum(nvec)[:-1]) if len(nvec) else []
        self.exponentials = [part.reshape(num_rows, n) for part, n in zip(parts, nvec, strict=True)]
        self.normals = self._floats(heads.num_continuous)
        self.discrete_actions: NDArray[np.int64] = np.zeros((num_rows, heads.num_discrete), np.int64)
        self.continuous_actions = self._floats(heads.num_continuous)
        self.log_probs: Floats = np.zeros(num_rows, np.float32)
        arrays = {"exponentials": clocks, "options": np.zeros(heads.num_options, np.float32)}
        names = ("features", "normals", "outputs", "values", "discrete_actions", "continuous_actions", "log_probs")
        arrays |= {name: getattr(self, name) for name in names}
        if is_scaled is not None:
            arrays["is_scaled"] = is_scaled
        self._arrays = arrays  # as long as compiled code has their addresses
        self._inference = Inference(
            *(update.actor, update.critic, heads),
            *(update.log_std, update.critic_weights, update.variant, num_rows),
            weights=update.weights,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )
        self._pointer = ctypes.byref(self._inference)

    def infer(self) -> None:
        """Compute outputs and values from features."""
        self._call("learner_infer", self._pointer)

    def draw(self, allowed: NDArray[np.bool_] | None = None) -> None:
        """Draw actions, and compute their log-probabilities. Call it once after ``infer``.

        allowed: C-contiguous bool (rows, num_options), the options that may be drawn; None: all. Where a part has none,
        any may be drawn. Raises SpaceError for another array.
        """
        shape = (self._num_rows, self._inference.heads.num_options)
        self._inference.allowed = None if allowed is None else address("allowed", allowed, np.bool_, shape)
        self._call("learner_draw", self._pointer)

    def _floats(self, num_columns: int) -> Any:
        return np.zeros((self._num_rows, num_columns), np.float32)
