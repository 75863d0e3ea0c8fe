"""From texts to a lever on a real model, for six concepts: a training says at which layer and how strong its vector acts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.kept import Kept
from tools.real import concepts
from tools.real.models import SMOLLM2

from tests.real.figures import KEEP
from tests.service import Running, add_model, running

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1200)]

SECONDS = 120
LEVERS = 5
"""The concepts, of six, whose lever must work: clearly, and further than every random direction of its length."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    threads = os.cpu_count() or 1
    with running(tmp_path_factory.mktemp("concepts"), torch_threads=threads) as started:
        model = add_model(started, SMOLLM2.checkpoint, "smollm2")
        started.data("POST", f"/api/models/{model}/load?wait=true")
        yield started


def test_texts_lead_to_a_lever_that_leaves_texts_whole(live: Running) -> None:
    found: dict[str, dict[str, Any]] = {}
    for concept in concepts.concepts():
        begun = time.monotonic()
        body = {
            "name": concept.name,
            "read": "mean",
            "positives": list(concept.having),
            "negatives": list(concept.without),
        }
        job = live.data("POST", "/api/vectors/train?wait=true", body)["job"]
        seconds = time.monotonic() - begun
        measured = job["result"]["measured"]
        found[concept.name] = measured | {"seconds": seconds}
        print(told(concept.name, found[concept.name]))
        assert seconds < SECONDS
    if KEEP:
        Kept("levers").end({"smollm2": found})
    working = {name for name, one in found.items() if one["works"]}
    assert len(working) >= LEVERS, working
    assert all((row := at_best(one)) and row["damage"]["is_unbroken"] for one in found.values())


def at_best(measured: dict[str, Any]) -> dict[str, Any] | None:
    place = measured["best"]
    for row in measured["layers"]:
        if place is not None and (row["layer"], row["strength"]) == tuple(place.values()):
            return dict(row)
    return None


def told(name: str, measured: dict[str, Any]) -> str:
    row = at_best(measured)
    if row is None:
        return f"{name}: no place in {measured['seconds']:.0f} s"
    random = [round(one["effect"], 2) for one in measured["random"]]
    return (
        f"{name}: layer {row['layer']}, {row['strength']:g}: {row['effect']:.2f}, random {random}, "
        f"{row['damage']['nll_over_plain']:+.2f} nats, works {measured['works']}, "
        f"{measured['seconds']:.0f} s | {row['sample'][:90]!r}"
    )
