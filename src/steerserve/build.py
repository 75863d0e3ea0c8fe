"""The version of this build. It names the release and the commit, so that two builds never have one name.

The installation loads this file by itself (`pyproject.toml`), so it imports nothing of ours.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

RELEASE = "0.1.0"
"""The newest released section of CHANGELOG.md. It names builds that no tag names."""
UNKNOWN = "unknown"
"""Stands for the commit where nothing tells it."""
GIT_SECONDS = 10.0

_SOURCE_ROOT = Path(__file__).resolve().parents[2]
_DESCRIBED = re.compile(
    r"(?:v(?P<tag>[^-]+)-(?P<later>\d+)-g)?(?P<commit>[0-9a-f]{7,})(?P<dirty>-dirty)?"
)


@cache
def version(root: Path = _SOURCE_ROOT) -> str:
    """The version of the build.

    - In a checkout, git tells it: `0.1.0` at the tag `v0.1.0`, `0.1.0+3.g91da1d4c` three commits later,
      `0.1.0+g91da1d4c` without tags. `.dirty` at its end says that files have changes which are in no commit.
    - In unpacked sources (an sdist), `PKG-INFO` has the version of the checkout.
    - An installed package has it in its metadata.
    - In sources with neither, and where git does not answer, it is `0.1.0+unknown`.

    Args:
        root: the folder of the sources, if this file is in sources.
    """
    if not (root / "pyproject.toml").is_file():
        return _installed()
    if (root / ".git").exists():
        return _told_by_git(root)
    return _packed(root / "PKG-INFO")


def service_version() -> str:
    """The version of the service that is installed. In sources it is that of the sources.

    Raises:
        PackageNotFoundError: no service is installed.
    """
    if (_SOURCE_ROOT / "pyproject.toml").is_file():
        return version()
    return metadata.version("steerserve-service")


def _told_by_git(root: Path) -> str:
    # without the variables of a git command that may run this process, such as a hook
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = "git --no-optional-locks describe --tags --match v[0-9]* --long --dirty --always"
    try:
        described = subprocess.run(  # noqa: S603 -- a fixed command
            [*command.split(), "--abbrev=8"],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        described = ""
    match = _DESCRIBED.fullmatch(described)
    if match is None:
        return f"{RELEASE}+{UNKNOWN}"
    later = match["later"]
    commit = [] if later == "0" else [*([later] if later else []), f"g{match['commit']}"]
    local = ".".join([*commit, *(["dirty"] if match["dirty"] else [])])
    return (match["tag"] or RELEASE) + (f"+{local}" if local else "")


def _packed(file: Path) -> str:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    stated = (line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    return next(stated, f"{RELEASE}+{UNKNOWN}")


def _installed() -> str:
    try:
        return metadata.version("steerserve")
    except metadata.PackageNotFoundError:
        return f"{RELEASE}+{UNKNOWN}"
