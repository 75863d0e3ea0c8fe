"""The settings that bound what one request, one connection and one client may ask for, and the types of all numbers
among the settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

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


class RequestLimits(BaseSettings):
    """The limits of requests, connections and clients. `Settings` has them among the other settings."""

    max_body_bytes: Count = Field(default=8_000_000, description="Largest request body in bytes.")
    max_messages: Count = Field(
        default=2000, description="Messages in all conversations of one chat request."
    )
    max_prompts: Count = Field(default=128, description="Prompts in one text completion request.")
    max_extra_messages: Count = Field(
        default=64, description="Conversations in `extra_messages` of one chat request."
    )
    embeddings_max_inputs: Count = Field(
        default=128, description="Texts in one embeddings request."
    )
    scoring_max_entries: Count = Field(
        default=65_536,
        description="Largest number of prompts times listed tokens that one scoring request may ask for with "
        "`allowed_token_ids`.",
    )
    max_choices: Count = Field(default=16, description="Largest `n` of a request.")
    max_stop_strings: Count = Field(default=16, description="Stop strings in one request.")
    ignored_fields_header_max_bytes: Annotated[int, Field(ge=64, le=8192)] = Field(
        default=1024, description="Cap of the X-Service-Ignored-Fields header in bytes."
    )
