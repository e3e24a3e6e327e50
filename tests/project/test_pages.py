"""The documentation: its programs print what it says, its links lead somewhere, and all of it is in the site's menu."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tyro
from pages import ROOT, play, programs

from pufferlib import cli
from pufferlib.cli import training

pytestmark = pytest.mark.beside

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
OUTSIDE = {
    name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
}
FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)

# The programs of a page are one program, in parts. Those of these pages are run where there is a learner, or a Ray.
TESTED_IN = {"ocean": "test_ocean_newcomer", "ray": "test_ray"}
RUN = [name for page in PAGES if programs(f"docs/{page}") and (name := page.removesuffix(".md")) not in TESTED_IN]
# What no test runs, by page and first line, and why.
NOT_RUN = {
    ("adapters", "import functools"): "gymnax wants another Gymnasium; tests/adapters/test_adapter_gymnax.py runs it",
    (
        "adapters",
        "from craftax.craftax_env import make_craftax_env_from_name",
    ): "JAX takes a minute; make test-envs has it",
    ("ray", "import ray"): "needs a cluster of several machines",
}

TRANSCRIPT = re.compile(r"^```text\n(\$ .*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^(?:\$ )?(puffer (?:.*\\\n)*.+)|`(puffer [^`]+)`", re.MULTILINE)
# What the transcripts show of these takes seconds at most. Times are others each time, and so are ends of lines.
PLAYED = re.compile(r"puffer (check my_game|record my_game|replay|eval CartPole-v1 --policy)")
VARYING = re.compile(r"[\d.]+ (?:µs|ms|s)\b|\s+")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder: the current one, where modules are found, which are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize("page", RUN)
def test_programs_print_what_the_page_says(page: str, folder: Path) -> None:
    names = {"__name__": "__main__"}
    for program in programs(f"docs/{page}.md"):
        if program.title:
            (folder / program.title).write_text(program.text)
        if (page, program.first) not in NOT_RUN:
            play(program, names)


@pytest.mark.long
@pytest.mark.slow
def test_commands_show_what_the_page_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for program in programs("docs/cli.md"):
        (folder / program.title).write_text(program.text)
    shells = "".join(TRANSCRIPT.findall(PAGES["cli.md"]))
    played = 0
    for words, output in re.findall(r"^\$ (.+)\n((?:[^$].*\n)*)", shells, re.MULTILINE):
        if PLAYED.match(words):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                cli.main(shlex.split(words)[1:])
            assert VARYING.sub(" ", out.getvalue()) == VARYING.sub(" ", output), words
            played += 1
    assert played == 6


class Understood(BaseException):
    """Raised in place of what a command would do."""


@pytest.mark.slow
@pytest.mark.long
def test_commands_are_understood(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that are written with arguments, but for usage: they parse, and do nothing here."""

    def understood(*_: Any, **__: Any) -> NoReturn:
        raise Understood

    def parsed(kind: Any, *arguments: Any, parse: Any = tyro.cli, **named: Any) -> Any:
        options = parse(kind, *arguments, **named)
        if kind.__name__ == "Train":  # whose settings come from files as well, and are looked at before it starts
            return options
        raise Understood

    monkeypatch.setattr(tyro, "cli", parsed)
    for algorithm in training.ALGORITHMS:
        monkeypatch.setattr(importlib.import_module(f"cleanrl_demo.{algorithm}"), "train", understood)
    monkeypatch.setattr(importlib.import_module("pufferlib.cli.doctor"), "diagnose", understood)
    monkeypatch.setattr(importlib.import_module("pufferlib.pufferl").PuffeRL, "evaluate", understood)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "plan.toml").write_text('backend = "serial"\nnum_envs = 4\n')  # as autotune saves one
    for text in PAGES.values():
        for name, content in re.findall(r"^```toml\n(?:# (\S+)\n)?(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if name:  # which a command reads
                (folder / name).write_text(content)
            else:
                assert content in (ROOT / "examples/league.toml").read_text()
    commands = set()
    for text in [*PAGES.values(), OUTSIDE["README.md"], OUTSIDE["CONTRIBUTING.md"]]:
        commands |= {" ".join(match).replace(" ENV", " CartPole-v1") for match in COMMANDS.findall(text)}
    for command in sorted(commands):
        words = shlex.split(command.replace("\\\n", ""), comments=True)[1:]
        if len(words) > 1 and not re.search(r"\[|COMMAND|STEPS|--help", command):
            with pytest.raises(Understood):
                pytest.fail(f"{command}: returns {cli.main(words)}")
    assert len(commands) > 100


def test_modules_that_commands_name_exist() -> None:
    texts = [*PAGES.values(), *OUTSIDE.values()]
    modules = {
        module for text in texts for module in re.findall(r"-m ((?:benchmarks|cleanrl_demo|tests)\.[\w.]+)", text)
    }
    files = {module: ROOT / module.rstrip(".").replace(".", "/") for module in modules}
    missing = {
        module
        for module, file in files.items()
        if not file.with_suffix(".py").exists() and not (file / "__main__.py").exists()
    }
    assert missing == set()


def test_blocks_are_of_known_kinds() -> None:
    """A program without its word would be run by nobody."""
    kinds = {kind for text in PAGES.values() for kind in re.findall(r"^ *```([^\n]+)$", text, re.MULTILINE)}
    assert {kind.partition(" ")[0] for kind in kinds} == {"python", "text", "toml"}
    for page, text in PAGES.items():
        for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            assert not re.search(r"^(?:import|from) \w|^\w+ = \w+\.", block, re.MULTILINE), (page, block)


def test_what_is_run_elsewhere_is_there() -> None:
    for page, name in TESTED_IN.items():
        assert f"docs/{page}.md" in next(ROOT.glob(f"tests/*/{name}.py")).read_text()
    assert {page for page, _ in NOT_RUN} <= {*RUN, *TESTED_IN} and len(NOT_RUN) < 10
    for page, first in NOT_RUN:
        assert first in [program.first for program in programs(f"docs/{page}.md")]


def slugs(text: str) -> set[str]:
    """The anchors of a page, as the site and a viewer of the sources make them."""
    text = FENCED.sub("", text)
    counted: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{counted[slug]}" if counted[slug] else slug)
        counted[slug] += 1
    return anchors


def test_links_lead_to_files_and_headings() -> None:
    texts = {f"docs/{name}": text for name, text in PAGES.items()} | OUTSIDE
    broken = []
    for name, text in texts.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
            if not file.exists() or (anchor and anchor not in slugs(file.read_text())):
                broken.append((name, link))
    assert broken == []


def test_the_menu_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    added = dict(re.findall(r'^    "(\S+\.md)": "(\S+\.md)",$', (DOCS / "site/hooks.py").read_text(), re.MULTILINE))
    assert set(added) == set(OUTSIDE)
    assert sorted(listed) == sorted([*PAGES, *added.values()])


def test_the_notebook_is_the_tour() -> None:
    spec = spec_from_file_location("notebook", DOCS / "site/notebook.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.NOTEBOOK.read_text() == module.notebook(PAGES["tour.md"]), (
        "python docs/site/notebook.py makes it again"
    )
