"""PufferLib 3's settings: the file default.ini, and the command line over it."""

from __future__ import annotations

import argparse
import configparser
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pufferlib import registry
from pufferlib.compat.exceptions import APIUsageError
from pufferlib.errors import RegistryError
from pufferlib.training.plain_flags import literal

__all__ = ["command_line", "load_config"]

DEFAULTS = Path(__file__).with_name("default.ini")
FREE_SECTIONS = ("env", "policy", "rnn")  # whose keys are arguments of the environment, the policy and its LSTM
AUTO = "auto"
# Options outside the file, with their defaults.
OPTIONS: dict[str, Any] = {
    "load_model_path": None,
    "load_id": None,
    "render_mode": AUTO,
    "save_frames": 0,
    "gif_path": "eval.gif",
    "fps": 15.0,
    "max_runs": 200,
    "wandb": False,
    "wandb_project": "pufferlib",
    "wandb_group": "debug",
    "neptune": False,
    "neptune_name": "pufferai",
    "neptune_project": "ablations",
    "local_rank": 0,
    "tag": None,
}


def load_config(env_name: str, arguments: Sequence[str] | None = None) -> defaultdict[str, Any]:
    """Return settings, in a dict by section; those of [base] and the options without a section are at the top.

    env_name: an environment's name here, which then is ``env_name``, or "default" for none. arguments: options such as
    ``--train.learning-rate 0.01``, by default those of the process. Values are Python literals of the default's type,
    else strings; [env], [policy] and [rnn] take any key. ``train`` also has use_rnn. Missing sections are empty dicts.

    Raises APIUsageError for an unknown name; SystemExit with status 2 for unknown options and for values of another
    type, and with status 0 for -h.
    """
    args: defaultdict[str, Any] = defaultdict(dict)
    args.update(OPTIONS)
    file = configparser.ConfigParser(inline_comment_prefixes=(";", "#"))
    file.read(DEFAULTS, encoding="utf-8")
    for section in file.sections():
        values = {key: literal(value) for key, value in file[section].items()}
        if section == "base":
            args.update(values)
        else:
            args[section].update(values)
    if env_name != "default":
        try:
            registry.find(env_name)
        except RegistryError as error:
            raise APIUsageError(
                f"No config for env_name {env_name}: {error}. PufferLib's own environments are not here; ours are, by "
                'their names, and load_config("default") is for your own'
            ) from error
        args["env_name"] = env_name
    parser = argparse.ArgumentParser(prog="puffer", allow_abbrev=False)
    for section, values in [("", {k: v for k, v in args.items() if not isinstance(v, dict)}), *args.items()]:
        if isinstance(values, dict):
            for key, default in values.items():
                _add_option(parser, section, key, default)
    options, rest = parser.parse_known_args(arguments)
    for name, value in vars(options).items():
        section, _, key = name.rpartition(".")
        (args[section] if section else args)[key] = value
    _take_free(parser, args, rest)
    args["train"]["use_rnn"] = args["rnn_name"] is not None
    return args


def _add_option(parser: argparse.ArgumentParser, section: str, key: str, default: Any) -> None:
    name = f"{section}.{key}" if section else key
    flags = {f"--{name.replace('_', '-')}", f"--{name}"}
    parser.add_argument(*sorted(flags), dest=name, default=default, type=_like(default), help=f"default: {default}")


def _like(default: Any) -> Any:
    """Return a function that reads a value of the default's type, for argparse."""

    def read(text: str) -> Any:
        value = literal(text)
        if default is None:
            return value
        if default == AUTO:
            fits = isinstance(value, (int, float, str))
        elif isinstance(default, bool):
            fits = isinstance(value, bool)
        elif isinstance(default, int):
            value = int(value) if isinstance(value, float) and value.is_integer() else value
            fits = isinstance(value, int) and not isinstance(value, bool)
        elif isinstance(default, float):
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        else:
            return text
        if not fits and (value != AUTO or isinstance(default, bool)):
            raise argparse.ArgumentTypeError(f"{text!r} is no {type(default).__name__}, as the default {default!r} is")
        return float(value) if isinstance(default, float) and value != AUTO else value

    return read


def _take_free(parser: argparse.ArgumentParser, args: Any, rest: list[str]) -> None:
    """Take the remaining options of the sections whose keys are not known."""
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        section, _, key = name.removeprefix("--").partition(".")
        if not name.startswith("--") or section not in FREE_SECTIONS or not key or not (equals or rest):
            parser.error(f"unrecognized arguments: {name}")
        args[section][key.replace("-", "_")] = literal(value if equals else rest.pop(0))


def command_line(arguments: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the mode, the environment's name and the options. Raises APIUsageError if they are not there."""
    if len(arguments) < 2 or arguments[0].startswith("-") or arguments[1].startswith("-"):
        raise APIUsageError("use: puffer train ENV [--section.key value …], or eval or export in place of train")
    return arguments[0], arguments[1], list(arguments[2:])
