"""`python -m tests.fuzz [--requests N] [--seed N] [--only KIND:NUMBER] [--keep]`.

The environment variables FUZZ_REQUESTS, FUZZ_SEED and FUZZ_ONLY set the same. Without a seed, each run draws one.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from tests.fuzz import report
from tests.fuzz.report import Chunk
from tests.fuzz.run import Plan, fuzz

REQUESTS = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    environment = os.environ.get
    parser.add_argument(
        "--requests", type=int, default=int(environment("FUZZ_REQUESTS") or REQUESTS)
    )
    seed = int(environment("FUZZ_SEED") or secrets.randbelow(2**31))
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument(
        "--only", default=environment("FUZZ_ONLY"), help="one chunk, as `bodies:12`"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the result to benchmarks/results/"
    )
    parser.add_argument("--kinds", default="", help="only these kinds, separated by commas")
    parser.add_argument("--log", type=Path, help="where to keep the log of the service")
    asked = parser.parse_args()
    only = None
    if asked.only:
        kind, _, number = asked.only.rpartition(":")
        only = Chunk(kind, int(number))
    kinds = tuple(kind for kind in asked.kinds.split(",") if kind)
    print(f"seed {asked.seed}", flush=True)
    result = fuzz(Plan(asked.requests, asked.seed, only, kinds, asked.log))
    show(result)
    if asked.keep and only is None and not kinds:
        print(f"kept as {report.written(result)}")
    return 1 if result["problems"] else 0


def show(result: dict[str, Any]) -> None:
    """Print the figures, then each fault with the command that repeats its request."""
    for route, codes in result["routes"].items():
        print(f"{route}: " + ", ".join(f"{code} x {count}" for code, count in codes.items()))
    for name in (
        "requests",
        "seconds",
        "requests_by_kind",
        "slowest",
        "liveness_ms",
        "turns",
        "memory_mib",
    ):
        if name in result:
            print(f"{name}: {result[name]}")
    for fault in result["faults"]:
        again = f"FUZZ_SEED={result['seed']} FUZZ_ONLY='{fault['chunk']}' make fuzz"
        print(
            f"\n{fault['what']} [{fault['route']}] (again: {again})\n  {fault['body']}\n  {fault['curl'][:4000]}"
        )
    print("\n".join(["", *result["problems"]]) if result["problems"] else "everything held")


if __name__ == "__main__":
    sys.exit(main())
