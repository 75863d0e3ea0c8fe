"""Which paths of this machine clients may name. Links are followed before a path is compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from steerserve.errors import Refusal
from steerserve.files.local import bad_path
from steerserve.rules.bounds import LOCAL_FOLDER_ENTRIES
from steerserve.rules.paths import is_protected

log = structlog.get_logger(__name__)

SETTING = "LOCAL_PATHS"
_BESIDE = (".json", ".yaml", ".yml")
"""Files that may be read beside a file that a client names."""


@dataclass(frozen=True, slots=True)
class ClientPaths:
    """`allowed` has the folders of LOCAL_PATHS; None allows every folder outside the system folders. `own` has the
    folders of the service, of which nothing is read for a client. `secret` has the files of secret settings, and others
    that are never read for a client; `database` is the file of the database, which may have copies beside it."""

    allowed: tuple[Path, ...] | None
    own: tuple[Path, ...] = ()
    secret: tuple[Path, ...] = ()
    database: Path | None = None
    has_keys: bool = False

    def check_allowed(self, named: str) -> None:
        """Check that a client may name a path. Of a folder, the links in it are checked too; of a file, those of the
        files that may be read beside it.

        Raises:
            Refusal: INVALID_LOCAL_PATH. Outside of the allowed folders it is the same for a path that exists and one
                that does not.
        """
        if "\x00" in named or not named.startswith("/"):
            return  # no path; the reader of the path says why
        path = _followed(Path(named), named)
        self._check_target(path, named)
        try:
            for link, target in _links(path, named):
                self._check_target(target, named, link)
        except OSError:
            return  # the reader of the path says why

    def warning(self, path: str) -> str | None:
        """The warning about a record of before whose path no request may name now; None for other paths. The log says
        it too."""
        followed = Path(os.path.realpath(path))
        if self._is_allowed(followed) or _is_in(followed, self.own):
            return None
        log.warning("record_outside_local_paths", path=path)
        return f"its files are outside of the folders that {SETTING} allows for new records"

    def _check_target(self, path: Path, named: str, link: Path | None = None) -> None:
        what = "the path" if link is None else f"{link.name!r} at the path is a link that"
        if not self._is_allowed(path):
            raise self._outside(what, named)
        if is_protected(path):
            why = "is in a protected system folder" if link is None else "leads to a system folder"
            raise bad_path(f"{what} {why}", named)
        if self._is_own(path):
            # the places of the service's files are not told
            why = "is one of the service's own files, or holds them" if link is None else "leads to"
            why += "" if link is None else " the service's own files"
            raise bad_path(f"{what} {why}; these are never read for a request", named)

    def _outside(self, what: str, named: str) -> Refusal:
        if self.allowed:
            folders = ", ".join(map(str, self.allowed))
            why = f"{what} is outside of the folders that {SETTING} allows: {folders}"
        else:
            by = " with API_KEYS, unless" if self.has_keys else ";"
            why = f"{what} is not allowed: no path of this machine is read{by} the operator names folders in {SETTING}"
        refusal = bad_path(why, named)
        refusal.details["setting"] = SETTING
        return refusal

    def _is_allowed(self, followed: Path) -> bool:
        return self.allowed is None or _is_in(followed, self.allowed)

    def _is_own(self, followed: Path) -> bool:
        if _is_in(followed, self.own) or any(_holds(followed, place) for place in self.own):
            return True
        if self.database is not None and _is_beside(followed, self.database):
            return True
        for file in self.secret:
            try:
                if _holds(followed, file) and file.exists():
                    return True
                # another name of the same file, such as a hard link
                if followed.is_file() and followed.samefile(file):
                    return True
            except OSError:
                continue
        return False


def allow_all(_named: str) -> None:
    """Check nothing, for a path that the service itself names."""


def _links(path: Path, named: str) -> Iterator[tuple[Path, Path]]:
    """The links that a reader of the path may follow, each with the place where it leads. A folder behind a link is
    walked too, after its place was checked.

    Raises:
        OSError: a folder cannot be read.
        Refusal: INVALID_LOCAL_PATH for a folder with too many entries.
    """
    if not path.is_dir():
        with os.scandir(path.parent) as entries:
            beside = [one for one in entries if one.name.endswith(_BESIDE) and one.is_symlink()]
        for entry in beside:
            yield Path(entry.path), _followed(Path(entry.path), named)
        return
    count, folders, walked = 0, [path], {path}
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                count += 1
                if count > LOCAL_FOLDER_ENTRIES:
                    why = f"the folder has more than {LOCAL_FOLDER_ENTRIES} files and folders; name one inside"
                    raise bad_path(why, named)
                place = Path(entry.path)
                if entry.is_symlink():
                    place = _followed(place, named)
                    yield Path(entry.path), place
                if entry.is_dir() and place not in walked:
                    walked.add(place)
                    folders.append(place)


def _followed(path: Path, named: str) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        raise bad_path("the links of the path cannot be followed", named) from None


def _is_in(path: Path, folders: tuple[Path, ...]) -> bool:
    """Whether a path without links is one of the folders, or lies in one."""
    return any(path.is_relative_to(os.path.realpath(folder)) for folder in folders)


def _is_beside(path: Path, database: Path) -> bool:
    """Whether a path without links is the file of a database, its log, or one of its copies."""
    database = Path(os.path.realpath(database))
    return path.parent == database.parent and path.name.startswith(database.name)


def _holds(folder: Path, place: Path) -> bool:
    """Whether a folder without links is, or holds, a place."""
    return Path(os.path.realpath(place)).is_relative_to(folder)
