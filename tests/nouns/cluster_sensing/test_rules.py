"""Cluster sensing: thresholds, quorum, spans, history and context, as tables of cases."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from steerserve.nouns.cluster_sensing import rules as sensing
from steerserve.nouns.cluster_sensing.rules import SensedMember, Span, SpanTracker, Thresholds
from steerserve.rules.steering.members import AuthoredMember, SensingOverrides, sensing_overrides
from tests.refusals import refusal_of

DEFAULT = Thresholds(0.1, 0.0)


def member(index: int, peak: float | None = None, label: str | None = None) -> AuthoredMember:
    return AuthoredMember(index, 1.0, label=label, max_activation=peak)


@pytest.mark.parametrize(
    ("asked", "ceiling", "kept"),
    [(None, 16, 16), (3, 16, 3), (64, 16, 16), (64, 0, 0), (0, 16, 0), (None, 0, 0)],
)
def test_a_document_asks_for_fewer_tokens_of_context_and_never_for_more(
    asked: int | None, ceiling: int, kept: int
) -> None:
    assert sensing.context_tokens(asked, ceiling) == kept


@pytest.mark.parametrize(
    ("epsilon", "floor", "peak", "theta"),
    [
        (0.1, 0.0, 5.0, 0.5),
        (0.1, 2.0, 5.0, 2.0),
        (0.1, 0.0, None, math.inf),
        (0.1, 0.0, 0.0, math.inf),
        (0.1, 0.0, -3.0, math.inf),
        (0.1, 0.0, math.inf, math.inf),
        (0.1, 0.0, math.nan, math.inf),
        (0.1, 1.5, None, 1.5),
        (0.1, 1.5, -3.0, 1.5),
    ],
)
def test_a_member_without_a_usable_maximum_takes_the_floor_or_never_fires(
    epsilon: float, floor: float, peak: float | None, theta: float
) -> None:
    assert Thresholds(epsilon, floor).theta(peak) == pytest.approx(theta)


@pytest.mark.parametrize(
    ("stated", "used"),
    [
        ({"epsilon": 0.5, "theta_floor": 2}, (0.5, 2.0)),
        ({"epsilon": 1e-10}, (0.1, 0.0)),
        ({"epsilon": "much"}, (0.1, 0.0)),
        ({"theta_floor": -1}, (0.1, 0.0)),
        ({"theta_floor": None, "epsilon": True}, (0.1, 0.0)),
    ],
)
def test_an_override_out_of_range_counts_as_missing(
    stated: dict[str, object], used: tuple[float, float]
) -> None:
    overridden = DEFAULT.overridden(sensing_overrides({"sensing": stated}))
    assert (overridden.epsilon, overridden.floor) == used


@pytest.mark.parametrize(
    ("peaks", "floor", "mode", "sensable"),
    [
        ([5.0, 4.0], 0.0, sensing.EPSILON_MAX, 2),
        ([5.0, None], 0.0, sensing.EPSILON_MAX, 1),
        ([5.0, None], 1.0, sensing.EPSILON_MAX, 2),
        ([None, None], 1.0, sensing.FLOOR_ONLY, 2),
    ],
)
def test_the_mode_says_whether_any_member_has_a_maximum(
    peaks: list[float | None], floor: float, mode: str, sensable: int
) -> None:
    made = sensing.plan(
        [member(i, peak) for i, peak in enumerate(peaks)],
        SensingOverrides(),
        Thresholds(0.1, floor),
    )
    assert (made.mode, made.sensable_count, made.min_k) == (mode, sensable, sensable)


@pytest.mark.parametrize("peaks", [[], [None], [None, None]])
def test_a_cluster_without_any_threshold_is_refused(peaks: list[float | None]) -> None:
    refusal = refusal_of(
        lambda: sensing.plan(
            [member(i, p) for i, p in enumerate(peaks)], SensingOverrides(), DEFAULT
        )
    )
    assert refusal.code == "VALIDATION_ERROR"


@pytest.mark.parametrize(
    ("local", "document", "quorum"),
    [
        (None, None, 3),
        (None, 2, 2),
        (1, 2, 1),
        (sensing.ALL_SENSABLE, 2, 3),
        (None, 9, 3),
        (9, None, 3),
    ],
)
def test_the_operators_quorum_counts_before_the_documents_and_none_is_out_of_reach(
    local: int | None, document: int | None, quorum: int
) -> None:
    authored = [member(1, 5.0), member(2, 5.0), member(3, 5.0), member(4)]
    made = sensing.plan(authored, SensingOverrides(min_k=document), DEFAULT, local)
    assert made.min_k == quorum


def test_a_quorum_above_the_sensable_members_is_refused_with_the_numbers() -> None:
    sensing.check_quorum(3, 4, 3)
    refusal = refusal_of(sensing.check_quorum, 4, 4, 3)
    assert refusal.details == {
        "min_k": 4,
        "member_count": 4,
        "sensable_count": 3,
        "errors": [{"loc": ["body", "min_k"], "msg": refusal.message}],
    }


def test_a_feature_that_is_named_twice_counts_once() -> None:
    made = sensing.plan([member(7, 5.0), member(7, 1.0)], SensingOverrides(), DEFAULT)
    assert [m.feature_idx for m in made.members] == [7]
    assert made.members[0].theta == pytest.approx(0.5)


# ------------------------------------------------------------- spans


def spans(tracker: SpanTracker) -> list[tuple[int, int, str, bool]]:
    return [(s.start, s.end, s.phase, s.is_truncated) for s in tracker.spans]


@pytest.mark.parametrize(
    ("hot", "most", "skip", "expected"),
    [
        ([], 20, 0, []),
        ([3], 20, 0, [(3, 3, "prefill", False)]),
        ([3, 4, 5], 20, 0, [(3, 5, "prefill", False)]),
        ([3, 5], 20, 0, [(3, 3, "prefill", False), (5, 5, "prefill", False)]),
        ([9, 10, 11], 20, 0, [(9, 11, "prefill", False)]),
        ([10, 12], 20, 0, [(10, 10, "decode", False), (12, 12, "decode", False)]),
        ([3, 4, 5], 20, 4, [(4, 5, "prefill", False)]),
        ([3, 4], 20, 5, []),
        ([1, 3], 2, 0, [(1, 1, "prefill", False), (3, 3, "prefill", False)]),
        ([1, 3, 5, 6], 2, 0, [(1, 1, "prefill", False), (3, 3, "prefill", True)]),
        ([1, 3, 4, 6], 2, 0, [(1, 1, "prefill", False), (3, 4, "prefill", True)]),
    ],
)
def test_hot_positions_without_a_gap_are_one_span(
    hot: list[int], most: int, skip: int, expected: list[tuple[int, int, str, bool]]
) -> None:
    tracker = SpanTracker(most, prompt_tokens=10, skip=skip)
    for position in hot:
        tracker.feed(position, [(0, 1.0)])
    assert spans(tracker) == expected


def test_a_span_has_the_union_of_its_members_and_their_peaks() -> None:
    tracker = SpanTracker(20, 10)
    tracker.feed(3, [(0, 1.0), (1, 4.0)])
    tracker.feed(4, [(1, 2.0), (2, 3.0)])
    (span,) = tracker.spans
    assert span.peaks == {0: 1.0, 1: 4.0, 2: 3.0}
    members = [SensedMember(70, 0.5), SensedMember(31, 1.0, "rain"), SensedMember(5, 0.0)]
    assert sensing.fired_members(span, members) == [(31, 4.0), (5, 3.0), (70, 1.0)]
    assert sensing.score(span, [m.theta for m in members]) == (4.0, 1)
    line = sensing.summary("weather", span, members)
    assert line == "weather: 3/3 members fired (peak F31 'rain' 4.0x theta) during prefill @ 3-4"


def test_a_summary_stays_within_its_bound() -> None:
    members = [SensedMember(1, 1.0, "x" * 500)]
    assert len(sensing.summary("y" * 500, Span(1, 1, "decode", {0: 2.0}), members)) <= 300


# ------------------------------------------------------------- history


@pytest.mark.parametrize(
    ("before", "after", "skipped"),
    [
        ([], [1, 2, 3], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 9, 4], 2),
        ([1, 2, 3], [9, 2, 3], 0),
        (list(range(5000)), [*range(4999), -1], 4999),
    ],
)
def test_the_common_beginning_with_the_last_row_is_skipped(
    before: list[int], after: list[int], skipped: int
) -> None:
    history = sensing.History()
    history.remember(1, before)
    assert history.skip(after) == skipped


def test_a_row_that_read_only_the_beginning_does_not_shorten_the_memory() -> None:
    history = sensing.History()
    history.remember(1, [1, 2, 3, 4])
    history.remember(1, [1, 2])
    assert history.skip([1, 2, 3, 4, 5]) == 4
    history.remember(1, [9])
    assert history.skip([1, 2, 3, 4, 5]) == 0


def test_a_later_arming_forgets_and_a_row_of_an_earlier_one_is_not_remembered() -> None:
    history = sensing.History()
    history.remember(1, [1, 2, 3, 4])
    history.remember(2, [1, 2])
    assert (history.number, history.skip([1, 2, 3])) == (2, 2)
    history.remember(1, [1, 2, 3])
    assert (history.number, history.skip([1, 2, 3])) == (2, 2)
    history.remember(0, [])
    assert (history.number, history.skip([1, 2, 3])) == (2, 2)


def test_after_a_cut_off_row_the_memory_ends_at_the_last_reported_position() -> None:
    tokens, tracker = list(range(100, 110)), SpanTracker(1, 10)
    assert sensing.reported(tokens, tracker) == tokens
    for position in (2, 3, 6):
        tracker.feed(position, [(0, 1.0)])
    assert sensing.reported(tokens, tracker) == tokens[:4]


# ------------------------------------------------------------- context


def decoded(tokens: Sequence[int], skip_special: bool) -> str:
    """Like SentencePiece: token 0 is special, and the first space of a text is dropped."""
    words = [f" t{token}" if token else "<s>" for token in tokens if token or not skip_special]
    return "".join(words).removeprefix(" ")


@pytest.mark.parametrize(
    ("start", "end", "around", "ids", "text", "parts"),
    [
        (2, 3, 1, [1, 2, 3, 4], "t1 t2 t3 t4", ("t1", " t2 t3", " t4")),
        (1, 1, 9, [0, 1, 2, 3, 4], "t1 t2 t3 t4", ("<s>", " t1", " t2 t3 t4")),
        (4, 4, 2, [2, 3, 4], "t2 t3 t4", ("t2 t3", " t4", "")),
        (2, 3, 0, None, None, None),
        (2, 9, 2, None, None, None),
    ],
)
def test_the_parts_of_a_window_keep_their_spaces(
    start: int,
    end: int,
    around: int,
    ids: list[int] | None,
    text: str | None,
    parts: tuple[str, str, str] | None,
) -> None:
    made = sensing.context(range(5), start, end, around, decoded)
    assert (made.token_ids, made.text, made.parts) == (ids, text, parts)


def test_a_character_that_is_cut_leaves_the_text_without_parts() -> None:
    def split(tokens: Sequence[int], _: bool) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    made = sensing.context("aé!".encode(), 1, 1, 2, split)
    assert made.text == "aé!"
    assert made.parts is None
