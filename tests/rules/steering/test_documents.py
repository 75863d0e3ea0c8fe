"""The body of an import: its size, its nesting, its envelope, and the checks of its fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerserve.errors import DocumentRefusal, Refusal
from steerserve.rules.bounds import DOCUMENT_BYTES, DOCUMENT_LEVELS
from steerserve.rules.steering import documents

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    max_leaves=20,
)


def nesting(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    is_open = isinstance(value, dict | list)
    return is_open + max(map(nesting, parts), default=0)


@given(JSON)
def test_the_depth_is_told_without_parsing(value: Any) -> None:
    body, deepest = json.dumps(value).encode(), nesting(value)
    assert not documents.is_deeper(body, deepest)
    assert deepest == 0 or documents.is_deeper(body, deepest - 1)


def test_brackets_inside_texts_do_not_nest() -> None:
    body = b'{"a": "[[[{\\"[", "b": "\\\\", "c": ["["]}'
    assert documents.is_deeper(body, 1)
    assert not documents.is_deeper(body, 2)


def test_the_largest_and_the_deepest_documents_pass_and_the_next_are_refused() -> None:
    documents.check_body(b"[" * DOCUMENT_LEVELS + b" " * (DOCUMENT_BYTES - DOCUMENT_LEVELS))
    with pytest.raises(DocumentRefusal) as large:
        documents.check_body(b" " * (DOCUMENT_BYTES + 1))
    assert (large.value.code, large.value.details) == (
        "PAYLOAD_TOO_LARGE",
        {"limit_bytes": DOCUMENT_BYTES},
    )
    with pytest.raises(DocumentRefusal) as deep:
        documents.check_body(b'{"a":' * (DOCUMENT_LEVELS + 1))
    assert deep.value.code == "VALIDATION_ERROR"
    assert len(deep.value.details["errors"]) == 1


@pytest.mark.parametrize(
    ("body", "document"),
    [
        ({"success": True, "data": {"kind": "x"}, "error": None}, {"kind": "x"}),
        ({"kind": "x", "success": True, "data": {"a": 1}}, None),
        ({"kind": "x"}, None),
        ({"success": True, "data": [1]}, None),
        ([1], None),
    ],
)
def test_a_document_is_read_bare_and_out_of_an_answer(body: Any, document: Any) -> None:
    assert documents.unwrapped(body) == (body if document is None else document)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_is_refused_in_unknown_keys_too(bad: float) -> None:
    documents.check_numbers({"a": [1, 2.5, {"b": -1e308}]})
    with pytest.raises(DocumentRefusal) as raised:
        documents.check_numbers({"a": [1, {"b": bad}]})
    assert raised.value.details["errors"][0]["loc"] == ["body", "a", 1, "b"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON: Expecting value, at line 1, column 1"),
        (b"{", "at line 1, column 2"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b'{"a": %s}' % (b"9" * 5000), "too many digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
    ],
)
def test_a_body_that_is_not_json_is_told_where(body: bytes, why: str) -> None:
    with pytest.raises(Refusal, match=why) as raised:
        documents.parse(body, dict)
    assert raised.value.code == "VALIDATION_ERROR"


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'[[{"b": {"a": 1, "c": 3, "a": 2}}]]',
        rb'{"a": 1, "\u0061": 2}',
        rb'{"a": ":", "a": "\u003a"}',
        rb'{"a": 1, "a": "\u003A"}',
        b'\xef\xbb\xbf{"a": 1, "a": 2}',
        b'{"n": NaN, "a": 1, "a": 2}',
        b'{"n": 1%s, "a": 1, "a": 2}' % (b"0" * 30),
        rb'{"n": "\ud800", "a": 1, "a": 2}',
    ],
)
def test_a_key_that_stands_twice_is_named_however_it_is_written(body: bytes) -> None:
    with pytest.raises(Refusal, match="'a' stands twice"):
        documents.check_once(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "b": {"a": "a: b"}}',
        b'[{"a": 1}, {"a": 2}]',
        rb'{"a": "\u003a", "\u003b": ":"}',
        b'{"a": NaN, "b": 1e400}',
        b'{"a": 1, "a": 2',
        b"",
    ],
)
def test_a_body_passes_that_has_each_key_once_or_is_not_json(body: bytes) -> None:
    documents.check_once(body)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"null"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(DocumentRefusal) as raised:
        documents.parse(body, dict)
    assert raised.value.details["errors"][0]["loc"] == ["body"]


SHAPE = documents.fields(
    {"name": documents.text(1, 3)},
    {
        "size": documents.whole(0, 9),
        "share": documents.number(0, 1),
        "sign": documents.one_of(1, -1),
        "on": documents.flag,
        "parts": documents.items(documents.whole(), 1, 2),
        "table": documents.mapping(documents.number()),
        "date": documents.either(documents.text(), documents.number(), "no date"),
    },
)


@pytest.mark.parametrize(
    "document",
    [
        {"name": "abc"},
        {"name": "a", "size": None, "share": None, "sign": None, "parts": None, "table": None},
        {"name": "a", "size": 9.0, "share": 1, "sign": -1.0, "on": False, "parts": [1, 2]},
        {"name": "a", "table": {"x": 1, "y": None}, "date": 3, "unknown": {"kept": []}},
        {"name": "a", "date": "today"},
    ],
)
def test_optional_fields_may_be_null_or_missing_and_other_keys_are_accepted(document: Any) -> None:
    documents.check_document(document, SHAPE)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ([], []),
        ({}, ["name"]),
        ({"name": None}, ["name"]),
        ({"name": ""}, ["name"]),
        ({"name": "abcd"}, ["name"]),
        ({"name": "a", "size": 10}, ["size"]),
        ({"name": "a", "size": 1.5}, ["size"]),
        ({"name": "a", "size": True}, ["size"]),
        ({"name": "a", "size": "1"}, ["size"]),
        ({"name": "a", "share": 10**400}, ["share"]),
        ({"name": "a", "share": -0.1}, ["share"]),
        ({"name": "a", "sign": 2}, ["sign"]),
        ({"name": "a", "sign": True}, ["sign"]),
        ({"name": "a", "sign": []}, ["sign"]),
        ({"name": "a", "on": 0}, ["on"]),
        ({"name": "a", "parts": []}, ["parts"]),
        ({"name": "a", "parts": [1, 2, 3]}, ["parts"]),
        ({"name": "a", "parts": [1, -1]}, ["parts", 1]),
        ({"name": "a", "parts": {}}, ["parts"]),
        ({"name": "a", "table": {"x": "1"}}, ["table", "x"]),
        ({"name": "a", "table": []}, ["table"]),
        ({"name": "a", "date": []}, ["date"]),
    ],
)
def test_a_fault_names_its_place(document: Any, place: list[Any]) -> None:
    with pytest.raises(DocumentRefusal) as raised:
        documents.check_document(document, SHAPE)
    assert [error["loc"] for error in raised.value.details["errors"]] == [["body", *place]]


def test_the_first_ten_faults_are_named() -> None:
    shape = documents.items(documents.whole())
    with pytest.raises(DocumentRefusal) as raised:
        documents.check_document(["x"] * 30, shape)
    assert [error["loc"][-1] for error in raised.value.details["errors"]] == list(range(10))


@pytest.mark.parametrize(
    ("value", "why"),
    [(-1, "less than 0"), (2**31, "more than 2147483647"), (10**30, "more than 2147483647")],
)
def test_a_whole_number_outside_its_bounds_is_told_the_bound(value: int, why: str) -> None:
    assert [fault.why for fault in documents.whole()(value, ())] == [why]


@pytest.mark.parametrize(
    ("document", "name", "has"),
    [
        ({"kind": "other"}, "other", "has the `kind` other"),
        ({"kind": []}, "[]", "has the `kind` []"),
        ({"kind": None}, None, "has no field `kind`"),
        ({}, None, "has no field `kind`"),
    ],
)
def test_an_unknown_kind_names_the_known_kinds(
    document: dict[str, Any], name: str | None, has: str
) -> None:
    refusal = documents.unknown_kind(document, ("a", "b"))
    assert refusal.code == "UNKNOWN_KIND"
    assert refusal.details == {"kind": name, "known_kinds": ["a", "b"]}
    assert refusal.message == (
        f"this route imports documents of the kind a or b; this document {has}"
    )
