"""`puffer league`: what it prints, what it draws, that a kill costs nothing, and that its errors say what to type."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import running
from test_league import outcome

from pufferlib.cli import main
from pufferlib.population import League, PayoffTable
from pufferlib.population.pictures import draw_mixtures, draw_nash_conv, draw_payoffs

pytest.importorskip("openskill")
pytestmark = [pytest.mark.extras, pytest.mark.beside]

ROOT = Path(__file__).parents[2]
KUHN = """
game = "kuhn_poker"
solver = "lp_nash"
[stop]
nash_conv = 0.0
iterations = 3
[evaluation]
min_episodes = 4
num_envs = 8
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kuhn.toml").write_text(KUHN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.mark.long
def test_run_show_and_play(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["league", "run", "kuhn.toml"]) == 0
    output = capsys.readouterr().out
    assert output.count("policies  NashConv") == 5 and "iteration 3  4 × 4 policies  NashConv 0." in output
    assert "The end: iteration 3 was to be the last.\nNext: puffer league show leagues/kuhn" in output
    assert main(["league", "show", "leagues/kuhn", "--top", "3", "--out", "pictures"]) == 0
    output = capsys.readouterr().out
    assert "and 5 more, rated lower" in output and "It has ended: iteration 3 was to be the last." in output
    (heading,) = [line.split() for line in output.splitlines() if line.startswith("policy")]
    assert heading == ["policy", "seat", "rating", "games", "win", "rate", "gets", "weight"]
    monkeypatch.setenv("COLUMNS", "48")
    assert main(["league", "show", "leagues/kuhn", "--out", "pictures"]) == 0
    assert "…" not in capsys.readouterr().out
    assert output.count("drawn in pictures/") == 3 == len(list((folder / "pictures").glob("*.png")))
    assert main(["league", "play", "leagues/kuhn", "0", "mixture", "--episodes", "40"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "kuhn_poker: 40 episodes, seed 0"
    first, second = (line.split() for line in output[2:4])
    assert (first[:2], second[:2]) == (["player_0", "0"], ["player_1", "mixture"])
    assert float(first[2]) == -float(second[2]) and first[3] == "±" and float(first[4]) > 0.1
    assert "…" not in "".join(output)
    assert main(["league", "play", "leagues/kuhn", "last", "first", "--render", "--episodes", "2"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "episode 1: player_0 is 6, player_1 is 1" and output[1].startswith("player_0 ")
    assert sum("gets" in line for line in output) == 2 and any("| bet" in line or "| pass" in line for line in output)


def test_it_goes_on_after_a_kill_and_after_ctrl_c(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "pufferlib.cli", "league", "run", "long.toml"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    (folder / "long.toml").write_text(KUHN.replace("iterations = 3", "iterations = 100000"))
    metrics = folder / "leagues" / "long" / "metrics.jsonl"
    with running(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE) as process:
        while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    evaluate = League._evaluate

    def interrupted(league: League, table: Any) -> None:
        evaluate(league, table)
        if len(league.rows) > num:
            raise KeyboardInterrupt

    num = len(outcome(folder / "leagues" / "long")["rows"])
    with monkeypatch.context() as patched:
        patched.setattr(League, "_evaluate", interrupted)
        assert main(["league", "run", "--resume", "leagues/long"]) == 130
    assert "Continue it with: puffer league run --resume leagues/long" in capsys.readouterr().err
    assert main(["league", "run", "--resume", "leagues/long", "--iterations", str(num + 1)]) == 0
    assert main(["league", "run", "kuhn.toml", "--iterations", str(num + 1)]) == 0
    assert outcome(folder / "leagues" / "long") == outcome(folder / "leagues" / "kuhn")


def test_mistakes_are_named_with_what_to_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, status, message in (
        ("league", 2, "puffer league play FOLDER"),
        ("league shwo", 2, "did you mean `puffer league show`?"),
        ("league run", 1, "takes a TOML file, or --resume"),
        ("league run none.toml", 1, "none.toml cannot be read"),
        ("league run kuhn.toml --resume leagues/kuhn", 1, "one of them"),
        ("league run --resume leagues/kuhn --seed 3", 1, "--folder and --seed are for a new league"),
        ("league show", 1, "needs a league's folder"),
        ("league show nowhere", 1, "nowhere is no league: there is no such folder; `puffer league run` makes one"),
        ("league play", 1, "needs a league's folder, and who plays"),
        ("league run kuhn.toml --iterations 1", 0, "The end: iteration 1 was to be the last"),
        ("league run kuhn.toml", 1, "already holds a league; --resume leagues/kuhn continues it"),
        ("league show leagues", 1, "leagues are in it, such as leagues/kuhn"),
        ("league play leagues/kuhn 0", 1, "1 play, but there are 2 seats: player_0, player_1; name one for each"),
        ("league play leagues/kuhn 1 0", 1, "1 plays player_1, and not player_0, who has 0, 2, first, last and mix"),
        ("league play leagues/kuhn nash 1", 1, "nash is none of the policies of player_0"),
        ("league show ''", 1, "puffer league show needs a league's folder: `puffer league show leagues/league`"),
        ("league play ''", 1, "puffer league play needs a league's folder: `puffer league play leagues/league`"),
        ("league play leagues/kuhn --episodes 0", 1, "--episodes 0 is impossible; use 1 or more"),
    ):
        assert main(shlex.split(words)) == status, words
        said = capsys.readouterr()
        assert message in said.out + said.err, words


@pytest.mark.long
def test_pictures_hold_all_of_what_is_drawn(tmp_path: Path) -> None:
    """Nothing reaches a picture's edge, for two seats and three, few policies and many, and empty cells."""
    from matplotlib.image import imread

    for sizes in ((25, 3), (2, 1, 2)):
        table = PayoffTable(len(sizes), [range(1000, 1000 + size) for size in sizes])
        rng = np.random.default_rng(1)
        table.fill(rng.normal(size=table.means.shape))
        table.means[:, 0, 0] = np.nan
        rows = [
            {
                "iteration": number,
                "nash_conv": 10.0**-number if number != 2 else None,
                "mixture": [(part := rng.random(size)) / part.sum() for size in sizes],
            }
            for number in range(4)
        ]
        names = [f"a_seat_of_{number}" for number in range(len(sizes))]
        for path in (
            draw_payoffs(table, tmp_path / "payoffs.png", names),
            draw_nash_conv(rows, tmp_path / "nash_conv.png"),
            draw_mixtures(rows, table, tmp_path / "mixture.png", names),
        ):
            assert path is not None
            picture = imread(path)[..., :3]
            assert (picture[[0, -1]] == 1).all() and (picture[:, [0, -1]] == 1).all(), (sizes, path)
            assert (picture < 1).any() and picture.shape[1] == 900
    assert draw_nash_conv([{**row, "nash_conv": None} for row in rows], tmp_path / "none.png") is None


def test_population_imports_neither_matplotlib_nor_rich_with_itself() -> None:
    for path in (ROOT / "pufferlib" / "population").rglob("*.py"):
        at_once = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        named = {name for node in at_once for name in (getattr(node, "module", None), *(a.name for a in node.names))}
        assert not {"matplotlib", "rich", "openskill"} & {str(name).partition(".")[0] for name in named}, path
