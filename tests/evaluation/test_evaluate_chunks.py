"""Policies that decide on several steps at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mock_envs import HashEnv, NestedHashEnv, TagEnv

import pufferlib
from pufferlib.errors import ActionError, PlanError
from pufferlib.evaluation import ChunkedPolicy, PolicyBatch, uniforms

pytestmark = pytest.mark.beside


def chunks_of(batch: PolicyBatch, num: int) -> Any:
    """Actions that tell the step at which the chunk was planned, and their place in it."""
    noise = (uniforms(batch.seeds, batch.steps, batch.env_ids * 0, 1) * 3).astype(np.int64)
    return (batch.steps[:, None] + noise) * num + np.arange(num)


@pytest.mark.parametrize("num_steps", [None, 2])
def test_a_chunk_is_played_and_then_the_next_one_is_planned(num_steps: int | None) -> None:
    num_calls = 0

    def predict(batch: PolicyBatch) -> Any:
        nonlocal num_calls
        num_calls += 1
        return chunks_of(batch, 4)

    def at_once(batch: PolicyBatch) -> Any:
        """The same actions, from the step at which the chunk was planned."""
        offsets = batch.steps % (num_steps or 4)
        planned = chunks_of(batch._replace(steps=batch.steps - offsets), 4)
        return planned[np.arange(len(planned)), offsets]

    how: dict[str, Any] = {"seeds": range(20), "fresh": "never"}
    expected = pufferlib.evaluate(HashEnv, at_once, backend="serial", **how)
    for plan in ({"backend": "serial", "num_envs": 1}, {"backend": "pool", "num_envs": 7, "num_workers": 2}):
        num_calls = 0
        assert pufferlib.evaluate(HashEnv, ChunkedPolicy(predict, num_steps), **plan, **how) == expected
        num_chunks = (-(-expected.lengths // (num_steps or 4))).sum()
        assert num_calls == num_chunks if plan["backend"] == "serial" else num_calls <= num_chunks


def test_chunks_of_several_agents_and_of_joined_actions() -> None:
    def agents(batch: PolicyBatch) -> Any:
        return np.stack([batch.agent_ids % 2, 1 + batch.agent_ids % 2], 1)

    how: dict[str, Any] = {"episodes": 3, "backend": "serial", "env_kwargs": {"length": 4}}
    result = pufferlib.evaluate(TagEnv, ChunkedPolicy(agents), **how)
    assert result.agent_returns.tolist() == [[2, 6]] * 3  # 0 + 1 + 0 + 1, 1 + 2 + 1 + 2

    def joined(batch: PolicyBatch) -> Any:
        num = len(batch.agent_ids)
        return np.zeros((num, 3, 1), np.int64), np.zeros((num, 3, 2), np.float32)

    assert np.isfinite(
        pufferlib.evaluate(NestedHashEnv, ChunkedPolicy(joined), episodes=3, backend="serial").returns
    ).all()


def test_chunks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlanError, match="num_steps=0 is impossible"):
        ChunkedPolicy(lambda batch: None, 0)
    for shape, num_steps, needs in (((16,), None, "(16, 1 or more, …)"), ((16, 2), 3, "(16, 3, …)"), ((3, 4), 1, "16")):
        with pytest.raises(ActionError, match="chunks of shape") as refused:
            pufferlib.evaluate(
                HashEnv, ChunkedPolicy(lambda batch, shape=shape: np.zeros(shape, np.int64), num_steps),
                episodes=2, backend="serial",
            )  # fmt: skip
        assert needs in str(refused.value)
