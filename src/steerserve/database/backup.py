"""Copies of a SQLite database: made while a service writes to it, checked, and put back.

A file that is copied while the service writes may have pages of before and after a change. SQLite's online backup
copies all pages as they are at one moment, also changes that are still only in its log, and holds up no writer. A copy
is written under another name and renamed at its end, so that a file with the name of a copy is whole.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from steerserve.database.holding import FileHold, lock
from steerserve.database.sqlite_file import LOG_ENDINGS, RESERVE_ENDING

PART_ENDING = ".part"
"""The ending of the name under which a copy is written."""
_OWN_ENDINGS = ("", *LOG_ENDINGS, "-journal", ".lock", RESERVE_ENDING)
"""Endings of the files that are the database, or that belong to it."""
_FULL_DISK = "database or disk is full"
_PLACES = {
    "models": "SELECT local_path FROM models",
    "saes": "SELECT local_path FROM saes",
    "lenses": "SELECT path FROM lenses",
}
"""Table -> the question for the paths that it names."""


class CannotCopy(Exception):
    """The copy cannot be made or put back. The message tells the reason."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that was checked.

    Attributes:
        schema: the version of its schema.
        size: its bytes.
        places: the paths of models, SAEs and trained lenses that its records name, as
            they are stored, sorted.
    """

    schema: str
    size: int
    places: tuple[str, ...]


def back_up(database: Path, target: Path, *, may_replace: bool) -> Copy:
    """Copy the database into the file `target`, and check the copy. A service may use the database meanwhile.

    Raises:
        CannotCopy
    """
    if not database.is_file():
        raise CannotCopy(f"there is no database {database}")
    target = Path(os.path.realpath(target))
    own = Path(os.path.realpath(database))
    if target in [own.with_name(own.name + ending) for ending in _OWN_ENDINGS]:
        raise CannotCopy(f"{target} belongs to the database itself; name another file")
    if target.is_dir():
        raise CannotCopy(f"{target} is a folder; name a file in it")
    if target.exists() and not may_replace:
        raise CannotCopy(f"{target} exists; name another file, or replace it with --force")
    with _staged(target) as staging:
        write_pages(own, staging)
        os.chmod(staging, own.stat().st_mode & 0o777)
        try:
            copied = checked(staging)
        except CannotCopy as error:
            raise CannotCopy(f"the database {database} {error}; no copy was kept") from None
        place(staging, target)
    return copied


def restore(copy: Path, database: Path, known: Sequence[str], now: datetime) -> Path | None:
    """Put a copy in the place of the database, and return the new name of the present database, if there is one.
    `known` are the versions of the schema that this program can use.

    Raises:
        CannotCopy: the copy is damaged, is no database of steerserve or is of a newer version; or a service uses the
            database.
    """
    if not copy.is_file():
        raise CannotCopy(f"there is no file {copy}")
    database = Path(os.path.realpath(database))
    if copy.resolve() == database:
        raise CannotCopy(f"{copy} is the database itself")
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCopy(f"the folder {database.parent} cannot be made: {error.strerror}") from None
    with _held(database), _staged(database) as staging:
        _give_rights(staging, database)
        has_log = copy.with_name(copy.name + LOG_ENDINGS[0]).exists()
        write_pages(copy, staging, is_at_rest=not has_log)
        try:
            schema = checked(staging).schema
        except CannotCopy as error:
            raise CannotCopy(f"{copy} {error}; nothing was changed") from None
        if schema not in known:
            raise CannotCopy(
                f"a newer steerserve wrote {copy} (its schema is {schema[:20]!r}, this version knows up to "
                f"{known[0]!r}); nothing was changed"
            )
        kept = _set_aside(database, now)
        place(staging, database)
    return kept


def write_pages(source: Path, target: Path, *, is_at_rest: bool = False) -> None:
    """Copy all pages of a database as they are at one moment. The target needs no further file beside it. A source that
    `is_at_rest` is opened by no other program, and may be in a folder that cannot be written.

    Raises:
        CannotCopy: the source cannot be read, or the target cannot be written.
    """
    options = "mode=ro&immutable=1" if is_at_rest else "mode=rw"
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(source))}?{options}", uri=True)) as read,
            closing(sqlite3.connect(target, isolation_level=None)) as written,
        ):
            read.backup(written)
            written.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or str(error) == _FULL_DISK:
            raise CannotCopy(f"the disk of {target.parent} is full") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise CannotCopy(f"{source} is damaged, or is no SQLite database ({error})") from error
        raise CannotCopy(f"{source} cannot be copied to {target.parent}: {error}") from error


def checked(copy: Path) -> Copy:
    """Check every page and every index of a copy, and read what it has.

    Raises:
        CannotCopy: the copy is damaged, or is no database of steerserve. The message begins with a verb.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(copy))}?mode=ro", uri=True)) as opened:
            (report,) = opened.execute("PRAGMA integrity_check(1)").fetchone()
            if report != "ok":
                raise CannotCopy(f"is damaged ({str(report)[:100]})")
            tables = {name for (name,) in opened.execute("SELECT name FROM sqlite_master")}
            if not {"alembic_version", "models"} <= tables:
                raise CannotCopy("is no database of steerserve")
            (schema,) = opened.execute("SELECT version_num FROM alembic_version").fetchone()
            named = [question for table, question in _PLACES.items() if table in tables]
            rows = [row for question in named for row in opened.execute(question)]
            places = {place for (place,) in rows if place}
    except sqlite3.Error as error:
        raise CannotCopy(f"is damaged ({error})") from error
    return Copy(str(schema), copy.stat().st_size, tuple(sorted(places)))


def place(staging: Path, target: Path) -> None:
    """Rename a written file, once it is on the disk."""
    for opened, is_folder in ((staging, False), (target.parent, True)):
        descriptor = os.open(opened, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not is_folder:
            staging.replace(target)


# ------------------------------------------------------------- inside


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A new empty file beside `target`, which only its owner may read. It is removed at the end of the block, unless it
    was renamed.

    Raises:
        CannotCopy: the folder cannot be written, or its disk is full.
    """
    try:
        descriptor, name = tempfile.mkstemp(PART_ENDING, f"{target.name}.", target.parent)
    except OSError as error:
        raise CannotCopy(f"cannot write into {target.parent}: {error.strerror}") from None
    os.close(descriptor)
    staging = Path(name)
    try:
        yield staging
    except OSError as error:
        raise CannotCopy(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        for ending in ("", *LOG_ENDINGS, "-journal"):
            staging.with_name(staging.name + ending).unlink(missing_ok=True)


def _give_rights(file: Path, like: Path) -> None:
    """Give a new file the rights of another one, or the owner of its folder where that does not exist: the command may
    run as root, and the service as somebody else."""
    with suppress(PermissionError):
        if like.exists():
            of = like.stat()
            os.chmod(file, of.st_mode & 0o777)
        else:
            of = file.parent.stat()
        os.chown(file, of.st_uid, of.st_gid)


def _set_aside(database: Path, now: datetime) -> Path | None:
    """Rename the present database and its log, which belongs to it by its name. They are not opened, because SQLite
    removes the log of a damaged file."""
    kept = database.with_name(f"{database.name}.replaced-{now:%Y%m%dT%H%M%SZ}")
    # a restore that was ended between the names of both has left a log alone
    for ending in ("", *LOG_ENDINGS, "-journal"):
        with suppress(FileNotFoundError):
            database.with_name(database.name + ending).rename(kept.with_name(kept.name + ending))
    return kept if kept.exists() else None


@contextmanager
def _held(database: Path) -> Iterator[None]:
    """Keep every service away from the database.

    Raises:
        CannotCopy: a service uses the database.
    """
    in_use = CannotCopy(f"a service uses the database {database}; stop it first")
    hold = FileHold(database)
    descriptor: int | None = None
    try:
        if not hold.lock():
            raise in_use
        _give_rights(database.with_name(f"{database.name}.lock"), database)
        if database.exists():
            descriptor = os.open(database, os.O_RDONLY)
            if not lock(descriptor):
                raise in_use
        yield
    except OSError as error:
        raise CannotCopy(f"cannot use the database {database}: {error.strerror}") from error
    finally:
        if descriptor is not None:
            os.close(descriptor)
        hold.unlock()
