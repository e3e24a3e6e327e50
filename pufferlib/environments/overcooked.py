"""Overcooked: two cooks share a kitchen and are rewarded for the soups that they serve."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, member

LAYOUTS = (
    *("asymmetric_advantages", "asymmetric_advantages_tomato", "bonus_order_test", "bottleneck", "centre_objects"),
    *("centre_pots", "coordination_ring", "corridor", "counter_circuit", "counter_circuit_o_1order"),
    *("cramped_corridor", "cramped_room", "cramped_room_o_3orders", "cramped_room_tomato", "five_by_five"),
    *("forced_coordination", "forced_coordination_tomato", "inverse_marshmallow_experiment", "large_room"),
    *("long_cook_time", "m_shaped_s", "marshmallow_experiment", "marshmallow_experiment_coordination", "mdp_test"),
    *("pipeline", "scenario1_s", "scenario2", "scenario2_s", "scenario3", "scenario4", "schelling", "schelling_s"),
    *("simple_o", "simple_o_t", "simple_tomato", "small_corridor", "soup_coordination", "tutorial_0", "tutorial_1"),
    *("tutorial_2", "tutorial_3", "unident", "you_shall_not_pass"),
)
FAMILY = Family(
    names=("overcooked/*",),
    description="two cooks who share a kitchen",
    package="overcooked_ai_py",
    extra="overcooked",
    examples=(
        Example("overcooked/cramped_room", {"horizon": 100, "shaping": 1.0}),
        Example("overcooked/forced_coordination", {"horizon": 100, "shaping": 1.0}),
    ),
    members=tuple(f"overcooked/{layout}" for layout in LAYOUTS),
    needs=("pettingzoo",),
)


class Kitchen:
    """A kitchen with PettingZoo's parallel interface; the agents are "cook_0" and "cook_1".

    Observations are Overcooked-AI's lossless encoding, uint8 (width, height, 26), with the layers of the observing
    agent first; values above 255 are clipped. Actions: up, down, right, left, stay, interact. All episodes of a kitchen
    start the same way, and nothing is random. An episode is truncated after ``horizon`` steps.

    Both cooks get the reward for a soup. A cook also gets ``shaping`` times Overcooked-AI's reward for that cook's own
    steps towards a soup (dishes fetched, pots filled).

    In a cook's infos, "sparse_r" and "shaped_r" are Overcooked-AI's rewards for that cook: the first for soups, the
    second for steps towards a soup. Each is present only if it is not zero. "events" lists the names of the cook's
    events, if there were any. The last step's infos also have "ep_sparse_r" and "ep_shaped_r", the sums of the two
    rewards over the episode. ``shaping`` does not scale the rewards in infos.
    """

    metadata = {"name": "overcooked", "render_modes": ["ansi"]}

    def __init__(
        self, layout: str, horizon: int = 400, shaping: float = 0.0, render_mode: str | None = None, **kwargs: object
    ) -> None:
        """Create a kitchen.

        layout: the name of one of Overcooked-AI's layouts. kwargs: arguments of ``OvercookedGridworld``, which override
        those of the layout.
        """
        game = importlib.import_module("overcooked_ai_py.mdp.overcooked_mdp")
        self._moves = importlib.import_module("overcooked_ai_py.mdp.actions").Action.ALL_ACTIONS
        self._recipes = game.Recipe
        self._kitchen = game.OvercookedGridworld.from_layout_name(layout, **kwargs)
        self._horizon, self._shaping = horizon, shaping
        self.render_mode = render_mode
        self.possible_agents = ["cook_0", "cook_1"]
        self.agents: list[str] = []
        self._observed = spaces.Box(0, 255, (*self._kitchen.shape, 26), np.uint8)
        self._acted = spaces.Discrete(len(self._moves))

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._observed

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._acted

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        return len(self.possible_agents)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._configure_recipes()
        self.agents = [*self.possible_agents]
        self._state = self._kitchen.get_standard_start_state()
        self._sums = {agent: {"ep_sparse_r": 0.0, "ep_shaped_r": 0.0} for agent in self.agents}
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._configure_recipes()
        moves = tuple(self._moves[int(actions[agent])] for agent in self.agents)
        self._state, outcome = self._kitchen.get_state_transition(self._state, moves)
        soups = float(sum(outcome["sparse_reward_by_agent"]))
        over = self._state.timestep >= self._horizon
        rewards: dict[str, float] = {}
        infos: dict[str, dict[str, Any]] = {}
        for agent_index, agent in enumerate(self.agents):
            earned = {kind: float(outcome[f"{kind}_reward_by_agent"][agent_index]) for kind in ("sparse", "shaped")}
            rewards[agent] = soups + self._shaping * earned["shaped"]
            infos[agent] = {f"{kind}_r": earned[kind] for kind in earned if earned[kind]}
            events = [event for event, happened in outcome["event_infos"].items() if happened[agent_index]]
            if events:
                infos[agent]["events"] = events
            for kind in earned:
                self._sums[agent][f"ep_{kind}_r"] += earned[kind]
            if over:
                infos[agent] |= self._sums[agent]
        observations, ends = self._observations(), {agent: bool(over) for agent in self.agents}
        terminations = dict.fromkeys(self.agents, False)
        self.agents = [] if over else self.agents
        return observations, rewards, terminations, ends, infos

    def render(self) -> str:
        self._configure_recipes()  # a soup's state depends on its recipe
        return str(self._kitchen.state_string(self._state))

    def close(self) -> None:
        pass

    def _configure_recipes(self) -> None:
        """Set the process-wide recipes to this kitchen's, because another kitchen may have changed them."""
        if self._recipes._conf is not self._kitchen.recipe_config:
            self._recipes.configure(self._kitchen.recipe_config)

    def _observations(self) -> dict[str, Any]:
        layers = self._kitchen.lossless_state_encoding(self._state, self._horizon)
        return {
            agent: np.minimum(layer, 255).astype(np.uint8)
            for agent, layer in zip(self.possible_agents, layers, strict=True)
        }


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Kitchen:
    """Make a kitchen. kwargs: arguments of ``Kitchen``.

    By default, only soups are rewarded, so rewards are rare; ``shaping`` also rewards steps towards a soup.
    """
    return Kitchen(member(FAMILY, name), **kwargs)
