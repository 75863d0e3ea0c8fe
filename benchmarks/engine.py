"""The running batch beside transformers' `generate` and the memory bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.machine import Spread, read_bandwidth, synchronise
from steerserve import messages as m
from steerserve.rules.steering.live import Live
from steerserve.worker import memory
from steerserve.worker.batch.admission import rows_of
from steerserve.worker.batch.batch import Batch
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.monitor import FeatureMonitor
from steerserve.worker.live.readers import LiveReaders
from steerserve.worker.live.sensing import Sensing
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import Sae

KV_TOKENS = 1 << 16
PROMPT = "x" * 8
STEPS = 10
ROUNDS = 3
ROWS = (1, 8, 32)
PREFILL = 512
FEATURES = 64


class Bench:
    """A loaded checkpoint, and ways to time it. `plain` is the same checkpoint as the library loads it."""

    def __init__(self, folder: Path) -> None:
        self.model = Checkpoint(
            folder, quantization="FP16", trust_remote_code=False, report=lambda *_: None
        )
        self.plain = AutoModelForCausalLM.from_pretrained(
            folder, dtype=self.model.dtype, device_map={"": str(self.model.device)}
        )
        self.monitor = FeatureMonitor(self.model.special_tokens)
        self.sensing = Sensing(self.model.decode, lambda: self.monitor.whole)
        self.readers = LiveReaders([self.monitor, self.sensing])
        self.steering = HookedSaes(self.model.dtype, on_detach=self.readers.detached)
        self._numbers = count(1)

    @torch.inference_mode()
    def decode_seconds(self, rows: int) -> list[float]:
        """Seconds of each decode step of `rows` sampled rows."""
        batch = self._started(rows, m.Follow())
        return [self.timed(batch.step) for _ in range(STEPS)]

    @torch.inference_mode()
    def generate_seconds(self) -> float:
        """Seconds per token of transformers' `generate` on one row, sampled the same way."""
        ids = torch.tensor([self.model.encode(PROMPT, special=True)], device=self.model.device)

        def run(tokens: int) -> None:
            self.plain.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=True,
                temperature=0.8,
                top_p=0.9,
                pad_token_id=0,
            )

        return (self.timed(lambda: run(STEPS + 1)) - self.timed(lambda: run(1))) / STEPS

    @torch.inference_mode()
    def prefill_seconds(self) -> tuple[float, float]:
        """Seconds to the first token of a prompt: ours, and a plain forward pass with a cache."""
        batch = Batch(self.model, self.steering, self.readers, KV_TOKENS)
        self._add(batch, 1, m.Follow(), "y" * PREFILL)
        ours = self.timed(batch.step)
        ids = torch.tensor(
            [self.model.encode("y" * PREFILL, special=True)], device=self.model.device
        )
        plain = self.timed(lambda: self.plain(ids, use_cache=True, logits_to_keep=1))
        return ours, plain

    @torch.inference_mode()
    def steering_ratio(self, rows: int) -> list[float]:
        """Time of a step with a different steering on every row over that without, pair by pair."""
        hidden, layer = self.model.hidden_size, self.model.layers // 2
        generator = torch.Generator().manual_seed(0)
        decoder = torch.randn(FEATURES, hidden, generator=generator)
        sae = Sae(decoder.T, torch.zeros(FEATURES), decoder, torch.zeros(hidden), "relu")
        site = sites.find(self.model.model, self.model.layers, sites.RESID_POST, layer)
        self.steering.attach("bench", sae, site)
        self.steering.set_live(Live(epoch=1))
        plain = Batch(self.model, self.steering, self.readers, KV_TOKENS)
        steered = Batch(self.model, self.steering, self.readers, KV_TOKENS)
        self._add(plain, rows, m.Suppressed())
        for row in range(rows):
            self._add(steered, 1, m.Overlay(1, {"bench": {row: 0.5, row + 1: 0.25}}))
        ratios = []
        _prefill(plain)
        _prefill(steered)
        for i in range(4 * STEPS):
            order = (plain, steered) if i % 2 else (steered, plain)
            seconds = {id(batch): self.timed(batch.step) for batch in order}
            ratios.append(seconds[id(steered)] / seconds[id(plain)])
        self.steering.detach("bench")
        return ratios

    def _started(self, rows: int, plan: m.Plan) -> Batch:
        """A batch whose rows are all prefilled."""
        batch = Batch(self.model, self.steering, self.readers, KV_TOKENS)
        self._add(batch, rows, plan)
        _prefill(batch)
        return batch

    def _add(self, batch: Batch, rows: int, plan: m.Plan, prompt: str = PROMPT) -> None:
        sampling = m.Sampling(temperature=0.8, top_p=0.9, max_tokens=160)
        goal, prompts = m.Generate(sampling=sampling), [self.tokens(prompt)] * rows
        request = m.Request(id=next(self._numbers), goal=goal, prompts=prompts, plan=plan)
        context = self.model.model_max_context
        made = rows_of(request, goal, self.model, context, KV_TOKENS, self.steering)
        batch.add(made, is_seeded=False)

    def tokens(self, text: str) -> m.Tokens:
        """A prompt as the engine gets it."""
        return m.Tokens(self.model.encode(text, special=True))

    def timed(self, work: Callable[[], Any]) -> float:
        synchronise(self.model.device)
        since = time.perf_counter()
        work()
        synchronise(self.model.device)
        return time.perf_counter() - since


def _prefill(batch: Batch) -> None:
    """Step until every row decodes."""
    batch.step()
    while batch._shared.joining:
        batch.step()


def measure(folder: Path) -> dict[str, Any]:
    """Decode at several widths, prefill, and steering, each as ratios in one run."""
    memory.keep_freed()  # as the engine process does
    bench = Bench(folder)
    bandwidth = read_bandwidth(bench.model.device)
    weights = bench.model.parameters * bench.model.dtype.itemsize
    steps: dict[int, list[float]] = {rows: [] for rows in ROWS}
    peers: list[float] = []
    prefills: list[tuple[float, float]] = []
    for turn in range(ROUNDS + 1):
        for rows in ROWS:
            found = bench.decode_seconds(rows)
            steps[rows] += found if turn else []
        peers += [bench.generate_seconds()] if turn else []
        prefills += [bench.prefill_seconds()] if turn else []
    speeds = {rows: Spread.of([rows / seconds for seconds in steps[rows]]) for rows in ROWS}
    limit = bandwidth.median / weights
    peer = Spread.of([1 / seconds for seconds in peers])
    ratios = Spread.of(bench.steering_ratio(8))
    return {
        "model": {
            "shape": "Qwen2.5-0.5B, random weights",
            "dtype": str(bench.model.dtype),
            "weights_bytes": weights,
            "kv_bytes_per_token": bench.model.kv_bytes_per_token,
        },
        "read_bandwidth_bytes_per_s": asdict(bandwidth),
        "bandwidth_limit_tokens_per_s": limit,
        "decode_tokens_per_s": {str(rows): asdict(speed) for rows, speed in speeds.items()},
        "generate_tokens_per_s": asdict(peer),
        "one_row_over_generate": speeds[1].median / peer.median,
        "one_row_over_bandwidth_limit": speeds[1].median / limit,
        "rows_8_over_1": speeds[8].median / speeds[1].median,
        "rows_32_over_1": speeds[32].median / speeds[1].median,
        "prefill_tokens": PREFILL,
        "prefill_tokens_per_s": asdict(Spread.of([PREFILL / ours for ours, _ in prefills])),
        "prefill_over_plain_forward": asdict(Spread.of([p / o for o, p in prefills])),
        "steering_step_ratio_8_rows": asdict(ratios),
    }
