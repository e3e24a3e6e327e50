"""Names and sentences: the field's terms in place of private words, and plain English.

python -m tests.project.test_vocabulary [FILE …]        what is wrong in these files, by default in all checked ones
"""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]

# Words that no identifier and no file name has as a part, with what they became.
PARTS = {
    "crew": "backend",
    "crewed": "worker",
    "inbox": "dispatcher",
    "outbox": "dispatcher",
    "doorbell": "channel",
    "undisturbed": "deferred_signals",
    "doomed": "crash_due",
    "reborn": "reset_due",
    "wound": "mark_dirty",
    "torn": "interrupted",
    "midway": "half_done",
    "laps": "num_buffers",
    "twins": "host_view",
    "foresight": "throughput_model",
    "aims": "continuous_actions",
    "gains": "advantages",
    "gained": "returns",
    "exposures": "device_video",
    "laboratory": "trial_runner",
    "rivals": "trainers",
}
# Names that no variable, argument, attribute, function or file is: verbs, pronouns and private words.
NAMES = set(
    "own told found each its kept given shown made whole lap face place beside apart elsewhere twin flight lane stand "
    "turn turns lab following real spread centre choices wire door station delegated outcomes recent acting "
    "players express mend heal owe".split()
)
FILES = {"words", "peers", "iterations", "launch", "wire"}  # no file, though they may be variables
# What no docstring and no comment has.
SENTENCES = {
    r"\banew\b": "again, or new",
    r"\b[Ww]hoever\b": "a noun",
    r"\b[Hh]ave \w+ (?:\w+ )?do\b": "the verb itself",
}
BEGINNINGS = {"Have", "Let", "Say", "Tell"}  # of docstrings and comments
# What a line with a wrong comment has; tokenizing all files took most of the time.
SUSPECT = re.compile(r"#[#\s]*(?:{})|#.*(?:{})".format("|".join(sorted(BEGINNINGS)), "|".join(SENTENCES)))

CHECKED = ("pufferlib", "cleanrl_demo", "cuda_ext", "ocean", "examples", "benchmarks", "tests", "setup.py")
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".h", ".cuh")
PUBLIC = "a public name"
# By file, names that stay, with the reason.
SPREAD = "the deviation of a step's time as a share of the mean: an argument of PlainEnv, which results name"
EXCEPTIONS = {
    "benchmarks/envs.py": {"spread": SPREAD, "_spread": SPREAD},
    "benchmarks/peers.py": {"peers": "the name of a command"},
    "benchmarks/ray_backend.py": {"spread": SPREAD},
    "benchmarks/workloads.py": {"spread": SPREAD},
    "cuda_ext/references/tag_continuous.py": {"turns": "the kernel's field: the angles that an action may turn by"},
    "cuda_ext/tag_continuous.cuh": {"turns": "a field of the kernel"},
    "pufferlib/models/distributions.py": {"num_aims": "an attribute of Decisions, which users' policies read"},
    "pufferlib/population/pool.py": {"kept": PUBLIC},
    "pufferlib/recording/difference.py": {"place": PUBLIC},
    "pufferlib/recording/files.py": {"face": "the old name of row_spec, for one release"},
    "pufferlib/recording/rows.py": {"place": PUBLIC},
    "pufferlib/telemetry/stats.py": {"own": PUBLIC, "spread": PUBLIC},
    "pufferlib/testing/checks.py": {"outcomes": "the name of a check"},
    "pufferlib/testing/kernels.py": {"found": PUBLIC},
    "pufferlib/vectorization/device/vecenv.py": {"twin": PUBLIC},
    "tests/telemetry/test_telemetry.py": {"spread": "a public name, which this file tries to assign"},
}


def sources() -> Iterator[Path]:
    """Yield the files that are checked."""
    command = ["git", "ls-files", "--error-unmatch", *CHECKED, *EXCEPTIONS]  # a name without a file ends in an error
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in dict.fromkeys(listed.splitlines()) if name.endswith(SUFFIXES)]
    yield from (path for path in paths if path != Path(__file__))  # which has the words


@functools.lru_cache(maxsize=1)
def nodes(text: str) -> list[ast.AST]:
    """Return the syntax tree of a file, node by node."""
    return list(ast.walk(ast.parse(text)))


@functools.cache
def parts_of(word: str) -> set[str]:
    """Return the parts of a name, in lower case."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", word)}


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each name that a file binds, with its line; in Cython and C every identifier."""
    text = path.read_text()
    yield 1, path.stem
    if path.suffix not in (".py", ".pyi"):
        prose = r'"""(?s:.*?)"""|/\*(?s:.*?)\*/|#[^\n]*|//[^\n]*|"[^"\n]*"'
        code = re.sub(prose, lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(code.splitlines(), 1):
            yield from ((number, word) for word in re.findall(r"[A-Za-z_]\w*", line))
        return
    for node in nodes(text):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a file, with their lines."""
    text = path.read_text()
    if path.suffix in (".py", ".pyi"):
        for node in nodes(text):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield getattr(node, "lineno", 1), docstring
        for token in tokenize.generate_tokens(io.StringIO(text).readline) if SUSPECT.search(text) else ():
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")
        return
    for match in re.finditer(r'"""(?s:(.*?))"""|/\*(?s:(.*?))\*/|#([^\n]*)|//([^\n]*)', text):
        yield text.count("\n", 0, match.start()) + 1, next(filter(None, match.groups()), "").strip(" *")


def faults(path: Path) -> list[str]:
    """Return what is wrong in a file, a sentence each."""
    name = path.relative_to(ROOT).as_posix()
    wrong = []
    if path.stem in FILES and path.stem not in EXCEPTIONS.get(name, ()):
        wrong.append(f"{name}:1: the file {path.stem} is no noun of the field")
    for line, word in identifiers(path):
        if word in EXCEPTIONS.get(name, ()):
            continue
        used = sorted(parts_of(word) & PARTS.keys())
        wrong += [f"{name}:{line}: {word} has {part!r}; use {PARTS[part]!r}" for part in used]
        if word.strip("_").lower() in NAMES:
            wrong.append(f"{name}:{line}: {word} is no noun of the field")
    for line, sentence in sentences(path):
        for pattern, better in SENTENCES.items():
            wrong += [f"{name}:{line}: {match!r}; use {better}" for match in re.findall(pattern, sentence)]
        first = sentence.split(maxsplit=1)[0] if sentence.split() else ""
        if first in BEGINNINGS:
            wrong.append(f"{name}:{line}: begins with {first!r}")
    return sorted(set(wrong), key=lambda fault: int(fault.split(":")[1]))


def test_names_and_sentences_are_plain() -> None:
    assert not [fault for path in sources() for fault in faults(path)]


def test_a_private_word_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a name, in a part of one, in a docstring, a comment, and in Cython."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    python, cython = tmp_path / "a.py", tmp_path / "b.pyx"
    python.write_text('"""Have it do that."""\n\ntold = 1  # made anew\n\n\ndef crew_of(lap):\n    return lap.twin\n')
    cython.write_text("# Let it.\ncdef int lane\n")
    found = [fault.partition(": ")[2] for path in (python, cython) for fault in faults(path)]
    assert set(found) == {
        *("begins with 'Have'", "begins with 'Let'", "'Have it do'; use the verb itself", "'anew'; use again, or new"),
        *(f"{name} is no noun of the field" for name in ("told", "lap", "lane")),
        "crew_of has 'crew'; use 'backend'",
    }


if __name__ == "__main__":
    paths = [Path(word).resolve() for word in sys.argv[1:]] or sources()
    print(*(fault for path in paths for fault in faults(path)), sep="\n")
