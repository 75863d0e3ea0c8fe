"""How `/v1` writes a choice of a chat or of a text completion, whole or as a delta of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steerserve.control.requests.generate import Piece, Reading, Run, Scored, TokenScore
from steerserve.rules.activations import labelled
from steerserve.rules.intent import GenerateIntent, ScoreIntent

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

    def take(self, piece: Piece) -> None:
        self.text.append(piece.text)
        self.tokens = piece.tokens
        self.finish = piece.finish

    def score(self, scored: Scored) -> None:
        """Take the scores of a prompt. The text of a scored choice is its one best token."""
        self.text = [scored.best.text]
        self.tokens = 1
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
    ) -> dict[str, Any]:
        """A whole choice. Only choices of scoring requests have `logprobs`."""
        text = "".join(choice.text)
        if self.is_chat:
            body: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        else:
            body = {"text": text}
        entry = {"index": index, **body, "finish_reason": choice.finish}
        if choice.scored is not None and isinstance(intent, ScoreIntent):
            entry["logprobs"] = self._logprobs(index, choice.scored, intent)
        return entry

    def delta(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        if self.is_chat:
            body: dict[str, Any] = {"delta": {"content": text} if text else {}}
        else:
            body = {"text": text}
        return {"index": index, **body, "finish_reason": finish}

    def opening(self, index: int) -> dict[str, Any]:
        """The first delta of a chat's choice."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "finish_reason": None}

    def _logprobs(self, index: int, scored: Scored, intent: ScoreIntent) -> dict[str, Any] | None:
        if intent.top is None:
            return None
        if self.is_chat:
            top = [_described(score, intent) for score in scored.top[: intent.top]]
            return {"content": [{**_described(scored.best, intent), "top_logprobs": top}]}
        listed: dict[str, float] = {}
        # the most probable token comes first, so it is the one listed where several tokens have the same text
        for score in scored.top:
            listed.setdefault(_key(score, intent), score.logprob)
        return {
            "tokens": [_key(scored.best, intent)],
            "token_logprobs": [scored.best.logprob],
            "top_logprobs": [listed],
            "text_offset": [len(intent.prompts[index])],
        }


CHAT = AnswerShape("chatcmpl", "chat.completion", "chat.completion.chunk", is_chat=True)
COMPLETION = AnswerShape("cmpl", "text_completion", "text_completion", is_chat=False)


def activations(
    run: Run,
    readings: Sequence[Reading],
    read_point: str,
    labels: Mapping[int, str],
    *,
    is_streamed: bool,
) -> dict[str, Any]:
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
                "features": [labelled(i, value, labels) for i, value in reading.features],
            }
            for reading in readings
        ],
        **({} if is_streamed else {"note": NOTE_SCORED if read_point == UNSTEERED else NOTE}),
    }


def _key(score: TokenScore, intent: ScoreIntent) -> str:
    return f"token_id:{score.token}" if intent.is_keyed_by_id else score.text


def _described(score: TokenScore, intent: ScoreIntent) -> dict[str, Any]:
    return {
        "token": _key(score, intent),
        "logprob": score.logprob,
        "bytes": list(score.text.encode()),
    }
