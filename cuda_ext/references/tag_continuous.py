"""Tag on a plane: taggers chase runners at any speed, in any direction.

Plane        A square of side L = ``grid_length``. x and y are from 0 to L.
Agents       "tagger_0", "tagger_1", …, then "runner_0", …; N in all. They never block each other.
Actions      MultiDiscrete([A + 1, B + 1]) with A = ``num_acceleration_levels`` and B = ``num_turn_levels``: increments
             of the acceleration and of the direction. 0 adds nothing. 1 to A are evenly spaced from
             ``min_acceleration`` to ``max_acceleration``, 1 to B from ``min_turn`` to ``max_turn``, in radians.
Motion       The action's increments are added, and the direction is wrapped into [0, 2 pi). The acceleration is added
             to the speed, which is clipped to between 0 and ``max_speed`` times ``skill_level_tagger`` or
             ``skill_level_runner``; at either limit the acceleration becomes 0. Then the agent moves by its speed. An
             agent that would leave the square hits the edge: x, y or both are clipped to the square, and nothing else
             changes.
Tag          After all have moved, a runner is tagged by the tagger nearest to it, if that is nearer than
             ``tagging_distance`` times L; of several equally near, by the one with the lowest number. A tagged runner
             leaves: it is no longer ``alive``, and the rest of its state stays as it was at the tag. Without
             ``runner_exits_game_after_tagged`` it stays in the game.
Reward       The sum of these terms, added in this order. Penalties are at most 0.
             ``edge_hit_penalty`` for an agent that hits the edge.
             ``step_penalty_for_tagger`` for each tagger, ``step_reward_for_runner`` for each runner.
             For a tagger, ``tag_reward_for_tagger`` times the number of its tags; for a tagged runner,
             ``tag_penalty_for_runner``.
             In step ``episode_length``, ``end_of_game_reward_for_runner`` for each runner that is still in the game and
             is not tagged in that step.
Ending       A runner that leaves is terminated, and so are all taggers when the last runner leaves. Otherwise all
             agents are truncated after ``episode_length`` steps.
Observation  Box(float32), of the state after the step: 7 features of each of M other agents, ordered by feature and
             then by agent, and the time, t / ``episode_length``. Five features are the other agent's value minus the
             agent's own: x and y, divided by L sqrt(2); speed and acceleration, divided by ``max_speed``; direction,
             divided by 2 pi and not wrapped. The last two are the kind (1 tagger, 0 runner) and whether it is alive.
             With ``full_observation`` M is N - 1: all other agents by number, with zeros for agents that have left.
             Otherwise M is ``num_nearest``: the nearest living agents of both kinds, nearest first, equally near ones
             by number, then zeros if fewer than M are alive.
             The features never exceed the bounds of the space.
Start        Speed and acceleration are 0. "procedural": x and y from 0 to below L, and a direction of 0, pi / 2, pi or
             3 pi / 2, drawn for each agent and episode. "fixed": ``starts``, (N, 3) of x, y, direction; by default the
             procedural episode 0 of seed 0. "pool": one of the layouts ``starts``, (P, N, 3), drawn for each episode;
             by default those of the first 5 procedural episodes of seed 0.
Seeding      ``reset(seed=s)`` starts episode 0 of seed s, and each later ``reset()`` the next episode.
Arithmetic   float32, in the order of operations written here, so that a kernel can equal it bit for bit. Distances are
             compared as squares.
Source       TagContinuous of WarpDrive (Lan et al., JMLR 2022), with the taggers numbered first instead of at random,
             separate terminations and truncations, and observations that include this step's tags.
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
from cuda_ext.references.trigonometry import HALF_PI, TWO_PI, sine_cosine, wrapped
from pufferlib.util.philox import below, episode_of, philox_array, uniform

MOST_NEAREST = 32  # a kernel keeps them in registers
LEAST, MOST = 1e-6, 1e6  # the limits of lengths and speeds, so that float32 holds squares and quotients
MOST_TURN = float(TWO_PI)
RENDER_MODES = ("rgb_array",)

Floats = NDArray[np.float32]


class TagContinuous(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A PettingZoo environment of Tag on a plane. Raises ValueError for invalid arguments.

    After each reset and step its state consists of ``seed``, ``episode`` and ``t``, ints; ``x``, ``y``, ``speed``,
    ``direction`` and ``acceleration``, float32 (N,); and ``alive``, bool (N,), in the order of ``possible_agents``.
    Only a tag sets ``alive`` to False: the end of an episode empties ``agents``, but leaves ``alive`` as it is.
    """

    metadata: ClassVar = {
        "name": "tag_continuous",
        "render_modes": list(RENDER_MODES),
        "render_fps": 20,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        num_taggers: int = 1,
        num_runners: int = 10,
        grid_length: float = 10.0,
        episode_length: int = 100,
        max_speed: float = 1.0,
        skill_level_tagger: float = 1.0,
        skill_level_runner: float = 1.0,
        max_acceleration: float = 1.0,
        min_acceleration: float = -1.0,
        max_turn: float = np.pi / 2,
        min_turn: float = -np.pi / 2,
        num_acceleration_levels: int = 10,
        num_turn_levels: int = 10,
        edge_hit_penalty: float = 0.0,
        full_observation: bool = True,
        num_nearest: int = 2,
        tagging_distance: float = 0.01,
        tag_reward_for_tagger: float = 1.0,
        tag_penalty_for_runner: float = -1.0,
        step_penalty_for_tagger: float = 0.0,
        step_reward_for_runner: float = 0.0,
        end_of_game_reward_for_runner: float = 1.0,
        runner_exits_game_after_tagged: bool = True,
        start: str = "procedural",
        starts: ArrayLike | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.num_taggers = count("num_taggers", num_taggers)
        self.num_runners = count("num_runners", num_runners)
        self.grid_length = amount("grid_length", grid_length, LEAST, MOST)
        self.episode_length = count("episode_length", episode_length)
        self.max_speed = amount("max_speed", max_speed, LEAST, MOST)
        self.top_speed_tagger = self.max_speed * amount("skill_level_tagger", skill_level_tagger, 0, MOST)
        self.top_speed_runner = self.max_speed * amount("skill_level_runner", skill_level_runner, 0, MOST)
        self.accelerations = _levels("acceleration", min_acceleration, max_acceleration, num_acceleration_levels, MOST)
        self.turns = _levels("turn", min_turn, max_turn, num_turn_levels, MOST_TURN)
        self.num_accelerations, self.num_turns = len(self.accelerations), len(self.turns)
        self.edge_hit_penalty = amount("edge_hit_penalty", edge_hit_penalty, most=0)
        self.full_observation = full_observation
        self.num_nearest = count("num_nearest", num_nearest, MOST_NEAREST)
        reach = amount("tagging_distance", tagging_distance, 0, MOST) * self.grid_length
        self.squared_reach = reach * reach
        self.tag_reward_for_tagger = amount("tag_reward_for_tagger", tag_reward_for_tagger, least=0)
        self.tag_penalty_for_runner = amount("tag_penalty_for_runner", tag_penalty_for_runner, most=0)
        self.step_penalty_for_tagger = amount("step_penalty_for_tagger", step_penalty_for_tagger, most=0)
        self.step_reward_for_runner = amount("step_reward_for_runner", step_reward_for_runner, least=0)
        self.end_of_game_reward_for_runner = amount(
            "end_of_game_reward_for_runner", end_of_game_reward_for_runner, least=0
        )
        self.runner_exits_game_after_tagged = runner_exits_game_after_tagged
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ValueError(f'render_mode={render_mode!r} is unknown; use "rgb_array" or None')
        self.render_mode = render_mode

        num_agents = num_taggers + num_runners
        self.is_runner = np.arange(num_agents) >= num_taggers
        self.possible_agents = [f"tagger_{i}" for i in range(num_taggers)] + [f"runner_{i}" for i in range(num_runners)]
        self.agents: list[str] = []
        self.diagonal = self.grid_length * np.float32(np.sqrt(2))
        self.layouts = self._layouts(start, starts)
        self.num_layouts = 0 if self.layouts is None else len(self.layouts)
        self._top_speeds = np.where(self.is_runner, self.top_speed_runner, self.top_speed_tagger)
        columns = np.arange(num_agents - 1)
        self._others = columns + (columns >= np.arange(num_agents)[:, np.newaxis])  # (N, N - 1)
        self._observation_space = self._bounds(num_agents - 1 if full_observation else num_nearest)
        self._action_space = spaces.MultiDiscrete([self.num_accelerations, self.num_turns])
        self.seed: int | None = None
        self.episode = self.t = 0
        self.x, self.y, self.speed, self.direction, self.acceleration = np.zeros((5, num_agents), np.float32)
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
        self.x, self.y, self.direction = self._start().T.copy()
        self.speed, self.acceleration = np.zeros((2, len(self.possible_agents)), np.float32)
        self.alive[:] = True
        self.agents = list(self.possible_agents)
        everyone = np.arange(len(self.agents))
        return self._by_name(everyone, self._observe(everyone)), {name: {} for name in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        if not self.agents:
            return {}, {}, {}, {}, {}
        active = np.flatnonzero(self.alive)
        accelerations, turns = self._chosen(actions)
        self.t += 1
        hit = self._move(active, accelerations, turns)
        taggers = self._taggers()
        rewards = self._rewards(hit, taggers)
        left = (taggers >= 0) & bool(self.runner_exits_game_after_tagged)
        self.alive &= ~left
        nobody_left = not self.alive[self.is_runner].any()
        terminated = left | nobody_left
        truncated = ~terminated & (self.t == self.episode_length)
        ended = terminated | truncated
        self.agents = [self.possible_agents[i] for i in active if not ended[i]]
        return (
            self._by_name(active, self._observe(active)),
            self._by_name(active, rewards[active].tolist()),
            self._by_name(active, terminated[active].tolist()),
            self._by_name(active, truncated[active].tolist()),
            {self.possible_agents[i]: {} for i in active},
        )

    def render(self) -> Any:
        """Draw the square with its agents, and a ring where each tagged runner left.

        Return uint8 (height, width, 3) for "rgb_array", else None.
        """
        if self.render_mode is None:
            return None
        picture = TagPicture(len(self.possible_agents))
        x, y, direction = self.x / self.grid_length, self.y / self.grid_length, self.direction
        reach = float(np.sqrt(self.squared_reach) / self.grid_length)
        gone, taggers, runners = map(np.flatnonzero, (~self.alive, ~self.is_runner, self.is_runner & self.alive))
        for agent in taggers:
            picture.reach(x[agent], y[agent], reach)
        for agent in gone:
            picture.tagged(x[agent], y[agent])
        for agent in runners:
            picture.runner(x[agent], y[agent], direction[agent])
        for agent in taggers:
            picture.tagger(x[agent], y[agent], direction[agent])
        picture.header(len(taggers), len(runners), len(gone), self.t, self.episode_length)
        return picture.pixels

    def _layouts(self, start: str, starts: ArrayLike | None) -> Floats | None:
        """Return the layouts that episodes start from, (P, N, 3), or None if each episode draws its own.

        Raises ValueError if ``start`` or ``starts`` is invalid.
        """
        array = layouts_of(start, starts, (len(self.possible_agents), 3), self._default_layouts)
        if array is None:
            return None
        if array.dtype.kind not in "iuf":
            raise ValueError(f"starts is of {array.dtype}; use numbers")
        layouts = array.astype(np.float32) + np.float32(0)  # -0 becomes 0
        points, directions = layouts[..., :2], layouts[..., 2]
        if not (points.min() >= 0 and points.max() <= self.grid_length):
            raise ValueError(
                f"starts has x and y from {points.min()} to {points.max()}; use 0 to grid_length={self.grid_length}"
            )
        if not (directions.min() >= 0 and directions.max() < TWO_PI):
            raise ValueError(
                f"starts has directions from {directions.min()} to {directions.max()}; use 0 to below 2 pi"
            )
        return layouts

    def _default_layouts(self, start: str) -> Floats:
        return np.stack([self._procedural(0, episode) for episode in range(NUM_LAYOUTS if start == "pool" else 1)])

    def _procedural(self, seed: int, episode: int) -> Floats:
        """Draw a procedural start: x, y and direction of all agents, (N, 3)."""
        words = philox_array(seed, episode, 0, np.arange(len(self.possible_agents)), START)
        x, y = uniform(words[:2]) * self.grid_length
        return np.stack([x, y, below(words[2], 4).astype(np.float32) * HALF_PI], axis=1)

    def _start(self) -> Floats:
        assert self.seed is not None
        if self.layouts is None:
            return self._procedural(self.seed, self.episode)
        return layout_of(self.layouts, self.seed, self.episode)

    def _chosen(self, actions: Mapping[str, Any]) -> tuple[Floats, Floats]:
        """Return the increments of the active agents' accelerations and directions, (len(agents),) each.

        Raises ValueError if an action is out of range.
        """
        chosen = np.array([actions[name] for name in self.agents], np.int64).reshape(len(self.agents), 2)
        if (chosen < 0).any() or (chosen >= self._action_space.nvec).any():
            raise ValueError(
                f"actions {chosen.tolist()} are not all of MultiDiscrete({self._action_space.nvec.tolist()}); "
                f"use 0 to {self.num_accelerations - 1} and 0 to {self.num_turns - 1}"
            )
        return self.accelerations[chosen[:, 0]], self.turns[chosen[:, 1]]

    def _move(self, active: NDArray[np.intp], accelerations: Floats, turns: Floats) -> NDArray[np.bool_]:
        """Move the active agents; return a mask of those that hit the edge, (N,)."""
        top = self._top_speeds[active]
        acceleration = self.acceleration[active] + accelerations
        direction = wrapped(self.direction[active] + turns)
        speed = np.clip(self.speed[active] + acceleration, np.float32(0), top)
        acceleration[(speed <= 0) | (speed >= top)] = 0
        sine, cosine = sine_cosine(direction)
        free_x, free_y = self.x[active] + speed * cosine, self.y[active] + speed * sine  # without edges
        x, y = (np.clip(free, np.float32(0), self.grid_length) for free in (free_x, free_y))
        self.x[active], self.y[active] = x, y
        self.speed[active], self.direction[active], self.acceleration[active] = speed, direction, acceleration
        hit = np.zeros(len(self.possible_agents), bool)
        hit[active] = (x != free_x) | (y != free_y)
        return hit

    def _taggers(self) -> NDArray[np.intp]:
        """Return the index of the tagger that tagged each agent, (N,); -1 for agents that were not tagged."""
        squares = self._squared_distances(np.arange(len(self.alive)), self.num_taggers)
        nearest = squares.argmin(axis=1)  # the first of several equally near
        reached = squares[np.arange(len(squares)), nearest] < self.squared_reach
        return np.where(self.is_runner & self.alive & reached, nearest, -1)

    def _rewards(self, hit: NDArray[np.bool_], taggers: NDArray[np.intp]) -> Floats:
        tagged, zero = taggers >= 0, np.float32(0)
        tags = np.bincount(taggers[tagged], minlength=len(taggers)).astype(np.float32)
        survived = self.is_runner & self.alive & ~tagged & (self.t == self.episode_length)
        rewards = np.where(hit, self.edge_hit_penalty, zero)
        rewards += np.where(self.is_runner, self.step_reward_for_runner, self.step_penalty_for_tagger)
        for_runner = np.where(tagged, self.tag_penalty_for_runner, zero)
        rewards += np.where(self.is_runner, for_runner, tags * self.tag_reward_for_tagger)
        rewards += np.where(survived, self.end_of_game_reward_for_runner, zero)
        return rewards

    def _squared_distances(self, agents: NDArray[np.intp], num_others: int) -> Floats:
        """Return the squared distances from these agents to the first num_others agents, (len(agents), num_others)."""
        dx, dy = (axis[:num_others] - axis[agents, np.newaxis] for axis in (self.x, self.y))
        return dx * dx + dy * dy

    def _observe(self, agents: NDArray[np.intp]) -> Floats:
        """Return the observations of these agents, (len(agents), size)."""
        others, present = self._visible(agents)

        def difference(values: Floats, scale: Any) -> Floats:
            return np.where(present, (values[others] - values[agents, np.newaxis]) / scale, np.float32(0))

        features = [
            difference(self.x, self.diagonal),
            difference(self.y, self.diagonal),
            difference(self.speed, self.max_speed),
            difference(self.acceleration, self.max_speed),
            difference(self.direction, TWO_PI),
            present & ~self.is_runner[others],
            present,
            np.full((len(others), 1), np.float32(self.t) / np.float32(self.episode_length)),
        ]
        return np.concatenate(features, axis=1, dtype=np.float32)

    def _visible(self, agents: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the indices of the agents that each of these agents observes, and a mask of the valid indices.

        Both are (len(agents), M). The mask is False for agents that have left, and where fewer than M can be observed.
        """
        if self.full_observation:
            others = self._others[agents]
            return others, self.alive[others]
        squares = self._squared_distances(agents, len(self.alive))
        squares[:, ~self.alive] = np.inf
        squares[np.arange(len(agents)), agents] = np.inf
        num_visible = min(self.num_nearest, len(self.alive))
        others = np.zeros((len(squares), self.num_nearest), np.intp)
        present = np.zeros(others.shape, bool)
        others[:, :num_visible] = np.argsort(squares, axis=1, kind="stable")[:, :num_visible]
        present[:, :num_visible] = np.isfinite(np.take_along_axis(squares, others[:, :num_visible], axis=1))
        return others, present

    def _bounds(self, num_others: int) -> spaces.Box:
        """Return the space of observations that cover num_others other agents."""
        top = max(self.top_speed_tagger, self.top_speed_runner)  # an acceleration above it becomes 0
        least, most = [], []
        for bound in (1, 1, top / self.max_speed, (top + top) / self.max_speed, 1):
            least += [-bound] * num_others
            most += [bound] * num_others
        flags = 2 * num_others + 1
        return spaces.Box(np.array(least + [0] * flags, np.float32), np.array(most + [1] * flags, np.float32))

    def _by_name(self, agents: NDArray[np.intp], values: Any) -> dict[str, Any]:
        return {self.possible_agents[i]: value for i, value in zip(agents, values, strict=True)}


def _levels(name: str, least: Any, most: Any, num_levels: Any, limit: float) -> Floats:
    """Return the increments that an action can choose: 0, then num_levels evenly spaced numbers from least to most.

    Raises ValueError for invalid arguments. name: "acceleration" or "turn", for the error texts. limit: the largest
    magnitude of ``least`` and ``most``.
    """
    lowest, highest = amount(f"min_{name}", least, -limit, limit), amount(f"max_{name}", most, -limit, limit)
    if lowest > highest:
        raise ValueError(f"min_{name}={least!r} is more than max_{name}={most!r}; use at most that")
    levels = np.linspace(float(lowest), float(highest), count(f"num_{name}_levels", num_levels))
    return np.concatenate([[0], levels]).astype(np.float32)
