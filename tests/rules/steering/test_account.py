"""Whose steering an answer has, and the list of edits of its report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steerserve.rules.steering import account, dial, interventions
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.activation import activate, adopt
from steerserve.rules.steering.dial import Profile, Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import INTERVENTIONS, MANUAL
from steerserve.rules.steering.placing import ModelFacts, placed, standing_of
from steerserve.rules.steering.request import RequestSteering, SteeredFeature
from tests.rules.steering.owners import owned
from tests.rules.steering.saes import Sae

SAE = Sae("sae_a", 1)
KEY = SAE.key
FRESH = Live()
LIVE = Live(epoch=7, enabled=True, values={KEY: {1: 5.0, 2: 0.0}})
OFF = Live(epoch=7, values={KEY: {1: 5.0}})
SHARED = Live(enabled=True, owned=owned({MANUAL: {KEY: {1: 4.0}}, "circuit:c1": {KEY: {3: 1.0}}}))
CALM = Profile("calm", {4: 2.0}, id="prof_1")
ACTIVE = activate(FRESH, "prof_1", CALM, (SAE,))
OWN = RequestSteering((SteeredFeature(4, 7.0),))
BESIDE = RequestSteering((SteeredFeature(4, 7.0),), is_added=True)
Entries = list[tuple[int, str, str, float | None]]


def made(
    live: Live,
    own: RequestSteering | None = None,
    profile: Profile | None = None,
    intensity: float | None = None,
) -> account.Account:
    is_named = profile is not None
    plan = dial.plan(intensity, is_named, profile, live, (SAE,), Range(), own)
    return account.make_account(plan, own, profile, live)


def entries(told: account.Account) -> Entries:
    """The number, source and op of each entry, and the value that the engine counts for it."""
    counted = {edit.number: edit.target.offset for edit in told.counted}
    return [(one.number, one.source, one.op, counted.get(one.number)) for one in told.listed]


@pytest.mark.parametrize(
    ("live", "asked", "sources", "listed"),
    [
        (FRESH, {}, (), []),
        (OFF, {}, (), []),
        (LIVE, {}, ("live",), [(0, "live", "add", 5.0)]),
        (ACTIVE, {}, ("profile:prof_1",), [(0, "profile:prof_1", "add", 2.0)]),
        (
            steering.set_values(ACTIVE, KEY, 10, {5: 1.0}),
            {},
            ("live", "profile:prof_1"),
            [(0, "profile:prof_1", "add", 2.0), (1, "live", "add", 1.0)],
        ),
        (adopt(LIVE, "prof_1", CALM), {}, ("live",), [(0, "live", "add", 5.0)]),
        (
            adopt(LIVE, "prof_1", CALM),
            {"intensity": 0.5},
            ("profile:prof_1",),
            [(0, "profile:prof_1", "add", 1.0)],
        ),
        (
            SHARED,
            {},
            ("live", "circuit:c1"),
            [(0, "live", "add", 4.0), (1, "circuit:c1", "add", 1.0)],
        ),
        (LIVE, {"profile": CALM}, ("profile:prof_1",), [(0, "profile:prof_1", "add", 2.0)]),
        (LIVE, {"intensity": 0.0}, (), []),
        (LIVE, {"own": OWN}, ("request",), [(0, "request", "add", 7.0)]),
        (LIVE, {"own": OWN, "intensity": 0.0}, (), [(0, "request", "add", None)]),
        (
            LIVE,
            {"own": BESIDE},
            ("live", "request"),
            [(0, "request", "add", 7.0), (1, "live", "add", 5.0)],
        ),
        (
            LIVE,
            {"own": BESIDE, "intensity": 0.5},
            ("live", "request"),
            [(0, "request", "add", 3.5), (1, "live", "add", 2.5)],
        ),
    ],
)
def test_sources_and_entries_tell_whose_each_value_is(
    live: Live, asked: dict[str, Any], sources: tuple[str, ...], listed: Entries
) -> None:
    told = made(live, **asked)
    assert told.sources == sources
    assert entries(told) == listed


def test_every_edit_of_a_request_has_its_place_also_one_that_changes_nothing() -> None:
    feature = {"index": 4}
    own = interventions.parse(
        {
            "edits": [
                {"op": "scale", "feature": feature, "value": 1},
                {"op": "add", "feature": feature, "value": 2},
                {"op": "set", "feature": feature, "value": 3},
                {"op": "add", "feature": feature, "value": 4},
            ]
        }
    )
    told = made(FRESH, own)
    assert entries(told) == [
        (0, "request", "scale", None),
        (1, "request", "add", 2.0),
        (2, "request", "set", None),
        (3, "request", "add", 4.0),
    ]


def test_edits_that_a_request_follows_are_listed_in_the_order_in_which_they_were_sent() -> None:
    """They are made in another order: first those that add, then by the feature."""
    sent = [
        {"op": "set", "feature": {"index": 9}, "value": 3},
        {"op": "at_most", "feature": {"index": 2}, "value": 1},
        {"op": "add", "feature": {"index": 4}, "value": 2, "positions": "generated"},
    ]
    own = interventions.parse({"edits": sent}, "")
    put = placed(own, (SAE,), ModelFacts())
    put = replace(put, standing=standing_of(own, sent, put))
    live = steering.give(FRESH, INTERVENTIONS, put)
    assert [edit.number for edit in live.edits] != [0, 1, 2]
    assert entries(made(live)) == [
        (0, "live", "set", None),
        (1, "live", "at_most", None),
        (2, "live", "add", None),
    ]
