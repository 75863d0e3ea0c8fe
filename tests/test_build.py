"""Every build names its release and its commit, wherever its files come from."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import steerserve
from steerserve.build import RELEASE, version

ROOT = Path(__file__).parents[1]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")


def tag(folder: Path) -> None:
    commit(folder)
    git(folder, "tag", "v0.7.0")


def go_on(folder: Path) -> None:
    tag(folder)
    git(folder, "commit", "-qm", "second", "--allow-empty")


def change(folder: Path) -> None:
    go_on(folder)
    (folder / "pyproject.toml").write_text("changed")


def break_git(folder: Path) -> None:
    (folder / ".git").write_text("gitdir: /nowhere")


def unpack(folder: Path) -> None:
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.4\nVersion: 0.7.0+3.g01234567\n\nText\n")


def install(folder: Path) -> None:
    (folder / "pyproject.toml").unlink()


SOURCES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a clone without tags": (commit, rf"{RELEASE}\+gCOMMIT"),
    "a tag": (tag, r"0\.7\.0"),
    "after a tag": (go_on, r"0\.7\.0\+1\.gCOMMIT"),
    "changed files": (change, r"0\.7\.0\+1\.gCOMMIT\.dirty"),
    "git does not answer": (break_git, rf"{RELEASE}\+unknown"),
    "no git and no release": (lambda _: None, rf"{RELEASE}\+unknown"),
    "an sdist": (unpack, r"0\.7\.0\+3\.g01234567"),
    "installed": (install, r"\d+\.\d+\.\d+.*"),
}
"""How the sources came here, and the version of the build."""


@pytest.mark.parametrize("name", SOURCES)
def test_a_build_names_its_release_and_its_commit(name: str, tmp_path: Path) -> None:
    prepare, expected = SOURCES[name]
    (tmp_path / "pyproject.toml").write_text("")
    prepare(tmp_path)
    if "COMMIT" in expected:
        expected = expected.replace("COMMIT", git(tmp_path, "rev-parse", "--short=8", "HEAD"))
    assert re.fullmatch(expected, version(tmp_path))


def test_the_package_has_the_version_of_its_build() -> None:
    assert steerserve.__version__ == version()
    if (ROOT / ".git").exists():
        assert git(ROOT, "rev-parse", "--short=8", "HEAD") in version()
    settings = (ROOT / "pyproject.toml").read_text()
    # the installation asks the same function
    assert 'path = "src/steerserve/build.py"\nexpression = "version()"' in settings


def test_the_newest_released_section_of_the_changelog_names_the_release() -> None:
    sections = re.findall(r"^## \[(.*?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    assert sections[1][0] == RELEASE
    assert re.fullmatch(r" - \d{4}-\d{2}-\d{2}", sections[1][1])


def test_every_extra_that_the_manual_installs_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/guides").glob("*.md"),
    ]
    files = [*pages, *(ROOT / "src").rglob("*.py")]
    named = [
        (file.name, sources or package, extra)
        for file in files
        for sources, package, extra in re.findall(
            r"pip install [^\n`]*?['\"](?:(\.)|(steerserve))\[([\w-]+)\]['\"]", file.read_text()
        )
    ]
    assert {extra for _, _, extra in named} >= {
        "arrays",
        "lm-eval",
        "mcp",
        "postgres",
        "ray",
        "serve",
    }
    assert {extra for _, _, extra in named} <= set(extras)
    # no index has the package: its name alone means the one that is installed already, which says this in its messages
    assert {file for file, what, _ in named if what == "steerserve"}.isdisjoint(
        page.name for page in pages
    )
