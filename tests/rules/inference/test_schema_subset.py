"""The subset of JSON Schema: keywords, forms of values, references, sizes, and the narrow dialect of the engine."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.rules.inference import schema_subset
from steerserve.rules.inference.schema_dialect import dialect, disputed, pattern
from steerserve.rules.inference.schema_parts import is_endless
from steerserve.rules.inference.schema_subset import check_subset
from tests.refusals import refusal_of

TEXT = {"type": "string"}
DEFINED = {"a": {"type": "integer"}, "b/c~d e": TEXT, "é": {"properties": {"x": {"const": 1}}}}


def refused(schema: Any) -> Refusal:
    caught = refusal_of(check_subset, schema)
    assert caught.code == "RESPONSE_FORMAT_UNSUPPORTED"
    assert caught.param == "response_format"
    return caught


def places(schema: Any) -> list[tuple[str, str]]:
    return [(f["keyword"], f["pointer"]) for f in refused(schema).details["unsupported"]]


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


GOOD: list[Any] = [
    True,
    {},
    *({"type": name} for name in ("null boolean integer number string array object").split()),
    {"type": ["string", "null"]},
    {"properties": {"a": TEXT, "b": True, "c": False}, "required": ["a", "z"]},
    {"properties": dict.fromkeys(("not", "$ref", "multipleOf", "$id", "anyOf", ""), TEXT)},
    {"additionalProperties": False},
    {"additionalProperties": TEXT},
    {"items": TEXT, "minItems": 0, "maxItems": 2.0},
    {"minLength": 1, "maxLength": 10**12, "pattern": r"^[^\d\]]+\.\w{2,}$"},
    {"enum": [1, "a", None, True, [0.25, {"not": {}}], 2**53]},
    {"const": {"multipleOf": -1.5, "x": 999999999999999}},
    {"const": 0.0},
    {"minimum": -(2**63), "maximum": 2**63 - 1},
    {"minimum": 1e-300, "maximum": 1e300},
    {"anyOf": [TEXT, True, {"anyOf": [{}]}]},
    {"$defs": DEFINED, "$ref": "#/$defs/a"},
    {"$defs": DEFINED, "properties": {"p": {"$ref": "#/$defs/b~1c~0d%20e"}}},
    {"$defs": DEFINED, "items": {"$ref": "#/$defs/é/properties/x"}},
    {"$defs": DEFINED, "items": {"$ref": "#/$defs/%C3%A9"}},
    {"$defs": {"a": {"anyOf": [TEXT, True]}}, "items": {"$ref": "#/$defs/a/anyOf/0"}},
    {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/a"}}]}}},
    {"$defs": {"a": True}, "$ref": "#/$defs/a", "maxLength": 3, "anyOf": [TEXT]},
    {"title": 1, "description": [], "default": {"not": {}}, "examples": [{"$ref": "x"}]},
    {"properties": {str(i): {} for i in range(256)}},
    nested(32),
    {"const": json.loads("[" * 90 + "]" * 90)},
]


@pytest.mark.shows("structured-output.8")
@pytest.mark.parametrize("schema", GOOD, ids=[str(i) for i in range(len(GOOD))])
def test_what_is_in_the_subset_is_accepted_and_left_as_it_is(schema: Any) -> None:
    before = json.dumps(schema)
    check_subset(schema)
    dialect(schema)
    assert json.dumps(schema) == before


UNSUPPORTED = (
    "multipleOf not uniqueItems allOf oneOf if then else format patternProperties dependentRequired $schema $id $anchor "
    "exclusiveMinimum exclusiveMaximum prefixItems contains minProperties maxProperties propertyNames dependentSchemas "
    "unevaluatedProperties unevaluatedItems additionalItems definitions $dynamicRef $comment readOnly id nullable "
    "x-guidance $vocabulary contentEncoding"
).split()


@pytest.mark.shows("structured-output.9")
@pytest.mark.parametrize("keyword", UNSUPPORTED)
@pytest.mark.parametrize("value", [True, {}, "x"])
def test_any_other_keyword_is_refused_with_its_pointer(keyword: str, value: Any) -> None:
    deep = {"properties": {"a/b": {"items": {"type": "string", keyword: value}}}}
    assert places(deep) == [(keyword, f"/properties/a~1b/items/{keyword}")]


def test_every_offender_is_named_in_document_order() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {
            "a": {"multipleOf": 2, "type": "strnig"},
            "b": {"anyOf": [TEXT, {"not": {"format": "date"}}]},
        },
        "items": {"$ref": "https://example.com/x"},
        "$defs": {"unused": {"uniqueItems": True}},
        "oneOf": [{"allOf": []}],
        "additionalProperties": {"minLength": -1, "if": {}},
    }
    assert places(schema) == [
        ("$schema", "/$schema"),
        ("multipleOf", "/properties/a/multipleOf"),
        ("type", "/properties/a/type"),
        ("not", "/properties/b/anyOf/1/not"),
        ("$ref", "/items/$ref"),
        ("uniqueItems", "/$defs/unused/uniqueItems"),
        ("oneOf", "/oneOf"),
        ("minLength", "/additionalProperties/minLength"),
        ("if", "/additionalProperties/if"),
    ]
    message = refused(schema).message
    assert all(place in message for _, place in places(schema))


def test_a_keyword_that_is_not_supported_has_no_reason_and_a_bad_value_has_one() -> None:
    first, second = refused({"not": {}, "type": 3}).details["unsupported"]
    assert first == {"keyword": "not", "pointer": "/not"}
    assert second.keys() == {"keyword", "pointer", "reason"}


def test_many_offenders_are_counted() -> None:
    refusal = refused({"anyOf": [{"not": {}}] * 150})
    assert len(refusal.details["unsupported"]) == schema_subset.LISTED
    assert refusal.message.count("anyOf") == 20
    assert refusal.message.endswith("and 130 more")


MALFORMED: list[tuple[str, Any]] = [
    *(("type", v) for v in ("strnig", [], ["string", "string"], ["text"], 3, None, {}, [3])),
    *(("properties", v) for v in ([], True, None, {str(i): {} for i in range(257)})),
    *(("required", v) for v in ("a", ["a", "a"], [1], [None], {}, True)),
    *(("additionalProperties", v) for v in ([], "x", None, 1)),
    *(("items", v) for v in ([], [{}], 3, None, "x")),
    *(
        (keyword, v)
        for keyword in ("minItems", "maxItems", "minLength", "maxLength")
        for v in (-1, 1.5, True, "1", None, math.nan, math.inf, [], -0.5)
    ),
    *(("enum", v) for v in ([], "ab", {}, None, [math.nan], [[{"a": math.inf}]], [2**53 + 1])),
    *(("const", v) for v in (-(2**63), 1e22, 123456789.12345679, 1e-9, 1.5e15, [0.1, 1 / 3])),
    *(
        (keyword, v)
        for keyword in ("minimum", "maximum")
        for v in ("1", True, None, math.nan, -math.inf, 10**400, [])
    ),
    *(("pattern", v) for v in (3, None, [], "a*+", "[a[b]", r"\w++", "(?x) a", "a{1,2}+")),
    *(("anyOf", v) for v in ([], {}, None, True)),
    *(
        ("$ref", v)
        for v in ("#", "#/$defs", "a", "#/properties/x", "https://x/#/$defs/a", 3, None, "#a")
    ),
    *(("$ref", v) for v in ("#/$defs/none", "#/$defs/a/enum/0", "#/$defs/a/default", "#/$defs/a/")),
    *(("$defs", v) for v in ([], True, None)),
]


@pytest.mark.parametrize(("keyword", "value"), MALFORMED)
def test_a_malformed_value_is_refused_with_pointer_and_reason(keyword: str, value: Any) -> None:
    schema = {"items": {keyword: value}, "$defs": {"a": {"enum": [{}], "default": {}}}}
    (found,) = refused(schema).details["unsupported"]
    assert (found["keyword"], found["pointer"]) == (keyword, f"/items/{keyword}")
    assert found["reason"]
    json.dumps(refused(schema).details, allow_nan=False)


@pytest.mark.parametrize("value", [3, "x", None, [], [{}]])
def test_a_schema_is_an_object_or_a_boolean(value: Any) -> None:
    assert places(value) == [("", "")]
    if not isinstance(value, list):
        assert places({"anyOf": [value]}) == [("0", "/anyOf/0")]
        assert places({"properties": {"p": value}}) == [("p", "/properties/p")]


def test_the_schema_false_is_refused() -> None:
    assert "admits nothing" in refused(False).message


def test_a_definition_named_by_an_index_beyond_its_list_does_not_resolve() -> None:
    schema = {"$defs": {"a": {"anyOf": [True]}}, "$ref": "#/$defs/a/anyOf/1"}
    assert places(schema) == [("$ref", "/$ref")]
    long = {"$defs": {"a": {"anyOf": [True]}}, "$ref": "#/$defs/a/anyOf/" + "1" * 5000}
    assert places(long) == [("$ref", "/$ref")]


SELF = {"$ref": "#/$defs/a"}
IDLE: list[dict[str, Any]] = [
    {"$defs": {"a": SELF}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": SELF}},
    {"$defs": {"a": {"anyOf": [TEXT, SELF]}}},
    {"$defs": {"a": {"anyOf": [{"anyOf": [{"$ref": "#/$defs/b"}]}]}, "b": SELF}},
]


@pytest.mark.parametrize("schema", IDLE)
def test_a_cycle_of_references_that_enters_nothing_is_refused(schema: dict[str, Any]) -> None:
    ((keyword, place),) = places(schema)
    assert keyword == "$ref"
    assert place.endswith("$ref")


CHILD = {"type": "object", "properties": {"x": SELF}, "required": ["x"]}
ENDLESS: list[tuple[Any, bool]] = [
    ({"$defs": {"a": CHILD}, **SELF}, True),
    ({"$defs": {"a": {**CHILD, "required": []}}, **SELF}, False),
    ({"$defs": {"a": {"anyOf": [CHILD, {"type": "null"}]}}, **SELF}, False),
    ({"$defs": {"a": {**CHILD, "type": ["object", "null"]}}, **SELF}, False),
    ({"$defs": {"a": {"type": "array", "items": SELF, "minItems": 1}}, **SELF}, True),
    ({"$defs": {"a": {"type": "array", "items": SELF}}, **SELF}, False),
    ({"$defs": {"a": CHILD}, "type": "object", "properties": {"p": SELF}}, False),
    (
        {"type": "object", "additionalProperties": SELF, "required": ["q"], "$defs": {"a": CHILD}},
        True,
    ),
    ({"type": "object", "required": ["q"], "additionalProperties": False}, True),
    ({"enum": [1]}, False),
    (True, False),
]


@pytest.mark.parametrize(("schema", "expected"), ENDLESS)
def test_a_schema_that_requires_itself_without_end_is_found(schema: Any, expected: bool) -> None:
    check_subset(schema)
    assert is_endless(schema) is expected


@pytest.mark.shows("limits.20")
def test_nesting_and_size_have_limits() -> None:
    assert "deeper than 32" in refused(nested(33)).message
    assert "deeper than 100" in refused(nested(100_000)).message
    assert "deeper than 100" in refused({"default": json.loads("[" * 100 + "]" * 100)}).message
    room = schema_subset.BYTES_MAXIMUM - len(schema_subset.compact({"title": ""}))
    check_subset({"title": "x" * room})
    assert "65537 bytes" in refused({"title": "x" * (room + 1)}).message
    assert "65537 bytes" in refused({"title": "x" * (room - 1) + "é"}).message
    assert "surrogate" in refused({"enum": ["\ud800"]}).message
    assert "digits" in refused({"minimum": 10**5000}).message


NARROWED = [
    (r"^[^a]$", r"^[^\x00a]$"),
    (r"[^-a][^]a]", r"[^\x00\-a][^\x00\]a]"),
    (r"[]a][-a]", r"[\]a][\-a]"),
    (r"\D\W\S\d", r"\P{Nd}[^\p{L}\p{N}_][^\s\x1c-\x1f]\d"),
    (r"[^\d\w\s]", r"[^\x00\p{Nd}\p{L}\p{N}_\s\x1c-\x1f]"),
    (r"[\D][\d]", r"[\P{Nd}][\d]"),
    (r"\[^a\]\\[^b]", r"\[^a\]\\[^\x00b]"),
    (r"a+?b{2}\+\(?x", r"a+?b{2}\+\(?x"),
    (r"a?b+", r"a?b+"),
    ("[a", "[a"),
    ("[^", r"[^\x00"),
    ("\\", "\\"),
]


@pytest.mark.parametrize(("text", "expected"), NARROWED)
def test_a_pattern_is_narrowed_where_dialects_differ(text: str, expected: str) -> None:
    assert disputed(text) is None
    assert pattern(text) == expected


def test_the_dialect_tightens_bounds_to_what_a_double_holds_and_drops_annotations() -> None:
    schema = {
        "title": "t",
        "default": math.nan,
        "$defs": {"a b[c]": {"minimum": 0.12345678901234567}},
        "properties": {
            "title": {"minimum": -(2**63), "maximum": 2**63 - 1},
            "exact": {"minimum": -(2**53), "maximum": 0.1},
            "sizes": {"minItems": 1.0, "maxLength": 2**40},
        },
        "items": {"$ref": "#/$defs/a b[c]", "description": "d"},
        "anyOf": [True, {"examples": []}],
    }
    copy = json.loads(dialect(schema))
    assert copy.pop("x-guidance")["whitespace_flexible"] is False
    assert copy == {
        "$defs": {"a b[c]": {"minimum": 0.123456789012346}},
        "properties": {
            "title": {"minimum": -9.22337203685477e18, "maximum": 9.22337203685477e18},
            "exact": {"minimum": -(2**53), "maximum": 0.1},
            "sizes": {"minItems": 1, "maxLength": 2**31},
        },
        "items": {"$ref": "#/$defs/a%20b%5Bc%5D"},
        "anyOf": [True, {}],
    }
    assert not re.search(r'"(title|description)": "', dialect(schema))
    assert set(json.loads(dialect(True))) == {"x-guidance"}


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"type": "integer", "minimum": 2**63 + 1, "maximum": 2**64}, "minimum", "/minimum"),
        ({"type": ["integer", "null"], "maximum": -(10**25)}, "maximum", "/maximum"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 7}, "minimum", "/minimum"),
        ({"items": {"minimum": 5, "maximum": 2}}, "minimum", "/items/minimum"),
        ({"minItems": 3, "maxItems": 2}, "minItems", "/minItems"),
        ({"minLength": 3, "maxLength": 2}, "minLength", "/minLength"),
    ],
)
def test_bounds_that_cannot_be_met_or_told_apart_are_named(
    schema: Any, keyword: str, pointer: str
) -> None:
    refusal = refusal_of(check_subset, schema)
    found = refusal.details["unsupported"][0]
    assert (found["keyword"], found["pointer"]) == (keyword, pointer)
    assert found["reason"]


@pytest.mark.parametrize("kind", ["integer", "number", ["integer", "null"]])
def test_the_whole_of_64_bits_is_a_range(kind: Any) -> None:
    check_subset({"type": kind, "minimum": -(2**63), "maximum": 2**63 - 1})
