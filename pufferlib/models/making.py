"""Making a policy by its name, and reading the action masks that come with observations."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from torch import Tensor, nn

from pufferlib import registry
from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.models.distributions import Decisions
from pufferlib.models.multiagent import Central, Separate, Teams, num_types, separate
from pufferlib.models.networks import CNN, LSTM, MLP, Nature
from pufferlib.models.reading import has_images
from pufferlib.suggestions import not_one_of

__all__ = ["action_mask_reader", "make_policy"]


def _separate(
    observation_layout: Layout,
    action_space: gymnasium.Space[Any],
    policy: str | Sequence[str] = "default",
    **kwargs: Any,
) -> Separate:
    """Return a policy for each type of agents. policy: its name, or a list of names, one a type; kwargs: of all."""
    count = num_types(observation_layout)
    names: Sequence[Any] = policy if isinstance(policy, (list, tuple)) else [policy] * count
    if len(names) != count:
        raise PlanError(
            f"policy={policy!r} names {len(names)} policies, but there are {count} types of agents; pass one name for "
            f"all types, or a list of {count}"
        )
    made = [make_policy(name, observation_layout, action_space, **kwargs) for name in names]
    return separate(observation_layout, made)


def _teams(
    observation_layout: Layout,
    action_space: gymnasium.Space[Any],
    places: Mapping[str, Sequence[int]],
    policy: str = "default",
    **kwargs: Any,
) -> Teams:
    """Return a policy for each team. places: of its agents, by the team's name; policy, kwargs: of all teams."""
    return Teams({team: make_policy(policy, observation_layout, action_space, **kwargs) for team in places}, places)


OWN: Mapping[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "nature": Nature,
    "lstm": LSTM,
    "central": Central,
    "separate": _separate,
    "teams": _teams,
}


def make_policy(
    policy: str | Callable[..., nn.Module],
    observation_layout: Layout,
    action_space: gymnasium.Space[Any],
    /,
    **kwargs: Any,
) -> nn.Module:
    """Return a policy for these observations and actions.

    policy: "default" (a CNN where observations are images or have some among their leaves, else an MLP), "mlp", "cnn",
    "nature" (a CNN whose encoder actor and critic share), "lstm", "central" (whose critic sees the leaf "state"),
    "separate" (a policy for each type of agents, by the leaf "agent_type"; it takes ``policy``, a name or a list of
    names, one a type, and the arguments of these), "teams" (a policy for each team, by ``places``: its agents' among
    those of an environment, by the team's name), the name of a class of yours as "module:Class", or that class.
    kwargs: its further arguments; "default" takes those of both, and leaves aside what is for the other one.
    Raises PlanError for an unknown name or argument, SpaceError for spaces that the policy has no use for.
    """
    if policy == "default":
        found: Callable[..., Any] = CNN if has_images(observation_layout) else MLP
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
        raise PlanError(not_one_of("policy", policy, ("default", *OWN), ", and module:Class names one of your own"))
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
    if not has_mask(layout.space):
        return None
    expected = Decisions(action_space).num_options
    size = sum(math.prod(leaf.shape) for leaf in layout.leaves if leaf.path[0] == ACTION_MASK)
    if size != expected:
        raise SpaceError(
            f'the observation\'s "action_mask" has {size} elements, but {action_space} has {expected} options, in all '
            "its choices; a mask has one element for each"
        )
    return lambda rows: layout.unflatten(rows)[ACTION_MASK].flatten(1) != 0
