"""Videos: which rows become pictures, in whatever batches; which episodes become films; and the files."""

from __future__ import annotations

import builtins
import io
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image, ImageSequence
from rich.console import Console

import pufferlib
from cleanrl_demo.ppo import Config, train
from pufferlib.errors import CallError, MissingExtra, PlanError
from pufferlib.evaluation import film as film_module
from pufferlib.evaluation.film import Film, checked_format, save, scaled
from pufferlib.evaluation.filming import Filming, render_mode
from pufferlib.evaluation.seeds import derived_seeds
from pufferlib.training.evaluation import Subject, evaluate, play
from pufferlib.training.random_policy import random_actor
from pufferlib.training.video import Videos, with_pictures

pytestmark = pytest.mark.beside

BACKENDS = [("serial", 4), ("serial", 3), ("multiprocessing", 4), ("pool", 2)]


class Pictured(gymnasium.Env):
    """Its picture says which environment it is, which of its episodes this is, and how many steps it has taken."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, env_index=0, length=3, render_mode=None, fails=False):
        self.index, self.length, self.render_mode, self.fails = env_index, length + env_index, render_mode, fails
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        if self.fails and self.time == 2:
            raise ValueError("no further")
        return np.zeros(1, np.float32), 1.0, self.time == self.length, False, {}

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((8, 6, 3), (self.index, self.episode, self.time), np.uint8)


class Pair(pufferlib.PufferEnv):
    """Two agents, one of which leaves early."""

    num_agents = 2
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0

    def step(self, actions):
        self.time += 1
        self.rewards[:] = 1
        self.terminations[:] = [self.time == 2, self.time == 5]

    def render(self):
        return np.full((4, 4, 3), self.time, np.uint8)


def pictured(**kwargs):
    """What Filming is to be given: a VecEnv whose environments 0 and 2 have pictures."""
    mode = {"render_mode": "rgb_array"}
    env_kwargs = [{**(mode if env_id in (0, 2) else {})} for env_id in range(4)]
    return pufferlib.make(Pictured, **{"num_envs": 4, "num_workers": 2, "env_kwargs": env_kwargs, "seed": 1, **kwargs})


def rows_of(film: Film) -> list[tuple[int, ...]]:
    assert all(len(np.unique(frame.reshape(-1, 3), axis=0)) == 1 for frame in film)
    return [tuple(frame[0, 0].tolist()) for frame in film]


# -------------------------------------------------------------------------------------------------- whole episodes


@pytest.mark.parametrize(("backend", "batch_size"), BACKENDS)
def test_a_film_has_every_row_of_an_episode_from_the_reset_to_the_last_step(backend, batch_size):
    films: dict[int, list[Film]] = {0: [], 2: []}
    with pictured(backend=backend, batch_size=batch_size) as vec:
        # Environments whose episodes have all been played are idle, and would be filmed as well.
        keep = {env_id: of_env.append for env_id, of_env in films.items()}
        filming = Filming(vec, (0, 2), lambda env_id: len(films[env_id]) < 4, lambda env_id, film: keep[env_id](film))
        evaluate(vec, random_actor(vec), 16, seed=1, see=filming.see)
    for env_id, length in ((0, 3), (2, 5)):
        assert len(films[env_id]) == 4
        for number, film in enumerate(films[env_id], 1):
            assert rows_of(film) == [(env_id, number, time) for time in range(length + 1)]
            assert (film.fps, film.episodic_return, film.num_left_out) == (20, length, 0)


def test_agents_share_a_picture_and_an_episode_lasts_as_long_as_one_of_them():
    films = []
    with pufferlib.make(Pair, env_kwargs={"render_mode": "rgb_array"}, seed=1) as vec:
        filming = Filming(vec, (0,), lambda env_id: True, lambda env_id, film: films.append(film))
        evaluate(vec, random_actor(vec), 2, seed=1, see=filming.see)
    assert [[time for time, *_ in rows_of(film)] for film in films] == [list(range(6))] * 2
    assert [film.episodic_return for film in films] == [7, 7]


def test_an_episode_that_is_cut_has_a_film_as_far_as_it_went():
    films = []
    with pictured(backend="serial") as vec:
        filming = Filming(vec, (2,), lambda env_id: True, lambda env_id, film: films.append(film))
        evaluate(vec, random_actor(vec), 8, seed=1, max_steps=4, see=filming.see)
        assert len(films) == 1
        filming.finish()
    assert [rows_of(film) for film in films] == [[(2, n, time) for time in range(5)] for n in (1, 2)]


@pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning")
@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_an_episode_that_comes_to_nothing_has_no_film(backend):
    films = []
    how = {"backend": backend, "on_error": "restart", "max_restarts": None}
    kwargs = [{"render_mode": "rgb_array", "fails": env_id == 0} for env_id in range(4)]
    with pictured(env_kwargs=kwargs, **how) as vec:
        filming = Filming(vec, (0, 2), lambda env_id: True, lambda env_id, film: films.append((env_id, film)))
        act = random_actor(vec)
        vec.async_reset()
        for _ in range(20):
            batch = vec.recv()
            filming.see(batch)
            vec.send(act(batch))
        assert vec.restarts[0] > 2
    assert {env_id for env_id, _ in films} == {2} and all(len(film) == 6 for _, film in films)


def test_an_environment_that_cannot_be_drawn_is_an_error_also_after_a_workers_death(monkeypatch):
    def refuse(env_ids):
        asked.append(env_ids)
        if len(asked) == 1:
            vec._recovery.counts[0] += 1  # as if its worker died meanwhile
        assert len(asked) < 9
        raise CallError("no picture")

    asked = []
    with pictured(backend="serial") as vec:
        filming = Filming(vec, (0, 2), lambda env_id: True, lambda env_id, film: None)
        monkeypatch.setattr(vec, "render", refuse)
        with pytest.raises(CallError, match="no picture"):
            evaluate(vec, random_actor(vec), 8, seed=1, see=filming.see)
    assert asked == [[0, 2], [2]]


def test_what_is_not_filmed_is_not_drawn(monkeypatch):
    asked = []
    with pictured(backend="serial") as vec:
        render = vec.render
        monkeypatch.setattr(vec, "render", lambda env_ids: asked.append(env_ids) or render(env_ids))
        filming = Filming(vec, (0, 2), lambda env_id: env_id == 0 and not asked, lambda env_id, film: None)
        evaluate(vec, random_actor(vec), 8, seed=1, see=filming.see)
    assert asked == [[0]] * 4


def test_filming_refuses_what_it_cannot_film():
    with pictured(backend="serial") as vec, pytest.raises(PlanError, match=r"\[0, 1\] have render_mode"):
        Filming(vec, (0, 1), lambda env_id: True, lambda env_id, film: None)
    with (
        pictured(backend="serial", autoreset_mode="same_step") as vec,
        pytest.raises(PlanError, match="leaves no time for the picture of a last step"),
    ):
        Filming(vec, (0,), lambda env_id: True, lambda env_id, film: None)


# -------------------------------------------------------------------------------------------------------- training


def test_the_first_episode_is_filmed_and_then_one_every_so_many_steps(tmp_path):
    with pictured(backend="serial") as vec:
        videos = Videos(vec, tmp_path / "videos", (0, 2), every=10)
        act, steps = random_actor(vec), 0
        vec.async_reset()
        for _ in range(20):
            batch = vec.recv()
            videos.see(batch, steps)
            steps += 1
            vec.send(act(batch))
    # Environment 0 begins an episode every 4 batches, environment 2 every 6.
    assert {path.name for path in videos.written} == {
        "env-0-step-0.gif", "env-0-step-12.gif", "env-2-step-0.gif", "env-2-step-12.gif",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "videos").iterdir()} == {path.name for path in videos.written}


def make_without_pictures() -> Any:
    return Pictured()


class Undrawn(Pictured):
    """Can be stepped with what is installed, but not drawn."""

    def render(self):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")


def test_a_missing_package_for_drawing_is_named_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    says = "pygame is not installed; run `pip install pygame`$"
    with pytest.raises(MissingExtra, match=f'^"Undrawn": {says}'):
        train(Config(video_envs=(0,), backend="serial"), Undrawn)
    subject = Subject.of(f"{__name__}:Undrawn", "random")
    console = Console(file=io.StringIO(), force_terminal=True)
    for options in ({"video": "films"}, {"video": "film.gif"}, {"watch": console}):
        with pytest.raises(MissingExtra, match=f'^"{__name__}:Undrawn": {says}'):
            play(subject, **options)
    assert not list(tmp_path.iterdir()) and not console.file.getvalue()


class Plain(Pictured):
    metadata = {"render_modes": ["human"]}


def test_an_environment_that_cannot_be_filmed_is_refused_before_training():
    with pytest.raises(PlanError, match=r"has human, and not rgb_array"):
        train(Config(video_envs=(0,), backend="serial"), Plain)
    with pytest.raises(PlanError, match="give its creator an argument render_mode"):
        train(Config(video_envs=(0,), backend="serial"), make_without_pictures)
    with pytest.raises(PlanError, match=r"video_envs=\[32\] do not exist; use 0 to 31"):
        train(Config(video_envs=(0, 32)), Pictured)
    with pytest.raises(PlanError, match="runs=None writes nothing"):
        train(Config(video_envs=(0,), runs=None), Pictured)
    with pytest.raises(PlanError, match="video_every=0 steps; use 1 or more"):
        Videos(None, Path("."), (0,), 0)


def test_only_chosen_environments_get_pictures():
    config = Config(video_envs=(1,), num_envs=3, env_kwargs={"length": 4})
    plain, with_mode = {"length": 4}, {"length": 4, "render_mode": "rgb_array"}
    assert with_pictures(config, Pictured) == [plain, with_mode, plain]
    assert with_pictures(Config(env_kwargs=plain), Pictured) == plain
    assert render_mode(Pictured, among=("ansi", "rgb_array")) == "rgb_array"


@pytest.mark.long
def test_a_trainer_films_without_learning_anything_else(tmp_path):
    how = dict(backend="serial", num_envs=4, total_steps=600, rollout_length=8, eval_episodes=4, runs=str(tmp_path))
    filmed = train(Config(video_envs=(0, 3), video_every=200, **how), Pictured)
    plain = train(Config(**how), Pictured)
    assert filmed.episodes == plain.episodes
    assert all(
        (one == two).all() for one, two in zip(*(run.policy.parameters() for run in (filmed, plain)), strict=True)
    )
    assert len(list((filmed.run_folder / "videos").glob("env-3-step-*.gif"))) == 3
    assert not (plain.run_folder / "videos").exists()


# ----------------------------------------------------------------------------------------------------------- files


def test_a_film_is_no_longer_than_it_may_be_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(film_module, "MAX_FRAMES", 3)
    with pictured(backend="serial") as vec:
        videos = Videos(vec, tmp_path, (2,), every=1000)
        evaluate(vec, random_actor(vec), 4, seed=1, see=lambda batch: videos.see(batch, 0))
    (path,) = videos.written
    assert path.name == "env-2-step-0-first-3.gif"
    assert len(frames_of(path)) == 3


def frames_of(path: Path) -> list[np.ndarray]:
    with Image.open(path) as image:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]


def test_a_gif_shows_what_was_taken(tmp_path):
    film = Film(fps=20)
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    for colour in colours:
        picture = np.full((640, 400, 3), colour, np.uint8)
        picture[:320] = 255
        film.add(picture)
    save(tmp_path / "a.gif", [film, film])
    frames = frames_of(tmp_path / "a.gif")
    assert [frame.shape for frame in frames] == [(320, 200, 3)] * 6
    for frame, colour in zip(frames, colours * 2, strict=True):
        np.testing.assert_allclose(frame[:150], 255, atol=8)
        np.testing.assert_allclose(frame[170:], np.broadcast_to(colour, frame[170:].shape), atol=8)
    with Image.open(tmp_path / "a.gif") as image:
        assert image.info["duration"] == 50 and image.info["loop"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_an_mp4_shows_what_was_taken(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    film = Film(fps=10)
    for brightness in (0, 100, 200):
        film.add(np.full((33, 65, 3), brightness, np.uint8))  # odd sizes
    save(tmp_path / "a.mp4", [film])
    command = [ffmpeg.get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4"), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True)
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, 34, 66, 3)
    assert b"10 fps" in done.stderr
    means = frames.mean((1, 2, 3))
    np.testing.assert_allclose(means, [0, 100, 200], atol=6)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_pictures_are_scaled_down_in_proportion_and_never_up():
    picture = np.zeros((400, 600, 3), np.uint8)
    picture[:, 300:] = 200
    small = scaled(picture, (320, 320))
    assert small.shape == (213, 320, 3) and small[0, 0, 0] == 0 and small[0, -1, 0] == 200
    assert scaled(picture, (700, 700)) is picture
    assert scaled(np.zeros((1, 900, 3), np.uint8), (10, 10)).shape == (1, 10, 3)


@pytest.mark.parametrize(
    ("picture", "what"),
    [
        (None, "NoneType"),
        ("###", "str"),
        (np.zeros((4, 4)), r"float64 \(4, 4\)"),
        (np.zeros((4, 4, 4), np.uint8), r"uint8 \(4, 4, 4\)"),
    ],
)
def test_what_is_no_picture_is_refused(picture, what):
    with pytest.raises(PlanError, match=f"returned {what}"):
        Film().add(picture)


@pytest.mark.parametrize(
    ("package", "suffix", "extra"), [("PIL", ".gif", "train"), ("imageio_ffmpeg", ".mp4", "video")]
)
def test_what_is_missing_is_said_with_what_installs_it(package, suffix, extra, monkeypatch):
    original_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == package:
            raise ImportError(name)
        return original_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=rf'pip install "pufferlib\[{extra}\]"'):
        checked_format(Path(f"a.{suffix}"))


# ------------------------------------------------------------------------------------------------------ evaluations


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_an_evaluation_is_filmed_episode_by_episode_or_in_one_file(backend, tmp_path):
    subject = Subject.of(f"{__name__}:Pictured", "random")
    how = {"num_episodes": 6, "num_envs": 2, "backend": backend, "num_videos": 3}
    evaluation = play(subject, video=tmp_path / "films", **how)
    assert {Path(path).name for path in evaluation.videos} == {
        "episode-1-return-3.gif", "episode-2-return-3.gif", "episode-3-return-3.gif",
    }  # fmt: skip
    evaluation = play(subject, video=tmp_path / "all.gif", **how)
    assert evaluation.videos == [str(tmp_path / "all.gif")]
    assert len(frames_of(tmp_path / "all.gif")) == 4 + 4 + 4
    cut = play(subject, video=tmp_path / "cut.gif", num_episodes=1, max_steps=2, backend=backend)
    assert cut.num_cut == 1 and len(frames_of(tmp_path / "cut.gif")) == 3


class Remembering(Pictured):
    """Its first observation and its pictures tell how many episodes it has played; the first one is long."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.length = 30 if seed == derived_seeds(5, 4)[0] else 2
        return observation + self.episode / 100, info


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_episodes_that_are_played_again_are_filmed_again(backend, tmp_path):
    subject = Subject.of(f"{__name__}:Remembering", "random")
    how = {"num_episodes": 4, "num_envs": 2, "backend": backend, "num_videos": 3, "seed": 5}
    with pytest.warns(RuntimeWarning, match="all episodes are played again"):
        evaluation = play(subject, video=tmp_path / "all.gif", snapshots=(0, 12), snapshots_folder=tmp_path, **how)
    assert evaluation.episodes.lengths.tolist() == [30, 2, 2, 2] and not evaluation.notes
    assert len(frames_of(tmp_path / "all.gif")) == 31 + 3 + 3
    assert {tuple(frame[0, 0].tolist())[1] for frame in frames_of(tmp_path / "all.gif")} == {1}
    assert [*pictures_of(evaluation.snapshots)] == ["snapshot_000", "snapshot_012"]
    assert len(frames_of(tmp_path / "episode.gif")) == 31


class Fragile(Pictured):
    """Its worker dies, once, while it draws the picture of a second step."""

    def __init__(self, folder="", **kwargs):
        super().__init__(**kwargs)
        self.died = Path(folder, "died")

    def render(self):
        if self.time == 2 and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().render()


@pytest.mark.parametrize("backend", ["multiprocessing", "pool"])
def test_films_hold_an_episode_once_whose_worker_died_while_it_was_filmed(backend, tmp_path):
    subject = Subject("random", lambda seed: "random", Fragile, {"folder": str(tmp_path), "length": 4})
    how = {"num_episodes": 4, "num_envs": 3, "num_workers": 1, "backend": backend, "num_videos": 4}
    evaluation = play(subject, video=tmp_path / "films", **how)
    assert (tmp_path / "died").exists() and evaluation.episodes.restarts.sum() == 3
    times = [[int(frame[0, 0, 2]) for frame in frames_of(Path(path))] for path in evaluation.videos]
    assert times == [[0, 1, 2, 3, 4]] * 4


# ------------------------------------------------------------------------------------------------------- snapshots


def pictures_of(paths: Any) -> dict[str, np.ndarray]:
    pictures = {}
    for path in map(Path, paths):
        if path.suffix == ".png":
            with Image.open(path) as image:
                pictures[path.stem] = np.asarray(image.convert("RGB"))
    return pictures


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_snapshots_are_of_the_steps_that_were_asked_for(backend, tmp_path):
    subject = Subject.of(f"{__name__}:Pictured", "random", env_kwargs={"length": 9})
    how = {"num_episodes": 6, "num_envs": 2, "backend": backend, "snapshots_folder": tmp_path / "made" / "here"}
    evaluation = play(subject, snapshots=(4, 0, 4), **how)
    names = ["snapshot_000.png", "snapshot_004.png", "episode.gif"]
    assert evaluation.snapshots == [str(tmp_path / "made" / "here" / name) for name in names] and not evaluation.notes
    pictures = pictures_of(evaluation.snapshots)
    assert {name: tuple(picture[0, 0]) for name, picture in pictures.items()} == {
        "snapshot_000": (0, 1, 0), "snapshot_004": (0, 1, 4),
    }  # fmt: skip
    assert len(frames_of(tmp_path / "made" / "here" / "episode.gif")) == 10
    assert evaluation.as_dict()["snapshots"] == evaluation.snapshots


def test_of_an_episode_that_is_over_earlier_there_is_a_picture_of_its_end(tmp_path):
    subject = Subject.of(f"{__name__}:Pictured", "random", env_kwargs={"length": 3})
    how = {"num_episodes": 1, "backend": "serial", "snapshots_folder": tmp_path}
    evaluation = play(subject, snapshots=(1, 5, 7), **how)
    assert list(pictures_of(evaluation.snapshots)) == ["snapshot_001", "snapshot_003"]
    assert evaluation.notes == ["the episode has 3 steps, and no step 5 or 7: snapshot_003.png is its end"]
    cut = play(subject, snapshots=(5,), max_steps=2, video=tmp_path / "cut.gif", **how)
    assert list(pictures_of(cut.snapshots)) == ["snapshot_002"] and len(frames_of(tmp_path / "cut.gif")) == 3


@pytest.mark.parametrize("steps", [(), (-1,), (0, 2000)])
def test_snapshots_that_cannot_be_are_refused(steps, tmp_path):
    subject = Subject.of(f"{__name__}:Pictured", "random")
    with pytest.raises(PlanError, match="impossible; use some of 0 to 1999"):
        play(subject, snapshots=steps, snapshots_folder=tmp_path / "none", backend="serial")
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="is a file; name a folder"):
        play(subject, snapshots=(1,), snapshots_folder=tmp_path / "file", backend="serial")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("env", [pytest.param("tag/grid", marks=pytest.mark.long), "tag/continuous"])
def test_kernels_and_references_make_the_same_pictures_of_the_same_steps(env, tmp_path):
    kwargs = {"num_taggers": 4, "num_runners": 2, "episode_length": 8, "grid_length": 6, "render_mode": "rgb_array"}
    with pufferlib.make(env, env_kwargs=kwargs) as vec:
        vec.reset(seed=derived_seeds(5, 4)[:1].tolist())
        (expected,) = vec.render(env_ids=[0])
    subject = Subject.of(env, "random", env_kwargs={**kwargs, "render_mode": None})
    films, pictures = [], []
    for backend, device in (("serial", None), ("multiprocessing", None), ("cuda", "host")):
        how = {"num_episodes": 4, "num_envs": 2, "num_workers": 2, "seed": 5}
        folder = tmp_path / backend
        result = play(subject, backend=backend, device=device, snapshots=(0, 1, 3), snapshots_folder=folder, **how)
        pictures.append(pictures_of(result.snapshots))
        assert list(pictures[-1]) == ["snapshot_000", "snapshot_001", "snapshot_003"]
        assert (pictures[-1]["snapshot_000"] == expected).all()
        films.append((folder / "episode.gif").read_bytes())
    assert len({tuple(picture.tobytes() for picture in one.values()) for one in pictures}) == len(set(films)) == 1
    assert len({picture.tobytes() for picture in pictures[0].values()}) == 3


def test_only_kernels_are_given_a_device():
    with pytest.raises(PlanError, match='device=\'host\' is where backend="cuda" plays, and this is "pool"'):
        play(Subject.of(f"{__name__}:Pictured", "random"), backend="pool", device="host")
