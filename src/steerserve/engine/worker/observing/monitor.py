"""What monitoring sees: the last residual row of each monitored choice per pass, encoded later and in pieces.

A pass only copies rows of d_in; features are computed between passes. It owns what waits to be encoded, the latest row
of each running choice, and the statistics. It changes nothing that the model computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from torch import Tensor

from steerserve.engine.wire.messages import (
    RECORD_MAXIMUM,
    FeatureCount,
    ReadStatistics,
    Recorded,
    Statistics,
)
from steerserve.engine.worker import memory
from steerserve.engine.worker.rows.ranking import is_active, largest
from steerserve.engine.worker.rows.rows import Row
from steerserve.rules import steering

log = structlog.get_logger(__name__)
CHUNK = 64
"""Tokens encoded at once: one reading of the encoder's weights then serves them all."""

Choice = tuple[int, int]
"""A request and the number of its choice."""


def special_tokens(tokenizer: Any, ends: frozenset[int]) -> frozenset[int]:
    """Tokens that are no text: SAEs are not trained on them, and the first position has meaningless values."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    named = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return frozenset(
        [
            *ends,
            *tokenizer.all_special_ids,
            *(token for token in named if token is not None),
            *(token for token, entry in added.items() if entry.special),
        ]
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """A row at its latest observed token; `rows` [n, d_in] is what that pass left, `place` the row in it."""

    row: Row
    position: int
    rows: Tensor
    place: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What the next pass shows of a row: its `place` among the rows, the token `at` so many of the pass, at a `position`
    of the row; `is_text` where it is no special token."""

    row: Row
    place: int
    at: int
    position: int
    is_text: bool


@dataclass(frozen=True, slots=True)
class Target:
    """What is watched: the attachment `key` with its `number`, all features or those named, and how the site's values
    [n, d_in] become those features [n, features] in float32."""

    key: str
    number: int
    d_sae: int
    device: torch.device
    encode: Callable[[Tensor], Tensor]
    features: Tensor | None
    top_k: int

    def record(self, seen: Seen, values: Tensor) -> Recorded:
        """What is told of a choice by its last values [features watched]: the largest by magnitude first, equals by
        index; inactive ones only where features were named."""
        row = seen.row
        assert row.label is not None
        found = largest(values, RECORD_MAXIMUM)
        if self.features is None:
            found = [(index, value) for index, value in found if value != 0]
        else:
            named = self.features.tolist()
            found = [(named[place], value) for place, value in found]
        return Recorded(
            id=row.request,
            label=row.label,
            key=self.key,
            choice=row.choice,
            position=seen.position,
            token=row.token_at(seen.position),
            activations=found,
            top_k=found[: self.top_k],
            fired=int(is_active(values).sum()),
        )


class Counts:
    """Running figures of each feature of one SAE over the tokens observed, [d_sae] in float64.

    Means and sums of squares are merged batch by batch (Chan, Golub and LeVeque 1983), which loses nothing where
    features are rare or far from 0.
    """

    def __init__(self, d_sae: int, device: torch.device) -> None:
        def filled(value: float) -> Tensor:
            return torch.full((d_sae,), value, dtype=torch.float64, device=device)

        self.tokens = 0
        self.count, self.mean, self.squares, self.active = (filled(0.0) for _ in range(4))
        self.least, self.greatest = filled(torch.inf), filled(-torch.inf)

    def add(self, values: Tensor, features: Tensor | None) -> None:
        """Count tokens by their values [n, features], of these features or of all."""
        new = float(len(values))
        # about a float32 mean, so that sums of float32 lose nothing to a large one
        centre = values.mean(0)
        apart = values - centre
        rest = apart.sum(0, dtype=torch.float64) / new
        squares = apart.square_().sum(0, dtype=torch.float64) - rest.square() * new
        active = is_active(values).sum(0)
        at = slice(None) if features is None else features
        before = self.count[at]
        total = before + new
        step = centre.double() + rest - self.mean[at]
        self.tokens += len(values)
        self.squares[at] += squares.clamp_min(0.0) + step.square() * before * new / total
        self.mean[at] += step * new / total
        self.count[at] = total
        self.active[at] += active
        self.least[at] = torch.minimum(self.least[at], values.amin(0).double())
        self.greatest[at] = torch.maximum(self.greatest[at], values.amax(0).double())

    def read(self, features: list[int] | None, metric: str | None, k: int) -> list[FeatureCount]:
        """The figures of the features named that were observed, else of all that were active at least once: by index, or
        with a metric the best `k`, equals by index.

        All features are observed at the same tokens as long as the same ones are watched, so `count` ranks by the tokens
        at which a feature was active.
        """
        index = self.active.nonzero()[:, 0]
        if features is not None:
            index = torch.tensor(sorted(set(features)), dtype=torch.long, device=self.count.device)
            index = index[self.count[index] > 0]
        count = self.count[index]
        active = self.active[index]
        ratio = active / count
        mean, greatest = self.mean[index], self.greatest[index]
        if metric is not None:
            ranked = {"mean": mean, "max": greatest, "active_ratio": ratio, "count": active}[metric]
            best = ranked.sort(descending=True, stable=True).indices[:k]
        else:
            best = torch.arange(len(index), device=index.device)
        std = (self.squares[index] / count).sqrt()
        columns = [mean, std, self.least[index], greatest, ratio]
        figures = torch.stack(columns, dim=1)[best].tolist()
        counted = zip(index[best].tolist(), count[best].long().tolist(), figures, strict=True)
        return [FeatureCount(i, count, *figure) for i, count, figure in counted]


class Monitor:
    """Watches at most one attached SAE; tokens in `special` are not counted, and the first position is never read: its
    values say little of its token because all others attend to it (Xiao et al. 2024, arXiv:2309.17453)."""

    def __init__(self, special: frozenset[int] = frozenset()) -> None:
        self._special = special
        self._target: Target | None = None
        self._counts: Counts | None = None
        self._counted: int | None = None
        self._expected: list[Expected] = []
        self._caught: Tensor | None = None
        self._waiting: list[Tensor] = []
        self._latest: dict[Choice, Seen] = {}
        self._ended: list[Seen] = []

    def watch(self, target: Target | None) -> None:
        """Watch this from the next pass on, or nothing. What was counted stays, unless it was another SAE's."""
        self._flush()
        before, self._target = self._target, target
        if target is None or before is None or before.number != target.number:
            self._latest.clear()
            self._ended.clear()
        if target is not None and (self._counts is None or self._counted != target.number):
            self._counts = Counts(target.d_sae, target.device)
            self._counted = target.number

    def drop(self, number: int) -> None:
        """Forget all of an SAE that is detached."""
        if self._target is not None and self._target.number == number:
            self._waiting.clear()
            self.watch(None)
        if self._counted == number:
            self._counts = self._counted = None

    # ------------------------------------------------------------- beside a pass

    def expect(self, rows: Sequence[Row], spans: Sequence[tuple[int, int]]) -> None:
        """The next pass reads these rows, each from a first position on so many tokens.

        Only the token whose logits the pass gives is observed, so what is seen does not depend on how a long prompt
        was cut. A special token is read only where a choice has nothing else to record yet; it is not counted.
        """
        self.discard()
        if self._target is None:
            return
        for i, (row, (start, count)) in enumerate(zip(rows, spans, strict=True)):
            position = start + count - 1
            is_whole = position >= len(row.prompt) - 1
            is_text = row.token_at(position) not in self._special
            is_wanted = is_text or _choice(row) not in self._latest
            if row.label is not None and is_whole and position > 0 and is_wanted:
                self._expected.append(Expected(row, i, count - 1, position, is_text))

    def catch(self, value: Tensor) -> None:
        """Copy what is expected of the site's value [rows, T, d_in], before its own steering is added.

        It is called within the pass, which must not end with it: what cannot be copied is not observed, and a choice whose
        latest token that is has no record.
        """
        if not self._expected:
            return
        rows = [one.place for one in self._expected]
        places = [one.at for one in self._expected]
        try:
            self._caught = value[rows, places].detach()
        except Exception as error:
            log.exception("monitoring_failed", tokens=len(rows))
            for one in self._expected:
                self._latest.pop(_choice(one.row), None)
            self.discard()
            memory.recover(error)

    def settle(self) -> None:
        """The pass succeeded: what it left counts."""
        if self._caught is not None:
            texts = [place for place, one in enumerate(self._expected) if one.is_text]
            if texts:
                is_all = len(texts) == len(self._expected)
                self._waiting.append(self._caught if is_all else self._caught[texts])
            for place, one in enumerate(self._expected):
                self._latest[_choice(one.row)] = Seen(one.row, one.position, self._caught, place)
        self.discard()

    def discard(self) -> None:
        """Nothing is expected, and what a failed pass left does not count."""
        self._expected = []
        self._caught = None

    # ------------------------------------------------------------- between passes

    def end(self, row: Row) -> None:
        """The choice is complete: its latest token becomes its record."""
        seen = self._latest.pop(_choice(row), None)
        if seen is not None:
            self._ended.append(seen)

    def forget(self, request: int) -> None:
        """The request was cancelled or refused: it gets no record."""
        self._ended = [seen for seen in self._ended if seen.row.request != request]
        for choice in [c for c in self._latest if c[0] == request]:
            del self._latest[choice]

    def records(self) -> list[Recorded]:
        """One for each choice that ended since the last call; none of it where encoding fails."""
        ended, self._ended = self._ended, []
        return self._flush(ended) if ended else []

    def work(self) -> None:
        """Encode what waits once that is worth a reading of the weights."""
        if sum(len(rows) for rows in self._waiting) >= CHUNK:
            self._flush()

    def read(self, command: ReadStatistics) -> Statistics:
        """Raises:
        Refusal: INVALID_FEATURE_INDEX.
        """
        self._flush()
        counts = self._counts
        if counts is None:
            return Statistics(command.id, [], 0, 0)
        for index in command.features or ():
            steering.check_index(index, len(counts.count))
        found = counts.read(command.features, command.metric, command.k)
        return Statistics(command.id, found, counts.tokens, int(counts.active.sum()))

    def reset(self) -> None:
        """Count from nothing; a choice that runs keeps its latest token for its record."""
        self._waiting.clear()
        if self._counts is not None:
            self._counts = Counts(len(self._counts.count), self._counts.count.device)

    # ------------------------------------------------------------- inside

    def _flush(self, ended: Sequence[Seen] = ()) -> list[Recorded]:
        """Encode and count what waits, and encode the last tokens of the choices that ended along with it."""
        waiting, self._waiting = self._waiting, []
        target, counts = self._target, self._counts
        if target is None or counts is None or not (waiting or ended):
            return []
        try:
            return _told(target, counts, waiting, ended)
        except Exception as error:
            # whoever is monitored must not notice
            log.exception("monitoring_failed", tokens=sum(len(rows) for rows in waiting))
            waiting.clear()
            memory.recover(error)
            return []


def _told(
    target: Target, counts: Counts, waiting: list[Tensor], ended: Sequence[Seen]
) -> list[Recorded]:
    """Count the rows [n, d_in] that wait, and record the choices that ended: a chunk of all of them at a time.

    Rows that overflowed, or whose features do, are left out: they must not stay in the figures of all.
    """
    records: list[Recorded] = []
    counted = sum(len(rows) for rows in waiting)
    together = torch.cat([*waiting, *(seen.rows[seen.place][None] for seen in ended)])
    for first in range(0, len(together), CHUNK):
        rows = together[first : first + CHUNK]
        values = target.encode(rows)
        fine = torch.isfinite(rows).all(-1) & torch.isfinite(values).all(-1)
        split = min(len(values), max(0, counted - first))
        observed = values[:split][fine[:split]]
        if len(observed):
            counts.add(observed, target.features)
        for place in range(split, len(values)):
            if fine[place]:
                records.append(target.record(ended[first + place - counted], values[place]))
    return records


def _choice(row: Row) -> Choice:
    return row.request, row.choice
