"""The files of downloaded SAEs on the disk: which there are, and which belong to one SAE and to no other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path

from steerserve.errors import Refusal
from steerserve.files.folder import CommitFolder
from steerserve.files.local import reading
from steerserve.rules import sae_units
from steerserve.rules.repository import RepoFile
from steerserve.rules.sae_units import Unit


def units(folder: Path, repo_id: str) -> tuple[Unit, ...]:
    """The SAEs of one commit whose files are there."""
    there = [path for path in folder.rglob("*") if path.is_file()]
    files = [RepoFile(path.relative_to(folder).as_posix(), None) for path in there]
    return sae_units.units(repo_id, files).units


def are_there(folder: Path, files: Iterable[RepoFile]) -> bool:
    """Whether all of these have been downloaded whole."""
    for file in files:
        place = CommitFolder(folder).final(file)
        if not place.is_file() or file.size not in (None, place.stat().st_size):
            return False
    return True


def remove(folder: Path, repo_id: str, gone: Set[str | None], kept: Set[str | None]) -> None:
    """Remove the files of the units with these paths, but not what the kept ones have too.

    Raises:
        OSError: the first that cannot be removed, when all the others are.
    """
    there = units(folder, repo_id)
    shared = {file.path for unit in there if unit.path in kept for file in unit.files}
    own = {file.path: file for unit in there if unit.path in gone for file in unit.files}
    CommitFolder(folder).remove([file for path, file in own.items() if path not in shared])


def content_digest(place: Path) -> str:
    """The SHA-256 of an SAE on this machine: of its file, or of the files in its folder that make it an SAE. Names of
    files and folders do not count.

    Every byte is read, which takes about a second for a gigabyte: a digest of samples could take two SAEs for one that
    differ in a bias only.

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
    """The files of one SAE, and of a folder in no known layout all its files."""
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
    """Remove the files of the units with the paths `removed`, and everything of the commit where no unit is kept. While
    files of the commit are fetched, the parts of unfinished downloads stay. The bytes that this gave back.

    Raises:
        OSError: the first file that cannot be removed, when all the others are.
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
    """Bytes of all files of a commit, those of unfinished downloads included."""
    places = (folder, CommitFolder(folder).staging)
    return sum(p.stat().st_size for place in places for p in place.rglob("*") if p.is_file())
