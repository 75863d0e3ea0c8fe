"""A load that is checked against what the resident model gives back."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steerserve.control.residency import fitting, loading
from steerserve.control.residency.engines import Engines
from steerserve.rules.residency import placement
from steerserve.rules.residency.gpus import Card, CardProcess
from steerserve.settings import Settings
from tests import gguf
from tests.control.conftest import refused
from tests.control.residency.test_fitting import cards, checkpoint, placed
from tests.doubles import World
from tests.waiting import soon

ROW = {
    "status": "ready",
    "error_message": None,
    "download_error": None,
    "engine": "checkpoint",
    "quantization": "FP16",
    "source": "local",
    "trust_remote_code": False,
}


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_gguf_model_on_a_card_makes_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    checkpoint(tmp_path / "m")
    processes = (CardProcess(os.getpid(), 800 if is_told else None),)
    card = Card(0, "GPU-0", "card", 1000, 990, 10, torch_index=0, processes=processes)
    monkeypatch.setattr(fitting, "built_for_cards", lambda: True)
    monkeypatch.setattr(loading, "read_cards", lambda: ([card], None))
    row: Any = SimpleNamespace(**ROW, local_path=str(tmp_path / "m"))
    resident: Any = SimpleNamespace(
        engine=SimpleNamespace(pid=os.getpid(), node=None),
        facts=SimpleNamespace(memory_by_device_mb={}),
        placement=placed(700, "cuda:0"),
    )
    settings = Settings(transformers_cuda_context_mb=100, transformers_min_context=1024)
    launcher = Engines(settings)
    refusal = await refused(loading.prepare(row, loading.ANYWHERE, None, launcher, settings))
    assert refusal.code == "INSUFFICIENT_MEMORY"
    found = await loading.prepare(row, loading.ANYWHERE, resident, launcher, settings)
    assert found.plan.shares[0].device.free_mb == 10 + (800 if is_told else 700)


@pytest.mark.parametrize("engine", ["checkpoint", "gguf"])
async def test_the_driver_is_not_asked_where_the_engine_sees_no_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    checkpoint(tmp_path / "m")
    paths = {"checkpoint": tmp_path / "m", "gguf": gguf.write(tmp_path / "m.gguf", "F32")}
    monkeypatch.setattr(fitting, "built_for_cards", lambda: False)
    monkeypatch.setattr(loading, "read_cards", lambda: pytest.fail("cards were read"))
    row: Any = SimpleNamespace(**ROW | {"engine": engine}, local_path=str(paths[engine]))
    settings = Settings(transformers_min_context=64)
    found = await loading.prepare(row, loading.ANYWHERE, None, Engines(settings), settings)
    assert found.plan.devices == ["cpu"]


@pytest.mark.parametrize(
    ("gpu", "device"),
    [(None, "cuda:1"), ("auto", "cuda:1"), (0, "cuda:0"), ("1", "cuda:1")],
)
async def test_the_card_that_is_chosen_reaches_the_engine(
    world: World, monkeypatch: pytest.MonkeyPatch, gpu: int | str | None, device: str
) -> None:
    monkeypatch.setattr(fitting, "built_for_cards", lambda: True)
    monkeypatch.setattr(loading, "read_cards", lambda: (cards(8_000, 9_000), None))
    row = await world.model()
    await soon((await world.conductor.load(row, gpu=placement.parse(gpu))).ready)
    assert world.launcher.engine.loaded is not None
    assert world.launcher.engine.loaded["devices"] == [device]
    assert world.resident.placement is not None
    assert world.resident.placement.devices == [device]
