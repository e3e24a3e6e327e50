"""Multi-agent policies: a critic that sees the environment's state, and separate policies per agent type or team.

``Central`` and ``Separate`` read the leaves that ``wrap(state=True)`` and ``wrap(agent_type=True)`` add to
observations, so they are trained, saved and played like any other policy. ``Teams`` uses the agents' indices instead,
for environments, such as kernels, whose rows cannot have extra leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from torch import Tensor, nn

from pufferlib.emulation.action_masks import ACTION_MASK
from pufferlib.emulation.extra_leaves import AGENT_TYPE, STATE
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout, observation_layout
from pufferlib.models.distributions import Outputs
from pufferlib.models.networks import ActorCritic, State, perceptron
from pufferlib.models.reading import Features

__all__ = ["Central", "RecurrentSeparate", "Separate", "Teams", "Unpadded", "num_types", "separate"]


class Central(ActorCritic):
    """An actor-critic whose critic sees the whole observation, and whose actor sees all of it except the part "state".

    The critic thus learns from information that agents do not have, while each agent still acts on its own observation.
    The actor and the critic each have two tanh layers. hidden_size, normalize: as for ``MLP``. Raises SpaceError if
    there is no "state" at the top of the observation.

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
    """A layer that selects columns of features by index."""

    columns: Tensor

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.int64), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the selected columns, (rows, len(columns))."""
        return features[:, self.columns]


class Separate(nn.Module):
    """A set of policies, one per agent type.

    A row's leaf "agent_type" decides which policy plays the row and is trained on it. Rows of absent agents, which are
    zeros, go to the first policy. On a GPU, each call synchronizes once, to count the rows of each type.

    policies: one per type, in the order in which ``wrap(agent_type=True)`` numbers the types, all for the same layout
    and actions.
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
    """A Separate of recurrent policies, whose states have the same shape for all types."""

    def initial_state(self, num_rows: int) -> State:
        """Return the state at the beginning of an episode, a tuple of tensors (num_rows, …)."""
        return cast(State, cast(Any, self.policies[0]).initial_state(num_rows))


class Teams(nn.Module):
    """A set of policies, one per team; an agent's index in its environment determines its team.

    policies: one policy per team, keyed by the team's name; all are for the same layout and actions, and have no state.
    places: the indices of each team's agents, with the same keys. Raises PlanError if an index belongs to no team or to
    two, if a team has no agent, if policies and places have different keys, or if a policy has a state.
    """

    def __init__(self, policies: Mapping[str, nn.Module], places: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        listed = sorted(agent_index for indices in places.values() for agent_index in indices)
        if listed != list(range(len(listed))) or set(places) != set(policies) or not all(places.values()):
            team_places = ", ".join(f"{name}: {list(indices)}" for name, indices in places.items())
            raise PlanError(
                f"teams {team_places}: each index from 0 on has to belong to exactly one team, and each team needs one"
            )
        if any(hasattr(policy, "initial_state") for policy in policies.values()):
            raise PlanError("a team's policy cannot have a state; use one that is not recurrent")
        self.num_places = len(listed)
        # With a prefix, because a team may have a name that a module may not have, such as "train".
        self.policies = nn.ModuleDict({f"team_{name}".replace(".", "_"): policy for name, policy in policies.items()})
        team_of = [next(team for team, indices in enumerate(places.values()) if index in indices) for index in listed]
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

        places: int64 (rows,), the index of each row's agent; may be omitted if the rows are those of complete
        environments, in order.
        """
        if places is None:
            places = torch.arange(self.num_places, device=observations.device).repeat(
                len(observations) // self.num_places
            )
        teams = cast(Tensor, self.team_of)[places]
        results: Any = None
        for number, policy in enumerate(self.policies.values()):
            rows = (teams == number).nonzero().squeeze(1)
            mask = None if action_mask is None else action_mask[rows]
            outputs, values, _ = policy(observations[rows], None, mask)
            parts = (*outputs, values) if isinstance(outputs, tuple) else (outputs, values)
            if results is None:
                results = [part.new_zeros((len(observations), *part.shape[1:])) for part in parts]
            results = [result.index_copy(0, rows, part) for result, part in zip(results, parts, strict=True)]
        *outputs, values = results
        return tuple(outputs) if len(outputs) > 1 else outputs[0], values, state


class Unpadded(nn.Module):
    """A policy for agents whose observations and actions are padded to the size of rows.

    policy: a policy without a state. layout, action_space: the agents' own observations, which begin a row, and
    actions, for which the policy is made; see ``unpadded_spaces``. num_options: of a row's action.

    An action mask in the agents' observations is applied here: a row's layout does not name it. Logits of options that
    are not allowed or do not exist are so low that they are never drawn.
    """

    def __init__(self, policy: nn.Module, layout: Layout, action_space: Discrete[Any], num_options: int) -> None:
        super().__init__()
        self.policy, self.layout, self.action_space = policy, layout, action_space
        self._num_padded = num_options - int(action_space.n)
        self._masked = isinstance(layout.space, Dict)

    def forward(
        self, observations: Tensor, state: State | None = None, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return (outputs, values, state) for rows; the outputs are logits, (rows, num_options)."""
        rows = observations[:, : self.layout.shape[0]]
        allowed = self.layout.unflatten(rows)[ACTION_MASK] != 0 if self._masked else None
        logits, values, state = self.policy(rows, state, allowed)
        lowest = torch.finfo(logits.dtype).min
        if allowed is not None:  # above the padding: where nothing is allowed, one of the agents' own options is drawn
            logits = logits.masked_fill(~allowed, lowest / 2)
        padding = logits.new_full((len(logits), self._num_padded), lowest)
        return torch.cat([logits, padding], 1), values, state


def unpadded_spaces(
    row_layout: Layout, num_numbers: int, num_actions: int, num_masks: int = 0
) -> tuple[Layout, Discrete[Any]]:
    """Return the layout and the action space of agents whose observations and actions are padded in rows.

    row_layout: of rows, 1-D and of one dtype. num_numbers: the size of an observation, with its mask. num_masks:
    num_actions if an observation begins with an action mask, else 0.
    """
    dtype: Any = row_layout.dtype
    numbers = Box(-np.inf, np.inf, (num_numbers - num_masks,), dtype.type)
    space = Dict({ACTION_MASK: Box(0, 1, (num_masks,), dtype.type), "observation": numbers}) if num_masks else numbers
    return observation_layout(space), Discrete(num_actions)


def separate(observation_layout: Layout, policies: Sequence[nn.Module]) -> Separate:
    """Combine policies, one per agent type, into a Separate. Raises SpaceError if their states differ in shape."""
    shapes = [_state_shapes(policy) for policy in policies]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise SpaceError(
                f"policies of separate types need states of the same shape, because all rows are stored together; "
                f"that of type 0 has {_shapes_text(shapes[0])}, that of type {number} has {_shapes_text(shape)}"
            )
    kind = Separate if shapes[0] is None else RecurrentSeparate
    return kind(observation_layout, policies)


def num_types(layout: Layout) -> int:
    """Return the number of agent types. Raises SpaceError if the observation has no Discrete leaf "agent_type"."""
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
    """Join the results of all agent types, tensors or tuples of tensors, in the order of the rows.

    back: (rows,), each row's index in the concatenated results. Returns None if the results are None.
    """
    if parts[0] is None:
        return None
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))[back]
    return tuple(torch.cat(part)[back] for part in zip(*parts, strict=True))


def _state_shapes(policy: nn.Module) -> list[tuple[int, ...]] | None:
    first = getattr(policy, "initial_state", None)
    return None if first is None else [tuple(part.shape[1:]) for part in first(1)]


def _shapes_text(shapes: list[tuple[int, ...]] | None) -> str:
    return "none" if shapes is None else ", ".join(map(str, shapes))
