"""How `/v1` writes a choice of a chat or of a text completion, whole or as a delta of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from steerserve.control.inference.asked import Asked
from steerserve.control.inference.generate import Run
from steerserve.messages import (
    Piece,
    PromptToken,
    Score,
    Scored,
    Text,
    TokenScore,
    without_blanks,
)
from steerserve.parts.part import Part
from steerserve.parts.registry import parts
from steerserve.rules.text_offsets import place_tokens

Chunk = TypeVar("Chunk")


@dataclass(slots=True)
class AnswerChoice:
    """One choice of an answer, as far as the engine has written it."""

    text: list[str] = field(default_factory=list)
    tokens: int = 0
    finish: str | None = None
    scored: Scored | None = None
    is_changed: bool = False
    parts: dict[str, list[msgspec.Raw]] = field(default_factory=dict)

    def take_piece(self, piece: Piece) -> None:
        self.is_changed = self.is_changed or piece.is_changed
        self.hear(piece)
        self.text.append(piece.text)
        self.tokens = piece.tokens
        self.finish = piece.finish

    def hear(self, outcome: Piece | Scored) -> None:
        """Keep what parts of the request gave."""
        for name, raw in outcome.parts.items():
            self.parts.setdefault(name, []).append(raw)

    def chunks_of(self, part: Part[Any, Chunk]) -> list[Chunk]:
        """What a part gave, in its order."""
        kept = ({part.name: raw} for raw in self.parts.get(part.name, ()))
        return [found for one in kept if (found := part.read(one)) is not None]

    def score(self, scored: Scored, asked: Asked) -> None:
        """Take the scores of a prompt. The text of a scored choice is its one best token, behind the prompt where the
        prompt is echoed."""
        self.hear(scored)
        goal = asked.goal
        echoed = [_prompt_text(scored, asked)] if isinstance(goal, Score) and goal.echo else []
        self.tokens = goal.max_tokens or 0
        self.text = [*echoed, scored.best.text] if self.tokens else echoed
        self.finish = "length"
        self.scored = scored


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """How a route writes its answers: the prefix of ids, the `object` of whole answers and of chunks, chat or text."""

    prefix: str
    whole: str
    chunk: str
    is_chat: bool

    def choice(self, index: int, choice: AnswerChoice, asked: Asked) -> dict[str, object]:
        """A whole choice. Only choices of scoring requests have `logprobs`."""
        text = "".join(choice.text)
        if self.is_chat:
            body: dict[str, object] = {"message": {"role": "assistant", "content": text}}
        else:
            body = {"text": text}
        entry = {"index": index, **body, "finish_reason": choice.finish}
        if choice.scored is not None and isinstance(asked.goal, Score):
            entry["logprobs"] = self._logprobs(choice.scored, asked, asked.goal)
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

    def _logprobs(self, scored: Scored, asked: Asked, goal: Score) -> dict[str, object] | None:
        if goal.top is None:
            return None
        if self.is_chat:
            top = [_described(score, asked) for score in scored.top[: goal.top]]
            return {"content": [{**_described(scored.best, asked), "top_logprobs": top}]}
        prompt = _prompt_text(scored, asked)
        texts, offsets = place_tokens(prompt, [token.text for token in scored.prompt])
        placed = [_as_in_text(*one) for one in zip(scored.prompt, texts, strict=True)]
        told: list[TokenScore | PromptToken] = [*placed]
        tops: list[dict[str, float] | None] = [
            None if token.logprob is None else _listed(token.top, asked) for token in placed
        ]
        if goal.max_tokens:
            told.append(scored.best)
            tops.append(_listed(scored.top, asked))
            offsets.append(len(prompt))
        return {
            "tokens": [_key(token, asked) for token in told],
            "token_logprobs": [token.logprob for token in told],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


CHAT = AnswerShape("chatcmpl", "chat.completion", "chat.completion.chunk", is_chat=True)
COMPLETION = AnswerShape("cmpl", "text_completion", "text_completion", is_chat=False)


def beside(run: Run, asked: Asked, choices: Sequence[AnswerChoice]) -> dict[str, object]:
    """What stands beside the choices in the final object of an answer: what there is to say about its steering, and
    what parts tell there."""
    if not asked.goal.writes:
        return {"steered": run.admitted.state is not None} if asked.is_scored_steered else {}
    is_changed = any(choice.is_changed for choice in choices)
    told: dict[str, object] = {"steering_changed": True} if is_changed else {}
    for name, planned in run.admitted.parts.items():
        part = parts()[name]
        if part.beside:
            chunks, texts = _chunks_of(part, choices), ["".join(choice.text) for choice in choices]
            told |= part.tell_beside(planned, chunks, texts, is_changed=is_changed)
    return told


def _chunks_of(
    part: Part[Any, Chunk], choices: Sequence[AnswerChoice]
) -> dict[int, Sequence[Chunk]]:
    """What a part gave of each choice, by the numbers of the choices of which it gave something."""
    return {
        at: choice.chunks_of(part) for at, choice in enumerate(choices) if part.name in choice.parts
    }


def service(
    run: Run, choices: Sequence[AnswerChoice], *, is_streamed: bool = False
) -> dict[str, object]:
    """What parts tell in the object `service` at the end of an answer. With `is_streamed`, those that told it token by
    token tell nothing."""
    texts = ["".join(choice.text) for choice in choices]
    told: dict[str, object] = {}
    for name, planned in run.admitted.parts.items():
        part = parts()[name]
        if is_streamed and part.is_streamed(planned):
            continue
        chunks = _chunks_of(part, choices)
        if chunks:
            told |= part.tell(planned, chunks, texts)
    return told


def service_of_token(run: Run, piece: Piece | Scored, count: int) -> dict[str, object]:
    """What parts tell with one token of a stream with so many choices."""
    told: dict[str, object] = {}
    for name, planned in run.admitted.parts.items():
        part = parts()[name]
        chunk = part.read(piece.parts) if part.is_streamed(planned) else None
        if chunk is not None:
            told |= part.tell(planned, {piece.choice: [chunk]}, [""] * count)
    return told


def _prompt_text(scored: Scored, asked: Asked) -> str:
    """The text of a prompt that is no conversation."""
    prompt = asked.request.prompts[scored.choice]
    return prompt.text if isinstance(prompt, Text) else scored.prompt_text


def _as_in_text(token: PromptToken, text: str) -> PromptToken:
    """A token with the text that it has in its prompt. Where the prompt begins without the blank of the token, the
    other tokens at its place have no blank either."""
    top = without_blanks(token.top) if token.text == " " + text else token.top
    return replace(token, text=text, top=top)


def _listed(top: Sequence[TokenScore], asked: Asked) -> dict[str, float]:
    """The candidates of one place by their keys. The most probable token comes first, so it is the one listed where
    several tokens have the same text."""
    listed: dict[str, float] = {}
    for score in top:
        listed.setdefault(_key(score, asked), score.logprob)
    return listed


def _key(score: TokenScore | PromptToken, asked: Asked) -> str:
    return f"token_id:{score.token}" if asked.is_keyed_by_id else score.text


def _described(score: TokenScore, asked: Asked) -> dict[str, object]:
    return {
        "token": _key(score, asked),
        "logprob": score.logprob,
        "bytes": list(score.text.encode()),
    }
