"""The learner that updates an actor and a critic in compiled code.

torch's autograd is the reference, with which tests/cuda_ext/test_learner.py compares losses, gradients and weights.
"""

from __future__ import annotations

import ctypes
import math
import platform
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ext.functions import THREAD_NS, HostKernel
from cuda_ext.learner.inference import InferenceBatch
from cuda_ext.learner.library import (
    ALIGNMENT,
    MOST_LAYERS,
    NUM_TERMS,
    VARIANTS,
    Heads,
    Network,
    Objective,
    Play,
    Update,
    library,
)
from cuda_ext.learner.rows import OBJECTIVES, Floats, Rows, Settings, address, array_of, joined, require
from cuda_ext.network import layers_of, packed, sizes
from pufferlib.errors import CallError, ClosedError, KernelError, SpaceError

__all__ = ["OBJECTIVES", "TERMS", "FusedLearner", "Rows", "Settings"]

TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "grad_norm")
MOST_HIDDEN = MOST_LAYERS - 1
ADVICE = (
    f"the fused learner takes a torch.nn.Sequential of Linear with up to {MOST_HIDDEN} hidden layers, all followed by "
    "Tanh or all by ReLU; use a trainer that learns with torch"
)
SLOW = "this processor lacks AVX2 or FMA, without which the fused learner is slower than torch; use ppo or ppo_cuda"


class FusedLearner:
    """An actor and a critic, with Adam's state, updated by compiled code. One thread at a time may call it.

    actor, critic: torch networks from the same features, whose weights are copied; ``save`` copies the learnt weights
    back. log_std: the parameter with the logarithms of the standard deviations, (num_continuous,). nvec: the number of
    options of each discrete part of an action. is_scaled: for each number of an observation whether ``play_steps`` and
    batches that read numbers convert it to a logarithmic scale, by default none. num_threads: the maximum number of
    threads. variant: the instruction set, one of ``VARIANTS``, by default the fastest that the processor has. Neither
    num_threads nor variant changes any result. Warns if the processor is an x86-64 without AVX2 and FMA, on which torch
    is faster.

    Raises KernelError for unsupported networks, and without a C++ compiler if one is needed; SpaceError if nvec or
    is_scaled do not fit. All methods raise CallError while another thread is in a call, ClosedError after ``close``,
    and those that run compiled code MemoryError if memory cannot be allocated.
    """

    def __init__(
        self,
        actor: Any,
        critic: Any,
        log_std: Any,
        nvec: Sequence[int],
        settings: Settings,
        *,
        is_scaled: Sequence[bool] | None = None,
        num_threads: int = 1,
        variant: str | None = None,
    ) -> None:
        self._functions = functions = library()
        variants = VARIANTS[: functions.learner_num_variants()]
        if variant is not None and variant not in variants:
            raise KernelError(f"variant={variant!r} does not run on this processor; use {', '.join(variants)}")
        if variant is None and len(variants) == 1 and platform.machine() in ("x86_64", "AMD64"):
            warnings.warn(SLOW, stacklevel=2)
        self._torch_parts = actor, critic, log_std
        self._nvec = np.array(nvec, np.int32)
        if self._nvec.ndim != 1 or (self._nvec < 1).any():
            raise SpaceError(f"nvec={nvec!r} has to be the numbers of options of discrete parts, each 1 or more")
        actor_linears, actor_network = _network(actor)
        critic_linears, critic_network = _network(critic)
        num_options, num_continuous = int(self._nvec.sum()), len(log_std)
        self._require_outputs(actor_network, critic_network, num_options + num_continuous)
        self._linears = actor_linears, critic_linears
        self._require_own_weights()
        num_inputs = actor_network.num_inputs
        self._is_scaled = np.array([False] * num_inputs if is_scaled is None else is_scaled, np.bool_)
        if self._is_scaled.shape != (num_inputs,):
            raise SpaceError(f"is_scaled has shape {self._is_scaled.shape}; the networks take {num_inputs} features")
        self._log_std = _aligned(sum(_layer_size(linear) for linear in actor_linears))
        self._critic = self._log_std + _aligned(num_continuous)
        num_weights = self._critic + _aligned(sum(_layer_size(linear) for linear in critic_linears))
        self._actor_network, self._critic_network = actor_network, critic_network
        # Rows: weights, gradients, and Adam's averages of gradients and of their squares.
        self._vectors = np.zeros((4, num_weights), np.float32)
        self.weights, self.gradients, self.means, self.squares = self._vectors
        self.beta_powers = np.ones(2)
        heads = Heads(self._nvec.ctypes.data, len(self._nvec), num_options, num_continuous)
        objective = (settings.clip, settings.entropy_coefficient, settings.value_coefficient)
        self._variant = -1 if variant is None else VARIANTS.index(variant)
        self._update = Update(
            actor=actor_network,
            critic=critic_network,
            heads=heads,
            objective=Objective(OBJECTIVES.index(settings.objective), *objective),
            beta1=settings.betas[0],
            beta2=settings.betas[1],
            epsilon=settings.epsilon,
            max_grad_norm=settings.max_grad_norm,
            advantage_floor=settings.advantage_floor,
            log_std=self._log_std,
            critic_weights=self._critic,
            num_weights=num_weights,
            variant=self._variant,
            most_groups=settings.most_groups,
            weights=self.weights.ctypes.data,
            means=self.means.ctypes.data,
            squares=self.squares.ctypes.data,
            gradients=self.gradients.ctypes.data,
            beta_powers=self.beta_powers.ctypes.data,
        )
        self._learner = functions.learner_open(max(1, num_threads), THREAD_NS)
        self._finalizer = weakref.finalize(self, functions.learner_close, self._learner)
        self._lock = threading.Lock()
        self.load()

    @staticmethod
    def _require_outputs(actor: Network, critic: Network, num_outputs: int) -> None:
        """Raise KernelError if the networks do not fit each other or the action space."""
        actual = actor.widths[actor.num_layers - 1], critic.widths[critic.num_layers - 1]
        if actual != (num_outputs, 1):
            raise KernelError(
                f"the actor has {actual[0]} outputs and the critic {actual[1]}; these actions need {num_outputs} and 1"
            )
        if actor.num_inputs != critic.num_inputs:
            raise KernelError(
                f"the actor takes {actor.num_inputs} features and the critic {critic.num_inputs}; give them the same"
            )

    def _require_own_weights(self) -> None:
        """Raise KernelError unless each layer has weights of its own, to which learnt ones can be copied."""
        import torch

        parameters = self._parameters()[:-1]
        if not all(isinstance(parameter, torch.nn.Parameter) for parameter in parameters):
            raise KernelError(f"the policy computes weights of a layer, as weight_norm does; {ADVICE}")
        if len({id(parameter) for parameter in parameters}) < len(parameters):
            raise KernelError(f"the policy has weights that several layers share; {ADVICE}")

    # ----------------------------------------------------------------------------------------------------- calls

    def _enter(self) -> None:
        """Take the lock. Raises CallError if another thread is in a call, ClosedError after ``close``."""
        if not self._lock.acquire(blocking=False):
            raise CallError(
                "another thread is in a call of this learner, and only one at a time may be; share a threading.Lock "
                "among the threads that use it, or make one in each of them"
            )
        if not self._finalizer.alive:
            self._lock.release()
            raise ClosedError("this learner is closed; make another")

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Keep other threads out. Raises the errors of ``_enter``."""
        self._enter()
        try:
            yield
        finally:
            self._lock.release()

    def _call(self, name: str, *arguments: Any) -> None:
        self._enter()  # a context manager takes 1.6 us more, where inference on 8 rows takes 5.4
        try:
            self._run(getattr(self._functions, name), *arguments)
        finally:
            self._lock.release()

    def _run(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a compiled function. Raises MemoryError if it could not allocate memory."""
        lacking = function(self._learner, *arguments)
        if lacking > 0:
            advice = "use smaller networks, smaller minibatches or fewer threads"
            raise MemoryError(f"the learner cannot allocate {lacking:,} bytes; {advice}")
        assert lacking == 0  # launches that choose actions check none

    def close(self) -> None:
        """End the learner's threads and free its memory; ``weights`` and the other arrays remain.

        The garbage collector does so, too, if nothing refers to the learner any more.
        Closing it again does nothing. Raises CallError while another thread is in a call.
        """
        if self._finalizer.alive:
            with self._calling():
                self._finalizer()

    # --------------------------------------------------------------------------------------------------- weights

    def layout(self) -> tuple[Update, NDArray[np.bool_], NDArray[np.int32]]:
        """Return a copy of the arguments that all updates share, and the arrays is_scaled and nvec."""
        return Update.from_buffer_copy(self._update), self._is_scaled, self._nvec

    def load(self) -> None:
        """Copy the weights of the torch networks, for example after they were restored."""
        actor, critic = self._linears
        with self._calling():
            log_std = self._torch_parts[2].detach()
            for begin, part in ((0, packed(actor)), (self._log_std, log_std), (self._critic, packed(critic))):
                self.weights[begin : begin + len(part)] = part.numpy()

    def save(self) -> None:
        """Copy the weights into the torch networks."""
        import torch

        with self._calling(), torch.no_grad():
            for parameter, values in zip(self._parameters(), self.by_parameter(self.weights), strict=True):
                parameter.copy_(torch.from_numpy(values))

    def _parameters(self) -> list[Any]:
        actor, critic = self._linears
        linears = [part for linear in (*actor, *critic) for part in (linear.weight, linear.bias)]
        return [*linears, self._torch_parts[2]]

    def by_parameter(self, vector: Floats) -> list[Floats]:
        """Split ``weights``, ``gradients`` or one of Adam's averages into new arrays in the shapes of torch's weights.

        They are in the order weight, bias of each layer of the actor, then of the critic, then log_std.
        """
        parts: list[Floats] = []
        for linears, begin in zip(self._linears, (0, self._critic), strict=True):
            for linear in linears:
                end = begin + _layer_size(linear)
                layer = vector[begin:end].reshape(linear.in_features + 1, -1)[:, : linear.out_features]
                parts += [np.ascontiguousarray(layer[1:].T), layer[0].copy()]
                begin = end
        num_continuous = len(self._torch_parts[2])
        return [*parts, vector[self._log_std : self._log_std + num_continuous].copy()]

    # ------------------------------------------------------------------------------------------ playing, learning

    def policy_outputs(self, features: Floats) -> Floats:
        """Return the actor's outputs, float32 (rows, num_outputs).

        features: a C-contiguous float32 array, (rows, num_inputs). Raises SpaceError for any other.
        """
        return self._outputs(self._actor_network, 0, features)

    def values(self, features: Floats) -> Floats:
        """Return the critic's values, float32 (rows,). features: as for ``policy_outputs``."""
        return self._outputs(self._critic_network, self._critic, features)[:, 0]

    def _outputs(self, network: Network, begin: int, features: Floats) -> Floats:
        count = len(array_of("features", features, 2))
        out = np.empty((count, network.widths[network.num_layers - 1]), np.float32)
        source = address("features", features, np.float32, (count, network.num_inputs))
        weights = self.weights.ctypes.data + 4 * begin
        self._call("learner_outputs", ctypes.byref(network), weights, source, count, self._variant, out.ctypes.data)
        return out

    def inference_batch(self, num_rows: int, *, reads_numbers: bool = False) -> InferenceBatch:
        """Return arrays with which the learner acts on batches of num_rows rows, and draws actions.

        reads_numbers: whether the features that it is given are an observation's numbers, which ``infer`` converts as
        ``play_steps`` does.
        """
        return InferenceBatch(
            num_rows, self._update, self._nvec, self._call, self._is_scaled if reads_numbers else None
        )

    def require_playable(self, launcher: Any, num_inputs: int, num_outputs: int, num_continuous: int) -> None:
        """Raise KernelError unless ``play_steps`` can play these environments.

        launcher: as for ``play_steps``. num_inputs: the number of numbers in an observation. num_outputs: the number of
        logits, or num_continuous, the number of numbers in an action, if that is not 0.
        """
        if not isinstance(launcher.kernel, HostKernel):
            raise KernelError(
                'the fused learner plays on the host only: device="host", without "checked"; for others there is '
                "cuda_ext.learner.device.DeviceLearner"
            )
        self.require_sizes(num_inputs, num_outputs, num_continuous)

    def require_sizes(self, num_inputs: int, num_outputs: int, num_continuous: int) -> None:
        """Raise KernelError unless the actor has these sizes, as ``require_playable`` takes them."""
        network = self._actor_network
        actual, expected = (network.num_inputs, network.widths[network.num_layers - 1]), (num_inputs, num_outputs)
        if actual != expected:
            raise KernelError(
                f"the policy makes {actual[1]} logits of {actual[0]} numbers, and these environments take "
                f"{num_outputs} logits and observe {num_inputs} numbers"
            )
        if self._update.heads.num_continuous != num_continuous:
            raise KernelError(
                f"the policy chooses {self._update.heads.num_continuous} numbers, and an action of these environments "
                f"has {num_continuous}"
            )

    def play_steps(
        self, launcher: Any, num_steps: int, slot_step: int, inputs: Any, observations: Any, logits: Any, stream: int
    ) -> None:
        """Play steps of all environments; ``rollout(policy=…)`` of a CUDA VecEnv on the host calls this.

        launcher: a cuda_ext.launcher.Launcher that chooses actions from logits and plays one step, with its arguments
        set; ``require_playable`` checks it. slot_step: the number of slots between the rows of two steps; 0 if each
        step overwrites the rows of the last. inputs: the observations before the first step; observations: those that
        the launches write; logits: the launches' logits, float32; all of them tensors. stream: ignored. The launcher's
        addresses are valid until its environments are closed, which must not happen during the call.
        """
        launcher.set({"policy_log_std": self.weights.ctypes.data + 4 * self._log_std})
        arguments = launcher.arguments
        features = np.empty(inputs.shape, np.float32)
        play, pool = launcher.kernel.addresses
        steps = Play(
            *(self._actor_network, self._variant, len(inputs), num_steps, slot_step),
            *(arguments.dtype.fields["first_slot"][1], self.weights.ctypes.data, self._is_scaled.ctypes.data),
            *(inputs.data_ptr(), observations.data_ptr(), features.ctypes.data, logits.data_ptr()),
            *(play, pool, arguments.ctypes.data),
        )
        self._call("learner_play", ctypes.byref(steps))

    def advantages(
        self,
        rewards: Floats,
        values: Floats,
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        masks: NDArray[np.bool_],
        gamma: float,
        gae_lambda: float,
    ) -> Floats:
        """Return generalized advantage estimates, (num_steps, num_agents); 0 where a step's mask is unset.

        values: (num_steps + 1, num_agents), those of the observations before each action and after the last one. The
        other arrays: (num_steps, num_agents), the outcomes of the actions. Raises SpaceError if an array is not
        C-contiguous, or has another shape or dtype.
        """
        num_steps, num_agents = shape = array_of("rewards", rewards, 2).shape
        advantages = np.empty(shape, np.float32)
        addresses = [
            address("rewards", rewards, np.float32, shape),
            address("values", values, np.float32, (num_steps + 1, num_agents)),
            *(address("flags", flags, np.bool_, shape) for flags in (terminations, truncations, masks)),
        ]
        with self._calling():
            self._functions.learner_advantages(*shape, *addresses, gamma, gae_lambda, advantages.ctypes.data)
        return advantages

    def update(self, rows: Rows, minibatches: Sequence[NDArray[np.int64]], learning_rate: float) -> NDArray[np.float64]:
        """Take a step of Adam for each minibatch, and return the minibatches' terms, (len(minibatches), len(TERMS)).

        minibatches: the indices of each minibatch's rows. The terms are means over the minibatch's rows, and the norm
        of the gradient before it is scaled down. A minibatch without valid rows is skipped. Raises SpaceError for
        arrays of a wrong shape or dtype, and for rows and options that do not exist; PlanError for a learning rate
        that is not a finite number from 0; MemoryError, after which earlier minibatches have been learnt from.
        """
        require("learning_rate", learning_rate, "a finite number from 0", lambda rate: 0 <= rate < math.inf)
        order, bounds = joined(minibatches, len(array_of("features", rows.features, 2)))
        with self._calling():
            return self._learn(rows, order, bounds, learning_rate)

    def _learn(self, rows: Rows, order: Any, bounds: Any, learning_rate: float) -> NDArray[np.float64]:
        """Take the steps of ``update``. Minibatch i consists of the rows order[bounds[i]:bounds[i + 1]]."""
        terms = np.zeros((len(bounds) - 1, NUM_TERMS + 1))
        update, heads, count = self._update, self._update.heads, len(rows.features)
        update.observations = address("features", rows.features, np.float32, (count, update.actor.num_inputs))
        update.discrete_actions = address(
            "discrete_actions", rows.discrete_actions, np.int64, (count, heads.num_discrete)
        )
        update.continuous_actions = address(
            "continuous_actions", rows.continuous_actions, np.float32, (count, heads.num_continuous)
        )
        for name in ("log_probs", "advantages", "returns"):
            setattr(update, name, address(name, getattr(rows, name), np.float32, (count,)))
        for name, shape in (("allowed", (count, heads.num_options)), ("masks", (count,))):
            column = getattr(rows, name)
            setattr(update, name, None if column is None else address(name, column, np.bool_, shape))
        exists = ((rows.discrete_actions >= 0) & (rows.discrete_actions < self._nvec)).all(1)
        if not (exists if rows.masks is None else exists | ~rows.masks).all():
            raise SpaceError(f"discrete_actions are not all in 0 to nvec - 1, where nvec={self._nvec.tolist()}")
        update.learning_rate = learning_rate
        update.order, update.bounds, update.terms = (array.ctypes.data for array in (order, bounds, terms))
        update.num_minibatches = len(terms)
        self._run(self._functions.learner_update, ctypes.byref(update))
        return terms


def _network(module: Any) -> tuple[list[Any], Network]:
    """Return a torch network's linear layers, and its sizes. Raises KernelError if the learner does not support it."""
    linears, activations = layers_of(module, ADVICE)
    hidden = set(activations[:-1])
    if not 1 <= len(linears) <= MOST_LAYERS or len(hidden) > 1 or 0 in hidden or activations[-1] != 0:
        raise KernelError(f"the policy has {len(linears)} linear layers with the activations {activations}; {ADVICE}")
    if any(linear.bias is None for linear in linears):
        raise KernelError(f"the policy has a layer without biases; {ADVICE}")
    widths = [linear.out_features for linear in linears]
    network = Network(linears[0].in_features, len(linears), activations[0])
    network.widths[: len(widths)] = widths
    return linears, network


def _layer_size(linear: Any) -> int:
    """Return the number of floats of a layer: biases, then a row for each input, padded."""
    return sizes([linear.in_features, linear.out_features])[1]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
