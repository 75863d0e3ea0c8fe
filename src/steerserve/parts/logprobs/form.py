"""`return_logprobs`: the log-probabilities of the tokens of an answer, under the steered model and under the model
without steering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from steerserve.messages import Distribution, Message, without_blanks
from steerserve.parts.part import BodyField, Part, Sent
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference.names import OUTPUT_LOGPROBS, RESPONSES
from steerserve.rules.text_offsets import place_tokens

FIELD = "return_logprobs"


class Logprobs(Message, frozen=True):
    """The `top` most probable tokens at each token that is written, under the steered model, under the model without
    steering, or both. An answer has at most `max_entries` log-probabilities."""

    top: int
    has_steered: bool
    has_plain: bool
    max_entries: int


class WrittenToken(Message, frozen=True):
    """A token that was written: under the logits from which it was drawn, and under those of the model without
    steering; None where that was not asked for."""

    token: int
    text: str
    steered: Distribution | None
    plain: Distribution | None


@dataclass(frozen=True, slots=True)
class PlannedLogprobs:
    """With `is_inside` the text of a response has the log-probabilities, and not the object `service`."""

    form: Logprobs
    is_inside: bool = False


class LogprobsPart(Part[Logprobs, list[WrittenToken]]):
    """In the body of a response, `include` asks for the log-probabilities in the form of the Responses API too."""

    name = "logprobs"
    fields = MappingProxyType(
        {
            FIELD: BodyField(
                "steerserve.parts.logprobs.body:ReturnLogprobs",
                known=MappingProxyType({"top": None, "of": None}),
            )
        }
    )
    told = MappingProxyType({"logprobs": "steerserve.parts.logprobs.body:AllLogprobs"})
    form = Logprobs
    chunk = list[WrittenToken]
    row = "steerserve.parts.logprobs.row:LogprobsRow"

    def parse(self, body: Mapping[str, Any], sent: Sent) -> PlannedLogprobs | None:
        """Raises:
        Refusal: INVALID_PARAMETER for `top_logprobs` of a response without its log-probabilities, and for
            log-probabilities that are asked for twice.
        """
        asked, most = body.get(FIELD), sent.settings.scoring_max_entries
        if sent.route == RESPONSES:
            top = body.get("top_logprobs")
            if OUTPUT_LOGPROBS in (body.get("include") or ()):
                if asked is not None:
                    why = f"log-probabilities cannot be combined with {FIELD}"
                    raise refuse_parameter("include", why)
                return PlannedLogprobs(Logprobs(top or 0, True, False, most), is_inside=True)
            if top:
                raise refuse_parameter("top_logprobs", f"needs include: [{OUTPUT_LOGPROBS!r}]")
        if asked is None:
            return None
        of = asked.of or ["steered"]
        return PlannedLogprobs(Logprobs(asked.top or 0, "steered" in of, "plain" in of, most))

    def tell(
        self,
        planned: PlannedLogprobs,
        chunks: Mapping[int, Sequence[list[WrittenToken]]],
        texts: Sequence[str],
    ) -> dict[str, object]:
        """An entry for each token. An answer of several choices names the choice of each."""
        if planned.is_inside:
            return {}
        told = [
            {
                **({"choice": index} if len(texts) > 1 else {}),
                "token_id": one.token,
                "token": text,
                **({"steered": _distribution(one.steered, one.text, text)} if one.steered else {}),
                **({"plain": _distribution(one.plain, one.text, text)} if one.plain else {}),
            }
            for index, parts in chunks.items()
            for one, text in _placed([one for part in parts for one in part], texts[index])
        ]
        return {"logprobs": told}

    def tell_inside(
        self, planned: PlannedLogprobs, chunks: Sequence[list[WrittenToken]]
    ) -> list[dict[str, object]]:
        """Under the steered model, where `include` asks for them."""
        if not planned.is_inside:
            return []
        return [
            {
                **_token(one.text, one.steered.logprob),
                "top_logprobs": [_token(other.text, other.logprob) for other in one.steered.top],
            }
            for tokens in chunks
            for one in tokens
            if one.steered is not None
        ]


LOGPROBS = LogprobsPart()


def _placed(tokens: Sequence[WrittenToken], text: str) -> list[tuple[WrittenToken, str]]:
    """Each token with its text as the answer has it."""
    return list(zip(tokens, place_tokens(text, [one.text for one in tokens])[0], strict=True))


def _distribution(one: Distribution, whole: str, text: str) -> dict[str, object]:
    """The distribution at the place of a token, which is `whole` inside a text and is `text` in the answer."""
    top = without_blanks(one.top) if whole == " " + text else one.top
    return {
        "logprob": one.logprob,
        "top": [{"token_id": t.token, "token": t.text, "logprob": t.logprob} for t in top],
    }


def _token(text: str, logprob: float) -> dict[str, object]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
