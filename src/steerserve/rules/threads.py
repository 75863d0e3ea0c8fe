"""How many threads an engine computes with: at its load, and while other processes take the processors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

WINDOW_SECONDS = 0.5
"""Seconds of steps without a pause after which the threads are looked at."""

TAKEN = 0.25
"""Threads of the engine wait for this many processors or more on average: other processes take them."""

WHOLE = 0.5
"""Threads of the engine wait for this many processors or more on average: another process never pauses."""

FREE = 0.75
"""This many processors or more are idle on average: a thread more has a processor of its own."""

PATIENCE_SECONDS = 10.0
"""Seconds after a raise in which shorter waits do not lower the threads again."""

SPINS = 1000
"""How often a thread looks for the end of its wait before it sleeps: some 30 microseconds."""


def usable(physical: int | None, allowed: int, quota: float | None) -> int:
    """The number of threads that the engine starts with, at least 1.

    `physical` is the number of cores of the machine, None if it is not known. `allowed` is the number of processors on
    which the process may run. `quota` is the number of processors whose time its control group may use, None without a
    limit.
    """
    most = min(physical or allowed, allowed)
    return max(1, most if quota is None else min(most, int(quota)))


def environment(named: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that must be set before the tensor library is loaded. `named` has the variables that
    the operator has set, which stay.

    (1) A thread that waits for another one spins for SPINS, and then gives its processor back. By default it spins
    for milliseconds, and takes the processor from the thread that it waits for where another process is busy. A
    thread that sleeps at once takes as long to wake as a short product takes, and then two threads compute one after
    the other. (2) Float32 sums have the same bits at every place in memory, and so with any number of threads.
    """
    chosen: dict[str, str] = {}
    if "GOMP_SPINCOUNT" not in named and "OMP_WAIT_POLICY" not in named:  # (1)
        chosen["GOMP_SPINCOUNT"] = str(SPINS)
    if "MKL_CBWR" not in named:  # (2)
        chosen["MKL_CBWR"] = "AUTO"
    return chosen


def choices(most: int) -> tuple[int, ...]:
    """The numbers of threads that an engine of `most` threads may compute with, the least first."""
    return tuple(sorted({1, max(1, most // 2), max(1, most * 3 // 4), max(1, most - 1), most}))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time of steps without a pause. `waited` is the time in which threads of the engine were ready but had no
    processor, summed over the threads. `idle` is the time in which a processor that the engine may use did nothing,
    summed over the processors. All are in seconds."""

    seconds: float
    waited: float
    idle: float


@dataclass(frozen=True, slots=True)
class Threads:
    """The engine computes with `now` threads, one of its `choices`; with the last of them where no other process takes
    a processor. `raised` is the time of the last raise."""

    now: int
    choices: tuple[int, ...]
    raised: float | None = None


def adjusted(threads: Threads, window: Stretch, at: float) -> Threads:
    """The threads from `at` on.

    (1) A window shorter than WINDOW_SECONDS says nothing. (2) Where threads wait for TAKEN processors or more, the
    engine computes with as many threads less. Waits below WHOLE do not count within PATIENCE_SECONDS after a raise,
    because the service and its clients also take processors for a moment. (3) Where FREE processors or more are idle,
    the engine computes with as many threads more. In both cases the number is the next choice below.
    """
    if window.seconds < WINDOW_SECONDS:  # (1)
        return threads
    taken, idle = window.waited / window.seconds, window.idle / window.seconds
    is_patient = threads.raised is not None and at - threads.raised < PATIENCE_SECONDS
    if taken >= (WHOLE if is_patient else TAKEN):  # (2)
        return replace(threads, now=_choice(threads, threads.now - max(1, round(taken))))
    more = _choice(threads, threads.now + int(idle + 1 - FREE))
    if more > threads.now:  # (3)
        return replace(threads, now=more, raised=at)
    return threads


def _choice(threads: Threads, wanted: int) -> int:
    return max((n for n in threads.choices if n <= wanted), default=threads.choices[0])
