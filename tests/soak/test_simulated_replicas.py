"""The benchmarks of replicas run to their end, no answer has a steering that was replaced before it began, and the
figures fill the page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks import page
from benchmarks.page import Measured
from benchmarks.plans import Plan
from benchmarks.replicas import PARTS, Measurement
from benchmarks.simulated_servers import recorded

from tests.test_performance_page import MACHINE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]


async def measured(plan: Plan) -> dict[str, dict[str, Any]]:
    facts = plan.scratch / "facts"
    facts.write_bytes(msgspec.msgpack.encode(await recorded()))
    measurement = Measurement(plan, facts, counts=(0, 1, 8))
    return {name: await part(measurement) for name, part in PARTS.items()}


def test_every_part_has_its_figures(tmp_path: Path) -> None:
    lines: list[str] = []
    plan = Plan(True, 1, (), tmp_path, tmp_path, lines.append)
    figures = asyncio.run(measured(plan))
    assert set(figures["replicas-scaling"]["over_linear"]) == {"8"}
    assert figures["replicas-steering"]["answers_checked"] >= 8
    assert figures["replicas-steering"]["answers_out_of_order"] == 0
    for shares in figures["replicas-limit"]["profile"].values():
        assert 0.99 < sum(shares.values()) < 1.01
    parts = {name: Measured("a.json", "0.1.0", MACHINE, part) for name, part in figures.items()}
    text = page.written(parts)
    print("\n".join(lines), text, sep="\n")
    assert text.count("\n## ") == len(figures) + 1
