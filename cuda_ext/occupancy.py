"""The number of a kernel's blocks that fit on a multiprocessor at a time, given the resources that each block uses."""

from __future__ import annotations

from typing import NamedTuple

from cuda_ext.nvrtc import Cubin

__all__ = ["MULTIPROCESSORS", "Multiprocessor", "Occupancy"]

# The same on all of MULTIPROCESSORS.
NUM_REGISTERS, NUM_PARTS = 65536, 4  # the registers are divided evenly among the parts, each for its own warps
# A warp's threads; the steps in which a warp gets registers, and in which a block gets bytes of shared memory.
WARP, REGISTERS_STEP, SHARED_STEP = 32, 256, 128
RESERVED_NBYTES = 1024  # of shared memory, for each block


class Multiprocessor(NamedTuple):
    """A multiprocessor's limits: how many threads, blocks and bytes of shared memory it can hold at a time."""

    num_threads: int
    num_blocks: int
    shared_nbytes: int


# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MULTIPROCESSORS = {
    "sm_80": Multiprocessor(2048, 32, 164 << 10),
    "sm_90": Multiprocessor(2048, 32, 228 << 10),
    "sm_100": Multiprocessor(2048, 32, 228 << 10),
    "sm_120": Multiprocessor(1536, 24, 100 << 10),
}


class Occupancy(NamedTuple):
    """The number of a kernel's blocks that a multiprocessor runs at a time, and the resource that limits it.

    share: the share of the multiprocessor's threads that these blocks use.
    """

    num_blocks: int
    share: float
    limit: str  # "threads", "blocks", "registers" or "shared"

    @classmethod
    def of(cls, cubin: Cubin, block_size: int, architecture: str) -> Occupancy:
        """Return a kernel's occupancy on a multiprocessor of an architecture, which is a key of MULTIPROCESSORS.

        block_size: threads per block, a multiple of 32.
        """
        device = MULTIPROCESSORS[architecture]
        warp_registers = _up(cubin.num_registers * WARP, REGISTERS_STEP)
        num_warps = NUM_REGISTERS // NUM_PARTS // warp_registers * NUM_PARTS
        fits = {
            "threads": device.num_threads // block_size,
            "blocks": device.num_blocks,
            "registers": num_warps // (block_size // WARP),
            "shared": device.shared_nbytes // _up(cubin.shared_nbytes + RESERVED_NBYTES, SHARED_STEP),
        }
        limit = min(fits, key=fits.__getitem__)
        return cls(fits[limit], fits[limit] * block_size / device.num_threads, limit)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
