"""The texts of a source, cut into contexts of tokens, which jobs read one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import NamedTuple

from msgspec import structs

from steerserve import messages as m
from steerserve.control.inference.texts import prompt_of
from steerserve.control.jobs import Report
from steerserve.control.residency.resident import Resident
from steerserve.control.threads import Threads
from steerserve.errors import Refusal
from steerserve.files import corpus as files
from steerserve.files.client_paths import ClientPaths
from steerserve.hub.client import Hub
from steerserve.messages.spelling import Spell
from steerserve.nouns.corpora.form import CorpusSource
from steerserve.rules.bounds import CORPUS_HUB_BYTES
from steerserve.rules.inference import corpus_texts as rules
from steerserve.rules.inference.corpus_texts import CorpusText
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.steering.positions import Span
from steerserve.settings import Settings

TEXTS_AT_ONCE = 64
CHARACTERS_AT_ONCE = 1 << 20
"""The texts that are taken from a source at once: so many, or as many as have so many characters."""
READERS = 2
"""The threads in which one owner reads texts and writes results, so that nobody else waits for them."""

Texts = Callable[[], Iterable[CorpusText]]
"""Gives the texts of a source from the first one on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTexts:
    """Which texts are read. Each is cut into contexts of `context` tokens, and the reading ends after `max_tokens`. The
    `texts` are there with the source `inline`. `client` names who asks."""

    source: CorpusSource
    texts: tuple[str | Conversation, ...]
    hub_token: str | None
    max_tokens: int
    context: int
    client: str

    def place_of(self, number: int) -> str:
        """The place of a text in the request."""
        return f"texts[{number}]"

    def check_context(self, facts: m.Loaded) -> None:
        """Raises:
        Refusal: INVALID_PARAMETER for a context that the model does not have.
        """
        if self.context > facts.context_length:
            why = f"context: the model reads at most {facts.context_length} tokens"
            raise Refusal("INVALID_PARAMETER", why, param="context", maximum=facts.context_length)


@dataclass(frozen=True, slots=True)
class Place:
    """How far texts are read: up to the token `token` of the text `text`, after `tokens` tokens."""

    text: int = 0
    token: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A context: some tokens of the text `text` from its token `start` on, behind `skip` special tokens.

    Attributes:
        ids, pieces: all of its tokens, and their texts.
        spans: the contents of messages in it, where they are asked for.
        name: the place of its text in the source.
        after: how far the texts are read with it.
    """

    text: int
    start: int
    skip: int
    ids: list[int]
    pieces: list[str]
    spans: tuple[Span, ...]
    name: str
    after: Place

    @property
    def size(self) -> int:
        """The tokens of the text in it."""
        return len(self.ids) - self.skip


class Tokens(NamedTuple):
    """The ids of some tokens, their texts, and the contents of messages among them."""

    ids: list[int]
    pieces: list[str]
    spans: tuple[Span, ...] = ()


NO_TOKENS = Tokens([], [])


class TextSources:
    """Opens sources of texts, and cuts their texts into contexts. Files and texts are read in `threads`."""

    def __init__(self, settings: Settings, hub: Hub, paths: ClientPaths, threads: Threads) -> None:
        self._settings = settings
        self._hub = hub
        self._paths = paths
        self._threads = threads

    async def check_source(self, source: CorpusSource) -> None:
        """Raises:
        Refusal: INVALID_LOCAL_PATH, PAYLOAD_TOO_LARGE; INVALID_PARAMETER for a file of no known kind.
        """
        if source.local_path is not None:
            await self._found(source.local_path)
        if source.file_path is not None:
            rules.check_name(source.file_path)

    async def open(self, asked: AskedTexts, ended: Event) -> Texts:
        """The texts of a source. None is read once `ended` is set.

        Raises:
            Refusal: INVALID_LOCAL_PATH, PAYLOAD_TOO_LARGE; what `Hub.dataset_file` raises.
        """
        said = asked.source
        if said.kind == "inline":
            return lambda: ((asked.place_of(i), text) for i, text in enumerate(asked.texts))
        if said.local_path is not None:
            path = await self._found(said.local_path)
            return lambda: rules.texts(path.name, files.lines(path, ended), said.text_field)
        assert said.repo_id is not None
        assert said.file_path is not None
        file = said.file_path
        content = await self._hub.dataset_file(
            said.repo_id, said.revision or "main", file, CORPUS_HUB_BYTES, asked.hub_token
        )
        return lambda: rules.texts(file, files.lines_of(BytesIO(content), ended), said.text_field)

    async def digest(self, texts: Iterable[CorpusText]) -> str:
        """The SHA-256 of all texts. Every text is looked at.

        Raises:
            Refusal: VALIDATION_ERROR for a line that has no text.
        """
        digest = hashlib.sha256()

        def add(some: Iterable[tuple[int, CorpusText]]) -> None:
            for _, (_, text) in some:
                for part in rules.json_parts(text):
                    digest.update(part.encode())
                digest.update(b"\n")

        async for some in self._numbered(texts, 0):
            await self._threads.run(add, some)
        return digest.hexdigest()

    async def cuts(
        self,
        asked: AskedTexts,
        done: Place,
        resident: Resident,
        texts: Iterable[CorpusText],
        *,
        is_located: bool = False,
    ) -> AsyncGenerator[Cut]:
        """The contexts that are left to read. The special tokens at the beginning of a text begin each of its contexts.
        With `is_located` the contents of messages are found.

        Raises:
            Refusal: what refuses the tokens of a text, with its place.
        """
        special = await _special_tokens(resident)
        place, room = done, asked.context - len(special.ids)
        async for some in self._numbered(texts, done.text):
            for index, (name, text) in some:
                start = done.token if index == done.text else 0
                spelled = self._spelled(asked, resident, name, text, special, is_located=is_located)
                async with aclosing(_windows(spelled, start, room)) as windows:
                    async for window, is_last in windows:
                        size = min(len(window.ids), asked.max_tokens - place.tokens)
                        is_end = is_last and size == len(window.ids)
                        tokens = place.tokens + size
                        place = (
                            Place(index + 1, 0, tokens)
                            if is_end
                            else Place(index, start + size, tokens)
                        )
                        whole = _joined(special, _sliced(window, 0, size))
                        yield Cut(index, start, len(special.ids), *whole, name, place)
                        start += size
                        if place.tokens >= asked.max_tokens:
                            return

    # ------------------------------------------------------------- inside

    async def _found(self, local_path: str) -> Path:
        """Raises:
        Refusal: INVALID_LOCAL_PATH, INVALID_PARAMETER, PAYLOAD_TOO_LARGE.
        """
        most_mb, check = self._settings.corpora_max_mb, self._paths.check_allowed
        return await self._threads.run(files.find, local_path, most_mb, check)

    async def _numbered(
        self, texts: Iterable[CorpusText], first: int
    ) -> AsyncIterator[list[tuple[int, CorpusText]]]:
        """The texts from the one with the number `first` on, with their numbers, some at a time."""
        numbered = enumerate(texts)
        while some := await self._threads.run(_some, numbered, first):
            yield some

    async def _spelled(
        self,
        asked: AskedTexts,
        resident: Resident,
        place: str,
        text: str | Conversation,
        special: Tokens,
        *,
        is_located: bool,
    ) -> AsyncGenerator[Tokens]:
        """The tokens of a text or a conversation. A text comes block by block. A conversation comes whole, without the
        special tokens before it."""
        engine, _ = resident.running()
        prompts: Iterable[m.Text | m.Chat] = [prompt_of(text, asked.client, is_located=is_located)]
        if isinstance(text, str):
            prompts = (m.Text(block, special=False) for block in rules.blocks(text))
        for prompt in prompts:
            try:
                made = await engine.ask(
                    Spell(
                        prompt=prompt,
                        longest=self._settings.tokenize_max_characters,
                        client=asked.client,
                    )
                )
            except Refusal as refusal:
                why = f"{place}: {refusal.message}"
                raise Refusal(refusal.code, why, param=place, **refusal.details) from None
            size = len(special.ids)
            skipped = size if made.ids[:size] == special.ids else 0
            yield Tokens(
                made.ids[skipped:],
                made.pieces[skipped:],
                _within(made.spans, skipped, len(made.ids)),
            )
            special = NO_TOKENS


async def parts_of(cuts: AsyncIterator[Cut], count: int) -> AsyncIterator[list[Cut]]:
    """The contexts in parts of `count`, of which the last may be shorter."""
    part: list[Cut] = []
    async for cut in cuts:
        part.append(cut)
        if len(part) == count:
            yield part
            part = []
    if part:
        yield part


def token_reporter(
    report: Report, asked: AskedTexts, part: Sequence[Cut], before: int, *, share: float = 1.0
) -> Callable[[int], None]:
    """Makes what reports the progress of a part. It is called with the number of contexts of the part that are read.

    Args:
        before: the tokens of the parts before.
        share: the share of the job that the reading takes.
    """
    sizes = [cut.size for cut in part]

    def report_read(count: int) -> None:
        tokens = before + sum(sizes[:count])
        report(
            share * tokens / asked.max_tokens,
            f"{tokens} of at most {asked.max_tokens} tokens are read",
        )

    return report_read


async def _special_tokens(resident: Resident) -> Tokens:
    """The special tokens that the tokenizer puts before a text."""
    engine, _ = resident.running()
    whole, bare = [
        await engine.ask(Spell(prompt=m.Text("a", special), longest=1)) for special in (True, False)
    ]
    size = len(bare.ids)
    at = next((i for i in range(len(whole.ids)) if whole.ids[i : i + size] == bare.ids), 0)
    return Tokens(whole.ids[:at], whole.pieces[:at])


def _some(numbered: Iterable[tuple[int, CorpusText]], first: int) -> list[tuple[int, CorpusText]]:
    """The next texts from the one with the number `first` on."""
    some: list[tuple[int, CorpusText]] = []
    size = 0
    for index, (place, text) in numbered:
        if index < first:
            continue
        some.append((index, (place, text)))
        size += rules.size_of(text)
        if len(some) == TEXTS_AT_ONCE or size >= CHARACTERS_AT_ONCE:
            break
    return some


async def _windows(
    parts: AsyncGenerator[Tokens], start: int, room: int
) -> AsyncGenerator[tuple[Tokens, bool]]:
    """The tokens from `start` on, `room` at a time, and whether they are the last ones. No more parts are asked for
    than the next tokens need."""
    held = NO_TOKENS
    async with aclosing(parts):
        async for more in parts:
            skipped = min(start, len(more.ids))
            start -= skipped
            held = _joined(held, _sliced(more, skipped, len(more.ids)))
            while len(held.ids) > room:
                yield _sliced(held, 0, room), False
                held = _sliced(held, room, len(held.ids))
    if held.ids:
        yield held, True


def _joined(first: Tokens, second: Tokens) -> Tokens:
    size = len(first.ids)
    spans = (
        structs.replace(one, start=one.start + size, end=one.end + size) for one in second.spans
    )
    return Tokens(first.ids + second.ids, first.pieces + second.pieces, (*first.spans, *spans))


def _sliced(tokens: Tokens, start: int, end: int) -> Tokens:
    return Tokens(
        tokens.ids[start:end], tokens.pieces[start:end], _within(tokens.spans, start, end)
    )


def _within(spans: Iterable[Span], start: int, end: int) -> tuple[Span, ...]:
    """The parts of spans in the tokens [start, end), counted from `start`."""
    cut = (
        Span(one.role, max(one.start, start) - start, min(one.end, end) - start) for one in spans
    )
    return tuple(one for one in cut if one.start < one.end)
