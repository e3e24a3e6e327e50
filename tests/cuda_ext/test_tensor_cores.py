"""Networks in bfloat16, by tensor cores: the instruction as fibres play it, and what is computed with it."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kernel_programs
import numpy as np
import pytest
import torch
from kernel_functions import compiled
from torch import nn

from cuda_ext import nvrtc
from cuda_ext.functions import NUM_LANES, TENSOR_CORE_THREADS, Shape
from cuda_ext.machine_code import Instructions
from cuda_ext.network import MOST_WIDTH, PART, Network, sizes
from cuda_ext.references import layers as float32
from cuda_ext.references.layers import Layer
from cuda_ext.references.tensor_cores import error_bound, forward, rounded, standard_error
from cuda_ext.sources import FOLDER
from cuda_ext.tag_grid import KERNEL
from pufferlib.errors import KernelError
from pufferlib.testing.kernel_usage import kernel_usage

pytestmark = pytest.mark.beside

# Of inputs and of each layer's outputs: multiples of 16 and others, and more inputs than the widest layer has outputs.
WIDTHS = [(1, 1), (7, 5), (16, 16, 16), (45, 64, 64, 5), (300, 33, 8, 256, 17), (5, 9, 3)]
ACTIVATIONS = ("linear", "tanh", "relu")  # as layers.cuh numbers them


def case_of(number: int, widths: tuple[int, ...], activation: int) -> str:
    """Return the C++ that computes a network, in both precisions."""
    layers = ", ".join(map(str, (widths[0], *itertools.chain(*((width, activation) for width in widths[1:])))))
    return f"""
    case {number}:
        for (int k = 0; float32 && k < 32; ++k) {{
            const float* const found = forward_known<{layers}>(inputs + k * num_inputs, weights, units[0], units[1]);
            memcpy(outputs + k * NETWORK_WIDTH, found, sizeof(float) * {widths[-1]});
        }}
        return float32 ? nullptr : forward_all<{layers}>(inputs, num_inputs, weights, outputs, order_seed);"""


NETWORKS = [(widths, activation) for widths in WIDTHS for activation in ACTIVATIONS]
CASES_OF_NETWORKS = "".join(
    case_of(number, widths, ACTIVATIONS.index(activation)) for number, (widths, activation) in enumerate(NETWORKS)
)
HARNESS = f"""
#define HOST_FIBRES
#define NETWORK_WIDTH {MOST_WIDTH}
static int fault = 0;
#include "host.h"
#include "tensor_cores.cuh"

extern "C" void turn_on(int number) {{ fault = number; }}

// Returns null, or why the lanes cannot continue.
extern "C" const char* multiply(const uint4* a, const unsigned* b, float* sums, unsigned order_seed) {{
    return host::launch(1, 32, order_seed, [=] {{
        const unsigned k = threadIdx.x;
        multiply_add(sums + 4 * k, a[k], b[2 * k], b[2 * k + 1]);
    }});
}}

template <int... LAYERS> const char* forward_all(const float* inputs, int num_inputs, const float* weights,
                                                 float* outputs, unsigned order_seed) {{
    return host::launch(1, 32, order_seed, [=] {{
        const unsigned k = threadIdx.x;
        forward_warp<LAYERS...>(inputs + k * num_inputs, weights, outputs + k * NETWORK_WIDTH);
    }});
}}

// Returns null, or why the lanes cannot continue. float32: whether to compute without tensor cores.
extern "C" const char* play(int number, int float32, const float* inputs, int num_inputs, const float* weights,
                            float* outputs, unsigned order_seed) {{
    float units[2][NETWORK_WIDTH];
    switch (number) {{
{CASES_OF_NETWORKS}
    }}
    return "there is no such network";
}}
"""
# Each exchanges two places of a fragment, or takes one for the other: file, sound text, unsound text.
FAULTS = [
    ("host_tensor_cores.h", "row % 8 * 4 + column % 8 / 2", "row % 8 * 4 + (FAULT ? column / 4 : column % 8 / 2)"),
    ("host_tensor_cores.h", "row / 8 + column / 8 * 2", "FAULT ? column / 8 + row / 8 * 2 : row / 8 + column / 8 * 2"),
    ("host_tensor_cores.h", "warp_lane / 4 + i / 2 * 8", "warp_lane / 4 + (FAULT ? i % 2 : i / 2) * 8"),
    ("host_tensor_cores.h", "b[row / 8], row)", "b[row / 8], row + FAULT)"),
]  # fmt: skip


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The functions of HARNESS, with all faults turned off."""
    folder = tmp_path_factory.mktemp("tensor_cores")
    kernel_programs.with_faults(folder / "headers", FAULTS)
    library = compiled(HARNESS, folder, "-O1", folder / "headers")
    library.multiply.restype = library.play.restype = ctypes.c_char_p
    return library


def address(array: np.ndarray) -> Any:
    return ctypes.c_void_p(array.ctypes.data)


# ------------------------------------------------------------------------------------------------- the instruction

# The PTX ISA, "Matrix Fragments for mma.m16n8k16": where element i of a lane's fragment is in its matrix.
GROUP, IN_GROUP = np.divmod(np.arange(32)[:, np.newaxis], 4)


def places_of_a() -> tuple[np.ndarray, np.ndarray]:
    i = np.arange(8)
    return GROUP + 8 * ((i % 4) >= 2), 2 * IN_GROUP + i % 2 + 8 * (i >= 4)


def places_of_b() -> tuple[np.ndarray, np.ndarray]:
    i = np.arange(4)
    return 2 * IN_GROUP + i % 2 + 8 * (i >= 2), np.broadcast_to(GROUP, (32, 4))


def places_of_sums() -> tuple[np.ndarray, np.ndarray]:
    i = np.arange(4)
    return GROUP + 8 * (i >= 2), 2 * IN_GROUP + i % 2


def registers(elements: np.ndarray) -> np.ndarray:
    """Return bfloat16 numbers in pairs, the first in the lower half of a register."""
    halves = rounded(elements).view(np.uint32) >> 16
    return np.ascontiguousarray(halves[:, ::2] | halves[:, 1::2] << 16)


def product_error(kernels: Any, seed: int) -> float:
    """Return the largest error of a product of random matrices, relative to the sum of magnitudes."""
    random = np.random.default_rng(seed)
    a, b, c = (
        rounded(random.normal(size=shape).astype(np.float32) * 2.0 ** random.integers(-9, 9, shape).astype(np.float32))
        for shape in ((16, 16), (16, 8), (16, 8))
    )
    words_a, words_b = registers(a[places_of_a()]), registers(b[places_of_b()])
    sums = np.ascontiguousarray(c[places_of_sums()])
    assert kernels.multiply(address(words_a), address(words_b), address(sums), seed) is None
    result = np.empty((16, 8))
    result[places_of_sums()] = sums
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    magnitudes = np.abs(a).astype(np.float64) @ np.abs(b) + np.abs(c)
    return float((np.abs(result - exact) / magnitudes).max())


def test_fibres_multiply_matrices_as_float64_does(kernels: Any) -> None:
    """A result is rounded once, to float32."""
    assert max(product_error(kernels, seed) for seed in range(20)) <= 2.0**-24


@pytest.mark.parametrize("fault", range(1, len(FAULTS) + 1))
def test_a_wrong_layout_is_found(fault: int, kernels: Any) -> None:
    kernels.turn_on(fault)
    try:
        assert product_error(kernels, 0) > 0.01
    finally:
        kernels.turn_on(0)


def test_numbers_are_rounded_as_torch_rounds_them() -> None:
    numbers = np.arange(0, 2**32, 65521, dtype=np.uint32).view(np.float32)
    theirs = torch.from_numpy(numbers).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(rounded(numbers), theirs)


# -------------------------------------------------------------------------------------------------------- networks


def network(widths: tuple[int, ...], follows: str, seed: int) -> tuple[nn.Sequential, list[Layer]]:
    torch.manual_seed(seed)
    kind = {"linear": None, "tanh": nn.Tanh, "relu": nn.ReLU}[follows]
    parts: list[nn.Module] = []
    layers: list[Layer] = []
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        linear = nn.Linear(before, after, bias=number != 1)
        parts += [linear, *([kind()] if kind else [])]
        biases = np.zeros(after) if linear.bias is None else linear.bias.detach().numpy()
        layers.append((linear.weight.detach().numpy(), biases, follows))
    return nn.Sequential(*parts), layers


@pytest.mark.parametrize("follows", ACTIVATIONS)
def test_fibres_compute_networks_as_the_reference_does(kernels: Any, follows: str) -> None:
    """To the bit, and as float32 does within the error that is expected."""
    for seed, widths in enumerate(WIDTHS):
        policy, layers = network(widths, follows, seed)
        inputs = np.random.default_rng(seed).normal(size=(32, widths[0])).astype(np.float32)
        actual = played(kernels, policy, inputs, NETWORKS.index((widths, follows)))
        np.testing.assert_array_equal(actual.view(np.uint32), forward(inputs, layers).view(np.uint32))
        exact = float32.forward(inputs, layers)
        error, deviation = np.abs(actual - exact), standard_error(inputs, layers)
        assert (error <= error_bound(inputs, layers)).all()
        assert (error <= 6 * deviation + 1e-6).all()
        if follows == "linear":
            assert (error > deviation / 4).mean() > 0.25  # the estimate is no larger than need be
        by_float32 = played(kernels, policy, inputs, NETWORKS.index((widths, follows)), "float32")
        np.testing.assert_array_equal(by_float32.view(np.uint32), exact.view(np.uint32))


def played(
    kernels: Any, policy: nn.Sequential, inputs: np.ndarray, number: int, precision: str = "bfloat16"
) -> np.ndarray:
    linears = [module for module in policy if isinstance(module, nn.Linear)]
    num_inputs, num_outputs = linears[0].in_features, linears[-1].out_features
    packed = Network.of(policy, num_inputs, num_outputs, torch.device("cpu"), precision)
    outputs = np.empty((32, MOST_WIDTH), np.float32)
    pointers = address(inputs), num_inputs, address(packed.weights.numpy()), address(outputs)
    assert kernels.play(number, precision == "float32", *pointers, 3) is None
    return outputs[:, :num_outputs].copy()


def test_a_row_that_is_infinite_changes_no_other(kernels: Any) -> None:
    """And not its own, where tanh makes an infinite sum finite: padding adds nothing."""
    policy, layers = network((5, 9, 3), "tanh", 0)
    inputs = np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32)
    expected = forward(inputs, layers)
    inputs[7, 2] = np.inf
    with np.errstate(invalid="ignore"):
        expected[7] = forward(inputs[7:8], layers)[0]
    assert np.isfinite(expected).all()
    number = NETWORKS.index(((5, 9, 3), "tanh"))
    np.testing.assert_array_equal(played(kernels, policy, inputs, number), expected)


# ----------------------------------------------------------------------------------------------- what devices run

# The most registers of a thread and bytes of its stack: two layers, and its logits. One agent; some; a part of a warp's
# lanes are idle in both; a block, of which each thread has an agent; several agents a thread.
FIVE = {"num_taggers": 4}
CROWD = {"num_taggers": 50, "num_runners": 1050, "full_observation": False, "num_nearest": 10}
BOUNDED: list[Any] = [
    ("tag/grid", FIVE, "sm_90", 160, 512),
    pytest.param("classic/cartpole", {}, "sm_90", 152, 512, marks=pytest.mark.long),
    pytest.param("tag/continuous", {"num_runners": 4}, "sm_90", 160, 512, marks=pytest.mark.long),
    pytest.param("tag/grid", {"num_taggers": 90, "num_runners": 15}, "sm_90", 240, 512, marks=pytest.mark.long),
    pytest.param("tag/continuous", CROWD, "sm_90", 160, 512, marks=pytest.mark.long),
    *(
        pytest.param("tag/grid", FIVE, f"sm_{k}", most, 512, marks=pytest.mark.long)
        for k, most in ((80, 152), (100, 208), (120, 208))
    ),
]


@pytest.mark.parametrize(("name", "kwargs", "architecture", "most_registers", "most_stack"), BOUNDED, ids=str)
def test_tensor_cores_compute_the_network(
    name: str, kwargs: dict[str, Any], architecture: str, most_registers: int, most_stack: int
) -> None:
    usage = kernel_usage(name, "rollout, bfloat16", architecture, kwargs)
    cubin = usage.cubin
    assert usage.shape.tensor_cores and cubin.spilled_nbytes == 0
    assert cubin.num_registers <= most_registers and cubin.stack_nbytes <= most_stack
    # Of two tiles with two halves of each part, and no second copy, which only some lanes of a warp would execute.
    # A compiler may leave out those of the last eight outputs, of 64 inputs, where these are padding.
    most = num_products(usage.shape.layers)
    assert Instructions.of(cubin.code).matrix_products in (most, most - 8)


def num_products(layers: Sequence[int]) -> int:
    """Return the number of matrix products in the code for a network: one loop has those of layers over 64 wide."""
    num_inputs, *rest = layers
    total = 0
    for num_outputs in rest[::2]:
        parts = -(-num_inputs // PART) * -(-num_outputs // PART) if max(num_inputs, num_outputs) <= 64 else 1
        total, num_inputs = total + 4 * parts, num_outputs
    return total


@pytest.mark.long
def test_float32_does_not_use_tensor_cores() -> None:
    cubin = kernel_usage("ocean/bandit", "rollout, network", "sm_90").cubin
    assert Instructions.of(cubin.code).matrix_products == 0


def test_weights_are_as_many_as_a_launch_expects() -> None:
    policy, _ = network((21, 64, 40, 5), "tanh", 0)
    packed = Network.of(policy, 21, 5, torch.device("cpu"), "bfloat16")
    assert (packed.width, len(packed.weights)) == sizes([21, 64, 40, 5], "bfloat16")
    words = 64 + 32 * 64 // 2 + 48 + 64 * 48 // 2 + 16 + 48 * 16 // 2
    assert (packed.width, len(packed.weights)) == (64, words)


def test_a_device_without_such_tensor_cores_is_refused() -> None:
    shape = Shape.of(5, 21, 64, 1000, True)
    for compiling in (nvrtc.compiled, nvrtc.cubin_file):
        with pytest.raises(
            KernelError, match='"tag/grid": a network in bfloat16 .* sm_80 or later, .* is an sm_75; use'
        ):
            compiling(KERNEL, shape, {}, "sm_75")


def test_blocks_leave_registers_for_sums() -> None:
    for num_agents in (33, 512, 513, 768, 1100, 5000):
        shape = Shape.of(num_agents, 71, 64, 1000, True)
        assert shape.block_size <= TENSOR_CORE_THREADS and shape.block_size % NUM_LANES == 0
    assert Shape.of(768, 71, 64, 1000).block_size == 768


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """A network of one layer chooses between the steps of tag/grid; a warp has six groups, and two idle lanes."""
    size, num_envs = 21, 7
    values = {
        "policy": 2, "policy_num_layers": 1, "policy_layers": "new int[2]{5, 1}",
        "policy_nvec": "new int[1]{5}", "policy_num_choices": 1, "policy_num_options": 5, "policy_masks": "nullptr",
        "policy_network": f"new float[{sizes([size, 5], 'bfloat16')[1]}]()",
        "policy_inputs": f"new float[{num_envs * 5 * size}]()",
        "actions": "env.policy_actions", "actions_nbytes": 8,
        "num_agents": 5, "observation_size": size, "num_taggers": 3, "num_nearest": 3, "full_observation": 1,
        "grid_length": 1, "episode_length": 2, "wall_hit_penalty": 0.1, "tag_reward_for_tagger": 10,
        "tag_penalty_for_runner": 2, "step_cost_for_tagger": 0.01, "num_layouts": 0,
    }  # fmt: skip
    shape = Shape(5, 5, 32, 632, network_width=16, num_weights=sizes([size, 5], "bfloat16")[1],
                  tensor_cores=True, layers=(size, 5, 1), options=(5,))  # fmt: skip
    text = kernel_programs.program(KERNEL, shape, num_envs, values, 3)
    assert kernel_programs.run(text, tmp_path, FOLDER, sanitizer) == (0, "")
