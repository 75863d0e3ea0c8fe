"""The folders of downloads. `<cache>/<owner>--<name>/<commit>` holds only files of finished downloads. An unfinished
download keeps its files in `<commit>.parts` beside that folder, and moves them when all are complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from steerserve.errors import Refusal
from steerserve.rules.models.repository import check_repo_id, is_commit

PART = ".part"
BEGUN = ".begun"
XET_PART = ".xet-part"


class SizedFile(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int | None: ...


def folder_of(cache: Path, repo_id: str, sha: str) -> Path:
    """The folder of one commit of a repository, in the cache of models or of SAEs.

    Raises:
        Refusal: VALIDATION_ERROR if `repo_id` is not the name of a repository, DOWNLOAD_FAILED if `sha` is not a
        commit.
    """
    check_repo_id(repo_id)
    if not is_commit(sha):
        raise Refusal("DOWNLOAD_FAILED", "the hub names no commit that files can be pinned to")
    return cache / repo_id.replace("/", "--") / sha


class CommitFolder:
    """The files of one commit: files of finished downloads, complete files of unfinished downloads, and incomplete
    files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.staging = path.with_name(path.name + ".parts")

    def final(self, file: SizedFile) -> Path:
        """The path of the file in a finished download. `rules.repository` has checked the file's name."""
        return self.path / file.path

    def whole(self, file: SizedFile) -> Path:
        """The path of a complete file until its whole download is finished. The name is a digest, so that no file name
        of the hub is used in the staging folder."""
        return self.staging / hashlib.sha256(file.path.encode()).hexdigest()[:32]

    def part(self, file: SizedFile) -> Path:
        return self.whole(file).with_suffix(PART)

    def begun(self, file: SizedFile) -> Path:
        """The path of the beginning of the file, as a look at the file has read it. A download that has no part of the
        file begins with it."""
        return self.whole(file).with_suffix(BEGUN)

    def keep_beginning(self, file: SizedFile, content: bytes) -> None:
        """Keep the beginning of a file of which nothing is here.

        Raises:
            OSError
        """
        if content and not self.is_fetched(file) and not self.part(file).exists():
            self.staging.mkdir(parents=True, exist_ok=True)
            self.begun(file).write_bytes(content)

    def is_fetched(self, file: SizedFile) -> bool:
        """Whether this download or an earlier one has fetched the whole file."""
        return any(_fits(path, file.size) for path in (self.final(file), self.whole(file)))

    def has_all(self, files: Iterable[SizedFile]) -> bool:
        """Whether finished downloads have fetched each of these files."""
        return all(
            (place := self.final(file)).is_file() and file.size in (None, place.stat().st_size)
            for file in files
        )

    def present_bytes(self, file: SizedFile) -> int:
        """How many bytes of the file are on the disk and need not be fetched."""
        for path in (self.final(file), self.whole(file)):
            if _fits(path, file.size):
                return path.stat().st_size
        have = _size(self.part(file)) or 0
        return have if file.size is None else min(have, file.size)

    def staged_bytes(self, file: SizedFile) -> int:
        """How many bytes of the file an unfinished download has kept."""
        return (_size(self.whole(file)) or 0) + (_size(self.part(file)) or 0)

    def all_staged_bytes(self) -> int:
        """How many bytes unfinished downloads of this commit have kept."""
        there = self.staging.glob("*") if self.staging.is_dir() else ()
        return sum(_size(path) or 0 for path in there if path.suffix in ("", PART))

    def commit(self, files: Sequence[SizedFile]) -> None:
        """Move complete files to the folder of finished downloads. Both folders are on one file system, so each move is
        a rename. If one file cannot be moved, the moved ones are moved back.

        Raises:
            OSError
        """
        moved: list[tuple[Path, Path]] = []
        try:
            for file in files:
                if self.whole(file).is_file():
                    place = self.final(file)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(self.whole(file), place)
                    moved.append((place, self.whole(file)))
        except OSError:
            for place, staged in moved:
                os.replace(place, staged)
            self._remove_empty(files)
            raise
        self._tidy()

    def discard(self, files: Iterable[SizedFile], *, tidy: bool = True) -> None:
        """Remove what unfinished downloads have fetched of these files. With `tidy`, also remove folders that are empty
        afterwards.

        Raises:
            OSError: a file cannot be removed. All other files have been removed by then; the first error is raised.
        """
        _unlink(place for file in files for place in self._staged(file))
        if tidy:
            self._tidy()

    def remove(self, files: Sequence[SizedFile]) -> None:
        """Remove the files of a deleted model, complete or not, and folders that are empty afterwards. The caller
        leaves out files that other models of the same commit use.

        Raises:
            OSError: a file cannot be removed. All other files have been removed by then; the first error is raised.
        """
        try:
            _unlink(place for file in files for place in (self.final(file), *self._staged(file)))
        finally:
            self._remove_empty(files)

    def remove_staged(self) -> None:
        """Remove everything that unfinished downloads of this commit have fetched. No download of the commit may be
        running."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self._tidy()

    def remove_all(self) -> None:
        """Remove all files of this commit, and the folder of the repository if it holds no other commit.

        Raises:
            OSError: a file cannot be removed. All other files have been removed by then.
        """
        for folder in (self.path, self.staging):
            shutil.rmtree(folder, ignore_errors=True)
        self._tidy()
        for folder in (self.path, self.staging):
            if os.path.lexists(folder):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))

    def _staged(self, file: SizedFile) -> list[Path]:
        return [self.whole(file).with_suffix(suffix) for suffix in ("", PART, BEGUN, XET_PART)]

    def _remove_empty(self, files: Iterable[SizedFile]) -> None:
        """Remove the folders of these files that are empty."""
        for file in files:
            for folder in self.final(file).relative_to(self.path).parents:
                with contextlib.suppress(OSError):
                    (self.path / folder).rmdir()
        self._tidy()

    def _tidy(self) -> None:
        for folder in (self.staging, self.path, self.path.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _unlink(places: Iterable[Path]) -> None:
    """Remove as many of the files as possible, and raise the first error afterwards."""
    errors: list[OSError] = []
    for place in places:
        try:
            place.unlink(missing_ok=True)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def missing_bytes(folder: Path, files: Iterable[SizedFile]) -> int:
    """Bytes that still have to be fetched. A file whose size is not listed counts as 0 bytes."""
    place = CommitFolder(folder)
    return sum(max(0, (file.size or 0) - place.present_bytes(file)) for file in files)


def free_bytes(folder: Path) -> int:
    """Free bytes of the file system on which the folder is, or will be created."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _size(path: Path) -> int | None:
    """Bytes of a regular file, None where there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _fits(path: Path, size: int | None) -> bool:
    have = _size(path)
    return have is not None and size in (None, have)
