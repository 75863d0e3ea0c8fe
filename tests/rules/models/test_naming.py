"""Model names as requests write them."""

from __future__ import annotations

import pytest

from steerserve.rules.models import naming
from steerserve.rules.models.naming import NamedModel, NameIndex
from tests.refusals import refusal_of

FP16 = NamedModel(1, "org/plain", "FP16", "ready")
TWICE = [NamedModel(2, "org/twice", "FP16", "ready"), NamedModel(3, "org/twice", "Q8", "loaded")]
GGUF_ONE = NamedModel(4, "org/one-GGUF:Q4_K_M", "Q4", "ready")
GGUF_TWO = [
    NamedModel(5, "org/two-GGUF:Q4_K_M", "Q4", "ready"),
    NamedModel(6, "org/two-GGUF:Q8_0", "Q8", "ready"),
]
HUB = NamedModel(10, "far", "FP16", "ready", "acme/far")
HUB_GGUF = [
    NamedModel(11, "wide:Q4_0", "Q4", "ready", "acme/wide:Q4_0"),
    NamedModel(12, "wide:Q8_0", "Q8", "ready", "acme/wide:Q8_0"),
]
SECOND_COMMIT = [
    NamedModel(20, "deep:Q4_0", "Q4", "ready", "acme/deep:Q4_0"),
    NamedModel(21, "deep:Q4_0@0123abcd", "Q4", "ready", "acme/deep:Q4_0@0123abcd"),
]
LOADING = NamedModel(7, "org/coming", "FP16", "loading")
BROKEN = NamedModel(8, "org/broken", "FP16", "error")
DOWNLOADING = NamedModel(9, "org/partial", "FP16", "downloading")
ALL = [
    FP16,
    *TWICE,
    GGUF_ONE,
    *GGUF_TWO,
    HUB,
    *HUB_GGUF,
    *SECOND_COMMIT,
    LOADING,
    BROKEN,
    DOWNLOADING,
]


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("org/plain", 1),
        ("org/plain:FP16", 1),
        ("org/twice:FP16", 2),
        ("org/twice:Q8", 3),
        ("org/one-GGUF", 4),
        ("org/one-GGUF:Q4_K_M", 4),
        ("org/two-GGUF:Q8_0", 6),
        ("org/coming", 7),
        ("far", 10),
        ("acme/far", 10),
        ("acme/far:FP16", 10),
        ("acme/wide:Q8_0", 12),
        ("wide:Q4_0", 11),
        ("deep", 20),
        ("acme/deep", 20),
        ("acme/deep:Q4_0@0123abcd", 21),
    ],
)
def test_a_name_resolves_to_its_model(name: str, model_id: int) -> None:
    assert NameIndex(ALL).resolve(name).id == model_id


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("org/twice", ["org/twice:FP16", "org/twice:Q8"]),
        ("org/two-GGUF", ["org/two-GGUF:Q4_K_M", "org/two-GGUF:Q8_0"]),
        ("wide", ["wide:Q4_0", "wide:Q8_0"]),
        ("acme/wide", ["wide:Q4_0", "wide:Q8_0"]),
    ],
)
def test_a_bare_name_with_several_quantizations_is_ambiguous_and_lists_them(
    name: str, candidates: list[str]
) -> None:
    refusal = refusal_of(lambda: NameIndex(ALL).resolve(name))
    assert refusal.code == "AMBIGUOUS_MODEL_NAME"
    assert refusal.details["candidates"] == candidates
    assert [NameIndex(ALL).resolve(tag).name for tag in candidates]


@pytest.mark.parametrize(
    "name",
    [
        "org/unknown",
        "org/plain:Q8",
        "org/Plain",
        "plain",
        "org/plain ",
        "",
        ":",
        "org",
        "org/broken",
        "org/partial",
        "org/two-GGUF:Q2",
    ],
)
def test_what_is_no_serveable_model_is_not_found(name: str) -> None:
    refusal = refusal_of(lambda: NameIndex(ALL).resolve(name))
    assert refusal.code == "MODEL_NOT_FOUND"
    assert refusal.param == "model"


@pytest.mark.shows("model-record.6")
@pytest.mark.parametrize(
    ("count", "label"),
    [
        (None, None),
        (0, "0"),
        (949, "949"),
        (1_000, "1.0K"),
        (124_439_808, "124M"),
        (494_000_000, "494M"),
        (99_900_000, "99.9M"),
        (8_030_000_000, "8.0B"),
        (70_600_000_000, "70.6B"),
        (405_000_000_000, "405B"),
        (999_999_999, "1.0B"),
    ],
)
def test_a_parameter_count_is_written_as_people_write_it(count: int | None, label: str) -> None:
    assert naming.parameters_label(count) == label


@pytest.mark.parametrize(
    "name", ["a", "my model (v2)", "org/model-1.5:Q4_K_M", "modèle", "x" * 100, "a+b@c"]
)
def test_a_plain_name_is_taken_as_it_is(name: str) -> None:
    assert naming.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 101,
        " leading",
        "/etc/passwd",
        "../up",
        "a/../b",
        "a//b",
        "a\nb",
        "a\r\nSet-Cookie: x",
        "a\n",
        "a\x00b",
        "a\x1b[31m",
        "a\u202eb",
        "a\u2028b",
        "<script>",
        "a\\b",
        "a,b",
        'a"b',
        "-rf",
        "\ud800",
    ],
)
def test_a_hostile_name_is_refused(name: str) -> None:
    refusal = refusal_of(naming.check_name, name)
    assert refusal.code == "VALIDATION_ERROR"
    assert refusal.param == "custom_name"


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("tiny", []),
        ("tiny@calm", [("tiny", "calm")]),
        ("tiny@12345678@calm", [("tiny@12345678", "calm"), ("tiny", "12345678@calm")]),
        ("@calm", []),
        ("tiny@", []),
    ],
)
def test_a_name_may_be_read_as_a_model_and_a_profile(
    name: str, ways: list[tuple[str, str]]
) -> None:
    assert naming.with_profile(name) == ways
