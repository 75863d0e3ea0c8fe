"""Which request fields each `/v1` route honours, refuses or ignores, and how its headers are read.

A field that would change the output and cannot be honoured is refused before any model is loaded, unless its value asks
for no change. Every other field that a route does not use is ignored and reported; strict mode refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote, unquote

from steerserve.errors import Refusal
from steerserve.parts.registry import body_fields, parts
from steerserve.rules import near_names
from steerserve.rules.bounds import UNUSED_FIELDS
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference.known_fields import Known, OfType
from steerserve.rules.inference.names import (
    CHAT,
    CHECKPOINT,
    COMPLETIONS,
    EMBEDDINGS,
    GGUF,
    OUTPUT_LOGPROBS,
    RESPONSES,
)
from steerserve.rules.steering import request as sae_steering

_CHAT = (CHAT, CHECKPOINT)
_CHAT_GGUF = (CHAT, GGUF)
_TEXT = (COMPLETIONS, CHECKPOINT)
_TEXT_GGUF = (COMPLETIONS, GGUF)
_RESPONSE = (RESPONSES, CHECKPOINT)

CHANGING: dict[str, frozenset[tuple[str, str]]] = {
    "logprobs": frozenset({_CHAT, _TEXT}),
    "allowed_token_ids": frozenset({_CHAT, _TEXT}),
    "top_logprobs": frozenset({_CHAT, _RESPONSE}),
    "seed": frozenset({_CHAT, _TEXT, _RESPONSE}),
    "n": frozenset({_CHAT}),
    "max_completion_tokens": frozenset({_CHAT, _CHAT_GGUF, _TEXT, _TEXT_GGUF}),
    "profile": frozenset({_CHAT, _RESPONSE}),
    "steering_intensity": frozenset({_CHAT, _RESPONSE}),
    "steering": frozenset(),
    sae_steering.FIELD: frozenset({_CHAT, _TEXT, _RESPONSE}),
    sae_steering.INTERVENTIONS: frozenset({_CHAT, _TEXT, _RESPONSE}),
    **{
        name: frozenset((route, CHECKPOINT) for route in field.routes)
        for name, field in body_fields().items()
        if field.is_refused
    },
    "dimensions": frozenset(),
    "tools": frozenset(),
    "tool_choice": frozenset(),
    "logit_bias": frozenset(),
}
"""Field that changes the output -> the pairs of route and engine that honour the field. Every other pair refuses it."""

REASONING = "reasoning"
"""The type of an input item that the service does not read: no chat template takes what a model thought before."""

_OF_RESPONSES: dict[str, frozenset[tuple[str, str]]] = {
    "text": frozenset({_RESPONSE}),
    "include": frozenset({_RESPONSE}),
    "store": frozenset(),
    "background": frozenset(),
    "previous_response_id": frozenset(),
    "conversation": frozenset(),
    "prompt": frozenset(),
    "truncation": frozenset(),
    "max_tokens": frozenset(),
    "messages": frozenset(),
}
"""The same for fields that change the output of `/v1/responses` alone. The service stores no response."""

_SAMPLING = frozenset(
    "model stream stream_options temperature top_p max_tokens stop frequency_penalty presence_penalty".split()
)
_SPECIAL = "add_special_tokens"
SCORE_STEERED = "score_steered"
"""This field says that the steering in a scoring request is meant. It is unused in every other request."""
STORE = "store"
"""This field keeps an answer out of the record of answers where it is false, and is unused otherwise. `/v1/responses`
refuses other values."""
_ECHO = "echo"
"""This field asks for the log-probabilities of the prompt, so it is unused in a request without log-probabilities."""


def _of_parts(route: str) -> frozenset[str]:
    """The fields that parts have on a route, where other routes do not use them."""
    fields = body_fields().items()
    return frozenset(n for n, field in fields if not field.is_refused and route in field.routes)


READ: dict[str, frozenset[str]] = {
    CHAT: _SAMPLING
    | {"messages", "extra_messages", "chat_template_kwargs", "return_tokens_as_token_ids"}
    | {SCORE_STEERED}
    | _of_parts(CHAT),
    COMPLETIONS: _SAMPLING
    | {"prompt", "add_special_tokens", "return_tokens_as_token_ids", _ECHO}
    | {SCORE_STEERED}
    | _of_parts(COMPLETIONS),
    EMBEDDINGS: frozenset({"model", "input", "encoding_format"}),
    RESPONSES: _SAMPLING - {"max_tokens", "stream_options"}
    | {"input", "instructions", "max_output_tokens", "metadata", "chat_template_kwargs"}
    | _of_parts(RESPONSES),
}
"""Route -> the fields that it reads beside those of `CHANGING`."""

_FIELDS = frozenset().union(CHANGING, _OF_RESPONSES, *READ.values())
"""The fields of all routes."""
_STEERING_FIELDS = (
    sae_steering.FIELD,
    sae_steering.INTERVENTIONS,
    "steering_intensity",
    SCORE_STEERED,
    *(name for name, field in body_fields().items() if field.is_of_steering),
)
"""The fields that steer, or ask what steering did. A request that misspells one would be answered without it."""
_OF_OTHERS = frozenset({"return_logprob"})
"""Fields of other servers that are nearly one of `_STEERING_FIELDS`."""

_IDLE_IN_SCORING: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("top_p", (1,)),
    ("stop", ([],)),
    ("frequency_penalty", (0,)),
    ("presence_penalty", (0,)),
)
"""Sampling fields that scoring does not use, each with the values that ask for no change."""

_ANY = None
_MESSAGE: Known = {"role": _ANY, "content": {"type": _ANY, "text": _ANY}, "name": _ANY}
_INNER: dict[str, Known] = {
    "messages": _MESSAGE,
    "extra_messages": _MESSAGE,
    "stream_options": {"include_usage": _ANY},
}
_WHOLE: dict[str, Known] = {
    "text.format": OfType(
        "json_schema", dict.fromkeys(("name", "description", "strict", "schema"))
    ),
    sae_steering.FIELD: {
        "features": dict.fromkeys(("index", "value", "sae_id", "layer")),
        "mode": _ANY,
    },
    **{name: field.known for name, field in body_fields().items() if field.known is not None},
}
"""Objects that say what is written. An unknown field inside one is refused, because without it the answer is another
one."""
_REFUSAL_CODES = {
    "text.format": "RESPONSE_FORMAT_UNSUPPORTED",
    **{name: field.code for name, field in body_fields().items()},
}

_INPUT: Known = {
    **dict.fromkeys(("type", "id", "status", "role", "phase")),
    "content": dict.fromkeys(("type", "text", "annotations", "logprobs")),
}
_INNER_OF_RESPONSES: dict[str, Known] = {"input": _INPUT, "text": {"format": _ANY}}


def changing_fields(route: str) -> Mapping[str, frozenset[tuple[str, str]]]:
    """The fields that change the output of a route, as `CHANGING` has them."""
    return CHANGING | _OF_RESPONSES if route == RESPONSES else CHANGING


def means_no_change(field: str, value: object, route: str = CHAT) -> bool:
    """Whether a value of a field in `changing_fields` asks for no change of the output."""
    if value is None or (route == RESPONSES and _is_idle_in_responses(field, value)):
        return True
    match field:
        case "n":
            return type(value) is int and value == 1
        case "logprobs":
            return value is False
        case "tools":
            return bool(value == [])
        case "logit_bias":
            return bool(value == {})
        case _:
            return field in body_fields() and value in body_fields()[field].idle


def _is_idle_in_responses(field: str, value: object) -> bool:
    """The same for values that only `/v1/responses` takes."""
    match field:
        case "text":
            form = value.get("format") if isinstance(value, Mapping) else value
            return form is None or form == {"type": "text"}
        case "include":
            return isinstance(value, list) and OUTPUT_LOGPROBS not in value
        case "store" | "background":
            return value is False
        case "truncation":
            return value == "disabled"
        case "tool_choice":
            return value in ("auto", "none")
        case _:
            return False


def changing(body: Mapping[str, object], route: str = CHAT) -> tuple[str, ...]:
    """The fields of a body that ask for a change of the output, in the order of the body."""
    known = changing_fields(route)
    return tuple(
        name
        for name, value in body.items()
        if name in known and not means_no_change(name, value, route)
    )


def read_fields(route: str, body: Mapping[str, object]) -> dict[str, object]:
    """The fields of a body that the route reads."""
    read = READ[route] | changing_fields(route).keys()
    return {name: value for name, value in body.items() if name in read and value is not None}


def nearest(route: str, unused: Sequence[str], body: Mapping[str, object]) -> dict[str, object]:
    """For the log: the field that each unused one of the body itself was perhaps meant to be."""
    known = sorted(READ[route] | changing_fields(route).keys())
    named = (name for name in unused if name in body)
    found = {name: near for name in named if (near := near_names.nearly(name, known))}
    return {"nearest": found} if found else {}


def check_honoured(
    route: str, names: Sequence[str], engine: str, body: Mapping[str, object] | None = None
) -> None:
    """Raises:
    Refusal: FIELD_NOT_HONOURED naming every field that the route and the engine do not honour; for a response the
        types of the tools in its body too.
    """
    known = changing_fields(route)
    refused = [name for name in names if (route, engine) not in known[name]]
    if refused:
        is_for_gguf = any((route, CHECKPOINT) in known[name] for name in refused)
        where = "a GGUF model on this route" if is_for_gguf else "this route"
        is_other = "steering" in refused and (route, engine) in CHANGING[sae_steering.FIELD]
        instead = f"; send {sae_steering.FIELD} to steer one request" if is_other else ""
        hints = dict.fromkeys(_INSTEAD[name] for name in refused if name in _INSTEAD)
        if route == RESPONSES:
            hints |= dict.fromkeys(
                _INSTEAD_IN_RESPONSES[n] for n in refused if n in _INSTEAD_IN_RESPONSES
            )
        instead += "".join(f"; {hint}" for hint in hints)
        why = "and would change the output"
        if route == RESPONSES and _OF_STORED.issuperset(refused):
            why = "because no response is stored"
        kinds = _tool_types(body or {}) if route == RESPONSES else ""
        named = [f"tools ({kinds})" if name == "tools" and kinds else name for name in refused]
        raise Refusal(
            "FIELD_NOT_HONOURED",
            f"{', '.join(named)}: not honoured by {where}, {why}{instead}",
            param=refused[0],
            fields=refused,
        )


_TOOLS = "no model here calls tools: ask for their arguments with response_format, in a response with text.format"
_INSTEAD = {
    "tools": _TOOLS,
    "tool_choice": _TOOLS,
    "n": "send several prompts for several answers",
    "dimensions": "the embeddings have the width of the model",
}
"""What to use in the place of a field that is not honoured."""
_WHOLE_CONVERSATION = "send the whole conversation as input"
_INSTEAD_IN_RESPONSES = {
    "max_tokens": "send max_output_tokens",
    "messages": "send input",
    "response_format": "send text.format",
    "previous_response_id": _WHOLE_CONVERSATION,
    "conversation": _WHOLE_CONVERSATION,
    "store": "send store: false",
}
_OF_STORED = frozenset({"store", "background", "previous_response_id", "conversation"})
"""Fields of the Responses API that need stored responses."""


def _tool_types(body: Mapping[str, object]) -> str:
    """The types of the first tools of a request, each named once."""
    tools = body.get("tools")
    some = tools[:TOOLS_NAMED] if isinstance(tools, list) else []
    types = [tool.get("type") for tool in some if isinstance(tool, Mapping)]
    return ", ".join(dict.fromkeys(kind for kind in types if isinstance(kind, str)))


TOOLS_NAMED = 20


def unused_by(engine: str, body: Mapping[str, object]) -> list[str]:
    """Fields that the route uses and this engine does not. They are reported in the answer, and never refused."""
    is_idle = engine == GGUF and body.get("chat_template_kwargs")
    return ["chat_template_kwargs"] if is_idle else []


_AS_IDS = "return_tokens_as_token_ids"
"""This field says how log-probabilities are written, so it is unused in a request without log-probabilities."""


def is_scoring(body: Mapping[str, object]) -> bool:
    """Whether a body asks for the distribution of the next token instead of text."""
    return any(name in ("logprobs", "allowed_token_ids") for name in changing(body))


def check_scoring(body: Mapping[str, object]) -> None:
    """Raises:
    Refusal: FIELD_NOT_HONOURED naming the fields that ask for steering. A scoring request is steered only where it
        says so itself. An intensity, and what is told of a generated answer, are never honoured.
    """
    steering = {"profile", sae_steering.FIELD, sae_steering.INTERVENTIONS}
    of_parts = {n: field for n, field in body_fields().items() if not field.may_be_scored}
    never = {"steering_intensity", *of_parts}
    may_steer = body.get(SCORE_STEERED) is True
    asking = never if may_steer else never | steering
    refused = [name for name in changing(body) if name in asking]
    refused += [
        name
        for name, field in of_parts.items()
        if not field.is_refused and body.get(name) not in (None, *field.idle)
    ]
    if refused:
        why = "" if never.issuperset(refused) else f" without {SCORE_STEERED}: true"
        raise Refusal(
            "FIELD_NOT_HONOURED",
            f"{', '.join(refused)}: not honoured on a scoring request{why}",
            param=refused[0],
            fields=refused,
        )


def check_named_profile(profile: str | None, route: str, engine: str) -> None:
    """Raises:
    Refusal: FIELD_NOT_HONOURED for a name `model@profile` where nothing is steered.
    """
    if profile is None or (route != EMBEDDINGS and engine == CHECKPOINT):
        return
    what = "an embedding" if route == EMBEDDINGS else "a GGUF model"
    why = f"model: {what} is never steered, so the name takes no profile"
    raise Refusal("FIELD_NOT_HONOURED", why, param="model", fields=["model"])


def unused(route: str, body: Mapping[str, object]) -> list[str]:
    """Locations of the fields that the route does not use.

    Raises:
        Refusal: INVALID_PARAMETER for more than UNUSED_FIELDS of them.
    """
    used, has_logprobs = READ[route], "logprobs" in changing(body)
    honoured = changing_fields(route)
    if not has_logprobs and body.get(_ECHO):
        used -= {_ECHO}
    if body.get(STORE) is False:
        used |= {STORE}
    if body.get(SCORE_STEERED) and not is_scoring(body):
        used -= {SCORE_STEERED}
    locations = [
        name
        for name, value in body.items()
        if name not in used and name not in honoured and value is not None
    ]
    included = body.get("include") if route == RESPONSES else None
    if isinstance(included, list):
        others = [at for at, value in enumerate(included) if value != OUTPUT_LOGPROBS]
        locations += [f"include[{at}]" for at in others]
    inner = _INNER | _INNER_OF_RESPONSES if route == RESPONSES else _INNER
    for field, known in inner.items():
        if field in used or field in honoured:
            found = islice(_unknown(field, body.get(field), known), UNUSED_FIELDS + 1)
            locations += [one.where for one in found]
            if len(locations) > UNUSED_FIELDS:
                raise refuse_parameter(field, f"at most {UNUSED_FIELDS} fields that are not used")
    if is_scoring(body):
        locations += [
            name for name, idle in _IDLE_IN_SCORING if body.get(name) not in (None, *idle)
        ]
    for part in parts().values() if route != EMBEDDINGS else ():
        locations += part.find_unused(body, route)
    if not has_logprobs and _AS_IDS in used and body.get(_AS_IDS):
        locations.append(_AS_IDS)
    if route == COMPLETIONS and body.get(_SPECIAL) and _is_in_ids(body.get("prompt")):
        locations.append(_SPECIAL)
    return locations


def query_locations(names: Iterable[str]) -> list[str]:
    """Locations of query parameters that nothing reads."""
    return [f"query.{name}" for name in names]


def _is_in_ids(prompt: object) -> bool:
    """Whether a prompt comes as token ids, which get no special tokens."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int | list)


class _Unknown(NamedTuple):
    """A field inside a value that nothing reads, and the fields that are read there. `of_type` is the type of objects
    that have more fields."""

    where: str
    name: str
    known: list[str]
    of_type: str | None = None


def _unknown(where: str, value: object, known: Known) -> Iterator[_Unknown]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(f"{where}[{index}]", item, known)
    elif isinstance(value, Mapping):
        if known is _INPUT and value.get("type") == REASONING:
            yield _Unknown(where, "", [])
            return
        read = known.read_of(value) if isinstance(known, OfType) else known
        of_type = (
            known.type if isinstance(known, OfType) and value.get("type") != known.type else None
        )
        for name, inner in value.items():
            if name in read:
                if read[name] is not _ANY:
                    yield from _unknown(f"{where}.{name}", inner, read[name])
            elif inner is not None:
                yield _Unknown(f"{where}.{name}", name, list(read), of_type)


def check_whole(route: str, body: Mapping[str, object]) -> None:
    """Check the objects that say what is written.

    Raises:
        Refusal: naming the place of the first field inside one that nothing reads.
    """
    used = READ[route] | changing_fields(route).keys()
    for path, known in _WHOLE.items():
        field, _, part = path.partition(".")
        value = body.get(field) if field in used else None
        if part:
            value = value.get(part) if isinstance(value, Mapping) else None
        for one in _unknown(path, value, known):
            code = _REFUSAL_CODES.get(path, "INVALID_PARAMETER")
            hint = near_names.hint(one.name, one.known)
            if one.of_type is not None:
                hint = f"only a {path} of type {one.of_type!r} has other fields than type"
            raise Refusal(code, f"{one.where}: unknown field; {hint}", param=one.where)


def near_steering_field(name: str) -> str | None:
    """The field that steers, or asks what steering did, which an unknown name is nearly; None where there is none."""
    if name in _FIELDS or name in _OF_OTHERS:
        return None
    return near_names.nearly(name, _STEERING_FIELDS)


def check_near(unused: Sequence[str], body: Mapping[str, object]) -> None:
    """Raises:
    Refusal: UNUSED_FIELDS_REFUSED naming every unused field, where one of the body itself is nearly the name of a
        steering field.
    """
    for name in unused:
        near = near_steering_field(name) if name in body else None
        if near is not None:
            raise Refusal(
                "UNUSED_FIELDS_REFUSED",
                f"{name}: unknown field, and nearly {near}; not used: {', '.join(unused)}. "
                "With X-Service-Strict: false they are ignored",
                param=name,
                fields=list(unused),
                nearest=near,
            )


def is_strict(header: str | None) -> bool | None:
    """The X-Service-Strict header; None where there is none.

    Raises:
        Refusal: INVALID_PARAMETER naming the header for any value but true, false, 1 and 0.
    """
    if header is None:
        return None
    value = header.strip().lower()
    if value not in ("true", "1", "false", "0"):
        raise Refusal(
            "INVALID_PARAMETER",
            "X-Service-Strict must be true, false, 1 or 0",
            param="X-Service-Strict",
        )
    return value in ("true", "1")


def may_load(header: str | None) -> bool:
    """The X-Service-Load-Policy header: whether the request may load a model.

    Raises:
        Refusal: INVALID_PARAMETER naming the header for any value but auto and refuse.
    """
    policy = "auto" if header is None else header.strip().lower()
    if policy not in ("auto", "refuse"):
        raise Refusal(
            "INVALID_PARAMETER",
            "X-Service-Load-Policy must be auto or refuse",
            param="X-Service-Load-Policy",
        )
    return policy == "auto"


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


def locations(header: str | None) -> tuple[str, ...]:
    """The locations in a value of `header_value`, and the count of the others where not all of them fit."""
    return tuple(map(unquote, header.split(", "))) if header else ()


_WRITTEN = "".join(set(map(chr, range(0x20, 0x7F))) - set(" %,"))
"""Characters that the header writes as they are. All others are percent-encoded, so that a comma and a blank always
separate two locations."""


def header_value(locations: Sequence[str], limit: int) -> str:
    """Locations joined by `, ` in at most `limit` bytes. `+N more` at the end counts the locations that do not fit."""
    kept: list[str] = []
    length = 0
    best = ""
    for place, location in enumerate((*locations, "")):
        rest = len(locations) - place
        more = [f"+{rest} more"] if rest else []
        if length + sum(map(len, more)) + 2 * (len(more) and bool(kept)) <= limit:
            best = ", ".join([*kept, *more])
        encoded = quote(location, safe=_WRITTEN) or '""'
        length += len(encoded) + (2 if kept else 0)
        if length > limit:
            break
        kept.append(encoded)
    return best
