"""--num-envs auto: what is predicted is what is taken, what does not fit is halved, and what never fits is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pufferlib
from cleanrl_demo import a2c_cuda, ppo_cuda
from pufferlib.errors import PlanError
from pufferlib.training import device_runs
from pufferlib.training.device_runs import num_envs_that_fit
from pufferlib.training.planner import Account, as_many_as_fit, measured, most_nbytes
from pufferlib.training.runs import read_config
from tests.cleanrl_demo.test_ppo_cuda import config

pytestmark = pytest.mark.beside

PER_ENV, ALL = 1000, 50_000  # bytes


def takes(num_envs: int) -> None:
    """What environments do that take EACH, and ALL together; that a view is looked at takes nothing."""
    tensors = [torch.empty(ALL, dtype=torch.uint8), torch.empty(PER_ENV // 4 * num_envs)]
    for _ in range(3):
        tensors[1].view(num_envs, -1)[0].zero_()
        torch.ones(10)


def test_what_fits_is_found_and_kept_in_bounds() -> None:
    room: dict[str, Any] = {"device": "cpu", "rows_per_env": 100, "share": 1.0}
    num_envs, needs = as_many_as_fit(takes, most=10_000, free=ALL + 7 * PER_ENV * 100, **room)
    assert needs.per_env_nbytes == PER_ENV and ALL <= needs.shared_nbytes <= ALL + 100
    assert num_envs == needs.num_envs(ALL + 7 * PER_ENV * 100) == 699  # as 40 bytes are of the ones
    assert as_many_as_fit(takes, most=300, free=ALL + 7 * PER_ENV * 100, **room)[0] == 300


def test_probing_halves_what_runs_out() -> None:
    """A hundred take more than was to be expected; a capture that fails for it raises another error."""
    tried = []

    def more_than_predicted(num_envs: int) -> None:
        tried.append(num_envs)
        takes(num_envs)
        if num_envs > 150:
            try:
                raise torch.OutOfMemoryError("out of memory")
            except torch.OutOfMemoryError as error:
                raise RuntimeError("capture failed") from error

    room: dict[str, Any] = {"device": "cpu", "rows_per_env": 100, "share": 1.0}
    fitting, _ = as_many_as_fit(more_than_predicted, most=10_000, free=ALL + 5 * PER_ENV * 100, **room)
    assert tried == [41, 82, 499, 249, 124] and fitting == 124
    with pytest.raises(RuntimeError, match="of another kind"):
        most_nbytes(lambda num_envs: other_failure(), 1, "cpu", 1e9)


def other_failure() -> None:
    raise RuntimeError("of another kind")


def test_a_peak_above_the_budget_does_not_fit_on_a_gpu_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing runs out, as the device has more than is planned with."""
    for name, result in (("memory_allocated", 100), ("reset_peak_memory_stats", None), ("max_memory_allocated", 1100)):
        monkeypatch.setattr(torch.cuda, name, lambda device, result=result: result)
    assert [most_nbytes(takes, 1, "cuda", budget) for budget in (999, 1000)] == [None, 1000]


def test_what_never_fits_is_said_with_numbers() -> None:
    room: dict[str, Any] = {"device": "cpu", "rows_per_env": 2000, "share": 0.5}
    with pytest.raises(PlanError, match=r"not even two environments fit into 24\.4 KiB on cpu"):
        as_many_as_fit(takes, most=10, free=50_000, **room)
    tried = []

    def later_less(num_envs: int) -> None:
        takes(num_envs)
        tried.append(num_envs)
        if len(tried) > 2:
            raise torch.OutOfMemoryError("another program has it")

    message = r"into 122\.1 KiB, 50% of the 244\.1 KiB .* (0\.9|1\.0) KiB for each and 48\.9 KiB for all"
    with pytest.raises(PlanError, match=message):
        as_many_as_fit(later_less, most=2, free=250_000, **room)
    assert tried == [3, 6, 2, 1]


def test_an_account_is_of_what_is_there() -> None:
    before = torch.zeros(1000)
    with Account() as account:
        tensor = torch.zeros(1000)
        tensor.view(10, 100).mul_(2)[3:].t()
        assert account.nbytes == 4000
        torch.zeros(500)
        assert (account.nbytes, account.most_nbytes) == (4000, 6000)
        del tensor
        assert account.nbytes == 0
        with pytest.raises(torch.OutOfMemoryError), Account(7000):
            torch.cat([before, before])
    assert before.sum() == 0


@pytest.mark.parametrize("trainer", [ppo_cuda, a2c_cuda])
def test_what_trainers_take_is_predicted(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tenth, at twelve times as many environments as were looked at."""
    ratios = []

    def compare(trial: Any, device: str, *_: Any, **__: Any) -> tuple[int, Any]:
        needs = measured(trial, device, 25, 1e12)
        ratios.append(needs.nbytes(300) / (most_nbytes(trial, 300, device, 1e12) or 0))
        return 1, needs

    monkeypatch.setattr(device_runs, "as_many_as_fit", compare)
    num_envs_that_fit(config(trainer.Config, separate=True), trainer.Learner, trainer.begin)
    assert 0.9 < ratios[0] < 1.1


def test_processes_together_take_no_more_than_play_total_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(total_steps=2400, rollout_length=10)  # of three agents
    assert num_envs_that_fit(settings, ppo_cuda.Learner, ppo_cuda.begin) == 80
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert num_envs_that_fit(settings, ppo_cuda.Learner, ppo_cuda.begin) == 40


def test_a_run_has_the_number_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the run that has it from the beginning: planning leaves nothing behind."""
    monkeypatch.setattr(device_runs, "free_nbytes", lambda device: 1.2e6)
    settings = config(num_envs="auto", total_steps=2000, runs=str(tmp_path))
    result = ppo_cuda.train(settings)
    assert result.run_folder is not None
    num_envs = read_config(result.run_folder)["num_envs"]
    assert 10 < num_envs < 300
    again = ppo_cuda.train(replace(settings, num_envs=num_envs, runs=None)).actor.policy.state_dict()
    assert all(torch.equal(part, again[name]) for name, part in result.actor.policy.state_dict().items())
    going_on, _ = ppo_cuda.resume(result.run_folder, total_steps=3000)
    assert going_on.num_envs == num_envs


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_on_a_gpu_a_run_takes_no_more_than_was_free(graphs: bool, cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_runs, "free_nbytes", lambda device: 2e9)
    settings = config(device=cuda, graphs=graphs, num_envs="auto", total_steps=10_000_000)
    num_envs = num_envs_that_fit(settings, ppo_cuda.Learner, ppo_cuda.begin)
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    result = ppo_cuda.train(replace(settings, num_envs=num_envs))
    assert result.num_steps >= 10_000_000 and num_envs > 1000
    assert torch.cuda.max_memory_reserved() - before <= 2e9


def test_other_trainers_plan_nothing() -> None:
    from cleanrl_demo import ppo

    with pytest.raises(PlanError, match="num_envs='auto' is out of bounds; use 1 or more"):
        ppo.Config(num_envs="auto")  # type: ignore[arg-type]
    with pytest.raises(pufferlib.PlanError, match="num_envs='many' is out of bounds"):
        config(num_envs="many")
