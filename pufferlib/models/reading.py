"""Readers of observations, which convert rows of any layout to images for convolutions and to numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from operator import getitem
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor, nn

from pufferlib.errors import SpaceError
from pufferlib.layout import Layout
from pufferlib.layout.leaves import Path
from pufferlib.models.distributions import num_options
from pufferlib.models.running_norm import RunningNorm

__all__ = ["SMALLEST_IMAGE", "WIDE_BOUND", "Features", "Frames", "Images", "has_images", "images_of", "paths_of"]

SMALLEST_IMAGE = 36  # pixels, the least height and width for the convolutions
# SAC, TD3, and the agents of QMIX and MADDPG read Boxes within this bound unchanged: with Pendulum's velocity, which is
# within 8, on a logarithmic scale, TD3 ended two of eight runs below -190. Stored policies keep the others at 1.
WIDE_BOUND = 10.0


def has_images(layout: Layout) -> bool:
    """Return whether a row is or contains an image that is large enough for the convolutions."""
    return next(_images(layout), None) is not None


def images_of(layout: Layout, normalize: bool = False, bound: float = 1.0) -> Frames | Images:
    """Return a reader of images: ``Frames`` if a row is one image, else ``Images``.

    normalize, bound: as for ``Features``, for numbers that are not images. Raises SpaceError if there are no images.
    """
    images = list(_images(layout))
    if not images:
        raise SpaceError(
            f"{layout.space} holds no images, uint8 with channels last, first or left out, and at least "
            f'{SMALLEST_IMAGE} pixels high and wide; use the policy "mlp"'
        )
    return images[0][1] if layout.is_leaf else Images(layout, normalize, bound)


def paths_of(layout: Layout, name: str) -> list[Path]:
    """Return the paths of the leaves of the part ``name`` at the top of a layout's space; [] if there is none."""
    return [leaf.path for leaf in layout.leaves if leaf.path[:1] == (name,)]


def _images(layout: Layout) -> Iterator[tuple[Path, Frames]]:
    """Yield the path and a reader of each leaf that is an image.

    An image is a uint8 Box, (height, width) or with its channels last or first, of at least SMALLEST_IMAGE pixels in
    height and width.
    """
    for leaf in layout.leaves:
        sides = [leaf.shape] if len(leaf.shape) == 2 else [leaf.shape[:2], leaf.shape[1:]]
        large = len(leaf.shape) in (2, 3) and any(min(side) >= SMALLEST_IMAGE for side in sides)
        space = _space_at(layout.space, leaf.path)
        if large and leaf.nbytes and leaf.dtype == np.uint8 and isinstance(space, Box):
            yield leaf.path, Frames(space)


class Frames:
    """A reader that converts a leaf of uint8 images to (rows, channels, height, width) float32.

    Results range from 0 to 1, where 1 stands for the space's maximum. space: the Box of one image, (height, width), or
    with channels last or first.
    """

    def __init__(self, space: Box) -> None:
        shape = space.shape
        self.flat = len(shape) == 2
        self.channels_last = not self.flat and min(shape[:2]) >= SMALLEST_IMAGE
        height, width, channels = shape if self.channels_last else (*shape[-2:], 1 if self.flat else shape[0])
        self.shape = (channels, height, width)
        self.most = max(1, int(space.high.max()))  # 255 would turn a grid of ones and zeros almost black

    def __call__(self, observations: Tensor) -> Tensor:
        images = observations.unsqueeze(1) if self.flat else observations
        images = images.permute(0, 3, 1, 2) if self.channels_last else images
        # In memory the channels come last, because convolutions then take a sixth less time. The division is in place,
        # because allocating a second tensor took 14 ms for 128 images, as long as a convolution.
        return images.to(torch.float32, memory_format=torch.channels_last).div_(self.most)


class Images(nn.Module):
    """A reader that converts a layout's image leaves to float32 images, and its other leaves to numbers.

    Images of the same height and width are joined into one with more channels, like a stack of frames. normalize,
    bound: as for ``Features``, for the numbers. shapes: those of the joined images, each (channels, height, width).
    """

    def __init__(self, layout: Layout, normalize: bool = False, bound: float = 1.0) -> None:
        super().__init__()
        self.layout = layout
        by_size: dict[tuple[int, ...], list[tuple[Path, Frames]]] = defaultdict(list)
        for path, frames in _images(layout):
            by_size[frames.shape[1:]].append((path, frames))
        self.groups = list(by_size.values())
        self.shapes = [(sum(frames.shape[0] for _, frames in group), *group[0][1].shape[1:]) for group in self.groups]
        images = [path for group in self.groups for path, _ in group]
        self.features = Features(layout, normalize, images, bound) if len(images) < len(layout.leaves) else None

    def forward(self, observations: Tensor) -> list[Tensor]:
        """Return a tensor of images for each size and, if the layout has other leaves, a tensor of numbers.

        Images are (rows, channels, height, width); numbers are (rows, size). Both are float32.
        """
        nested = self.layout.unflatten(observations)
        groups = [[frames(reduce(getitem, path, nested)) for path, frames in group] for group in self.groups]
        images = [group[0] if len(group) == 1 else torch.cat(group, 1) for group in groups]
        return images if self.features is None else [*images, self.features(observations)]


class Features(nn.Module):
    """A reader that converts rows of any layout to (rows, size) float32.

    Discrete and MultiDiscrete leaves become one-hot vectors. Other leaves become numbers: values of Boxes whose bounds
    are within -bound to bound are unchanged, and all other values are converted to a logarithmic scale. Leaves inside
    spaces of variable length, such as a Sequence, always count as other leaves.

    normalize: whether to standardize leaves other than Discrete, MultiDiscrete and MultiBinary by running statistics
    instead; see ``observe``. without: the paths of leaves to leave out.
    """

    def __init__(
        self, layout: Layout, normalize: bool = False, without: Collection[Path] = (), bound: float = 1.0
    ) -> None:
        super().__init__()
        self.layout = layout
        spaces = [(leaf, _space_at(layout.space, leaf.path)) for leaf in layout.leaves if leaf.path not in without]
        numbers = [normalize and not isinstance(space, (Discrete, MultiDiscrete, MultiBinary)) for _, space in spaces]
        self.readers = [
            (leaf.path, Tensor.float if number else _reader(space, bound))
            for (leaf, space), number in zip(spaces, numbers, strict=True)
        ]
        self.one_hots = nn.ModuleList([read for _, read in self.readers if isinstance(read, OneHot)])  # for ``to``
        row = torch.from_numpy(np.zeros((1, *layout.shape), layout.dtype))
        pieces = self._pieces(row)
        self.size = sum(piece.shape[1] for piece in pieces)
        self.norm: nn.Module | None = None
        if normalize:
            which = [torch.full(piece.shape[1:], number) for piece, number in zip(pieces, numbers, strict=True)]
            self.norm = RunningNorm(torch.cat(which))

    def forward(self, observations: Tensor) -> Tensor:
        """Return features, (rows, size) float32."""
        pieces = self._pieces(observations)
        numbers = torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0]
        return numbers if self.norm is None else cast(Tensor, self.norm(numbers))

    def _pieces(self, observations: Tensor) -> list[Tensor]:
        nested = self.layout.unflatten(observations)
        return [read(_as_rows(reduce(getitem, path, nested))) for path, read in self.readers]

    def scaled_columns(self) -> list[bool] | None:
        """Return for each feature whether it is a number on a logarithmic scale; the others are numbers unchanged.

        Returns None if there are features of other kinds, or if a subclass computes them.
        """
        readers = [read for _, read in self.readers]
        if (
            type(self).forward is not Features.forward
            or self.norm is not None
            or any(read not in (Tensor.float, _tame) for read in readers)
        ):
            return None
        pieces = self._pieces(torch.from_numpy(np.zeros((1, *self.layout.shape), self.layout.dtype)))
        return [read is _tame for piece, read in zip(pieces, readers, strict=True) for _ in range(piece.shape[1])]

    def columns_without(self, name: str) -> list[int]:
        """Return the indices of the features that do not come from the observation's top-level part called ``name``."""
        pieces = self._pieces(torch.from_numpy(np.zeros((1, *self.layout.shape), self.layout.dtype)))
        column_flags: list[bool] = []
        for (path, _), piece in zip(self.readers, pieces, strict=True):
            column_flags += [path[:1] != (name,)] * piece.shape[1]
        return [column for column, flag in enumerate(column_flags) if flag]


class OneHot(nn.Module):
    """A layer that converts discrete values, (rows, elements), to one-hot vectors, (rows, num_options) float32."""

    _options: Tensor
    _elements: Tensor

    def __init__(self, space: Discrete[Any] | MultiDiscrete[Any]) -> None:
        super().__init__()
        starts = np.broadcast_to(getattr(space, "start", 0), cast(Any, space.shape)).reshape(-1).tolist()
        nvec = num_options(space)
        options = [torch.arange(start, start + n) for start, n in zip(starts, nvec, strict=True)]
        elements = torch.arange(len(nvec)).repeat_interleave(torch.tensor(nvec))
        self.register_buffer("_options", torch.cat(options), persistent=False)
        self.register_buffer("_elements", elements, persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        """Return the one-hot vectors of a leaf.

        The values are compared rather than used as indices, because 0, as in an absent agent's row, may not be a valid
        option.
        """
        return (leaf[:, self._elements] == self._options).float()


def _reader(space: gymnasium.Space[Any] | None, bound: float) -> Callable[[Tensor], Tensor]:
    """Return a function that converts a leaf of this space, (rows, elements), to (rows, size) float32."""
    if isinstance(space, (Discrete, MultiDiscrete)):
        return OneHot(space)
    if isinstance(space, Box) and np.all(np.abs(space.low) <= bound) and np.all(np.abs(space.high) <= bound):
        return Tensor.float
    return _tame


def _as_rows(leaf: Tensor) -> Tensor:
    """Return a leaf, (rows, …), as (rows, elements)."""
    if leaf.dim() == 2:  # the most frequent case
        return leaf
    return leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1)


def _tame(leaf: Tensor) -> Tensor:
    """Convert values such as counts, letters and positions to a signed logarithmic scale, sign(x) log(1 + |x|)."""
    numbers = leaf.float()
    return numbers.abs().log1p_().copysign_(numbers)


def _space_at(space: gymnasium.Space[Any] | None, path: Iterable[Any]) -> gymnasium.Space[Any] | None:
    """Return the space at a leaf's path; None if the path leads through a space other than a Dict or Tuple."""
    for key in path:
        if not isinstance(space, (Dict, Tuple)):
            return None
        space = space[key]
    return space
