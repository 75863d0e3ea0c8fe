"""Measures the parts of the engine and of the service: `python -m benchmarks.run [--only PARTS] [--out FILE]`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import engine, inference, models, runs, saes, sensing, service

PARTS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "service": lambda scratch, big: asyncio.run(service.measure(scratch, big)),
    "engine": lambda _, big: engine.measure(big),
    "inference": lambda _, big: inference.measure(big),
    "saes": saes.measure,
    "sensing": lambda _, big: sensing.measure(big),
}


def main() -> None:
    given = runs.options(__doc__, PARTS).parse_args()
    run = runs.Run("engine", given.only, given.out)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        big = models.half_billion(scratch / "half-billion")
        for part in given.only:
            run.measure(part, lambda part=part: PARTS[part](scratch, big))
    sys.exit(run.end())


if __name__ == "__main__":
    main()
