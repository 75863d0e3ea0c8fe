"""Makes a request from the fields of a validated body, and refuses fields that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import msgspec

from steerserve import messages as m
from steerserve.control.inference.asked import Asked, AskedSteering
from steerserve.errors import Refusal
from steerserve.openai import bodies
from steerserve.parts.part import Sent
from steerserve.parts.registry import parts
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference.prompts import Conversation, repetition_penalty
from steerserve.rules.inference.prompts import message as as_message
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering import interventions
from steerserve.rules.steering import request as sae_steering
from steerserve.settings import Settings


class AskedBase(TypedDict):
    """The values that every request has from what surrounds its body."""

    answer_id: str
    ignored: tuple[str, ...]
    lease: str | None


COLDEST_SCORING = 0.001
"""The least temperature above 0 that a scoring request may ask for."""

TOKEN_ID_MAXIMUM = 2**31 - 1


def conversations(body: bodies.ChatBody) -> tuple[Conversation, ...]:
    """The conversations of a chat request in the form of chat templates: `messages`, then `extra_messages`."""
    extra = body.extra_messages or []
    named = [("messages", body.messages)]
    named += [(f"extra_messages[{i}]", conversation) for i, conversation in enumerate(extra)]
    return tuple(
        tuple(_message(f"{where}[{i}]", message) for i, message in enumerate(conversation))
        for where, conversation in named
    )


def generate(
    body: bodies.Sampled,
    settings: Settings,
    route: str,
    *,
    prompts: Sequence[m.Prompt],
    base: AskedBase,
    client: str,
    n: int = 1,
    profile: str | None = None,
    is_held: bool = False,
    intensity: float | str | None = None,
    source: bodies.Written | None = None,
) -> Asked:
    """The request to write text. `base` has the values that every request has. `source` is the body as it was sent,
    where `body` was made from it.

    Raises:
        Refusal: a count is over its limit, or two fields exclude each other.
    """
    is_stream = bool(body.stream)
    asked = _parts(source or body, Sent(route, settings, len(prompts), n, is_stream=is_stream))
    if n > settings.max_choices:
        raise refuse_parameter("n", f"at most {settings.max_choices} choices")
    if n > 1 and body.stream:
        raise refuse_parameter("n", "n above 1 cannot be streamed")
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stops:
        raise refuse_parameter("stop", "an empty stop string")
    max_tokens = _max_tokens(body)
    if max_tokens == 0:
        named = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        raise refuse_parameter(named, "at least 1; only echo with logprobs takes 0")
    frequency, presence = body.frequency_penalty or 0.0, body.presence_penalty or 0.0
    sampling = m.Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        repetition_penalty=repetition_penalty(frequency, presence),
        max_tokens=max_tokens,
        default_max_tokens=settings.default_max_tokens,
        stops=list(stops),
        seed=body.seed,
    )
    goal = m.Generate(sampling=sampling, n=n, is_stream=is_stream)
    return Asked(
        request=m.Request(goal=goal, prompts=prompts, client=client),
        steering=AskedSteering(
            profile=profile, intensity=intensity, own=steering(body, profile), is_held=is_held
        ),
        parts=asked,
        is_stream=is_stream,
        has_penalty=bool(frequency or presence),
        **base,
    )


def _parts(body: bodies.Written, sent: Sent) -> dict[str, Any]:
    """What the body asks of parts.

    Raises:
        Refusal: those of the parts.
    """
    values = bodies.of_parts(body)
    asked = {name: part.parse(values, sent) for name, part in parts().items()}
    return {name: one for name, one in asked.items() if one is not None}


def score(
    body: bodies.Sampled,
    settings: Settings,
    route: str,
    *,
    prompts: Sequence[m.Prompt],
    top: int | None,
    base: AskedBase,
    client: str,
    is_echoed: bool = False,
    profile: str | None = None,
) -> Asked:
    """The request to score the next token. The parameters mean the same as those of `generate`.

    Raises:
        Refusal: a scoring request does not accept the value of a field.
    """
    sent = Sent(route, settings, len(prompts), is_stream=bool(body.stream), is_scored=True)
    asked = _parts(body, sent)
    max_tokens = _max_tokens(body)
    if max_tokens != 1 and not (is_echoed and max_tokens == 0):
        needed = "1, or 0 with echo" if is_echoed else "1"
        why = f"a scoring request needs max_tokens: {needed}"
        hint = "return_logprobs gives the log-probabilities of the tokens of an answer"
        raise refuse_parameter("max_tokens", f"{why}; {hint}")
    if is_echoed and body.allowed_token_ids is not None:
        raise refuse_parameter("echo", "cannot be combined with allowed_token_ids")
    temperature = 1.0 if body.temperature is None else body.temperature
    if 0 < temperature < COLDEST_SCORING:
        raise refuse_parameter(
            "temperature", f"a scoring request needs 0 or at least {COLDEST_SCORING}"
        )
    allowed = body.allowed_token_ids
    _check_allowed(
        allowed or (), len(prompts) if top is not None else 1, settings.scoring_max_entries
    )
    goal = m.Score(
        temperature=temperature,
        top=top,
        allowed=None if allowed is None else list(dict.fromkeys(allowed)),
        echo=m.Echo(max_tokens, settings.scoring_max_entries) if is_echoed else None,
    )
    own = steering(body, profile)
    return Asked(
        request=m.Request(goal=goal, prompts=prompts, client=client),
        steering=AskedSteering(profile=profile, own=own, is_held=True, follows_live=False),
        parts=asked,
        is_stream=bool(body.stream),
        # a field `profile` without `score_steered` was refused; the name of a model may carry a profile
        is_scored_steered=bool(body.score_steered) or profile is not None,
        is_keyed_by_id=bool(body.return_tokens_as_token_ids),
        scored_seed=body.seed,
        **base,
    )


def _check_allowed(allowed: Sequence[int], prompts: int, maximum: int) -> None:
    """Raises:
    Refusal: INVALID_SCORING_REQUEST for an id that no vocabulary has; INVALID_PARAMETER when the answer would list too
        many tokens.
    """
    for token in allowed:
        if not 0 <= token <= TOKEN_ID_MAXIMUM:
            raise Refusal(
                "INVALID_SCORING_REQUEST",
                f"token id {token} is outside the vocabulary",
                param="allowed_token_ids",
            )
    if len(set(allowed)) * prompts > maximum:
        raise refuse_parameter(
            "allowed_token_ids",
            f"the answer would list {len(set(allowed))} tokens for each of {prompts} prompts; at most {maximum} in all",
        )


def steering(body: bodies.Sampled, profile: str | None) -> sae_steering.RequestSteering | None:
    """The steering that the request brings itself. `profile` is the profile that it names.

    Raises:
        Refusal: INVALID_PARAMETER, also where the request has it in two fields, or names a profile too;
            INVALID_INTERVENTION; TOO_MANY_EDITS.
    """
    short, long = body.sae_steering, body.interventions
    if short is None and long is None:
        return None
    field = sae_steering.INTERVENTIONS if short is None else sae_steering.FIELD
    if short is not None and long is not None:
        raise refuse_parameter(
            sae_steering.INTERVENTIONS, f"cannot be combined with {sae_steering.FIELD}"
        )
    if profile is not None:
        raise refuse_parameter(field, "cannot be combined with profile")
    if short is None:
        made = interventions.parse(long)
    else:
        features = tuple(
            sae_steering.SteeredFeature(one.index, one.value, SaeChoice(one.sae_id, one.layer))
            for one in short.features
        )
        is_added = short.mode == sae_steering.BESIDE
        made = sae_steering.check_steering(sae_steering.RequestSteering(features, is_added))
    if isinstance(body, bodies.CompletionBody) and (where := made.roles_at) is not None:
        raise Refusal(
            "INVALID_INTERVENTION",
            f"{where}: a text completion has no messages with roles",
            param=where,
        )
    return made


_RESERVED = frozenset(
    "self messages conversation chat_template tools documents tokenize add_generation_prompt continue_final_message "
    "padding truncation max_length return_tensors return_dict return_assistant_tokens_mask tokenizer_kwargs".split()
)
"""Names that a client may not pass to a template: the service sets these variables itself. `chat_template` is among
them, because a template is code."""


def template(body: bodies.ChatBody) -> Mapping[str, object] | None:
    """The client's own variables of the chat template.

    Raises:
        Refusal: INVALID_PARAMETER for a variable that a client may not set, and for numbers beyond 64 bits.
    """
    for name, value in (body.chat_template_kwargs or {}).items():
        if name in _RESERVED or not name.isidentifier():
            raise refuse_parameter(f"chat_template_kwargs.{name}", "not a variable of the template")
        try:
            msgspec.msgpack.encode(value)
        except (OverflowError, RecursionError):
            raise refuse_parameter(f"chat_template_kwargs.{name}", "a number too large") from None
    return body.chat_template_kwargs or None


def check_top(body: bodies.ChatBody) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for `top_logprobs` without `logprobs`.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise refuse_parameter("top_logprobs", "needs logprobs: true")


def _max_tokens(body: bodies.Sampled) -> int | None:
    named = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(named) > 1:
        raise Refusal(
            "INVALID_PARAMETER",
            f"max_tokens is {body.max_tokens} and max_completion_tokens is {body.max_completion_tokens}; "
            "send one of them",
            param="max_completion_tokens",
        )
    return named.pop() if named else None


def texts(value: str | list[str]) -> tuple[str, ...]:
    """A field that holds one text or a list of texts, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def prompts(
    value: str | list[str] | list[int] | list[list[int]], *, special: bool
) -> list[m.Prompt]:
    """The prompts of a text completion: texts, or the ids of their tokens. With `special` a text gets the tokenizer's
    special tokens."""
    if isinstance(value, str):
        return [m.Text(value, special)]
    if bodies.kind_of_prompt(value) == bodies.ID_PROMPT:
        return [m.Tokens(cast("list[int]", value), place="prompt")]
    return [
        m.Text(one, special) if isinstance(one, str) else m.Tokens(one, place=f"prompt[{place}]")
        for place, one in enumerate(cast("list[str | list[int]]", value))
    ]


def _message(where: str, message: bodies.ChatMessage) -> Mapping[str, object]:
    """A message in the form of chat templates: role, text content, and the name where the message has one."""
    content = message.content
    if content is None and message.role != "assistant":
        raise refuse_parameter(f"{where}.content", "a message needs content")
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    return as_message(message.role, content or "", message.name)
