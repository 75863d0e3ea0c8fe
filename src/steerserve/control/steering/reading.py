"""Reads documents and large bodies of clients beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class DocumentReader:
    """Owner of one thread in which documents of clients are parsed and checked. Imports have one reader, and requests
    another, so that no request waits for an import.

    A document may take a second. In one thread, documents take turns: however many arrive at once, the event loop
    shares the interpreter with one of them, and no other work of the service waits for a free thread.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "documents")

    async def read(
        self,
        work: Callable[Arguments, Result],
        *args: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """The result of `work`. It is not begun if the caller is cancelled before its turn."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*args, **named))

    def close(self) -> None:
        """Begin no more work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
