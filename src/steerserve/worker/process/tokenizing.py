"""The process that tokenizes the prompts of a checkpoint, so that a long text, or a hostile tokenizer, holds up no
forward pass.

It reads questions and writes answers (`messages/tokenizing.py`) as frames on its socket, and ends with the socket.
"""

from __future__ import annotations

import contextlib
import math
import resource
import signal
import socket
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from steerserve.messages import LENGTH
from steerserve.messages.tokenizing import Spelling, TextAnswer, TextQuestion
from steerserve.rules.text_offsets import place_tokens, span_offsets
from steerserve.worker import memory
from steerserve.worker.model.transformer import (
    decode,
    described_error,
    encode,
    open_tokenizer,
    token_text,
)

MEMORY_BYTES = 3 << 30
"""The memory that the process may take: for the tokenizer, and for the tokens of the prompts of one request."""

CHUNK = 1024
"""The number of tokens that are decoded together."""


def main(link: socket.socket) -> None:
    """Answer question after question until the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    memory.limit(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with link, link.makefile("rb") as questions, contextlib.suppress(ConnectionError):
        while body := _read(questions):
            question = msgspec.msgpack.decode(body, type=TextQuestion)
            # an alarm, because a service that was killed cannot end a question that takes for ever
            signal.alarm(math.ceil(question.seconds) + 1)
            reply = msgspec.msgpack.encode(answer(question))
            signal.alarm(0)
            link.sendall(LENGTH.pack(len(reply)) + reply)


def answer(question: TextQuestion) -> TextAnswer:
    try:
        tokenizer = _opened(question.path, question.trust_remote_code)
        if question.is_trial:
            _decode_all(tokenizer)
        if question.ids is not None:
            return _read_back(tokenizer, question.ids)
        if question.is_spelled:
            ((text, special),) = question.texts
            return TextAnswer(spelling=_spelled(tokenizer, text, special))
        return TextAnswer([_row(tokenizer, question, *text) for text in question.texts])
    except MemoryError:
        return TextAnswer(reason="needs more memory than it may take")
    except Exception as error:
        # an untrusted tokenizer may raise any error
        return TextAnswer(reason=f"fails: {described_error(error)}")


def _row(
    tokenizer: PreTrainedTokenizerBase, question: TextQuestion, text: str, special: bool
) -> list[int] | int:
    if len(text) > question.longest:
        least = len(encode(tokenizer, text[: question.longest], special=special))
        if least > question.context:
            return least
    return encode(tokenizer, text, special=special)


def _spelled(tokenizer: PreTrainedTokenizerBase, text: str, special: bool) -> Spelling:
    is_fast = bool(getattr(tokenizer, "is_fast", False))
    made = tokenizer(
        text, add_special_tokens=special, return_offsets_mapping=is_fast, verbose=False
    )
    ids = list(made["input_ids"])
    pieces, offsets = place_tokens(text, _texts(tokenizer, ids))
    if is_fast:
        offsets = span_offsets(text, made["offset_mapping"])
    return Spelling(text, ids, pieces, offsets, tokenizer.bos_token_id, tokenizer.eos_token_id)


def _read_back(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> TextAnswer:
    """The text of these ids. A model may have more ids than its tokenizer, and write them; they have no text."""
    size = len(tokenizer)
    text = decode(tokenizer, [token for token in ids if token < size], skip_special=False)
    placed = place_tokens(text, _texts(tokenizer, ids))
    ends = tokenizer.bos_token_id, tokenizer.eos_token_id
    return TextAnswer(spelling=Spelling(text, ids, *placed, *ends))


def _texts(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """The text of each of these tokens inside a text."""
    size = len(tokenizer)
    known = {token: token_text(tokenizer, token) if token < size else "" for token in set(ids)}
    return [known[token] for token in ids]


def _decode_all(tokenizer: PreTrainedTokenizerBase) -> None:
    """Decode the vocabulary, as the engine decodes answers token by token: a decoder that makes texts grow without
    bound meets the limits here."""
    for first in range(0, len(tokenizer), CHUNK):
        tokenizer.decode(list(range(first, min(first + CHUNK, len(tokenizer)))))


@lru_cache(maxsize=1)
def _opened(path: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    return open_tokenizer(Path(path), trust_remote_code)


def _read(source: BinaryIO) -> bytes:
    header = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""
