"""What `mkdocs.yml` cannot say. MkDocs calls the functions `on_…`.

- The navigation is the first table of docs/index.md: a section for each row with a bold word, and in it the pages that
  the row links to, at the first link to each. A link to a folder stands for all of its pages.
- A notebook is a page with the outputs that were kept.
- A page may link to a file of the repository outside docs/. The site has a copy of each such file in `repository/`.
"""

from __future__ import annotations

import posixpath
import re
from itertools import chain
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from tools.notebooks.page import page as page_of_notebook

ROOT = Path(__file__).parents[2]
DOCS = "docs"
COPIES = "repository"
NOTEBOOK = ".ipynb"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
ROW = re.compile(r"^\| (?!you want to|---)(.*?) \| (.*) \|$")
BOLD = re.compile(r"\*\*(.+?)\*\*")

Navigation = list[str | dict[str, list[str]]]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _navigation((ROOT / DOCS / "index.md").read_text())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, and the files that those link to."""
    waiting = [_in_repository(file.src_uri) for file in files.documentation_pages()]
    while waiting:
        for path in _linked(waiting.pop()):
            uri = _in_site(path)
            if files.get_file_from_path(uri) is None:
                copy = File.generated(config, uri, abs_src_path=str(ROOT / path))
                copy.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(copy)
                waiting += [path] if path.endswith(".md") else []
    for file in list(files):
        if file.src_uri.endswith(NOTEBOOK):
            content = page_of_notebook(Path(str(file.abs_src_path)).read_text())
            files.append(
                File.generated(config, _in_site(_in_repository(file.src_uri)), content=content)
            )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links of a page lead to where the site has the files."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        uri = _pages(_target(_in_repository(here), link[1]))[0]
        return "](" + posixpath.relpath(uri, posixpath.dirname(here))

    return LINK.sub(moved, markdown)


def _navigation(index: str) -> Navigation:
    sections: dict[str, list[str]] = {}
    title = ""
    for line in index.splitlines():
        if (row := ROW.match(line)) is None:
            if sections:
                break
            continue
        if bold := BOLD.search(row[1]):
            title = bold[1].capitalize()
        pages = sections.setdefault(title, [])
        for link in LINK.findall(row[2]):
            named = _pages(_target(f"{DOCS}/index.md", link))
            pages += [uri for uri in named if uri not in chain(*sections.values())]
    return ["index.md", *({name: pages} for name, pages in sections.items())]


def _pages(path: str) -> list[str]:
    """The file of the site for a path of the repository, or the pages of the folder there."""
    if (ROOT / path).is_dir():
        return [_in_site(f"{path}/{page.name}") for page in sorted((ROOT / path).glob("*.md"))]
    return [_in_site(path)]


def _linked(path: str) -> list[str]:
    """The files outside docs/ that a page links to."""
    found = (_target(path, link) for link in LINK.findall((ROOT / path).read_text()))
    return [path for path in found if not path.startswith(DOCS) and (ROOT / path).is_file()]


def _target(page: str, link: str) -> str:
    """The path to which a page links. All paths here are those of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _in_site(path: str) -> str:
    """The place in the site of a file of the repository."""
    if path.endswith(NOTEBOOK):
        path = f"{path.removesuffix(NOTEBOOK)}.md"
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{COPIES}/{path}"


def _in_repository(uri: str) -> str:
    """The path in the repository of a file of the site."""
    return uri.removeprefix(f"{COPIES}/") if uri.startswith(f"{COPIES}/") else f"{DOCS}/{uri}"
