"""What happened is counted: requests, tokens, times, loads; and nothing that a client names becomes a label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest
from structlog.testing import CapturingLogger

from steerserve.control import full_queue
from steerserve.control.metrics import Metrics
from steerserve.control.residency import events
from steerserve.control.residency.load_counts import count_load
from steerserve.messages import Piece, Started
from steerserve.rules.bounds import DURATIONS_KEPT
from steerserve.rules.percentiles import percentiles
from tests.control.conftest import Make
from tests.doubles import World
from tests.waiting import Clock, soon, until


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def minutes() -> list[Callable[[], None]]:
    """The ends of minutes that are waited for."""
    return []


@pytest.fixture
def metrics(clock: Clock, minutes: list[Callable[[], None]]) -> Metrics:
    return Metrics(clock, lambda _, call: minutes.append(call))


def seen(metrics: Metrics, histogram: str) -> tuple[float, float]:
    """How many were observed, and their sum."""
    return metrics.total(f"{histogram}_count"), metrics.total(f"{histogram}_sum")


def test_a_generating_request_is_timed_from_the_queue_to_its_tokens(
    metrics: Metrics, clock: Clock
) -> None:
    timing = metrics.request()
    clock.now += 2.0
    timing.admitted()
    clock.now += 1.0
    timing.note_event(Started(1, [5, 7]))
    timing.note_event(Piece(1, 0, "", 1))
    clock.now += 0.25
    timing.note_event(Piece(1, 1, "b", 1))
    timing.note_event(Piece(1, 0, "a", 3))
    clock.now += 0.25
    timing.note_event(Piece(1, 0, "", 5, "stop"))
    timing.note_event(Piece(1, 1, "", 1, "stop"))
    timing.ended()
    assert timing.phases() == {"queue": 2000.0, "prefill": 1000.0, "decode": 500.0}
    assert (timing.prompt_tokens, timing.completion_tokens) == (12, 6)
    assert seen(metrics, "queue_wait_seconds") == (1, 2.0)
    assert seen(metrics, "time_to_first_token_seconds") == (1, 3.0)
    # choice 0 took half a second for four tokens after its first; choice 1 had one token only
    assert seen(metrics, "time_per_output_token_seconds") == (1, 0.125)
    assert metrics.total("prompt_tokens_total") == 12
    assert metrics.total("completion_tokens_total") == 6
    assert list(metrics.first_tokens) == [3.0]


def test_a_request_without_tokens_has_no_times_of_tokens(metrics: Metrics) -> None:
    timing = metrics.request()
    timing.note_event(Started(1, [5]))
    timing.ended()
    assert seen(metrics, "time_to_first_token_seconds")[0] == 0
    assert seen(metrics, "time_per_output_token_seconds")[0] == 0
    assert metrics.total("prompt_tokens_total") == 5


def test_requests_are_counted_by_route_and_status_and_timed(metrics: Metrics) -> None:
    metrics.answered("/v1/chat/completions", 200, 2.0, is_stream=True)
    metrics.answered("/v1/chat/completions", 400, 9.0, is_stream=False)
    metrics.answered("/v1/models", 200, 9.0, is_stream=False)
    metrics.answered("/api/models", 200, 9.0, is_stream=False)
    assert metrics.total("requests_total") == 4
    assert metrics.total("requests_total", status="200") == 3
    assert metrics.total("request_duration_seconds_sum", stream="true") == 2.0
    # the percentiles are those of answered inference
    assert list(metrics.latencies) == [2.0]


def test_refusals_are_counted_by_code_and_a_full_queue_by_itself(metrics: Metrics) -> None:
    for code in ("QUEUE_FULL", "MODEL_NOT_FOUND", "QUEUE_FULL"):
        metrics.failed(code)
    assert metrics.total("request_errors_total", code="QUEUE_FULL") == 2
    assert metrics.total("request_errors_total") == 3
    assert metrics.total("queue_full_total") == 2


def test_refusals_of_a_full_queue_are_one_line_a_minute(
    metrics: Metrics, minutes: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(full_queue, "log", log)
    for _ in range(300):
        metrics.failed("QUEUE_FULL")
    assert metrics.full_queue.refused == 300
    minutes.pop()()
    assert metrics.full_queue.is_refusing
    metrics.failed("QUEUE_FULL")
    minutes.pop()()
    assert metrics.full_queue.is_refusing
    minutes.pop()()
    assert not metrics.full_queue.is_refusing
    assert not minutes
    told = [(line.args[0], line.kwargs.get("refused")) for line in log.calls]
    assert told == [
        ("queue_full", 1),
        ("queue_full", 299),
        ("queue_full", 1),
        ("queue_has_room", None),
    ]


def test_loads_are_counted_by_outcome_and_timed_from_their_first_report(
    metrics: Metrics, clock: Clock
) -> None:
    assert metrics.total("model_loads_total", outcome="failed") == 0
    count_load(metrics, events.LoadProgress(1, "loading_weights", 10.0))
    clock.now += 4.0
    count_load(metrics, events.LoadProgress(1, "complete", 100.0))
    count_load(metrics, events.LoadComplete(1, 7))
    count_load(metrics, events.LoadError(2, events.LoadFailure("MODEL_LOAD_FAILED", "no")))
    count_load(metrics, events.UnloadComplete(1))
    assert metrics.total("model_loads_total", outcome="loaded") == 1
    assert metrics.total("model_loads_total", outcome="failed") == 1
    assert metrics.total("model_unloads_total") == 1
    assert seen(metrics, "model_load_seconds") == (1, 4.0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], {"p50": None, "p95": None, "p99": None}),
        ([2.0], {"p50": 2000.0, "p95": 2000.0, "p99": 2000.0}),
        ([i / 100 for i in range(100, 0, -1)], {"p50": 500.0, "p95": 950.0, "p99": 990.0}),
        ([0.001, 0.003], {"p50": 1.0, "p95": 3.0, "p99": 3.0}),
    ],
)
def test_percentiles_are_values_that_were_measured(
    seconds: list[float], expected: dict[str, float | None]
) -> None:
    assert asdict(percentiles(seconds)) == expected


def test_the_percentiles_are_those_of_the_latest_requests(metrics: Metrics) -> None:
    for seconds in (9.0, *[1.0] * DURATIONS_KEPT):
        metrics.latencies.append(seconds)
    assert percentiles(metrics.latencies).p99 == 1000.0


# ---------------------------------------------------------------------- on the road of a request


async def test_a_request_reports_its_wait_its_tokens_and_its_load(world: World) -> None:
    await world.model()
    await world.answered()
    metrics = world.metrics
    assert metrics.total("model_loads_total", outcome="loaded") == 1
    assert seen(metrics, "queue_wait_seconds")[0] == 1
    assert seen(metrics, "time_to_first_token_seconds")[0] == 1
    assert metrics.total("prompt_tokens_total") == 3
    assert metrics.total("completion_tokens_total") == 1


async def test_a_request_that_is_cut_off_still_counts_what_it_had(make: Make) -> None:
    async with make() as world:
        await world.loaded()
        asked, stream = await world.in_flight()
        stream.start()
        stream.say("a")
        stream.events.put_nowait(Piece(1, 0, "b", 2))
        await until(is_counted(world, 2))
        asked.cancel()
        await soon(stream.over.wait())
        await until(lambda: seen(world.metrics, "time_per_output_token_seconds")[0] == 1)
        assert seen(world.metrics, "time_to_first_token_seconds")[0] == 1
        assert world.metrics.total("prompt_tokens_total") == 3


def is_counted(world: World, tokens: int) -> Callable[[], bool]:
    return lambda: world.metrics.total("completion_tokens_total") == tokens
