"""Iterations of trainers on a device: captured after two, replayed over stretches; what cannot be captured is named.

CUDA's graphs are played by a stand-in; where there is a GPU, they are real.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cleanrl_demo import a2c_cuda, ppo_cuda
from cleanrl_demo.ppo_cuda import Rollout, train
from pufferlib.errors import PlanError
from pufferlib.models import MLP
from pufferlib.training import cuda_graphs
from pufferlib.training.cuda_graphs import GraphedIteration, on_own_stream, stream_for_graphs
from pufferlib.training.minibatches import require_shuffled
from pufferlib.training.planner import most_nbytes
from pufferlib.training.session import torch_set_up
from tests.cleanrl_demo.test_ppo_cuda import config, played

pytestmark = pytest.mark.beside

CAPTURING = "CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might be asynchronous"
ENDED = "CUDA error: operation failed due to a previous error during capture"


class Graph:
    """A graph that plays again what it was captured as. graphs: all of them."""

    graphs: list[Graph] = []

    def __init__(self) -> None:
        self.generators: list[Any] = []
        self.num_replays = 0
        self.graphs.append(self)

    def register_generator_state(self, generator: Any) -> None:
        self.generators.append(generator)

    def replay(self) -> None:
        self.num_replays += 1


class Capture:
    def __init__(self, graph: Graph, stream: Any) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:  # as torch.cuda.graph: the end of a broken capture is an error, too
            raise RuntimeError(ENDED)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    monkeypatch.setattr(Graph, "graphs", [])
    for name, stand_in in (("CUDAGraph", Graph), ("graph", Capture), ("current_stream", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(cuda_graphs, "FAILED", [])
    return Graph.graphs


def iterate(play: Callable[[], tuple[Tensor, ...]]) -> GraphedIteration:
    return GraphedIteration(play, torch.Generator(), SimpleNamespace(graphs=True, device="cuda"))


@pytest.mark.parametrize(("version", "num_generators"), [("2.13.1+cu130", 1), ("2.14.0", 0), ("3.0", 0)])
def test_the_third_iteration_is_captured_and_then_replayed(
    version: str, num_generators: int, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 2.14 on torch registers generators itself, and warns of who does so, past Python's filters."""
    monkeypatch.setattr(torch, "__version__", version)
    calls: list[Tensor] = []

    def play() -> tuple[Tensor, ...]:
        calls.append(torch.tensor(len(calls)))
        return (calls[-1],)

    iteration = iterate(play)
    assert [int(iteration()[0]) for _ in range(6)] == [0, 1, 2, 2, 2, 2]
    (graph,) = graphs
    assert graph.num_replays == 4 and len(graph.generators) == num_generators


def test_an_optimizer_that_waits_for_its_graph_does_not_warn(graphs: list[Graph]) -> None:
    def play() -> tuple[Tensor, ...]:
        warnings.warn("This instance was constructed with capturable=True or some of all", stacklevel=1)
        warnings.warn("another", stacklevel=1)
        return ()

    with pytest.warns(UserWarning) as warned:
        iterate(play)()
    assert [str(warning.message) for warning in warned] == ["another"]


def test_a_policy_that_waits_for_the_device_is_refused_with_graphs(graphs: list[Graph]) -> None:
    def play() -> tuple[Tensor, ...]:
        if iteration.eager_calls == 0 and len(eager) == 2:
            raise RuntimeError(CAPTURING)
        eager.append(0)
        return ()

    eager: list[int] = []
    iteration = iterate(play)
    iteration()
    iteration()
    message = (
        r"cannot be captured in a CUDA graph: CUDA error: operation not permitted when stream is capturing; policies"
    )
    with pytest.raises(
        PlanError, match=message + r" .*\.item\(\), .* train with --no-graphs \(graphs=False\)"
    ) as refused:
        iteration()
    assert "\n" not in str(refused.value)
    assert cuda_graphs.FAILED == graphs and len(graphs) == 1  # kept: torch's allocator still asks it


def test_memory_that_runs_out_in_a_capture_stays_that(graphs: list[Graph]) -> None:
    def play() -> tuple[Tensor, ...]:
        if len(eager) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        eager.append(0)
        return ()

    eager: list[int] = []
    iteration = iterate(play)
    iteration()
    iteration()
    with pytest.raises(RuntimeError, match="a previous error during capture"):
        iteration()


def test_a_planner_takes_what_a_graph_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not allocated any more once an iteration has been captured, but reserved."""
    reserved = 500

    def trial(num_envs: int) -> None:
        nonlocal reserved
        reserved += 300

    for name, result in (("memory_allocated", 100), ("reset_peak_memory_stats", None), ("max_memory_allocated", 200)):
        monkeypatch.setattr(torch.cuda, name, lambda device, result=result: result)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    assert [most_nbytes(trial, 1, "cuda", budget) for budget in (299, 300)] == [None, 100]


@pytest.mark.parametrize("trainer", [ppo_cuda, a2c_cuda])
def test_all_stretches_have_one_rollout_and_one_iteration(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    for kind in (Rollout, GraphedIteration):

        def begin(self: Any, *arguments: Any, kind: Any = kind, init: Any = kind.__init__) -> None:
            names.append(kind.__name__)
            init(self, *arguments)

        monkeypatch.setattr(kind, "__init__", begin)
    begun: list[Rollout] = []
    first = Rollout.begin
    monkeypatch.setattr(Rollout, "begin", lambda self: (begun.append(self), first(self))[1])
    trainer.train(config(trainer.Config, total_steps=900, checkpoint_every=300))
    assert names == ["Rollout", "GraphedIteration"] and len(begun) == 3


@pytest.mark.parametrize(("trainer", "more"), [(ppo_cuda, {"num_epochs": 1, "num_minibatches": 1}), (a2c_cuda, {})])
def test_processes_wait_for_each_other_twice_a_step(
    trainer: Any, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the count and both moments of the rows, which are one sum, and for the gradient."""
    settings = config(trainer.Config, **more)
    learner, rollout, vec = played(settings)
    sums: list[int] = []
    monkeypatch.setattr(ppo_cuda, "total", lambda tensor: (sums.append(tensor.numel()), tensor)[1])
    with vec:
        trainer.update(learner, rollout, settings)
    assert sums == [3, learner.teams[0].weights.numel()]


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (100.0, 1.0), (-3.0, 0.01), (0.0, 1e6)])
def test_advantages_are_less_their_mean_over_their_deviation(mean: float, deviation: float) -> None:
    torch.manual_seed(1)
    raw, counts = torch.randn(5000) * deviation + mean, (torch.rand(5000) < 0.7).float()
    shares, normalized = ppo_cuda.weighed(raw, counts, 0.1)
    torch.testing.assert_close(shares, counts / counts.sum())
    wanted = raw.double()
    masked_values = wanted[counts.bool()]
    wanted = (wanted - masked_values.mean()) / masked_values.std(correction=0).clamp(min=0.1)
    torch.testing.assert_close(normalized.double(), wanted, rtol=1e-5, atol=1e-5)


def test_more_rows_than_a_gpu_shuffles_are_refused() -> None:
    """torch numbers rows by an int, and the random numbers of a graph by an unsigned one."""
    on_gpu: dict[str, Any] = {"device": "cuda", "num_epochs": 4}
    rows = 2**30 - 2**18
    for settings, of_teams, message in (
        (config(**on_gpu), [rows, 1], r"num_epochs=4 of 1,073,479,681 rows draw more random numbers than a graph's"),
        (config(**on_gpu), [2**31], "num_epochs=4 of 2,147,483,648 rows draw"),
        (config(**on_gpu, minibatch_units="environments", num_envs=2**30), [1], "num_epochs=4 of 1,073,741,824 rows"),
        (config(**on_gpu, graphs=False), [1, 2**31], "a rollout has 2,147,483,648 rows of a team, and 2,147,483,647"),
    ):
        with pytest.raises(PlanError, match=f"{message}.*; use fewer num_envs, or a shorter rollout_length"):
            require_shuffled(settings, of_teams)
    for settings, of_teams in (
        (config(**on_gpu), [rows]),
        (config(**on_gpu, graphs=False), [2**31 - 1, 2**31 - 1]),
        (config(num_epochs=4), [2**40]),
        (config(a2c_cuda.Config, device="cuda"), [2**40]),
        (config(**on_gpu, minibatch_units="environments", num_envs=2**20), [2**40]),
    ):
        require_shuffled(settings, of_teams)


def test_a_run_is_asked_how_much_it_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(ppo_cuda, "require_shuffled", lambda settings, rows: asked.append(rows))
    for units in ("rows", "environments"):
        _, _, vec = played(config(separate=True, num_envs=8, rollout_length=6, minibatch_units=units))
        vec.close()
    assert asked == [[96, 48]] * 2


def test_a_run_on_a_gpu_leaves_other_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch warns of who sets back the random numbers of all devices, where there are several."""
    asked: list[Any] = []
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext(asked.append(devices)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda:1", "host"):
        with torch_set_up(config(device=device)):
            pass
    assert asked == [("cuda:1",), ()]


@pytest.mark.parametrize(
    ("settings", "precision"),
    [({"device": "cuda"}, "high"), ({"device": "cuda", "tf32": False}, "highest"), ({"device": "host"}, "highest")],
)
def test_matrices_are_multiplied_in_tf32_on_gpus_alone_and_only_in_a_run(
    settings: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch calls "high" is TF32 where a GPU has it."""
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    before = torch.get_float32_matmul_precision()
    assert before == "highest"
    with contextlib.suppress(InterruptedError), torch_set_up(config(**settings)):
        assert torch.get_float32_matmul_precision() == precision
        raise InterruptedError
    assert torch.get_float32_matmul_precision() == before


def test_all_trainings_of_a_process_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """For torch never frees the workspaces of a stream."""
    entered: list[Any] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.device = device

        def wait_stream(self, other: Any) -> None:
            pass

    caller = Stream("cuda:0")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: caller)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(entered.append(stream)))
    stream_for_graphs.cache_clear()
    for device in ("cuda:0", "cuda:0", "cuda:1"):
        with on_own_stream(device):
            pass
    stream_for_graphs.cache_clear()
    first, second, other = entered
    assert first is second and first is not caller and (first.device, other.device) == ("cuda:0", "cuda:1")


class Waiting(nn.Module):
    """A policy that looks at a number on the device."""

    def __init__(self, layout: Any, space: Any) -> None:
        super().__init__()
        self.network = MLP(layout, space, 8)

    def forward(self, observations: Tensor, *more: Any) -> Any:
        assert observations.sum().item() >= 0
        return self.network(observations, *more)


def test_on_the_host_a_policy_may_wait() -> None:
    assert train(config(policy=f"{__name__}:Waiting", total_steps=100)).num_steps >= 100


@pytest.mark.gpu
def test_on_a_gpu_a_policy_that_waits_is_refused_with_graphs(cuda: str) -> None:
    settings: dict[str, Any] = {"device": cuda, "policy": f"{__name__}:Waiting", "total_steps": 2000}
    with pytest.raises(PlanError, match="cannot be captured in a CUDA graph: CUDA error: .* train with --no-graphs"):
        train(config(**settings))
    assert train(config(**settings, graphs=False)).num_steps >= 2000


@pytest.mark.gpu
def test_on_a_gpu_a_second_stretch_takes_no_more_memory_and_nobody_warns(cuda: str) -> None:
    peaks = []
    for every in (None, 30_000):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(config(device=cuda, num_envs=500, total_steps=80_000, checkpoint_every=every))
        peaks.append(torch.cuda.max_memory_reserved())
    assert peaks[1] <= 1.1 * peaks[0]
