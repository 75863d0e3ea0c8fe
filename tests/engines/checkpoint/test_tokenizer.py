"""The process that tokenizes prompts: as the library does it, within limits, the shortest prompts first."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from steerserve import messages as m
from steerserve.engines.checkpoint import process, tokenizer
from steerserve.engines.checkpoint.tokenizer import TokenizerProcess
from steerserve.errors import Refusal
from tests.waiting import until
from tests.worker import models
from tests.worker.running import with_bos, words

CONTEXT = 4096
DOUBLINGS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_bos(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that doubles a text with a certain character again and again."""
    return growing_for(with_bos(tmp_path_factory.mktemp("growing")), "~")


def growing_for(folder: Path, character: str) -> Path:
    file = folder / "tokenizer.json"
    values = json.loads(file.read_text())
    double = {"type": "Replace", "pattern": {"String": character}, "content": 2 * character}
    values["normalizer"] = {"type": "Sequence", "normalizers": [double] * DOUBLINGS}
    file.write_text(json.dumps(values))
    return folder


@asynccontextmanager
async def opened(folder: Path, open_seconds: float = 60.0) -> AsyncIterator[TokenizerProcess]:
    made = TokenizerProcess(partial(process.ForkServer().start, process.TOKENIZER), open_seconds)
    try:
        await made.open(str(folder), False)
        yield made
    finally:
        await made.close()


async def ids(
    made: TokenizerProcess, *texts: str, client: str = "a", **fields: Any
) -> list[list[int]]:
    asked = [m.Text(text, **fields) for text in texts]
    return [tokens.ids for tokens in await made.tokens(asked, CONTEXT, None, "prompt", client)]


async def refused(made: TokenizerProcess, *texts: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await ids(made, *texts)
    return caught.value


async def test_texts_get_the_tokens_that_the_library_gives(folder: Path) -> None:
    whole = models.tokenizer()
    texts = [words(50), "", "\u00e9 \U0001f600<bos>", " \n"]
    async with opened(folder) as made:
        plain = await ids(made, *texts, special=False)
        special = await ids(made, *texts)
        (chat,) = await made.tokens([m.Text("a", is_chat=True)], CONTEXT, None, "prompt", "a")
    assert plain == [whole(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert special == [[0, *row] for row in plain]
    assert chat.is_chat


async def test_a_text_that_is_far_too_long_is_refused_by_its_beginning(folder: Path) -> None:
    async with opened(folder) as made:
        refusal = await refused(made, "fine", "boats " * 1_000_000)
        assert (refusal.code, refusal.param) == ("CONTEXT_LENGTH_EXCEEDED", "prompt[1]")
        assert CONTEXT < refusal.details["prompt_tokens"] <= tokenizer.LONG_TOKEN * CONTEXT
        (row,) = await ids(made, "~" * (tokenizer.LONG_TOKEN * CONTEXT - 1))
        assert len(row) > CONTEXT, "a text that may fit is tokenized whole"


async def test_a_text_that_takes_too_much_is_refused_and_the_next_is_served(
    growing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(growing) as made:
        before, first = await ids(made, "fine"), made.pid
        monkeypatch.setattr(tokenizer, "ENCODE_SECONDS", 0.5)
        refusal = await refused(made, "~")
        assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "prompt")
        assert refusal.message.startswith("the model's tokenizer ")
        monkeypatch.undo()
        assert await ids(made, "fine") == before
        assert made.pid != first


async def test_a_tokenizer_that_cannot_read_a_plain_text_is_not_loaded(
    tmp_path: Path,
) -> None:
    with pytest.raises(Refusal) as caught:
        async with opened(growing_for(with_bos(tmp_path), "x"), 2.0):
            pass
    assert caught.value.code == "MODEL_LOAD_FAILED"
    assert caught.value.message.startswith("the tokenizer of the model ")


async def test_the_time_in_which_a_new_process_reads_the_tokenizer_is_not_that_of_a_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder) as made:
        before = await ids(made, "fine")
        assert made.pid is not None
        os.kill(made.pid, signal.SIGKILL)
        psutil.Process(made.pid).wait(10)
        asked: list[float] = []
        exchanged = made._exchanged

        async def noted(question: Any) -> Any:
            asked.append(question.seconds)
            return await exchanged(question)

        monkeypatch.setattr(made, "_exchanged", noted)
        assert await ids(made, "fine") == before
        assert asked == [60.0, tokenizer.ENCODE_SECONDS]


async def test_clients_take_turns_and_one_that_leaves_ends_nothing(folder: Path) -> None:
    """Of one client the shortest prompt is next, but the prompts of another client do not wait for all of them."""
    async with opened(folder) as made:
        pid, order = made.pid, []

        async def ask(name: str, text: str, client: str = "a") -> None:
            await ids(made, text, client=client)
            order.append(name)

        leaving = asyncio.create_task(ask("leaving", words(400)))
        tasks = [
            asyncio.create_task(ask(name, "a " * size, client))
            for name, size, client in (
                ("long", 3000, "a"),
                ("short", 3, "a"),
                ("middle", 300, "a"),
                ("other", 9000, "b"),
            )
        ]
        await until(lambda: len(made._waiting) == len(tasks))
        leaving.cancel()
        await asyncio.gather(*tasks)
        assert order == ["other", "short", "middle", "long"]
        assert made.pid == pid


async def test_a_process_that_was_killed_is_replaced_and_none_is_left(folder: Path) -> None:
    async with opened(folder) as made:
        assert made.pid is not None
        first = psutil.Process(made.pid)
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        assert await ids(made, "fine")
        second = psutil.Process(made.pid)
        assert second.pid != first.pid
        assert second.rlimit(psutil.RLIMIT_AS)[0] > 0
    assert not second.is_running()
    assert (await refused(made, "fine")).code == "SHUTTING_DOWN"
