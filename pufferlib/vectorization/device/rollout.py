"""Many steps in one launch, with random actions, a table of actions, or a small network that chooses them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from pufferlib.errors import CallError
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.call_errors import WAITING
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.device.actions import Actions
from pufferlib.vectorization.device.policy import LOGITS, Policies
from pufferlib.vectorization.device.queue import DeviceQueue

__all__ = ["Rollout", "played"]


class Rollout(NamedTuple):
    """The rows of a rollout with a policy: the fields of a Batch and of Chosen.

    Columns have the shape (num_steps, rows, …), except ``env_ids`` and ``agent_ids``, which are those of a Batch.
    ``actions[k]`` led to ``observations[k]``, and was chosen from ``observations[k - 1]`` or, for k = 0, from the
    observations of the previous batch. With ``keep=False``, there are only the rows of the last step, (rows, …).
    """

    observations: Any
    rewards: Any
    terminations: Any
    truncations: Any
    infos: Any
    env_ids: Any
    agent_ids: Any
    masks: Any
    actions: Any
    log_probs: Any
    entropies: Any


def played(
    queue: DeviceQueue,
    checks: Actions,
    policies: Policies,
    receive: Callable[[], Batch],
    num_steps: int,
    actions: Any,
    policy: Any,
    *,
    greedy: bool,
    keep: bool,
    precision: str,
) -> Batch | Rollout:
    """Play a rollout and return its rows; see ``CUDA.rollout``. receive: a function that receives the next batch."""
    shape, launchers = queue.shape, queue.launchers
    if not shape.synchronous or queue.states.all != WAITING:
        raise CallError("a rollout steps all environments at once, after reset or recv, with batch_size=num_envs")
    if num_steps < 1:
        raise CallError(f"num_steps={num_steps} is impossible; use 1 or more")
    if policy is not None and actions is not None:
        raise CallError("a rollout has actions, or a policy that chooses them; leave one out")
    if precision != "float32" and (policy is None or hasattr(policy, "play_steps")):
        who = "there is no policy" if policy is None else f"a {type(policy).__name__} computes in float32"
        raise CallError(f"precision={precision!r} is for a policy of torch.nn.Sequential, and {who}; leave it out")
    num_envs = shape.num_envs
    rows = num_envs * shape.agents_per_env
    all_rows = keep or actions is not None
    most = importlib.import_module("cuda_ext.data").MOST_ELEMENTS
    if num_steps * (rows if all_rows else 1) > most:
        raise CallError(
            f"num_steps={num_steps} of {rows} rows each are more than a kernel's {most:,}; play fewer at a time"
            + (", or keep=False" if keep and actions is None else "")
        )
    if actions is not None:
        actions = checks.checked(actions, range(num_envs), num_steps)
    chosen = None
    tensors: list[Any] = []  # read by the launch
    steps: Any = None  # those of a policy that launches one step at a time
    if hasattr(policy, "play_steps"):
        newest = queue.newest()
        assert newest is not None
        launcher = launchers.variant(policy=LOGITS, num_steps=1, step_slots=0)
        num_inputs = newest.observations[0].numel()
        policy.require_playable(launcher, num_inputs, policies.num_outputs, policies.num_continuous)
        num_rows = rows * num_steps if all_rows else rows
        chosen, logits = policies.chosen(num_rows), policies.logits(num_rows)
        launcher.set({**policies.fixed, **policies.addresses(chosen), "policy_greedy": greedy})
        launcher.set({"policy_logits": logits.data_ptr(), "policy_masks": 0, "num_envs": num_envs})
        steps = num_envs * all_rows, newest.observations, logits
    elif policy is None:
        launcher = launchers.variant()
        launcher.set({"actions": 0 if actions is None else actions.data_ptr()})
    else:
        newest = queue.newest()
        assert newest is not None  # all environments wait, so their rows were received
        inputs = newest.observations
        launcher = policies.network_launcher(policy, inputs[0].numel(), precision, tensors)
        chosen = policies.chosen(rows * num_steps if all_rows else rows)
        launcher.set({**policies.addresses(chosen), "policy_greedy": greedy, "policy_inputs": inputs.data_ptr()})
    if actions is not None:
        launcher.set({"actions_nbytes": actions.element_size()})
    block = queue.open_block()
    wide = queue.make_block(num_envs * num_steps) if all_rows else block
    launcher.set({**wide.addresses, "by_env": 1})
    if steps is None:
        launcher.set({"num_steps": num_steps, "step_slots": num_envs * all_rows})
        block.stream.launch(launcher, num_envs, tensors)
    else:
        slot_step, inputs, logits = steps
        stream = queue.streams.current()
        policy.play_steps(launcher, num_steps, slot_step, inputs, wide.observations, logits, stream)
    if all_rows:
        for name in block.addresses:
            column = getattr(block, name, None)
            if column is not None:
                column.copy_(getattr(wide, name)[-len(column) :])
    queue.launched(block, range(num_envs), num_steps * num_envs)
    last: Any = receive()

    def by_step(column: Any) -> Any:
        return column.reshape(num_steps, rows, *column.shape[1:])

    if keep:
        last = last._replace(
            observations=by_step(wide.observations),
            rewards=by_step(wide.rewards),
            terminations=by_step(wide.terminations),
            truncations=by_step(wide.truncations),
            masks=by_step(wide.masks),
            infos=Infos([], range(num_envs), shape.agents_per_env),
        )
    if chosen is not None:
        last = Rollout(*last, *(map(by_step, chosen) if keep else chosen))
    return last  # type: ignore[no-any-return]
