"""The number of threads of the tensor library. It is looked at again while the engine takes step after step, because
other processes may come and take processors.

The number changes only where a check at the load has found that the logits have the same bits with each number.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
import torch

from steerserve.rules.inference.threads import WINDOW_SECONDS, Stretch, Threads, adjusted
from steerserve.worker.process import processors

log = structlog.get_logger(__name__)


class ThreadCount:
    """Owns the number of threads. `tell` is called with each number, `use` sets it; `waited` and `idle` read what
    `processors` says."""

    def __init__(
        self,
        tell: Callable[[Threads], None],
        *,
        use: Callable[[int], None] = torch.set_num_threads,
        waited: Callable[[], float | None] = processors.waited,
        idle: Callable[[], float] = processors.idle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._use = use
        self._waited = waited
        self._idle = idle
        self._clock = clock
        self._threads = Threads(1, (1,))
        self._since: tuple[float, float, float] | None = None

    def set_threads(self, threads: Threads) -> None:
        """Compute with these threads from now on."""
        self._threads = threads
        self._since = None
        self._use(threads.now)
        self._tell(threads)

    def stepped(self) -> None:
        """A step has ended, and the next one follows at once."""
        if len(self._threads.choices) == 1:
            return
        at = self._clock()
        if self._since is not None and at - self._since[0] < WINDOW_SECONDS:
            return
        waited = self._waited()
        if waited is None:
            return
        since, self._since = self._since, (at, waited, self._idle())
        if since is None:
            return
        stretch = Stretch(*(new - old for new, old in zip(self._since, since, strict=True)))
        self._become(adjusted(self._threads, stretch))

    def rested(self) -> None:
        """The engine has no work."""
        self._since = None

    def _become(self, threads: Threads) -> None:
        before, self._threads = self._threads, threads
        if threads.now == before.now:
            return
        self._use(threads.now)
        log.info(
            "threads_lowered" if threads.now < before.now else "threads_raised",
            threads=threads.now,
            most=threads.choices[-1],
            why="other processes take the processors"
            if threads.now < before.now
            else "processors are free again",
        )
        self._tell(threads)
