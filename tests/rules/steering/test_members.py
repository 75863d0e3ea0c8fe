"""The parts that cluster and circuit documents share."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.errors import DocumentRefusal
from steerserve.rules.steering import documents, members
from steerserve.rules.steering.members import AuthoredMember, SaeReference, SensingOverrides

FULL: dict[str, Any] = {
    "feature_idx": 70,
    "strength": 12.5,
    "sign": 1,
    "pinned": True,
    "label": "rain",
    "similarity": 0.9,
    "activation_frequency": 0.01,
    "max_activation": 8.0,
    "meta": {
        "description": "words for rain",
        "interpretability": 0.5,
        "top_tokens": ["rain"],
        "example": {"text": "it rains", "span": "rains"},
        "neuronpedia": "https://example.org/70",
        "of another studio": {"kept": True},
    },
    "unknown": [1],
}


def faults(shape: documents.Check, value: Any) -> list[Any]:
    return [fault.place for fault in shape(value, ())]


@pytest.mark.parametrize(
    ("strength", "sign", "value"),
    [(12.5, 1, 12.5), (12.5, -1, -12.5), (-6.0, -1, -6.0), (-6.0, 1, -6.0), (0.0, -1, 0.0)],
)
def test_the_sign_of_a_negative_strength_is_applied_once(
    strength: float, sign: int, value: float
) -> None:
    assert AuthoredMember(1, strength, sign).value == value


def test_a_member_is_read_with_and_without_its_optional_fields() -> None:
    assert faults(members.MEMBER, FULL) == []
    assert members.member(FULL) == AuthoredMember(70, 12.5, 1, "rain", 8.0)
    bare = {"feature_idx": 3, "strength": -1}
    nulls = bare | dict.fromkeys(("sign", "pinned", "label", "max_activation", "meta"))
    for raw in (bare, nulls, bare | {"feature_idx": 3.0}):
        assert faults(members.MEMBER, raw) == []
        assert members.member(raw) == AuthoredMember(3, -1.0)


@pytest.mark.parametrize("peak", [None, 0, -1.5])
def test_only_a_positive_max_activation_is_usable(peak: float | None) -> None:
    raw = {"feature_idx": 3, "strength": 1, "max_activation": peak}
    assert faults(members.MEMBER, raw) == []
    assert members.member(raw).max_activation is None


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"feature_idx": -1}, ("feature_idx",)),
        ({"feature_idx": True}, ("feature_idx",)),
        ({"feature_idx": None}, ("feature_idx",)),
        ({"strength": 300.5}, ("strength",)),
        ({"strength": -301}, ("strength",)),
        ({"strength": float("nan")}, ("strength",)),
        ({"sign": 0}, ("sign",)),
        ({"sign": True}, ("sign",)),
        ({"pinned": 1}, ("pinned",)),
        ({"label": 3}, ("label",)),
        ({"similarity": 1.5}, ("similarity",)),
        ({"max_activation": "8"}, ("max_activation",)),
        ({"meta": []}, ("meta",)),
        ({"meta": {"description": "x" * 1001}}, ("meta", "description")),
        ({"meta": {"category": "x" * 51}}, ("meta", "category")),
        ({"meta": {"interpretability": 2}}, ("meta", "interpretability")),
        ({"meta": {"top_tokens": ["x"] * 11}}, ("meta", "top_tokens")),
        ({"meta": {"example": {"span": "x" * 101}}}, ("meta", "example", "span")),
        ({"meta": {"neuronpedia": "javascript:alert(1)"}}, ("meta", "neuronpedia")),
        ({"meta": {"other": "x" * 8192}}, ("meta",)),
    ],
)
def test_a_member_out_of_bounds_is_refused(change: dict[str, Any], place: tuple[str, ...]) -> None:
    assert faults(members.MEMBER, FULL | change) == [place]


@pytest.mark.parametrize("strength", [300, -300, 0])
def test_the_bounds_of_a_strength_belong_to_it(strength: int) -> None:
    assert faults(members.MEMBER, FULL | {"strength": strength}) == []


def test_an_sae_reference_is_read_under_both_names_of_its_id() -> None:
    assert members.sae_reference(None) == members.sae_reference({}) == SaeReference()
    assert members.sae_reference({"sae_id": "a", "layer": 9, "n_features": None}) == SaeReference(
        "a", 9, None
    )
    both = {"mistudio_sae_id": "m", "sae_id": "a", "n_features": 16384}
    assert members.sae_reference(both) == SaeReference("m", None, 16384)


@pytest.mark.parametrize("hint", ["/data/sae", "~/sae", "../sae", "C:\\sae", "hf:x:\\y"])
def test_a_document_names_no_path_of_one_machine(hint: str) -> None:
    assert faults(members.SAE, {"source_hint": hint}) == [("source_hint",)]
    assert faults(members.SAE, {"source_hint": "hf:acme/tiny-saes/l9"}) == []


@pytest.mark.parametrize(
    "date",
    [None, "2026-01-05T10:00:00.123456", "2026-01-05T10:00:00Z", "2026-01-05T10:00:00+02:00", 1e9],
)
def test_dates_are_accepted_with_and_without_a_zone(date: Any) -> None:
    assert faults(members.PROVENANCE, {"created_at": date, "exported_at": date}) == []


def test_a_text_that_is_no_date_is_refused() -> None:
    assert faults(members.PROVENANCE, {"created_at": "yesterday"}) == [("created_at",)]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, None),
        ({}, None),
        ({"hf_id": "acme/tiny", "mistudio_model_id": "m_1"}, "acme/tiny"),
        ({"hf_id": None, "mistudio_model_id": "m_1"}, "m_1"),
    ],
)
def test_the_id_on_the_hub_names_the_model(model: Any, name: str | None) -> None:
    assert members.model_name({"model": model}) == name


@pytest.mark.parametrize(
    ("declared", "read"),
    [
        ([0.4, 1.6], (0.4, 1.6)),
        ([1.6, 0.4], (0.4, 1.6)),
        ([0, 2], (0.0, 2.0)),
        ([1, 1], (1.0, 1.0)),
        (None, None),
        ([], None),
        ([0.5], None),
        ([0.5, 1.0, 1.5], None),
        (["0.5", 1.5], None),
        ([None, 1.5], None),
        ([True, 2], None),
        ([float("nan"), 1.0], None),
        ([10**400, 1.0], None),
        ("0.5-1.5", None),
        ({"0": 0.5, "1": 1.5}, None),
    ],
)
def test_a_declared_range_is_two_numbers_in_ascending_order(declared: Any, read: Any) -> None:
    assert members.declared_range({"intensity_range": declared}) == read


@pytest.mark.parametrize("budget", [None, {}, [], "budget"])
def test_a_document_without_a_range_declares_none(budget: Any) -> None:
    assert members.declared_range(budget) is None
    assert members.declared_intensity(budget) is None


def test_the_intensity_is_read_from_the_budget() -> None:
    assert members.declared_intensity({"intensity": 0}) == 0.0
    assert members.declared_intensity({"intensity": None}) is None


def test_authored_sensing_falls_back_where_it_is_out_of_range() -> None:
    good = {
        "epsilon": 0.2,
        "theta_floor": 0,
        "min_k": 2,
        "context_tokens": 64,
        "max_token_lag": 1,
    }
    assert members.sensing_overrides({"sensing": good}) == SensingOverrides(0.2, 0.0, 2, 64, 1)
    for bad in (
        None,
        [],
        {"epsilon": 1e-10, "theta_floor": -1, "min_k": 0, "context_tokens": 65},
        {"epsilon": "0.2", "min_k": 1.5, "context_tokens": -1, "max_token_lag": 65},
        {"epsilon": float("inf"), "min_k": True, "max_token_lag": 0},
    ):
        assert members.sensing_overrides({"sensing": bad}) == SensingOverrides()


@pytest.mark.parametrize(
    ("token", "word"),
    [("\u0120rain", "rain"), ("\u2581rain", "rain"), ("rain", "rain"), (" ", None), (None, None)],
)
def test_a_display_token_loses_the_marks_of_its_tokenizer(token: Any, word: str | None) -> None:
    assert members.display_word(token) == word


def test_a_blank_name_and_a_name_that_turns_the_text_around_are_refused() -> None:
    shape = members.name_shape(120)
    assert faults(shape, "n" * 120) == []
    for name in ("", " ", "n" * 121, "a\nb", "\u202ename"):
        assert faults(shape, name) == [()]


def test_a_document_refusal_has_its_details() -> None:
    with pytest.raises(DocumentRefusal) as raised:
        documents.check_document({"strength": 1}, members.MEMBER)
    assert raised.value.details["errors"] == [{"loc": ["body", "feature_idx"], "msg": "missing"}]


def test_the_names_to_try_keep_within_the_longest_name() -> None:
    names = members.names_to_try("n" * 120, 120, may_rename=True)
    assert names[:2] == ["n" * 120, "n" * 116 + " (2)"]
    assert names[-1] == "n" * 115 + " (50)"
    assert len(names) == members.NAME_TRIES
    assert members.names_to_try("rain", 120, may_rename=False) == ["rain"]
