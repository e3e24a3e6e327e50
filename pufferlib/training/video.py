"""Videos of training and evaluation: whole episodes of chosen environments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pufferlib
from pufferlib import registry
from pufferlib.errors import CallError, PlanError, WorkerError
from pufferlib.evaluation.dealer import Dealer
from pufferlib.training.film import FPS, MAX_FRAMES, MAX_SIDE, RGB, Film, checked_format, save, save_picture
from pufferlib.vectorization.core.messages import crash_cause

SNAPSHOT_SIDE = 640  # pixels


def render_mode(
    env: Any,
    env_kwargs: Mapping[str, Any] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    among: Sequence[str] = (RGB,),
    make_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Return the first of the modes in ``among`` that an environment supports, after a trial that draws in this mode.

    make_kwargs: arguments of ``pufferlib.make``; by default the environment is made in a worker. Raises PlanError if
    the environment supports none of the modes, or cannot be made with the chosen mode; MissingExtra if drawing needs a
    package that is not installed, even if stepping does not need it.
    """
    kwargs = dict(env_kwargs or {})
    make_kwargs = {"wrap_kwargs": wrap_kwargs, **(make_kwargs or {"backend": "multiprocessing"})}
    named = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    with pufferlib.make(env, env_kwargs=kwargs, **make_kwargs) as vec:
        modes = vec.metadata.get("render_modes", [])
    mode = next((name for name in among if name in modes), None)
    if mode is None:
        raise PlanError(
            f"{named} cannot be filmed: its metadata['render_modes'] has {', '.join(modes) or 'nothing'}, and not "
            f"{' or '.join(among)}"
        )
    try:
        drawn = pufferlib.make(env, env_kwargs={**kwargs, "render_mode": mode}, **make_kwargs)
    except (WorkerError, TypeError) as error:
        if "render_mode" not in str(error):
            raise
        raise PlanError(
            f"{named} cannot be made with render_mode={mode!r}, though its metadata has it; give its creator an "
            "argument render_mode, and hand that on"
        ) from error
    with drawn:
        try:
            drawn.reset()
            drawn.render(env_ids=[0])
        except WorkerError as error:
            lacking = registry.missing(error.__cause__, env)
            if lacking is None:
                raise
            raise lacking from error
    return mode


def with_pictures(config: Any, env: Any = None) -> Mapping[str, Any] | list[dict[str, Any]]:
    """Return ``env_kwargs`` for ``pufferlib.make`` so that only environments in ``config.video_envs`` draw pictures.

    A kernel's environments share their arguments, so all of them get the render mode; they draw only on request.
    config: a trainer's configuration. env: a creator to use instead of ``config.env``. Raises PlanError for
    environments that do not exist or cannot be drawn, and if there is no folder for films.
    """
    env_ids = config.video_envs
    if not env_ids:
        env_kwargs: Mapping[str, Any] = config.env_kwargs
        return env_kwargs
    wrong = [env_id for env_id in env_ids if not 0 <= env_id < config.num_envs]
    if wrong:
        raise PlanError(f"video_envs={wrong} do not exist; use 0 to {config.num_envs - 1}")
    if config.runs is None:
        raise PlanError(f"video_envs={env_ids}, but runs=None writes nothing; name a folder for runs")
    make_kwargs = {"backend": "cuda", "device": config.device} if config.backend == "cuda" else None
    mode = render_mode(
        config.env if env is None else env, config.env_kwargs, config.wrap_kwargs, make_kwargs=make_kwargs
    )
    mode_kwargs = {"render_mode": mode}
    if make_kwargs is not None:  # a kernel's environments share their arguments, and draw only on request
        return {**config.env_kwargs, **mode_kwargs}
    return [{**config.env_kwargs, **(mode_kwargs if env_id in env_ids else {})} for env_id in range(config.num_envs)]


# ---------------------------------------------------------------------------------------------------- whole episodes


class Filming:
    """A recorder of whole episodes of chosen environments in a VecEnv: call ``see`` between ``recv`` and ``send``.

    should_film: a function that is called with an environment's id when an episode begins, and returns whether to film
    the episode. done: a function that is called with an environment's id and a film when the film is complete. A film's
    first picture shows the reset; its last picture shows the result of the last step. The film of an episode is
    discarded if its environment is restarted.
    """

    def __init__(
        self,
        vec: pufferlib.VecEnv,
        env_ids: Collection[int],
        should_film: Callable[[int], bool],
        done: Callable[[int, Film], None],
        max_side: int = MAX_SIDE,
    ) -> None:
        """max_side: the longest side of pictures, in pixels.

        Raises PlanError if environments draw no pictures, or are reset within the last step
        (autoreset_mode="same_step").
        """
        if vec.autoreset_mode == "same_step":
            raise PlanError('autoreset_mode="same_step" leaves no time for the picture of a last step; use "next_step"')
        modes = vec.get_attr("render_mode", sorted(env_ids))
        if any(mode != RGB for mode in modes):
            raise PlanError(f'environments {sorted(env_ids)} have render_mode {modes}; make them with "{RGB}"')
        self.vec, self.should_film, self.done, self.max_side = vec, should_film, done, max_side
        self.fps = float(vec.metadata.get("render_fps") or FPS)
        self.films: dict[int, Film | None] = dict.fromkeys(env_ids)
        # How many times each environment had been restarted by its last row: more, and it has been lost after this row,
        # and a new one stands in its place, which cannot be drawn before it is reset.
        self._restarts = dict(enumerate(vec.restarts))

    def see(self, batch: pufferlib.Batch) -> None:
        """Take pictures of the filmed environments in a batch, and finish the films of episodes that ended in it."""
        env_ids = np.asarray(batch.env_ids).tolist()
        chosen = [(env_index, env_id) for env_index, env_id in enumerate(env_ids) if env_id in self.films]
        if not chosen:
            return
        masks, rewards = (np.asarray(part).reshape(len(env_ids), -1) for part in (batch.masks, batch.rewards))
        restarted = {info["env_id"] for info in batch.infos if crash_cause(info) is not None}
        for env_index, env_id in chosen:
            if env_id in restarted and not masks[env_index].any():
                self.films[env_id] = None
            else:
                self._begin_if_reset(env_id, masks[env_index])
        filmed = [(env_index, env_id, film) for env_index, env_id in chosen if (film := self.films[env_id]) is not None]
        counts = self.vec.restarts
        lost = {env_id for _, env_id in chosen if counts[env_id] > self._restarts[env_id]}
        self._restarts.update((env_id, counts[env_id]) for _, env_id in chosen)
        rendered = [env_id for _, env_id, film in filmed if not film.full and env_id not in lost]
        pictures = self._pictures(rendered)
        ended = {info["env_id"] for info in batch.infos if info.get("env") is True}
        for env_index, env_id, film in filmed:
            if not film.full and env_id not in pictures and env_id not in ended:  # lost, and will be played again
                self.films[env_id] = None
                continue
            film.count(rewards[env_index], masks[env_index], pictures.get(env_id))
            if env_id in ended:
                self._finish(env_id)

    def _pictures(self, env_ids: list[int]) -> dict[int, Any]:
        """Return the pictures of environments by id, without those whose workers die meanwhile."""
        before = self.vec.restarts
        while env_ids:
            try:
                return dict(zip(env_ids, self.vec.render(env_ids=env_ids), strict=True))
            except CallError:
                now = self.vec.restarts
                if now == before:
                    raise
                env_ids, before = [env_id for env_id in env_ids if now[env_id] == before[env_id]], now
        return {}

    def see_one(self, env_id: int, masks: Any, rewards: Any, draw: Callable[[], Any]) -> None:
        """Take a picture of an environment, if it is filmed. masks, rewards: (agents,). draw: returns the picture.

        A film is finished only when the next episode begins, since nothing announces the end of an episode.
        """
        self._begin_if_reset(env_id, masks)
        film = self.films[env_id]
        if film is not None:
            film.count(rewards, masks, None if film.full else draw())

    def _begin_if_reset(self, env_id: int, masks: Any) -> None:
        if not masks.any():
            self._finish(env_id)  # of an episode that was cut
            self.films[env_id] = Film(self.fps, self.max_side) if self.should_film(env_id) else None

    def discard(self) -> None:
        """Discard the current films, as their episodes are played again."""
        self.films = dict.fromkeys(self.films)

    def finish(self) -> None:
        """Finish the current films, whose episodes will not be played to their ends."""
        for env_id in self.films:
            self._finish(env_id)

    def _finish(self, env_id: int) -> None:
        film, self.films[env_id] = self.films[env_id], None
        if film is not None:
            self.done(env_id, film)


class Videos:
    """Films of training in a folder: for each chosen environment the first episode, then one every ``every`` steps.

    ::

        videos = Videos(vec, run_folder / "videos", env_ids=(0,), every=50_000)
        …
        batch = vec.recv()
        videos.see(batch, num_steps)
        vec.send(…)

    A film's name has the environment and the training step at which its episode began: ``env-0-step-12345.gif``, with
    ``-first-2000`` if the film has only the episode's first 2000 pictures. every: training steps between the starts of
    two films of an environment. ``written`` lists the files. Raises PlanError if ``every`` is below 1, MissingExtra
    without Pillow, and the errors of ``Filming``.
    """

    def __init__(
        self, vec: pufferlib.VecEnv, folder: Path, env_ids: Collection[int] = (0,), every: int = 50_000
    ) -> None:
        if every < 1:
            raise PlanError(f"video_every={every} steps; use 1 or more")
        checked_format(folder / "env.gif")
        self.folder, self.every = folder, every
        self.written: list[Path] = []
        self.num_steps = 0
        self._next = dict.fromkeys(env_ids, 0)
        self._begun = dict.fromkeys(env_ids, 0)
        self._filming = Filming(vec, env_ids, self._is_due, self._write)

    @classmethod
    def of(cls, vec: pufferlib.VecEnv, config: Any, run_folder: Path | None) -> Videos | None:
        """Return the videos that a trainer's configuration requests, in the run's folder.

        Returns None if the configuration requests none, or if there is no folder.
        """
        if run_folder is None or not config.video_envs:
            return None
        return cls(vec, run_folder / "videos", config.video_envs, config.video_every)

    def see(self, batch: pufferlib.Batch, num_steps: int) -> None:
        """Take pictures. Call it while the batch's environments wait. num_steps: the training steps so far."""
        self.num_steps = num_steps
        self._filming.see(batch)

    def see_one(self, env_id: int, masks: Any, rewards: Any, draw: Callable[[], Any], num_steps: int) -> None:
        """Take a picture of one environment (see ``Filming.see_one``). num_steps: the training steps so far."""
        self.num_steps = num_steps
        self._filming.see_one(env_id, masks, rewards, draw)

    def _is_due(self, env_id: int) -> bool:
        if self.num_steps < self._next[env_id]:
            return False
        self._begun[env_id], self._next[env_id] = self.num_steps, self.num_steps + self.every
        return True

    def _write(self, env_id: int, film: Film) -> None:
        path = self.folder / f"env-{env_id}-step-{self._begun[env_id]}{film.limit}.gif"
        self.folder.mkdir(parents=True, exist_ok=True)
        save(path, [film])
        self.written.append(path)


class Reel:
    """The films of an evaluation's first episodes: one after another in one file, or one file per film in a folder."""

    def __init__(self, path: Path, num_videos: int, num_envs: int, num_episodes: int) -> None:
        """path: a file for all films or, if it has no extension or is a folder, a folder for one file per film.

        Raises PlanError if num_videos is not from 1 to num_episodes, if the extension is unknown, or if the file's
        folder does not exist. Raises MissingExtra if the package for the films' format is not installed.
        """
        if not 1 <= num_videos <= num_episodes:
            raise PlanError(f"{num_videos} videos of {num_episodes} episodes; use 1 to {num_episodes}")
        self.path, self.is_file = path, bool(path.suffix) and not path.is_dir()
        if not self.is_file:
            checked_format(path / "env.gif")
        elif checked_format(path) and not path.parent.is_dir():
            raise PlanError(f"there is no folder {path.parent} for {path.name}; make it, or name another")
        self.num_videos = num_videos
        # The first episodes are dealt to the first environments; those after them to any.
        self.env_ids: Collection[int] = range(min(num_envs, num_videos))
        self.films: dict[int, Film] = {}  # by episode
        self._episodes: dict[int, int] = {}  # by environment, the episode that it plays
        self._dealer: Dealer | None = None

    def of(self, vec: pufferlib.VecEnv) -> Callable[[pufferlib.Batch, Dealer], None]:
        """Return a function to call with each batch of an evaluation.

        Creates the folder, if each film goes into its own file.
        """
        if not self.is_file:
            self.path.mkdir(parents=True, exist_ok=True)
        self._filming = Filming(vec, self.env_ids, self._is_filmed, self._keep)
        return self._see

    def _see(self, batch: pufferlib.Batch, dealer: Dealer) -> None:
        if dealer is not self._dealer:  # all episodes are played again
            self._dealer = dealer
            self.films.clear()
            self._filming.discard()
        self._filming.see(batch)

    def _is_filmed(self, env_id: int) -> bool:
        assert self._dealer is not None
        self._episodes[env_id] = episode = int(self._dealer.episodes_of(np.array([env_id]))[0])
        return 0 <= episode < self.num_videos and episode not in self.films

    def _keep(self, env_id: int, film: Film) -> None:
        self.films.setdefault(self._episodes[env_id], film)

    def save(self) -> list[Path]:
        """Write the films, in the order of the episodes; return the files' paths."""
        self._filming.finish()
        films = sorted(self.films.items())
        if self.is_file:
            save(self.path, [film for _, film in films])
            return [self.path]
        paths = []
        for episode, film in films:
            name = f"episode-{episode + 1}-return-{film.episodic_return:.6g}{film.limit}.gif"
            save(self.path / name, [film])
            paths.append(self.path / name)
        return paths


class Snapshots:
    """Pictures of the first episode of environment 0: a PNG of each chosen step, and a GIF of all steps.

    steps: the chosen steps; 0 is the reset. If the episode ends before some of the chosen steps, one PNG of its final
    picture is saved in their place.
    """

    def __init__(self, folder: Path, steps: Sequence[int]) -> None:
        """Raises PlanError if steps is empty, if a step is not from 0 to MAX_FRAMES - 1, or if the folder is a file.

        Raises MissingExtra without Pillow.
        """
        wrong = [step for step in steps if not 0 <= step < MAX_FRAMES]
        if wrong or not steps:
            raise PlanError(f"snapshots of the steps {wrong} are impossible; use some of 0 to {MAX_FRAMES - 1}")
        if folder.exists() and not folder.is_dir():
            raise PlanError(f"{folder}, where snapshots are to be, is a file; name a folder")
        checked_format(folder / "episode.gif")
        self.folder, self.steps = folder, sorted(set(steps))
        self.note = ""  # a remark on the episode, once saved
        self._film: Film | None = None
        self._dealer: Dealer | None = None

    def of(self, vec: pufferlib.VecEnv) -> Callable[[pufferlib.Batch, Dealer], None]:
        """Return a function to call with each batch of an evaluation, between ``recv`` and ``send``.

        Creates the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._filming = Filming(vec, (0,), lambda env_id: self._film is None, self._keep, SNAPSHOT_SIDE)
        return self._see

    def _see(self, batch: pufferlib.Batch, dealer: Dealer) -> None:
        if dealer is not self._dealer:  # all episodes are played again
            self._dealer, self._film = dealer, None
            self._filming.discard()
        self._filming.see(batch)

    def _keep(self, env_id: int, film: Film) -> None:
        self._film = self._film or film

    def save(self) -> list[Path]:
        """Write the files, and return their paths.

        If the episode ended before a chosen step, sets ``note`` to a remark about the missing steps.
        """
        self._filming.finish()
        film, paths = self._film, []
        assert film is not None
        num_steps, small = len(film) - 1, Film(film.fps)
        missing = [step for step in self.steps if step > num_steps]
        reached = {*self.steps} - {*missing} | ({num_steps} if missing else set())
        for step, picture in enumerate(film):
            small.add(picture)
            if step in reached:
                paths.append(self.folder / f"snapshot_{step:03d}.png")
                save_picture(paths[-1], picture)
        if missing:
            listed = " or ".join(filter(None, (", ".join(map(str, missing[:-1])), str(missing[-1]))))
            self.note = f"the episode has {num_steps} steps, and no step {listed}: {paths[-1].name} is its end"
        paths.append(self.folder / f"episode{film.limit}.gif")
        save(paths[-1], [small])
        return paths
