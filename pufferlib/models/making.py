"""Functions that create policies by name, and that read action masks from observations."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from pufferlib import registry
from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.models.distributions import Decisions
from pufferlib.models.multiagent import Central, Separate, Teams, Unpadded, num_types, separate, unpadded_spaces
from pufferlib.models.networks import CNN, LSTM, MLP, Nature
from pufferlib.models.reading import has_images
from pufferlib.util.suggestions import not_one_of

__all__ = ["action_mask_reader", "make_policy"]


def _separate(
    observation_layout: Layout,
    action_space: gymnasium.Space[Any],
    policy: str | Sequence[str] = "default",
    **kwargs: Any,
) -> Separate:
    """Create a Separate, with one policy per agent type.

    policy: a name for all types, or a list with one name per type. kwargs: arguments of every policy. Raises PlanError
    if a list has the wrong length, SpaceError if observations have no agent type or the policies' states differ in
    shape, and the errors of ``make_policy``.
    """
    count = num_types(observation_layout)
    names: Sequence[Any] = policy if isinstance(policy, (list, tuple)) else [policy] * count
    if len(names) != count:
        raise PlanError(
            f"policy={policy!r} names {len(names)} policies, but there are {count} types of agents; pass one name for "
            f"all types, or a list of {count}"
        )
    policies = [make_policy(name, observation_layout, action_space, **kwargs) for name in names]
    return separate(observation_layout, policies)


def _teams(
    observation_layout: Layout,
    action_space: gymnasium.Space[Any],
    places: Mapping[str, Sequence[int]],
    policy: str = "default",
    sizes: Mapping[str, Mapping[str, int]] | None = None,
    **kwargs: Any,
) -> Teams:
    """Create a Teams, with one policy per team.

    places: the indices of each team's agents, keyed by the team's name. sizes: the arguments of ``unpadded_spaces``,
    keyed by the team's name, for teams whose observations and actions are padded in rows. policy, kwargs: as for
    ``make_policy``, for every team. Raises the errors of ``make_policy`` and ``Teams``.
    """
    policies: dict[str, nn.Module] = {}
    for team in places:
        arguments = None if sizes is None else sizes.get(team)
        if arguments is None:
            policies[team] = make_policy(policy, observation_layout, action_space, **kwargs)
        else:
            layout, actions = unpadded_spaces(observation_layout, **arguments)
            network = make_policy(policy, layout, actions, **kwargs)
            policies[team] = Unpadded(network, layout, actions, Decisions(action_space).num_options)
    return Teams(policies, places)


POLICIES: Mapping[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "nature": Nature,
    "lstm": LSTM,
    "central": Central,
    "separate": _separate,
    "teams": _teams,
}
_MADE_BY: Mapping[Any, type[nn.Module]] = {_separate: Separate, _teams: Teams}


def make_policy(
    policy: str | Callable[..., nn.Module],
    observation_layout: Layout,
    action_space: gymnasium.Space[Any],
    /,
    **kwargs: Any,
) -> nn.Module:
    """Create a policy for an observation layout and an action space.

    policy: the name of a policy, the name of your own class as "module:Class", or the class itself. The policies are
        "default": a CNN if observations are images or contain some, else an MLP;
        "mlp", "cnn", "lstm";
        "nature": a CNN whose actor and critic share an encoder;
        "central": an MLP whose critic alone sees the leaf "state";
        "separate": one policy per agent type, chosen by the leaf "agent_type"; its argument ``policy`` is one name for
        all types or a list with a name for each, and its other arguments are passed to these policies;
        "teams": one policy per team; its argument ``places`` maps a team's name to the indices of the team's agents in
        an environment, and ``sizes`` to the sizes of their observations and actions if rows pad these.
    kwargs: further arguments of the policy; "default" accepts the arguments of both CNN and MLP, and ignores those that
        the chosen class lacks.

    Raises PlanError for an unknown name or argument, and if the result is not a torch.nn.Module; RegistryError if a
    "module:Class" does not exist; and SpaceError for spaces that the policy does not support.
    """
    if policy == "default":
        policy_class: Callable[..., Any] = CNN if has_images(observation_layout) else MLP
        of_other = {*inspect.signature(CNN).parameters, *inspect.signature(MLP).parameters}
        of_other -= {*inspect.signature(policy_class).parameters}
        kwargs = {name: value for name, value in kwargs.items() if name not in of_other}
    else:
        policy_class = _class_of(policy)
    try:
        module = policy_class(observation_layout, action_space, **kwargs)
    except TypeError as error:
        if isinstance(error, SpaceError) or error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # raised inside the policy
        raise PlanError(
            f"policy={policy!r} cannot be made as Class(observation_layout, action_space"
            f"{''.join(f', {name}={value!r}' for name, value in kwargs.items())}): {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise PlanError(f"policy={policy!r} makes a {type(module).__name__}, and not a torch.nn.Module")
    object.__setattr__(module, "_made_for", (observation_layout, action_space))
    return module


def require_made_by(policy: nn.Module, name: str, kwargs: Mapping[str, Any]) -> None:
    """Raise PlanError if ``make_policy(name, …, **kwargs)`` would create a policy of another kind than this one.

    Compares the names of the classes. Policies from ``make_policy`` and instances of this package's classes store their
    layout and action space. For these, also compares the names and shapes of the weights, and raises the errors of
    ``make_policy``.
    """
    factories: Any = (CNN, MLP) if name == "default" else (_class_of(name),)
    classes = [_MADE_BY.get(factory, factory) for factory in factories]
    if all(isinstance(kind, type) for kind in classes):
        # By name, because a script's class becomes another object when the script is imported as a module.
        class_names = {base.__qualname__ for base in type(policy).__mro__}
        if not class_names & {kind.__qualname__ for kind in classes}:
            raise PlanError(
                f"a {type(policy).__name__} is not what policy={name!r} makes, "
                f"{' or '.join(kind.__name__ for kind in classes)}; pass the Origin from which it was made"
            )
    spaces = _made_for(policy)
    if spaces is not None:
        with torch.random.fork_rng(devices=[]):
            expected = make_policy(name, *spaces, **kwargs)
        arguments = "".join(f", {argument}={value!r}" for argument, value in kwargs.items())
        require_shapes(policy.state_dict(), expected.state_dict(), f"policy={name!r}{arguments} makes")


def require_shapes(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str) -> None:
    """Raise PlanError unless weights have the names and shapes of the expected ones.

    source: subject and verb for the message, such as "policy='mlp' makes".
    """
    for name in dict.fromkeys((*expected, *weights)):
        actual, wanted_shape = (tuple(part[name].shape) if name in part else None for part in (weights, expected))
        if actual != wanted_shape:
            raise PlanError(
                f"weight {name!r} is {'missing' if actual is None else f'of shape {actual}'}, and {source} "
                f"{'none' if wanted_shape is None else f'one of shape {wanted_shape}'}; "
                "pass the Origin from which the policy was made"
            )


def _made_for(policy: nn.Module) -> tuple[Layout, gymnasium.Space[Any]] | None:
    """Return the layout and action space that a policy was created for; None if it does not store them."""
    made_for: Any = getattr(policy, "_made_for", None)
    if made_for is not None:
        return made_for  # type: ignore[no-any-return]
    layouts = (getattr(module, "layout", None) for module in policy.modules())
    layout = next((layout for layout in layouts if isinstance(layout, Layout)), None)
    decisions = getattr(policy, "decisions", None)
    return None if layout is None or not isinstance(decisions, Decisions) else (layout, decisions.space)


def require_known(name: str) -> None:
    """Raise PlanError for an unknown policy name. Accepts any "module:Class" without importing it."""
    if name != "default" and ":" not in name:
        _class_of(name)


def _class_of(policy: str | Callable[..., nn.Module]) -> Callable[..., Any]:
    """Return the class or function for a policy name other than "default"; return a callable unchanged.

    Raises PlanError for an unknown name, RegistryError if a "module:Class" does not exist.
    """
    if not isinstance(policy, str):
        return policy
    if policy in POLICIES:
        return POLICIES[policy]
    if ":" in policy:
        return registry.load(policy)
    raise PlanError(not_one_of("policy", policy, ("default", *POLICIES), ", and module:Class names one of your own"))


def action_mask_reader(layout: Layout, action_space: gymnasium.Space[Any]) -> Callable[[Tensor], Tensor] | None:
    """Return a function that reads action masks, bool (rows, num_options), from flat rows; None if rows have no mask.

    A mask is the part "action_mask" at the top of the observation, where ``wrap(action_mask=True)`` puts the masks from
    infos. Raises SpaceError if the mask's size differs from the number of options.
    """
    if not has_mask(layout.space):
        return None
    expected = Decisions(action_space).num_options
    size = sum(math.prod(leaf.shape) for leaf in layout.leaves if leaf.path[0] == ACTION_MASK)
    if size != expected:
        raise SpaceError(
            f'the observation\'s "action_mask" has {size} elements, but {action_space} has {expected} options in '
            "total; a mask has one element for each"
        )
    return lambda rows: layout.unflatten(rows)[ACTION_MASK].flatten(1) != 0
