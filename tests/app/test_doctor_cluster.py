"""What the doctor says about a cluster, from the facts of its nodes. A test with a real cluster: tests/engines/ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steerserve.app import doctor_cluster
from steerserve.engines.ray import cluster
from steerserve.engines.ray.messages import NodeSeen
from steerserve.engines.remote.facts import NodeFacts
from steerserve.rules.residency.gpus import Card
from steerserve.settings import Settings

HERE = NodeFacts("here", "", "0.1.0", "3.11.7", "2.13.0", "5.23.0", "cpu", 8, 1000, 900)
CARD = Card(0, "GPU-1", "H100", 80_000, 1000, 79_000, 0)
SHA = 40 * "a"
DOWNLOAD = f"/models/acme--t/{SHA}"
OURS = {"/models": "digest", "/saes": None, "/models/a/1": "a", "/models/b/1": "b"}
NAMES = {"/models": "MODEL_CACHE_DIR", "/saes": "SAE_CACHE_DIR"}


def line(**changes: Any) -> str:
    node = NodeSeen("1f2e", "gpu-1", "10.0.0.2", {"CPU": 8.0, "GPU": 1.0}, HERE, dict(OURS))
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
        (
            {"folders": {"/models": "x", "/models/a/1": "a", "/models/b/1": "b"}},
            "MODEL_CACHE_DIR has the same models and SAEs, and other files beside them",
        ),
        (
            {"folders": {"/models": "x", "/models/a/1": "a", "/models/b/1": None}},
            "MODEL_CACHE_DIR DIFFERENT there: 1 of 2 folders of /models can be used, missing: b/1",
        ),
        (
            {"folders": {"/models": "x", "/models/a/1": "y"}},
            "0 of 2 folders of /models can be used, missing: b/1, with other files: a/1",
        ),
        ({"hub_fault": "no route"}, "the hub CANNOT be reached from there: no route"),
        ({"resources": {}}, "no room for replicas; cards: none"),
        (
            {"facts": None, "error": "No module named 'steerserve'"},
            "gpu-1 (10.0.0.2) cannot run replicas: No module named 'steerserve'",
        ),
    ],
)
def test_what_differs_on_a_node_is_named(changes: dict[str, Any], told: str) -> None:
    assert told in line(**changes)


@pytest.mark.parametrize(
    ("folders", "told"),
    [
        (
            {"/models": "x", "/models/a/1": "a"},
            "DIFFERENT there: 1 of 3 folders of /models can be used, missing: b/1, "
            f"would be fetched there: acme--t/{SHA}",
        ),
        (
            {"/models": "x", "/models/a/1": "a", "/models/b/1": "b", DOWNLOAD: "other"},
            "is fetched there as needed: 2 of 3 folders of /models can be used, "
            f"would be fetched there: acme--t/{SHA}",
        ),
        ({"/models": None}, f"MISSING there: /models, would be fetched there: acme--t/{SHA}"),
    ],
)
def test_downloads_of_the_hub_that_a_node_lacks_would_be_fetched(
    folders: dict[str, str | None], told: str
) -> None:
    node = NodeSeen("1f2e", "gpu-1", "10.0.0.2", {"CPU": 8.0}, HERE, folders)
    assert told in doctor_cluster.node_line(node, HERE, OURS | {DOWNLOAD: "d"}, NAMES)


def test_every_model_and_every_sae_is_compared(tmp_path: Path) -> None:
    for name in (
        "acme--tiny/1f/config.json",
        "acme--tiny/1f/deep/w.bin",
        ".state/x",
        "b/2e/c.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    ours = doctor_cluster.digests([str(tmp_path)])
    assert list(ours) == [str(tmp_path / name) for name in (".", "acme--tiny/1f", "b/2e")]
    assert None not in ours.values()


def test_without_replicas_and_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(_env_file=None, steerserve_home=tmp_path)  # type: ignore[call-arg]
    assert doctor_cluster.replicas(settings) == ["one engine on this machine"]
    monkeypatch.setattr(cluster, "missing_packages", lambda: ["ray"])
    settings.engine_backend = "ray"
    (told,) = doctor_cluster.replicas(settings)
    assert "pip install 'steerserve[ray]'" in told
