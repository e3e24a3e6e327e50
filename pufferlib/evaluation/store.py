"""Store: a file of finished episodes, from which an evaluation that was killed goes on.

The file has a line of JSON for the evaluation, and one for each episode, appended as soon as the episode is over.
Numbers keep all their bits. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.evaluation.chunks import ChunkedPolicy

if TYPE_CHECKING:
    from pufferlib.evaluation.rules import Results, Rules

__all__ = ["Store", "decoded", "encoded", "fingerprint"]

VERSION = 1


class Store:
    """A file of finished episodes. It is open until ``close``; also a context manager.

    path: the file, which is made if there is none. description: what the results depend on, apart from seeds and
    options, by name; values as ``encoded`` accepts them.

    Raises PlanError if the file is no such file, if it was written for another description, or if another evaluation
    has it open.
    """

    def __init__(self, path: str | os.PathLike[str], description: Mapping[str, Any]) -> None:
        self.path = Path(path)
        items = {name: encoded(value) for name, value in description.items()}
        self._header: dict[str, Any] = {"pufferlib evaluation": VERSION, "description": items, "fresh": False}
        self._lines: list[dict[str, Any]] = []
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise PlanError(f"save={str(path)!r} is no place for a file; name a file in a folder that exists")
        self._file: IO[str] = open(self.path, "a+", encoding="utf-8")  # until close
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fresh(self) -> bool:
        """Whether the stored episodes were each played in a new environment."""
        return bool(self._header["fresh"])

    @property
    def num_episodes(self) -> int:
        """The number of episodes that the file held when it was opened, or when they were forgotten."""
        return len(self._lines)

    def endings(self, rules: Rules) -> list[str]:
        """Return the endings of the episodes of ``rules``; "" for those that are not stored."""
        return [line["ending"] if line is not None else "" for line in self._lines_of(rules)]

    def _lines_of(self, rules: Rules) -> list[dict[str, Any] | None]:
        by_key = {_key(line): line for line in self._lines}
        return [by_key.get(_key(_identity(rules, episode))) for episode in range(len(rules.seeds))]

    def load(self, rules: Rules, results: Results) -> None:
        """Copy the stored episodes that are among those of ``rules`` into ``results``."""
        for episode, line in enumerate(self._lines_of(rules)):
            if line is None:
                continue
            returns = decoded(line["returns"])
            if returns.shape != results.returns[episode].shape:
                raise PlanError(
                    f"{self.path} has returns of {len(returns)} agents, but the environment has "
                    f"{results.returns.shape[1]}; name another file"
                )
            results.returns[episode], results.lengths[episode] = returns, line["length"]
            results.endings[episode], results.restarts[episode] = line["ending"], line["restarts"]
            results.seconds[episode] = line["seconds"]
            for name, values in line["infos"].items():
                results.infos[name][episode] = {agent: decoded(value) for agent, value in values}

    def add(self, rules: Rules, results: Results, episode: int) -> None:
        """Append a finished episode. Raises PlanError for an info that cannot be stored."""
        line = {
            **_identity(rules, episode),
            "returns": encoded(results.returns[episode]),
            "length": int(results.lengths[episode]),
            "ending": results.endings[episode],
            "restarts": int(results.restarts[episode]),
            "seconds": float(results.seconds[episode]),
            "infos": {
                name: [[agent, encoded(value)] for agent, value in values[episode].items()]
                for name, values in results.infos.items()
            },
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def restart(self) -> None:
        """Forget all episodes, because each is to be played in a new environment."""
        self._header["fresh"], self._lines = True, []
        self._file.truncate(0)
        self._write_header()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows has none
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however that happens
        except OSError as error:
            raise PlanError(f"another evaluation writes to {self.path}; name another file") from error

    def _read(self) -> None:
        self._file.seek(0)
        text = self._file.read()
        complete = text[: text.rfind("\n") + 1]  # a line that is not finished was being written at a kill
        try:
            header, *self._lines = map(json.loads, complete.splitlines() or ["{}"])
            is_ours = not complete or header.get("pufferlib evaluation") == VERSION
        except (ValueError, AttributeError):
            is_ours = False
        if not is_ours or (text and not complete and not text.startswith('{"pufferlib')):
            raise PlanError(f"{self.path} has no results of pufferlib.evaluate in this version; name another file")
        if not header:
            self._file.truncate(0)
            self._write_header()
            return
        self._require_same(header["description"])
        self._header = header
        if complete != text:
            self._file.truncate(len(complete.encode()))

    def _require_same(self, stored: Mapping[str, Any]) -> None:
        mine = self._header["description"]
        for name in {**mine, **stored}:
            if mine.get(name) != stored.get(name):
                raise PlanError(
                    f"{self.path} has the results of another evaluation, with {name}={decoded(stored.get(name))} "
                    f"and not {decoded(mine.get(name))}; name another file"
                )

    def _write_header(self) -> None:
        self._file.write(json.dumps(self._header) + "\n")
        self._file.flush()


def encoded(value: Any) -> Any:
    """Return a value as one that JSON can hold and ``decoded`` restores.

    value: a number, text, None, a NumPy scalar or array of these, or a list, tuple or dict with text keys of such
    values. Raises PlanError for anything else.
    """
    if value is None or isinstance(value, (bool, int, str)) or type(value) is float:
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "dtype": value.dtype.str, "shape": shape}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__ if type(value) in (list, tuple) else "tuple": [encoded(item) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encoded(item) for key, item in value.items()}}
    raise PlanError(f"{value!r:.80} cannot be stored; use numbers, text, arrays, and lists and dicts of these")


def decoded(value: Any) -> Any:
    """Return what ``encoded`` has encoded."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = np.frombuffer(base64.b64decode(value["array"]), value["dtype"])
        return array[0] if value["shape"] is None else array.reshape(value["shape"]).copy()
    if "dict" in value:
        return {key: decoded(item) for key, item in value["dict"].items()}
    if "tuple" in value:
        return tuple(map(decoded, value["tuple"]))
    return [*map(decoded, value["list"])]


def fingerprint(policy: Any) -> str:
    """Return a text that tells policies apart: a function's name, or a digest of the weights of a network.

    A partial function and a ChunkedPolicy have the text of the function inside, and their arguments.
    """
    if isinstance(policy, str):
        return policy
    if isinstance(policy, partial):
        return f"partial of {fingerprint(policy.func)} {described([policy.args, policy.keywords])}"
    if isinstance(policy, ChunkedPolicy):
        return f"chunks of {fingerprint(policy.function)}, {policy.num_steps} steps each"
    weights = None
    for owner in (policy, getattr(policy, "policy", None)):
        if weights is None and owner is not None:
            weights = owner.state_dict() if hasattr(owner, "state_dict") else getattr(owner, "weights", None)
    if not isinstance(weights, Mapping):
        return str(described(policy))
    digest = blake2b(digest_size=8)
    for name, tensor in weights.items():
        numbers = tensor.detach().cpu().double() if tensor.is_floating_point() else tensor.detach().cpu()
        digest.update(name.encode() + np.asarray(numbers).tobytes())
    return f"{type(policy).__name__} {digest.hexdigest()}"


def described(value: Any) -> Any:
    """Return a value as ``encoded`` accepts it, with the names of objects that it does not accept."""
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    try:
        encoded(value)
    except PlanError:
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    return value


def _identity(rules: Rules, episode: int) -> dict[str, Any]:
    """Return what tells an episode from the others of an evaluation."""
    options = None if rules.options is None else rules.options[episode]
    task = rules.task_names[rules.task_of(episode)]
    return {"task": task, "seed": int(rules.seeds[episode]), "options": encoded(options)}


def _key(line: Mapping[str, Any]) -> str:
    return json.dumps([line["task"], line["seed"], line["options"]], sort_keys=True)
