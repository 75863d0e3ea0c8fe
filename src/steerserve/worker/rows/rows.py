"""One row of the running batch: a choice being written, a prompt being scored, a text being pooled, or a prompt whose
states are read.

A row knows its tokens and its goal. The goal says how the logits after the tokens are used. A row knows nothing of
other rows or of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import torch
from msgspec import structs
from torch import Tensor

from steerserve.messages import (
    Piece,
    Plan,
    Refused,
    Scored,
    Suppressed,
)
from steerserve.parts.part import pack
from steerserve.parts.row_part import RowPart, SiteRead
from steerserve.rules.residency.memory_needs import LENGTH_STEP
from steerserve.worker import memory
from steerserve.worker.model.kv import CacheSlot
from steerserve.worker.rows.goals import Ending, Rereading, RowGoal
from steerserve.worker.rows.steering import RowSteering


@dataclass(slots=True, eq=False)
class BatchRow:
    """One row, from its prompt to its end. `version` is the version of the steering when its prefill began. `where`
    names its prompt in refusals of a request with several prompts. `label` names it in records of monitoring; a row
    without a label is not monitored. `slot` is its room in the cache, from its first pass to its end. `client` is the
    client whose request it belongs to, and `yields` says that this request yields to others. With `is_stream` its
    tokens are sent to the client as they come. `seconds` is how long the engine has worked for it, without decode
    passes. `steering` is its plan, resolved for its tokens. With `may_reuse` it may begin with keys and values that
    another row has computed; with `needs_exact` only with those that have the bits which it would compute itself.
    `parts` serve what its request asks for beside its goal, and what else reads it; `fault` is an error of one of them
    in a pass."""

    request: int
    choice: int
    prompt: list[int]
    plan: Plan
    goal: RowGoal
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

    @property
    def attends_plainly(self) -> bool:
        """Whether the layers must compute attention in the plain way for the row."""
        return any(part.attends_plainly for part in self.parts)

    @property
    def reads_in_attention(self) -> bool:
        """Whether a part reads queries, keys or values in the coming pass."""
        reads = [read for part in self.parts for read in part.reads_in_pass()]
        return any(isinstance(read, SiteRead) and read.is_in_attention for read in reads)

    @property
    def logits_from(self) -> int | None:
        """The first position of the prompt after which logits are needed; None where only those after its end are."""
        wanted = [part.logits_from for part in self.parts if part.logits_from is not None]
        if self.goal.form is not None:
            wanted.append(self.goal.first_scored(self))
        return min(wanted, default=None)

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


def reread(row: BatchRow, held: list[Ending]) -> BatchRow:
    """The row that reads the tokens of a finished row again without steering."""
    tokens = [*row.prompt, *row.out]
    wanted = [part.plain_part for part in row.parts if part.needs_plain]
    parts = [part for part in wanted if part is not None]
    return BatchRow(
        row.request,
        row.choice,
        tokens,
        Suppressed(),
        Rereading(row, held),
        client=row.client,
        may_reuse=all(part.may_reuse for part in parts),
        needs_exact=True,
        yields=row.yields,
        parts=parts,
    )


def settled(outcomes: list[Ending]) -> tuple[list[Ending], set[int]]:
    """The outcomes of a step and the refused requests. A refused request keeps its first refusal and no other
    outcome."""
    refused: dict[int, Refused] = {}
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            refused.setdefault(outcome.id, outcome)
    kept = [outcome for outcome in outcomes if outcome.id not in refused]
    return [*kept, *refused.values()], set(refused)
