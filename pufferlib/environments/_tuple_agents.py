"""Gymnasium environments that play all their agents by Tuples, with the interface of PettingZoo's parallel ones."""

from __future__ import annotations

from typing import Any

import gymnasium

__all__ = ["TupleAgents"]


class TupleAgents:
    """An environment of several agents, each with its element of the Tuples of a Gymnasium environment.

    Agents are called "agent_0", "agent_1" and so on, in the order of the Tuples, and all end in the same step. env: the
    environment, whose rewards are a sequence with an element for each agent; ``close`` closes it. Raises TypeError
    unless both its spaces are Tuples, with as many elements.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        spaces = (env.observation_space, env.action_space)
        observation_spaces, action_spaces = (getattr(space, "spaces", ()) for space in spaces)
        if not all(isinstance(space, gymnasium.spaces.Tuple) for space in spaces) or (
            len(observation_spaces) != len(action_spaces)
        ):
            raise TypeError(f"{env} has no agents in Tuples: its spaces are {spaces[0]} and {spaces[1]}")
        self.env, self.metadata, self.render_mode = env, env.metadata, env.render_mode
        self.possible_agents = [f"agent_{index}" for index in range(len(action_spaces))]
        self.agents: list[str] = []
        self._observation_spaces, self._action_spaces = (
            self._by_agent(observation_spaces),
            self._by_agent(action_spaces),
        )

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return an agent's element of the observation space."""
        space: gymnasium.Space[Any] = self._observation_spaces[agent]
        return space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return an agent's element of the action space."""
        space: gymnasium.Space[Any] = self._action_spaces[agent]
        return space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; return (observations, infos), by agent. The environment's info is not passed on."""
        observations, _ = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._by_agent(observations), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        """Take all agents' actions; return (observations, rewards, terminations, truncations, infos), by agent."""
        joint = tuple(actions[agent] for agent in self.possible_agents)
        observations, rewards, terminated, truncated, _ = self.env.step(joint)
        flags = [dict.fromkeys(self.agents, bool(flag)) for flag in (terminated, truncated)]
        if terminated or truncated:
            self.agents = []
        infos: dict[str, Any] = {agent: {} for agent in self.possible_agents}
        return self._by_agent(observations), self._by_agent(rewards), *flags, infos

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _by_agent(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))
