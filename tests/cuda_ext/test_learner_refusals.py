"""What the compiled learner refuses, and the words in which it does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_cases import Case, fused_of, near, outcomes_of
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from cuda_ext.learner.fused import FusedLearner, Settings
from cuda_ext.learner.library import library
from pufferlib.errors import CallError, ClosedError, KernelError, PlanError, SpaceError

pytestmark = pytest.mark.beside

CALLS: dict[str, Callable[[FusedLearner], Any]] = {
    "update": lambda learner: learner.update(Case().rows(), Case().minibatches(), 1e-3),
    "values": lambda learner: learner.values(Case().rows().features),
    "policy_outputs": lambda learner: learner.policy_outputs(Case().rows().features),
    "advantages": lambda learner: learner.advantages(*outcomes_of(), gamma=0.9, gae_lambda=0.8),
    "load": lambda learner: learner.load(),
    "save": lambda learner: learner.save(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_learner_refuses_calls(name: str) -> None:
    learner = fused_of(Case(), num_threads=2)
    CALLS[name](learner)
    learner.close()
    learner.close()
    with pytest.raises(ClosedError, match="this learner is closed; make another"):
        CALLS[name](learner)


def test_only_one_thread_at_a_time_may_call(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = fused_of(Case())
    started, may_end, compute = threading.Event(), threading.Event(), learner._functions.learner_outputs

    class Functions:
        def __getattr__(self, name: str) -> Any:
            return getattr(library(), name)

        @staticmethod
        def learner_outputs(*arguments: Any) -> int:
            started.set()
            assert may_end.wait(30)
            return int(compute(*arguments))

    monkeypatch.setattr(learner, "_functions", Functions())
    with ThreadPoolExecutor(1) as pool:
        values = pool.submit(CALLS["values"], learner)
        assert started.wait(30)
        try:
            for call in (*CALLS.values(), FusedLearner.close):
                with pytest.raises(CallError, match="another thread is in a call of this learner, and only one at a"):
                    call(learner)
        finally:
            may_end.set()
        near(values.result(), CALLS["values"](learner), 0.0)


@pytest.mark.parametrize(
    ("actor", "reason"),
    [
        (nn.Linear(3, 7), "the policy is a Linear; the fused learner takes"),
        (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 7)), "the policy has a GELU at place 1; the fused"),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 7)), r"with the activations \[0, 0\]"),
        (nn.Sequential(nn.Linear(3, 7, bias=False)), "has a layer without biases"),
        (nn.Sequential(nn.Linear(3, 8)), "the actor has 8 outputs and the critic 1; these actions need 7 and 1"),
        (nn.Sequential(nn.Linear(4, 7)), "the actor takes 4 features and the critic 3"),
    ],
)
def test_networks_that_it_cannot_learn_are_refused(actor: nn.Module, reason: str) -> None:
    case = Case()
    _, critic, log_std = case.networks()
    with pytest.raises(KernelError, match=reason):
        FusedLearner(actor, critic, log_std, case.nvec, case.settings())


def test_weights_of_two_layers_are_refused_if_shared() -> None:
    case = Case(hidden=(3,))
    actor, critic, log_std = case.networks()
    critic[0] = actor[0]
    with pytest.raises(KernelError, match="the policy has weights that several layers share; the fused learner takes"):
        FusedLearner(actor, critic, log_std, case.nvec, case.settings())


def test_weights_that_are_computed_are_refused() -> None:
    case = Case()
    actor, critic, log_std = case.networks()
    weight_norm(critic[0])
    with pytest.raises(KernelError, match="the policy computes weights of a layer, as weight_norm does; the fused"):
        FusedLearner(actor, critic, log_std, case.nvec, case.settings())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"objective": "trpo"}, "objective='trpo' is out of bounds; use ppo, a2c"),
        ({"clip": 0.0}, "clip=0.0 is out of bounds; use more than 0"),
        ({"advantage_floor": 0.0}, "advantage_floor=0.0 is out of bounds"),
        ({"epsilon": math.nan}, "epsilon=nan is out of bounds"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1.0 is out of bounds"),
        ({"value_coefficient": math.inf}, "value_coefficient=inf is out of bounds; use a finite number"),
        ({"most_groups": 0}, "most_groups=0 is out of bounds; use 1 to 1,024"),
        ({"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\) is out of bounds; use two numbers from 0 to below 1"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        Settings(**settings)


def test_arguments_that_do_not_fit_the_networks_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"is_scaled has shape \(2,\); the networks take 3 features"):
        fused_of(Case(), is_scaled=[True, False])
    with pytest.raises(SpaceError, match=r"nvec=\(3, 0\) has to be the numbers of options"):
        fused_of(replace(Case(), nvec=(3, 0)))


@pytest.mark.parametrize(
    ("minibatch", "reason"),
    [
        (np.array([True, False]), "a minibatch has bool indices; give the indices of rows as integers"),
        (np.array([1.9]), "a minibatch has float64 indices"),
        ([1, 2], "a minibatch: a list; give a NumPy array, for example tensor.numpy()"),
        (torch.arange(2), "a minibatch: a Tensor; give a NumPy array"),
        (np.array([[1, 2]]), r"a minibatch: an array with shape \(1, 2\); give one with 1 dimensions"),
    ],
)
def test_minibatches_that_are_no_indices_are_refused(minibatch: Any, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        fused_of(Case()).update(Case().rows(), [minibatch], 1e-3)


def test_a_learning_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(PlanError, match="learning_rate=nan is out of bounds; use a finite number from 0"):
        fused_of(Case()).update(Case().rows(), Case().minibatches(), math.nan)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("features", torch.from_numpy, "features: a Tensor; give a NumPy array, for example tensor.numpy()"),
        ("returns", list, "returns: a list; give a NumPy array"),
        ("features", lambda part: part.astype(np.float64), r"features are float64 \(150, 3\); they have to be"),
        ("features", lambda part: part[:, ::-1], r"features are float32 \(150, 3\), not contiguous"),
        ("returns", lambda part: part[:-1], r"returns are float32 \(149,\); they have to be .* \(150,\)"),
        ("allowed", lambda part: part[:, :-1].copy(), r"have to be a C-contiguous array, bool \(150, 5\)"),
        ("discrete_actions", lambda part: part + 2, r"are not all in 0 to nvec - 1, where nvec=\[3, 2\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, change: Any, reason: str) -> None:
    case, rows = Case(), Case().rows()
    learner = fused_of(case)
    with pytest.raises(SpaceError, match=reason):
        learner.update(replace(rows, **{name: change(getattr(rows, name))}), case.minibatches(), 1e-3)
    for call in (learner.policy_outputs, learner.values):
        with pytest.raises(SpaceError, match="features: a list; give a NumPy array"):
            call(rows.features.tolist())
    with pytest.raises(SpaceError, match="minibatches have rows 0 to 150, and there are 150 rows"):
        learner.update(rows, [np.array([0, 150])], 1e-3)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from cuda_ext.learner import library as functions

    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(functions, "built_library", lambda: None)
    with pytest.raises(KernelError, match=r"the fused learner has to be compiled .* no no-such-compiler: install a C"):
        functions.library.__wrapped__()
