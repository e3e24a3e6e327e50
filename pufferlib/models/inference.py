"""Policies at play: the distribution of their actions, actions for batches, and actions for one raw environment."""

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
from pufferlib.models.networks import State
from pufferlib.models.per_agent import FrameStack, Memory, beside, newest, stacked_layout

__all__ = ["Actor", "BatchPlayer", "Player"]


class Actor:
    """A policy, and what becomes of its outputs: the distribution of actions that the masks allow.

    policy, kwargs: as ``make_policy`` takes them. layout, action_space: of the environments. frame_stack: how many
    frames ``observations`` hold, as ``FrameStack`` makes them. Raises as ``make_policy`` and ``FrameStack`` do.
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
        self._checked = False  # what the policy returns, once
        self.precision: torch.dtype | None = None  # that networks compute in, such as torch.bfloat16; None: as they are

    @property
    def recurrent(self) -> bool:
        """Whether the policy has a memory."""
        return hasattr(self.policy, "initial_state")

    @property
    def by_places(self) -> bool:
        """Whether the policy goes by the places of agents in their environment."""
        return self._num_places is not None

    def require_places(self, agents_per_env: int) -> None:
        """Raise SpaceError where the policy goes by places, and was made for another number of them."""
        if self._num_places is not None and self._num_places != agents_per_env:
            raise SpaceError(
                f"the policy goes by the places of {self._num_places} agents, and these environments have "
                f"{agents_per_env}; play it where there are as many"
            )

    def initial_state(self, num_rows: int) -> State | None:
        """Return the state at the beginning of an episode; None of a policy without a memory."""
        first: Callable[[int], State] | None = getattr(self.policy, "initial_state", None)
        return None if first is None else first(num_rows)

    def mask(self, observations: Tensor) -> Tensor | None:
        """Return the options that are allowed, bool (rows, num_options); None where the environment masks none."""
        if self._read_mask is None:
            return None
        return self._read_mask(newest(self.layout, self.frame_stack, observations))

    def __call__(
        self, observations: Tensor, state: State | None = None, agent_ids: Tensor | None = None
    ) -> tuple[Distribution, Tensor, State | None]:
        """Return the distribution of allowed actions, the values, (rows,) float32, and the next state.

        observations: flat rows of ``seen_layout``. state: what came back with these agents' last rows. agent_ids: of
        the rows, for policies that go by agents' places; None: rows are those of whole environments, in order.
        """
        mask = self.mask(observations)
        outputs, values, state = self.outputs(observations, state, mask, agent_ids)
        return self.decisions.distribution(outputs, mask), values, state

    def outputs(
        self,
        observations: Tensor,
        state: State | None = None,
        mask: Tensor | None = None,
        agent_ids: Tensor | None = None,
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return what the policy's ``forward`` returns, float32. mask: as ``mask`` makes it of these observations."""
        places = () if self._num_places is None or agent_ids is None else (agent_ids % self._num_places,)
        told = self._computed(self.policy, observations, state, mask, *places)
        if not self._checked:
            self._check(told, len(observations))
            self._checked = True
        outputs, values, state = told
        return outputs, values, state

    def _check(self, told: Any, num_rows: int) -> None:
        """Raise SpaceError unless this is what ``forward`` has to return; a wrong number of logits plays on unseen."""
        name = f"{type(self.policy).__name__}.forward"
        if not isinstance(told, tuple) or len(told) != 3:
            raise SpaceError(f"{name} returned {_shape(told)}; it has to return (outputs, values, state)")
        outputs, values, _ = told
        aims = (num_rows, self.decisions.num_aims)
        wanted = [(num_rows, self.decisions.num_options)] if self.decisions.nvec else []
        wanted += [aims, aims] if aims[1] else []
        came = outputs if isinstance(outputs, tuple) else (outputs,)
        if [_shape(part) for part in came] != wanted:
            meant = {1: "logits", 2: "(mean, std)", 3: "(logits, mean, std)"}[len(wanted)]
            shapes = ", ".join(str(_shape(part)) for part in came)
            raise SpaceError(
                f"{name} returned outputs {shapes}; {self.decisions.space} needs {meant}: {', '.join(map(str, wanted))}"
            )
        if _shape(values) != (num_rows,):
            wrong = _shape(values)
            raise SpaceError(f"{name} returned values {wrong}; they have to be {(num_rows,)}: values.squeeze(1)")

    def unroll(self, observations: Tensor, state: State, starts: Tensor) -> tuple[Distribution, Tensor]:
        """Return the distributions and values of many steps, as calls one after another would, (steps * rows, …).

        observations: (steps, rows, *seen_layout.shape). state: before the first step. starts: bool (steps, rows), where
        an episode begins, and with it the state anew.
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
        told: list[Any] = []
        for seen, begins, allowed in zip(observations, starts, masks, strict=True):
            before = tuple(
                torch.where(beside(begins, part), first, part) for part, first in zip(state, initial, strict=True)
            )
            outputs, values, state = self._computed(self.policy, seen, before, allowed)
            told.append((*outputs, values) if isinstance(outputs, tuple) else (outputs, values))
        *joined, values = (torch.cat(parts) for parts in zip(*told, strict=True))
        return (tuple(joined) if isinstance(outputs, tuple) else joined[0]), values

    def _computed(self, network: Callable[..., Any], observations: Tensor, *others: Any) -> Any:
        """Return what a network makes of these, in the precision that is asked for; float32 comes of it."""
        if self.precision is None:
            return network(observations, *others)
        with torch.autocast(observations.device.type, self.precision):
            told = network(observations, *others)
        return _as_float(told, self.precision)


def _as_float(told: Any, precision: torch.dtype) -> Any:
    """Return the same with tensors of this precision as float32; a state may have others, such as counts."""
    if isinstance(told, tuple):
        return tuple(_as_float(part, precision) for part in told)
    return told.float() if isinstance(told, Tensor) and told.dtype == precision else told


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


class BatchPlayer:
    """An actor at play in a VecEnv: flat actions for batches, whichever agents are in them.

    It keeps what the next row of each of ``num_agents`` needs. greedy: the likeliest actions instead of drawn ones.
    seed: of what is drawn; None for any.
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
        """agents_per_env: by default all agents. Raises SpaceError where a policy goes by the places of others."""
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
        """Return flat actions. All three are arrays or tensors, as a Batch has them."""
        ids, lives = self._tensor(agent_ids), self._tensor(masks)
        rows = self._frames(self._tensor(observations), ids, lives)
        state = None if self._memory is None else self._memory.of(ids, lives)
        distribution, _, state = self.actor(rows, state, ids)
        if self._memory is not None:
            self._memory.keep(ids, cast(State, state))
        decided = distribution.mode() if self.greedy else distribution.sample(self._generator)
        return self.actor.decisions.actions(*decided)

    def _tensor(self, values: Any) -> Tensor:
        if isinstance(values, np.ndarray):
            # A batch's ids may be read-only, of which torch would warn; they are only looked at.
            values = torch.from_numpy(values if values.flags.writeable else values.copy())
        return cast(Tensor, values.to(self._device))


class Player:
    """A policy at play on one raw environment: raw observations in, raw actions out.

    ::

        with load_policy("runs/…/policy.pt") as player:
            observation, info = env.reset()
            over = False
            while not over:
                observation, reward, terminated, truncated, info = env.step(player.act(observation, info))
                over = terminated or truncated
            player.reset()

    actor: the policy. Of a PettingZoo parallel environment, observations, infos and actions are dicts by agent.
    greedy, seed: as ``BatchPlayer`` has them.
    """

    def __init__(
        self, actor: Actor, rows: RowEnv, *, owned: bool = True, greedy: bool = False, seed: int | None = None
    ) -> None:
        """rows: the environment, emulated; it is asked for spaces, not stepped. owned: ``close`` closes it."""
        self.policy, self._owned, self._rows = actor.policy, owned, rows
        self._alone = rows.num_agents == 1 and not rows.multi_agent
        self._player = BatchPlayer(actor, rows.num_agents, greedy=greedy, seed=seed)
        self._ids: dict[Any, int] = {}  # of the agents whose last row was seen

    def act(self, observations: Any, infos: Any = None) -> Any:
        """Return the action for an observation; of several agents, a dict of actions for a dict of observations.

        infos: what came with the observations; of use where action masks are in them. Where the policy was trained with
        the environment's state, that is taken from an agent's info["state"], if you put it there, else zeros: actors of
        "central" policies do not look at it. Raises SpaceError for an observation that the environment would not give.
        """
        if self._alone:
            return self._act({None: observations}, {None: infos})[None]
        if not isinstance(observations, Mapping):
            raise CallError(f"there are several agents; pass a dict of their observations, not {observations!r:.80}")
        if len(observations) > self._rows.num_agents:
            raise CallError(f"there are {self._rows.num_agents} agents at most, not {len(observations)}")
        return self._act(observations, infos or {})

    def reset(self) -> None:
        """Forget what was seen; to be called at the end of an episode."""
        self._ids.clear()

    def _act(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        agents = list(observations)
        if not agents:
            return {}
        rows = [self._rows.row_of(observations[agent], infos.get(agent), agent) for agent in agents]
        known = {agent: self._ids[agent] for agent in agents if agent in self._ids}
        if self._player.actor.by_places:
            self._ids = {agent: self._rows.agent_names.index(str(agent)) for agent in agents}
        else:
            free = (number for number in range(self._rows.num_agents) if number not in known.values())
            self._ids = {agent: known[agent] if agent in known else next(free) for agent in agents}
        masks = np.array([agent in known for agent in agents])
        flat = self._player.act(np.stack(rows), np.array(list(self._ids.values())), masks)
        pairs = zip(*flat, strict=True) if isinstance(flat, tuple) else flat
        return {agent: self._rows.action_of(row, agent) for agent, row in zip(agents, pairs, strict=True)}

    def close(self) -> None:
        """Close the environment that was made to know its spaces. Safe to call again."""
        if self._owned:
            self._rows.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
