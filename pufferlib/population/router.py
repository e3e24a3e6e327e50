"""Router: passes each row of a batch to the policy that plays the row's agent, and returns the actions in order."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from pufferlib.errors import CallError, PlanError
from pufferlib.models import Actor, Decisions, FrameStack, State, action_mask_reader
from pufferlib.models.per_agent import expand_masks
from pufferlib.population.matchmaking import Matchmaker, Matchup, Seat, seats_of
from pufferlib.population.pool import PolicyPool
from pufferlib.util.annotations import Array
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.messages import crash_cause

__all__ = ["Router"]


FEWEST = 8  # policies in a stack: stacks of 4 were no faster than one policy at a time, stacks of 16 were
STACKS = 4  # in the cache: each set of policies that are in a batch together has its own stack
WASTE = 2.0  # rows of a stack per needed row; above, computing one policy at a time is faster


class PolicyRows(NamedTuple):
    """The rows of one policy in a batch. policy: its id. rows: ascending indices in the batch."""

    policy: int
    rows: Array


class Router:
    """A router that plays all agents of a VecEnv, each with the policy that the matchup assigns to the agent's seat.

    ::

        router = Router(pool, vec, Fixed([(0, 1), (2, 1)]))
        vec.async_reset()
        while True:
            batch = vec.recv()
            vec.send(router.act(batch))

    ``act`` must be called with every batch. The matchmaker is called only when an environment's episode begins, so that
    a mixture is sampled once per episode. In turn-based environments with action masks, only the rows whose masks allow
    an action are computed.

    seats: the environments' seats; by default, one per agent. stack: whether to compute together policies that differ
    only in their weights. greedy: whether to take the most likely actions instead of sampling. seed: the seed for
    sampling. Raises PlanError if an agent is not in exactly one seat. Also raises PlanError if the VecEnv has
    ``autoreset_mode="same_step"``, because an episode then begins in the row in which the previous one ends. Without
    seats, also raises the errors of ``seats_of``.
    """

    def __init__(
        self,
        pool: PolicyPool,
        vec: VecEnv,
        matchmaker: Matchmaker,
        *,
        seats: Sequence[Seat] | None = None,
        stack: bool = True,
        greedy: bool = False,
        seed: int | None = None,
    ) -> None:
        if vec.autoreset_mode == "same_step":
            raise PlanError(
                'autoreset_mode="same_step" begins an episode in the row in which the last one ends; use "next_step"'
            )
        self.seats = seats_of(vec) if seats is None else tuple(seats)
        indices = sorted(index for seat in self.seats for index in seat.places)
        if indices != list(range(vec.agents_per_env)):
            raise PlanError(
                f"the seats have the places {indices}; each of 0 to {vec.agents_per_env - 1} must be in one seat"
            )
        self.pool, self.matchmaker = pool, matchmaker
        self._layout, self._action_space = vec.observation_layout, vec.single_action_space
        self.decisions = Decisions(vec.single_action_space)
        self._read_mask = action_mask_reader(vec.observation_layout, vec.single_action_space)
        self._stack, self._greedy = stack, greedy
        self._generator = torch.Generator().manual_seed(np.random.SeedSequence(seed).generate_state(1)[0].item())
        num_envs, agents_per_env = vec.num_envs, vec.agents_per_env
        self._seat_indices = np.zeros(agents_per_env, np.int64)
        for number, seat in enumerate(self.seats):
            self._seat_indices[list(seat.places)] = number
        self._matchups: list[Matchup | None] = [None] * num_envs
        self._assigned = np.zeros(num_envs, np.bool_)
        self._policies = np.zeros((num_envs, agents_per_env), np.int64)
        self._returns = np.zeros((num_envs, agents_per_env))
        self._lengths = np.zeros(num_envs, np.int64)
        self._alive = np.zeros((num_envs, agents_per_env), np.bool_)
        self._interrupted = np.zeros(num_envs, np.bool_)  # by a failure
        self._new = torch.ones(num_envs * agents_per_env, dtype=torch.bool)  # agents that no policy has seen yet
        self._actors: dict[int, Actor] = {}
        self._architectures: dict[int, str | None] = {}
        self._unstackable: set[str | None] = {None}
        self._stacks: OrderedDict[tuple[int, ...], Stack] = OrderedDict()
        self._states: dict[Any, State] = {}  # of all agents, by shapes and dtypes
        self._frames: dict[int, FrameStack] = {}  # by number of frames
        self._num_agents = num_envs * agents_per_env

    def matchup(self, env_id: int) -> Matchup | None:
        """Return the matchup of an environment's current episode; None before the first episode."""
        return self._matchups[env_id]

    def policies(self, agent_ids: Array) -> Array:
        """Return the ids of the policies that play these agents, (rows,) int64."""
        return self._policies.reshape(-1)[agent_ids]

    def plays(self, policy: int) -> bool:
        """Return whether a policy has a seat in any current episode."""
        return bool((self._policies[self._assigned] == policy).any())

    @torch.inference_mode()
    def act(self, batch: Any, but: int | None = None) -> Any:
        """Return the flat actions for a batch of the VecEnv.

        Where an episode begins in the batch, the environment's previous episode is first reported to the matchmaker,
        which then assigns a matchup to the new one. but: the id of a policy that the caller plays; its actions are not
        computed, and placeholders are returned for its rows. Raises CallError for episodes whose first rows were not
        passed to ``act``, PlanError for matchups that do not fit the seats, and the errors of ``PolicyPool.actor``.
        """
        env_ids, agent_ids, masks = _array(batch.env_ids), _array(batch.agent_ids), _array(batch.masks)
        self._follow(batch, env_ids, masks)
        observations = _tensor(batch.observations)
        ids = _tensor(agent_ids)
        self._new[ids] |= ~_tensor(masks)
        mask = None if self._read_mask is None else self._read_mask(observations)
        active = np.ones(len(agent_ids), np.bool_) if mask is None else mask.any(1).numpy()
        if but is not None:
            active &= self.policies(agent_ids) != but
        groups = self._groups(agent_ids, active)
        frames = {number: stack(observations, ids, _tensor(masks)) for number, stack in self._frames.items()}
        frames[1] = observations
        outputs = self._outputs(groups, frames, ids, mask)
        combined = outputs[0] if len(outputs) == 1 else tuple(outputs)
        distribution = self.decisions.distribution(combined, mask)
        parts = distribution.mode() if self._greedy else distribution.sample(self._generator)
        return self.decisions.actions(*parts)

    # -------------------------------------------------------------------------------------------------- episodes

    def _follow(self, batch: Any, env_ids: Array, masks: Array) -> None:
        """Report previous episodes and assign matchups where new episodes begin; then record the batch.

        Recorded are each episode's rewards and length, which of its agents are alive, and whether it failed. Raises
        CallError for episodes whose first rows were not in an earlier batch, and the errors of new matchups.
        """
        shape = (len(env_ids), self._policies.shape[1])
        masks = masks.reshape(shape)
        ended = (_array(batch.terminations) | _array(batch.truncations)).reshape(shape)
        begins = ~(masks | ended).any(1)
        if begins.any():
            self._begin(env_ids[begins].tolist())
        if not self._assigned[env_ids].all():
            unassigned = env_ids[~self._assigned[env_ids]].tolist()
            raise CallError(
                f"environments {unassigned} are in the middle of episodes whose first rows act() has not seen; "
                "call async_reset, and pass every batch to act()"
            )
        self._returns[env_ids] += np.where(masks, _array(batch.rewards).reshape(shape), 0.0)
        self._lengths[env_ids] += masks.any(1)
        self._alive[env_ids] = masks & ~ended
        if (ended & ~masks).any():  # an agent vanished, or the environment failed
            for info in batch.infos:
                if crash_cause(info) is not None:
                    self._interrupted[info["env_id"]] = True

    def _begin(self, env_ids: list[int]) -> None:
        for env_id in env_ids:
            matchup = self._matchups[env_id]
            if matchup is not None:
                self.matchmaker.report(env_id, matchup, self._outcome(env_id))
        for env_id, matchup in zip(env_ids, self.matchmaker.assign(env_ids), strict=True):
            if matchup != self._matchups[env_id]:
                self._check(matchup)
                self._admit(matchup)
                self._matchups[env_id] = tuple(matchup)
                self._policies[env_id] = np.asarray(matchup)[self._seat_indices]
        self._returns[env_ids] = 0
        self._lengths[env_ids] = 0
        self._alive[env_ids] = False
        self._interrupted[env_ids] = False
        self._assigned[env_ids] = True

    def _outcome(self, env_id: int) -> Array | None:
        """Return each seat's return in an environment's last episode, (num_seats,).

        Returns None if the episode has no rows, failed, or was reset before it ended.
        """
        if self._interrupted[env_id] or not self._lengths[env_id] or self._alive[env_id].any():
            return None
        return np.bincount(self._seat_indices, self._returns[env_id], len(self.seats))

    def _check(self, matchup: Matchup) -> None:
        if len(matchup) != len(self.seats):
            raise PlanError(f"matchup {matchup} has {len(matchup)} policies, but there are {len(self.seats)} seats")
        for policy, seat in zip(matchup, self.seats, strict=True):
            if self.pool[policy].seat not in (None, seat.name):
                raise PlanError(f"policy {policy} plays {self.pool[policy].seat!r}, and cannot take {seat.name!r}")

    # -------------------------------------------------------------------------------------------------- policies

    def _groups(self, agent_ids: Array, active: Array) -> list[PolicyRows]:
        """Group the active rows by policy; leave out inactive rows. agent_ids, active: (rows,)."""
        rows = np.flatnonzero(active)
        if not len(rows):
            return []
        policies = self.policies(agent_ids[rows])
        changes = np.flatnonzero(policies[1:] != policies[:-1]) + 1
        group_policies = policies[np.concatenate([[0], changes])]
        if len(np.unique(group_policies)) < len(group_policies):  # a policy has several blocks of rows: sort
            order = np.argsort(policies, kind="stable")
            rows, policies = rows[order], policies[order]
            changes = np.flatnonzero(policies[1:] != policies[:-1]) + 1
            group_policies = policies[np.concatenate([[0], changes])]
        return [
            PolicyRows(policy, part)
            for policy, part in zip(group_policies.tolist(), np.split(rows, changes), strict=True)
        ]

    def _admit(self, policies: Sequence[int]) -> None:
        """Create actors for the policies that have none yet, and the frame stacks that these actors need."""
        for policy in policies:
            if policy in self._actors:
                continue
            actor = self._actors[policy] = self.pool.actor(policy, self._layout, self._action_space)
            origin = self.pool.origin(policy)
            stackable = self._stack and policy >= 0 and not actor.recurrent
            signature = [origin.policy, origin.policy_kwargs, origin.frame_stack]
            self._architectures[policy] = json.dumps(signature, sort_keys=True) if stackable else None
            if actor.frame_stack > 1 and actor.frame_stack not in self._frames:
                self._frames[actor.frame_stack] = FrameStack(self._layout, actor.frame_stack, self._num_agents)

    def _outputs(
        self, groups: list[PolicyRows], frames: dict[int, Tensor], ids: Tensor, mask: Tensor | None
    ) -> list[Tensor]:
        """Return the policies' outputs for all rows of the batch, each (rows, …); rows in no group are zeros."""
        outputs: list[Tensor] = []

        def put(rows: Any, parts: Any) -> None:
            if not outputs:
                outputs.extend(part.new_zeros((len(ids), part.shape[1])) for part in parts)
            for target, part in zip(outputs, parts, strict=True):
                target[rows] = part

        for architecture, subset in self._by_architecture(groups).items():
            if architecture is not None and not self._put_stacked(architecture, subset, frames, mask, put):
                architecture = None
            if architecture is None:
                for group in subset:
                    self._put_one(group, frames, ids, mask, put)
        if not outputs:  # no row is active
            continuous = torch.zeros((len(ids), self.decisions.num_aims))
            outputs = [torch.zeros((len(ids), self.decisions.num_options))] if self.decisions.nvec else []
            outputs += [continuous, continuous] if self.decisions.num_aims else []
        return outputs

    def _by_architecture(self, groups: list[PolicyRows]) -> dict[str | None, list[PolicyRows]]:
        """Split the groups into those to compute together, keyed by architecture, and those to compute one at a time.

        The latter have the key None: their policies cannot be stacked, or a stack would be slower.
        """
        groups_by_architecture: dict[str | None, list[PolicyRows]] = {}
        for group in groups:
            architecture = self._architectures[group.policy]
            groups_by_architecture.setdefault(None if architecture in self._unstackable else architecture, []).append(
                group
            )
        for architecture, subset in list(groups_by_architecture.items()):
            num_rows = sum(len(group.rows) for group in subset)
            num_padded = len(subset) * max(len(group.rows) for group in subset)
            if architecture is not None and (len(subset) < FEWEST or num_padded > WASTE * num_rows):
                groups_by_architecture.setdefault(None, []).extend(groups_by_architecture.pop(architecture))
        return groups_by_architecture

    def _put_one(
        self, group: PolicyRows, frames: dict[int, Tensor], ids: Tensor, mask: Tensor | None, put: Any
    ) -> None:
        actor = self._actors[group.policy]
        rows = _slice(group.rows)
        row_mask = None if mask is None else mask[rows]
        observations = frames[actor.frame_stack][rows]
        agents = ids[rows]
        state = self._state_of(actor, agents)
        outputs, _, new_state = actor.outputs(observations, state, row_mask)
        if state is not None and new_state is not None:
            for memory, update in zip(self._states[_signature(state)], new_state, strict=True):
                memory[agents] = update
        self._new[agents] = False
        put(rows, outputs if isinstance(outputs, tuple) else (outputs,))

    def _state_of(self, actor: Actor, agents: Tensor) -> State | None:
        """Return a policy's recurrent states for these agents, each (rows, …); None if the policy has no state.

        An agent that is new to its policy has the initial state.
        """
        initial = actor.initial_state(len(agents))
        if initial is None:
            return None
        key = _signature(initial)
        if key not in self._states:
            self._states[key] = tuple(part.new_zeros((self._num_agents, *part.shape[1:])) for part in initial)
        new = self._new[agents]
        return tuple(
            torch.where(expand_masks(new, first), first, memory[agents])
            for memory, first in zip(self._states[key], initial, strict=True)
        )

    def _put_stacked(
        self, architecture: str, groups: list[PolicyRows], frames: dict[int, Tensor], mask: Tensor | None, put: Any
    ) -> bool:
        """Compute policies of one architecture together, and pass their outputs to ``put``.

        Returns whether this succeeded; if torch.vmap cannot run the network, the architecture is noted as unstackable.
        """
        policies = tuple(group.policy for group in groups)
        lengths = np.array([len(group.rows) for group in groups])
        longest = int(lengths.max())
        rows = np.concatenate([group.rows for group in groups])
        even = bool((lengths == longest).all())
        if even:  # no padding; and if the rows are one block, no gathering either
            indices = _slice(rows)
        else:
            indices = np.concatenate([np.resize(group.rows, longest) for group in groups])
        observations = frames[self._actors[policies[0]].frame_stack][indices]
        observations = observations.reshape(len(groups), longest, *observations.shape[1:])
        row_mask = None if mask is None else mask[indices].reshape(len(groups), longest, -1)
        try:
            outputs = self._stack_of(policies)(observations, row_mask)
        except (RuntimeError, NotImplementedError):  # torch.vmap cannot run the network
            self._unstackable.add(architecture)
            return False
        flat = [part.flatten(0, 1) for part in outputs]
        if even:
            put(indices, flat)
        else:
            valid = (np.arange(longest) < lengths[:, None]).reshape(-1)
            put(rows, [part[valid] for part in flat])
        return True

    def _stack_of(self, policies: tuple[int, ...]) -> Stack:
        if policies not in self._stacks:
            self._stacks[policies] = Stack([self._actors[policy].policy for policy in policies])
            if len(self._stacks) > STACKS:
                self._stacks.popitem(last=False)
        self._stacks.move_to_end(policies)
        return self._stacks[policies]


class Stack:
    """A stack of policies without recurrent state that differ only in their weights. The weights are copied."""

    def __init__(self, policies: Sequence[nn.Module]) -> None:
        self._weights = stack_module_state(list(policies))
        self._module = deepcopy(policies[0]).to("meta")
        # vmap turns the matrix product of each layer into one batched product for all policies.
        self._call = torch.vmap(self._forward, in_dims=(0, 0, 0), randomness="error")

    def _forward(self, weights: Any, observations: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        outputs, _, _ = functional_call(self._module, weights, (observations, None, mask if mask.numel() else None))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def __call__(self, observations: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return each policy's outputs for its rows, (policies, rows, …).

        observations: (policies, rows, *shape). mask: bool (policies, rows, num_options), or None.
        Raises RuntimeError if torch.vmap cannot run the network.
        """
        if mask is None:
            mask = observations.new_empty((*observations.shape[:1], 0), dtype=torch.bool)
        outputs: tuple[Tensor, ...] = self._call(self._weights, observations, mask)
        return outputs


def _signature(state: State) -> Any:
    return tuple((tuple(part.shape[1:]), part.dtype) for part in state)


def _slice(rows: Array) -> Any:
    """Return indices as a slice if they are ascending and contiguous, because a slice indexes without copying.

    Otherwise, return them as a tensor.
    """
    first, last = int(rows[0]), int(rows[-1])
    # Rows of several groups may span as many indices without being in order.
    if last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all()):
        return slice(first, last + 1)
    return torch.from_numpy(rows)


def _array(values: Any) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def _tensor(values: Any) -> Tensor:
    """Return values as a tensor on the CPU; copy read-only arrays, about which torch would warn."""
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(values if values.flags.writeable else values.copy())
    return cast(Tensor, values.cpu())
