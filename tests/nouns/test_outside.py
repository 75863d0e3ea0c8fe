"""A package that is installed beside the service adds a noun, without a change to the service."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import socketio

from steerserve.client import Client, ServiceError
from steerserve.client.calls import Blocking
from tests.nouns.pins.client import Pins
from tests.nouns.pins.form import Pin
from tests.processes import Process, serving

PACKAGE = Path(__file__).parent / "pins"
FILES = 7
"""The most files that a noun needs."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service beside which the package is installed."""
    root = tmp_path_factory.mktemp("outside")
    packages = root / "packages"
    shutil.copytree(PACKAGE, packages / "pins", ignore=shutil.ignore_patterns("__pycache__"))
    facts = packages / "pins-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pins\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[steerserve.nouns]\npins = pins.noun:PINS\n")
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    with serving(root / "home", pythonpath=path) as process:
        yield process


def set_pin(live: Process, place: str, note: str) -> None:
    """Without the client of the tests, which knows the description of the service alone."""
    answer = httpx2.put(f"{live.url}/api/pins/{place}", json={"note": note})
    assert answer.status_code == 200, answer.text


def test_a_noun_needs_few_files() -> None:
    files = [file for file in PACKAGE.glob("*.py") if file.name != "__init__.py"]
    assert len(files) <= FILES


def test_the_client_sets_and_lists_what_the_noun_stores(live: Process) -> None:
    with Client(live.url) as client:
        pins = Pins[Blocking](client)
        assert pins.set("sae_1", 3, "a joke") == Pin("sae_1", 3, "a joke")
        assert pins.set("sae_1", 3, "the sea") == Pin("sae_1", 3, "the sea")
        assert list(pins.list()) == [Pin("sae_1", 3, "the sea")]
        with pytest.raises(ServiceError) as refused:
            pins.set("sae_1", 3, " ")
    assert refused.value.code == "VALIDATION_ERROR"
    assert refused.value.details["param"] == "note"


async def test_clients_get_its_live_event(live: Process) -> None:
    async with socketio.AsyncSimpleClient() as events:
        await events.connect(live.url, transports=["websocket"])
        await asyncio.to_thread(set_pin, live, "sae_2/7", "rain")
        name, payload = await events.receive(timeout=30)
    assert name == "pin:set"
    assert payload == {"sae_id": "sae_2", "index": 7, "note": "rain"}


def test_its_change_is_in_the_log_and_its_event_and_routes_are_described(live: Process) -> None:
    set_pin(live, "sae_3/1", "snow")
    while not any("pin_set" in line for line in live.lines):
        pass  # a line is written after its answer was sent
    described = live.http.get("/openapi.json").json()
    assert "/api/pins/{sae_id}/{index}" in described["paths"]
    assert "pin:set" in json.dumps(described["components"]["schemas"]["LiveEvents"])
