"""/api/vectors against a running service: every way in, export, neighbours, refusals."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load

import gguf
from steerserve import demo
from steerserve.messages import SaeSource
from steerserve.nouns.directions import owner
from steerserve.rules.saes.sites import STREAM_SITES
from steerserve.worker.sae import formats
from tests.files.directions.files import gguf_file, svec_file, torch_file
from tests.loopback_hub import LoopbackHub
from tests.service import Running, add_sae, running

VECTORS = "/api/vectors"
SAE = demo.saes()[0]
REPO = "acme/vectors"
SENTINEL = "hf_SENTINELofaclient"


def encoded(*values: float) -> str:
    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()


def inline(name: str = "calm", *directions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    listed = directions or ({"layer": 2, "data": encoded(3, 4)},)
    return {"name": name, "source": "inline", "directions": list(listed), **fields}


@pytest.fixture(scope="module")
def service(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("home"), hf_endpoint=hub.url) as live:
        yield live


@pytest.fixture
def live(service: Running) -> Iterator[Running]:
    yield service
    for vector in service.data("GET", VECTORS)["vectors"]:
        service.data("DELETE", f"{VECTORS}/{vector['id']}")


@pytest.fixture
def attached(shared: Running) -> Iterator[Running]:
    """The shared service, with one SAE attached and no vectors."""
    sae_id = add_sae(shared, SAE)
    shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": SAE.layer})
    yield shared
    for vector in shared.data("GET", VECTORS)["vectors"]:
        shared.data("DELETE", f"{VECTORS}/{vector['id']}")
    shared.data("POST", f"/api/saes/{sae_id}/detach")


def post(live: Running, body: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = live.data("POST", VECTORS, body, 201)
    return made


# ------------------------------------------------------------------ adding


def test_a_vector_in_the_body_is_stored_listed_found_and_deleted(live: Running) -> None:
    second = {"layer": 1, "site": "mlp_out", "data": encoded(0, 2), "shape": [2]}
    made = post(live, inline("calm", {"layer": 2, "data": encoded(3, 4)}, second))
    assert made["layers"] == [
        {"layer": 1, "site": "mlp_out", "norm": 2.0},
        {"layer": 2, "site": "resid_post", "norm": 5.0},
    ]
    assert (made["width"], made["operation"], made["training"]) == (2, "add", None)
    assert made["id"].startswith("vec_")
    for name in (made["id"], "calm"):
        assert live.data("GET", f"{VECTORS}/{name}") == made
    assert live.data("GET", VECTORS) == {"vectors": [made], "total": 1}
    assert live.data("DELETE", f"{VECTORS}/{made['id']}") == {"vector_id": made["id"]}
    assert live.error("GET", f"{VECTORS}/calm")[:2] == (404, "VECTOR_NOT_FOUND")


def test_one_content_has_one_digest_in_every_format(live: Running, tmp_path: Path) -> None:
    (tmp_path / "v.pt").write_bytes(torch_file({2: torch.tensor([3.0, 4.0])}))
    local = post(live, {"name": "file", "source": "local", "local_path": str(tmp_path / "v.pt")})
    assert local["source"]["local_path"] == str(tmp_path / "v.pt")
    assert (local["source"]["format"], local["source"]["keys"]) == ("torch", ["2"])
    assert post(live, inline())["content_digest"] == local["content_digest"]
    elsewhere = post(live, inline("other", {"layer": 3, "data": encoded(3, 4)}))
    assert elsewhere["content_digest"] != local["content_digest"]


def test_a_file_is_sent_in_a_form(live: Running, tmp_path: Path) -> None:
    data = torch_file(torch.tensor([3.0, 4.0]))
    files = {"file": ("direction.pt", data), "metadata": ("m.json", b'{"pos": -1, "layer": 5}')}
    answer = live.http.post(VECTORS, files=files, data={"name": "refusal", "layer_offset": "1"})
    assert answer.status_code == 201, answer.text
    made = answer.json()["data"]
    assert made["layers"] == [{"layer": 5, "site": "resid_post", "norm": 5.0}]
    assert (made["layer_convention"], made["layer_offset"]) == ("resid_pre", 1)
    assert (made["source"]["kind"], made["source"]["file"]) == ("upload", "direction.pt")


def test_a_large_json_file_is_sent_in_a_form(live: Running) -> None:
    data = svec_file({str(layer): [0.5] * 4096 for layer in range(20)})
    answer = live.http.post(VECTORS, files={"file": ("v.svec", data)}, data={"name": "large"})
    assert answer.status_code == 201, answer.text
    assert len(answer.json()["data"]["layers"]) == 20


def test_a_file_of_the_hub_is_read_with_the_token_of_the_client(
    live: Running, hub: LoopbackHub
) -> None:
    data = torch_file(torch.tensor([3.0, 4.0]))
    files = {"a/direction.pt": data, "a/direction_metadata.json": b'{"layer": 5}'}
    hub.add(REPO, files, gated=True, tokens=(SENTINEL,))
    place = {"repository_id": REPO, "file_path": "a/direction.pt", "hub_token": SENTINEL}
    made = post(live, {"name": "hub", "source": "huggingface", **place})
    assert [at["layer"] for at in made["layers"]] == [4]
    assert (made["source"]["repository_id"], made["source"]["file"]) == (REPO, "a/direction.pt")
    assert SENTINEL not in json.dumps(live.data("GET", VECTORS))
    place["file_path"] = "a/other.pt"
    refused = live.error("POST", VECTORS, {"name": "x", "source": "huggingface", **place})
    assert refused[:2] == (422, "INVALID_VECTOR")


# ------------------------------------------------------------------ refusals


def test_a_name_is_taken_once_and_looks_like_no_id(live: Running) -> None:
    post(live, inline())
    assert live.error("POST", VECTORS, inline())[:2] == (409, "VECTOR_ALREADY_EXISTS")
    for name in ("vec_1", " ", "a\nb"):
        assert live.error("POST", VECTORS, inline(name))[1] == "VALIDATION_ERROR"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"directions": None}, "directions"),
        ({"local_path": "/tmp/x"}, "local_path"),
        ({"source": "local"}, "local_path"),
        ({"source": "elsewhere"}, "source"),
        ({"layer_convention": "blocks"}, "layer_convention"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_field_is_named(live: Running, fields: dict[str, Any], place: str) -> None:
    status, code, details = live.error("POST", VECTORS, inline() | fields)
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert ["body", place] in [error["loc"][:2] for error in details["errors"]]


@pytest.mark.parametrize(
    "direction",
    [
        {"layer": 1, "data": encoded(0, 0)},
        {"layer": 1, "data": encoded(1, float("nan"))},
        {"layer": 1, "data": "?"},
        {"layer": 1, "data": encoded(1, 2), "shape": [3]},
        {"layer": 1, "data": encoded(1, 2), "site": "head"},
        {"layer": 2, "data": encoded(1, 2)},
        {"layer": 1, "data": encoded(1, 2, 3)},
    ],
)
def test_directions_that_no_vector_has_are_refused(
    live: Running, direction: dict[str, Any]
) -> None:
    body = inline("x", {"layer": 2, "data": encoded(3, 4)}, direction)
    status, code, details = live.error("POST", VECTORS, body)
    assert (status, code) == (422, "INVALID_VECTOR")
    assert details["key"].startswith("directions[1]")
    assert live.data("GET", VECTORS)["total"] == 0


def test_protected_and_missing_paths_are_refused(live: Running, tmp_path: Path) -> None:
    for path in ("/etc/passwd", str(tmp_path / "none.pt"), "v.pt", str(tmp_path)):
        body = {"name": "x", "source": "local", "local_path": path}
        assert live.error("POST", VECTORS, body)[:2] == (400, "INVALID_LOCAL_PATH")


def test_a_form_without_a_file_and_a_cut_form_are_refused(live: Running) -> None:
    answer = live.http.post(VECTORS, files={"other": ("a", b"b")}, data={"name": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    cut = b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nx'
    kind = {"content-type": "multipart/form-data; boundary=b"}
    answer = live.http.post(VECTORS, content=cut, headers=kind)
    assert "not complete" in answer.json()["error"]["message"]


# ------------------------------------------------------------------ exporting


def test_exports_are_read_back_to_the_same_content(live: Running, tmp_path: Path) -> None:
    two = [{"layer": layer, "data": encoded(1, layer)} for layer in (3, 1)]
    made = post(live, inline("calm", *two, model_hint="tiny"))
    for format in ("gguf", "safetensors", "json"):
        answer = live.http.get(f"{VECTORS}/calm/export", params={"format": format})
        assert answer.status_code == 200, answer.text
        data = answer.content
        again = live.http.post(VECTORS, files={"file": ("v", data)}, data={"name": format})
        assert again.status_code == 201, again.text
        assert again.json()["data"]["content_digest"] == made["content_digest"]
        assert again.json()["data"]["model_hint"] == "tiny"


def test_a_gguf_export_is_read_by_the_library_of_the_format(live: Running, tmp_path: Path) -> None:
    two = [{"layer": layer, "data": encoded(1, layer, 7)} for layer in (3, 1)]
    post(live, inline("calm", *two, model_hint="tiny"))
    path = tmp_path / "calm.gguf"
    path.write_bytes(live.http.get(f"{VECTORS}/calm/export?format=gguf").content)
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    assert keys["general.architecture"] == "controlvector"
    assert (keys["controlvector.model_hint"], keys["controlvector.layer_count"]) == ("tiny", 2)
    found = {t.name: (t.tensor_type.name, t.data.tolist()) for t in reader.tensors}
    assert found == {"direction.1": ("F32", [1, 1, 7]), "direction.3": ("F32", [1, 3, 7])}


def test_a_safetensors_export_is_read_by_its_library(live: Running) -> None:
    post(live, inline("calm", {"layer": 1, "site": "mlp_out", "data": encoded(1, 2)}))
    data = live.http.get(f"{VECTORS}/calm/export?format=safetensors").content
    assert {name: array.tolist() for name, array in load(data).items()} == {"mlp_out.1": [1, 2]}


def test_a_vector_to_be_projected_stays_one_through_every_export(
    live: Running, tmp_path: Path
) -> None:
    """And its suggested value stays with it."""
    keys = {"glp.mode": "project", "glp.spec_version": 1, "glp.alpha_default": 0.75}
    file = gguf_file(tmp_path, {"direction.2": np.array([0.6, 0.8], "<f4")}, keys)
    live.http.post(VECTORS, files={"file": ("v", file)}, data={"name": "refusal"})
    added = {"name": "added", "operation": "add"}
    refused = live.http.post(VECTORS, files={"file": ("v", file)}, data=added)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "INVALID_VECTOR")
    for format in ("gguf", "safetensors", "json"):
        answer = live.http.get(f"{VECTORS}/refusal/export?format={format}")
        data = answer.content if format != "json" else json.dumps(answer.json()["data"]).encode()
        again = live.http.post(VECTORS, files={"file": ("v", data)}, data={"name": format})
        made = again.json()["data"]
        assert (made["operation"], made["suggested_value"]) == ("project", 0.75)


def test_gguf_has_no_layer_0_and_no_other_site(live: Running) -> None:
    for place in ({"layer": 0}, {"layer": 1, "site": "mlp_out"}):
        made = post(live, inline(f"v{place['layer']}", {**place, "data": encoded(1, 2)}))
        path = f"{VECTORS}/{made['id']}/export?format=gguf"
        status, code, details = live.error("GET", path)
        assert (status, code, details["layer"]) == (422, "INVALID_VECTOR", place["layer"])
    assert live.error("GET", f"{VECTORS}/none/export")[:2] == (404, "VECTOR_NOT_FOUND")


# ------------------------------------------------------------------ neighbours


def row_of(feature: int) -> list[float]:
    """The decoder row of a feature of the demo SAE."""

    path = str(SAE.path)
    row: list[float] = formats.load(SaeSource(path, path)).W_dec[feature].float().tolist()
    return row


def test_a_decoder_row_is_nearest_to_its_own_feature(attached: Running) -> None:
    row = row_of(90)
    post(attached, inline("row", {"layer": SAE.layer, "data": encoded(*row)}))
    near = attached.data("GET", f"{VECTORS}/row/neighbours?limit=3")
    best = near["features"][0]
    assert (best["feature_idx"], best["sae_layer"]) == (90, SAE.layer)
    assert best["cosine"] == pytest.approx(1.0, abs=1e-5)
    assert len(near["features"]) == 3
    assert near["vectors"] == []


def test_sae_of_another_layer_is_compared_where_none_is_at_the_layers_of_the_vector(
    attached: Running,
) -> None:
    row = row_of(90)
    post(attached, inline("row", {"layer": SAE.layer - 1, "data": encoded(*row)}))
    best = attached.data("GET", f"{VECTORS}/row/neighbours")["features"][0]
    assert (best["layer"], best["sae_layer"]) == (SAE.layer - 1, SAE.layer)


def test_other_vectors_are_compared_at_one_layer_and_site(live: Running) -> None:
    post(
        live, inline("a", {"layer": 1, "data": encoded(1, 0)}, {"layer": 2, "data": encoded(0, 1)})
    )
    post(live, inline("b", {"layer": 2, "data": encoded(1, 1)}))
    post(live, inline("c", {"layer": 1, "data": encoded(-1, 0)}))
    post(live, inline("elsewhere", {"layer": 3, "data": encoded(1, 0)}))
    post(live, inline("wider", {"layer": 1, "data": encoded(1, 0, 0)}))
    near = live.data("GET", f"{VECTORS}/a/neighbours")
    assert near["features"] == []
    found = [(one["name"], one["layer"], round(one["cosine"], 4)) for one in near["vectors"]]
    assert found == [("b", 2, 0.7071), ("c", 1, -1.0)]
    only = live.data("GET", f"{VECTORS}/a/neighbours?layer=1")["vectors"]
    assert [one["name"] for one in only] == ["c"]
    assert live.error("GET", f"{VECTORS}/a/neighbours?layer=9")[:2] == (422, "VALIDATION_ERROR")


def test_wide_vectors_are_compared_in_slices(
    live: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents of other clients have their turn between two slices."""
    sizes: list[int] = []
    nearest = owner._nearest

    def noted(pairs: Any, other: Any) -> Any:
        sizes.append(len(pairs))
        return nearest(pairs, other)

    monkeypatch.setattr(owner, "_nearest", noted)
    rows = [[1.0, 2.0], [3.0, -1.0], [1.0, 1.0], [0.0, 2.0], [2.0, 0.5]]
    for name, order in (("a", rows), ("b", rows[::-1])):
        post(live, inline(name, *({"layer": n, "data": encoded(*r)} for n, r in enumerate(order))))
    whole = live.data("GET", f"{VECTORS}/a/neighbours")
    monkeypatch.setattr(owner, "NUMBERS_AT_ONCE", 4)
    assert live.data("GET", f"{VECTORS}/a/neighbours") == whole
    assert whole["vectors"][0]["layer"] == 2
    assert sizes == [5, 2, 2, 1]


def test_a_vector_that_does_not_fit_the_loaded_model_has_no_neighbours(attached: Running) -> None:
    post(attached, inline())
    status, code, details = attached.error("GET", f"{VECTORS}/calm/neighbours")
    assert (status, code, details["width"]) == (409, "VECTOR_MISMATCH", 2)
    deep = inline("deep", {"layer": 500, "data": encoded(*row_of(1))})
    post(attached, deep)
    assert attached.error("GET", f"{VECTORS}/deep/neighbours")[1] == "VECTOR_MISMATCH"


# ------------------------------------------------------------------ tokens


def test_a_decoder_row_writes_what_its_feature_writes_at_every_place(attached: Running) -> None:
    places = [(layer, site) for layer in range(4) for site in sorted(STREAM_SITES - {"embed"})]
    rows = [encoded(*row_of(90 + turn % 2)) for turn in range(len(places))]
    directions = [
        {"layer": layer, "site": site, "data": row}
        for (layer, site), row in zip(places, rows, strict=True)
    ]
    post(attached, inline("rows", *directions))
    sae_id = attached.data("GET", "/api/saes/attachments")["entries"][0]["sae_id"]
    features = [
        attached.data("GET", f"/api/saes/{sae_id}/features/{index}?tokens=3") for index in (90, 91)
    ]
    layers = attached.data("GET", f"{VECTORS}/rows/tokens?tokens=3")["layers"]
    assert [(one["layer"], one["site"]) for one in layers] == places
    for turn, one in enumerate(layers):
        for side in ("promotes", "suppresses"):
            expected = features[turn % 2][side]
            assert [t["token"] for t in one[side]] == [t["token"] for t in expected]
            assert [t["value"] for t in one[side]] == pytest.approx(
                [t["value"] for t in expected], rel=1e-5
            )
    alone = attached.data("GET", f"{VECTORS}/rows/tokens?tokens=3&layer=2")["layers"]
    assert [one["site"] for one in alone] == [site for layer, site in places if layer == 2]
    assert attached.error("GET", f"{VECTORS}/rows/tokens?layer=9")[:2] == (422, "VALIDATION_ERROR")


def test_a_direction_that_does_not_reach_the_stream_as_it_is_has_no_tokens(
    attached: Running,
) -> None:
    direction = {"layer": 1, "site": "mlp_raw", "data": encoded(*row_of(1))}
    post(attached, inline("raw", direction))
    (layer,) = attached.data("GET", f"{VECTORS}/raw/tokens")["layers"]
    assert layer == {"layer": 1, "site": "mlp_raw", "promotes": None, "suppresses": None}
    post(attached, inline())
    assert attached.error("GET", f"{VECTORS}/calm/tokens")[1] == "VECTOR_MISMATCH"


def test_tokens_of_a_vector_need_a_loaded_model(live: Running) -> None:
    post(live, inline())
    assert live.error("GET", f"{VECTORS}/calm/tokens")[:2] == (400, "MODEL_NOT_LOADED")
    assert live.error("GET", f"{VECTORS}/none/tokens")[:2] == (404, "VECTOR_NOT_FOUND")


def test_vectors_outlast_the_service(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        made = post(first, inline())
    with running(tmp_path) as second:
        assert second.data("GET", f"{VECTORS}/calm") == made
        document = second.data("GET", f"{VECTORS}/calm/export")
        assert document["directions"][0]["data"] == encoded(3, 4)


def test_a_vector_counts_among_the_stored_documents(tmp_path: Path) -> None:
    with running(tmp_path, max_stored_documents=1) as live:
        post(live, inline())
        assert live.error("POST", VECTORS, inline("two"))[:2] == (507, "DOCUMENT_STORE_FULL")
