from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pufferlib._native.agents import Agents
from pufferlib._native.pack import Packer, Unpacker
from pufferlib._native.ring import Ring
from pufferlib.emulation.rows import RowEnv, Rows
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.worker.worker import Worker

class Stepper:
    def __init__(
        self,
        row_env: RowEnv,
        env: Any,
        step: Callable[[Any], Any],
        actions: tuple[np.ndarray[Any, Any], ...],
        packer: Packer,
        unpacker: Unpacker | None,
        native: bool,
        resets: bool,
        masks: tuple[str, int, dict[Any, Any]] | None,
    ) -> None: ...
    @staticmethod
    def of_agents(agents: Agents) -> Stepper: ...

class StepLoop:
    @property
    def holds_infos(self) -> bool: ...
    def __init__(
        self,
        ring: Ring,
        slab: Slab,
        scratch: Slab,
        worker: Worker,
        share: range,
        index: int,
        claims: bool,
        copy_value: Callable[[Any], Any],
    ) -> None: ...
    def adopt(self, env_id: int, stepper: Stepper | None) -> None: ...
    def resume(self, env_id: int, ready: bool) -> None: ...
    def rows(self, slot: int) -> Rows: ...
    def commit(self, env_id: int, slot: int, over: bool, infos: list[dict[str, Any]]) -> None: ...
    def flush(self) -> None: ...
    def serve(self, spin: int) -> None: ...
    def step_all(self, block: int) -> None: ...
    def step(self, env_ids: Sequence[int], slots: Iterable[int]) -> None: ...
