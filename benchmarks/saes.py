"""What SAEs cost: attaching one, keeping it, steering with it, and watching its features."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.engine import KV_TOKENS, PROMPT, Bench
from benchmarks.machine import Spread
from steerserve import messages as m
from steerserve.rules.steering.live import Live
from steerserve.worker import memory
from steerserve.worker.batch.admission import rows_of
from steerserve.worker.batch.batch import Batch
from steerserve.worker.hooks.attach import attach
from steerserve.worker.live.target import target_of
from steerserve.worker.model.budget import SaeRoom

D_SAE = 16_384
KEY = "bench@12"
TOP_K = 10
ATTACHES = 3
PAIRS = 24
BLOCK = 16
"""Steps timed at once where the work of several steps is done in one of them."""

BLOCKS = 5


def written(folder: Path, d_in: int, hook: str, d_sae: int = D_SAE) -> m.SaeSource:
    """A SAELens folder with random weights whose features fire about one time in six, as float32."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(0)
    decoder = torch.randn(d_sae, d_in, generator=draw)
    decoder = decoder / decoder.norm(dim=-1, keepdim=True)
    config = {
        "architecture": "standard",
        "d_in": d_in,
        "d_sae": d_sae,
        "dtype": "float32",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "metadata": {"sae_lens_version": "6.5.1", "hook_name": hook},
    }
    (folder / "cfg.json").write_text(json.dumps(config))
    tensors = {
        "W_enc": decoder.T.contiguous(),
        "b_enc": torch.full((d_sae,), -0.03),
        "W_dec": decoder,
        "b_dec": torch.zeros(d_in),
    }
    save_file(tensors, folder / "sae_weights.safetensors")
    return m.SaeSource(str(folder), str(folder))


class Saes:
    """A model with one SAE, and ways to time it."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench = bench
        self._layer = bench.model.layers // 2
        hook = f"blocks.{self._layer}.hook_resid_post"
        self._source = written(folder, bench.model.hidden_size, hook)

    @torch.inference_mode()
    def attached(self, *, check: bool, dtype: str | None = None) -> m.Attached:
        placed = m.PlacedSae(KEY, self._source, self._layer, dtype, check)
        model = self._bench.model
        room = SaeRoom.beside(model, KV_TOKENS, 0, 0)
        return attach(placed, model, self._bench.steering, room)

    @torch.inference_mode()
    def attach_seconds(self, *, check: bool) -> list[float]:
        """Seconds from a file in the page cache to the hook."""
        found = []
        for turn in range(ATTACHES + 1):
            seconds = self._bench.timed(lambda: self.attached(check=check))
            found += [seconds] if turn else []
            self._bench.steering.detach(KEY)
        return found

    def memory(self, dtype: str | None) -> dict[str, float]:
        """MiB that the process grows by, and what the attach says of it."""
        host = torch.device("cpu")
        memory.give_back()
        before = memory.held(host)
        told = self.attached(check=False, dtype=dtype)
        memory.give_back()
        grown = memory.held(host) - before
        self._bench.steering.detach(KEY)
        memory.give_back()
        return {"told_mib": told.memory_mb, "grown_mib": grown / 2**20}

    @torch.inference_mode()
    def steering_ratio(self, rows: int, plans: list[m.Plan]) -> list[float]:
        """Time of a decode step with these plans over one of unsteered rows, pair by pair."""
        plain = self._batch([m.Suppressed()] * rows)
        steered = self._batch(plans)
        found = []
        for turn in range(PAIRS + 1):
            seconds = self._interleaved(turn, plain.step, steered.step)
            found += [seconds[1] / seconds[0]] if turn else []
        return found

    @torch.inference_mode()
    def monitoring_ratio(self, rows: int) -> list[float]:
        """Time of decode steps whose rows are monitored, encoding included, over as many of rows that are not."""
        monitor = self._bench.monitor
        plain = self._batch([m.Follow()] * rows)
        watched = self._batch([m.Follow()] * rows, label="bench")

        def run(batch: Batch) -> None:
            for _ in range(BLOCK):
                batch.step()
                monitor.events()
                monitor.work()

        found = []
        for turn in range(BLOCKS + 1):
            seconds = self._interleaved(turn, lambda: run(plain), lambda: run(watched))
            found += [seconds[1] / seconds[0]] if turn else []
        return found

    @torch.inference_mode()
    def ending_seconds(self, rows: int) -> list[float]:
        """Seconds that the records of `rows` choices take which end in one step, with what waited."""
        monitor = self._bench.monitor
        found = []
        for turn in range(ATTACHES + 1):
            batch = self._batch([m.Follow()] * rows, label="bench", tokens=4)
            while not batch.is_idle:
                batch.step()
            seconds = self._bench.timed(monitor.events)
            found += [seconds] if turn else []
        return found

    def _interleaved(
        self, turn: int, one: Callable[[], Any], other: Callable[[], Any]
    ) -> tuple[float, float]:
        """Seconds of both, in an order that changes from turn to turn."""
        if turn % 2:
            first = self._bench.timed(one)
            return first, self._bench.timed(other)
        second = self._bench.timed(other)
        return self._bench.timed(one), second

    def _batch(self, plans: list[m.Plan], label: str | None = None, tokens: int = 200) -> Batch:
        """A batch whose rows, one for each plan, are all prefilled."""
        model = self._bench.model
        batch = Batch(model, self._bench.steering, self._bench.readers, KV_TOKENS)
        sampling = m.Sampling(temperature=0.8, top_p=0.9, max_tokens=tokens)
        for number, plan in enumerate(plans, start=1):
            goal, prompts = m.Generate(sampling=sampling), [self._bench.tokens(PROMPT)]
            request = m.Request(id=number, goal=goal, prompts=prompts, plan=plan, label=label)
            context, saes = model.model_max_context, self._bench.steering
            rows = rows_of(request, goal, model, context, KV_TOKENS, saes)
            batch.add(rows, is_seeded=False)
        batch.step()
        while batch._shared.joining:
            batch.step()
        return batch


def measure(scratch: Path, folder: Path) -> dict[str, Any]:
    """Each as a ratio in one run, its two sides interleaved."""
    memory.keep_freed()  # as the engine process does
    bench = Bench(folder)
    saes = Saes(bench, scratch / "sae")
    result: dict[str, Any] = {
        "sae": {"d_in": bench.model.hidden_size, "d_sae": D_SAE, "dtype": "float32"},
        "attach_seconds": asdict(Spread.of(saes.attach_seconds(check=False))),
        "attach_with_check_seconds": asdict(Spread.of(saes.attach_seconds(check=True))),
        "memory": {dtype or "as stored": saes.memory(dtype) for dtype in (None, "bfloat16")},
    }
    told = saes.attached(check=False)
    values = dict.fromkeys(range(4), 0.5)
    bench.steering.set_live(Live(1, True, {KEY: values}))
    overlays: list[m.Plan] = [m.Overlay(1, {KEY: {i: 0.5, i + 40: 0.25}}) for i in range(32)]
    result["steering_step_ratio"] = {
        "8 rows, live values": asdict(Spread.of(saes.steering_ratio(8, [m.Follow()] * 8))),
        "8 rows, each its own": asdict(Spread.of(saes.steering_ratio(8, overlays[:8]))),
        "32 rows, each its own": asdict(Spread.of(saes.steering_ratio(32, overlays))),
    }
    bench.steering.set_live(Live(2))
    watched: dict[str, tuple[list[int] | None, int]] = {
        "every feature": (None, 8),
        "20 features": (list(range(0, D_SAE, D_SAE // 20))[:20], 8),
    }
    result["monitoring_step_ratio"] = {}
    for name, (features, rows) in watched.items():
        bench.monitor.watch(target_of(bench.steering, KEY, features, TOP_K))
        ratios = saes.monitoring_ratio(rows)
        result["monitoring_step_ratio"][name] = asdict(Spread.of(ratios))
    bench.monitor.watch(target_of(bench.steering, KEY, None, TOP_K))
    result["record_seconds_of_8_choices"] = asdict(Spread.of(saes.ending_seconds(8)))
    read = [bench.timed(_reader(bench)) for _ in range(ATTACHES)]
    result["statistics_seconds"] = statistics.median(read)
    bench.steering.detach(KEY)
    result["memory"]["told_mib"] = told.memory_mb
    return result


def _reader(bench: Bench) -> Callable[[], Any]:
    return lambda: bench.monitor.read(m.ReadStatistics(1))
