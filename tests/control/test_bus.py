"""Events inside the control plane."""

from __future__ import annotations

from msgspec.structs import fields

from steerserve.control.bus import Bus
from steerserve.control.residency.events import SaeDetached, UnloadComplete
from steerserve.nouns import registry
from steerserve.rules.events import Event


def test_every_subscriber_gets_every_event_in_order() -> None:
    events = Bus()
    first: list[object] = []
    second: list[object] = []
    events.subscribe(first.append)
    events.subscribe(second.append)
    sent: list[Event] = [UnloadComplete(1), SaeDetached("sae_a"), UnloadComplete(2)]
    for event in sent:
        events.publish(event)
    assert first == second == sent


def test_a_subscriber_that_fails_is_skipped() -> None:
    events = Bus()
    got: list[object] = []

    def broken(_: object) -> None:
        raise ZeroDivisionError

    events.subscribe(broken)
    events.subscribe(got.append)
    events.publish(UnloadComplete(1))
    events.publish(UnloadComplete(2))
    assert got == [UnloadComplete(1), UnloadComplete(2)]


def test_no_event_can_carry_text_of_a_context() -> None:
    for kind in [one.described() for one in registry.events()]:
        names = {field.name for field in fields(kind)}
        assert not names & {"text", "context", "context_parts", "prompt", "tokens"}, kind
