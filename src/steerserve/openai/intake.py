"""Reads the body and the headers of a `/v1` request into what the client asks for, and the model that it names.

Every refusal that needs no engine is raised here, in this order: a body that is not JSON, fields that would change the
output and are not honoured, fields that strict mode refuses, a field of a wrong form, an unknown model, a model that
cannot do what the request asks, a wrong load policy.
"""

from __future__ import annotations

import codecs
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import structlog
from starlette.requests import Request

from steerserve import messages as m
from steerserve.control.inference.asked import Asked
from steerserve.control.models.served import ServedModel, ServedModels
from steerserve.control.threads import Threads
from steerserve.errors import Refusal
from steerserve.nouns.profiles.owner import Profiles
from steerserve.nouns.runs.owner import SentRequest
from steerserve.openai import bodies, counts, response_body, response_shape, shape, values
from steerserve.openai.values import AskedBase
from steerserve.parts.registry import parts
from steerserve.rules import clients, json_faults, json_reading, json_size
from steerserve.rules.bounds import INFERENCE_BODY_VALUES, NAME_CHARACTERS
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference import fields, names
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.models import architecture, naming
from steerserve.rules.steering import dial, documents
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

AT_ONCE = 1 << 14
"""The largest body, in bytes, that is read on the event loop."""
LOCATIONS_LOGGED = 100
CLIENT = "steerserve.client"
"""The key of the scope under which a request that the service makes itself has its client."""

_PREFIXES = {
    names.CHAT: f"{shape.CHAT.prefix}-",
    names.COMPLETIONS: f"{shape.COMPLETION.prefix}-",
    names.RESPONSES: f"{response_shape.PREFIX}_",
}
"""How the ids of a route's answers begin."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that has passed every check without the engine, its model, and how it was sent."""

    asked: Asked
    model: ServedModel
    sent: SentRequest


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A request as it arrived: its body, the names in its query, the headers that are read, and its client."""

    body: dict[str, object]
    client: str
    query: Iterable[str] = ()
    strict: str | None = None
    policy: str | None = None
    lease: str | None = None


class Intake:
    """Reads requests. `reader` reads their large bodies."""

    def __init__(
        self,
        settings: Settings,
        models: ServedModels,
        profiles: Profiles,
        reader: Threads,
    ) -> None:
        self._settings = settings
        self._models = models
        self._profiles = profiles
        self._reader = reader

    async def chat(self, request: Request) -> Accepted:
        """A chat request."""
        return self._chat(await self._open(await self._arrived(request), names.CHAT))

    def _chat(self, opened: _Opened) -> Accepted:
        body, settings = bodies.validated(bodies.ChatBody, opened.body), self._settings
        conversations = values.conversations(body)
        n = body.n or 1
        if n > 1 and body.extra_messages:
            raise refuse_parameter("n", "n above 1 cannot be combined with extra_messages")
        if not fields.is_scoring(opened.body):
            values.check_top(body)
            return opened.accept(self._written(body, opened, conversations, n))
        if body.stream:
            raise refuse_parameter("stream", "a scoring request cannot be streamed")
        if n > 1:
            raise refuse_parameter("n", "a scoring request needs n: 1")
        fields.check_scoring(opened.body)
        top = (body.top_logprobs or 0) if body.logprobs else None
        values.check_top(body)
        scoring = values.score(
            body,
            settings,
            names.CHAT,
            base=opened.base,
            client=opened.client,
            prompts=opened.chats(conversations, values.template(body)),
            top=top,
            profile=opened.profile_of(body.profile),
        )
        return opened.accept(scoring)

    async def response(self, request: Request) -> tuple[Accepted, bodies.ResponseBody]:
        """A chat that is answered as a response, and its body. Activations are sent at the end, also in a stream."""
        return self._response(await self._open(await self._arrived(request), names.RESPONSES))

    def _response(self, opened: _Opened) -> tuple[Accepted, bodies.ResponseBody]:
        body = bodies.validated(bodies.ResponseBody, opened.body)
        conversations = (response_body.conversation(body),)
        chat = response_body.as_chat(body)
        return opened.accept(self._written(chat, opened, conversations, source=body)), body

    def _written(
        self,
        body: bodies.ChatBody,
        opened: _Opened,
        conversations: Sequence[Conversation],
        n: int = 1,
        source: bodies.ResponseBody | None = None,
    ) -> Asked:
        """The request to answer conversations. `source` is the body of a response."""
        return values.generate(
            body,
            self._settings,
            names.CHAT if source is None else names.RESPONSES,
            source=source,
            base=opened.base,
            client=opened.client,
            n=n,
            profile=opened.profile_of(body.profile),
            is_held=opened.profile is not None,
            intensity=dial.parse(body.steering_intensity),
            prompts=opened.chats(conversations, values.template(body)),
        )

    async def completion(self, request: Request) -> Accepted:
        """A text completion request."""
        return self._completion(await self._open(await self._arrived(request), names.COMPLETIONS))

    def _completion(self, opened: _Opened) -> Accepted:
        body, settings = bodies.validated(bodies.CompletionBody, opened.body), self._settings
        special = body.add_special_tokens is not False
        prompts = values.prompts(body.prompt, special=special)
        if fields.is_scoring(opened.body):
            fields.check_scoring(opened.body)
            scoring = values.score(
                body,
                settings,
                names.COMPLETIONS,
                base=opened.base,
                client=opened.client,
                prompts=prompts,
                top=body.logprobs,
                is_echoed=bool(body.echo) and body.logprobs is not None,
                profile=opened.profile,
            )
            return opened.accept(scoring)
        written = values.generate(
            body,
            settings,
            names.COMPLETIONS,
            base=opened.base,
            client=opened.client,
            prompts=prompts,
            profile=opened.profile,
            is_held=opened.profile is not None,
        )
        return opened.accept(written)

    async def embedding(self, request: Request) -> Accepted:
        """An embeddings request."""
        opened = await self._open(await self._arrived(request), names.EMBEDDINGS)
        given = opened.body.get("input")
        if isinstance(given, list) and given and isinstance(given[0], int | list):
            raise refuse_parameter(
                "input[0]",
                "must be a text; token ids are not taken, so send the texts themselves "
                "(in LangChain, set check_embedding_ctx_length=False)",
            )
        body = bodies.validated(bodies.EmbeddingBody, opened.body)
        texts = values.texts(body.input)
        for index, text in enumerate(texts):
            if not text:
                where = "input" if len(texts) == 1 else f"input[{index}]"
                raise refuse_parameter(where, "an empty text")
        prompts = [m.Text(text) for text in texts]
        embedding = m.Request(goal=m.Embed(), prompts=prompts, client=opened.client)
        is_base64 = body.encoding_format == "base64"
        return opened.accept(Asked(request=embedding, is_base64=is_base64, **opened.base))

    async def again(
        self, route: str, body: Mapping[str, object], client: str
    ) -> tuple[Asked, ServedModel]:
        """The request that a recorded body asks for, and its model.

        Raises:
            Refusal: every refusal of such a request.
        """
        opened = await self._open(_Arrived(dict(body), client), route)
        if route == names.RESPONSES:
            accepted: Accepted = self._response(opened)[0]
        else:
            accepted = (self._chat if route == names.CHAT else self._completion)(opened)
        return accepted.asked, accepted.model

    async def _arrived(self, request: Request) -> _Arrived:
        return _Arrived(
            await read_json(request, self._reader),
            client_of(request, self._settings),
            dict.fromkeys(request.query_params),
            header(request, "x-service-strict"),
            header(request, "x-service-load-policy"),
            request.headers.get("x-service-lease") or None,
        )

    async def _open(self, arrived: _Arrived, route: str) -> _Opened:
        """The body without the fields whose value asks for no change of the output, and the model that the body
        names."""
        raw = arrived.body
        counts.check_counts(route, raw, self._settings)
        is_strict = fields.is_strict(arrived.strict)
        model, profile = await self.model(raw.get("model"))
        engine = names.CHECKPOINT if isinstance(model, Refusal) else model.engine
        fields.check_honoured(route, fields.changing(raw, route), engine, raw)
        fields.check_named_profile(profile, route, engine)
        fields.check_whole(route, raw)
        unused = fields.unused(route, raw) + fields.query_locations(arrived.query)
        ignored = unused + fields.unused_by(engine, raw)
        if ignored:
            named = ignored[:LOCATIONS_LOGGED]
            near = fields.nearest(route, named, raw)
            log.warning("request_fields_unused", route=route, locations=named, **near)
        if is_strict:
            fields.check_strict(unused)
        elif is_strict is None:
            fields.check_near(unused, raw)
        honoured = fields.changing_fields(route)
        kept = {
            name: value
            for name, value in raw.items()
            if name not in honoured or not fields.means_no_change(name, value, route)
        }
        prefix = _PREFIXES.get(route)
        base: AskedBase = {
            "answer_id": f"{prefix}{secrets.token_hex(12)}" if prefix else "",
            "ignored": tuple(ignored),
            "lease": arrived.lease,
        }
        sent = SentRequest(route, fields.read_fields(route, kept), raw.get("store") is not False)
        strict = bool(is_strict)
        return _Opened(kept, base, arrived.client, strict, model, arrived.policy, sent, profile)

    async def model(self, name: object) -> tuple[ServedModel | Refusal, str | None]:
        """The model of this name, or its refusal, which `accept` raises after every field of the body was checked; and
        the profile of a name `model@profile`. A name that means a model has no profile."""
        text = name if isinstance(name, str) else ""
        if len(text) > NAME_CHARACTERS:
            return refuse_parameter(
                "model", f"a name has at most {NAME_CHARACTERS} characters"
            ), None
        try:
            return await self._models.resolve(text), None
        except Refusal as refusal:
            unknown = refusal
        if unknown.code != "MODEL_NOT_FOUND":
            return unknown, None
        for model, profile in naming.with_profile(text):
            if not await self._models.knows(model):
                continue
            try:
                served = await self._models.resolve(model)
                await self._profiles.named(profile)
            except Refusal as refusal:
                if refusal.code == "PROFILE_NOT_FOUND":
                    named = profile[: naming.NAME_MAXIMUM]
                    why = f"{unknown.message}, and no profile is named {named!r}"
                    return Refusal(unknown.code, why, param="model", **unknown.details), None
                if refusal.code != "MODEL_NOT_FOUND":
                    return refusal, None
            else:
                return served, profile
        return unknown, None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A request whose body is JSON and has no field that is refused by its name. `base` has the values that every
    request has."""

    body: dict[str, object]
    base: AskedBase
    client: str
    is_strict: bool
    model: ServedModel | Refusal
    policy: str | None
    sent: SentRequest
    profile: str | None = None

    def profile_of(self, named: str | None) -> str | None:
        """The profile of the request, which is named in its model or in its field `profile`.

        Raises:
            Refusal: INVALID_PARAMETER where it is named in both.
        """
        if named is not None and self.profile is not None:
            raise refuse_parameter(
                "profile", f"the model is named with the profile {self.profile!r}"
            )
        return named or self.profile

    def chats(
        self, conversations: Sequence[Conversation], template: Mapping[str, object] | None
    ) -> list[m.Prompt]:
        """The prompts of conversations, with the client's own variables of the chat template."""
        variables = dict(template or {})
        return [
            m.Chat([dict(one) for one in messages], variables, self.client, False, self.is_strict)
            for messages in conversations
        ]

    def accept(self, asked: Asked) -> Accepted:
        """The request. Called after every field of the body was checked.

        Raises:
            Refusal: the name means no model, or the model cannot do what the request asks; INVALID_PARAMETER for a
                wrong load policy.
        """
        if isinstance(self.model, Refusal):
            raise self.model
        row = self.model.row
        if asked.steering is not None:
            for name, one in asked.parts.items():
                parts()[name].check_engine(one, row.engine)
            architecture.check_generates(row.name, row.architecture, row.engine)
        may_load = fields.may_load(self.policy)
        return Accepted(replace(asked, may_load=may_load), self.model, self.sent)


def client_of(request: Request, settings: Settings) -> str:
    """Who sends a request (`rules/clients.py`)."""
    named: str | None = request.scope.get(CLIENT)
    return named or clients.client(
        request.client.host if request.client else None,
        request.headers.get("authorization"),
        has_keys=bool(settings.api_keys),
    )


async def read_json(request: Request, reader: Threads) -> dict[str, object]:
    """The body as a JSON object. A large body is read beside the event loop.

    Raises:
        Refusal: PAYLOAD_TOO_LARGE for too many values; VALIDATION_ERROR for a media type other than JSON, broken JSON,
            JSON that is not an object, or a key that stands twice in one object.
    """
    media = (
        request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    )
    if media != "application/json" and not media.endswith("+json"):
        raise Refusal("VALIDATION_ERROR", "send the body as application/json", param="Content-Type")
    text = (await request.body()).removeprefix(codecs.BOM_UTF8)
    if len(text) > AT_ONCE:
        return await reader.run(_object, text)
    return _object(text)


def _object(text: bytes) -> dict[str, object]:
    if json_size.has_more_values(text, INFERENCE_BODY_VALUES):
        raise Refusal("PAYLOAD_TOO_LARGE", f"the body has more than {INFERENCE_BODY_VALUES} values")
    try:
        body = json_reading.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if not text.strip():
            raise Refusal("VALIDATION_ERROR", "the body is empty; send a JSON object") from error
        why = f"the body is not valid JSON: {json_faults.fault_of(text)}"
        raise Refusal("VALIDATION_ERROR", why) from error
    if not isinstance(body, dict):
        raise Refusal("VALIDATION_ERROR", "the body must be a JSON object")
    documents.check_once(text)
    return body


def header(request: Request, name: str) -> str | None:
    """The value of a header. Different values of a header that was sent twice are joined by commas, and the check of
    that header then refuses the joined text."""
    values = request.headers.getlist(name)
    return ", ".join(dict.fromkeys(values)) if values else None
