"""gymnax's environments as rows: those that gymnax itself makes."""

from __future__ import annotations

import dataclasses
import functools

import gymnasium
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
            expected, after, their_rewards, their_ends, _, their_infos = step(
                jax.random.split(now, 3), states, actions, params
            )
            finals, started = np.asarray(their_infos["final_observation"]), expected
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
@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_a_copy_made_by_name_is_what_gymnax_makes(backend: str) -> None:
    env, params = gymnax.make("CartPole-v1")
    plan = {} if backend == "serial" else {"num_workers": 1}
    limit = {"max_steps_in_episode": 12}
    params = dataclasses.replace(params, **limit)
    ends = [0, 0]
    with pufferlib.make("gymnax/CartPole-v1", backend=backend, num_envs=1, env_kwargs=limit, **plan) as vec:
        observations, _ = vec.reset(seed=[5])
        key = jax.random.key(int(gymnasium.utils.seeding.np_random(5)[0].integers(1 << 31)))
        key, now = jax.random.split(key)
        expected, state = env.reset_env(now, params)
        due = False
        for action in np.random.default_rng(1).integers(2, size=80).tolist():
            np.testing.assert_allclose(observations[0], expected, rtol=1e-5)
            observations, rewards, terminations, truncations, _ = vec.step(np.array([action]))
            key, now = jax.random.split(key)
            if due:
                due, (expected, state) = False, env.reset_env(now, params)
                continue
            expected, state, reward, terminated, _ = env.step_env(now, state, action, params)
            truncated = state.time >= 12 and not terminated
            assert (rewards[0], terminations[0], truncations[0]) == (reward, terminated, truncated)
            due = bool(terminated or truncated)
            ends[0] += bool(terminated)
            ends[1] += bool(truncated)
    assert min(ends) > 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Limit:
    max_timesteps: int = 7


class Older:
    """An environment as gymnax had them before 1.0: counts, and ends where it has counted the action, or in time."""

    default_params = Limit()

    def reset_env(self, key, params):
        state = {"count": jax.numpy.zeros((), np.int32), "goal": jax.random.randint(key, (), 3, 12)}
        return self.observed(state), state

    reset = reset_env

    def step_env(self, key, state, action, params):
        state = {"count": state["count"] + 1, "goal": state["goal"]}
        return self.observed(state), state, 1.0 * state["count"], self.is_terminal(state, params), {}

    def is_terminal(self, state, params):
        return (state["count"] >= state["goal"]) | (state["count"] >= params.max_timesteps)

    def observed(self, state):
        return jax.numpy.stack([state["count"], state["goal"]])

    def observation_space(self, params):
        return gymnax.environments.spaces.Box(0, 20, (2,), np.int32)

    def action_space(self, params):
        return gymnax.environments.spaces.Discrete(2)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_end_is_a_truncation_where_time_alone_has_ended_it(mode: str) -> None:
    with pufferlib.make(functools.partial(Copies, Older(), 16, autoreset_mode=mode), seed=1) as vec:
        state = vec.reset(seed=[5])[0].copy()
        assert (state[:, 0] == 0).all()
        over = np.zeros(16, np.bool_)
        seen = [0, 0]
        for _ in range(40):
            count, goal = state.T + [[1], [0]]
            observations, rewards, terminations, truncations, infos = vec.step(np.zeros(16, np.int64))
            waits = over & (mode == "next_step")
            assert terminations.tolist() == ((count == goal) & ~waits).tolist()
            assert truncations.tolist() == ((count == 7) & (goal > 7) & ~waits).tolist()
            assert rewards.tolist() == np.where(waits, 0, count).tolist()
            over = terminations | truncations
            fresh = over if mode == "same_step" else waits
            assert observations[:, 0].tolist() == np.where(fresh, 0, count).tolist()
            assert (observations[~fresh, 1] == goal[~fresh]).all()
            if mode == "same_step":
                assert [info["final_obs"][1] for info in infos if "final_obs" in info] == goal[over].tolist()
            seen[0] += terminations.sum()
            seen[1] += truncations.sum()
            state = observations.copy()
        assert min(seen) > 10


@pytest.mark.slow
def test_our_trainer_learns_from_them() -> None:
    config = Config(backend="serial", num_envs=1, total_steps=50_000, eval_episodes=32, runs=None, learning_rate=2.5e-3)
    result = train(config, functools.partial(Copies, "CartPole-v1", num_envs=32))
    assert result.mean_return >= 100  # chance has 22


def test_the_program_of_its_page_prints_what_that_says() -> None:
    (program,) = (part for part in programs("docs/adapters.md") if "gymnax" in part.text)
    play(program, {"__name__": "__main__"})
