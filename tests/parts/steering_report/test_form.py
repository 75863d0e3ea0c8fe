"""The report of an answer's steering: its entries, and the acts of one choice and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

from msgspec import structs

from steerserve.parts.part import Lookups, Steering
from steerserve.parts.steering_report.form import STEERING_REPORT, EditActs, PlannedReport
from steerserve.rules.steering.account import Account, Listed
from steerserve.rules.steering.edits import Edit, Feature, Target

AT = Feature("sae@2", 5)
ACCOUNT = Account(
    ("live",), (Listed("live", "add", 0, (AT,)),), (Edit(AT, Target(offset=2.0), number=0),)
)
ACTS = EditActs(0, evaluated=9, acted=4, first=2, last=6, max_change=0.25, at=[(2, 3), (5, 6)])
LATER = EditActs(0, evaluated=7, acted=1, first=1, last=1, max_change=0.5, at=[(1, 1)])


async def planned(account: Account) -> PlannedReport:
    look = Mock(spec=Lookups)
    look.steering.return_value = Steering("sha256=ab", account, {"sae@2": 2})
    return await STEERING_REPORT.prepare(PlannedReport(), look)


def told(report: PlannedReport, *choices: Sequence[EditActs], **more: bool) -> dict[str, Any]:
    chunks = {at: [list(acts)] for at, acts in enumerate(choices) if acts}
    texts = [""] * len(choices)
    beside = STEERING_REPORT.tell_beside(report, chunks, texts, **{"is_changed": False, **more})
    made: dict[str, Any] = beside["steering_report"]
    return made


async def test_one_choice_has_the_positions_of_its_acts() -> None:
    report = await planned(ACCOUNT)
    assert report.form is not None
    assert report.form.edits == ACCOUNT.counted
    assert told(report, [ACTS], is_changed=True) == {
        "state": "sha256=ab",
        "changed": True,
        "edits": [
            {
                "edit": 0,
                "source": "live",
                "op": "add",
                "layers": [2],
                "evaluated": 9,
                "acted": 4,
                "first": 2,
                "last": 6,
                "max_change": 0.25,
                "at": [(2, 3), (5, 6)],
            }
        ],
    }


async def test_acts_of_several_choices_are_summed_without_their_positions() -> None:
    (entry,) = told(await planned(ACCOUNT), [ACTS], [LATER])["edits"]
    assert entry["evaluated"] == 16
    assert entry["acted"] == 5
    assert (entry["first"], entry["last"], entry["max_change"]) == (1, 6, 0.5)
    assert "at" not in entry


async def test_an_edit_that_never_acted_is_listed() -> None:
    (entry,) = told(await planned(ACCOUNT), [structs.replace(ACTS, number=1)])["edits"]
    assert (entry["evaluated"], entry["first"], entry["max_change"]) == (0, None, 0.0)
    assert entry["at"] == []


async def test_nothing_is_counted_where_nothing_steers() -> None:
    report = await planned(replace(ACCOUNT, listed=(), counted=()))
    assert report.form is None
    assert STEERING_REPORT.ask(report.form) == {}
    assert told(report, [])["edits"] == []
