"""Settings of trainers: which of flags, file, family and trainer wins, and what is said of those that are wrong."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from cleanrl_demo.ppo import Config
from pufferlib import environments, registry
from pufferlib.cli import main
from pufferlib.errors import PlanError, RegistryError
from pufferlib.training import settings
from pufferlib.training.settings import algorithm_in, family_settings, from_command_line, read_settings, settle
from pufferlib.util.toml import checked, read_toml, to_toml

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
FAMILIES = """
[ppo."CartPole-*"]
num_envs = 99
gamma = 0.5
seed = 3
policy_kwargs = {hidden_size = 9}
env_kwargs = {sutton_barto_reward = true}

[ppo."CartPole-v1"]
num_envs = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and families of these tests' own."""
    (tmp_path / "families.toml").write_text(FAMILIES)
    monkeypatch.setattr(settings, "DEFAULTS", tmp_path / "families.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def config(words: str) -> Config:
    return from_command_line(Config, words.split())


# ---------------------------------------------------------------------------------------------------- who wins


def test_flags_go_before_a_file_before_a_family_before_the_trainer(folder, capsys):
    (folder / "my.toml").write_text("gamma = 0.6\nseed = 4\nclip = 0.7\n")
    settings = config("--env CartPole-v1 --config my.toml --seed 5 --clip 0.8")
    assert (settings.env, settings.seed, settings.clip, settings.gamma, settings.num_envs) == (
        "CartPole-v1",
        5,
        0.8,
        0.6,
        7,
    )
    assert settings.gae_lambda == Config().gae_lambda
    assert capsys.readouterr().out == (
        "settings of CartPole-*, CartPole-v1: num_envs=7, policy_kwargs.hidden_size=9, "
        "env_kwargs.sutton_barto_reward=True (--no-defaults leaves them out)\n"
    )
    assert config("--env CartPole-v1 --config my.toml --no-defaults") == Config(
        env="CartPole-v1", gamma=0.6, seed=4, clip=0.7
    )
    assert config("") == Config()
    assert capsys.readouterr().out == ""


def test_a_flag_wins_also_where_it_says_what_the_trainer_would(folder):
    (folder / "my.toml").write_text("gamma = 0.6\n")
    assert config(f"--env CartPole-v1 --config my.toml --gamma {Config.gamma}").gamma == Config.gamma
    assert config(f"--env CartPole-v1 --num-envs {Config.num_envs}").num_envs == Config.num_envs


def test_a_file_may_name_the_environment_and_so_its_family(folder):
    (folder / "my.toml").write_text('env = "CartPole-v1"\n')
    settings = config("--config my.toml")
    assert (settings.env, settings.num_envs) == ("CartPole-v1", 7)
    settings = config("--config my.toml --env ocean/squared")
    assert (settings.env, settings.num_envs, settings.env_kwargs) == ("ocean/squared", Config.num_envs, {})


def test_tables_are_merged_key_by_key(folder):
    (folder / "my.toml").write_text("[env_kwargs]\nkick = 1\n[policy_kwargs]\nhidden_size = 10\ndepth = 2\n")

    def parsed(words, defaults):  # as a command that has flags for tables
        flags = {"env": "CartPole-v1", "policy_kwargs": {"depth": 3}, "config": "my.toml", "defaults": True}
        return {**vars(Config(**defaults)), **flags}

    settings, _ = settle(Config, parsed, [])
    assert settings.env_kwargs == {"sutton_barto_reward": True, "kick": 1}
    assert settings.policy_kwargs == {"hidden_size": 10, "depth": 3}


def test_arguments_go_with_what_they_are_of(folder):
    (folder / "my.toml").write_text(
        'env = "CartPole-v1"\npolicy = "cnn"\n[env_kwargs]\nx = 1\n[policy_kwargs]\ny = 2\n'
    )
    assert config("--config my.toml").policy_kwargs == {"y": 2}  # the family's are for the default policy
    settings = config("--config my.toml --policy lstm --env ocean/squared")
    assert (settings.env_kwargs, settings.policy_kwargs) == ({}, {})
    (folder / "my.toml").write_text("[env_kwargs]\nx = 1\n")
    assert config("--config my.toml --env ocean/squared").env_kwargs == {"x": 1}  # which names no environment


@pytest.mark.parametrize(
    ("later", "left"),
    [
        ('policy = "lstm"', {}),
        ('policy = "lstm"\npolicy_kwargs = {depth = 2}', {"depth": 2}),
        (f'policy = "{Config.policy}"', {"hidden_size": 9}),
        ("gamma = 0.2", {"hidden_size": 9}),
    ],
)
def test_arguments_of_a_familys_policy_are_not_for_that_of_a_later_table(folder, later, left):
    (folder / "families.toml").write_text(f'{FAMILIES}\n[ppo."*-v1"]\n{later}\n')
    settings = config("--env CartPole-v1")
    assert settings.policy_kwargs == left
    assert settings.env_kwargs == {"sutton_barto_reward": True}


def test_a_run_can_be_done_again_from_its_folder(folder, capsys):
    first = Config(env="CartPole-v1", seed=8, gamma=0.1, batch_size=None, video_envs=(1, 2), env_kwargs={"a": [1]})
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text(json.dumps(dataclasses.asdict(first)))
    assert config("--config run --no-defaults") == config("--config run/config.json --no-defaults") == first
    again = config("--config run --num-envs 3")
    assert again == dataclasses.replace(
        first, num_envs=3, env_kwargs={"sutton_barto_reward": True, "a": [1]}, policy_kwargs={"hidden_size": 9}
    )


# --------------------------------------------------------------------------------------------------- what is wrong


@dataclass(frozen=True)
class Kinds:
    """One field of each kind."""

    count: int = 1
    share: float = 0.5
    name: str = "a"
    really: bool = False
    maybe: int | None = None
    several: tuple[int, ...] = ()
    one_of: Literal["up", "down"] = "up"
    table: Mapping[str, Any] = field(default_factory=dict)


def test_values_become_what_the_fields_are():
    values = dict(count=2, share=1, name="b", really=True, maybe=3, several=[1, 2], one_of="down", table={"x": [1]})
    settings = Kinds(**checked(values, Kinds, "here"))
    assert settings == Kinds(2, 1.0, "b", True, 3, (1, 2), "down", {"x": [1]})
    assert type(settings.share) is float
    settings = Kinds(**checked({"count": 1e5, "several": [1.0, 2]}, Kinds, "here"))
    assert (settings.count, settings.several) == (100_000, (1, 2)) and type(settings.count) is int
    assert checked({"maybe": None}, Kinds, "here") == {"maybe": None}


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("count", 1.5, "a whole number"),
        ("count", float("inf"), "a whole number"),
        ("count", True, "a whole number"),
        ("share", "1", "a number"),
        ("share", False, "a number"),
        ("name", 1, "a text"),
        ("really", 1, "true or false"),
        ("maybe", "x", "a whole number or null"),
        ("several", 1, "a list, each a whole number"),
        ("several", ["x"], "a list, each a whole number"),
        ("one_of", "left", "'up' or 'down'"),
        ("table", 1, "a table"),
    ],
)
def test_a_wrong_type_is_said_with_the_right_one(name, value, takes):
    with pytest.raises(PlanError, match=re.escape(f"here has {name}={value!r}; it takes {takes}")):
        checked({name: value}, Kinds, "here")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "gama = 1", "a.toml has gama, which is no setting; did you mean gamma?"),
        ("a.toml", "[env_kwarg]\nx = 1", "did you mean env_kwargs?"),
        ("a.toml", "zzz = 1", "a.toml has zzz, which is no setting; there are env, backend, num_envs"),
        ("a.toml", "seed = 1.5", "a.toml has seed=1.5; it takes a whole number"),
        ("a.toml", "seed = ", "a.toml is no TOML"),
        ("a.json", "{", "a.json is no JSON"),
        ("a.json", "[1]", "a.json holds no settings but a list"),
    ],
)
def test_a_wrong_file_is_said_in_a_sentence(name, text, says, folder, capsys):
    (folder / name).write_text(text)
    assert main(["train", "ocean/squared", "--config", name]) == 1
    output = capsys.readouterr()
    assert says in output.err and "Traceback" not in output.err


@pytest.mark.parametrize("name", ["none.toml", "none.json", "."])
def test_a_file_that_is_not_there(name):
    with pytest.raises(PlanError, match=r"cannot be read \(No such file or directory\); its keys are those of --help"):
        read_settings(name, Config)


# ------------------------------------------------------------------------------------------------------- families


def test_families_fit_the_trainer_and_the_environments_that_they_are_for(monkeypatch):
    monkeypatch.undo()
    known = read_toml(settings.DEFAULTS, "")
    assert set(known) == {
        *("ppo", "ppo_cuda", "ppo_fused", "ppo_lstm", "ppo_selfplay"),
        *("appo_ray", "sac", "td3", "qmix", "maddpg"),
    }
    of_families = {file.stem: read_toml(file, "") for file in environments.FOLDER.glob("*.toml")}
    assert set(of_families) <= set(environments.families())
    for algorithm, tables in [item for tables_of in (known, *of_families.values()) for item in tables_of.items()]:
        kind = importlib.import_module(f"cleanrl_demo.{algorithm}").Config
        for pattern, values in tables.items():
            kind(**checked(values, kind, pattern))
    cartpole = "*[Cc]art[Pp]ole*"
    ids = {"CartPole-v1": cartpole, "LunarLander-v3": "LunarLander*", "ALE/Pong-v5": "[aA]*/*",
           "Pendulum-v1": "Pendulum-*", "classic/cartpole": cartpole,
           "atari/Pong-v5": "[aA]*/*, atari/*"}  # fmt: skip
    for env, pattern in ids.items():
        assert registry.find(env)
        assert family_settings(env, Config)[0] == pattern
    assert family_settings("ocean/squared", Config)[0] == "ocean/*, ocean/squared"
    assert family_settings("ocean/squared", Config)[1]["total_steps"] > known["ppo"]["ocean/*"]["total_steps"]
    assert family_settings("tag/grid", Config) == ("", {})
    assert family_settings("CartPole-v1", type("Other", (Config,), {"algorithm": "other"})) == ("", {})
    with pytest.raises(RegistryError):
        family_settings("CartPol-v1", Config)


def test_the_command_has_them_too(folder, capsys):
    (folder / "my.toml").write_text('gamma = 0.6\nruns = "there"\n[env_kwargs]\nsutton_barto_reward = false\n')
    words = "--config my.toml --backend serial --total-steps 60 --rollout-length 4 --eval-episodes 2".split()
    assert main(["train", "CartPole-v1", *words]) == 0
    expected = "settings of CartPole-*, CartPole-v1: num_envs=7, seed=3, policy_kwargs.hidden_size=9 ("
    assert expected in capsys.readouterr().out
    (run,) = (folder / "there").iterdir()
    expected = json.loads((run / "config.json").read_text())
    assert (expected["gamma"], expected["num_envs"], expected["env"]) == (0.6, 7, "CartPole-v1")
    assert expected["policy_kwargs"] == {"hidden_size": 9} and expected["env_kwargs"] == {"sutton_barto_reward": False}
    assert main(["train", "CartPole-v1", *words, "--policy-kwargs", "depth=1"]) == 1
    assert "depth=1" in capsys.readouterr().err  # no policy has it, so it came through
    assert main(["train", "CartPole-v1", "--config", str(run), "--help"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"--gamma FLOAT +\(default: 0.6\)", output) and "usage: puffer train" in output


# -------------------------------------------------------------------------------------------------------- a sweep


@pytest.mark.slow
@pytest.mark.long
def test_the_example_of_a_sweep_prints_settings_that_can_be_read(folder):
    pytest.importorskip("optuna")
    words = "--num-trials 2 --num-seeds 2 --env ocean/squared --total-steps 500 --backend serial --num-envs 4".split()
    command = [sys.executable, str(ROOT / "examples" / "sweep.py"), *words, "--out", "best.toml"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert done.returncode == 0, done.stderr
    settings = config("--config best.toml")
    assert (settings.env, settings.num_envs, settings.total_steps) == ("ocean/squared", 4, 500)
    assert 1e-4 <= settings.learning_rate <= 1e-2
    assert (folder / "best.toml").read_text() in done.stdout
    assert to_toml({"learning_rate": settings.learning_rate}) in done.stdout


def test_a_file_may_name_the_trainer(folder):
    (folder / "my.toml").write_text('algorithm = "ppo_lstm"\ngamma = 0.5\n')
    assert algorithm_in("my.toml") == "ppo_lstm"
    assert read_settings("my.toml", Config) == {"gamma": 0.5}
    (folder / "other.toml").write_text("gamma = 0.5\n")
    assert algorithm_in("other.toml") is None
    small = ["--num-envs", "2", "--backend", "serial", "--total-steps", "100", "--eval-episodes", "1"]
    assert main(["train", "ocean/squared", "--config", "my.toml", *small]) == 0
    (run,) = (folder / "runs").iterdir()
    assert "__ppo_lstm__" in run.name and algorithm_in(run) == algorithm_in(run / "config.json") == "ppo_lstm"
    assert main(["train", "--config", str(run), "--seed", "4"]) == 0
    assert sum("__ppo_lstm__4__" in path.name for path in (folder / "runs").iterdir()) == 1


# ---------------------------------------------------------------------------------------------------- without tyro


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--num-envs 8 --track --no-defaults",
        "--num_envs=1e2 --seed 7 --total-steps 100_000",
        "--num-workers None --step-timeout 2 --reward-clip 0.5 --runs None",
        "--video-envs 0 2 --schedule cosine --policy 7",
        "--env other --config own.toml --gamma 0.5",
    ],
)
def test_flags_mean_the_same_without_tyro(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own.toml").write_text("num_envs = 3\nlearning_rate = 1\n")
    words = words.replace("other", "CartPole-v1")
    expected = config(words)
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert config(words) == expected
    assert {name: type(value) for name, value in vars(config(words)).items()} == {
        name: type(value) for name, value in vars(expected).items()
    }


def test_tables_are_pairs_without_tyro(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert config("--env-kwargs size 5 name a-b --policy-kwargs").env_kwargs == {"size": 5, "name": "a-b"}
    for words, error in (("--env-kwargs size", "--env-kwargs: expected pairs"), ("--nonsense 1", "--nonsense")):
        with pytest.raises(SystemExit):
            config(words)
        assert error in capsys.readouterr().err
    with pytest.raises(PlanError, match="the command line has gamma='high'; it takes a number"):
        config("--gamma high")
    with pytest.raises(SystemExit):
        config("--help")
    text = capsys.readouterr().out
    assert "--num-envs VALUE" in text and "--no-track" in text and "default: 0.99" in text
