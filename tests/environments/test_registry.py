"""What a name stands for, and what an unknown one is answered with."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cloudpickle
import gymnasium
import pytest
from gymnasium.error import DependencyNotInstalled

import pufferlib
from ocean.squared import Squared
from pufferlib import registry
from pufferlib.cli import main
from pufferlib.errors import MissingExtra, RegistryError

pytestmark = pytest.mark.beside

THIRD_PARTY = (
    ("tag/grid", "pettingzoo"),
    ("tag/continuous", "pettingzoo"),
    ("mpe/simple_tag_v3", "mpe2"),
    ("butterfly/knights_archers_zombies_v11", "pettingzoo"),
    ("magent/battle_v4", "magent2"),
    ("MiniGrid-Empty-8x8-v0", "minigrid"),
    ("ALE/Breakout-v5", "ale_py"),
    ("Foraging-8x8-2p-1f-v3", "lbforaging"),
)


class Maze(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, 0.0, True, False, {}


@pytest.fixture(params=["tests/Maze-v0", "CartPole-Maze-v0", "exit-Maze-v0"])  # as a family of others might be called
def maze_id(request):
    gymnasium.register(request.param, entry_point=Maze)
    yield request.param
    del gymnasium.registry[request.param]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's module on the search path."""
    (tmp_path / "users_game.py").write_text(
        "import gymnasium\n"
        "def make(size=3):\n    return ('game', size)\n"
        "class Nested:\n    make = staticmethod(make)\n"
        "number = 7\n"
        "gymnasium.register('Users-v0', entry_point='users_game:make')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "users_game"
    sys.modules.pop("users_game", None)
    gymnasium.registry.pop("Users-v0", None)


def in_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_every_listed_environment_is_found_under_its_own_name():
    for entry in registry.names():
        if "…" not in entry.name:
            assert registry.find(entry.name) == entry


@pytest.fixture
def ocean(tmp_path, monkeypatch):
    """An Ocean of no files yet, in place of ours."""
    folder = tmp_path / "ocean"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name in [name for name in sys.modules if name.partition(".")[0] == "ocean"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "ocean"]:
        del sys.modules[name]


def listed():
    entries = (entry for entry in registry.names() if entry.name.startswith("ocean/"))
    return [(entry.name, entry.description) for entry in entries]


def test_ocean_is_what_files_there_are(ocean):
    (ocean / "_helper.py").write_text("")
    (ocean / "two_words.py").write_text('"""Two words: a new one.\n\nMore.\n"""\nclass TwoWords:\n    pass\n')
    assert listed() == [("ocean/two_words", "Two words: a new one.")]
    assert registry.creator("ocean/two_words").__name__ == "TwoWords"


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_listed(ocean, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (ocean / "coin.py").write_text('"""Coin: a new one."""\nx = [/b\n')
    (ocean / "die.py").write_text('"""Die: a newer one."""\nclass Die:\n    pass\n')
    (ocean / "latin.py").write_bytes('"""Lat\xedn: an old one."""\n'.encode("latin-1"))
    descriptions = dict(listed())
    assert descriptions["ocean/die"] == "Die: a newer one."
    assert descriptions["ocean/coin"].startswith("ocean/coin.py cannot be read: SyntaxError: ")
    assert descriptions["ocean/coin"].endswith("(coin.py, line 2)")
    assert descriptions["ocean/latin"].startswith("ocean/latin.py cannot be read: UnicodeDecodeError: ")
    assert registry.creator("ocean/die").__name__ == "Die"
    assert main(["envs"]) == 0
    assert "ocean/coin.py cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Coin\n", r"ocean/coin\.py cannot be imported: SyntaxError: .*\(coin\.py, line 1\)"),
        ("\n\n1 / 0\n", r"ocean/coin\.py cannot be imported: ZeroDivisionError: division by zero \(line 3\)"),
        ("import swords\n", r"ocean/coin\.py cannot be imported: ModuleNotFoundError: No module .*swords.* \(line 1\)"),
        ("import ocean.no\n", r"ocean/coin\.py cannot be imported: ModuleNotFoundError: No module named 'ocean\.no'"),
        (
            "class Coins:\n    pass\n",
            "ocean/coin.py has no class Coin, which its name stands for, but Coins; rename one",
        ),
        ("", "ocean/coin.py has no class Coin, which its name stands for, but none at all; rename one of them"),
    ],
)
def test_a_file_that_gives_no_environment_is_named(ocean, text, says):
    (ocean / "coin.py").write_text(text)
    with pytest.raises(RegistryError, match=f'"ocean/coin": {says}'):
        registry.creator("ocean/coin")


def test_ocean_names_its_classes():
    assert registry.creator("ocean/squared") is Squared


def test_listing_imports_nothing():
    code = (
        "import sys; from pufferlib import registry; before = set(sys.modules)\n"
        "entries = registry.names(); [registry.installed(entry) for entry in entries]\n"
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    assert in_new_process(code) == "{'pufferlib'}"  # the files that say what families there are


@pytest.mark.parametrize(
    ("name", "package"),
    [
        pytest.param(*row, marks=[] if row[0] in ("tag/grid", "MiniGrid-Empty-8x8-v0") else [pytest.mark.long])
        for row in THIRD_PARTY
    ],
)
def test_packages_of_others_are_imported_only_where_the_environment_is_made(name, package):
    code = (
        "import sys; from pufferlib import registry\n"
        f"env_creator = registry.creator({name!r}); assert {package!r} not in sys.modules\n"
        f"env_creator().close(); assert {package!r} in sys.modules"
    )
    in_new_process(code)


@pytest.mark.parametrize(("name", "package"), THIRD_PARTY)
def test_a_missing_package_is_answered_with_the_command(name, package, monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda wanted: None if wanted == package else find_spec(wanted))
    monkeypatch.delitem(sys.modules, package, raising=False)
    entry = registry.find(name)
    assert not registry.installed(entry)
    with pytest.raises(MissingExtra, match=rf'"{name}" needs {package}: pip install "pufferlib\[{entry.extra}\]"'):
        registry.creator(name)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("MiniGrid-Empty-8x8-v0", "pygame", "minigrid"),
        ("mpe/simple_tag_v3", "pygame", "mpe"),
        ("LunarLander-v3", "Box2D", "box2d"),
    ],
)
def test_a_package_that_is_missing_only_where_it_is_made_is_answered_so_too(name, package, extra):
    code = (
        "import sys; from pufferlib import registry, errors\n"
        f"sys.modules[{package!r}] = None; env_creator = registry.creator({name!r})\n"
        "try: env_creator()\n"
        "except errors.MissingExtra as error: print(error)"
    )
    assert in_new_process(code) == f'"{name}": {package} is not installed; run `pip install "pufferlib[{extra}]"`'


@pytest.mark.parametrize(
    ("env", "error", "says"),
    [
        ("CartPole-v1", DependencyNotInstalled("no a, run `x`"), 'no a; run `pip install "pufferlib[classic]"`'),
        ("Acrobot-v1", ModuleNotFoundError("no", name="a.b"),
         'a is not installed; run `pip install "pufferlib[classic]"`'),
        ("Ant-v5", DependencyNotInstalled("no b, run `x`"), 'no b; run `pip install "pufferlib[mujoco]"`'),
        ("Xonotic-v0", DependencyNotInstalled("MuJoCo is not installed, run `x`"), "MuJoCo is not installed; run `x`"),
        ("of_mine:make", ModuleNotFoundError("no", name="cv2"),
         "cv2 is not installed; run `pip install opencv-python-headless`"),
        ("Fetched:make", ModuleNotFoundError("no", name="cv2"),
         "cv2 is not installed; run `pip install opencv-python-headless`"),
        (Maze, DependencyNotInstalled("there is no sound"), "there is no sound"),
    ],
)  # fmt: skip
def test_what_to_install_follows_from_the_environments_name_or_the_error(env, error, says):
    assert str(registry.missing(error, env)) == f'"{env if isinstance(env, str) else "Maze"}": {says}'
    assert registry.missing(ImportError("half of it"), env) is None
    assert registry.missing(ModuleNotFoundError("no", name="numpy.swords"), env) is None


def test_no_package_is_named_to_install_for_a_module_that_is_none_of_those_we_know():
    error = registry.missing(ModuleNotFoundError("no", name="wepons.swords"), "of_mine:make")
    assert isinstance(error, RegistryError)
    where = f"no module of that name is installed or found from the working folder, {Path.cwd()}"
    assert str(error) == f'"of_mine:make" imports wepons, and {where}'


def test_what_pip_installs_is_of_our_extras():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    of_gymnasiums_extras = {"pygame", "box2d"}
    assert all(f'"{name}' in project for name in set(registry._PIP_NAMES.values()) - of_gymnasiums_extras)


def test_missing_families_are_still_listed(monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda wanted: None)
    assert "mpe/…" in {entry.name for entry in registry.names()}


def test_gymnasium_ids():
    for name in ("CartPole-v1", "gymnasium.envs:CartPole-v1"):
        with registry.creator(name)(render_mode="rgb_array") as env:
            assert env.spec.id == "CartPole-v1"
            assert env.render_mode == "rgb_array"


def test_what_the_users_script_registered_can_be_made_elsewhere(maze_id, tmp_path):
    pickled = tmp_path / "creator.pickle"
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        pickled.write_bytes(cloudpickle.dumps(registry.creator(maze_id)))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    code = f"import pickle; print(pickle.load(open({str(pickled)!r}, 'rb'))(size=4).unwrapped.size)"
    assert in_new_process(code) == "4"


def test_callables_of_the_user(module):
    def env_creator():
        return None

    assert registry.creator(env_creator) is env_creator
    assert registry.creator(f"{module}:make")(size=5) == ("game", 5)
    assert registry.creator(f"{module}:Nested.make")() == ("game", 3)
    assert registry.creator(f"{module}:Users-v0").spec.id == "Users-v0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ocean/square", 'no environment is called "ocean/square"; did you mean ocean/squared'),
        ("squared", "did you mean ocean/squared"),
        ("Cartpole-v1", "did you mean CartPole-v1"),
        ("CartPole-v9", "did you mean CartPole-v1"),
        ("mpe/simple_tag_v9", "did you mean mpe/simple_tag_v3"),
        ("MiniGrid-Emty-8x8-v0", "did you mean MiniGrid-Empty-8x8-v0"),
        ("minigrid/Empty-8x8-v0", "did you mean MiniGrid-Empty-8x8-v0"),
        ("ALE/Brekout-v5", "ALE/Breakout-v5"),
        ("breakout", "atari/Breakout-v5"),
        ("nethack-score", "did you mean NetHack… or nethack/…?"),
        ("vizdoomdeathmatch", "did you mean Vizdoom… or doom/…?"),
        ("atari/Combat-v6", 'no environment is called "atari/Combat-v6"'),
        ("nothing like it", "; `puffer envs` lists all, and module:callable names one of your own"),
        ("no_such_module:make", '"no_such_module:make": there is no module no_such_module on the module search path'),
        ("users_game.inner:make", "there is no module users_game.inner"),
        ("users_game:mak", "users_game has no mak; did you mean make"),
        ("users_game:number", "is no callable but a int"),
        ("users_game:Users-v9", 'Gymnasium knows no environment "Users-v9"; did you mean Users-v0'),
        (7, "7 is no environment; pass a callable that makes one, or a name"),
        (gymnasium.Env(), "pass a function that makes a new one each time, such as Env, or lambda: Env(…)"),
        ("games/a_game.py:Maze", "names a file; name its module: a_game:Maze, in the folder games"),
        ("a_game.py:Maze", '"a_game.py:Maze" names a file, and there is no such file; name its module: a_game:Maze'),
        ("a-game.py", "such file; name its module: a_game:function, once the file is called a_game.py"),
    ],
)
def test_a_wrong_name_is_answered_with_the_way_out(name, message, module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(gymnasium.registry, "Squared-v0", raising=False)  # of a page whose program ran in this process
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "a_game.py").write_text("")
    with pytest.raises(RegistryError) as raised:
        registry.creator(name)
    assert message in str(raised.value)


def test_what_a_family_does_not_list_its_package_is_asked_for():
    for name in ("MiniGrid-WFC-MazeSimple-v0", "atari/TicTacToe3D-v5", "ALE/TicTacToe3D-v5"):
        assert registry.find(name).name == name
    assert {"atari/Breakout-v5", "ALE/Breakout-v5"} <= {entry.name for entry in registry.names()}


def test_a_wrong_name_of_a_family_that_lists_none_is_answered_where_it_is_made():
    env_creator = registry.creator("Foraging-8x8-3p-3q-v3")
    with pytest.raises(RegistryError, match="did you mean Foraging-8x8-3p-3f-v3"):
        env_creator()


def test_installed_is_what_has_all_of_its_extra(monkeypatch):
    hidden = {"chess"}
    monkeypatch.setattr(registry, "_is_there", lambda package: package not in hidden)
    entry = registry.find("pettingzoo-classic/connect_four_v3")
    assert not registry.installed(entry)
    assert registry.creator(entry.name) is not None  # which needs no chess
    hidden.clear()
    assert registry.installed(entry)


def test_a_module_that_cannot_import_what_it_needs_says_so(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        registry.creator("needs_more:make")


@pytest.mark.parametrize("name", ["MiniGrid-Empty-8x8-v0", "BabyAI-BossLevel-v0"])
def test_missions_need_no_bound_from_the_user(name):
    with pufferlib.make(name, num_envs=2, seed=1) as vec:
        observations, _ = vec.reset()
        assert vec.observation_layout.decode(observations[0])["mission"].split()
