"""Inference with policies: action distributions, actions for batches, and actions for one raw environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from pufferlib import Batch
from pufferlib.emulation import RowEnv
from pufferlib.errors import CallError, SpaceError
from pufferlib.layout import Layout
from pufferlib.models.distributions import Decisions, Distribution, Outputs
from pufferlib.models.making import action_mask_reader, make_policy
from pufferlib.models.networks import ActorCritic, State, hooked
from pufferlib.models.per_agent import FrameStack, Memory, expand_masks, newest, stacked_layout

__all__ = ["PRECISIONS", "Actor", "BatchPlayer", "Player"]

# Values of ``Actor.precision``, by the name that trainers' settings use.
PRECISIONS: Mapping[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}


class Actor:
    """A policy that applies action masks and returns distributions of actions.

    policy, kwargs: as for ``make_policy``. layout: the layout of the environments' observations. action_space: the
    environments' flat action space. frame_stack: the number of observations that ``FrameStack`` joins into one row for
    the policy. seen_layout: the layout of the joined rows. Raises the errors of ``make_policy``, ``FrameStack`` and
    ``action_mask_reader``.
    """

    def __init__(
        self,
        policy: str | Callable[..., nn.Module],
        layout: Layout,
        action_space: gymnasium.Space[Any],
        frame_stack: int = 1,
        /,
        **kwargs: Any,
    ) -> None:
        self.layout, self.frame_stack = layout, frame_stack
        self.seen_layout = stacked_layout(layout, frame_stack)
        self.policy = make_policy(policy, self.seen_layout, action_space, **kwargs)
        self.decisions = Decisions(action_space)
        self._num_places: int | None = getattr(self.policy, "num_places", None)
        self._read_mask = action_mask_reader(layout, action_space)
        self._checked = False  # whether the policy's first result has been checked
        self.precision: torch.dtype | None = None  # of computations, such as torch.bfloat16; None: that of the weights

    @property
    def recurrent(self) -> bool:
        """Whether the policy has a state."""
        return hasattr(self.policy, "initial_state")

    @property
    def by_places(self) -> bool:
        """Whether the policy depends on the agents' indices in their environment."""
        return self._num_places is not None

    def require_places(self, agents_per_env: int) -> None:
        """Raise SpaceError if the policy depends on agents' indices and was not made for ``agents_per_env`` agents."""
        if self._num_places is not None and self._num_places != agents_per_env:
            raise SpaceError(
                f"the policy depends on the indices of {self._num_places} agents per environment, but these "
                f"environments have {agents_per_env}; use environments with {self._num_places}"
            )

    @property
    def separable(self) -> bool:
        """Whether the policy's actor and critic share no layers, so that each can be computed without the other."""
        policy = self.policy
        return getattr(type(policy), "forward", None) is ActorCritic.forward and not hooked(policy)

    def initial_state(self, num_rows: int) -> State | None:
        """Return the state at the beginning of an episode; None if the policy is not recurrent."""
        first: Callable[[int], State] | None = getattr(self.policy, "initial_state", None)
        return None if first is None else first(num_rows)

    def mask(self, observations: Tensor) -> Tensor | None:
        """Return the masks of allowed options, bool (rows, num_options); None if the environment has no masks.

        observations: flat rows of ``seen_layout``.
        """
        if self._read_mask is None:
            return None
        return self._read_mask(newest(self.layout, self.frame_stack, observations))

    def __call__(
        self, observations: Tensor, state: State | None = None, agent_ids: Tensor | None = None
    ) -> tuple[Distribution, Tensor, State | None]:
        """Return (distribution of the allowed actions, values, next state); the values are (rows,) float32.

        observations: flat rows of ``seen_layout``. state: the state returned with these agents' previous rows.
        agent_ids: each row's agent, for policies that depend on agents' indices; may be omitted if the rows are those
        of complete environments, in order. Raises SpaceError if the policy returns an invalid result; after the first
        valid result, results are no longer checked.
        """
        mask = self.mask(observations)
        outputs, values, state = self.outputs(observations, state, mask, agent_ids)
        return self.decisions.distribution(outputs, mask), values, state

    def distribution(self, observations: Tensor) -> Distribution:
        """Return the distribution that a call returns, without the critic's work if the policy is ``separable``.

        observations and errors: as for ``__call__``.
        """
        if not (self.separable and self._checked):
            return self(observations)[0]
        policy: Any = self.policy

        def outputs(rows: Tensor) -> Outputs:
            return self.decisions.outputs(policy.actor(policy.read(rows)), policy.log_std)

        return self.decisions.distribution(self._computed(outputs, observations), self.mask(observations))

    def values(self, observations: Tensor) -> Tensor:
        """Return the values that a call returns, without the actor's work if the policy is ``separable``.

        observations and errors: as for ``__call__``.
        """
        if not (self.separable and self._checked):
            return self(observations)[1]
        policy: Any = self.policy
        values: Tensor = self._computed(lambda rows: policy.critic(policy.read(rows)).squeeze(1), observations)
        return values

    def outputs(
        self,
        observations: Tensor,
        state: State | None = None,
        mask: Tensor | None = None,
        agent_ids: Tensor | None = None,
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return the policy's (outputs, values, state).

        If ``precision`` is set, the policy computes in that dtype, and the results are converted to float32.
        observations, state, agent_ids: as for ``__call__``, which raises the same errors. mask: the result of
        ``self.mask(observations)``.
        """
        places = () if self._num_places is None or agent_ids is None else (agent_ids % self._num_places,)
        result = self._computed(self.policy, observations, state, mask, *places)
        if not self._checked:
            self._check(result, len(observations))
            self._checked = True
        outputs, values, state = result
        return outputs, values, state

    def _check(self, result: Any, num_rows: int) -> None:
        """Raise SpaceError if ``forward`` returned an invalid result, such as the wrong number of logits."""
        name = f"{type(self.policy).__name__}.forward"
        if not isinstance(result, tuple) or len(result) != 3:
            raise SpaceError(f"{name} returned {_shape(result)}; it has to return (outputs, values, state)")
        outputs, values, _ = result
        continuous_shape = (num_rows, self.decisions.num_aims)
        expected_shapes = [(num_rows, self.decisions.num_options)] if self.decisions.nvec else []
        expected_shapes += [continuous_shape, continuous_shape] if continuous_shape[1] else []
        parts = outputs if isinstance(outputs, tuple) else (outputs,)
        if [_shape(part) for part in parts] != expected_shapes:
            expected = {1: "logits", 2: "(mean, std)", 3: "(logits, mean, std)"}[len(expected_shapes)]
            shapes = ", ".join(str(_shape(part)) for part in parts)
            raise SpaceError(
                f"{name} returned outputs {shapes}; {self.decisions.space} needs {expected}: "
                f"{', '.join(map(str, expected_shapes))}"
            )
        if _shape(values) != (num_rows,):
            wrong = _shape(values)
            raise SpaceError(f"{name} returned values {wrong}; they have to be {(num_rows,)}: values.squeeze(1)")

    def unroll(self, observations: Tensor, state: State, starts: Tensor) -> tuple[Distribution, Tensor]:
        """Return the distribution and the values for many steps, equal to those of successive calls.

        Both have steps * rows rows, step by step. Only policies with a state can be unrolled. observations: (steps,
        rows, *seen_layout.shape). state: the state before the first step. starts: bool (steps, rows), True where an
        episode begins, which resets the state.
        """
        mask = self.mask(observations.flatten(0, 1))
        at_once = getattr(self.policy, "unroll", None)
        if at_once is not None:
            shaped = None if mask is None else mask.reshape(*starts.shape, -1)
            outputs, values = self._computed(at_once, observations, state, starts, shaped)
        else:
            outputs, values = self._unrolled(observations, state, starts, mask)
        return self.decisions.distribution(outputs, mask), values

    def _unrolled(self, observations: Tensor, state: State, starts: Tensor, mask: Tensor | None) -> Any:
        initial = cast(State, self.initial_state(starts.shape[1]))
        masks = [None] * len(starts) if mask is None else mask.reshape(*starts.shape, -1)
        results: list[Any] = []
        for rows, start, allowed_options in zip(observations, starts, masks, strict=True):
            state_before = tuple(
                torch.where(expand_masks(start, part), first, part) for part, first in zip(state, initial, strict=True)
            )
            outputs, values, state = self._computed(self.policy, rows, state_before, allowed_options)
            results.append((*outputs, values) if isinstance(outputs, tuple) else (outputs, values))
        *joined, values = (torch.cat(parts) for parts in zip(*results, strict=True))
        return (tuple(joined) if isinstance(outputs, tuple) else joined[0]), values

    def _computed(self, network: Callable[..., Any], observations: Tensor, *others: Any) -> Any:
        """Call a network and return its results.

        If ``self.precision`` is set, the network computes in that dtype, and the results are converted to float32.
        """
        if self.precision is None:
            return network(observations, *others)
        with torch.autocast(observations.device.type, self.precision):
            results = network(observations, *others)
        return _as_float(results, self.precision)


def _as_float(results: Any, precision: torch.dtype) -> Any:
    """Convert tensors of this precision to float32; return other values, such as counts in a state, unchanged."""
    if isinstance(results, tuple):
        return tuple(_as_float(part, precision) for part in results)
    return results.float() if isinstance(results, Tensor) and results.dtype == precision else results


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


class BatchPlayer:
    """A policy that plays a VecEnv: it returns flat actions for batches, whose rows may be those of any agents.

    actor: the policy. num_agents: the number of agents in the VecEnv; each agent's frames and state are kept from batch
    to batch. greedy: whether to take the most likely actions instead of sampling. seed: the seed for sampling; by
    default, a random one.
    """

    def __init__(
        self,
        actor: Actor,
        num_agents: int,
        *,
        agents_per_env: int | None = None,
        greedy: bool = False,
        seed: int | None = None,
    ) -> None:
        """Prepare to play ``num_agents`` agents.

        agents_per_env: the number of agents in each environment; by default, all agents are in one environment.

        Raises SpaceError if the policy depends on agents' indices and was made for another number of agents per
        environment.
        """
        actor.require_places(num_agents if agents_per_env is None else agents_per_env)
        self.actor, self.greedy = actor, greedy
        device = next((weights.device for weights in actor.policy.parameters()), torch.device("cpu"))
        self._generator = torch.Generator(device)
        self._generator.manual_seed(np.random.SeedSequence(seed).generate_state(1)[0].item())
        self._frames = FrameStack(actor.layout, actor.frame_stack, num_agents, device)
        initial = actor.initial_state(num_agents)
        self._memory = None if initial is None else Memory(initial)
        self._device = device

    def __call__(self, batch: Batch) -> Any:
        """Return the flat actions for a batch of a VecEnv with ``num_agents`` agents."""
        return self.act(batch.observations, batch.agent_ids, batch.masks)

    @torch.inference_mode()
    def act(self, observations: Any, agent_ids: Any, masks: Any) -> Any:
        """Return flat actions for rows of observations, and store the frames and states of their agents.

        observations, agent_ids, masks: arrays or tensors, as in a Batch.
        """
        distribution = self.distribution(observations, agent_ids, masks)
        decided = distribution.mode() if self.greedy else distribution.sample(self._generator)
        return self.actor.decisions.actions(*decided)

    @torch.inference_mode()
    def distribution(self, observations: Any, agent_ids: Any, masks: Any) -> Distribution:
        """Return the distribution of the rows' actions, and store the frames and states of their agents.

        observations, agent_ids, masks: see ``act``.
        """
        ids, lives = self._tensor(agent_ids), self._tensor(masks)
        rows = self._frames(self._tensor(observations), ids, lives)
        state = None if self._memory is None else self._memory.of(ids, lives)
        distribution, _, state = self.actor(rows, state, ids)
        if self._memory is not None:
            self._memory.keep(ids, cast(State, state))
        return distribution

    def _tensor(self, values: Any) -> Tensor:
        if isinstance(values, np.ndarray):
            # A batch's ids may be read-only, about which torch would warn.
            values = torch.from_numpy(values if values.flags.writeable else values.copy())
        return cast(Tensor, values.to(self._device))


class Player:
    """A policy that plays one raw environment: it returns raw actions for raw observations.

    ::

        with load_policy("runs/…/policy.pt") as player:
            observation, info = env.reset()
            over = False
            while not over:
                observation, reward, terminated, truncated, info = env.step(player.act(observation, info))
                over = terminated or truncated
            player.reset()

    For a PettingZoo parallel environment, observations, infos and actions are dicts keyed by agent. actor: the policy.
    greedy, seed: as for ``BatchPlayer``.
    """

    def __init__(
        self, actor: Actor, rows: RowEnv, *, owned: bool = True, greedy: bool = False, seed: int | None = None
    ) -> None:
        """Prepare to play an environment like ``rows``.

        rows: an emulated environment, which is used for its spaces and never stepped. owned: whether ``close`` closes
        ``rows``.
        """
        self.policy, self._owned, self._rows = actor.policy, owned, rows
        self._alone = rows.num_agents == 1 and not rows.multi_agent
        self._player = BatchPlayer(actor, rows.num_agents, greedy=greedy, seed=seed)
        self._ids: dict[Any, int] = {}  # of the agents in the last call of ``act``

    def act(self, observations: Any, infos: Any = None) -> Any:
        """Return the action for an observation; with several agents, a dict of actions for a dict of observations.

        infos: the infos returned with the observations, needed if they contain action masks. A policy that was trained
        with the environment's state reads the state from the agent's info["state"]. You have to put it there;
        otherwise, the policy reads zeros. The actor of a "central" policy does not use the state. Raises SpaceError for
        an observation that does not fit the environment's space. With several agents, raises CallError if observations
        are not a dict, or come from unknown agents or from more than the environment has.
        """
        if self._alone:
            return self._act({None: observations}, {None: infos})[None]
        if not isinstance(observations, Mapping):
            raise CallError(f"there are several agents; pass a dict of their observations, not {observations!r:.80}")
        if len(observations) > self._rows.num_agents:
            raise CallError(f"there are at most {self._rows.num_agents} agents, got {len(observations)} observations")
        names = self._rows.agent_names
        if names and (unknown := [agent for agent in observations if str(agent) not in names]):
            raise CallError(f"there is no agent {unknown[0]!r}; the agents are {', '.join(names):.200}")
        return self._act(observations, infos or {})

    def reset(self) -> None:
        """Clear the frames and the state; call this at the end of an episode."""
        self._ids.clear()

    def _act(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        agents = list(observations)
        if not agents:
            return {}
        rows = [self._rows.row_of(observations[agent], infos.get(agent), agent) for agent in agents]
        known_ids = {agent: self._ids[agent] for agent in agents if agent in self._ids}
        if self._player.actor.by_places and self._rows.agent_names:
            self._ids = {agent: self._rows.agent_names.index(str(agent)) for agent in agents}
        else:
            free = (number for number in range(self._rows.num_agents) if number not in known_ids.values())
            self._ids = {agent: known_ids[agent] if agent in known_ids else next(free) for agent in agents}
        masks = np.array([agent in known_ids for agent in agents])
        flat = self._player.act(np.stack(rows), np.array(list(self._ids.values())), masks)
        pairs = zip(*flat, strict=True) if isinstance(flat, tuple) else flat
        return {agent: self._rows.action_of(row, agent) for agent, row in zip(agents, pairs, strict=True)}

    def close(self) -> None:
        """Close the environment if the Player owns it. May be called more than once."""
        if self._owned:
            self._rows.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
