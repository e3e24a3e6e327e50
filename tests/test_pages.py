"""The documentation: its programs print what it says, its links lead somewhere, and all of it is in the site's menu."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import warnings
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import pufferlib

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
OUTSIDE = {
    name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
}
PROGRAM = re.compile(r"^```python[^\n]*\n(.*?)^```(?:\n+[^\n`]*\n*```text\n(.*?)```)?", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)

# Pages whose programs are one program, in parts.
PROGRAMS = ("agents", "backends", "failures", "how", "migrating", "nested", "puffer_env", "slow", "tour")
# Those of the others are run by other tests, or name what only a reader has: a game, a run, another library, a cluster.
ELSEWHERE = {"kernels": "test_project", "population": "test_project", "ocean": "test_ocean_newcomer"}
FRAGMENTS = (
    "adapters",
    "cli",
    "determinism",
    "environments",
    "gymnasium",
    "learners",
    "performance",
    "policies",
    "ray",
)


@pytest.mark.slow
@pytest.mark.parametrize("page", PROGRAMS)
def test_programs_print_what_the_page_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for program, shown in PROGRAM.findall(PAGES[f"{page}.md"]):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(program, f"{page}.md", "exec"), names)
            assert out.getvalue() == shown, program


def test_every_page_with_programs_is_run_or_listed() -> None:
    found = {name.removesuffix(".md") for name, text in PAGES.items() if PROGRAM.search(text)}
    assert found == {*PROGRAMS, *ELSEWHERE, *FRAGMENTS}


@pytest.mark.parametrize("page", FRAGMENTS)
def test_fragments_name_what_exists(page: str) -> None:
    """They parse, import what is there, and pass arguments that `make` has."""
    arguments = set(inspect.signature(pufferlib.make).parameters)
    for program, _ in PROGRAM.findall(PAGES[f"{page}.md"]):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pufferlib"):
                file = ROOT / f"{node.module.replace('.', '/')}.py"
                file = file if file.exists() else file.with_suffix("") / "__init__.py"
                for alias in node.names:
                    beside = (file.parent / f"{alias.name}.py").exists()
                    assert beside or re.search(rf"\b{alias.name}\b", file.read_text()), (page, alias.name)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pufferlib.make":
                assert {word.arg for word in node.keywords if word.arg} <= arguments, ast.unparse(node)


def slugs(text: str) -> set[str]:
    """The anchors of a page, as the site and a viewer of the sources make them."""
    text = FENCED.sub("", text)
    counted: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{counted[slug]}" if counted[slug] else slug)
        counted[slug] += 1
    return found


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
        "python docs/site/notebook.py makes it anew"
    )
