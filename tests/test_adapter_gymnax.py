"""gymnax's environments as rows: those that gymnax itself makes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from pages import play, programs

import pufferlib

pytest.importorskip("gymnax")
import gymnax
import jax

from cleanrl_demo.ppo import Config, train
from pufferlib.adapters.gymnax import Copies

pytestmark = [pytest.mark.extras, pytest.mark.beside]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_rows_are_those_that_gymnax_makes(mode: str) -> None:
    env, params = gymnax.make("CartPole-v1")
    step = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
    make_env = functools.partial(Copies, "CartPole-v1", 3, autoreset_mode=mode)
    with pufferlib.make(make_env, seed=5) as vec:
        observations, _ = vec.reset(seed=[5])
        key, first = jax.random.split(jax.random.key(5))
        expected, states = jax.vmap(env.reset, (0, None))(jax.random.split(first, 3), params)
        np.testing.assert_array_equal(observations, expected)
        firsts, due = expected, np.zeros(3, np.bool_)  # of copies that wait for their next episode
        num_ends = 0
        rng = np.random.default_rng(1)
        for _ in range(60):
            actions = rng.integers(2, size=3)
            observations, rewards, terminations, _, infos = vec.step(actions)
            key, now = jax.random.split(key)
            expected, after, their_rewards, their_ends, _, told = step(
                jax.random.split(now, 3), states, actions, params
            )
            finals, started = np.asarray(told["final_observation"]), expected
            ends = np.asarray(their_ends) & ~due
            if mode == "next_step":
                expected = np.where(due[:, None], firsts, finals)
                after = jax.tree.map(lambda held, new, due=due: np.where(due, held, new), states, after)
            np.testing.assert_allclose(observations, expected, rtol=1e-6)
            np.testing.assert_array_equal(rewards, np.where(due, 0, their_rewards))
            np.testing.assert_array_equal(terminations, ends)
            assert vec.batch.masks.tolist() == (~due).tolist()
            for info in infos:
                num_ends += 1
                assert ends[info["agent_id"]] and info["episode"]["l"] > 1
                if mode == "same_step":
                    np.testing.assert_allclose(info["final_obs"], finals[info["agent_id"]], rtol=1e-6)
            states, firsts = after, started
            due = ends & (mode == "next_step")
        assert num_ends > 3


@pytest.mark.slow
def test_our_trainer_learns_from_them() -> None:
    config = Config(backend="serial", num_envs=1, total_steps=50_000, eval_episodes=32, runs=None, learning_rate=2.5e-3)
    result = train(config, functools.partial(Copies, "CartPole-v1", num_envs=32))
    assert result.mean_return >= 100  # chance has 22


def test_the_program_of_its_page_prints_what_that_says() -> None:
    (program,) = (each for each in programs("docs/adapters.md") if "gymnax" in each.text)
    play(program, {"__name__": "__main__"})
