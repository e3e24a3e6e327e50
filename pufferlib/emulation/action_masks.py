"""Action masks, which move from info["action_mask"] to a leaf of the observation, because policies see no infos."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.errors import SpaceError
from pufferlib.util.annotations import Array

__all__ = ["ACTION_MASK", "has_mask", "mask_plan", "mask_size", "masked_space", "pack_mask"]

ACTION_MASK = "action_mask"


def has_mask(space: object) -> bool:
    """Return whether a space is a Dict with a leaf "action_mask" at the top."""
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces


def mask_size(action_space: gymnasium.Space[Any]) -> int | None:
    """Return the number of elements in a mask of action_space, one per logit; None if nothing can be masked.

    The number is n for a Discrete, the sum of nvec for a MultiDiscrete, twice the number of elements for a MultiBinary
    and 0 for a Box. For a Dict or Tuple, it is the sum over all parts. A space with a part of any other kind cannot be
    masked.
    """
    sizes = _sizes(action_space)
    return None if sizes is None or sizes == 0 else sizes


def _sizes(space: gymnasium.Space[Any]) -> int | None:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.MultiBinary):
        return 2 * int(np.prod(space.shape))
    if isinstance(space, spaces.Box):
        return 0
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = [_sizes(part) for part in _parts(space).values()]
        return None if None in parts else sum(part for part in parts if part)
    return None


def masked_space(observation_space: gymnasium.Space[Any], size: int) -> spaces.Dict:
    """Return a Dict of "observation" and "action_mask", the usual form of observation spaces that contain masks."""
    return spaces.Dict({"observation": observation_space, ACTION_MASK: spaces.MultiBinary(size)})


def pack_mask(action_space: gymnasium.Space[Any], mask: Any) -> Array:
    """Flatten a mask in Gymnasium's form (arrays in the structure of the space) into one int8 array, 1 where allowed.

    None, for the whole mask or for a part, allows everything, and masks of MultiBinary parts are ignored. Raises
    SpaceError if a part is missing, is no array of numbers, or has the wrong number of elements.
    """
    try:
        return np.concatenate([np.ones(0, np.int8), *_pieces(action_space, mask)])
    except SpaceError:
        raise
    except (LookupError, TypeError, ValueError):
        raise SpaceError(
            f"info['action_mask'] is {mask!r:.80}, which lacks parts of {action_space} or holds no numbers; give "
            "arrays in the structure of the space"
        ) from None


def mask_plan(space: gymnasium.Space[Any]) -> tuple[str, int, dict[Any, Any]]:
    """Return (form, size, parts), the plan by which compiled code packs a space's masks as ``pack_mask`` does.

    form: "flat" for one array; "parts" for one array or a tuple of arrays; "nested" for a part per key; "unread" for
    masks that are ignored, so that everything is allowed. size: the number of elements. parts: by key, the plans of a
    nested space's parts.
    """
    size = _sizes(space) or 0
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return "nested", size, {key: mask_plan(part) for key, part in _parts(space).items()}
    if isinstance(space, spaces.MultiBinary):
        return "unread", size, {}
    return "parts" if isinstance(space, spaces.MultiDiscrete) else "flat", size, {}


def _pieces(space: gymnasium.Space[Any], mask: Any) -> list[Array]:
    size = _sizes(space) or 0
    if mask is None or isinstance(space, spaces.MultiBinary):  # Gymnasium's MultiBinary masks do not match the logits
        return [np.ones(size, np.int8)]
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [piece for key, part in _parts(space).items() for piece in _pieces(part, mask[key])]
    if isinstance(mask, (tuple, list)) and isinstance(space, spaces.MultiDiscrete):
        piece = np.concatenate([np.ravel(part) for part in mask])
    else:
        piece = np.ravel(mask)
    if piece.size != size:
        raise SpaceError(f"info['action_mask'] has {piece.size} elements, but {space} has {size} choices")
    return [piece.astype(np.int8)]


def _parts(space: spaces.Dict | spaces.Tuple[Any]) -> dict[Any, gymnasium.Space[Any]]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
