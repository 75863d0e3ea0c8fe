"""Records of answers: where two differ, why they may, and recorded steering at the SAEs of now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from steerserve.errors import Refusal
from steerserve.rules.inference import runs
from steerserve.rules.inference.runs import (
    Run,
    RunChoice,
    RunMachine,
    RunModel,
    RunSae,
    RunScore,
    RunSettings,
    RunSteering,
)
from steerserve.rules.steering.edits import AllOf, Condition, Edit, Feature, Target
from steerserve.rules.steering.vector import Direction


def sae(key: str, digest: str | None, **changes: Any) -> RunSae:
    sae_id, layer = key.split("@")
    made = RunSae(
        key=key,
        sae_id=sae_id,
        layer=int(layer),
        site="resid_post",
        d_sae=8,
        repository_id=None,
        revision=None,
        file_path=None,
        content_digest=digest,
        overrides={},
    )
    return replace(made, **changes)


def run(**changes: Any) -> Run:
    steering = RunSteering(
        state=None, sources=[], values={}, edits=None, preserve_norm=False, changed=False
    )
    made = Run(
        request_id="cmpl-1",
        created_at=datetime(2026, 1, 5, tzinfo=UTC),
        route="/v1/completions",
        body={"prompt": "a", "stream": True, "profile": "calm"},
        seed=3,
        seed_chosen=True,
        model=RunModel(
            name="m",
            repository_id=None,
            revision=None,
            content_digest="d",
            quantization="FP16",
            dtype="float32",
            engine="checkpoint",
        ),
        saes=[],
        steering=steering,
        versions={"torch": "2.0"},
        machine=RunMachine(device="cpu", processor="x", probe="p", shares_passes=False),
        settings=RunSettings(default_max_tokens=512, continuous_batching=False),
        prompt_tokens=[1],
        choices=[],
    )
    return replace(made, **changes)


def choice(text: str, **changes: Any) -> RunChoice:
    return replace(RunChoice(text=text, finish_reason="stop", tokens=2, scores=None), **changes)


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ([choice("a")], [choice("a")], None),
        ([choice("abc")], [choice("abd")], (0, "text", 2, "c", "d")),
        ([choice("ab")], [choice("abc")], (0, "text", 2, "", "c")),
        (
            [choice("a"), choice("a")],
            [choice("a"), choice("a", finish_reason="length")],
            (1, "finish_reason", None, "stop", "length"),
        ),
        ([choice("a")], [choice("a", tokens=3)], (0, "tokens", None, "2", "3")),
        (
            [choice("a", scores=[RunScore(1, -0.5)])],
            [choice("a", scores=[RunScore(1, -0.25)])],
            (0, "scores", 0, "1: -0.5", "1: -0.25"),
        ),
        ([choice("a")], [], (0, "choices", None, "1", "0")),
    ],
)
def test_the_first_difference_has_its_place(
    then: list[RunChoice], now: list[RunChoice], found: tuple[object, ...] | None
) -> None:
    made = runs.first_difference(then, now)
    told = (made.choice, made.part, made.at, made.recorded, made.replayed) if made else None
    assert told == found


def codes(then: Run, now: Run) -> list[str]:
    return [one.code for one in runs.reasons(then, now)]


def test_what_is_not_as_it_was_is_a_reason() -> None:
    then = run()
    assert codes(then, then) == []
    assert codes(then, run(prompt_tokens=[2])) == ["prompt"]
    assert codes(then, run(model=replace(then.model, content_digest="e"))) == ["model"]
    assert codes(then, run(steering=replace(then.steering, state="s"))) == ["steering"]
    settings = replace(then.settings, default_max_tokens=5)
    assert codes(then, run(settings=settings)) == ["settings"]
    assert codes(run(seed=None), run(seed=None)) == ["neighbours"]
    shared = replace(then.machine, shares_passes=True)
    assert codes(run(seed=None, machine=shared), run(seed=None, machine=shared)) == []


def test_a_body_is_sent_again_without_its_steering() -> None:
    assert runs.replayed_body(run()) == {"prompt": "a", "seed": 3, "model": "m"}


def test_recorded_steering_moves_to_the_keys_of_now() -> None:
    direction = Direction(0, "resid_post", bytes(8))
    when = AllOf((Condition(Feature("a@1", 2), above=1.0), Condition(direction, below=0.0)))
    edits = (Edit(Feature("a@1", 3), Target(factor=0.0), when=when), Edit(direction, Target()))
    steering = RunSteering(
        state="s",
        sources=[],
        values={"a@1": {7: 2.0}, "gone@0": {}},
        edits=runs.encoded_edits(edits),
        preserve_norm=True,
        changed=False,
    )
    recorded = run(steering=steering, saes=[sae("a@1", "d")])
    # the same content under another id comes before another content under the same id
    attached = {"a@1": sae("a@1", "e"), "b@1": sae("b@1", "d")}
    found = runs.placed(recorded, attached)
    assert found.values == {"b@1": {7: 2.0}}
    assert found.keeps_norm
    assert {key for edit in found.edits for key in edit.keys} == {"b@1"}
    assert found.edits[0].target == Target(factor=0.0)
    assert runs.placed(recorded, {"a@1": sae("a@1", "e")}).values == {"a@1": {7: 2.0}}
    for missing in ({}, {"b@1": sae("b@1", "e")}, {"a@1": sae("a@1", "d", site="mlp_out")}):
        with pytest.raises(Refusal, match="not attached"):
            runs.placed(recorded, missing)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"values": {"a@1": {8: 1.0}}}, "INVALID_FEATURE_INDEX"),
        ({"values": {"a@1": {1: 201.0}}}, "VALIDATION_ERROR"),
        ({"values": {"b@1": {1: 1.0}}}, "RUN_NOT_REPLAYABLE"),
        ({"edits": "!"}, "RUN_NOT_REPLAYABLE"),
        ({"edits": "wA=="}, "RUN_NOT_REPLAYABLE"),
        (
            {"edits": runs.encoded_edits([Edit(Feature("a@1", -1), Target())])},
            "INVALID_FEATURE_INDEX",
        ),
        (
            {
                "edits": runs.encoded_edits(
                    [Edit(Direction(0, "resid_post", bytes(3)), Target(offset=1.0))]
                )
            },
            "RUN_NOT_REPLAYABLE",
        ),
    ],
)
def test_steering_that_no_service_records_is_refused(changes: dict[str, Any], code: str) -> None:
    steering = replace(run().steering, **changes)
    recorded = run(steering=steering, saes=[sae("a@1", "d")])
    with pytest.raises(Refusal) as refused:
        runs.placed(recorded, {"a@1": sae("a@1", "d")})
    assert refused.value.code == code
