from typing import Any

import numpy as np

from pufferlib.evaluation.policies import PolicyBatch
from pufferlib.vectorization.core.batch import Batch

class EpisodeRows:
    def __init__(
        self,
        layer: PolicyBatch,
        heights: np.ndarray[Any, np.dtype[np.int64]],
        episodes: np.ndarray[Any, np.dtype[np.int64]],
        seeds: np.ndarray[Any, np.dtype[np.int64]],
        steps: np.ndarray[Any, np.dtype[np.int64]],
        returns: np.ndarray[Any, np.dtype[np.float64]],
        max_steps: int,
    ) -> None: ...
    def add(self, batch: Batch) -> int: ...
