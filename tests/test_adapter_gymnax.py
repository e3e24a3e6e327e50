"""gymnax's environments as rows: those that gymnax itself makes."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import pufferlib

pytest.importorskip("gymnax")
import gymnax
import jax

from pufferlib.adapters.gymnax import Copies

pytestmark = [pytest.mark.extras, pytest.mark.beside]


def test_rows_are_those_that_gymnax_makes() -> None:
    env, params = gymnax.make("CartPole-v1")
    with pufferlib.make(functools.partial(Copies, "CartPole-v1", 3), seed=5) as vec:
        observations, _ = vec.reset(seed=[5])
        key, first = jax.random.split(jax.random.key(5))
        expected, states = jax.vmap(env.reset, (0, None))(jax.random.split(first, 3), params)
        np.testing.assert_array_equal(observations, expected)
        num_ends = 0
        rng = np.random.default_rng(1)
        for _ in range(60):
            actions = rng.integers(2, size=3)
            observations, rewards, terminations, _, infos = vec.step(actions)
            key, now = jax.random.split(key)
            expected, states, their_rewards, their_terminations, _, told = jax.vmap(env.step, (0, 0, 0, None))(
                jax.random.split(now, 3), states, actions, params
            )
            np.testing.assert_allclose(observations, expected, rtol=1e-6)
            np.testing.assert_array_equal(rewards, their_rewards)
            np.testing.assert_array_equal(terminations, their_terminations)
            for info in infos:
                if "final_obs" in info:
                    num_ends += 1
                    place = info["agent_id"]
                    np.testing.assert_allclose(info["final_obs"], told["final_observation"][place], rtol=1e-6)
                    assert info["episode"]["l"] > 1
        assert num_ends > 3
