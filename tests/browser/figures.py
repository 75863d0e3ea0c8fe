"""What a run measures: printed at its end, and kept in benchmarks/results/ with KEEP=1."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from benchmarks.machine import describe

from steerserve import __version__
from tests.browser.visit import ROOT

RESULTS = ROOT / "benchmarks" / "results"


KEEP = bool(os.environ.get("KEEP"))
"""Whether this run measures: then each figure is taken often enough to be kept."""


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that is aimed at. No test fails for a time: a machine under load is slow."""

    aimed: float
    is_least: bool = False

    def is_met(self, figure: float) -> bool:
        return figure >= self.aimed if self.is_least else figure <= self.aimed


TARGETS: Mapping[str, Target] = {
    "first_paint_ms": Target(1_000),
    "slider_to_changed_token_ms": Target(300),
    "scroll_frames_per_second": Target(50, is_least=True),
    "latency_growth_percent": Target(5),
    "latency_growth_beside_browser_percent": Target(5),
    "requests_per_second": Target(2),
}


class Figures:
    """The figures of a run, and the machine as it was before."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC)
        self._machine = describe()
        self._figures: dict[str, Any] = {}

    def add(self, name: str, figure: float, **more: Any) -> None:
        """Note a figure of `TARGETS`, and whether it is what is aimed at."""
        target = TARGETS[name]
        self._figures[name] = {
            "median": round(figure, 2),
            "aimed": target.aimed,
            "met": target.is_met(figure),
        } | more

    def end(self, chromium: str) -> None:
        if not self._figures:
            return
        whole = {
            "version": __version__,
            "started": self._started.isoformat(timespec="seconds"),
            "machine": self._machine | {"chromium": chromium},
            "browser": self._figures,
        }
        text = json.dumps(whole, indent=2) + "\n"
        print(text)
        if KEEP:
            name = f"{self._started:%Y-%m-%dT%H%M}-browser.json"
            (RESULTS / name).write_text(text, encoding="utf-8")
