"""Monitoring as a value: the ring of records, bounds of features, what a query asks for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from steerserve.nouns.monitoring import rules as monitoring
from steerserve.nouns.monitoring.rules import Activation, Record, Ring
from tests.refusals import refusal_of

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = Record(FIRST, "cmpl-0", "sae_a", 1, 0, 9, 17, ((3, 2.0),), ((3, 2.0),), 1)


def records(count: int) -> list[Record]:
    return [
        replace(RECORD, timestamp=FIRST + timedelta(seconds=i), request_id=f"cmpl-{i % 2}")
        for i in range(count)
    ]


def filled(size: int, count: int) -> tuple[Ring, list[Record]]:
    ring, made = Ring(size), records(count)
    for record in made:
        ring.add(record)
    return ring, made


@pytest.mark.parametrize(
    ("size", "count", "limit", "kept"),
    [(3, 0, 5, []), (3, 2, 5, [1, 0]), (3, 5, 5, [4, 3, 2]), (3, 5, 2, [4, 3]), (1, 4, 9, [3])],
)
def test_the_ring_keeps_the_newest_and_gives_them_newest_first(
    size: int, count: int, limit: int, kept: list[int]
) -> None:
    ring, made = filled(size, count)
    assert ring.newest(limit) == [made[i] for i in kept]
    assert len(ring) == min(size, count)


def test_the_ring_keeps_as_many_activations_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "HISTORY_ACTIVATIONS", 10)
    ring, made = filled(10, 5)  # each has two activations and counts as three
    assert ring.newest(10) == [made[4], made[3], made[2]]
    ring.clear()
    ring.add(made[0])
    assert ring.newest(10) == [made[0]]


def test_the_limit_counts_the_records_of_the_request_asked_about() -> None:
    ring, made = filled(10, 6)
    assert ring.newest(2, "cmpl-1") == [made[5], made[3]]
    assert ring.newest(9, "cmpl-0") == [made[4], made[2], made[0]]
    assert ring.newest(9, "cmpl") == []


@pytest.mark.parametrize(("size", "kept"), [(10, 5), (5, 5), (2, 2), (1, 1)])
def test_resizing_keeps_the_newest_that_fit(size: int, kept: int) -> None:
    ring, made = filled(5, 5)
    ring.resize(size)
    assert ring.newest(100) == list(reversed(made))[:kept]
    for record in (more := records(size)):
        ring.add(record)
    assert ring.newest(100) == list(reversed(more))


def test_clearing_tells_how_many_there_were_and_keeps_the_size() -> None:
    ring, _ = filled(3, 5)
    assert ring.clear() == 3
    assert ring.clear() == 0
    for record in records(5):
        ring.add(record)
    assert len(ring) == 3


@pytest.mark.parametrize(
    ("features", "chosen"), [([], ()), ([5], (5,)), ([9, 0, 9, 5, 0], (0, 5, 9)), ([15], (15,))]
)
def test_features_are_named_once_and_in_order(features: list[int], chosen: tuple[int, ...]) -> None:
    assert monitoring.chosen(features, 16) == chosen


@pytest.mark.parametrize(("features", "bad"), [([16], 16), ([3, -1], -1), ([2**70, -1], 2**70)])
def test_a_feature_outside_the_sae_is_refused_by_name(features: list[int], bad: int) -> None:
    refusal = refusal_of(monitoring.chosen, features, 16)
    assert refusal.code == "INVALID_FEATURE_INDEX"
    assert refusal.details == {"feature_idx": bad, "d_sae": 16}


@pytest.mark.parametrize(
    ("text", "features"),
    [(None, None), ("1,2,3", (1, 2, 3)), ("7", (7,)), (" 4 , 0 ", (4, 0)), ("-1", (-1,))],
)
def test_a_query_names_features(text: str | None, features: tuple[int, ...] | None) -> None:
    assert monitoring.parse_features(text) == features


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "1,,2", "a", "1.0", "1e3", "0x1", "01", "+1", "1;2", "\u0663", "9" * 19]
)
def test_a_query_that_names_none_is_a_validation_error(text: str) -> None:
    refusal = refusal_of(monitoring.parse_features, text)
    assert refusal.code == "VALIDATION_ERROR"
    assert refusal.details["errors"][0]["loc"] == ["query", "features"]


@pytest.mark.parametrize("key", ["sae_a@0", "sae_a@31", "sae_a@b@7"])
def test_a_key_tells_its_sae_and_layer(key: str) -> None:
    sae_id, layer = monitoring.place_of(key)
    assert f"{sae_id}@{layer}" == key


@pytest.mark.parametrize(
    ("residual", "decoder", "strength"),
    [(100.0, 1.0, 50.0), (100.0, 4.0, 12.5), (0.0, 1.0, 0.0), (100.0, 0.0, None)],
)
def test_a_typical_strength_adds_half_a_residual(
    residual: float, decoder: float, strength: float | None
) -> None:
    assert monitoring.typical_strength(residual, decoder) == strength


@pytest.mark.parametrize(
    ("record", "values"),
    [
        (RECORD, ((2, 0.0), (3, 2.0))),
        (replace(RECORD, features=(3, 4), activations=((3, 2.0), (4, 0.0))), ((3, 2.0),)),
        (replace(RECORD, fired=2), ((3, 2.0),)),
    ],
    ids=["all features", "named features", "more were active than are listed"],
)
def test_the_value_of_a_feature_is_0_only_where_it_is_known_to_be_0(
    record: Record, values: tuple[Activation, ...]
) -> None:
    assert record.values_of((2, 3)) == values
