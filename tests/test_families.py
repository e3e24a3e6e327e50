"""Families of environments: each has an extra and names of its own, and the table of them says what their files say.

What plays them is `make test-envs`, each where it is installed; tests/test_real_envs.py plays those that [dev] has, but
for what is made here of Atari's games.
"""

from __future__ import annotations

import dataclasses
import types
from fnmatch import fnmatchcase

import check_family
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from cleanrl_demo.ppo import Config
from cleanrl_demo.settings import family_settings
from pufferlib import environments, registry
from pufferlib.environments import overcooked, panda, retro
from pufferlib.environments._pictures import GrayPictures
from pufferlib.errors import PlanError, RegistryError

pytestmark = pytest.mark.beside

FAMILIES = environments.families()


def test_the_page_has_the_table_that_the_results_make() -> None:
    page = check_family.PAGE.read_text()
    assert check_family.with_table(page) == page


def test_every_result_is_of_a_family() -> None:
    assert {file.stem for file in check_family.RESULTS.glob("*.json")} <= set(FAMILIES)


@pytest.mark.parametrize("stem", FAMILIES)
def test_each_family_has_an_extra_and_names_of_its_own(stem: str) -> None:
    family = FAMILIES[stem]
    assert family.extra in check_family.extras()
    for example in family.examples:
        found = registry.find(example.name)
        assert (found.family, found.extra) == (stem, family.extra)
        fitting = [
            other for other in FAMILIES if any(fnmatchcase(example.name, name) for name in FAMILIES[other].names)
        ]
        assert fitting == [stem]


@pytest.mark.parametrize("stem", FAMILIES)
def test_each_family_has_settings_that_say_whose_they_are(stem: str) -> None:
    file = environments.FOLDER / f"{stem}.toml"
    assert file.read_text().startswith("# "), "the head of the file says where its figures come from"
    for example in FAMILIES[stem].examples:
        _, values = family_settings(example.name, Config)  # which checks that they are the trainer's fields
        assert {"total_steps", "num_envs", "rollout_length"} <= set(values)
        Config(**values)


@pytest.mark.extras
@pytest.mark.parametrize("stem", [stem for stem, family in FAMILIES.items() if family.folder or family.members])
def test_a_family_says_where_its_names_are_told(stem: str) -> None:
    start = FAMILIES[stem].names[0].removesuffix("*")
    with pytest.raises(RegistryError, match=f'called "{start}no_game"; `puffer envs {start}` lists'):
        environments.module(stem).env_creator(f"{start}no_game")


@pytest.mark.slow
@pytest.mark.extras
def test_preprocessed_games_are_emulated_exactly() -> None:
    example = dataclasses.replace(FAMILIES["atari"].examples[0], env_kwargs={"max_episode_steps": 30})
    assert check_family.compared(example, 150)["observations"] == "Box(0, 255, (84, 84), uint8)"


@pytest.mark.slow
@pytest.mark.extras
def test_of_what_a_process_can_have_one_oracle_and_rows_are_each_in_a_process_of_their_own(monkeypatch) -> None:
    monkeypatch.setattr(check_family, "alone", lambda example: True)
    found = check_family.compared(environments.Example("CartPole-v1"), 60)
    assert found["exact"] and found["compared"]["pool"]["episodes"] > 0


class Frames(gymnasium.Env):
    """Pictures of which frame it is, rewarded with it; ends after ten. Remembers the actions."""

    observation_space = spaces.Box(0, 255, (20, 30, 3), np.uint8)
    action_space = spaces.MultiBinary(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frame, self.played = 0, []
        return np.zeros((20, 30, 3), np.uint8), {}

    def step(self, action):
        self.frame += 1
        self.played.append(tuple(action))
        return np.full((20, 30, 3), self.frame, np.uint8), self.frame, self.frame == 10, False, {"frame": self.frame}


def played(sticky: float, seed: int | None, env: GrayPictures | None = None) -> list[tuple[int, ...]]:
    env = env or GrayPictures(Frames(), sticky=sticky)
    env.reset(seed=seed)
    action = env.action_space.sample()  # one that is written into again, as a batch's rows are
    for number in range(3):
        action[:] = (number >> 1, number & 1)
        env.step(action)
    return env.unwrapped.played


@pytest.mark.extras
def test_gray_pictures_stand_for_some_frames() -> None:
    env = GrayPictures(Frames(), frame_skip=4, size=10)
    env.reset(seed=1)
    for frame, reward in ((4, 10.0), (8, 26.0), (10, 19.0)):
        picture, *told = env.step(np.zeros(2, np.int8))
        assert told == [reward, frame == 10, False, {"frame": frame}]
        assert env.observation_space.contains(picture) and np.all(picture == frame)


@pytest.mark.extras
def test_sticky_actions_are_those_before_and_follow_from_the_seed_of_the_first_reset() -> None:
    assert played(0.0, 1) == [(0, 0)] * 4 + [(0, 1)] * 4 + [(1, 0)] * 2
    assert played(1.0, 1) == [(0, 0)] * 5 + [(0, 1)] * 4 + [(1, 0)]
    env = GrayPictures(Frames(), sticky=0.5)
    first = [played(0.5, seed, env) for seed in (3, *[None] * 20)]
    assert first == [played(0.5, seed, env) for seed in (3, *[None] * 20)]
    assert len({tuple(each) for each in first}) == 4


def test_a_second_emulator_in_a_process_is_answered_with_the_way_out(monkeypatch) -> None:
    def make(game: str, **kwargs: object) -> None:
        raise RuntimeError("Cannot create multiple emulator instances per process, make sure to call env.close()")

    enumerations = {name: types.SimpleNamespace(__members__={}) for name in retro.ENUMERATIONS.values()}
    fake = types.SimpleNamespace(make=make, **enumerations)
    monkeypatch.setattr(retro.importlib, "import_module", lambda name: fake)
    with pytest.raises(PlanError, match=r'^"retro/Game": .* num_workers=num_envs'):
        retro.env_creator("retro/Game")


def test_a_task_of_the_arm_is_made_anew_for_a_second_seed_and_draws_seeds_of_the_first() -> None:
    made: list[gymnasium.Env] = []
    seeds: list[int | None] = []

    class Task(Frames):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    env = panda.Seeded(lambda: made.append(Task()) or made[-1])
    for _ in range(2):
        for seed in (5, None, None):
            env.reset(seed=seed)
    assert len(made) == 2 and env.unwrapped is made[1]
    assert seeds[:3] == seeds[3:] and None not in seeds and len(set(seeds)) == 3


class Recipe:
    """Of a process, as Overcooked has it: that of the kitchen made last."""

    _conf: object = None

    @classmethod
    def configure(cls, conf):
        cls._conf = conf


class Gridworld:
    """A kitchen in which the second cook serves a soup in each step, where recipes are its own."""

    shape = (2, 1)

    def __init__(self, layout, **kwargs):
        self.recipe_config = {"layout": layout}
        Recipe.configure(self.recipe_config)

    from_layout_name = classmethod(lambda cls, layout, **kwargs: cls(layout, **kwargs))

    def get_standard_start_state(self):
        return types.SimpleNamespace(timestep=0)

    def get_state_transition(self, state, moves):
        told = {"sparse_reward_by_agent": [0, 20 if Recipe._conf is self.recipe_config else 0],
                "shaped_reward_by_agent": [3, 0], "event_infos": {"potting": [True, False]}}  # fmt: skip
        return types.SimpleNamespace(timestep=state.timestep + 1), told

    def lossless_state_encoding(self, state, horizon):
        return np.zeros((2, 2, 1, 26), np.int64)


def test_kitchens_in_one_process_have_their_own_recipes_and_tell_what_they_pay(monkeypatch) -> None:
    fake = types.SimpleNamespace(
        Recipe=Recipe, OvercookedGridworld=Gridworld, Action=types.SimpleNamespace(ALL_ACTIONS=[0] * 6)
    )
    monkeypatch.setattr(overcooked.importlib, "import_module", lambda name: fake)
    kitchens = [
        overcooked.env_creator(f"overcooked/{name}", horizon=2, shaping=0.5) for name in ("simple_o", "unident")
    ]
    for kitchen in kitchens:
        kitchen.reset(seed=1)
    for over in (False, True):
        for kitchen in kitchens:
            _, rewards, terminations, truncations, infos = kitchen.step(dict.fromkeys(kitchen.agents, 5))
            assert rewards == {"cook_0": 21.5, "cook_1": 20.0}
            assert not any(terminations.values()) and set(truncations.values()) == {over}
            assert infos["cook_0"].items() >= {"shaped_r": 3.0, "events": ["potting"]}.items()
            assert infos["cook_1"]["sparse_r"] == 20.0 and ("ep_sparse_r" in infos["cook_1"]) == over
    assert infos["cook_0"]["ep_shaped_r"] == 6.0 and infos["cook_1"]["ep_sparse_r"] == 40.0
