"""The file of a SQLite database: opens it, knows whether the file at its path is still the file that was opened, and
brings the changes from SQLite's log into the file.

SQLite itself does not notice that its file was deleted, replaced or overwritten: it goes on with the open file, and
opens whatever is at the path for the next connection. Connections that reach one file over two names have two logs,
which damages the file. So symbolic links are followed once, at the opening.

Closing a file past SQLite drops SQLite's locks on it (https://www.sqlite.org/howtocorrupt.html, section 2.2). So the
descriptor of this module is open as long as any connection.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sqlite3
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import structlog

from steerserve.database.faults import CLOSED_FILE, DatabaseFault
from steerserve.database.holding import IN_USE, lock
from steerserve.errors import CannotStart

GONE = DatabaseFault("its file is gone; put the same file back, or start the service again")
REPLACED = DatabaseFault(
    "another file has taken the place of its file, or a link leads to it", needs_restart=True
)
OVERWRITTEN = DatabaseFault("another program has overwritten its file", needs_restart=True)
LOG_GONE = DatabaseFault("the log of SQLite beside its file is gone")
LOG_REPLACED = DatabaseFault(
    "another file has taken the place of the log of SQLite beside its file", needs_restart=True
)
NOT_OPEN = DatabaseFault("its file is not open", needs_restart=True)
LOG_ENDINGS = ("-wal", "-shm")
"""SQLite's log of changes and the index of the log are files beside the database, with these endings."""

ASIDE_ENDING = "-of-replaced-file"
"""The log of a file that was replaced, with changes that are not in that file, has this ending too."""
RESERVE_ENDING = "-reserve"
RESERVE_BYTES = 512 * 1024
"""The size of the reserve: a file beside the database whose space is used for deletes on a full disk."""

log = structlog.get_logger(__name__)

_OUR_VERSION = re.compile(r"\d{4}(_\w+)?", re.ASCII)
"""The form of the versions of our schema, also of later ones."""

Place = tuple[int, int]
"""The device and the inode of a file."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The file as it was opened. `log` has the places of SQLite's log and its index. `content` is the time of the last
    change and the size of the file."""

    place: Place
    log: dict[Path, Place]
    content: tuple[int, int]


class SqliteFile:
    """The database file of the running service. Every method blocks, so the event loop calls them in threads.

    `name` is the configured path, and `path` the same path without symbolic links. The descriptor has a lock that keeps
    other services out, whatever name of the file they are given.

    One connection, the keeper, is open as long as the service runs. SQLite keeps its log as long as any connection is
    open, and an inode is not given to another file as long as a process has the file open. So the places stay true.
    Only the keeper brings changes from the log into the file: the file changes at no other time, and a change of the
    file at another time is foreign.
    """

    def __init__(self, name: Path, busy_ms: int) -> None:
        self.name = name
        self._busy_ms = busy_ms
        self._descriptor: int | None = None
        self._keeper: sqlite3.Connection | None = None
        self._opened: _Opened | None = None
        self._lock = threading.Lock()
        self.find()

    def find(self) -> None:
        """Follow the symbolic links of the configured path, before the file is opened."""
        self.path = _resolved(self.name)

    @property
    def uri(self) -> str:
        """The file in the form in which SQLite takes options behind it, such as `?mode=rw`."""
        return f"file:{quote(str(self.path))}"

    def open(self, *, may_make: bool) -> None:
        """Open the file. If there is none and `may_make` is true, make it.

        Raises:
            sqlite3.Error: the file cannot be used.
            CannotStart: the file is damaged, is another program's, or another service uses it.
        """
        with self._lock:
            self._open(may_make=may_make)

    def check_connection(self, opened: str) -> None:
        """Check a new connection, before its first statement, by the path of the file that SQLite has opened.

        Raises:
            sqlite3.Error: a link has led the connection elsewhere.
        """
        if opened != str(self.path):
            error = sqlite3.OperationalError("a link has taken the place of the file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error

    def close(self) -> None:
        """Close the file, which brings the last changes from SQLite's log into the file. No other connection of this
        service should be open.

        If another program has overwritten the file, the log is emptied instead, because its changes would damage the
        new content. If the file is no longer at its path, the changes go into the file wherever it is now."""
        with self._lock:
            if self._fault() == OVERWRITTEN:
                with suppress(OSError):
                    os.truncate(self._log_paths()[0], 0)
            elif self._opened is not None and _place_at(self.path) != self._opened.place:
                self._finish_moved_file(self._opened)
            keeper, self._keeper, self._opened = self._keeper, None, None
            if keeper is not None:
                keeper.close()
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def fault(self) -> DatabaseFault | None:
        """Whether the file at the path is another file than the opened one, or has foreign changes."""
        with self._lock:
            return self._fault()

    def settle(self) -> DatabaseFault | None:
        """Bring all changes from SQLite's log into the file, unless a reader still needs the log. Then a copy of the
        file alone is whole, and the loss of the log loses nothing.

        Raises:
            sqlite3.Error: the disk is full or broken. The changes stay in the log.
        """
        with self._lock:
            fault = self._fault()
            if fault is None and self._keeper is not None:
                try:
                    self._empty_log()
                finally:
                    self._take_note()
            return fault

    def keep_reserve(self) -> None:
        """Make the file of the reserve, unless it is there or there is no room for it."""
        reserve = self._reserve()
        if reserve.exists():
            return
        try:
            # written and not only named, so that the disk really sets the space aside
            reserve.write_bytes(os.urandom(RESERVE_BYTES))
        except OSError:
            with suppress(OSError):
                reserve.unlink(missing_ok=True)

    def spend_reserve(self) -> None:
        """Give the space of the reserve to the next write, if the disk has less than that left."""
        with suppress(OSError):
            if shutil.disk_usage(self.path.parent).free < RESERVE_BYTES:
                self._reserve().unlink(missing_ok=True)

    def _reserve(self) -> Path:
        return self.path.with_name(self.path.name + RESERVE_ENDING)

    def rescue(self) -> bool:
        """Bring the changes from a log that was deleted into the file, and begin a new log. Returns whether this was
        possible. No other connection of this service may be open."""
        with self._lock:
            if self._fault() != LOG_GONE:
                return False
            if self._keeper is not None:
                is_empty = self._empty_log()
                self._take_note()
                if not is_empty:
                    return False
                self._keeper.close()
                # if the file cannot be opened again now, the next call tries again
                self._keeper = None
            # the exceptions of earlier faults may still hold cursors, and SQLite keeps a closed connection, with its
            # place in the old log, until its last cursor is gone
            gc.collect()
            self._open(may_make=False)
            return True

    # ------------------------------------------------------------- inside; the caller holds the lock

    def _open(self, *, may_make: bool) -> None:
        keeper = sqlite3.connect(
            f"{self.uri}?mode={'rwc' if may_make else 'rw'}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            if self._descriptor is None:
                self._descriptor = _locked(self.path)
            keeper.execute(f"PRAGMA busy_timeout={self._busy_ms}")
            # before the first change
            check_ours(keeper)
            keeper.execute("PRAGMA journal_mode=WAL")
            keeper.execute("PRAGMA synchronous=FULL")
            check_whole(keeper)
            # the keeper brings the changes into the file at once or not at all; it never waits for a reader
            keeper.execute("PRAGMA busy_timeout=0")
            main = self.path.stat()
            log = {path: _place(path.stat()) for path in self._log_paths()}
        except BaseException:
            keeper.close()
            raise
        self._keeper, self._opened = keeper, _Opened(_place(main), log, _content(main))

    def _empty_log(self) -> bool:
        assert self._keeper is not None
        is_busy, _, _ = self._keeper.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy

    def _take_note(self) -> None:
        """Take note of the content that the keeper has just written. The file may have been moved away meanwhile, so
        its content is read from the open file and not at the path."""
        assert self._opened is not None
        assert self._descriptor is not None
        self._opened = replace(self._opened, content=_content(os.fstat(self._descriptor)))

    def _finish_moved_file(self, opened: _Opened) -> None:
        """Bring the changes into the file, which is no longer at its path: SQLite leaves them in the log then. Where a
        reader or a full disk prevents that, and another file is at the path now, the log is renamed, so that nobody
        reads it into the other file."""
        gc.collect()  # as in `rescue`
        is_empty = False
        if self._keeper is not None:
            with suppress(sqlite3.Error):
                is_empty = self._empty_log()
        if is_empty:
            return
        changes = self._log_paths()[0]
        if self.path.exists() and _place_at(changes) == opened.log[changes]:
            aside = changes.with_name(changes.name + ASIDE_ENDING)
            with suppress(OSError):
                changes.rename(aside)
                log.warning("database_log_put_aside", path=str(aside))
                return
        log.warning("database_changes_left", path=str(changes))

    def _log_paths(self) -> list[Path]:
        return [self.path.with_name(self.path.name + ending) for ending in LOG_ENDINGS]

    def _fault(self) -> DatabaseFault | None:
        if self._opened is None:
            return NOT_OPEN
        try:
            main = self.name.stat()
        except FileNotFoundError:
            return GONE
        except OSError:
            return CLOSED_FILE
        if _place(main) != self._opened.place or _resolved(self.name) != self.path:
            return REPLACED
        if _content(main) != self._opened.content:
            return OVERWRITTEN
        if self._keeper is None:
            return LOG_GONE
        places = {path: _place_at(path) for path in self._opened.log}
        if places == self._opened.log:
            return None
        is_foreign = any(p not in (None, self._opened.log[path]) for path, p in places.items())
        return LOG_REPLACED if is_foreign else LOG_GONE


def version(connection: sqlite3.Connection) -> str | None:
    """The version of the schema in a file; None where it has none."""
    named = "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"
    if connection.execute(named).fetchone() == (0,):
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def check_ours(connection: sqlite3.Connection) -> None:
    """Raises:
    CannotStart: another program made the tables in the file.
    """
    found = version(connection)
    tables = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' LIMIT 1"
    )
    table = connection.execute(tables).fetchone()
    if found is not None and not _OUR_VERSION.fullmatch(found):
        what = f"its schema is {found[:50]!r}"
    elif found is None and table is not None:
        what = f"it has the table {str(table[0])[:50]!r}"
    else:
        return
    raise CannotStart(
        f"its file is a database of another program ({what}); name another file in DATABASE_URL"
    )


def check_whole(connection: sqlite3.Connection) -> None:
    """Raises:
    CannotStart: the structure of the file is damaged.
    """
    (report,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if report != "ok":
        raise CannotStart(
            f"its file is damaged ({str(report)[:100]}); put a copy in its place, or move it away to begin with an "
            "empty one"
        )


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _locked(path: Path) -> int:
    """A descriptor of the file with the lock of this service.

    Raises:
        CannotStart: another service has the lock, or the file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CannotStart(f"its file cannot be opened ({error.strerror})") from error
    if not lock(descriptor):
        os.close(descriptor)
        raise CannotStart(IN_USE, may_pass=True)
    return descriptor


def _place(status: os.stat_result) -> Place:
    return status.st_dev, status.st_ino


def _content(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _place_at(path: Path) -> Place | None:
    try:
        return _place(path.stat())
    except OSError:
        return None
