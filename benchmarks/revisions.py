"""Name the revision at which results were measured, and count the commits to the program since.

A page holds ``<!-- begin revision_NAME -->`` … ``<!-- end revision_NAME -->`` for the results it is made from; all
programs that write pages fill these by ``pages.write_page``. NAME is the stem of a file of results, with _ for -, or a
key of GROUPS.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.lines import lines_of
from benchmarks.workloads import WORKLOADS

__all__ = ["MARK", "commits_since", "recorded", "resolved", "results_of", "revision_text", "version"]

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PROGRAM = ("pufferlib/_native", "pufferlib/vectorization")  # where commits are counted
MANY = 100  # commits; results with more since are marked as older
GROUPS = {"peers": tuple(WORKLOADS), "environments": ("environments/*",), "against": ("against-*",)}
MARK = re.compile(r"<!-- begin (revision_(\w+)) -->.*?<!-- end \1 -->", re.DOTALL)


def version(root: Path = ROOT) -> str:
    """Return the commit that is checked out, with a + if the program differs from it; "" without git."""
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if not commit:
        return ""
    return commit + "+" * bool(_git(root, "status", "--porcelain", "--", "pufferlib", "setup.py"))


def resolved(revision: str, root: Path = ROOT) -> str:
    """Return the short name of a commit. Raises ValueError if this repository has no such commit."""
    commit = _git(root, "rev-parse", "--short", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if not commit:
        raise ValueError(f"git knows no commit {revision!r} in {root}; `git log --oneline` lists those that it knows")
    return commit


def commits_since(revision: str, root: Path = ROOT) -> int | None:
    """Return the number of commits since a revision that changed the program; None if git cannot count them.

    It cannot without git or a repository, for an unknown revision, and in a shallow clone, whose history is cut off.
    """
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    count = _git(root, "rev-list", "--count", f"{revision.rstrip('+')}..HEAD", "--", *PROGRAM)
    return int(count) if count else None


def recorded(results: Any) -> set[str]:
    """Return the revisions named in a file of results, and "" if a part of it names none.

    Each measurement is a dict with the machine (or, from the chaos suite, its processor). Revisions are commits:
    releases such as "0.1.0" do not count.
    """
    revisions = {_revision(facts) for facts in _facts(results)}
    return revisions or {""}


def results_of(name: str, folder: Path = RESULTS) -> list[Any]:
    """Return the contents of the existing files that a mark's name stands for."""
    patterns = GROUPS.get(name, (name, name.replace("_", "-")))
    paths = {path for pattern in patterns for end in ("json", "jsonl") for path in folder.glob(f"{pattern}.{end}")}
    return [lines_of(path) if path.suffix == ".jsonl" else json.loads(path.read_text()) for path in sorted(paths)]


def revision_text(names: Iterable[str], root: Path = ROOT) -> str:
    """Return the sentences on the revisions of a measurement and their age."""
    present, missing = sorted(set(names) - {""}), "" in set(names)
    if not present:
        return "Revision not recorded."
    counts = {name: commits_since(name, root) for name in present}
    parts = [f"`{name}` ({'not known here' if count is None else count})" for name, count in counts.items()]
    text = (
        f"Measured at revision{'s' * (len(present) > 1)} {', '.join(parts)}; in brackets the commits since to "
        f"{' and '.join(f'`{folder}/`' for folder in PROGRAM)}, as git counted them when this page was written."
    )
    if missing:
        text += " Of some of it the revision was not recorded."
    if any(count is not None and count > MANY for count in counts.values()):
        text += " **Measured on an older program.**"
    return text


def _facts(results: Any) -> Iterator[dict[str, Any]]:
    if isinstance(results, dict):
        if results.keys() & {"machine", "processor"}:
            yield results
        for value in results.values():
            yield from _facts(value)
    elif isinstance(results, list) and results and isinstance(results[0], dict):
        for value in results:
            yield from _facts(value)


def _revision(facts: dict[str, Any]) -> str:
    revision = str(facts.get("revision", facts.get("version", "")))
    return revision if re.fullmatch(r"[0-9a-f]{7,40}\+?", revision) else ""


def _git(root: Path, *arguments: str) -> str:
    """Return the output of git in the repository with this top folder; "" if git fails or there is none."""
    try:
        top, result = (
            subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True)
            for command in (("rev-parse", "--show-toplevel"), arguments)
        )
    except OSError:
        return ""
    if top.returncode or Path(top.stdout.strip()).resolve() != root.resolve() or result.returncode:
        return ""
    return result.stdout.strip()
