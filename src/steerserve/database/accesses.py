"""The accesses to the database that are under way: admits them while the database is open, brings what they began to
its end when their tasks are cancelled, and waits for their end before the database closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from steerserve.database.faults import CLOSED

Answer = TypeVar("Answer")


class Accesses:
    """The accesses between one opening of the database and its closing.

    Attributes:
        is_open: whether new accesses are admitted.
        connections: how many connections are being made, are used, or are being given back.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.connections = 0
        self._under_way: set[asyncio.Future[Any]] = set()

    async def ended(self) -> None:
        """Wait for the end of the accesses under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """The block is an access to the database.

        Raises:
            Refusal: DATABASE_UNAVAILABLE while the database is not open.
        """
        if not self.is_open:
            raise CLOSED.refusal()
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(end)
        try:
            yield
        finally:
            self._under_way.discard(end)
            end.set_result(None)

    @asynccontextmanager
    async def connection(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """A connection for the block. A connection that is still being made when the caller is cancelled is closed as
        soon as it is made; the caller does not wait for that."""
        connection = engine.connect()
        self.connections += 1
        connecting = self._begin(connection.start())
        try:
            await asyncio.shield(connecting)
            yield connection
        finally:
            giving_back = self._begin(self._give_back(connection, connecting))
            if connecting.done():
                await asyncio.shield(giving_back)

    @asynccontextmanager
    async def transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """A connection for one transaction, which is committed when the block ends without an exception."""
        async with self.connection(engine) as connection, connection.begin():
            yield connection

    async def finish(self, work: Coroutine[object, object, Answer]) -> Answer:
        """The result of `work`, which runs to its end even if the caller is cancelled."""
        return await asyncio.shield(self._begin(work))

    # ------------------------------------------------------------- inside

    def _begin(self, work: Coroutine[object, object, Answer]) -> asyncio.Task[Answer]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _give_back(
        self, connection: AsyncConnection, connecting: asyncio.Task[object]
    ) -> None:
        try:
            await asyncio.wait({connecting})
            if connecting.cancelled() or connecting.exception() is not None:
                return
            if not self.is_open:
                # the pool would keep the connection open, and nobody may close the pool any more
                await connection.invalidate()
            await connection.close()
        finally:
            self.connections -= 1
