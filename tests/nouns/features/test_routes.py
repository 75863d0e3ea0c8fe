"""/api/saes/{id}/labels and /features against a running service and the demo SAEs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from safetensors.numpy import load_file
from safetensors.torch import load_file as torch_file

from steerserve import demo
from tests.service import Running, add_sae

FIRST = demo.saes()[0]
CONFIG = json.loads((FIRST.path / "cfg.json").read_text())
D_SAE = CONFIG["d_sae"]
SEA = {"3": "the sea", "7": "Boats at night", "9": "the night sky"}


@pytest.fixture
def sae_id(shared: Running) -> Iterator[str]:
    """A registered SAE without labels."""
    found = add_sae(shared, FIRST)
    yield found
    shared.data("DELETE", f"/api/saes/{found}/labels")


def labels(live: Running, sae_id: str, query: str = "") -> dict[str, Any]:
    return dict(live.data("GET", f"/api/saes/{sae_id}/labels{query}"))


def put(live: Running, sae_id: str, document: Any, query: str = "") -> dict[str, Any]:
    return dict(live.data("POST", f"/api/saes/{sae_id}/labels{query}", document))


def cosines(index: int) -> dict[int, float]:
    rows = load_file(FIRST.path / "sae_weights.safetensors")["W_dec"].astype("float64")
    unit = rows / (rows**2).sum(1, keepdims=True) ** 0.5
    found = unit @ unit[index]
    return {i: float(value) for i, value in enumerate(found) if i != index}


# ---------------------------------------------------------------- labels


def test_labels_are_imported_listed_searched_and_deleted(shared: Running, sae_id: str) -> None:
    assert put(shared, sae_id, SEA) == {
        "sae_id": sae_id,
        "imported": 3,
        "total": 3,
        "warnings": [],
    }
    assert labels(shared, sae_id) == {
        "sae_id": sae_id,
        "labels": [{"feature_idx": int(i), "label": label} for i, label in SEA.items()],
        "matched": 3,
        "total": 3,
        "limit": 100,
        "offset": 0,
    }
    page = labels(shared, sae_id, "?query=NIGHT&limit=1&offset=1")
    assert page["labels"] == [{"feature_idx": 9, "label": "the night sky"}]
    assert (page["matched"], page["total"]) == (2, 3)
    assert labels(shared, sae_id, "?query=night+boats")["matched"] == 1
    page = labels(shared, sae_id, "?features=9,3,8,9")
    assert [one["feature_idx"] for one in page["labels"]] == [3, 9]
    assert (page["matched"], page["total"]) == (2, 3)
    assert labels(shared, sae_id, "?features=3,7&query=night")["matched"] == 1
    refused = shared.error("GET", f"/api/saes/{sae_id}/labels?features=3,x")
    assert refused[:2] == (422, "VALIDATION_ERROR")
    gone = shared.data("DELETE", f"/api/saes/{sae_id}/labels")
    assert (gone["cleared"], set(gone)) == (3, {"cleared", "message"})
    assert labels(shared, sae_id)["total"] == 0


def test_an_import_merges_or_replaces(shared: Running, sae_id: str) -> None:
    put(shared, sae_id, SEA)
    assert put(shared, sae_id, {"3": "waves", "4": "sand"})["total"] == 4
    found = {one["feature_idx"]: one["label"] for one in labels(shared, sae_id)["labels"]}
    assert found == {3: "waves", 4: "sand", 7: "Boats at night", 9: "the night sky"}
    assert put(shared, sae_id, {"5": "rain"}, "?replace=true")["total"] == 1
    assert labels(shared, sae_id)["labels"] == [{"feature_idx": 5, "label": "rain"}]


def test_the_label_of_one_feature_is_deleted(shared: Running, sae_id: str) -> None:
    put(shared, sae_id, SEA)
    assert shared.data("DELETE", f"/api/saes/{sae_id}/labels/7")["cleared"] == 1
    assert [one["feature_idx"] for one in labels(shared, sae_id)["labels"]] == [3, 9]
    assert shared.data("DELETE", f"/api/saes/{sae_id}/labels/7")["cleared"] == 0
    refused = shared.error("DELETE", f"/api/saes/{sae_id}/labels/{D_SAE}")
    assert refused[:2] == (400, "INVALID_FEATURE_INDEX")


def test_the_demo_labels_and_a_neuronpedia_export_are_read(shared: Running, sae_id: str) -> None:
    demo_labels = json.loads(FIRST.labels.read_text(encoding="utf-8"))
    assert put(shared, sae_id, demo_labels)["total"] == len(demo_labels)
    export = [
        {"modelId": "m", "layer": f"{FIRST.layer + 1}-res", "index": "3", "description": "a"},
        {"modelId": "m", "layer": f"{FIRST.layer + 1}-res", "index": "3", "description": "b"},
    ]
    done = put(shared, sae_id, export, "?replace=true")
    assert labels(shared, sae_id)["labels"] == [{"feature_idx": 3, "label": "a"}]
    assert len(done["warnings"]) == 2
    assert f"layer {FIRST.layer + 1}" in done["warnings"][1]


def test_json_lines_come_as_a_body_or_as_a_field(shared: Running, sae_id: str) -> None:
    text = '{"index": 3, "label": "the sea"}\n{"index": 4, "label": "é"}\n'
    path = f"/api/saes/{sae_id}/labels"
    headers = {"content-type": "application/x-ndjson"}
    for encoding in ("utf-8", "utf-8-sig"):  # the second one begins with a byte order mark
        sent = shared.http.post(path, content=text.encode(encoding), headers=headers)
        assert sent.json()["data"]["total"] == 2
    assert put(shared, sae_id, {"labels": text}, "?replace=true")["total"] == 2
    assert put(shared, sae_id, {"labels": SEA}, "?replace=true")["total"] == 3


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ({"3": "fine", str(D_SAE): "not"}, 400, "INVALID_FEATURE_INDEX"),
        ({"3": "fine", "4": ""}, 422, "VALIDATION_ERROR"),
        (None, 422, "VALIDATION_ERROR"),
    ],
)
def test_a_bad_import_changes_nothing(
    shared: Running, sae_id: str, document: Any, status: int, code: str
) -> None:
    put(shared, sae_id, {"1": "kept"})
    refused = shared.http.post(f"/api/saes/{sae_id}/labels?replace=true", json=document)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert labels(shared, sae_id)["labels"] == [{"feature_idx": 1, "label": "kept"}]


@pytest.mark.parametrize(
    ("content", "media"),
    [
        (b"{", "application/json"),
        (b'{"labels": {"3": "a", "3": "b"}}', "application/json"),
        (b'{"3": "%s", "3": "b"}' % (b"a" * 100_000), "application/json"),
        (b"\xff", "application/x-ndjson"),
        (b'{"3": "a"}', "text/plain"),
        (b'{"3": "a"}', ""),
    ],
)
def test_a_broken_body_is_a_validation_error(
    shared: Running, sae_id: str, content: bytes, media: str
) -> None:
    path = f"/api/saes/{sae_id}/labels"
    refused = shared.http.post(path, content=content, headers={"content-type": media})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    assert labels(shared, sae_id)["total"] == 0


def test_labels_are_shown_wherever_features_are_read(steered: Running, sae_id: str) -> None:
    steered.data("POST", "/api/monitoring/configure", {})
    steered.data("DELETE", "/api/monitoring/history")
    asked = {"max_tokens": 3, "temperature": 0, "return_sae_activations": {"top_k": 2}}
    (read,) = steered.complete("One day", **asked)["service"]["sae_activations"]["positions"]
    assert not any("label" in found for found in read["features"])
    first, second = (found["index"] for found in read["features"])
    put(steered, sae_id, {str(first): "loudest"})
    (read,) = steered.complete("One day", **asked)["service"]["sae_activations"]["positions"]
    assert read["features"][0]["label"] == "loudest"
    assert "label" not in read["features"][1]
    body = {"model": demo.MODEL_NAME, "prompt": "One day", **asked}
    *_, last, done = steered.stream("/v1/completions", body)
    assert done == "[DONE]"
    assert last["service"]["sae_activations"]["positions"][0] == read
    query = f"?features={first},{second}"
    counted = steered.data("GET", f"/api/monitoring/statistics{query}")["features"]
    assert {one["feature_idx"]: one.get("label") for one in counted} == {
        first: "loudest",
        second: None,
    }
    top = steered.data("POST", "/api/monitoring/statistics/top", {"k": 100})["features"]
    assert [one["label"] for one in top if "label" in one] == ["loudest"]
    records = steered.data("GET", "/api/monitoring/history")["records"]
    named = [a for record in records for a in record["activations"] if "label" in a]
    assert {(a["feature_index"], a["label"]) for a in named} == {(first, "loudest")}


# ---------------------------------------------------------------- features


def test_a_feature_tells_its_norms_without_being_attached(shared: Running, sae_id: str) -> None:
    weights = load_file(FIRST.path / "sae_weights.safetensors")
    put(shared, sae_id, SEA)
    found = shared.data("GET", f"/api/saes/{sae_id}/features/3")
    assert (found["sae_id"], found["feature_idx"], found["label"]) == (sae_id, 3, "the sea")
    decoder = float((weights["W_dec"][3].astype("float64") ** 2).sum() ** 0.5)
    encoder = float((weights["W_enc"][:, 3].astype("float64") ** 2).sum() ** 0.5)
    assert found["decoder_norm"] == pytest.approx(decoder, rel=1e-4)
    assert found["encoder_norm"] == pytest.approx(encoder, rel=1e-4)
    assert found["encoder_bias"] == pytest.approx(float(weights["b_enc"][3]), rel=1e-4)
    assert (found["residual_norm"], found["typical_strength"], found["statistics"]) == (None,) * 3
    assert (found["promotes"], found["suppresses"]) == (None, None)


def test_an_attached_feature_tells_how_much_is_much(steered: Running, sae_id: str) -> None:
    check = steered.data("GET", "/api/saes/attachment")["check"]
    found = steered.data("GET", f"/api/saes/{sae_id}/features/3")
    assert found["layer"] == FIRST.layer
    assert found["residual_norm"] == check["residual_norm"]
    half = 0.5 * found["residual_norm"]
    assert found["typical_strength"] * found["decoder_norm"] == pytest.approx(half)
    assert found["statistics"] is None
    steered.data("POST", "/api/monitoring/configure", {"features": [3]})
    steered.complete("One day", max_tokens=4)
    found = steered.data("GET", f"/api/saes/{sae_id}/features/3")
    listed = steered.data("GET", "/api/monitoring/statistics?features=3")["features"]
    assert found["statistics"] == listed[0]
    assert steered.data("GET", f"/api/saes/{sae_id}/features/4")["statistics"] is None


def test_an_attached_feature_tells_the_tokens_that_it_promotes(
    steered: Running, sae_id: str
) -> None:
    weights = torch_file(demo.MODEL_DIR / "model.safetensors")
    row = load_file(FIRST.path / "sae_weights.safetensors")["W_dec"][3].astype("float64")
    head = weights["model.embed_tokens.weight"].double().numpy()
    scores = head @ (row * weights["model.norm.weight"].double().numpy())
    scores -= scores.mean()
    found = steered.data("GET", f"/api/saes/{sae_id}/features/3?tokens=12")
    for side, order in (("promotes", (-scores).argsort()), ("suppresses", scores.argsort())):
        assert [one["token_id"] for one in found[side]] == order[:12].tolist()
        values = [one["value"] for one in found[side]]
        assert values == pytest.approx(scores[order[:12]], rel=1e-3)
    ids = [one["token_id"] for one in found["promotes"]]
    texts = [steered.data("POST", "/api/detokenize", {"ids": [i]})["text"] for i in ids]
    assert [one["token"] for one in found["promotes"]] == texts
    usual = steered.data("GET", f"/api/saes/{sae_id}/features/3")
    assert usual["promotes"] == found["promotes"][:10]
    assert usual["suppresses"] == found["suppresses"][:10]
    for tokens in (0, 101):
        path = f"/api/saes/{sae_id}/features/3?tokens={tokens}"
        assert steered.error("GET", path)[:2] == (422, "VALIDATION_ERROR")


def test_a_feature_outside_the_sae_is_refused(shared: Running, sae_id: str) -> None:
    expected = (400, "INVALID_FEATURE_INDEX", {"feature_idx": D_SAE, "d_sae": D_SAE})
    assert shared.error("GET", f"/api/saes/{sae_id}/features/{D_SAE}") == expected
    path = f"/api/saes/{sae_id}/features/search"
    assert shared.error("POST", path, {"feature_idx": D_SAE}) == expected


def test_the_search_finds_near_directions_and_labels(shared: Running, sae_id: str) -> None:
    path = f"/api/saes/{sae_id}/features/search"
    expected = sorted(cosines(3).items(), key=lambda one: -one[1])
    near = shared.data("POST", path, {"feature_idx": 3, "limit": 5})
    assert [one["feature_idx"] for one in near["features"]] == [i for i, _ in expected[:5]]
    found = [one["cosine"] for one in near["features"]]
    assert found == pytest.approx([cosine for _, cosine in expected[:5]], abs=1e-3)
    assert {one["label"] for one in near["features"]} == {None}
    put(shared, sae_id, SEA)
    words = shared.data("POST", path, {"query": "NIGHT"})
    assert words["features"] == [
        {"feature_idx": 7, "label": "Boats at night", "cosine": None},
        {"feature_idx": 9, "label": "the night sky", "cosine": None},
    ]
    assert (words["matched"], words["query"], words["feature_idx"]) == (2, "NIGHT", None)
    third = expected[2][0]
    put(shared, sae_id, {str(third): "rain at night", str(expected[0][0]): "sun"}, "?replace=true")
    both = shared.data("POST", path, {"query": "night", "feature_idx": 3, "limit": 1})
    assert [one["feature_idx"] for one in both["features"]] == [third]
    assert both["features"][0]["label"] == "rain at night"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": "  "},
        {"query": "a", "limit": 101},
        {"text": "a"},
        {"query": "a", "order": "share"},
        {"by": "text"},
        {"by": "text", "text": "a", "query": "b"},
        {"by": "text", "text": "a", "messages": [{"role": "user", "content": "a"}]},
        {"by": "examples"},
        {"by": "examples", "query": "a", "feature_idx": 1},
    ],
)
def test_a_bad_search_is_a_validation_error(shared: Running, sae_id: str, body: Any) -> None:
    path = f"/api/saes/{sae_id}/features/search"
    assert shared.error("POST", path, body)[:2] == (422, "VALIDATION_ERROR")


def test_the_search_is_not_asked_by_get(shared: Running, sae_id: str) -> None:
    answer = shared.http.get(f"/api/saes/{sae_id}/features/search")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_an_unknown_sae_has_neither(shared: Running) -> None:
    for method, path, body in (
        ("GET", "labels", None),
        ("POST", "labels", {"3": "a"}),
        ("DELETE", "labels", None),
        ("GET", "features/3", None),
        ("POST", "features/search", {"query": "a"}),
    ):
        refused = shared.error(method, f"/api/saes/sae_nobody/{path}", body)
        assert refused[:2] == (404, "SAE_NOT_FOUND"), path
