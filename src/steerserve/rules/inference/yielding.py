"""How the rows of requests that yield (the lines of batches) share steps with the rows of live requests.

A live request is one that does not yield. (1) Beside live rows, at most as many rows that yield decode as make a step
COST times as long. The engine measures that: every ALONE_EVERY-th step is of live rows only, and the other steps are
compared with it. (2) Prompts of requests that yield are read beside live rows in at most one of READ_EVERY steps, and
never while a live prompt waits. (3) For QUIET_SECONDS after the last live row, no row that yields is stepped, because
the next live request often follows at once. Then all of them are, as long as no live request comes.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

COST = 1.07
"""The most that a step with rows that yield may take, as a multiple of a step without them."""

CHEAP = 1.03
"""Steps that take less than this multiple have room for more rows that yield."""

ALONE_EVERY = 4
READ_EVERY = 128
QUIET_SECONDS = 0.2

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
    """

    most: int = 1
    ratios: tuple[float, ...] = ()
    alone: tuple[float, int] | None = None
    steps: int = 0
    unread: int = 0

    @property
    def rows(self) -> int:
        """The most rows that yield in the next step with live rows."""
        return 0 if self.steps % ALONE_EVERY == 0 else self.most  # (1)

    @property
    def may_read(self) -> bool:
        """Whether the next step with live rows may read prompts of requests that yield."""
        return self.unread >= READ_EVERY  # (2)

    def stepped(self, live: int, shared: int, seconds: float | None, *, has_read: bool) -> Sharing:
        """After a step with `live` live rows and `shared` rows that yield. `seconds` is None where the step did more
        than decode, so that it cannot be compared."""
        unread = 0 if has_read else self.unread + 1
        after = replace(self, steps=self.steps + 1, unread=unread)
        if seconds is not None and not shared:
            after = replace(after, alone=(seconds, live))
        elif seconds is not None and self.alone is not None and shared == self.most:
            alone, rows = self.alone
            if rows == live:
                ratios = (*self.ratios, seconds / alone)[-SAMPLES:]
                after = replace(after, ratios=ratios)._decided()
        if not after.most and after.steps % RETRY_STEPS == 0:
            after = replace(after, most=1)
        return after

    def _decided(self) -> Sharing:
        if len(self.ratios) < SAMPLES:
            return self
        ratio = statistics.median(self.ratios)
        if ratio > COST:
            return replace(self, most=self.most - max(1, self.most // 4), ratios=())
        if ratio < CHEAP:
            return replace(self, most=self.most + max(1, self.most // 4), ratios=())
        return self
