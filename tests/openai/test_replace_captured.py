"""`replace` with the values of a capture: one row of it, or the mean of its rows."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from steerserve import demo
from tests.service import Running

CAPTURES, TEXT = "/api/captures", "/v1/completions"
PROMPT, OTHER = "The boats came back", "A whale swam near"
LAYER = 2
Array = np.ndarray[Any, Any]


@pytest.fixture
def live(steered: Running) -> Iterator[Running]:
    yield steered
    for one in steered.data("GET", CAPTURES)["captures"]:
        steered.data("DELETE", f"{CAPTURES}/{one['id']}")


def captured(live: Running, **fields: Any) -> str:
    sites = [{"site": "resid_post", "layers": [1, LAYER]}, {"site": "hook_z", "layers": [LAYER]}]
    asked = {"name": "whales", "texts": [OTHER, "The sea"], "sites": sites} | fields
    job = live.data("POST", f"{CAPTURES}?wait=true", asked)["job"]
    assert job["state"] == "done", job["error"]
    return str(job["result"]["capture_id"])


def answer(live: Running, source: dict[str, Any] | None, **fields: Any) -> Any:
    """The answer to the prompt, whose last position has the value of the source, with the values of the sites."""
    asked: dict[str, Any] = {"model": demo.MODEL_NAME, "prompt": PROMPT, "max_tokens": 6}
    sites = [{"site": site, "layers": [LAYER]} for site in ("resid_post", "hook_z")]
    asked |= {"temperature": 0, "return_activations_raw": {"sites": sites}}
    if source is not None:
        put = {"op": "replace", "layer": LAYER, "positions": "last_prompt", "source": source}
        asked |= {"interventions": {"edits": [put | fields]}}
    found = live.post(TEXT, asked)
    assert found.status_code == 200, found.text
    return found.json()


def values(answered: Any, place: int = 0) -> Array:
    """The values of a site at the positions of an answer."""
    one = answered["service"]["activations_raw"][place]
    return np.frombuffer(base64.b64decode(one["data"]), "<f4").reshape(one["shape"])


def test_a_row_is_the_value_that_its_text_has_there(live: Running) -> None:
    capture = captured(live)
    by_text = answer(live, {"text": OTHER, "positions": "last_prompt"})
    rows = live.http.get(f"{CAPTURES}/{capture}/files/index.jsonl").text.splitlines()
    last = max(n for n, line in enumerate(rows) if '"text":0,' in line)
    by_row = answer(live, {"capture": capture, "row": last})
    np.testing.assert_allclose(values(by_row), values(by_text), rtol=2e-2, atol=2e-2)
    assert by_row["choices"] == by_text["choices"]
    assert by_row["choices"] != answer(live, None)["choices"]


def test_the_mean_of_a_capture_takes_away_what_the_position_says(live: Running) -> None:
    capture = captured(live)
    record = live.http.get(f"{CAPTURES}/{capture}/files/capture.json").json()
    means = {
        (one["site"], one["layer"]): np.frombuffer(base64.b64decode(one["mean"]), "<f8")
        for one in record["sites"]
    }
    whole = answer(live, {"mean_of": capture})
    at = answer(live, None)["usage"]["prompt_tokens"] - 1
    expected = means["resid_post", LAYER]
    np.testing.assert_allclose(values(whole)[at], expected, rtol=1e-2, atol=1e-2)
    # of some heads, the others stay as they are
    some = answer(live, {"mean_of": capture}, site="hook_z", heads=[1])
    plain = values(answer(live, None), 1)
    expected = np.array(plain[at])
    expected[1] = means["hook_z", LAYER].reshape(expected.shape)[1]
    np.testing.assert_allclose(values(some, 1)[at], expected, rtol=1e-2, atol=1e-2)
    only = captured(live, name="heads", sites=[{"site": "hook_z", "layers": [LAYER], "heads": [1]}])
    again = answer(live, {"mean_of": only}, site="hook_z", heads=[1])
    assert again["choices"] == some["choices"]
    np.testing.assert_array_equal(values(again, 1), values(some, 1))


def test_live_edits_keep_the_values_of_a_capture_that_is_deleted(live: Running) -> None:
    capture = captured(live)
    put = {"op": "replace", "layer": LAYER, "source": {"mean_of": capture}}
    live.data("PUT", "/api/interventions", {"edits": [put | {"positions": "last_prompt"}]})
    try:
        expected = answer(live, {"mean_of": capture})["choices"]
        live.data("DELETE", f"{CAPTURES}/{capture}")
        assert answer(live, None)["choices"] == expected
    finally:
        live.data("DELETE", "/api/interventions")


@pytest.mark.parametrize(
    ("source", "more", "status", "code", "where"),
    [
        ({"mean_of": "capture_000000000000"}, {}, 404, "capture_not_found", "source.mean_of"),
        ({"capture": "../etc", "row": 0}, {}, 404, "capture_not_found", "source.capture"),
        ({"capture": "{id}", "row": 9999}, {}, 400, "invalid_parameter", "source.row"),
        ({"capture": "{id}", "row": -1}, {}, 400, "invalid_parameter", "source.row"),
        ({"capture": "{id}"}, {}, 400, "invalid_parameter", "source.row"),
        ({"mean_of": "{id}", "row": 1}, {}, 400, "invalid_parameter", "source.row"),
        ({"text": OTHER, "row": 1}, {}, 400, "invalid_parameter", "source.row"),
        ({"mean_of": "{id}", "text": OTHER}, {}, 400, "invalid_parameter", "source.text"),
        ({"mean_of": "{id}", "positions": "all"}, {}, 400, "invalid_parameter", "source.positions"),
        ({"mean_of": "{id}"}, {"layer": 3}, 400, "invalid_parameter", "source.mean_of"),
        ({"mean_of": "{id}"}, {"site": "mlp_out"}, 400, "invalid_parameter", "source.mean_of"),
        ({"mean_of": "{id}"}, {"site": "hook_z"}, 400, "invalid_parameter", "source.mean_of"),
        (
            {"mean_of": "{id}"},
            {"site": "hook_z", "heads": [1, 2]},
            400,
            "invalid_parameter",
            "source.mean_of",
        ),
        (
            {"mean_of": "{id}"},
            {"feature": {"index": 1}, "layer": None},
            400,
            "invalid_parameter",
            "source",
        ),
    ],
)
def test_what_a_capture_does_not_have_is_refused_by_its_place(
    live: Running, source: dict[str, Any], more: dict[str, Any], status: int, code: str, where: str
) -> None:
    sites = [{"site": "resid_post", "layers": [LAYER]}]
    sites.append({"site": "hook_z", "layers": [LAYER], "heads": [1]})
    capture = captured(live, sites=sites)
    put = {"op": "replace", "layer": LAYER, "source": source} | more
    put = {name: value for name, value in put.items() if value is not None}
    put["source"] = {n: capture if v == "{id}" else v for n, v in source.items()}
    asked = {"model": demo.MODEL_NAME, "prompt": PROMPT, "max_tokens": 1}
    found, error = live.v1_error(TEXT, asked | {"interventions": {"edits": [put]}})
    assert (found, error["code"]) == (status, code), error
    assert error["param"] == f"interventions.edits[0].{where}"
