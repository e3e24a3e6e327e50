"""The compiled and the portable path give the same tensors.

In a file of its own: what imports torch forks workers in twice the time, and so would all tests of its process.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from test_paths import Habits, on_both, plain

import pufferlib

pytestmark = pytest.mark.beside


@pytest.mark.extras
@pytest.mark.parametrize("arguments", [{"as_torch": True}, {"device": "cpu"}, {"as_torch": True, "copy": True}])
def test_tensors_are_the_same(arguments: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")

    def play() -> Any:
        seen = []
        creator = functools.partial(Habits, "image", "box", 0.2)
        with pufferlib.make(creator, backend="multiprocessing", num_envs=3, num_workers=2, **arguments) as vec:
            vec.reset(seed=1)
            for number in range(40):
                vec.step(torch.full((3, 2), number / 40))  # a tensor of actions
                batch = vec.batch
                assert batch is not None and isinstance(batch.observations, torch.Tensor)
                seen.append([plain(column.numpy()) for column in (*batch[:4], *batch[5:])] + [plain(batch.infos)])
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable
