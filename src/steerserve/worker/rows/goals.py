"""The goals of rows: what is made of the logits and of the values that passes over a row give.

A goal knows its row and nothing of other rows or of the cache. The batch asks every goal the same questions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import (
    Embedded,
    FinishReason,
    Outcome,
    PartsRead,
    Piece,
    PromptToken,
    Refused,
    Scored,
    TokenScore,
)
from steerserve.parts.part import pack
from steerserve.parts.row_part import RowPart
from steerserve.worker.rows import sampling
from steerserve.worker.rows.distributions import NO_CHANCE, distributions
from steerserve.worker.rows.text import TextStream
from steerserve.worker.sae.sites import Site

if TYPE_CHECKING:
    from steerserve.worker.rows.rows import BatchRow

Ending = Outcome | Refused

ECHO_POSITIONS = 64
"""The positions of a prompt that are scored at once, because log-probabilities over a large vocabulary take memory."""

NOT_FINITE = ("NON_FINITE_LOGITS", "the model produced NaN or infinite logits")


class RowGoal:
    """What a row is for. A class overrides what its goal needs.

    Attributes:
        writes: whether tokens are drawn for the row.
        sites: the sites whose values it reads in the passes over its prompt.
        needs_logits: where it has sites, whether it needs the logits after the prompt.
        needs_sums: whether it needs the sum of the last hidden layer over the tokens of a pass.
        works: whether it works on what it has read once the prompt is read: a part of the work in each step, so that
            other rows wait for a part only. Its row needs no keys and values then.
        form: what the scores of the tokens of its prompt depend on beside the tokens; None where they are not scored.
    """

    writes = False
    sites: Sequence[Site] = ()
    needs_logits = False
    needs_sums = False
    works = False
    form: Hashable | None = None

    def shareable(self, row: BatchRow) -> int:
        """The number of tokens of the prompt, from the first, for which kept keys and values may stand. The logits
        after the last token are always needed."""
        return len(row.prompt) - 1

    def first_scored(self, row: BatchRow) -> int:
        """The first position of which the logits are needed, where the prompt is scored."""
        return 0

    def read_prompt(self, row: BatchRow, logits: Tensor, start: int) -> None:
        """Take the logits [T, vocabulary] at the positions of the prompt from `start` on."""

    def add_sums(self, sums: Tensor) -> None:
        """Take the sum [hidden] of the last hidden layer over the tokens of a pass, in float32."""

    def kept_scores(self) -> Sequence[PromptToken] | None:
        """The scores that are kept with a beginning of the prompt; None where nothing of the row may be kept."""
        return ()

    def resume(self, scores: Sequence[PromptToken]) -> None:
        """The prompt begins with a kept beginning, whose tokens have these scores."""

    def outcomes(
        self, row: BatchRow, token: Refusal | int | None, logits: Tensor, ends: frozenset[int]
    ) -> list[Ending]:
        """The outcomes of the row from the token that was drawn for it, where it writes, and from the logits
        [vocabulary] after its last token. `ends` are the tokens that end a text. A token of None means that the logits
        were not finite.

        Raises:
            Exception: the row ends with this error.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give up what the work holds: the row was dropped before its end."""

    def keep_logits(self, logits: Tensor) -> None:
        """Take the logits [vocabulary] after the prompt, where the goal works."""

    def work_on(self, row: BatchRow) -> Ending | None:
        """Do a part of the work; None where there is nothing to send yet.

        Raises:
            Exception: what went wrong in the passes or in the work.
        """
        raise NotImplementedError


@dataclass(slots=True)
class Writing(RowGoal):
    """A completion: how its tokens are chosen, and their text."""

    writes = True

    sampler: sampling.Sampler
    text: TextStream

    def outcomes(
        self, row: BatchRow, token: Refusal | int | None, logits: Tensor, ends: frozenset[int]
    ) -> list[Ending]:
        """The piece of text that is certain now, with `finish` where the row ends."""
        if isinstance(token, Refusal):
            raise token
        if token is None:
            why = "the model produced NaN or infinite logits; a strong steering value is a common cause"
            return [row.refused("NON_FINITE_LOGITS", why)]
        if row.parts:
            row.tell_parts(token, logits)
        row.out.append(token)
        text, finish = self._push(row, token, token in ends)
        return [Piece(row.request, row.choice, text, len(row.out), finish)]

    def _push(self, row: BatchRow, token: int, is_end: bool) -> tuple[str, FinishReason | None]:
        """The new text that is certain after a token, and why the text ends, where it does."""
        text = self.text
        if self.sampler.seen is not None:
            self.sampler.seen[token] = True
        if is_end:
            return text.finish(), "stop"
        new = text.push(token)
        if text.is_stopped:
            return new, "stop"
        if any(part.is_complete for part in row.parts):
            return new + text.finish(), "stop"
        if len(row.out) < row.max_tokens:
            return new, None
        new += text.finish()
        return new, "stop" if text.is_stopped else "length"


@dataclass(slots=True)
class Scoring(RowGoal):
    """Scores the next token among candidates: the tokens `allowed` [k], or the whole vocabulary. All allowed tokens are
    listed, or the `top` most probable of the vocabulary; none where `top` is None. With `is_echoed` the tokens of the
    prompt are scored too, and `prompt` has the scores so far. `prompt_text` is the text of a prompt that came as token
    ids. `text_of` decodes tokens of the prompt, and `next_text_of` the token after it."""

    temperature: float
    top: int | None
    allowed: Tensor | None
    text_of: Callable[[int], str]
    next_text_of: Callable[[int], str]
    is_echoed: bool = False
    prompt: list[PromptToken] = field(default_factory=list)
    prompt_text: str = ""
    refusal: Refused | None = None

    @property
    def form(self) -> Hashable | None:  # type: ignore[override]
        return (self.temperature or 1.0, self.top or 0) if self.is_echoed else None

    def first_scored(self, row: BatchRow) -> int:
        """The position of the last token that has its score."""
        return max(0, len(self.prompt) - 1)

    def kept_scores(self) -> Sequence[PromptToken] | None:
        return self.prompt if self.refusal is None else None

    def resume(self, scores: Sequence[PromptToken]) -> None:
        self.prompt = list(scores)

    def outcomes(
        self, row: BatchRow, token: Refusal | int | None, logits: Tensor, ends: frozenset[int]
    ) -> list[Ending]:
        return [self.read(row, logits)]

    def read_prompt(self, row: BatchRow, logits: Tensor, start: int) -> None:
        """Score the tokens of the prompt that follow the positions from `start` on, from the logits [T, vocabulary] at
        these positions. The last position has no token after it."""
        if not self.is_echoed:
            return
        if not self.prompt:
            first = row.prompt[0]
            self.prompt.append(PromptToken(first, self.text_of(first), None, []))
        tokens = row.prompt[start + 1 : start + 1 + len(logits)]
        for at in range(0, len(tokens), ECHO_POSITIONS):
            if self.refusal is None:
                part = tokens[at : at + ECHO_POSITIONS]
                self._score(row, logits[at : at + len(part)].float(), part)

    def _score(self, row: BatchRow, logits: Tensor, tokens: list[int]) -> None:
        """Score tokens, each from its row of the logits [n, vocabulary]."""
        if not bool(logits.amax() < torch.inf):  # NaN is the largest, and compares false
            self.refusal = row.refused(*NOT_FINITE)
            return
        temperature = self.temperature or 1.0
        scaled = logits if temperature == 1.0 else logits / temperature
        scored = distributions(scaled, tokens, self.top or 0, self.text_of)
        for token, one in zip(tokens, scored, strict=True):
            top, logprob = one.top, one.logprob
            # NaN when all are -inf
            if not all(score > -torch.inf for score in (logprob, *(t.logprob for t in top))):
                self.refusal = row.refused(*NO_CHANCE)
                return
            if top and all(other.token != token for other in top):
                top.append(TokenScore(token, self.text_of(token), logprob))
            self.prompt.append(PromptToken(token, self.text_of(token), logprob, top))

    def read(self, row: BatchRow, logits: Tensor) -> Scored | Refused:
        """The score of a row from its last logits [vocabulary].

        log p = log_softmax(logits / temperature) over the candidates; temperature 0 does not scale.
        """
        if self.refusal is not None:
            return self.refusal
        logits = logits.float()
        candidates = logits if self.allowed is None else logits[self.allowed]
        if not bool((candidates < torch.inf).all()):  # NaN compares false
            return row.refused(*NOT_FINITE)
        logprobs = (candidates / (self.temperature or 1.0)).log_softmax(-1)
        wanted = self.top or 0
        if self.allowed is not None and self.top is not None:
            wanted = logprobs.shape[0]
        scores = self._described(_largest(logprobs, max(1, wanted)), logprobs)
        if not all(score.logprob > -torch.inf for score in scores):  # NaN when all are -inf
            return row.refused(*NO_CHANCE)
        top = scores[:wanted]
        return Scored(row.request, row.choice, scores[0], top, self.prompt, self.prompt_text)

    def _described(self, places: Tensor, logprobs: Tensor) -> list[TokenScore]:
        tokens = places if self.allowed is None else self.allowed[places]
        return [
            TokenScore(token, self.next_text_of(token), logprob)
            for token, logprob in zip(tokens.tolist(), logprobs[places].tolist(), strict=True)
        ]


@dataclass(slots=True)
class Rereading(RowGoal):
    """Reads the tokens of a finished completion again without steering, for its parts that need that. `held` are its
    last outcomes, which wait for them."""

    finished: BatchRow
    held: list[Ending]
    refusal: Refused | None = None

    @property
    def form(self) -> Hashable | None:  # type: ignore[override]
        """No scores are kept with a beginning, because its tokens were not written."""
        return Rereading

    def shareable(self, row: BatchRow) -> int:
        """What was written is read; the tokens before it may be taken over."""
        return len(self.finished.prompt)

    def first_scored(self, row: BatchRow) -> int:
        """The position of the last token before those that were written."""
        return len(self.finished.prompt) - 1

    def kept_scores(self) -> Sequence[PromptToken] | None:
        return () if self.refusal is None else None

    def read_prompt(self, row: BatchRow, logits: Tensor, start: int) -> None:
        """Give the parts the logits after the positions from `start` on, of logits [T, vocabulary]: those of the tokens
        that were written."""
        begin, end = (
            max(start, self.first_scored(row)),
            min(start + len(logits), len(row.prompt) - 1),
        )
        for at in range(begin, end, ECHO_POSITIONS):
            upto = min(at + ECHO_POSITIONS, end)
            some = logits[at - start : upto - start]
            if not bool((some < torch.inf).all()):  # NaN compares false
                self.refusal = row.refused(*NOT_FINITE)
                return
            for part in self.finished.parts:
                if part.needs_plain:
                    part.read_plain(row.prompt[at + 1 : upto + 1], some)

    def outcomes(
        self, row: BatchRow, token: Refusal | int | None, logits: Tensor, ends: frozenset[int]
    ) -> list[Ending]:
        """The outcomes that waited, with what the parts give.

        Raises:
            Exception: an error of a part.
        """
        if self.refusal is not None:
            return [self.refusal]
        *before, last = self.held
        return [*before, self.finished.with_parts(last)]


def _largest(values: Tensor, count: int) -> Tensor:
    """The places [count] of the `count` largest of `values` [n], the largest value first and equal values by place."""
    best = int(values.argmax())
    rest = torch.cat([values[:best], values[best + 1 :]])
    places = rest.topk(min(count, len(values)) - 1).indices
    return torch.cat([places.new_tensor([best]), places + (places >= best)])


@dataclass(slots=True)
class Pooling(RowGoal):
    """The sum of a text's last hidden layer over its tokens so far, [hidden] in float32."""

    needs_sums = True

    total: Tensor | None = None

    def add_sums(self, sums: Tensor) -> None:
        self.total = sums if self.total is None else self.total + sums

    def outcomes(
        self, row: BatchRow, token: Refusal | int | None, logits: Tensor, ends: frozenset[int]
    ) -> list[Ending]:
        """The mean over the row's tokens."""
        assert self.total is not None
        return [embedded(row, self.total / len(row.prompt))]


def embedded(row: BatchRow, vector: Tensor) -> Embedded | Refused:
    """The vector [hidden] of a row as its event."""
    if not bool(torch.isfinite(vector).all()):
        return row.refused("NON_FINITE_LOGITS", "the model produced NaN or infinite states")
    plain = vector.detach().to("cpu", torch.float32).contiguous().numpy()
    return Embedded(row.request, row.choice, plain.astype("<f4").tobytes())


class PartReading(RowGoal):
    """Reads a prompt for the parts of its row, and sends what they give piece by piece."""

    works = True

    def __init__(self) -> None:
        self._pieces: Iterator[dict[str, msgspec.Raw]] | None = None
        self._next: dict[str, msgspec.Raw] = {}

    def work_on(self, row: BatchRow) -> PartsRead:
        """The next piece. Whether a piece is the last one is known with the piece after it."""
        if row.fault is not None:
            raise row.fault
        if self._pieces is None:
            self._pieces = _pieces(row.parts)
            self._next = next(self._pieces, {})
        piece, self._next = self._next, next(self._pieces, {})
        return PartsRead(row.request, row.choice, piece, not self._next)


def _pieces(parts: Sequence[RowPart]) -> Iterator[dict[str, msgspec.Raw]]:
    """What the parts of a row give, piece by piece.

    Raises:
        Exception: an error of a part.
    """
    for part in parts:
        try:
            for piece in part.pieces():
                yield {part.name: pack(piece)}
        except Exception as error:
            raise part.fail([part], error) or error from error


class StateReading(RowGoal, ABC):
    """Reads the values of `sites` in the passes over a prompt, and works on them after it. `logits` [vocabulary] are
    those after the prompt."""

    works = True

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self.logits: Tensor | None = None
        self._error: Exception | None = None

    def catch(self, number: int, value: Tensor) -> Callable[[], None]:
        """Copy what is needed of the values [T, width] of site `number` at the tokens of a pass. Returns what takes the
        copy in, which is called where the pass is taken. This is called within the pass of all rows, so it raises
        nothing: an error ends the row when its work begins."""
        if self._error is not None:
            return lambda: None
        try:
            return self.copied(number, value.detach())
        except Exception as error:
            return partial(setattr, self, "_error", error)

    @abstractmethod
    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        """Copy what is needed of these values. Returns what takes the copy in."""

    def keep_logits(self, logits: Tensor) -> None:
        self.logits = logits.clone()

    def work_on(self, row: BatchRow) -> Outcome | Refused | None:
        if self._error is not None:
            raise self._error
        return self.work(row)

    @abstractmethod
    def work(self, row: BatchRow) -> Outcome | Refused | None:
        """Do a part of the work; None while there is more of it."""


class PartedReading(StateReading, ABC):
    """Reads states, and works on them in parts."""

    _work: Generator[None, None, Outcome | Refused] | None = None

    def work(self, row: BatchRow) -> Outcome | Refused | None:
        if self._work is None:
            self._work = self.work_in_parts(row)
        try:
            next(self._work)
        except StopIteration as ended:
            outcome: Outcome | Refused = ended.value
            return outcome
        return None

    def close(self) -> None:
        if self._work is not None:
            # the generator and its goal have each other, and what the work holds would stay until they are collected
            self._work.close()
            self._work = None

    @abstractmethod
    def work_in_parts(self, row: BatchRow) -> Generator[None, None, Outcome | Refused]:
        """Do the work, with a yield between two parts of it."""
