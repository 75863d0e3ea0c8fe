from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.placement import GpuChoice, GpuRequest, parse, select
from tests.refusals import refusal_of

UUID = "11111111-2222-3333-4444-55555555abcd"
FIRST = Card(0, f"GPU-{UUID}", "one", 1000, 0, 1000, torch_index=0)
SECOND = Card(1, "GPU-99999999-2222-3333-4444-555555555555", "two", 1000, 0, 1000, torch_index=1)
HIDDEN = Card(2, "GPU-77777777-2222-3333-4444-555555555555", "three", 9, 0, 9, torch_index=None)
CARDS = [FIRST, SECOND, HIDDEN]


@pytest.mark.parametrize(
    ("gpu", "wanted"),
    [
        (None, GpuRequest()),
        ("auto", GpuRequest()),
        (" AUTO ", GpuRequest()),
        ("All", GpuRequest(GpuChoice.ALL)),
        (" all ", GpuRequest(GpuChoice.ALL)),
        (0, GpuRequest(GpuChoice.CARD, index=0)),
        (7, GpuRequest(GpuChoice.CARD, index=7)),
        ("1", GpuRequest(GpuChoice.CARD, index=1)),
        (UUID, GpuRequest(GpuChoice.CARD, uuid=f"gpu-{UUID}")),
        (f"GPU-{UUID.upper()}", GpuRequest(GpuChoice.CARD, uuid=f"gpu-{UUID}")),
    ],
)
def test_what_the_gpu_field_may_say(gpu: Any, wanted: GpuRequest) -> None:
    assert parse(gpu) == wanted


@pytest.mark.parametrize(
    "gpu", [True, False, -1, "-1", 1.0, "", "first", "0,1", [0], {}, "٣", "gpu-1"]
)
def test_anything_else_is_refused(gpu: Any) -> None:
    refusal = refusal_of(parse, gpu)
    assert (refusal.code, refusal.param) == ("VALIDATION_ERROR", "gpu")


@given(st.text() | st.integers() | st.floats() | st.booleans() | st.none())
def test_every_value_is_read_or_refused(gpu: Any) -> None:
    try:
        found: object = parse(gpu)
    except Refusal as refusal:
        found = refusal.code
    assert isinstance(found, GpuRequest) or found == "VALIDATION_ERROR"


def test_a_card_is_found_by_index_and_by_uuid() -> None:
    assert select(parse(1), CARDS) == [SECOND]
    assert select(parse(UUID.upper()), CARDS) == [FIRST]
    assert select(parse("all"), CARDS) == [FIRST, SECOND]
    assert select(parse(None), CARDS) == [FIRST, SECOND]


@pytest.mark.parametrize("gpu", [2, 3, "aaaaaaaa-2222-3333-4444-555555555555"])
def test_an_unknown_or_invisible_card_is_refused_with_those_there_are(gpu: Any) -> None:
    refusal = refusal_of(lambda: select(parse(gpu), CARDS))
    assert refusal.code == "GPU_NOT_FOUND"
    assert [card["index"] for card in refusal.details["visible"]] == [0, 1]


def test_a_host_without_cards_takes_only_an_open_choice() -> None:
    assert select(parse(None), []) == []
    assert select(parse("all"), []) == []
    assert refusal_of(lambda: select(parse(0), [])).details["visible"] == []
