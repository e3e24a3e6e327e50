"""`pytest --ocean my_package:train`: test your learner on each Ocean environment that has a bar.

A test's id, such as ocean::squared, can be passed to pytest like that of any other test. The tests run in pytest's own
process, so that --pdb stops in the learner. If no paths are named on the command line, only these tests are run. Every
run of pytest loads this file, which imports everything else only when it is needed.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

OWN_FOLDERS = [Path(__file__).parents[2] / package for package in ("cleanrl_demo", "ocean", "pufferlib")]

PREFIX = "ocean::"  # of the tests' ids
BACKENDS = ["serial", "multiprocessing", "pool"]
SEED = 1


class Missed(Exception):
    """The exception for a learner whose score is below the bar."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ocean", "Ocean, a test of learners")
    group.addoption("--ocean", metavar="MODULE:FUNCTION", help="your learner: train(task) -> play (ocean.suite)")
    help_text = "an environment, with or without ocean/; default: all. Can be repeated"
    group.addoption("--ocean-env", metavar="ENV", action="append", default=[], help=help_text)
    group.addoption("--ocean-backend", choices=BACKENDS, default=BACKENDS[0], help=f"default: {BACKENDS[0]}")
    group.addoption("--ocean-seed", metavar="N", type=int, default=SEED, help=f"default: {SEED}")


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    ids = [argument for argument in config.args if argument.startswith(PREFIX)]
    if option.ocean is None:
        is_set = {
            "env": option.ocean_env,
            "backend": option.ocean_backend != BACKENDS[0],
            "seed": option.ocean_seed != SEED,
        }
        idle = [f"--ocean-{name}" for name, is_given in is_set.items() if is_given] + ids
        if idle:
            raise pytest.UsageError(f"no learner for {', '.join(idle)}; add --ocean module:function")
        return
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where module:function is looked for
    option.ocean_env = [*option.ocean_env, *(argument.removeprefix(PREFIX) for argument in ids)]
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        config.args = [argument for argument in config.args if argument not in ids]
    else:
        config.args = []  # nothing else is collected


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the tests of --ocean, if it is given, before other plugins select among the items."""
    name = config.getoption("--ocean")
    if name is not None:
        items += _collected(session, name)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Return one line, with the number of environments and the learner's name; an empty list without --ocean."""
    num_envs = sum(isinstance(item, Examined) for item in items)
    return [] if config.getoption("--ocean") is None else [f"ocean: {num_envs} for {config.getoption('--ocean')}"]


def _collected(session: pytest.Session, name: str) -> list[pytest.Item]:
    """Return the tests of the learner called ``name``, one for each environment in --ocean-env.

    Without --ocean-env, return a test for each environment that can be learnt, and a failing test for each environment
    that should be learnable but is not. Raises UsageError if the extra ``train`` is not installed, if the learner
    cannot be imported or called with a task, or if an environment in --ocean-env is unknown or cannot be learnt.
    """
    try:
        from ocean.suite.examining import learner
        from ocean.suite.tasks import faults, tasks
        from pufferlib.errors import PufferError
    except ImportError as error:
        raise pytest.UsageError(f'--ocean needs pip install "pufferlib[train]": {error}') from error
    option = session.config.getoption
    try:
        train = learner(name)
        chosen = list(tasks(option("--ocean-env"), [option("--ocean-backend")], [option("--ocean-seed")]))
    except PufferError as error:
        raise pytest.UsageError(f"--ocean: {error}") from error
    except Exception as error:
        raise pytest.UsageError(f"--ocean {name} cannot be imported\n{traceback.format_exc()}") from error
    wrong = {} if option("--ocean-env") else faults()
    examined: list[pytest.Item] = [
        Examined.from_parent(session, name=task.env, nodeid=_nodeid(task.env), task=task, train=train)
        for task in chosen
    ]
    return examined + [
        Faulty.from_parent(session, name=env, nodeid=_nodeid(env), fault=fault) for env, fault in wrong.items()
    ]


def _nodeid(env: str) -> str:
    return PREFIX + env.removeprefix("ocean/")


class Faulty(pytest.Item):
    """A failing test for an environment that should be learnable but is not.

    Other environments are still tested.
    """

    def __init__(self, *, fault: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fault = fault

    def runtest(self) -> None:
        pytest.fail(self.fault, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class Examined(pytest.Item):
    """A test of a learner on one environment."""

    def __init__(self, *, task: Any, train: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task, self.train = task, train

    def runtest(self) -> None:
        from ocean.suite.examining import examine
        from ocean.suite.tasks import Cannot

        try:
            verdict, _ = examine(self.task, self.train)
        except Cannot as error:
            pytest.skip(f"{self.task.env}: {error}")
        if not verdict.passed:
            raise Missed(verdict.score)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the reason for a failure: the score, a pufferlib error's message, or the learner's traceback."""
        from ocean.suite.tasks import shortfall
        from pufferlib.errors import PufferError

        if isinstance(excinfo.value, Missed):
            task, score = self.task, excinfo.value.args[0]
            reference = f"uniform play {task.chance:.3f}, the best policy {task.best:.3f}"
            return f"score {score:.3f}, bar {task.bar:.2f} ({reference})\n{shortfall(task, score)}"
        paths = [Path(entry.path) for entry in excinfo.traceback]
        begin = paths.index(Path(__file__))  # what comes before is pytest's
        frames = [
            number for number in range(begin, len(paths)) if not any(map(paths[number].is_relative_to, OWN_FOLDERS))
        ]
        if not frames and isinstance(excinfo.value, PufferError):
            return f"{type(excinfo.value).__name__}: {excinfo.value}"
        excinfo.traceback = excinfo.traceback[frames[0] if frames else begin :]
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
