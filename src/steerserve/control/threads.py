"""Threads of one owner, so that its long work lets no other owner wait for a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Threads:
    """Some threads with this name."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, name)

    async def run(
        self,
        work: Callable[Arguments, Result],
        *args: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """The result of `work`. It is not begun if the caller is cancelled before its turn."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **named))

    def close(self) -> None:
        """Begin no more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)
