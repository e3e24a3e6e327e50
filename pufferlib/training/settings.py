"""A trainer's settings, by priority: flags, a file, the settings of the environment's family, the defaults.

    puffer train CartPole-v1 --config my.toml --learning-rate 1e-3

``--config`` names a TOML file, a run's ``config.json`` or a run's folder. The keys of a TOML file are fields of the
trainer's ``Config``, with tables ``[env_kwargs]``, ``[wrap_kwargs]`` and ``[policy_kwargs]``. A family's settings are
in ``defaults.toml``, or next to the family's file in ``pufferlib/environments``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from pufferlib import environments, registry
from pufferlib.errors import PlanError
from pufferlib.training.runs import RUN, read_run
from pufferlib.util.flags import whole_numbers
from pufferlib.util.toml import checked, read_toml

DEFAULTS = Path(__file__).with_name("defaults.toml")
ALGORITHM = "algorithm"  # a key in files that names the trainer, and is not one of its settings
HINT = "its keys are those of --help, with _ for -; a run's config.json does as well"
# Tables of arguments, by the setting to which they belong.
TABLES_BY_OWNER = {"env": ("env_kwargs", "wrap_kwargs"), "policy": ("policy_kwargs",)}
TABLES = tuple(table for tables in TABLES_BY_OWNER.values() for table in tables)

Config = TypeVar("Config")


@dataclass(frozen=True)
class FromFile:
    """The flags that choose where the other settings, the fields of a trainer's ``Config``, come from."""

    config: str | None = None
    """a TOML file with settings, or a run's config.json; flags override it"""
    defaults: bool = True
    """begin with the settings for the environment's family (pufferlib/training/defaults.toml)"""


def from_command_line(config_type: type[Config], arguments: Sequence[str] | None = None) -> Config:
    """Return the settings for command-line arguments; print those that come from the environment's family.

    arguments: by default, this program's. Raises the errors of ``settle``; the program exits if the arguments cannot be
    parsed. Without tyro, ``plain_flags`` parses them.
    """
    kind = make_dataclass(config_type.__name__, [], bases=(FromFile, config_type), frozen=True)
    kind.__doc__ = config_type.__doc__

    def parse(arguments: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
        arguments = whole_numbers(kind, arguments)
        try:
            import tyro
        except ImportError:
            from pufferlib.training.plain_flags import plain_flags

            return plain_flags(kind, arguments, defaults)
        return dict(vars(tyro.cli(kind, args=arguments, default=kind(**defaults))))

    config, note = settle(config_type, parse, arguments)
    if note:
        print(note)
    return config


def settle(
    config_type: type[Config],
    parse: Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
) -> tuple[Config, str]:
    """Return the settings, and a line that lists those from the environment's family, or "" if there are none.

    config_type: a frozen dataclass whose fields all have defaults; its ``algorithm`` names its table in
    ``defaults.toml``. parse: a function that takes arguments and defaults, and returns the values of all fields of
    ``config_type`` and ``FromFile``.

    Tables such as ``env_kwargs`` are merged key by key from all sources of settings, with two exceptions: the tables
    ``env_kwargs`` and ``wrap_kwargs`` of a source that names an environment other than the chosen one are left out, and
    so is ``policy_kwargs`` of a source that names a policy other than the chosen one.

    Raises PlanError for a file that cannot be read, and for keys and types that ``config_type`` does not have;
    RegistryError for an unknown environment, if its family's settings are looked up.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # A first pass, for the file and the environment. Its help would show the wrong defaults.
    parsed = parse([argument for argument in arguments if argument not in ("-h", "--help")], {"env": ""})
    from_file = {} if parsed["config"] is None else read_settings(parsed["config"], config_type)
    defaults = vars(config_type())
    env = parsed["env"] or from_file.get("env", defaults["env"])
    pattern, of_family = family_settings(env, config_type) if parsed["defaults"] else ("", {})
    # Tables come last: it cannot be seen whether a flag has set one, and their keys are merged.
    plain = {name: value for name, value in {**of_family, **from_file, "env": env}.items() if name not in TABLES}
    values = {name: value for name, value in parse(arguments, plain).items() if name in defaults}
    layers = [{**defaults, **of_family, "env": env}, from_file, values]
    for owner, tables in TABLES_BY_OWNER.items():
        # A layer's tables are for the environment or policy that it names; skip them if another one was chosen.
        fitting = [layer for layer in layers if layer.get(owner, values.get(owner)) == values.get(owner)]
        for table in defaults.keys() & set(tables):
            values[table] = {key: value for layer in fitting for key, value in layer.get(table, {}).items()}
    config = config_type(**values)
    return config, _note(config, pattern, of_family, from_file)


def read_settings(path: str | Path, config_type: type[Any]) -> dict[str, Any]:
    """Read and check the settings in a TOML file, a run's ``config.json``, or a run's folder.

    Raises PlanError if the file cannot be read, or has keys or types that ``config_type`` does not have.
    """
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
    """Return the name of the trainer to which a file of settings belongs; None if it is not stored.

    path: a TOML file, which may name the trainer; or a run's folder or ``config.json``, whose trainer is in
    ``run.json``. Raises PlanError if the TOML file or ``run.json`` cannot be read.
    """
    path = Path(path)
    if path.suffix == ".json" or path.is_dir():
        run = (path if path.is_dir() else path.parent) / RUN
        named = read_run(run.parent).get(ALGORITHM) if run.is_file() else None
    else:
        named = read_toml(path, HINT).get(ALGORITHM)
    return named if isinstance(named, str) else None


def family_settings(env: str, config_type: type[Any]) -> tuple[str, dict[str, Any]]:
    """Return (patterns, settings): the patterns that match an environment, comma-separated, and its family's settings.

    Both are empty if no pattern matches. The settings are read from ``defaults.toml`` and the family's own file. Later
    tables override earlier ones; if a table names a different policy, the policy arguments of earlier tables are
    dropped. Raises RegistryError for an unknown name.
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
    """Return a line that lists the settings taken from the family, or "" if there are none."""
    file_settings, settings = _flat(from_file), _flat(vars(config))
    left = {name: value for name, value in _flat(of_family).items() if name not in file_settings}
    notes = [f"{name}={value}" for name, value in left.items() if name in settings and settings[name] == value]
    return f"settings of {pattern}: {', '.join(notes)} (--no-defaults leaves them out)" if notes else ""


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten settings: key the values in tables by "table.name", and all other values by name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat
