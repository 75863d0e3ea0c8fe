"""Loads a GGUF model: decides its memory, starts the process that serves it, and tries whether it embeds."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from steerserve import messages as m
from steerserve.engines.gguf import process as llama_process
from steerserve.engines.gguf.messages import LlamaCard, Serve
from steerserve.engines.gguf.process import LlamaProcess
from steerserve.engines.gguf.server import LlamaServer, Lost
from steerserve.errors import Refusal
from steerserve.messages.engine import Report
from steerserve.rules.models import gguf, gguf_header
from steerserve.rules.models.gguf_header import FileStamp, Header, Room
from steerserve.rules.units import MIB

KV_SHARE = 3
"""Without a setting, the KV cache gets one part in this many of the free memory, or more where the least context needs
more."""

PROBE_SECONDS = 60.0

Keep = Callable[[LlamaProcess], None]
"""A function that is called with each started process. It raises a refusal where the load has been given up by then."""


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of GGUF models. A value of 0 means: for `threads`, the number of physical cores; for `kv_cache_mb`,
    a part of the free memory; for `context_length`, the length in the file. `server_bin` is a `llama-server` program
    that runs in place of the library."""

    slots: int = 8
    context_length: int = 32_768
    min_context: int = 4096
    kv_cache_mb: int = 0
    cache_type: str = "f16"
    tensor_split: str = ""
    embeddings: bool = True
    server_bin: str | None = None
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that is served. Lengths are in tokens; `batch` is the longest pass; `embed_context` is 0 where the model
    does not embed; `cards` are the cards that hold the model."""

    process: LlamaProcess
    server: LlamaServer
    header: Header
    room: Room
    slots: int
    batch: int
    embed_context: int
    cards: list[LlamaCard]


class _NoEmbeddings(Exception):
    """A model that was to be loaded with embeddings does not load, or does not embed."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why.message)
        self.why = why


@dataclass(frozen=True, slots=True)
class Model:
    """A model to load: its first file, its header, and proportions over the cards in place of the proportions of the
    setting."""

    path: str
    header: Header
    split: Sequence[float] | None = None


async def opened(options: Options, report: Report, model: Model, keep: Keep) -> Opened:
    """Start a process that serves the model; without embeddings where its architecture does not allow them.

    Raises:
        Refusal: MODEL_LOAD_FAILED, INVALID_GGUF_TENSOR_SPLIT, INSUFFICIENT_MEMORY.
    """
    report(m.Progress(0, "starting", 1.0))
    header = model.header
    if header.missing_bytes:
        raise Refusal("MODEL_LOAD_FAILED", f"the file is cut short by {header.missing_bytes} bytes")
    if options.embeddings or header.is_embedding_only:
        try:
            return await _attempt(options, report, model, keep, embeds=True)
        except _NoEmbeddings as refused:
            if header.is_embedding_only:
                raise refused.why from None
    return await _attempt(options, report, model, keep, embeds=False)


def chat_template(header: Header) -> m.ChatTemplate | None:
    """The chat template of a GGUF file."""
    if header.chat_template is None:
        return None
    named = {"bos_token": header.bos_token, "eos_token": header.eos_token}
    tokens = {name: token for name, token in named.items() if token is not None}
    return m.ChatTemplate(header.chat_template, tokens)


def facts(served: Opened, cache_type: str) -> m.Loaded:
    """The facts that the rest of the service gets about the model."""
    header, is_encoder = served.header, served.header.is_embedding_only
    each = gguf_header.kv_bytes_per_token(header, cache_type)
    memory_mb = served.process.memory_mb()
    return m.Loaded(
        id=0,
        architecture=header.architecture,
        parameters=header.parameters,
        dtype=header.label,
        device=",".join(_device(card.name) for card in served.cards) or "cpu",
        memory_mb=memory_mb,
        memory_by_device_mb={} if served.cards else {"cpu": memory_mb},
        context_length=served.room.context,
        layers=header.layers,
        hidden_size=header.hidden_size,
        vocabulary=header.vocabulary,
        kv_tokens=0 if is_encoder else served.room.pool,
        kv_bytes_per_token=0 if is_encoder else each,
        chat_template=None if is_encoder else chat_template(header),
        is_embedding_only=is_encoder,
        supports_embeddings=bool(served.embed_context),
        quantization=gguf.precision_of(header.label),
    )


def measured(served: Opened) -> m.Measured:
    """The memory of a loaded model. llama.cpp tells no parts and no memory of cards, so only the resident memory of its
    process is known. Blocks for milliseconds."""
    resident = served.process.memory_mb() * MIB or None
    cards = [m.DeviceMemory(_device(card.name), None, None, 0, None) for card in served.cards]
    return m.Measured(0, parts=[*cards, m.DeviceMemory("cpu", None, None, 0, resident)])


def changed(header: Header) -> str | None:
    """The name of a file that was changed or replaced after the header was read; None if all are as they were."""
    for stamp in header.stamps:
        try:
            facts = os.stat(stamp.path)
        except OSError:
            return Path(stamp.path).name
        if stamp != FileStamp.from_stat(stamp.path, facts):
            return Path(stamp.path).name
    return None


async def _attempt(
    options: Options, report: Report, model: Model, keep: Keep, *, embeds: bool
) -> Opened:
    """Raises:
    _NoEmbeddings: with `embeds`, when the model does not load or does not embed.
    """
    process = await llama_process.start()
    try:
        keep(process)
        visible = await process.cards(options.server_bin)
        split = _split(options, model, len(visible))
        cards = [
            card
            for card, share in zip(visible, split or [1.0] * len(visible), strict=True)
            if share
        ]
        room = _room(options, model.header, cards)
        serve = _wanted(options, model, room, split, embeds=embeds)
        report(m.Progress(0, "loading_weights", 10.0))
        server = await _loaded(process, serve)
        if (name := changed(model.header)) is not None:
            await server.close()
            raise Refusal("MODEL_LOAD_FAILED", f"{name} changed while it was loaded")
        report(m.Progress(0, "checking", 90.0))
        if embeds:
            await _probe(server, process)
    except BaseException:
        await process.stop()
        raise
    embed_context = min(room.context, serve.batch) if embeds else 0
    return Opened(
        process, server, model.header, room, serve.slots, serve.batch, embed_context, cards
    )


def _split(options: Options, model: Model, cards: int) -> list[float] | None:
    """The proportions over the cards, one for each.

    Raises:
        Refusal: INVALID_GGUF_TENSOR_SPLIT.
    """
    if model.split is not None:
        if len(model.split) != cards:
            why = f"the model was placed on {len(model.split)} cards, but the engine sees {cards}"
            raise Refusal("INVALID_GGUF_TENSOR_SPLIT", why, cards=cards)
        return list(model.split)
    named = gguf.tensor_split(options.tensor_split, cards)
    return list(named) if named else None


def _wanted(
    options: Options, model: Model, room: Room, split: list[float] | None, *, embeds: bool
) -> Serve:
    header = model.header
    return Serve(
        path=model.path,
        api_key=secrets.token_urlsafe(24),
        pool=room.pool,
        slots=1 if header.is_embedding_only else options.slots,
        batch=gguf_header.pass_tokens(header, room.context, embeds=embeds),
        threads=options.threads or psutil.cpu_count(logical=False) or 1,
        cache_type=options.cache_type,
        embeddings=embeds,
        tensor_split=split,
    )


def _room(options: Options, header: Header, cards: list[LlamaCard]) -> Room:
    if header.is_embedding_only:
        context = gguf_header.longest_context(header, options.context_length, options.min_context)
        return Room(context, context)
    free = sum(card.free_bytes for card in cards) or psutil.virtual_memory().available
    spare = max(0, free - header.tensor_bytes)
    least = gguf_header.least_cache_bytes(
        header, options.cache_type, options.context_length, options.min_context
    )
    return gguf_header.room(
        header,
        kv_bytes=options.kv_cache_mb * MIB or max(spare // KV_SHARE, min(spare, least)),
        cache_type=options.cache_type,
        ceiling=options.context_length,
        slots=options.slots,
        least=options.min_context,
    )


async def _loaded(process: LlamaProcess, serve: Serve) -> LlamaServer:
    try:
        return LlamaServer(await process.serve(serve), serve.api_key)
    except Refusal as refusal:
        if serve.embeddings:
            raise _NoEmbeddings(refusal) from None
        raise


async def _probe(server: LlamaServer, process: LlamaProcess) -> None:
    """Embed a short text, because some architectures load with pooling and then fail at the first text."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await server.embed(await server.tokenize("a", special=True) or [0])
    except (Lost, Refusal, TimeoutError):
        await server.close()
        why = f"the model does not embed: {await process.trouble()}"
        raise _NoEmbeddings(Refusal("MODEL_LOAD_FAILED", why)) from None


def _device(name: str) -> str:
    """The name of a card in the rest of the service: CUDA0 is cuda:0."""
    kind = name.rstrip("0123456789")
    number = name[len(kind) :]
    return f"{kind.lower()}:{number}" if number else kind.lower()
