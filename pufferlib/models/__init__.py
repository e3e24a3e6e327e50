"""Policies: what a trainer asks of a network, and the networks that come with the library.

A policy is any ``torch.nn.Module`` that can be made as ``Class(observation_layout, action_space, **kwargs)``, of a
VecEnv's ``observation_layout`` and ``single_action_space``, and that has

    forward(observations, state, action_mask) -> outputs, values, state

observations: flat rows as a VecEnv gives them, (rows, *layout.shape) of ``layout.dtype``; ``layout.unflatten`` views
    them as the structure that the environment had.
state: what the policy returned with these agents' last rows, a tuple of tensors (rows, …); zeros at the beginning of an
    episode, as ``initial_state(num_rows)`` gives them. A policy without that method has no state: None comes and goes.
action_mask: bool (rows, num_options), the options that are allowed; None where the environment masks none. Whoever uses
    the outputs applies it, so a policy may ignore it.
outputs: logits, (rows, num_options), of Discrete, MultiDiscrete and MultiBinary spaces, all options one after another;
    (mean, std), each (rows, num_aims), of Box spaces, where -1 to 1 spans the bounds; (logits, mean, std) of both.
values: the discounted returns that it expects, (rows,) float32.

A policy that goes by the places of agents in their environment has ``num_places``, how many there are, and is told

    forward(observations, state, action_mask, places)

places: int64 (rows,), of each row's agent; it may be left out where the rows are those of whole environments, in order.

A policy with a state may have, to be learnt from sooner, what calls of ``forward`` one after another would return:

    unroll(observations, state, starts, action_mask) -> outputs, values

observations: (steps, rows, *layout.shape); action_mask likewise. state: before the first step. starts: bool (steps,
    rows), True where an episode begins, and the state is that of ``initial_state``. It returns steps * rows rows.

``Decisions`` (distributions.py) counts the options and makes of outputs a distribution, and of that actions.
``save_policy`` keeps a policy in a file; ``load_policy`` gives it back, at play on a raw environment.
"""

from pufferlib.models.distributions import Decisions, Distribution
from pufferlib.models.files import Origin, SavedPolicy, load_policy, read_policy, save_policy
from pufferlib.models.inference import Actor, BatchPlayer, Player
from pufferlib.models.making import action_mask_reader, make_policy
from pufferlib.models.networks import CNN, LSTM, MLP, Nature, State
from pufferlib.models.per_agent import FrameStack, Memory
from pufferlib.models.running_norm import RunningNorm, observe

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
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
