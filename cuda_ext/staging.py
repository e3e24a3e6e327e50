"""Generate the C++ by which a launch keeps environments on a device's chip: their state, and the rows of a step.

A launch loads state once and stores it once, however many steps it plays (see on_chip.cuh). This file imports only the
standard library and ``schema``, because setup.py uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cuda_ext.schema import COMMON, CTYPES, Field, Schema

__all__ = ["STAGED_NBYTES", "Staging", "envs_per_block"]

BLOCK_NBYTES = 48 << 10  # the shared memory that a block has without asking for more
STAGED_NBYTES = 16 << 10  # the most of it for fields and rows; tag/continuous needs 28 KB for its cells
OTHER_NBYTES = 512  # a group's word, and the padding of arrays
ROWS = {"rewards": "float", "masks": "bool", "terminations": "bool", "truncations": "bool"}  # columns of a step
SUMS = "ended_"  # the fields that only the end of an episode changes, in the device's memory
NBYTES = {"bool": 1, "unsigned char": 1, "int": 4, "unsigned": 4, "float": 4, "long long": 8, "double": 8}
FUNCTION = "__device__ __forceinline__ void"


@dataclass(frozen=True)
class Staging:
    """Where a launch keeps the fields of a schema and the columns of a step's rows.

    registers: the fields of which each thread has a copy, in registers. shared: the fields of which each block has a
    copy, in shared memory. register_rows, shared_rows: the names of such columns. All others are used where they are.
    """

    registers: tuple[Field, ...]
    shared: tuple[Field, ...]
    register_rows: tuple[str, ...]
    shared_rows: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema, macros: Mapping[str, Any], *, use_registers: bool = True) -> Staging:
        """Return where a launch with these macros (those of ``Shape.macros``) keeps a schema's data.

        use_registers: False leaves the fields and rows of a thread that plays alone in memory, where sanitizers see
        each access; the fields that kernel.cuh itself needs are in registers anyway.
        """
        alone = macros["GROUP_SIZE"] == 1
        num_envs, num_agents = envs_per_block(macros["GROUP_SIZE"], macros["BLOCK_SIZE"]), macros["NUM_AGENTS"]
        registers = [field for field in COMMON if field.per == "env" and not field.name.startswith(SUMS)]
        of_agents = [field for field in COMMON if field.per == "agent" and not field.name.startswith(SUMS)]
        fields = [field for field in schema.fields if field.per != "launch" and not field.size]
        if num_agents <= macros["GROUP_SIZE"]:
            registers += of_agents
        else:
            fields += of_agents
        if alone:
            return (
                cls((*registers, *fields), (), tuple(ROWS), ()) if use_registers else cls(tuple(registers), (), (), ())
            )
        left = min(STAGED_NBYTES, BLOCK_NBYTES - OTHER_NBYTES - 4 * (_num_tiles(macros) + macros.get("NUM_WEIGHTS", 0)))
        nbytes = num_envs * num_agents * sum(NBYTES[ctype] for ctype in ROWS.values())
        rows = tuple(ROWS) if nbytes <= left else ()
        left -= nbytes if rows else 0
        shared = []
        for field in fields:
            nbytes = num_envs * (num_agents if field.per == "agent" else 1) * NBYTES[CTYPES[field.dtype]]
            if nbytes <= left:
                left -= nbytes
                shared.append(field)
        return cls(tuple(registers), tuple(shared), (), rows)

    def declaration(self, schema: Schema, macros: Mapping[str, Any], constants: Mapping[str, int | float]) -> str:
        """Return the C++ of a launch's ``struct Arguments``, of ``struct Env``, and of the functions that use both."""
        num_envs, num_agents = envs_per_block(macros["GROUP_SIZE"], macros["BLOCK_SIZE"]), macros["NUM_AGENTS"]
        sizes = {"agent": num_envs * num_agents, "env": num_envs}
        in_registers = {field.name for field in self.registers}
        lines = ["struct Arguments {", *(f"    {line}" for line in schema.members(constants)), "};"]
        lines += [f"STAGED({CTYPES[field.dtype]}, chip_{field.name}, {sizes[field.per]});" for field in self.shared]
        lines += [f"STAGED({ROWS[name]}, chip_{name}, {sizes['agent']});" for name in self.shared_rows]
        lines += ["struct Env : Arguments {"]
        lines += [f"    Register<{CTYPES[field.dtype]}> {field.name};" for field in self.registers]
        lines += [f"    Register<{ROWS[name]}> {name};" for name in self.register_rows]
        lines += [f"    InBlock<{CTYPES[field.dtype]}> {field.name};" for field in self.shared]
        lines += [f"    InBlock<{ROWS[name]}> {name};" for name in self.shared_rows]
        lines += ["    const int env_id;"]
        lines += ["    __device__ Env(const Arguments& launch, int e) : Arguments(launch), env_id(e) {}", "};"]
        lines += schema.zeroing(in_registers)
        # env_in_block: the number of an environment in its block.
        lines += [f"{FUNCTION} load(Env& env, const Arguments& launch, int e, int env_in_block, int rank) {{"]
        first = {"agent": "(e - env_in_block) * env.num_agents", "env": "e - env_in_block"}
        lines += [f"    env.{field.name} = {{chip_{field.name}, {first[field.per]}}};" for field in self.shared]
        lines += [*self._copies(in_registers, "env.{0}[{1}] = launch.{0}[{1}];"), "}"]
        lines += [f"{FUNCTION} store(const Env& env, const Arguments& launch, int e, int rank) {{"]
        lines += [*self._copies(in_registers, "launch.{0}[{1}] = env.{0}[{1}];", one=True), "}"]
        lines += [f"{FUNCTION} stage_rows(Env& env, int env_in_block, int row) {{"]
        first_row = "row - env_in_block * env.num_agents"
        lines += [f"    env.{name} = {{chip_{name}, {first_row}}};" for name in self.shared_rows]
        lines += ["}", f"{FUNCTION} write_rows(const Env& env, const Arguments& launch, int row, int rank) {{"]
        columns = (*self.register_rows, *self.shared_rows)
        lines += [*_loop("agent", [f"launch.{name}[row + a] = env.{name}[row + a];" for name in columns]), "}", ""]
        return "\n".join(lines)

    def _copies(self, in_registers: set[str], statement: str, *, one: bool = False) -> Iterator[str]:
        """Yield the statements that copy fields. one: whether one thread copies what several have of an environment."""
        for per in ("env", "agent"):
            named = [
                (field.name, statement.format(field.name, "e" if per == "env" else "e * env.num_agents + a"))
                for field in (*self.registers, *self.shared)
                if field.per == per and (field.role != "scratch" or field in COMMON)
            ]
            if per == "env":
                yield from (f"    {text}" for name, text in named if name in in_registers and not one)
                named = [(name, text) for name, text in named if one or name not in in_registers]
            yield from _loop(per, [text for _, text in named])


def _loop(per: str, statements: list[str]) -> Iterator[str]:
    """Yield a loop over a thread's agents, or an if that one thread of an environment takes, unless it is empty."""
    if statements:
        loop = "for (int a = rank; a < env.num_agents; a += GROUP_SIZE)"
        yield f"    {loop if per == 'agent' else 'if (rank == 0)'} {{"
        yield from (f"        {statement}" for statement in statements)
        yield "    }"


def _num_tiles(macros: Mapping[str, Any]) -> int:
    """Return the number of floats that a block keeps to collect observations."""
    group_size, block_size = macros["GROUP_SIZE"], macros["BLOCK_SIZE"]
    return int(macros["TILE"]) * (block_size // 32 if group_size <= 32 else 1)


def envs_per_block(group_size: int, block_size: int) -> int:
    """Return the number of environments that a block of threads plays at a time, group_size threads each."""
    return block_size // 32 * (32 // group_size) if group_size <= 32 else 1
