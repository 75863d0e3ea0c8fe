"""The files of downloaded SAEs on the disk: lists them, and removes those that belong to one SAE and to no other."""

from __future__ import annotations

import hashlib
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from steerserve.errors import Refusal
from steerserve.files.folder import CommitFolder
from steerserve.files.local import reading
from steerserve.rules.models.repository import RepoFile
from steerserve.rules.saes import units as sae_units
from steerserve.rules.saes.units import Unit


def units(folder: Path, repo_id: str) -> tuple[Unit, ...]:
    """The SAEs of one commit whose files are on the disk."""
    there = [path for path in folder.rglob("*") if path.is_file()]
    files = [RepoFile(path.relative_to(folder).as_posix(), None) for path in there]
    return sae_units.units(repo_id, files).units


def remove(folder: Path, repo_id: str, gone: Set[str | None], kept: Set[str | None]) -> None:
    """Remove the files of the units with the paths `gone`, except files that units with the paths `kept` use too.

    Raises:
        OSError: a file cannot be removed. All other files have been removed by then; the first error is raised.
    """
    there = units(folder, repo_id)
    shared = {file.path for unit in there if unit.path in kept for file in unit.files}
    own = {file.path: file for unit in there if unit.path in gone for file in unit.files}
    CommitFolder(folder).remove([file for path, file in own.items() if path not in shared])


def content_digest(place: Path) -> str:
    """The SHA-256 of an SAE on this machine: of its file, or of those files in its folder that belong to the SAE. Names
    of files and folders do not count.

    Every byte is read, which takes about a second for a gigabyte. A digest of samples could be equal for two SAEs that
    differ only in a bias.

    Raises:
        Refusal: INVALID_LOCAL_PATH when a file cannot be read.
    """
    whole = hashlib.sha256()
    with reading(place):
        for path in _content(place):
            with path.open("rb") as opened:
                whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()


def _content(place: Path) -> list[Path]:
    """The files of one SAE. For a folder with no known layout, all its files."""
    folder = place if place.is_dir() else place.parent
    beside = [path for path in (*folder.iterdir(), *folder.glob("checkpoints/*")) if path.is_file()]
    listing = sae_units.units(
        folder.name, [RepoFile(path.relative_to(folder).as_posix(), None) for path in beside]
    )
    with suppress(Refusal):
        unit = listing.find(sae_units.TOP if place.is_dir() else place.name)
        return [folder / file.path for file in unit.files]
    return sorted(path for path in beside if path.parent == folder) if place.is_dir() else [place]


def clean(
    folder: Path,
    repo_id: str,
    removed: Set[str | None],
    kept: Set[str | None],
    *,
    is_fetching: bool,
) -> int:
    """Remove the files of the units with the paths `removed`. Incomplete files of the commit are removed too, unless a
    download is fetching files of the commit. If no unit of the commit is kept, all its files are removed. Returns how
    many bytes became free.

    Raises:
        OSError: a file cannot be removed. All other files have been removed by then; the first error is raised.
    """
    before = bytes_of(folder)
    if not kept:
        CommitFolder(folder).remove_all()
    else:
        remove(folder, repo_id, removed, kept)
        if not is_fetching:
            CommitFolder(folder).remove_staged()
    return before - bytes_of(folder)


def bytes_of(folder: Path) -> int:
    """Bytes of all files of a commit, including those of unfinished downloads."""
    places = (folder, CommitFolder(folder).staging)
    return sum(p.stat().st_size for place in places for p in place.rglob("*") if p.is_file())
