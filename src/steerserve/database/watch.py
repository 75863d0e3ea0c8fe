"""Keeps the present fault of the database: refuses what the fault stops, has the database checked again, and writes the
beginning and the end of each fault to the log, one line each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from steerserve.database.faults import FULL, SILENT, DatabaseFault, fault_of, text_of
from steerserve.logs import background

log = structlog.get_logger(__name__)

CHECK_SECONDS = 1.0
"""Seconds for which the result of a check is used again."""
CHECK_PATIENCE = 2.0
"""Seconds after which a database that does not answer counts as unusable."""


class Watch:
    """The fault of one database.

    Args:
        examine: checks the database and returns its fault; it raises what the drivers raise.
        examine_place: returns the fault of the file at the path of the database, if any: a replaced file, for instance.
        clock: gives seconds that never go back.
        password: a text that no line of the log may have.
    """

    def __init__(
        self,
        examine: Callable[[], Awaitable[DatabaseFault | None]],
        examine_place: Callable[[], Awaitable[DatabaseFault | None]],
        clock: Callable[[], float],
        password: str | None,
    ) -> None:
        self._examine = examine
        self._examine_place = examine_place
        self._clock = clock
        self._password = password
        self._fault: DatabaseFault | None = None
        self._since = 0.0
        self._logged: set[str] = set()
        self._checked: float | None = None
        self._checking = asyncio.Lock()
        self._running: asyncio.Task[DatabaseFault | None] | None = None
        self._is_closed = False

    @property
    def has_fault(self) -> bool:
        """Whether the last access or check found a fault."""
        return self._fault is not None

    @property
    def fault_of_writes(self) -> DatabaseFault | None:
        """The fault that the last access or check found, when it stops writes and lets reads pass."""
        return None if self._fault is None or self._fault.stops_reads else self._fault

    async def fault(self) -> DatabaseFault | None:
        """The fault of the database; None while the database can be used. The database is checked at most once in
        CHECK_SECONDS, and a fault that only a restart ends is not checked again."""
        async with self._checking:
            now = self._clock()
            is_due = self._checked is None or now - self._checked >= CHECK_SECONDS
            is_final = self._is_closed or (self._fault is not None and self._fault.needs_restart)
            if is_due and not is_final:
                fault = await self._examined()
                if fault is None:
                    self._end()
                else:
                    self.note(fault)
                self._checked = self._clock()
            return self._fault

    async def admit(self, *, writes: bool, frees: bool = False) -> None:
        """Let an access pass, or refuse it because of the present fault. The fault is checked again first. A full disk
        does not stop a write that frees space.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        if self._stopping(writes, frees) is not None:
            await self.fault()
            self.refuse(writes=writes, frees=frees)

    def refuse(self, *, writes: bool, frees: bool = False) -> None:
        """Raises:
        Refusal: DATABASE_UNAVAILABLE when the present fault stops the access.
        """
        fault = self._stopping(writes, frees)
        if fault is not None:
            raise fault.refusal()

    def note(self, fault: DatabaseFault) -> None:
        """Take note of a fault. The database is checked again in CHECK_SECONDS."""
        if self._fault is None:
            self._since = self._clock()
        elif self._fault.needs_restart:
            return
        self._fault, self._checked = fault, self._clock()
        if fault.reason not in self._logged:
            self._logged.add(fault.reason)
            log.error("database_fault", reason=fault.sentence, driver=fault.driver_text)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """A fault of the database inside the block is noted and becomes a refusal. Other exceptions pass.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        try:
            yield
        except Exception as error:
            fault = await self._fault_of(error)
            if fault is None:
                raise
            self.note(fault)
            raise fault.refusal() from error

    async def close(self) -> None:
        """Begin no more checks, and wait for the end of the check under way."""
        self._is_closed = True
        running = self._running
        if running is not None:
            try:
                await asyncio.wait({running})
            finally:
                running.cancel()

    # ------------------------------------------------------------- inside

    def _stopping(self, writes: bool, frees: bool) -> DatabaseFault | None:
        """The present fault, if it stops such an access."""
        fault = self._fault
        if fault is None or (frees and fault == FULL):
            return None
        return fault if writes or fault.stops_reads else None

    def _end(self) -> None:
        if self._fault is not None:
            seconds = round(self._clock() - self._since, 1)
            log.info("database_fault_over", reason=self._fault.reason, seconds=seconds)
        self._fault = None
        self._logged.clear()

    async def _examined(self) -> DatabaseFault | None:
        """The result of a check. A check that does not end is not waited for, and no second one is begun beside it."""
        if self._running is None:
            self._running = background.start(self._safely())
        done, _ = await asyncio.wait({self._running}, timeout=CHECK_PATIENCE)
        if not done:
            return SILENT
        result, self._running = self._running.result(), None
        return result

    async def _safely(self) -> DatabaseFault | None:
        try:
            return await self._examine()
        except Exception as error:
            # whatever the driver raises, the database cannot be used
            return await self._fault_of(error) or DatabaseFault(
                f"a check failed with {type(error).__name__}"
            )

    async def _fault_of(self, error: Exception) -> DatabaseFault | None:
        """The fault behind an exception. When another program replaced the file meanwhile, the driver knows only what
        it then could not read, so the file is asked first."""
        fault = fault_of(error)
        if fault is not None:
            fault = await self._examine_place() or fault
        return fault and replace(fault, driver_text=text_of(error, self._password))
