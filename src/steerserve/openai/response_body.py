"""Reads the body of `POST /v1/responses` as that of a chat: its conversation and its fields, with their names there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from steerserve.errors import Refusal
from steerserve.openai import bodies
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference import prompts

_NAMES = {"response_format": "text.format", "messages": "input", "max_tokens": "max_output_tokens"}
"""The fields of chats that a response has under another name."""


def conversation(body: bodies.ResponseBody) -> prompts.Conversation:
    """The messages in the form of chat templates. The instructions come first, as a message of the system."""
    first = [] if body.instructions is None else [("system", body.instructions)]
    if isinstance(body.input, str):
        rest = [("user", body.input)]
    else:
        messages = [item for item in body.input if isinstance(item, bodies.InputMessage)]
        rest = [(message.role, _text(message.content)) for message in messages]
    if not rest:
        raise refuse_parameter("input", "needs a message")
    return tuple(prompts.message(role, content, None) for role, content in first + rest)


def as_chat(body: bodies.ResponseBody) -> bodies.ChatBody:
    """The body as that of a chat, without its conversation and its parts."""
    shared = {*bodies.Written.model_fields, *bodies.Dialed.model_fields}
    fields = {name: getattr(body, name) for name in shared}
    return bodies.ChatBody.model_construct(
        max_tokens=body.max_output_tokens,
        **fields,
    )


@contextmanager
def named_as_sent() -> Iterator[None]:
    """Refusals inside the block name a field as the body of a response has it."""
    try:
        yield
    except Refusal as refusal:
        raise as_sent(refusal) from refusal


def as_sent(refusal: Refusal) -> Refusal:
    """A refusal that names the field of a chat, with the name that the field has in a response."""
    name = _NAMES.get(refusal.param or "")
    if name is None or refusal.code == "FIELD_NOT_HONOURED":
        return refusal
    assert refusal.param is not None
    why = refusal.message.replace(refusal.param, name, 1)
    return Refusal(refusal.code, why, param=name, **refusal.details)


def _text(content: str | list[bodies.InputPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
