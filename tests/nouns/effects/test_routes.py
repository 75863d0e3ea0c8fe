"""/api/effects against a running service, and the same figures by the library's model in float64 with hooks of the
test's own."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.nouns.effects.store import EffectStore
from tests.service import Running, add_model, running
from tests.worker import models
from tests.worker.rows.reference_streams import Reference, reference
from tests.worker.running import with_bos
from tests.worker.saes import arrays, config_v6, write

PATH = "/api/effects"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PROMPTS = ["the boats were coming home", "other people", "she stood there with the baskets"]
WIDTH, FEATURE, LAYER = 64, 11, 0
SHORT = {"strengths": [4.0], "prompts": PROMPTS[:1], "tokens": 1, "random_directions": 0}


class Measured:
    """A service with a small model and an SAE, and the same model in float64."""

    def __init__(self, live: Running, folder: Path) -> None:
        self.live = live
        path = with_bos(models.save("llama", folder / "model"), TEMPLATE)
        self.reference: Reference = reference("llama", path)
        self.model_id = add_model(live, path, "small")
        self.live.data("POST", f"/api/models/{self.model_id}/load?wait=true")
        values = arrays("standard", seed=4, d_in=32, d_sae=WIDTH)
        self.decoder = torch.tensor(values["W_dec"]).double()
        metadata = {"hook_name": f"blocks.{LAYER}.hook_resid_post", "model_name": "small"}
        config = config_v6("standard", d_in=32, d_sae=WIDTH, metadata=metadata)
        body = {"local_path": str(write(folder / "sae", config, values))}
        self.sae_id = live.data("POST", "/api/saes/download", body, 202)["sae_id"]
        live.data("POST", f"/api/saes/{self.sae_id}/attach", {"layer": LAYER})
        data = base64.b64encode(values["W_dec"][3].astype("<f4").tobytes()).decode()
        vector = {"name": "calm", "source": "inline", "directions": [{"layer": 0, "data": data}]}
        live.data("POST", "/api/vectors", vector, 201)

    def effects(self, **body: Any) -> dict[str, Any]:
        job = self.live.data("POST", f"{PATH}?wait=true", body)["job"]
        assert (job["kind"], job["state"], job["error"]) == ("effects", "done", None)
        return dict(job["result"])

    def ids(self, text: str) -> list[int]:
        return list(self.live.data("POST", "/api/tokenize", {"text": text})["ids"])

    def logprobs(self, text: str, added: Tensor) -> Tensor:
        """The log-probabilities [vocabulary] after a text, with a direction added after the layer."""

        def add(_: Any, __: Any, output: Any) -> Any:
            value = output[0] if isinstance(output, tuple) else output
            return (value + added, *output[1:]) if isinstance(output, tuple) else value + added

        handle = self.reference.layers[LAYER].register_forward_hook(add)
        try:
            with torch.no_grad():
                ids = torch.tensor([self.ids(text)])
                found: Tensor = self.reference.model(input_ids=ids, use_cache=False).logits[0, -1]
        finally:
            handle.remove()
        return found.log_softmax(-1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("measured")
    with running(folder / "home") as live:
        yield Measured(live, folder)


@pytest.mark.parametrize("lever", ["feature", "vector"])
def test_the_figures_of_first_tokens_are_those_of_the_library(served: Measured, lever: str) -> None:
    """After one token a divergence is that of the distributions after the prompt."""
    given = {"feature": {"index": FEATURE}, "vector": "calm"}[lever]
    row = served.decoder[FEATURE if lever == "feature" else 3]
    found = served.effects(
        **{lever: given},
        strengths=[2.0, -5.0],
        prompts=PROMPTS,
        tokens=1,
        temperature=0,
        target={"words": ["home"], "control": ["fin"]},
    )
    first = [{served.ids(text)[1] for text in (word, f" {word}")} for word in ("home", "fin")]
    blank = served.ids(" home")[1]
    for told in found["rows"]:
        divergences, likelihoods, words = [], [], []
        for prompt in PROMPTS:
            steered = served.logprobs(prompt, told["strength"] * row)
            plain = served.logprobs(prompt, torch.zeros(32).double())
            divergences.append(float((steered.exp() * (steered - plain)).sum()))
            likelihoods.append(float(plain[steered.argmax()]))
            words.append([float(steered[sorted(one - {blank})].logsumexp(-1)) for one in first])
        assert told["kl_median"] == pytest.approx(np.quantile(divergences, 0.5), abs=1e-4)
        assert told["kl_p95"] == pytest.approx(np.quantile(divergences, 0.95), abs=1e-4)
        assert told["nll_under_plain"] == pytest.approx(-np.mean(likelihoods), abs=1e-4)
        means = np.mean(words, axis=0)
        assert told["target_logprob"] == pytest.approx(means[0], abs=1e-4)
        assert told["control_logprob"] == pytest.approx(means[1], abs=1e-4)
        assert (told["texts"], told["tokens"], told["repetition"]) == (3, 3, None)
    assert found["plain"]["kl_p95"] == pytest.approx(0, abs=1e-6)
    assert [one["texts"] for one in found["random"]] == [12, 12]
    assert found["random_directions"] == 4
    assert found["lever"] == {lever: given}


def test_what_works_and_what_breaks_is_judged_beside_plain_texts_and_each_direction(
    served: Measured,
) -> None:
    found = served.effects(
        feature={"index": FEATURE},
        strengths=[1.0, 60.0],
        prompts=PROMPTS,
        tokens=12,
        target={"words": ["home"]},
        random_directions=2,
    )
    plain = found["plain"]
    assert plain["works"] is None
    assert plain["damage"]["nll_over_plain"] == 0
    assert plain["damage"]["is_unbroken"] is True
    for row in found["rows"]:
        over = row["nll_under_plain"] - plain["nll_under_plain"]
        repeated = row["repetition"] - plain["repetition"]
        damage = row["damage"]
        assert damage["nll_over_plain"] == pytest.approx(over)
        assert damage["repetition_over_plain"] == pytest.approx(repeated)
        assert damage["is_unbroken"] is (over <= 1 and repeated <= 0.15)
        assert row["share_low"] <= row["share_with_words"] <= row["share_high"]
        assert isinstance(row["works"], bool)
    for row in found["random"]:
        assert row["works"] is None
        assert row["damage"]["nll_over_plain"] == pytest.approx(
            row["nll_under_plain"] - plain["nll_under_plain"]
        )
    suggested = found["suggested"]
    working = [row["strength"] for row in found["rows"] if row["works"]]
    assert suggested["smallest_that_works"] == min(working, default=None)
    # neither monitoring nor a corpus has seen the feature
    assert suggested["unit_max"] is None


def test_a_measurement_is_repeated_by_its_seed(served: Measured) -> None:
    asked = {"feature": {"index": FEATURE}, "strengths": [3.0], "tokens": 6}
    first = served.effects(**asked, random_directions=1)
    assert (first["prompts"], first["are_stock"]) == (8, True)
    assert len(first["rows"][0]["samples"]) == 2
    assert first == served.effects(**asked, random_directions=1)
    other = served.effects(**asked, random_directions=1, seed=5)
    assert other["rows"][0]["samples"] != first["rows"][0]["samples"]
    assert other["random"] != first["random"]
    assert other["digest"] != first["digest"]


def test_edits_are_made_at_an_intensity(served: Measured) -> None:
    add = {"op": "add", "feature": {"index": FEATURE}, "value": 2.0}
    twice = served.effects(edits=[add], **SHORT)
    alone = served.effects(feature={"index": FEATURE}, **SHORT | {"strengths": [8.0]})
    assert twice["rows"][0]["kl_p95"] == pytest.approx(alone["rows"][0]["kl_p95"])
    taken = {"op": "set", "feature": {"index": FEATURE}, "value": 30}
    found = served.effects(edits=[taken], **SHORT | {"random_directions": 2, "strengths": [1]})
    assert found["rows"][0]["kl_p95"] > 0
    assert (found["random"], found["random_directions"]) == ([], 0)
    assert "counterpart" in found["random_missing"]
    assert found["random_calibrated"] is None


def test_conversations_are_continued_too(served: Measured) -> None:
    prompts = ["the boats", [{"role": "user", "content": "come home"}]]
    found = served.effects(vector="calm", **SHORT | {"prompts": prompts})
    assert found["rows"][0]["texts"] == 2
    edit = {"op": "add", "vector": "calm", "value": 1, "positions": {"roles": ["user"]}}
    chats = served.effects(edits=[edit], **SHORT | {"prompts": prompts[1:]})
    assert chats["rows"][0]["kl_p95"] > 0
    _, code, details = served.live.error("POST", PATH, {"edits": [edit], **SHORT})
    assert (code, details["param"]) == ("INVALID_INTERVENTION", "edits[0].positions.roles")


GOOD = {"feature": {"index": FEATURE}, **SHORT}


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"vector": "calm"}, "VALIDATION_ERROR", "vector"),
        ({"feature": None}, "VALIDATION_ERROR", "feature"),
        ({"feature": None, "edits": []}, "VALIDATION_ERROR", "edits"),
        ({"strengths": [1, 1.0]}, "VALIDATION_ERROR", "strengths"),
        ({"strengths": []}, "VALIDATION_ERROR", None),
        ({"target": {"words": [" sea"]}}, "VALIDATION_ERROR", None),
        ({"strengths": [1, 201]}, "INVALID_PARAMETER", "strengths[1]"),
        ({"feature": {"index": WIDTH}}, "INVALID_FEATURE_INDEX", "feature.index"),
        ({"feature": {"index": 1, "sae_id": "sae_x"}}, "SAE_NOT_ATTACHED", "feature"),
        ({"feature": None, "vector": "nobody"}, "VECTOR_NOT_FOUND", "vector"),
        (
            {"feature": None, "edits": [{"op": "add", "feature": {"index": 1}}]},
            "INVALID_INTERVENTION",
            "edits[0].value",
        ),
        (
            {"feature": None, "edits": [{"op": "scale", "feature": {"index": 1}, "value": 1}]},
            "INVALID_INTERVENTION",
            "edits[0]",
        ),
    ],
)
def test_a_measurement_is_refused_by_its_field(
    served: Measured, change: dict[str, Any], code: str, param: str | None
) -> None:
    body = {name: value for name, value in (GOOD | change).items() if value is not None}
    _, told, details = served.live.error("POST", PATH, body)
    assert told == code
    if param is not None:
        assert details["param"] == param


def test_a_prompt_that_cannot_be_read_fails_the_job_by_its_place(served: Measured) -> None:
    body = GOOD | {"prompts": ["the boats", "home " * 5000]}
    _, code, details = served.live.error("POST", f"{PATH}?wait=true", body)
    assert (code, details["param"]) == ("CONTEXT_LENGTH_EXCEEDED", "prompts[1]")
    assert details["job_id"].startswith("job_")


def test_a_result_is_kept_and_is_evidence_for_a_profile_until_either_is_deleted(
    served: Measured,
) -> None:
    live = served.live
    found = served.effects(feature={"index": FEATURE}, **SHORT)
    kept = live.data("GET", f"{PATH}/{found['id']}")
    assert kept["result"] == found
    assert (kept["digest"], kept["strengths"], kept["evidence_for"]) == (
        found["digest"],
        SHORT["strengths"],
        [],
    )
    other = served.effects(vector="calm", **SHORT)
    calm = live.data("POST", "/api/profiles", {"name": "calm", "steering": {"1": 2.0}}, 201)["id"]
    record = live.data("PUT", f"{PATH}/{found['id']}/evidence/{calm}")
    assert live.data("PUT", f"{PATH}/{found['id']}/evidence/{calm}") == record
    assert record["evidence_for"] == [{"kind": "profile", "id": calm, "name": "calm"}]
    listed = live.data("GET", f"{PATH}?evidence_for={calm}")
    assert (listed["total"], [one["id"] for one in listed["effects"]]) == (1, [found["id"]])
    detached = live.data("DELETE", f"{PATH}/{found['id']}/evidence/{calm}")
    assert detached["evidence_for"] == []
    again = live.error("DELETE", f"{PATH}/{found['id']}/evidence/{calm}")
    assert again == (404, "EFFECT_NOT_FOUND", {"effect_id": found["id"], "document_id": calm})
    live.data("PUT", f"{PATH}/{found['id']}/evidence/{calm}")
    live.data("PUT", f"{PATH}/{other['id']}/evidence/{calm}")
    assert live.data("DELETE", f"{PATH}/{other['id']}") == {"effect_id": other["id"]}
    assert live.data("GET", f"{PATH}?evidence_for={calm}")["total"] == 1
    live.data("DELETE", f"/api/profiles/{calm}")
    assert live.data("GET", f"{PATH}/{found['id']}")["evidence_for"] == []
    for nobody, code in (("prof_nobody", "PROFILE_NOT_FOUND"), ("circ_x", "CIRCUIT_NOT_FOUND")):
        for method in ("PUT", "DELETE"):
            answer = live.error(method, f"{PATH}/{found['id']}/evidence/{nobody}")
            assert answer[:2] == (404, code)
    assert live.error("GET", f"{PATH}/{other['id']}")[:2] == (404, "EFFECT_NOT_FOUND")


def test_a_result_has_no_texts_where_an_operator_keeps_none(
    served: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.live.service.owners.settings, "keep_effect_samples", False)
    found = served.effects(feature={"index": FEATURE}, seed=11, **SHORT)
    kept = served.live.data("GET", f"{PATH}/{found['id']}")["result"]
    assert kept == found
    rows = [kept["plain"], *kept["rows"], *kept["random"]]
    assert [row["samples"] for row in rows] == [[] for _ in rows]


def test_a_result_for_which_there_is_no_room_is_answered_with_the_reason(
    served: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Refusal("DOCUMENT_STORE_FULL", "the store is full")
    monkeypatch.setattr(EffectStore, "add", AsyncMock(side_effect=full))
    found = served.effects(feature={"index": FEATURE}, seed=9, **SHORT)
    assert (found["id"], found["not_kept"]) == (None, "the store is full")
