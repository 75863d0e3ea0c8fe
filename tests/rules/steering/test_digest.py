"""The digest of an intervention: equal for equal interventions, different for different ones."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from steerserve.rules.saes.provenance import SaeOrigin
from steerserve.rules.steering import dial, interventions
from steerserve.rules.steering.digest import SteeredModel, SteeredSite, applied, digest
from steerserve.rules.steering.intensity import Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import MANUAL, Values
from steerserve.rules.steering.placing import ModelFacts
from steerserve.rules.steering.probe import Probe
from steerserve.rules.steering.vector import Direction, Vector
from tests.rules.steering.owners import owned
from tests.rules.steering.saes import Sae

A, B = "sae_a@1", "sae_b@2"
LOCAL = SteeredSite("sae_a", SaeOrigin(content_digest="ab" * 32), 1, "resid_post")
HUB = SteeredSite("sae_b", SaeOrigin("acme/saes", "c0ffee", "layer_2"), 2, "resid_post")
SITES = {A: LOCAL, B: HUB}
MODEL = SteeredModel("tiny", "acme/tiny", "beef")


def state(added: dict[str, Values], sites: dict[str, SteeredSite] = SITES) -> str | None:
    return digest(MODEL, sites, added)


def test_the_digest_is_that_of_the_documented_document() -> None:
    document = {
        "model": {"repository_id": "acme/tiny", "revision": "beef"},
        "steering": [
            {
                "index": 4,
                "layer": 1,
                "sae": {"content_digest": "ab" * 32},
                "site": "resid_post",
                "value": 2.5,
            },
            {
                "index": 15,
                "layer": 2,
                "sae": {"file_path": "layer_2", "repository_id": "acme/saes", "revision": "c0ffee"},
                "site": "resid_post",
                "value": -1.0,
            },
        ],
    }
    entries = document["steering"]
    assert isinstance(entries, list)
    entries.sort(key=lambda entry: json.dumps(entry, sort_keys=True, separators=(",", ":")))
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    expected = f"sha256={hashlib.sha256(text.encode()).hexdigest()}"
    assert state({A: {4: 2.5}, B: {15: -1.0}}) == expected


def test_the_order_in_which_values_were_set_does_not_matter() -> None:
    one = state({A: {4: 2.5, 11: 1.0}, B: {15: -1.0}})
    assert one == state({B: {15: -1.0}, A: {11: 1.0, 4: 2.5}})


def test_values_that_the_engine_cannot_tell_apart_are_equal() -> None:
    assert state({A: {4: 3.0 * 0.1}}) == state({A: {4: 0.3}})
    assert state({A: {4: 0.3}}) != state({A: {4: 0.3001}})


def test_an_integer_is_the_same_value_as_its_float() -> None:
    assert state({A: {4: 2}}) == state({A: {4: 2.0}})


@pytest.mark.parametrize("added", [{}, {A: {}}, {A: {4: 0.0}}, {A: {4: -0.0}}, {A: {4: 1e-60}}])
def test_nothing_added_has_no_digest(added: dict[str, Values]) -> None:
    assert state(added) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(LOCAL, layer=2),
        replace(LOCAL, site="resid_pre"),
        replace(LOCAL, origin=SaeOrigin(content_digest="cd" * 32)),
        replace(LOCAL, overrides={"norm_factor": 2.0}),
    ],
    ids=["layer", "site", "content", "scale"],
)
def test_another_place_or_another_sae_is_another_intervention(other: SteeredSite) -> None:
    assert state({A: {4: 2.5}}) != state({A: {4: 2.5}}, {A: other})


def test_another_feature_value_or_model_is_another_intervention() -> None:
    one = state({A: {4: 2.5}})
    assert one not in (state({A: {5: 2.5}}), state({A: {4: 2.0}}), state({A: {4: 2.5, 5: 1.0}}))
    assert one != digest(replace(MODEL, revision="f00d"), SITES, {A: {4: 2.5}})
    assert one != digest(SteeredModel("tiny"), SITES, {A: {4: 2.5}})


def test_an_sae_and_a_model_are_the_same_under_another_name() -> None:
    one = state({A: {4: 2.5}})
    renamed = {"sae_z@1": replace(LOCAL, sae_id="sae_z")}
    assert digest(replace(MODEL, name="other"), renamed, {"sae_z@1": {4: 2.5}}) == one
    local = {name: SteeredModel(name, content_digest="ef" * 32) for name in ("here", "there")}
    assert len({digest(model, SITES, {A: {4: 2.5}}) for model in local.values()}) == 1
    other = replace(local["here"], content_digest="01" * 32)
    assert digest(other, SITES, {A: {4: 2.5}}) != digest(local["here"], SITES, {A: {4: 2.5}})


def test_an_sae_of_unknown_origin_is_named_by_its_id() -> None:
    unknown = replace(LOCAL, origin=SaeOrigin("acme/saes"))
    other = replace(unknown, sae_id="sae_z")
    assert state({A: {4: 2.5}}, {A: unknown}) != state({A: {4: 2.5}}, {A: other})


LIVE = Live(
    epoch=3, enabled=True, owned=owned({MANUAL: {A: {1: 5.0, 2: 0.0}}, "circuit:1": {B: {7: 1.0}}})
)


def test_what_is_applied_are_the_live_values_or_the_overlay_without_zeros() -> None:
    assert applied(LIVE, None, [A, B]) == {A: {1: 5.0}, B: {7: 1.0}}
    assert applied(LIVE, {A: {4: 2.0, 5: 0.0}}, [A, B]) == {A: {4: 2.0}}
    assert applied(LIVE, {}, [A, B]) == {}
    assert applied(replace(LIVE, enabled=False), None, [A, B]) == {}


# ---------------------------------------------------------------- edits

V, W = struct.pack("<2f", 3, 4), struct.pack("<2f", 1, -1)


def vector(data: bytes = V, *layers: int, name: str = "kind") -> Vector:
    made = tuple(Direction(layer, "resid_post", data) for layer in layers or (1,))
    return Vector(f"vec_{name}", name, "", made)


VECTORS = {"v": vector(), "same": vector(name="same"), "w": vector(W), "vs": vector(V, 1, 2, 3)}
PROBES = {
    name: Probe(f"probe_{name}", name, "", vector(data).directions, (bias,))
    for name, data, bias in (("p", V, 0.0), ("biased", V, 2.5), ("other", W, 0.0))
}
MODEL_FACTS = ModelFacts(4, {"resid_post": 2, "resid_pre": 2}, {A: "resid_post", B: "resid_post"})
POSITIONED = {"op": "set", "feature": {"index": 4, "sae_id": "sae_a"}, "value": 2}
ABLATED: dict[str, Any] = {"op": "ablate", "vector": "v"}
ADDED: dict[str, Any] = {"op": "add", "vector": "v", "value": 2}
SWAPPED: dict[str, Any] = {"op": "swap", "vector": "v", "to": "w"}
INLINE = {"layer": 1, "data": base64.b64encode(V).decode()}


ATTACHED = (Sae("sae_a", 1, 20), Sae("sae_b", 2, 20))


def of(*edits: dict[str, Any], strength: float | None = None, **fields: Any) -> str | None:
    """The digest of a request with these edits."""
    own = interventions.parse({"edits": list(edits), **fields}).with_vectors(VECTORS, PROBES)
    plan = dial.plan(strength, False, None, Live(), ATTACHED, Range(), own, MODEL_FACTS)
    added = applied(Live(), plan.overlay, [A, B])
    return digest(MODEL, SITES, added, plan.edits, modifiers=plan.modifiers)


def at(positions: Any) -> dict[str, Any]:
    return {**POSITIONED, "positions": positions}


def on(when: Any, **fields: Any) -> dict[str, Any]:
    return {**ABLATED, "when": when, **fields}


def reads(name: str = "v", **fields: Any) -> dict[str, Any]:
    bound = {} if "below" in fields else {"above": 1}
    return {"vector": name, **bound, **fields}


def scores(name: str = "p", above: float = 5) -> dict[str, Any]:
    return {"probe": name, "above": above}


def feature(op: str, value: float | None = None, index: int = 4) -> dict[str, Any]:
    made = {"op": op, "feature": {"index": index, "sae_id": "sae_a"}}
    return made if value is None else {**made, "value": value}


SAME: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "ablate and scale of a feature": ([feature("ablate")], [feature("scale", 0)]),
    "ablate and set of a feature": ([feature("ablate")], [feature("set", 0)]),
    "sums of adds": ([feature("add", 1), feature("add", 2)], [feature("add", 3)]),
    "the order of adds": (
        [feature("add", 1), feature("add", 2, 5)],
        [feature("add", 2, 5), feature("add", 1)],
    ),
    "the order of features": (
        [feature("set", 1), feature("ablate", None, 5)],
        [feature("ablate", None, 5), feature("set", 1)],
    ),
    "an add before another edit": ([ADDED, ABLATED], [ABLATED, ADDED]),
    "ablate and scale of a direction": ([ABLATED], [{**ADDED, "op": "scale", "value": 0}]),
    "ablate in part": ([{**ABLATED, "value": 0.5}], [{**ADDED, "op": "scale", "value": 0.5}]),
    "ablate and set of a direction": ([ABLATED], [{**ADDED, "op": "set", "value": 0}]),
    "another name": ([ABLATED], [{**ABLATED, "vector": "same"}]),
    "inside the request": ([ABLATED], [{**ABLATED, "vector": INLINE}]),
    "one layer of several": ([ABLATED], [{**ABLATED, "vector": "vs", "layers": [1]}]),
    "layers as a range": (
        [{**ABLATED, "vector": "vs", "layers": [1, 2]}],
        [{**ABLATED, "vector": "vs", "layers": {"from": 0, "to": 2}}],
    ),
    "all layers": (
        [{**ABLATED, "vector": "vs"}],
        [{**ABLATED, "vector": "vs", "layers": [3, 2, 1]}],
    ),
    "layers one by one": (
        [{**ABLATED, "vector": "vs", "layers": [1, 2]}],
        [{**ABLATED, "vector": "vs", "layers": [2]}, ABLATED],
    ),
    "other sites between": (
        [ABLATED, {**ABLATED, "vector": "vs", "layers": [2]}, {**ABLATED, "vector": "w"}],
        [{**ABLATED, "vector": "vs", "layers": [2]}, ABLATED, {**ABLATED, "vector": "w"}],
    ),
    "everywhere": ([at("all")], [POSITIONED]),
    "everywhere by its parts": ([at({"names": ["prompt", "output"]})], [POSITIONED]),
    "output by its parts": ([at("output")], [at({"names": ["generated", "last_prompt"]})]),
    "the order of positions": (
        [at({"prompt_positions": [3, 1]})],
        [at({"prompt_positions": [1, 3, 1]})],
    ),
    "names of roles": ([at({"roles": ["developer"]})], [at({"roles": ["system"]})]),
    "special tokens": (
        [at({"special_tokens": False})],
        [at({"names": ["all"], "special_tokens": False})],
    ),
    "one condition in a list": ([on(reads())], [on({"any": [reads()]})]),
    "one condition in two lists": ([on({"all": [{"any": [reads()]}]})], [on(reads())]),
    "the order of conditions": (
        [on({"any": [reads(), reads("w")]})],
        [on({"any": [reads("w"), reads()]})],
    ),
    "a condition twice": ([on({"all": [reads(), reads()]})], [on(reads())]),
    "the defaults of a condition": ([on(reads())], [on(reads(over="token", hold="token"))]),
    "hold 1": ([on(reads())], [on(reads(hold=1))]),
    # |V| is 5, so that the score 5 is the projection 1
    "a probe and its direction": ([on(scores())], [on(reads())]),
    "the bias of a probe in the bound": ([on(scores())], [on(scores("biased", 7.5))]),
    "an idle edit": ([ABLATED, feature("scale", 1)], [ABLATED]),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_edits_that_do_the_same_have_one_digest(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    assert of(*one) == of(*other) is not None


DIFFERENT: list[list[dict[str, Any]]] = [
    [ABLATED],
    [{**ABLATED, "value": 0.5}],
    [{**ABLATED, "vector": "w"}],
    [{**ABLATED, "vector": "vs"}],
    [{**ABLATED, "vector": "vs", "layers": [2]}],
    [{**ABLATED, "vector": {**INLINE, "site": "resid_pre"}}],
    [ABLATED, {**ABLATED, "vector": "w"}],
    [{**ABLATED, "vector": "w"}, ABLATED],
    [ABLATED, ABLATED],
    [ABLATED, feature("set", 2)],
    [feature("set", 2), ABLATED],
    [feature("set", 2)],
    [ADDED],
    [{**ADDED, "unit": "unit"}],
    [{**ADDED, "unit": "residual"}],
    [{**ADDED, "value": 3}],
    [{**ADDED, "op": "set"}],
    [{**ADDED, "op": "at_least"}],
    [{**ADDED, "op": "at_most"}],
    [{**ADDED, "op": "scale"}],
    [SWAPPED],
    [{**SWAPPED, "vector": "w", "to": "v"}],
    *([at(name)] for name in ("prompt", "last_prompt", "generated", "output")),
    [at({"prompt_positions": [1]})],
    [at({"prompt_positions": [-1]})],
    [at({"prompt_window": [0, 2]})],
    [at({"generated_window": [0, 2]})],
    [at({"tokens": [1]})],
    [at({"after_text": "a"})],
    [at({"roles": ["user"]})],
    [at({"special_tokens": False})],
    [at({"exclude": {"tokens": [1]}})],
    [at({"names": ["prompt"], "exclude": {"tokens": [1]}})],
    [on(reads())],
    [on(reads("w"))],
    [on(reads(below=1))],
    [on(reads(hold=2))],
    [on(reads(hold="rest"))],
    [on(reads(over="prompt_max"))],
    [on(reads(over="prompt_mean"))],
    [on(reads(over="last_prompt"))],
    [on({"feature": {"index": 4, "sae_id": "sae_a"}, "above": 1})],
    [on(scores("biased"))],
    [on(scores("other"))],
    [on({"any": [reads(), reads("w")]})],
    [on({"all": [reads(), reads("w")]})],
]


def test_edits_that_do_something_else_have_different_digests() -> None:
    digests = [of(*edits) for edits in DIFFERENT]
    digests += [of(ABLATED, preserve_norm=True), of(ADDED, preserve_norm=True)]
    digests += [of(ABLATED, strength=0.25), of(ADDED, strength=0.25)]
    assert None not in digests
    assert len(set(digests)) == len(digests)
    assert len(SAME) + len(digests) >= 60


def test_a_kept_norm_alone_is_no_steering() -> None:
    assert of(preserve_norm=True) is None
