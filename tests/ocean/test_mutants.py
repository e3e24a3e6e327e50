"""Broken trainers: each edit applies and is undone, changes what training comes to, and is caught where it should."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.pages import without_revisions
from cleanrl_demo import ppo
from ocean.suite import demo
from ocean.suite.examining import Verdict, examine
from ocean.suite.tasks import demo_trainer, names, tasks
from pufferlib import _native
from pufferlib.errors import PlanError
from pufferlib.vectorization.driver import factory
from pufferlib.vectorization.driver.fairness import RowWeights
from pufferlib.vectorization.driver.worker_vecenv import WorkerVecEnv
from tests.mutants import run, trainings
from tests.mutants.__main__ import main
from tests.mutants.catalogue import MUTANTS, infected
from tests.mutants.checks import CHECKS, Check, checked, checked_elsewhere
from tests.mutants.edits import Edit, mutated
from tests.mutants.matrix import Matrix
from tests.mutants.mutant import Mutant
from tests.mutants.page import page
from tests.mutants.trainings import COMMAND, POOLED, Results, examinations, mutant_of, short

pytestmark = pytest.mark.beside

TRAINED = [name for name, mutant in MUTANTS.items() if not mutant.portable]
UNCAUGHT = {  # where they play a part, and are not caught
    "state_not_reset_in_update": "bell",
    "log_prob_averaged": "continuous",
    "agents_shuffled": "multiagent",
}
SOUND = dict.fromkeys(CHECKS, False)
ROOT = Path(__file__).parents[2]


# ---------------------------------------------------------------------------------------------------------- the edits


@pytest.mark.parametrize("name", MUTANTS)
def test_an_edit_is_applied_and_taken_back(name):
    mutant = MUTANTS[name]
    changed = mutated(mutant.edits)
    before = [function.__code__ for function, _ in changed]
    with infected(name):
        assert [function.__code__ for function, _ in changed] == [code for _, code in changed] != before
    assert [function.__code__ for function, _ in changed] == before
    assert mutant.description.endswith(".") and mutant.name == name
    assert {f"ocean/{env}" for env in mutant.envs} <= set(names()) and set(mutant.checks) <= set(CHECKS)
    assert mutant.envs or mutant.checks  # somebody is meant to catch it
    assert mutant.checks or not mutant.portable


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit(ppo.update, "no_such_name", ""), "has 'no_such_name' 0 times, not once"),
        (Edit(ppo.update, "rollout", ""), "has 'rollout' .* times, not once"),
    ],
)
def test_an_edit_that_fits_no_longer_is_refused(edit, message, monkeypatch):
    monkeypatch.setitem(MUTANTS, "stale", Mutant("stale", "", (edit,)))
    with pytest.raises(LookupError, match=message), infected("stale"):
        pass


def trained(env, monkeypatch):
    """Return all weights after a short training: on serial, whose batches are halves in an order that is not theirs."""
    trainer = demo_trainer(f"ocean/{env}")
    reset, order = WorkerVecEnv.async_reset, [3, 1, 0, 2]

    def shuffled(self, seed=None, options=None, env_ids=None):
        reset(self, [seed + env_id for env_id in order], options, order)

    def counted(plan, agents_per_env, *, first_finished, tensors):
        return RowWeights(plan, agents_per_env, first_finished=True, tensors=tensors)

    config = trainer.Config(
        env=f"ocean/{env}",
        backend="serial",
        num_envs=4,
        batch_size=2,
        rollout_length=24,
        learning_rate=1e-2,
        total_steps=90,
        runs=None,
        eval_episodes=1,
        env_kwargs={"step_s": 0} if env in POOLED else {},
    )
    with monkeypatch.context() as patch:
        patch.setattr(WorkerVecEnv, "async_reset", shuffled)
        if env == "uneven":  # as on a pool: in halves, the first environments are always a row ahead
            patch.setattr(factory, "RowWeights", counted)
        # Evaluation is not what is looked at, and resets as well.
        patch.setattr("pufferlib.training.session.evaluate", lambda *args, **kwargs: [])
        weights = trainer.train(config).actor.policy.parameters()
    return torch.cat([part.detach().reshape(-1) for part in weights])


@pytest.fixture(scope="module")
def sound():
    """What trainings without a mutant come to, by environment."""
    return {}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if number % 4 == 0 else [pytest.mark.long]) for number, name in enumerate(TRAINED)],
)
def test_a_mutant_changes_what_training_comes_to(name, sound, monkeypatch):
    env = next(iter(MUTANTS[name].envs), UNCAUGHT.get(name, "bandit"))
    if env not in sound:
        sound[env] = trained(env, monkeypatch)
        assert torch.equal(sound[env], trained(env, monkeypatch))
    with infected(name):
        assert not torch.equal(trained(env, monkeypatch), sound[env])


# --------------------------------------------------------------------------------------------------------- the checks


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_finds_a_mutant(check):
    """The first one that is meant for it, of those that show on both paths if there are such."""
    name = min((name for name in MUTANTS if check in MUTANTS[name].checks), key=lambda name: MUTANTS[name].portable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "available", not MUTANTS[name].portable and _native.available)
        assert checked([name])[name][check]


@pytest.mark.slow
@pytest.mark.long
def test_checks_find_mutants_and_nothing_else():
    """On the portable path, as some mutants show nowhere else."""
    results = checked_elsewhere()
    assert results.pop("") == SOUND
    assert results == {
        name: dict.fromkeys(examination.checks, True) for name, examination in MUTANTS.items() if examination.checks
    }


def test_checks_find_nothing_on_this_path():
    assert checked([None]) == {"": SOUND}


def broken() -> bool:
    raise KeyError("sword")


@pytest.mark.long
def test_why_sound_code_is_found_broken_is_said_and_of_mutants_it_is_not(monkeypatch, capsys):
    monkeypatch.setitem(CHECKS, "advantages_as_defined", Check("", broken))
    assert checked(["rewards_early"]) == {"rewards_early": {"advantages_as_defined": True}}
    assert capsys.readouterr().err == ""
    assert checked([None])[""]["advantages_as_defined"]
    assert "KeyError: 'sword'" in capsys.readouterr().err


def test_why_the_process_of_checks_fails_is_said(tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho there is no such thing >&2\nexit 3\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(subprocess.CalledProcessError):
        checked_elsewhere()
    assert capfd.readouterr().err == "there is no such thing\n"


# --------------------------------------------------------------------------------------------------------- the matrix


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "mutant"),
    [
        ("truncation", "truncation_ends"),
        ("bandit", "advantage_sign"),
        ("multiagent", "agents_observations_swapped"),
    ],
)
def test_training_distinguishes_a_mutant_from_the_correct_trainer(env, mutant):
    """A part of the matrix that takes seconds."""
    (task,) = tasks([env], ["serial"])
    task = replace(task, settings={**task.settings, "total_steps": 8_000})  # the correct one passes after 2,000
    assert examine(task, demo.train, 200)[0].passed
    with infected(mutant):
        assert not examine(task, demo.train, 200)[0].passed


def fake_results(score):
    """Results of the whole matrix; score(mutant, env, seed) says whether a training passes."""
    wanted = examinations(seeds=(1, 2))
    results = Results()
    for examination in wanted:
        passes = score(mutant_of(examination), short(examination.task), examination.task.seed)
        results.add(examination, Verdict(1.0 if passes else 0.0, examination.task.bar, 1.0))
    results.checks = {
        "": SOUND,
        **{name: dict.fromkeys(examination.checks, True) for name, examination in MUTANTS.items()},
    }
    return Matrix(wanted, results)


def as_meant(mutant, env, seed):
    return mutant is None or not (MUTANTS[mutant].everywhere or env in MUTANTS[mutant].envs)


def test_a_matrix_that_is_as_it_should_be():
    results = fake_results(as_meant)
    assert results.all_faults == {}
    assert results.cell("truncation_ends", "truncation").text == "2/2"
    assert results.cell("truncation_ends", "bandit").text == "·"
    assert results.cell("advantage_sign", "memory").text == "1/1"
    text = page(results)
    assert all(f"\n| {name} | " in text for name in TRAINED) and "not as it should be" not in text


def test_a_matrix_names_what_is_wrong():
    def score(mutant, env, seed):
        if (mutant, env) == ("truncation_ends", "truncation"):
            return seed == 2
        if mutant == "heads_swapped":
            return False
        return as_meant(mutant, env, seed) and (mutant, env, seed) != (None, "squared", 2)

    results = fake_results(score)
    results.results.checks["entropy_sign"] = {"entropy_grows": False}
    results.results.checks[""] = {**SOUND, "solved": True}
    assert results.all_faults == {
        "truncation_ends": ["truncation caught 1 of 2"],
        "heads_swapped": ["it passes nowhere"],
        "entropy_sign": ["entropy_grows found nothing"],
        "correct trainer": ["squared failed 1 of 2", "solved found something"],
    }
    assert "- truncation_ends: truncation caught 1 of 2" in page(results)


def test_what_is_trained():
    wanted = examinations(["truncation_ends", "timelines_by_place", "keys_swapped"], seeds=(1, 2))
    trainings = {
        (mutant_of(examination), short(examination.task), examination.task.backend, examination.task.seed)
        for examination in wanted
    }
    assert ("truncation_ends", "truncation", "serial", 2) in trainings
    assert ("truncation_ends", "bandit", "serial", 2) not in trainings
    assert ("timelines_by_place", "bandit", "pool", 1) in trainings
    assert not {examination for examination in trainings if examination[0] in ("keys_swapped", None)}
    assert len(examinations(seeds=(1, 2), all_seeds=True)) == 2 * len(names()) * (len(TRAINED) + 1)
    with pytest.raises(PlanError, match="mutant='nobody' is unknown; there are advantage_sign, "):
        examinations(["nobody"])


def test_what_a_file_holds_is_not_done_again(tmp_path, monkeypatch, capsys):
    done = []

    def examined(examinations, **options):
        for examination in examinations:
            done.append((mutant_of(examination), examination.task.seed))
            yield examination, Verdict(0.25 if mutant_of(examination) else 1.0, examination.task.bar, 2.0)

    monkeypatch.setattr(run, "examined", examined)
    monkeypatch.setattr(run, "checked_elsewhere", lambda: {"": SOUND, "rewards_early": {"advantages_as_defined": True}})
    file, page = tmp_path / "matrix.json", tmp_path / "page.md"
    words = ["--env", "bandit", "--mutant", "rewards_early", "correct trainer"]
    words += ["--save", str(file), "--page", str(page)]
    assert main([*words, "--seeds", "1"]) == 0
    assert done == [("rewards_early", 1), (None, 1)]
    assert main(words) == 0
    assert done[2:] == [("rewards_early", 2), ("rewards_early", 3), (None, 2), (None, 3)]
    assert len(json.loads(file.read_text())["trainings"]) == 6
    assert "| rewards_early † | **3/3** | `advantages_as_defined` |" in page.read_text()
    said = capsys.readouterr().out
    assert "rewards_early" in said and "3/3" in said


def test_the_published_page_has_all_its_results():
    """A setting that trainers have since may be one of trainings.LATER; what changes a training is trained again."""
    results = Results(ROOT / "benchmarks/results/ocean_mutants.json")
    wanted = examinations(seeds=(1, 2, 3))
    assert not [examination for examination in wanted if results.get(examination) is None]
    published = without_revisions((ROOT / "docs/ocean_mutants.md").read_text())
    assert without_revisions(page(Matrix(wanted, results, ()))) == published


def test_two_runs_may_write_one_file(tmp_path):
    file, verdict = tmp_path / "matrix.json", Verdict(0.25, 0.9, 2.0)
    mine, theirs = Results(file), Results(file)
    one, other = examinations(["rewards_early"], ["bandit"], seeds=(1, 2))
    mine.add(one, verdict)
    theirs.add(other, verdict)
    both = Results(file)
    assert both.get(one) == both.get(other) == theirs.get(one) == verdict
    assert len(both.trainings) == 2


def test_nobody_else_writes_a_file_between_its_being_read_and_written(tmp_path, monkeypatch):
    def is_locked():
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    locked, read, write = [], trainings._read, trainings.written_whole
    results = Results(tmp_path / "matrix.json")
    monkeypatch.setattr(trainings, "_read", lambda file: locked.append(is_locked()) or read(file))
    monkeypatch.setattr(trainings, "written_whole", lambda file: locked.append(is_locked()) or write(file))
    results.save()
    assert locked == [True, True]
    assert not is_locked()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"a": 1}', '{"checks": {}, "trainings": [3]}', '{"checks": {}, "trainings": [{"key": "a"}]}'],
)
def test_a_file_of_something_else_is_left_as_it_is(tmp_path, capsys, text):
    file = tmp_path / "mine.json"
    file.write_text(text)
    assert main(["--env", "bandit", "--save", str(file)]) == 1
    says = f"{COMMAND}: {file} holds something else than results of `{COMMAND}`, and is left as it is; name"
    assert capsys.readouterr().err.startswith(says)
    assert file.read_text() == text


def test_a_file_of_before_holds_still(tmp_path):
    """Verdicts had no word for what a learner cannot do."""
    file = tmp_path / "matrix.json"
    (examination,) = examinations(["rewards_early"], ["bandit"])
    Results(file).add(examination, Verdict(0.25, 0.9, 2.0))
    held = json.loads(file.read_text())
    del held["trainings"][0]["cannot"]
    file.write_text(json.dumps(held))
    assert Results(file).get(examination) == Verdict(0.25, 0.9, 2.0)


def test_the_page_grows_with_what_is_done(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"

    def examined(examinations, **options):
        for examination in examinations:
            yield examination, Verdict(0.25, examination.task.bar, 2.0)
            pages.append(page.read_text())
        raise KeyboardInterrupt

    pages = []
    monkeypatch.setattr(run, "examined", examined)
    monkeypatch.setattr(run, "checked_elsewhere", dict)
    words = ["--env", "bandit", "--mutant", "rewards_early", "--seeds", "2", "--page", str(page)]
    assert main(words) == 130
    assert "| rewards_early † | **1/1…** |" in pages[0]
    assert "| rewards_early † | **2/2** |" in pages[1]


def test_a_missed_mutant_sets_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(
        run, "examined", lambda wanted, **options: ((examination, Verdict(1.0, 0.9, 1.0)) for examination in wanted)
    )
    monkeypatch.setattr(run, "checked_elsewhere", dict)
    assert main(["--env", "bandit", "--mutant", "advantage_sign", "--seeds", "1"]) == 1
    assert "advantage_sign: bandit caught 0 of 1" in capsys.readouterr().out
