"""The settings that bound what one request, one connection and one client may ask for, and the types of all numbers
among the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode

from steerserve.settings import checks as values

COUNT_MAXIMUM = 1_000_000_000
DAY = 86_400
YEAR = 365 * DAY
MIB_MAXIMUM = 1 << 24
"""16 TiB, counted in MiB."""

Seconds = Annotated[int, Field(ge=1, le=3600)]
LeaseSeconds = Annotated[int, Field(ge=1, le=YEAR)]
Patience = Annotated[float, Field(ge=0, le=DAY)]
"""Seconds of a wait; 0 means no wait."""
TimeLimit = Annotated[float, Field(gt=0, le=DAY)]
Count = Annotated[int, Field(ge=1, le=COUNT_MAXIMUM)]
CountOrNone = Annotated[int, Field(ge=0, le=COUNT_MAXIMUM)]
Mebibytes = Annotated[int, Field(ge=0, le=MIB_MAXIMUM)]


def read_by(parse: Callable[[str], object]) -> BeforeValidator:
    """A validator that reads the text of a setting by `parse`. A value that is no text passes as it is."""
    return BeforeValidator(lambda given: parse(given) if isinstance(given, str) else given)


Texts = Annotated[list[str], NoDecode, read_by(values.parts)]


class RequestLimits(BaseSettings, use_attribute_docstrings=True):
    """The limits of requests, connections and clients. `Settings` has them among the other settings."""

    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Connections that clients may have open at once. Above this number the connection that waits longest without a
    request is closed; where all have requests, only liveness and readiness are answered, and other requests are refused
    with 503."""
    max_live_clients: CountOrNone = 200
    """Clients of live events (Socket.IO) at once; the next is refused with 503."""
    request_headers_timeout: TimeLimit = 20.0
    """Seconds that the headers of a request may take to arrive, counted from the connection or from the first byte of a
    further request."""
    request_body_timeout: TimeLimit = 120.0
    """Seconds that the service waits in all for the body of a request."""
    answer_stall_timeout: TimeLimit = 120.0
    """Seconds after which a connection is cut whose client reads nothing of an answer that waits for the client. A
    client that reads slowly is not cut."""
    max_body_bytes: Count = 8_000_000
    """Largest request body in bytes."""
    request_bodies_mb: Mebibytes = 256
    """MiB that the bodies of all requests may have in memory together, small ones (64 KiB) not counted. One client has
    half of it. Beyond it the slowest body of the client with most bytes is refused with 503. The limit is at least
    twice the largest body."""
    max_messages: Count = 2000
    """Messages in all conversations of one chat request."""
    max_prompts: Count = 128
    """Prompts in one text completion request, as texts or as lists of token ids."""
    max_extra_messages: Count = 64
    """Conversations in `extra_messages` of one chat request."""
    embeddings_max_inputs: Count = 128
    """Texts in one embeddings request."""
    scoring_max_entries: Count = 65_536
    """Largest number of prompts times listed tokens that one scoring request may ask for with `allowed_token_ids`, and
    largest number of log-probabilities with `echo`."""
    lens_max_distributions: Count = 16_384
    """Largest number of tokens times layers in one request to `/api/lens`. Each is one pass through the output
    embedding, and the stream of each is held until then."""
    lens_max_entries: Count = 65_536
    """Largest number of tokens times layers times `top` in one request to `/api/lens`."""
    patches_max_tokens: Count = 2_000_000
    """Largest number of cells times tokens of one patch sweep (`/api/patches`)."""
    tokenize_max_characters: Count = 200_000
    """Characters of a text, or of a rendered conversation, in one request to `/api/tokenize`."""
    max_choices: Count = 16
    """Largest `n` of a request."""
    max_stop_strings: Count = 16
    """Stop strings in one request."""
    ignored_fields_header_max_bytes: Annotated[int, Field(ge=64, le=8192)] = 1024
    """Cap of the X-Service-Ignored-Fields header in bytes."""
