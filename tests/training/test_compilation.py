"""The setting ``compile``: networks learn compiled by torch.compile, and where that cannot work it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pufferlib
from cleanrl_demo import dqn, maddpg, ppo, ppo_lstm, ppo_selfplay, sac, td3
from pufferlib.errors import PlanError
from pufferlib.population import PolicyPool
from pufferlib.training import compilation
from pufferlib.training.oracles import LearnedOracle

pytestmark = pytest.mark.beside

ON_POLICY: dict[str, Any] = {"rollout_length": 8, "num_epochs": 1, "num_minibatches": 2, "total_steps": 100}
OFF_POLICY: dict[str, Any] = {"total_steps": 60, "learning_starts": 20, "steps_per_update": 4, "buffer_size": 100}
CONTINUOUS: dict[str, Any] = {**OFF_POLICY, "env": "ocean/continuous", "policy_kwargs": {"hidden_sizes": (16,)}}
CASES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {  # trainer, settings, what it has compiled
    "ppo": (ppo, ON_POLICY, ["MLP"]),
    "ppo_selfplay": (ppo_selfplay, {**ON_POLICY, "env": "ocean/multiagent"}, ["MLP"]),
    "dqn": (dqn, OFF_POLICY, ["QNetwork"] * 2),
    "sac": (sac, CONTINUOUS, ["ReLUNetwork", "Critics", "Critics"]),
    "td3": (td3, CONTINUOUS, ["ReLUNetwork", "Critics"] * 2),
    "maddpg": (maddpg, {**OFF_POLICY, "env": "ocean/multiagent"}, ["CentralCritic"] * 2),
}


def config(trainer: Any, **settings: Any) -> Any:
    fixed = {"backend": "serial", "num_envs": 4, "eval_episodes": 2, "runs": None}
    return trainer.Config(**{**fixed, **settings})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("ppo", "dqn", "sac") else pytest.mark.long) for name in CASES]
)
def test_networks_learn_compiled_and_are_themselves_afterwards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that only counts calls, all networks are called, and learn the same."""
    trainer, settings, expected = CASES[name]
    networks: list[nn.Module] = []
    calls: Counter[int] = Counter()

    def counted(forward: Any) -> Any:
        if not isinstance(getattr(forward, "__self__", None), nn.Module):
            return forward  # what require_compiler tries
        networks.append(forward.__self__)
        index = len(networks) - 1

        def called(*args: Any) -> Any:
            calls[index] += 1
            return forward(*args)

        return called

    plain = trainer.train(config(trainer, **settings))
    monkeypatch.setattr(torch, "compile", counted)
    result = trainer.train(config(trainer, **settings, compile=True))
    assert [type(network).__name__ for network in networks] == expected
    assert all(calls[index] > 1 for index in range(len(networks)))
    assert not any("forward" in vars(network) for network in networks)
    for parameter, weights in plain.policy.state_dict().items():
        assert torch.equal(weights, result.policy.state_dict()[parameter]), parameter


def test_a_forward_of_its_own_is_restored_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward: lambda values: 10 * forward(values))
    network, ones = nn.Identity(), torch.ones(1)
    network.forward = lambda values: 2 * values
    with pytest.raises(KeyError), compilation.compiled([network]):
        assert network(ones) == 20
        raise KeyError
    assert network(ones) == 2


PROGRAM = """
import psutil, torch
from test_compilation import ON_POLICY, config, ppo

results = [ppo.train(config(ppo, **ON_POLICY, compile=compile)) for compile in (False, True)]
plain, compiled = (result.policy.state_dict() for result in results)
for name, weights in plain.items():
    torch.testing.assert_close(compiled[name], weights, rtol=1e-3, atol=1e-5)
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2  # to act and to learn
assert not torch._dynamo.utils.counters["graph_break"]
assert not psutil.Process().children()
"""


@pytest.mark.long
def test_torch_compile_learns_what_torch_learns(tmp_path: Path) -> None:
    """In a process of its own, because torch leaves a thread behind, and files where this variable says."""
    folder = Path(__file__).parent
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(folder.parents[1])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "settings", "way_out"),
    [
        ("ppo", {"learner": "fused"}, "use False, or --learner torch"),
        ("ppo_fused", {}, "use False: this learner is compiled code"),
        ("ppo_cuda", {"device": "host"}, "use False: an iteration is a CUDA graph"),
        ("qmix", {}, "use False: sequences of steps are not compiled"),
    ],
)
def test_trainers_that_cannot_refuse_it(name: str, settings: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PlanError, match=f"compile=True is out of bounds; {way_out}"):
        import_module(f"cleanrl_demo.{name}").Config(**settings, compile=True)


def test_memories_refuse_it() -> None:
    with pytest.raises(PlanError, match="compile=True, but policy='lstm' has a memory, .*; leave compile out"):
        ppo_lstm.train(config(ppo_lstm, **ON_POLICY, compile=True))


def test_oracles_refuse_it() -> None:
    with (
        pufferlib.make("ocean/multiagent", backend="serial", num_envs=2, as_torch=True) as vec,
        pytest.raises(PlanError, match="compile=True: an oracle learns many policies"),
    ):
        LearnedOracle(vec, PolicyPool(), config(ppo, compile=True))


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def failing(function: Any) -> Any:
        def called(*args: Any) -> Any:
            raise RuntimeError("no C++ compiler was found\nand a long traceback")

        return called

    monkeypatch.setattr(torch, "compile", failing)
    with pytest.raises(PlanError, match="torch.compile fails here: no C.. compiler was found; install .* leave co"):
        ppo.train(config(ppo, **{**ON_POLICY, "runs": str(tmp_path)}, compile=True))
    assert not list(tmp_path.iterdir())
