"""What mkdocs does besides for `make docs`: files from outside docs/ become part of the site, and links go there.

README.md is the home page, and the other PAGES are pages too. What else pages link to, such as results and examples, is
copied, so that no link leads out of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "measuring.md",
}
SOURCES = {uri: path for path, uri in PAGES.items()}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(?=#[^)\s]*\)|\))")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def source(uri: str) -> str:
    """The path in the repository of a page of the site."""
    return SOURCES.get(uri, f"docs/{uri}")


def place(path: str) -> str:
    """Where in the site a file of the repository lies. Programs get .txt behind them, so that browsers show them."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}" + ("" if path.endswith(".json") else ".txt")


def targets(path: str, markdown: str) -> set[str]:
    """The files of the repository that a page of it links to."""
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for _, link in LINK.findall(markdown)}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and what all pages link to, from outside docs/."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    linked = {
        target for page in files.documentation_pages() for target in targets(source(page.src_uri), page.content_string)
    }
    for path in sorted(linked - set(PAGES)):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Have links go where the files that they name lie in the site; those named after a page get its title."""
    uri = page.file.src_uri
    path = source(uri)

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        text = match[1]
        if text.endswith(".md") and (title := TITLE.search((ROOT / target).read_text())):
            text = title[1]
        return f"[{text}]({posixpath.relpath(place(target), posixpath.dirname(uri))}"

    return LINK.sub(moved, markdown)
