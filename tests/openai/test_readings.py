"""`return_readings`: what probes and vectors read of the tokens of an answer."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.openai.conftest import CHAT, RESPONSES, TEXT, greedy
from tests.service import Running

GROUPS = {
    "positives": ["The boat sailed over the waves", "A whale swam near the ship"] * 2,
    "negatives": ["The farmer fed the cow", "She baked bread in the kitchen"] * 2,
}


@pytest.fixture
def probe(steered: Running) -> Iterator[dict[str, Any]]:
    """A probe of one layer with its weights, and a vector that has them as its direction."""
    body = {"name": "sea", "layers": [3], **GROUPS, "holdout": 0.5}
    job = steered.data("POST", "/api/probes/train?wait=true", body)["job"]
    found = steered.data("GET", f"/api/probes/{job['result']['id']}")
    (weights,) = found["weights"]
    direction = {"layer": 3, "data": weights["data"]}
    vector = {"name": "sea", "source": "inline", "directions": [direction]}
    added = steered.data("POST", "/api/vectors", vector, 201)
    yield found | {"vector": added["id"]}
    steered.data("DELETE", f"/api/probes/{found['id']}")
    steered.data("DELETE", f"/api/vectors/{added['id']}")


def asked(path: str, *ids: str, **fields: Any) -> dict[str, Any]:
    return greedy(path, 5, return_readings=list(ids), **fields)


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES])
def test_each_generated_token_has_a_value_of_each_probe_and_vector(
    steered: Running, probe: dict[str, Any], path: str
) -> None:
    body = asked(path, probe["id"], probe["vector"])
    answer = steered.post(path, body).json()
    of_probe, of_vector = answer["service"]["readings"]
    assert (of_probe["id"], of_vector["id"]) == (probe["id"], probe["vector"])
    assert {one["layer"] for one in (of_probe, of_vector)} == {3}
    usage = answer["usage"]
    written = usage.get("completion_tokens", usage.get("output_tokens"))
    assert len(of_probe["values"]) == len(of_vector["values"]) == written
    (weights,) = probe["weights"]
    numbers = struct.iter_unpack("<f", base64.b64decode(weights["data"]))
    norm = math.hypot(*(number for (number,) in numbers))
    (layer,) = probe["layers"]
    for score, projection in zip(of_probe["values"], of_vector["values"], strict=True):
        assert score == pytest.approx(norm * projection + layer["bias"], rel=1e-5)
    # the text is the same without readings
    del body["return_readings"]
    assert steered.post(path, body).json().get("choices") == answer.get("choices")


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_has_each_value_with_its_token(
    steered: Running, probe: dict[str, Any], path: str
) -> None:
    body = asked(path, probe["id"])
    (whole,) = steered.post(path, body).json()["service"]["readings"]
    chunks = [one for one in steered.stream(path, body) if one != "[DONE]"]
    told = [one["service"]["readings"] for one in chunks if "service" in one]
    assert [values for (one,) in told for values in one["values"]] == whole["values"]
    assert all(one["choices"] for one in chunks if "service" in one)


def test_several_choices_are_told_apart(steered: Running, probe: dict[str, Any]) -> None:
    body = asked(CHAT, probe["vector"], n=2, temperature=1, seed=1)
    told = steered.post(CHAT, body).json()["service"]["readings"]
    assert [one["choice"] for one in told] == [0, 1]
    # both choices begin behind the same prompt
    first, second = (one["values"][0] for one in told)
    assert first == pytest.approx(second, abs=0.05)


def test_a_direction_that_does_not_fit_the_model_is_refused(steered: Running) -> None:
    data = base64.b64encode(struct.pack("<2f", 1.0, 0.0)).decode()
    body = {"name": "thin", "source": "inline", "directions": [{"layer": 1, "data": data}]}
    name = steered.data("POST", "/api/vectors", body, 201)["id"]
    status, error = steered.v1_error(CHAT, asked(CHAT, name))
    assert (status, error["code"], error["param"]) == (409, "vector_mismatch", "return_readings[0]")
    steered.data("DELETE", f"/api/vectors/{name}")
