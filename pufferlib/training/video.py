"""Films of training, and snapshots of an evaluation. Filming itself is in ``pufferlib.evaluation``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.evaluation.dealer import Dealer
from pufferlib.evaluation.film import MAX_FRAMES, Film, checked_format, save, save_picture
from pufferlib.evaluation.filming import Filming, render_mode

__all__ = ["Snapshots", "Videos", "with_pictures"]

SNAPSHOT_SIDE = 640  # pixels


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
