"""How `/v1/responses` writes a response, whole or as the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from steerserve.http.event_stream import event
from steerserve.openai import bodies
from steerserve.openai.shape import AnswerChoice
from steerserve.parts.registry import parts

PREFIX = "resp"
_json = msgspec.json.Encoder().encode
_STATUS = {"stop": "completed", "length": "incomplete"}
"""Why a text ended -> the status of its response."""
_CUT = {"reason": "max_output_tokens"}


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """The fields of a response that are known before its first token. `created` is in seconds since 1970. `planned` has
    the plans of the request's parts."""

    body: bodies.ResponseBody
    id: str
    created: int
    model: str
    fingerprint: str
    planned: Mapping[str, Any]

    @property
    def item_id(self) -> str:
        """The id of the one message of the response."""
        return "msg_" + self.id.removeprefix(PREFIX + "_")

    def begun(self) -> dict[str, object]:
        """The response before its first token."""
        return self._response("in_progress", [], None)

    def whole(self, choice: AnswerChoice, prompt_tokens: int, **more: object) -> dict[str, object]:
        """The response that is complete, or that the token limit has cut. `more` has what the service adds."""
        status = status_of(choice)
        usage = usage_of(prompt_tokens, choice.tokens)
        return self._response(status, [self.item(status, choice)], usage) | more

    def failed(self, choice: AnswerChoice, error: dict[str, object]) -> dict[str, object]:
        """The response that failed after it had begun, with the text so far."""
        item = self.item("incomplete", choice)
        return self._response("failed", [item], None) | {"error": error}

    def item(self, status: str, choice: AnswerChoice | None = None) -> dict[str, object]:
        """The message; without its content where it has only begun."""
        content = [] if choice is None else [self.part(choice)]
        return {
            "type": "message",
            "id": self.item_id,
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def part(self, choice: AnswerChoice) -> dict[str, object]:
        """The content of the message, with log-probabilities where the request asks for them."""
        return {
            "type": "output_text",
            "text": "".join(choice.text),
            "annotations": [],
            "logprobs": self.logprobs(choice),
        }

    def logprobs(self, choice: AnswerChoice) -> list[dict[str, object]]:
        """The log-probabilities of the tokens, where a part tells them inside the text."""
        return [
            entry
            for name, planned in self.planned.items()
            for entry in parts()[name].tell_inside(planned, choice.chunks_of(parts()[name]))
        ]

    def _response(
        self, status: str, output: list[dict[str, object]], usage: dict[str, object] | None
    ) -> dict[str, object]:
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": _CUT if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "system_fingerprint": self.fingerprint,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": _format(body.text)},
            "tool_choice": "none",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": usage,
        }


class Events:
    """Writes the events of one stream with their running numbers."""

    def __init__(self, item_id: str) -> None:
        self._number = -1
        self._item = {"output_index": 0, "item_id": item_id, "content_index": 0}

    def write(self, kind: str, **fields: object) -> bytes:
        """An event of this type."""
        self._number += 1
        body = {"type": kind, "sequence_number": self._number, **fields}
        return event(_json(body), kind)

    def of_text(self, kind: str, **fields: object) -> bytes:
        """An event about the text of the message."""
        return self.write(kind, **self._item, **fields)


def usage_of(input_tokens: int, output_tokens: int) -> dict[str, object]:
    """The tokens of a response, or of all lines of a batch."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


def status_of(choice: AnswerChoice) -> str:
    """The status of a response whose text has ended."""
    assert choice.finish is not None
    return _STATUS[choice.finish]


def _format(text: bodies.TextOptions | None) -> dict[str, object]:
    wanted = text.format if text is not None else None
    if wanted is None:
        return {"type": "text"}
    known = {"type", "name", "strict", "schema_"}
    return wanted.model_dump(include=known, exclude_none=True, by_alias=True)
