"""The messages to and from the llama.cpp process: JSON lines on its standard input and output.

The process is asked which cards it sees, then to serve a model. It answers each with one line, and ends when its input
closes.
"""

from __future__ import annotations

import msgspec

MODULE = "steerserve.engines.gguf.child"


class Hello(msgspec.Struct):
    """`server_bin` is a `llama-server` program to run in place of the library."""

    server_bin: str | None = None


class LlamaCard(msgspec.Struct):
    """A card by its name in the engine, with its free memory in bytes."""

    name: str
    free_bytes: int


class LlamaCards(msgspec.Struct):
    """The cards that the engine sees; empty on a host without cards."""

    cards: list[LlamaCard] = []
    error: str | None = None


class Serve(msgspec.Struct):
    """A model to serve on a loopback port. Lengths are in tokens; with `embeddings`, the server pools by the mean."""

    path: str
    api_key: str
    pool: int
    slots: int
    batch: int
    threads: int
    cache_type: str = "f16"
    embeddings: bool = False
    tensor_split: list[float] | None = None


class ServeAnswer(msgspec.Struct):
    """The address at which the model is served, or `error`; the engine's own reason is on the standard error."""

    url: str | None = None
    error: str | None = None


def line(message: Hello | LlamaCards | Serve | ServeAnswer) -> bytes:
    return msgspec.json.encode(message) + b"\n"
