"""How one row is steered: its plan, the positions at which its edits act, what its conditions have read, and where its
edits acted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from steerserve.errors import Refusal
from steerserve.messages import RUNS_MAXIMUM, EditActs, Overlay, Plan
from steerserve.rules.steering import positions as places
from steerserve.rules.steering.edits import (
    LAST_PROMPT,
    PROMPT_MEAN,
    RESIDUAL,
    Condition,
    Edit,
    conditions,
)
from steerserve.rules.steering.positions import Positions, PromptFacts, Span
from steerserve.rules.steering.vector import Direction
from steerserve.worker.rows.text import Answer


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What positions need of a tokenizer: its special tokens, the token that begins every text, and the text of
    tokens."""

    special: frozenset[int] = frozenset()
    beginning: int | None = None
    decode: Callable[[list[int]], str] = lambda _: ""


@dataclass(slots=True)
class ActCount:
    """The positions at which one edit was evaluated, and those at which it changed something."""

    evaluated: set[int] = field(default_factory=set)
    acted: set[int] = field(default_factory=set)
    max_change: float = 0.0


class RowSteering:
    """The steering of one row. `prompt` and `out` are the row's own lists of tokens, and `out` grows.

    The row's parts may ask for two things. Where `counted` is not None, the row counts where its edits act: `counted`
    has the edits among the values that the plan adds, and `list_edits` gets the other edits that the row has at its
    start. The projections on the directions `watched` are read in each pass, at the last position of the row.
    """

    def __init__(
        self,
        plan: Plan,
        prompt: Sequence[int] = (),
        out: Sequence[int] = (),
        facts: TokenFacts = TokenFacts(),
        spans: Sequence[Span] = (),
    ) -> None:
        self.plan = plan
        self.counted: Sequence[Edit] | None = None
        self._listed: dict[Edit, int] = {}
        self._same: dict[Edit, int] = {}
        self.list_edits(())
        self.watched: Sequence[Direction] = ()
        self._seen: dict[Direction, float] = {}
        self.epoch = 0
        self._prompt = prompt
        self._out = out
        self._facts = facts
        self._spans = tuple(spans)
        self._masks: dict[tuple[Positions, bool], list[bool]] = {}
        self._written: dict[str, tuple[int, bool]] = {}
        self._read: dict[Condition, list[float]] = {}
        # for each position the last one up to it at which the condition was true, or -1
        self._fired: dict[Condition, list[int]] = {}
        self._decided: dict[Condition, bool] = {}
        self._active: dict[tuple[Edit, ...], dict[tuple[bool, ...], tuple[Edit, ...]]] = {}
        self._counts: dict[int, ActCount] = {}

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the prompt."""
        return len(self._prompt)

    def check_positions(self) -> None:
        """Check that the prompt has the positions that the request itself names.

        Raises:
            Refusal: INVALID_PARAMETER naming the edit.
        """
        if not isinstance(self.plan, Overlay) or self.plan.epoch is not None:
            return
        for edit in self.plan.edits:
            at = places.missing(edit.positions, len(self._prompt))
            if at is not None:
                where = f"interventions.edits[{edit.number}].positions.prompt_positions"
                size = len(self._prompt)
                why = f"{where}: the prompt has no position {at}; it has {size} tokens"
                raise Refusal("INVALID_PARAMETER", why, param=where, prompt_tokens=size)

    def check_source(self, edit: Edit) -> None:
        """Check that an edit with several values in its source has as many positions in the prompt.

        Raises:
            Refusal: INVALID_INTERVENTION naming the edit.
        """
        if edit.source is None or edit.source.rows == 1:
            return
        count = sum(self._mask_of_prompt(edit.positions, False))
        is_open = places.most_generated(edit.positions, 1 << 30) > 0
        if count != edit.source.rows or is_open:
            where = f"interventions.edits[{edit.number}].positions"
            found = f"{count} positions of the prompt" + (" and generated ones" if is_open else "")
            why = f"{where}: the source has {edit.source.rows} positions, and the edit {found}"
            raise Refusal("INVALID_INTERVENTION", why, param=where)

    # ------------------------------------------------------------- positions

    def active(self, edits: tuple[Edit, ...], first: int, size: int) -> tuple[Edit, ...]:
        """Those of the edits that act on some of the positions [first, first + size), or may by their conditions. Equal
        results are one object, so that they can be told apart without a comparison."""
        known = self._active.setdefault(edits, {})
        flags = tuple(
            not edit.is_placed or any(self.mask(edit, first, size) or (True,)) for edit in edits
        )
        if flags not in known:
            known[flags] = tuple(edit for edit, is_on in zip(edits, flags, strict=True) if is_on)
        return known[flags]

    def mask(self, edit: Edit, first: int, size: int) -> list[bool] | None:
        """Whether each of the positions [first, first + size) is one of the edit's. None where each is."""
        spares = edit.is_added and edit.unit == RESIDUAL and self._facts.beginning in self._prompt
        if edit.positions.is_every and not spares:
            return None
        prompt = self._mask_of_prompt(edit.positions, spares)
        return [self._is_at(edit.positions, prompt, at) for at in range(first, first + size)]

    def rank(self, edit: Edit, at: int) -> int:
        """How many positions of the edit come before this position of the prompt."""
        return sum(self._mask_of_prompt(edit.positions, False)[:at])

    def are_at(self, positions: Positions, first: int, count: int) -> list[bool]:
        """Whether each of the positions [first, first + count) is one of these. A position whose token is not written
        yet is none of them."""
        prompt = self._mask_of_prompt(positions, False)
        return [self._is_at(positions, prompt, at) for at in range(first, first + count)]

    def is_positional(self, edits: Sequence[Edit]) -> bool:
        """Whether one of the edits may act at some positions only, whatever it reads there."""
        return any(
            self.mask(edit, 0, 1) is not None
            or any(one.is_of_prompt for one in conditions(edit.when))
            for edit in edits
        )

    def acting(self, edits: Sequence[Edit], size: int) -> list[tuple[tuple[bool, ...] | None, ...]]:
        """For each of the first `size` positions and each edit, None where the edit cannot act; otherwise the decisions
        of its conditions over the prompt, which are made at its end."""
        columns: list[list[tuple[bool, ...] | None]] = []
        for edit in edits:
            mask = self.mask(edit, 0, size) or [True] * size
            decided = [one for one in conditions(edit.when) if one.is_of_prompt]
            # decisions are one thing over the prompt and another after it
            before = tuple(False for _ in decided)
            after = before
            if size > len(self._prompt):
                after = tuple(self.holds(one, size - 1) for one in decided)
            # the edit waits for one decision alone
            closed = [
                isinstance(edit.when, Condition) and not all(told) for told in (before, after)
            ]
            found = [
                None if one else told for one, told in zip(closed, (before, after), strict=True)
            ]
            columns.append(
                [found[at >= len(self._prompt)] if is_in else None for at, is_in in enumerate(mask)]
            )
        return list(zip(*columns, strict=True))

    def _is_at(self, positions: Positions, prompt: list[bool], at: int) -> bool:
        if at < len(prompt):
            return prompt[at]
        index = at - len(prompt)
        if index >= len(self._out):
            return False  # padding
        written = [text for text in positions.texts if self._is_written(text, index)]
        token = self._out[index]
        return places.is_generated(positions, index, token, self._facts.special, written)

    def _mask_of_prompt(self, positions: Positions, spares: bool) -> list[bool]:
        """`spares`: the beginning token is left out where it is not named, because its value is far longer than the
        others."""
        mask = self._masks.get((positions, spares))
        if mask is None:
            facts = PromptFacts(tuple(self._prompt), self._spans, self._facts.special)
            mask = places.in_prompt(positions, facts)
            if spares:
                mask = [
                    is_in
                    and (
                        token != self._facts.beginning
                        or places.names_token(positions, self._prompt, at)
                    )
                    for at, (is_in, token) in enumerate(zip(mask, self._prompt, strict=True))
                ]
            self._masks[positions, spares] = mask
        return mask

    def _is_written(self, text: str, index: int) -> bool:
        """Whether the answer contains the text up to its token `index`."""
        upto, is_found = self._written.get(text, (-1, False))
        while upto < index and not is_found:
            upto += 1
            is_found = text in self._answer.around(upto, len(text))
        self._written[text] = upto, is_found
        return is_found and index >= upto

    @cached_property
    def _answer(self) -> Answer:
        return Answer(self._facts.decode, self._prompt, self._out)

    # ------------------------------------------------------------- conditions

    def record(self, condition: Condition, first: int, readings: Sequence[float]) -> None:
        """Take what a condition has read at the positions from `first` on."""
        size = len(self._prompt)
        if condition.is_of_prompt:
            held = self._read.setdefault(condition, [math.nan] * size)
            for at, reading in enumerate(readings, first):
                if at < size:
                    held[at] = reading
            return
        fired = self._fired.setdefault(condition, [])
        del fired[first:]
        last = fired[-1] if fired else -1
        fired += [last] * (first - len(fired))
        for at, reading in enumerate(readings, first):
            last = at if is_true(condition, reading) else last
            fired.append(last)

    def see(self, direction: Direction, reading: float) -> None:
        """Take what was read of a watched direction at the last position of a pass."""
        self._seen[direction] = reading

    def readings(self) -> list[float]:
        """What was read last of each watched direction.

        Raises:
            Refusal: NON_FINITE_LOGITS where that is no number.
        """
        read = [self._seen[direction] for direction in self.watched]
        if not all(map(math.isfinite, read)):
            why = "the model produced NaN or infinite states"
            raise Refusal("NON_FINITE_LOGITS", why)
        return read

    def holds(self, condition: Condition, at: int) -> bool:
        """Whether a recorded condition holds at a position."""
        return self.held(condition, at, at + 1)[0]

    def held(self, condition: Condition, first: int, end: int) -> list[bool]:
        """Whether a recorded condition holds at each of the positions [first, end)."""
        if condition.is_of_prompt:
            before = max(0, min(end, len(self._prompt)) - first)
            after = end - first - before
            return [False] * before + [after > 0 and self._decision(condition)] * after
        fired = self._fired.get(condition) or [-1]
        lasts = ((at, fired[min(at, len(fired) - 1)]) for at in range(first, end))
        hold = math.inf if condition.hold is None else condition.hold
        return [last >= 0 and at - last < hold for at, last in lasts]

    def _decision(self, condition: Condition) -> bool:
        if condition not in self._decided:
            read = self._read.pop(condition, [math.nan])
            if condition.over == LAST_PROMPT:
                reading = read[-1]
            elif condition.over == PROMPT_MEAN:
                is_number = all(map(math.isfinite, read))
                reading = math.fsum(read) / len(read) if is_number else math.nan
            else:
                reading = math.nan if any(map(math.isnan, read)) else max(read)
            self._decided[condition] = is_true(condition, reading)
        return self._decided[condition]

    # ------------------------------------------------------------- what acted

    def list_edits(self, edits: Sequence[Edit]) -> None:
        """The row has these edits at its start, beside those among the values that are added."""
        listed = (*(self.counted or ()), *edits)
        self._listed = {edit: edit.number for edit in listed}
        self._same = {edit.content: edit.number for edit in reversed(listed)}

    def count(self, edit: Edit, positions: Sequence[int], changes: Sequence[float]) -> None:
        """An edit was evaluated at these positions of this row, and changed the value x there by so many |x|. An edit
        that an operator has set since the row began is not counted."""
        number = self._number(edit)
        if number is None:
            return
        size = len(self._prompt) + len(self._out)
        counts = self._counts.setdefault(number, ActCount())
        for at, change in zip(positions, changes, strict=True):
            if at < size:
                counts.evaluated.add(at)
                if change:
                    counts.acted.add(at)
                    counts.max_change = max(counts.max_change, change)

    def _number(self, edit: Edit) -> int | None:
        """The number of an edit in the list that the row had at its start; None where it was not there."""
        number = self._listed.get(edit)
        return self._same.get(edit.content) if number is None else number

    def acts(self) -> list[EditActs]:
        """Where the edits acted, by their numbers."""
        numbers = set(self._listed.values())
        return [_told(number, self._counts.get(number, ActCount())) for number in sorted(numbers)]


def needs_record(condition: Condition) -> bool:
    """Whether the condition needs readings of earlier positions."""
    return condition.is_of_prompt or condition.hold != 1


def is_true(condition: Condition, reading: float) -> bool:
    """Whether a reading is beyond the bound of a condition. NaN is beyond none."""
    if condition.above is not None:
        return reading > condition.above
    return condition.below is not None and reading < condition.below


def _told(number: int, count: ActCount) -> EditActs:
    acted = sorted(count.acted)
    first, last = (acted[0], acted[-1]) if acted else (None, None)
    runs = _runs(acted)
    at = runs if len(runs) <= RUNS_MAXIMUM else None
    return EditActs(number, len(count.evaluated), len(acted), first, last, count.max_change, at)


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Rising positions as runs, each with its first and its last position."""
    runs: list[tuple[int, int]] = []
    for at in positions:
        if runs and runs[-1][1] == at - 1:
            runs[-1] = runs[-1][0], at
        else:
            runs.append((at, at))
    return runs
