"""Policies: the interface that trainers require of a network, and the networks that the library provides.

A policy is any ``torch.nn.Module`` that can be created as ``Class(observation_layout, action_space, **kwargs)``, with a
VecEnv's ``observation_layout`` and ``single_action_space``, and that has

    forward(observations, state, action_mask) -> outputs, values, state

observations: flat rows of a VecEnv, (rows, *layout.shape) of ``layout.dtype``; ``layout.unflatten`` views them in the
    environment's structure.
state: the state that the policy returned with these agents' previous rows, a tuple of tensors (rows, …); at the start
    of an episode, the result of ``initial_state(num_rows)``. A policy without that method has no state; ``state`` is
    then always None.
action_mask: bool (rows, num_options), the allowed options; None if the environment has no masks. The caller applies it
    to the outputs, so a policy may ignore it.
outputs: for Discrete, MultiDiscrete and MultiBinary spaces, logits, (rows, num_options), with the options of all parts
    one after another; for Box spaces, (mean, std), each (rows, num_aims), with one column per element of a Box, where
    -1 to 1 spans the element's bounds; for spaces with both, (logits, mean, std).
values: the expected discounted returns, (rows,) float32.

A policy that depends on the agents' indices in their environment has an attribute ``num_places``, the number of
indices, and is called as

    forward(observations, state, action_mask, places)

places: int64 (rows,), the index of each row's agent; may be omitted if the rows are those of complete environments, in
    order.

A policy with a state may define ``unroll``, which computes the results of successive calls of ``forward`` faster:

    unroll(observations, state, starts, action_mask) -> outputs, values

observations: (steps, rows, *layout.shape). action_mask: bool (steps, rows, num_options), or None. state: the state
    before the first step. starts: bool (steps, rows), True where an episode begins; the state there is replaced by that
    of ``initial_state``. The results have steps * rows rows.

``Decisions`` (distributions.py) counts the options, converts outputs to a distribution, and converts samples to
actions.
``save_policy`` saves a policy to a file; ``load_policy`` loads it as a player of a raw environment.
"""

from functools import partial

from pufferlib.models.distributions import Decisions, Distribution
from pufferlib.models.files import Origin, SavedPolicy, load_policy, read_policy, save_policy
from pufferlib.models.inference import PRECISIONS, Actor, BatchPlayer, Player
from pufferlib.models.making import action_mask_reader, make_policy
from pufferlib.models.networks import CNN, LSTM, MLP, Nature, State
from pufferlib.models.per_agent import FrameStack, Memory
from pufferlib.models.running_norm import RunningNorm, observe
from pufferlib.util import compat_names

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
    "PRECISIONS",
    "Actor",
    "BatchPlayer",
    "Decisions",
    "Distribution",
    "FrameStack",
    "Memory",
    "Nature",
    "Origin",
    "Player",
    "RunningNorm",
    "SavedPolicy",
    "State",
    "action_mask_reader",
    "load_policy",
    "make_policy",
    "observe",
    "read_policy",
    "save_policy",
]

__getattr__ = partial(compat_names.member, __name__)  # the names that PufferLib has here
