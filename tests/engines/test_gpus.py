"""Reading the cards, on a driver library that says what a test says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from steerserve.engines import gpus
from steerserve.rules.residency.gpus import Card, CardProcess
from steerserve.rules.units import MIB


class Lost(Exception):
    pass


class Driver:
    """Two cards as `pynvml` shows them; `broken` names the calls that fail, for all cards or as `(call, index)`."""

    NVMLError = Lost
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 2

    def __init__(self, *broken: Any, count: int = 2) -> None:
        self.broken = set(broken)
        self.count = count
        self.open = 0
        self.processes: list[Any] = [SimpleNamespace(pid=7, usedGpuMemory=5 * MIB + 1)]

    def __getattr__(self, name: str) -> Any:
        def call(handle: int | None = None, *_: Any, **named: Any) -> Any:
            if {name, (name, handle)} & self.broken:
                raise Lost(f"{name} failed")
            if name == "nvmlDeviceGetMemoryInfo" and "version" in named and "v2" in self.broken:
                raise Lost("old driver")
            return self.answer(name, handle, **named)

        return call

    def answer(self, name: str, handle: int | None, **named: Any) -> Any:
        match name:
            case "nvmlInit" | "nvmlShutdown":
                self.open += 1 if name == "nvmlInit" else -1
                return None
            case "nvmlDeviceGetCount":
                return self.count
            case "nvmlDeviceGetHandleByIndex":
                return handle
            case "nvmlDeviceGetUUID":
                return f"GPU-{handle}"
            case "nvmlDeviceGetName":
                return "Card"
            case "nvmlDeviceGetMemoryInfo":
                used = 10 * MIB if named else 30 * MIB
                return SimpleNamespace(total=100 * MIB, used=used, free=70 * MIB)
            case "nvmlDeviceGetUtilizationRates":
                return SimpleNamespace(gpu=42, memory=1)
            case "nvmlDeviceGetTemperature":
                return 55
            case "nvmlDeviceGetCudaComputeCapability":
                return [9, 0]
            case "nvmlDeviceGetComputeRunningProcesses":
                return self.processes
        raise AssertionError(name)


@pytest.mark.shows("gpus.3", "gpus.4", "gpus.5", "gpus.6")
def test_every_fact_of_a_card_is_read_and_the_library_closed_again() -> None:
    driver = Driver()
    found, reason = gpus.read({"CUDA_VISIBLE_DEVICES": "1"}, driver)
    assert reason is None
    assert found[1] == Card(
        smi_index=1,
        uuid="GPU-1",
        name="Card",
        total_mb=100,
        used_mb=10,
        free_mb=70,
        torch_index=0,
        processes=(CardProcess(7, 5),),
        utilization=42,
        temperature=55,
        capability=(9, 0),
    )
    assert (found[0].smi_index, found[0].torch_index) == (0, None)
    assert driver.open == 0


def test_an_old_driver_tells_memory_in_its_first_form() -> None:
    found, _ = gpus.read({}, Driver("v2"))
    assert [card.used_mb for card in found] == [30, 30]


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_a_driver_there_is_a_reason_and_no_card(call: str) -> None:
    driver = Driver(call)
    assert gpus.read({}, driver) == ([], f"no card can be read: {call} failed")
    assert driver.open == 0


def test_a_driver_without_cards_says_so() -> None:
    assert gpus.read({}, Driver(count=0)) == ([], "the driver lists no card")


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName"]
)
def test_a_lost_card_is_named_and_the_others_keep_their_places(call: str) -> None:
    driver = Driver((call, 0), ("nvmlDeviceGetMemoryInfo", None), ("nvmlDeviceGetName", None))
    found, reason = gpus.read({}, driver)
    assert [(card.smi_index, card.torch_index) for card in found] == [(1, 1)]
    assert reason is not None
    assert reason.startswith("card 0 cannot be read")


def test_what_a_card_does_not_have_is_none() -> None:
    broken = ("UtilizationRates", "Temperature", "CudaComputeCapability")
    (first, _), reason = gpus.read({}, Driver(*(f"nvmlDeviceGet{name}" for name in broken)))
    assert (first.utilization, first.temperature, first.capability) == (None, None, None)
    assert reason is None


def test_processes_that_the_driver_hides_have_a_reason() -> None:
    (first, _), _ = gpus.read({}, Driver("nvmlDeviceGetComputeRunningProcesses"))
    assert first.processes is None
    assert first.processes_reason is not None
    driver = Driver()
    driver.processes = [SimpleNamespace(pid=7, usedGpuMemory=None)]
    (first, _), _ = gpus.read({}, driver)
    assert first.processes == (CardProcess(7, None),)
    assert first.processes_reason == gpus.HIDDEN


def test_this_machine_answers_with_cards_or_a_reason() -> None:
    found, reason = gpus.read()
    assert bool(found) != bool(reason)
    assert all(card.total_mb > 0 for card in found)
