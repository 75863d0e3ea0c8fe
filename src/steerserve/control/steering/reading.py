"""Reads documents and large bodies of clients beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from steerserve.control.threads import Threads

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class DocumentReader:
    """Owner of one thread in which documents of clients are parsed and checked. Imports have one reader, and requests
    another, so that no request waits for an import.

    A document may take a second. In one thread, documents take turns: however many arrive at once, the event loop
    shares the interpreter with one of them, and no other work of the service waits for a free thread.
    """

    def __init__(self) -> None:
        self._thread = Threads("documents", 1)

    async def read(
        self,
        work: Callable[Arguments, Result],
        *args: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """The result of `work`. It is not begun if the caller is cancelled before its turn."""
        return await self._thread.run(work, *args, **named)

    def close(self) -> None:
        """Begin no more work."""
        self._thread.close()
