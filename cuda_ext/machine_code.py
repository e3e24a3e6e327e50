"""Count the instructions of a kernel's machine code: what a step costs a device at most, known without a device."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Instructions"]

# Instructions of sm_70 and later have 16 bytes. The low 9 bits are the operation; the next 3 say where operands are.
NBYTES, OPERATION = 16, 0x1FF
NOP, BRANCH = 0x118, 0x147
OPERATIONS = {
    "global_loads": (0x181,),
    "global_stores": (0x186,),
    "shared_loads": (0x184,),
    "shared_stores": (0x188,),
    "generic": (0x180, 0x185),  # of an address that may be of either memory
    "barriers": (0x11D, 0x148),  # of a block; of some threads of a warp
    "matrix_products": (0x03C,),  # by tensor cores: HMMA
}


class Instructions(NamedTuple):
    """The number of instructions in all, and of those that load, store, wait, or multiply matrices.

    Instructions that few steps execute count as well, such as those that start an episode. Those of an inner loop count
    once. generic: loads and stores whose address may be in shared memory or in the device's memory.
    """

    total: int
    global_loads: int
    global_stores: int
    shared_loads: int
    shared_stores: int
    generic: int
    barriers: int
    matrix_products: int = 0

    @classmethod
    def of(cls, code: bytes, *, in_loop: bool = False) -> Instructions:
        """Return the counts for the machine code of one kernel, an ELF file as NVRTC returns it.

        in_loop: count only the instructions of the longest loop, which is the loop over the steps of a rollout. This
        needs code for sm_90 or later. Raises ValueError if the code has no loop, or no kernel.
        """
        words = list(struct.iter_unpack("<QQ", _text(code)))
        if in_loop:
            loops = [(index - target, target, index) for index, target in _branches(words) if target < index]
            if not loops:
                raise ValueError("the kernel has no loop")
            _, first, last = max(loops)
            words = words[first : last + 1]
        operations = [low & OPERATION for low, _ in words]
        counts = {name: sum(map(operations.count, numbers)) for name, numbers in OPERATIONS.items()}
        return cls(total=len(operations) - operations.count(NOP), **counts)


def _branches(words: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the index of each branch and that of its target, which is stored relative to the next instruction."""
    for index, (low, high) in enumerate(words):
        if low & OPERATION == BRANCH:
            distance = (low >> 34) | (high & 0x3FFFF) << 30
            distance -= (distance >> 47) << 48  # the sign
            yield index, index + 1 + (distance << 8 | low >> 16 & 0xFF) * 4 // NBYTES


def _text(code: bytes) -> bytes:
    """Return the section of an ELF file that holds a kernel's instructions."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    size, num_sections, names_index = struct.unpack_from("<3H", code, 0x3A)
    sections = [struct.unpack_from("<2I4Q", code, table + size * k) for k in range(num_sections)]
    names = sections[names_index][4]
    for name, _, _, _, offset, nbytes in sections:
        if code.startswith(b".text.", names + name):
            return code[offset : offset + nbytes]
    raise ValueError("the ELF file has no .text section of a kernel")
