"""Records of answers: where two differ, why they may, and recorded steering at the SAEs of now."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from steerserve.errors import Refusal
from steerserve.nouns.runs import rules as runs
from steerserve.nouns.runs.rules import (
    Run,
    RunChoice,
    RunMachine,
    RunModel,
    RunSae,
    RunScore,
    RunSettings,
    RunSteering,
)
from steerserve.rules.steering.edits import AllOf, AnyOf, Condition, Edit, Feature, Target
from steerserve.rules.steering.placing import ModelFacts
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction
from tests.refusals import refusal_of

MODEL = ModelFacts(2, {"resid_post": 2, "embed": 2}, vocabulary=10)
DIRECTION = Direction(0, "resid_post", struct.pack("<2f", 1.0, 0.0))
FEATURE = Feature("a@1", 3)


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


ATTACHED = {"a@1": sae("a@1", "d")}


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


def steered(**changes: Any) -> Run:
    """A record whose steering is of the SAE in `ATTACHED`."""
    return run(steering=replace(run().steering, **changes), saes=[*ATTACHED.values()])


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
    direction = DIRECTION
    when = AllOf((Condition(Feature("a@1", 2), above=1.0), Condition(direction, below=0.0)))
    edits = (Edit(FEATURE, Target(factor=0.0), when=when), Edit(direction, Target(), number=1))
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
    found = runs.placed(recorded, attached, MODEL)
    assert found.values == {"b@1": {7: 2.0}}
    assert found.modifiers.preserve_norm
    assert {key for edit in found.edits for key in edit.keys} == {"b@1"}
    assert found.edits[0].target == Target(factor=0.0)
    assert runs.placed(recorded, {"a@1": sae("a@1", "e")}, MODEL).values == {"a@1": {7: 2.0}}
    for missing in ({}, {"b@1": sae("b@1", "e")}, {"a@1": sae("a@1", "d", site="mlp_out")}):
        with pytest.raises(Refusal, match="not attached"):
            runs.placed(recorded, missing, MODEL)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"values": {"a@1": {8: 1.0}}}, "INVALID_FEATURE_INDEX"),
        ({"values": {"a@1": {1: 201.0}}}, "VALIDATION_ERROR"),
        ({"values": {"b@1": {1: 1.0}}}, "RUN_NOT_REPLAYABLE"),
        ({"edits": "!"}, "RUN_NOT_REPLAYABLE"),
        ({"edits": "wA=="}, "RUN_NOT_REPLAYABLE"),
        (
            {"edits": runs.encoded_edits([Edit(Feature("a@1", 8), Target(factor=0.0))])},
            "INVALID_FEATURE_INDEX",
        ),
    ],
)
def test_steering_that_no_service_records_is_refused(changes: dict[str, Any], code: str) -> None:
    assert refusal_of(runs.placed, steered(**changes), ATTACHED, MODEL).code == code


def add(**changes: Any) -> Edit:
    return replace(Edit(DIRECTION, Target(offset=1.0)), **changes)


def of_feature(**changes: Any) -> Edit:
    return replace(Edit(FEATURE, Target(factor=0.0)), **changes)


def at(layer: int = 0, site: str = "resid_post", *numbers: float) -> Direction:
    return Direction(layer, site, struct.pack(f"<{len(numbers) or 2}f", *(numbers or (1.0, 1.0))))


IF = Condition(DIRECTION, above=0.0)
DEEP = AnyOf((AnyOf((AnyOf((AnyOf((AnyOf((IF,)),)),)),)),))
NEVER = "INVALID_INTERVENTION"
UNKNOWN = "VECTOR_MISMATCH"


@pytest.mark.parametrize(
    ("edits", "code", "part"),
    [
        ([add(target=Target(offset=1e300))], NEVER, "[0].target"),
        ([add(), add(target=Target(offset=math.nan), number=1)], NEVER, "[1].target"),
        ([add(target=Target(factor=2.0, low=1.0))], NEVER, "[0].target"),
        ([add(target=Target(factor=2.0, offset=1.0))], NEVER, "[0].target"),
        ([of_feature(target=Target(offset=200.5))], NEVER, "[0].target"),
        ([of_feature(target=Target(low=10_001.0))], NEVER, "[0].target"),
        ([of_feature(strength=math.nan)], NEVER, "[0].strength"),
        ([of_feature(strength=2.5)], NEVER, "[0].strength"),
        ([add(strength=0.5)], NEVER, "[0].strength"),
        ([add(unit="metre")], NEVER, "[0].unit"),
        ([of_feature(unit="residual")], NEVER, "[0].unit"),
        ([add(to=DIRECTION)], NEVER, "[0].to"),
        ([add(to=at(1), target=Target(factor=2.0))], NEVER, "[0].to"),
        ([of_feature(at=Feature("a@1", -1))], NEVER, "[0].at.index"),
        ([add(at=at(0, "nowhere"))], NEVER, "[0].at.site"),
        ([add(at=at(-1))], NEVER, "[0].at.layer"),
        ([add(at=at(0, "embed", 0.0, -0.0))], NEVER, "[0].at.data"),
        ([add(at=at(0, "embed", math.inf, 1.0))], NEVER, "[0].at.data"),
        ([add(at=Direction(0, "resid_post", bytes(3)))], NEVER, "[0].at.data"),
        ([add(positions=Positions(Selection(names=("some",))))], NEVER, "[0].positions.names"),
        (
            [add(positions=Positions(Selection(generated_window=(3, 2))))],
            NEVER,
            "[0].positions.generated_window",
        ),
        (
            [add(positions=Positions(exclude=Selection(tokens=(-1,))))],
            NEVER,
            "[0].positions.exclude.tokens",
        ),
        ([add(when=Condition(DIRECTION))], NEVER, "[0].when"),
        ([add(when=Condition(DIRECTION, above=1e39))], NEVER, "[0].when"),
        ([add(when=Condition(DIRECTION, above=1.0, over="sum"))], NEVER, "[0].when.over"),
        ([add(when=Condition(DIRECTION, above=1.0, hold=0))], NEVER, "[0].when.hold"),
        (
            [add(when=Condition(DIRECTION, above=1.0, over="prompt_max", hold=2))],
            NEVER,
            "[0].when.hold",
        ),
        ([add(when=AllOf(()))], NEVER, "[0].when.conditions"),
        ([add(when=DEEP)], NEVER, "[0].when" + 4 * ".conditions[0]" + ".conditions"),
        ([add(), add()], NEVER, "[1].number"),
        ([add(number=n) for n in range(129)], "TOO_MANY_EDITS", ""),
        (
            [add(number=n, when=AnyOf(16 * (IF,))) for n in range(9)],
            "TOO_MANY_EDITS",
            "",
        ),
    ],
)
def test_edits_that_no_request_can_have_are_refused_by_place_at_the_import_and_the_replay(
    edits: list[Edit], code: str, part: str
) -> None:
    recorded = steered(edits=runs.encoded_edits(edits))
    imported = refusal_of(runs.check_imported, recorded, "runs[0]")
    replayed = refusal_of(runs.placed, recorded, ATTACHED, MODEL)
    assert imported.code == replayed.code == code
    assert imported.param == f"runs[0].steering.edits{part}"
    assert replayed.param == f"steering.edits{part}"


@pytest.mark.parametrize(
    ("edits", "code", "part"),
    [
        ([add(at=at(2))], UNKNOWN, "[0].at"),
        ([add(at=at(0, "resid_post", 1.0, 1.0, 1.0))], UNKNOWN, "[0].at"),
        ([add(to=at(1, "embed"), target=Target(factor=2.0), at=at(1, "embed"))], UNKNOWN, "[0].at"),
        ([add(when=AnyOf((Condition(at(7), above=1.0),)))], UNKNOWN, "[0].when"),
        ([add(when=Condition(at(1), above=1.0))], NEVER, "[0].when"),
        ([add(when=Condition(FEATURE, above=1.0))], NEVER, "[0].when"),
        ([add(positions=Positions(Selection(tokens=(10,))))], NEVER, "[0].positions.tokens"),
        (
            [add(target=Target(factor=0.5), number=n) for n in range(33)],
            "TOO_MANY_EDITS",
            "",
        ),
    ],
)
def test_edits_that_do_not_fit_the_model_are_imported_and_refused_at_the_replay(
    edits: list[Edit], code: str, part: str
) -> None:
    recorded = steered(edits=runs.encoded_edits(edits))
    runs.check_imported(recorded, "runs[0]")
    refused = refusal_of(runs.placed, recorded, ATTACHED, MODEL)
    assert (refused.code, refused.param) == (code, f"steering.edits{part}")


def test_the_edits_of_a_request_beside_as_many_live_ones_are_a_record() -> None:
    many = [of_feature(number=n, when=Condition(DIRECTION, above=1.0)) for n in range(128)]
    kinds = [
        add(number=n, target=target)
        for n, target in enumerate((Target(low=1.0), Target(high=1.0), Target(factor=-3.0)))
    ]
    swap = Edit(DIRECTION, Target(factor=2.0), strength=0.5, to=at(0), number=9)
    for edits in (many[:32], [*kinds, swap]):
        recorded = steered(edits=runs.encoded_edits(edits))
        runs.check_imported(recorded, "runs[0]")
        assert len(runs.placed(recorded, ATTACHED, MODEL).edits) == len(edits)
