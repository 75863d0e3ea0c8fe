"""Decode steps of steered and watched rows beside plain ones, all on static buffers: recorded passes on a card."""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import edit_steps
from benchmarks.machine import Spread
from benchmarks.step_times import (
    D_SAE,
    KEY,
    MEMBERS,
    THETA,
    TOP_K,
    WARM,
    WATCHED,
    Decoding,
    random_sae,
)
from steerserve import messages as m
from steerserve.rules.inference import stepping
from steerserve.worker import memory
from steerserve.worker.batch.graphs import DecodeGraphs, decode_graphs
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.monitor import FeatureMonitor
from steerserve.worker.live.readers import LiveReaders
from steerserve.worker.live.sensing import Sensing
from steerserve.worker.live.target import target_of
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites

BLOCK, BLOCKS = 32, 4
"""Steps that are timed together, because readers do the work of several steps in one, and how many such blocks."""
PROFILED = 8
LISTED = 18
PROFILES = ("plain", "one gated clamp each", "8 edits each", "a sensed cluster", "monitoring")


class CardSteps:
    """A model with an SAE at its middle layer, and batches of rows that decode."""

    def __init__(self, folder: Path) -> None:
        self.model = Checkpoint(
            folder, quantization="FP16", trust_remote_code=False, report=lambda *_: None
        )
        model = self.model
        state = stepping.cuda_graphs(
            "on",
            devices=[str(device) for device in model.devices],
            are_batched=model.row_steps.are_batched,
            attends_by_library=model.attention is not None,
        )
        find = partial(sites.find, model.model, model.layers)
        self._monitor, self._sensing = FeatureMonitor(), Sensing(model.decode)
        self._saes = HookedSaes(model.dtype, find_site=find)
        self.graphs: DecodeGraphs | None = decode_graphs(state, model, self._saes)
        self.changes: list[str] = []
        if self.graphs is not None:
            self.graphs.on_change = lambda state: self.changes.append(state.reason)
        self._saes.attach(
            KEY, random_sae(model.hidden_size), find(sites.RESID_POST, model.layers // 2)
        )
        self._monitor.watch(target_of(self._saes, KEY, None, TOP_K))
        members = [m.ClusterMember(n * (D_SAE // MEMBERS), THETA) for n in range(MEMBERS)]
        cluster = m.ArmedCluster("prof_1", "bench", KEY, members, MEMBERS // 2, 20, 16, 1)
        self._sensing.arm(cluster, (), self._saes)

    def kinds(self) -> Mapping[str, tuple[edit_steps.Plans, LiveReaders]]:
        """The plans of the rows of each kind, and who watches them."""
        nobody = LiveReaders([])
        plans = edit_steps.plans(self.model.hidden_size, self.model.layers)
        edited = {name: (plans_of, nobody) for name, plans_of in plans.items()}
        return {
            "plain": (_plain, nobody),
            **edited,
            "a sensed cluster": (_plain, LiveReaders([self._sensing])),
            "monitoring": (_plain, LiveReaders([self._monitor])),
        }

    @torch.inference_mode()
    def begun(self, plans: edit_steps.Plans, readers: LiveReaders) -> Decoding:
        """Rows that decode, and whose passes are recorded."""
        batch = Decoding(
            self.model, WATCHED, 0, self._saes, readers, plan_of=plans, graphs=self.graphs
        )
        batch.watched_seconds(2 * WARM)
        return batch


@torch.inference_mode()
def measure(folder: Path, say: Any = print) -> dict[str, Any]:
    """For each kind the steps of its rows and of plain ones, block by block, and how often a step starts work on the
    card."""
    memory.keep_freed()  # as the engine process does
    steps = CardSteps(folder)
    kinds = steps.kinds()
    found: dict[str, Any] = {}
    for name, (plans, readers) in kinds.items():
        plain, steered = steps.begun(*kinds["plain"]), steps.begun(plans, readers)
        pairs = []
        for turn in range(BLOCKS):
            both = (steered, plain) if turn % 2 else (plain, steered)
            times = {batch: sum(batch.watched_seconds(BLOCK)) / BLOCK for batch in both}
            pairs.append((times[steered], times[plain]))
        found[name] = {
            "step_ms": asdict(Spread.of([its * 1e3 for its, _ in pairs])),
            "plain_ms": asdict(Spread.of([other * 1e3 for _, other in pairs])),
            "rate_over_plain": asdict(Spread.of([other / its for its, other in pairs])),
        }
        if torch.cuda.is_available():
            found[name]["calls_of_the_card_a_step"] = steered.launches(PROFILED)
        if name in PROFILES:
            found[name]["profile"] = _profile(steered)
        one = found[name]
        say(f"  {name}: {one['step_ms']['median']:.2f} ms, {one['rate_over_plain']['median']:.3f}")
    return {
        "rows": WATCHED,
        "d_sae": D_SAE,
        "given_up": steps.changes,
        "recordings": steps.graphs.recordings if steps.graphs else 0,
        "replays": steps.graphs.replays if steps.graphs else 0,
        "kinds": found,
    }


def _plain(_: int) -> m.Plan:
    return m.Suppressed()


def _profile(batch: Decoding) -> list[str]:
    """Where the host's time goes in some steps."""
    profiler = cProfile.Profile()
    profiler.enable()
    batch.watched_seconds(2 * PROFILED)
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(LISTED)
    return [line for line in text.getvalue().splitlines() if line.strip()]
