"""`return_steering_report`: where each edit of the steering acted in an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from steerserve.messages import EditActs, Message
from steerserve.parts.part import BodyField, Lookups, Part, Sent
from steerserve.rules.steering.account import Listed
from steerserve.rules.steering.edits import Edit

FIELD = "return_steering_report"


class CountedEdits(Message, frozen=True):
    """Asks where the edits of a row act: the edits of its plan, and `edits`, which are the parts of the values that the
    plan adds."""

    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedReport:
    """The report of one answer. `state` is the digest of its steering, and `listed` has each edit with its layers.
    `form` is None where nothing steers."""

    form: CountedEdits | None = None
    state: str | None = None
    listed: tuple[tuple[Listed, list[int]], ...] = ()


class SteeringReportPart(Part[CountedEdits, list[EditActs]]):
    name = "steering_report"
    fields = MappingProxyType(
        {
            FIELD: BodyField(
                "steerserve.parts.steering_report.body:ReturnSteeringReport",
                is_refused=False,
                is_scored=False,
                idle=(False,),
            )
        }
    )
    beside = MappingProxyType(
        {"steering_report": "steerserve.parts.steering_report.body:SteeringReport"}
    )
    form = CountedEdits
    chunk = list[EditActs]
    row = "steerserve.parts.steering_report.row:SteeringReportRow"
    needs_slot = False

    def parse(self, body: Mapping[str, Any], sent: Sent) -> PlannedReport | None:
        return PlannedReport() if body.get(FIELD) else None

    async def prepare(self, planned: PlannedReport, look: Lookups) -> PlannedReport:
        steering = look.steering()
        listed = tuple((one, one.layers(steering.layers)) for one in steering.account.listed)
        form = CountedEdits(steering.account.counted) if listed else None
        return PlannedReport(form, steering.state, listed)

    def tell_beside(
        self,
        planned: PlannedReport,
        chunks: Mapping[int, Sequence[list[EditActs]]],
        texts: Sequence[str],
        *,
        is_changed: bool,
    ) -> dict[str, object]:
        """The acts of each edit in all choices. An answer of one choice has their positions too: positions of several
        choices are those of different texts."""
        acts = [one for of_choice in chunks.values() for chunk in of_choice for one in chunk]
        edits = [
            {
                "edit": at,
                "source": entry.source,
                "op": entry.op,
                "layers": layers,
                **_told(
                    [one for one in acts if one.number == entry.number], has_one=len(texts) == 1
                ),
            }
            for at, (entry, layers) in enumerate(planned.listed)
        ]
        told = {"state": planned.state, "changed": is_changed, "edits": edits}
        return {"steering_report": told}


STEERING_REPORT = SteeringReportPart()


def _told(acts: Sequence[EditActs], *, has_one: bool) -> dict[str, object]:
    """What an edit did in the choices of an answer, of which there is one or several."""
    return {
        "evaluated": sum(one.evaluated for one in acts),
        "acted": sum(one.acted for one in acts),
        "first": min((one.first for one in acts if one.first is not None), default=None),
        "last": max((one.last for one in acts if one.last is not None), default=None),
        "max_change": max((one.max_change for one in acts), default=0.0),
        **({"at": acts[0].at if acts else []} if has_one else {}),
    }
