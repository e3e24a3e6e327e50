"""PufferLib's policies, which read their spaces from an environment and split into an encoder and a decoder.

``encode_observations`` returns the hidden state and, in versions 1 and 2, a second value (``lookup``) that
``decode_actions`` then gets. The modules, and so the names in a state dict, are those of each version.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import max_pool2d, relu

from pufferlib.compat.pytorch import LSTM, flattened_tensor_size, layer_init, nativize_dtype, nativize_tensor
from pufferlib.compat.versions import version_of_program
from pufferlib.errors import SpaceError

__all__ = [
    "ConvSequence",
    "Convolutional",
    "Default",
    "LSTMWrapper",
    "ProcgenResnet",
    "ResidualBlock",
    "version_of_policy",
]


def version_of_policy(policy: Any) -> int:
    """Return the version for which a policy was written: 2, which stands for version 1 as well, or 3.

    A policy's own ``decode_actions`` with a second parameter is of version 2; its own ``encode_observations`` with
    ``state``, or ``forward_eval``, is of version 3. Otherwise the program's imports decide, and without a sign the
    result is 3.
    """
    if "_version" in vars(policy):
        return int(policy._version)
    methods = [getattr(type(policy), name, None) for name in ("decode_actions", "encode_observations", "forward_eval")]
    decode, encode, evaluate = (method if getattr(method, "__module__", "") != __name__ else None for method in methods)
    if decode is not None:
        return 2 if len(inspect.signature(decode).parameters) > 2 else 3
    if encode is not None:
        return 3 if _takes_state(encode) else 2
    return 3 if evaluate is not None or version_of_program() not in (1, 2) else 2


def _takes_state(method: Any) -> bool:
    parameters = inspect.signature(method).parameters.values()
    return any(item.name == "state" or item.kind is item.VAR_KEYWORD for item in parameters)


class _SplitPolicy(nn.Module):
    """A policy whose ``forward`` calls ``encode_observations`` and ``decode_actions``, in each version's form."""

    def __init__(self) -> None:
        super().__init__()
        self._version = version_of_policy(self)

    def forward(self, observations: Tensor, state: Any = None) -> tuple[Any, Tensor]:
        """Return (logits, values) of rows of observations. state: passed to the encoder in version 3."""
        return decode(self, *encode(self, observations, state))

    def forward_eval(self, observations: Tensor, state: Any = None) -> tuple[Any, Tensor]:
        """Return ``forward``."""
        result: tuple[Any, Tensor] = self.forward(observations, state)
        return result

    forward_train = forward_eval

    def _encoded(self, hidden: Tensor) -> Any:
        return hidden if self._version == 3 else (hidden, None)


def encode(policy: Any, observations: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """Return the (hidden, lookup) of a policy's encoder; lookup is None in version 3."""
    keywords = {"state": state} if state is not None and _takes_state(policy.encode_observations) else {}
    result = policy.encode_observations(observations, **keywords)
    return result if isinstance(result, tuple) else (result, None)


def decode(policy: Any, hidden: Tensor, lookup: Any) -> tuple[Any, Tensor]:
    """Return the (logits, values) of a policy's decoder."""
    arguments = (hidden, lookup) if version_of_policy(policy) == 2 else (hidden,)
    result: tuple[Any, Tensor] = policy.decode_actions(*arguments)
    return result


def _observations_of(env: Any) -> Any:
    """Return the observation space of the environment inside a wrapper or vecenv; None without one."""
    inner = getattr(getattr(env, "driver_env", env), "env", None)
    space = getattr(inner, "observation_space", None)
    agents = getattr(inner, "possible_agents", None)
    return space(agents[0]) if callable(space) and agents else space


class Default(_SplitPolicy):
    """A policy with one hidden layer, for discrete, multi-discrete and continuous actions.

    env: a vecenv or environment with ``single_observation_space`` and ``single_action_space``. The hidden layer begins
    with torch's own weights, the heads with small ones. The leaves of a Dict of observations are joined as float32.
    Discrete actions: logits (rows, n). MultiDiscrete: several of these, a tuple in version 3 and a list before. Box: a
    Normal of (rows, d). Raises SpaceError for other action spaces.
    """

    def __init__(self, env: Any, hidden_size: int = 128) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        space, shape = env.single_action_space, env.single_observation_space.shape
        self.is_multidiscrete = isinstance(space, spaces.MultiDiscrete)
        self.is_continuous = isinstance(space, spaces.Box)
        self.is_dict_obs = isinstance(_observations_of(env), spaces.Dict)
        if self.is_dict_obs:
            self.dtype = nativize_dtype(env.emulated)
            self.encoder: nn.Module = nn.Linear(flattened_tensor_size(self.dtype), hidden_size)
        else:
            linear = nn.Linear(math.prod(shape), hidden_size)
            self.encoder = nn.Sequential(linear, nn.GELU()) if self._version == 3 else linear
        if isinstance(space, spaces.MultiDiscrete):
            self.action_nvec = tuple(map(int, space.nvec))
            sizes = [sum(self.action_nvec)] if self._version == 3 else self.action_nvec
            heads = [layer_init(nn.Linear(hidden_size, size), 0.01) for size in sizes]
            self.decoder: nn.Module = heads[0] if self._version == 3 else nn.ModuleList(heads)
        elif isinstance(space, spaces.Discrete):
            self.decoder = layer_init(nn.Linear(hidden_size, int(space.n)), 0.01)
        elif isinstance(space, spaces.Box):
            size = math.prod(space.shape)
            self.decoder_mean = layer_init(nn.Linear(hidden_size, size), 0.01)
            self.decoder_logstd = nn.Parameter(torch.zeros(1, size))
        else:
            raise SpaceError(f"Default has no actions of {space}; use a Discrete, MultiDiscrete or Box")
        value = layer_init(nn.Linear(hidden_size, 1), 1)
        if self._version == 3:
            self.value = value
        else:
            self.value_head = value

    def encode_observations(self, observations: Tensor, state: Any = None) -> Any:
        """Return hidden states, (rows, hidden_size); in versions 1 and 2, with None as the second value."""
        rows = len(observations)
        if self.is_dict_obs:
            leaves = _leaves(nativize_tensor(observations, self.dtype))
            flat = torch.cat([leaf.reshape(rows, -1).float() for leaf in leaves], 1)
        else:
            flat = observations.reshape(rows, -1).float()
        hidden = self.encoder(flat)
        return self._encoded(hidden if self._version == 3 else relu(hidden))

    def decode_actions(self, hidden: Tensor, lookup: Any = None, concat: bool = True) -> tuple[Any, Tensor]:
        """Return (logits, values (rows, 1)). lookup, concat: accepted as in versions 1 and 2."""
        values = self.value(hidden) if self._version == 3 else self.value_head(hidden)
        if self.is_continuous:
            mean = self.decoder_mean(hidden)
            return Normal(mean, self.decoder_logstd.expand_as(mean).exp()), values
        if self.is_multidiscrete and self._version == 3:
            return self.decoder(hidden).split(self.action_nvec, dim=1), values
        if isinstance(self.decoder, nn.ModuleList):
            return [head(hidden) for head in self.decoder], values
        return self.decoder(hidden), values


def _leaves(parts: Any) -> list[Tensor]:
    return [leaf for part in parts.values() for leaf in _leaves(part)] if isinstance(parts, dict) else [parts]


class LSTMWrapper(nn.Module):
    """A policy with an LSTM between its encoder and its decoder.

    env: as for ``Default``. policy: a policy with ``encode_observations`` and ``decode_actions``. input_size: of the
    encoder's hidden states. hidden_size: of the decoder's. num_layers: of the LSTM, in versions 1 and 2 alone; given,
    it selects their form.

    In version 3, states are the items ``lstm_h`` and ``lstm_c`` of a dict, which calls replace, and the policy's
    weights are initialized again: biases with 0, matrices orthogonally. In versions 1 and 2, states are (h, c), each
    (layers, rows, hidden_size), and returned. Nothing resets them at the ends of episodes.
    """

    def __init__(
        self, env: Any, policy: nn.Module, input_size: int = 128, hidden_size: int = 128, num_layers: int | None = None
    ) -> None:
        super().__init__()
        self._version = 2 if num_layers is not None else version_of_policy(policy)
        self.obs_shape = env.single_observation_space.shape
        self.policy = policy
        self.input_size, self.hidden_size = input_size, hidden_size
        self.is_continuous = getattr(policy, "is_continuous", False)
        if self._version == 2:
            self.recurrent = LSTM(input_size, hidden_size, num_layers or 1)
            return
        for name, parameter in policy.named_parameters():
            if "bias" in name:
                nn.init.constant_(parameter, 0)
            elif "weight" in name and parameter.ndim >= 2:
                nn.init.orthogonal_(parameter)
        self.lstm = nn.LSTM(input_size, hidden_size)
        self.cell = nn.LSTMCell(input_size, hidden_size)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self.cell, name, getattr(self.lstm, f"{name}_l0"))

    def forward(self, observations: Tensor, state: Any) -> Any:
        """Return (logits, values) of sequences, and in versions 1 and 2 also the state after them.

        observations: (rows, \\*shape), or (rows, steps, \\*shape). Logits have a row for each step of each row. Values
        are (rows, steps) in version 3, and (rows * steps, 1) before. Raises ValueError for another shape.
        """
        rows, steps = self._sizes(observations)
        flat = observations.reshape(rows * steps, *self.obs_shape)
        hidden, lookup = encode(self.policy, flat, state if self._version == 3 else None)
        hidden = hidden.reshape(rows, steps, self.input_size).transpose(0, 1)
        if self._version == 2:
            hidden, state = self.recurrent(hidden, state)
            hidden = hidden.transpose(0, 1).reshape(rows * steps, self.hidden_size)
            return *decode(self.policy, hidden, lookup), state
        before = _lstm_state(state, rows, 1)
        hidden, (h, c) = self.lstm(hidden, before)
        hidden = hidden.transpose(0, 1)
        state["hidden"], state["lstm_h"], state["lstm_c"] = hidden, h.detach(), c.detach()
        logits, values = decode(self.policy, hidden.reshape(rows * steps, self.hidden_size), lookup)
        return logits, values.reshape(rows, steps)

    def forward_eval(self, observations: Tensor, state: Any) -> tuple[Any, Tensor]:
        """Return (logits, values) of one step of version 3.

        state: its lstm_h and lstm_c are (rows, hidden_size) or None.
        """
        hidden, lookup = encode(self.policy, observations, state)
        h, c = self.cell(hidden, _lstm_state(state, len(observations), 0))
        state["hidden"] = state["lstm_h"] = h
        state["lstm_c"] = c
        return decode(self.policy, h, lookup)

    def _sizes(self, observations: Tensor) -> tuple[int, int]:
        shape, ours = tuple(observations.shape), tuple(self.obs_shape)
        if shape[1:] == ours:
            return shape[0], 1
        if shape[2:] == ours:
            return shape[0], shape[1]
        raise ValueError(f"observations have shape {shape}; expected (rows, *{ours}) or (rows, steps, *{ours})")


def _lstm_state(state: Any, rows: int, axis: int) -> tuple[Tensor, Tensor] | None:
    h, c = state["lstm_h"], state["lstm_c"]
    if h is None:
        return None
    if h.shape[axis] != rows or c.shape[axis] != rows:
        raise AssertionError(
            f"lstm_h has {h.shape[axis]} rows and lstm_c {c.shape[axis]}; the observations have {rows}"
        )
    return h, c


class Convolutional(_SplitPolicy):
    """The network of Mnih et al. (Nature 518, 2015) for images of bytes, with a discrete action.

    env: as for ``Default``. framestack: the images' channels. flat_size: values after the convolutions. channels_last:
    images are (height, width, channels). downsample: every so many rows and columns are read. Other arguments are
    accepted.
    """

    def __init__(
        self,
        env: Any,
        *args: Any,
        framestack: int,
        flat_size: int,
        input_size: int = 512,
        hidden_size: int = 512,
        output_size: int = 512,
        channels_last: bool = False,
        downsample: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.channels_last, self.downsample, self.hidden_size = channels_last, downsample, hidden_size
        self.is_continuous, self.num_actions = False, int(env.single_action_space.n)
        self.network = nn.Sequential(
            *(layer_init(nn.Conv2d(framestack, 32, 8, stride=4)), nn.ReLU()),
            *(layer_init(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
            *(layer_init(nn.Conv2d(64, 64, 3, stride=1)), nn.ReLU()),
            *(nn.Flatten(), layer_init(nn.Linear(flat_size, hidden_size)), nn.ReLU()),
        )
        self.actor = layer_init(nn.Linear(output_size, self.num_actions), 0.01)
        self.value_fn = layer_init(nn.Linear(output_size, 1), 1)

    def encode_observations(self, observations: Tensor, state: Any = None) -> Any:
        """Return hidden states, (rows, hidden_size); in versions 1 and 2, with None as the second value."""
        images = observations.permute(0, 3, 1, 2) if self.channels_last else observations
        return self._encoded(self.network(images[:, :, :: self.downsample, :: self.downsample].float() / 255))

    def decode_actions(self, hidden: Tensor, lookup: Any = None, concat: Any = None) -> tuple[Tensor, Tensor]:
        """Return (logits, values (rows, 1)). lookup, concat: accepted as in versions 1 and 2."""
        return self.actor(hidden), self.value_fn(hidden)


class ProcgenResnet(_SplitPolicy):
    """The residual network of Espeholt et al. (IMPALA, arXiv:1802.01561) for images (height, width, channels) of bytes.

    env: as for ``Default``. cnn_width: channels of the first of three stages; the others have twice as many.
    mlp_width: hidden_size.
    """

    def __init__(self, env: Any, cnn_width: int = 16, mlp_width: int = 256) -> None:
        super().__init__()
        self.hidden_size, self.is_continuous = mlp_width, False
        height, width, channels = env.single_observation_space.shape
        shape, stages = (channels, height, width), []
        for out_channels in (cnn_width, 2 * cnn_width, 2 * cnn_width):
            stage = ConvSequence(shape, out_channels)
            shape = stage.get_output_shape()
            stages.append(stage)
        last = (nn.Flatten(), nn.ReLU(), nn.Linear(math.prod(shape), mlp_width), nn.ReLU())
        self.network = nn.Sequential(*stages, *last)
        self.actor = layer_init(nn.Linear(mlp_width, int(env.single_action_space.n)), 0.01)
        self.value = layer_init(nn.Linear(mlp_width, 1), 1)

    def encode_observations(self, observations: Tensor, state: Any = None) -> Any:
        """Return hidden states, (rows, mlp_width); in versions 1 and 2, with None as the second value."""
        return self._encoded(self.network(observations.permute(0, 3, 1, 2).float() / 255))

    def decode_actions(self, hidden: Tensor, lookup: Any = None, concat: Any = None) -> tuple[Tensor, Tensor]:
        """Return (logits, values (rows, 1)). lookup, concat: accepted as in versions 1 and 2."""
        return self.actor(hidden), self.value(hidden)


class ResidualBlock(nn.Module):
    """Two convolutions, each after a ReLU, added to their input (rows, channels, height, width)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the input's shape."""
        residual: Tensor = self.conv1(relu(self.conv0(relu(x))))
        return x + residual


class ConvSequence(nn.Module):
    """A convolution, a maximum over 3 x 3 of every second pixel, and two residual blocks.

    input_shape: (channels, height, width). out_channels: of the result.
    """

    def __init__(self, input_shape: tuple[int, int, int], out_channels: int) -> None:
        super().__init__()
        self._input_shape, self._out_channels = input_shape, out_channels
        self.conv = nn.Conv2d(input_shape[0], out_channels, 3, padding=1)
        self.res_block0, self.res_block1 = ResidualBlock(out_channels), ResidualBlock(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of ``get_output_shape``."""
        pooled: Tensor = max_pool2d(self.conv(x), 3, stride=2, padding=1)
        images: Tensor = self.res_block1(self.res_block0(pooled))
        return images

    def get_output_shape(self) -> tuple[int, int, int]:
        """Return the (channels, height, width) of the result."""
        _, height, width = self._input_shape
        return self._out_channels, (height + 1) // 2, (width + 1) // 2
