"""Bounds on the counts in a `/v1` body. They are checked before the body is validated, because the validation of a long
list takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

from steerserve.openai.bodies import ID_PROMPT, kind_of_prompt
from steerserve.parts.registry import parts
from steerserve.rules.bounds import STEERED_FEATURES
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference import names
from steerserve.rules.steering import request as sae_steering
from steerserve.settings import Settings

FIELDS_MAXIMUM = 1000
"""Fields of a body, of a message, and of `chat_template_kwargs`; names in `include`."""

PARTS_MAXIMUM = 10_000
"""Parts of contents in all messages of a request."""

STOP_CHARACTERS = 1000
"""Characters of a stop string. The end of a text is compared with stop strings at every token."""


_CONVERSATION = {names.CHAT: "messages", names.RESPONSES: "input"}
"""Route -> the field with its conversation."""


def check_counts(route: str, body: dict[str, object], settings: Settings) -> None:
    """Check the fields that the route reads. A field that the route does not use may be of any length.

    Raises:
        Refusal: INVALID_PARAMETER for a list, a text or an object that is too long; SAE_ACTIVATIONS_REFUSED for too
            many features.
    """
    _at_most("the body", body, FIELDS_MAXIMUM, "fields")
    if route == names.EMBEDDINGS:
        _at_most("input", body.get("input"), settings.embeddings_max_inputs, "of them")
        return
    if route == names.COMPLETIONS and kind_of_prompt(body.get("prompt")) != ID_PROMPT:
        _at_most("prompt", body.get("prompt"), settings.max_prompts, "of them")
    if route == names.CHAT:
        extra = body.get("extra_messages")
        _at_most("extra_messages", extra, settings.max_extra_messages, "conversations")
    if route in _CONVERSATION:
        variables = body.get("chat_template_kwargs")
        _at_most("chat_template_kwargs", variables, FIELDS_MAXIMUM, "variables")
        _check_messages(route, body, settings.max_messages)
        _at_most("include", body.get("include"), FIELDS_MAXIMUM, "names")
    allowed = body.get("allowed_token_ids")
    _at_most("allowed_token_ids", allowed, settings.scoring_max_entries, "token ids")
    for part in parts().values():
        part.check_counts(body, settings)
    steering = body.get(sae_steering.FIELD)
    if isinstance(steering, dict):
        where, limit = f"{sae_steering.FIELD}.features", STEERED_FEATURES
        _at_most(where, steering.get("features"), limit, "features")
    _check_stops(body.get("stop"), settings.max_stop_strings)


def _at_most(where: str, value: object, maximum: int, things: str) -> None:
    if isinstance(value, list | dict) and len(value) > maximum:
        raise refuse_parameter(where, f"at most {maximum} {things}")


def _check_stops(stops: object, maximum: int) -> None:
    _at_most("stop", stops, maximum, "stop strings")
    for stop in stops if isinstance(stops, list) else [stops]:
        if isinstance(stop, str) and len(stop) > STOP_CHARACTERS:
            raise refuse_parameter("stop", f"at most {STOP_CHARACTERS} characters in a stop string")


def _check_messages(route: str, body: dict[str, object], maximum: int) -> None:
    """The messages of all conversations count together."""
    messages = parts = 0
    for where, conversation in _conversations(route, body):
        messages += len(conversation)
        if messages > maximum:
            why = f"at most {maximum} messages in all conversations of a request"
            raise refuse_parameter(where, why)
        for index, message in enumerate(conversation):
            if not isinstance(message, dict):
                continue
            _at_most(f"{where}[{index}]", message, FIELDS_MAXIMUM, "fields")
            content = message.get("content")
            parts += len(content) if isinstance(content, list) else 0
            if parts > PARTS_MAXIMUM:
                why = f"at most {PARTS_MAXIMUM} parts in all messages of a request"
                raise refuse_parameter(f"{where}[{index}].content", why)


def _conversations(route: str, body: dict[str, object]) -> Iterator[tuple[str, list[object]]]:
    """The lists of messages in a body, each with its location."""
    first = _CONVERSATION[route]
    if isinstance(messages := body.get(first), list):
        yield first, messages
    extra = body.get("extra_messages") if route == names.CHAT else None
    for index, conversation in enumerate(extra if isinstance(extra, list) else []):
        if isinstance(conversation, list):
            yield f"extra_messages[{index}]", conversation
