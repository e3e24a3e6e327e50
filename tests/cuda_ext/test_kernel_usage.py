"""What kernels take of devices that are not there, as `puffer check ENV --backend cuda --report` shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from kernel_programs import counting
from torch import nn

from cuda_ext import nvrtc, occupancy
from cuda_ext.machine_code import Instructions
from cuda_ext.network import Network, sizes
from cuda_ext.nvrtc import Cubin
from cuda_ext.occupancy import MULTIPROCESSORS, Occupancy
from pufferlib.cli import main
from pufferlib.testing.kernel_usage import LAUNCHES, architectures, kernel_usage

pytestmark = pytest.mark.beside

REPORT = ["check", "ocean/squared", "--backend", "cuda", "--report"]


# As cuda_occupancy.h of CUDA 13.0 counts them, as do those of 5,508 others.
@pytest.mark.parametrize(
    ("architecture", "block_size", "registers", "shared_nbytes", "num_blocks", "limit"),
    [
        ("sm_80", 32, 16, 1_000, 32, "blocks"),
        ("sm_80", 128, 32, 16_384, 9, "shared"),
        ("sm_80", 768, 73, 28_804, 1, "registers"),
        ("sm_90", 32, 96, 0, 20, "registers"),  # warps are shared out among four parts
        ("sm_90", 128, 64, 0, 8, "registers"),
        ("sm_90", 576, 80, 28_804, 1, "registers"),
        ("sm_100", 128, 16, 0, 16, "threads"),
        ("sm_120", 32, 24, 0, 24, "blocks"),
        ("sm_120", 64, 24, 9_216, 10, "shared"),
        ("sm_120", 128, 33, 8, 12, "threads"),
        ("sm_120", 736, 96, 8, 0, "registers"),
    ],
)
def test_blocks_on_a_multiprocessor(
    architecture: str, block_size: int, registers: int, shared_nbytes: int, num_blocks: int, limit: str
) -> None:
    occupancy = Occupancy.of(Cubin(b"", registers, shared_nbytes, 0, 0), block_size, architecture)
    assert (occupancy.num_blocks, occupancy.limit) == (num_blocks, limit)
    assert occupancy.share == num_blocks * block_size / MULTIPROCESSORS[architecture].num_threads


@pytest.mark.parametrize(("version", "uncached"), [((12, 8), False), ((13, 0), True)])
def test_nvrtc_compiles_without_its_own_cache(
    version: tuple[int, int], uncached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a cached result lacks the number of registers; versions without a cache know no such option."""
    options: list[str] = []

    class Asked(Exception):
        pass

    def compile_by(kernel: object, source: str, given_options: list[str]) -> None:
        options.extend(given_options)
        raise Asked

    monkeypatch.setattr(nvrtc, "version", lambda: version)
    monkeypatch.setattr(nvrtc, "_compile", compile_by)
    kernel = counting(tmp_path)
    with pytest.raises(Asked):
        kernel_usage(kernel, "step", "sm_90", {"num_agents": 4})
    assert ("--no-cache" in options) is uncached and "--gpu-architecture=sm_90" in options


def test_what_a_kernel_of_ones_own_takes(tmp_path: Path) -> None:
    """Shared memory that leaves no room for more blocks, and an array that is no register."""
    room = """
    __shared__ float room[3000];
    float own[8];
    for (int k = 0; k < 8; ++k) own[(env.t[e] * 3 + k) % 8] = room[k];
    room[group.rank] = own[env.t[e] % 8];
    """
    plain, takes = (
        kernel_usage(counting(tmp_path, more=more), "step", "sm_90", {"num_agents": 40}) for more in ("", room)
    )
    assert (plain.num_agents, plain.observation_size, plain.shape.block_size) == (40, 1, 64)
    assert plain.cubin.stack_nbytes == 0 and plain.occupancy.num_blocks > 17
    assert plain.cubin.shared_nbytes + 12_000 <= takes.cubin.shared_nbytes < 13_000
    assert takes.cubin.stack_nbytes == 32
    assert takes.occupancy == (17, 17 * 64 / 2048, "shared")


def test_instructions_are_counted(tmp_path: Path) -> None:
    """Two barriers more are two more in the machine code."""
    codes = [
        kernel_usage(counting(tmp_path, more=more), "step", "sm_90", {"num_agents": 40}).cubin.code
        for more in ("", "group.sync();\n group.sync();")
    ]
    plain, waits = map(Instructions.of, codes)
    assert waits.barriers == plain.barriers + 2 > 2
    assert waits.total > plain.total > plain.global_loads + plain.global_stores > 2
    with pytest.raises(ValueError, match="no .text section"):
        Instructions.of(codes[0].replace(b".text.", b".other"))


EACH_MEMORY = """
extern "C" __global__ void words(int* memory, int* other, int n) {
    __shared__ int shared[64];
    shared[threadIdx.x] = memory[threadIdx.x];
    __syncthreads();
    int* const either = n > 0 ? other : shared;
    either[n] += shared[threadIdx.x ^ 1];
    __syncthreads();
    memory[threadIdx.x] = shared[threadIdx.x];
}
"""


@pytest.mark.parametrize("architecture", MULTIPROCESSORS)
def test_loads_and_stores_are_counted_by_their_memory(architecture: str) -> None:
    code, _ = nvrtc._compile(None, EACH_MEMORY, nvrtc._options(architecture))
    _, *counts = Instructions.of(code)
    assert counts == [1, 1, 2, 1, 2, 2, 0]


def test_launches_are_those_that_are_compiled() -> None:
    """A rollout takes more registers than a step; a network that fits is in shared memory."""
    cubins = {launch: kernel_usage("ocean/squared", launch, "sm_90").cubin for launch in [*LAUNCHES][:3]}
    assert cubins["step"].num_registers < cubins["rollout"].num_registers
    assert len(cubins["step"].code) < len(cubins["step, logits"].code)
    layers = nn.Sequential(nn.Linear(9, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    network = Network.of(layers, 9, 8, torch.device("cpu"))
    assert sizes([9, 64, 64, 8]) == (network.width, len(network.weights))


@pytest.mark.long
def test_the_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, known, unknown = architectures()
    assert known == [*MULTIPROCESSORS] == ["sm_80", "sm_90", "sm_100", "sm_120"] and not unknown
    some = {"sm_90": MULTIPROCESSORS["sm_90"], "sm_999": MULTIPROCESSORS["sm_90"]}
    monkeypatch.setattr(occupancy, "MULTIPROCESSORS", some)
    assert main([*REPORT, "--env-kwargs", "distance=1"]) == 0
    first, *lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert first == "ocean/squared: 1 agent an environment, 9 numbers each; 128 environments a block of 128 threads"
    assert lines[0].split() == ["registers", "shared", "stack", "spilled", "blocks", "threads", "limit"]
    assert lines[1:11:2] == [*LAUNCHES]
    usage = kernel_usage("ocean/squared", "rollout, network", "sm_90", {"distance": 1})
    cubin, on = usage.cubin, usage.occupancy
    expected = ["sm_90", str(cubin.num_registers), f"{cubin.shared_nbytes:,}", f"{cubin.stack_nbytes:,}", "0"]
    assert lines[8].split() == [*expected, str(on.num_blocks), f"{on.share:.0%}", on.limit]
    assert all(line.split()[0] == "sm_90" for line in lines[2:11:2])
    text = " ".join(lines[11:])
    assert re.search(r"hidden layers of 64 and 64\. NVRTC 1\d\.\d does not know sm_999; a newer", text), text


def test_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    nvrtc._library.cache_clear()
    monkeypatch.setattr(nvrtc, "_folders", lambda name: iter(()))
    monkeypatch.setattr(nvrtc, "NAMES", ())
    try:
        assert main(REPORT) == 1
        assert capsys.readouterr().err == "puffer: compiling for a GPU needs NVRTC: pip install nvidia-cuda-nvrtc\n"
    finally:
        nvrtc._library.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(occupancy, "MULTIPROCESSORS", {"sm_999": MULTIPROCESSORS["sm_90"]})
    assert main(REPORT) == 1
    assert " compiles for none of sm_999; install another nvidia-cuda-nvrtc" in capsys.readouterr().err
    assert main(["check", "ocean/squared", "--report"]) == 1
    assert "--report are for kernels, which --backend cuda compares with" in capsys.readouterr().err
