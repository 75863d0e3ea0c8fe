"""What decode steps gain by architecture: `python -m benchmarks.families [--only NAME ...]`.

A step as the service makes it, beside a step in which all layers run through their modules, and beside one with the
forward functions of the library, in turns. The times are processor seconds of one thread. `outside` is the share of a
step through the modules that is outside its products with weights.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import models
from benchmarks.kept import Kept
from benchmarks.machine import Spread
from benchmarks.packing import PROMPT, STEPS, Steps, pair
from steerserve.worker import memory
from steerserve.worker.model import native

ROWS = (1, 8)


def measure(folder: Path) -> dict[str, Any]:
    """By number of rows: seconds of a step as the service makes it, and the ratios of the two other kinds of steps to
    it, pair by pair."""
    ours = Steps(folder)
    others = {"modules": Steps(folder, is_whole=False), "library": Steps(folder, is_short=False)}
    found: dict[str, Any] = {}
    for rows in ROWS:
        cell = found[str(rows)] = {}
        for name, other in others.items():
            pairs = [pair(ours, other, rows, turn) for turn in range(STEPS + 2)][2:]
            cell |= {
                f"seconds_beside_{name}": asdict(Spread.of([own for own, _ in pairs])),
                f"{name}_over_ours": asdict(Spread.of([theirs / own for own, theirs in pairs])),
            }
        shares = [outside(others["modules"], rows) for _ in range(STEPS)]
        cell["outside"] = asdict(Spread.of(shares))
    return found


def outside(steps: Steps, rows: int) -> float:
    """The share of a step that is outside its products with weights."""
    plain, spent = native.Kernels.multiply, 0.0

    def timed(*given: Any) -> torch.Tensor:
        nonlocal spent
        since = time.process_time()
        product = plain(*given)
        spent += time.process_time() - since
        return product

    with mock.patch.object(native.Kernels, "multiply", timed):
        whole = steps.seconds(rows)
    return 1 - spent / whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=models.FAMILIES, default=[*models.FAMILIES])
    given = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed()
    kept = Kept("families", steps=STEPS, prompt_tokens=PROMPT)
    families = {}
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            found = families[name] = measure(models.family(name, Path(folder)))
        for rows, cell in found.items():
            parts = [f"{cell['seconds_beside_modules']['median'] * 1e3:.1f} ms"]
            parts += [
                f"{key} {cell[key]['median']:.2f}"
                for key in ("modules_over_ours", "library_over_ours", "outside")
            ]
            print(f"{name}, {rows} rows: {', '.join(parts)}", flush=True)
    kept.end({"families": families})


if __name__ == "__main__":
    main()
