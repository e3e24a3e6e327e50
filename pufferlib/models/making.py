"""Making a policy by its name, and reading the action masks that come with observations."""

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
from pufferlib.models.multiagent import Central, Separate, Teams, num_types, separate
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
_MADE_BY: Mapping[Any, type[nn.Module]] = {_separate: Separate, _teams: Teams}


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
    else:
        found = _found(policy)
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
    object.__setattr__(made, "_made_for", (observation_layout, action_space))
    return made


def require_made_by(policy: nn.Module, name: str, kwargs: Mapping[str, Any]) -> None:
    """Raise PlanError unless ``make_policy(name, …, **kwargs)`` makes what this policy is, as far as that is known.

    Its class is compared, and where the policy remembers its observations and actions, as those of ``make_policy`` and
    of this package do, the names and shapes of its weights. Raises as ``make_policy`` does, too.
    """
    found: Any = (CNN, MLP) if name == "default" else (_found(name),)
    kinds = [_MADE_BY.get(each, each) for each in found]
    if all(isinstance(kind, type) for kind in kinds):
        # By name: a script's class is another one where its module is imported.
        own = {each.__qualname__ for each in type(policy).__mro__}
        if not own & {kind.__qualname__ for kind in kinds}:
            raise PlanError(
                f"a {type(policy).__name__} is not what policy={name!r} makes, "
                f"{' or '.join(kind.__name__ for kind in kinds)}; pass the Origin that it was made by"
            )
    spaces = _made_for(policy)
    if spaces is not None:
        with torch.random.fork_rng(devices=[]):
            expected = make_policy(name, *spaces, **kwargs)
        arguments = "".join(f", {each}={value!r}" for each, value in kwargs.items())
        require_shapes(policy.state_dict(), expected.state_dict(), f"policy={name!r}{arguments} makes")


def require_shapes(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], told: str) -> None:
    """Raise PlanError where names or shapes of weights are others than expected. told: whose those are."""
    for name in dict.fromkeys((*expected, *weights)):
        came, wanted = (tuple(each[name].shape) if name in each else None for each in (weights, expected))
        if came != wanted:
            raise PlanError(
                f"weight {name!r} is {'missing' if came is None else f'of shape {came}'}, and {told} "
                f"{'none' if wanted is None else f'one of shape {wanted}'}; pass the Origin that the policy was made by"
            )


def _made_for(policy: nn.Module) -> tuple[Layout, gymnasium.Space[Any]] | None:
    """Return the observations and actions that a policy was made for, where it remembers them."""
    told: Any = getattr(policy, "_made_for", None)
    if told is not None:
        return told  # type: ignore[no-any-return]
    layouts = (getattr(module, "layout", None) for module in policy.modules())
    layout = next((each for each in layouts if isinstance(each, Layout)), None)
    decisions = getattr(policy, "decisions", None)
    return None if layout is None or not isinstance(decisions, Decisions) else (layout, decisions.space)


def require_known(name: str) -> None:
    """Raise PlanError for a policy's name that is none; what module:Class names is not imported for it."""
    if name != "default" and ":" not in name:
        _found(name)


def _found(policy: str | Callable[..., nn.Module]) -> Callable[..., Any]:
    """Return what a policy's name stands for, other than "default"."""
    if not isinstance(policy, str):
        return policy
    if policy in OWN:
        return OWN[policy]
    if ":" in policy:
        return registry.load(policy)
    raise PlanError(not_one_of("policy", policy, ("default", *OWN), ", and module:Class names one of your own"))


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
