"""`return_activations_raw`: the values of sites of the model in an answer."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from tests.openai.conftest import CHAT, RESPONSES, TEXT, greedy
from tests.service import Running

FIELD = "return_activations_raw"
SITES = [{"site": "resid_post", "layers": [1, 2]}]


def asked(path: str, sites: list[dict[str, Any]] = SITES, **fields: Any) -> dict[str, Any]:
    return greedy(path, 4, **{FIELD: {"sites": sites, **fields}})


def numbers(entry: dict[str, Any]) -> list[float]:
    return [one for (one,) in struct.iter_unpack("<f", base64.b64decode(entry["data"]))]


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES])
def test_an_answer_has_the_values_at_all_positions_that_were_read(
    steered: Running, path: str
) -> None:
    body = asked(path)
    answer = steered.post(path, body).json()
    first, second = answer["service"]["activations_raw"]
    usage = answer["usage"]
    count = usage["total_tokens"] - 1
    assert (first["layer"], second["layer"]) == (1, 2)
    assert first["module_path"] == "model.layers.1"
    for entry in (first, second):
        assert entry["positions"] == list(range(count))
        assert entry["shape"] == [count, len(numbers(entry)) // count]
    assert numbers(first) != numbers(second)
    # the text is the same without them
    del body[FIELD]
    assert steered.post(path, body).json().get("choices") == answer.get("choices")


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_has_them_at_its_end(steered: Running, path: str) -> None:
    body = asked(path, positions="output", encoding="list", dtype="bfloat16")
    whole = steered.post(path, body).json()["service"]["activations_raw"]
    chunks = [one for one in steered.stream(path, body) if one != "[DONE]"]
    assert [one["service"]["activations_raw"] for one in chunks if "service" in one] == [whole]


def test_a_streamed_response_has_them_in_its_last_event(steered: Running) -> None:
    body = asked(RESPONSES, positions="output")
    whole = steered.post(RESPONSES, body).json()["service"]["activations_raw"]
    with steered.http.stream("POST", RESPONSES, json=body | {"stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["type"] for event in events if "activations_raw" in str(event)] == [
        "response.incomplete"
    ]
    assert events[-1]["response"]["service"]["activations_raw"] == whole


def test_more_than_a_request_may_have_is_refused_with_the_arithmetic(steered: Running) -> None:
    """Before a token is made. The fifth of eight choices would be over the limit."""
    body = asked(CHAT, [{"site": "logits"}], positions="output") | {"n": 8, "max_tokens": 1000}
    status, error = steered.v1_error(CHAT, body)
    assert (status, error["param"]) == (400, FIELD)
    choice = 1001 * 2048 * 4
    assert error["message"] == (
        f"{FIELD}: up to 1001 positions x 2048 numbers x 4 bytes = {choice} bytes, and {4 * choice} bytes of the choices"
        f" before it; at most {32 << 20} for a request (ACTIVATIONS_RAW_MAX_MB)"
    )
    fewer = body | {"max_tokens": 400, "stop": ["."]}
    assert steered.post(CHAT, fewer).status_code == 200


def test_choices_and_scoring_have_them_too(steered: Running) -> None:
    body = asked(CHAT, positions="last_prompt") | {"n": 2, "seed": 3}
    told = steered.post(CHAT, body).json()["service"]["activations_raw"]
    assert [(one["choice"], one["layer"]) for one in told] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert told[0]["data"] == told[2]["data"]
    scoring = asked(TEXT, positions="last_prompt") | {"max_tokens": 1, "logprobs": 1}
    scored = steered.post(TEXT, scoring).json()["service"]["activations_raw"]
    assert [one["shape"] for one in scored] == [one["shape"] for one in told[:2]]


def test_heads_the_pattern_and_the_logits_are_read_too(steered: Running) -> None:
    heads = [{"site": site, "layers": [2]} for site in ("q", "k", "v")]
    body = asked(TEXT, [*heads, {"site": "logits"}], positions="output")
    answer = steered.post(TEXT, body).json()
    q, k, v, logits = answer["service"]["activations_raw"]
    assert [q["shape"], k["shape"], v["shape"]] == [[4, 6, 32], [4, 2, 32], [4, 2, 32]]
    assert logits["layer"] is None
    assert logits["shape"][0] == 4
    assert "attention" not in q
    patterned = asked(TEXT, [{"site": "pattern", "layers": "all", "heads": [5, 0]}, heads[0]])
    read = steered.post(TEXT, patterned).json()
    told, count = read["service"]["activations_raw"], read["usage"]["total_tokens"] - 1
    assert [one["layer"] for one in told] == [0, 1, 2, 3, 4, 2]
    assert {one["attention"] for one in told} == {"plain"}
    assert told[0]["shape"] == [count, 2, count]
    rows = [numbers(told[0])[at : at + count] for at in range(0, 2 * count**2, count)]
    assert [sum(row) for row in rows] == pytest.approx([1.0] * len(rows), abs=2e-2)
    assert not any(number for at, row in enumerate(rows) for number in row[at // 2 + 1 :])


def test_a_site_that_a_model_lacks_is_refused_with_those_that_it_has(steered: Running) -> None:
    body = asked(CHAT, [{"site": "router_logits", "layers": "all"}])
    _, error = steered.v1_error(CHAT, body)
    assert "this model has no router_logits" in error["message"]
    assert "resid_post" in error["message"]
    assert "pattern" in error["message"]


@pytest.mark.parametrize(
    ("sites", "fields", "where"),
    [
        ([], {}, "sites"),
        ([{"site": "nowhere", "layers": [1]}], {}, "sites[0].site"),
        ([{"site": "resid_post", "layers": [1, 99]}], {}, "sites[0].layers"),
        ([{"site": "resid_post", "layers": [1, 1]}], {}, "sites[0].layers[1]"),
        ([{"site": "embed", "layers": [1]}], {}, "sites[0].layers"),
        ([{"site": "q"}], {}, "sites[0].layers"),
        ([{"site": "logits", "layers": [1]}], {}, "sites[0].layers"),
        ([{"site": "logits", "heads": [0]}], {}, "sites[0].heads"),
        ([{"site": "k", "layers": [1], "heads": [5]}], {}, "sites[0].heads"),
        ([{"site": "pattern", "layers": [1], "heads": [6]}], {}, "sites[0].heads"),
        ([{"site": "router_logits", "layers": [1]}], {}, "sites[0].site"),
        ([*SITES, {"site": "resid_post", "layers": [1], "heads": [0]}], {}, "sites[1].heads"),
        ([{"site": "hook_z", "layers": "all", "heads": [0, 99]}], {}, "sites[0].heads"),
        ([{"site": "hook_z", "layers": "all", "head": [0]}], {}, "sites[0].head"),
        (SITES, {"positions": "last"}, "positions"),
        (SITES, {"positions": {"prompt_position": [1]}}, "positions.prompt_position"),
        (SITES, {"positions": {"prompt_positions": [999]}}, "positions.prompt_positions"),
        (SITES, {"point": "between"}, "point"),
        (SITES, {"dtype": "float64"}, "dtype"),
        (SITES, {"encoding": "hex"}, "encoding"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(
    steered: Running, sites: list[dict[str, Any]], fields: dict[str, Any], where: str
) -> None:
    status, error = steered.v1_error(CHAT, asked(CHAT, sites, **fields))
    assert (status, error["param"]) == (400, f"{FIELD}.{where}")
