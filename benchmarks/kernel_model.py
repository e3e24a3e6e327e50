"""What a step of a kernel costs an H200, counted from the machine code: python -m benchmarks.kernel_model. No GPU runs.

For each case, NVRTC compiles a launch of many steps. The table counts the instructions of its loop over steps,
including those that only the start or the end of an episode needs, and the bytes that a step moves. Three rates follow,
in environment steps per second: "issue", if all multiprocessors are full and each instruction is executed in each step;
"memory", which the device cannot exceed if the rows of all steps are kept; "latency", if each instruction takes a warp
CYCLES. The least of them is the model's estimate.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from cuda_ext.functions import NUM_LANES
from cuda_ext.machine_code import Instructions
from cuda_ext.schema import COMMON, CTYPES
from cuda_ext.staging import NBYTES, ROWS, SUMS
from pufferlib.testing.kernel_usage import KernelUsage, kernel_usage
from pufferlib.vectorization.device.kernel_lookup import kernel_of

NUM_MULTIPROCESSORS, CLOCK_HZ, BYTES_PER_S = 132, 1.755e9, 4.3e12  # of an H200; the last was measured by copying
NUM_SCHEDULERS = 4 * NUM_MULTIPROCESSORS
CYCLES = 4  # per instruction of a warp that is alone, most of which wait for the one before
GRID = {"num_taggers": 4, "grid_length": 100, "full_observation": False}
CASES: list[tuple[str, dict[str, Any], int]] = [  # the last: how many environments
    ("tag/grid", GRID, 2_000),
    ("tag/grid", GRID, 60_000),
    ("classic/cartpole", {}, 60_000),
]


class Cost(NamedTuple):
    """What a step costs: instructions of a warp, and bytes of an environment without and with its state."""

    instructions: Instructions
    warps_per_env: float
    num_resident_warps: float  # of a launch on the whole device, at a time
    rows_nbytes: int
    state_nbytes: int


def cost_of(name: str, usage: KernelUsage) -> Cost:
    """Return the cost of a step of a rollout of a kernel."""
    n, shape = usage.num_agents, usage.shape
    rows = n * (4 * usage.observation_size + sum(NBYTES[ctype] for ctype in ROWS.values())) + 1
    fields = [
        field
        for field in kernel_of(name).schema.all_fields
        if field.role != "const" and not field.size and not field.name.startswith(SUMS)
        if field.role == "state" or field in COMMON
    ]
    state = sum(NBYTES[CTYPES[field.dtype]] * (n if field.per == "agent" else 1) for field in fields)
    several = shape.group_size > NUM_LANES
    warps = shape.group_size / NUM_LANES if several else 1 / (NUM_LANES // shape.group_size)
    resident = usage.occupancy.num_blocks * shape.block_size / NUM_LANES * NUM_MULTIPROCESSORS
    return Cost(Instructions.of(usage.cubin.code, in_loop=True), warps, resident, rows, 2 * state)


def rates(cost: Cost, num_envs: int) -> dict[str, float]:
    """Return rates in environment steps per second, keyed by what limits them."""
    warps, total = cost.warps_per_env * num_envs, cost.instructions.total
    step_s = total * CYCLES / CLOCK_HZ * max(1.0, warps / cost.num_resident_warps)
    return {
        "issue": NUM_SCHEDULERS * CLOCK_HZ / (total * cost.warps_per_env),
        "memory": BYTES_PER_S / cost.rows_nbytes,
        "latency": num_envs / step_s,
    }


def main() -> None:
    """Print a table of all cases."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    titles = ("case", "registers", "instructions", "loads", "stores", "bytes", "state", "issue", "memory", "latency")
    print("| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles))
    for name, kwargs, num_envs in CASES:
        usage = kernel_usage(name, "rollout", "sm_90", kwargs)
        cost = cost_of(name, usage)
        counts = cost.instructions
        numbers = (
            usage.cubin.num_registers,
            counts.total,
            counts.global_loads,
            counts.global_stores,
            cost.rows_nbytes,
            cost.state_nbytes,
            *(f"{rate:.1e}" for rate in rates(cost, num_envs).values()),
        )
        print(f"| {name}, {num_envs:,} × {usage.num_agents} | " + " | ".join(map(str, numbers)) + " |", flush=True)


if __name__ == "__main__":
    main()
