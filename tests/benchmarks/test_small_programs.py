"""Tests of what smaller benchmark programs compute, write and draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import install, tictactoe
from benchmarks.evaluation import list_schedule

pytestmark = pytest.mark.beside


def test_the_dashboards_picture_is_taken_before_the_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import dashboard

    out, sizes = tmp_path / "dashboard.svg", {"num_envs": 4, "rollout_length": 4, "total_steps": 64}
    config = dashboard.ppo.Config(env="ocean/bandit", backend="serial", eval_episodes=1, runs=None, **sizes)
    for name, value in (("OUT", out), ("CONFIG", config), ("breakout", None)):
        monkeypatch.setattr(dashboard, name, value)
    dashboard.main()
    assert "ocean/bandit" in out.read_text().replace("&#160;", " ")


def test_oceans_results_are_whole_whenever_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import ocean

    path, results = tmp_path / "ocean.json", {"ocean/bandit": {"runs": [{"seed": 1, "score": 1.0}]}}
    ocean.write(path, results)
    before = json.loads(path.read_text())
    assert before == {"by_env": results}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "write_text", lambda self, text: (self.write_bytes(text[:9].encode()), killed()))
        ocean.write(path, {"ocean/bell": {"runs": [{"seed": 1, "score": 1.0}]}})
    assert json.loads(path.read_text()) == before


def test_what_installing_takes_is_tabulated() -> None:
    figures = {
        "install_s": [3.0, 1.0, 2.0],
        "import_s": [0.3, 0.2, 0.4],
        "modules": 1234,
        "mb": {"own": 2.24, "all": 90.6, "torch": 0.0},
    }
    results = {"machine": "a machine", "load": [0.1, 1.0], "day": "today", "command": "this"}
    text = install.table({**results, "figures": {"ours": figures, "EnvPool 1.2.5": {"failed": "no such wheel"}}})
    ours = "| ours | 2.2 | 91 |  | 2.0 (1.0 – 3.0) | `pufferlib` | 0.30 (0.20 – 0.40) | 1,234 |"
    lost = "| EnvPool 1.2.5 | could not be installed: no such wheel | | | | | | |"
    assert text.splitlines()[-2:] == [ours, lost]


def test_tic_tac_toe_is_solved() -> None:
    """A draw; and at random the first seat wins 58.5 % of all games and loses 28.8 %, as is known."""
    assert tictactoe.best_value() == 0 and len(tictactoe.boards()) == 4520
    perfect, chance = tictactoe.perfect(), tictactoe.chance()
    assert tictactoe.value(perfect, perfect) == 0
    assert tictactoe.value(chance, chance) == pytest.approx(0.2968, abs=1e-4)
    assert tictactoe.value(perfect, chance) > 0.9 and -tictactoe.value(chance, perfect) > 0.75


def test_a_list_schedule_gives_each_episode_to_the_slot_that_is_free_first() -> None:
    assert list_schedule([3, 1, 1, 1, 2], 2) == 5
    assert list_schedule([2, 2], 3) == 2 and list_schedule([2, 2, 5], 1) == 9
