"""A decode step with different waiting policies of the threads, alone and beside a busy process:
`python -m benchmarks.waiting`.

A thread that waits for another one spins so many times before it sleeps. Each policy has a process of its own, the
processes step in turns, and the times are seconds on the clock. "one thread" is what the engine lowers itself to.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import models
from benchmarks.kept import Kept
from benchmarks.machine import Spread
from benchmarks.packing import Steps

POLICIES: dict[str, dict[str, str]] = {
    **{f"{spins} spins": {"GOMP_SPINCOUNT": str(spins)} for spins in (0, 1000, 4000, 10000)},
    "the library's own": {"GOMP_SPINCOUNT": "300000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
"""What each policy sets in the environment. By itself the library spins 300,000 times, which is some milliseconds."""

ROWS = (1, 8, 32)
STEPS = 24
BUSY = "while True: pass"


class Stepping:
    """A process with one policy, which answers a number of rows with the median seconds of a decode step."""

    def __init__(self, folder: Path, policy: dict[str, str]) -> None:
        named = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}
        kept = {name: value for name, value in os.environ.items() if name not in named}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.waiting", "--serve", str(folder)],
            env=kept | policy,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seconds(1)

    def seconds(self, rows: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(rows, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def serve(folder: Path) -> None:
    steps = Steps(folder, is_packed=True)
    for line in sys.stdin:
        times = []
        for _ in range(STEPS):
            since = time.perf_counter()
            steps.seconds(int(line))
            times.append(time.perf_counter() - since)
        print(median(times), flush=True)


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """By place, policy and number of rows: seconds of a step, round by round."""
    stepping = {name: Stepping(folder, policy) for name, policy in POLICIES.items()}
    times: dict[str, dict[str, dict[int, list[float]]]] = {
        where: {name: {rows: [] for rows in ROWS} for name in stepping}
        for where in ("alone", "beside a busy process")
    }
    try:
        for turn in range(rounds):
            for where, of_policies in times.items():
                busy = None if where == "alone" else subprocess.Popen([sys.executable, "-c", BUSY])
                for name in stepping if turn % 2 else reversed(stepping):
                    for rows in ROWS:
                        of_policies[name][rows].append(stepping[name].seconds(rows))
                if busy is not None:
                    busy.kill()
                    busy.wait()
    finally:
        for process in stepping.values():
            process.close()
    return {
        where: {
            name: {str(rows): asdict(Spread.of(made)) for rows, made in of_rows.items()}
            for name, of_rows in of_policies.items()
        }
        for where, of_policies in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    kept = Kept("waiting", steps=STEPS)
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(models.sized("91m", Path(scratch) / "91m"), given.rounds)
    for where, of_policies in found.items():
        for name, of_rows in of_policies.items():
            steps = ", ".join(f"{rows}: {s['median'] * 1e3:.1f}" for rows, s in of_rows.items())
            print(f"{where}, {name}: ms of a step by rows {steps}", flush=True)
    kept.end({"waiting": found})


if __name__ == "__main__":
    main()
