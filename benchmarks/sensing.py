"""What sensing costs: decode steps whose rows are sensed over decode steps whose rows are not, pair by pair."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import KV_TOKENS, PROMPT, Bench
from benchmarks.machine import Spread
from steerserve import messages as m
from steerserve.worker import memory
from steerserve.worker.batch.admission import rows_of
from steerserve.worker.batch.batch import Batch
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import Sae

KEY = "bench"
D_SAE = 16_384
MEMBERS = 20
ROWS = 8
BLOCK = 16
"""Decode steps in one measurement, so that each has its share of encoding."""
BLOCKS = 12


class Sensed:
    """A model with one SAE at its middle layer."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        hidden, layer = bench.model.hidden_size, bench.model.layers // 2
        generator = torch.Generator().manual_seed(0)
        decoder = torch.randn(D_SAE, hidden, generator=generator)
        sae = Sae(decoder.T / hidden**0.5, torch.zeros(D_SAE), decoder, torch.zeros(hidden), "relu")
        site = sites.find(bench.model.model, bench.model.layers, sites.RESID_POST, layer)
        bench.steering.attach(KEY, sae, site)

    def arm(self, theta: float, min_k: int) -> None:
        """Sense a cluster whose members have this threshold."""
        members = [m.ClusterMember(i * (D_SAE // MEMBERS), theta) for i in range(MEMBERS)]
        cluster = m.ArmedCluster("prof_1", "bench", KEY, members, min_k, 20, 16, 1)
        self._bench.sensing.arm(cluster, (), self._bench.steering)

    @torch.inference_mode()
    def step_ratio(self) -> list[float]:
        plain, sensed = self._batch(None), self._batch("bench")
        readers = self._bench.readers

        def run(batch: Batch) -> None:
            for _ in range(BLOCK):
                batch.step()
                readers.events()
                readers.work()

        ratios = []
        for turn in range(BLOCKS + 1):
            order = (plain, sensed) if turn % 2 else (sensed, plain)
            seconds = {
                id(batch): self._bench.timed(lambda batch=batch: run(batch)) for batch in order
            }
            ratios += [seconds[id(sensed)] / seconds[id(plain)]] if turn else []
        return ratios

    def _batch(self, label: str | None) -> Batch:
        """A batch whose rows are all prefilled; rows with a label are sensed."""
        bench, model = self._bench, self._bench.model
        batch = Batch(model, bench.steering, bench.readers, KV_TOKENS)
        sampling = m.Sampling(temperature=0.8, top_p=0.9, max_tokens=BLOCK * (BLOCKS + 2))
        prompt = m.Tokens(model.encode(PROMPT, special=True))
        # two batches share the readers, so their requests have different ids
        first = 1 if label is None else ROWS + 1
        for number in range(first, first + ROWS):
            goal, plan = m.Generate(sampling=sampling), m.Follow()
            request = m.Request(id=number, goal=goal, prompts=[prompt], plan=plan, label=label)
            context = model.model_max_context
            rows = rows_of(request, goal, model, context, KV_TOKENS, bench.steering)
            bench.readers.join(request, rows, bench.steering)
            batch.add(rows, is_seeded=False)
        batch.step()
        while batch._shared.joining:
            batch.step()
        return batch


def measure(folder: Path) -> dict[str, Any]:
    """The ratio where no member fires, and where most members fire at most tokens."""
    memory.keep_freed()  # as the engine process does
    sensed = Sensed(Bench(folder))
    cases = {"quiet": (1e9, MEMBERS), "firing": (1e-6, MEMBERS // 4)}
    ratios = {}
    for name, (theta, min_k) in cases.items():
        sensed.arm(theta, min_k)
        ratios[f"{ROWS} rows, {MEMBERS} members, {name}"] = asdict(Spread.of(sensed.step_ratio()))
    return {"rows": ROWS, "members": MEMBERS, "step_ratio": ratios}
