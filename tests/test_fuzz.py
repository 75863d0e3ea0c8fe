"""The fuzzer in short: it runs, and it finds nothing."""

from __future__ import annotations

import json

import pytest

from tests.fuzz.run import Plan, fuzz


@pytest.mark.timeout(180)
def test_a_short_run_finds_nothing() -> None:
    result = fuzz(Plan(requests=120, seed=5, is_measured=False))
    assert result["problems"] == [], json.dumps(result["faults"], indent=1)
    assert result["requests"] >= 120
    kinds = {"described", "bodies", "documents", "raw", "events", "sequences", "quiet"}
    assert kinds <= set(result["requests_by_kind"])
