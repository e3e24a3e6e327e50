"""DeviceQueue: the order of a device's batches. A launch fills slots of a block; a full block is the next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from pufferlib.errors import CallError
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.call_errors import (
    FLYING,
    NEW,
    WAITING,
    in_flight_error,
    not_waiting_error,
    too_few_in_flight_error,
)
from pufferlib.vectorization.device.block_shape import BlockShape
from pufferlib.vectorization.device.launchers import Launchers
from pufferlib.vectorization.device.policy import Chosen, Policies
from pufferlib.vectorization.device.rows import Block
from pufferlib.vectorization.device.states import Ids, States
from pufferlib.vectorization.device.streams import CurrentStream, HostStream, Streams

__all__ = ["DeviceQueue"]


class DeviceQueue:
    """The blocks of a CUDA VecEnv, in the order of their launches, and the state of each environment.

    A block is free, being filled, full (in flight), or leased. A leased block has been received, and stays valid until
    two more blocks have been received. There are two more blocks than can be in flight at once, so that a launch always
    finds a free one.

    torch: the module. shape: the BlockShape. launchers: the kernel's Launchers. streams: the caller's current stream.
    blocks: all blocks of the queue. states: the state of each environment. last_ids: the environments of the last
    batch, None before the first.
    """

    def __init__(self, torch: Any, shape: BlockShape, launchers: Launchers) -> None:
        self._torch, self.shape, self.launchers = torch, shape, launchers
        device = launchers.device
        self._leased: deque[Block] = deque()
        self.streams: CurrentStream = (
            HostStream() if device.type == "cpu" else Streams(torch, device, self.newest_address)
        )
        num_blocks = -(-shape.num_envs // shape.batch_size) + 2
        self.blocks = [self.make_block(shape.batch_size) for _ in range(num_blocks)]
        self._free = deque(self.blocks)
        self._filling: Block | None = None
        self._full: deque[Block] = deque()
        self.states = States(shape.num_envs)
        self.last_ids: Ids | None = None
        self._synchronous, self._num_envs = shape.synchronous, shape.num_envs
        self._everyone = range(shape.num_envs)
        self._only_resets = False  # only a partial reset is in flight, so receive fills the rest of the batch

    def make_block(self, num_slots: int) -> Block:
        """Return a new block with ``num_slots`` slots, which is not part of the queue."""
        return Block(self._torch, self.shape, self.launchers, self.streams, num_slots)

    def newest(self) -> Block | None:
        """Return the block of the last batch, or None before the first."""
        return self._leased[-1] if self._leased else None

    def newest_address(self) -> int | None:
        """Return the address of the last batch's observations, or None before the first batch."""
        block = self.newest()
        return None if block is None else block.addresses["observations"]

    # --------------------------------------------------------------------------------------------------- checks

    def require_waiting(self, ids: Ids, call: str, *, named: bool) -> None:
        """Raise CallError unless these environments wait for an action.

        call: the call's name, for the error. named: whether ``env_ids`` was passed to the call.
        """
        if self.states.all == WAITING:
            return
        states = self.states.of(ids)
        busy = states != WAITING
        if busy.any():
            wrong = dict(zip(np.asarray(ids)[busy].tolist(), states[busy].tolist(), strict=True))
            raise not_waiting_error(call, wrong, named=named)

    def require_received(self, ids: Array) -> None:
        """Raise CallError if any of these environments is in flight."""
        flying = ids[self.states.of(ids) == FLYING].tolist()
        if flying:
            raise in_flight_error(dict.fromkeys(flying, FLYING))

    def require_out(self, out: Sequence[Any], *, named: bool) -> None:
        """Raise CallError unless a step can write its rows into ``out``; ClosedError after ``close``.

        named: whether ``env_ids`` was passed to the call.
        """
        self.launchers.require_open()
        if named or not self._synchronous:
            raise CallError("out takes the rows of all environments; leave out env_ids, and use batch_size=num_envs")
        self.blocks[0].require_fitting(out)

    # --------------------------------------------------------------------------------- launches of all environments

    def step_all(self, actions: Any, out: Sequence[Any] | None = None) -> bool:
        """Step all environments with actions that need no conversion, at little more than the cost of the launch.

        Return False, and change nothing, if the launch refuses an action. out: see ``Block.begin``.
        """
        block = self._free[0]
        block.begin(out)
        played = block.play_all(actions)
        if played:
            self._all_launched(block)
        return played

    def choose_all(self, policies: Policies, logits: Any, masks: Any, greedy: bool) -> Chosen:
        """Step all environments with actions that the launch chooses from logits; return the choices.

        The next such step with the same block overwrites the choices.
        """
        block = self._free[0]
        block.begin()
        chosen = block.choose_all(policies, logits, masks, greedy)
        self._all_launched(block)
        return chosen

    def _all_launched(self, block: Block) -> None:
        """Record a launch that fills a block with the rows of all environments."""
        self._free.popleft()
        num_envs, launchers = self._num_envs, self.launchers
        block.ids, block.num_filled = self._everyone, num_envs
        self._full.append(block)
        self.states.all = FLYING
        launchers.num_launches += 1
        launchers.num_env_steps += num_envs

    # ------------------------------------------------------------------------------- launches of any environments

    def reset(self, ids: Ids, seeds: Sequence[int | None], *, partial: bool) -> None:
        """Reset environments. seeds: one per environment; with None, an environment continues with its generator.

        partial: whether only some environments are reset. If not, rows in flight are dropped first.
        """
        if not partial:
            self._drop()
        self._only_resets = partial and (self._only_resets or not len(self.states.where(FLYING)))
        seeded = np.array([seed is not None for seed in seeds])
        if seeded.all():
            self.launch(ids, None, seeds=np.array(seeds, np.uint32), resets=True)
        elif not seeded.any():
            self.launch(ids, None, resets=True)
        else:
            some = np.array([seed for seed in seeds if seed is not None], np.uint32)
            self.launch(np.asarray(ids)[seeded], None, seeds=some, resets=True)
            self.launch(np.asarray(ids)[~seeded], None, resets=True)

    def launch(
        self,
        ids: Ids,
        actions: Any,
        *,
        seeds: Array | None = None,
        resets: bool = False,
        out: Sequence[Any] | None = None,
    ) -> None:
        """Step environments, or reset them if ``resets``.

        Their rows fill the next free slots or, if batches are synchronous, the slot of each environment's id. actions:
        a tensor of actions, None for a reset. seeds: uint32, one per environment; by default, none. out: see
        ``Block.begin``; only for steps of all environments.
        """
        shape, synchronous = self.shape, self._synchronous
        num_agents, size = shape.agents_per_env, shape.batch_size
        if not resets:
            self._only_resets = False
        num_sent = 0
        while num_sent < len(ids):
            block = self._filling or self.open_block(out)
            if synchronous:
                num = len(ids)
            else:
                num = min(len(ids) - num_sent, size - block.num_filled)
            part = slice(num_sent, num_sent + num)
            rows = slice(num_sent * num_agents, (num_sent + num) * num_agents)
            self._launch_part(
                block,
                ids[part],
                None if actions is None else actions[rows],
                None if seeds is None else seeds[part],
                resets,
            )
            num_sent += num

    def open_block(self, out: Sequence[Any] | None = None) -> Block:
        """Take a free block for the next launches to fill, and return it. out: see ``Block.begin``."""
        if not self._free:
            raise AssertionError("more blocks are in use than batches can be under way")
        self._filling = block = self._free.popleft()
        block.begin(out)
        return block

    def _launch_part(self, block: Block, ids: Ids, actions: Any, seeds: Array | None, resets: bool) -> None:
        launchers, num = self.launchers, len(ids)
        launcher = launchers.step
        arguments = launcher.arguments
        synchronous = self._synchronous
        contiguous = isinstance(ids, range)
        tensors: list[Any] = []  # read by the launch; referenced until it has been launched
        for name, address in block.addresses.items():
            arguments[name] = address
        arguments["first_env"] = ids[0] if contiguous else 0
        arguments["env_ids"] = 0 if contiguous else launchers.to_device(np.asarray(ids, np.int32), tensors)
        arguments["seeds"] = 0 if seeds is None else launchers.to_device(seeds.view(np.int32), tensors)
        arguments["resets"] = resets
        arguments["by_env"] = synchronous
        arguments["first_slot"] = 0 if synchronous else block.num_filled
        if actions is not None:
            if not (synchronous and contiguous):
                actions = block.take_actions(actions, ids if synchronous else None)
            arguments["actions"], arguments["actions_nbytes"] = actions.data_ptr(), actions.element_size()
            tensors.append(actions)
        block.stream.launch(launcher, num, tensors)
        self.launched(block, ids, 0 if resets else num)

    def launched(self, block: Block, ids: Ids, num_env_steps: int) -> None:
        """Record a launch into the block that ``open_block`` returned. Once full, the block can be received."""
        block.fill(ids)
        self.states.set(ids, FLYING)
        self.launchers.num_launches += 1
        self.launchers.num_env_steps += num_env_steps
        if block.num_filled == self.shape.batch_size:
            self._filling = None
            self._full.append(block)

    # -------------------------------------------------------------------------------------------------- receive

    def receive(self, debug: bool) -> Block:
        """Return the next block, and mark its environments as waiting for an action.

        The next block is the oldest full block whose launches have finished or, if there is none, the oldest full
        block. The caller's stream waits for the launches that fill it. The block that was received two calls earlier
        expires. debug: whether to overwrite the rows of the expired block. Raises CallError if no block is full,
        ClosedError after ``close``.
        """
        if not self._full:
            self.launchers.require_open()
            self._fill_with_unchanged()
            if not self._full:
                num_flying, some_wait = len(self.states.where(FLYING)), len(self.states.where(WAITING)) > 0
                raise too_few_in_flight_error(num_flying, self.shape.batch_size, some_wait=some_wait)
        if self._synchronous:
            self.streams.current()
            block = self._full.popleft()
        else:
            block = next((full for full in self._full if full.stream.is_done()), self._full[0])
            self._full.remove(block)
            block.stream.wait()
        if len(self._leased) == 2:  # valid until the second receive after its own
            old = self._leased.popleft()
            old.expire(debug)
            self._free.append(old)
        self._leased.append(block)
        self.states.set(block.ids, WAITING)
        self.last_ids = block.ids
        self._only_resets = False
        return block

    def _fill_with_unchanged(self) -> None:
        """Complete a partial reset of a synchronous VecEnv by copying the other environments' last rows.

        Does nothing if any step is in flight, or if an environment has never been reset.
        """
        block = self._filling
        if block is None or not (self._synchronous and self._only_resets) or len(self.states.where(NEW)):
            return
        others = self.states.where(WAITING)
        block.copy_rows(self._leased[-1], others)
        block.fill(others)
        self._filling = None
        self._full.append(block)

    def settle(self) -> None:
        """Make the current stream wait for all launches. Raises ClosedError after ``close``."""
        self.launchers.require_open()
        self.streams.current()
        for block in self.blocks:
            block.stream.wait()

    def _drop(self) -> None:
        """Discard the rows of environments in flight, and free their blocks."""
        for block in (*self._full, *([self._filling] if self._filling is not None else [])):
            block.stream.wait()
            self._free.append(block)
        self._full.clear()
        self._filling = None

    def close(self) -> None:
        """Close the launchers, and release all blocks."""
        self.states.all = None  # so that no call takes the plain path
        self.launchers.close()
        self.blocks, self._filling = [], None
        for blocks in (self._free, self._leased, self._full):
            blocks.clear()
