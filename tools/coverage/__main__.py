"""Runs the tests and counts the lines and branches that all processes of the service run, package by package.

The arguments go to pytest. Each process writes counts of its own, which are combined here. The result is
benchmarks/results/<start>-coverage.json, also if a test failed: counting makes the service slower, so a test that
bounds a time may fail here and nowhere else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TypedDict

from benchmarks import machine
from benchmarks.runs import RESULTS

from steerserve import __version__

ROOT = Path(__file__).parents[2]
IN_PROCESS = Path(__file__).parent / "in_process"
SOURCE = PurePosixPath("src/steerserve")
TEMPORARY = ROOT / ".coverage.json"


class Counts(TypedDict):
    """Lines and branches of one package, and how many of them some process ran. `percent` is of both together; it is
    None for a package without code."""

    lines: int
    lines_run: int
    branches: int
    branches_run: int
    percent: float | None


def main() -> int:
    """Returns the exit status of pytest, or that of coverage.py if it cannot combine the counts."""
    started = datetime.now(UTC)
    arguments = sys.argv[1:]
    # pytest warns of each plugin that is imported before it, and asyncio has the name of a plugin
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    _coverage("erase")
    path = os.pathsep.join(filter(None, [str(IN_PROCESS), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", *arguments]
    status = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}).returncode
    if failed := _coverage("combine", "--quiet") or _coverage(
        "json", "--quiet", "-o", str(TEMPORARY)
    ):
        return failed
    report = json.loads(TEMPORARY.read_text())
    TEMPORARY.unlink()
    packages = _packages({name: file["summary"] for name, file in report["files"].items()})
    total = _counts([report["totals"]])
    _print(packages | {"total": total})
    result = {
        "version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "pytest": arguments,
        "exit_status": status,
        "total": total,
        "packages": packages,
    }
    target = RESULTS / f"{started:%Y-%m-%dT%H%M}-coverage.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {target.relative_to(ROOT)}")
    return status


def _coverage(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT).returncode


def _packages(summaries: dict[str, dict[str, int]]) -> dict[str, Counts]:
    """The counts of each folder of the package. The modules of the root are `.`."""
    groups: defaultdict[str, list[dict[str, int]]] = defaultdict(list)
    for name, summary in summaries.items():
        groups[str(PurePosixPath(name).parent.relative_to(SOURCE))].append(summary)
    return {name: _counts(groups[name]) for name in sorted(groups)}


def _counts(summaries: list[dict[str, int]]) -> Counts:
    def number(field: str) -> int:
        return sum(summary[field] for summary in summaries)

    lines, branches = number("num_statements"), number("num_branches")
    lines_run, branches_run = number("covered_lines"), number("covered_branches")
    both = lines + branches
    percent = round(100 * (lines_run + branches_run) / both, 1) if both else None
    return Counts(
        lines=lines,
        lines_run=lines_run,
        branches=branches,
        branches_run=branches_run,
        percent=percent,
    )


def _print(packages: dict[str, Counts]) -> None:
    print(f"{'package':<24}{'lines':>14}{'branches':>14}{'%':>8}")
    for name, counts in packages.items():
        lines = f"{counts['lines_run']}/{counts['lines']}"
        branches = f"{counts['branches_run']}/{counts['branches']}"
        percent = "-" if counts["percent"] is None else f"{counts['percent']:.1f}"
        print(f"{name:<24}{lines:>14}{branches:>14}{percent:>8}")


if __name__ == "__main__":
    sys.exit(main())
