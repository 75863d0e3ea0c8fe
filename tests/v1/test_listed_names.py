"""Every id that `/v1/models` lists can be used, and it is the name in the answers."""

from __future__ import annotations

from tests.conftest import Start
from tests.service import add_model
from tests.v1.conftest import Zoo

CHAT = "/v1/completions"


def test_a_folder_at_two_precisions_is_listed_by_two_names_that_requests_may_use(
    start: Start, zoo: Zoo
) -> None:
    with start() as live:
        for quantization in ("FP16", "Q8"):
            add_model(live, zoo.folders["plain"], "plain", quantization=quantization)
        add_model(live, zoo.folders["tiny"], "tiny")
        ids = [model["id"] for model in live.http.get("/v1/models").json()["data"]]
        assert ids == ["plain:FP16", "plain:Q8", "tiny"]
        for name in ids:
            assert live.http.get(f"/v1/models/{name}").json()["id"] == name
        answer = live.post(CHAT, {"model": "plain:FP16", "prompt": "a b", "max_tokens": 1}).json()
        assert answer["model"] == "plain:FP16"
        status, error = live.v1_error(CHAT, {"model": "plain", "prompt": "a", "max_tokens": 1})
        assert (status, error["code"]) == (400, "AMBIGUOUS_MODEL_NAME")
        assert error["details"]["candidates"] == ["plain:FP16", "plain:Q8"]


def test_a_locked_model_keeps_the_name_that_tells_it_from_the_other(start: Start, zoo: Zoo) -> None:
    with start() as live:
        first = add_model(live, zoo.folders["plain"], "plain", quantization="FP16")
        add_model(live, zoo.folders["plain"], "plain", quantization="Q8")
        live.data("POST", f"/api/models/{first}/load?wait=true")
        live.data("POST", f"/api/models/{first}/lock")
        (listed,) = live.http.get("/v1/models").json()["data"]
        assert listed["id"] == "plain:FP16"
        live.post(CHAT, {"model": listed["id"], "prompt": "a b", "max_tokens": 1})
