"""Passes of real models by the compiled functions, beside the same passes by oneDNN, in turns:
`python -m benchmarks.compiled_products`.

The models are in bfloat16, which oneDNN multiplies on processors with AVX-512. With `--stored float16` or
`--stored float32` they are converted first, and computed in float32 on every processor. For float32 each number is
changed by about a ten-thousandth, so that float16 has no room for it. With `--without-bf16` a processor with
AVX512-BF16 takes the place of an older one: oneDNN and the compiled functions do not use these instructions.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tools.real.models import MODELS
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.kept import Kept
from benchmarks.machine import Spread
from benchmarks.packing import PROMPT, Steps
from steerserve.worker import memory
from steerserve.worker.model import kept_checks, packing
from steerserve.worker.model.native import compiling

ROWS = (1, 2, 8, 32)
PROMPTS = (256, 1024)
ROUNDS, WARM = 24, 3
OFF = 1e-4
OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}


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


def converted(source: Path, stored: str, folder: Path) -> Path:
    """A copy of a checkpoint in another dtype."""
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, stored))
    if stored == "float32":
        draw = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter.data *= 1 + OFF * noise
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


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
        with patch.object(packing, "_may_pack_otherwise", lambda _: True):
            ours = Passes(folder)
        with patch.object(packing, "_may_pack_otherwise", lambda _: False):
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-bf16", action="store_true")
    parser.add_argument("--stored", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    asked = parser.parse_args()
    is_older = asked.without_bf16
    if is_older and os.environ | OLDER != os.environ:
        # oneDNN reads it when it is loaded
        os.execve(sys.executable, [*sys.orig_argv], os.environ | OLDER)
    if asked.stored == "bfloat16" and not packing._has_kernels(torch.bfloat16):
        raise SystemExit("oneDNN multiplies no bfloat16 on this processor")
    if is_older:
        compiling._FLAGS = (*compiling._FLAGS, "-mno-avx512bf16")
    memory.keep_freed()
    kept = Kept(
        "compiled-products",
        rounds=ROUNDS,
        stored=asked.stored,
        instructions="AVX-512 without BF16" if is_older else "all",
    )
    for model in MODELS:
        print(model.title, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            source = model.checkpoint
            if asked.stored != "bfloat16":
                source = converted(source, asked.stored, Path(folder))
            kept.write({model.name: measure(source)})
    kept.end({})


if __name__ == "__main__":
    main()
