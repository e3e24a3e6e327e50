"""Settings of a trainer: flags over a file over what suits the environment's family over the trainer's own defaults.

    puffer train CartPole-v1 --config my.toml --learning-rate 1e-3

A file is TOML with the names of the trainer's ``Config``, and tables ``[env_kwargs]``, ``[wrap_kwargs]`` and
``[policy_kwargs]``; or the ``config.json`` of a run, or its folder. What suits a family stands in ``defaults.toml``, or
beside the family's file in ``pufferlib/environments``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from cleanrl_demo.runs import RUN, read_run
from pufferlib import environments, registry
from pufferlib.errors import PlanError
from pufferlib.util.toml import checked, read_toml

DEFAULTS = Path(__file__).with_name("defaults.toml")
ALGORITHM = "algorithm"  # what a file may say of the trainer, which is no setting of it
HINT = "its keys are those of --help, with _ for -; a run's config.json does as well"
# The tables, by what they are arguments of.
TABLES_BY_OWNER = {"env": ("env_kwargs", "wrap_kwargs"), "policy": ("policy_kwargs",)}
TABLES = tuple(table for tables in TABLES_BY_OWNER.values() for table in tables)

Config = TypeVar("Config")


@dataclass(frozen=True)
class FromFile:
    """The flags that say where other settings come from; to be inherited from beside a trainer's ``Config``."""

    config: str | None = None
    """a TOML file with settings, or the config.json of a run; flags go before it"""
    defaults: bool = True
    """begin with what suits the environment's family (cleanrl_demo/defaults.toml)"""


def from_command_line(config_type: type[Config], arguments: Sequence[str] | None = None) -> Config:
    """Return the settings that a command's arguments, by default this program's, give. Prints what came of the family.

    Raises PlanError as ``settle``; where tyro does not understand the arguments, it ends the program.
    """
    import tyro

    from pufferlib.cli.parsing import whole_numbers

    kind = make_dataclass(config_type.__name__, [], bases=(FromFile, config_type), frozen=True)
    kind.__doc__ = config_type.__doc__

    def parse(arguments: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
        return dict(vars(tyro.cli(kind, args=whole_numbers(kind, arguments), default=kind(**defaults))))

    config, note = settle(config_type, parse, arguments)
    if note:
        print(note)
    return config


def settle(
    config_type: type[Config],
    parse: Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
) -> tuple[Config, str]:
    """Return the settings, and a line that says which are the family's ("" where there are none).

    config_type: a frozen dataclass, all of whose fields have defaults; its ``algorithm`` is the table of
    ``defaults.toml``. parse: turns arguments, with these defaults, into values of all fields and of ``FromFile``'s.
    Tables, such as ``env_kwargs``, are merged key by key. Raises PlanError for a file that cannot be read, and for keys
    and types that ``config_type`` does not have.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # A first look, for the file and the environment. Its help would show defaults that are not going to be those.
    parsed = parse([argument for argument in arguments if argument not in ("-h", "--help")], {"env": ""})
    from_file = {} if parsed["config"] is None else read_settings(parsed["config"], config_type)
    defaults = vars(config_type())
    env = parsed["env"] or from_file.get("env", defaults["env"])
    pattern, of_family = family_settings(env, config_type) if parsed["defaults"] else ("", {})
    # Tables are left to the end: whether a flag has given one cannot be seen, and their keys are merged.
    plain = {name: value for name, value in {**of_family, **from_file, "env": env}.items() if name not in TABLES}
    values = {name: value for name, value in parse(arguments, plain).items() if name in defaults}
    layers = [{**defaults, **of_family, "env": env}, from_file, values]
    for owner, tables in TABLES_BY_OWNER.items():
        # A layer's arguments are for what it names; where something else has won, they are not for that.
        fitting = [layer for layer in layers if layer.get(owner, values.get(owner)) == values.get(owner)]
        for table in defaults.keys() & set(tables):
            values[table] = {key: value for layer in fitting for key, value in layer.get(table, {}).items()}
    config = config_type(**values)
    return config, _note(config, pattern, of_family, from_file)


def read_settings(path: str | Path, config_type: type[Any]) -> dict[str, Any]:
    """Return the settings in a TOML file, in a run's ``config.json``, or in the folder of one, checked."""
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix != ".json":
        values = {name: value for name, value in read_toml(path, HINT).items() if name != ALGORITHM}
        return checked(values, config_type, str(path))
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path} cannot be read ({error.strerror}); {HINT}") from error
    except ValueError as error:
        raise PlanError(f"{path} is no JSON ({error}); {HINT}") from error
    if not isinstance(values, dict):
        raise PlanError(f"{path} holds no settings but a {type(values).__name__}; {HINT}")
    return checked(values, config_type, str(path))


def algorithm_in(path: str | Path) -> str | None:
    """Return the trainer that a TOML file names, or whose run a folder or its ``config.json`` is of, else None."""
    path = Path(path)
    if path.suffix == ".json" or path.is_dir():
        run = (path if path.is_dir() else path.parent) / RUN
        named = read_run(run.parent).get(ALGORITHM) if run.is_file() else None
    else:
        named = read_toml(path, HINT).get(ALGORITHM)
    return named if isinstance(named, str) else None


def family_settings(env: str, config_type: type[Any]) -> tuple[str, dict[str, Any]]:
    """Return what ``defaults.toml`` and its family's have for an environment: the patterns that fit, and the settings.

    A later table goes before an earlier one, and where it names another policy, the earlier one's arguments are not for
    that. Both are empty where none fits. Raises RegistryError for a name that stands for nothing.
    """
    entry = registry.find(env)
    names = {env, entry.target}
    files = [DEFAULTS, environments.FOLDER / f"{entry.family}.toml"]
    contents = [read_toml(file, "install pufferlib again") for file in files if file.exists()]
    tables = {
        pattern: table for content in contents for pattern, table in content.get(config_type.algorithm, {}).items()
    }
    fitting = [pattern for pattern in tables if any(fnmatchcase(name, pattern) for name in names)]
    values: dict[str, Any] = {}
    for table in (tables[pattern] for pattern in fitting):
        for owner, owned in TABLES_BY_OWNER.items():
            before = values.get(owner, getattr(config_type, owner, None))
            if table.get(owner, before) != before:
                values = {name: value for name, value in values.items() if name not in owned}
        values |= table
    return ", ".join(fitting), checked(
        values, config_type, f"{', '.join(file.name for file in files)}, {', '.join(fitting)}"
    )


def _note(config: Any, pattern: str, of_family: Mapping[str, Any], from_file: Mapping[str, Any]) -> str:
    """Return which settings are the family's."""
    file_settings, settings = _flat(from_file), _flat(vars(config))
    left = {name: value for name, value in _flat(of_family).items() if name not in file_settings}
    notes = [f"{name}={value}" for name, value in left.items() if name in settings and settings[name] == value]
    return f"settings of {pattern}: {', '.join(notes)} (--no-defaults leaves them out)" if notes else ""


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name, those in tables by "table.name"."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat
