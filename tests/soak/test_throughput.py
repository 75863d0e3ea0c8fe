"""The benchmarks of the throughput run to their end on a model of next to nothing, and their figures fill the page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchmarks import concurrency, long_prompts, mixed, page, steered
from benchmarks.page import Measured
from benchmarks.plans import Plan

from tests.test_performance_page import MACHINE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
SIZE = "none"


async def measured(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        "concurrency-91m": await concurrency.measure(plan, SIZE),
        "long-prompts": await long_prompts.measure(plan, SIZE),
        "steered": await steered.measure(plan, SIZE),
        "mixed": await mixed.measure(plan, SIZE),
    }


def test_every_part_has_its_figures(tmp_path: Path) -> None:
    lines: list[str] = []
    plan = Plan(
        is_quick=True,
        rounds=1,
        peers=(),
        cache=tmp_path / "cache",
        scratch=tmp_path,
        say=lines.append,
    )
    figures = asyncio.run(measured(plan))
    assert set(figures["concurrency-91m"]["ratios"]) == {
        "8 seeded",
        "32 seeded",
        "32 over 1",
        "64 over 32",
    }
    assert set(figures["long-prompts"]["over_alone"]) == {
        f"beside 1, {phase}" for phase in ("prefill", "decode")
    }
    assert len(figures["steered"]["ratios"]) == 4
    assert figures["mixed"]["cell"]["rounds_cut"] == 0
    parts = {name: Measured("a.json", "0.1.0", MACHINE, part) for name, part in figures.items()}
    text = page.written(parts)
    print("\n".join(lines), text, sep="\n")
    assert text.count("\n## ") == len(figures) + 1
