"""The kernel of economy/covid over a whole episode, and its two types of agents on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import ON_HOST_AND_DEVICE, Player, array_of, assert_same_bits

import pufferlib
from cuda_ext.references.economy_covid import GOVERNOR_SIZE, PLANNER_SIZE, masks, observations
from cuda_ext.references.economy_data import load
from cuda_ext.references.economy_model import Model

pytestmark = pytest.mark.beside

NUM_DAYS, NUM_STATES, PLANNER = 540, 51, 51
GOVERNOR, ROW = GOVERNOR_SIZE + 11, PLANNER_SIZE + 21
Array = np.ndarray[Any, Any]


def rows_of(model: Model, state: Any) -> Array:
    """Return the rows of one environment, (52, ROW)."""
    rows = np.zeros((NUM_STATES + 1, ROW), np.float32)
    parts = zip(masks(model, state), observations(model, state), strict=True)
    (governor_masks, governors), (planner_mask, planner) = parts
    rows[:PLANNER, :GOVERNOR] = np.concatenate([governor_masks[0], governors[0]], axis=1)
    rows[PLANNER] = np.concatenate([planner_mask[0], planner[0]])
    return rows


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_a_whole_episode_equals_the_equations(player: Player) -> None:
    """With vaccines, and past the day from which changes of level are older than 600 days."""
    random = np.random.default_rng(1)
    actions = random.integers(0, 21, (NUM_DAYS, NUM_STATES + 1))
    actions[random.random(actions.shape) < 0.5] = 0
    model = Model(load())
    state = model.starts(1)
    with player.make("economy/covid", num_envs=1, seed=1) as vec:
        first, _ = vec.reset()
        assert_same_bits(first, rows_of(model, state))
        for begin in range(0, NUM_DAYS, 60):
            played = vec.rollout(60, actions[begin : begin + 60])
            rewards, observed = array_of(played.rewards), array_of(played.observations)
            for number, day in enumerate(range(begin, begin + 60)):
                governors = np.minimum(actions[[day], :PLANNER], 10)
                after = model.step(state, governors, actions[day, PLANNER:])
                # 25,168 numbers a day, none of them -0 or NaN
                assert np.array_equal(rewards[number], model.rewards(model.indices(state, after))[0]), day
                assert np.array_equal(observed[number], rows_of(model, after)), day
                state = after
            assert not array_of(played.terminations).any()
            ended = array_of(played.truncations)
            assert ended[-1].all() == (begin + 60 == NUM_DAYS) and not ended[:-1].any()
        for name in ("memory", "levels", "bound_until", "vaccinated"):
            assert_same_bits(vec.get_attr(name)[0], getattr(state, name)[0], name)


@pytest.mark.parametrize(
    ("backend", "options"),
    [("serial", {}), ("multiprocessing", {"num_workers": 2}), ("pool", {"num_workers": 2}),
     ("cuda", {"device": "host", "as_torch": False})],
)  # fmt: skip
def test_two_types_of_agents_play_on_every_backend(backend: str, options: dict[str, Any]) -> None:
    """Each with its own observations and actions, governors each third day and the planner each fifth."""
    settings = {"episode_length": 11, "action_cooldown": 3, "subsidy_interval": 5}
    vec: Any = pufferlib.make("economy/covid", backend=backend, num_envs=2, seed=3, env_kwargs=settings, **options)
    model = Model(load(), **settings)  # type: ignore[arg-type]
    state = model.starts(1)
    with vec:
        sizes = [layout.shape[0] for layout in vec.observation_layouts]
        assert sizes == [GOVERNOR] * NUM_STATES + [ROW]
        num_actions = [layout.space.n for layout in vec.action_layouts]
        assert num_actions == [11] * NUM_STATES + [21]
        observed, _ = vec.reset()
        for day in range(11):
            np.testing.assert_array_equal(np.asarray(observed)[: NUM_STATES + 1], rows_of(model, state))
            actions = np.append(1 + (np.arange(NUM_STATES) + day) % 10, day)
            after = model.step(state, actions[np.newaxis, :PLANNER], actions[PLANNER:])
            observed, rewards, *_ = vec.step(np.tile(actions, 2))
            expected = model.rewards(model.indices(state, after))[0]
            np.testing.assert_array_equal(np.asarray(rewards), np.tile(expected, 2))
            state = after
        acted = np.asarray(observed)[: NUM_STATES + 1, 0]
        assert acted.all() and vec.batch is not None and np.asarray(vec.batch.truncations).all()
        returns = [info["episode"] for info in vec.batch.infos if "agent_id" in info]
        assert len(returns) == 104 and {episode["l"] for episode in returns} == {11}
