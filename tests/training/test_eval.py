"""Evaluation: who plays, complete episodes and cut ones, what is said of their mean, and the command."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pettingzoo
import pytest
import torch
from gymnasium import spaces
from rich.console import Console
from torch import nn

import pufferlib
from cleanrl_demo import ppo
from pufferlib.cli import main
from pufferlib.errors import CheckpointError, PlanError
from pufferlib.evaluation.seeds import derived_seeds
from pufferlib.models import Actor, BatchPlayer, Origin, make_policy, save_policy
from pufferlib.training.evaluation import SEED, Subject, Summary, evaluate, play, policy_batch_of
from pufferlib.training.plot import read
from pufferlib.training.random_policy import random_actor
from pufferlib.training.recent_statistics import RecentStatistics
from pufferlib.training.report import Report
from pufferlib.training.terminal_view import HalfBlocks, TerminalView

pytestmark = pytest.mark.beside

BACKENDS = [("serial", 4), ("serial", 3), ("multiprocessing", 4), ("pool", 2)]


class Clock(gymnasium.Env):
    """Observes its number and the steps taken; pays 1 a step, and ends after as many as its number says, if ever."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(3)
    metadata = {"render_modes": ["ansi"], "render_fps": 1000}

    def __init__(self, env_index=0, endless=(), render_mode=None):
        self.index, self.endless, self.render_mode = env_index, env_index in endless, render_mode

    def seen(self):
        return np.array([self.index, self.time], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        over = self.time == 3 + self.index and not self.endless
        return self.seen(), 1.0, over, False, {"score": float(self.index)} if over else {}

    def render(self):
        return f"tick {self.time}"


# ------------------------------------------------------------------------------------------------------ who plays


class Remembering(nn.Module):
    """Counts an agent's rows in its state, and compares that with the time that it sees; plays the count."""

    def __init__(self, layout, action_space, start=0.0):
        super().__init__()
        self.start, self.largest = start, 0

    def initial_state(self, num_rows):
        return torch.full((num_rows, 1), self.start), torch.zeros(num_rows, 2)

    def forward(self, observations, state, action_mask):
        counts, numbers = state
        assert torch.equal(counts[:, 0] - self.start, observations[:, 1])
        assert not (numbers[:, 0] != observations[:, 0])[observations[:, 1] > 0].any()
        self.largest = max(self.largest, int(counts.max() - self.start))
        return torch.zeros(len(counts), 3), torch.zeros(len(counts)), (counts + 1, observations)


@pytest.mark.parametrize(("backend", "batch_size"), BACKENDS)
@pytest.mark.parametrize("start", [0.0, 5.0])
def test_a_policy_remembers_by_agent_and_starts_again_with_each_episode(backend, batch_size, start):
    with pufferlib.make(Clock, backend=backend, num_envs=4, num_workers=2, batch_size=batch_size, seed=1) as vec:
        policy = Remembering(None, None, start)
        actor = Actor(lambda *spaces: policy, vec.observation_layout, vec.single_action_space)
        act = BatchPlayer(actor, 4 * vec.agents_per_env)
        evaluate(vec, act, 20, seed=1)
        evaluate(vec, act, 4, seed=2)
    assert policy.largest == 6


class Masked(Clock):
    """Allows one switch position and one side, and refuses all others; aims are free."""

    observation_space = spaces.Dict(action_mask=spaces.MultiBinary(5), rest=Clock.observation_space)
    action_space = spaces.Dict(
        aim=spaces.Box(-3, 3, (1,), np.float32), side=spaces.Discrete(2, start=4), switch=spaces.Discrete(3)
    )

    def seen(self):
        self.side, self.switch = self.np_random.integers(2), self.np_random.integers(3)
        mask = np.zeros(5, np.int8)
        mask[[self.side, 2 + self.switch]] = 1
        return {"action_mask": mask, "rest": super().seen()}

    def step(self, action):
        assert (action["side"] - 4, action["switch"]) == (self.side, self.switch)
        assert -3 <= action["aim"][0] <= 3
        return super().step(action)


def test_chance_plays_what_is_allowed():
    with pufferlib.make(Masked, num_envs=3, seed=1) as vec:
        assert len(evaluate(vec, random_actor(vec, seed=2), 12, seed=1)) == 12


def test_chance_plays_the_whole_space_and_its_seed_repeats_it():
    def actions(seed):
        with pufferlib.make(Clock, num_envs=50, seed=1) as vec:
            act = random_actor(vec, seed=seed)
            vec.async_reset()
            batch = vec.recv()
            return np.stack([act(batch) for _ in range(20)])

    drawn = actions(1)
    np.testing.assert_array_equal(drawn, actions(1))
    assert not np.array_equal(drawn, actions(2))
    np.testing.assert_allclose(np.bincount(drawn.ravel()), [333] * 3, atol=60)


# ------------------------------------------------------------------------------------------------------ episodes


@pytest.mark.parametrize(("backend", "batch_size"), BACKENDS)
def test_what_never_ends_is_cut(backend, batch_size):
    kwargs = dict(num_envs=4, num_workers=2, batch_size=batch_size, env_kwargs={"endless": (0, 2)}, seed=1)
    with pufferlib.make(Clock, backend=backend, **kwargs) as vec:
        episodes = evaluate(vec, random_actor(vec), 13, seed=1, max_steps=6)
    rows = sorted((episode.env_id, episode.episodic_return, episode.length, episode.cut) for episode in episodes)
    # Environment 3 ends at step 6 itself, which is no cut.
    assert rows == [(0, 6, 6, True)] * 4 + [(1, 4, 4, False)] * 3 + [(2, 6, 6, True)] * 3 + [(3, 6, 6, False)] * 3
    assert {episode.score for episode in episodes} == {None, 1.0, 3.0}


class Random(gymnasium.Env):
    """Pays what is random, for a random number of steps, which depends on the action."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        over = self.np_random.random() < (0.1, 0.3)[action]
        return self.np_random.random(2, np.float32), self.np_random.random(), over, False, {}


class Indexed(Random):
    def __init__(self, env_index):
        self.index = env_index

    def step(self, action):
        *row, _ = super().step(action)
        return *row, {"score": self.index}


@pytest.mark.parametrize("env", [Random, Indexed])
def test_a_trainers_evaluation_is_the_same_whatever_the_backend(env):
    """To the bit, of a sampled policy; if environments differ, each plays its share."""
    results = []
    for backend, batch_size in BACKENDS:
        with pufferlib.make(env, backend=backend, num_envs=4, num_workers=2, batch_size=batch_size, seed=1) as vec:
            torch.manual_seed(1)
            actor = Actor("default", vec.observation_layout, vec.single_action_space)
            how = {"policy_kwargs": {"policy_batch": policy_batch_of(vec), "greedy": False, "torch_threads": 1}}
            results.append(evaluate(vec, actor, 13, seed=1, alike=env is Random, **how))
    assert all(episodes == results[0] for episodes in results)
    assert len({episode.episodic_return for episode in results[0]}) == 13
    ids = [0] * 13 if env is Random else [0, 1, 2, 3] * 3 + [0]
    assert [episode.env_id for episode in results[0]] == ids
    assert [episode.score for episode in results[0]] == ([None] * 13 if env is Random else ids)


class Failing(Random):
    """Fails in every third episode, by its seed."""

    def reset(self, *, seed=None, options=None):
        self.fails = seed % 3 == 0
        return super().reset(seed=seed)

    def step(self, action):
        if self.fails:
            raise ValueError("no further")
        return super().step(action)


@pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning")
def test_episodes_that_fail_twice_are_left_out_of_a_trainers_evaluation():
    with pufferlib.make(Failing, num_envs=4, seed=1, on_error="restart", max_restarts=None) as vec:
        with pytest.warns(RuntimeWarning, match=r"(?s)failed 2 times: .*13 of 30 episodes failed"):
            episodes = evaluate(vec, random_actor(vec), 30, seed=1, alike=True)
        assert len(episodes) == sum(seed % 3 != 0 for seed in derived_seeds(1, 30).tolist()) < 30
    with pufferlib.make(Failing, num_envs=4, seed=1) as vec, pytest.raises(pufferlib.WorkerError, match="no further"):
        evaluate(vec, random_actor(vec), 30, seed=1, alike=True)


def test_progress_is_reported():
    counts_seen = []
    with pufferlib.make(Clock, num_envs=2, seed=1) as vec:
        evaluate(vec, random_actor(vec), 2, seed=1, after=lambda *counts: counts_seen.append(counts))
    assert counts_seen == [(0, 0), (0, 2), (0, 4), (1, 6), (2, 7)]  # the first of them is reset while the other ends


# ------------------------------------------------------------------------------------------------- several agents


class Herd(pettingzoo.ParallelEnv):
    """Wolves and a sheep; each step pays an agent its place plus one. The last of them leaves after two steps."""

    metadata = {"name": "herd"}

    def __init__(self, names=("wolf_0", "wolf_1", "sheep"), listed=True, env_index=0):
        self.names, self.length = list(names), 3 + env_index % 2
        if listed:
            self.possible_agents = self.names

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.time = list(self.names), 0
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.time += 1
        over = {agent: self.time == (2 if agent == self.names[-1] else self.length) for agent in self.agents}
        rewards = {agent: self.names.index(agent) + 1.0 for agent in self.agents}
        infos = {agent: {"episode": "of its own"} if agent == "rude" else {} for agent in self.agents}
        seen = {agent: np.zeros(1, np.float32) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, over, dict.fromkeys(over, False), infos


class Flock(pufferlib.PufferEnv):
    """Two agents without a name of their own, one of which leaves early."""

    num_agents = 2
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0

    def step(self, actions):
        self.time += 1
        self.rewards[:] = [1, 10]
        self.terminations[:] = [self.time == 5, self.time == 2]


@pytest.mark.parametrize(("backend", "batch_size"), BACKENDS)
def test_each_agents_return_is_reported_of_complete_and_of_cut_episodes(backend, batch_size):
    kwargs = dict(backend=backend, num_envs=4, num_workers=2, batch_size=batch_size, seed=1)
    with pufferlib.make(Herd, **kwargs) as vec:
        assert vec.agent_names == ("wolf_0", "wolf_1", "sheep")
        complete = evaluate(vec, random_actor(vec), 8, seed=1)
        cut = evaluate(vec, random_actor(vec), 8, seed=1, max_steps=3)
    even, odd = {"wolf_0": 3, "wolf_1": 6, "sheep": 6}, {"wolf_0": 4, "wolf_1": 8, "sheep": 6}
    for episodes, of_odd in ((complete, odd), (cut, even)):
        for episode in episodes:
            assert episode.returns_of == (of_odd if episode.env_id % 2 else even)
            assert episode.episodic_return == sum(episode.returns_of.values())
    assert {episode.cut for episode in complete} == {False} and {episode.cut for episode in cut} == {False, True}
    with pufferlib.make(Flock, **kwargs) as vec:
        episodes = evaluate(vec, random_actor(vec), 8, seed=1)
    assert all(episode.returns_of == {"agent_0": 5, "agent_1": 20} for episode in episodes)


@pytest.mark.parametrize(
    ("names", "returns"),
    [
        (["wolf_0", "rude"], {"wolf_0": 3, "rude": 4}),  # whatever it tells of an episode itself
        ([7, ("a", 1)], {"7": 3, "('a', 1)": 4}),
        (["only"], {}),
        ([*(f"wolf_{i}" for i in range(12)), "sheep"], {"wolf": 3 * 6.5, "sheep": 26}),
        ([*(f"wolf_{i}" for i in range(13))], {}),
        ([f"{letter}_0" for letter in "abcdefghijklm"], {}),
    ],
)
def test_many_agents_are_reported_by_their_type(names, returns):
    with pufferlib.make(Herd, env_kwargs={"names": names}, seed=1) as vec:
        (episode,) = evaluate(vec, random_actor(vec), 1, seed=1)
    assert episode.returns_of == returns


def test_agents_that_share_places_are_not_distinguished():
    how = dict(env_kwargs={"listed": False}, wrap_kwargs={"max_agents": 4})
    with pufferlib.make(Herd, **how, seed=1) as vec:
        (episode,) = evaluate(vec, random_actor(vec), 1, seed=1)
    assert (vec.agent_names, episode.returns_of) == ((), {})


def test_each_agents_return_is_shown_and_stored(tmp_path, capsys):
    how = dict(backend="serial", num_envs=4, rollout_length=8, eval_episodes=4, checkpoint_every=200)
    folder = ppo.train(ppo.Config(**how, total_steps=400, runs=str(tmp_path)), Herd).run_folder
    for agent, lowest, highest in (("wolf_0", 3, 4), ("wolf_1", 6, 8), ("sheep", 6, 6)):
        values = read(folder, f"charts/return_of/{agent}").values
        assert lowest <= values.min() <= values.max() <= highest
    ppo.resume(folder, Herd, 500)
    assert read(folder, "charts/return_of/sheep").values[-1] == 6
    statistics, again = RecentStatistics(("a", "b")), RecentStatistics(("a", "b"))
    ends = [{"env_id": 0, "agent_id": agent_id, "episode": {"r": 1.0 + agent_id, "l": 1}} for agent_id in (0, 1)]
    statistics.take([*ends, {"env_id": 0, "env": True, "episode": {"r": 3.0, "l": 1}}])
    again.restore(statistics.state())
    assert again.charts() == statistics.charts() and again.charts()["charts/return_of/b"] == 2
    with Report("a run", 100, None) as report:
        report.scalars = {"losses/td_loss": 0.5, **again.charts()}
        assert [*report.dashboard().episodes] == ["return", "of a", "of b", "length"]
        assert report.dashboard().learning == {"td loss": 0.5}
    capsys.readouterr()
    assert main(["eval", str(folder), "--env", f"{__name__}:Herd", "--episodes", "2", "--backend", "serial"]) == 0
    output = capsys.readouterr().out
    names = [line.split("  ")[0] for line in output.splitlines()[2:]]
    assert names[:5] == ["return", "return of wolf_0", "return of wolf_1", "return of sheep", "length"]


# ----------------------------------------------------------------------------------------------- what is said of it


@pytest.mark.parametrize("num_samples", [40, pytest.param(100, marks=pytest.mark.long)])
def test_the_interval_covers_as_many_means_as_it_says(num_samples):
    rng = np.random.default_rng(1)
    summaries = [Summary.of(rng.exponential(2.0, 40)) for _ in range(num_samples)]
    covered = np.mean([summary.low <= 2.0 <= summary.high for summary in summaries])
    assert 0.86 <= covered <= 0.99
    normal = rng.normal(10, 3, 400)
    summary = Summary.of(normal)
    error = 1.96 * normal.std() / 20
    assert (summary.low, summary.high) == pytest.approx((normal.mean() - error, normal.mean() + error), abs=0.05)
    assert summary == Summary.of(normal)


def test_a_summary_says_how_values_lie():
    assert Summary.of([4.0]) == (4.0,) * 6
    summary = Summary.of([1, 2, 9])
    assert (summary.mean, summary.minimum, summary.median, summary.maximum) == (4.0, 1.0, 2.0, 9.0)
    assert 1 <= summary.low < 4 < summary.high <= 9


@pytest.mark.long
def test_the_same_seed_gives_the_same_episodes_whatever_the_backend():
    def episodes(**kwargs):
        how = {"num_episodes": 6, "num_envs": 3, **kwargs}
        return play(Subject.of("CartPole-v1", "mlp"), **how).episodes

    for how in ({"greedy": True}, {}):
        serial = episodes(backend="serial", **how)
        assert serial == episodes(backend="multiprocessing", num_workers=2, num_envs=4, **how)
        assert serial == episodes(backend="pool", num_workers=2, batch_size=1, **how)
        assert serial != episodes(backend="serial", seed=1, **how)


def test_torch_is_left_as_it_was():
    before, num_threads = torch.random.get_rng_state(), torch.get_num_threads()
    play(Subject.of("CartPole-v1", "lstm"), num_episodes=1, backend="serial")
    assert torch.equal(torch.random.get_rng_state(), before) and torch.get_num_threads() == num_threads


# ----------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy in it, as a trainer leaves it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    torch.manual_seed(1)
    with pufferlib.make("ocean/squared") as vec:
        policy = make_policy("lstm", vec.observation_layout, vec.single_action_space, hidden_size=8)
    origin = Origin("lstm", {"hidden_size": 8}, "ocean/squared", {"num_targets": 2})
    save_policy(tmp_path / "policy.pt", policy, origin)
    return tmp_path


def test_eval_says_how_good_a_run_is(run_folder, capsys):
    quick = ["--episodes", "12", "--backend", "serial"]
    assert main(["eval", str(run_folder), *quick]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ocean/squared, {run_folder}/policy.pt: 12 episodes, seed {SEED}, sampled actions"
    assert [line.split()[0] for line in lines[2:5]] == ["return", "score", "length"]
    assert "the interval of the mean, by bootstrap over episodes" in lines[5]
    assert main(["eval", str(run_folder / "policy.pt"), *quick, "--json", "--greedy", "--seed", "3"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert (results["env"], results["greedy"], results["seed"], results["num_episodes"]) == (
        "ocean/squared",
        True,
        3,
        12,
    )
    assert results["length"]["mean"] == 6 and len(results["episodes"]) == 12  # two targets, as in training
    assert results["return"]["low"] <= results["return"]["mean"] <= results["return"]["high"]
    assert main(["eval", str(run_folder), *quick, "--json", "--env-kwargs", "num_targets=1"]) == 0
    assert json.loads(capsys.readouterr().out)["length"]["mean"] == 3


class Stopped(gymnasium.Env):
    """Ends each episode after its first step; Ctrl-C is pressed in the sixth step of the process."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Stopped.num_steps += 1
        if Stopped.num_steps == 6:
            signal.raise_signal(signal.SIGINT)
        return np.zeros(1, np.float32), 1.0, True, False, {}


def test_eval_prints_what_was_finished_at_ctrl_c_and_goes_on_from_its_file(tmp_path, capsys):
    words = ["eval", f"{__name__}:Stopped", "--policy", "random", "--episodes", "9", "--num-envs", "1"]
    words += ["--backend", "serial", "--save", str(tmp_path / "episodes.jsonl")]
    assert main(words) == 130
    output = capsys.readouterr().out
    assert "of 9 episodes; the same command goes on" in output and "return" in output
    assert main([*words, "--json"]) == 0 and Stopped.num_steps < 9 + 6
    results = json.loads(capsys.readouterr().out)
    assert (results["num_episodes"], results["return"]["mean"], results["interrupted"]) == (9, 1, False)
    assert main([*words, "--greedy"]) == 1
    assert "with greedy=False and not True; name another file" in capsys.readouterr().err


def test_eval_cuts_and_says_so(capsys):
    assert main(["eval", "CartPole-v1", "--policy", "random", "--episodes", "5", "--max-steps", "4"]) == 0
    assert "All were cut at 4 steps; --max-steps allows more." in capsys.readouterr().out


def test_the_command_takes_snapshots(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = ["eval", "ocean/squared", "--policy", "random", "--episodes", "2"]
    assert main([*quick, "--snapshots", "--backend", "cuda", "--device", "host"]) == 0
    assert capsys.readouterr().out.endswith(
        "pictures in snapshots-ocean-squared: snapshot_000.png, snapshot_003.png, episode.gif\n"
        "the episode has 3 steps, and no step 50, 150 or 300: snapshot_003.png is its end\n"
    )
    assert main([*quick, "--snapshots", "2", "1", "--snapshots-folder", "here", "--backend", "serial"]) == 0
    assert capsys.readouterr().out.endswith("pictures in here: snapshot_001.png, snapshot_002.png, episode.gif\n")
    assert len(list((tmp_path / "snapshots-ocean-squared").iterdir())) == len(list((tmp_path / "here").iterdir())) == 3


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 2, "puffer eval needs a policy: `puffer eval runs/…`"),
        (["CartPole-v1"], 1, "no policy for CartPole-v1; pass --policy random"),
        (["CartPol-v1"], 1, 'there is no file or run\'s folder CartPol-v1, and no environment is called "CartPol-v1"'),
        (["a.pt"], 1, "there is no file a.pt; a trainer's run folder has policy.pt"),
        (["."], 1, "the folder . has no policy.pt"),
        (["CartPole-v1", "--policy", "randm"], 1, "policy='randm' is not one of"),
        (["CartPole-v1", "--policy", "mpl"], 1, "did you mean 'mlp'?"),
        (["CartPole-v1", "--policy", "random", "--episodes", "1.5"], 2, "--episodes 1.5 is not a whole number; write"),
        (["CartPole-v1", "--policy", "random", "--episodes", "0"], 1, "0 episodes of at most 30000 steps"),
        (["CartPole-v1", "--policy", "random", "--watch"], 1, "there is no terminal to watch in; --video FILE.gif"),
        (["CartPole-v1", "--policy", "random", "--video", "a.avi"], 1, "a.avi: films are written as .gif or .mp4"),
        (["CartPole-v1", "--policy", "random", "--video", "no/a.gif"], 1, "there is no folder no for a.gif"),
        (["CartPole-v1", "--policy", "random", "--video", "a.gif", "--videos", "101"], 1, "101 videos of 100 episodes"),
        (["CartPole-v1", "--policy", "random", "--batch-size", "0"], 1, "batch_size=0 are impossible; use 1 or more"),
        (["CartPole-v1", "--policy", "random", "--num-envs", "0"], 1, "num_envs=0 and batch_size=None are impossible"),
    ],
)
def test_what_cannot_be_evaluated_is_said_at_once(words, status, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["eval", *words]) == status
    output = capsys.readouterr()
    assert says in output.err and "Traceback" not in output.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["my.py"], ["my.py", "--policy", "random"], ["./my.py", "--env", "CartPole-v1"]])
def test_a_program_is_no_policy(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my.py").write_text("raise SystemExit('nobody runs it')")
    assert main(["eval", *words]) == 1
    message = capsys.readouterr().err
    assert message.startswith(
        "puffer: my.py is a program, and no policy; name the folder of a run or its policy.pt, or an "
    )
    assert "my:function" in message and message.count("\n") == 1


def test_a_checkpoint_keeps_to_what_it_was_made_for(run_folder):
    with pytest.raises(PlanError, match="has a policy of its own; name an environment instead"):
        Subject.of(run_folder, "random")
    with pytest.raises(CheckpointError, match="holds a policy for other observations or actions"):
        play(Subject.of(run_folder, env="CartPole-v1"), num_episodes=1, backend="serial")
    save_policy(run_folder / "policy.pt", nn.Linear(1, 1), Origin())
    with pytest.raises(CheckpointError, match="does not name the environment; name it: --env"):
        Subject.of(run_folder)


# ----------------------------------------------------------------------------------------------------- in a terminal


def terminal(**how):
    return Console(file=io.StringIO(), force_terminal=True, width=40, height=12, color_system="truecolor", **how)


def test_an_environment_is_shown_step_by_step():
    console = terminal()
    play(Subject.of(__name__ + ":Clock", "random"), num_episodes=2, watch=console)
    output = console.file.getvalue()
    places = [output.index(f"tick {tick}", output.index("episode 1  step 3")) for tick in range(4)]
    assert places == sorted(places)
    for text in ("episode 1  step 0  return 0", "episode 1  step 3  return 3", "episode 2  step 3  return 3"):
        assert text in output
    assert "\x1b[?25h" in output  # the cursor is back


def test_ctrl_c_gives_the_terminal_back():
    console = terminal()
    with pufferlib.make(Clock, env_kwargs={"render_mode": "ansi"}) as vec:
        vec.async_reset()
        with pytest.raises(KeyboardInterrupt), TerminalView(vec, console) as watch:
            watch.see(vec.recv())
            raise KeyboardInterrupt
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")


def test_pictures_are_half_blocks():
    picture = np.arange(3 * 4 * 3, dtype=np.uint8).reshape(3, 4, 3)  # an odd number of lines
    console = terminal()
    drawn, line = np.zeros((4, 4, 3), np.uint8), 0
    column = 0
    for segment in HalfBlocks(picture).__rich_console__(console, console.options):
        if segment.text == "\n":
            line, column = line + 2, 0
            continue
        run = slice(column, column + len(segment.text))
        drawn[line, run], drawn[line + 1, run] = segment.style.color.triplet, segment.style.bgcolor.triplet
        column = run.stop
    np.testing.assert_array_equal(drawn[:3], picture)
    console.print(HalfBlocks(np.zeros((100, 30, 3), np.uint8)[:4]))
    assert "▀" * 30 in console.file.getvalue()  # one code for what has one colour


def test_pictures_are_made_to_fit_the_terminal():
    console = terminal()
    play(Subject.of("ocean/squared", "random"), num_episodes=1, watch=console)
    with pufferlib.make("CartPole-v1", env_kwargs={"render_mode": "rgb_array"}) as vec:
        vec.async_reset()
        with TerminalView(vec, console) as watch:
            watch.see(vec.recv())
    lines = [line for line in console.file.getvalue().splitlines() if "▀" in line]
    assert lines and max(line.count("▀") for line in lines) <= 40


class Coin(gymnasium.Env):
    """Two steps or forty, by a coin; each pays 1."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.time = (2, 40)[int(self.np_random.integers(2))], 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 1.0, self.time == self.length, False, {}


def test_copies_of_an_environment_that_is_vectorized_already_are_distinguished():
    """Each contributes as many episodes, long ones too, and is cut by its own length."""
    modes = getattr(gymnasium.vector, "AutoresetMode", None)
    kwargs = {} if modes is None else {"autoreset_mode": modes.NEXT_STEP}
    with pufferlib.make(lambda: gymnasium.vector.SyncVectorEnv([Coin] * 8, **kwargs), num_envs=2) as vec:
        assert vec.copies_per_env == 8
        act = random_actor(vec, seed=1)
        episodes = [episode for seed in range(20) for episode in evaluate(vec, act, 16, seed=seed)]
        assert {episode.length for episode in episodes} == {2, 40} and not any(episode.cut for episode in episodes)
        assert 16 < np.mean([episode.length for episode in episodes]) < 26  # 21; of the first to finish, far less
        assert all(episode.episodic_return == episode.length for episode in episodes)
        for first in range(0, len(episodes), 16):
            assert sorted(episode.env_id for episode in episodes[first : first + 16]) == list(range(16))
        cut = evaluate(vec, act, 32, seed=3, max_steps=30)
        assert {(episode.length, episode.cut) for episode in cut} == {(2, False), (30, True)}
