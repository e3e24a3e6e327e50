"""Actions that kernels choose, in front of a step or within a rollout, are those of sampler and network in NumPy."""

from __future__ import annotations

from typing import Any

import kernel_programs
import numpy as np
import pytest
import test_kernel_tools
import torch
from devices import FIBRES, LOOPS, ON_HOST_AND_DEVICE, Player, array_of, assert_same_bits
from torch import nn

from cuda_ext import sources
from cuda_ext.data import constants_of, parameters_of
from cuda_ext.functions import WEIGHTS_NBYTES, Shape, fitting
from cuda_ext.network import described
from cuda_ext.nvrtc import Cubin, compiled
from cuda_ext.references.layers import Layer, forward
from cuda_ext.references.sampling import sampled, words_of
from pufferlib.emulation import emulate
from pufferlib.errors import ActionError, CallError, ClosedError, KernelError
from pufferlib.testing.kernel_usage import policy_of
from pufferlib.vectorization.device.kernel_lookup import kernel_of, reference_of
from pufferlib.vectorization.device.policy import LOGITS, NETWORK, NO_POLICY
from pufferlib.vectorization.device.vecenv import CUDA

pytestmark = pytest.mark.beside

# One thread an environment, part of a warp, and a block; one choice and two.
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "one agent": ("ocean/squared", {"distance": 2}),
    "some agents": ("tag/grid", {"num_taggers": 3, "num_runners": 2, "grid_length": 3, "episode_length": 9}),
    "two choices": ("tag/continuous", {"num_taggers": 2, "num_runners": 2, "grid_length": 2, "episode_length": 9}),
    "many agents": (
        "tag/continuous",
        {"num_taggers": 3, "num_runners": 37, "full_observation": False, "num_nearest": 4, "episode_length": 9},
    ),
}
IN_CELLS = ("tag/continuous", {"num_taggers": 20, "num_runners": 480, "full_observation": False, "num_nearest": 10})
ROWS = ("observations", "rewards", "terminations", "truncations", "masks")


def make(which: str, player: Player = LOOPS, **kwargs: Any) -> CUDA:
    name, env_kwargs = ENVS[which]
    vec = player.make(name, **{"num_envs": 5, "seed": 3, "env_kwargs": env_kwargs, **kwargs})
    assert isinstance(vec, CUDA)
    return vec


def nvec_of(vec: CUDA) -> list[int]:
    space: Any = vec.single_action_space
    return np.atleast_1d(getattr(space, "nvec", getattr(space, "n", None))).tolist()


def network_for(vec: CUDA, *hidden: int, seed: int = 1) -> tuple[nn.Sequential, list[Layer]]:
    """Return a network of an observation's size and the actions' options, on the device, and the same for NumPy."""
    torch.manual_seed(seed)
    widths = [int(np.prod(vec.single_observation_space.shape or ())), *hidden, sum(nvec_of(vec))]
    parts: list[nn.Module] = [nn.Flatten()]
    layers: list[Layer] = []
    for k in range(len(widths) - 1):
        linear = nn.Linear(widths[k], widths[k + 1], bias=k != 1)
        follows = "linear" if k == len(widths) - 2 else ("tanh", "relu")[k % 2]
        parts += [linear, *({"tanh": [nn.Tanh()], "relu": [nn.ReLU()], "linear": []}[follows])]
        biases = np.zeros(widths[k + 1]) if linear.bias is None else linear.bias.detach().numpy()
        layers.append((linear.weight.detach().numpy(), biases, follows))
    return nn.Sequential(*parts).to(vec.device), layers


def expected(vec: CUDA, logits: np.ndarray, masks: Any = None, greedy: bool = False, env_ids: Any = None) -> Any:
    """Return what the reference chooses for environments that wait."""
    env_ids = range(vec.num_envs) if env_ids is None else env_ids
    state = [np.repeat(vec.get_attr(name, env_ids), vec.agents_per_env) for name in ("seed", "episode", "t")]
    agents = np.tile(np.arange(vec.agents_per_env), len(env_ids))
    nvec = nvec_of(vec)
    actions, log_probs, entropies = sampled(logits, nvec, words_of(*state, agents, len(nvec)), masks, greedy)
    return actions.reshape(-1, *(vec.single_action_space.shape or ())), log_probs, entropies


def assert_same(actual: Any, wanted: Any) -> None:
    for name, ours, theirs in zip(("actions", "log_probs", "entropies"), actual, wanted, strict=True):
        np.testing.assert_array_equal(array_of(ours), array_of(theirs), name)


def assert_same_rows(actual: Any, wanted: Any, context: Any = "") -> None:
    for column in ROWS:
        assert_same_bits(getattr(actual, column), getattr(wanted, column), (context, column))


@pytest.mark.parametrize("which", ENVS)
def test_logits_in_front_of_a_step(which: str, player: Player) -> None:
    """One launch chooses and plays what the sampler would choose and ``send`` would play."""
    with make(which, player) as vec, make(which) as other:
        vec.reset()
        other.reset()
        random = np.random.default_rng(0)
        launches = vec.stats().num_launches
        for step in range(12):
            logits = random.normal(size=(vec.agents_per_batch, sum(nvec_of(vec)))).astype(np.float32) * 2
            masks = random.random(logits.shape) < 0.7 if step % 3 else None
            wanted = expected(other, logits, masks, greedy=step % 4 == 3)
            chosen = vec.send_logits(torch.from_numpy(logits), masks, greedy=step % 4 == 3)
            assert_same(chosen, wanted)
            batch = vec.recv()
            assert_same(chosen, wanted)
            other.step(wanted[0])
            assert_same_rows(batch, other.batch, step)
        assert vec.stats().num_launches == launches + 12


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_sampling_alone_plays_nothing_and_predicts_the_next_actions(player: Player) -> None:
    with make("some agents", player) as vec:
        vec.reset()
        logits = np.random.default_rng(1).normal(size=(25, 5)).astype(np.float32)
        before = vec.get_attr("x"), vec.get_attr("t")
        chosen = vec.sample(logits)
        assert_same(chosen, expected(vec, logits))
        assert_same(vec.sample(logits), chosen)
        assert str((vec.get_attr("x"), vec.get_attr("t"))) == str(before)
        some = vec.sample(logits[:10], env_ids=[4, 1])
        assert_same(some, expected(vec, logits[:10], env_ids=[4, 1]))
        sent = vec.send_logits(logits)
        assert_same(sent, chosen)
        vec.recv()
        assert not np.array_equal(array_of(vec.sample(logits).actions), array_of(chosen.actions))


@pytest.mark.parametrize("kwargs", [{"batch_size": 2}, {"batch_size": 2, "autoreset_mode": "same_step"}], ids=str)
def test_batches_of_some_environments(kwargs: dict[str, Any]) -> None:
    with make("some agents", **kwargs) as vec, make("some agents", **kwargs) as other:
        vec.async_reset()
        other.async_reset()
        random = np.random.default_rng(2)
        for _ in range(20):
            ours, theirs = vec.recv(), other.recv()
            for column in (*ROWS, "env_ids"):
                assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column
            logits = random.normal(size=(10, 5)).astype(np.float32)
            wanted = expected(other, logits, env_ids=np.asarray(theirs.env_ids).tolist())
            assert_same(vec.send_logits(logits), wanted)
            other.send(wanted[0])


NETWORKS: list[Any] = [
    *((which, "loops", "next_step") for which in ENVS),
    ("some agents", "loops", "same_step"),
    ("some agents", "fibres", "next_step"),
    ("many agents", "fibres", "next_step"),
    *(pytest.param(which, "device", "next_step", marks=pytest.mark.gpu) for which in ENVS),
    pytest.param("some agents", "device", "same_step", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("which", "player", "autoreset_mode"), NETWORKS, indirect=["player"])
def test_a_network_plays_a_rollout(which: str, player: Player, autoreset_mode: str) -> None:
    """Every row and choice is that of single steps with the reference's network and sampler."""
    mode = {"autoreset_mode": autoreset_mode}
    with make(which, player, **mode) as vec, make(which, **mode) as other:
        vec.reset()
        other.reset()
        for hidden, num_steps in (((20, 9), 15), *([((), 3)] if player != FIBRES else [])):
            policy, layers = network_for(vec, *hidden)
            played = vec.rollout(num_steps, policy=policy)
            for step in range(num_steps):
                assert other.batch is not None
                seen = np.asarray(other.batch.observations)
                logits = forward(seen.reshape(len(seen), -1), layers)
                wanted = expected(other, logits)
                assert_same((played.actions[step], played.log_probs[step], played.entropies[step]), wanted)
                other.step(wanted[0])
                for column in ROWS:
                    assert_same_bits(getattr(played, column)[step], getattr(other.batch, column), (step, column))
        with torch.no_grad():  # the reference is torch's network, but for rounding
            np.testing.assert_allclose(policy.cpu()(torch.from_numpy(seen)), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_a_rollout_returns_the_last_step_alone_and_goes_on(player: Player) -> None:
    with make("some agents", player) as vec, make("some agents", player) as other:
        vec.reset()
        other.reset()
        policy, _ = network_for(vec, 64, 64, 64)
        last, full = vec.rollout(30, policy=policy, keep=False), other.rollout(30, policy=policy)
        for name in (*ROWS, "actions", "log_probs", "entropies"):
            assert_same_bits(getattr(last, name), getattr(full, name)[-1], name)
        assert vec.stats().num_launches == 2
        likeliest = [venv.rollout(5, policy=policy, greedy=True).actions for venv in (vec, other)]
        assert_same_bits(*likeliest)
        logits = np.zeros((25, 5), np.float32)
        assert_same(vec.send_logits(logits), other.send_logits(logits))
        assert_same_bits(vec.recv().observations, other.recv().observations)


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_what_is_trained_meanwhile_counts_from_the_next_rollout_on(player: Player) -> None:
    with make("some agents", player) as vec, make("some agents", player) as other:
        vec.reset()
        other.reset()
        policy, _ = network_for(vec, 8)
        first = vec.rollout(3, policy=policy)
        assert_same_bits(first.log_probs, other.rollout(3, policy=policy).log_probs)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(3)
        assert not np.array_equal(array_of(vec.rollout(3, policy=policy).log_probs), array_of(first.log_probs))


def test_mistakes_are_named() -> None:
    with make("two choices") as vec:
        with pytest.raises(CallError, match="there is no batch to act on yet"):
            vec.send_logits(np.zeros((20, 4), np.float32))
        vec.reset()
        options = sum(nvec_of(vec))
        good = np.zeros((20, options), np.float32)
        wrong = (
            rf"logits have shape \(20, 3\), expected \(20, {options}\): 4 row\(s\) for each of 5 env.* of MultiDiscrete"
        )
        with pytest.raises(ActionError, match=wrong):
            vec.send_logits(good[:, :3])
        with pytest.raises(ActionError, match="logits have dtype torch.int64, expected float32"):
            vec.sample(good.astype(int))
        with pytest.raises(ActionError, match="masks have dtype torch.float32, expected bool or uint8"):
            vec.sample(good, good)
        with pytest.raises(ActionError, match=r"masks have shape \(19, "):
            vec.sample(good, good[1:].astype(bool))
        with pytest.raises(ActionError, match="logits cannot be read as an array"):
            vec.sample("logits")
        half = vec.sample(torch.from_numpy(good).half().requires_grad_())
        assert half.log_probs.dtype == torch.float32 and not half.log_probs.requires_grad
        vec.send_logits(good)
        busy = "; ".join(f"environment {env_id} is in flight" for env_id in range(5))
        with pytest.raises(CallError, match=f"^cannot sample: {busy}; the last batch has been answered already; call"):
            vec.sample(good)
        vec.recv()

        size = int(np.prod(vec.single_observation_space.shape or ()))
        taken = "Sequential of Linear, Tanh and ReLU with up to 3 hidden layers, of up to 256 outputs each"
        layer, last = nn.Linear(size, 8), nn.Linear(8, options)
        for policy, message in (
            (layer, f"policy is a Linear; a rollout plays a torch.nn.{taken}, or use send_logits"),
            (nn.Sequential(layer, nn.Dropout(), last), f"the policy has a Dropout at place 1; .*{taken}"),
            (nn.Sequential(layer, nn.Tanh(), nn.ReLU(), last), "the policy has a ReLU at place 2"),
            (
                nn.Sequential(nn.Linear(size, 300), nn.Linear(300, options)),
                rf"has 2 layers of \[300, {options}\] outputs; .*{taken}",
            ),
            (nn.Sequential(layer, *[nn.Linear(8, 8)] * 3, last), "has 5 layers of "),
            (nn.Sequential(), "has 0 layers"),
            (nn.Sequential(layer), rf"makes 8 logits of {size} numbers, and these environments take {options} logits"),
        ):
            with pytest.raises(KernelError, match=message):
                vec.rollout(2, policy=policy)
        with pytest.raises(CallError, match="actions, or a policy that chooses them"):
            vec.rollout(2, np.zeros((2, 20, 2), int), policy=nn.Sequential(layer, last))  # type: ignore[call-overload]
        vec.rollout(2, policy=nn.Sequential(layer, last))
    with pytest.raises(ClosedError):
        vec.send_logits(good)


# ------------------------------------------------------------------------------------- devices that are not there

# What is compiled: the environment, what is constant, the outputs of hidden layers, the architecture.
STEP, ALONE = {"policy": LOGITS, "num_steps": 1}, {"policy": LOGITS, "num_steps": 0}
SMALL, LARGE = (64, 30), (256, 256, 256)
DEVICE_CASES: list[Any] = [
    ("many agents", STEP, (), "sm_120"),
    ("one agent", {"policy": NETWORK}, LARGE, "sm_120"),
    *(
        pytest.param(*case, marks=pytest.mark.long)
        for case in (
            ("some agents", STEP, (), "sm_80"),
            ("two choices", STEP, (), "sm_90"),
            ("some agents", ALONE, (), "sm_80"),
            ("some agents", {"policy": NETWORK}, SMALL, "sm_90"),
            ("two choices", {"policy": NETWORK}, SMALL, "sm_120"),
            ("many agents", {"policy": NETWORK}, SMALL, "sm_80"),
        )
    ),
]


def cubin_of(which: str, fixed: dict[str, int], hidden: tuple[int, ...], architecture: str) -> Cubin:
    name, kwargs = ENVS.get(which, IN_CELLS)
    kernel = kernel_of(name)
    reference = reference_of(kernel)(**kwargs)
    rows: Any = emulate(reference)
    num_agents, size = rows.num_agents, int(np.prod(rows.observation_space.shape))
    values = {**parameters_of(kernel, reference), "num_agents": num_agents, "observation_size": size, **fixed}
    constants = constants_of(kernel, values)
    wanted = Shape.of(num_agents, size, **(network_described(which, hidden) if hidden else {}))
    return fitting(lambda shape: compiled(kernel, shape, constants, architecture), wanted)


def network_described(which: str, hidden: tuple[int, ...]) -> dict[str, Any]:
    name, kwargs = ENVS.get(which, IN_CELLS)
    rows: Any = emulate(reference_of(kernel_of(name))(**kwargs))
    size, space = int(np.prod(rows.observation_space.shape)), rows.action_space
    nvec = np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 0)))
    num_outputs = int(nvec.sum())
    return described(policy_of(size, num_outputs, hidden), size, num_outputs, nvec.tolist())


@pytest.mark.parametrize(("which", "fixed", "hidden", "architecture"), DEVICE_CASES, ids=str)
def test_no_register_is_spilled(which: str, fixed: dict[str, int], hidden: tuple[int, ...], architecture: str) -> None:
    """Two layers of a network lie in the stack, in sm_120's twice; other launches need none."""
    cubin = cubin_of(which, fixed, hidden, architecture)
    assert cubin.code[:4] == b"\x7fELF"
    assert cubin.spilled_nbytes == 0 and cubin.stack_nbytes <= 2 * 2 * 4 * max(hidden, default=0)
    assert cubin.num_registers <= 128
    num_weights = network_described(which, hidden)["num_weights"] if hidden else 0
    assert (cubin.shared_nbytes >= 4 * num_weights) == (4 * num_weights <= WEIGHTS_NBYTES)
    assert cubin.shared_nbytes <= 48 * 1024


def test_the_compiler_knows_the_network_and_the_options_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    macros: dict[str, Any] = {}
    program = sources.for_checks

    def recorded(kernel: Any, launch_macros: Any) -> str:
        macros.update(launch_macros)
        return program(kernel, launch_macros)

    monkeypatch.setattr(sources, "for_checks", recorded)
    with make("two choices", FIBRES) as vec:
        vec.reset()
        vec.rollout(2, policy=network_for(vec, 20, 9)[0])
        size = int(np.prod(vec.single_observation_space.shape or ()))
    assert macros["NETWORK_LAYERS"] == f"{size}, 20, 1, 9, 2, 22, 0"  # tanh is 1, ReLU 2
    assert macros["POLICY_OPTIONS"] == "11, 11"


@pytest.mark.long
def test_weights_make_room_for_a_kernel_that_takes_it_itself() -> None:
    """Together they are more than the 48 KB that a block has."""
    cubin = cubin_of("in cells", {"policy": NETWORK}, (64, 16), "sm_90")
    assert 28_000 < cubin.shared_nbytes < 46_000  # its cells, state and rows, and no weights
    assert cubin_of("some agents", {"policy": NETWORK}, (64, 64), "sm_90").shared_nbytes > 24_000


def test_a_kernel_without_a_policy_pays_nothing() -> None:
    without, chooses = (cubin_of("one agent", {**STEP, "policy": kind}, (), "sm_90") for kind in (NO_POLICY, LOGITS))
    assert without.num_registers <= chooses.num_registers and len(without.code) < 0.9 * len(chooses.code)


@pytest.mark.long
def test_threads_that_choose_do_not_race(tmp_path: Any) -> None:
    """A network of one layer chooses between the steps of tag/grid."""
    shape, *_ = test_kernel_tools.GROUPS["a part of a warp"]
    size = 4 * shape.group_size + 1
    options = {
        "policy": NETWORK, "policy_num_layers": 1, "policy_layers": "new int[2]{5, 1}",
        "policy_nvec": "new int[1]{5}", "policy_num_choices": 1, "policy_num_options": 5, "policy_masks": "nullptr",
        "policy_network": f"new float[8 * ({size} + 1)]()",
        "policy_inputs": f"new float[7 * {shape.group_size} * {size}]()",
        "actions": "env.policy_actions", "actions_nbytes": 8,
    }  # fmt: skip
    binary = test_kernel_tools.built(tmp_path, "thread", "a part of a warp", overrides=options)
    assert kernel_programs.play(binary, "thread") == (0, "")
