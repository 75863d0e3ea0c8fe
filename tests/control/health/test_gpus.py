"""The cards' readings: one at a time, never too old, never on the loop; and what is told of each card."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from steerserve import messages as m
from steerserve.control.health import gpus as card_reading
from steerserve.control.health.gpus import CardReadings
from steerserve.rules.residency.gpus import Card, CardProcess
from steerserve.rules.units import MIB
from tests.doubles import World
from tests.rules.residency.test_gpus import card
from tests.waiting import plain, soon, until

SPECIFIED = set(
    "smi_index uuid name total_mb used_mb free_mb torch_index torch_measured millm_allocated_mb "
    "millm_reserved_mb engine_memory processes processes_reason".split()
)


class Held:
    """A driver whose answer waits until it is let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.readings = 0

    def read(self) -> tuple[list[Card], str | None]:
        self.readings += 1
        self.open.wait()
        return [card("GPU-a", 0)], None


async def test_those_who_ask_at_once_share_one_reading_and_the_loop_goes_on() -> None:
    driver = Held()
    cards = CardReadings(driver.read)
    asking = [asyncio.ensure_future(cards.reading()) for _ in range(5)]
    await until(lambda: driver.readings)
    driver.open.set()
    readings = await soon(asyncio.gather(*asking))
    assert driver.readings == 1
    assert all(reading is readings[0] for reading in readings)


async def test_a_reading_is_good_for_as_long_as_the_asker_says() -> None:
    time = [0.0]
    driver = Held()
    driver.open.set()
    cards = CardReadings(driver.read, lambda: time[0])
    first = await cards.reading(5.0)
    time[0] = 4.9
    assert await cards.reading(5.0) is first
    assert await cards.reading(0.0) is not first
    time[0] = 9.9
    await cards.reading(5.0)
    assert driver.readings == 3


async def test_a_driver_that_hangs_gives_a_reason_and_is_not_asked_twice() -> None:
    driver = Held()
    cards = CardReadings(driver.read)
    for _ in range(3):
        late = await cards.reading(patience=0.01)
        assert (late.cards, late.is_late) == ((), True)
        assert "has not answered" in str(late.reason)
    assert driver.readings == 1
    driver.open.set()
    assert (await soon(cards.begin_reading())).cards == (card("GPU-a", 0),)


async def test_whatever_the_driver_raises_is_a_reason() -> None:
    def broken() -> Any:
        raise ValueError("secret")

    reading = await CardReadings(broken).reading()
    assert (reading.cards, reading.reason) == ((), "the cards cannot be read: ValueError")


# ---------------------------------------------------------------------- the body


async def on(world: World, device: str, *cards: Card) -> None:
    """The resident model on a device of this machine."""
    await world.loaded()
    world.driver.cards, world.driver.reason = list(cards), None
    facts = world.resident.facts
    assert facts is not None
    world.resident.facts = msgspec.structs.replace(facts, device=device)


@pytest.mark.shows("gpus.13")
async def test_without_a_driver_there_are_no_cards_and_a_reason(world: World) -> None:
    body = plain(await world.vitals.gpus())
    assert (body["cards"], body["reason"]) == ([], "no driver")
    assert body["read_at"].endswith("Z")


@pytest.mark.shows("gpus.7", "gpus.8", "gpus.9")
async def test_only_a_card_with_the_model_is_measured_and_the_others_are_listed(
    world: World,
) -> None:
    await on(world, "cuda:1", card("GPU-a", 0), card("GPU-b", 1), card("GPU-c", None))
    world.launcher.engine.figures = {"cuda:0": (1, 2), "cuda:1": (5 * MIB, 7 * MIB)}
    first, second, hidden = plain(await world.vitals.gpus())["cards"]
    for told in (first, second, hidden):
        assert set(told) == SPECIFIED
        assert told["engine_memory"] is None
    assert (first["torch_measured"], first["millm_allocated_mb"]) == (False, None)
    assert second["torch_measured"] is True
    assert (second["millm_allocated_mb"], second["millm_reserved_mb"]) == (5, 7)
    assert (hidden["torch_index"], hidden["torch_measured"]) == (None, False)


@pytest.mark.shows(
    "gpus.3 gpus.4 gpus.5 gpus.6 gpus.7 gpus.8 gpus.9 gpus.10 gpus.11 gpus.12 health.4",
)
async def test_a_card_is_told_with_every_fact_that_the_driver_knows(world: World) -> None:
    world.driver.cards = [card("GPU-a", 0, processes=(CardProcess(7, 300),)), card("GPU-b", None)]
    world.driver.reason = None
    first, second = plain(await world.vitals.gpus())["cards"]
    assert first == {
        "smi_index": 0,
        "uuid": "GPU-a",
        "name": "Card",
        "total_mb": 81920,
        "used_mb": 20480,
        "free_mb": 61440,
        "torch_index": 0,
        "torch_measured": False,
        "millm_allocated_mb": None,
        "millm_reserved_mb": None,
        "engine_memory": None,
        "processes": [{"pid": 7, "used_mb": 300}],
        "processes_reason": None,
    }
    assert (second["uuid"], second["torch_index"]) == ("GPU-b", None)


async def test_a_tensor_library_built_for_processors_sees_no_card(world: World) -> None:
    world.driver.cards, world.driver.reason = [card("GPU-a", 0)], None
    blind = CardReadings(world.driver.read, torch_version="2.13.0+cpu")
    (told,) = plain(await card_reading.report(blind, world.conductor, world.nodes))["cards"]
    assert (told["torch_index"], told["total_mb"]) == (None, 81920)


async def test_a_split_model_is_measured_on_each_of_its_cards(world: World) -> None:
    await on(world, "cuda:0, cuda:2", *(card(f"GPU-{i}", i) for i in range(3)))
    told = plain(await world.vitals.gpus())["cards"]
    assert [part["torch_measured"] for part in told] == [True, False, True]


async def test_an_engine_that_does_not_answer_leaves_its_figures_null(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_reading, "MEASURE_SECONDS", 0.01)
    await on(world, "cuda:0", card("GPU-a", 0))
    world.launcher.hold("measure")
    (told,) = plain(await soon(world.vitals.gpus()))["cards"]
    assert (told["torch_measured"], told["millm_allocated_mb"]) == (True, None)


async def test_the_memory_of_the_loaded_model_is_told_by_its_parts(world: World) -> None:
    assert plain(await world.vitals.gpus())["model_memory"] is None
    await world.loaded()
    assert plain(await world.vitals.gpus())["model_memory"] is None
    world.launcher.engine.parts = [
        m.DeviceMemory("cuda:0", 9 * MIB, 2 * MIB, 0, 12 * MIB),
        m.DeviceMemory("cpu", None, None, 3 * MIB + 1, None),
    ]
    told = plain(await world.vitals.gpus())["model_memory"]
    assert told["model_id"] == world.resident.row.id
    names = ("replica", "device", "weights_mb", "cache_mb", "saes_mb", "process_mb")
    assert [[part[name] for name in names] for part in told["parts"]] == [
        [None, "cuda:0", 9, 2, 0, 12],
        [None, "cpu", None, None, 3, None],
    ]


async def test_each_replica_tells_the_parts_of_its_own_memory(world: World) -> None:
    world.launcher.replicas = 2
    await world.loaded()
    part = m.DeviceMemory("cpu", 1 * MIB, 0, 0, 5 * MIB)
    world.launcher.engine.kept = {
        "replica-1": m.Measured(0, parts=[part]),
        "replica-2": m.Measured(0, parts=[part]),
    }
    told = plain(await world.vitals.gpus())["model_memory"]["parts"]
    assert [(one["replica"], one["process_mb"]) for one in told] == [
        ("replica-1", 5),
        ("replica-2", 5),
    ]


@pytest.mark.shows("gpus.8", "gpus.10", "gpus.11", "gpus.12")
async def test_a_gguf_model_is_measured_by_its_processes_only(world: World) -> None:
    used = (CardProcess(7, 300), CardProcess(8, None))
    await on(
        world, "cuda:0", card("GPU-a", 0, processes=used, processes_reason="the driver hides some")
    )
    world.resident.row = replace(world.resident.row, engine="gguf")
    (told,) = plain(await world.vitals.gpus())["cards"]
    assert told["engine_memory"] == "not_measured_by_torch"
    assert (told["torch_measured"], told["millm_allocated_mb"]) == (False, None)
    assert told["processes"] == [{"pid": 7, "used_mb": 300}, {"pid": 8, "used_mb": None}]
    assert told["processes_reason"] == "the driver hides some"


@pytest.mark.shows("gpus.14")
async def test_reading_the_cards_takes_no_place_in_the_queue(world: World) -> None:
    await world.loaded()
    gate = Held()
    world.cards._read = gate.read
    asking = asyncio.ensure_future(world.vitals.gpus())
    await until(lambda: gate.readings)
    assert world.queue.counts().pending == 0
    gate.open.set()
    await soon(asking)


# ---------------------------------------------------------------------- the numbers


async def test_the_numbers_are_sums_and_the_highest_temperature() -> None:
    found = [
        card("GPU-a", 0, utilization=10, temperature=40),
        card("GPU-b", 1, utilization=50, temperature=70, used_mb=1),
        card("GPU-c", 2),
    ]
    body = plain(card_reading.totals(await CardReadings(lambda: (found, None)).reading()))
    assert body["gpu_memory_used_mb"] == 20480 + 1 + 20480
    assert body["gpu_memory_total_mb"] == 3 * 81920
    assert (body["gpu_utilization"], body["gpu_temperature"], body["gpu_count"]) == (30, 70, 3)
    assert body["gpus"][1] == {
        "index": 1,
        "uuid": "GPU-b",
        "name": "Card",
        "utilization": 50,
        "memory_used_mb": 1,
        "memory_total_mb": 81920,
        "temperature": 70,
    }
    assert body["gpus"][2]["temperature"] is None


@pytest.mark.shows("gpus.13")
async def test_without_cards_the_numbers_are_null_and_never_zero() -> None:
    body = plain(card_reading.totals(await CardReadings(lambda: ([], "none")).reading()))
    assert (body.pop("gpu_count"), body.pop("gpus")) == (0, [])
    assert set(body.values()) == {None}
