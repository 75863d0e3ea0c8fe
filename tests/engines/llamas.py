"""GGUF models served in tests: written once, loaded on one thread, asked and collected."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.engines.gguf.client import GgufEngine, Options
from steerserve.errors import Refusal
from steerserve.files import gguf
from tests import asking
from tests import gguf as maker

Write = Callable[..., Path]
Stream = AsyncGenerator[m.Started | m.Outcome, None]
SMALL = {"slots": 4, "threads": 1, "min_context": 64, "kv_cache_mb": 64}


def writer(folder: Path) -> Write:
    """Makes model files in a folder, each once."""
    made: dict[str, Path] = {}
    numbers = itertools.count()

    def make(label: str = "F32", **fields: Any) -> Path:
        key = repr((label, sorted(fields.items())))
        if key not in made:
            made[key] = maker.write(folder / f"m{next(numbers)}.gguf", label, **fields)
        return made[key]

    return make


@asynccontextmanager
async def loaded(
    path: Path, *, split: list[float] | None = None, **options: Any
) -> AsyncIterator[tuple[GgufEngine, m.Loaded]]:
    engine = GgufEngine(Options(**{**SMALL, **options}))
    try:
        files = gguf.entry(path)
        facts = await engine.load(
            lambda _: None, path=str(files[0]), header=gguf.read_header(files), split=split
        )
        yield engine, facts
    finally:
        await engine.stop()


def ask(engine: GgufEngine, *prompts: str | list[dict[str, Any]], **fields: Any) -> Stream:
    sampling = m.Sampling(**{"temperature": 0.0, "max_tokens": 4, **fields})
    wanted = [m.Text(p) if isinstance(p, str) else m.Chat(p) for p in prompts]
    return engine.run(asking.generate(0, wanted, sampling, m.Follow()))


async def answers(stream: Stream) -> tuple[list[int], dict[int, tuple[str, str | None, int]]]:
    """The counts of the prompts; text, finish and tokens of each choice."""
    found: dict[int, tuple[str, str | None, int]] = {}
    prompts: list[int] = []
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, m.Started):
                prompts = event.prompt_tokens
            else:
                assert isinstance(event, m.Piece)
                before = found.get(event.choice, ("", None, 0))
                assert before[1] is None, "a piece after the last one"
                found[event.choice] = before[0] + event.text, event.finish, event.tokens
    return prompts, found


async def answer(stream: Stream) -> tuple[str, str | None, int]:
    return (await answers(stream))[1][0]


async def refused(stream: Stream) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await answers(stream)
    return caught.value


async def vectors(engine: GgufEngine, *texts: str) -> list[list[float]]:
    async with aclosing(
        engine.run(asking.read(0, [m.Text(text) for text in texts], m.Embed()))
    ) as events:
        found = [event async for event in events]
    assert isinstance(found[0], m.Started)
    assert [e.choice for e in found[1:] if isinstance(e, m.Embedded)] == list(range(len(texts)))
    packed = [e.vector for e in found[1:] if isinstance(e, m.Embedded)]
    return [list(struct.unpack(f"<{len(p) // 4}f", p)) for p in packed]


async def busy_slots(engine: GgufEngine) -> int:
    """How many of the server's own slots work now."""
    assert engine._opened is not None
    response = await engine._opened.server._http.get("/slots")
    return sum(slot["is_processing"] for slot in response.json())


async def until_idle(engine: GgufEngine) -> None:
    async with asyncio.timeout(20):
        while not engine.is_idle:
            await asyncio.sleep(0)
