"""``evaluate`` with ``save``: an evaluation that was killed goes on, and its results are those of one that was not."""

from __future__ import annotations

import os
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from mock_envs import HashEnv

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.evaluation import ChunkedPolicy, EvaluationInterrupted, PolicyBatch, uniforms
from pufferlib.evaluation.rules import Results
from pufferlib.evaluation.store import decoded, encoded, fingerprint

pytestmark = pytest.mark.beside


class Telling(HashEnv):
    """Its infos are of all kinds that can be stored."""

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        texts = {"text": f"tick {self.tick}", "array": np.array([self.tick / 3, np.nan]), "number": np.float32(0.1)}
        return *row, {**info, **texts, "nested": {"a": [1, (2.5, None)], "b": True}}


INFOS = ("text", "array", "number", "nested", "tick")


def noisy(batch: PolicyBatch) -> Any:
    return (uniforms(batch.seeds, batch.steps, batch.env_ids * 0, 1)[:, 0] * 9).astype(np.int64)


def killed(num_finished: int, **how: Any) -> None:
    """Run an evaluation in a process that is killed once so many episodes have been finished."""

    def kill(num: int, num_steps: int) -> None:
        if num >= num_finished:
            os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that NumPy has started
        child = os.fork()
    if not child:
        try:
            pufferlib.evaluate(Telling, noisy, backend="serial", progress=kill, **how)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_an_evaluation_that_was_killed_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    how: dict[str, Any] = {"seeds": range(12), "infos": INFOS, "num_envs": 3, "options": [{"n": n} for n in range(12)]}
    expected = pufferlib.evaluate(Telling, noisy, backend="serial", **how)
    for num_finished in (4, 7):
        killed(num_finished, save=path, **how)
        with open(path, "a") as file:
            file.write('{"seed": 3, "opt')  # as a kill within a line leaves it
    stored = path.read_text().splitlines()[1:-1]
    played: set[int] = set()

    def watched(batch: PolicyBatch) -> Any:
        played.update(batch.seeds.tolist())
        return noisy(batch)

    watched.__module__, watched.__qualname__ = noisy.__module__, noisy.__qualname__
    counts: list[tuple[int, int]] = []
    again: dict[str, Any] = {
        "backend": "pool",
        "num_workers": 2,
        "save": path,
        "progress": lambda *numbers: counts.append(numbers),
    }
    result = pufferlib.evaluate(Telling, watched, fresh="never", **how, **again)
    assert result == expected and len(stored) >= 7 and len(played) == 12 - len(stored)
    assert counts[0][0] >= len(stored) and counts[-1][0] == 12
    played.clear()
    assert pufferlib.evaluate(Telling, watched, **how, **again) == expected and not played
    more: dict[str, Any] = {**how, "seeds": range(15), "options": [{"n": n} for n in range(15)]}
    assert pufferlib.evaluate(Telling, watched, **more, **again).returns[:12].tolist() == expected.returns.tolist()
    assert played == {12, 13, 14}


def test_ctrl_c_returns_what_was_finished(tmp_path: Path) -> None:
    def interrupt(num: int, num_steps: int) -> None:
        if num >= 5:
            signal.raise_signal(signal.SIGINT)

    how: dict[str, Any] = {"seeds": range(9), "infos": ("tick",), "num_envs": 2}
    expected = pufferlib.evaluate(HashEnv, noisy, backend="serial", **how)
    for backend in ("serial", "pool"):
        with pytest.raises(KeyboardInterrupt, match="interrupted after [5-8] of 9 episodes") as stopped:
            pufferlib.evaluate(HashEnv, noisy, backend=backend, progress=interrupt, save=tmp_path / backend, **how)
        assert isinstance(stopped.value, EvaluationInterrupted)
        partial = stopped.value.episodes
        assert 5 <= len(partial) < 9 and partial.mean().value == partial.returns.mean()
        indices = partial.seeds
        assert partial.returns.tolist() == expected.returns[indices].tolist()
        assert partial.infos["tick"].tolist() == pytest.approx(expected.infos["tick"][indices].tolist(), nan_ok=True)
        assert pufferlib.evaluate(HashEnv, noisy, backend=backend, save=tmp_path / backend, **how) == expected


class Interrupted(np.ndarray[Any, Any]):
    """An array of the episodes' returns in which Ctrl-C prevents that of the third episode."""

    def __setitem__(self, index: Any, value: Any) -> None:
        if index == 2:
            raise KeyboardInterrupt
        super().__setitem__(index, value)


def test_ctrl_c_between_two_results_of_an_episode_leaves_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(rules: Any, num_agents: int) -> Results:
        results = make_results(rules, num_agents)
        results.returns = results.returns.view(Interrupted)
        return results

    make_results = Results.of
    monkeypatch.setattr(Results, "of", of)
    with pytest.raises(EvaluationInterrupted) as stopped:
        pufferlib.evaluate(HashEnv, noisy, backend="serial", seeds=range(9), num_envs=1)
    assert stopped.value.episodes.seeds.tolist() == [0, 1] and np.isfinite(stopped.value.episodes.returns).all()


class Levels(HashEnv):
    """Becomes harder after every three episodes."""

    num_played = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.num_played += 1
        result = super().reset(seed=seed)
        self.length = 5 + self.num_played // 3
        return result


def test_stored_episodes_of_an_environment_that_remembers_are_played_again(tmp_path: Path) -> None:
    how: dict[str, Any] = {"seeds": range(8), "backend": "serial", "num_envs": 1}
    always = pufferlib.evaluate(Levels, noisy, fresh="always", **how)
    with pytest.warns(RuntimeWarning, match="had played before"):
        assert pufferlib.evaluate(Levels, noisy, save=tmp_path / "a", **how) == always
    more: dict[str, Any] = {**how, "seeds": range(10)}
    assert pufferlib.evaluate(Levels, noisy, save=tmp_path / "a", **more).lengths.tolist() == [5] * 10
    with pytest.raises(PlanError, match="fresh='never', but the episodes in .* were played each in a new environment"):
        pufferlib.evaluate(Levels, noisy, save=tmp_path / "a", fresh="never", **more)


class Failing(HashEnv):
    def __init__(self, env_index: int = 0, folder: str = "") -> None:
        super().__init__(env_index)
        self.folder = Path(folder)

    def step(self, action: Any) -> Any:
        if self.last_seed == 2 and not (self.folder / "mended").exists():
            raise ValueError("not yet")
        return super().step(action)


def test_episodes_that_failed_are_tried_again(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "seeds": range(4),
        "backend": "serial",
        "save": tmp_path / "a",
        "env_kwargs": {"folder": str(tmp_path)},
    }
    with pytest.warns(RuntimeWarning, match="1 of 4 episodes failed"):
        assert pufferlib.evaluate(Failing, noisy, **how).endings[2] == "failed"
    (tmp_path / "mended").touch()
    assert np.isfinite(pufferlib.evaluate(Failing, noisy, **how).returns).all()


def test_a_file_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    how: dict[str, Any] = {"seeds": range(3), "backend": "serial", "save": path, "infos": ("tick",)}
    pufferlib.evaluate(HashEnv, noisy, **how)
    before = path.read_bytes()
    others: tuple[dict[str, Any], ...] = (
        {"policy_batch": 8},
        {"max_steps": 3},
        {"infos": ()},
        {"env_kwargs": {"mean_length": 3}},
    )
    for other in others:
        with pytest.raises(PlanError, match="has the results of another evaluation, with .*; name another file"):
            pufferlib.evaluate(HashEnv, noisy, **{**how, **other})
    with pytest.raises(PlanError, match="with policy=.*noisy and not random; name another file"):
        pufferlib.evaluate(HashEnv, "random", **how)
    with pytest.raises(PlanError, match=r"with env=\['HashEnv'\] and not \['Telling'\]"):
        pufferlib.evaluate(Telling, noisy, **how)
    with pytest.raises(PlanError, match="is no place for a file"):
        pufferlib.evaluate(HashEnv, noisy, **{**how, "save": tmp_path / "none" / "a"})

    def nested(*_: int) -> None:
        pufferlib.evaluate(HashEnv, noisy, **how)

    with pytest.raises(PlanError, match="another evaluation writes to"):
        pufferlib.evaluate(HashEnv, noisy, progress=nested, **{**how, "seeds": range(4)})
    assert path.read_bytes() == before
    for text in ("hello", "hello\n", "[1]\n", '{"seed": 3}\n', "{}\n"):
        (tmp_path / "b").write_text(text)
        with pytest.raises(PlanError, match="has no results of pufferlib.evaluate"):
            pufferlib.evaluate(HashEnv, noisy, **{**how, "save": tmp_path / "b"})
        assert (tmp_path / "b").read_text() == text


def test_policies_of_other_functions_and_arguments_are_told_apart() -> None:
    policies = [noisy, np.zeros, partial(noisy, 1), partial(noisy, 2), partial(noisy, k=[1]), partial(np.zeros, 1)]
    policies += [ChunkedPolicy(noisy), ChunkedPolicy(noisy, 3), ChunkedPolicy(np.zeros), ChunkedPolicy(policies[2])]
    assert len({fingerprint(policy) for policy in policies}) == len(policies)
    assert fingerprint(ChunkedPolicy(noisy)) == fingerprint(ChunkedPolicy(noisy))


def test_infos_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="<object object at .* cannot be stored; use numbers"):
        pufferlib.evaluate(Strange, "random", episodes=2, infos=("x",), backend="serial", save=tmp_path / "a")
    value = {"a": [1, 2.5, float("inf"), None, "t"], "b": (np.int8(3), np.zeros((0, 2), "<f2")), "c": True}
    again = decoded(encoded(value))
    assert str(again) == str(value) and again["b"][0].dtype == np.int8 and again["b"][1].shape == (0, 2)


class Strange(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {"x": object()}
