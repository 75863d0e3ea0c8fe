"""Cluster sensing: when a member fires, when enough members fire together, and the events that this makes.

A member fires at a position when its activation is above its threshold. A position at which the quorum of members fires
is hot. Hot positions that follow each other without a gap are one span, and each span becomes one event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.steering.members import AuthoredMember, SensingOverrides

PREFILL = "prefill"
DECODE = "decode"
ThresholdMode = Literal["epsilon_max", "floor_only"]
EPSILON_MAX: ThresholdMode = "epsilon_max"
FLOOR_ONLY: ThresholdMode = "floor_only"
DIGITS = 4
"""Decimal places of the activations and the score in an event."""
SUMMARY_CHARACTERS = 300
LABEL_CHARACTERS = 60

Firing = tuple[int, float]
"""The place of a member in its list, and the activation of the member."""

Decode = Callable[[Sequence[int], bool], str]
"""Tokens -> their text. The second argument says whether special tokens are left out of the text."""


# ------------------------------------------------------------- thresholds and quorum


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The values from which the threshold of each member is made."""

    epsilon: float
    floor: float

    def overridden(self, overrides: SensingOverrides) -> Thresholds:
        """These values, with those that a document states in their place."""
        epsilon, floor = overrides.epsilon, overrides.theta_floor
        return Thresholds(
            self.epsilon if epsilon is None else epsilon, self.floor if floor is None else floor
        )

    def theta(self, max_activation: float | None) -> float:
        """The activation above which a member fires: max(floor, epsilon x max_activation). (1) A member without a
        positive, finite `max_activation` takes the floor, (2) and never fires where the floor is 0."""
        if max_activation is not None and 0 < max_activation < math.inf:
            return max(self.floor, self.epsilon * max_activation)
        return self.floor if self.floor > 0 else math.inf  # (1), (2)


@dataclass(frozen=True, slots=True)
class SensedMember:
    """One member of a cluster with its threshold; an infinite threshold means that the member never fires."""

    feature_idx: int
    theta: float
    label: str | None = None

    @property
    def is_sensable(self) -> bool:
        return math.isfinite(self.theta)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """How a cluster is sensed. `mode` is EPSILON_MAX, or FLOOR_ONLY where no member has a maximum of its own."""

    members: tuple[SensedMember, ...]
    min_k: int
    mode: ThresholdMode

    @property
    def sensable_count(self) -> int:
        return sum(member.is_sensable for member in self.members)


ALL_SENSABLE = 0
"""The quorum of an operator who asks for all sensable members, whatever the document says."""


def plan(
    authored: Sequence[AuthoredMember],
    overrides: SensingOverrides,
    thresholds: Thresholds,
    local_min_k: int | None = None,
) -> ClusterPlan:
    """The plan of a cluster. A feature that is named twice counts once, as it is named first.

    The quorum is (1) the operator's, (2) or else the document's, (3) or else all sensable members. An operator asks for
    all of them with ALL_SENSABLE. (4) It is never above the number of sensable members, because such a quorum could not
    be reached.

    Raises:
        Refusal: VALIDATION_ERROR when no member has a threshold.
    """
    used = thresholds.overridden(overrides)
    named: dict[int, AuthoredMember] = {}
    for member in authored:
        named.setdefault(member.feature_idx, member)
    members = tuple(
        SensedMember(member.feature_idx, used.theta(member.max_activation), member.label)
        for member in named.values()
    )
    sensable = sum(member.is_sensable for member in members)
    if not sensable:
        raise Refusal(
            "VALIDATION_ERROR",
            "no member of the cluster can be sensed: none has a positive max_activation, and there is no "
            "threshold floor",
            member_count=len(members),
            sensable_count=0,
        )
    asked = overrides.min_k if local_min_k is None else local_min_k  # (1), (2)
    wanted = asked or sensable  # (3)
    has_own = any(math.isfinite(Thresholds(1.0, 0.0).theta(m.max_activation)) for m in authored)
    return ClusterPlan(
        members, min(wanted, sensable), EPSILON_MAX if has_own else FLOOR_ONLY
    )  # (4)


def context_tokens(asked: int | None, ceiling: int) -> int:
    """How many tokens of context an event keeps on each side: as many as the document asks for, and never more than the
    operator allows."""
    return ceiling if asked is None else min(asked, ceiling)


def check_quorum(min_k: int, members: int, sensable: int) -> None:
    """Check a quorum that an operator sets.

    Raises:
        Refusal: VALIDATION_ERROR where it could never be reached.
    """
    if min_k > sensable:
        why = f"min_k {min_k} can never be reached: {sensable} of {members} members can be sensed"
        raise refuse_value(
            ["body", "min_k"], why, min_k=min_k, member_count=members, sensable_count=sensable
        )


# ------------------------------------------------------------- spans


@dataclass(slots=True)
class Span:
    """Hot positions `start` to `end`, both included. `peaks` has the largest activation of each member that fired.
    `is_truncated` says that firings after this span were not recorded."""

    start: int
    end: int
    phase: str
    peaks: dict[int, float]
    is_truncated: bool = False


class SpanTracker:
    """Makes spans from the hot positions of one row, which are fed in their order, pass by pass.

    Args:
        most: the most spans of the row.
        prompt_tokens: positions below this are of the prompt.
        skip: positions below this were reported with an earlier row, and are not reported again.
    """

    def __init__(self, most: int, prompt_tokens: int, skip: int = 0) -> None:
        self._most = most
        self._prompt_tokens = prompt_tokens
        self._skip = skip
        self.spans: list[Span] = []
        self.is_over = False

    def feed(self, position: int, fired: Sequence[Firing]) -> None:
        """A position at which the quorum fired. (1) A position that follows the last hot one belongs to its span. (2)
        Once there are `most` spans, the next one ends the sensing of the row, and the last span says so."""
        if self.is_over or position < self._skip:
            return
        last = self.spans[-1] if self.spans else None
        if last is not None and position == last.end + 1:  # (1)
            last.end = position
        elif len(self.spans) >= self._most:  # (2)
            self.is_over = True
            if last is not None:
                last.is_truncated = True
            return
        else:
            phase = PREFILL if position < self._prompt_tokens else DECODE
            last = Span(position, position, phase, {})
            self.spans.append(last)
        for place, activation in fired:
            last.peaks[place] = max(activation, last.peaks.get(place, activation))


def score(span: Span, thetas: Sequence[float]) -> tuple[float, int]:
    """The largest activation / threshold of the members that fired (the activation itself where the threshold is 0),
    and the place of that member."""
    ratios = {
        place: peak / thetas[place] if thetas[place] else peak for place, peak in span.peaks.items()
    }
    best = max(ratios, key=lambda place: ratios[place])
    return ratios[best], best


def fired_members(span: Span, members: Sequence[SensedMember]) -> list[tuple[int, float]]:
    """[feature, peak] of the members that fired, the largest peak first."""
    ranked = sorted(span.peaks.items(), key=lambda pair: (-pair[1], members[pair[0]].feature_idx))
    return [(members[place].feature_idx, round(peak, DIGITS)) for place, peak in ranked]


def summary(title: str, span: Span, members: Sequence[SensedMember]) -> str:
    """One line about an event. It has no text of the request, because live events carry it."""
    value, place = score(span, [member.theta for member in members])
    best = members[place]
    label = f" {best.label[:LABEL_CHARACTERS]!r}" if best.label else ""
    at = str(span.start) if span.start == span.end else f"{span.start}-{span.end}"
    line = (
        f"{title[:LABEL_CHARACTERS]}: {len(span.peaks)}/{len(members)} members fired "
        f"(peak F{best.feature_idx}{label} {value:.1f}x theta) during {span.phase} @ {at}"
    )
    return line[:SUMMARY_CHARACTERS]


# ------------------------------------------------------------- history


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens with which both sequences begin. Slices are compared whole, so long histories are cheap."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class History:
    """The tokens of the row that was sensed last. The next row that begins with the same tokens does not report their
    firings again. `number` names the arming under which the row was sensed; each arming has a larger number."""

    def __init__(self) -> None:
        self.number = 0
        self._tokens: list[int] = []

    def skip(self, tokens: list[int]) -> int:
        """How many of the first tokens were reported already."""
        return common_prefix(self._tokens, tokens)

    def remember(self, number: int, tokens: list[int]) -> None:
        """The firings at these tokens are reported, under the arming of this number. (1) A later arming forgets the
        rows of earlier ones, (2) and a row of an earlier arming that ends late is not remembered. (3) A row that only
        read the beginning of the remembered tokens does not shorten them."""
        if number > self.number:  # (1)
            self.number, self._tokens = number, tokens
        elif number == self.number and self.skip(tokens) < len(tokens):  # (2), (3)
            self._tokens = tokens


def reported(tokens: list[int], tracker: SpanTracker) -> list[int]:
    """The tokens up to which the firings of a row are reported: all that were read, or those up to the end of the last
    span where the row was cut off."""
    return tokens[: tracker.spans[-1].end + 1] if tracker.is_over and tracker.spans else tokens


# ------------------------------------------------------------- context


@dataclass(frozen=True, slots=True)
class Context:
    """The tokens around an event and their text, which leaves special tokens out. `parts` is the text before, in and
    after the event, with special tokens; None where the text cannot be cut there."""

    token_ids: list[int] | None = None
    text: str | None = None
    parts: tuple[str, str, str] | None = None


def context(tokens: Sequence[int], start: int, end: int, around: int, decode: Decode) -> Context:
    """The window of `around` tokens on each side of the positions `start` to `end`. With an `around` of 0, and where
    the end is beyond the known tokens, nothing is kept.

    The parts are cut from the texts of growing prefixes of the window. The pieces are not decoded alone, because some
    tokenizers drop the space at the beginning of a text.
    """
    if around < 1 or not 0 <= start <= end < len(tokens):
        return Context()
    first = max(0, start - around)
    window = list(tokens[first : end + 1 + around])
    before = decode(window[: start - first], False)
    inside = decode(window[: end + 1 - first], False)
    whole = decode(window, False)
    parts = None
    if inside.startswith(before) and whole.startswith(inside):
        parts = (before, inside[len(before) :], whole[len(inside) :])
    return Context(window, decode(window, True), parts)
