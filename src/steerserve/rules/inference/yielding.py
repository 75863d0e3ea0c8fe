"""How the rows of requests that yield (the lines of batches) share steps with the rows of live requests.

A live request is one that does not yield. (1) Beside live rows, at most as many rows that yield decode as make a step
COST times as long. The engine measures that: every ALONE_EVERY-th step is of live rows only, and the other steps are
compared with it. (2) Prompts of requests that yield are read beside live rows so seldom that reading takes at most
READ_SHARE of the time, and never while a live prompt waits. Where a step that reads takes more than LONG times as long
as a step without, at most one of READ_EVERY steps reads, so that far fewer than one in a hundred steps are long. (3)
For QUIET_SECONDS after the last live row, no row that yields is stepped, because the next live request often follows at
once. Then all of them are, as long as no live request comes. (4) A pass over rows that all yield ends between two
layers once a live request waits, and runs again later, so that the live request waits for a layer and not for a long
pass.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

COST = 1.07
"""The most that a step with rows that yield may take, as a multiple of a step without them."""

CHEAP = 1.03
"""Steps that take less than this multiple have room for more rows that yield."""

ALONE_EVERY = 4
READ_SHARE = 0.02
LONG = 1.4
READ_EVERY = 256
QUIET_SECONDS = 0.2

READS = 3
"""The last steps that read prompts, of which the longest decides how seldom prompts are read."""

SAMPLES = 15
"""The comparisons of which the median decides."""

RETRY_STEPS = 512
"""The steps with live rows after which one row that yields is tried again, where even one has cost too much."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What was learnt of steps with live rows.

    Attributes:
        most: the most rows that yield in a step.
        ratios: how much longer the last steps with `most` such rows took than the steps before without any.
        alone: the seconds of the last step without such rows, and its number of live rows.
        steps: the steps with live rows so far.
        unread: the steps with live rows since prompts of requests that yield were read.
        reads: how much longer the last steps that read such prompts took than steps without any row that yields.
    """

    most: int = 1
    ratios: tuple[float, ...] = ()
    alone: tuple[float, int] | None = None
    steps: int = 0
    unread: int = 0
    reads: tuple[float, ...] = ()

    @property
    def rows(self) -> int:
        """The most rows that yield in the next step with live rows."""
        return 0 if self.steps % ALONE_EVERY == 0 else self.most  # (1)

    @property
    def may_read(self) -> bool:
        """Whether the next step with live rows may read prompts of requests that yield."""
        return self.unread >= self._read_every  # (2)

    def stepped(self, live: int, shared: int, seconds: float | None, *, has_read: bool) -> Sharing:
        """After a step with `live` live rows and `shared` rows that yield, which has read prompts of requests that
        yield or not. `seconds` is None where the step has read live prompts, so that it cannot be compared."""
        unread = 0 if has_read else self.unread + 1
        after = replace(self, steps=self.steps + 1, unread=unread)
        alone = self.alone[0] if self.alone is not None and self.alone[1] == live else None
        if seconds is None:
            pass
        elif has_read:
            if alone is not None:
                after = replace(after, reads=(*self.reads, seconds / alone)[-READS:])
        elif not shared:
            after = replace(after, alone=(seconds, live))
        elif alone is not None and shared == self.most:
            ratios = (*self.ratios, seconds / alone)[-SAMPLES:]
            after = replace(after, ratios=ratios)._decided()
        if not after.most and after.steps % RETRY_STEPS == 0:
            after = replace(after, most=1)
        return after

    @property
    def _read_every(self) -> int:
        """The steps with live rows without a read that precede a step that reads."""
        longest = max(self.reads, default=math.inf)
        if math.isinf(longest):
            return READ_EVERY
        seldom = math.ceil((longest - 1) / READ_SHARE)
        return max(seldom, READ_EVERY if longest > LONG else 0)

    def _decided(self) -> Sharing:
        if len(self.ratios) < SAMPLES:
            return self
        ratio = statistics.median(self.ratios)
        if ratio > COST:
            return replace(self, most=self.most - max(1, self.most // 4), ratios=())
        if ratio < CHEAP:
            return replace(self, most=self.most + max(1, self.most // 4), ratios=())
        return self
