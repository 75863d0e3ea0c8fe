"""Constrained rows: whatever is sampled under the mask is a document of the schema, and rows keep to themselves."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from steerserve.errors import Refusal
from steerserve.rules.inference.schema_dialect import JSON_OBJECT
from steerserve.rules.inference.schema_subset import check_subset, compact
from steerserve.worker.rows import constrain
from steerserve.worker.rows.constrain import Grammars, RowConstraint, mask
from tests.engines.documents import grammars, write
from tests.refusals import refusal_of
from tests.worker import models

EOS = 1
ROWS = 6
TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
PAIR = {
    "type": "object",
    "properties": {"a": INTEGER, "b": TEXT},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node~/ é": {
            "type": "object",
            "properties": {
                "leaf": {"type": "boolean"},
                "next": {"type": "array", "items": {"$ref": "#/$defs/node~0~1%20é"}, "maxItems": 1},
            },
            "required": ["leaf"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node~0~1%20é",
}

SCHEMAS: dict[str, Any] = {
    "anything": True,
    "the empty schema": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": INTEGER,
    "number": {"type": "number"},
    "string": TEXT,
    "array": {"type": "array"},
    "object": {"type": "object"},
    "several types": {"type": ["integer", "null", "array"]},
    "properties": PAIR,
    "optional properties": {"type": "object", "properties": {"a": INTEGER, "b": TEXT, "c": False}},
    "required beyond properties": {"type": "object", "required": ["x", "y"]},
    "properties named like keywords": {
        "type": "object",
        "properties": {"not": INTEGER, "$ref": TEXT, "$id": {"const": 3}, 'q"\n': {"const": None}},
        "required": ["not", "$ref", "$id", 'q"\n'],
    },
    "additionalProperties": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "additionalProperties": {"enum": [1, 2]},
    },
    "items": {"type": "array", "items": {"type": "array", "items": INTEGER}},
    "minItems, maxItems": {"type": "array", "minItems": 2, "maxItems": 3.0, "items": {"enum": [0]}},
    "enum": {"enum": ["a", 1, 2.5, None, True, [1, {"b": "\u00e9"}], {"k": []}, -0.000001]},
    "const": {"const": {"b": [1, 'two "quoted"', 0.1], "a": None}},
    "minimum, maximum": {"type": "number", "minimum": -1.5, "maximum": 12.25},
    "whole bounds": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "bounds of any type": {"minimum": 5},
    "minLength, maxLength": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern, unanchored": {"type": "string", "pattern": "a[0-9]", "maxLength": 12},
    "pattern, anchored": {"type": "string", "pattern": r"^(ab?|[^\w\s]){2,4}\d$"},
    "pattern and length": {"type": "string", "pattern": r"^\S+$", "minLength": 2, "maxLength": 4},
    "a class without the quote": {"type": "string", "pattern": r'^[^"]{4}$'},
    "complements": {"type": "string", "pattern": r"^\D\W[^\d][^\w]$"},
    "anyOf": {"anyOf": [TEXT, PAIR, {"type": "array", "items": {"type": "null"}}]},
    "anyOf with siblings": {
        "anyOf": [{"required": ["a"]}, {"properties": {"b": INTEGER}, "required": ["b"]}],
        "type": "object",
        "properties": {"a": TEXT, "b": {"type": ["integer", "string"]}},
        "additionalProperties": False,
    },
    "$ref that recurs": TREE,
    "$ref with siblings": {"$defs": {"t": TEXT}, "$ref": "#/$defs/t", "maxLength": 2},
    "annotations": {"title": "T", "description": "d", "default": 3, "examples": [4], "enum": [1]},
}


@pytest.fixture(scope="module")
def tiny() -> Grammars:
    return grammars()


def constraint(source: Grammars, schema: Any) -> RowConstraint:
    check_subset(schema)
    return source.compile(compact(schema)).result().constraint()


def ids(text: str) -> list[int]:
    return models.tokenizer()(text, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]


def follow(row: RowConstraint, text: str) -> bool:
    """Whether the text is a whole document under the constraint."""
    try:
        for token in ids(text):
            row.advance(token)
    except Refusal as refusal:
        return refusal.code != "CONSTRAINED_OUTPUT_INVALID"
    return row.may_end


def allowed(row: RowConstraint) -> set[int]:
    masked, refusals = mask(torch.zeros(1, 331), [row])
    assert not refusals
    return set(torch.isfinite(masked[0]).nonzero().flatten().tolist())


@pytest.mark.shows("structured-output.8")
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_what_is_sampled_under_the_mask_validates(tiny: Grammars, schema: Any) -> None:
    rows = [constraint(tiny, schema) for _ in range(ROWS)]
    texts = [text for text in write(tiny, rows, steps=150) if text is not None]
    assert len(texts) >= ROWS // 2
    for text in texts:
        Draft202012Validator(schema).validate(json.loads(text))


def test_the_fixed_object_constraint_gives_objects(tiny: Grammars) -> None:
    rows = [tiny.compile(JSON_OBJECT).result().constraint() for _ in range(ROWS)]
    texts = [text for text in write(tiny, rows, steps=150) if text is not None]
    assert texts
    assert all(isinstance(json.loads(text), dict) for text in texts)


def test_documents_are_written_as_json_dumps_writes_them(tiny: Grammars) -> None:
    document = {"a": 1, "b": 'é "\n'}
    row = constraint(tiny, PAIR)
    assert follow(row, json.dumps(document, ensure_ascii=False))
    assert row.is_complete
    for separators in ((",", ":"), (", ", ":"), (" , ", ": ")):
        assert not follow(constraint(tiny, PAIR), json.dumps(document, separators=separators))
    assert not follow(constraint(tiny, PAIR), " " + json.dumps(document))
    assert not follow(constraint(tiny, PAIR), json.dumps(document, indent=1))


def test_a_row_is_complete_only_when_nothing_but_its_end_can_follow(tiny: Grammars) -> None:
    row = constraint(tiny, {"type": "array", "items": INTEGER})
    seen = []
    for token in ids("[12, 3]"):
        row.advance(token)
        seen.append((row.may_end, row.is_complete))
    assert seen[-1] == (True, True)
    assert set(seen[:-1]) == {(False, False)}
    number = constraint(tiny, INTEGER)
    number.advance(*ids("7"))
    assert (number.may_end, number.is_complete) == (True, False)
    number.advance(EOS)
    assert number.is_complete


def test_end_tokens_are_allowed_exactly_when_the_document_may_end() -> None:
    source = Grammars(models.tokenizer(), 331, frozenset([EOS, 325]))
    row = constraint(source, {"enum": [1, 12]})
    (one,) = ids("1")
    assert allowed(row) == {one, *(ids("12") if len(ids("12")) == 1 else [])}
    row.advance(one)
    assert allowed(row) == {*ids("2"), EOS, 325}
    row.advance(325)
    assert row.is_complete


def test_special_and_padding_tokens_are_never_allowed(tiny: Grammars) -> None:
    row = constraint(tiny, TEXT)
    row.advance(*ids('"'))
    assert allowed(row)
    assert allowed(row).isdisjoint({0, EOS, *range(320, 331)})


def test_an_end_token_or_another_that_is_not_allowed_ends_the_row_with_a_refusal(
    tiny: Grammars,
) -> None:
    for token in (EOS, *ids("x"), 325):
        row = constraint(tiny, INTEGER)
        assert refusal_of(row.advance, token).code == "CONSTRAINED_OUTPUT_INVALID"


def test_rows_of_one_pass_do_not_touch_each_other(tiny: Grammars) -> None:
    number, text = constraint(tiny, INTEGER), constraint(tiny, TEXT)
    again = constraint(tiny, INTEGER)
    text.advance(*ids('"'))
    logits = torch.randn(4, 331)
    before = logits.clone()
    masked, refusals = mask(logits, [number, None, text, again])
    assert not refusals
    assert torch.equal(logits, before)
    assert torch.equal(masked[1], logits[1])
    for place, row in ((0, number), (2, text), (3, again)):
        finite = set(torch.isfinite(masked[place]).nonzero().flatten().tolist())
        assert finite == allowed(row)
        assert torch.equal(masked[place][sorted(finite)], logits[place][sorted(finite)])
    number.advance(*ids("4"))
    assert allowed(again) == set(torch.isfinite(masked[0]).nonzero().flatten().tolist())
    assert mask(logits, [None] * 4)[0] is logits


def test_masking_keeps_the_type_of_the_logits(tiny: Grammars) -> None:
    row = constraint(tiny, INTEGER)
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        masked, _ = mask(torch.zeros(2, 331, dtype=kind), [row, None])
        assert masked.dtype == kind


def test_compiled_schemas_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    source = grammars(kept=2)
    compiled: list[str] = []
    make = source._new_matcher

    def counted(schema: str) -> Any:
        compiled.append(json.loads(schema)["title"])
        return make(schema)

    monkeypatch.setattr(source, "_new_matcher", counted)
    for title in "aabacab":
        constraint(source, {"type": "null", "title": title})
    assert compiled == ["a", "b", "c", "b"]
    assert len(source._compiled) == 2


def test_schemas_are_compiled_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    source = grammars()
    threads: list[threading.Thread] = []
    make = source._new_matcher

    def noted(schema: str) -> Any:
        threads.append(threading.current_thread())
        return make(schema)

    monkeypatch.setattr(source, "_new_matcher", noted)
    constraint(source, TEXT)
    assert threads != [threading.main_thread()]
    source.close()


def test_a_schema_that_cannot_be_compiled_is_refused_and_not_kept() -> None:
    source = grammars()
    future = source.compile('{"type": "string", "pattern": "(?=a)"}')
    assert refusal_of(future.result).code == "RESPONSE_FORMAT_UNSUPPORTED"
    assert not source._compiled


LONG = {"type": "string", "pattern": "^[^<]*$", "maxLength": 5000}
"""A new state of the lexer at every character."""

MIXED = {"type": "string", "pattern": "^[ab]*a[ab]{12}$"}
"""A state of the lexer for each of the 4,096 ways in which the last twelve characters may be mixed."""


def test_rows_do_not_use_up_the_lexer_that_others_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constrain, "LEXER_STATES", 600)
    source = grammars()
    shared = source.compile(compact(MIXED)).result()
    renewed: list[str] = []
    fresh = source.fresh
    monkeypatch.setattr(source, "fresh", lambda schema: renewed.append(schema) or fresh(schema))
    (quote,), letters = ids('"'), ids("a") + ids("b")
    for seed in range(8):
        row, choice = shared.constraint(), random.Random(seed)
        row.advance(quote)
        for _ in range(60):
            assert set(letters) <= allowed(row)
            row.advance(choice.choice(letters))
        assert follow(row, "a" * 13 + '"')
    assert 0 < len(renewed) < 8


def test_a_row_that_needs_more_than_the_limit_alone_ends_with_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constrain, "LEXER_STATES", 100)
    row = constraint(grammars(), LONG)
    good = constraint(grammars(), INTEGER)
    row.advance(*ids('"'))
    refusals: dict[int, Refusal] = {}
    while not refusals:
        _, refusals = mask(torch.zeros(2, 331), [row, good])
        if not refusals:
            row.advance(*ids("x"))
    assert refusals.keys() == {0}
    assert refusals[0].code == "CONSTRAINED_OUTPUT_INVALID"


def test_a_row_whose_steps_are_slow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    row = constraint(grammars(), TEXT)
    monkeypatch.setattr(constrain, "STEP_SECONDS", -1.0)
    row.advance(*ids('"'))
    assert not mask(torch.zeros(1, 331), [row])[1]
    _, refusals = mask(torch.zeros(1, 331), [row])
    assert refusals[0].code == "CONSTRAINED_OUTPUT_INVALID"
