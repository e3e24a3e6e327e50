"""Conformance checks: test an environment for every property that learners and pufferlib rely on.

    report = pufferlib.testing.check_env(make_env)
    print(report)

With pytest, which is optional, write one test for all checks:

    def test_my_env():
        report = pufferlib.testing.check_env(make_env)
        assert report.passed, str(report)

or one test per check, from a single run:

    @pytest.fixture(scope="module")
    def report():
        return pufferlib.testing.check_env(make_env)

    @pytest.mark.parametrize("name", pufferlib.testing.CHECKS)
    def test_my_env(report, name):
        assert report[name].status != "failed", report[name].text
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

from pufferlib.errors import PlanError
from pufferlib.registry import creator
from pufferlib.testing.checks import ALL, Check
from pufferlib.testing.context import CheckContext
from pufferlib.testing.kernels import Difference, KernelReport, check_kernel
from pufferlib.testing.play import Subject, ignore_call
from pufferlib.testing.report import Report, Result
from pufferlib.testing.wording import error_text
from pufferlib.util.suggestions import says_what_was_meant
from pufferlib.vectorization.core.arguments import accepts_env_index, misplaced

__all__ = ["CHECKS", "Difference", "KernelReport", "Report", "Result", "check_env", "check_kernel"]

CHECKS: tuple[str, ...] = tuple(check.name for check in ALL)


@says_what_was_meant(misplaced, "env_kwargs")
def check_env(
    env: Callable[..., Any] | str,
    *,
    env_args: Sequence[Any] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    num_steps: int = 1000,
    seed: int = 0,
    only: Iterable[str] | None = None,
    before: Callable[[str], None] | None = None,
    after: Callable[[Result], None] | None = None,
    noted: Callable[[str], None] = ignore_call,
) -> Report:
    """Make an environment many times, play it with random actions, and return a report.

    env: a callable that makes one environment, or a registered name.
    env_args, env_kwargs, wrap_kwargs: as in ``pufferlib.make``.
    num_steps: the length of the long rollout, which also stops after 5 s. The replays that compare trajectories have
        at most 200 steps.
    only: the names of the checks to run, from CHECKS; by default, all. The checks that these need run as well, but are
        not in the report.
    before: called with the name of each reported check before it runs. after: called with its Result when it is over.
    noted: called with a description at the start of each call of the environment, and with "" at the call's end.

    An exception in the environment becomes a failed check. A crash ends this process, in which the environment runs;
    `puffer check` starts a separate process and reports the call that crashed or never returned. Raises RegistryError
    for an unknown environment name, MissingExtra if the environment's package is not installed, and PlanError for an
    unknown check name.
    """
    maker = creator(env)
    kwargs = dict(env_kwargs or {})
    if accepts_env_index(maker):
        kwargs.setdefault("env_index", 0)
    requested = set(CHECKS if only is None else only)
    unknown = sorted(requested - set(CHECKS))
    if unknown:
        raise PlanError(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    context = CheckContext(Subject(maker, tuple(env_args), kwargs, dict(wrap_kwargs or {}), noted), num_steps, seed)
    needed = _with_needs(requested)
    results: list[Result] = []
    causes: dict[str, str] = {}
    for check in ALL:
        if check.name not in needed:
            continue
        reported = check.name in requested
        if reported and before is not None:
            before(check.name)
        result = _run(check, context, causes)
        if reported:
            results.append(result)
            if after is not None:
                after(result)
    return Report(tuple(results))


def _with_needs(names: Iterable[str]) -> set[str]:
    needs = {check.name: check.needs for check in ALL}
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += needs[name]
    return needed


def _run(check: Check, context: CheckContext, causes: dict[str, str]) -> Result:
    """Run a check and return its result. Skip it if a check that it needs has failed or been skipped.

    The result of a skipped check is "not applicable". causes: a mapping from each failed or skipped check to the failed
    check that is the cause (for a failed check, itself), updated in place.
    """
    cause = next((causes[need] for need in check.needs if need in causes), None)
    if cause is not None:
        causes[check.name] = cause
        return Result(check.name, "not applicable", f"waits for {cause}", waits_for=cause)
    start_s = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the results report those that matter
        try:
            status, text = check.run(context)
        except (Exception, SystemExit) as error:  # SystemExit: sys.exit in an environment
            status, text = "failed", error_text(error)
    if status == "failed":
        causes[check.name] = check.name
    return Result(check.name, status, text, perf_counter() - start_s)
