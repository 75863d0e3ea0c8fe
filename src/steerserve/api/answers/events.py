"""The description of the live events, which are sent over Socket.IO (`events/socketio.py`)."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import create_model
from typing_extensions import TypedDict

from steerserve.api.answers.compare import CompareEvents
from steerserve.control.health.views import SYSTEM, CardTotals
from steerserve.rules.events import LiveEvent


def components(of_nouns: Iterable[type[LiveEvent]]) -> dict[str, object]:
    """The schemas of the events for the description of the API: `LiveEvents`, `CompareEvents`, and their parts."""
    kinds: dict[str, object] = {one.wire: one.described() for one in of_nouns}
    live: type = TypedDict("LiveEvents", kinds | {SYSTEM: CardTotals})  # type: ignore[misc]
    live.__doc__ = "The payload of each live event, by the name of the event."
    both = create_model("Events", live=(live, ...), compare=(CompareEvents, ...))
    template = "#/components/schemas/{model}"
    schema = both.model_json_schema(mode="serialization", ref_template=template)
    parts: dict[str, object] = schema["$defs"]
    return parts
