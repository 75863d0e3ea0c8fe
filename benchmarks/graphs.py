"""Measures decode passes that a card records and replays beside passes that are called: `python -m benchmarks.graphs
[--size SIZE] [--out FILE]`.

On a card the passes are replayed as CUDA graphs. Without a card they run on the static buffers only, which shows what
these cost and nothing of what a card gains. All kinds of passes take turns in one run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import models
from benchmarks.engine import FEATURES, KV_TOKENS, PROMPT, ROUNDS, Bench, _prefill
from benchmarks.kept import Kept
from benchmarks.machine import Spread, read_bandwidth
from steerserve import messages as m
from steerserve.rules.inference import stepping
from steerserve.rules.steering.live import Live
from steerserve.worker import memory
from steerserve.worker.batch.admission import rows_of
from steerserve.worker.batch.batch import Batch
from steerserve.worker.batch.graphs import DecodeGraphs, decode_graphs
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import Sae

ROWS = (1, 8, 16, 32, 64)
STEPS = 20
STEERED = 16
KEY = "bench"


class GraphBench(Bench):
    """Times steps of batches whose decode passes are called, or run on static buffers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.state = stepping.cuda_graphs(
            "on",
            devices=[str(device) for device in self.model.devices],
            are_batched=self.model.row_steps.are_batched,
            attends_by_library=self.model.attention is not None,
        )
        self.changes: list[str] = []
        self.graphs = decode_graphs(self.state, self.model, self.steering)
        if self.graphs is not None:
            self.graphs.on_change = lambda state: self.changes.append(state.reason)

    @torch.inference_mode()
    def steps(self, rows: int, *, is_static: bool, is_steered: bool = False) -> list[float]:
        """Seconds of steps of `rows` rows, each with a steering of its own where they are steered."""
        graphs = self.graphs if is_static else None
        batch = Batch(self.model, self.steering, self.readers, KV_TOKENS, graphs=graphs)
        for row in range(rows):
            values = {KEY: {row: 0.5, row + 1: 0.25}}
            self._ask(batch, row, m.Overlay(1, values) if is_steered else m.Suppressed())
        _prefill(batch)
        batch.step()  # records the pass
        return [self.timed(batch.step) for _ in range(STEPS)]

    def attach(self) -> None:
        """Attach an SAE in the middle of the model."""
        source = torch.Generator().manual_seed(0)
        decoder = torch.randn(FEATURES, self.model.hidden_size, generator=source)
        hidden = torch.zeros(self.model.hidden_size)
        sae = Sae(decoder.T, torch.zeros(FEATURES), decoder, hidden, "relu")
        middle = self.model.layers // 2
        site = sites.find(self.model.model, self.model.layers, sites.RESID_POST, middle)
        self.steering.attach(KEY, sae, site)
        self.steering.set_live(Live(epoch=1))

    def _ask(self, batch: Batch, number: int, plan: m.Plan) -> None:
        sampling = m.Sampling(temperature=0.0, max_tokens=160)
        goal, prompts = m.Generate(sampling=sampling), [self.tokens(PROMPT)]
        request = m.Request(id=number, goal=goal, prompts=prompts, plan=plan)
        context = self.model.model_max_context
        rows = rows_of(request, goal, self.model, context, KV_TOKENS, self.steering)
        batch.add(rows, is_seeded=False)


def measure(folder: Path) -> dict[str, Any]:
    """Steps of each number of rows, called and on static buffers, and steered beside not steered."""
    memory.keep_freed()
    bench = GraphBench(folder)
    bandwidth = read_bandwidth(bench.model.device)
    weights = bench.model.parameters * bench.model.dtype.itemsize
    called: dict[int, list[float]] = {rows: [] for rows in ROWS}
    static: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for turn in range(ROUNDS + 1):
        for rows in ROWS:
            for is_static, kept in ((False, called), (True, static)):
                seconds = bench.steps(rows, is_static=is_static)
                kept[rows] += seconds if turn else []
    bench.attach()
    steered: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(ROUNDS + 1):
        for is_steered, seconds in steered.items():
            found = bench.steps(STEERED, is_static=True, is_steered=is_steered)
            seconds += found if turn else []
    one = Spread.of(static[1]).median
    return {
        "decoding": asdict(bench.state),
        "given_up": bench.changes,
        "recordings": _count(bench.graphs, "recordings"),
        "replays": _count(bench.graphs, "replays"),
        "weights_bytes": weights,
        "read_bandwidth_bytes_per_s": asdict(bandwidth),
        "called_ms": _milliseconds(called),
        "static_ms": _milliseconds(static),
        "called_over_static": {
            str(rows): Spread.of(called[rows]).median / Spread.of(static[rows]).median
            for rows in ROWS
        },
        "one_row_over_bandwidth_limit": weights / bandwidth.median / one,
        "rows_64_over_1": 64 * one / Spread.of(static[64]).median,
        f"unsteered_over_{STEERED}_steerings": (
            Spread.of(steered[False]).median / Spread.of(steered[True]).median
        ),
    }


def _count(graphs: DecodeGraphs | None, name: str) -> int:
    return getattr(graphs, name, 0)


def _milliseconds(steps: dict[int, list[float]]) -> dict[str, Any]:
    return {str(rows): asdict(Spread.of(found).scaled(1000)) for rows, found in steps.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    card = torch.cuda.is_available()
    parser.add_argument("--size", choices=list(models.SIZES), default="7b" if card else "tiny")
    parser.add_argument("--out", type=Path, help="where to write the JSON result")
    given = parser.parse_args()
    kept = Kept("graphs", given.out, shape=given.size)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(models.sized(given.size, Path(folder) / given.size))
    print(json.dumps(found, indent=2))
    kept.end({"graphs": found})


if __name__ == "__main__":
    main()
