"""/api/interventions against a running service."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.nouns.interventions.noun import INTERVENTIONS
from tests.openai.steering import STATE, chat, words
from tests.openai.test_interventions import SET, edit
from tests.resident import engine_of
from tests.service import Running

PATH = "/api/interventions"


def test_a_deleted_value_says_which_edits_still_steer_its_feature(steered: Running) -> None:
    steering = "/api/saes/steering"
    steered.data("POST", f"{steering}/batch", {"steering": {"7": 1, "14": 2}})
    edits = [edit("ablate", 14), edit("add", 7, value=5), SET, edit("set", 7, value=5)]
    steered.data("PUT", PATH, {"edits": edits})
    still = "feature 7 is still steered by edits[1] and edits[3] of the interventions"
    state = steered.data("DELETE", f"{steering}/7")
    assert (state["values"], state["warnings"]) == ({"7": 5.0, "14": 2.0}, [still])
    layer = steered.data("GET", "/api/saes/attachment")["layer"]
    state = steered.data("DELETE", f"{steering}?layer={layer}")
    assert state["warnings"] == [
        still,
        "feature 14 is still steered by edits[0] of the interventions",
        f"feature {SET['feature']['index']} is still steered by edits[2] of the interventions",
    ]
    assert "warnings" not in steered.data("GET", steering)
    steered.data("POST", f"{steering}/disable")
    assert "warnings" not in steered.data("DELETE", f"{steering}/7")
    assert "warnings" not in steered.data("DELETE", steering)


def test_interventions_steer_every_request_until_they_are_cleared(steered: Running) -> None:
    unsteered = chat(steered)
    assert steered.data("GET", PATH)["edits"] == []
    put = steered.data("PUT", PATH, {"edits": [SET, edit("add", 7, -30)]})
    assert put == steered.data("GET", PATH)
    assert (put["edits"], put["mode"]) == ([SET, edit("add", 7, -30)], "add")
    assert steered.data("GET", "/api/health/detailed")["interventions"] == 2
    live = chat(steered, return_steering_report=True)
    own = chat(steered, interventions={"edits": put["edits"]})
    cleared = steered.data("DELETE", PATH)
    assert (words(live), live.headers[STATE]) == (words(own), own.headers[STATE])
    report = live.json()["steering_report"]["edits"]
    assert [(one["source"], one["op"]) for one in report] == [("live", "add"), ("live", "set")]
    assert cleared["edits"] == []
    assert cleared["epoch"] == put["epoch"] + 1
    assert words(chat(steered)) == words(unsteered) != words(live)


def test_a_wrong_edit_is_refused_by_its_place(steered: Running) -> None:
    status, code, details = steered.error("PUT", PATH, {"edits": [SET, edit("set")]})
    assert (status, code, details["param"]) == (422, "INVALID_INTERVENTION", "edits[1].value")
    assert steered.data("GET", PATH)["edits"] == []


def test_edits_by_roles_act_in_a_prompt_that_is_in_tokens_when_they_are_set(
    steered: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = [edit("add", 7, 150) | {"positions": {"roles": ["user"]}}]
    prompts: Any = engine_of(steered)._prompts  # type: ignore[attr-defined]
    tokens, calls = prompts.tokens, iter([True])

    async def overtaken(*args: Any) -> Any:
        made = await tokens(*args)
        if next(calls, False):
            await steered.service.owners.owner(INTERVENTIONS).put({"edits": edits})
        return made

    monkeypatch.setattr(prompts, "tokens", overtaken)
    late = chat(steered, return_logprobs={})
    live = chat(steered, return_logprobs={})
    steered.data("DELETE", PATH)
    assert late.json()["service"] == live.json()["service"]
    assert chat(steered, return_logprobs={}).json()["service"] != live.json()["service"]
