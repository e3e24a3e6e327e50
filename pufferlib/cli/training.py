"""puffer train, puffer eval and puffer plot: what they are told, and what they say. What they do is cleanrl_demo's."""

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

ALGORITHMS = ("ppo", "ppo_lstm", "ppo_selfplay", "dqn", "ppo_cuda", "a2c_cuda", "appo_ray")


def train(words: list[str]) -> int:
    """puffer train ENV"""
    require("torch", "tensorboard", "tyro", "rich")
    if any(word.partition("=")[0] == "--resume" for word in words):
        return _resumed(words)
    trainer, settings = _demo(_algorithm(words)), _demo("settings")
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

    def parsed(words: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
        options = parse(kind, "train", words, defaults=defaults)
        return {
            **vars(options),
            "env_kwargs": keywords(options.env_kwargs),
            "policy_kwargs": keywords(options.policy_kwargs, "--policy-kwargs"),
            "wrap_kwargs": options.wrap.given(),
        }

    config, note = settings.settle(base, parsed, words)
    if note:
        print(note)
    print(_demo("results").summary(config, trainer.train(config)))
    return 0


def _algorithm(words: Sequence[str]) -> str:
    """Return which trainer the words name; its settings are to be known before the other words can be understood."""
    given: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        given.setdefault(name, value if equals else following)
    named = given.get("--algorithm")
    if named is None and "--config" in given:
        named = _demo("settings").algorithm_in(given["--config"])
    return named if named in ALGORITHMS else ALGORITHMS[0]


def _resumed(words: list[str]) -> int:
    """Go on with a run."""
    options: Resume = parse(Resume, "train", words, "ENV", "of the run; where it has no name, module:function")
    folder = Path(options.resume)  # or a file in it
    trainer = _demo(_demo("session").algorithm_of(folder))
    config, result = trainer.resume(folder, options.env or None, options.total_steps, trust=options.trust)
    print(_demo("results").summary(config, result))
    return 0


def evaluate(words: list[str]) -> int:
    """puffer eval RUN"""
    require("torch", "tyro", "rich")
    from pufferlib.cli.evaluations import asked, lines

    text = "folder of a run, policy.pt of one, or, with --policy, an environment as for the other commands"
    options: Eval = parse(Eval, "eval", words, "RUN", text, "target")
    console = new_console()
    next_s = time.monotonic() + SHOWN_S

    def after(done: int, num_steps: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s and not options.watch:
            passing(console, f"{done:,} episodes, {num_steps:,} steps …")
            next_s = time.monotonic() + SHOWN_S

    with nullcontext() if options.json or options.watch else cleared(console):
        evaluation = asked(_demo("evaluation"), options, console, None if options.json else after)
    if options.json:
        print(json.dumps(evaluation.as_dict(), indent=2))
        return 0
    for line in lines(evaluation):
        console.print(line, soft_wrap=True)
    return 0


def plot(words: list[str]) -> int:
    """puffer plot RUN…"""
    require("tensorboard")
    text = "folders of runs, or globs of them"
    options: Plot = parse(Plot, "plot", words, "RUN", text, "runs", tuple[str, ...])
    plotter = _demo("plot")
    left_out = plotter.plot(plotter.folders_of(options.runs), Path(options.out), options.tag, options.x)
    if left_out:
        print(f"left out, having no {options.tag}: {', '.join(map(str, left_out))}")
    print(f"drawn in {options.out}")
    return 0


def _demo(name: str) -> Any:
    """Return a module of cleanrl_demo, by name, as that stands above this package."""
    return importlib.import_module(f"cleanrl_demo.{name}")
