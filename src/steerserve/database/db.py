"""The database: opens it, gives its connections to the owners of records, and turns its faults into refusals or into
sentences for people.

The steps of opening are in `schema.py` (version and migrations), `holding.py` (one service at a time) and
`sqlite_file.py`. `accesses.py` has the accesses under way. `watch.py` keeps the present fault, `faults.py` knows the
exceptions of the drivers.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import URL, Connection, Table, delete, make_url, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database import engines, faults, schema, sqlite_file
from steerserve.database.accesses import Accesses
from steerserve.database.faults import DatabaseFault, text_of
from steerserve.database.holding import AdvisoryHold, FileHold, Hold, in_use
from steerserve.database.paths import DataFolder, set_data_folder
from steerserve.database.sqlite_file import SqliteFile
from steerserve.database.tables import circuit_claims, models, saes
from steerserve.database.watch import Watch
from steerserve.errors import CannotStart
from steerserve.logs import background
from steerserve.rules.models.status import AFTER_RESTART, SAE_AFTER_RESTART
from steerserve.rules.residency.restart import EndedByRestart

log = structlog.get_logger(__name__)
_INTERRUPTED = "interrupted by a restart of the service"
_UNLOADED = (
    "the service was restarted while this model was loaded; the model is not loaded any more, and its lock and its "
    "lease have ended"
)
_DETACHED = (
    "the service was restarted while this SAE was attached; the SAE is not attached any more, and its steering values "
    "are gone"
)
_REASONS = {"loaded": _UNLOADED, "attached": _DETACHED, "downloading": _INTERRUPTED}
"""Status before a restart -> what the record says after it."""
BUSY_SECONDS = 2.0
"""Seconds that a transaction waits until another program has unlocked a SQLite file."""
ANSWER_SECONDS = 5.0
"""Seconds that a statement waits for the answer of a PostgreSQL server."""
EXAMINE_SECONDS = 1.0
"""Seconds that a statement of a check waits."""
TURN_SECONDS = 10.0
"""Seconds that a write waits until the writes before it have ended."""
SETTLE_SECONDS = 0.5
"""Seconds after a write until the changes are brought from SQLite's log into the file. The writes of these seconds need
it only once."""
CLOSE_SECONDS = 5.0
"""Seconds that the closing waits for the end of the accesses and the check that are under way."""
_TAKEN = DatabaseFault("another steerserve has taken it", needs_restart=True)
_NO_VERSION = DatabaseFault("its schema has no version")
_OTHER_VERSION = DatabaseFault(
    "its schema has another version than at the start", needs_restart=True
)


class Database:
    """The one database. Every access of an owner goes through `read` or `write`.

    Args:
        url: names the asynchronous driver too; the setting DATABASE_URL has this form once it is checked.
        clock: gives seconds that never go back.
        home: the folder of all data; paths inside it are stored relative to it.

    Raises:
        CannotStart: the driver of the database is not installed.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], float] = time.monotonic,
        home: Path | None = None,
    ) -> None:
        self._url = make_url(url)
        self._home = None if home is None else DataFolder(home)
        self._file: SqliteFile | None = None
        if self._url.get_backend_name() == "sqlite":
            path = Path(self._url.database or "").absolute()
            self._file = SqliteFile(path, int(1000 * BUSY_SECONDS))
        seconds = BUSY_SECONDS if self._file else ANSWER_SECONDS
        self._engine = engines.make(self._url, self._file, is_pooled=True, seconds=seconds)
        set_data_folder(self._engine, self._home)
        self._fresh = engines.make(self._url, self._file, is_pooled=False, seconds=EXAMINE_SECONDS)
        self._writes = self._engine.execution_options(**engines.WRITES)
        self._hold: Hold = FileHold(self._file.path) if self._file else AdvisoryHold(self._fresh)
        self._clock = clock
        self._watch = self._new_watch()
        self._accesses = Accesses()
        self._version: str | None = None
        self.foreign_writes = 0
        """How often an owner has changed rows of another one, which then may keep none of them in memory."""
        self.ended: EndedByRestart | None = None
        """None while the database is not open, and where the last run served nothing."""
        self._writing = asyncio.Lock()
        self._settling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Bring the schema up to date, and correct the statuses of work that the end of the last run interrupted. If
        the database is open already, nothing happens.

        Raises:
            CannotStart: the database cannot be used; one sentence names the database, the reason and the remedy.
        """
        if self._accesses.is_open:
            return
        try:
            await self._begin()
        except Exception as error:
            await self.close()
            # a bug is shown with its traceback
            if faults.fault_of(error) is None and not isinstance(
                error, CannotStart | SQLAlchemyError | sqlite3.Error
            ):
                raise
            raise cannot_use(self._url, error) from error
        self._accesses.is_open = True

    async def close(self) -> None:
        """Refuse new accesses, wait at most CLOSE_SECONDS for those under way, and close every connection. `open` opens
        the database again."""
        self._accesses.is_open = False
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._watch.close()
                await self._accesses.ended()
        except TimeoutError:
            log.warning("database_closed_during_an_access", seconds=CLOSE_SECONDS)
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})
        await self._engine.dispose()
        await self._fresh.dispose()
        if self._file is not None:
            await asyncio.to_thread(self._file.close)
        await self._hold.release()

    async def make_missing(self, tables: Sequence[Table]) -> None:
        """Make those of these tables that are missing.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        async with self.write() as connection:
            for table in tables:
                await connection.run_sync(partial(table.create, checkfirst=True))

    @property
    def folder(self) -> Path | None:
        """The folder of a SQLite file; None for a database on a server."""
        return self._file.path.parent if self._file is not None else None

    @property
    def is_usable(self) -> bool:
        """Whether the last access or check found no fault. The database is not asked."""
        return not self._watch.has_fault

    async def fault(self) -> DatabaseFault | None:
        """Why the database cannot be used; None if it can. The check runs at most once in CHECK_SECONDS of `watch.py`:
        over a new connection it reads the version of the schema and writes one row."""
        if not self._accesses.is_open:
            return faults.CLOSED
        return await self._watch.fault()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reading.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        await self._watch.admit(writes=False)
        with self._accesses.admitted():
            self._pass(await self._fault_of_place())
            async with (
                self._watch.watching(),
                self._accesses.connection(self._engine) as connection,
            ):
                yield connection

    @asynccontextmanager
    async def write(self, *, frees: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection for one transaction, of which either all statements or none take effect. Writes take turns. When
        the block has ended without a refusal, its changes are in the database that people find. A transaction that only
        deletes `frees` space: on a full disk it takes the space of the reserve.

        Raises:
            Refusal: DATABASE_UNAVAILABLE. Whether the changes took effect is then not known.
        """
        await self._watch.admit(writes=True, frees=frees)
        with self._accesses.admitted():
            async with self._turn():
                self._watch.refuse(writes=True, frees=frees)
                self._pass(await self._fault_of_place())
                if frees and self._file is not None:
                    await asyncio.to_thread(self._file.spend_reserve)
                async with self._watch.watching():
                    self._pass(await self._fault_of_hold())
                    async with self._accesses.transaction(self._writes) as connection:
                        yield connection
                self._pass(await self._fault_of_place())
                self._settle_soon()

    # ------------------------------------------------------------- opening

    def _new_watch(self) -> Watch:
        return Watch(self._examine, self._fault_of_place, self._clock, self._url.password)

    async def _begin(self) -> None:
        file, self._watch, self._accesses = self._file, self._new_watch(), Accesses()
        if file is not None:
            file.find()
            file.path.parent.mkdir(parents=True, exist_ok=True)
            self._hold = FileHold(file.path)
        if not await self._hold.try_acquire(waits=True):
            raise CannotStart(in_use(self._hold.holder()), may_pass=True)
        if file is not None:
            await asyncio.to_thread(file.open, may_make=True)
        # an upgrade may take longer than the statements of a running service
        opening = engines.make(
            self._url, file, is_pooled=False, seconds=BUSY_SECONDS if file else None
        )
        opening = opening.execution_options(**engines.WRITES)
        async with self._accesses.transaction(opening) as connection:
            self._version = await connection.run_sync(self._upgrade)
            self.ended = await _ended(connection)
            for table, moves in ((models, AFTER_RESTART), (saes, SAE_AFTER_RESTART)):
                for before, after in moves.items():
                    reason = {"error_message": _REASONS[before]} if before in _REASONS else {}
                    await connection.execute(
                        update(table).where(table.c.status == before).values(status=after, **reason)
                    )
            # no circuit serves after a restart
            await connection.execute(delete(circuit_claims))
        if file is not None:
            await asyncio.to_thread(file.settle)
            await asyncio.to_thread(file.keep_reserve)
        if self.ended is not None:
            gone = "the live steering values, the lock and the lease of the models"
            log.warning("ended_by_restart", **asdict(self.ended), also=gone)

    def _upgrade(self, connection: Connection) -> str:
        file = self._file.path if self._file else None
        return schema.upgrade(connection, file, datetime.now(UTC), self._home)

    # ------------------------------------------------------------- while the service runs

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """The turn of one write.

        Raises:
            Refusal: DATABASE_UNAVAILABLE when the writes before it take too long.
        """
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._writing.acquire()
        except TimeoutError:
            raise faults.SILENT.refusal() from None
        try:
            yield
        finally:
            self._writing.release()

    def _pass(self, fault: DatabaseFault | None) -> None:
        """Let an access pass where there is no fault.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        if fault is not None:
            self._watch.note(fault)
            raise fault.refusal()

    async def _fault_of_place(self) -> DatabaseFault | None:
        """Whether the file at the path of the database is not the file that was opened."""
        return await asyncio.to_thread(self._file.fault) if self._file else None

    async def _fault_of_hold(self) -> DatabaseFault | None:
        """Whether another service has taken the database."""
        is_held = await self._accesses.finish(self._hold.try_acquire())
        return None if is_held else replace(_TAKEN, driver_text=self._hold.holder())

    def _settle_soon(self) -> None:
        # once the closing began, it brings the changes into the file itself
        if self._file is None or not self._accesses.is_open:
            return
        if self._settling is None or self._settling.done():
            self._settling = background.start(self._settle(self._file))

    async def _settle(self, file: SqliteFile) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        async with self._writing:
            try:
                fault = await asyncio.to_thread(file.settle)
                await asyncio.to_thread(file.keep_reserve)
            except sqlite3.Error as error:
                # the changes are safe in the log of SQLite, and the next write tries again
                fault = faults.fault_of(error)
        if fault is not None:
            self._watch.note(fault)

    async def _examine(self) -> DatabaseFault | None:
        """Check the database over a connection that was not open before."""
        fault = await self._examine_file(self._file) if self._file is not None else None
        fault = fault or await self._fault_of_hold()
        if fault is not None:
            return fault
        # while a write of this service runs, the check does not wait for it
        writes = not self._writing.locked()
        async with self._writing if writes else nullcontext():
            version = await self._checked_version(writes=writes)
        if writes:
            self._settle_soon()
        if version is None:
            return _NO_VERSION
        if version != self._version:
            return _OTHER_VERSION
        # a check that wrote nothing does not show that a fault of writes is over
        return None if writes else self._watch.fault_of_writes

    async def _examine_file(self, file: SqliteFile) -> DatabaseFault | None:
        fault = await asyncio.to_thread(file.fault)
        if fault != sqlite_file.LOG_GONE or self._accesses.connections or self._writing.locked():
            return fault
        async with self._writing:
            await self._engine.dispose()
            is_rescued = await asyncio.to_thread(file.rescue)
        return None if is_rescued else fault

    async def _checked_version(self, *, writes: bool) -> str | None:
        engine = self._fresh.execution_options(**engines.WRITES) if writes else self._fresh
        async with self._accesses.transaction(engine) as connection:
            version: str | None = await connection.scalar(
                text("SELECT version_num FROM alembic_version")
            )
            if writes:
                # one row is written with the value that it has, to check that the database can be written
                await connection.execute(
                    text("UPDATE alembic_version SET version_num = :version"), {"version": version}
                )
        return version


async def _ended(connection: AsyncConnection) -> EndedByRestart | None:
    """What the tables say that the last run served; None for nothing."""
    asked = (
        select(models.c.name).where(models.c.status == "loaded"),
        select(saes.c.id).where(saes.c.status == "attached").order_by(saes.c.id),
        select(circuit_claims.c.circuit_id).distinct().order_by(circuit_claims.c.circuit_id),
    )
    found = [tuple((await connection.execute(one)).scalars().all()) for one in asked]
    return EndedByRestart(*found) if any(found) else None


def name_of(url: URL) -> str:
    """The name of a database for messages; it never contains the password."""
    if url.get_backend_name() == "sqlite":
        return str(Path(url.database or "").absolute())
    port = f":{url.port}" if url.port else ""
    return f"{url.database!r} of {url.host}{port}"


def cannot_use(url: URL, error: Exception) -> CannotStart:
    """Why a database cannot be used, as one sentence that names the database, the reason and the remedy."""
    prefix = f"cannot use the database {name_of(url)}"
    if isinstance(error, CannotStart):
        return CannotStart(f"{prefix}: {error}", may_pass=error.may_pass)
    reason = text_of(error, url.password)
    fault = faults.fault_of(error.__cause__ or error)
    if url.get_backend_name() != "sqlite":
        out = "check DATABASE_URL and the server"
    elif fault in (faults.NOT_A_DATABASE, faults.DAMAGED):
        out = "the file is damaged; put a copy in its place, or move it away to begin with an empty one"
    elif fault == faults.LOCKED:
        out = "end the other program that has locked the file"
    elif fault == faults.FULL:
        out = "free some space on its disk; the start changed nothing"
    else:
        out = "check the file and its folder, or name another database in DATABASE_URL"
    return CannotStart(f"{prefix}: {reason}; {out}", may_pass=fault in faults.PASSING)
