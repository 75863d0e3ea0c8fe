"""Statistics and examples of a feature, against numpy over all activations."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array

import numpy as np
import pytest

from steerserve.nouns.corpora import rules
from steerserve.rules.inference import corpus_texts as texts
from tests.refusals import refusal_of


@pytest.mark.parametrize("count", [1, 2, 7, rules.CHUNK, 5 * rules.CHUNK + 3])
@pytest.mark.parametrize("signs", ["positive", "both"])
def test_quantiles_and_histogram_are_those_of_numpy(count: int, signs: str) -> None:
    draw = np.random.default_rng(count)
    values = (draw.normal(size=count) ** 3 * 50).astype(np.float32)
    if signs == "positive":
        values = np.abs(values) + np.float32(0.01)
    found = rules.summary(array("f", values.tolist()))
    assert found.count == count
    assert found.max == values.max()
    for share, value in found.quantiles.items():
        assert value == pytest.approx(np.quantile(values.astype(np.float64), float(share)), 1e-12)
    edges = np.array(found.histogram.edges)
    assert edges[0] == min(0, values.min())
    assert edges[-1] == max(0, values.max())
    assert found.histogram.counts == np.histogram(values.astype(np.float64), edges)[0].tolist()


def test_ranges_hold_every_feature_that_fires_once() -> None:
    totals = [5, 0, 4, 100, 1, 0, 2, 0]
    found = rules.ranges(totals, most=9)
    assert [feature for one in found for feature in one] == list(range(8))
    assert [sum(totals[i] for i in one) for one in found] == [9, 100, 3]
    assert rules.ranges([0, 0]) == []


def test_examples_are_the_strongest_and_then_evenly_spaced_ones() -> None:
    largest = [float(i) for i in range(101)]
    found = rules.chosen(largest, list(range(101)), 8)
    assert found[:4] == [(100, True), (99, True), (98, True), (97, True)]
    assert found[4:] == [(80, False), (60, False), (40, False), (20, False)]
    assert rules.chosen([1.0, 1.0], [3, 2], 4) == [(2, True), (3, True)]
    few = rules.chosen([5.0, 4.0, 3.0], [0, 1, 2], 4)
    assert few == [(0, True), (1, True), (2, False)]


def test_a_window_is_around_the_largest_activation() -> None:
    found = rules.groups(
        np.array([3, 9], "<u4").tobytes(),
        np.array([1, 3], "<u4").tobytes(),
        np.array([1, 2, 40, 52], "<u4").tobytes(),
        np.array([7.0, 1.0, 5.0, 2.0], "<f4").tobytes(),
    )
    assert rules.window(found, 9, 53) == (40, 5.0, 16, {40: 5.0, 52: 2.0})
    assert rules.window(found, 3, 53) == (1, 7.0, 0, {1: 7.0})


def test_lines_of_json_are_texts_or_conversations() -> None:
    chat = [{"role": "user", "content": "hello", "name": "x"}]
    lines = [json.dumps({"body": one}).encode() for one in ("one", chat, "")]
    assert list(texts.texts("a.JSONL", [lines[0], b"\n", *lines[1:]], "body")) == [
        ("line 1", "one"),
        ("line 3", ({"role": "user", "content": "hello"},)),
        ("line 4", ""),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "line 2 is not JSON"),
        (b'"text"', "line 2 has no field text"),
        (b'{"other": 1}', "line 2 has no field text"),
        (b'{"text": 3}', "line 2 text is neither a text nor a list of messages"),
        (b'{"text": [{"role": "user"}]}', "line 2 text is neither a text nor a list of messages"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(line: bytes, why: str) -> None:
    refused = refusal_of(lambda: list(texts.texts("a.jsonl", [b'{"text": ""}', line], "text")))
    assert (refused.code, refused.message) == ("VALIDATION_ERROR", why)
    assert refused.details["line"] == 2


def test_a_text_file_has_texts_between_blank_lines() -> None:
    lines = b"one\ntwo\n\n \nthree\n".splitlines(keepends=True)
    assert list(texts.texts("a.txt", lines, "text")) == [
        ("line 1", "one\ntwo"),
        ("line 5", "three"),
    ]
    bad = refusal_of(lambda: list(texts.texts("a.txt", [b"one", b"\xff"], "text")))
    assert bad.message == "line 2 is not UTF-8"
    assert refusal_of(lambda: texts.check_name("a.parquet")).code == "INVALID_PARAMETER"


def test_long_texts_are_cut_before_white_space() -> None:
    text = "word " * 9000 + "x" * 30_000
    parts = list(texts.blocks(text))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= texts.BLOCK
    assert parts[1].startswith(" word")


READING = """
import sys, tracemalloc
from threading import Event
from io import BytesIO
from steerserve.files.corpus import lines_of
from steerserve.rules.inference.corpus_texts import texts
content = eval(sys.argv[1])
tracemalloc.start()
count = sum(1 for _ in texts("a.txt", lines_of(BytesIO(content), Event()), ""))
print(count, tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.parametrize(
    ("content", "count"), [(b"\n" * 30_000, 0), (b"a\n" * 30_000, 1), (b"a\n\n" * 10_000, 10_000)]
)
def test_memory_grows_with_the_bytes_of_a_corpus_and_not_with_its_lines(
    content: bytes, count: int
) -> None:
    # in a process of its own, because the memory of all threads of a process is measured
    ended = subprocess.run(
        [sys.executable, "-c", READING, repr(content)], check=True, capture_output=True, text=True
    )
    found, most = map(int, ended.stdout.split())
    assert found == count
    assert most < 4 * len(content) + (1 << 16)


def test_values_of_a_line_are_counted_before_it_is_read() -> None:
    line = b'{"text": "a", "x": [' + b"[]," * 200_000 + b"[]]}"
    refused = refusal_of(lambda: list(texts.texts("a.jsonl", [b'{"text": "a"}', line], "text")))
    assert refused.message == "line 2 has more than 200000 values"


def test_the_json_of_a_text_is_the_same_in_parts() -> None:
    chat = ({"role": "user", "content": "é\n"}, {"role": "assistant", "content": '\ud800"😀'})
    for text in ("", 'é"\\😀\n' * 9000, chat):
        assert "".join(texts.json_parts(text)) == json.dumps(text)
