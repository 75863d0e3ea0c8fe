"""Labels of features in the forms in which people publish them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.nouns.labels import rules as labels
from tests.refusals import refusal_of

WIDTH = 16
NEURONPEDIA = [
    {"modelId": "gpt2-small", "layer": "5-res-jb", "index": "3", "description": " the sea "},
    {"modelId": "gpt2-small", "layer": "5-res-jb", "index": 4, "description": "boats"},
]


@pytest.mark.parametrize(
    "document",
    [
        {"3": "the sea", "4": "boats"},
        {"3": {"label": "the sea", "max_activation": 9.5}, "4": {"label": "boats"}},
        NEURONPEDIA,
        [{"feature": 3, "label": "the sea"}, {"feature_index": "4", "explanation": "boats"}],
        [{"feature_idx": 3, "description": "the sea"}, {"index": 4, "label": "boats"}],
        '{"index": 3, "label": "the sea"}\n\n{"index": "4", "label": "boats"}\r\n',
        "\n".join(json.dumps(entry) for entry in NEURONPEDIA),
    ],
    ids=["map", "map of objects", "neuronpedia", "list", "list 2", "lines", "neuronpedia lines"],
)
def test_every_published_form_is_read(document: Any) -> None:
    assert labels.parse(document, WIDTH).by_feature == {3: "the sea", 4: "boats"}


def test_the_layers_that_an_export_names_are_told() -> None:
    assert labels.parse(NEURONPEDIA, WIDTH).layers == {5}
    assert labels.parse({"3": "a"}, WIDTH).layers == frozenset()


def test_of_several_labels_of_a_feature_the_first_counts_and_the_rest_is_counted() -> None:
    entries = [{"index": 3, "label": text} for text in ("first", "second", "third")]
    read = labels.parse(entries, WIDTH)
    assert (read.by_feature, read.repeated) == ({3: "first"}, 2)


def test_a_label_may_hold_a_line_separator_of_its_document() -> None:
    # not a line end of JSON Lines, and not a label either
    with pytest.raises(Refusal, match="control characters"):
        labels.parse('{"index": 3, "label": "a\u2028b"}', WIDTH)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (None, "object"),
        (7, "object"),
        ({}, "without any label"),
        ([], "without any label"),
        ("", "without any label"),
        ("not json", "line 1"),
        ('{"index": 3, "label": "a"}\n{', "line 2"),
        ([3], r"\[0\]"),
        ([{"index": 3}], r"\[0\]"),
        ([{"label": "a"}], r"\[0\]"),
        ([{"index": 3, "label": "a"}, {"index": True, "label": "a"}], r"\[1\]"),
        ([{"index": 3.0, "label": "a"}], r"\[0\]"),
        ({"01": "a"}, "'01'"),
        ({"three": "a"}, "'three'"),
        ({"3": None}, "'3'"),
        ({"3": 7}, "'3'"),
        ({"3": "  "}, "'3'"),
        ({"3": "x" * 501}, "'3'"),
        ({"3": "a\nb"}, "'3'"),
        ({"3": "a\x00b"}, "'3'"),
        ({"3": "\ud800"}, "'3'"),
        ("[" * 100_000, "line 1"),
        ('{"index": 3, "label": "a"}\n{"index": 4, "index": 5, "label": "b"}', "'index'.*line 2"),
        ('{"index": 3, "label": "a", "more": {"x": 1, "x": 1}}', "'x'.*line 1"),
    ],
)
def test_what_is_no_label_is_refused_where_it_stands(document: Any, named: str) -> None:
    with pytest.raises(Refusal, match=named) as refused:
        labels.parse(document, WIDTH)
    assert refused.value.code == "VALIDATION_ERROR"
    assert refused.value.details["errors"]


@pytest.mark.parametrize("index", [WIDTH, -1, 10**17])
def test_an_index_outside_the_sae_is_refused_by_name(index: int) -> None:
    refusal = refusal_of(lambda: labels.parse({"3": "fine", str(index): "not"}, WIDTH))
    assert refusal.code == "INVALID_FEATURE_INDEX"
    assert refusal.details == {"feature_idx": index, "d_sae": WIDTH}


def test_a_label_of_the_longest_length_is_kept() -> None:
    assert labels.parse({"0": "x" * 500}, WIDTH).by_feature == {0: "x" * 500}


@pytest.mark.parametrize(
    ("query", "label", "found"),
    [
        ("sea", "the Sea at night", True),
        ("SEA night", "the sea at NIGHT", True),
        ("night sea", "the sea at night", True),
        ("sea day", "the sea at night", False),
        ("straße", "STRASSE", True),
        ("  ", "anything", True),
    ],
)
def test_a_label_is_found_by_all_words_of_a_query(query: str, label: str, found: bool) -> None:
    assert labels.has_words(label, labels.words_of(query)) is found
