"""Sensing: the firings of the members of armed clusters and circuits in every row that writes.

The site's values are copied in the pass, before the SAE's own steering is added, and read between passes: all rows by
one product, with one transfer to the host. Sensing does not change the results of the model. Rows that score or pool
are not sensed.

A row that begins with a kept prefix does not compute the positions of the prefix. It takes over the firings of the row
that computed them. A prefix that was computed under another arming is not used, so that no firing is missed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import structlog
import torch
from torch import Tensor

from steerserve.messages import ArmedCircuit, ArmedCluster, Event, Request
from steerserve.nouns.cluster_sensing.rules import Decode, common_prefix
from steerserve.parts.row_part import Copied, RowPart, SaeRead
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.armed import ArmedSubject, Arming, Fires, keys_of, make_arming
from steerserve.worker.live.ranking import is_active
from steerserve.worker.live.readers import LiveReader
from steerserve.worker.live.sensed_row import SensedRow
from steerserve.worker.live.target import Target
from steerserve.worker.rows.rows import BatchRow

log = structlog.get_logger(__name__)
CHUNK, FEW_CHUNK, CARD_CHUNK = 64, 256, 2048
"""Copied positions are encoded once there are this many, or once a row ends. Giving each row its firings takes as long
for few as for many, so there are more of them where only the features that are sensed are computed. On a card the
waiting for the firings stops the host, so there are more still."""


class RowSpan(NamedTuple):
    """So many `tokens` of a row, the first at position `start`."""

    row: SensedRow
    start: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class ArmingReader:
    """Takes the values of the rows that are sensed under one arming."""

    sensing: Sensing
    arming: Arming

    def take_pass(self, copies: Sequence[Copied]) -> None:
        """Where the copy at one SAE failed, the rows are stopped, and the values at the others are dropped."""
        if len(copies) == len(self.arming.sites):
            one = copies[0]
            rows = cast("list[SensedRow]", one.parts)
            spans = [RowSpan(*each) for each in zip(rows, one.firsts, one.sizes, strict=True)]
            self.sensing.wait(
                self.arming,
                spans,
                {cast(SaeRead, one.read).number: one.values[0] for one in copies},
            )

    def fail(self, parts: Sequence[RowPart], error: Exception) -> None:
        self.sensing.stop_rows(cast("Sequence[SensedRow]", parts), error)


class Sensing(LiveReader):
    """Owner of the arming, and of what is sensed in the rows that run.

    Args:
        decode: tokens -> their text.
        whole: the target of monitoring where all features are monitored. Only then are the active features counted.
    """

    def __init__(
        self,
        decode: Decode,
        whole: Callable[[], Target | None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._decode = decode
        self._whole = whole
        self._clock = clock
        self._numbers = itertools.count(1)
        self._cluster: ArmedCluster | None = None
        self._circuits: Sequence[ArmedCircuit] = ()
        self._reader: ArmingReader | None = None
        self._saes: HookedSaes | None = None
        self._rows: list[SensedRow] = []
        self._ended: list[SensedRow] = []
        self._waiting: dict[Arming, list[tuple[list[RowSpan], dict[int, Tensor]]]] = {}
        self._positions = 0

    # ------------------------------------------------------------- arming

    def arm(
        self,
        cluster: ArmedCluster | None,
        circuits: Sequence[ArmedCircuit],
        saes: HookedSaes,
    ) -> None:
        """Sense this cluster and these circuits in the rows that begin from now on.

        Raises:
            Refusal: as `make_arming`; the arming before stays.
        """
        subjects: list[ArmedSubject] = [] if cluster is None else [cluster]
        subjects += circuits
        arming = make_arming(next(self._numbers), subjects, saes)
        self._reader = None if arming is None else ArmingReader(self, arming)
        self._saes = saes
        self._cluster, self._circuits = cluster, circuits
        self.flush()
        names = {subject.subject for subject in subjects}
        for row in self._rows:
            row.keep_only(names)

    def detached(self, number: int) -> None:
        """Disarm what reads the SAE. The rows in which it was sensed are not read any more."""
        for row in self._rows:
            row.is_stopped = row.is_stopped or number in row.arming.sites
        site = self._reader.arming.sites.get(number) if self._reader is not None else None
        if site is None or self._saes is None:
            return
        key, cluster = site.target.key, self._cluster
        left = [circuit for circuit in self._circuits if key not in keys_of(circuit)]
        is_left = cluster is not None and key not in keys_of(cluster)
        self.arm(cluster if is_left else None, left, self._saes)

    # ------------------------------------------------------------- beside a pass

    def join(self, request: Request, rows: Sequence[BatchRow], saes: HookedSaes) -> None:
        """Sense the rows of a request with a label. The choices of one prompt report the prompt once."""
        if self._reader is None or not request.goal.writes:
            return
        cluster, before = self._cluster, list[int]()
        for row in rows:
            if row.label is None or not row.goal.writes:
                continue
            skip = 0
            if cluster is not None and cluster.history:
                same = common_prefix(before, row.prompt)
                skip = max(_reported(request, row, cluster.history), same)
            sensed = SensedRow(row, skip, self._reader)
            self._rows.append(sensed)
            row.parts.append(sensed)
            before = row.prompt

    def wait(self, arming: Arming, spans: list[RowSpan], values: dict[int, Tensor]) -> None:
        """Let the values [positions, d_in] that a pass copied at each SAE wait to be encoded."""
        for span in spans:
            span.row.read = span.start + span.tokens
        self._waiting.setdefault(arming, []).append((spans, values))
        self._positions += sum(span.tokens for span in spans)

    def stop_rows(self, rows: Sequence[SensedRow], error: Exception) -> None:
        """Sense nothing more in these rows; the rows go on."""
        log.exception("sensing_failed", rows=len(rows), exc_info=error)
        for row in rows:
            row.is_stopped = True
        memory.recover(error)

    # ------------------------------------------------------------- between passes

    def end_row(self, row: SensedRow) -> None:
        """The row is complete: its events are told."""
        self._rows.remove(row)
        self._ended.append(row)

    def forget(self, request: int) -> None:
        """What was sensed in rows that were cancelled is told too."""
        for row in [row for row in self._rows if row.row.request == request]:
            self._rows.remove(row)
            if row.read:
                self._ended.append(row)

    def events(self) -> Sequence[Event]:
        ended, self._ended = self._ended, []
        if not ended:
            return ()
        self.flush()
        told: list[Event] = []
        for sensed in ended:
            try:
                told += sensed.events(self._decode)
            except Exception:
                # a failure of sensing must not end the requests that are sensed
                log.exception("sensing_failed", request=sensed.row.label)
        return told

    def work(self) -> None:
        """Encode the copied positions once there are enough."""
        if self._positions >= CHUNK and self._positions >= self._chunk():
            self.flush()

    # ------------------------------------------------------------- inside

    def _chunk(self) -> int:
        """How many positions are encoded at once."""
        sites = [site for arming in self._waiting for site in arming.sites.values()]
        if any(site.target.device.type != "cpu" for site in sites):
            return CARD_CHUNK
        return CHUNK if any(site.width == site.target.d_sae for site in sites) else FEW_CHUNK

    def flush(self) -> None:
        """Encode the copied positions now."""
        waiting, self._waiting, self._positions = self._waiting, {}, 0
        for arming, passes in waiting.items():
            spans = [span for spans, _ in passes for span in spans]
            try:
                with self._timed(spans):
                    values = {
                        number: torch.cat([caught[number] for _, caught in passes])
                        for number in arming.sites
                    }
                    self._read(arming, spans, values)
            except Exception as error:
                self.stop_rows([span.row for span in spans], error)

    def _read(self, arming: Arming, spans: list[RowSpan], values: dict[int, Tensor]) -> None:
        """Give each row its firings at the positions of these spans, from the values [positions, d_in] of each SAE."""
        active = arming.fires(values)
        places, columns = active.nonzero()
        if not len(places):
            return
        rows = list({id(span.row): span.row for span in spans}.values())
        numbers = {id(row): number for number, row in enumerate(rows)}
        counts = np.array([span.tokens for span in spans])
        owner = np.repeat([numbers[id(span.row)] for span in spans], counts)
        # the positions of each span follow its first one
        offsets = np.array([span.start for span in spans]) - (np.cumsum(counts) - counts)
        position = np.arange(counts.sum()) + np.repeat(offsets, counts)
        order = np.argsort(owner[places], kind="stable")
        places = places[order]
        fires = Fires(position[places], columns[order], active[places, columns[order]])
        ends = np.searchsorted(owner[places], np.arange(len(rows) + 1)).tolist()
        for row, low, high in zip(rows, ends, ends[1:], strict=False):
            if low < high:
                hot = row.take_firings(fires.part(low, high))
                at = {int(position[p]): p for p in set(places[low:high].tolist())} if hot else {}
                self._count_active(row, {p: at[p] for p in hot}, values)

    def _count_active(self, row: SensedRow, hot: dict[int, int], values: dict[int, Tensor]) -> None:
        """Count the active features of the whole SAE at the positions of events, where all its features are monitored.
        `hot` has the place of each position among the values."""
        whole, sites = self._whole(), row.arming.sites
        if not hot or whole is None or list(sites) != [whole.number]:
            return
        picked = values[whole.number][list(hot.values())]
        counted = is_active(whole.encode(picked)).sum(-1).tolist()
        row.ambient.update(zip(hot, counted, strict=True))

    @contextmanager
    def _timed(self, spans: Sequence[RowSpan]) -> Iterator[None]:
        """Measures the block, and divides its time among the rows by their positions."""
        began = self._clock()
        yield
        share = (self._clock() - began) / max(1, sum(span.tokens for span in spans))
        for span in spans:
            span.row.seconds += share * span.tokens


def _reported(request: Request, row: BatchRow, history: int) -> int:
    """How many of the first tokens of the row's prompt are reported already, by the history of this arming."""
    known = request.reported
    if known is None or known.history != history:
        return 0
    return known.tokens[row.choice // request.goal.rows]
