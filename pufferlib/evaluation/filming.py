"""Filming: whole episodes of chosen environments in a VecEnv become films."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pufferlib import registry
from pufferlib.construct import make
from pufferlib.errors import CallError, PlanError, WorkerError
from pufferlib.evaluation.film import FPS, MAX_SIDE, RGB, Film
from pufferlib.vectorization import Batch, VecEnv
from pufferlib.vectorization.core.messages import crash_cause

__all__ = ["Filming", "render_mode"]


def render_mode(
    env: Any,
    env_kwargs: Mapping[str, Any] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    among: Sequence[str] = (RGB,),
    make_kwargs: Mapping[str, Any] | None = None,
    env_args: Sequence[Any] = (),
) -> str:
    """Return the first of the modes in ``among`` that an environment supports, after a trial that draws in this mode.

    make_kwargs: arguments of ``pufferlib.make``; by default the environment is made in a worker. Raises PlanError if
    the environment supports none of the modes, or cannot be made with the chosen mode; MissingExtra if drawing needs a
    package that is not installed, even if stepping does not need it.
    """
    kwargs = dict(env_kwargs or {})
    make_kwargs = {"wrap_kwargs": wrap_kwargs, **(make_kwargs or {"backend": "multiprocessing"})}
    named = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    with make(env, env_args=env_args, env_kwargs=kwargs, **make_kwargs) as vec:
        modes = vec.metadata.get("render_modes", [])
    mode = next((name for name in among if name in modes), None)
    if mode is None:
        raise PlanError(
            f"{named} cannot be filmed: its metadata['render_modes'] has {', '.join(modes) or 'nothing'}, and not "
            f"{' or '.join(among)}"
        )
    try:
        drawn = make(env, env_args=env_args, env_kwargs={**kwargs, "render_mode": mode}, **make_kwargs)
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


class Filming:
    """A recorder of whole episodes of chosen environments in a VecEnv: call ``see`` between ``recv`` and ``send``.

    should_film: a function that is called with an environment's id when an episode begins, and returns whether to film
    the episode. done: a function that is called with an environment's id and a film when the film is complete. A film's
    first picture shows the reset; its last picture shows the result of the last step. The film of an episode is
    discarded if its environment is restarted.
    """

    def __init__(
        self,
        vec: VecEnv,
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

    def see(self, batch: Batch) -> None:
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
