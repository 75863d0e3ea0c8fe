"""An `AsyncClient` behind the interface of `Client`, so that the tests of one are the tests of the other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator
from typing import Any

from steerserve.client import AsyncStream


class Awaiting:
    """An object of an asynchronous client. Its methods await their answers."""

    def __init__(self, of: Any, runner: asyncio.Runner) -> None:
        self._of = of
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return self._shown(getattr(self._of, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._shown(self._of(*args, **kwargs))

    def _shown(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            value = self._runner.run(_answer_of(value))
        if isinstance(value, AsyncStream):
            return AwaitedStream(value, self._runner)
        is_data = not callable(value) and not type(value).__module__.startswith(
            "steerserve.client.nouns"
        )
        return value if is_data else Awaiting(value, self._runner)


class AwaitedStream(Awaiting):
    """A stream whose pieces are awaited."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            piece: str = self._runner.run(_answer_of(anext(self._of)))
        except StopAsyncIteration:
            raise StopIteration from None
        return piece

    def __enter__(self) -> AwaitedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _answer_of(awaited: Awaitable[Any]) -> Any:
    return await awaited
