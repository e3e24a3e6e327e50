"""Ways to ask ``make`` for batches that are tensors: an adapter plays the same over each of them as over arrays."""

from __future__ import annotations

from typing import Any

import pytest

TENSORS: dict[str, dict[str, Any]] = {
    "kernels": {"backend": "cuda", "device": "host"},
    "tensors": {"as_torch": True},
    "processes": {"as_torch": True, "backend": "multiprocessing"},
    "copies": {"device": "cpu", "copy": True},
}

over_tensors = pytest.mark.parametrize("kwargs", TENSORS.values(), ids=TENSORS)
