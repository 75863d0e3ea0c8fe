"""Lines of the log: what a text of a stranger cannot do to them."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from steerserve import log

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
