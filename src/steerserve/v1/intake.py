"""Body and headers to an Intent, or a refusal: everything that can be refused without the model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from steerserve.errors import Refusal
from steerserve.rules import fields, intent
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

Body = TypeVar("Body", bound=BaseModel)
SEED_MAXIMUM = 2**32 - 1
Finite = Annotated[float, Field(allow_inf_nan=False)]


class ContentPart(BaseModel):
    """A part of a message's content; only text is understood."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: Literal["system", "user", "assistant", "tool", "function", "developer"]
    content: str | list[ContentPart] | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    include_usage: bool | None = None


class Sampled(BaseModel):
    """The fields that chat and text completions share."""

    model_config = ConfigDict(strict=True, extra="allow")
    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=0, le=SEED_MAXIMUM)] | None = None


class ChatBody(Sampled):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]


class CompletionBody(Sampled):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        Refusal: VALIDATION_ERROR for another media type, broken JSON, or JSON that is no object.
    """
    media = (
        request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    )
    if media != "application/json" and not media.endswith("+json"):
        raise Refusal("VALIDATION_ERROR", "send the body as application/json", param="Content-Type")
    try:
        body = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refusal("VALIDATION_ERROR", f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal("VALIDATION_ERROR", "the body must be a JSON object")
    return body


async def chat(request: Request, settings: Settings) -> intent.Generate:
    """The intent of a chat request."""
    raw = await read_json(request)
    ignored = _check_fields(fields.CHAT, raw, request)
    body = _validated(ChatBody, raw)
    if len(body.messages) > settings.max_messages:
        raise _bad("messages", f"at most {settings.max_messages} messages")
    messages = tuple(_message(i, message) for i, message in enumerate(body.messages))
    return _intent(body, settings, prompts=(messages,), ignored=ignored)


async def completion(request: Request, settings: Settings) -> intent.Generate:
    """The intent of a text completion request."""
    raw = await read_json(request)
    ignored = _check_fields(fields.COMPLETIONS, raw, request)
    body = _validated(CompletionBody, raw)
    prompts = (body.prompt,) if isinstance(body.prompt, str) else tuple(body.prompt)
    if len(prompts) > settings.max_prompts:
        raise _bad("prompt", f"at most {settings.max_prompts} prompts")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise _bad(f"prompt[{index}]", "an empty prompt")
    return _intent(body, settings, prompts=prompts, ignored=ignored)


def _check_fields(route: str, raw: dict[str, Any], request: Request) -> tuple[str, ...]:
    strict = fields.is_strict(request.headers.get("x-service-strict"))
    fields.check_honoured(route, raw)
    unused = fields.unused(route, raw)
    if strict:
        fields.check_strict(unused)
    if unused:
        log.warning("request_fields_unused", route=route, locations=unused[:100])
    return tuple(unused)


def _intent(
    body: Sampled,
    settings: Settings,
    *,
    prompts: Any,
    ignored: tuple[str, ...],
) -> intent.Generate:
    n = body.n or 1
    if n > settings.max_choices:
        raise _bad("n", f"at most {settings.max_choices} choices")
    if n > 1 and body.stream:
        raise _bad("n", "n above 1 cannot be streamed")
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > settings.max_stop_strings:
        raise _bad("stop", f"at most {settings.max_stop_strings} stop strings")
    if "" in stops:
        raise _bad("stop", "an empty stop string")
    sampling = intent.Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        repetition_penalty=intent.repetition_penalty(
            body.frequency_penalty or 0.0, body.presence_penalty or 0.0
        ),
        max_tokens=_max_tokens(body),
        stops=stops,
        seed=body.seed,
    )
    return intent.Generate(
        model=body.model,
        prompts=prompts,
        sampling=sampling,
        n=n,
        is_stream=bool(body.stream),
        ignored=ignored,
    )


def _max_tokens(body: Sampled) -> int | None:
    given = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(given) > 1:
        raise Refusal(
            "INVALID_PARAMETER",
            f"max_tokens is {body.max_tokens} and max_completion_tokens is {body.max_completion_tokens}; "
            "send one of them",
            param="max_completion_tokens",
        )
    return given.pop() if given else None


def _message(index: int, message: Message) -> dict[str, Any]:
    """A message as templates expect it: role, text content, and a name if there is one."""
    content = message.content
    if content is None and message.role != "assistant":
        raise _bad(f"messages[{index}].content", "a message needs content")
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    # what newer clients call developer is what templates call system
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": content or ""}
    name = (message.model_extra or {}).get("name")
    if isinstance(name, str):
        plain["name"] = name
    return plain


def _validated(kind: type[Body], raw: dict[str, Any]) -> Body:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        first = max(problems, key=lambda problem: len(problem["loc"]))
        where = _location(first["loc"])
        raise Refusal(
            "INVALID_PARAMETER",
            f"{where}: {first['msg']}" if where else first["msg"],
            param=where or None,
        ) from None


def _location(parts: tuple[int | str, ...]) -> str:
    """`messages[2].content` from a validator's location; union branches are left out."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "[" not in part and part not in ("str", "constrained-str"):
            text += f".{part}" if text else part
    return text


def _bad(param: str, why: str) -> Refusal:
    return Refusal("INVALID_PARAMETER", f"{param}: {why}", param=param)


def documented(kind: type[BaseModel]) -> dict[str, Any]:
    """The body's schema for the API description; the route reads the body itself."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    inline = _inlined(schema, definitions)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inline}}}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(value, definitions) for key, value in node.items()}
    if isinstance(node, list):
        return [_inlined(value, definitions) for value in node]
    return node
