"""How `/v1` writes a choice of a chat or of a text completion, whole or as a delta of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec
from msgspec.structs import replace

from steerserve.control.inference.generate import (
    Distribution,
    EditActs,
    Piece,
    PromptToken,
    Run,
    Scored,
    TokenScore,
)
from steerserve.parts.activations.form import Reading
from steerserve.parts.logprobs.form import LOGPROBS, WrittenToken
from steerserve.parts.readings.form import READINGS
from steerserve.rules.inference.activations import labelled
from steerserve.rules.inference.intent import GenerateIntent, ScoreIntent
from steerserve.rules.steering.account import Listed
from steerserve.rules.text_offsets import place_tokens

NOTE = "the last sampled token has no activation: no forward pass reads it"
UNSTEERED = "unsteered"
"""The read point of a scoring request."""
NOTE_SCORED = "a scoring pass reads the prompt only"


@dataclass(slots=True)
class AnswerChoice:
    """One choice of an answer, as far as the engine has written it."""

    text: list[str] = field(default_factory=list)
    tokens: int = 0
    finish: str | None = None
    scored: Scored | None = None
    is_changed: bool = False
    acts: Sequence[EditActs] = ()
    written: Sequence[WrittenToken] = ()
    readings: list[Sequence[float]] = field(default_factory=list)

    def take(self, piece: Piece) -> None:
        self.is_changed = self.is_changed or piece.is_changed
        self.acts = piece.acts or self.acts
        self.written = LOGPROBS.read(piece.parts) or self.written
        readings = READINGS.read(piece.parts)
        if readings is not None:
            self.readings.append(readings)
        self.text.append(piece.text)
        self.tokens = piece.tokens
        self.finish = piece.finish

    def score(self, scored: Scored, intent: ScoreIntent) -> None:
        """Take the scores of a prompt. The text of a scored choice is its one best token, behind the prompt where the
        prompt is echoed."""
        echoed = [_prompt_text(scored, intent)] if intent.is_echoed else []
        self.text = [*echoed, scored.best.text] if intent.max_tokens else echoed
        self.tokens = intent.max_tokens
        self.finish = "length"
        self.scored = scored


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """How a route writes its answers: the prefix of ids, the `object` of whole answers and of chunks, chat or text."""

    prefix: str
    whole: str
    chunk: str
    is_chat: bool

    def choice(
        self, index: int, choice: AnswerChoice, intent: GenerateIntent | ScoreIntent
    ) -> dict[str, object]:
        """A whole choice. Only choices of scoring requests have `logprobs`."""
        text = "".join(choice.text)
        if self.is_chat:
            body: dict[str, object] = {"message": {"role": "assistant", "content": text}}
        else:
            body = {"text": text}
        entry = {"index": index, **body, "finish_reason": choice.finish}
        if choice.scored is not None and isinstance(intent, ScoreIntent):
            entry["logprobs"] = self._logprobs(choice.scored, intent)
        return entry

    def delta(self, index: int, text: str | msgspec.Raw, finish: str | None) -> dict[str, object]:
        if self.is_chat:
            body: dict[str, object] = {"delta": {"content": text} if text else {}}
        else:
            body = {"text": text}
        return {"index": index, **body, "finish_reason": finish}

    def opening(self, index: int) -> dict[str, object]:
        """The first delta of a chat's choice."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "finish_reason": None}

    def _logprobs(self, scored: Scored, intent: ScoreIntent) -> dict[str, object] | None:
        if intent.top is None:
            return None
        if self.is_chat:
            top = [_described(score, intent) for score in scored.top[: intent.top]]
            return {"content": [{**_described(scored.best, intent), "top_logprobs": top}]}
        prompt = _prompt_text(scored, intent)
        texts, offsets = place_tokens(prompt, [token.text for token in scored.prompt])
        placed = [_as_in_text(*one) for one in zip(scored.prompt, texts, strict=True)]
        told: list[TokenScore | PromptToken] = [*placed]
        tops: list[dict[str, float] | None] = [
            None if token.logprob is None else _listed(token.top, intent) for token in placed
        ]
        if intent.max_tokens:
            told.append(scored.best)
            tops.append(_listed(scored.top, intent))
            offsets.append(len(prompt))
        return {
            "tokens": [_key(token, intent) for token in told],
            "token_logprobs": [token.logprob for token in told],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


CHAT = AnswerShape("chatcmpl", "chat.completion", "chat.completion.chunk", is_chat=True)
COMPLETION = AnswerShape("cmpl", "text_completion", "text_completion", is_chat=False)


def steering(
    run: Run, intent: GenerateIntent | ScoreIntent, choices: Sequence[AnswerChoice]
) -> dict[str, object]:
    """What the final object of an answer says about its steering; nothing where there is nothing to say."""
    if isinstance(intent, ScoreIntent):
        return {"steered": run.admitted.state is not None} if intent.may_steer else {}
    is_changed = any(choice.is_changed for choice in choices)
    told: dict[str, object] = {"steering_changed": True} if is_changed else {}
    if intent.is_reported:
        acts = [one for choice in choices for one in choice.acts]
        listed = run.admitted.account.listed
        by_key = {key: one.layer for key, one in run.admitted.resident.attachments.items()}
        told["steering_report"] = {
            "state": run.admitted.state,
            "changed": is_changed,
            "edits": [
                _acts(at, entry, acts, entry.layers(by_key)) | _runs(entry, choices)
                for at, entry in enumerate(listed)
            ],
        }
    return told


def logprobs(choices: Sequence[AnswerChoice]) -> list[dict[str, object]]:
    """The log-probabilities of the tokens of an answer. An answer of several choices names the choice of each token."""
    return [
        {
            **({"choice": index} if len(choices) > 1 else {}),
            "token_id": one.token,
            "token": text,
            **({"steered": _distribution(one.steered, one.text, text)} if one.steered else {}),
            **({"plain": _distribution(one.plain, one.text, text)} if one.plain else {}),
        }
        for index, choice in enumerate(choices)
        for one, text in zip(choice.written, _texts(choice), strict=True)
    ]


def _texts(choice: AnswerChoice) -> list[str]:
    """The text of each token that was written, as the answer has it."""
    return place_tokens("".join(choice.text), [one.text for one in choice.written])[0]


def readings(
    run: Run, read: Mapping[int, Sequence[Sequence[float]]], *, has_several: bool
) -> list[dict[str, object]]:
    """The readings of the tokens of choices: for each probe or vector and layer a value for each token. `read` has by
    the number of a choice the projections of its tokens."""
    return [
        {
            **({"choice": index} if has_several else {}),
            "id": one.id,
            "layer": one.direction.layer,
            "site": one.direction.site,
            "values": [one.value(projections[place]) for projections in tokens],
        }
        for index, tokens in read.items()
        for place, one in enumerate(run.admitted.watched)
    ]


def _distribution(one: Distribution, whole: str, text: str) -> dict[str, object]:
    """The distribution at the place of a token, which is `whole` inside a text and is `text` in the answer."""
    top = _without_blanks(one.top) if whole == " " + text else one.top
    return {
        "logprob": one.logprob,
        "top": [{"token_id": t.token, "token": t.text, "logprob": t.logprob} for t in top],
    }


def _acts(at: int, entry: Listed, acts: Sequence[EditActs], layers: list[int]) -> dict[str, object]:
    """One entry of a report: its acts in all choices, and at all layers of a vector."""
    made = [one for one in acts if one.number == entry.number]
    return {
        "edit": at,
        "source": entry.source,
        "op": entry.op,
        "layers": layers,
        "evaluated": sum(one.evaluated for one in made),
        "acted": sum(one.acted for one in made),
        "first": min((one.first for one in made if one.first is not None), default=None),
        "last": max((one.last for one in made if one.last is not None), default=None),
        "max_change": max((one.max_change for one in made), default=0.0),
    }


def _runs(entry: Listed, choices: Sequence[AnswerChoice]) -> dict[str, object]:
    """Where an edit of an answer with one choice acted. Positions of several choices are those of different texts."""
    if len(choices) != 1:
        return {}
    made = [one for one in choices[0].acts if one.number == entry.number]
    return {"at": made[0].at if made else []}


def activations(
    run: Run,
    readings: Sequence[Reading],
    read_point: str,
    labels: Mapping[int, str],
    *,
    is_streamed: bool,
) -> dict[str, object]:
    """The `sae_activations` object of an answer, or of a chunk whose readings are streamed. A feature without a label
    has no field `label`."""
    tapped = run.admitted.tapped
    assert tapped is not None
    return {
        "sae_id": tapped.sae_id,
        "layer": tapped.layer,
        "read_point": read_point,
        "positions": [
            {
                "position": reading.position,
                "token_id": reading.token,
                **({"text": reading.text} if is_streamed else {}),
                "features": [
                    labelled(i, value, labels) | ({} if weight is None else {"weight": weight})
                    for (i, value), weight in zip_longest(reading.features, reading.weights)
                ],
            }
            for reading in readings
        ],
        **({} if is_streamed else {"note": NOTE_SCORED if read_point == UNSTEERED else NOTE}),
    }


def _prompt_text(scored: Scored, intent: ScoreIntent) -> str:
    """The text of a prompt that is no conversation."""
    prompt = intent.prompts[scored.choice]
    return prompt if isinstance(prompt, str) else scored.prompt_text


def _as_in_text(token: PromptToken, text: str) -> PromptToken:
    """A token with the text that it has in its prompt. Where the prompt begins without the blank of the token, the
    other tokens at its place have no blank either."""
    top = _without_blanks(token.top) if token.text == " " + text else token.top
    return replace(token, text=text, top=top)


def _without_blanks(scores: Sequence[TokenScore]) -> list[TokenScore]:
    return [replace(one, text=one.text.removeprefix(" ")) for one in scores]


def _listed(top: Sequence[TokenScore], intent: ScoreIntent) -> dict[str, float]:
    """The candidates of one place by their keys. The most probable token comes first, so it is the one listed where
    several tokens have the same text."""
    listed: dict[str, float] = {}
    for score in top:
        listed.setdefault(_key(score, intent), score.logprob)
    return listed


def _key(score: TokenScore | PromptToken, intent: ScoreIntent) -> str:
    return f"token_id:{score.token}" if intent.is_keyed_by_id else score.text


def _described(score: TokenScore, intent: ScoreIntent) -> dict[str, object]:
    return {
        "token": _key(score, intent),
        "logprob": score.logprob,
        "bytes": list(score.text.encode()),
    }
