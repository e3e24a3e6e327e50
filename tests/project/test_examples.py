"""Every example runs in a short form: here, or in the test that is about it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.beside, pytest.mark.extras]

ROOT = Path(__file__).parents[2]
TESTED_IN = {
    "own_policy.py": "models/test_models",
    "ocean_cleanrl.py": "ocean/test_suite",
    "sweep.py": "training/test_settings",
    "thread_backend.py": "vectorization/test_thread_backend",
    "tour.ipynb": "project/test_pages",
    "vector_envs.py": "emulation/test_vectorized_envs",
}


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_example_is_run_somewhere() -> None:
    here = Path(__file__).read_text()
    for path in (ROOT / "examples").iterdir():
        if path.suffix in (".py", ".ipynb"):
            source = (ROOT / "tests" / f"{TESTED_IN[path.name]}.py").read_text() if path.name in TESTED_IN else here
            assert path.stem in source.replace(f'"{path.name}":', ""), f"{path.name} is run by no test"


def test_a_policy_of_tensors_plays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["torch_policy.py", "--num-envs", "3", "--batch-size", "2", "--steps", "60"])
    importlib.import_module("examples.torch_policy").main()
    assert capsys.readouterr().out.startswith("Tensor of (2, 4) on cpu\n")


def test_atari_is_preprocessed() -> None:
    pytest.importorskip("ale_py")
    env = importlib.import_module("examples.atari").game("Pong")
    observation, _ = env.reset(seed=1)
    assert observation.shape == (84, 84) and observation.dtype == np.uint8
    env.close()


@pytest.mark.slow
@pytest.mark.long
def test_stable_baselines_is_examined() -> None:
    """One rollout: what it has learnt is for `puffer ocean` to say, but it plays."""
    import torch

    from ocean.suite.tasks import tasks

    num_threads = torch.get_num_threads()
    (task,) = tasks(["bandit"], ["serial"])
    task = dataclasses.replace(task, settings={**task.settings, "total_steps": 1})
    play = importlib.import_module("examples.ocean_sb3").train(task)
    torch.set_num_threads(num_threads)
    Batch = dataclasses.make_dataclass("Batch", ["observations"])
    env = importlib.import_module("examples.ocean_sb3").single(task.env)
    actions = play(Batch(np.stack([env.reset(seed=seed)[0] for seed in range(3)])))
    assert actions.shape == (3,) and all(env.action_space.contains(action) for action in actions)


def test_a_suite_of_tasks_is_evaluated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--n-episodes", "4", "--batch-size", "3", "--backend", "serial", "--save", str(tmp_path / "a.jsonl")]
    main = importlib.import_module("examples.robot_suite").main
    reports = []
    for _ in range(2):
        main(words)
        reports.append(json.loads(capsys.readouterr().out))
    first, again = reports
    assert first["per_task"] == again["per_task"] and len(first["per_task"]) == 3
    assert first["per_task"]["reach"]["pc_success"] == 100 and first["per_task"]["reach"]["n_episodes"] == 4
    assert 50 < first["overall"]["pc_success"] <= 100
