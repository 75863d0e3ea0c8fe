"""What is read of texts is the same for one engine and for three replicas that take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from steerserve import demo
from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine
from tests.local_cluster import LocalCluster
from tests.service import Running, add_sae, load_demo, running

pytestmark = pytest.mark.local("starts replicas on a cluster of its own")

REPLICAS = 3
SEA = [
    "The boat sailed over the waves",
    "A whale swam near the ship",
    "The sailor saw the lighthouse",
    "Fish jumped beside the harbour",
] * 2
LAND = [
    "The king sat on the throne",
    "A rabbit ran over the hill",
    "The baker made some bread",
    "The queen walked in the castle",
] * 2
GROUPS = {"positives": SEA, "negatives": LAND}
FEATURE = {"index": 90}
OF_THIS_SERVICE = ("id", "sae_id", "corpus_id", "capture_id", "created_at", "finished_at")


def answers(live: Running) -> dict[str, Any]:
    """The results of all jobs and questions that read texts, by their names."""
    load_demo(live)
    sae = demo.saes()[1]
    sae_id = add_sae(live, sae)
    live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})

    def job(path: str, **body: Any) -> Any:
        done = live.data("POST", f"{path}?wait=true", body)["job"]
        assert (done["state"], done["error"]) == ("done", None)
        return done["result"]

    feature = f"/api/saes/{sae_id}/features"
    found = {"contrast": job("/api/features/contrast", **GROUPS)}
    found["corpus"] = job("/api/corpora", name="sea", source="inline", texts=SEA + LAND, context=8)
    sites = [{"site": "resid_post", "layers": "all"}]
    found["capture"] = job("/api/captures", name="sea", texts=SEA + LAND, context=8, sites=sites)
    files = f"/api/captures/{found['capture']['capture_id']}/files"
    found["rows"] = [
        live.http.get(f"{files}/{name}").content.hex()
        for name in ("index.jsonl", "shard-00000.safetensors")
    ]
    firing = [one["index"] for one in found["contrast"]["features"][:3]]
    found["statistics"] = [live.data("GET", f"{feature}/{index}") for index in firing]
    found["effects"] = job(
        "/api/effects",
        feature=FEATURE,
        strengths=[40.0],
        prompts=SEA[:2],
        tokens=3,
        random_directions=1,
    )
    found["vector"] = job("/api/vectors/train", name="sea", **GROUPS)
    found["probe"] = job("/api/probes/train", name="sea", **GROUPS)
    text = {"text": SEA[0]}
    found["lens"] = [live.data("POST", "/api/lens", text) for _ in range(REPLICAS)]
    asked = {**text, "position": -1, "target_token": 5}
    found["attribution"] = [live.data("POST", "/api/attribution", asked) for _ in range(REPLICAS)]
    search = {"query": "sea", "by": "promotes"}
    found["promoted"] = live.data("POST", f"{feature}/search?wait=true", search)
    return {name: shared(one) for name, one in found.items()}


def shared(value: Any) -> Any:
    """An answer without the ids and times of its service."""
    if isinstance(value, dict):
        return {k: shared(one) for k, one in value.items() if k not in OF_THIS_SERVICE}
    return [shared(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_all_figures_of_three_replicas_are_those_of_one_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    run = CheckpointEngine.run

    def counted(
        self: CheckpointEngine, request: m.Request
    ) -> AsyncGenerator[m.Started | m.Outcome, None]:
        asked[id(self)] += 1
        return run(self, request)

    with running(tmp_path / "one") as live:
        expected = answers(live)
    monkeypatch.setattr(CheckpointEngine, "run", counted)
    with ExitStack() as stack:
        settings = {"engine_backend": "ray", "engine_replicas": REPLICAS}
        live = stack.enter_context(running(tmp_path / "many", LocalCluster(), **settings))
        found = answers(live)
    assert len(asked) == REPLICAS
    assert min(asked.values()) > 2
    for name, one in expected.items():
        assert found[name] == one, name
