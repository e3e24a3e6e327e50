"""What a GPU is given: machine code as the tests compile it, and arguments whose memory is the struct's.

CuPy is played by a stand-in that notes what it is handed; where there is a GPU, the same kernel plays there.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from kernel_programs import COUNTING, counting
from stand_in_cupy import StandIn

import pufferlib
from cuda_ext import nvrtc
from cuda_ext.data import arguments_dtype
from cuda_ext.device import DeviceKernel
from cuda_ext.functions import Shape
from cuda_ext.schema import KernelEnv
from pufferlib.errors import KernelError

pytestmark = pytest.mark.beside

SHAPE = Shape.of(4, 1)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return stand_in


@pytest.fixture
def kernel(tmp_path: Path) -> KernelEnv:
    return counting(tmp_path)


@pytest.mark.long
def test_a_device_loads_what_the_tests_compile(cupy: StandIn, kernel: KernelEnv) -> None:
    """Kept by source and constants, and compiled once."""
    for num_agents in (4, 5, 4):
        DeviceKernel(kernel, Shape.of(num_agents, 1), {"num_agents": num_agents})
    first, other, again = cupy.loaded
    assert first == again != other and first[1] == "kernel_counting"
    assert first[0].read_bytes() == nvrtc.compiled(kernel, SHAPE, {"num_agents": 4}, "sm_90").code
    assert len([*first[0].parent.iterdir()]) == 2


def test_arguments_are_the_memory_of_the_struct_without_its_fields(cupy: StandIn, kernel: KernelEnv) -> None:
    """NumPy describes every field in the array interface of a structured array, which CuPy reads."""
    arguments = np.zeros((), arguments_dtype(kernel.schema))
    launch = DeviceKernel(kernel, SHAPE, {}).bound(arguments, 100)
    for stream in (0, 77):
        arguments["num_envs"] = 100 + stream
        launch(stream)
        grid, block, (passed,), shared_nbytes, on, _ = cupy.launched[-1]
        assert (passed.dtype.fields, passed.dtype.names, passed.size) == (None, None, 1)
        assert passed.nbytes == arguments.nbytes and np.shares_memory(passed, arguments)
        assert passed.__array_interface__["data"] == arguments.__array_interface__["data"]
        assert passed.tobytes() == arguments.tobytes()
        assert (grid, block, shared_nbytes, on) == ((4, 1, 1), (128, 1, 1), 0, stream)


def test_blocks_are_smaller_where_a_multiprocessor_would_have_none(cupy: StandIn, kernel: KernelEnv) -> None:
    """A block of 128 threads plays 32 of these environments; one of more than a warp's agents is a block anyway."""
    assert [SHAPE.split(97, 4).block_size, SHAPE.split(96, 4).block_size, SHAPE.split(3, 4).block_size] == [
        128,
        64,
        32,
    ]
    assert Shape.of(40, 1).split(1, 4).block_size == 64
    DeviceKernel(kernel, SHAPE, {}).bound(np.zeros((), arguments_dtype(kernel.schema)), 50)(0)
    assert cupy.launched[-1][:2] == ((4, 1, 1), (64, 1, 1))


def test_launches_go_to_the_device_that_was_compiled_for(cupy: StandIn, kernel: KernelEnv) -> None:
    launch = DeviceKernel(kernel, SHAPE, {}).bound(np.zeros((), arguments_dtype(kernel.schema)), 1)
    for cupy.present in (0, 1):
        launch(0)
    assert [launched[-1] for launched in cupy.launched] == [0, 0] and cupy.present == 1


def test_a_driver_that_is_too_old_is_named(cupy: StandIn, kernel: KernelEnv) -> None:
    cupy.error = "CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid"
    text = r'"counting": the driver does not load what NVRTC \d+\.\d+ has compiled for sm_90: CUDA_ERROR_INVALID_IMAGE'
    with pytest.raises(KernelError, match=text):
        DeviceKernel(kernel, SHAPE, {})


def test_a_kernel_without_its_file_is_named(cupy: StandIn, kernel: KernelEnv) -> None:
    with pytest.raises(KernelError, match="there is no file .*nowhere.cuh; the kernel's source= names it"):
        DeviceKernel(dataclasses.replace(kernel, source="nowhere.cuh"), SHAPE, {})


@pytest.mark.parametrize(
    ("capability", "architecture"), [("80", "sm_80"), ("86", "sm_86"), ("90", "sm_90"), ("119", "sm_110")]
)
def test_a_device_runs_what_is_compiled_for_its_generation(capability: str, architecture: str) -> None:
    assert nvrtc.architecture_of('"counting"', capability) == architecture


@pytest.mark.parametrize("capability", ["35", "999"])
def test_a_device_that_nvrtc_does_not_know(capability: str) -> None:
    text = rf"compiles for sm_\d+ to sm_\d+, and the device is an sm_{capability}; install a version of nvidia-cuda-n"
    with pytest.raises(KernelError, match=text):
        nvrtc.architecture_of('"counting"', capability)


def test_cudas_headers_are_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of cuda_ext includes one, those of others may."""
    kernel = counting(tmp_path, source="#include <own_numbers.h>\n" + COUNTING)
    folder = tmp_path / "include"
    monkeypatch.setattr(nvrtc, "_folders", lambda name: iter([folder]))
    with pytest.raises(KernelError, match="own_numbers.h: CUDA's own headers come with pip install nvidia-cuda-run"):
        nvrtc.compiled(kernel, SHAPE, {})
    folder.mkdir()
    for name in ("cuda_runtime_api.h", "own_numbers.h"):
        (folder / name).touch()
    assert nvrtc.compiled(kernel, SHAPE, {}).code


@pytest.mark.gpu
def test_on_a_gpu_a_kernel_of_ones_own(kernel: KernelEnv, device: str) -> None:
    with pufferlib.make(kernel, backend="cuda", device=device, num_envs=3) as vec:
        vec.reset()
        for t in (1, 2, 3):
            observations, _, _, truncations, _ = vec.step(torch.arange(12, device=vec.device) % 5)
            sums = (torch.arange(12) % 5).view(3, 4).sum(1)
            assert torch.equal(observations[:, 0].cpu(), t * sums.repeat_interleave(4).float())
            assert bool(truncations.all()) == bool(truncations.any()) == (t == 3)
