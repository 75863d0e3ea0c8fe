"""The last lines of the log, as `GET /api/health/log` gives them: in order, by level, and without secrets or prompts."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from steerserve.logs.lines import LogLine
from steerserve.logs.recent import RecentLines
from steerserve.rules.bounds import LOG_LINES_KEPT
from tests.logs.configured import configured
from tests.service import Running

TOKEN = "hf_SENTINEL0123456789"
PROMPT = "my very private prompt"
logger = structlog.get_logger("steerserve.tests")


@pytest.fixture
def lines() -> Iterator[RecentLines]:
    kept = RecentLines(before=1000)
    # each service that a test starts takes all lines of this process to itself otherwise
    with configured("DEBUG", kept):
        yield kept


@pytest.fixture
def served_lines(shared: Running) -> Iterator[Running]:
    with configured("INFO", shared.service.owners.around.log_lines):
        yield shared


def only(lines: RecentLines) -> LogLine:
    (line,) = lines.after(None, "DEBUG", LOG_LINES_KEPT).lines
    return line


def test_a_line_has_its_fields_and_its_level(lines: RecentLines) -> None:
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        logger.warning("engine_stalled", model="demo", seconds=1.5, layers=[1, 2])
    line = only(lines)
    assert (line.id, line.level, line.event) == (1001, "WARNING", "engine_stalled")
    assert line.logger == "steerserve.tests"
    assert line.fields == {"model": "demo", "seconds": 1.5, "layers": [1, 2], "request_id": "req_1"}


def test_a_secret_is_in_no_line(lines: RecentLines) -> None:
    logger.info(
        "asked", hub_token=TOKEN, address=f"https://user:{TOKEN}@hub/", reason=[f"Bearer {TOKEN}"]
    )
    logger.info(f"asked with {TOKEN}")
    logging.getLogger("httpx2").warning("GET %s", TOKEN)
    logging.getLogger("uvicorn.error").info("GET %s", TOKEN)
    try:
        raise ValueError(TOKEN)
    except ValueError:
        logger.exception("failed")
    kept = lines.after(None, "DEBUG", LOG_LINES_KEPT)
    assert len(kept.lines) == 5
    assert TOKEN not in repr(kept)


def test_an_exception_has_its_type_and_place_and_not_its_message(lines: RecentLines) -> None:
    try:
        raise ValueError(PROMPT)
    except ValueError:
        logger.exception("stream_failed")
    line = only(lines)
    assert line.exception is not None
    assert line.exception.type == "ValueError"
    assert line.exception.places[-1].startswith("logs/test_recent.py:")
    assert PROMPT not in repr(line)


@pytest.mark.parametrize(
    ("name", "text", "values", "shown"),
    [
        ("asyncio", f"never retrieved: {PROMPT}", (), "text_left_out"),
        ("asyncio", "never retrieved: %s", (PROMPT,), "never retrieved: …"),
        ("uvicorn.error", "Application startup complete.", (), "Application startup complete."),
    ],
)
def test_a_line_of_a_library_has_no_values(
    lines: RecentLines, name: str, text: str, values: tuple[str, ...], shown: str
) -> None:
    logging.getLogger(name).error(text, *values)
    assert only(lines).event == shown


def test_the_cursor_gives_each_line_once_and_counts_the_lines_that_went(lines: RecentLines) -> None:
    logger.info("first")
    seen = lines.after(None, "DEBUG", LOG_LINES_KEPT)
    for number in range(LOG_LINES_KEPT + 3):
        logger.info("more", number=number)
    rest = lines.after(seen.last_id, "DEBUG", LOG_LINES_KEPT)
    assert [line.fields["number"] for line in rest.lines] == list(range(3, LOG_LINES_KEPT + 3))
    assert rest.dropped == 3
    assert lines.after(rest.last_id, "DEBUG", LOG_LINES_KEPT).lines == []


def test_a_cursor_of_a_former_service_gives_all_lines(lines: RecentLines) -> None:
    logger.info("first")
    for cursor in (7, 999_999):
        assert [line.event for line in lines.after(cursor, "DEBUG", LOG_LINES_KEPT).lines] == [
            "first"
        ]


def test_the_route_gives_lines_of_a_level_and_no_text_of_a_request(served_lines: Running) -> None:
    shared = served_lines
    before = shared.data("GET", "/api/health/log")["last_id"]
    shared.complete(PROMPT, max_tokens=1)
    shared.post(
        "/v1/completions",
        {"model": "steerserve-demo", "prompt": "x", PROMPT: PROMPT, "max_tokens": 1},
    )
    shared.error("POST", "/api/models/preview", {"repo_id": PROMPT, "hub_token": TOKEN})
    answer = shared.data("GET", f"/api/health/log?after={before}")
    requests = [line for line in answer["lines"] if line["event"] == "request"]
    assert [line["fields"]["route"] for line in requests][:2] == [
        "/v1/completions",
        "/v1/completions",
    ]
    assert PROMPT not in str(answer)
    assert TOKEN not in str(answer)
    warnings = shared.data("GET", f"/api/health/log?after={before}&level=WARNING")["lines"]
    assert [line["event"] for line in warnings] == ["request_fields_unused"]
    assert len(shared.data("GET", "/api/health/log?limit=1")["lines"]) == 1


def test_a_wrong_level_is_refused(shared: Running) -> None:
    status, code, _ = shared.error("GET", "/api/health/log?level=LOUD")
    assert (status, code) == (422, "VALIDATION_ERROR")
