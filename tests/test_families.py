"""Families of environments: each has an extra and names of its own, and the table of them says what their files say.

What plays them is `make test-envs`, each where it is installed; tests/test_real_envs.py plays those that [dev] has, but
for what is made here of Atari's games.
"""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase

import check_family
import pytest

from cleanrl_demo.ppo import Config
from cleanrl_demo.settings import family_settings
from pufferlib import environments, registry
from pufferlib.errors import RegistryError

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
