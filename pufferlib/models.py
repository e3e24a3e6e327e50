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

``Decisions`` (distributions.py) counts the options and makes of outputs a distribution, and of that actions.
``save_policy`` keeps a policy in a file; ``load_policy`` gives it back, at play on a raw environment.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict
from torch import Tensor, nn

from pufferlib import registry
from pufferlib.distributions import Decisions
from pufferlib.emulation import RowEnv, emulate
from pufferlib.errors import CallError, CheckpointError, PlanError, PufferError, SpaceError
from pufferlib.files import written_whole
from pufferlib.layout import Layout
from pufferlib.networks import CNN, LSTM, MLP, State, is_image
from pufferlib.version import __version__

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
    "Origin",
    "Player",
    "action_mask_reader",
    "load_policy",
    "make_policy",
    "save_policy",
]

FORMAT = "pufferlib policy"
VERSION = 1

ACTION_MASK = "action_mask"  # the leaf of that name, at the top of an observation
OWN: Mapping[str, Callable[..., nn.Module]] = {"mlp": MLP, "cnn": CNN, "lstm": LSTM}


def make_policy(
    policy: str | Callable[..., nn.Module],
    observation_layout: Layout,
    action_space: gymnasium.Space[Any],
    **kwargs: Any,
) -> nn.Module:
    """Return a policy for these observations and actions.

    policy: "default" (a CNN for images, else an MLP), "mlp", "cnn", "lstm", the name of a class of yours as
    "module:Class", or that class. kwargs: its further arguments; "default" takes those of both, and leaves aside what
    is for the other one. Raises PlanError for an unknown name or argument, SpaceError for spaces that
    the policy has no use for.
    """
    if policy == "default":
        found: Callable[..., Any] = CNN if is_image(observation_layout) else MLP
        of_other = {*inspect.signature(CNN).parameters, *inspect.signature(MLP).parameters}
        of_other -= {*inspect.signature(found).parameters}
        kwargs = {name: value for name, value in kwargs.items() if name not in of_other}
    elif not isinstance(policy, str):
        found = policy
    elif policy in OWN:
        found = OWN[policy]
    elif ":" in policy:
        found = registry.load(policy)
    else:
        raise PlanError(
            f"policy={policy!r} is not one of default, {', '.join(OWN)}; module:Class names one of your own"
        )
    try:
        made = found(observation_layout, action_space, **kwargs)
    except TypeError as error:
        if isinstance(error, SpaceError) or error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # it comes from inside
        raise PlanError(
            f"policy={policy!r} cannot be made as Class(observation_layout, action_space"
            f"{''.join(f', {name}={value!r}' for name, value in kwargs.items())}): {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise PlanError(f"policy={policy!r} makes a {type(made).__name__}, and not a torch.nn.Module")
    return made


def action_mask_reader(layout: Layout, action_space: gymnasium.Space[Any]) -> Callable[[Tensor], Tensor] | None:
    """Return what reads the action mask, bool (rows, num_options), out of flat observations; None where there is none.

    A mask is the leaf "action_mask" at the top of the observation, where ``wrap(action_mask=True)`` puts that of infos.
    Raises SpaceError where it has another size than the actions have options.
    """
    if not isinstance(layout.space, Dict) or ACTION_MASK not in layout.space.spaces:
        return None
    expected = Decisions(action_space).num_options
    size = sum(math.prod(leaf.shape) for leaf in layout.leaves if leaf.path[0] == ACTION_MASK)
    if size != expected:
        raise SpaceError(
            f'the observation\'s "action_mask" has {size} elements, but {action_space} has {expected} options, in all '
            "its choices; a mask has one element for each"
        )
    return lambda rows: layout.unflatten(rows)[ACTION_MASK].reshape(len(rows), -1) != 0


# ----------------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Origin:
    """How a policy was made, and for what.

    policy, policy_kwargs: as ``make_policy`` takes them, the policy by name. env: a name; None where it has none.
    Raises PlanError for arguments of the policy that a file cannot hold. Those of the environment are not in the file
    then, nor is its name, so that ``load_policy`` has to be given it.
    """

    policy: str = "default"
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _is_plain(self.policy_kwargs):
            raise PlanError(f"policy_kwargs={self.policy_kwargs!r} can't be kept; use numbers, texts, lists and dicts")
        if not _is_plain([self.env_kwargs, self.wrap_kwargs]):
            for name, value in (("env", None), ("env_kwargs", {}), ("wrap_kwargs", {})):
                object.__setattr__(self, name, value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def save_policy(path: str | os.PathLike[str], policy: nn.Module, origin: Origin) -> None:
    """Write a policy's weights, and how it was made, to a file that ``torch.load(weights_only=True)`` reads.

    A file that is there already is replaced, and whole at any time.
    """
    header = {"format": FORMAT, "version": VERSION, "pufferlib": __version__}
    with written_whole(path) as part:
        torch.save({**header, **asdict(origin), "weights": policy.state_dict()}, part)


def load_policy(
    path: str | os.PathLike[str], env: Any = None, *, greedy: bool = False, seed: int | None = None
) -> Player:
    """Return the policy of a file, at play.

    env: a raw environment such as the policy was trained on, which stays yours; or what makes one. By default the one
    that the file names is made. greedy, seed: as ``Player`` has them. Raises CheckpointError for what is no such file,
    or does not fit env, and what making the environment raises. No code comes out of the file; a policy class of yours
    is imported by name.
    """
    kept = _read(path)
    origin = Origin(**{name: kept[name] for name in Origin.__dataclass_fields__})
    if env is None and origin.env is None:
        raise CheckpointError(f"{path} does not name the environment; pass one: load_policy(path, env)")
    given: Any = origin.env if env is None else env
    owned = isinstance(given, (str, type)) or not hasattr(given, "step")
    rows = emulate(registry.creator(given)(**origin.env_kwargs) if owned else given, **origin.wrap_kwargs)
    try:
        policy = make_policy(origin.policy, rows.observation_layout, rows.action_space, **origin.policy_kwargs)
        policy.load_state_dict(kept["weights"])
        policy.eval()
        return Player(policy, rows, owned=owned, greedy=greedy, seed=seed)
    except BaseException as error:
        if owned:
            rows.close()
        if isinstance(error, RuntimeError) and not isinstance(error, PufferError):
            raise CheckpointError(f"{path} holds a policy for other observations or actions: {error}") from error
        raise


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    if not Path(path).is_file():
        raise CheckpointError(f"there is no file {path}; a trainer's run folder has policy.pt")
    try:
        kept = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make torch raise whatever comes
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} holds no policy, or not all of one ({reason}); train it again") from error
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no policy of a pufferlib trainer's; those are called policy.pt")
    if kept.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {kept.get('version')} of the format, as pufferlib {kept.get('pufferlib')} writes it; "
            f"pufferlib {__version__} reads version {VERSION}: install the other one"
        )
    return kept


# ------------------------------------------------------------------------------------------------------------ play


class Player:
    """A policy at play on one raw environment: raw observations in, raw actions out.

    ::

        with load_policy("runs/…/policy.pt") as player:
            observation, info = env.reset()
            over = False
            while not over:
                observation, reward, terminated, truncated, info = env.step(player.act(observation, info))
                over = terminated or truncated
            player.reset()

    Of a PettingZoo parallel environment, observations, infos and actions are dicts by agent.
    greedy: take the likeliest action instead of drawing one. seed: of what is drawn; None for any.
    """

    def __init__(
        self, policy: nn.Module, rows: RowEnv, *, owned: bool = True, greedy: bool = False, seed: int | None = None
    ) -> None:
        """rows: the environment, emulated; it is asked for spaces, not stepped. owned: ``close`` closes it."""
        self.policy, self.greedy, self._owned = policy, greedy, owned
        self._rows, self._alone = rows, rows.num_agents == 1 and not rows.multi_agent
        self._decisions = Decisions(rows.action_space)
        self._read_mask = action_mask_reader(rows.observation_layout, rows.action_space)
        self._generator = torch.Generator()
        self._generator.manual_seed(np.random.SeedSequence(seed).generate_state(1)[0].item())
        self._states: dict[Any, State] = {}

    def act(self, observations: Any, infos: Any = None) -> Any:
        """Return the action for an observation; of several agents, a dict of actions for a dict of observations.

        infos: what came with the observations; of use where action masks are in them. Raises SpaceError for an
        observation that the environment would not give.
        """
        if self._alone:
            return self._act({None: observations}, {None: infos})[None]
        if not isinstance(observations, Mapping):
            raise CallError(f"there are several agents; pass a dict of their observations, not {observations!r:.80}")
        return self._act(observations, infos or {})

    def reset(self) -> None:
        """Forget what was seen; to be called at the end of an episode. Only policies with a memory need it."""
        self._states.clear()

    def _act(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        agents = list(observations)
        if not agents:
            return {}
        rows = [self._rows.row_of(observations[agent], infos.get(agent), agent) for agent in agents]
        with torch.inference_mode():
            seen = torch.from_numpy(np.stack(rows))
            mask = None if self._read_mask is None else self._read_mask(seen)
            outputs, _, state = self.policy(seen, self._state_of(agents), mask)
            distribution = self._decisions.distribution(outputs, mask)
            flat = self._decisions.actions(
                *(distribution.mode() if self.greedy else distribution.sample(self._generator))
            )
        if state is not None:
            self._states = {agent: tuple(part[i : i + 1] for part in state) for i, agent in enumerate(agents)}
        pairs = zip(*flat, strict=True) if isinstance(flat, tuple) else flat
        return {agent: self._rows.action_of(row, agent) for agent, row in zip(agents, pairs, strict=True)}

    def _state_of(self, agents: list[Any]) -> State | None:
        first: Callable[[int], State] | None = getattr(self.policy, "initial_state", None)
        if first is None:
            return None
        states = [self._states.get(agent) or first(1) for agent in agents]
        return tuple(torch.cat(parts) for parts in zip(*states, strict=True))

    def close(self) -> None:
        """Close the environment that was made to know its spaces. Safe to call again."""
        if self._owned:
            self._rows.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
