"""`pytest --ocean my_package:train`: a test for each environment of Ocean, which a learner of yours has to pass.

They run in pytest's own process, so that --pdb stops in the learner. Where no paths are named on the command line, they
are all that is run. Every run of pytest loads this file: nothing else is imported before it is needed.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

OURS = [Path(__file__).parents[2] / package for package in ("cleanrl_demo", "ocean", "pufferlib")]


class Missed(Exception):
    """A learner's score is below the bar."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ocean", "Ocean, an examination of learners")
    group.addoption("--ocean", metavar="MODULE:FUNCTION", help="your learner: train(task) -> play (cleanrl_demo.suite)")
    told = "an environment, with or without ocean/; default: all. May be given several times"
    group.addoption("--ocean-env", metavar="ENV", action="append", default=[], help=told)
    backends = ["serial", "multiprocessing", "pool"]
    group.addoption("--ocean-backend", choices=backends, default="serial", help="default: serial")
    group.addoption("--ocean-seed", metavar="N", type=int, default=1, help="default: 1")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ocean") is None:
        return
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where module:function is looked for
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []  # nothing else is collected


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the environments, before others choose among the items."""
    name = config.getoption("--ocean")
    if name is not None:
        items += _collected(session, name)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Say how many environments there are, as those do not stand in any file that pytest counts."""
    num_envs = sum(isinstance(item, Examined) for item in items)
    return [] if config.getoption("--ocean") is None else [f"ocean: {num_envs} for {config.getoption('--ocean')}"]


def _collected(session: pytest.Session, name: str) -> list[Examined]:
    """Return a test an environment. Raises UsageError for a learner that is not to be had, an unknown environment."""
    try:
        from cleanrl_demo.suite.examining import learner
        from cleanrl_demo.suite.tasks import tasks
        from pufferlib.errors import PufferError
    except ImportError as error:
        raise pytest.UsageError(f'--ocean needs pip install "pufferlib[train]": {error}') from error
    option = session.config.getoption
    try:
        train = learner(name)
        found = list(tasks(option("--ocean-env"), [option("--ocean-backend")], [option("--ocean-seed")]))
    except PufferError as error:
        raise pytest.UsageError(f"--ocean: {error}") from error
    except Exception as error:
        raise pytest.UsageError(f"--ocean {name} cannot be imported\n{traceback.format_exc()}") from error
    return [
        Examined.from_parent(session, name=task.env, nodeid=task.env.replace("/", "::"), task=task, train=train)
        for task in found
    ]


class Examined(pytest.Item):
    """An environment that a learner has to pass."""

    def __init__(self, *, task: Any, train: Any, **given: Any) -> None:
        super().__init__(**given)
        self.task, self.train = task, train

    def runtest(self) -> None:
        from cleanrl_demo.suite.examining import examine
        from cleanrl_demo.suite.tasks import Cannot

        try:
            verdict, _ = examine(self.task, self.train)
        except Cannot as error:
            pytest.skip(f"{self.task.env}: {error}")
        if not verdict.passed:
            raise Missed(f"score {verdict.score:.3f}, bar {verdict.bar:.2f}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return why it failed, without what is ours: a score, a sentence, or a traceback from the learner on."""
        from cleanrl_demo.suite.tasks import catches
        from pufferlib.errors import PufferError

        if isinstance(excinfo.value, Missed):
            known = f"uniform play {self.task.chance:.3f}, the best policy {self.task.best:.3f}"
            return f"{excinfo.value} ({known})\ncatches {catches(self.task.env)}"
        paths = [Path(entry.path) for entry in excinfo.traceback]
        begin = paths.index(Path(__file__))  # what comes before is pytest's
        theirs = [number for number in range(begin, len(paths)) if not any(map(paths[number].is_relative_to, OURS))]
        if not theirs and isinstance(excinfo.value, PufferError):
            return f"{type(excinfo.value).__name__}: {excinfo.value}"
        excinfo.traceback = excinfo.traceback[theirs[0] if theirs else begin :]
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
