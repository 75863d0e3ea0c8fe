"""What a run found, and the file that keeps it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from steerserve import __version__

RESULTS = Path(__file__).parent / "results"


class Kept:
    """What a run has found so far, with the time of its start, the machine, and `facts` that say how it measures. Its
    file is `out`, or one in RESULTS with the time and `name` as its name."""

    def __init__(self, name: str, out: Path | None = None, **facts: Any) -> None:
        self.started = datetime.now(UTC)
        self.found: dict[str, Any] = {
            "version": __version__,
            "started": self.started.isoformat(timespec="seconds"),
            "machine": machine.describe(),
            **facts,
        }
        self.target = out or RESULTS / f"{self.started:%Y-%m-%dT%H%M}-{name}.json"

    def write(self, figures: dict[str, Any]) -> None:
        """Add figures, and write all that was found. Nobody reads half a file."""
        self.found |= figures
        self.target.parent.mkdir(parents=True, exist_ok=True)
        written = self.target.with_suffix(".partial")
        written.write_text(json.dumps(self.found, indent=2) + "\n")
        written.replace(self.target)

    def end(self, figures: dict[str, Any]) -> None:
        """The same, and say where the file is."""
        self.write(figures)
        print(f"written to {self.target}")
