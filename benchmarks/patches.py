"""Compares a patch sweep with batched hooks in transformers: `python -m benchmarks.patches [--every N]`.

The sweep patches the residual stream after each layer of SmolLM2-135M-Instruct at each of 60 positions, over HTTP. The
library's model does the same in batches of 16 with a hook at each row's layer and position, and computes the logits of
all positions. One batch is timed in float32 and in bfloat16. All batches then run in float32, and in bfloat16 too where
that was faster; the faster type counts. With `--every N` each N-th batch is run, and the time of all is extrapolated.
Both run on two threads, one after the other.

The figures of some cells are compared with those of the hooks in float32.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.service import Running, add_model, running
from tools.real.models import SMOLLM2
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.kept import Kept

TOKENS, BATCH, THREADS = 60, 16, 2
PERIOD = 0.1
CLEAN = (
    "When Mary and John went to the store on the long road by the river, they talked about the weather and the old "
    "house that stood on the hill behind the church, where nobody had lived for many years and where the children of "
    "the village used to play in the summer. At the store, John gave a drink to"
)
CORRUPT = (
    "After Anna then Paul came from a garden near some short path at a lake, people spoke of their supper or that new "
    "boat which lay in front of another barn, since somebody did work there during several weeks so that all girls "
    "from this city liked to read during each winter. In a garden, Anna sold one book for"
)
TARGET, AGAINST = 6046, 2370


class Hooks:
    """The library's model in one dtype, whose stream behind layers is patched by hooks."""

    def __init__(self, dtype: torch.dtype, base: Sequence[int], source: Sequence[int]) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(SMOLLM2.checkpoint, dtype=dtype)
        self._layers = self._model.eval().get_submodule("model.layers")
        self._base = torch.tensor([list(base)])
        self._values: list[Tensor] = []
        hooks = [
            layer.register_forward_hook(lambda _, __, out: self._values.append(_stream(out)[0]))
            for layer in self._layers
        ]
        with torch.inference_mode():
            self._model(input_ids=torch.tensor([list(source)]), use_cache=False)
        for hook in hooks:
            hook.remove()

    @torch.inference_mode()
    def run(self, cells: Sequence[tuple[int, int]]) -> list[float]:
        """The difference of logits with each patch, of a layer and a position."""
        hooks = []
        for layer in {layer for layer, _ in cells}:
            rows = [(row, at) for row, (its, at) in enumerate(cells) if its == layer]

            def write(_: Any, __: Any, out: Any, layer: int = layer, rows: Any = rows) -> Any:
                stream = _stream(out).clone()
                for row, at in rows:
                    stream[row, at] = self._values[layer][at]
                return (stream, *out[1:]) if isinstance(out, tuple) else stream

            hooks.append(self._layers[layer].register_forward_hook(write))
        ids = self._base.expand(len(cells), -1)
        logits = self._model(input_ids=ids, use_cache=False).logits[:, -1].float()
        for hook in hooks:
            hook.remove()
        found: list[float] = (logits[:, TARGET] - logits[:, AGAINST]).tolist()
        return found

    def timed(self, batches: Sequence[Sequence[tuple[int, int]]]) -> tuple[float, list[float]]:
        """The seconds of these batches, and the difference of logits of each patch."""
        begun = time.perf_counter()
        found = [value for batch in batches for value in self.run(batch)]
        return time.perf_counter() - begun, found


def _stream(out: Any) -> Tensor:
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="run each N-th batch of the library")
    parser.add_argument("--out", type=Path, help="the file to write")
    chosen = parser.parse_args()
    kept = Kept("patches", chosen.out, tokens=TOKENS, batch=BATCH, every=chosen.every)
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as home, running(Path(home)) as live:
        live.data("POST", f"/api/models/{add_model(live, SMOLLM2.checkpoint)}/load?wait=true")
        texts = [cut(live, text) for text in (CLEAN, CORRUPT)]
        clean, corrupt = (ids for _, ids in texts)
        body = {
            "clean": texts[0][0],
            "corrupt": texts[1][0],
            "sites": ["resid_post"],
            "metric": {
                "kind": "logit_difference",
                "target_token": TARGET,
                "against_token": AGAINST,
            },
        }
        live.data("POST", "/api/patches?wait=true", {**body, "layers": [0], "positions": [-1]})
        begun = time.perf_counter()
        job = live.data("POST", "/api/patches", body, 202)["job"]
        while job["finished_at"] is None:
            time.sleep(PERIOD)
            job = live.data("GET", f"/api/jobs/{job['id']}")["job"]
        swept, result = time.perf_counter() - begun, job["result"]
    cells = [(one["layer"], one["positions"][0]) for one in result["cells"]]
    batches = [cells[first : first + BATCH] for first in range(0, len(cells), BATCH)]
    some = batches[:: chosen.every]
    values = {cell: one["value"] for cell, one in zip(cells, result["cells"], strict=True)}
    own = [values[cell] for batch in some for cell in batch]
    seconds: dict[str, dict[str, float]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        hooks = Hooks(dtype, corrupt, clean)
        hooks.run(some[0])
        one_batch, _ = hooks.timed(some[:1])
        its = seconds[str(dtype)] = {"one_batch": one_batch}
        if one_batch > min(one["one_batch"] for one in seconds.values()):
            continue
        taken, found = hooks.timed(some)
        its["all"] = taken * len(batches) / len(some)
        if dtype == torch.float32:
            off = max(abs(one - other) for one, other in zip(own, found, strict=True))
    kept.end(
        {
            "cells": len(cells),
            "sweep_seconds": swept,
            "library_seconds": seconds,
            "times_as_fast": min(its["all"] for its in seconds.values() if "all" in its) / swept,
            "largest_difference": off,
            "clean": result["clean"],
            "corrupt": result["corrupt"],
            "noise_floor": result["noise_floor"],
        }
    )
    print(kept.found)


def cut(live: Running, text: str) -> tuple[str, list[int]]:
    """The first tokens of a text, as a text again, and as ids."""
    ids = live.data("POST", "/api/tokenize", {"text": text})["ids"][:TOKENS]
    cut = live.data("POST", "/api/detokenize", {"ids": ids})["text"]
    assert live.data("POST", "/api/tokenize", {"text": cut})["ids"] == ids
    assert len(ids) == TOKENS, len(ids)
    return cut, ids


if __name__ == "__main__":
    main()
