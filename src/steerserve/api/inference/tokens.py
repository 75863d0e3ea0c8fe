"""/api/tokenize and /api/detokenize: texts and conversations as the tokens of the resident model, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, success
from steerserve.control.inference.spelling import Speller
from steerserve.control.inference.views import TokenizedText
from steerserve.errors import Refusal
from steerserve.rules import clients
from steerserve.rules.field_faults import refuse_field, refuse_value
from steerserve.rules.inference import prompts
from steerserve.settings import Settings

MESSAGES_MAXIMUM = 2000
PARTS_MAXIMUM = 10_000
ID_MAXIMUM = 2**31 - 1
Id = Annotated[int, Field(ge=0, le=ID_MAXIMUM)]


def _encodable(text: str) -> str:
    """Raises:
    ValueError: half of a surrogate pair, which no answer can repeat.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half of a surrogate pair at character {error.start}") from None
    return text


Written = Annotated[str, AfterValidator(_encodable)]


class TextPart(RequestBody):
    """A part of the content of a message."""

    type: Literal["text"]
    text: Written


class TokenizeMessage(RequestBody):
    """One message of a conversation. The texts of several parts follow each other with nothing between them."""

    role: Annotated[str, Field(min_length=1, max_length=50)]
    content: Written | Annotated[list[TextPart], Field(max_length=PARTS_MAXIMUM, fail_fast=True)]
    name: Annotated[str, Field(max_length=100)] | None = None


Conversation = Annotated[
    list[TokenizeMessage], Field(min_length=1, max_length=MESSAGES_MAXIMUM, fail_fast=True)
]
"""Only the first wrong message is named. To name all of thousands takes long, and nobody else is served meanwhile. So
other lists of many objects name their first wrong one too."""


class TokenizeBody(RequestBody):
    """A text, or the messages of a conversation, which is rendered as chat completions render it. `add_special_tokens`
    belongs to a text: with `false` it is tokenized exactly as written."""

    text: Written | None = None
    messages: Conversation | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(RequestBody):
    """The ids of tokens."""

    ids: Annotated[list[Id], Field(min_length=1, fail_fast=True)]


def router(speller: Speller, settings: Settings) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["inference"])

    @routes.post("/tokenize", response_model=Answer[TokenizedText])
    async def tokenize(body: TokenizeBody, request: Request) -> Response:
        prompt = _prompt(body)
        client = client_of(request, settings)
        has_special = body.add_special_tokens is not False
        return success(await speller.spell(prompt, has_special=has_special, client=client))

    @routes.post("/detokenize", response_model=Answer[TokenizedText])
    async def detokenize(body: DetokenizeBody, request: Request) -> Response:
        return success(await speller.read_back(body.ids, client=client_of(request, settings)))

    return routes


def _prompt(body: TokenizeBody) -> str | prompts.Conversation:
    """Raises:
    Refusal: VALIDATION_ERROR.
    """
    prompt = text_or_chat(body.text, body.messages)
    if body.messages is not None and body.add_special_tokens is not None:
        raise refuse_field(
            "add_special_tokens", "belongs to text; a template writes its own tokens"
        )
    return prompt


def text_or_chat(
    text: str | None, messages: Sequence[TokenizeMessage] | None
) -> str | prompts.Conversation:
    """The prompt of a body with either a text or the messages of a conversation.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    if (text is None) == (messages is None):
        raise refuse_field("text", "give either text or messages")
    if messages is None:
        return text or ""
    return tuple(prompts.message(one.role, _joined(one.content), one.name) for one in messages)


def _joined(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def texts_or_chats(
    given: Sequence[str | list[TokenizeMessage]],
) -> tuple[str | prompts.Conversation, ...]:
    """The texts and conversations of a list that has both."""
    return tuple(map(given_text, given))


def given_text(given: str | list[TokenizeMessage]) -> str | prompts.Conversation:
    """A text, or the conversation of messages."""
    return given if isinstance(given, str) else text_or_chat(None, given)


def invalid_field(field: str, why: str) -> Refusal:
    """The refusal of a body for a rule that joins several fields. `field` is named as the offender."""
    return refuse_value(["body", field], why, f"body.{field}: {why}", param=field)


def client_of(request: Request, settings: Settings) -> str:
    """The client under whose name a request is counted."""
    return clients.client(
        request.client.host if request.client else None,
        request.headers.get("authorization"),
        has_keys=bool(settings.api_keys),
    )
