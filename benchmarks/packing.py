"""A decode step as the service makes it, beside the same step with plain linear layers, and beside one with the forward
functions of the library, in turns: `python -m benchmarks.packing [--size SIZE ...]`.

The times are processor seconds of one thread, so that other work on the machine does not change the ratios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import models
from benchmarks.kept import Kept
from benchmarks.machine import Spread
from steerserve.worker import memory
from steerserve.worker.model import forwards, native, whole_layers
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import CacheSlot, KvCache
from steerserve.worker.model.packing import PackedLinear

ROWS = (1, 8, 32)
DTYPES = ("bfloat16", "float32")
PROMPT = 64
LENGTH = 128
STEPS = 12


class Steps:
    """Decode steps of one checkpoint; without `is_packed`, its linear layers are plain, without `is_whole`, its layers
    run through their modules, and without `is_short` its modules have the forward functions of the library."""

    def __init__(
        self,
        folder: Path,
        *,
        is_packed: bool = True,
        is_whole: bool = True,
        is_short: bool = True,
        quantization: str = "FP16",
    ) -> None:
        self.model = Checkpoint(
            folder, quantization=quantization, trust_remote_code=False, report=lambda *_: None
        )
        if not is_packed:
            _unpack(self.model.model)
        if not (is_packed and is_whole):
            _lengthen(self.model.model, whole_layers)
        if not is_short:
            _lengthen(self.model.model, whole_layers, forwards)
        self._caches: dict[int, tuple[KvCache, list[CacheSlot]]] = {}

    @torch.inference_mode()
    def seconds(self, rows: int) -> float:
        """Processor seconds of one step of `rows` rows after `PROMPT` tokens each."""
        if rows not in self._caches:
            cache = self.model.cache()
            slots = [cache.open(LENGTH) for _ in range(rows)]
            for row, slot in enumerate(slots):
                self.model.prefill(cache, [slot], [[row + 1] * PROMPT], start=0)
            self._caches[rows] = cache, slots
        since = time.process_time()
        self.model.decode_step(*self._caches[rows], [7] * rows, [PROMPT] * rows)
        return time.process_time() - since


def _unpack(model: nn.Module) -> None:
    """Give every packed layer its plain weight back."""
    for layer in model.modules():
        if type(layer) is PackedLinear:
            weight = layer.weight
            del layer.packed
            layer.__class__ = nn.Linear
            layer.weight = nn.Parameter(weight, requires_grad=False)


def _lengthen(model: nn.Module, *sources: ModuleType) -> None:
    """Give every module that has a function of these sources the function of the library back."""
    names = {source.__name__ for source in sources}
    for module in model.modules():
        if type(module).forward.__module__ in names:
            module.__class__ = type(module).__bases__[0]


def measure(folder: Path) -> dict[str, Any]:
    """By number of rows: seconds of a step as the service makes it, and of the two other kinds of steps with their
    ratios, pair by pair."""
    ours = Steps(folder)
    others = {
        "plain": Steps(folder, is_packed=False),
        "library": Steps(folder, is_short=False),
    }
    found: dict[str, Any] = {str(rows): {} for rows in ROWS}
    for rows in ROWS:
        for name, other in others.items():
            pairs = [pair(ours, other, rows, turn) for turn in range(STEPS + 2)][2:]
            ratios = [theirs / own for own, theirs in pairs]
            found[str(rows)] |= {
                f"packed_seconds{'' if name == 'plain' else '_beside_library'}": asdict(
                    Spread.of([own for own, _ in pairs])
                ),
                f"{name}_seconds": asdict(Spread.of([theirs for _, theirs in pairs])),
                f"{name}_over_packed": asdict(Spread.of(ratios)),
            }
    return found


def pair(ours: Steps, other: Steps, rows: int, turn: int) -> tuple[float, float]:
    """Seconds of our step and of the other one; each comes first in every other turn."""
    if turn % 2:
        return ours.seconds(rows), other.seconds(rows)
    theirs = other.seconds(rows)
    return ours.seconds(rows), theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", nargs="+", choices=models.SIZES, default=["tiny", "0.5b"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed()
    has_compiled = native.kernels() is not None
    kept = Kept("packing", steps=STEPS, prompt_tokens=PROMPT, has_compiled_functions=has_compiled)
    packing: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in given.size:
            folder = models.sized(size, Path(scratch) / size)
            for dtype in DTYPES:
                found = measure(_in_dtype(folder, dtype))
                packing.setdefault(size, {})[dtype] = found
                for kind in ("plain", "library"):
                    ratios = {
                        rows: f"{f[f'{kind}_over_packed']['median']:.2f}"
                        for rows, f in found.items()
                    }
                    print(f"{size} {dtype}: {kind} over ours by rows {ratios}", flush=True)
    kept.end({"packing": packing})


def _in_dtype(folder: Path, dtype: str) -> Path:
    """The checkpoint, saved again in this dtype."""
    target = folder.with_name(f"{folder.name}-{dtype}")
    AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).save_pretrained(
        target
    )
    AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    return target


if __name__ == "__main__":
    main()
