"""Items for one reader. It takes about a third of the time of `asyncio.Queue`, and every token passes it twice."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Keeps items in their order until the one task that reads takes them. It has no bound."""

    __slots__ = ("_items", "_reader")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def next_item(self) -> Item:
        """The next item. Waits until there is one. No item is lost when the wait is cancelled."""
        items = self._items
        while not items:
            assert self._reader is None, "a mailbox has one reader"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return items.popleft()
