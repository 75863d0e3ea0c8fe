"""A run of several parts: each part is written to the JSON as soon as it has ended, and a failed part ends no other."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, tables
from steerserve import __version__

RESULTS = Path(__file__).parent / "results"


def options(
    about: str | None, parts: Collection[str], only_named: Collection[str] = ()
) -> argparse.ArgumentParser:
    """The options that every run has. Without `--only`, all parts are run but those that are `only_named`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, help="where to write; by default benchmarks/results/")
    parser.add_argument(
        "--only",
        type=lambda text: _known(text.split(","), parts),
        default=[part for part in parts if part not in only_named],
        help=f"these parts alone, separated by commas: {', '.join(parts)}",
        metavar="PARTS",
    )
    return parser


def _known(named: list[str], parts: Collection[str]) -> list[str]:
    if unknown := set(named) - set(parts):
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(sorted(unknown))}")
    return named


class Run:
    """The parts of one run, and the file that they are written to."""

    def __init__(self, name: str, parts: Collection[str], out: Path | None, **facts: Any) -> None:
        started = datetime.now(UTC)
        self._began = time.monotonic()
        self._parts = list(parts)
        self._result: dict[str, Any] = {
            "version": __version__,
            "started": started.isoformat(timespec="seconds"),
            "machine": machine.describe(),
            **facts,
        }
        self._target = out or RESULTS / f"{started:%Y-%m-%dT%H%M}-{name}.json"
        self._target.parent.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"[{minutes:2d}:{seconds:02d}] {text}", flush=True)

    def measure(self, part: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run a part, print its figures, and write the file."""
        self.say(f"part {self._parts.index(part) + 1} of {len(self._parts)}: {part}")
        try:
            figures = work()
        except Exception as error:
            traceback.print_exc()
            figures = {"failed": f"{type(error).__name__}: {error}"}
        self._result[part] = figures
        written = self._target.with_suffix(".partial")
        written.write_text(json.dumps(self._result, indent=2) + "\n")
        written.replace(self._target)
        for row in tables.rows(part, figures):
            self.say(f"  {row.name}: {row.figure}{row.remark}")

    def end(self) -> int:
        """Say where the figures are. The exit status is 1 if a part failed."""
        failed = [part for part in self._parts if "failed" in self._result.get(part, {})]
        self.say(f"written to {self._target}{'; failed: ' + ', '.join(failed) if failed else ''}")
        return bool(failed)
