"""SAE activations that a request asks to see: what it may ask, the SAE meant, how many, and which of each pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.parts.activations import form as activations
from steerserve.parts.activations.form import Activations, Positions
from steerserve.rules.inference.names import CHECKPOINT, GGUF
from tests.refusals import refusal_of
from tests.rules.steering.saes import Sae

MAXIMUM = 64
ENTRIES = 65_536

ONE = Sae("sae_a", 3, 100)
TWO = Sae("sae_b", 5, 10)
TWICE = Sae("sae_a", 7, 100)


def fault_of(raw: Any, maximum: int = MAXIMUM) -> Refusal:
    return refusal_of(activations.parse_value, raw, maximum)


# ------------------------------------------------------------------ what may be asked


@pytest.mark.parametrize(
    ("raw", "asked"),
    [
        ({}, Activations(None, None, 10, "last", "post_steering")),
        (
            dict.fromkeys(["sae_id", "layer", "features", "top_k", "positions", "read_point"]),
            Activations(None, None, 10, "last", "post_steering"),
        ),
        ({"sae_id": "sae_a"}, Activations("sae_a")),
        ({"sae_id": "sae_a", "layer": 7}, Activations("sae_a", layer=7)),
        ({"features": [5, 1, 5]}, Activations(features=(5, 1), top_k=2)),
        ({"features": [5, 1], "top_k": 1}, Activations(features=(5, 1), top_k=1)),
        ({"features": [0], "top_k": 9}, Activations(features=(0,), top_k=9)),
        ({"top_k": 1}, Activations(top_k=1)),
        ({"top_k": MAXIMUM}, Activations(top_k=MAXIMUM)),
        ({"positions": "last"}, Activations(positions="last")),
        ({"positions": "prompt"}, Activations(positions="prompt")),
        ({"positions": "completion"}, Activations(positions="completion")),
        ({"positions": "all"}, Activations(positions="all")),
        ({"positions": {"start": 0, "end": 1}}, Activations(positions=(0, 1))),
        ({"positions": {"end": 9, "start": 4}}, Activations(positions=(4, 9))),
        ({"read_point": "post_steering"}, Activations(read_point="post_steering")),
        ({"read_point": "pre_steering"}, Activations(read_point="pre_steering")),
        ({"mood": 1}, Activations()),
    ],
)
def test_what_is_asked_is_what_the_request_says(raw: dict[str, Any], asked: Activations) -> None:
    assert activations.parse_value(raw, MAXIMUM) == asked


def test_the_default_of_top_k_is_never_over_a_lower_maximum() -> None:
    assert activations.parse_value({}, 4).top_k == 4


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        *((raw, "") for raw in ("all", True, [], 1, "")),
        *(({"layer": value}, "layer") for value in (-1, "3", 3.0, True, 2**31)),
        *(({"sae_id": value}, "sae_id") for value in ("", 5, ["sae_a"], True)),
        *(
            ({"features": value}, "features")
            for value in ([], 5, "5", {}, [-1], [1.0], [True], ["1"], [None], [1, -1], [2**31])
        ),
        *(({"top_k": value}, "top_k") for value in (0, -1, 65, 1.0, True, "5", [5])),
        *(
            ({"positions": value}, "positions")
            for value in (
                "first",
                "LAST",
                "",
                5,
                [0, 1],
                True,
                {},
                {"start": 0},
                {"end": 5},
                {"start": 0, "end": 5, "step": 1},
                {"start": 0, "end": 0},
                {"start": 5, "end": 3},
                {"start": -1, "end": 3},
                {"start": 0, "end": 3.0},
                {"start": False, "end": True},
                {"start": None, "end": 3},
                {"start": 0, "end": 2**31},
            )
        ),
        *(
            ({"read_point": value}, "read_point")
            for value in ("unsteered", "", "PRE_STEERING", 1, ["pre_steering"], False)
        ),
    ],
)
def test_anything_else_is_refused_naming_the_part(raw: Any, part: str) -> None:
    refused = fault_of(raw)
    name = f"return_sae_activations.{part}" if part else "return_sae_activations"
    assert (refused.code, refused.row.v1) == ("SAE_ACTIVATIONS_REFUSED", 400)
    assert refused.param == name
    assert refused.message.startswith(name)


def test_top_k_over_the_servers_maximum_is_refused_with_the_maximum() -> None:
    assert "from 1 to 8" in fault_of({"top_k": 9}, 8).message
    assert "more than 8 features" in fault_of({"features": list(range(9))}, 8).message


# ------------------------------------------------------------------ the SAE meant


@pytest.mark.parametrize(
    ("asked", "attached", "meant"),
    [
        (Activations(), [ONE], ONE),
        (Activations("sae_a"), [ONE], ONE),
        (Activations("sae_b"), [ONE, TWO], TWO),
        (Activations("sae_a"), [TWO, ONE], ONE),
        (Activations(features=(0, 99)), [ONE], ONE),
        (Activations("sae_b", features=(9,)), [ONE, TWO], TWO),
        (Activations("sae_a", layer=7), [ONE, TWICE], TWICE),
        (Activations(layer=3), [ONE, TWICE, TWO], ONE),
    ],
)
def test_the_sae_meant_is_the_one_named_or_the_only_one(
    asked: Activations, attached: list[Sae], meant: Sae
) -> None:
    assert activations.find_sae(asked, attached) is meant


@pytest.mark.shows("request-activations.10")
@pytest.mark.parametrize(
    ("asked", "attached", "part", "words"),
    [
        (Activations(), [], "sae_id", "none is attached"),
        (Activations("sae_a"), [], "sae_id", "'sae_a' is not attached"),
        (Activations("sae_z"), [ONE, TWO], "sae_id", "'sae_z' is not attached"),
        (Activations("SAE_A"), [ONE], "sae_id", "'SAE_A' is not attached"),
        (Activations(), [ONE, TWO], "sae_id", "several"),
        (Activations("sae_a"), [ONE, TWICE], "layer", "several"),
        (
            Activations("sae_a", layer=5),
            [ONE, TWICE, TWO],
            "layer",
            "'sae_a' is not attached at layer 5",
        ),
        (Activations(layer=9), [ONE, TWO], "layer", "layer 9"),
        (Activations(features=(100,)), [ONE], "features", "100 is not"),
        (Activations(features=(0, 5, 2**31 - 1)), [ONE], "features", "[0, 100)"),
        (Activations("sae_b", features=(10,)), [ONE, TWO], "features", "[0, 10)"),
    ],
)
def test_no_sae_several_or_a_feature_past_its_width_is_refused(
    asked: Activations, attached: list[Sae], part: str, words: str
) -> None:
    refused = refusal_of(activations.find_sae, asked, attached)
    assert (refused.code, refused.row.v1) == ("SAE_ACTIVATIONS_REFUSED", 400)
    assert refused.param == f"return_sae_activations.{part}"
    assert words in refused.message


# ------------------------------------------------------------------ how many


@pytest.mark.parametrize(
    ("positions", "prompt", "length", "most"),
    [
        ("last", 7, 5, 1),
        ("prompt", 7, 5, 7),
        ("completion", 7, 5, 5),
        ("all", 7, 5, 12),
        ((0, 1), 7, 5, 1),
        ((3, 9), 7, 5, 6),
        ((0, 12), 7, 5, 12),
        ((0, 1000), 7, 5, 12),
        ((10, 1000), 7, 5, 2),
        ((12, 1000), 7, 5, 0),
        ((500, 1000), 7, 5, 0),
    ],
)
def test_the_worst_case_counts_the_completion_in_full(
    positions: Positions, prompt: int, length: int, most: int
) -> None:
    assert activations.most_positions(positions, prompt, length) == most


@pytest.mark.parametrize(
    ("positions", "top_k", "prompt", "length", "entries"),
    [
        ("prompt", 64, 1024, 9999, ENTRIES),
        ("prompt", 64, 1025, 0, ENTRIES + 64),
        ("completion", 64, 9999, 1024, ENTRIES),
        ("completion", 64, 1, 1025, ENTRIES + 64),
        ("all", 64, 1000, 24, ENTRIES),
        ("all", 64, 1000, 25, ENTRIES + 64),
        ("all", 1, 65_000, 537, ENTRIES + 1),
        ((0, 1024), 64, 5000, 0, ENTRIES),
        ((0, 1025), 64, 5000, 0, ENTRIES + 64),
        ((0, 10**9), 64, 1000, 24, ENTRIES),
        ("last", 64, 10**6, 10**6, 64),
    ],
)
def test_exactly_the_maximum_of_entries_is_served_and_more_is_refused(
    positions: Positions, top_k: int, prompt: int, length: int, entries: int
) -> None:
    if entries <= ENTRIES:
        activations.check_entries(positions, top_k, prompt, length, ENTRIES)
        with pytest.raises(Refusal):
            activations.check_entries(positions, top_k, prompt, length, entries - 1)
        return
    refused = refusal_of(activations.check_entries, positions, top_k, prompt, length, ENTRIES)
    assert (refused.code, refused.row.v1) == ("SAE_ACTIVATIONS_REFUSED", 400)
    assert refused.details == {"entries": entries, "max_entries": ENTRIES}
    assert str(entries) in refused.message


# ------------------------------------------------------------------ which of each pass

POSITIONS = st.one_of(
    st.sampled_from(["prompt", "completion", "all"]),
    st.tuples(st.integers(0, 60), st.integers(1, 60)).map(lambda p: (p[0], p[0] + p[1])),
)


def wanted(positions: Positions, prompt: int, end: int) -> list[int]:
    """The positions meant, of those that passes read: [0, end)."""
    match positions:
        case "last":
            return [end - 1]
        case "prompt":
            return list(range(min(prompt, end)))
        case "completion":
            return list(range(prompt, end))
        case "all":
            return list(range(end))
        case (start, stop):
            return [at for at in range(end) if start <= at < stop]
    raise AssertionError(positions)


@st.composite
def a_run(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]]]:
    """A prompt's length, the completion's, and the passes that read both but for the token sampled last."""
    prompt = draw(st.integers(1, 40))
    sampled = draw(st.integers(1, 30))
    end = prompt + sampled - 1
    cuts = draw(st.sets(st.integers(1, max(1, end - 1)), max_size=20)) if end > 1 else set()
    edges = [0, *sorted(cuts), end]
    return prompt, sampled, list(pairwise(edges))


def read(positions: Positions, prompt: int, passes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [activations.span(positions, prompt, start, end) for start, end in passes]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(POSITIONS, a_run())
def test_any_split_into_passes_reads_each_wanted_position_once_and_in_order(
    positions: Positions, run: tuple[int, int, list[tuple[int, int]]]
) -> None:
    prompt, _, passes = run
    found = [at for low, high in read(positions, prompt, passes) for at in range(low, high)]
    assert found == wanted(positions, prompt, passes[-1][1])


@settings(deadline=None, derandomize=True)
@given(a_run())
def test_last_is_the_last_position_of_whatever_pass_was_the_last(
    run: tuple[int, int, list[tuple[int, int]]],
) -> None:
    prompt, _, passes = run
    for (_, end), found in zip(passes, read("last", prompt, passes), strict=True):
        assert found == (end - 1, end)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.one_of(POSITIONS, st.just("last")), a_run())
def test_a_part_lies_in_its_pass_and_the_whole_is_within_the_worst_case(
    positions: Positions, run: tuple[int, int, list[tuple[int, int]]]
) -> None:
    prompt, sampled, passes = run
    for (start, end), (low, high) in zip(passes, read(positions, prompt, passes), strict=True):
        assert start <= low <= high <= end
    count = len(wanted(positions, prompt, passes[-1][1]))
    assert count <= activations.most_positions(positions, prompt, sampled)


def test_they_are_refused_for_gguf() -> None:
    asked = Activations(top_k=5)
    activations.ACTIVATIONS.check_engine(asked, CHECKPOINT)
    refused = refusal_of(activations.ACTIVATIONS.check_engine, asked, GGUF)
    assert refused.code == "SAE_ACTIVATIONS_REFUSED"


DECODING = [(0, 3), (3, 5), (5, 6), (6, 7), (7, 8)]
"""A prompt of 5 tokens in two parts, then three tokens read one by one."""


@pytest.mark.parametrize(
    ("positions", "parts"),
    [
        ("prompt", [[0, 1, 2], [3, 4], [], [], []]),
        ("completion", [[], [], [5], [6], [7]]),
        ("all", [[0, 1, 2], [3, 4], [5], [6], [7]]),
        ("last", [[2], [4], [5], [6], [7]]),
        ((2, 4), [[2], [3], [], [], []]),
        ((4, 6), [[], [4], [5], [], []]),
        ((6, 100), [[], [], [], [6], [7]]),
        ((0, 1), [[0], [], [], [], []]),
        ((50, 60), [[], [], [], [], []]),
    ],
)
def test_the_part_of_each_pass_of_a_prefill_in_parts_and_a_decode(
    positions: Positions, parts: list[list[int]]
) -> None:
    assert [list(range(*found)) for found in read(positions, 5, DECODING)] == parts
