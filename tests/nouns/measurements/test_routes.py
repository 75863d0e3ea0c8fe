"""/api/vectors/{id}/measure against a running service with the demo's model: what a vector does, and where edits of it
act from then on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from steerserve import demo
from tests.service import Running

SEA = [
    f"{who} {what}"
    for who in ("The sailor", "The old fisherman", "The captain", "A fish")
    for what in (
        "saw the boat on the waves",
        "swam near the ship",
        "found a shell on the beach",
        "looked at the sea",
    )
]
LAND = [
    f"{who} {what}"
    for who in ("The farmer", "The old queen", "The teacher", "A dog")
    for what in (
        "saw the cow in the barn",
        "sat on the throne",
        "found a book on the table",
        "looked at the bread",
    )
]
GROUPS = {"positives": SEA, "negatives": LAND}
WORDS = ["sea", "boat", "ship", "waves", "fish", "sailed", "sailor"]
PROMPTS = ["One day", "The old man", "She was happy because"]


@pytest.fixture
def live(steered: Running) -> Iterator[Running]:
    """The demo. Vectors are deleted after the test."""
    yield steered
    for vector in steered.data("GET", "/api/vectors")["vectors"]:
        steered.data("DELETE", f"/api/vectors/{vector['id']}")


def trained(live: Running, **fields: Any) -> dict[str, Any]:
    body = {"name": "the sea", "read": "mean"} | GROUPS | fields
    return finished(live, "/api/vectors/train", body)


def finished(live: Running, path: str, body: dict[str, Any]) -> dict[str, Any]:
    job = live.data("POST", f"{path}?wait=true", body)["job"]
    assert (job["state"], job["error"]) == ("done", None)
    return dict(job["result"])


def measured(live: Running, **body: Any) -> dict[str, Any]:
    return dict(finished(live, "/api/vectors/the%20sea/measure", body)["measured"])


def test_a_training_finds_where_its_vector_acts_and_edits_act_there(live: Running) -> None:
    record = trained(live)
    found, best = record["measured"], record["measured"]["best"]
    assert record["not_measured"] is None
    assert (found["by"], found["model"], found["tokens"]) == ("probe", demo.MODEL_NAME, 24)
    assert found["probe"]["auc_held_out"] > 0.8
    assert 1 <= len({row["layer"] for row in found["layers"]}) <= 4
    place = best["layer"], best["strength"]
    (chosen,) = [row for row in found["layers"] if (row["layer"], row["strength"]) == place]
    assert chosen["texts"] == 40
    assert chosen["damage"]["is_unbroken"]
    assert {row["texts"] for row in found["layers"]} == {4, 16, 40}
    assert len(found["random"]) == 2
    highs = [one["effect_high"] for one in found["random"]]
    assert found["works"] == (chosen["effect_low"] > max(0, *highs))
    edit = {"op": "add", "vector": record["id"], "value": best["strength"]}

    def report(**named: Any) -> Any:
        edits = {"edits": [edit | named]}
        fields = {"temperature": 0, "return_steering_report": True}
        answer = live.complete("One day", interventions=edits, **fields)
        return answer["steering_report"]

    assert report() == report(layers=[best["layer"]])
    put = live.data("PUT", "/api/interventions", {"edits": [edit]})
    assert put["edits"][0]["layers"] == [best["layer"]]
    live.data("DELETE", "/api/interventions")


def test_a_measurement_by_words_counts_what_requests_write(live: Running) -> None:
    record = trained(live, measure=False)
    assert (record["measured"], record["not_measured"]) == (None, "no measurement was asked for")
    layer, strengths = record["training"]["best_layer"], [0.4, 3.0]
    asked = {"words": WORDS, "prompts": PROMPTS, "layers": [layer], "strengths": strengths}
    found = measured(live, **asked, tokens=16, temperature=0, random_directions=1)

    def texts(strength: float | None) -> list[str]:
        edit = {"op": "add", "vector": "the sea", "layers": [layer], "value": strength}
        edits = {} if strength is None else {"interventions": {"edits": [edit]}}
        answer = live.complete(PROMPTS, max_tokens=16, temperature=0, **edits)
        return [choice["text"] for choice in answer["choices"]]

    def share(written: list[str]) -> float:
        having = [one for one in written if re.search(rf"\b({'|'.join(WORDS)})\b", one, re.I)]
        return len(having) / len(written)

    assert found["plain"] == pytest.approx(share(texts(None)))
    for row, strength in zip(found["layers"], strengths, strict=True):
        written = texts(strength)
        assert (row["layer"], row["strength"]) == (layer, strength)
        assert row["effect"] == pytest.approx(share(written))
        assert row["sample"] == written[0]
    assert (found["by"], found["probe"], found["words"]) == ("words", None, WORDS)
    assert live.data("GET", "/api/vectors/the%20sea")["measured"] == found


def test_the_probe_sees_the_two_directions_of_a_vector(live: Running) -> None:
    trained(live, measure=False)
    found = measured(live, **GROUPS, layers=[1], strengths=[2.0, -2.0], random_directions=0)
    back, there = found["layers"]
    assert back["effect"] < 0 < there["effect"]
    assert there["effect_low"] <= there["effect"] <= there["effect_high"]
    assert found["random"] == []
    again = measured(live, **GROUPS, layers=[1], strengths=[2.0, -2.0], random_directions=0)
    assert again == found


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "VALIDATION_ERROR"),
        (GROUPS | {"words": ["sea"]}, 422, "VALIDATION_ERROR"),
        ({"positives": SEA}, 422, "VALIDATION_ERROR"),
        ({"positives": SEA[:7], "negatives": LAND}, 422, "VALIDATION_ERROR"),
        ({"words": ["sea"], "prompts": ["One day"]}, 422, "VALIDATION_ERROR"),
        ({"words": ["sea"], "strengths": [1, 1]}, 422, "VALIDATION_ERROR"),
        ({"words": ["sea"], "layers": [99]}, 400, "INVALID_PARAMETER"),
        ({"words": ["sea"], "strengths": [1e9]}, 422, "VALIDATION_ERROR"),
    ],
)
def test_a_bad_measurement_is_refused_before_a_text_is_written(
    live: Running, body: dict[str, Any], status: int, code: str
) -> None:
    trained(live, measure=False)
    assert live.error("POST", "/api/vectors/the%20sea/measure", body)[:2] == (status, code)


def test_what_cannot_be_measured_is_refused_by_name(live: Running) -> None:
    words = {"words": ["sea"]}
    unknown = live.error("POST", "/api/vectors/nobody/measure", words)
    assert unknown[:2] == (404, "VECTOR_NOT_FOUND")
    record = trained(live, measure=False)
    document = live.data("GET", f"/api/vectors/{record['id']}/export")
    projected = {
        "name": "projected",
        "source": "inline",
        "operation": "project",
        "directions": document["directions"],
    }
    live.data("POST", "/api/vectors", projected, 201)
    refused = live.error("POST", "/api/vectors/projected/measure", words)
    assert refused[:2] == (422, "INVALID_INTERVENTION")
