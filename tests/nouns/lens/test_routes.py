"""/api/lens and /api/attribution on the demo model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from steerserve import demo
from tests.conftest import Start
from tests.service import Running, add_sae, load_demo

TEXT = "The old fisherman went down to the"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
ASKED: dict[str, Any] = {"text": TEXT, "position": -1, "target_token": 5}


def lens(live: Running, **body: Any) -> dict[str, Any]:
    return dict(live.data("POST", "/api/lens", body))


def attribution(live: Running, **body: Any) -> dict[str, Any]:
    return dict(live.data("POST", "/api/attribution", ASKED | body))


def scored(live: Running, prompt: Any) -> dict[str, Any]:
    answer = live.complete(prompt, max_tokens=1, logprobs=5, echo=True, temperature=1)
    return dict(answer["choices"][0]["logprobs"])


def test_the_last_layer_is_the_distribution_of_the_model(shared: Running) -> None:
    found = lens(shared, text=TEXT)
    logprobs = scored(shared, TEXT)
    assert found["model"] == demo.MODEL_NAME
    assert [one["token"] for one in found["tokens"]] == logprobs["tokens"][:-1]
    layers = [one["layer"] for one in found["layers"]]
    assert layers == list(range(len(layers)))
    last = found["layers"][-1]["positions"]
    assert len(last) == len(found["tokens"])
    # the place after the text is that of the token that is scored last
    for listed, top in zip(last, logprobs["top_logprobs"][1:], strict=True):
        expected = sorted(top.values(), reverse=True)[:5]
        assert [math.log(one["prob"]) for one in listed] == pytest.approx(expected, abs=1e-3)
        assert {one["token"] for one in listed} <= set(top)


def test_layers_and_tokens_are_as_many_as_asked_for(shared: Running) -> None:
    whole = lens(shared, text=TEXT, top=2)
    found = lens(shared, text=TEXT, layers=[3, 1], top=2, kind="logit")
    assert found["layers"] == [whole["layers"][3], whole["layers"][1]]
    assert {len(at) for layer in found["layers"] for at in layer["positions"]} == {2}


def test_a_trained_lens_is_read_from_its_files(shared: Running, tmp_path: Path) -> None:
    plain = lens(shared, text=TEXT, layers=[1, 3], top=2)
    refused = tmp_path / "other.pt"
    torch.save({"J": {1: torch.eye(3)}}, refused)
    body = {"text": TEXT, "kind": {"local_path": str(refused)}}
    assert shared.error("POST", "/api/lens", body)[:2] == (409, "LENS_MISMATCH")
    model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR)
    file = tmp_path / "same.pt"
    torch.save({"J": {layer: torch.eye(model.config.hidden_size) for layer in (1, 3)}}, file)
    # the identity maps nothing
    found = lens(shared, text=TEXT, top=2, kind={"local_path": str(file)})
    assert found["kind"] == "jacobian"
    by_layer = {one["layer"]: one["positions"] for one in found["layers"]}
    assert set(by_layer) == {1, 3, model.config.num_hidden_layers - 1}
    for one in plain["layers"]:
        for listed, same in zip(one["positions"], by_layer[one["layer"]], strict=True):
            assert [at["token_id"] for at in listed] == [at["token_id"] for at in same]
    nowhere = {"text": TEXT, "kind": {"local_path": str(tmp_path / "nowhere")}}
    assert shared.error("POST", "/api/lens", nowhere)[1] == "INVALID_LOCAL_PATH"


def test_a_conversation_is_read_as_a_chat_reads_it(shared: Running) -> None:
    ids = shared.data("POST", "/api/tokenize", {"messages": MESSAGES})["ids"]
    found = lens(shared, messages=MESSAGES, layers=[0], top=1)
    assert [one["token_id"] for one in found["tokens"]] == ids


def test_a_text_is_read_unsteered(steered: Running) -> None:
    plain = lens(steered, text=TEXT), attribution(steered)
    proof = demo.proof()
    values = {"feature_idx": proof["feature_idx"], "value": proof["strength"]}
    steered.data("POST", "/api/saes/steering", values)
    assert (lens(steered, text=TEXT), attribution(steered)) == plain


def test_contributions_are_of_the_features_that_are_active_there(steered: Running) -> None:
    found = attribution(steered, top=1000)
    tapped = {"top_k": 64, "positions": "all"}
    answer = steered.complete(TEXT, max_tokens=1, return_sae_activations=tapped)
    read = next(
        one
        for one in answer["service"]["sae_activations"]["positions"]
        if one["position"] == found["position"]
    )
    active = {one["index"]: one for one in read["features"]}
    assert found["active"] == len(active)
    assert {one["index"] for one in found["features"]} <= set(active)
    for one in found["features"]:
        assert one["activation"] == pytest.approx(active[one["index"]]["value"], rel=1e-3)
        assert one.get("label") == active[one["index"]].get("label")
    sizes = [abs(one["contribution"]) for one in found["features"]]
    assert sizes == sorted(sizes, reverse=True)
    assert found["total"] == pytest.approx(
        sum(one["contribution"] for one in found["features"]), abs=1e-3
    )
    assert found["left_out"] == pytest.approx(found["whole"] - found["total"])
    assert found["explained"] == pytest.approx(found["total"] / found["whole"])
    assert found["whole_before_softcap"] is None
    assert found["against"] is None


@pytest.mark.parametrize("over", ["position", "all"])
@pytest.mark.parametrize("method", ["gradient", "integrated"])
def test_gradients_explain_what_the_features_do_together(
    steered: Running, method: str, over: str
) -> None:
    direct = attribution(steered, top=1000)
    found = attribution(steered, top=1000, method=method, over=over, steps=32)
    assert (direct["method"], direct["over"], direct["steps"]) == ("direct", "position", None)
    assert (direct["effect"], direct["error"]) == (None, None)
    assert (found["method"], found["over"], found["direct_only"]) == (method, over, False)
    assert found["steps"] == (32 if method == "integrated" else None)
    assert found["whole"] == direct["whole"]
    at = [one for one in found["features"] if one["position"] == found["position"]]
    same = {one["index"]: one["activation"] for one in direct["features"]}
    assert {one["index"]: one["activation"] for one in at} == pytest.approx(same)
    assert (len(found["features"]) > len(at)) == (over == "all")
    assert found["total"] == pytest.approx(
        sum(one["contribution"] for one in found["features"]), abs=1e-3
    )
    assert found["explained"] == pytest.approx(found["total"] / found["effect"])


def test_the_whole_is_the_difference_of_the_models_logits(steered: Running) -> None:
    top = scored(steered, TEXT)["top_logprobs"][-1]
    (first, most), (second, less) = sorted(top.items(), key=lambda one: -one[1])[:2]
    found = attribution(steered, target_token=first, against_token=second)
    assert found["whole"] == pytest.approx(most - less, abs=1e-3)
    assert (found["target"]["token"], found["against"]["token"]) == (first, second)
    by_id = attribution(
        steered,
        target_token=found["target"]["token_id"],
        against_token=found["against"]["token_id"],
        position=found["position"],
    )
    assert by_id == found


def test_the_sae_is_named_where_several_are_attached(steered: Running) -> None:
    saes = [{"sae_id": add_sae(steered, sae), "layer": sae.layer} for sae in demo.saes()[:2]]
    steered.data("POST", "/api/saes/attach-set", {"saes": saes})
    first, second = (attribution(steered, **one) for one in saes)
    unnamed = steered.error("POST", "/api/attribution", ASKED)
    steered.data("POST", f"/api/saes/{saes[1]['sae_id']}/detach")
    for found, sae in ((first, saes[0]), (second, saes[1])):
        assert {name: found[name] for name in sae} == sae
    assert first["whole"] == pytest.approx(second["whole"], abs=1e-4)
    assert first["direct_only"]
    assert unnamed[:2] == (400, "INVALID_PARAMETER")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({}, 422, "VALIDATION_ERROR", None),
        ({"text": "a", "messages": MESSAGES}, 422, "VALIDATION_ERROR", None),
        ({"text": "a", "kind": ""}, 422, "VALIDATION_ERROR", None),
        ({"text": "a", "kind": "tuned"}, 404, "LENS_NOT_FOUND", None),
        ({"text": "a", "layers": []}, 422, "VALIDATION_ERROR", None),
        ({"text": "a", "top": 0}, 422, "VALIDATION_ERROR", None),
        ({"text": "a", "top": 101}, 422, "VALIDATION_ERROR", None),
        ({"text": "a", "layers": [0, 99]}, 400, "INVALID_PARAMETER", "layers[1]"),
        ({"text": "a", "layers": [0, 0]}, 400, "INVALID_PARAMETER", "layers[1]"),
        ({"text": "One day " * 60, "top": 100}, 400, "INVALID_PARAMETER", "layers"),
    ],
)
def test_a_lens_that_cannot_be_answered_is_refused(
    shared: Running, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    found = shared.error("POST", "/api/lens", body)
    assert found[:2] == (status, code)
    if body.get("kind") == "":
        assert found[2]["errors"][0]["loc"][:2] == ["body", "kind"]
    assert param is None or found[2]["param"] == param


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"position": None}, 422, "VALIDATION_ERROR", None),
        ({"position": 99}, 400, "INVALID_PARAMETER", "position"),
        ({"target_token": True}, 422, "VALIDATION_ERROR", None),
        ({"target_token": "the sea and the sky"}, 400, "INVALID_PARAMETER", "target_token"),
        ({"against_token": "the sea and the sky"}, 400, "INVALID_PARAMETER", "against_token"),
        ({"target_token": 10**6}, 400, "INVALID_PARAMETER", "target_token"),
        ({"sae_id": "sae_other"}, 400, "SAE_NOT_ATTACHED", None),
        ({"top": 1001}, 422, "VALIDATION_ERROR", None),
        ({"method": "shapley"}, 422, "VALIDATION_ERROR", None),
        ({"over": "all"}, 400, "INVALID_PARAMETER", "over"),
        ({"method": "integrated", "steps": 257}, 422, "VALIDATION_ERROR", None),
        (
            {"method": "integrated", "steps": 256, "over": "all", "text": "One day " * 20},
            400,
            "INVALID_PARAMETER",
            "over",
        ),
    ],
)
def test_an_attribution_that_cannot_be_made_is_refused(
    steered: Running, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    found = steered.error("POST", "/api/attribution", ASKED | body)
    assert found[:2] == (status, code)
    assert param is None or found[2]["param"] == param


def test_bounds_and_what_needs_a_model_or_an_sae(start: Start) -> None:
    with start(lens_max_distributions=8) as live:
        for route, body in (("lens", {"text": "a"}), ("attribution", ASKED)):
            assert live.error("POST", f"/api/{route}", body)[:2] == (400, "MODEL_NOT_LOADED")
        load_demo(live)
        assert live.error("POST", "/api/attribution", ASKED)[:2] == (400, "SAE_NOT_ATTACHED")
        status, code, details = live.error("POST", "/api/lens", {"text": TEXT})
        assert (status, code, details["maximum"]) == (400, "INVALID_PARAMETER", 8)
        assert lens(live, text="a", layers=[0])["layers"][0]["layer"] == 0
