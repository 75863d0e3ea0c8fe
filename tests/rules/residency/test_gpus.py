"""Which cards the tensor library sees, and under which index."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.rules.residency.gpus import Card, torch_indices


def card(uuid: str, torch_index: int | None, **changes: Any) -> Card:
    """A card of 80 GiB, a quarter of it in use."""
    memory = {"total_mb": 81920, "used_mb": 20480, "free_mb": 61440}
    facts: dict[str, Any] = {"smi_index": torch_index or 0, "name": "Card", **memory}
    return Card(**{"uuid": uuid, "torch_index": torch_index} | facts | changes)


A, B, C = "GPU-aa11-0", "GPU-aa22-1", "GPU-bb33-2"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("0,1,2", [A, B, C]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("GPU-bb,GPU-aa22", [C, B]),
        (f"{B},0", [B, A]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [B]),
        ("0,7,1", [A]),
        ("0,1,0", []),
        ("GPU-bb,2", []),
        ("GPU-aa", []),
        ("GPU-cc,0", []),
        ("0,,1", [A]),
        ("none", []),
        ("²", []),
        ("MIG-aa11-0", []),
        ("9" * 5000, []),
    ],
)
def test_the_setting_of_the_driver_says_which_cards_are_seen(visible: str, seen: list[str]) -> None:
    found = torch_indices([A, B, C], {"CUDA_VISIBLE_DEVICES": visible})
    assert found == {uuid: index for index, uuid in enumerate(seen)}


def test_without_the_setting_every_card_is_seen_in_the_order_of_the_buses() -> None:
    assert torch_indices([A, B, C], {}) == {A: 0, B: 1, C: 2}
    assert torch_indices([], {}) == {}
