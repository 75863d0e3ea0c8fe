"""Retry-After of every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.control import retry
from steerserve.control.retry import DefaultedLog
from steerserve.errors import TABLE, Refusal, Retry
from steerserve.settings import Settings

SETTINGS = Settings(_env_file=None)  # type: ignore[call-arg]


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, str]] = []

    def warning(self, event: str, *, code: str) -> None:
        self.warnings.append((event, code))


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(retry, "log", log)
    return log


def seconds(settings: Settings, code: str, status: int = 503, **details: Any) -> int | None:
    return retry.seconds(settings, Refusal(code, "later", **details), status, DefaultedLog())


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
        ("DATABASE_UNAVAILABLE", {}, 10),
    ],
)
def test_a_503_tells_when_to_come_back(code: str, details: dict[str, Any], expected: int) -> None:
    assert seconds(SETTINGS, code, **details) == expected


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        ("DATABASE_UNAVAILABLE", "retry_after_database_s"),
        ("TOO_MANY_CONNECTIONS", "retry_after_connections_s"),
    ],
)
def test_a_code_of_our_own_that_may_come_in_floods_has_its_setting(
    code: str, setting: str, log: Log
) -> None:
    settings = Settings(_env_file=None, **{setting: 123})  # type: ignore[call-arg]
    assert seconds(settings, code) == 123
    assert not log.warnings


@pytest.mark.shows("retry-after.1")
@pytest.mark.parametrize("code", sorted(TABLE))
def test_every_503_and_only_a_503_has_a_time_of_at_least_one_second(code: str) -> None:
    for status in (TABLE[code].api, TABLE[code].v1):
        found = seconds(SETTINGS, code, status)
        assert (found is None) == (status != 503)
        assert found is None or found >= 1


@pytest.mark.shows("retry-after.8")
@pytest.mark.parametrize("code", sorted(code for code, row in TABLE.items() if row.v1 == 503))
def test_the_fallback_is_logged_for_every_code_that_uses_it(code: str, log: Log) -> None:
    seconds(SETTINGS, code)
    is_fallback = TABLE[code].retry in (Retry.FALLBACK, Retry.DATABASE, Retry.NONE)
    assert log.warnings == ([("retry_after_defaulted", code)] if is_fallback else [])


def test_the_fallback_is_logged_once_a_minute_for_each_code(log: Log) -> None:
    now = 100.0
    defaulted = DefaultedLog(lambda: now)
    for now in (100.0, 159.9, 160.0, 160.1):  # noqa: B007
        for code in ("SHUTTING_DOWN", "ENGINE_UNAVAILABLE"):
            defaulted.note_code(code)
    assert [code for _, code in log.warnings] == ["SHUTTING_DOWN", "ENGINE_UNAVAILABLE"] * 2
