from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.rules.residency.memory_fit import PlacementPlan, plan
from steerserve.rules.residency.memory_needs import Device, Needs, working_bytes
from steerserve.rules.residency.placement import GpuChoice, GpuRequest
from steerserve.rules.units import MIB
from tests.refusals import refusal_of

AUTO, ALL = GpuRequest(), GpuRequest(GpuChoice.ALL)
NEEDS = Needs(
    layers=(100 * MIB,) * 10,
    first=50 * MIB,
    last=50 * MIB,
    kv_per_token=1024,
    min_context=1024,
    model_max_context=8192,
    working=20 * MIB,
    working_tokens=1024,
    staging=5 * MIB,
)
WHOLE = 1100 + 10 + 20 + 5
"""MiB of weights, of the KV cache, of working memory and of staging."""


def card(index: int, free: int, context: int = 500) -> Device:
    return Device(f"cuda:{index}", f"card {index}", free, context, index)


def unplaced(needs: Needs, devices: list[Device], wanted: GpuRequest = AUTO) -> Refusal:
    return refusal_of(plan, needs, devices, wanted)


@pytest.mark.shows("states.3")
def test_the_card_with_most_free_memory_is_taken() -> None:
    found = plan(NEEDS, [card(0, 4000), card(1, 9000), card(2, 5000)], AUTO)
    assert (found.mode, found.reason) == ("single", "most_free_card_fits")
    assert (found.devices, found.gpu_indices, found.layer_devices) == (["cuda:1"], [1], ("cuda:1",))
    assert found.placement({"cuda:1": 1234}).memory_by_device_mb == {"cuda:1": 1234}


@pytest.mark.shows("resource-errors.1")
def test_a_card_fits_to_the_last_mebibyte() -> None:
    assert plan(NEEDS, [card(0, WHOLE + 500)], AUTO).shares[0].needed_mb == WHOLE + 500
    refused = unplaced(NEEDS, [card(0, WHOLE + 499)])
    assert refused.code == "INSUFFICIENT_MEMORY"
    assert refused.details == {
        "before_loading": True,
        "can_ever_fit": False,
        "per_card": [
            {
                "device": "cuda:0",
                "name": "card 0",
                "free_mb": WHOLE + 499,
                "weights_mb": 1100,
                "kv_mb": 10,
                "working_mb": 20,
                "staging_mb": 5,
                "context_mb": 500,
                "needed_mb": WHOLE + 500,
            }
        ],
        "working_memory": {"method": "estimated", "tokens": 1024},
        "short_devices": ["cuda:0"],
        "min_context_tokens": 1024,
        "model_max_context_tokens": 8192,
        "rebalance_passes": 0,
        "lowered_limits": {},
    }


def test_a_model_that_would_fit_an_empty_card_may_be_tried_again() -> None:
    busy = replace(card(0, 700), total_mb=9000)
    assert unplaced(NEEDS, [busy]).details["can_ever_fit"] is True
    small = replace(card(0, 700), total_mb=900)
    refused = unplaced(NEEDS, [small])
    assert refused.details["can_ever_fit"] is False
    assert refused.is_final
    # two small cards hold it together when both are empty
    both = [replace(small, total_mb=1200), replace(small, label="cuda:1", index=1, total_mb=1200)]
    assert unplaced(NEEDS, both).details["can_ever_fit"] is True


def test_a_kv_cache_of_a_set_size_is_part_of_what_has_to_fit() -> None:
    needs = replace(NEEDS, kv_named=100 * MIB)
    assert plan(needs, [card(0, WHOLE + 590)], AUTO).shares[0].kv_mb == 100
    refused = unplaced(needs, [card(0, WHOLE + 589)])
    assert "a KV cache of 100 MiB (KV_CACHE_MB)" in refused.message
    shares = plan(needs, [card(0, 1250), card(1, 1250)], AUTO).shares
    assert [share.kv_mb for share in shares] == [50, 50]


def test_a_set_kv_cache_that_holds_too_few_tokens_is_refused_with_every_figure() -> None:
    # 10 layers take 10 KiB a token: 9 MiB are 921 tokens, 896 in whole steps
    needs = replace(NEEDS, kv_named=9 * MIB, kv_step=32)
    assert needs.kv_tokens_named == 896
    refused = unplaced(needs, [card(0, 90_000)])
    assert refused.code == "INSUFFICIENT_MEMORY"
    assert "holds 896 tokens of this model; at least 1024 are needed" in refused.message
    assert (refused.details["can_ever_fit"], refused.details["short_devices"]) == (False, [])
    assert refused.details["per_card"][0]["kv_mb"] == 10
    assert plan(replace(needs, kv_named=10 * MIB), [card(0, 90_000)], AUTO).mode == "single"


def test_the_least_context_counts_in_whole_steps_of_the_cache() -> None:
    needs = replace(NEEDS, min_context=33, kv_step=32)
    assert needs.kv_bytes(1) == 64 * 1024


def test_a_model_without_a_kv_cache_asks_for_none() -> None:
    needs = replace(NEEDS, kv_per_token=0, kv_named=900 * MIB)
    assert plan(needs, [card(0, 9000)], AUTO).shares[0].kv_mb == 0


def test_a_host_is_one_card_without_a_context() -> None:
    host = Device("cpu", "host memory", WHOLE)
    found = plan(NEEDS, [host], ALL)
    assert (found.mode, found.reason, found.gpu_indices) == ("single", "host_memory", [])
    assert unplaced(NEEDS, [replace(host, free_mb=WHOLE - 1)]).details["short_devices"] == ["cpu"]


def test_a_named_card_is_not_exchanged_for_another() -> None:
    wanted = GpuRequest(GpuChoice.CARD, index=1)
    assert plan(NEEDS, [card(1, 2000)], wanted).reason == "requested_card"
    assert unplaced(NEEDS, [card(1, 100)], wanted).details["short_devices"] == ["cuda:1"]


def test_a_model_no_card_holds_is_split_in_the_order_of_its_layers() -> None:
    found = plan(NEEDS, [card(0, 1200), card(1, 1200)], AUTO)
    assert (found.mode, found.reason) == ("shard", "no_card_holds_it_alone")
    assert found.layer_devices == ("cuda:0",) * 5 + ("cuda:1",) * 5
    assert found.planned_mb_by_device == {"cuda:0": 550, "cuda:1": 550}
    shown = found.placement({})
    assert shown.budget_mb_by_device == {"cuda:0": 670, "cuda:1": 670}
    assert (shown.required_mb, shown.capacity_mb) == (2 * (550 + 5 + 25 + 500), 2400)


def test_as_few_cards_as_hold_it_are_used() -> None:
    found = plan(NEEDS, [card(0, 900), card(1, 1300), card(2, 1300)], AUTO)
    assert found.devices == ["cuda:1", "cuda:2"]


def test_layers_move_to_a_card_with_room() -> None:
    # in proportion the second card would get five layers and a head too large for it beside them
    needs = replace(NEEDS, last=400 * MIB)
    found = plan(needs, [card(0, 1500), card(1, 1400)], AUTO)
    assert found.passes == 1
    assert found.layer_devices.count("cuda:0") > found.layer_devices.count("cuda:1")
    assert all(share.fits for share in found.shares)


def test_a_split_that_cannot_fit_names_every_card() -> None:
    refused = unplaced(NEEDS, [card(0, 700), card(1, 1100)])
    assert refused.code == "INSUFFICIENT_MEMORY"
    assert [entry["device"] for entry in refused.details["per_card"]] == ["cuda:0", "cuda:1"]
    assert refused.details["short_devices"]
    assert refused.details["rebalance_passes"] >= 1
    assert refused.details["lowered_limits"]


def test_all_cards_get_a_part() -> None:
    found = plan(NEEDS, [card(0, 9000), card(1, 9000), card(2, 9000)], ALL)
    assert (found.mode, found.reason, found.requested) == ("shard", "all_cards_requested", "all")
    assert set(found.layer_devices) == {"cuda:0", "cuda:1", "cuda:2"}


@pytest.mark.shows("resource-errors.5")
def test_a_card_that_would_get_nothing_is_told() -> None:
    refused = unplaced(NEEDS, [card(0, 9000), card(1, 510)], ALL)
    assert refused.code == "SPLIT_NOT_HONOURED"
    assert refused.details["unused_devices"] == ["cuda:1"]
    assert refused.details["mapped_mb_by_device"] == {"cuda:0": 1100, "cuda:1": 0}


@pytest.mark.shows("resource-errors.5")
def test_more_cards_than_layers_cannot_all_be_used() -> None:
    needs = replace(NEEDS, layers=(MIB,))
    refused = unplaced(needs, [card(0, 9000), card(1, 9000)], ALL)
    assert refused.code == "SPLIT_NOT_HONOURED"
    assert len(refused.details["unused_devices"]) == 1


def test_weights_of_no_layers_go_to_one_card() -> None:
    needs = replace(NEEDS, layers=())
    assert plan(needs, [card(0, 900), card(1, 2000)], ALL).devices == ["cuda:1"]


def test_working_memory_grows_with_every_dimension() -> None:
    base = working_bytes(64, 128, 1000, 2, 256)
    assert base == 256 * (8 * 64 + 3 * 128) * 2 + 32 * 1000 * (2 + 12)
    for larger in [(65, 128, 1000, 2, 256), (64, 129, 1000, 2, 256), (64, 128, 1001, 2, 256)]:
        assert working_bytes(*larger) > base
    assert working_bytes(64, 128, 1000, 2, 256, is_int8=True) == base + 256 * 128 * 16


def outcome(needs: Needs, devices: list[Device], wanted: GpuRequest) -> PlacementPlan | Refusal:
    try:
        return plan(needs, devices, wanted)
    except Refusal as refusal:
        return refusal


sizes = st.integers(0, 300 * MIB)
some_needs = st.builds(
    Needs,
    layers=st.lists(st.integers(1, 300 * MIB), max_size=20).map(tuple),
    first=sizes,
    last=sizes,
    kv_per_token=st.integers(0, 4096),
    min_context=st.integers(0, 8192),
    working=sizes,
    staging=sizes,
)
some_cards = st.lists(st.integers(0, 4000), min_size=1, max_size=4).map(
    lambda free: [card(i, mb, context=100) for i, mb in enumerate(free)]
)
some_wish = st.sampled_from([AUTO, ALL])


@given(some_needs, some_cards, some_wish)
def test_a_plan_holds_every_layer_once_and_never_more_than_is_free(
    needs: Needs, cards: list[Device], wanted: GpuRequest
) -> None:
    found = outcome(needs, cards, wanted)
    if isinstance(found, Refusal):
        assert found.code in ("INSUFFICIENT_MEMORY", "SPLIT_NOT_HONOURED")
        if found.code == "INSUFFICIENT_MEMORY":
            assert found.details["short_devices"]
        return
    assert all(share.needed_mb <= share.device.free_mb for share in found.shares)
    assert sum(share.layers for share in found.shares) == len(needs.layers)
    assert sum(share.weights_mb for share in found.shares) * MIB >= needs.weights
    if found.mode == "shard":
        assert len(found.layer_devices) == len(needs.layers)
        order = [found.devices.index(d) for d in found.layer_devices]
        assert order == sorted(order)
    else:
        assert len(found.layer_devices) == 1


@given(some_needs, some_cards)
def test_more_memory_on_every_card_never_refuses_what_one_card_held(
    needs: Needs, cards: list[Device]
) -> None:
    found = outcome(needs, cards, AUTO)
    more = [replace(device, free_mb=device.free_mb + 500) for device in cards]
    if isinstance(found, PlacementPlan) and found.mode == "single":
        again = outcome(needs, more, AUTO)
        assert isinstance(again, PlacementPlan)
        assert again.mode == "single"
