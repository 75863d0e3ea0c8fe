"""/api/jobs and the search by promoted tokens, against a running service and a demo SAE."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file
from safetensors.torch import load_file as torch_file

from steerserve import demo
from tests.conftest import Start
from tests.service import Running, add_sae, load_demo

SEA = demo.saes()[1]
"""Its feature 90 is the sea (see the demo's page)."""


def attached(live: Running) -> str:
    load_demo(live)
    sae_id = add_sae(live, SEA)
    live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": SEA.layer})
    return sae_id


def test_a_word_finds_the_features_that_promote_it(start: Start) -> None:
    with start() as live:
        sae_id = attached(live)
        path = f"/api/saes/{sae_id}/features/search"
        body = {"query": "sea", "by": "promotes", "limit": 100}
        job = live.data("POST", path, body, status=202)["job"]
        assert (job["kind"], job["result"], job["error"]) == ("promoted_tokens", None, None)
        found = live.data("POST", f"{path}?wait=true", body)
        assert live.data("POST", path, body) == found
        (listed,) = live.data("GET", "/api/jobs")["jobs"]
        assert (listed["id"], listed["state"], listed["progress"]) == (job["id"], "done", 1.0)
        assert listed["finished_at"] >= listed["created_at"]
        done = live.data("GET", f"/api/jobs/{job['id']}")["job"]
        width = json.loads((SEA.path / "cfg.json").read_text())["d_sae"]
        result = {"sae_id": sae_id, "layer": SEA.layer, "features": width, "tokens": 10}
        assert done == {**listed, "result": result}
        assert live.data("DELETE", f"/api/jobs/{job['id']}")["job"] == done
        assert live.error("GET", f"/api/jobs/{job['id']}")[:2] == (404, "JOB_NOT_FOUND")
        assert live.error("DELETE", f"/api/jobs/{job['id']}")[:2] == (404, "JOB_NOT_FOUND")
        assert {one["feature_idx"]: one["value"] for one in found["features"]} == pytest.approx(
            _promoting(live), rel=1e-3
        )
        assert 90 in {one["feature_idx"] for one in found["features"][:10]}
        live.check_events()


def _promoting(live: Running) -> dict[int, float]:
    """The features with the word among their 10 promoted tokens, by the weights in float64."""
    texts = ("sea", " sea")
    spelled = [live.data("POST", "/api/tokenize", _raw(text))["ids"] for text in texts]
    weights = torch_file(demo.MODEL_DIR / "model.safetensors")
    rows = load_file(SEA.path / "sae_weights.safetensors")["W_dec"].astype("float64")
    head = weights["model.embed_tokens.weight"].double().numpy()
    scores = (rows * weights["model.norm.weight"].double().numpy()) @ head.T
    scores -= scores.mean(1, keepdims=True)
    best: dict[int, float] = {}
    for feature, of_tokens in enumerate(scores):
        kept = set((-of_tokens).argsort()[:10].tolist())
        for ids in spelled:
            if set(ids) <= kept:
                best[feature] = max(best.get(feature, -1e9), float(of_tokens[ids].min()))
    return best


def _raw(text: str) -> dict[str, object]:
    return {"text": text, "add_special_tokens": False}


@pytest.mark.parametrize(
    "body",
    [
        {"by": "promotes"},
        {"by": "promotes", "query": " "},
        {"by": "promotes", "query": "sea", "feature_idx": 3},
        {"by": "suppresses", "query": "sea"},
    ],
)
def test_a_bad_search_by_promoted_tokens_is_a_validation_error(
    steered: Running, body: dict[str, object]
) -> None:
    sae_id = steered.data("GET", "/api/saes/attachment")["sae_id"]
    path = f"/api/saes/{sae_id}/features/search"
    assert steered.error("POST", path, body)[:2] == (422, "VALIDATION_ERROR")


def test_a_search_by_promoted_tokens_needs_an_attached_sae(shared: Running) -> None:
    sae_id = add_sae(shared, SEA)
    path = f"/api/saes/{sae_id}/features/search"
    refused = shared.error("POST", path, {"by": "promotes", "query": "sea"})
    assert refused[:2] == (400, "SAE_NOT_ATTACHED")
    assert shared.error("GET", "/api/jobs/job_nobody")[:2] == (404, "JOB_NOT_FOUND")
