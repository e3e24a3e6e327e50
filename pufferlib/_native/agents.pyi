from collections.abc import Callable
from typing import Any

import numpy as np

from pufferlib.emulation.rows import RowEnv

class Agents:
    def __init__(self, row_env: RowEnv, env_id: int, copy_value: Callable[[Any], Any], env: Any) -> None: ...

class ParallelAgents(Agents):
    def __init__(
        self,
        row_env: RowEnv,
        env_id: int,
        actions: tuple[np.ndarray[Any, Any], ...],
        copy_value: Callable[[Any], Any],
        env: Any,
        returns: np.ndarray[Any, np.dtype[np.float64]],
        lengths: np.ndarray[Any, np.dtype[np.int64]],
        starts_s: np.ndarray[Any, np.dtype[np.float64]],
        keeps_spaces: bool,
        keeps_places: bool,
        extra_leaves: Any,
        has_state: bool,
        mask_in_info: bool,
    ) -> None: ...

class NativeAgents(Agents):
    def __init__(
        self,
        row_env: RowEnv,
        env_id: int,
        actions: tuple[np.ndarray[Any, Any], ...],
        copy_value: Callable[[Any], Any],
        env: Any,
        returns: np.ndarray[Any, np.dtype[np.float64]],
        births: np.ndarray[Any, np.dtype[np.int64]],
        starts_s: np.ndarray[Any, np.dtype[np.float64]],
    ) -> None: ...
