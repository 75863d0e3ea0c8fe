"""One row of the running batch: a choice being written, a prompt being scored, a text being pooled, or a prompt whose
states are read.

A row knows its tokens and its goal. The goal says how the logits after the tokens are used. A row knows nothing of
other rows or of the cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import torch
from msgspec import structs
from torch import Tensor

from steerserve.messages import (
    Embedded,
    FinishReason,
    Outcome,
    Piece,
    Plan,
    PromptToken,
    Refused,
    Scored,
    Suppressed,
    TokenScore,
)
from steerserve.parts.part import pack
from steerserve.parts.row_part import RowPart
from steerserve.rules.residency.memory_needs import LENGTH_STEP
from steerserve.worker import memory
from steerserve.worker.model.kv import CacheSlot
from steerserve.worker.rows import sampling
from steerserve.worker.rows.constrain import RowConstraint
from steerserve.worker.rows.distributions import NO_CHANCE, distributions
from steerserve.worker.rows.steering import RowSteering
from steerserve.worker.rows.text import TextStream
from steerserve.worker.sae.sites import Site

Ending = Outcome | Refused

ECHO_POSITIONS = 64
"""The positions of a prompt that are scored at once, because log-probabilities over a large vocabulary take memory."""

NOT_FINITE = ("NON_FINITE_LOGITS", "the model produced NaN or infinite logits")


@dataclass(slots=True)
class Writing:
    """A completion: how its tokens are chosen, and their text."""

    sampler: sampling.Sampler
    text: TextStream
    constraint: RowConstraint | None = None


@dataclass(slots=True)
class Scoring:
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
    def form(self) -> Hashable | None:
        """What the scores of the prompt's tokens depend on beside the tokens; None where they are not scored."""
        return (self.temperature or 1.0, self.top or 0) if self.is_echoed else None

    def reads_from(self, row: BatchRow) -> int:
        """The first position of which the logits are needed: the last one whose token has its score."""
        return max(0, len(self.prompt) - 1)

    def read_prompt(self, row: BatchRow, logits: Tensor, start: int) -> None:
        """Score the tokens of the prompt that follow the positions from `start` on, from the logits [T, vocabulary] at
        these positions. The last position has no token after it."""
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
class Rereading(Scoring):
    """Reads the tokens of a finished completion again without steering, for its parts that need that. `held` are its
    last outcomes, which wait for them."""

    finished: BatchRow = field(kw_only=True)
    held: list[Ending] = field(kw_only=True)

    def reads_from(self, row: BatchRow) -> int:
        """The position of the last token before those that were written."""
        return len(self.finished.prompt) - 1

    def read_prompt(self, row: BatchRow, logits: Tensor, start: int) -> None:
        """Give the parts the logits after the positions from `start` on, of logits [T, vocabulary]: those of the tokens
        that were written."""
        begin, end = max(start, self.reads_from(row)), min(start + len(logits), len(row.prompt) - 1)
        for at in range(begin, end, ECHO_POSITIONS):
            upto = min(at + ECHO_POSITIONS, end)
            some = logits[at - start : upto - start]
            if not bool((some < torch.inf).all()):  # NaN compares false
                self.refusal = row.refused(*NOT_FINITE)
                return
            for part in self.finished.parts:
                if part.needs_plain:
                    part.read_plain(row.prompt[at + 1 : upto + 1], some)

    def finish(self) -> list[Ending]:
        """The outcomes that waited, with what the parts give.

        Raises:
            Exception: an error of a part.
        """
        if self.refusal is not None:
            return [self.refusal]
        *before, last = self.held
        return [*before, self.finished.with_parts(last)]


def reread(row: BatchRow, held: list[Ending]) -> BatchRow:
    """The row that reads the tokens of a finished row again without steering."""
    goal = Rereading(1.0, None, None, str, str, is_echoed=True, finished=row, held=held)
    tokens = [*row.prompt, *row.out]
    return BatchRow(
        row.request,
        row.choice,
        tokens,
        Suppressed(),
        goal,
        client=row.client,
        yields=row.yields,
    )


def _largest(values: Tensor, count: int) -> Tensor:
    """The places [count] of the `count` largest of `values` [n], the largest value first and equal values by place."""
    best = int(values.argmax())
    rest = torch.cat([values[:best], values[best + 1 :]])
    places = rest.topk(min(count, len(values)) - 1).indices
    return torch.cat([places.new_tensor([best]), places + (places >= best)])


@dataclass(slots=True)
class Pooling:
    """The sum of a text's last hidden layer over its tokens so far, [hidden] in float32."""

    total: Tensor | None = None

    def add(self, sums: Tensor) -> None:
        self.total = sums if self.total is None else self.total + sums

    def read(self, row: BatchRow) -> Embedded | Refused:
        """The mean over the row's tokens."""
        assert self.total is not None
        return embedded(row, self.total / len(row.prompt))


def embedded(row: BatchRow, vector: Tensor) -> Embedded | Refused:
    """The vector [hidden] of a row as its event."""
    if not bool(torch.isfinite(vector).all()):
        return row.refused("NON_FINITE_LOGITS", "the model produced NaN or infinite states")
    plain = vector.detach().to("cpu", torch.float32).contiguous().numpy()
    return Embedded(row.request, row.choice, plain.astype("<f4").tobytes())


class StateReading(ABC):
    """Reads the values of `sites` in the passes over a prompt. The work on them comes after the prompt, a part in each
    step, so that other rows wait for a part only. `logits` [vocabulary] are those after the prompt, where the row
    `needs_logits`."""

    needs_logits = False

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

    def read(self, row: BatchRow) -> Outcome | Refused | None:
        """Do a part of the work; None while there is more of it.

        Raises:
            Exception: what went wrong in the passes or in the work.
        """
        if self._error is not None:
            raise self._error
        return self.work(row)

    @abstractmethod
    def work(self, row: BatchRow) -> Outcome | Refused | None:
        """Do a part of the work; None while there is more of it."""


@dataclass(slots=True, eq=False)
class BatchRow:
    """One row, from its prompt to its end. `version` is the version of the steering when its prefill began. `where`
    names its prompt in refusals of a request with several prompts. `label` names it in records of monitoring; a row
    without a label is not monitored. `slot` is its room in the cache, from its first pass to its end. `client` is the
    client whose request it belongs to, and `yields` says that this request yields to others. With
    `is_stream` its tokens are sent to the client as they come. `seconds` is how long the engine has worked for it,
    without decode passes. `steering` is its plan,
    resolved for its tokens. With `may_reuse` it may begin with keys and values that another row has computed; with
    `needs_exact` only with those that have the bits which it would compute itself. `parts` serve what its request asks
    for beside its goal, and what else reads it; `fault` is an error of one of them in a pass."""

    request: int
    choice: int
    prompt: list[int]
    plan: Plan
    goal: Writing | Scoring | Pooling | StateReading
    max_tokens: int = 0
    may_reuse: bool = False
    needs_exact: bool = False
    where: str | None = None
    label: str | None = None
    out: list[int] = field(default_factory=list)
    filled: int = 0
    version: int | None = None
    slot: CacheSlot | None = None
    client: str = ""
    yields: bool = False
    is_stream: bool = False
    seconds: float = 0.0
    parts: list[RowPart] = field(default_factory=list)
    fault: Exception | None = None
    steering: RowSteering = field(init=False)

    def __post_init__(self) -> None:
        self.steering = RowSteering(self.plan, self.prompt, self.out)

    @property
    def need(self) -> int:
        """The most tokens of cache that the row may fill, rounded up to whole length steps."""
        return -(-(len(self.prompt) + self.max_tokens) // LENGTH_STEP) * LENGTH_STEP

    @property
    def position(self) -> int:
        """Position of the last token, which the next pass reads."""
        return len(self.prompt) + len(self.out) - 1

    def token_at(self, position: int) -> int:
        """The token at a position of prompt and completion."""
        size = len(self.prompt)
        return self.prompt[position] if position < size else self.out[position - size]

    @property
    def cached(self) -> list[int]:
        """The tokens whose keys and values the cache holds once the row is prefilled."""
        return self.prompt + self.out[:-1]

    def refused(self, code: str, message: str, **details: object) -> Refused:
        named = f"{self.where}: {message}" if self.where else message
        return Refused(self.request, code, named, self.where, details)

    def failed(
        self,
        error: Exception,
        device: torch.device,
        rows: int,
        why: str = "the model's forward pass failed",
    ) -> Refused:
        """The refusal of this row after an error in a forward pass over `rows` rows, or in a step with so many."""
        if not memory.is_exhausted(error):
            return self.refused("INTERNAL_ERROR", why)
        device = memory.exhausted(error, device)
        return self.refused(
            "INSUFFICIENT_MEMORY",
            f"{device} ran out of memory while generating",
            **memory.described(device),
            prompt_tokens=len(self.prompt),
            max_new_tokens=self.max_tokens,
            batch_rows=rows,
        )

    def end(self, logits: Tensor) -> list[Ending]:
        """The outcome of a row that scores or pools, from the logits [vocabulary] after its prompt."""
        if isinstance(self.goal, Pooling):
            return [self.goal.read(self)]
        assert isinstance(self.goal, Scoring)
        return [self.goal.read(self, logits)]

    def accept(self, token: int | None, end_tokens: frozenset[int]) -> list[Ending]:
        """Take the sampled token. Returns the piece of text that is certain now, with `finish` where the row ends.

        A token of None means that the logits were not finite.
        """
        assert isinstance(self.goal, Writing)
        if token is None:
            return [
                self.refused(
                    "NON_FINITE_LOGITS",
                    "the model produced NaN or infinite logits; a strong steering value is a common cause",
                )
            ]
        self.out.append(token)
        text, finish = self._take(token, token in end_tokens)
        return [Piece(self.request, self.choice, text, len(self.out), finish)]

    def tell_parts(self, token: int, logits: Tensor) -> None:
        """Tell the parts that a token was drawn from these logits [vocabulary].

        Raises:
            Exception: an error of a part; a Refusal NON_FINITE_LOGITS where a reading is no number.
        """
        readings, first = self.steering.readings(), 0
        for part in self.parts:
            end = first + len(part.directions)
            try:
                part.draw(token, logits, readings[first:end])
            except Exception as error:
                raise part.fail([part], error) or error from error
            first = end

    @property
    def needs_plain(self) -> bool:
        """Whether the model must read the row's tokens again without steering."""
        return any(part.needs_plain for part in self.parts)

    def with_parts(self, outcome: Ending) -> Ending:
        """The outcome with what the parts give.

        Raises:
            Exception: an error of a part.
        """
        if not self.parts or not isinstance(outcome, Piece | Scored):
            return outcome
        is_last = isinstance(outcome, Scored) or outcome.finish is not None
        told: dict[str, msgspec.Raw] = {}
        for part in self.parts:
            try:
                chunk = part.chunk(is_last=is_last)
            except Exception as error:
                raise part.fail([part], error) or error from error
            if chunk is not None:
                told[part.name] = pack(chunk)
        return structs.replace(outcome, parts=told) if told else outcome

    def _take(self, token: int, is_end: bool) -> tuple[str, FinishReason | None]:
        assert isinstance(self.goal, Writing)
        text, sampler, constraint = self.goal.text, self.goal.sampler, self.goal.constraint
        if sampler.seen is not None:
            sampler.seen[token] = True
        if is_end:
            return text.finish(), "stop"
        if constraint is not None:
            constraint.advance(token)
        new = text.push(token)
        if text.is_stopped:
            return new, "stop"
        if constraint is not None and constraint.is_complete:
            return new + text.finish(), "stop"
        if len(self.out) < self.max_tokens:
            return new, None
        new += text.finish()
        return new, "stop" if text.is_stopped else "length"


def settled(outcomes: list[Ending]) -> tuple[list[Ending], set[int]]:
    """The outcomes of a step and the refused requests. A refused request keeps its first refusal and no other
    outcome."""
    refused: dict[int, Refused] = {}
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            refused.setdefault(outcome.id, outcome)
    kept = [outcome for outcome in outcomes if outcome.id not in refused]
    return [*kept, *refused.values()], set(refused)
