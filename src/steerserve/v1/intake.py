"""Body and headers to an Intent, or a refusal: everything that can be refused without the model."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from starlette.requests import Request

from steerserve.errors import Refusal
from steerserve.rules import activations, dial, fields, intent, schema_subset
from steerserve.settings import Settings
from steerserve.v1 import bodies, shape

log = structlog.get_logger(__name__)

COLDEST_SCORING = 0.001
"""The least temperature above 0 that logits are divided by."""

TOKEN_ID_MAXIMUM = 2**31 - 1
LOCATIONS_LOGGED = 100

_PREFIXES = {fields.CHAT: shape.CHAT.prefix, fields.COMPLETIONS: shape.COMPLETION.prefix}
"""What the ids of a route's answers begin with."""

EngineOf = Callable[[object], Awaitable[str]]
"""The `model` of a body -> the engine that it needs."""


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


async def chat(
    request: Request, settings: Settings, engine_of: EngineOf
) -> intent.GenerateIntent | intent.ScoreIntent:
    """The intent of a chat request."""
    raw, asked = await _read(request, fields.CHAT, engine_of)
    body = bodies.validated(bodies.ChatBody, raw)
    conversations = [("messages", body.messages)]
    extra = body.extra_messages or []
    if len(extra) > settings.max_extra_messages:
        raise _bad("extra_messages", f"at most {settings.max_extra_messages} conversations")
    conversations += [(f"extra_messages[{i}]", found) for i, found in enumerate(extra)]
    for where, conversation in conversations:
        if len(conversation) > settings.max_messages:
            raise _bad(where, f"at most {settings.max_messages} messages")
    prompts = tuple(
        tuple(_message(f"{where}[{i}]", message) for i, message in enumerate(conversation))
        for where, conversation in conversations
    )
    n = body.n or 1
    if n > 1 and extra:
        raise _bad("n", "n above 1 cannot be combined with extra_messages")
    if fields.is_scoring(raw):
        if body.stream:
            raise _bad("stream", "a scoring request cannot be streamed")
        if n > 1:
            raise _bad("n", "a scoring request needs n: 1")
        if body.response_format is not None:
            raise _format("log-probabilities cannot be asked of a constrained choice")
        fields.check_scoring(fields.changing(raw))
        top = (body.top_logprobs or 0) if body.logprobs else None
        _check_top(body)
        return _score(
            body, settings, raw, prompts=prompts, top=top, template=_template(body), asked=asked
        )
    _check_top(body)
    return _generate(
        body,
        settings,
        raw,
        prompts=prompts,
        n=n,
        profile=body.profile,
        intensity=dial.parse(body.steering_intensity),
        constraint=_constraint(body, settings),
        template=_template(body),
        asked=asked,
    )


async def completion(
    request: Request, settings: Settings, engine_of: EngineOf
) -> intent.GenerateIntent | intent.ScoreIntent:
    """The intent of a text completion request."""
    raw, asked = await _read(request, fields.COMPLETIONS, engine_of)
    body = bodies.validated(bodies.CompletionBody, raw)
    prompts = _texts("prompt", body.prompt, settings.max_prompts)
    special = body.add_special_tokens is not False
    if fields.is_scoring(raw):
        top = body.logprobs
        return _score(body, settings, raw, prompts=prompts, top=top, special=special, asked=asked)
    return _generate(body, settings, raw, prompts=prompts, special=special, asked=asked)


async def embedding(
    request: Request, settings: Settings, engine_of: EngineOf
) -> intent.EmbedIntent:
    """The intent of an embeddings request."""
    raw, asked = await _read(request, fields.EMBEDDINGS, engine_of)
    body = bodies.validated(bodies.EmbeddingBody, raw)
    texts = _texts("input", body.input, settings.embeddings_max_inputs)
    for index, text in enumerate(texts):
        if not text:
            raise _bad("input" if len(texts) == 1 else f"input[{index}]", "an empty text")
    return intent.EmbedIntent(body.model, texts, body.encoding_format == "base64", **asked)


# ------------------------------------------------------------------ what every route reads


async def _read(
    request: Request, route: str, engine_of: EngineOf
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The body without the fields that ask for nothing, and what the headers ask. What the named model's engine does not
    honour is refused before anything is said of its form."""
    raw = await read_json(request)
    strict = fields.is_strict(_header(request, "x-service-strict"))
    policy = _header(request, "x-service-load-policy")
    policy = "auto" if policy is None else policy.strip().lower()
    if policy not in ("auto", "refuse"):
        raise Refusal(
            "INVALID_PARAMETER",
            "X-Service-Load-Policy must be auto or refuse",
            param="X-Service-Load-Policy",
        )
    changing = fields.changing(raw)
    fields.check_honoured(route, changing)
    if changing:
        fields.check_honoured(route, changing, await engine_of(raw.get("model")))
    unused = fields.unused(route, raw)
    if unused:
        log.warning("request_fields_unused", route=route, locations=unused[:LOCATIONS_LOGGED])
    if strict:
        fields.check_strict(unused)
    kept = {
        name: value
        for name, value in raw.items()
        if name not in fields.CHANGING or not fields.means_no_change(name, value)
    }
    return kept, {
        "request_id": f"{_PREFIXES[route]}-{secrets.token_hex(12)}" if route in _PREFIXES else "",
        "route": route,
        "changing": changing,
        "ignored": tuple(unused),
        "may_load": policy == "auto",
        "lease": request.headers.get("x-service-lease") or None,
    }


def _header(request: Request, name: str) -> str | None:
    """A header's value; sent twice with different values it is both, which no check lets pass."""
    values = request.headers.getlist(name)
    return ", ".join(dict.fromkeys(values)) if values else None


def _generate(
    body: bodies.Sampled,
    settings: Settings,
    raw: dict[str, Any],
    *,
    prompts: tuple[intent.Prompt, ...],
    asked: dict[str, Any],
    n: int = 1,
    special: bool = True,
    **more: Any,
) -> intent.GenerateIntent:
    if n > settings.max_choices:
        raise _bad("n", f"at most {settings.max_choices} choices")
    if n > 1 and body.stream:
        raise _bad("n", "n above 1 cannot be streamed")
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > settings.max_stop_strings:
        raise _bad("stop", f"at most {settings.max_stop_strings} stop strings")
    if "" in stops:
        raise _bad("stop", "an empty stop string")
    sampling = intent.SamplingParameters(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        repetition_penalty=intent.repetition_penalty(
            body.frequency_penalty or 0.0, body.presence_penalty or 0.0
        ),
        max_tokens=_max_tokens(body),
        stops=stops,
        seed=body.seed,
        has_penalty=bool(body.frequency_penalty or body.presence_penalty),
    )
    return intent.GenerateIntent(
        model=body.model,
        prompts=prompts,
        sampling=sampling,
        n=n,
        is_stream=bool(body.stream),
        has_special=special,
        activations=_activations(raw, len(prompts), n, settings),
        **more,
        **asked,
    )


def _score(
    body: bodies.Sampled,
    settings: Settings,
    raw: dict[str, Any],
    *,
    prompts: tuple[intent.Prompt, ...],
    top: int | None,
    asked: dict[str, Any],
    special: bool = True,
    template: Mapping[str, Any] | None = None,
) -> intent.ScoreIntent:
    if _max_tokens(body) != 1:
        raise _bad("max_tokens", "a scoring request needs max_tokens: 1")
    temperature = 1.0 if body.temperature is None else body.temperature
    if 0 < temperature < COLDEST_SCORING:
        raise _bad("temperature", f"a scoring request needs 0 or at least {COLDEST_SCORING}")
    allowed = body.allowed_token_ids
    for token in allowed or ():
        if not 0 <= token <= TOKEN_ID_MAXIMUM:
            raise Refusal(
                "INVALID_SCORING_REQUEST",
                f"token id {token} is outside the vocabulary",
                param="allowed_token_ids",
            )
    return intent.ScoreIntent(
        model=body.model,
        prompts=prompts,
        temperature=temperature,
        top=top,
        allowed=None if allowed is None else tuple(dict.fromkeys(allowed)),
        is_keyed_by_id=bool(body.return_tokens_as_token_ids),
        has_special=special,
        seed=body.seed,
        is_stream=bool(body.stream),
        template=template,
        activations=_activations(raw, len(prompts), 1, settings),
        **asked,
    )


def _activations(
    raw: dict[str, Any], prompts: int, n: int, settings: Settings
) -> activations.Activations | None:
    asked = raw.get(activations.FIELD)
    if asked is None:
        return None
    parsed = activations.parse(asked, settings.sae_activations_max_top_k)
    if n > 1:
        raise Refusal(
            "SAE_ACTIVATIONS_REFUSED", f"{activations.FIELD} needs n: 1", param=activations.FIELD
        )
    if prompts > 1:
        raise Refusal(
            "SAE_ACTIVATIONS_REFUSED",
            f"{activations.FIELD} needs one prompt, and no extra_messages",
            param=activations.FIELD,
        )
    return parsed


def _constraint(body: bodies.ChatBody, settings: Settings) -> intent.OutputConstraint | None:
    """What `response_format` asks for.

    Raises:
        Refusal: RESPONSE_FORMAT_UNSUPPORTED for what cannot be combined with it, and for a schema outside the subset.
    """
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if body.stream:
        raise _format("a constrained answer cannot be streamed, because it is validated whole")
    if body.stop:
        raise _format("stop cannot be combined with it")
    if settings.enable_continuous_batching:
        raise _format("this server runs continuous batching, which does not constrain")
    if wanted.type == "json_object":
        return intent.OutputConstraint()
    if wanted.json_schema is None:
        raise _format("json_schema is missing")
    schema_subset.check(wanted.json_schema.schema_)
    return intent.OutputConstraint(
        wanted.json_schema.name, wanted.json_schema.schema_, is_schema=True
    )


_RESERVED = frozenset(
    "self messages conversation chat_template tools documents tokenize add_generation_prompt continue_final_message "
    "padding truncation max_length return_tensors return_dict return_assistant_tokens_mask tokenizer_kwargs".split()
)
"""What a template is given by the service itself; a client's template would be code of theirs."""


def _template(body: bodies.ChatBody) -> Mapping[str, Any] | None:
    """What a chat's template is given beside the messages.

    Raises:
        Refusal: INVALID_PARAMETER for a name that is not a client's to set, and for numbers beyond 64 bits.
    """
    for name, value in (body.chat_template_kwargs or {}).items():
        if name in _RESERVED or not name.isidentifier():
            raise _bad(f"chat_template_kwargs.{name}", "not a variable of the template")
        try:
            msgspec.msgpack.encode(value)
        except (OverflowError, RecursionError):
            raise _bad(f"chat_template_kwargs.{name}", "a number too large") from None
    return body.chat_template_kwargs or None


def _check_top(body: bodies.ChatBody) -> None:
    if body.top_logprobs is not None and not body.logprobs:
        raise _bad("top_logprobs", "needs logprobs: true")


def _max_tokens(body: bodies.Sampled) -> int | None:
    given = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(given) > 1:
        raise Refusal(
            "INVALID_PARAMETER",
            f"max_tokens is {body.max_tokens} and max_completion_tokens is {body.max_completion_tokens}; "
            "send one of them",
            param="max_completion_tokens",
        )
    return given.pop() if given else None


def _texts(where: str, given: str | list[str], maximum: int) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else tuple(given)
    if len(texts) > maximum:
        raise _bad(where, f"at most {maximum} of them")
    return texts


def _message(where: str, message: bodies.ChatMessage) -> dict[str, Any]:
    """A message as templates expect it: role, text content, and a name if there is one."""
    content = message.content
    if content is None and message.role != "assistant":
        raise _bad(f"{where}.content", "a message needs content")
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    # what newer clients call developer is what templates call system
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": content or ""}
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _bad(param: str, why: str) -> Refusal:
    return Refusal("INVALID_PARAMETER", f"{param}: {why}", param=param)


def _format(why: str) -> Refusal:
    return Refusal(
        "RESPONSE_FORMAT_UNSUPPORTED", f"response_format: {why}", param="response_format"
    )
