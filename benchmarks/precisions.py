"""Decode steps in bfloat16, Q8 and Q4 on a processor, in turns, and how far their logits are from bfloat16:
`python -m benchmarks.precisions [--size SIZE ...]`.

Q8 and Q4 are measured as they are served, and with the products of bitsandbytes, which serve without a C++ compiler.
The times are processor seconds of one thread, so that other work on the machine does not change the ratios.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks import models
from benchmarks.kept import Kept
from benchmarks.machine import Spread
from benchmarks.packing import PROMPT, ROWS, Steps
from steerserve.worker import memory
from steerserve.worker.model import native
from steerserve.worker.model.checkpoint import Checkpoint

PRECISIONS = {"bfloat16": "FP16", "Q8": "Q8", "Q4": "Q4"}
STEPS = {False: 12, True: 3}
"""Pairs of steps as they are served, and of steps with the products of bitsandbytes, which take long."""
LIBRARY = ", products of bitsandbytes"
TOKENS = 128


@contextmanager
def _without_compiler(is_library: bool) -> Iterator[None]:
    if not is_library:
        yield
        return
    with mock.patch.object(native, "kernels", return_value=None):
        yield


@torch.inference_mode()
def _logits(model: Checkpoint) -> Tensor:
    """The logits [TOKENS, vocabulary] of one pass over tokens that are drawn at random."""
    source = torch.Generator().manual_seed(3)
    ids = torch.randint(0, model.vocabulary, (1, TOKENS), generator=source)
    logits: Tensor = model.model(ids).logits
    return logits[0].float()


def _error(logits: Tensor, truth: Tensor) -> dict[str, float]:
    """The root of the mean square of the differences, in standard deviations of the true logits, and the mean
    divergence (Kullback-Leibler, in nats) from the true distribution of the next token."""
    found, true = logits.log_softmax(-1), truth.log_softmax(-1)
    return {
        "rms_over_deviation": float((logits - truth).square().mean().sqrt() / truth.std()),
        "divergence_nats": float((true.exp() * (true - found)).sum(-1).mean()),
    }


def measure(folder: Path) -> dict[str, Any]:
    """By form: seconds of a step by number of rows, with its ratio to a step in bfloat16, pair by pair, the bytes of
    the weights, and the error of the logits."""
    plain = Steps(folder)
    truth = _logits(plain.model)
    found: dict[str, Any] = {"bfloat16": {"weights_bytes": sum(plain.model.weights.values())}}
    for name, is_library in [(n, own) for own in STEPS for n in ("Q8", "Q4")]:
        with _without_compiler(is_library):
            steps = Steps(folder, quantization=PRECISIONS[name])
        cell: dict[str, Any] = {
            "weights_bytes": sum(steps.model.weights.values()),
            "error": _error(_logits(steps.model), truth),
        }
        for rows in ROWS:
            pairs = [
                (steps.seconds(rows), plain.seconds(rows)) for _ in range(STEPS[is_library] + 1)
            ]
            cell[f"{rows} rows"] = {
                "seconds": asdict(Spread.of([own for own, _ in pairs[1:]])),
                "bfloat16_seconds": asdict(Spread.of([other for _, other in pairs[1:]])),
                "over_bfloat16": asdict(Spread.of([own / other for own, other in pairs[1:]])),
            }
        found[name + LIBRARY * is_library] = cell
        print(f"{folder.name} {name}{LIBRARY * is_library}: {_line(cell)}", flush=True)
    return found


def _line(cell: dict[str, Any]) -> str:
    times = [
        f"{rows} rows {1e3 * cell[f'{rows} rows']['seconds']['median']:.1f} ms "
        f"({cell[f'{rows} rows']['over_bfloat16']['median']:.2f} of bfloat16)"
        for rows in ROWS
    ]
    return f"{', '.join(times)}; error {cell['error']['rms_over_deviation']:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", nargs="+", choices=models.SIZES, default=["91m"])
    parser.add_argument("--cache", type=Path, help="a folder with checkpoints of `models`")
    given = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed()
    kept = Kept(
        "precisions",
        pairs={("library" if own else "served"): count for own, count in STEPS.items()},
        prompt_tokens=PROMPT,
        has_compiled_functions=native.kernels() is not None,
    )
    precisions = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in given.size:
            folder = models.sized(size, (given.cache or Path(scratch)) / size)
            precisions[size] = measure(folder)
    kept.end({"precisions": precisions})


if __name__ == "__main__":
    main()
