"""Passes of a real model in bfloat16 by the compiled functions, beside the same passes by oneDNN, in turns:
`python -m benchmarks.half_kernels`. For processors where a service chooses the compiled functions (AVX512-BF16)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tools.real.models import MODELS

from benchmarks.kept import Kept
from benchmarks.machine import Spread
from benchmarks.packing import PROMPT, Steps
from steerserve.worker import memory
from steerserve.worker.model import kept_checks, packing

ROWS = (1, 2, 8, 32)
PROMPTS = (256, 1024)
ROUNDS, WARM = 24, 3


class Passes(Steps):
    """Decode steps and prompts of one checkpoint, in seconds on the clock."""

    @torch.inference_mode()
    def decode(self, rows: int) -> float:
        self.seconds(rows)  # the weights of the other model have driven these out of the caches
        return _timed(
            lambda: self.model.decode_step(*self._caches[rows], [7] * rows, [PROMPT] * rows)
        )

    @torch.inference_mode()
    def prompt(self, tokens: int) -> float:
        cache = self.model.cache()
        slot = cache.open(tokens)
        ids = [10 + at % 1000 for at in range(tokens)]
        return _timed(lambda: self.model.prefill(cache, [slot], [ids], start=0))


def _timed(work: Callable[[], object]) -> float:
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def measure(folder: Path) -> dict[str, Any]:
    """By kind of pass: the seconds of both ways, and how many times as fast the compiled functions are."""
    # what the checks of one way found does not hold for the other
    with (
        patch.object(kept_checks, "read", lambda _: None),
        patch.object(kept_checks, "keep", lambda *_: None),
    ):
        ours = Passes(folder)
        with patch.object(packing, "_adds_pairs", lambda: False):
            theirs = Passes(folder)
    kinds: dict[str, Callable[[Passes], float]] = {
        **{f"decode, {n} rows": lambda of, n=n: of.decode(n) for n in ROWS},  # type: ignore[misc]
        **{f"prompt, {n} tokens": lambda of, n=n: of.prompt(n) for n in PROMPTS},  # type: ignore[misc]
    }
    found: dict[str, Any] = {}
    for name, seconds in kinds.items():
        pairs = []
        for turn in range(ROUNDS + WARM):
            both = (ours, theirs) if turn % 2 else (theirs, ours)
            took = {of: seconds(of) for of in both}
            pairs.append((took[ours], took[theirs]))
        pairs = pairs[WARM:]
        found[name] = {
            "compiled_seconds": asdict(Spread.of([own for own, _ in pairs])),
            "onednn_seconds": asdict(Spread.of([other for _, other in pairs])),
            "onednn_over_compiled": asdict(Spread.of([other / own for own, other in pairs])),
        }
        ratio = found[name]["onednn_over_compiled"]["median"]
        print(f"  {name}: oneDNN takes {ratio:.2f} times as long", flush=True)
    return found


def main() -> None:
    if not packing._adds_pairs():
        raise SystemExit("a service on this processor has one of the two ways alone")
    memory.keep_freed()
    kept = Kept("half-kernels", rounds=ROUNDS)
    for model in MODELS:
        print(model.title, flush=True)
        kept.write({model.name: measure(model.checkpoint)})
    kept.end({})


if __name__ == "__main__":
    main()
