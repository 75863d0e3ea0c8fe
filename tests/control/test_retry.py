"""Retry-After of every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.control import retry
from steerserve.errors import TABLE, Refusal, Retry
from steerserve.settings import Settings

SETTINGS = Settings(_env_file=None)  # type: ignore[call-arg]


@pytest.mark.shows(
    "retry-after.2 retry-after.3 retry-after.4 retry-after.5 retry-after.6 retry-after.7",
    "limits.24",
)
@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        ("QUEUE_FULL", {"estimated_wait_seconds": 7}, 7),
        ("QUEUE_FULL", {"estimated_wait_seconds": 7.2}, 8),
        ("QUEUE_FULL", {"estimated_wait_seconds": 0}, 1),
        ("QUEUE_FULL", {"estimated_wait_seconds": 999}, 60),
        ("QUEUE_FULL", {"estimated_wait_seconds": None}, 5),
        ("QUEUE_FULL", {}, 5),
        ("MODEL_BUSY", {"unloading": False}, 15),
        ("MODEL_BUSY", {"unloading": True}, 5),
        ("MODEL_LOADING", {}, 15),
        ("MODEL_NOT_LOADED", {}, 30),
        ("INSUFFICIENT_MEMORY", {}, 30),
        ("HUB_UNAVAILABLE", {"recovery_seconds": 12.1}, 13),
        ("HUB_UNAVAILABLE", {}, 1),
        ("NOT_READY", {}, 5),
        ("ENGINE_UNAVAILABLE", {}, 10),
        ("SHUTTING_DOWN", {}, 10),
    ],
)
def test_a_503_tells_when_to_come_back(code: str, details: dict[str, Any], expected: int) -> None:
    assert retry.seconds(SETTINGS, Refusal(code, "later", **details), 503) == expected


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        ("DATABASE_UNAVAILABLE", "retry_after_database_s"),
        ("TOO_MANY_CONNECTIONS", "retry_after_connections_s"),
    ],
)
def test_a_code_of_our_own_that_may_come_in_floods_has_its_setting(code: str, setting: str) -> None:
    settings = Settings(_env_file=None, **{setting: 123})  # type: ignore[call-arg]
    assert retry.seconds(settings, Refusal(code, "later"), 503) == 123


@pytest.mark.shows("retry-after.1")
@pytest.mark.parametrize("code", sorted(TABLE))
def test_every_503_and_only_a_503_has_a_time_of_at_least_one_second(code: str) -> None:
    refusal = Refusal(code, "later")
    for status in (TABLE[code].api, TABLE[code].v1):
        seconds = retry.seconds(SETTINGS, refusal, status)
        assert (seconds is None) == (status != 503)
        assert seconds is None or seconds >= 1


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, str]] = []

    def warning(self, event: str, *, code: str) -> None:
        self.warnings.append((event, code))


@pytest.mark.shows("retry-after.8")
@pytest.mark.parametrize("code", sorted(code for code, row in TABLE.items() if row.v1 == 503))
def test_the_fallback_is_logged_for_every_code_that_uses_it(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    monkeypatch.setattr(retry, "log", log)
    retry.seconds(SETTINGS, Refusal(code, "later"), 503)
    is_fallback = TABLE[code].retry in (Retry.FALLBACK, Retry.NONE)
    assert log.warnings == ([("retry_after_defaulted", code)] if is_fallback else [])
