"""Lines of the log: what an untrusted text cannot do to them."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from steerserve.logs import setup as log
from tests.logs.configured import configured

FORGED = "x\n2026-01-01T00:00:00Z [info     ] forged\x1b[2J\u202e\u2028\x85\ud800"


def line(form: str, message: str, **facts: object) -> str:
    """A line of the log about a failure, with facts."""
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord(
            "steerserve", logging.ERROR, __file__, 1, message, (), sys.exc_info()
        )
    record.__dict__.update(facts)
    return log.formatter(form).format(record)


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_text_makes_no_line_of_its_own_and_no_control_sequence(form: str) -> None:
    text = line(form, FORGED, model=FORGED, locations=[FORGED])
    first, *others = text.split("\n")
    assert first.isprintable()
    assert all(other.isprintable() for other in others)
    assert all(other == "" or other.startswith("    ") for other in others)
    assert "forged" in text


def test_a_line_of_json_has_each_text_as_it_was() -> None:
    facts = json.loads(line("json", "event", model=FORGED))
    assert facts["model"] == FORGED
    assert FORGED in facts["exception"]


class Replaced(io.StringIO):
    """A standard error that is replaced, and closed, while a line is written: so a capture of pytest ends beside a
    service that goes on."""

    def __init__(self, successor: io.StringIO) -> None:
        super().__init__()
        self._successor = successor

    def write(self, text: str) -> int:
        sys.stderr = self._successor
        self.close()
        return super().write(text)


def test_a_line_goes_to_the_standard_error_that_replaced_a_closed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    successor = io.StringIO()
    monkeypatch.setattr(sys, "stderr", Replaced(successor))
    with configured("INFO"):
        logging.getLogger("steerserve").info("kept")
    (written,) = successor.getvalue().splitlines()
    assert json.loads(written)["event"] == "kept"


def test_lines_of_the_server_have_no_coloured_copy(capsys: pytest.CaptureFixture[str]) -> None:
    with configured("INFO"):
        colour = {"color_message": "\x1b[36mStarted\x1b[0m"}
        logging.getLogger("uvicorn.error").info("Started", extra=colour)
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "Started"
    assert "color_message" not in line
