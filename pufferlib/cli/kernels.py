"""`puffer check ENV --backend cuda --report`: report the resources that a kernel needs, for its author."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pufferlib.cli.options import Check, keywords
from pufferlib.cli.screen import cleared, passing
from pufferlib.errors import KernelError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["kernel_report"]


def kernel_report(options: Check, console: Console) -> int:
    """Compile the kernel for each kind of launch and each GPU architecture; print a table of the resources needed.

    The architectures are those of ``cuda_ext.occupancy`` that the installed NVRTC supports. Returns the exit status,
    always 0. Raises KernelError if it supports none of them.
    """
    from rich.table import Table

    from pufferlib.testing.kernel_usage import HIDDEN, LAUNCHES, architectures, kernel_usage

    version, supported, unknown = architectures()
    if not supported:
        raise KernelError(
            f"NVRTC {version} compiles for none of {', '.join(unknown)}; install another nvidia-cuda-nvrtc"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for name in ("registers", "shared", "stack", "spilled", "blocks", "threads"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    usage: Any = None  # of the last compilation; the values printed from it are equal in all
    with cleared(console):
        for launch in LAUNCHES:
            table.add_row(launch)
            for architecture in supported:
                passing(console, f"{launch}: compiling for {architecture} …")
                usage = kernel_usage(options.env, launch, architecture, keywords(options.env_kwargs))
                cubin, occupancy = usage.cubin, usage.occupancy
                table.add_row(
                    f"  {architecture}",
                    str(cubin.num_registers),
                    f"{cubin.shared_nbytes:,}",
                    f"{cubin.stack_nbytes:,}",
                    f"[bold red]{cubin.spilled_nbytes:,}" if cubin.spilled_nbytes else "0",
                    str(occupancy.num_blocks),
                    f"{occupancy.share:.0%}",
                    occupancy.limit,
                )
    shape, agents = usage.shape, f"{usage.num_agents} agent{'s' * (usage.num_agents > 1)}"
    console.print(
        f"{options.env}: {agents} an environment, {usage.observation_size} numbers each; {shape.envs_per_block} "
        f"environment{'s' * (shape.envs_per_block > 1)} a block of {shape.block_size} threads",
        style="bold",
        markup=False,
        soft_wrap=True,
    )
    console.print(table)
    notes = (
        "Per thread: registers, and bytes of stack and of spilled registers. Per block: bytes of shared memory. Per "
        "multiprocessor: resident blocks, the share of its threads that they use, and the resource that limits them. "
        f"The network has hidden layers of {' and '.join(map(str, HIDDEN))}. NVRTC {version}"
    )
    more = f" does not know {', '.join(unknown)}; a newer nvidia-cuda-nvrtc does." if unknown else "."
    console.print(f"\n{notes}{more}", markup=False)
    return 0
