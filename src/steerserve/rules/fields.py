"""Which request fields each `/v1` route honours, refuses or does not use, and the strict-mode verdict.

Refused fields would change the output and cannot be honoured: they are refused before any model is loaded. The values
that mean no change are accepted everywhere. Everything else that is unknown is reported, and refused in strict mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from steerserve.errors import Refusal

CHAT = "chat"
COMPLETIONS = "completions"

_SAMPLING = frozenset(
    "model stream stream_options temperature top_p max_tokens max_completion_tokens stop "
    "frequency_penalty presence_penalty seed".split()
)
HONOURED: dict[str, frozenset[str]] = {
    CHAT: _SAMPLING | {"messages", "n"},
    COMPLETIONS: _SAMPLING | {"prompt"},
}
"""Fields a route reads."""

_OUTPUT_CHANGING = frozenset(
    "logprobs top_logprobs allowed_token_ids return_tokens_as_token_ids add_special_tokens response_format profile "
    "steering_intensity steering return_sae_activations extra_messages dimensions tools tool_choice logit_bias".split()
)
REFUSED: dict[str, frozenset[str]] = {CHAT: _OUTPUT_CHANGING, COMPLETIONS: _OUTPUT_CHANGING | {"n"}}
"""Fields that would change the output of a route and are not honoured there."""

_MESSAGE_FIELDS = frozenset({"role", "content", "name"})


def means_no_change(field: str, value: Any) -> bool:
    """Whether a value of a refused field asks for nothing."""
    if value is None:
        return True
    match field:
        case "n":
            return type(value) is int and value == 1
        case "logprobs" | "return_tokens_as_token_ids":
            return value is False
        case "add_special_tokens":
            return value is True
        case "response_format":
            return bool(value == {"type": "text"})
        case "tools" | "extra_messages":
            return bool(value == [])
        case "logit_bias":
            return bool(value == {})
        case "tool_choice":
            return bool(value == "none")
        case _:
            return False


def check_honoured(route: str, body: Mapping[str, Any]) -> None:
    """Raises:
    Refusal: FIELD_NOT_HONOURED naming every field that would change the output and is not honoured.
    """
    found = [
        name
        for name, value in body.items()
        if name in REFUSED[route] and not means_no_change(name, value)
    ]
    if found:
        raise Refusal(
            "FIELD_NOT_HONOURED",
            f"{', '.join(found)}: not honoured by this route, and would change the output",
            param=found[0],
            fields=found,
        )


def unused(route: str, body: Mapping[str, Any]) -> list[str]:
    """Locations of the fields that the route does not use, in the request's order."""
    read = HONOURED[route] | REFUSED[route]
    found = [name for name, value in body.items() if name not in read and value is not None]
    messages = body.get("messages")
    if route == CHAT and isinstance(messages, list):
        for index, message in enumerate(messages):
            if isinstance(message, dict):
                found += [
                    f"messages[{index}].{name}"
                    for name, value in message.items()
                    if name not in _MESSAGE_FIELDS and value is not None
                ]
    return found


def is_strict(header: str | None) -> bool:
    """The X-Service-Strict header.

    Raises:
        Refusal: INVALID_PARAMETER naming the header for any value but true, false, 1 and 0.
    """
    if header is None:
        return False
    value = header.strip().lower()
    if value not in ("true", "1", "false", "0"):
        raise Refusal(
            "INVALID_PARAMETER",
            "X-Service-Strict must be true, false, 1 or 0",
            param="X-Service-Strict",
        )
    return value in ("true", "1")


def check_strict(locations: list[str]) -> None:
    """Raises:
    Refusal: UNUSED_FIELDS_REFUSED naming every location.
    """
    if locations:
        raise Refusal(
            "UNUSED_FIELDS_REFUSED",
            f"strict mode: not used: {', '.join(locations)}",
            param=locations[0],
            fields=locations,
        )


def header_value(locations: Sequence[str], limit: int) -> str:
    """Locations joined by `, ` in at most `limit` bytes; what is cut off is counted in a last `+N more`."""
    kept: list[str] = []
    length = 0
    best = ""
    for place, location in enumerate((*locations, "")):
        rest = len(locations) - place
        more = [f"+{rest} more"] if rest else []
        if length + sum(map(len, more)) + 2 * (len(more) and bool(kept)) <= limit:
            best = ", ".join([*kept, *more])
        encoded = quote(location, safe="[]._-:/@!$&'()*+;=~")
        length += len(encoded) + (2 if kept else 0)
        if length > limit:
            break
        kept.append(encoded)
    return best
