"""The field `interventions`: what its JSON means, and the place that each refusal names."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering import interventions
from steerserve.rules.steering.edits import KINDS, REPLACE, SWAP
from steerserve.rules.steering.placed import Modifiers
from steerserve.rules.steering.positions import ALL, Positions, Selection
from steerserve.rules.steering.request import (
    AskedCondition,
    AskedConditions,
    NamedFeature,
    RequestSteering,
    SteeredFeature,
    SteeredVector,
    TextSource,
)
from steerserve.rules.steering.vector import Direction, Vector
from tests.refusals import refusal_of

FEATURE: dict[str, Any] = {"index": 4}
SET: dict[str, Any] = {"op": "set", "feature": FEATURE, "value": 2}
ADD: dict[str, Any] = {"op": "add", "vector": "kind", "value": 2}
TEXT: dict[str, Any] = {"text": "a whale"}
PUT: dict[str, Any] = {"op": "replace", "layer": 2, "source": TEXT}
EVERY = Selection(names=("all",))


def base64_of(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def inline(*numbers: float, **fields: Any) -> dict[str, Any]:
    return {"layer": 1, "data": base64_of(*numbers), **fields}


def parsed(*edits: dict[str, Any], **fields: Any) -> RequestSteering:
    return interventions.parse({"edits": list(edits), **fields})


def positions(value: Any) -> Positions:
    (edit,) = parsed({**SET, "positions": value}).edits
    return edit.positions


def when(value: Any) -> Any:
    (edit,) = parsed({**SET, "when": value}).edits
    return edit.when


def test_an_edit_of_a_feature_and_one_of_a_vector_have_all_their_fields() -> None:
    feature = {"index": 4, "sae_id": "sae_a", "layer": 2}
    layers = {"from": 3, "to": 9}
    made = parsed(
        {"op": "at_least", "feature": feature, "value": 3, "unit": "max", "positions": "prompt"},
        {**ADD, "unit": "residual", "layers": layers, "positions": "generated"},
        {"op": "swap", "vector": "a", "to": "b", "layers": [7, 5, 7]},
        {"op": "ablate", "vector": "a"},
        mode="add",
        preserve_norm=True,
    )
    prompt, generated = (Positions(Selection(names=(name,))) for name in ("prompt", "generated"))
    choice = SaeChoice("sae_a", 2)
    assert made == RequestSteering(
        (
            SteeredFeature(4, 3.0, choice, "at_least", "max", prompt),
            SteeredVector("kind", "add", 2.0, "residual", (3, 9), True, positions=generated),
            SteeredVector("a", "swap", 1.0, layers=(5, 7), to="b"),
            SteeredVector("a", "ablate", 1.0),
        ),
        is_added=True,
        field="interventions",
        modifiers=Modifiers(preserve_norm=True),
    )


def test_a_vector_inside_the_request_is_a_direction_of_its_layer() -> None:
    (edit,) = parsed({**ADD, "vector": inline(3, 4, site="resid_pre", shape=[2])}).edits
    assert isinstance(edit, SteeredVector)
    assert isinstance(edit.vector, Vector)
    data = struct.pack("<2f", 3, 4)
    assert edit.vector.directions == (Direction(1, "resid_pre", data),)
    assert edit.vector.directions[0].width == 2


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (None, ALL),
        ("all", ALL),
        ({"names": ["prompt", "generated", "last_prompt"]}, ALL),
        ("output", Positions(Selection(names=("last_prompt", "generated")))),
        (
            {"names": ["output", "generated"]},
            Positions(Selection(names=("last_prompt", "generated"))),
        ),
        ({"special_tokens": False}, Positions(EVERY, Selection(special=True))),
        ({"exclude": {"tokens": [5, 3, 5]}}, Positions(EVERY, Selection(tokens=(3, 5)))),
        (
            {"prompt_positions": [0, -1, 0], "exclude": {"prompt_window": [2, 4]}},
            Positions(Selection(prompt_positions=(-1, 0)), Selection(prompt_window=(2, 4))),
        ),
        ({"roles": ["user", "developer"]}, Positions(Selection(roles=("system", "user")))),
        (
            {"generated_window": [0, 8], "after_text": "</think>", "special_tokens": False},
            Positions(
                Selection(generated_window=(0, 8), after_text="</think>"), Selection(special=True)
            ),
        ),
    ],
)
def test_positions_are_a_name_or_a_union_without_what_is_excluded(
    value: Any, meant: Positions
) -> None:
    assert positions(value) == meant


def test_a_replacement_reads_another_text_or_has_its_values() -> None:
    message = {"role": "user", "content": "Hi"}
    made = parsed(
        {**PUT, "site": "hook_z", "heads": [3, 0], "value": 0.5},
        {
            "op": "replace",
            "layers": {"from": 1, "to": 3},
            "source": {"messages": [message], "positions": "last_prompt"},
        },
        {"op": "replace", "vector": inline(0, 0)},
        {"op": "replace", "feature": FEATURE, "source": TEXT},
    )
    last = Positions(Selection(names=("last_prompt",)))
    zeros = Vector("", "", "", (Direction(1, "resid_post", struct.pack("<2f", 0, 0)),))
    site, conversation, vector, feature = made.edits
    assert isinstance(vector, SteeredVector)
    assert isinstance(vector.vector, Vector)
    assert (site, conversation, feature) == (
        SteeredVector(
            TextSource("a whale"), "replace", 0.5, layers=(2,), site="hook_z", heads=(0, 3)
        ),
        SteeredVector(
            TextSource((("user", "Hi"),), last), "replace", 1.0, layers=(1, 3), is_range=True
        ),
        SteeredFeature(4, 1.0, op="replace", source=TextSource("a whale")),
    )
    assert vector.vector.directions == zeros.directions


def test_conditions_have_defaults_and_nest() -> None:
    assert when({"feature": FEATURE, "above": 1}) == AskedCondition(NamedFeature(4), above=1.0)
    assert when({"vector": "kind", "below": -1, "hold": "rest"}) == AskedCondition(
        "kind", below=-1.0, hold=None
    )
    assert when({"vector": "kind", "above": 1, "over": "prompt_mean"}).over == "prompt_mean"
    nested = {"all": [{"any": [{"feature": FEATURE, "above": 1, "hold": 3}]}]}
    inner = AskedCondition(NamedFeature(4), above=1.0, hold=3)
    assert when(nested) == AskedConditions((AskedConditions((inner,), False),), True)


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"feature": FEATURE, "above": 1}
    for _ in range(depth):
        made = {"any": [made]}
    return made


def test_conditions_nest_four_deep_and_no_deeper() -> None:
    assert when(nested(4)) is not None
    refusal = refusal_of(when, nested(5))
    assert refusal.param == f"interventions.edits[0].when{4 * '.any[0]'}.any"


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        ({"op": "set", "value": 1}, "feature"),
        ({**SET, "vector": "kind"}, "feature"),
        ({"op": "set", "feature": FEATURE}, "value"),
        ({**SET, "op": "ablate"}, "value"),
        ({**SET, "op": "clamp"}, "op"),
        ({**SET, "value": "2"}, "value"),
        ({**SET, "value": True}, "value"),
        ({**SET, "op": "add", "value": 200.5}, "value"),
        ({**SET, "value": 10_001}, "value"),
        ({**SET, "unit": "raw"}, "unit"),
        ({**SET, "op": "scale", "unit": "max"}, "unit"),
        ({**SET, "layers": [1]}, "layers"),
        ({**SET, "to": "kind"}, "to"),
        ({**SET, "op": "swap"}, "op"),
        ({**SET, "feature": {"index": -1}}, "feature.index"),
        ({**SET, "feature": {"index": 1, "layer": -1}}, "feature.layer"),
        ({**SET, "feature": {"index": 1, "name": "x"}}, "feature.name"),
        ({**ADD, "value": 1e39}, "value"),
        ({**ADD, "value": None}, "value"),
        ({**ADD, "op": "ablate", "value": 2.5}, "value"),
        ({**ADD, "op": "ablate", "value": -0.5}, "value"),
        ({**ADD, "unit": "activation"}, "unit"),
        ({**ADD, "op": "set", "unit": "unit"}, "unit"),
        ({**ADD, "to": "other"}, "to"),
        ({"op": "swap", "vector": "a"}, "to"),
        ({**SET, "source": TEXT}, "source"),
        ({**ADD, "heads": [1]}, "heads"),
        ({"op": "replace", "layer": 2}, "source"),
        ({**PUT, "vector": "a"}, "source"),
        ({**PUT, "source": {}}, "source.text"),
        ({**PUT, "source": {**TEXT, "messages": []}}, "source.text"),
        ({**PUT, "source": {"messages": []}}, "source.messages"),
        ({**PUT, "source": {"text": ""}}, "source.text"),
        ({**PUT, "source": {**TEXT, "positions": "last"}}, "source.positions"),
        ({**PUT, "layers": [2]}, "layer"),
        ({"op": "replace", "source": TEXT}, "layer"),
        ({**PUT, "layer": -1}, "layer"),
        ({**PUT, "site": "middle"}, "site"),
        ({**PUT, "heads": [1, 1]}, "heads"),
        ({**PUT, "heads": [-1]}, "heads[0]"),
        ({**PUT, "unit": "raw"}, "unit"),
        ({**PUT, "value": 2.5}, "value"),
        ({**PUT, "feature": FEATURE}, "layer"),
        ({"op": "replace", "vector": "a", "site": "embed"}, "site"),
        ({**ADD, "op": "swap", "to": "b"}, "value"),
        ({**ADD, "layers": []}, "layers"),
        ({**ADD, "layers": [1, -1]}, "layers[1]"),
        ({**ADD, "layers": {"from": 3, "to": 2}}, "layers.to"),
        ({**ADD, "vector": ""}, "vector"),
        ({**ADD, "vector": inline(0, 0)}, "vector.data"),
        ({**ADD, "vector": inline(1, float("nan"))}, "vector.data"),
        ({**ADD, "vector": inline(*[1.0] * 16_385)}, "vector.data"),
        ({**ADD, "vector": {"layer": 1, "data": "%"}}, "vector.data"),
        ({**ADD, "vector": {"layer": 1, "data": base64.b64encode(b"abc").decode()}}, "vector.data"),
        ({**ADD, "vector": inline(1, 2, shape=[3])}, "vector.shape"),
        ({**ADD, "vector": inline(1, 2, dtype="float16")}, "vector.dtype"),
        ({**ADD, "vector": inline(1, 2, site="logits")}, "vector.site"),
        ({**ADD, "vector": {"layer": 1}}, "vector.data"),
        ({**SET, "positions": "answer"}, "positions"),
        ({**SET, "positions": {}}, "positions"),
        ({**SET, "positions": {"exclude": {}}}, "positions.exclude"),
        ({**SET, "positions": {"tokens": []}}, "positions.tokens"),
        ({**SET, "positions": {"tokens": [-1]}}, "positions.tokens[0]"),
        ({**SET, "positions": {"prompt_window": [3, 3]}}, "positions.prompt_window"),
        ({**SET, "positions": {"generated_window": [-1, 3]}}, "positions.generated_window"),
        ({**SET, "positions": {"special_tokens": True}}, "positions.special_tokens"),
        ({**SET, "positions": {"roles": ["narrator"]}}, "positions.roles[0]"),
        ({**SET, "positions": {"after_text": ""}}, "positions.after_text"),
        ({**SET, "positions": {"exclude": {"exclude": {}}}}, "positions.exclude.exclude"),
        ({**SET, "when": {"above": 1}}, "when"),
        ({**SET, "when": {"feature": FEATURE}}, "when"),
        ({**SET, "when": {"feature": FEATURE, "above": 1, "below": 2}}, "when"),
        ({**SET, "when": {"feature": FEATURE, "above": 1e39}}, "when.above"),
        ({**SET, "when": {"probe": "", "above": 1}}, "when.probe"),
        ({**SET, "when": {"vector": "a", "above": 1, "hold": 0}}, "when.hold"),
        (
            {**SET, "when": {"vector": "a", "above": 1, "over": "prompt_max", "hold": 2}},
            "when.hold",
        ),
        ({**SET, "when": {"any": []}}, "when.any"),
        ({**SET, "when": {"any": [{"vector": "a", "above": 1}], "above": 1}}, "when.above"),
        ({**SET, "when": {"all": [{"vector": "a"}]}}, "when.all[0]"),
        ({**SET, "strength": 1}, "strength"),
    ],
)
def test_a_wrong_edit_is_refused_by_its_place(edit: dict[str, Any], place: str) -> None:
    refusal = refusal_of(parsed, SET, edit)
    row = refusal.row
    assert (row.code, row.api, row.v1, row.v1_code) == (
        "INVALID_INTERVENTION",
        422,
        400,
        "invalid_parameter",
    )
    assert refusal.param == f"interventions.edits[1].{place}"


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            {**SET, "op": "clamp"},
            f"op: must be one of {', '.join([*KINDS, SWAP, REPLACE])}",
        ),
        (
            {**SET, "positions": {"names": ["all", "answer"]}},
            "positions.names[1]: must be one of all, prompt, last_prompt, generated, output",
        ),
        (
            {**SET, "positions": {"special_tokens": True}},
            "positions.special_tokens: must be false",
        ),
        (
            {**SET, "when": {"vector": "a", "above": 1, "hold": "ever"}},
            "when.hold: must be token, rest, or a number of positions from 1 on",
        ),
    ],
)
def test_a_refused_choice_names_the_choices(edit: dict[str, Any], sentence: str) -> None:
    refusal = refusal_of(parsed, edit)
    assert refusal.message == f"interventions.edits[0].{sentence}"


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (3, "interventions"),
        ([], "interventions"),
        ({}, "interventions.edits"),
        ({"edits": {}}, "interventions.edits"),
        ({"edits": [], "mode": "plus"}, "interventions.mode"),
        ({"edits": [], "preserve_norm": 1}, "interventions.preserve_norm"),
        ({"edits": [], "positions": "all"}, "interventions.positions"),
    ],
)
def test_a_wrong_whole_is_refused_by_its_place(raw: object, place: str) -> None:
    refusal = refusal_of(interventions.parse, raw)
    assert (refusal.code, refusal.param) == ("INVALID_INTERVENTION", place)


def test_more_than_64_edits_are_refused_before_any_is_read() -> None:
    refusal = refusal_of(interventions.parse, {"edits": 65 * [None]}, "")
    assert (refusal.code, refusal.param) == ("TOO_MANY_EDITS", "edits")


CONDITION = {"feature": {"index": 1}, "above": 0}


def tree(*sizes: int) -> dict[str, Any]:
    """Nested conditions, of which each level has so many."""
    first, *rest = sizes
    return {"any": first * [tree(*rest) if rest else CONDITION]}


@pytest.mark.parametrize(
    "whens",
    [
        65 * [CONDITION],
        [tree(16, 5)],
        5 * [tree(13)],
        [tree(16, 16, 16, 16)],
        [tree(100_000)],
        [{"any": 3 * [{"any": 3 * [{"any": []}]}]}, *3 * [tree(4, 16)]],
    ],
)
def test_more_than_64_conditions_are_refused_before_any_is_read(
    whens: list[dict[str, Any]],
) -> None:
    refusal = refusal_of(
        parsed, *({**ADD, "vector": "a", "when": when} for when in whens[:64]), *whens[64:]
    )
    assert (refusal.code, refusal.param) == ("TOO_MANY_EDITS", "interventions.edits")


def test_64_conditions_are_as_many_as_one_request_may_have() -> None:
    whens = [tree(4, 12), *16 * [CONDITION]]
    assert len(parsed(*({**ADD, "vector": "a", "when": when} for when in whens)).edits) == 17


def test_no_edits_are_no_steering_of_its_own() -> None:
    assert not parsed().is_steering
    assert not parsed({"op": "ablate", "vector": "a", "value": 0}).is_steering


def test_the_names_of_stored_vectors_are_told_with_their_first_places() -> None:
    made = parsed(
        SET,
        {"op": "swap", "vector": "a", "to": "b", "when": {"any": [{"vector": "c", "above": 1}]}},
        {**ADD, "vector": "a"},
    )
    places = {"a": "vector", "b": "to", "c": "when.any[0].vector"}
    assert made.references() == {
        name: f"interventions.edits[1].{place}" for name, place in places.items()
    }
    found = {name: Vector(name, name, "", ()) for name in places}
    assert made.with_vectors(found).references() == {}


def test_the_description_has_no_references_and_names_every_field() -> None:
    described = interventions.schema()
    assert set(described["properties"]) == {"edits", "mode", "preserve_norm"}
    assert "$ref" not in str(described)
    edit = described["properties"]["edits"]["items"]["properties"]
    assert set(edit) == set(interventions.EditPart.__struct_fields__)
