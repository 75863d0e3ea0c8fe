"""The file of a SQLite database: opens it, knows whether the file at its path is still the file that was opened, and
brings the changes from SQLite's log into the file.

SQLite itself does not notice that its file was deleted, replaced or overwritten: it goes on with the open file, and
opens whatever is at the path for the next connection. This module does not open the file past SQLite, because closing
it would drop SQLite's locks (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from steerserve.errors import CannotStart
from steerserve.store.faults import CLOSED_FILE, DatabaseFault

GONE = DatabaseFault("its file is gone; put the same file back, or start the service again")
REPLACED = DatabaseFault("another file has taken the place of its file", needs_restart=True)
OVERWRITTEN = DatabaseFault("another program has overwritten its file", needs_restart=True)
LOG_GONE = DatabaseFault("the log of SQLite beside its file is gone")
LOG_REPLACED = DatabaseFault(
    "another file has taken the place of the log of SQLite beside its file", needs_restart=True
)
NOT_OPEN = DatabaseFault("its file is not open", needs_restart=True)
LOG_ENDINGS = ("-wal", "-shm")
"""SQLite's log of changes and the index of the log are files beside the database, with these endings."""

_OPEN_FILES = Path("/dev/fd")
"""The folder whose entries are the numbers of the files that the reading process has open."""

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

    One connection, the keeper, is open as long as the service runs. SQLite keeps its log as long as any connection is
    open, and an inode is not given to another file as long as a process has the file open. So the places stay true.
    Only the keeper brings changes from the log into the file: the file changes at no other time, and a change of the
    file at another time is foreign.
    """

    def __init__(self, path: Path, busy_ms: int) -> None:
        self.path = path
        self._busy_ms = busy_ms
        self._keeper: sqlite3.Connection | None = None
        self._opened: _Opened | None = None
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """The file in the form in which SQLite takes options behind it, such as `?mode=rw`."""
        return f"file:{quote(str(self.path))}"

    def open(self, *, may_make: bool) -> None:
        """Open the file. If there is none and `may_make` is true, make it.

        Raises:
            sqlite3.Error: the file cannot be used.
            CannotStart: the file is damaged.
        """
        with self._lock:
            self._open(may_make=may_make)

    def close(self) -> None:
        """Close the file, which brings the last changes from SQLite's log into the file. If another program has
        overwritten the file, the log is emptied instead, because its changes would damage the new content. No other
        connection of this service may be open."""
        with self._lock:
            if self._fault() == OVERWRITTEN:
                with suppress(OSError):
                    os.truncate(self._log_paths()[0], 0)
            keeper, self._keeper, self._opened = self._keeper, None, None
            if keeper is not None:
                keeper.close()

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
            keeper.execute(f"PRAGMA busy_timeout={self._busy_ms}")
            keeper.execute("PRAGMA journal_mode=WAL")
            keeper.execute("PRAGMA synchronous=FULL")
            _check_whole(keeper)
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
        content = _open_content(self._opened.place)
        if content is not None:
            self._opened = replace(self._opened, content=content)

    def _log_paths(self) -> list[Path]:
        return [self.path.with_name(self.path.name + ending) for ending in LOG_ENDINGS]

    def _fault(self) -> DatabaseFault | None:
        if self._opened is None:
            return NOT_OPEN
        try:
            main = self.path.stat()
        except FileNotFoundError:
            return GONE
        except OSError:
            return CLOSED_FILE
        if _place(main) != self._opened.place:
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


def _check_whole(connection: sqlite3.Connection) -> None:
    """Raises:
    CannotStart: the structure of the file is damaged.
    """
    (report,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if report != "ok":
        raise CannotStart(
            f"its file is damaged ({str(report)[:100]}); put a copy in its place, or move it away to begin with an "
            "empty one"
        )


def _place(status: os.stat_result) -> Place:
    return status.st_dev, status.st_ino


def _content(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _open_content(place: Place) -> tuple[int, int] | None:
    """The time of the last change and the size of the file at `place`, which this process has open."""
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError):
            status = os.fstat(int(name))
            if _place(status) == place:
                return _content(status)
    return None


def _place_at(path: Path) -> Place | None:
    try:
        return _place(path.stat())
    except OSError:
        return None
