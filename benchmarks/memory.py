"""What models take against what was predicted: `python -m benchmarks.memory [--size SIZE] [--precisions P ...]`.

A checkpoint with random weights is loaded at each precision by a real engine, answers one prompt as long as the least
context, and is unloaded. On a host the memory is the engine's resident set, on cards what the driver counts.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import models
from benchmarks.kept import Kept
from steerserve import messages as m
from steerserve.control.residency import fitting
from steerserve.engines import gpus
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.files import weights
from steerserve.rules.residency.placement import GpuRequest
from steerserve.settings import Settings

PRECISIONS = ("FP16", "Q8", "Q4")
SIZES = ("tiny", "0.5b", "7b")
CONTEXT = 1024
KV_MB = 256


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory at one precision, in MiB. `engine` is the memory of an engine that holds almost nothing. `loaded` is the
    further memory of an engine that holds the model, and `peak` the further memory while it answers a prompt of the
    least context. `left` is the memory that was not given back when the engine ended. On cards, `engine` includes the
    context of the driver."""

    held_as: str
    device: str
    predicted_weights: int
    predicted_needed: int
    engine: int
    loaded: int
    peak: int
    left: int

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_weights / self.loaded - 1


@dataclass(frozen=True, slots=True)
class _Reading:
    """MiB taken by one engine with its model."""

    fit: fitting.Fit
    held_as: str
    device: str
    loaded: int
    peak: int
    left: int


async def measure(folder: Path, nothing: Path, precisions: Sequence[str]) -> dict[str, Usage]:
    """The usage at each precision; `nothing` is a checkpoint of next to no size with a tokenizer of its own."""
    settings = Settings(transformers_min_context=CONTEXT)
    launcher = Launcher("ERROR", "json")
    return {p: await _usage(folder, nothing, p, settings, launcher) for p in precisions}


async def _usage(
    folder: Path, nothing: Path, precision: str, settings: Settings, launcher: Launcher
) -> Usage:
    bare = await _read(nothing, precision, settings, launcher)
    full = await _read(folder, precision, settings, launcher)
    shares = full.fit.plan.shares
    return Usage(
        held_as=full.held_as,
        device=full.device,
        predicted_weights=sum(share.weights_mb for share in shares),
        predicted_needed=sum(share.needed_mb - share.device.context_mb for share in shares),
        engine=bare.loaded,
        loaded=full.loaded - bare.loaded,
        peak=full.peak - bare.loaded,
        left=full.left,
    )


async def _read(folder: Path, precision: str, settings: Settings, launcher: Launcher) -> _Reading:
    """Load, ask, and end an engine."""
    found = await asyncio.to_thread(weights.read_weights, folder)
    cards = await fitting.cards_now(gpus.read) if fitting.built_for_cards() else []
    fit = await fitting.plan(found, precision, GpuRequest(), {}, settings, cards=cards)
    indices = fit.plan.gpu_indices
    engine = await launcher.launch()
    await engine.ask(m.Measure())  # it has come up
    before = _on_cards(indices)
    facts = await engine.load(
        lambda _: None,
        path=str(folder),
        quantization=precision,
        trust_remote_code=False,
        threads=settings.torch_threads,
        kv_cache_mb=KV_MB,
        min_context=CONTEXT,
        devices=list(fit.plan.layer_devices),
        working_mb=fit.plan.working_mb,
    )
    loaded = _on_cards(indices) - before if indices else _resident(engine)
    await _ask(engine)
    peak = _on_cards(indices) - before if indices else _resident(engine, "VmHWM")
    await engine.stop()
    left = _on_cards(indices) - before
    return _Reading(fit, facts.quantization, facts.device, loaded, peak, left)


async def _ask(engine: CheckpointEngine) -> None:
    """One token after a prompt that fills the least context; the tokenizer makes a token of each byte."""
    sampling = m.Sampling(temperature=0.0, max_tokens=1)
    prompt = m.Text("x" * (CONTEXT - 1))
    async for _ in engine.run(m.Request(goal=m.Generate(sampling=sampling), prompts=[prompt])):
        pass


def _resident(engine: CheckpointEngine, field: str = "VmRSS") -> int:
    """MiB of the engine's resident set, now or (VmHWM) at its largest."""
    lines = Path(f"/proc/{engine.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(field))


def _on_cards(gpu_indices: Sequence[int]) -> int:
    """MiB used on the cards, whoever uses them."""
    if not gpu_indices:
        return 0
    return sum(card.used_mb for card in gpus.read()[0] if card.smi_index in gpu_indices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--out", type=Path, help="where to write; by default benchmarks/results")
    given = parser.parse_args()
    kept = Kept("memory", given.out)
    with tempfile.TemporaryDirectory() as scratch:
        folder = models.sized(given.size, Path(scratch) / given.size)
        nothing = models.sized(
            "none", Path(scratch) / "none", models.SIZES[given.size]["vocab_size"]
        )
        found = asyncio.run(measure(folder, nothing, given.precisions))
    for name, usage in found.items():
        print(
            f"{name} ({usage.held_as}): weights {usage.predicted_weights} MiB predicted, {usage.loaded} taken "
            f"({usage.error:+.0%}); in all {usage.predicted_needed} predicted, {usage.peak} at the peak; "
            f"{usage.left} left behind; the engine by itself {usage.engine}"
        )
    mib = {name: asdict(usage) for name, usage in found.items()}
    kept.end({"memory": {"size": given.size, "context_tokens": CONTEXT, "mib": mib}})


if __name__ == "__main__":
    main()
