"""Signs of life of an engine: what its main loop is doing, and whether it has been silent for too long.

The engine writes one number: its activity and a count that grows with every sign. The number stays readable when the
engine stands still. The control plane looks at it every LOOK_SECONDS and measures the silence with its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

LOOK_SECONDS = 0.5
"""Seconds between two looks at an engine."""

SIGN_SECONDS = 1.0
"""Seconds after which an engine without work gives the next sign."""

STOPPED_PATIENCE = 1.0
"""Seconds after which a process that is stopped or cut off counts as stalled, whatever it was doing."""

_COUNT_BITS = 56


class Activity(IntEnum):
    """What the main loop of an engine is doing."""

    STARTING = 0
    IDLE = 1
    """It waits for work, and gives a sign every SIGN_SECONDS."""
    COMMAND = 2
    """It carries out a command, such as an edit of the steering, or it tokenizes a prompt."""
    PREFILL = 3
    """It computes a pass over prompts. Each layer of the model is a sign; of llama.cpp, each pass."""
    DECODE = 4
    """It computes a pass for the next tokens, with the same signs."""
    SAE = 5
    """It reads an SAE from the disk."""
    LOAD = 6
    """It loads the model, or reads the model from the disk in its first pass."""


PATIENCE: dict[Activity, float] = {
    Activity.IDLE: 10.0,
    Activity.COMMAND: 20.0,
    Activity.PREFILL: 20.0,
    Activity.DECODE: 20.0,
}
"""Seconds of silence after which an engine counts as stalled. Loads and SAEs are not listed: reading from a slow disk
gives no sign, so only LOAD_TIMEOUT bounds it."""

SLOWEST_PACE = 0.5
"""Seconds for each token of a prompt on the slowest machine that counts as working."""

PACE_HEADROOM = 10
"""How many times slower than measured a pass may be: a token that follows a long text takes longer."""

LEAST_MEASURED = 32
"""The fewest tokens whose time says how fast an engine reads."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast an engine reads prompts whose passes give no sign before their end. `slowest` is the slowest pace
    measured so far, in seconds per token; None before the first measure."""

    slowest: float | None = None

    def measured(self, tokens: int, seconds: float) -> Pace:
        """The pace after `tokens` were read in `seconds`. A few tokens say nothing."""
        if tokens < LEAST_MEASURED or seconds <= 0:
            return self
        return Pace(max(self.slowest or 0.0, seconds / tokens))

    def seconds(self, tokens: int) -> float:
        """The seconds that a pass over so many tokens may take."""
        if self.slowest is None:
            return SLOWEST_PACE * tokens
        return min(SLOWEST_PACE, PACE_HEADROOM * self.slowest) * tokens


@dataclass(frozen=True, slots=True)
class Sign:
    """The last sign of an engine. `is_stopped` says that the system has stopped the process (SIGSTOP). `is_cut` says
    that nothing comes from the node of the engine any more. `extra` is the time in seconds that the work at hand may
    take beyond the patience, because it gives no sign before its end."""

    activity: Activity = Activity.STARTING
    count: int = 0
    is_stopped: bool = False
    extra: float = 0.0
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """The silence of an engine at one look. `seconds` is its length so far, `stopped_seconds` the time for which the
    process has been seen stopped or cut off, and `at` the time of the look."""

    sign: Sign
    at: float
    seconds: float = 0.0
    stopped_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The settings that bound a silence, in seconds: ENGINE_STALL_TIMEOUT and LOAD_TIMEOUT."""

    stall: float
    load: float


class Condition(StrEnum):
    """What a silence means."""

    ALIVE = "alive"
    STALLED = "stalled"
    LOST = "lost"
    """The silence is longer than the bound: the engine is ended."""


def word(activity: Activity, count: int) -> int:
    """The number that an engine writes."""
    return activity << _COUNT_BITS | count & ((1 << _COUNT_BITS) - 1)


def sign(number: int, *, is_stopped: bool = False) -> Sign:
    """The sign that a number means. An activity that is not known counts as COMMAND."""
    code = number >> _COUNT_BITS
    activity = Activity(code) if code <= max(Activity) else Activity.COMMAND
    return Sign(activity, number & ((1 << _COUNT_BITS) - 1), is_stopped)


def silence(before: Silence | None, seen: Sign, now: float) -> Silence:
    """The silence after a look at `now`.

    (1) A new sign ends a silence. (2) Time in which the control plane itself stood still does not count: a look adds at
    most twice LOOK_SECONDS, so an engine is not blamed for a suspended machine or a busy service.
    """
    if before is None:
        return Silence(seen, now)
    passed = min(max(0.0, now - before.at), 2 * LOOK_SECONDS)  # (2)
    stopped = before.stopped_seconds + passed if seen.is_stopped or seen.is_cut else 0.0
    is_new = (seen.activity, seen.count) != (before.sign.activity, before.sign.count)
    return Silence(seen, now, 0.0 if is_new else before.seconds + passed, stopped)  # (1)


def condition(silent: Silence, bounds: Bounds) -> Condition:
    """What a silence means.

    (1) A process that is stopped or cut off is stalled at once. (2) An engine that reads from the disk is never called
    stalled, and is lost after LOAD_TIMEOUT. (3) Otherwise an engine is stalled after the patience of its activity, and
    lost after ENGINE_STALL_TIMEOUT. Both are longer by the extra time of the work at hand.
    """
    patience = PATIENCE.get(silent.sign.activity)
    if silent.stopped_seconds >= min(STOPPED_PATIENCE, bounds.stall):  # (1)
        return Condition.LOST if silent.stopped_seconds >= bounds.stall else Condition.STALLED
    if patience is None:  # (2)
        return Condition.LOST if silent.seconds >= bounds.load else Condition.ALIVE
    if silent.seconds >= bounds.stall + silent.sign.extra:  # (3)
        return Condition.LOST
    return Condition.STALLED if silent.seconds >= patience + silent.sign.extra else Condition.ALIVE


def described(silent: Silence) -> str:
    """The silence as a clause: what the engine was doing, and for how long it has given no sign."""
    what = "its process is stopped" if silent.sign.is_stopped else _DOING[silent.sign.activity]
    if silent.sign.is_cut:
        what = "nothing comes from its node"
    return f"the engine has sent no heartbeat for {length(silent):.0f} s ({what})"


def length(silent: Silence) -> float:
    """The seconds without a heartbeat."""
    return max(silent.seconds, silent.stopped_seconds)


_DOING = {
    Activity.STARTING: "it was starting",
    Activity.IDLE: "it had no work",
    Activity.COMMAND: "it was carrying out a command",
    Activity.PREFILL: "it was reading a prompt",
    Activity.DECODE: "it was writing",
    Activity.SAE: "it was reading an SAE",
    Activity.LOAD: "it was loading the model",
}
