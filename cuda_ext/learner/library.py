"""The learner's compiled functions, and the structures that they take (update.h)."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_longlong, c_void_p

from cuda_ext import sources
from cuda_ext.functions import built_library, cache_folder, compile_command, loaded

__all__ = [
    "ALIGNMENT",
    "MOST_LAYERS",
    "NUM_TERMS",
    "TILE",
    "VARIANTS",
    "DeviceAdvantages",
    "DeviceOutputs",
    "DeviceUpdate",
    "Heads",
    "Inference",
    "Network",
    "Objective",
    "Play",
    "Update",
    "library",
    "with_signatures",
]

MOST_LAYERS, TILE, ALIGNMENT, NUM_TERMS = 4, 64, 16, 5  # as in update.h and losses.cuh
VARIANTS = ("baseline", "avx2", "avx512")  # the instruction sets, in the order of main.h


class Network(Structure):
    """The sizes and the activation of a network."""

    _fields_ = (
        ("num_inputs", c_int),
        ("num_layers", c_int),
        ("activation", c_int),
        ("widths", c_int * MOST_LAYERS),
    )


class Heads(Structure):
    """The parts of an action."""

    _fields_ = (("nvec", c_void_p), ("num_discrete", c_int), ("num_options", c_int), ("num_continuous", c_int))


class Objective(Structure):
    """The loss. kind: 0 for PPO, 1 for A2C."""

    _fields_ = (
        ("kind", c_int),
        ("clip", c_float),
        ("entropy_coefficient", c_float),
        ("value_coefficient", c_float),
    )


class Update(Structure):
    """The arguments of an update."""

    _fields_ = (
        ("actor", Network),
        ("critic", Network),
        ("heads", Heads),
        ("objective", Objective),
        *((name, c_double) for name in ("learning_rate", "beta1", "beta2", "epsilon")),
        *((name, c_double) for name in ("max_grad_norm", "advantage_floor")),
        *((name, c_int) for name in ("log_std", "critic_weights", "num_weights", "variant")),
        ("most_groups", c_int),
        *((name, c_void_p) for name in ("weights", "means", "squares", "gradients", "beta_powers")),
        *((name, c_void_p) for name in ("observations", "discrete_actions", "continuous_actions", "allowed", "masks")),
        *((name, c_void_p) for name in ("log_probs", "advantages", "returns", "order", "bounds")),
        ("num_minibatches", c_int),
        ("terms", c_void_p),
    )


class DeviceUpdate(Structure):
    """The arguments of the kernels of an update (device.cuh)."""

    _fields_ = (
        ("update", Update),
        *((name, c_int) for name in ("minibatch", "actor_rows", "critic_rows")),
        *((name, c_void_p) for name in ("learning_rate", "statistics", "transposed", "gradients")),
        *((name, c_void_p) for name in ("group_terms", "next_step")),
    )


class DeviceOutputs(Structure):
    """The arguments of the kernel that computes a network's outputs."""

    _fields_ = (
        ("network", Network),
        *((name, c_int) for name in ("num_rows", "tile_rows")),
        *((name, c_void_p) for name in ("weights", "inputs", "is_scaled", "features", "outputs")),
    )


class DeviceAdvantages(Structure):
    """The arguments of the kernel that estimates advantages."""

    _fields_ = (
        *((name, c_int) for name in ("num_steps", "num_agents")),
        *((name, c_void_p) for name in ("rewards", "values", "terminations", "truncations", "masks")),
        *((name, c_float) for name in ("gamma", "gae_lambda")),
        *((name, c_void_p) for name in ("advantages", "returns")),
    )


class Inference(Structure):
    """The arguments for inferring values and drawing actions."""

    _fields_ = (
        ("actor", Network),
        ("critic", Network),
        ("heads", Heads),
        *((name, c_int) for name in ("log_std", "critic_weights", "variant", "num_rows")),
        *((name, c_void_p) for name in ("weights", "features", "is_scaled", "allowed", "exponentials", "normals")),
        *((name, c_void_p) for name in ("outputs", "values")),
        *((name, c_void_p) for name in ("discrete_actions", "continuous_actions", "log_probs", "options")),
    )


class Play(Structure):
    """The arguments for playing steps."""

    _fields_ = (
        ("actor", Network),
        *((name, c_int) for name in ("variant", "num_rows", "num_steps", "slot_step", "first_slot")),
        *((name, c_void_p) for name in ("weights", "is_scaled", "inputs", "observations", "features", "logits")),
        *((name, c_void_p) for name in ("play", "pool", "launch")),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Return the learner's library: the one that setup.py built, if it is current, else one compiled now or before.

    Raises KernelError without a C++ compiler, if one is needed.
    """
    built = built_library()
    digest = getattr(built, "learner_digest", None)
    if built is not None and digest is not None:
        digest.restype = c_char_p
        if digest().decode() == sources.learner_digest():
            return with_signatures(built)
    program, command = sources.for_learner(), compile_command("the fused learner")
    path = cache_folder() / f"learner-{sources.learner_digest(*command)}.so"
    return with_signatures(loaded(path, command, program, "the fused learner does not compile:\n{}".format))


def with_signatures(functions: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the arguments and results of a library's functions; return the library."""
    functions.learner_open.argtypes, functions.learner_open.restype = (c_int, c_double), c_void_p
    functions.learner_close.argtypes, functions.learner_close.restype = (c_void_p,), None
    functions.learner_num_variants.argtypes, functions.learner_num_variants.restype = (), c_int
    functions.learner_update.argtypes, functions.learner_update.restype = (c_void_p, POINTER(Update)), c_longlong
    functions.learner_play.argtypes, functions.learner_play.restype = (c_void_p, POINTER(Play)), c_longlong
    for name in ("learner_infer", "learner_draw"):
        function = getattr(functions, name)
        function.argtypes, function.restype = (c_void_p, POINTER(Inference)), c_longlong
    functions.learner_outputs.argtypes = (*(c_void_p, POINTER(Network), c_void_p, c_void_p, c_int, c_int, c_void_p),)
    functions.learner_outputs.restype = c_longlong
    functions.learner_advantages.argtypes = (c_int, c_int, *(c_void_p,) * 5, c_float, c_float, c_void_p)
    functions.learner_advantages.restype = None
    return functions
