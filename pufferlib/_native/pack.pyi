from collections.abc import Callable
from typing import Any

import numpy as np

class Packer:
    @property
    def nbytes(self) -> int: ...
    def __init__(
        self,
        plan: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        gaps: list[tuple[int, int]],
        is_scalar: bool,
    ) -> None: ...
    def flatten(self, sample: Any) -> Any: ...
    def flat_step(
        self, result: Any, copy_info: Callable[[Any], Any]
    ) -> tuple[Any, float, bool, bool, dict[str, Any]] | None: ...
    def pack(self, sample: Any, row: np.ndarray[Any, Any]) -> bool: ...
    def pack_padded(self, sample: Any, row: np.ndarray[Any, Any]) -> bool: ...

class Unpacker:
    def __init__(
        self,
        plan: tuple[Any, ...],
        start: np.ndarray[Any, Any],
        num_box: int,
        has_discrete: bool,
        has_box: bool,
        unpack_in_python: Callable[[Any, Any], Any] | None,
    ) -> None: ...
    def unpack(self, row: Any) -> Any: ...
    def unpack_fit(self, row: Any, checks: tuple[ValueCheck, ...]) -> Any: ...

class ValueCheck:
    def __init__(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        low: np.ndarray[Any, Any] | None,
        high: np.ndarray[Any, Any] | None,
    ) -> None: ...
    def fit(self, values: Any) -> bool: ...

class MaskPacker:
    @property
    def size(self) -> int: ...
    def __init__(self, kind: str, size: int, parts: dict[Any, tuple[str, int, dict[Any, Any]]]) -> None: ...
