"""What the doctor says about a cluster, from the facts of its nodes. A test with a real cluster: tests/engine/ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steerserve import doctor_cluster
from steerserve.engine.ray import cluster
from steerserve.engine.ray.messages import NodeSeen
from steerserve.engine.remote.facts import NodeFacts
from steerserve.rules.cards import Card
from steerserve.settings import Settings

HERE = NodeFacts("here", "", "0.1.0", "3.11.7", "2.13.0", "5.23.0", "cpu", 8, 1000, 900)
CARD = Card(0, "GPU-1", "H100", 80_000, 1000, 79_000, 0)
OURS = {"/models": "digest", "/saes": None}
NAMES = {"/models": "MODEL_CACHE_DIR", "/saes": "SAE_CACHE_DIR"}


def line(**changes: Any) -> str:
    node = NodeSeen("gpu-1", "10.0.0.2", {"CPU": 8.0, "GPU": 1.0}, HERE, dict(OURS))
    for name, value in changes.items():
        setattr(node, name, value)
    return doctor_cluster.node_line(node, HERE, OURS, NAMES)


def test_a_node_like_this_machine() -> None:
    assert line(facts=replace(HERE, cards=(CARD,))) == (
        "gpu-1 (10.0.0.2): CPU 8, GPU 1; cards: H100 with 79000 of 80000 MiB free; "
        "the same steerserve 0.1.0, python 3.11.7, torch 2.13.0, transformers 5.23.0; "
        "MODEL_CACHE_DIR has the same files; SAE_CACHE_DIR has no files here and there"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"facts": replace(HERE, torch="2.10.0")}, "DIFFERENT: torch 2.10.0 there and 2.13.0 here"),
        ({"facts": replace(HERE, transformers=None)}, "transformers (missing) there"),
        ({"folders": {"/models": None}}, "MODEL_CACHE_DIR MISSING there: /models"),
        ({"folders": {"/models": "x"}}, "MODEL_CACHE_DIR DIFFERENT there: /models"),
        ({"resources": {}}, "no room for replicas; cards: none"),
        (
            {"facts": None, "error": "No module named 'steerserve'"},
            "gpu-1 (10.0.0.2) cannot run replicas: No module named 'steerserve'",
        ),
    ],
)
def test_what_differs_on_a_node_is_named(changes: dict[str, Any], told: str) -> None:
    assert told in line(**changes)


def test_without_replicas_and_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(_env_file=None, steerserve_home=tmp_path)  # type: ignore[call-arg]
    assert doctor_cluster.replicas(settings) == ["one engine on this machine"]
    monkeypatch.setattr(cluster, "missing_packages", lambda: ["ray"])
    settings.engine_backend = "ray"
    (told,) = doctor_cluster.replicas(settings)
    assert "pip install 'steerserve[ray]'" in told
