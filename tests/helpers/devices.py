"""Who plays kernels in tests: the host, fibres in the place of a device's threads, and, marked gpu, a device.

As a plugin, which conftest.py names, this has the fixtures, and the option that has the host play for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import pufferlib

__all__ = ["FIBRES", "LOOPS", "ON_HOST_AND_DEVICE", "PLAYER_KINDS", "Player", "array_of", "assert_same_bits"]

ON_DEVICE = pytest.param("device", marks=pytest.mark.gpu)
PLAYER_KINDS = ["loops", "fibres", ON_DEVICE]  # the values of the fixture ``player``
ON_HOST_AND_DEVICE = ["loops", ON_DEVICE]
BACKEND_KWARGS: Mapping[str, Mapping[str, Any]] = {"loops": {"threads": 2}, "fibres": {"checked": True}, "device": {}}


class Player(NamedTuple):
    """Who plays, as ``pufferlib.make`` takes it."""

    name: str
    device: str
    backend_kwargs: Mapping[str, Any]

    def make(self, env: Any, **kwargs: Any) -> Any:
        """Return environments of backend cuda."""
        return pufferlib.make(
            env, **{"backend": "cuda", "device": self.device, "backend_kwargs": self.backend_kwargs, **kwargs}
        )


LOOPS, FIBRES = (Player(name, "host", BACKEND_KWARGS[name]) for name in ("loops", "fibres"))


def pytest_addoption(parser: pytest.Parser) -> None:
    description = 'where tests marked gpu play: "cuda", "cuda:1" or, as far as they can, "host" (default: cuda)'
    parser.addoption("--device", default="cuda", help=description)


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """Where a test marked gpu plays: on a CUDA device, or on the host if ``--device`` says so."""
    name: str = request.config.getoption("--device")
    if name != "host":
        begin(name)
    return name


@pytest.fixture(scope="module")
def cuda(device: str) -> str:
    """The same for what is about CUDA itself."""
    if device == "host":
        pytest.skip("needs a CUDA device")
    return device


@pytest.fixture(scope="module", params=PLAYER_KINDS)
def player(request: pytest.FixtureRequest) -> Player:
    """Who plays."""
    name: str = request.param
    device = request.getfixturevalue("device") if name == "device" else "host"
    return Player(name, device, BACKEND_KWARGS[name])


@functools.cache
def begin(name: str) -> None:
    """Make a CUDA device the present one, with all that its driver opens at first: no test has left that behind."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.cuda.set_device(torch.device(name).index or 0)
    numbers = torch.ones((8, 8), device=name, requires_grad=True)
    (numbers @ numbers).sum().backward()
    torch.empty(8, pin_memory=True)
    torch.cuda.synchronize()


def array_of(column: Any) -> np.ndarray[Any, Any]:
    """Return an array or a tensor, wherever it is, as an array of its own."""
    return np.array(column.detach().cpu().numpy() if hasattr(column, "detach") else column)


def assert_same_bits(actual: Any, expected: Any, context: Any = "") -> None:
    """Compare two arrays or tensors, of whichever devices, by their bits: NaN is NaN, and 0.0 is not -0.0."""
    one, other = array_of(actual), array_of(expected)
    assert (one.dtype, one.shape) == (other.dtype, other.shape), context
    as_bits = np.dtype(f"u{one.itemsize}")
    np.testing.assert_array_equal(one.view(as_bits), other.view(as_bits), str(context))
