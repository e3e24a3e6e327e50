"""Tag on a grid: taggers chase runners from cell to cell.

Grid         (L + 1)² cells, with L = ``grid_length``.
Agents       "tagger_0", "tagger_1", …, then "runner_0", …; N in all. They never block each other.
Actions      Discrete(5): stay, x + 1, x - 1, y + 1, y - 1. An agent that would leave the grid hits the wall and stays.
Tag          A runner is tagged if a tagger is on its cell after all have moved; swapping cells is not a tag. A tagged
             runner leaves: it is no longer ``alive``, and its x and y stay where it was tagged.
Reward       -``wall_hit_penalty`` for a hit, plus: for each tagger, ``tag_reward_for_tagger`` times the number of
             runners that all taggers together tagged in this step, or -``step_cost_for_tagger`` if none was tagged;
             for a runner, -``tag_penalty_for_runner`` if it was tagged, else ``step_cost_for_tagger``.
Ending       A tagged runner is terminated, and so are all taggers when the last runner is tagged. Otherwise all agents
             are truncated after ``episode_length`` steps.
Observation  Box(0, 1, float32), of the state after the step. With ``full_observation``, (4N + 1,): x / L of all agents,
             y / L of all, the kind of all (0 tagger, 1 runner), with 0 in all three for agents that have left; a
             one-hot vector of the agent itself; the time, t / ``episode_length``. Otherwise, (2K + 4,) with K =
             ``num_nearest``: the agent's own x / L and y / L; x / L, then y / L, of the K nearest living agents of the
             other kind; its own kind; the time. The nearest come first, by squared distance, and equally near ones by
             number. Zeros follow if fewer than K are alive.
Start        "procedural": any cell, drawn for each agent and episode. "fixed": ``starts``, (N, 2) of x, y; by default
             taggers in the middle, runners at (0, 0). "pool": one of the layouts ``starts``, (P, N, 2), drawn for each
             episode; by default those of the first 5 procedural episodes of seed 0.
Seeding      ``reset(seed=s)`` starts episode 0 of seed s, and each later ``reset()`` the next episode.
Arithmetic   float32, in the order of operations written here, so that a kernel can equal it bit for bit.
Source       TagGridWorld of WarpDrive (Lan et al., JMLR 2022), with any number of runners and of nearest agents, and
             with separate terminations and truncations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from pettingzoo import ParallelEnv

from cuda_ext.references.episodes import NUM_LAYOUTS, START, amount, count, layout_of, layouts_of
from cuda_ext.references.pictures import TagPicture
from pufferlib.util.philox import below, episode_of, philox_array

MOVES = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)], np.int32)  # x, y by action
MAX_GRID_LENGTH = 32_767  # a squared distance is an int32
RENDER_MODES = ("ansi", "rgb_array")
LETTERS = ".TRB"  # of a cell that is empty, or has taggers, runners or, only at a start, both


class TagGrid(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A PettingZoo environment of Tag on a grid. Raises ValueError for invalid arguments.

    After each reset and step its state consists of ``seed``, ``episode`` and ``t``, ints; ``x`` and ``y``, int32 (N,);
    and ``alive``, bool (N,), in the order of ``possible_agents``. Only a tag sets ``alive`` to False: the end of an
    episode empties ``agents``, but leaves ``alive`` as it is.
    """

    metadata: ClassVar = {
        "name": "tag_grid",
        "render_modes": list(RENDER_MODES),
        "render_fps": 8,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        num_taggers: int = 10,
        num_runners: int = 1,
        grid_length: int = 10,
        episode_length: int = 100,
        wall_hit_penalty: float = 0.1,
        tag_reward_for_tagger: float = 10.0,
        tag_penalty_for_runner: float = 2.0,
        step_cost_for_tagger: float = 0.01,
        full_observation: bool = True,
        num_nearest: int = 1,
        start: str = "procedural",
        starts: ArrayLike | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.num_taggers = count("num_taggers", num_taggers)
        self.num_runners = count("num_runners", num_runners)
        self.grid_length = count("grid_length", grid_length, MAX_GRID_LENGTH)
        self.episode_length = count("episode_length", episode_length)
        self.wall_hit_penalty = amount("wall_hit_penalty", wall_hit_penalty)
        self.tag_reward_for_tagger = amount("tag_reward_for_tagger", tag_reward_for_tagger)
        self.tag_penalty_for_runner = amount("tag_penalty_for_runner", tag_penalty_for_runner)
        self.step_cost_for_tagger = amount("step_cost_for_tagger", step_cost_for_tagger)
        self.full_observation = full_observation
        self.num_nearest = count("num_nearest", num_nearest)
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ValueError(f'render_mode={render_mode!r} is unknown; use "ansi", "rgb_array" or None')
        self.render_mode = render_mode

        num_agents = num_taggers + num_runners
        self.is_runner = np.arange(num_agents) >= num_taggers
        self.possible_agents = [f"tagger_{i}" for i in range(num_taggers)] + [f"runner_{i}" for i in range(num_runners)]
        self.agents: list[str] = []
        self.layouts = self._layouts(start, starts)
        self.num_layouts = 0 if self.layouts is None else len(self.layouts)
        size = 4 * num_agents + 1 if full_observation else 2 * num_nearest + 4
        self._observation_space = spaces.Box(0, 1, (size,), np.float32)
        self._action_space = spaces.Discrete(len(MOVES))
        self.seed: int | None = None
        self.episode = self.t = 0
        self.x, self.y = np.zeros((2, num_agents), np.int32)
        self.alive = np.zeros(num_agents, bool)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_space

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode and return (observations, infos), dicts with one entry per agent.

        seed: from 0 to 2**32 - 1; the episode is number 0 of this seed. Without a seed, the episode is the next of the
        last seed or, in the first reset, number 0 of a random seed. options: ignored.
        """
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = 0
        self.x, self.y = self._start().T.copy()
        self.alive[:] = True
        self.agents = list(self.possible_agents)
        everyone = np.arange(len(self.agents))
        return self._by_name(everyone, self._observe()), {name: {} for name in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        if not self.agents:
            return {}, {}, {}, {}, {}
        active = np.flatnonzero(self.alive)
        moves = self._moves(actions)
        self.t += 1
        hit = self._move(moves)
        tagged = self._tagged()
        rewards = self._rewards(hit, tagged)
        self.alive &= ~tagged
        all_tagged = not self.alive[self.is_runner].any()
        terminated = tagged | all_tagged
        truncated = ~terminated & (self.t == self.episode_length)
        ended = terminated | truncated
        self.agents = [self.possible_agents[i] for i in active if not ended[i]]
        return (
            self._by_name(active, self._observe()),
            self._by_name(active, rewards.tolist()),
            self._by_name(active, terminated.tolist()),
            self._by_name(active, truncated.tolist()),
            {self.possible_agents[i]: {} for i in active},
        )

    def render(self) -> Any:
        """Draw the grid, y upwards; return a str for "ansi", uint8 (height, width, 3) for "rgb_array", else None.

        The pixels also show where tagged runners left.
        """
        if self.render_mode == "ansi":
            return self._text()
        return self._picture() if self.render_mode == "rgb_array" else None

    def _text(self) -> str:
        cells = np.zeros((self.grid_length + 1, self.grid_length + 1), np.uint8)
        for kind, agents in ((1, ~self.is_runner), (2, self.is_runner)):
            visible = agents & self.alive
            cells[self.y[visible], self.x[visible]] |= kind
        return "\n".join("".join(LETTERS[cell] for cell in line) for line in cells[::-1])

    def _picture(self) -> NDArray[np.uint8]:
        num_cells = self.grid_length + 1
        picture = TagPicture(len(self.possible_agents), num_cells)
        x, y = (self.x + 0.5) / num_cells, (self.y + 0.5) / num_cells
        kinds = (~self.alive, ~self.is_runner, self.is_runner & self.alive)
        gone, taggers, runners = map(np.flatnonzero, kinds)
        for draw, agents in ((picture.tagged, gone), (picture.tagger, taggers), (picture.runner, runners)):
            for agent in agents:
                draw(x[agent], y[agent])
        picture.header(len(taggers), len(runners), len(gone), self.t, self.episode_length)
        return picture.pixels

    def _layouts(self, start: str, starts: ArrayLike | None) -> NDArray[np.int32] | None:
        """Return the layouts that episodes start from, (P, N, 2), or None if each episode draws its own.

        Raises ValueError if ``start`` or ``starts`` is invalid.
        """
        layouts = layouts_of(start, starts, (len(self.possible_agents), 2), self._default_layouts)
        if layouts is None:
            return None
        if layouts.dtype.kind not in "iu":
            raise ValueError(f"starts is of {layouts.dtype}; use integers")
        if layouts.min() < 0 or layouts.max() > self.grid_length:
            raise ValueError(f"starts has {layouts.min()} to {layouts.max()}; use 0 to grid_length={self.grid_length}")
        return layouts.astype(np.int32)

    def _default_layouts(self, start: str) -> NDArray[np.int32]:
        if start == "pool":
            return np.stack([self._procedural(0, episode) for episode in range(NUM_LAYOUTS)])
        taggers = np.full((self.num_taggers, 2), self.grid_length // 2, np.int32)
        return np.concatenate([taggers, np.zeros((self.num_runners, 2), np.int32)])[np.newaxis]

    def _procedural(self, seed: int, episode: int) -> NDArray[np.int32]:
        """Draw a procedural start: x and y of all agents, (N, 2)."""
        words = philox_array(seed, episode, 0, np.arange(len(self.possible_agents)), START)
        return below(words[:2], self.grid_length + 1).T.astype(np.int32)

    def _start(self) -> NDArray[np.int32]:
        assert self.seed is not None
        if self.layouts is None:
            return self._procedural(self.seed, self.episode)
        return layout_of(self.layouts, self.seed, self.episode)

    def _moves(self, actions: Mapping[str, Any]) -> NDArray[np.int32]:
        """Return the moves of all agents, (N, 2); zeros for agents that have left.

        Raises ValueError if an action is out of range.
        """
        moves = np.zeros((len(self.possible_agents), 2), np.int32)
        chosen = [int(actions[name]) for name in self.agents]
        if min(chosen) < 0 or max(chosen) >= len(MOVES):
            raise ValueError(f"actions {chosen} are not all of Discrete({len(MOVES)}); use 0 to {len(MOVES) - 1}")
        moves[self.alive] = MOVES[chosen]
        return moves

    def _move(self, moves: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Move all agents; return a mask of those that hit the wall, (N,)."""
        free_x, free_y = self.x + moves[:, 0], self.y + moves[:, 1]  # without walls
        self.x, self.y = np.clip(free_x, 0, self.grid_length), np.clip(free_y, 0, self.grid_length)
        hit: NDArray[np.bool_] = (self.x != free_x) | (self.y != free_y)
        return hit

    def _tagged(self) -> NDArray[np.bool_]:
        """Return a mask of the living runners that share a cell with a tagger, (N,)."""
        taggers = ~self.is_runner
        met = (self.x[:, np.newaxis] == self.x[taggers]) & (self.y[:, np.newaxis] == self.y[taggers])
        tagged: NDArray[np.bool_] = self.is_runner & self.alive & met.any(axis=1)
        return tagged

    def _rewards(self, hit: NDArray[np.bool_], tagged: NDArray[np.bool_]) -> NDArray[np.float32]:
        num_tagged = np.float32(tagged.sum())
        for_tagger = num_tagged * self.tag_reward_for_tagger if num_tagged else -self.step_cost_for_tagger
        for_runner = np.where(tagged, -self.tag_penalty_for_runner, self.step_cost_for_tagger)
        rewards = np.where(hit, -self.wall_hit_penalty, np.float32(0))
        rewards += np.where(self.is_runner, for_runner, for_tagger)
        return rewards

    def _observe(self) -> NDArray[np.float32]:
        """Return the observations of all agents, (N, size)."""
        length = np.float32(self.grid_length)
        x, y = self.x.astype(np.float32) / length, self.y.astype(np.float32) / length
        kind, num_agents = self.is_runner.astype(np.float32), len(self.possible_agents)
        rows = np.zeros((num_agents, *self._observation_space.shape), np.float32)
        rows[:, -1] = np.float32(self.t) / np.float32(self.episode_length)
        if self.full_observation:
            rows[:, : 3 * num_agents] = (np.stack([x, y, kind]) * self.alive).ravel()
            rows[:, 3 * num_agents : -1] = np.eye(num_agents)
            return rows
        rows[:, 0], rows[:, 1], rows[:, -2] = x, y, kind
        for agent, row in enumerate(rows):
            nearest = self._nearest(agent)
            row[2 : 2 + len(nearest)] = x[nearest]
            row[2 + self.num_nearest : 2 + self.num_nearest + len(nearest)] = y[nearest]
        return rows

    def _nearest(self, agent: int) -> NDArray[np.intp]:
        """Return the indices of the agents that an agent sees without ``full_observation``, nearest first.

        There are at most ``num_nearest``.
        """
        others = np.flatnonzero(self.alive & (self.is_runner != self.is_runner[agent]))
        distances = (self.x[others] - self.x[agent]) ** 2 + (self.y[others] - self.y[agent]) ** 2
        return others[np.argsort(distances, kind="stable")[: self.num_nearest]]

    def _by_name(self, agents: NDArray[np.intp], values: Any) -> dict[str, Any]:
        return {self.possible_agents[i]: values[i] for i in agents}
