"""Layouts of torch tensors: the same views as in NumPy, of the same memory, wherever the tensor is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st
from spaces import BOUNDS, any_spaces, leaves_of, same, samples

from pufferlib.errors import SpaceError
from pufferlib.layout import action_layout, observation_layout

pytestmark = pytest.mark.beside

MIXED = Dict({"image": Box(0, 255, (2, 2), np.uint8), "count": Discrete(9), "at": Box(-1, 1, (3,)), "word": Text(3)})


def compare(ours: Any, numpys: Any, base: torch.Tensor) -> None:
    """Fail unless nested tensors equal nested arrays, dtypes too, and lie in the base's memory."""
    if isinstance(numpys, (dict, tuple)):
        keys = numpys.keys() if isinstance(numpys, dict) else range(len(numpys))
        assert type(ours) is type(numpys) and len(ours) == len(numpys)
        for key in keys:
            compare(ours[key], numpys[key], base)
        return
    assert ours.shape == numpys.shape and str(ours.dtype) == f"torch.{numpys.dtype}"
    assert ours.numpy().tobytes() == numpys.tobytes()
    assert not ours.numel() or ours.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


@given(samples(any_spaces(), count=3, odd=True), st.sampled_from(["row", "batch", "rollout", "every other", "tail"]))
def test_tensors_are_viewed_as_arrays_are(drawn: Any, kind: str) -> None:
    space, xs = drawn
    layout = observation_layout(space, **BOUNDS)
    flat = np.stack([np.asarray(layout.flatten(x)) for x in xs])
    cut: Any = {
        "row": (1, ...),
        "batch": ...,
        "rollout": None,
        "every other": slice(None, None, 2),
        "tail": slice(1, None),
    }
    rows = flat[cut[kind]]
    tensor = torch.from_numpy(flat)[cut[kind]]
    compare(layout.unflatten(tensor), layout.unflatten(rows), tensor)


def test_rows_without_bytes_are_viewed() -> None:
    """NumPy sets the strides of an array without elements to 0, of which torch takes no view."""
    layout = observation_layout(Tuple([Box(-1, 1, (0,), np.float16), Box(-1, 1, (3, 0), np.float64)]))
    assert layout.dtype == np.uint8 and layout.shape == (0,)
    for rows in (np.zeros(0, np.uint8), np.zeros((4, 0), np.uint8)):
        tensor = torch.from_numpy(rows)
        compare(layout.unflatten(tensor), layout.unflatten(rows), tensor)


@given(samples(any_spaces(), odd=True))
def test_decode_takes_a_tensors_row(drawn: Any) -> None:
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)
    assert same(layout.decode(torch.from_numpy(np.asarray(layout.flatten(x)))), x)


@given(any_spaces(), st.integers(0, 2**32 - 1))
def test_actions_are_viewed_as_arrays_are(space: Any, seed: int) -> None:
    layout = action_layout(space, **BOUNDS)
    layout.flat_space.seed(seed)
    row = layout.flat_space.sample()
    parts = row if len(layout.components) == 2 else (row,)
    arrays = tuple(np.asarray(part)[None].astype(part.dtype.newbyteorder("=")) for part in parts)
    tensors = tuple(map(torch.from_numpy, arrays))
    one = (lambda tensor_parts: tensor_parts) if len(parts) == 2 else (lambda tensor_parts: tensor_parts[0])
    for ours, numpys in zip(
        leaves_of(layout.unflatten(one(tensors))), leaves_of(layout.unflatten(one(arrays))), strict=True
    ):
        compare(ours, numpys, tensors[len(parts) == 2 and ours.dtype == torch.float32])
    assert same(layout.unpack(one(tuple(tensor_parts[0] for tensor_parts in tensors))), layout.unpack(row))


def test_writing_through_a_view_writes_the_rows() -> None:
    layout = observation_layout(MIXED)
    rows = torch.zeros((4, *layout.shape), dtype=torch.uint8)
    nested = layout.unflatten(rows)
    nested["count"][:] = torch.arange(4)
    nested["at"][2] = 0.5
    decoded = layout.decode(rows[2])
    assert decoded["count"] == 2 and decoded["at"].tolist() == [0.5] * 3 and decoded["word"] == ""


def test_gradients_flow_through_the_views_of_one_dtype() -> None:
    layout = observation_layout(Tuple((Box(-1, 1, (2,)), Box(-1, 1, (1,)))))
    rows = torch.ones((5, 3), requires_grad=True)
    layout.unflatten(rows)[0].sum().backward()
    assert rows.grad is not None and rows.grad.sum(0).tolist() == [5, 5, 0]
    assert layout.decode(rows[0])[0].tolist() == [1, 1]


def test_bytes_may_be_viewed_on_devices_without_memory_of_their_own() -> None:
    layout = observation_layout(MIXED)
    nested = layout.unflatten(torch.zeros((4, *layout.shape), dtype=torch.uint8, device="meta"))
    assert nested["at"].device.type == "meta" and nested["at"].shape == (4, 3) and nested["count"].dtype == torch.int64


def test_what_torch_cannot_view_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = observation_layout(MIXED)
    rows = torch.zeros((4, 2 * layout.nbytes), dtype=torch.uint8)
    with pytest.raises(SpaceError, match=r"at: no view of torch.uint8 of shape \(4, 40\) as float32, because rows"):
        layout.unflatten(rows[:, ::2])
    with pytest.raises(SpaceError, match=r"because rows are not contiguous or not aligned in memory; copy them first"):
        layout.unflatten(rows.flatten()[1 : 1 + layout.nbytes])
    with pytest.raises(SpaceError, match=r"expected rows of uint8, the bytes of mixed leaves, got torch.float32"):
        layout.unflatten(rows[:, : layout.nbytes].float())
    monkeypatch.delattr(torch, "float32")  # as older versions have no uint32
    with pytest.raises(SpaceError, match="at: this version of torch has no float32; unflatten in NumPy"):
        layout.unflatten(rows[:, : layout.nbytes])
