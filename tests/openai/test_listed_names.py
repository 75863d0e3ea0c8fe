"""Every id that `/v1/models` lists can be used, and it is the name in the answers."""

from __future__ import annotations

import pytest

from tests.openai.conftest import Zoo, holding
from tests.service import Running, add_model

CHAT = "/v1/completions"


@pytest.mark.shows("model-naming.1")
def test_a_folder_at_two_precisions_is_listed_by_two_names_that_requests_may_use(
    bare: Running, zoo: Zoo
) -> None:
    for quantization in ("FP16", "Q8"):
        add_model(bare, zoo.folders["plain"], "plain", quantization=quantization)
    add_model(bare, zoo.folders["tiny"], "tiny")
    ids = [model["id"] for model in bare.http.get("/v1/models").json()["data"]]
    assert ids == ["plain:FP16", "plain:Q8", "tiny"]
    for name in ids:
        assert bare.http.get(f"/v1/models/{name}").json()["id"] == name
    answer = bare.post(CHAT, {"model": "plain:FP16", "prompt": "a b", "max_tokens": 1}).json()
    assert answer["model"] == "plain:FP16"
    status, error = bare.v1_error(CHAT, {"model": "plain", "prompt": "a", "max_tokens": 1})
    assert (status, error["code"]) == (400, "AMBIGUOUS_MODEL_NAME")
    assert error["details"]["candidates"] == ["plain:FP16", "plain:Q8"]


@pytest.mark.shows("inference.6")
def test_models_that_are_ready_loading_or_loaded_are_listed(zoo: Zoo) -> None:
    def listed() -> set[str]:
        return {model["id"] for model in zoo.live.http.get("/v1/models").json()["data"]}

    zoo.renew("damaged")
    zoo.empty()
    with holding(zoo.live.service.owners.launcher, "launch_resident") as hold:
        zoo.live.data("POST", f"/api/models/{zoo.ids['tiny']}/load", status=202)
        hold.wait()
        assert zoo.status("tiny") == "loading"
        assert {"tiny", "plain", "damaged"} <= listed()
    zoo.live.post(CHAT, {"model": "tiny", "prompt": "fish", "max_tokens": 1})
    assert zoo.status("tiny") == "loaded"
    assert {"tiny", "plain", "damaged"} <= listed()
    assert zoo.live.v1_error(CHAT, {"model": "damaged", "prompt": "fish"})[0] == 500
    assert zoo.status("damaged") == "error"
    assert {"tiny", "plain"} <= listed()
    assert "damaged" not in listed()


def test_a_locked_model_keeps_the_name_that_tells_it_from_the_other(
    bare: Running, zoo: Zoo
) -> None:
    first = add_model(bare, zoo.folders["plain"], "plain", quantization="FP16")
    add_model(bare, zoo.folders["plain"], "plain", quantization="Q8")
    bare.data("POST", f"/api/models/{first}/load?wait=true")
    bare.data("POST", f"/api/models/{first}/lock")
    (listed,) = bare.http.get("/v1/models").json()["data"]
    assert listed["id"] == "plain:FP16"
    bare.post(CHAT, {"model": listed["id"], "prompt": "a b", "max_tokens": 1})
