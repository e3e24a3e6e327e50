"""Steps that write their rows into given tensors: the rows of a rollout, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from devices import LOOPS, PLAYER_KINDS, Player, array_of, assert_same_bits

from pufferlib.errors import CallError, ClosedError
from pufferlib.vectorization.device.rows import OUT

pytestmark = pytest.mark.beside

NUM_STEPS = 14
# Five environments of three agents: where a step's rows begin is a multiple of neither 16 bytes nor of 4, of flags.
ENV: dict[str, Any] = {"num_taggers": 2, "num_runners": 1, "grid_length": 3, "episode_length": 4}


def make(player: Player, **kwargs: Any) -> Any:
    return player.make("tag/grid", **{"env_kwargs": ENV, "num_envs": 5, "seed": 1, **kwargs})


def columns_of(vec: Any, num_steps: int) -> list[torch.Tensor]:
    """Columns of a rollout, (num_steps, rows, …), with values that no step writes."""
    rows = vec.agents_per_batch
    shapes = [(rows, *vec.single_observation_space.shape), (rows,)]
    numbers = [torch.full((num_steps, *shape), float("nan"), device=vec.device) for shape in shapes]
    return [*numbers, *(torch.ones((num_steps, rows), dtype=torch.bool, device=vec.device) for _ in range(3))]


def out_of(columns: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    return [column[step] for column in columns]


def episodes_of(infos: Any) -> list[tuple[int, Any, float, int]]:
    ended = [info for info in infos if "episode" in info]
    return [(info["env_id"], info.get("agent_id"), info["episode"]["r"], info["episode"]["l"]) for info in ended]


@pytest.mark.parametrize("player", PLAYER_KINDS, indirect=True)
@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step", "disabled"])
def test_the_rows_of_a_rollout_are_those_of_batches(autoreset_mode: str, player: Player) -> None:
    """Also when other steps come in between, actions are converted first, and batches expire."""
    kwargs: dict[str, Any] = {"autoreset_mode": autoreset_mode, "debug": True}
    random = np.random.default_rng(0)
    with make(player, **kwargs) as vec, make(player, **kwargs) as other:
        columns = columns_of(vec, NUM_STEPS)
        wanted: list[list[np.ndarray]] = []
        num_episodes = 0
        vec.reset()
        other.reset()
        for step in range(NUM_STEPS):
            actions: Any = random.integers(0, 5, 15)
            if step % 5 == 4:
                vec.step(actions)
                other.step(actions)
            out = out_of(columns, step)
            vec.send(actions.astype(np.int16) if step % 2 else actions, out=out)
            other.send(actions)
            batch, expected = vec.recv(), other.recv()
            assert all(getattr(batch, name) is tensor for name, tensor in zip(OUT, out, strict=True))
            for name in (*OUT, "env_ids", "agent_ids"):
                assert_same_bits(getattr(batch, name), getattr(expected, name), (step, name))
            episodes, others = map(episodes_of, (batch.infos, expected.infos))
            assert episodes == others
            num_episodes += len(episodes)
            wanted.append([array_of(getattr(expected, name)) for name in OUT])
        vec.step(actions)
        assert num_episodes > 10
        for step, of_step in enumerate(wanted):
            for name, tensor, expected in zip(OUT, out_of(columns, step), of_step, strict=True):
                assert_same_bits(tensor, expected, (step, name))


def test_arrays_and_copies_have_the_same_rows() -> None:
    random = np.random.default_rng(0)
    with make(LOOPS) as plain, make(LOOPS, as_torch=False, debug=True) as arrays, make(LOOPS, copy=True) as copies:
        rollouts = [columns_of(vec, 9) for vec in (arrays, copies)]
        for vec in (plain, arrays, copies):
            vec.reset()
        copied: list[Any] = []
        for step in range(9):
            actions = random.integers(0, 5, 15)
            plain.step(actions)
            for vec, columns in zip((arrays, copies), rollouts, strict=True):
                vec.send(actions, out=out_of(columns, step))
                batch = vec.recv()
                for name, tensor in zip(OUT, out_of(columns, step), strict=True):
                    for rows in (getattr(batch, name), getattr(vec.host_batch, name), tensor):
                        assert_same_bits(rows, getattr(plain.batch, name), (step, name))
            copied.append(batch.observations)
        assert_same_bits(rollouts[0][0], rollouts[1][0])  # nothing that expired was overwritten
        rollouts[1][0].zero_()
        assert_same_bits(torch.stack(copied), rollouts[0][0])


def test_choices_and_rollouts_go_on_from_given_rows() -> None:
    """A network reads the newest rows wherever they are, and a partial reset returns them."""
    network = torch.nn.Sequential(torch.nn.Linear(13, 5))
    with make(LOOPS) as vec, make(LOOPS) as other:
        columns = columns_of(vec, 1)
        vec.reset()
        other.reset()
        for _ in range(4):
            logits = torch.randn(15, 5)
            for venv in (vec, other):
                venv.send_logits(logits)
                venv.recv()
            vec.send(np.ones(15, int), out=out_of(columns, 0))
            vec.recv()
            other.step(np.ones(15, int))
            played = [venv.rollout(2, policy=network) for venv in (vec, other)]
            for name in (*OUT, "actions"):
                assert_same_bits(getattr(played[0], name), getattr(played[1], name), name)
            vec.send(np.ones(15, int), out=out_of(columns, 0))
            vec.recv()
            other.step(np.ones(15, int))
            assert_same_bits(vec.reset(seed=3, env_ids=[2])[0], other.reset(seed=3, env_ids=[2])[0])
            assert not vec.batch.masks.any() and vec.batch.observations is not columns[0]


WRONG: list[tuple[Callable[[list[Any]], Any], str]] = [
    (lambda out: out[:4], "out has 4 tensors; give 5: observations, rewards, terminations, truncations, masks"),
    (lambda out: [out[0].numpy(), *out[1:]], r"observations of out are ndarray; give a tensor that is \(15, 13\), tor"),
    (lambda out: [out[0][1:], *out[1:]], r"are \(14, 13\), torch.float32, on cpu; give a tensor that is \(15, 13\)"),
    (lambda out: [out[0], out[1].double(), *out[2:]], r"rewards of out are \(15,\), torch.float64"),
    (lambda out: [*out[:4], out[4].to("meta")], "masks of out are .* on meta; give .* on cpu"),
    (lambda out: [out[0].T.contiguous().T, *out[1:]], "observations of out are not contiguous; give"),
]


@pytest.mark.parametrize(("spoiled", "message"), WRONG)
def test_tensors_that_no_step_can_write_are_refused(spoiled: Callable[[list[Any]], Any], message: str) -> None:
    with make(LOOPS) as vec, make(LOOPS) as other:
        out = out_of(columns_of(vec, 1), 0)
        vec.reset()
        other.reset()
        actions = np.ones(15, int)
        for _ in range(4):
            with pytest.raises(CallError, match=message):
                vec.send(actions, out=spoiled(out))
            with pytest.raises(CallError, match="out takes the rows of all environments; leave out env_ids"):
                vec.send(actions[:3], env_ids=[0], out=out)
            with pytest.raises(ValueError, match="out of bounds|outside|not in"):
                vec.send(np.full(15, 9), out=out)
            assert out[0].isnan().all()
            assert_same_bits(vec.step(actions)[0], other.step(actions)[0])
    with make(LOOPS, batch_size=2) as pool:
        pool.async_reset()
        pool.recv()
        with pytest.raises(CallError, match="use batch_size=num_envs"):
            pool.send(actions[:6], out=[part[:6] for part in out])
    with pytest.raises(ClosedError, match="is closed"):
        vec.send(actions, out=out)
