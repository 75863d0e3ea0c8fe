"""Measures the service through HTTP beside other servers: `python -m benchmarks.throughput [--quick] [--only PARTS]`.

Every server is a process of its own, every answer is streamed, and what is compared is measured in turns. The peers
(`transformers serve`, and llama.cpp through xllamacpp) are installed into an environment in the cache folder. A whole
run takes about half an hour on 2 cores, `--quick` less than three minutes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    beside_batch,
    beside_corpus,
    beside_jobs,
    concurrency,
    few_shot,
    kept_beginnings,
    long_prompts,
    machine,
    mixed,
    neighbours,
    runs,
    servers,
    steered,
)
from benchmarks.plans import CACHE, Plan

SIZES = ("91m", "0.5b")
PART_SECONDS = 1500.0
"""A part that takes longer is given up."""
WHOLE_SECONDS = 5400.0
"""The same for the parts that are measured only where they are named."""


async def bandwidth(plan: Plan) -> dict[str, Any]:
    """What the memory allows for one row: the weights are read once for each token."""
    read = machine.read_bandwidth(torch.device("cpu"))
    weights = {size: _bytes(plan.checkpoint(size)) for size in SIZES}
    return {
        "read_bytes_per_s": asdict(read),
        "weights_bytes": weights,
        "limit_tokens_per_s": {size: read.median / of for size, of in weights.items()},
    }


def _bytes(checkpoint: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))


PARTS: dict[str, Callable[[Plan], Awaitable[dict[str, Any]]]] = {
    "bandwidth": bandwidth,
    "concurrency-91m": lambda plan: concurrency.measure(plan, "91m"),
    "long-prompts": lambda plan: long_prompts.measure(plan, "91m"),
    "kept-beginnings": lambda plan: kept_beginnings.measure(plan, "91m"),
    "few-shot": lambda plan: few_shot.measure(plan, "91m"),
    "steered": lambda plan: steered.measure(plan, "91m"),
    "neighbours": neighbours.measure,
    "mixed": lambda plan: mixed.measure(plan, "91m"),
    "beside-batch": lambda plan: beside_batch.measure(plan, "91m"),
    "beside-jobs": beside_jobs.measure,
    "concurrency-0.5b": lambda plan: concurrency.measure(plan, "0.5b"),
    "beside-corpus-whole": beside_corpus.measure,
}
ONLY_NAMED = ("beside-corpus-whole",)
"""The parts that are measured only where they are named, because they take longer than all others together."""
QUICK = [part for part in PARTS if part not in ("bandwidth", "concurrency-0.5b")]


def main() -> None:
    parser = runs.options(__doc__, PARTS, ONLY_NAMED)
    parser.add_argument("--quick", action="store_true", help="91M only, one round, no peers")
    parser.add_argument("--rounds", type=int, default=3, help="how often; 3 by default")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of models and peers")
    parser.add_argument("--no-peers", action="store_true", help="measure this service alone")
    given = parser.parse_args()
    parts = [part for part in given.only if part in QUICK or not given.quick]
    rounds = 1 if given.quick else given.rounds
    run = runs.Run("throughput", parts, given.out, quick=given.quick, rounds=rounds)
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan(
            is_quick=given.quick,
            rounds=rounds,
            peers=() if given.quick or given.no_peers else servers.PEERS,
            cache=given.cache,
            scratch=Path(scratch),
            say=run.say,
        )
        try:
            for part in parts:
                run.measure(part, partial(_run, part, plan))
        except (KeyboardInterrupt, asyncio.CancelledError):
            run.say("interrupted")
            sys.exit(130)
        finally:
            status = run.end()
    sys.exit(status)


def _run(part: str, plan: Plan) -> dict[str, Any]:
    seconds = WHOLE_SECONDS if part in ONLY_NAMED else PART_SECONDS
    return asyncio.run(runs.in_time(PARTS[part](plan), seconds))


if __name__ == "__main__":
    main()
