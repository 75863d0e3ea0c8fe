"""Monitoring: the features of one attached SAE at the latest token of each monitored choice.

A pass only copies rows of d_in values; features are computed between passes. The monitor owns the rows that wait to be
encoded, the latest row of each running choice, and the statistics. Monitoring does not change the results of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import structlog
import torch
from torch import Tensor

from steerserve.messages import (
    Contexts,
    ReadContexts,
    ReadStatistics,
    Recorded,
    Request,
    Statistics,
)
from steerserve.nouns.cluster_sensing.rules import Decode
from steerserve.parts.row_part import Copied, Read, RowPart, SaeRead
from steerserve.rules.steering import live as steering
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.contexts import ContextRing, Place
from steerserve.worker.live.counts import RunningCounts
from steerserve.worker.live.ranking import is_finite
from steerserve.worker.live.readers import LiveReader
from steerserve.worker.live.target import Seen, Target
from steerserve.worker.rows.rows import BatchRow

log = structlog.get_logger(__name__)
CHUNK = 64
"""The number of tokens that are encoded at once, so that the encoder's weights are read once for all of them."""

CARD_CHUNK, CARD_BYTES = 512, 1 << 25
"""The most tokens that are encoded at once on a card, and the most bytes of their features in float32, but CHUNK tokens
in any case. Starting the kernels takes longer there than the kernels do, and waiting for them stops the host."""


class MonitoredRow(RowPart):
    """A row of a request with a label. `latest` is its last observed token."""

    def __init__(self, row: BatchRow, monitor: FeatureMonitor) -> None:
        self.row = row
        self.latest: Seen | None = None
        self._monitor = monitor

    @property
    def reader(self) -> FeatureMonitor:
        return self._monitor

    def reads_in_pass(self) -> Sequence[SaeRead]:
        return self._monitor.reads

    def span(self, read: Read, start: int, end: int) -> tuple[int, int]:
        """Only the token whose logits the pass gives is observed, so that the records do not depend on how a long
        prompt was cut. A special token is observed only while its choice has no other token to record, and is not
        counted."""
        position = end - 1
        if position < max(1, len(self.row.prompt) - 1):
            return end, end
        is_wanted = self._monitor.is_text(self.row, position) or not self._monitor.is_current(
            self.latest
        )
        return (position, end) if is_wanted else (end, end)

    def end(self) -> None:
        self._monitor.record(self.latest)


class FeatureMonitor(LiveReader):
    """Monitors at most one attached SAE. Tokens in `special` are not counted. The first position is never read, because
    all other positions attend to it and its values therefore say little about its token (Xiao et al. 2024,
    arXiv:2309.17453)."""

    def __init__(self, special: frozenset[int] = frozenset()) -> None:
        self._special = special
        self._target: Target | None = None
        self._counts: RunningCounts | None = None
        self._counted: int | None = None
        self._ring: ContextRing | None = None
        self.reads: Sequence[SaeRead] = ()
        # tokens that were seen in an earlier watch have no record
        self._watch = 0
        self._waiting: list[Tensor] = []
        # the places of the waiting tokens, where their contexts are kept
        self._places: list[Place] = []
        self._ended: list[Seen] = []

    @property
    def whole(self) -> Target | None:
        """The target, where all its features are monitored."""
        target = self._target
        return target if target is not None and target.features is None else None

    def watch(self, target: Target | None, contexts: int = 0) -> None:
        """Monitor this target from the next pass on, and keep the contexts of the last `contexts` tokens; None monitors
        nothing. The statistics and the contexts stay, unless the target is another SAE."""
        self._flush()
        before, self._target = self._target, target
        self.reads = () if target is None else (SaeRead(target.number, is_before=True),)
        if target is None or before is None or before.number != target.number:
            self._watch += 1
            self._ended.clear()
        if target is not None and (self._counts is None or self._counted != target.number):
            self._counts = RunningCounts(target.d_sae, target.device)
            self._counted = target.number
            self._ring = None
        if target is not None and (self._ring is None or self._ring.size != contexts):
            self._ring = ContextRing(contexts) if contexts else None

    def detached(self, number: int) -> None:
        """Drop all values and statistics of the SAE."""
        if self._target is not None and self._target.number == number:
            self._drop_waiting()
            self.watch(None)
        if self._counted == number:
            self._counts = self._counted = self._ring = None

    # ------------------------------------------------------------- beside a pass

    def join(self, request: Request, rows: Sequence[BatchRow], saes: HookedSaes) -> None:
        for row in rows:
            if row.label is not None:
                row.parts.append(MonitoredRow(row, self))

    def is_text(self, row: BatchRow, position: int) -> bool:
        """Whether the token of a row at a position is no special token."""
        return row.token_at(position) not in self._special

    def is_current(self, seen: Seen | None) -> bool:
        """Whether a token was seen since the SAE of now is monitored."""
        return seen is not None and seen.watch == self._watch

    def take_pass(self, copies: Sequence[Copied]) -> None:
        """Let the copied tokens wait to be encoded and counted, and note them as the latest tokens of their choices."""
        for copied in copies:
            parts, positions, values = (
                cast("list[MonitoredRow]", copied.parts),
                copied.firsts,
                copied.values[0],
            )
            each = [(part.row, position) for part, position in zip(parts, positions, strict=True)]
            texts = [place for place, one in enumerate(each) if self.is_text(*one)]
            if texts:
                self._waiting.append(values if len(texts) == len(each) else values[texts])
                if self._ring is not None:
                    self._places += [each[place] for place in texts]
            for place, part in enumerate(parts):
                part.latest = Seen(*each[place], values, place, self._watch)

    def fail(self, parts: Sequence[RowPart], error: Exception) -> None:
        """The tokens of these rows are not observed, and their choices have no record, unless a later token has."""
        log.exception("monitoring_failed", tokens=len(parts), exc_info=error)
        for part in cast("Sequence[MonitoredRow]", parts):
            part.latest = None
        memory.recover(error)

    # ------------------------------------------------------------- between passes

    def record(self, latest: Seen | None) -> None:
        """The latest token of a choice that has ended becomes its record, which `events` encodes with the records of
        other choices."""
        if latest is not None and self.is_current(latest):
            self._ended.append(latest)

    def forget(self, request: int) -> None:
        """The request gets no record."""
        self._ended = [seen for seen in self._ended if seen.row.request != request]

    def events(self) -> list[Recorded]:
        """A record for each choice that ended since the last call, or no records where the encoding fails."""
        ended, self._ended = self._ended, []
        return self._flush(ended) if ended else []

    def work(self) -> None:
        """Encode the waiting tokens in whole chunks. The tokens after the last whole chunk wait on."""
        target = self._target
        if target and sum(len(rows) for rows in self._waiting) >= _chunk(target):
            self._flush(is_whole=True)

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
        features = counts.read(command.features, command.metric, command.k)
        return Statistics(command.id, features, counts.tokens, int(counts.active.sum()))

    def read_contexts(self, command: ReadContexts, decode: Decode) -> Contexts:
        """Raises:
        Refusal: INVALID_FEATURE_INDEX.
        """
        self._flush()
        if self._counts is not None:
            steering.check_index(command.feature, len(self._counts.count))
        if self._ring is None:
            return Contexts(command.id, 0, [])
        strongest = self._ring.strongest(command.feature, command.k, decode)
        return Contexts(command.id, len(self._ring), strongest)

    def reset(self) -> None:
        """Start the statistics from nothing, and drop the contexts. Running choices keep their latest tokens for their
        records."""
        self._drop_waiting()
        if self._counts is not None:
            self._counts = RunningCounts(len(self._counts.count), self._counts.count.device)
        if self._ring is not None:
            self._ring = ContextRing(self._ring.size)

    # ------------------------------------------------------------- inside

    def _flush(self, ended: Sequence[Seen] = (), *, is_whole: bool = False) -> list[Recorded]:
        """Encode and count the waiting tokens; in the same chunks, encode the last tokens of the choices that ended.
        With `is_whole`, the tokens after the last whole chunk wait on."""
        waiting, self._waiting = self._waiting, []
        places, self._places = self._places, []
        target, counts = self._target, self._counts
        if target is None or counts is None or not (waiting or ended):
            return []
        try:
            if is_whole:
                together = torch.cat(waiting)
                whole = len(together) - len(together) % _chunk(target)
                waiting, self._waiting = [together[:whole]], [together[whole:]]
                places, self._places = places[:whole], places[whole:]
            return _encoded(target, counts, waiting, ended, self._ring, places)
        except Exception as error:
            # a failure of monitoring must not end the requests that are monitored
            log.exception("monitoring_failed", tokens=sum(len(rows) for rows in waiting))
            waiting.clear()
            memory.recover(error)
            return []

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._places.clear()


def _chunk(target: Target) -> int:
    """How many tokens are encoded at once."""
    if target.device.type == "cpu":
        return CHUNK
    return max(CHUNK, min(CARD_CHUNK, CARD_BYTES // (4 * target.width)))


def _encoded(
    target: Target,
    counts: RunningCounts,
    waiting: list[Tensor],
    ended: Sequence[Seen],
    ring: ContextRing | None,
    places: Sequence[Place],
) -> list[Recorded]:
    """Count the waiting rows [n, d_in], and record the choices that ended, one chunk of both at a time. With a ring,
    keep the contexts of the waiting rows, which are at `places`.

    Rows with values or features that are not finite are left out, because the statistics would stay infinite.
    """
    records: list[Recorded] = []
    counted = sum(len(rows) for rows in waiting)
    together = torch.cat([*waiting, *(seen.rows[seen.place][None] for seen in ended)])
    chunk = _chunk(target)
    for first in range(0, len(together), chunk):
        rows = together[first : first + chunk]
        values = target.encode(rows)
        split = min(len(values), max(0, counted - first))
        is_fine = (is_finite(rows) & is_finite(values)).tolist()
        fine = [place for place, one in enumerate(is_fine) if one]
        kept = [place for place in fine if place < split]
        last = fine[len(kept) :]
        if kept:
            observed = values[:split] if len(kept) == split else values[kept]
            counts.add(observed, target.features)
            if ring is not None:
                ring.add([places[first + row] for row in kept], observed, target.features)
        if last:
            choices = [ended[first + place - counted] for place in last]
            records += target.records(choices, values[last])
    return records
