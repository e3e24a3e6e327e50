"""Families of environments: each has an extra and names of its own, and the table of them says what their files say.

`make test-envs` plays them, each where it is installed; test_real_envs.py plays those that [dev] has, except what is
made here of Atari's games and of pictures.
"""

from __future__ import annotations

import dataclasses
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import check_family
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from oracles import Tape

from cleanrl_demo.ppo import Config
from pufferlib import environments, registry
from pufferlib.environments._pictures import small_gray
from pufferlib.errors import RegistryError
from pufferlib.training.settings import family_settings

pytestmark = pytest.mark.beside

FAMILIES = environments.families()


def test_the_page_has_the_table_that_the_results_make() -> None:
    page = check_family.PAGE.read_text()
    assert check_family.with_table(page) == page


def test_every_result_is_of_a_family() -> None:
    assert {file.stem for file in check_family.RESULTS.glob("*.json")} <= set(FAMILIES)


@pytest.mark.parametrize("stem", [file.stem for file in sorted(check_family.RESULTS.glob("*.json"))])
def test_fast_environments_were_played_on_the_pool_until_episodes_ended(stem: str) -> None:
    results = json.loads((check_family.RESULTS / f"{stem}.json").read_text())
    for entry in results.get("environments", ()):
        if "steps_per_s" in entry and max(entry["steps_per_s"].values()) > 1000:
            pool = entry["compared"]["pool"]
            assert pool["steps"] >= 1000 and pool["episodes"] > 0, entry["name"]


@pytest.mark.parametrize("backend", check_family.BACKENDS)
def test_who_ends_no_episode_proves_too_little(backend: str, monkeypatch) -> None:
    monkeypatch.setattr(check_family, "BACKENDS", {backend: check_family.BACKENDS[backend]})
    with pytest.raises(AssertionError, match=f"no episode ended in .* steps on {backend}"):
        check_family.compared(environments.Example("Pendulum-v1"), 12)
    compared = check_family.compared(environments.Example("Pendulum-v1", {"max_episode_steps": 4}), 24)["compared"]
    assert compared[backend]["steps"] >= 24 and compared[backend]["episodes"] > 0


def test_speeds_are_kept_with_their_machine_if_all_are_there(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(check_family, "RESULTS", tmp_path)
    monkeypatch.setattr(check_family, "compared", lambda example: {"exact": True})
    monkeypatch.setattr(check_family, "measured", lambda example: {"steps_per_s": {"serial": 2.0}, "pool_plan": {}})
    speed = {"steps_per_s": {"serial": 1.0}, "pool_plan": {"num_envs": 8}}
    names = [example.name for example in FAMILIES["classic"].examples]
    for known, keeps in ((names, True), (names[1:], False)):
        before = {"machine": "another", "environments": [{"name": name, "exact": False, **speed} for name in known]}
        (tmp_path / "classic.json").write_text(json.dumps(before))
        results = check_family.check("classic", keep_speeds=True)
        assert [entry["exact"] for entry in results["environments"]] == [True] * len(names)
        assert [entry["steps_per_s"]["serial"] for entry in results["environments"]] == [1.0 if keeps else 2.0] * len(
            names
        )
        assert (results["machine"] == "another") is keeps


@pytest.mark.parametrize("stem", FAMILIES)
def test_each_family_has_an_extra_and_names_of_its_own(stem: str) -> None:
    family = FAMILIES[stem]
    assert family.extra in check_family.extras()
    for example in family.examples:
        match = registry.find(example.name)
        assert (match.family, match.extra) == (stem, family.extra)
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
def test_a_family_says_where_its_names_are_listed(stem: str) -> None:
    start = FAMILIES[stem].names[0].removesuffix("*")
    with pytest.raises(RegistryError, match=f'called "{start}no_game"; `puffer envs {start}` lists'):
        environments.module(stem).env_creator(f"{start}no_game")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize(("length", "num_steps"), [(20, 50), (30, 150)])
def test_preprocessed_games_are_emulated_exactly(length: int, num_steps: int) -> None:
    example = dataclasses.replace(FAMILIES["atari"].examples[0], env_kwargs={"max_episode_steps": length})
    assert check_family.compared(example, num_steps)["observations"] == "Box(0, 255, (84, 84), uint8)"


@pytest.mark.slow
@pytest.mark.extras
def test_of_what_a_process_can_have_one_oracle_and_rows_are_each_in_a_process_of_their_own(monkeypatch) -> None:
    monkeypatch.setattr(check_family, "alone", lambda example: True)
    result = check_family.compared(environments.Example("CartPole-v1"), 60)
    assert result["exact"] and result["compared"]["pool"]["episodes"] > 0


class Learned(gymnasium.Env[Any, Any]):
    """Shows what its seed draws, or, remembering, what all seeds before it have drawn, too."""

    observation_space = action_space = spaces.Discrete(1000)

    def __init__(self, remembers: bool) -> None:
        self.remembers, self.total = remembers, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.total = self.total * self.remembers + int(self.np_random.integers(300))
        return self.total % 1000, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self.total % 1000, 0.0, bool(action % 2), False, {}


@pytest.mark.parametrize("remembers", [False, True])
def test_who_remembers_what_was_before_a_seed_does_not_begin_again(remembers: bool) -> None:
    tape = Tape(Learned(remembers), seed=3)
    assert tape.repeats(20) is not remembers


@pytest.mark.slow
@pytest.mark.extras
def test_pictures_of_teams_are_gray_and_small() -> None:
    """And show what the raw ones show; what is no picture stays as it is."""
    example = environments.Example("butterfly-gray/cooperative_pong_v6", {"max_cycles": 8})
    assert check_family.compared(example, 36)["observations"] == "Box(0, 255, (84, 84), uint8)"
    raw, gray = (registry.creator(f"{start}/cooperative_pong_v6")() for start in ("butterfly", "butterfly-gray"))
    pictures, small = (env.reset(seed=3)[0] for env in (raw, gray))
    for agent, picture in pictures.items():
        assert np.array_equal(small[agent], small_gray(picture))  # there is one way to make them
        luma = picture @ np.array([0.299, 0.587, 0.114])
        for rows, cells in zip(np.array_split(luma, 4), np.array_split(small[agent], 4), strict=True):
            assert abs(rows.mean() - cells.mean()) < 1
    env = registry.creator("butterfly-gray/knights_archers_zombies_v11")()
    assert env.observation_space("archer_0").shape == env.reset(seed=3)[0]["archer_0"].shape == (27, 5)


@pytest.mark.extras
def test_zombies_come_as_before_after_a_second_reset_with_a_seed() -> None:
    env = registry.creator("butterfly/knights_archers_zombies_v11")(spawn_delay=4, max_cycles=12)

    def play(seed: int | None, num_steps: int) -> list[float]:
        seen = [env.reset(seed=seed)[0]]
        seen += [env.step(dict.fromkeys(env.agents, 5))[0] for _ in range(num_steps)]
        return [float(observations["archer_0"].sum()) for observations in seen]

    first = play(1, 10)
    assert len(set(first)) > 1
    play(None, 7)  # which ends in between two zombies
    assert play(1, 10) == first
