"""Leagues: what comes of one is the same however often it was interrupted, and whatever is misspelt is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import pufferlib
from pufferlib.errors import CallError, CheckpointError, PlanError, PufferError
from pufferlib.models import Origin
from pufferlib.population import League, Settings, Setup
from pufferlib.population.league_settings import Evaluation, Stop, Workers
from pufferlib.population.tasks import LostTask
from pufferlib.util import files

pytestmark = pytest.mark.beside

WORKERS = "game = 'kuhn_poker'\n[stop]\niterations = 1\n[workers]\nactors=2"
KUHN = Settings(game="kuhn_poker", evaluation=Evaluation("exact"), stop=Stop(iterations=4))


class Killed(BaseException):
    """Nothing of ours catches it."""


def outcome(folder: Path) -> dict[str, Any]:
    """What a league has come to, but for how long that took."""
    with League.resume(folder) as league:
        assert league.table is not None
        return {
            "rows": [{name: value for name, value in row.items() if name != "seconds"} for row in league.rows],
            "populations": league.table.populations,
            "means": league.table.means.tolist(),
            "wins": league.table.wins.tolist(),
            "counts": league.table.counts.tolist(),
            "digests": [league.pool[policy].digest for policy in range(len(league.pool))],
        }


def play(league: League) -> int:
    with league:
        return sum(1 for _ in league)


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, league: Callable[[], League]) -> bool:
    """End the league where it would replace a file for the ``number``-th time; return whether it came to that."""
    left, replace = number, files.os.replace

    def replaced(*paths: Any) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        replace(*paths)

    monkeypatch.setattr(files.os, "replace", replaced)
    try:
        play(league())
    except Killed:
        return True
    finally:
        monkeypatch.undo()
    return False


def go_on(folder: Path) -> League:
    return League.resume(folder) if (folder / "league.toml").exists() else League.begin(KUHN, folder)


def test_killed_wherever_files_change_it_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(League.begin(KUHN, tmp_path / "whole")) == 5
    expected = outcome(tmp_path / "whole")
    for number in range(200):
        folder = tmp_path / str(number)
        if not killed_at(monkeypatch, number, lambda folder=folder: League.begin(KUHN, folder)):
            break
        killed_at(monkeypatch, 7, lambda folder=folder: go_on(folder))  # and soon again
        play(go_on(folder))
        assert outcome(folder) == expected, f"killed at the {number + 1}th file"
    assert number > 25
    assert sorted(path.name for path in folder.glob("payoffs-*")) == ["payoffs-3.npz", "payoffs-4.npz"]


def test_half_an_iteration_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    league = League.begin(KUHN, tmp_path)
    assert killed_at(monkeypatch, 12, lambda: league)
    with pytest.raises(CallError, match=r"interrupted; League.resume\(.*\) continues"):
        play(league)


def test_settings_come_back_as_a_resumed_league_has_them(tmp_path: Path) -> None:
    settings = Settings(
        env="ocean/multiagent", env_kwargs={"units": [{"a": 1}], "sizes": (2, 3)}, stop=Stop(iterations=1)
    )
    path = tmp_path / "league.toml"
    path.write_text(settings.toml())
    assert Settings.read(path).env_kwargs == {"units": [{"a": 1}], "sizes": [2, 3]}


def test_sampled_payoffs_are_the_same_as_well(tmp_path: Path) -> None:
    settings = Settings(
        game="kuhn_poker", solver="lp_nash", evaluation=Evaluation(min_episodes=8, num_envs=8), stop=Stop(iterations=3)
    )
    play(League.begin(settings, tmp_path / "whole"))
    with League.begin(settings, tmp_path / "parts") as league:
        for _ in zip(range(2), league, strict=False):
            pass
    with open(tmp_path / "parts" / "metrics.jsonl", "ab") as file:
        file.write(b'{"iteration": 2, "si')  # which a kill has cut off
    assert play(League.resume(tmp_path / "parts")) == 2
    expected = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == expected
    assert expected["rows"][-1]["episodes"] == 8 * 16 and np.isfinite(expected["means"]).all()


def test_workers_do_it_and_go_on(tmp_path: Path) -> None:
    workers_do_it_and_go_on("exact", tmp_path)


def workers_do_it_and_go_on(oracle: str, tmp_path: Path) -> None:
    """The same, whatever was interrupted, and with tasks that were lost."""
    settings = Settings(
        game="kuhn_poker",
        solver="lp_nash",
        oracle=oracle,
        oracle_kwargs={} if oracle == "exact" else {"total_steps": 100, "learning_starts": 64},
        evaluation=Evaluation(min_episodes=8, num_envs=8),
        workers=Workers(max_retries=9),
        stop=Stop(iterations=1),
    )
    with League.begin(settings, tmp_path / "whole") as league:
        assert sum(1 for _ in league) == 2
        num_tasks = league.coordinator().num_done[0]
        what = "payoffs" if oracle == "exact" else "payoffs and responses"
        assert league.who() == f"{what} by this process, 8 environments each; {num_tasks} tasks"
        assert num_tasks >= (2 if oracle == "exact" else 6)
    with League.begin(settings, tmp_path / "parts") as league:
        next(iter(league))
    league = League.resume(tmp_path / "parts")
    errors = iter([LostTask("on purpose")])
    collect = league.coordinator()._workers.collect
    setattr(  # noqa: B010
        league.coordinator()._workers,
        "collect",
        lambda: [(number, next(errors, result)) for number, result in collect()],
    )
    with pytest.warns(RuntimeWarning, match="was lost with its worker"):
        play(league)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_it_stops_and_goes_on_with_another_end(tmp_path: Path) -> None:
    with League.begin(KUHN.stopping(nash_conv=0.5), tmp_path / "kuhn") as league:
        convs = [iteration.nash_conv for iteration in league]
        assert league.stopped() == f"NashConv {convs[-1]:.3g} is at most 0.5" and convs[-2] > 0.5 >= convs[-1]
        assert list(league) == []
        sizes = [len(population) for population in league.mixture.populations]
        assert sizes == [len(convs)] * 2 and league.rows[-1]["sizes"] == sizes
    assert play(League.resume(tmp_path / "kuhn", nash_conv=0.0, iterations=len(convs))) == 1
    assert League.resume(tmp_path / "kuhn").stopped() == f"iteration {len(convs)} was to be the last"
    for stop, reason in ((Stop(policies=2), "a seat has 2 policies"), (Stop(seconds=0), "0 seconds are over")):
        with League.begin(
            Settings(game="kuhn_poker", evaluation=KUHN.evaluation, stop=stop), tmp_path / reason
        ) as short:
            assert sum(1 for _ in short) == (2 if stop.policies else 1)
            assert short.stopped() == reason


def test_settings_are_written_as_they_are_read(tmp_path: Path) -> None:
    settings = Settings(
        env="a_module:a_game",
        env_kwargs={"size": 3, "title": "Sea"},
        seats={"taggers": ["tagger_*"], "runner": ["runner"]},
        solver="projected_replicator",
        solver_kwargs={"dt": 0.5},
        stop=Stop(seconds=2.5),
        evaluation=Evaluation(half_width=0.5, max_episodes=400),
    )
    (tmp_path / "league.toml").write_text(settings.toml())
    assert Settings.read(tmp_path / "league.toml").toml() == settings.toml()
    example = Settings.read(Path(__file__).parents[2] / "examples" / "league.toml")
    assert example.game is not None and example.stop != Stop()


def test_teams_sit_where_settings_say(tmp_path: Path) -> None:
    seats = {"first": ["player_0"], "rest": ["player_[1-9]"]}
    env: dict[str, Any] = dict(
        env="pufferlib.population.games:GameEnv", env_kwargs={"game": "kuhn_poker"}, stop=Stop(iterations=1)
    )
    env["evaluation"] = Evaluation(num_envs=2)
    with League.begin(Settings(**env, seats=seats), tmp_path / "league") as league:
        assert [(seat.name, seat.places) for seat in league.seats] == [("first", (0,)), ("rest", (1,))]
        with pytest.raises(PlanError, match='oracle="exact" needs a game, and env='):
            next(iter(league))
    for wrong, message in (
        ({"first": ["player_0"]}, "agent player_1 has no seat"),
        ({**seats, "third": ["nobody"]}, "no agent has the seat third; the agents are player_0, player_1"),
    ):
        with League.begin(Settings(**env, seats=wrong), tmp_path / "league") as league:
            with pytest.raises(PlanError, match=message):
                league.seats  # noqa: B018


@pytest.mark.parametrize(
    "text, message",
    [
        ("", 'a league has neither game nor env; set one of them, such as game = "kuhn_poker"'),
        ('game = "a"\nenv = "b"', "a league has game='a' and env='b'; set one"),
        ('gane = "kuhn_poker"', "league.toml has gane, which is no setting; did you mean game?"),
        ('game = "kuhn_poker"\nsolver = "alpharank"', "solver='alpharank' is none; did you mean alpha_rank?"),
        ('game = "kuhn_poker"\noracle = "exakt"', "oracle='exakt' is none; did you mean exact?; module:function names"),
        ('game = "kuhn_poker"\n[stop]\nnash = 1', "league.toml, [stop], has nash, which is no setting; did you mean"),
        ('game = "kuhn_poker"\n[stop]\niterations = -1', "[stop] has iterations=-1; use 0 or more"),
        ('game = "kuhn_poker"\n[stop]\nnash_conv = nan', "[stop] has nash_conv=nan; use 0 or more"),
        ('game = "kuhn_poker"', "nothing would end this league"),
        ('game = "kuhn_poker"\nstop = 3', "league.toml has stop=3; it takes a table: [stop]"),
        ('game = "kuhn_poker"\n[evaluation]\npayoffs = "some"', "it takes 'exact' or 'sampled'"),
        ('game = "kuhn_poker"\n[solver_kwargs]\nalfa = 1', "solver alpha_rank takes no alfa; did you mean alpha?"),
        (
            'game = "kuhn_poker"\n[oracle_kwargs]\nsteps = 1\n[stop]\niterations = 1',
            "oracle exact takes no steps",
        ),
        ('game = "kuhn_pocker"\n[stop]\niterations = 1', "no game 'kuhn_pocker'; did you mean kuhn_poker?"),
        ('env = "ocean/bandid"\n[stop]\niterations = 1', "bandid"),
        ('game = "kuhn_poker"\n[seats]\na = ["b"]', "a game's players are its seats"),
        ('env = "a:b"\n[seats]\na = "b"', "seat a has 'b'; it takes a list"),
        ('game = "kuhn_poker"\nseed = -1', "seed=-1 is negative"),
        ("game =", "is no TOML"),
        (WORKERS.replace("=2", "=-1"), "[workers] has actors=-1; use 0 or more"),
        (f"{WORKERS}\n[evaluation]\npayoffs = 'exact'", "[workers] has no tasks if the exact oracle also"),
        (f"{WORKERS}\n[evaluation]\nbackend = 'ray'", "use another backend, or no workers"),
        (f"{WORKERS}\n[evaluation]\nbatch_size = 3", "leave it out"),
        (WORKERS.replace("actors=2", "address='a:1'"), "no Ray actors; set actors = 2"),
        (WORKERS.replace("actors=2", "task_timeout=0"), "use seconds above 0"),
        (WORKERS.replace("actors=2", "task_timeout=nan"), "use seconds above 0"),
        (WORKERS.replace("actors", "actor"), "did you mean actors?"),
    ],
)
def test_mistakes_are_raised_before_there_is_a_folder(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "league.toml").write_text(text)
    with pytest.raises(PufferError, match=re.escape(message)):
        League.begin(Settings.read(tmp_path / "league.toml"), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_folders_that_are_no_leagues_are_refused(tmp_path: Path) -> None:
    play(League.begin(KUHN, tmp_path / "all" / "kuhn"))
    with pytest.raises(CallError, match="--resume .*kuhn continues it"):
        League.begin(KUHN, tmp_path / "all" / "kuhn")
    with pytest.raises(PlanError, match="leagues are in it, such as .*kuhn"):
        League.resume(tmp_path / "all")
    with pytest.raises(PlanError, match="there is no such folder; `puffer league run` makes one"):
        League.resume(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="is a file, or lies in one"):
        League.begin(KUHN, tmp_path / "file")
    state = tmp_path / "all" / "kuhn" / "state.json"
    written = json.loads(state.read_text())
    for changed in ({**written, "policies": 1000}, {**written, "format": "2"}, {"format": written["format"]}, []):
        state.write_text(json.dumps(changed))
        with pytest.raises(CheckpointError):
            League.resume(tmp_path / "all" / "kuhn")


class Patient:
    """An oracle of one's own, for any environment: it has each policy play an action that comes of the seed."""

    def __init__(self, setup: Setup, most: int = 3) -> None:
        self.setup, self.most, self.closed = setup, most, False
        self.vec = setup.make_env(num_envs=1)

    def initial(self, seat: int) -> int:
        rng = np.random.default_rng((self.setup.seed, len(self.setup.pool)))
        weights = {"logits": 100 * torch.eye(3)[int(rng.integers(self.most))]}
        return self.setup.pool.add(weights, Origin(f"{__name__}:Always"), self.setup.seats[seat].name)

    def respond(self, seat: int, mixture: Any) -> int:
        return self.initial(seat)

    def close(self) -> None:
        self.vec.close()
        self.closed = True


class Always(nn.Module):
    def __init__(self, observation_layout: Any, action_space: Any) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(3))

    def forward(self, observations: Any, state: Any, action_mask: Any) -> Any:
        return self.logits.expand(len(observations), -1), observations.new_zeros(len(observations)), state


class RockPaperScissors(pufferlib.PufferEnv):
    """One round."""

    num_agents = 2
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = spaces.Discrete(3)

    def step(self, actions: Any) -> None:
        won = (0, 1, -1)[(actions[0] - actions[1]) % 3]
        self.rewards[:] = [won, -won]
        self.terminations[:] = True


def test_an_environment_and_an_oracle_of_ones_own(tmp_path: Path) -> None:
    settings = Settings(
        env=f"{__name__}:RockPaperScissors",
        oracle=f"{__name__}:Patient",
        oracle_kwargs={"most": 3},
        solver="fictitious_play",
        evaluation=Evaluation(min_episodes=2, num_envs=4),
        stop=Stop(iterations=3),
    )
    play(League.begin(settings, tmp_path / "whole"))
    with League.begin(settings, tmp_path / "parts") as league:
        next(iter(league))
        oracle = league.oracle()
    assert oracle.closed
    play(League.resume(tmp_path / "parts"))
    expected = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == expected and expected["rows"][-1]["nash_conv"] is None
    assert set(np.ravel(expected["means"])) <= {-1.0, 0.0, 1.0} and len(set(expected["digests"])) > 1
    with pytest.raises(PlanError, match="Patient takes no moist; did you mean most"):
        League.begin(replace(settings, oracle_kwargs={"moist": 1}), tmp_path / "wrong")
    for change, message in (
        ({"stop": Stop(nash_conv=0.1)}, "has nash_conv, which oracle .*Patient cannot compute; stop by iterations"),
        ({"evaluation": Evaluation("exact")}, 'payoffs="exact", which oracle .*Patient cannot compute; use "sampled"'),
    ):
        with League.begin(replace(settings, **change), tmp_path / "wrong") as league:  # type: ignore[arg-type]
            with pytest.raises(PlanError, match=message):
                next(iter(league))
