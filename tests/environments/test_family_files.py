"""What the files of families do with environments of others, of which there are fakes here."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import os
import types
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import pufferlib
from pufferlib import environments
from pufferlib.environments import _functional, craftax, mario, overcooked, retro
from pufferlib.environments._pictures import GrayPictures
from pufferlib.environments._recreated import Recreated
from pufferlib.environments.mo_gymnasium import Weighted
from pufferlib.errors import PlanError, RegistryError, SpaceError

pytestmark = pytest.mark.beside


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
        picture, *outcome = env.step(np.zeros(2, np.int8))
        assert outcome == [reward, frame == 10, False, {"frame": frame}]
        assert env.observation_space.contains(picture) and np.all(picture == frame)


@pytest.mark.extras
def test_sticky_actions_are_those_before_and_follow_from_the_seed_of_the_first_reset() -> None:
    assert played(0.0, 1) == [(0, 0)] * 4 + [(0, 1)] * 4 + [(1, 0)] * 2
    assert played(1.0, 1) == [(0, 0)] * 5 + [(0, 1)] * 4 + [(1, 0)]
    env = GrayPictures(Frames(), sticky=0.5)
    first = [played(0.5, seed, env) for seed in (3, *[None] * 20)]
    assert first == [played(0.5, seed, env) for seed in (3, *[None] * 20)]
    assert len({tuple(actions) for actions in first}) == 4


@pytest.mark.extras
def test_a_copy_of_gray_pictures_plays_on_by_itself() -> None:
    env = GrayPictures(Frames(), sticky=0.5)
    env.reset(seed=1)
    env.step(np.ones(2, np.int8))
    other = copy.deepcopy(env)
    steps = [copied.step(np.zeros(2, np.int8)) for copied in (env, other)]
    assert np.array_equal(steps[0][0], steps[1][0]) and steps[0][1:] == steps[1][1:]
    assert env.unwrapped.frame == other.unwrapped.frame == 8


def test_gray_pictures_are_made_of_pictures() -> None:
    env = Frames()
    env.observation_space = spaces.Box(0, 255, (128,), np.uint8)
    closed: list[bool] = []
    env.close = lambda: closed.append(True)  # type: ignore[method-assign]
    with pytest.raises(SpaceError, match=r"got Box\(0, 255, \(128,\), uint8\); use the raw environment"):
        GrayPictures(env)
    assert closed == [True]


def test_a_movement_that_is_none_is_answered_with_those_that_are() -> None:
    with pytest.raises(PlanError, match="movement='all' is not one of right_only, simple, complex"):
        mario.env_creator("mario/SuperMarioBros-v0", movement="all")


def test_a_misspelt_choice_of_buttons_is_not_taken_for_all(monkeypatch) -> None:
    calls: list[Any] = []

    def make(game: str, **kwargs: Any) -> gymnasium.Env:
        calls.append(kwargs)
        return Frames()

    names = {"State": ("DEFAULT",), "Actions": ("ALL", "DISCRETE"), "Observations": ("IMAGE",)}
    enumerations = {
        kind: types.SimpleNamespace(__members__={name: (kind, name) for name in names[kind]}) for kind in names
    }
    monkeypatch.setattr(retro.importlib, "import_module", lambda name: types.SimpleNamespace(make=make, **enumerations))
    retro.env_creator("stable-retro/Game", use_restricted_actions="DISCRETE", state="Level2")
    assert calls == [{"render_mode": None, "use_restricted_actions": ("Actions", "DISCRETE"), "state": "Level2"}]
    with pytest.raises((AssertionError, ValueError), match="max_episode_steps"):  # Gymnasium's, by version
        retro.env_creator("stable-retro/Game", max_episode_steps=0)
    with pytest.raises(PlanError, match="use_restricted_actions='discrete' is not one of ALL, DISCRETE"):
        retro.env_creator("stable-retro/Game", use_restricted_actions="discrete")


@pytest.mark.parametrize(
    ("error", "raised", "way_out"),
    [
        (
            RuntimeError("Cannot create multiple emulator instances per process, make sure to call env.close()"),
            PlanError,
            "num_workers=num_envs",
        ),
        (
            FileNotFoundError("No romfiles found for game: Game"),
            RegistryError,
            "No romfiles found for game: Game; `python -m stable_retro.import FOLDER` imports",
        ),
    ],
)
def test_a_second_emulator_in_a_process_and_a_rom_that_lacks_are_answered_with_the_way_out(
    error: Exception, raised: type[Exception], way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(game: str, **kwargs: object) -> None:
        raise error

    enumerations = {name: types.SimpleNamespace(__members__={}) for name in retro.ENUMERATIONS.values()}
    fake = types.SimpleNamespace(make=make, **enumerations)
    monkeypatch.setattr(retro.importlib, "import_module", lambda name: fake)
    with pytest.raises(raised, match=rf'^"retro/Game": .*{way_out}'):
        retro.env_creator("retro/Game")


@pytest.mark.parametrize("draws", [True, False])
def test_what_resets_leave_something_of_is_recreated_for_a_second_seed(draws: bool) -> None:
    created: list[gymnasium.Env] = []
    seeds: list[int | None] = []

    class Task(Frames):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    env = Recreated(lambda: created.append(Task()) or created[-1], draws)
    for _ in range(2):
        for seed in (5, None, None):
            env.reset(seed=seed)
    assert len(created) == 2 and env.unwrapped is created[1]
    assert seeds[:3] == seeds[3:]
    assert (None not in seeds and len(set(seeds)) == 3) if draws else seeds[:3] == [5, None, None]


def test_a_second_seed_recreates_doom(asked: dict[str, Any]) -> None:
    for name in ("VizdoomBasic-v1", "doom/Basic-v1"):
        env = environments.module("vizdoom").env_creator(name)
        env.reset(seed=1)
        first = env.unwrapped
        env.reset()
        assert env.unwrapped is first
        env.reset(seed=1)
        assert env.unwrapped is not first


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
        info = {"sparse_reward_by_agent": [0, 20 if Recipe._conf is self.recipe_config else 0],
                "shaped_reward_by_agent": [3, 0], "event_infos": {"potting": [True, False]}}  # fmt: skip
        return types.SimpleNamespace(timestep=state.timestep + 1), info

    def state_string(self, state):
        return "own" if Recipe._conf is self.recipe_config else "another's"

    def lossless_state_encoding(self, state, horizon):
        return np.zeros((2, 2, 1, 26), np.int64)


def test_kitchens_in_one_process_have_their_own_recipes_and_report_what_they_pay(monkeypatch) -> None:
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
    assert [kitchen.render() for kitchen in kitchens] == ["own", "own"]


class FakeDoom(gymnasium.Env[Any, Any]):
    """What ViZDoom hands over, in a picture of random pixels."""

    observation_space = spaces.Dict(
        screen=spaces.Box(0, 255, (120, 160, 3), np.uint8),
        automap=spaces.Box(0, 255, (120, 160, 3), np.uint8),
        gamevariables=spaces.Box(-3e38, 3e38, (2,), np.float32),
    )
    action_space = spaces.Dict(binary=spaces.Discrete(3), continuous=spaces.Box(-3e38, 3e38, (2,), np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.seen: dict[str, Any] = self.observation_space.sample()
        return self.seen, {}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Return what families ask Gymnasium for: the arguments by the last id; every environment is a ``FakeDoom``."""
    monkeypatch.chdir(tmp_path)  # where Doom makes a folder
    asked: dict[str, Any] = {}

    def from_gymnasium(family: Any, name: str, **kwargs: Any) -> Any:
        asked.update(name=name, kwargs=kwargs)
        return FakeDoom()

    for stem in ("vizdoom", "nethack"):
        monkeypatch.setattr(environments.module(stem), "from_gymnasium", from_gymnasium)
    return asked


@pytest.mark.parametrize("name", ["VizdoomDeathmatch-v1", "doom/Deathmatch-v1"])
def test_doom_shares_no_file_of_settings(name: str, asked: dict[str, Any]) -> None:
    environments.module("vizdoom").env_creator(name)
    assert asked["name"] == "VizdoomDeathmatch-v1"
    assert asked["kwargs"]["doom_config_path"] == os.devnull


def test_dooms_folder_is_there_before_two_of_them_make_it(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        environments.module("vizdoom").env_creator("doom/Deathmatch-v1")
        assert os.listdir() == ["_vizdoom"]
    monkeypatch.chdir(tmp_path / "_vizdoom")
    os.rmdir(tmp_path / "_vizdoom")  # then nothing can be made there, as Doom itself says
    environments.module("vizdoom").env_creator("doom/Deathmatch-v1")


def test_doom_in_small_pictures(asked: dict[str, Any]) -> None:
    env_creator = environments.module("vizdoom").env_creator
    env = env_creator("doom/Deathmatch-v1")
    assert (asked["kwargs"]["frame_skip"], asked["kwargs"]["screen_resolution"]) == (4, "RES_160X120")
    seen, _ = env.reset(seed=1)
    screen = env.unwrapped.seen["screen"]
    expected = np.floor(screen.reshape(60, 2, 80, 2, 3).mean((1, 3)))
    assert seen in env.observation_space and seen.dtype == np.uint8 and np.array_equal(seen, expected)
    assert env.action_space["continuous"] == spaces.Box(-12.5, 12.5, (2,), np.float32)
    assert env.action_space["binary"] == spaces.Discrete(3)
    env = env_creator("doom/Deathmatch-v1", game_variables=True, frame_skip=2)
    both, _ = env.reset(seed=1)
    assert asked["kwargs"]["frame_skip"] == 2
    assert both in env.observation_space and set(both) == {"screen", "gamevariables"}
    assert np.array_equal(both["screen"], expected)
    assert np.array_equal(both["gamevariables"], env.unwrapped.seen["gamevariables"])


def test_doom_in_pictures_of_odd_size(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    odd = spaces.Dict(screen=spaces.Box(0, 255, (125, 201, 3), np.uint8))
    monkeypatch.setattr(FakeDoom, "observation_space", odd)
    env = environments.module("vizdoom").env_creator("doom/Basic-v1", screen_resolution="RES_200X125")
    seen, _ = env.reset(seed=1)
    assert seen.shape == (62, 100, 3) and seen in env.observation_space


def test_nethack_by_its_second_name_reads_less(asked: dict[str, Any]) -> None:
    nethack = environments.module("nethack")
    nethack.env_creator("nethack/Score-v0", max_episode_steps=9)
    assert asked == {"name": "NetHackScore-v0", "kwargs": {"observation_keys": nethack.KEYS, "max_episode_steps": 9}}
    nethack.env_creator("nethack/Score-v0", observation_keys=("blstats",))
    assert asked["kwargs"] == {"observation_keys": ("blstats",)}
    nethack.env_creator("NetHackScore-v0")
    assert asked["kwargs"] == {}


class Treasure(gymnasium.Env[Any, Any]):
    """Rewards of two objectives, in an array that is written into again."""

    observation_space = action_space = spaces.Discrete(2)
    reward_space = spaces.Box(-1, 9, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.rewards = np.zeros(2, np.float32)
        return 0, {}

    def step(self, action: Any) -> tuple[int, Any, bool, bool, dict[str, Any]]:
        self.rewards += (3, -1)
        return 1, self.rewards, False, False, {}


@pytest.mark.parametrize(("weights", "rewards"), [(None, [2, 4]), ((0.5, 1), [0.5, 1])])
def test_objectives_are_weighted_and_none_is_lost(weights: Any, rewards: list[float]) -> None:
    with pufferlib.make(lambda: Weighted(Treasure(), weights), num_envs=2) as vec:
        vec.reset()
        steps = [vec.step(np.zeros(2, np.int64)) for _ in rewards]
    assert [outcome[1].tolist() for outcome in steps] == [[reward] * 2 for reward in rewards]
    for nth, outcome in enumerate(steps, 1):
        assert [info["rewards"].tolist() for info in outcome[4]] == [[3 * nth, -nth]] * 2


def test_as_many_weights_as_objectives() -> None:
    with pytest.raises(SpaceError, match=r"weights=\(1,\), but there are 2 objectives"):
        Weighted(Treasure(), (1,))


@pytest.mark.parametrize(("parent", "platforms"), [(None, None), (object(), "cpu")])
def test_a_worker_has_jax_on_the_cpu_alone(parent: Any, platforms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "")  # so that it is taken back
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    _functional.load("json")
    assert os.environ.get("JAX_PLATFORMS") == platforms


def functional(**kwargs: Any) -> _functional.Functional:
    functions = _functional.Compiled(lambda *arguments: None, lambda *arguments: None)
    return _functional.Functional(functions, spaces.Discrete(2), spaces.Discrete(2), **kwargs)


def test_what_can_be_drawn_says_so_before_it_is_asked_for_and_is_drawn_on_request_only() -> None:
    """Films are made of what ``metadata`` has, of an environment made without a mode."""
    for mode, picture in ((None, None), ("rgb_array", [[1]])):
        env = functional(picture=lambda state: [[state]], render_mode=mode)
        env._state = 1
        assert env.metadata["render_modes"] == ["rgb_array"]
        assert (env.render() if picture is None else env.render().tolist()) == picture
    for kwargs in ({"render_mode": "human", "picture": str}, {"render_mode": "rgb_array"}):
        with pytest.raises(PlanError, match=rf"render_mode='{kwargs['render_mode']}' is not one of \["):
            functional(**kwargs)


def test_copies_of_what_is_compiled_share_it() -> None:
    env = functional()
    other = copy.deepcopy(env)
    assert other._functions is env._functions and other.observation_space is not env.observation_space


def test_alike_arguments_share_what_is_compiled_and_lists_are_arguments_too() -> None:
    parts = _functional.shared(lambda name, items: [name, items])
    assert parts("a", (("b", 1),)) is parts("a", (("b", 1),)) is not parts("a", (("b", 2),))
    assert parts("a", (("b", [1]),)) == ["a", (("b", [1]),)]


class Older(NamedTuple):
    """Of gymnax's form before 1.0: whether a state ends its episode, whatever the kind; state: (time, lost)."""

    limit: str | None

    def is_terminal(self, state: Any, params: Any) -> Any:
        late = self.limit is not None and state[0] >= getattr(params, self.limit)
        return np.bool_(late or state[1])


@pytest.mark.parametrize("limit", ["max_timesteps", "max_steps_in_episode", None])
def test_ends_of_one_kind_are_distinguished_by_the_limit_of_time(limit: str | None) -> None:
    params = dataclasses.make_dataclass("Params", [(limit or "gravity", int)])(5)
    env = Older(limit)
    for state in ((4, False), (4, True), (5, False), (5, True)):
        done = env.is_terminal(state, params)
        late = limit is not None and state == (5, False)
        assert _functional.ends(env, state, done, params) == (state[1], late)


def test_what_craftax_keeps_is_whole_or_not_there(tmp_path: Path) -> None:
    file, seen = tmp_path / "textures", []

    def write(path: Any, data: str) -> None:
        Path(path).write_text(data[:2])
        seen.append(file.exists())
        Path(path).write_text(data)

    util = types.SimpleNamespace(save_compressed_pickle=write)
    craftax._keep(util, str(file), "pixels")
    assert (file.read_text(), seen) == ("pixels", [False])
    craftax._keep(util, str(tmp_path / "no_folder" / "textures"), "pixels")
    assert os.listdir(tmp_path) == ["textures"]
