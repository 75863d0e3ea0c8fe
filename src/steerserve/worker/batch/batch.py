"""The running batch: rows join, step together and leave. One row is one choice of one request.

All rows share one group where the logits of a row do not depend on the other rows (`model/invariance.py`). Otherwise
the rows of each seeded request are a group of their own, with passes of its own. Rows that the passes of the batch
cannot serve (`model/plain.py`) are a group whose rows are stepped one at a time, and so are rows for which the layers
must compute attention in the plain way. The KV memory of all groups together
stays within `kv_tokens`; rows that do not fit wait, and clients take turns at joining (`batch/waiting.py`). Rows of
requests that yield keep their place beside others, and rest in most steps (`rules/inference/yielding.py`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator

from torch import Tensor

from steerserve.rules.inference import stepping
from steerserve.rules.inference.yielding import QUIET_SECONDS, Sharing
from steerserve.worker.batch.graphs import DecodeGraphs
from steerserve.worker.batch.group import Group
from steerserve.worker.batch.prefix import Prefixes
from steerserve.worker.batch.waiting import WaitingRows
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.readers import LiveReaders
from steerserve.worker.model import kv
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.plain import Memory, PlainPasses
from steerserve.worker.rows.goals import Ending
from steerserve.worker.rows.rows import BatchRow, settled

PLAIN_SHARE = 0.1
"""The time for rows whose layers compute attention in the plain way, as a share of the time of all others beside
them. Their passes have one row each, and take almost as long as those of many rows."""


class Batch:
    """All groups, the rows that wait for room, and the bound on their KV memory.

    `live_waits` says whether a request that does not yield has come to the engine and waits for the end of a step.
    """

    def __init__(
        self,
        model: Checkpoint,
        saes: HookedSaes,
        readers: LiveReaders,
        kv_tokens: int,
        prefix_tokens: int = 0,
        *,
        shares_seeded: bool = False,
        step_seconds: float = stepping.STEP_SECONDS,
        graphs: DecodeGraphs | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._clock = clock
        self._sharing = Sharing()
        self._last_live = -math.inf
        self._is_live = False
        self.live_waits: Callable[[], bool] = kv.never
        self._graphs = graphs
        self._saes = saes
        self._readers = readers
        self._kv_tokens = kv_tokens
        self._shares_seeded = shares_seeded
        self._prefixes: Prefixes | None = None
        if prefix_tokens:
            self._prefixes = Prefixes(prefix_tokens * max(1, model.kv_bytes_per_token))
        self._shared = self._group(self._prefixes, step_seconds)
        self._alone = self._group(None, None, model.alone) if model.alone else None
        # made for the first row that needs it
        self._plain: Group | None = None
        self._plain_from = -math.inf
        self._seeded: dict[int, Group] = {}
        self._waiting = WaitingRows()
        # what the step that runs has found so far
        self._outcomes: list[Ending] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting and all(group.is_empty for group in self._groups())

    @property
    def rest_seconds(self) -> float:
        """How long there is nothing to do, because all rows yield to requests that may follow the last one."""
        if self.is_idle or self._has_live():
            return 0.0
        return max(0.0, self._last_live + QUIET_SECONDS - self._clock())

    @property
    def kv_held(self) -> int:
        """The number of tokens of cache that are allocated."""
        return sum(group.cache.tokens for group in self._groups())

    def cache_tensors(self) -> Iterator[Tensor]:
        """The keys and values that are allocated, for rows and for kept prefixes."""
        for group in self._groups():
            yield from group.cache.tensors()
        if self._prefixes is not None:
            yield from self._prefixes.tensors()

    def add(self, rows: list[BatchRow], *, is_seeded: bool, client: str = "") -> None:
        """Add the rows of a request of a client. They join once there is room: one by one, or all at once where they
        have a group of their own."""
        if is_seeded and not self._shares_seeded:
            together = [row for row in rows if self._home(row) is self._shared]
            if together:
                self._waiting.add(together, client, is_seeded=True)
            rows = [row for row in rows if self._home(row) is not self._shared]
        for row in rows:
            self._waiting.add([row], client)

    def cancel(self, request: int) -> None:
        self._waiting.cancel(request)
        for group in self._lasting():
            group.drop(request)
        self._seeded.pop(request, None)
        self._readers.forget(request)

    def step(self) -> list[Ending]:
        """Advance every group by one step. A request that was refused has no row left in the batch afterwards."""
        self._outcomes = self._admit()
        rows = [row for group in self._groups() for row in group.all_rows()]
        yielding = [row for row in rows if row.yields]
        self._is_live = len(yielding) < len(rows) or self._waiting.has_live
        if self._is_live:
            self._last_live = self._clock()
        if yielding and len(yielding) < len(rows) and not self._waiting.has_live:
            self._step_shared()
        else:
            self._step_groups(set())
        outcomes, refused = settled(self._outcomes)
        for request in refused:
            self.cancel(request)
        for group in self._lasting():
            if group.is_empty:
                group.cache.release()
        self._outcomes = []
        return outcomes

    def fail(self, error: Exception) -> list[Ending]:
        """End every request that has not ended, after an error of a step that was in no forward pass. Returns what the
        step had found before as well."""
        rows = [row for group in self._groups() for row in group.all_rows()] + self._waiting.rows
        device, why = self._model.device, "a step of the engine failed"
        failed = {row.request: row.failed(error, device, len(rows), why) for row in rows}
        for request in failed:
            self.cancel(request)
        found, self._outcomes = self._outcomes, []
        return settled([*found, *failed.values()])[0]

    def _step_groups(self, resting: set[BatchRow]) -> None:
        for group in self._lasting():
            if group is not self._plain:
                self._outcomes.extend(group.step(resting))
        for request, group in list(self._seeded.items()):
            self._outcomes.extend(group.step(resting))
            if group.is_empty:
                del self._seeded[request]
        if self._plain is not None and not self._plain.is_empty:
            self._step_plain(self._plain, resting)

    def _step_plain(self, plain: Group, resting: set[BatchRow]) -> None:
        """A step of the rows with plain attention. Beside others, it comes once those had their share of the time."""
        since = self._clock()
        is_beside = any(not group.is_empty for group in self._groups() if group is not plain)
        if is_beside and since < self._plain_from:
            return
        self._outcomes.extend(plain.step(resting))
        now = self._clock()
        self._plain_from = now + (now - since) / PLAIN_SHARE

    def _step_shared(self) -> None:
        """A step beside live rows, in which most rows that yield rest."""
        decoding = [row for group in self._groups() for row in group.rows]
        joining = [row for group in self._groups() for row in group.joining]
        shared = [row for row in decoding if row.yields][: self._sharing.rows]
        live = [row for row in decoding if not row.yields]
        read = [row for row in joining if not row.yields]
        is_read = not read and self._sharing.may_read
        if is_read:
            read = joining
        stepped = {*shared, *live, *read}
        since = self._clock()
        self._step_groups({*decoding, *joining} - stepped)
        has_live_read = any(not row.yields for row in read)
        seconds = None if has_live_read else self._clock() - since
        self._sharing = self._sharing.stepped(
            len(live), len(shared), seconds, has_read=is_read and bool(read)
        )

    def _has_live(self) -> bool:
        """Whether a row is there that does not yield."""
        return self._waiting.has_live or any(
            not row.yields for group in self._groups() for row in group.all_rows()
        )

    def _admit(self) -> list[Ending]:
        """Let rows join, clients in turns, as long as there is room. Rows that have no room let no others overtake
        them. Returns the refusals of rows that cannot join."""
        refusals: list[Ending] = []
        running: Counter[str] = Counter()
        if self._waiting:
            running.update(row.client for group in self._groups() for row in group.all_rows())
        while (joining := self._waiting.next(running)) is not None:
            rows = joining.rows
            group = self._group(None, None) if joining.is_seeded else self._home(rows[0])
            if not group.may_join(rows, self._room_of(group)):
                break
            self._waiting.remove_rows(joining)
            refusals += group.join(rows)
            running[joining.request.client] += len(rows)
            if joining.is_seeded:
                self._seeded[rows[0].request] = group
        for group in self._groups():
            group.cache.limit = self._room_of(group)
        return refusals

    def _room_of(self, group: Group) -> int:
        """The tokens of cache that the other groups leave to a group."""
        return self._kv_tokens - sum(g.reserved for g in self._groups() if g is not group)

    def _home(self, row: BatchRow) -> Group:
        """The group of a row that has no group with its request."""
        if row.attends_plainly:
            if self._plain is None:
                self._plain = self._group(None, None, plain_attention(self._model))
            return self._plain
        most = len(row.prompt) + row.max_tokens
        if self._alone is None or most <= self._model.batched_context:
            return self._shared
        return self._alone

    def _group(
        self,
        prefixes: Prefixes | None,
        step_seconds: float | None,
        passes: PlainPasses | None = None,
    ) -> Group:
        if passes is not None:
            return Group(passes, self._saes, prefixes, step_seconds)
        # beside live rows a step is short, and its time is compared
        return Group(
            self._model,
            self._saes,
            prefixes,
            step_seconds,
            graphs=self._graphs,
            is_exact=self._shares_seeded,
            must_stop=lambda: not self._is_live and self.live_waits(),
        )

    def _lasting(self) -> list[Group]:
        """The groups that do not end with a request."""
        groups = self._shared, self._alone, self._plain
        return [group for group in groups if group is not None]

    def _groups(self) -> list[Group]:
        return [*self._lasting(), *self._seeded.values()]


def plain_attention(model: Checkpoint) -> PlainPasses:
    """The passes for rows whose layers must compute attention in the plain way."""
    alone = model.alone
    if alone is None:
        alone = PlainPasses(model, Memory.DYNAMIC)
        alone.kv_bytes_by_device = model.kv_bytes_by_device
    return alone.attending_plainly()
