"""Many steps in one launch: with random actions, a table of actions, or a small network that chooses them."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from pufferlib.errors import CallError
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.device.policy import NETWORK
from pufferlib.vectorization.device.rows import FLYING, WAITING, Block, array_of

__all__ = ["Rollout", "played"]


class Rollout(NamedTuple):
    """The rows of a rollout with a policy: the fields of a Batch and of Chosen, each (num_steps, rows, …).

    ``actions[k]`` led to ``observations[k]``. They were chosen from ``observations[k - 1]``, the first from those of
    the previous batch.
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


def played(vec: Any, num_steps: int, actions: Any, policy: Any, greedy: bool, keep: bool) -> Batch | Rollout:
    """Play a rollout; see ``CUDA.rollout``."""
    vec._refuse_closed()
    vec._stream()
    if not vec._plan.synchronous or vec._states.all != WAITING:
        raise CallError("a rollout is of all environments at once, after reset or recv, with batch_size=num_envs")
    if num_steps < 1:
        raise CallError(f"num_steps={num_steps} is impossible; use 1 or more")
    if policy is not None and actions is not None:
        raise CallError("a rollout has actions, or a policy that chooses them; leave one out")
    rows, num_envs = vec.agents_per_batch, vec.num_envs
    all_rows = keep or actions is not None
    most = importlib.import_module("cuda_ext.data").MOST_ELEMENTS
    if num_steps * (rows if all_rows else 1) > most:
        raise CallError(
            f"num_steps={num_steps} of {rows} rows each are more than a kernel's {most:,}; play fewer at a time"
            + (", or keep=False" if keep and actions is None else "")
        )
    if actions is not None:
        actions = vec._actions.checked(actions, range(num_envs), num_steps)
    chosen = None
    tensors: list[Any] = []  # read by the launch
    if policy is None:
        launcher = vec._launcher_of()
        launcher.set({"actions": 0 if actions is None else actions.data_ptr()})
    else:
        launcher = _launcher_with(vec, policy, tensors)
        chosen = vec._policies.chosen(rows * num_steps if all_rows else rows)
        launcher.set({**vec._policies.addresses(chosen), "policy_greedy": greedy})
        launcher.set({"policy_inputs": vec._leased[-1].observations.data_ptr()})
    if actions is not None:
        launcher.set({"actions_nbytes": actions.element_size()})
    block = vec._open_block()
    wide = Block(vec, vec._torch, num_envs * num_steps) if all_rows else block
    launcher.set({**dict(wide.addresses), "num_steps": num_steps, "step_slots": num_envs * all_rows, "by_env": 1})
    with block.on_stream(tensors) as stream:
        launcher.launch(num_envs, stream)
    if all_rows:
        for name, _ in block.addresses:
            column = getattr(block, name, None)
            if column is not None:
                column.copy_(getattr(wide, name)[-len(column) :])
    block.fill(range(num_envs))
    vec._filling = None
    vec._full.append(block)
    vec._states.set(range(num_envs), FLYING)
    vec._num_launches += 1
    vec._num_env_steps += num_steps * num_envs
    last = vec.recv()

    def by_step(column: Any) -> Any:
        return column.reshape(num_steps, rows, *column.shape[1:])

    if keep:
        last = last._replace(
            observations=by_step(wide.observations),
            rewards=by_step(wide.rewards),
            terminations=by_step(wide.terminations),
            truncations=by_step(wide.truncations),
            masks=by_step(wide.masks),
            infos=Infos([], range(vec.num_envs), vec.agents_per_env),
        )
    if chosen is not None:
        last = Rollout(*last, *(map(by_step, chosen) if keep else chosen))
    if vec._as_arrays:
        last = last._make(array_of(column) if isinstance(column, vec._torch.Tensor) else column for column in last)
    return last  # type: ignore[no-any-return]


def _launcher_with(vec: Any, policy: Any, tensors: list[Any]) -> Any:
    """Return a launcher with a policy's network set; add the tensors that it reads to tensors."""
    num_inputs = vec._leased[-1].observations[0].numel()
    kind = importlib.import_module("cuda_ext.network").Network
    network = kind.of(policy, num_inputs, vec._policies.num_options, vec.device)
    launcher = vec._launcher_of(policy=NETWORK, network_width=network.width, num_weights=len(network.weights))
    launcher.set(
        {
            **vec._policies.fixed,
            "policy_network": network.weights.data_ptr(),
            "policy_layers": vec._policies.layers(network.layers),
            "policy_num_layers": len(network.layers),
        }
    )
    tensors.append(network.weights)
    return launcher
