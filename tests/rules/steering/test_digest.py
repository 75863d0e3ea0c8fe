"""The digest of an intervention: equal for equal interventions, different for different ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from steerserve.rules.saes.provenance import SaeOrigin
from steerserve.rules.steering.digest import SteeredModel, SteeredSite, applied, digest
from steerserve.rules.steering.live import MANUAL, Live, Values

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
    epoch=3, enabled=True, owned={MANUAL: {A: {1: 5.0, 2: 0.0}}, "circuit:1": {B: {7: 1.0}}}
)


def test_what_is_applied_are_the_live_values_or_the_overlay_without_zeros() -> None:
    assert applied(LIVE, None, [A, B]) == {A: {1: 5.0}, B: {7: 1.0}}
    assert applied(LIVE, {A: {4: 2.0, 5: 0.0}}, [A, B]) == {A: {4: 2.0}}
    assert applied(LIVE, {}, [A, B]) == {}
    assert applied(replace(LIVE, enabled=False), None, [A, B]) == {}
