"""The bodies of `/v1` requests: their fields, their validation, and their part of the API description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from steerserve.errors import Refusal
from steerserve.parts.bodies import NAME_MAXIMUM, Body, WholeBody
from steerserve.parts.part import load
from steerserve.parts.registry import body_fields
from steerserve.rules import field_faults
from steerserve.rules.bounds import NAME_CHARACTERS, STEERED_FEATURES
from steerserve.rules.inference import fields, names
from steerserve.rules.steering import interventions
from steerserve.rules.steering import placed as steering

SEED_MAXIMUM = 2**32 - 1
COUNT_MAXIMUM = 2**31 - 1
LOGPROBS_MAXIMUM = 20

Kind = TypeVar("Kind", bound=BaseModel)
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS)]


class ContentPart(Body):
    """A part of a message's content; only text is understood."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool", "function", "developer"]
    content: str | list[ContentPart] | None = None
    name: str | None = None


Conversation = Annotated[list[ChatMessage], Field(min_length=1)]


class StreamOptions(Body):
    include_usage: bool | None = None


class SteeredFeatureBody(WholeBody):
    """A feature of an attached SAE, and its value. `sae_id` and `layer` name the SAE where several are attached."""

    index: Annotated[int, Field(ge=0, le=COUNT_MAXIMUM)]
    value: Annotated[Finite, Field(ge=steering.MINIMUM, le=steering.MAXIMUM)]
    sae_id: Name | None = None
    layer: Annotated[int, Field(ge=0, le=COUNT_MAXIMUM)] | None = None


class SaeSteeringBody(WholeBody):
    """The steering of this request. It replaces the live steering, or with the mode `add` is added to it."""

    features: Annotated[list[SteeredFeatureBody], Field(max_length=STEERED_FEATURES)]
    mode: Literal["replace", "add"] | None = None


METADATA_MAXIMUM = 16
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=METADATA_MAXIMUM),
]
"""What a client keeps with an object: at most 16 texts by their names."""

_INTERVENTIONS = {"anyOf": [interventions.schema(), {"type": "null"}]}


class Written(Body):
    """The fields that all routes share which write text. The fields of parts are among them too (`with_parts`)."""

    route: ClassVar[str]

    model: Name
    stream: bool | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    stop: str | list[str] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] | None = None
    sae_steering: SaeSteeringBody | None = None
    interventions: Annotated[object, WithJsonSchema(_INTERVENTIONS)] = None


class Sampled(Written):
    """The fields that chat and text completions share."""

    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=COUNT_MAXIMUM)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=COUNT_MAXIMUM)] | None = None
    allowed_token_ids: Annotated[list[int], Field(min_length=1)] | None = None
    return_tokens_as_token_ids: bool | None = None
    score_steered: bool | None = None
    store: bool | None = None


_INTENSITY = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": 2},
        {"enum": ["off", "min", "max"]},
        {"type": "null"},
    ]
}


class Dialed(Body):
    """The fields of conversations: whose steering, how much of it, and the variables of the template."""

    profile: Name | None = None
    steering_intensity: Annotated[object, WithJsonSchema(_INTENSITY)] = None
    chat_template_kwargs: dict[str, object] | None = None


class ChatBody(Sampled, Dialed):
    """The body of `POST /v1/chat/completions`."""

    route = names.CHAT

    messages: Conversation
    extra_messages: list[Conversation] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAXIMUM)] | None = None


class InputPart(Body):
    """A part of an item's content; only text is understood."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(Body):
    """A message of the conversation."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]


class InputReasoning(Body):
    """What a model thought before. It is not part of the prompt."""

    type: Literal["reasoning"]


_REASONING_ITEM, _MESSAGE_ITEM = "reasoning-item", "message-item"


def _kind_of_item(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return _REASONING_ITEM if kind == fields.REASONING else _MESSAGE_ITEM


InputItem = Annotated[
    Annotated[InputMessage, Tag(_MESSAGE_ITEM)] | Annotated[InputReasoning, Tag(_REASONING_ITEM)],
    Discriminator(_kind_of_item),
]


class TextFormat(WholeBody):
    """The form of the answer, as `response_format` has it."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)] | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, object] | bool | None, Field(alias="schema")] = None


class TextOptions(Body):
    """How the answer is written."""

    format: TextFormat | None = None


class ResponseBody(Written, Dialed):
    """The body of `POST /v1/responses`. No response is stored, so `store` is false."""

    route = names.RESPONSES

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=COUNT_MAXIMUM)] | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAXIMUM)] | None = None
    metadata: Metadata | None = None
    store: Literal[False] | None = None


class OutputExpiry(Body):
    """How long the files that a batch writes last."""

    model_config = ConfigDict(strict=True, extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchBody(Body):
    """POST /v1/batches. There is one completion window."""

    model_config = ConfigDict(strict=True, extra="forbid")

    input_file_id: Annotated[str, Field(min_length=1, max_length=NAME_MAXIMUM)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


def kind_of_prompt(value: object) -> str:
    """Which of its forms a prompt has. A list has the form of its first item."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list):
        return "id-prompts"
    if isinstance(first, int | float):
        return ID_PROMPT
    return "text-prompts" if isinstance(value, list) else "text-prompt"


ID_PROMPT = "id-prompt"
"""One prompt as the ids of its tokens."""

TokenId = Annotated[int, Field(ge=0, le=COUNT_MAXIMUM)]
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
PromptField = Annotated[
    Annotated[str, Tag("text-prompt")]
    | Annotated[list[str], Field(min_length=1, fail_fast=True), Tag("text-prompts")]
    | Annotated[Ids, Tag(ID_PROMPT)]
    | Annotated[list[Ids], Field(min_length=1, fail_fast=True), Tag("id-prompts")],
    Discriminator(kind_of_prompt),
]
"""One prompt or several, as texts or as the ids of their tokens."""


class CompletionBody(Sampled):
    """The body of `POST /v1/completions`."""

    route = names.COMPLETIONS

    prompt: PromptField
    n: Literal[1] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=COUNT_MAXIMUM)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=0, le=COUNT_MAXIMUM)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAXIMUM)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None


class EmbeddingBody(Body):
    """The body of `POST /v1/embeddings`; inputs are texts, not token ids."""

    model: Name
    input: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None


_HEADERS = (
    ("X-Service-Strict", "`true` refuses fields that are not used."),
    ("X-Service-Load-Policy", "`refuse` never loads a model; `auto` does."),
    ("X-Service-Lease", "The id of the client's lease of the resident model."),
)


@cache
def with_parts(kind: type[Kind]) -> type[Kind]:
    """A body with the fields that parts have on its route, where it is one that writes text."""
    if not issubclass(kind, Written):
        return kind
    fields: dict[str, Any] = {
        name: (load(field.kind) | None, None)
        for name, field in body_fields().items()
        if kind.route in field.routes
    }
    made: type[Kind] = create_model(
        kind.__name__, __base__=kind, __module__=kind.__module__, __doc__=kind.__doc__, **fields
    )
    return made


def of_parts(body: Body) -> dict[str, Any]:
    """The values that a body has for the fields of parts, and for those beside which they are asked for."""
    return {name: getattr(body, name) for name in type(body).model_fields}


def validated(kind: type[Kind], raw: dict[str, object]) -> Kind:
    """The body of a request, with the fields of parts.

    Raises:
        Refusal: naming the location of the first fault.
    """
    try:
        body: Kind = with_parts(kind).model_validate(raw)
        return body
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        # a value of a union has one error for each branch: report the branch that matched deepest, and prefer an error
        # other than a wrong type
        first = max(problems, key=lambda p: (len(p["loc"]), not p["type"].endswith("_type")))
        where = _location(first["loc"])
        field = where.partition(".")[0]
        clause = _clause(first, problems, where)
        other = _ELSEWHERE.get(where)
        if first["type"] == "missing" and other is not None and raw.get(other[0]) is not None:
            clause = f"{clause}; {other[1]}"
        of_part = body_fields().get(field)
        raise Refusal(
            of_part.code if of_part else "INVALID_PARAMETER",
            f"{where}: {clause}" if where else f"the body {clause}",
            param=field if of_part and of_part.is_named_whole else where or None,
        ) from None


def _clause(first: Mapping[str, Any], problems: Sequence[Mapping[str, Any]], where: str) -> str:
    """The clause for a fault. A value of the wrong type has a fault for each type that it may have."""
    if not str(first["type"]).endswith("_type"):
        return field_faults.described(first)
    same = (one for one in problems if _location(one["loc"]) == where)
    clauses = dict.fromkeys(
        field_faults.described(one) for one in same if str(one["type"]).endswith("_type")
    )
    return " or ".join(
        [next(iter(clauses)), *(c.removeprefix("must be ") for c in list(clauses)[1:])]
    )


_ELSEWHERE = {
    "messages": ("prompt", "this route takes messages, and a prompt goes to /v1/completions"),
    "prompt": ("messages", "this route takes a prompt, and messages go to /v1/chat/completions"),
}
"""A field that is missing -> the field of another route that was sent, and where it goes."""

_PROMPTS = frozenset({"text-prompt", "text-prompts", "id-prompt", "id-prompts"})
_ITEMS = frozenset({_MESSAGE_ITEM, _REASONING_ITEM})
_BRANCHES = frozenset({"str", "constrained-str", "float", "bool", "Positions"}) | _PROMPTS | _ITEMS
"""The names of union branches, which the validator puts into the locations of errors."""


def _location(parts: tuple[int | str, ...]) -> str:
    """`messages[2].content` from a validator's location; union branches are left out."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "[" not in part and part not in _BRANCHES:
            text += f".{part}" if text else part
    return text


@cache
def documented(kind: type[BaseModel]) -> dict[str, object]:
    """The body and the headers of a route for the API description. The route itself reads both from the request."""
    return {
        **described(with_parts(kind)),
        "parameters": [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS
        ],
    }


def described(kind: type[BaseModel]) -> dict[str, object]:
    """The body of a route that reads it itself, for the API description."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    inline = _inlined(schema, definitions)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inline}}}}


def _inlined(node: object, definitions: dict[str, object]) -> object:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(value, definitions) for key, value in node.items()}
    if isinstance(node, list):
        return [_inlined(value, definitions) for value in node]
    return node
