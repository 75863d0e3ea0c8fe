"""How many threads an engine computes with: at its load, and while other processes take the processors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

WINDOW_SECONDS = 0.25
"""Seconds of steps without a pause after which the threads are looked at."""

TAKEN = 0.5
"""Threads of the engine wait for this many processors or more on average: other processes take them. Two threads that
wait for half a processor compute no faster than one, because each waits for the other."""

FREE = 0.75
"""This many processors or more are idle on average: a thread more has a processor of its own."""

SPINS = "4000"
"""How often a thread that waits looks again before it sleeps: about a tenth of a millisecond, which is longer than the
pauses between the products of a pass."""


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

    Float32 sums have the same bits at every place in memory, and so with any number of threads. A thread of the tensor
    library that waits sleeps after `SPINS` turns: decode passes have threads of their own, which need its processor.
    """
    found = {} if "MKL_CBWR" in named else {"MKL_CBWR": "AUTO"}
    is_told = "GOMP_SPINCOUNT" in named or "OMP_WAIT_POLICY" in named
    return found if is_told else found | {"GOMP_SPINCOUNT": SPINS}


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
    a processor."""

    now: int
    choices: tuple[int, ...]


def adjusted(threads: Threads, window: Stretch) -> Threads:
    """The threads after a window.

    (1) A window shorter than WINDOW_SECONDS says nothing. (2) Where threads wait for TAKEN processors or more, the
    engine computes with as many threads less. (3) Where FREE processors or more are idle, the engine computes with as
    many threads more. In both cases the number is the next choice below.
    """
    if window.seconds < WINDOW_SECONDS:  # (1)
        return threads
    taken, idle = window.waited / window.seconds, window.idle / window.seconds
    if taken >= TAKEN:  # (2)
        return _choice(threads, threads.now - max(1, round(taken)))
    return _choice(threads, max(threads.now, threads.now + int(idle + 1 - FREE)))  # (3)


def _choice(threads: Threads, wanted: int) -> Threads:
    fitting = [n for n in threads.choices if n <= wanted]
    return replace(threads, now=max(fitting, default=threads.choices[0]))
