"""The faults of a database: which exceptions of the drivers of SQLite and PostgreSQL are faults, and what people read
about them. No other file knows the codes of the drivers.
"""

from __future__ import annotations

import errno
import sqlite3
from dataclasses import dataclass, field
from urllib.parse import quote

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionInTime

from steerserve.errors import Refusal


@dataclass(frozen=True, slots=True)
class DatabaseFault:
    """Why the database cannot be used now.

    Attributes:
        reason: the words for people; they name no file, no server and no user.
        stops_reads: whether records cannot be read either. They can be read while another program has locked the file,
            for instance.
        needs_restart: whether the fault stays until the service is started again, because the service cannot know which
            records the database has by now.
        driver_text: the words of the driver, for the log.
    """

    reason: str
    stops_reads: bool = True
    needs_restart: bool = False
    driver_text: str | None = field(default=None, compare=False)

    @property
    def sentence(self) -> str:
        return f"{self.reason}; start the service again" if self.needs_restart else self.reason

    def refusal(self) -> Refusal:
        return Refusal(
            "DATABASE_UNAVAILABLE",
            f"the database cannot be used: {self.sentence}",
            reason=self.reason,
            needs_restart=self.needs_restart,
        )


LOCKED = DatabaseFault("another program has locked it", stops_reads=False)
READ_ONLY = DatabaseFault("it is read-only", stops_reads=False)
FULL = DatabaseFault("its disk is full", stops_reads=False)
DAMAGED = DatabaseFault("its file is damaged", stops_reads=False, needs_restart=True)
NOT_A_DATABASE = DatabaseFault("its file is not a database", needs_restart=True)
OTHER_TABLES = DatabaseFault("it has other tables than this version made", needs_restart=True)
DISK = DatabaseFault("its disk reports an error")
CLOSED = DatabaseFault("it is closed, because the service is starting or stopping")
CLOSED_FILE = DatabaseFault("its file cannot be opened")
SILENT = DatabaseFault("it does not answer in time")
UNREACHABLE = DatabaseFault("it cannot be reached")
DENIED = DatabaseFault("its server does not admit this service")
OVERLOADED = DatabaseFault("its server has no room for another connection")
SERVER = DatabaseFault("its server reports an error inside itself")

PASSING = frozenset({LOCKED, FULL, DISK, SILENT, UNREACHABLE, OVERLOADED, SERVER})
"""Faults after which a start may succeed later, with the same settings."""

_SQLITE = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_PROTOCOL: LOCKED,
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: READ_ONLY,
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: NOT_A_DATABASE,
    sqlite3.SQLITE_IOERR: DISK,
    sqlite3.SQLITE_CANTOPEN: CLOSED_FILE,
}
"""Primary result code of SQLite (https://www.sqlite.org/rescode.html) -> the fault."""

_POSTGRES = {
    "08": UNREACHABLE,
    "57": UNREACHABLE,
    "57014": SILENT,
    "55P03": LOCKED,
    "40": LOCKED,
    "25006": READ_ONLY,
    "53": OVERLOADED,
    "53100": FULL,
    "28": DENIED,
    "3D": DENIED,
    "42501": DENIED,
    "42P01": OTHER_TABLES,
    "42703": OTHER_TABLES,
    "3F": OTHER_TABLES,
    "58": SERVER,
    "XX": SERVER,
}
"""SQLSTATE of PostgreSQL, or its class of two characters (appendix A of its manual) -> the fault."""


_SYSTEM = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: READ_ONLY,
    errno.EPERM: READ_ONLY,
    errno.EIO: DISK,
    errno.ESTALE: DISK,
}
"""Number of an error of the operating system -> the fault."""


def fault_of(error: BaseException) -> DatabaseFault | None:
    """The fault that an exception of a driver stands for. None for any other exception: a broken constraint, a bug."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause)
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):
        return _POSTGRES.get(state) or _POSTGRES.get(state[:2])
    if isinstance(error, TimeoutError | NoConnectionInTime):
        return SILENT
    if isinstance(error, OSError) and error.errno in _SYSTEM:
        return _SYSTEM[error.errno]
    is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
    # the PostgreSQL driver may not be installed, so its exceptions are recognised by the name of their module
    if is_lost or isinstance(error, OSError) or type(error).__module__.startswith("asyncpg"):
        return UNREACHABLE
    return None


def text_of(error: BaseException, password: str | None = None) -> str:
    """The first line of the words of a driver, without the password."""
    cause: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        cause = error.orig
    words = str(cause).strip().partition("\n")[0][:300]
    for secret in {password, password and quote(password, safe="")} - {None, ""}:
        words = words.replace(str(secret), "***")
    # SQLAlchemy puts the class of the PostgreSQL driver's exception before the message
    return words.rpartition(">: ")[2] or type(cause).__name__


def _of_sqlite(error: sqlite3.Error) -> DatabaseFault | None:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    if code == sqlite3.SQLITE_ERROR and str(error).startswith(("no such table", "no such column")):
        return OTHER_TABLES
    return _SQLITE.get(code & 0xFF)
