"""The server's slots and cells: who gets them, that they come back, and embeddings beside generations."""

from __future__ import annotations

import asyncio
import math

import pytest

from steerserve import messages as m
from steerserve.engines.gguf.client import GgufEngine
from steerserve.engines.gguf.gate import Gate
from steerserve.errors import Refusal
from steerserve.rules.models import gguf_header
from tests import asking
from tests import gguf as maker
from tests.engines.llamas import (
    Write,
    answer,
    answers,
    ask,
    busy_slots,
    loaded,
    refused,
    until_idle,
    vectors,
)
from tests.gguf import counted

# ------------------------------------------------------------- slots and their cells


async def test_closing_early_frees_the_slot(write: Write) -> None:
    async with loaded(write(kind="random", context=8192), slots=1) as (engine, _):
        stream = ask(engine, "one", max_tokens=8000)
        async for event in stream:
            if isinstance(event, m.Piece):
                break
        assert await busy_slots(engine) == 1
        await stream.aclose()
        await until_idle(engine)
        assert await busy_slots(engine) == 0
        assert len((await answer(ask(engine, "two")))[0]) > 0


async def test_a_prompt_that_is_given_up_keeps_its_slot_until_the_server_lets_go(
    write: Write,
) -> None:
    async with loaded(write(kind="random", context=4096), slots=1) as (engine, _):
        stream = ask(engine, "one " * 3000, max_tokens=8)
        await anext(stream)
        reading = asyncio.ensure_future(anext(stream))
        while not await busy_slots(engine):
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until_idle(engine)
        assert await busy_slots(engine) == 0


async def test_a_row_that_yields_begins_only_beside_rows_like_it() -> None:
    gate = Gate(pool=100, places=4)
    running = await gate.enter([1], 10, yields=True)
    beside = await gate.enter([2], 10, yields=True)
    live = await gate.enter([3], 10)
    waiting = asyncio.ensure_future(gate.enter([4], 10, yields=True))
    later = await gate.enter([5], 10)  # overtakes the row that yields
    gate.leave(running)
    gate.leave(live)
    gate.leave(later)
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.leave(beside)
    gate.leave(await waiting)
    assert gate.is_idle


async def test_closing_while_it_waits_takes_the_request_out_of_the_line(write: Write) -> None:
    async with loaded(write(kind="random", context=8192), slots=1) as (engine, _):
        first = ask(engine, "one", max_tokens=8000)
        await anext(first)
        running = asyncio.ensure_future(anext(first))
        second = ask(engine, "two", max_tokens=8)
        await anext(second)
        waiting = asyncio.ensure_future(anext(second))
        await running
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await second.aclose()
        await first.aclose()
        await until_idle(engine)


async def test_the_pool_is_never_exhausted(write: Write) -> None:
    """Four slots share the cells of one context; what ended leaves its cells in use, and newcomers need them."""
    # 1 KiB a token: the cells of one context, and no more
    async with loaded(write(context=1024), kv_cache_mb=1, slots=4) as (engine, facts):
        assert (facts.context_length, facts.kv_tokens) == (1024, 1024)

        async def one(number: int) -> tuple[str, str | None, int]:
            words = (maker.WORDS[(number + i) % 20] for i in range(100 + 90 * (number % 7)))
            return await answer(ask(engine, " ".join(words) + " x", max_tokens=21))

        found = await asyncio.gather(*(one(number) for number in range(28)))
        assert found == [(counted(20), "stop", 21)] * 28
        whole = [answer(ask(engine, f"{word} x", max_tokens=1000)) for word in maker.WORDS[:6]]
        assert await asyncio.gather(*whole) == [(counted(20), "stop", 21)] * 6


async def test_the_context_is_what_the_file_the_setting_and_the_memory_allow(write: Write) -> None:
    path = write(context=1024)
    async with loaded(path, context_length=512) as (engine, facts):
        assert facts.context_length == 512
        assert (await refused(ask(engine, "one", max_tokens=511))).code == "CONTEXT_LENGTH_EXCEEDED"
        assert (await answer(ask(engine, "one", max_tokens=510)))[1] == "stop"
    async with loaded(write(context=4096), kv_cache_mb=1) as (_, facts):
        assert facts.context_length == 1024
    with pytest.raises(Refusal) as caught:
        async with loaded(write(context=4096), kv_cache_mb=1, min_context=2048):
            pass
    assert caught.value.code == "INSUFFICIENT_MEMORY"


# ------------------------------------------------------------- embeddings


async def test_a_vector_is_the_mean_of_the_last_hidden_layer(engine: GgufEngine) -> None:
    (one,) = await vectors(engine, "one one x")
    assert len(one) == 512
    # the counting model's states are one-hot vectors of length sqrt(512): the mean shows the tokens
    large = sorted((value for value in one if abs(value) > 1e-3), reverse=True)
    length = math.sqrt(512)
    tokens = (await answers(ask(engine, "one one x")))[0][0]
    assert sum(large) == pytest.approx(length, rel=1e-2)
    assert large[0] == pytest.approx(2 * length / tokens, rel=1e-2)


async def test_vectors_do_not_depend_on_what_runs_beside_them(write: Write) -> None:
    async with loaded(write(kind="random", layers=2)) as (engine, _):
        texts = [" ".join(maker.WORDS[:n]) for n in (1, 7, 3, 20, 2)]
        alone = [(await vectors(engine, text))[0] for text in texts]
        together, again, _ = await asyncio.gather(
            vectors(engine, *texts),
            vectors(engine, *reversed(texts)),
            answers(ask(engine, *maker.WORDS, max_tokens=60)),
        )
        for found in (together, again[::-1]):
            for one, other in zip(alone, found, strict=True):
                assert one == pytest.approx(other, abs=1e-4)


async def test_an_embedding_is_answered_while_generations_keep_coming(write: Write) -> None:
    async with loaded(write(kind="random", context=8192), slots=4) as (engine, _):
        is_over = asyncio.Event()

        async def keep_writing() -> int:
            count = 0
            while not is_over.is_set():
                await answer(ask(engine, "x", max_tokens=300 + 100 * count))
                count += 1
            return count

        writers = [asyncio.create_task(keep_writing()) for _ in range(6)]
        async with asyncio.timeout(30):
            for _ in range(3):
                assert len(await vectors(engine, "one two", "three")) == 2
        is_over.set()
        assert min(await asyncio.gather(*writers)) >= 1


async def test_an_embedding_that_is_given_up_lets_the_others_go_on(engine: GgufEngine) -> None:
    stream = engine.run(asking.read(0, [m.Text("one")] * 50, m.Embed()))
    await anext(stream)
    await anext(stream)
    await stream.aclose()
    assert (await answer(ask(engine, "one")))[0] == counted(4, "two")
    await until_idle(engine)


async def test_an_encoder_only_embeds(write: Write) -> None:
    async with loaded(write(kind="encoder", context=64)) as (engine, facts):
        assert facts.is_embedding_only
        assert facts.supports_embeddings
        assert not facts.chat_template
        assert (facts.context_length, facts.kv_tokens) == (64, 0)
        one, two = await vectors(engine, "one two", "three")
        assert len(one) == 512
        assert one != two
        assert (await refused(ask(engine, "one"))).code == "INVALID_PARAMETER"
        # 62 words and the two marks fit
        assert len(await vectors(engine, "one " * 62)) == 1
        refusal = await refused(engine.run(asking.read(0, [m.Text("one " * 63)], m.Embed())))
        assert refusal.code == "CONTEXT_LENGTH_EXCEEDED"
        assert refusal.details["max_context_tokens"] == 64


async def test_a_text_to_embed_is_bounded_by_what_its_logits_take(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_header, "LOGITS_BYTES", 4 * 434 * 600)
    async with loaded(write(context=1024), kv_cache_mb=4) as (engine, facts):
        assert facts.context_length == 1024
        assert len(await vectors(engine, "one" + " one" * 598)) == 1
        refusal = await refused(
            engine.run(asking.read(0, [m.Text("one" + " one" * 599)], m.Embed()))
        )
        assert refusal.details["max_context_tokens"] == 600
        assert (await answer(ask(engine, "one " * 800 + "x")))[0] == counted(4)


async def test_without_the_setting_there_are_no_embeddings(write: Write) -> None:
    async with loaded(write(), embeddings=False) as (engine, facts):
        assert not facts.supports_embeddings
        assert (
            await refused(engine.run(asking.read(0, [m.Text("one")], m.Embed())))
        ).code == "INVALID_PARAMETER"
        assert (await answer(ask(engine, "one")))[0] == counted(4, "two")
