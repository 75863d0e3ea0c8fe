"""A run of several parts: each part is written to the JSON as soon as it has ended, and a failed part ends no other."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.kept import Kept


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


async def in_time(work: Awaitable[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The figures of a part, ended in order by SIGTERM as by Ctrl-C, or when it takes far too long."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(seconds):
        return await work


class Run:
    """The parts of one run, and the file that they are written to."""

    def __init__(self, name: str, parts: Collection[str], out: Path | None, **facts: Any) -> None:
        self._began = time.monotonic()
        self._parts = list(parts)
        self._kept = Kept(name, out, **facts)

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
        self._kept.write({part: figures})
        for row in tables.rows(part, figures):
            self.say(f"  {row.name}: {row.figure}{row.remark}")

    def end(self) -> int:
        """Say where the figures are. The exit status is 1 if a part failed."""
        failed = [part for part in self._parts if "failed" in self._kept.found.get(part, {})]
        self.say(
            f"written to {self._kept.target}{'; failed: ' + ', '.join(failed) if failed else ''}"
        )
        return bool(failed)
