"""Policies for several agents: a critic that sees the environment's state, and a policy for each type or team of them.

The first two find what they need among the leaves of the observation, where ``wrap(state=True)`` and
``wrap(agent_type=True)`` put it, so that whoever trains, keeps or plays them does so as with any policy. Teams go by
the agents' places: for environments to whose rows nothing can be added, such as kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import torch
from gymnasium.spaces import Dict, Discrete, Tuple
from torch import Tensor, nn

from pufferlib.emulation.extra_leaves import AGENT_TYPE, STATE
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.models.distributions import Outputs
from pufferlib.models.networks import ActorCritic, State, perceptron
from pufferlib.models.reading import Features

__all__ = ["Central", "RecurrentSeparate", "Separate", "Teams", "num_types", "separate"]


class Central(ActorCritic):
    """A centralised critic: the actor sees all of an observation but the leaf "state", the critic that as well.

    So the critic learns from what no agent knows, and an agent acts by what it knows itself. Two tanh layers each, as
    in ``MLP``. Raises SpaceError where there is no such leaf.
    Source: Lowe et al., arXiv:1706.02275; with PPO, Yu et al., arXiv:2103.01955.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_size: int = 64,
        normalize: bool = False,
    ) -> None:
        _leaf(observation_layout, STATE, "central", "--wrap.state")
        read = Features(observation_layout, normalize)
        super().__init__(read, lambda num, gain: perceptron(read.size, hidden_size, num, gain), action_space)
        seen = read.columns_without(STATE)
        self.actor = nn.Sequential(
            Columns(seen), *perceptron(len(seen), hidden_size, self.decisions.num_outputs, gain=0.01)
        )


class Columns(nn.Module):
    """Some columns of features."""

    columns: Tensor

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.int64), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return (rows, len(columns))."""
        return features[:, self.columns]


class Separate(nn.Module):
    """A policy for each type of agents; each row goes to that of its leaf "agent_type", and trains only that one.

    policies: one a type, in the order in which ``wrap(agent_type=True)`` numbers them, all for the same layout and
    actions. Rows of absent agents, which are zeros, go to the first. On a GPU each call waits once, for the rows of
    each type to be counted.
    """

    def __init__(self, observation_layout: Layout, policies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layout = observation_layout
        self.first = _types(observation_layout).start
        self.policies = nn.ModuleList(policies)

    def forward(
        self, observations: Tensor, state: State | None = None, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return (outputs, values, state), in the order of the rows."""
        types = self.layout.unflatten(observations)[AGENT_TYPE].reshape(-1) - self.first
        types = types.clamp(0, len(self.policies) - 1)
        counts = torch.bincount(types, minlength=len(self.policies)).tolist()
        order = types.argsort(stable=True)
        back = order.argsort()
        rows = torch.split(observations[order], counts)
        nothing: list[Any] = [None] * len(rows)
        states = nothing
        if state is not None:
            states = list(zip(*(torch.split(part[order], counts) for part in state), strict=True))
        masks = nothing if action_mask is None else torch.split(action_mask[order], counts)
        results = [policy(rows[i], states[i], masks[i]) for i, policy in enumerate(self.policies) if counts[i]]
        outputs, values, after = zip(*results, strict=True)
        return _joined(outputs, back), torch.cat(values)[back], _joined(after, back)


class RecurrentSeparate(Separate):
    """The same where the policies have a memory, of the same shape for all types."""

    def initial_state(self, num_rows: int) -> State:
        """Return the state at the beginning of an episode, a tuple of tensors (num_rows, …)."""
        return cast(State, cast(Any, self.policies[0]).initial_state(num_rows))


class Teams(nn.Module):
    """A policy for each team, by the places of its agents among those of an environment.

    policies: one a team, without memories, all for the same layout and actions. places: those of each team, by its
    name; each place belongs to one. Raises PlanError for places that belong to none, or to two, and for memories.
    """

    def __init__(self, policies: Mapping[str, nn.Module], places: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        listed = sorted(place for each in places.values() for place in each)
        if listed != list(range(len(listed))) or set(places) != set(policies) or not all(places.values()):
            told = ", ".join(f"{name}: {list(each)}" for name, each in places.items())
            raise PlanError(
                f"teams of {told}: each place from 0 on has to belong to one team, and each team needs some"
            )
        if any(hasattr(policy, "initial_state") for policy in policies.values()):
            raise PlanError("a team's policy cannot have a memory; use one without")
        self.num_places = len(listed)
        # A team may be called as no module may: "train".
        self.policies = nn.ModuleDict({f"team_{name}".replace(".", "_"): each for name, each in policies.items()})
        team_of = [next(number for number, each in enumerate(places.values()) if place in each) for place in listed]
        self.register_buffer("team_of", torch.tensor(team_of), persistent=False)

    def policy_of(self, team: str) -> nn.Module:
        """Return a team's policy."""
        return self.policies[f"team_{team}".replace(".", "_")]

    def forward(
        self,
        observations: Tensor,
        state: State | None = None,
        action_mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return (outputs, values, state), in the order of the rows.

        places: int64 (rows,), of each row's agent. None: rows are those of whole environments, one after another.
        """
        if places is None:
            places = torch.arange(self.num_places, device=observations.device).repeat(
                len(observations) // self.num_places
            )
        teams = cast(Tensor, self.team_of)[places]
        told: Any = None
        for number, policy in enumerate(self.policies.values()):
            rows = (teams == number).nonzero().squeeze(1)
            mask = None if action_mask is None else action_mask[rows]
            outputs, values, _ = policy(observations[rows], None, mask)
            each = (*outputs, values) if isinstance(outputs, tuple) else (outputs, values)
            if told is None:
                told = [part.new_zeros((len(observations), *part.shape[1:])) for part in each]
            told = [whole.index_copy(0, rows, part) for whole, part in zip(told, each, strict=True)]
        *outputs, values = told
        return tuple(outputs) if len(outputs) > 1 else outputs[0], values, state


def separate(observation_layout: Layout, policies: Sequence[nn.Module]) -> Separate:
    """Return one policy that is made of these, one a type. Raises SpaceError where their states differ in shape."""
    shapes = [_state_shapes(policy) for policy in policies]
    for number, its in enumerate(shapes):
        if its != shapes[0]:
            raise SpaceError(
                f"policies of separate types need states of the same shape, for rows of all types are kept together; "
                f"that of type 0 has {_told(shapes[0])}, that of type {number} has {_told(its)}"
            )
    kind = Separate if shapes[0] is None else RecurrentSeparate
    return kind(observation_layout, policies)


def num_types(layout: Layout) -> int:
    """Return how many types of agents there are. Raises SpaceError where the observation has no "agent_type"."""
    return int(_types(layout).n)


def _types(layout: Layout) -> Discrete:
    space = _leaf(layout, AGENT_TYPE, "separate", "--wrap.agent-type")
    if not isinstance(space, Discrete):
        raise SpaceError(f'policy="separate" needs the leaf "{AGENT_TYPE}" as a Discrete, and it is {space}')
    return space


def _leaf(layout: Layout, name: str, policy: str, flag: str) -> gymnasium.Space[Any]:
    space = layout.space
    if isinstance(space, Tuple) and isinstance(space[0], Dict) and name in space[0].spaces:
        raise SpaceError(f'policy="{policy}" sees one observation, and frame_stack={len(space)} stacks them; use 1')
    if not isinstance(space, Dict) or name not in space.spaces:
        raise SpaceError(
            f'policy="{policy}" needs the leaf "{name}" at the top of the observation, and {space} has none; for '
            f"PettingZoo environments wrap({name}=True), make(wrap_kwargs={{'{name}': True}}) or {flag} puts it there"
        )
    return space[name]


def _joined(parts: Sequence[Any], back: Tensor) -> Any:
    """Return tensors, or tuples of them, of all types as those of all rows; None of None."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))[back]
    return tuple(torch.cat(part)[back] for part in zip(*parts, strict=True))


def _state_shapes(policy: nn.Module) -> list[tuple[int, ...]] | None:
    first = getattr(policy, "initial_state", None)
    return None if first is None else [tuple(part.shape[1:]) for part in first(1)]


def _told(shapes: list[tuple[int, ...]] | None) -> str:
    return "none" if shapes is None else ", ".join(map(str, shapes))
