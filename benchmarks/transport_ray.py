"""The way through Ray for `benchmarks.transport`: commands are calls of an actor, events are its streamed answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ray

from benchmarks.transport import Ends, start


class EchoActor:
    """Holds the program that stands in for an engine."""

    async def open(self) -> None:
        self.process, self.reader, self.writer = await start()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def events(self) -> AsyncIterator[bytes]:
        while chunk := await self.reader.read(1 << 16):
            yield chunk

    async def close(self) -> None:
        self.writer.close()
        await self.process.wait()


class CallWriter:
    """Sends bytes as calls of the actor, in order. Satisfies `FrameWriter`."""

    def __init__(self, actor: ray.actor.ActorHandle) -> None:
        self._actor = actor
        self._last: ray.ObjectRef | None = None

    def write(self, data: bytes) -> None:
        self._last = self._actor.send.remote(data)

    async def drain(self) -> None:
        """Nothing to do: the calls of the measurement are few."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to do: the actor is closed by itself."""


@asynccontextmanager
async def over_ray() -> AsyncIterator[Ends]:
    if not ray.is_initialized():
        # a cluster of its own, also where one runs already
        await asyncio.to_thread(ray.init, "local", num_cpus=2, log_to_driver=False)
    actor = ray.remote(num_cpus=0, max_concurrency=8)(EchoActor).remote()
    await actor.open.remote()
    reader = asyncio.StreamReader()
    reading = asyncio.create_task(_read(actor, reader))
    try:
        yield reader, CallWriter(actor)
    finally:
        await actor.close.remote()
        await reading
        ray.kill(actor)


async def _read(actor: ray.actor.ActorHandle, reader: asyncio.StreamReader) -> None:
    async for answer in actor.events.options(num_returns="streaming").remote():
        reader.feed_data(await answer)
    reader.feed_eof()
