"""GGUF models through the whole service: names, what is honoured and what is refused, embeddings, swaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steerserve import demo
from tests import gguf
from tests.loopback_hub import LoopbackHub
from tests.service import Running, add_demo, running

pytestmark = pytest.mark.local("GGUF models are served by one engine of this machine")

BASE = "counting"
Q8, Q4 = f"{BASE}:Q8_0", f"{BASE}:Q4_0"
COUNT = [{"role": "user", "content": "count"}]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a counting model in two quantizations, and the demo model."""
    folder = tmp_path_factory.mktemp("gguf")
    with running(tmp_path_factory.mktemp("home"), load_timeout=60) as started:
        for label in ("Q8_0", "Q4_0"):
            file = gguf.write(folder / f"{BASE}-{label}.gguf", label)
            body = {"source": "local", "local_path": str(file)}
            started.data("POST", "/api/models", body, 202)
        add_demo(started)
        yield started


def ids(live: Running) -> dict[str, int]:
    return {row["name"]: row["id"] for row in live.data("GET", "/api/models")["models"]}


def chat(live: Running, model: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": COUNT, "temperature": 0, "max_tokens": 5, **fields}
    return live.post("/v1/chat/completions", body).json()


@pytest.mark.shows("model-record.17")
def test_each_quantization_is_a_model_of_its_own(live: Running) -> None:
    listed = [entry["id"] for entry in live.http.get("/v1/models").json()["data"]]
    assert {Q8, Q4} <= set(listed)
    row = live.data("GET", f"/api/models/{ids(live)[Q4]}")
    assert (row["gguf_label"], row["quantization"], row["engine"]) == ("Q4_0", "Q4", "gguf")
    assert row["params"]


@pytest.mark.shows("model-naming.1", "model-errors.14")
def test_a_bare_name_of_several_is_ambiguous(live: Running) -> None:
    status, error = live.v1_error("/v1/chat/completions", {"model": BASE, "messages": COUNT})
    assert (status, error["code"]) == (400, "AMBIGUOUS_MODEL_NAME")
    assert Q8 in error["message"]
    assert Q4 in error["message"]


@pytest.mark.shows("chat-parameters.20")
@pytest.mark.parametrize("model", [Q8, Q4])
def test_it_is_loaded_by_its_name_and_answers(live: Running, model: str) -> None:
    answer = chat(live, model)
    assert answer["choices"][0]["message"]["content"].split() == gguf.WORDS[:5]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["system_fingerprint"].endswith(f":unrecorded/{model.partition(':')[2]}:llama.cpp")
    row = live.data("GET", f"/api/models/{ids(live)[model]}")
    assert (row["status"], row["device"]) == ("loaded", "cpu")
    assert row["memory_footprint"] > 0


def test_texts_conversations_and_ids_are_told_apart_token_by_token(live: Running) -> None:
    chat(live, Q8)
    found = live.data("POST", "/api/tokenize", {"text": " four five", "add_special_tokens": False})
    assert found["model"] == Q8
    assert "".join(found["pieces"]) == found["text"] == " four five"
    assert [found["text"][at:].split()[0] for at in found["offsets"]][-1] == "five"
    back = live.data("POST", "/api/detokenize", {"ids": found["ids"]})
    assert back["text"].split() == ["four", "five"]
    assert "".join(back["pieces"]) == back["text"]
    rendered = live.data("POST", "/api/tokenize", {"messages": COUNT})
    assert rendered["count"] == chat(live, Q8)["usage"]["prompt_tokens"]
    size = len(gguf.vocabulary())
    answer = live.error("POST", "/api/detokenize", {"ids": [1, size]})
    assert answer[:2] == (400, "INVALID_PARAMETER")


@pytest.mark.shows(
    "scoring-mode.15",
    "chat-scoring.5",
    "seeds.10",
    "request-validation.8",
    "request-validation.10",
    "request-validation.11",
    "request-validation.12",
    "request-validation.14",
    "structured-output.6",
)
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"logprobs": True, "max_tokens": 1}, "logprobs"),
        ("/v1/completions", {"seed": 7}, "seed"),
    ],
)
def test_what_it_cannot_honour_is_refused_before_it_is_loaded(
    live: Running, path: str, fields: dict[str, Any], param: str
) -> None:
    live.post("/v1/completions", {"model": demo.MODEL_NAME, "prompt": "x", "max_tokens": 1})
    said = {"messages": COUNT} if "chat" in path else {"prompt": "x"}
    status, error = live.v1_error(path, {"model": Q4, **said, **fields})
    assert (status, error["code"], error["param"]) == (400, "field_not_honoured", param)
    assert live.data("GET", f"/api/models/{ids(live)[Q4]}")["status"] == "ready"


def test_the_cards_say_that_it_is_not_measured(live: Running) -> None:
    chat(live, Q8)
    assert live.data("GET", "/api/health/gpus")["cards"] == []
    assert live.data("GET", "/api/health/detailed")["model_name"] == Q8


@pytest.mark.shows("resource-errors.6")
def test_proportions_for_cards_that_are_not_there_are_refused_before_anything_is_unloaded(
    tmp_path: Path,
) -> None:
    file = gguf.write(tmp_path / "m-Q8_0.gguf", "Q8_0")
    with running(tmp_path / "home", gguf_tensor_split="1,1") as live:
        body = {"source": "local", "local_path": str(file)}
        row = live.data("POST", "/api/models", body, 202)
        add_demo(live)
        live.complete("x", max_tokens=1)
        status, code, details = live.error("POST", f"/api/models/{row['id']}/load")
        assert (status, code, details["cards"]) == (500, "INVALID_GGUF_TENSOR_SPLIT", 0)
        status, code, _ = live.error("POST", f"/api/models/{row['id']}/load", {"gpu": 0})
        assert code == "INVALID_GGUF_TENSOR_SPLIT"
        assert live.data("GET", "/api/health/detailed")["model_name"] == demo.MODEL_NAME


@pytest.mark.shows("model-naming.1", "model-record.17", "models.2")
def test_a_label_is_fetched_from_the_hub_and_the_other_stays(tmp_path: Path) -> None:
    files = {
        f"tiny-{label}.gguf": gguf.write(tmp_path / f"{label}.gguf", label).read_bytes()
        for label in ("Q8_0", "Q4_0")
    }
    with (
        LoopbackHub() as hub,
        running(tmp_path / "home", hf_endpoint=hub.url, disk_reserve_mb=0) as live,
    ):
        hub.add("acme/tiny-GGUF", files)
        shown = live.data("POST", "/api/models/preview", {"repo_id": "acme/tiny-GGUF"})
        assert [quant["label"] for quant in shown["gguf_quants"]] == ["Q4_0", "Q8_0"]
        assert shown["estimated_sizes"] is None
        asked = {"source": "huggingface", "repo_id": "acme/tiny-GGUF"}
        status, code, details = live.error("POST", "/api/models", asked)
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert details["available"] == ["Q4_0", "Q8_0"]
        rows = [
            live.data("POST", "/api/models", {**asked, "gguf_label": label}, 202)
            for label in ("q8_0", "Q4_0")
        ]
        assert [row["name"] for row in rows] == ["tiny-GGUF:Q8_0", "tiny-GGUF:Q4_0"]
        wait_until_ready(live, [row["id"] for row in rows])
        named = live.http.get("/v1/models/acme/tiny-GGUF:Q4_0").json()
        assert named["id"] == "tiny-GGUF:Q4_0"
        answer = chat(live, "acme/tiny-GGUF:Q4_0")
        assert answer["choices"][0]["message"]["content"].split() == gguf.WORDS[:5]
        live.data("DELETE", f"/api/models/{rows[0]['id']}")
        assert chat(live, "tiny-GGUF")["model"] == "tiny-GGUF:Q4_0"
        left = [p.name for p in live.home.rglob("*.gguf")]
        assert left == ["tiny-Q4_0.gguf"]


def test_a_split_model_is_loaded_from_its_first_part_in_whatever_order_the_hub_lists_them(
    tmp_path: Path,
) -> None:
    gguf.write(tmp_path / "big-Q8_0.gguf", "Q8_0", split=4)
    parts = sorted(tmp_path.glob("big*.gguf"), reverse=True)
    assert len(parts) > 1
    with (
        LoopbackHub() as hub,
        running(tmp_path / "home", hf_endpoint=hub.url, disk_reserve_mb=0) as live,
    ):
        hub.add("acme/big-GGUF", {part.name: part.read_bytes() for part in parts})
        asked = {"source": "huggingface", "repo_id": "acme/big-GGUF"}
        row = live.data("POST", "/api/models", asked, 202)
        wait_until_ready(live, [row["id"]])
        answer = chat(live, row["name"])
        assert answer["choices"][0]["message"]["content"].split() == gguf.WORDS[:5]


def wait_until_ready(live: Running, models: list[int]) -> None:
    """Ask until no download runs; each question gives it time."""
    for _ in range(10_000):
        rows = [live.data("GET", f"/api/models/{model}") for model in models]
        if all(row["status"] == "ready" for row in rows):
            return
        assert all(row["status"] in ("downloading", "ready") for row in rows), rows
    raise AssertionError("the downloads do not end")


def test_a_model_without_layers_has_no_lens(live: Running) -> None:
    chat(live, Q8)
    asked = {"text": "count", "position": -1, "target_token": 1}
    for route, body in (("lens", {"text": "count"}), ("attribution", asked)):
        assert live.error("POST", f"/api/{route}", body)[:2] == (400, "INVALID_PARAMETER")
