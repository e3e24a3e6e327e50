"""The command `puffer`: what it prints, what it returns, and that its errors are sentences with something to type."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import running
from timing_tools import stats_of

import pufferlib
from pufferlib import environments
from pufferlib.cli import main, options, parsing
from pufferlib.cli.options import Autotune, Wrap, typed
from pufferlib.errors import MissingExtra, PlanError
from pufferlib.testing import CHECKS
from pufferlib.tuning.bench import Speed, compare_backends, profile_text, right_one, verdict

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
GAME = """
import random
import gymnasium
from gymnasium.spaces import Box, Discrete, Sequence, Dict

class Game(gymnasium.Env):
    action_space = Discrete(2)

    def __init__(self, length=5, title="", words=False):
        self.length = length
        self.observation_space = Dict({"words": Sequence(Discrete(3))}) if words else Discrete(99)
        print(f"made {length} {title!r}")

    def observe(self):
        return self.count if isinstance(self.observation_space, Discrete) else {"words": (1, 2)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = int(self.np_random.integers(50))
        self.tick = 0
        return self.observe(), {}

    def step(self, action):
        self.tick += 1
        return self.observe(), float(action), False, self.tick == self.length, {}

class Lucky(Game):
    def step(self, action):
        self.count = random.randrange(50)
        return super().step(action)

class Broken(Game):
    def step(self, action):
        raise KeyError("sword")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a game in it; wide enough a terminal that no line breaks."""
    (tmp_path / "a_game.py").write_text(GAME)
    (tmp_path / "a_broken_game.py").write_text("import not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("a_game", "a_broken_game"):
        sys.modules.pop(name, None)
    return tmp_path


def puffer(*words: str) -> tuple[int, str, str]:
    """What `puffer` returns and prints in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "pufferlib.cli", *words], capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def test_words_between_colons_stay_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Not an emoji: rich would print a ship for the end of ``ferry:ferry: 22 passed``."""
    from pufferlib.cli.screen import new_console

    new_console().print("ferry:ferry: 22 passed")
    assert capsys.readouterr().out == "ferry:ferry: 22 passed\n"


def test_alone_it_says_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    output = capsys.readouterr().out
    for command in (
        "envs",
        "check ENV",
        "bench ENV",
        "autotune ENV",
        "train ENV",
        "eval RUN",
        "plot RUN…",
        "ocean",
        "record ENV",
        "replay FILE",
        "port FILE…",
        "doctor",
    ):
        assert f"\n  puffer {command} " in output
    assert output.endswith("Start with: puffer train ocean/squared\n")
    assert max(map(len, output.splitlines())) <= 80
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == output


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"puffer {pufferlib.__version__}\n"


@pytest.mark.long
def test_each_trainer_can_be_named_and_its_run_be_resumed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--num-envs", "2", "--backend", "serial", "--total-steps", "200", "--eval-episodes", "2"]
    for words in (["--algorithm", "ppo_lstm"], ["--algorithm=dqn", "--learning-starts", "50"], []):
        assert main(["train", "ocean/squared", *words, *small]) == 0
    capsys.readouterr()
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert [name.split("__")[1] for name in folders] == ["dqn", "ppo", "ppo_lstm"]
    for name in folders:
        assert main(["train", "--resume", f"runs/{name}", "--total-steps", "400"]) == 0
        output = capsys.readouterr().out
        assert "ocean/squared: score" in output and "after 4" in output
    assert main(["train", "ocean/squared", "--algorithm", "reinforce"]) == 2
    assert main(["train", "--resume", "runs/none"]) == 1
    assert "there is no file runs/none/checkpoint.pt" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["envs", "check", "bench", "autotune", "train", "eval", "plot", "record", "replay", "port"]
)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    output = capsys.readouterr().out
    assert f"usage: puffer {command} [-h]" in output
    assert ("--wrap.max-length" in output) == (command not in ("envs", "plot", "replay", "port"))


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["chekc", "x"], 2, 'puffer knows no command "chekc"; did you mean `puffer check`?'),
        (["fly"], 2, "there are envs, check, bench, autotune, train, eval, plot, ocean, league, record, replay, "),
        (["check"], 2, "puffer check needs an environment: `puffer check ocean/squared`"),
        (["train"], 2, "puffer train needs an environment: `puffer train ocean/squared`"),
        (["record"], 2, "puffer record needs an environment: `puffer record ocean/squared`"),
        (["replay"], 2, "puffer replay needs a file: `puffer replay my.npz`; `puffer record ENV` makes one"),
        (["plot"], 2, "puffer plot needs runs: `puffer plot runs/*`; `puffer train ENV` makes one"),
        (["port"], 2, "puffer port needs files: `puffer port my_program.py`"),
        (["plot", "runs/no*"], 1, "there is no run runs/no*; trainers make them in runs/"),
        (["plot", "."], 1, ". is no run: it has no config.json"),
        (["plot", "--x", "days"], 2, "steps"),
        (["record", "ocean/sqared"], 1, "did you mean ocean/squared"),
        (["record", "a_game:Game", "--num-steps", "0"], 1, "num_steps=0 leaves nothing to record; use 1 or more"),
        (["record", "a_game:Game", "--save", "a_game.py"], 1, "a_game.py already exists; --overwrite replaces it"),
        (["record", "a_game:Game", "--save", "no/a.npz"], 1, "there is no folder no for a.npz; make it, or save"),
        (["record", "a_game:Game", "--env-kwargs", "words=True"], 1, "here that is --wrap.max-length N"),
        (["replay", "a.npz"], 1, "there is no file a.npz; `puffer record ENV` makes one"),
        (["replay", "a_game.py"], 1, "a_game.py is no .npz, or not all of one; `puffer record ENV` makes one"),
        (["check", "ocean/sqared"], 1, "did you mean ocean/squared"),
        (["train", "ocean/sqared"], 1, "did you mean ocean/squared"),
        (["bench", "ocean/sqared"], 1, "did you mean ocean/squared"),
        (["autotune", "ocean/sqared"], 1, "did you mean ocean/squared"),
        (["autotune"], 2, "puffer autotune needs an environment: `puffer autotune ocean/squared`"),
        (["autotune", "a_game:Game", "--max-memory", "lots"], 1, "max_memory='lots' is no amount of memory"),
        (
            ["autotune", "a_game:Game", "--num-envs", "2", "--batch-size", "3"],
            1,
            "batch_size=3 is more than num_envs=2",
        ),
        (["check", "a_game:game"], 1, "did you mean Game?"),
        (["check", "no_game:game"], 1, "there is no module no_game on the module search path"),
        (["check", "a_broken_game:Game"], 1, "No module named 'not_there' (a_broken_game.py, line 1); --debug shows"),
        (["check", "a_game:Game", "--only", "spelling"], 1, "there is no check spelling; there are make, wraps"),
        (["check", "a_game:Game", "--env-kwargs", "7"], 1, "--env-kwargs 7 is not name=value"),
        (["train", "a_game:Game", "--policy-kwargs", "7"], 1, "--policy-kwargs 7 is not name=value"),
        (["check", "a_game:Game", "--wrap.bounds", "{"], 1, "--wrap.bounds { is not JSON"),
        (["check", "a_game:Game", "--num-stops", "7"], 2, "--num-steps"),
        (["bench", "a_game:Game", "--backends", "threads"], 1, "backend='threads' is not one of"),
        (["bench", "a_game:Game", "--backends"], 1, "no backend to measure; name some of serial"),
        (["bench", "a_game:Game", "--repeats", "0"], 1, "leave nothing to measure"),
        (["bench", "a_game:Broken"], 1, "raised in step: KeyError: 'sword'"),
        (["bench", "a_game:Game", "--env-kwargs", "words=True"], 1, "here that is --wrap.max-length N"),
        (["envs", "poker"], 1, 'no environment has "poker" in its name; `puffer envs` lists all'),
    ],
)
def test_errors_are_sentences(words: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == status
    output = capsys.readouterr()
    assert says in output.err
    assert ("Traceback" in output.err) == ("a_game:Broken" in words)  # which is the environment's own


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--debug", "ocean/sqared"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["envs"], ["check", "ocean/squared"], ["train", "ocean/squared"]])
@pytest.mark.parametrize("package", ["tyro", "rich"])
def test_what_is_missing_comes_with_the_command_that_installs_it(
    words: list[str], package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(words) == 1
    assert capsys.readouterr().err == f'puffer: this command needs {package}: pip install "pufferlib[train]"\n'


def test_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    output = capsys.readouterr().out
    for name in ("ocean/squared", "classic/cartpole", "mpe/…", "MiniGrid-…", "ALE/…"):
        assert name in output
    assert "any other id that is registered with Gymnasium" in output
    assert main(["envs", "MiniGrid"]) == 0
    output = capsys.readouterr().out
    assert "MiniGrid-Empty-8x8-v0" in output and "ocean" not in output
    assert main(["envs", "doorkey"]) == 0
    assert "MiniGrid-DoorKey-8x8-v0" in capsys.readouterr().out
    assert main(["envs", "mpe/"]) == 0
    assert "mpe/simple_tag_v3" in capsys.readouterr().out
    assert main(["envs", "lunar"]) == 0
    assert capsys.readouterr().out.count("LunarLander-v3") == 1


def test_envs_lists_the_others_where_a_package_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(family: environments.Family) -> None:
        raise OSError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(environments, "register", broken)
    assert main(["envs", "cartpole"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


def test_envs_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pufferlib.registry, "installed", lambda entry: entry.package != "ale_py")
    assert main(["envs"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "ALE/" in line)
    assert line.split() == 'ALE/… no Atari 2600 games: pip install "pufferlib[atari]"'.split()


def test_check_passes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a_game:Game", "--num-steps", "40", "--env-kwargs", "length=4", "title=Sea of [red]thieves"]
    assert main(["check", *words, "--prints"]) == 0
    output = capsys.readouterr().out
    assert "made 4 'Sea of [red]thieves'" in output
    positions = [output.index(f" {name} ") for name in CHECKS]
    assert positions == sorted(positions)
    assert "\na_game:Game: 22 passed, 1 not applicable, in" in output
    again = "a_game:Game --env-kwargs length=4 'title=Sea of [red]thieves'"
    assert output.endswith(f"\nNext: puffer bench {again}\n      puffer train {again}\n")


def test_check_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "a_game:Lucky", "--num-steps", "40"]) == 1
    output = capsys.readouterr().out
    assert "made" not in output and re.search(r"\nIt printed \d+ lines, which --prints shows\n", output)
    assert re.search(r"^failed +global_generators +it draws from the global generator of random", output, re.M)
    assert re.search(r"^n/a +until global_generators passes: clock, seeding, reseeding", output, re.M)
    assert "Next" not in output


def test_check_says_which_flag_to_pass(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "a_game:Game", "--env-kwargs", "words=True", "--only", "wraps"]
    assert main(words) == 1
    again = "a_game:Game --env-kwargs words=True"
    assert capsys.readouterr().out.endswith(f"Next: puffer check {again} --wrap.max-length N\n")
    assert main([*words, "--wrap.max-length", "4"]) == 0
    assert "Next: puffer bench a_game:Game --wrap.max-length 4 --env-kwargs words=True\n" in capsys.readouterr().out
    assert main([*words, "--wrap.bounds", '{"words": {"max_length": 4}}']) == 0


def test_what_to_type_next_is_quoted_as_a_shell_needs_it() -> None:
    options = Autotune("my game:Game", ("title=a b", "n=3"), Wrap(max_agents=3, state=True, bounds='{"x": {}}'))
    words = ["my game:Game", "--config", "a plan.toml", "--wrap.max-agents", "3", "--wrap.state", "--wrap.bounds"]
    assert shlex.split(typed(options, "--config", "a plan.toml")) == [
        *words, '{"x": {}}', "--env-kwargs", "title=a b", "n=3"
    ]  # fmt: skip


def test_leaves_beside_observations_are_asked_for_by_flags(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpe2")
    words = ["check", "mpe/simple_adversary_v3", "--only", "rows", "--wrap.state", "--wrap.agent-type"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "observations uint8 (3, 160)" in output  # 28 numbers of the state, a type, 10 numbers at most
    assert "Next: puffer bench mpe/simple_adversary_v3 --wrap.state --wrap.agent-type\n" in output


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-envs", "5", "--num-workers", "2", "--seconds", "0.02", "--repeats", "3"]
    assert main(["bench", "mpe/simple_spread_v3", *words]) == 0
    output = capsys.readouterr().out
    assert "mpe/simple_spread_v3: 5 environments, of 3 agents each\n" in output
    for backend, workers, batch in (("serial", 1, 5), ("multiprocessing", 2, 5), ("pool", 2, 3)):
        assert re.search(rf"^{backend} +{workers} +{batch} +[\d.]+[kM]? +[\d.]+[kM]?–[\d.]+[kM]?", output, re.M), output
    assert "Medians and ranges of 3 turns of 0.02 s each." in output
    assert 'backend="' in output.splitlines()[-1]


def test_bench_measures_kernels_on_their_device(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-envs", "5", "--seconds", "0.01", "--repeats", "2", "--backends", "cuda", "--profile"]
    assert main(["bench", "ocean/squared", *words, "--device", "host"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^cuda +1 +5 +[\d.]+[kM]", output, re.M), output
    assert "environment steps in" in output and "bytes went to the device" in output
    assert not Path("bench-ocean-squared-cuda.png").exists()  # it has no phases to draw


def test_backends_take_turns() -> None:
    order: list[Any] = []
    speeds = compare_backends(
        "ocean/squared",
        backends=("serial", "pool"),
        num_envs=4,
        seconds=0.01,
        repeats=3,
        after=lambda repeat, backend: order.append((repeat, backend)),
    )
    assert order == [(0, "serial"), (0, "pool"), (1, "pool"), (1, "serial"), (2, "serial"), (2, "pool")]
    assert [len(speed.steps_per_s) for speed in speeds] == [3, 3]
    assert all(rate > 0 for speed in speeds for rate in speed.steps_per_s)


def test_bench_obeys_action_masks() -> None:
    (speed,) = compare_backends("pettingzoo.classic.tictactoe_v3:env", backends=["serial"], seconds=0.1, repeats=2)
    assert speed.agents_per_env == 2


@pytest.mark.parametrize(
    ("serial", "pool", "says"),
    [
        ([100.0, 110.0, 90.0], [200.0, 230.0, 180.0], 'backend="pool" is right: 2.0 times as fast as serial.'),
        ([100.0, 100.0, 100.0], [103.0, 104.0, 101.0], "pool is not clearly faster (1.03 times)"),
        ([100.0, 100.0, 100.0], [150.0, 150.0, 90.0], "pool is not clearly faster (1.50 times)"),
        ([1e5, 1e5, 1e5], [3e4, 4e4, 5e4], "a step takes 10 µs, and pool, the next, makes 0.40 times as many"),
    ],
)
def test_verdict(serial: list[float], pool: list[float], says: str) -> None:
    speeds = [Speed("serial", 8, 1, 8, 1, serial), Speed("pool", 8, 2, 4, 1, pool)]
    assert says in verdict(speeds)


@pytest.mark.long
def test_bench_with_a_profile(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", "a_game:Game", "--num-envs", "4", "--seconds", "0.02", "--repeats", "1", "--profile"]
    assert main([*words, "--backends", "serial", "pool"]) == 0
    output = capsys.readouterr().out
    for backend in ("serial", "pool"):
        assert re.search(rf"^{backend}: 4 environments, \d+ workers?, batches of", output, re.M)
        assert f"\ndrawn in bench-a-game-Game-{backend}.png\n" in output
        assert (folder / f"bench-a-game-Game-{backend}.png").stat().st_size > 10_000
    assert output.count("-bound") + output.count("balanced") == 2
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*words, "--backends", "serial"]) == 0
    assert capsys.readouterr().out.endswith('a plot needs matplotlib: pip install "pufferlib[train]"\n')


@pytest.mark.parametrize("rates", [(100.0, 79.0, 77.0), (100.0, 150.0, 80.0), (100.0, 80.0, 150.0), (9.0, 8.9, 9.1)])
def test_a_profile_does_not_contradict_what_was_measured(rates: tuple[float, ...]) -> None:
    durations = np.random.default_rng(0).exponential(0.01, (8, 1000))
    plans = [("serial", 8, 1, 8), ("multiprocessing", 8, 2, 8), ("pool", 8, 2, 4)]
    speeds = [
        Speed(*plan, 1, [rate] * 3, stats_of(durations, steps_per_s=rate, plan=plan))
        for plan, rate in zip(plans, rates, strict=True)
    ]
    verdicts = [verdict(speeds), *(profile_text(speed, speeds).splitlines()[-1] for speed in speeds)]
    right = right_one(speeds).backend
    assert f'backend="{right}" is right' in verdicts[0]
    assert all(("serial is right" in line) <= (right == "serial") for line in verdicts[1:])
    assert all(("a pool of" in line) <= (right == "pool") for line in verdicts)


@pytest.fixture
def one_core() -> Iterator[None]:
    """Keep this process and its workers on one core, where a trivial environment is right on serial."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.flaky(reruns=4)  # which plan is the fastest depends on the machine's other work
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux keeps processes on a core")
@pytest.mark.usefixtures("one_core")
def test_autotune(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--budget", "4", "--batch-size", "4", "--env-kwargs", "length=7", "--save", "plan.toml"]
    assert main(["autotune", "a_game:Game", *words]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^serial 4/1/4 +[\d.]+[kM]? +[\d.]+[kM]?–[\d.]+[kM]? +[\d.]+ s +\d+ MiB", output, re.M), output
    assert "Medians and ranges. Not tried: " in output
    assert "\nserial is right: a step takes " in output
    assert "\npufferlib.make(…, backend='serial', num_envs=4, batch_size=4)\nsaved in plan.toml\n" in output
    assert output.endswith("\nNext: puffer train a_game:Game --config plan.toml --env-kwargs length=7\n")
    assert pufferlib.load_plan(folder / "plan.toml") == {"backend": "serial", "num_envs": 4, "batch_size": 4}
    assert main(["autotune", "a_game:Broken"]) == 1
    err = capsys.readouterr().err
    assert err == "puffer: the environment cannot be tried: KeyError: 'sword'; `puffer check` says more\n"


def test_record_and_replay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a_game:Game", "--num-steps", "20", "--num-envs", "3", "--seed", "5", "--env-kwargs", "length=4"]
    assert main(["record", *words]) == 0
    output = capsys.readouterr().out
    assert "a_game:Game: 3 environments × 20 steps, 12 episode ends, seed 5\n" in output
    assert re.search(r"^saved in a-game-Game.npz \(\d+ KiB\)$", output, re.M)
    assert output.endswith("\nNext: puffer replay a-game-Game.npz --backend pool\n")
    content = (folder / "a-game-Game.npz").read_bytes()
    assert main(["record", *words]) == 1
    assert "a-game-Game.npz already exists; --overwrite replaces it, --save FILE chooses another" in (
        capsys.readouterr().err
    )
    pool = ["--backend", "pool", "--num-workers", "2", "--batch-size", "1"]
    assert main(["record", *words, *pool, "--overwrite"]) == 0
    assert (folder / "a-game-Game.npz").read_bytes() == content
    capsys.readouterr()
    for arrangement, where in (([], "serial"), (pool, "pool, 2 workers, batches of 1")):
        assert main(["replay", "a-game-Game.npz", *arrangement]) == 0
        assert capsys.readouterr().out.endswith(f"identical: 3 environments × 20 steps, on {where}\n")


def test_replay_names_the_first_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "a_game:Lucky", "--num-steps", "20", "--save", "a.npz"]) == 0
    assert main(["replay", "a.npz"]) == 1
    output = capsys.readouterr().out
    assert re.search(r"^different: environment \d, step \d+( .*)?: observation\n  recorded: not kept\n", output, re.M)
    assert "\nNext: puffer check a_game:Lucky says whether it depends on more than its seed and actions\n" in output
    assert output.endswith("\n      puffer record --keep keeps observations, so that a difference can be shown\n")
    assert main(["record", "a_game:Lucky", "--num-steps", "20", "--save", "a.npz", "--keep", "--overwrite"]) == 0
    assert main(["replay", "a.npz", "--backend", "multiprocessing", "--num-workers", "1"]) == 1
    output = capsys.readouterr().out
    assert re.search(r": observation\n  recorded: \d+\n  now:      \d+\nNext: ", output)
    assert "--keep" not in output
    assert main(["record", "a_game:Game", "--num-steps", "9", "--save", "b.npz", "--env-kwargs", "length=4"]) == 0
    assert main(["replay", "b.npz", "--env-kwargs", "length=3"]) == 1
    assert "different: environment 0, step 3: truncated (and episode)\n" in capsys.readouterr().out


def test_record_and_replay_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "a_game:Broken", "--save", "a.npz"]) == 1
    output = capsys.readouterr().out
    assert "ends early: environment 0, step 1, raised in step: KeyError: 'sword'\n  Traceback" in output
    assert main(["replay", "a.npz", "--backend", "pool"]) == 0
    ends = "\nends as recorded: environment 0, step 1, raised in step: KeyError: 'sword'\n"
    assert capsys.readouterr().out.endswith(ends)
    assert main(["replay", "a.npz", "--env", "a_game:Game"]) == 1
    assert "step 1: error\n  recorded: raised in step: KeyError: 'sword'\n  now:      it went on\n" in (
        capsys.readouterr().out
    )


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)  # it runs where nothing else does
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    names = [line.split("  ")[0] for line in output.splitlines()]
    assert names == [
        *("pufferlib", "packages", "optional", "path", "cores", "memory", "processes", "kernel"),
        *("kernels", "compiler", "CUDA", "Ray", "self test"),
    ]
    assert "\x1b" not in output
    assert re.search(r"^cores +\d+ of \d+ usable \(.*quota.*\)$", output, re.M)
    assert re.search(r"^memory +[\d.]+ .iB of [\d.]+ .iB available \(.*limit.*\); /dev/shm", output, re.M)
    assert pufferlib.__version__ in output
    assert ("compiled" in output) == pufferlib._native.available
    assert pufferlib._native.reason in output
    assert "self test     passed" in output
    assert all(name in output for name in ("ocean/squared", "tag/grid", "tag/continuous", metadata.version("ray")))
    assert re.search(
        r"^CUDA +(no driver|driver .*); torch \S+ sees .*; (no CuPy|cupy).*; (no NVRTC|NVRTC 1\d\.\d)$", output, re.M
    )


def test_doctor_names_files_of_pufferlib_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = importlib.import_module("pufferlib.cli.doctor")
    assert doctor._foreign_files(Path(pufferlib.__file__).parent) == ""
    package = tmp_path / "pufferlib"
    shutil.copytree(Path(pufferlib.__file__).parent / "compat/modules", package / "compat/modules")
    (package / "vector.py").touch()
    (package / "frameworks").mkdir()
    (package / "frameworks/__init__.py").touch()
    monkeypatch.setattr(pufferlib, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(
        doctor.metadata, "packages_distributions", lambda: {"pufferlib": ["pufferlib", "pufferlib-core"]}
    )
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "modules of PufferLib (frameworks/__init__.py, vector.py)" in out
    assert "pip uninstall pufferlib pufferlib-core" in out


@pytest.mark.long
def test_doctor_looks_at_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_ext import functions, report
    from cuda_ext.ocean_squared import KERNEL

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-compiler -O2")
    assert report.compiler() == f"there is no no-compiler; 0 kernels (0.0 MiB) are kept in {tmp_path}/pufferlib/kernels"
    monkeypatch.delenv("CXX")
    library = functions.compiled_library(KERNEL, functions.sources.for_host(KERNEL))
    assert re.search(r"; 1 kernel \(\d\.\d MiB\) are kept in", report.compiler())
    (tmp_path / "pufferlib/kernels/kernel_x-sm_90-0.cubin").touch()
    assert "; 2 kernels (" in report.compiler()
    spec = SimpleNamespace(origin=library._name, submodule_search_locations=None)  # in which there is one of them
    monkeypatch.setattr(functions.importlib.util, "find_spec", lambda name: spec)
    names = [importlib.import_module(f"cuda_ext.{stem}").KERNEL.name for stem in functions.sources.stems()]
    others = ", ".join(name for name in names if name != "ocean/squared")
    uncompiled = "not built or out of date, compiled on first use"
    assert report.built() == f"built: ocean/squared; {uncompiled}: {others}"
    monkeypatch.setattr(report.sources, "digest", lambda kernel: "another")
    assert report.built() == f"{uncompiled}: {', '.join(names)}"
    spec.origin = str(tmp_path / "nothing.so")
    assert report.built().startswith("built, but the library cannot be loaded: ")
    spec.origin = None
    assert report.built() == f"none is built; these are compiled on first use: {', '.join(names)}"
    monkeypatch.setattr(report.metadata, "version", lambda name: "13.6.0")
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert report.device().startswith("cupy-cuda13x 13.6.0 sees no device: import of cupy halted")
    runtime = SimpleNamespace(getDeviceCount=lambda: 2)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(report.nvrtc, "version", lambda: (13, 6))
    assert report.device() == "cupy-cuda13x 13.6.0 sees 2 devices; NVRTC 13.6"
    monkeypatch.undo()
    monkeypatch.setattr(report.nvrtc, "_library", refused_nvrtc)
    assert report.device().endswith("; no NVRTC")


def refused_nvrtc() -> Any:
    raise MissingExtra("no NVRTC here")


def test_doctor_finds_what_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no memory is to be had")

    monkeypatch.setattr(pufferlib, "make", refuse)
    assert main(["doctor", "--json"]) == 1
    failed = {"name": "self test", "text": "failed: OSError: no memory is to be had", "fine": False}
    assert json.loads(capsys.readouterr().out)[-1] == failed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ocean/squared"], "unrecognized arguments: ocean/squared"),
        (["--address", "auto"], "--address and --step-ms are about a cluster; add --ray"),
        (["--ray", "--step-ms", "0"], "--step-ms 0 is impossible; use milliseconds, more than 0"),
    ],
)
def test_doctor_says_what_it_does_not_understand(words: list[str], says: str, capsys: Any) -> None:
    assert main(["doctor", *words]) == 2
    assert f"error: {says}\n" in capsys.readouterr().err


@pytest.mark.slow
def test_train(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--num-envs 4 --total-steps 200 --rollout-length 8 --eval-episodes 4 --backend serial".split()
    assert main(["train", "a_game:Game", *words, "--wrap.max-length", "3", "--env-kwargs", "length=3",
                 "--policy-kwargs", "hidden_size=8"]) == 0  # fmt: skip
    output = capsys.readouterr().out
    assert "made 3 ''" in output
    assert re.search(r"a_game:Game: mean return [\d.]+ over 4 fresh episodes", output)
    (run,) = (folder / "runs").iterdir()
    config = (run / "config.json").read_text()
    assert '"env_kwargs": {\n    "length": 3\n  }' in config
    assert '"wrap_kwargs": {\n    "max_length": 3\n  }' in config
    assert '"policy_kwargs": {\n    "hidden_size": 8\n  }' in config


@pytest.mark.slow
def test_in_a_process_of_its_own() -> None:
    assert puffer("--version") == (0, f"puffer {pufferlib.__version__}\n", "")
    status, out, err = puffer("check", "a_game:Game", "--only", "processes", "--num-steps", "30")
    assert (status, err) == (0, "")
    assert "a_game:Game: 1 passed" in out
    status, out, err = puffer("bench", "a_game:Gama")
    assert (status, out) == (1, "")
    assert err == 'puffer: "a_game:Gama": a_game has no Gama; did you mean Game?\n'


@pytest.mark.slow
def test_what_is_not_installed_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "without").mkdir()
    (folder / "without" / "pygame.py").write_text("raise ModuleNotFoundError('no', name='pygame')\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'without'}{os.pathsep}{ROOT}")
    before = sorted(folder.iterdir())
    asked = {
        ("eval", "CartPole-v1", "--policy", "random", "--video", "a.gif"): "classic",
        ("eval", "MiniGrid-Empty-8x8-v0", "--policy", "random", "--watch"): "minigrid",
        ("train", "CartPole-v1", "--no-defaults", "--video-envs", "0"): "classic",
    }
    program = f"from pufferlib.cli import main; print([main(words) for words in {[*asked]}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    message = "".join(
        f'puffer: "{words[1]}": pygame is not installed; run `pip install "pufferlib[{extra}]"`\n'
        for words, extra in asked.items()
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[1, 1, 1]", message)
    assert sorted(folder.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "first"),
    [
        pytest.param(["check", "ocean/squared", "--num-steps", "1000000000"], "passed", marks=pytest.mark.long),
        (["train", "a_game:Game", "--runs", "None", "--total-steps", "1000000000"], "made"),
    ],
)
def test_ctrl_c_is_quiet(words: list[str], first: str) -> None:
    command = [sys.executable, "-u", "-m", "pufferlib.cli", *words]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        while first not in process.stdout.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    # By the signal, as a shell sees it: Python ends so itself where it came within code that was made by exec.
    assert process.returncode in (130, -signal.SIGINT) and err == "\n"


@pytest.mark.parametrize("command", ["check", "bench", "train", "eval", "record", "autotune"])
def test_a_file_in_place_of_a_module_is_answered_with_the_module(command: str, capsys: Any) -> None:
    assert main([command, "a_game.py:Game"]) == 1
    assert '"a_game.py:Game" names a file; name its module: a_game:Game\n' in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m pufferlib.cli envs minigrid | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("name") and done.stderr == ""


def test_whole_numbers_may_be_written_as_people_do() -> None:
    kind = dataclasses.make_dataclass(
        "Kind",
        [
            ("steps", int, 0),
            ("most", int | None, None),
            ("rate", float, 0.0),
            ("at", tuple[int, ...], ()),
            ("to", str, ""),
            ("wrap", options.Wrap, options.Wrap()),
        ],
    )

    def written(*words: str) -> list[str]:
        return parsing.whole_numbers(kind, words)

    assert written("--steps", "1e5", "--rate", "1e3", "ENV") == ["--steps", "100000", "--rate", "1e3", "ENV"]
    assert written("--steps=2.5e3", "--most", "1E+2", "--to", "1e5") == ["--steps=2500", "--most", "100", "--to", "1e5"]
    assert written("--at", "1e1", "20", "3e0", "ENV") == ["--at", "10", "20", "3", "ENV"]
    assert written("--wrap.max-length", "1e2", "1e3") == ["--wrap.max-length", "100", "1e3"]
    assert written("--steps", "1_000", "--most", "None", "--steps") == ["--steps", "1_000", "--most", "None", "--steps"]
    assert written("--steps", "-3", "--unknown", "1e5") == ["--steps", "-3", "--unknown", "1e5"]
    for word in ("1.5", "1e-3", "100k", "1e", "1.23e1", "many", ""):
        for words in (("--steps", word), (f"--steps={word}",), ("--wrap.max-length", word)):
            with pytest.raises(PlanError, match=rf"{words[0].partition('=')[0]} {re.escape(word)} is not a whole num"):
                written(*words)


def test_steps_of_a_training_may_be_written_as_people_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--backend", "serial", "--num-envs", "4", "--eval-episodes", "1", "--runs", "runs"]
    assert main(["train", "ocean/bandit", "--total-steps", "2.56e2", *settings]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "config.json").read_text())["total_steps"] == 256
    (tmp_path / "my.toml").write_text("total_steps = 1.28e2")
    capsys.readouterr()
    assert main(["train", "ocean/bandit", "--config", "my.toml", *settings]) == 0
    assert main(["train", "ocean/bandit", "--total-steps", "100k", *settings]) == 2
    output = capsys.readouterr().err
    assert output == "puffer train: --total-steps 100k is not a whole number; write one as 100000, 100_000 or 1e5\n"


def test_check_holds_a_kernel_against_its_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tag/grid", "--backend", "cuda", "--device", "host", "--num-steps", "50"]) == 0
    assert "equals its reference, bit for bit, over 800 steps" in capsys.readouterr().out
    assert main(["check", "tag/grid", "--device", "host"]) == 1
    assert "--backend cuda compares with their references" in capsys.readouterr().err
    for words in (["check"], ["bench", "--backends", "serial"], ["record"]):
        assert main([words[0], "cuda_ext.tag_grid:KERNEL", *words[1:]]) == 1
        assert 'is a kernel, which backend "cuda" plays: add backend="cuda" (--backend cuda)' in capsys.readouterr().err
    assert main(["check", "ocean/bell", "--backend", "cuda", "--device", "host"]) == 1
    assert "has no kernel" in capsys.readouterr().err
