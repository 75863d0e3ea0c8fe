"""Where the time of a decode step goes: `python -m benchmarks.step_times`.

The running batch decodes in this process, as an engine does, without HTTP, control plane and client. Steps are timed
first. Then as many steps run under the profiler of PyTorch, which tells the time of every operator; the part of a step
in which no operator runs is Python: the batch, the hooks, the sampling of each row.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import machine, models
from benchmarks.machine import Spread
from steerserve import __version__
from steerserve.engine.wire import messages as m
from steerserve.engine.worker import memory
from steerserve.engine.worker.attached.hooks import HookedSaes
from steerserve.engine.worker.batch.admission import rows_of
from steerserve.engine.worker.batch.batch import Batch
from steerserve.engine.worker.model.checkpoint import Checkpoint
from steerserve.engine.worker.observing.observers import Observers

RESULTS = Path(__file__).parent / "results"
SIZE = "91m"
SHORT_TOKENS, LONG_TOKENS = 16, 4000
CASES: dict[str, tuple[int, int]] = {
    "1 row": (1, 0),
    "8 rows": (8, 0),
    "32 rows": (32, 0),
    "16 rows": (16, 0),
    "16 rows beside 4 of 4,000 tokens": (16, 4),
}
"""Rows with a short prompt, and rows with a long one."""
KV_TOKENS = 1 << 16
STEPS, WARM = 30, 5
MOST_TOKENS = 500
"""More tokens than a row writes, so that no row ends."""
KINDS: dict[str, tuple[str, ...]] = {
    "linear layers": ("linear", "addmm", "aten::mm"),
    "attention": ("scaled_dot_product", "flash_attention", "aten::bmm", "aten::baddbmm"),
    "copies of tensors": ("copy_", "aten::cat", "index", "gather", "scatter"),
}
"""What an operator belongs to, by a part of its name; the first kind that fits."""
OTHERS, PYTHON = "other operators", "no operator (Python)"


class Decoding:
    """A batch of rows that all decode."""

    def __init__(self, model: Checkpoint, short: int, long: int) -> None:
        observers = Observers([])
        steering = HookedSaes(model.dtype, on_detach=observers.detached)
        self._batch = Batch(model, steering, observers, KV_TOKENS)
        self._model = model
        self._rows = 0
        # the long prompts first, so that no short row ends while they are read
        self._add(long, LONG_TOKENS)
        self._add(short, SHORT_TOKENS)

    def _add(self, count: int, tokens: int) -> None:
        """Read so many prompts."""
        sampling = m.Sampling(temperature=0.8, top_p=0.9, max_tokens=MOST_TOKENS)
        for _ in range(count):
            self._rows += 1
            ids = [(self._rows + 7 * place) % 1000 + 10 for place in range(tokens)]
            command = m.Generate(self._rows, [m.Tokens(ids)], 1, sampling, m.Suppressed())
            rows = rows_of(command, self._model, self._model.model_max_context, KV_TOKENS)
            self._batch.add(rows, is_seeded=False)
        while count and (self._batch._waiting or self._batch._shared.joining):
            self._batch.step()

    @torch.inference_mode()
    def seconds(self, steps: int) -> list[float]:
        """The seconds of each of so many steps."""
        times = []
        for _ in range(steps):
            since = time.perf_counter()
            self._batch.step()
            times.append(time.perf_counter() - since)
            assert len(self._batch._shared.rows) == self._rows, "a row has ended"
        return times

    def profiled(self, steps: int) -> Counter[str]:
        """The seconds of each operator in so many steps, without the operators that it calls."""
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            self.seconds(steps)
        spent = Counter[str]()
        for event in profiler.key_averages():
            spent[event.key] += event.self_cpu_time_total / 1e6
        return spent


def shares(step: float, operators: Counter[str], steps: int) -> dict[str, float]:
    """The milliseconds of each kind in a step that takes `step` seconds without the profiler."""
    made = Counter[str]()
    for name, seconds in operators.items():
        made[_kind(name)] += seconds / steps * 1e3
    made[PYTHON] = max(0.0, step * 1e3 - sum(made.values()))
    return dict(made)


def _kind(operator: str) -> str:
    return next((k for k, parts in KINDS.items() if any(p in operator for p in parts)), OTHERS)


@torch.inference_mode()
def measured(model: Checkpoint, short: int, long: int) -> dict[str, Any]:
    """One case: the time of a step, tokens/s of the batch alone, and where the time goes."""
    decoding = Decoding(model, short, long)
    decoding.seconds(WARM)
    times = decoding.seconds(STEPS)
    step = statistics.median(times)
    operators = decoding.profiled(STEPS)
    return {
        "rows": short + long,
        "step_ms": asdict(Spread.of([seconds * 1e3 for seconds in times])),
        "tokens_per_s": (short + long) / step,
        "milliseconds": shares(step, operators, STEPS),
        "operators_ms": {
            name: seconds / STEPS * 1e3 for name, seconds in operators.most_common(12)
        },
    }


def lines(cases: dict[str, Any]) -> Iterable[str]:
    for name, case in cases.items():
        parts = ", ".join(f"{kind} {ms:.1f}" for kind, ms in case["milliseconds"].items())
        yield f"{name}: {case['step_ms']['median']:.1f} ms a step ({parts})"


def main() -> None:
    started = datetime.now(UTC)
    memory.keep_freed()  # as the engine process does
    with tempfile.TemporaryDirectory() as scratch:
        model = Checkpoint(
            models.sized(SIZE, Path(scratch) / SIZE),
            quantization="FP16",
            trust_remote_code=False,
            report=lambda *_: None,
        )
        cases = {name: measured(model, *rows) for name, rows in CASES.items()}
    result = {
        "version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "threads": torch.get_num_threads(),
        "step-times": {"size": SIZE, "steps": STEPS, "cases": cases},
    }
    print("\n".join(lines(cases)))
    target = RESULTS / f"{started:%Y-%m-%dT%H%M}-step-times.json"
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {target}")


if __name__ == "__main__":
    main()
