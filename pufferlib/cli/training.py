"""`puffer train`, `puffer eval` and `puffer plot`: their arguments and output. pufferlib.training does the work."""

from __future__ import annotations

import dataclasses
import importlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from pufferlib.cli.options import Eval, Plot, Resume, Resuming, Wrap, keywords
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.screen import SHOWN_S, cleared, new_console, passing

__all__ = ["evaluate", "plot", "train"]

ALGORITHMS = (
    *("ppo", "ppo_lstm", "ppo_selfplay", "dqn", "sac", "td3", "qmix", "maddpg"),
    *("ppo_cuda", "a2c_cuda", "ppo_fused", "appo_ray", "dqn_ray"),
)


def train(arguments: list[str]) -> int:
    """Run ``puffer train ENV``: train a policy, or continue a run with --resume; return the exit status, always 0."""
    require("torch", "tensorboard", "tyro", "rich")
    if any(argument.partition("=")[0] == "--resume" for argument in arguments):
        return _resumed(arguments)
    from pufferlib.training import results, settings

    trainer = _trainer(_algorithm(arguments))
    base = trainer.Config
    kind = dataclasses.make_dataclass(
        "Train",
        [
            ("env_kwargs", tuple[str, ...], ()),
            ("policy_kwargs", tuple[str, ...], ()),
            ("wrap", Wrap, Wrap()),
            ("algorithm", Literal[ALGORITHMS], base.algorithm),
        ],
        bases=(settings.FromFile, Resuming, base),
        frozen=True,
    )
    kind.__doc__ = base.__doc__

    def parsed(arguments: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
        options = parse(kind, "train", arguments, defaults=defaults)
        return {
            **vars(options),
            "env_kwargs": keywords(options.env_kwargs),
            "policy_kwargs": keywords(options.policy_kwargs, "--policy-kwargs"),
            "wrap_kwargs": options.wrap.kwargs(),
        }

    config, note = settings.settle(base, parsed, arguments)
    if note:
        print(note)
    print(results.summary(config, trainer.train(config)))
    return 0


def _algorithm(arguments: Sequence[str]) -> str:
    """Return the algorithm that the arguments or their --config file select, by default the first of ALGORITHMS.

    The arguments take precedence over the file. If the selected algorithm is unknown, also returns the first of
    ALGORITHMS. The algorithm is found before the arguments are parsed, because it determines which flags exist.
    """
    values: dict[str, str] = {}
    for argument, next_argument in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        values.setdefault(name, value if equals else next_argument)
    algorithm = values.get("--algorithm")
    if algorithm is None and "--config" in values:
        from pufferlib.training.settings import algorithm_in

        algorithm = algorithm_in(values["--config"])
    return algorithm if algorithm in ALGORITHMS else ALGORITHMS[0]


def _resumed(arguments: list[str]) -> int:
    """Run ``puffer train --resume FOLDER``: continue a run, and print its results; return the exit status, always 0."""
    text = "the run's environment, as module:function, if it has no name"
    options: Resume = parse(Resume, "train", arguments, "ENV", text)
    from pufferlib.training import results, session  # after parsing, because torch takes seconds

    folder = Path(options.resume)  # or a file in the folder
    trainer = _trainer(session.algorithm_of(folder))
    config, result = trainer.resume(folder, options.env or None, options.total_steps, trust=options.trust)
    print(results.summary(config, result))
    return 0


def evaluate(arguments: list[str]) -> int:
    """Run ``puffer eval RUN``: evaluate a policy, and print the results; return the exit status, 130 after Ctrl-C."""
    require("torch", "tyro", "rich")
    text = "a run's folder, its policy.pt, or, with --policy, an environment as for the other commands"
    options: Eval = parse(Eval, "eval", arguments, "RUN", text, "target")
    from pufferlib.cli.evaluations import evaluated, lines  # after parsing, because torch takes seconds

    console = new_console()
    next_s = time.monotonic() + SHOWN_S

    def after(done: int, num_steps: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s and not options.watch:
            passing(console, f"{done:,} episodes, {num_steps:,} steps …")
            next_s = time.monotonic() + SHOWN_S

    with nullcontext() if options.json or options.watch else cleared(console):
        evaluation = evaluated(options, console, None if options.json else after)
    if options.json:
        print(json.dumps(evaluation.as_dict(), indent=2))
    for line in () if options.json else lines(evaluation):
        console.print(line, soft_wrap=True)
    return 130 if evaluation.interrupted else 0


def plot(arguments: list[str]) -> int:
    """Run ``puffer plot RUN…``: draw the curves of runs; return the exit status, always 0."""
    require("tensorboard")
    text = "folders of runs, or globs of them"
    options: Plot = parse(Plot, "plot", arguments, "RUN", text, "runs", tuple[str, ...])
    from pufferlib.training import plot as plotting

    left_out = plotting.plot(plotting.folders_of(options.runs), Path(options.out), options.tag, options.x)
    if left_out:
        print(f"left out, without {options.tag}: {', '.join(map(str, left_out))}")
    print(f"drawn in {options.out}")
    return 0


def _trainer(algorithm: str) -> Any:
    """Import and return a trainer's module, by name because cleanrl_demo is in a higher layer than this file."""
    return importlib.import_module(f"cleanrl_demo.{algorithm}")
