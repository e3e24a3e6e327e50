"""Reel: the films of chosen episodes of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.evaluation.dealer import Dealer
from pufferlib.evaluation.film import Film, checked_format, save
from pufferlib.evaluation.filming import Filming
from pufferlib.util.annotations import Array
from pufferlib.util.files import file_name
from pufferlib.vectorization import Batch, VecEnv

__all__ = ["Reel", "film_names"]


def film_names(chosen: Iterable[int], seeds: Array, tasks: Sequence[str] = ()) -> dict[int, str]:
    """Return the names of the films of all episodes with the chosen seeds, by the episodes' indices, for ``Reel``.

    seeds: the seed of each episode. tasks: the name of each episode's task, if there are several. Raises PlanError for
    chosen seeds that no episode has.
    """
    wanted = [*chosen]
    wrong = [seed for seed in wanted if seed not in seeds]
    if wrong:
        others = f"{', '.join(map(str, seeds[:4].tolist()))}{', …' if len(seeds) > 4 else ''}"
        raise PlanError(f"no episode to film has the seeds {wrong[:8]}; use some of those to be played, {others}")
    return {
        index: f"{f'{file_name(tasks[index])}-' if len(tasks) else ''}seed-{seed}"
        for index, seed in enumerate(seeds.tolist())
        if seed in wanted
    }


class Reel:
    """The films of an evaluation's chosen episodes: one after another in one file, or one file per film in a folder."""

    def __init__(self, path: Path, names: Mapping[int, str], env_ids: Collection[int]) -> None:
        """Check that films can be written.

        path: a .gif or .mp4 file for all films or, if it has no extension or is a folder, a folder for one file per
        film. names: by the index of each chosen episode, the beginning of its file's name. env_ids: the environments
        that may play these episodes, which have to draw pictures.

        Raises PlanError if the extension is unknown, or if the file's folder does not exist. Raises MissingExtra if the
        package for the films' format is not installed.
        """
        self.path, self.is_file = path, bool(path.suffix) and not path.is_dir()
        if not self.is_file:
            checked_format(path / "env.gif")
        elif checked_format(path) and not path.parent.is_dir():
            raise PlanError(f"there is no folder {path.parent} for {path.name}; make it, or name another")
        self.names, self.env_ids = names, env_ids
        self.films: dict[int, Film] = {}  # by episode
        self._episodes: dict[int, int] = {}  # by environment, the episode that it plays
        self._dealer: Dealer | None = None

    def of(self, vec: VecEnv) -> Callable[[Batch, Dealer], None]:
        """Return a function to call with each batch of an evaluation.

        Creates the folder, if each film goes into its own file. Raises the errors of ``Filming``.
        """
        if not self.is_file:
            self.path.mkdir(parents=True, exist_ok=True)
        self._filming = Filming(vec, self.env_ids, self._is_filmed, self._keep)
        return self._see

    def _see(self, batch: Batch, dealer: Dealer) -> None:
        if dealer is not self._dealer:  # all episodes are played again
            self._dealer = dealer
            self.films.clear()
            self._filming.discard()
        self._filming.see(batch)

    def _is_filmed(self, env_id: int) -> bool:
        assert self._dealer is not None
        episode = int(self._dealer.episodes_of(np.array([env_id]))[0])
        # An episode that is played a second time, to compare it, may be cut.
        is_filmed_already = episode in self.films or any(
            self._episodes[other] == episode
            for other, film in self._filming.films.items()
            if film is not None and other != env_id
        )
        self._episodes[env_id] = episode
        return episode in self.names and not is_filmed_already

    def _keep(self, env_id: int, film: Film) -> None:
        self.films[self._episodes[env_id]] = film

    def save(self) -> list[Path]:
        """Write the films, in the order of the episodes; return the files' paths. Without films, write nothing."""
        self._filming.finish()
        films = sorted(self.films.items())
        if self.is_file:
            if films:
                save(self.path, [film for _, film in films])
            return [self.path] if films else []
        paths = []
        for episode, film in films:
            path = self.path / f"{self.names[episode]}-return-{film.episodic_return:.6g}{film.limit}.gif"
            save(path, [film])
            paths.append(path)
        return paths
