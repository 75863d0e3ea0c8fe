"""Where the time of a decode step goes: `python -m benchmarks.step_times`.

The running batch decodes in this process, as an engine does, without HTTP, control plane and client. Steps are timed
first. Then as many steps run under the profiler of PyTorch, which tells the time of every operator; the part of a step
in which no operator runs is Python: the batch, the hooks, the sampling of each row.

Two more parts time steps without the profiler: rows that are watched, and rows beside a prompt that is read.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import models
from benchmarks.kept import Kept
from benchmarks.machine import Spread, quantile
from steerserve import messages as m
from steerserve.worker import memory
from steerserve.worker.batch.admission import rows_of
from steerserve.worker.batch.batch import Batch
from steerserve.worker.batch.graphs import DecodeGraphs
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.monitor import CHUNK, FeatureMonitor
from steerserve.worker.live.readers import LiveReaders
from steerserve.worker.live.sensing import Sensing
from steerserve.worker.live.target import target_of
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import Sae

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


KEY, D_SAE, TOP_K, MEMBERS, THETA = "bench", 16_384, 10, 20, 0.01
BLOCK, BLOCKS = 16, 12
"""Steps that are timed together, because the work of several steps is done in one of them, and how many such blocks."""
WATCHED, READING, PROMPTS = 32, 16, 3
"""Rows that are watched, rows beside a prompt that is read, and how many prompts are read."""


class Decoding:
    """A batch of rows that all decode."""

    def __init__(
        self,
        model: Checkpoint,
        short: int,
        long: int,
        saes: HookedSaes | None = None,
        readers: LiveReaders | None = None,
        plan_of: Callable[[int], m.Plan] = lambda _: m.Suppressed(),
        graphs: DecodeGraphs | None = None,
        parts_of: Callable[[int], dict[str, msgspec.Raw]] = lambda _: {},
    ) -> None:
        self._plan_of = plan_of
        self._parts_of = parts_of
        self._readers = readers or LiveReaders([])
        self._saes = saes or HookedSaes(model.dtype, on_detach=self._readers.detached)
        self._batch = Batch(model, self._saes, self._readers, KV_TOKENS, graphs=graphs)
        self._model = model
        self._rows = 0
        # the long prompts first, so that no short row ends while they are read
        self._add(long, LONG_TOKENS)
        self._read()
        self._add(short, SHORT_TOKENS)
        self._read()

    def _add(self, count: int, tokens: int) -> None:
        """Let rows with prompts of so many tokens join."""
        sampling = m.Sampling(temperature=0.8, top_p=0.9, max_tokens=MOST_TOKENS)
        for _ in range(count):
            self._rows += 1
            ids = [(self._rows + 7 * place) % 1000 + 10 for place in range(tokens)]
            plan = self._plan_of(self._rows)
            goal, prompts = m.Generate(sampling=sampling), [m.Tokens(ids)]
            request = m.Request(
                id=self._rows,
                goal=goal,
                prompts=prompts,
                plan=plan,
                label="bench",
                parts=self._parts_of(self._rows),
            )
            context = self._model.model_max_context
            rows = rows_of(request, goal, self._model, context, KV_TOKENS, self._saes)
            for row in rows:
                self._saes.prepare(row.steering)
            self._readers.join(request, rows, self._saes)
            self._batch.add(rows, is_seeded=False)

    def _read(self) -> None:
        """Step until the prompts of all rows are read."""
        while self._batch._waiting or any(one.joining for one in self._batch._groups()):
            self._batch.step()

    @torch.inference_mode()
    def seconds(self, steps: int) -> list[float]:
        """The seconds of each of so many steps."""
        return [self._step() for _ in range(steps)]

    @torch.inference_mode()
    def watched_seconds(self, steps: int) -> tuple[float, float]:
        """The seconds of so many steps, and those in which the readers worked after each step."""
        stepping = observing = 0.0
        for _ in range(steps):
            stepping += self._step()
            observing += _seconds(self._observe)
        return stepping, observing

    @torch.inference_mode()
    def reading(self) -> Iterator[tuple[bool, float]]:
        """Let a row with a long prompt join. For each step until its prompt is read: whether the step read a part of
        the prompt, and its seconds."""
        self._add(1, LONG_TOKENS)
        group = self._batch._shared
        while self._batch._waiting or group.joining:
            filled = group.joining[0].filled if group.joining else 0
            seconds = _seconds(self._batch.step)
            yield not group.joining or group.joining[0].filled > filled, seconds

    def launches(self, steps: int) -> dict[str, float]:
        """How often a step starts work on the card or waits for it: the calls of the card's library in `steps` steps,
        by their names."""
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True
        ) as profiler:
            self.watched_seconds(steps)
        calls: Counter[str] = Counter()
        for event in profiler.key_averages():
            if event.key.startswith(("cuda", "cuLaunch")):
                calls[event.key] += event.count
        return {name: count / steps for name, count in calls.most_common()}

    def profiled(self, steps: int) -> Counter[str]:
        """The seconds of each operator in so many steps, without the operators that it calls."""
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            self.seconds(steps)
        spent = Counter[str]()
        for event in profiler.key_averages():
            spent[event.key] += event.self_cpu_time_total / 1e6
        return spent

    def _step(self) -> float:
        seconds = _seconds(self._batch.step)
        rows = sum(len(group.rows) for group in self._batch._groups())
        assert rows == self._rows, "a row has ended"
        return seconds

    def _observe(self) -> None:
        """What the engine does after each step."""
        self._readers.events()
        self._readers.work()


def _seconds(work: Callable[[], object]) -> float:
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def compare(batch: Decoding, plain: Decoding) -> dict[str, Any]:
    """The steps of a batch and of plain rows, whose blocks are timed in turns."""
    for one in (plain, batch):
        one.seconds(WARM)
    pairs = []
    for turn in range(BLOCKS):
        both = (batch, plain) if turn % 2 else (plain, batch)
        times = {one: sum(one.seconds(BLOCK)) / BLOCK for one in both}
        pairs.append((times[batch], times[plain]))
    return {
        "step_ms": asdict(Spread.of([its * 1e3 for its, _ in pairs])),
        "plain_ms": asdict(Spread.of([other * 1e3 for _, other in pairs])),
        "rate_over_plain": asdict(Spread.of([other / its for its, other in pairs])),
    }


def load(folder: str) -> Checkpoint:
    """The model of these benchmarks, whose files are made in a folder."""
    return Checkpoint(
        models.sized(SIZE, Path(folder) / SIZE),
        quantization="FP16",
        trust_remote_code=False,
        report=lambda *_: None,
    )


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


def random_sae(width: int) -> Sae:
    """An SAE of random weights, with a packed encoder."""
    decoder = torch.randn(D_SAE, width, generator=torch.Generator().manual_seed(0))
    encoder = decoder.T / width**0.5
    return Sae(encoder, torch.zeros(D_SAE), decoder, torch.zeros(width), "relu").packed_encoder()


@torch.inference_mode()
def watched(model: Checkpoint) -> dict[str, Any]:
    """Steps of rows that are monitored or sensed beside steps of rows that are not, block by block."""
    saes = HookedSaes(model.dtype, on_detach=lambda _: None)
    sae = random_sae(model.hidden_size)
    saes.attach(
        KEY, sae, sites.find(model.model, model.layers, sites.RESID_POST, model.layers // 2)
    )
    monitor, sensing = FeatureMonitor(), Sensing(model.decode)
    monitor.watch(target_of(saes, KEY, None, TOP_K))
    members = [m.ClusterMember(n * (D_SAE // MEMBERS), THETA) for n in range(MEMBERS)]
    cluster = m.ArmedCluster("prof_1", "bench", KEY, members, MEMBERS // 2, 20, 16, 1)
    sensing.arm(cluster, (), saes)
    readers = {
        "not watched": LiveReaders([]),
        f"monitored, the top {TOP_K}": LiveReaders([monitor]),
        f"a sensed cluster of {MEMBERS}": LiveReaders([sensing]),
    }
    batches = {name: Decoding(model, WATCHED, 0, saes, one) for name, one in readers.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in batches}
    for turn in range(BLOCKS + 1):
        for name in batches if turn % 2 else reversed(batches):
            block = batches[name].watched_seconds(BLOCK)
            found[name] += [block] if turn else []
    chunk = torch.randn(CHUNK, model.hidden_size)
    encodings = [_seconds(lambda: sae.encode(chunk)) * WATCHED / CHUNK for _ in range(BLOCKS + 1)]
    return {
        "rows": WATCHED,
        "d_sae": D_SAE,
        "encoding_ms": asdict(Spread.of([seconds * 1e3 for seconds in encodings[1:]])),
        "kinds": {
            name: {
                "pass_ms": asdict(Spread.of([step / BLOCK * 1e3 for step, _ in blocks])),
                "observers_ms": asdict(Spread.of([after / BLOCK * 1e3 for _, after in blocks])),
            }
            for name, blocks in found.items()
        },
    }


@torch.inference_mode()
def beside_a_prompt(model: Checkpoint) -> dict[str, Any]:
    """Steps of short rows alone, and while a long prompt is read, by whether the step reads a part of that prompt."""
    alone: list[float] = []
    found: list[tuple[bool, float]] = []
    for _ in range(PROMPTS):
        decoding = Decoding(model, READING, 0)
        decoding.seconds(WARM)
        alone += decoding.seconds(STEPS)
        found += decoding.reading()
    every = [seconds for _, seconds in found]
    return {
        "rows": READING,
        "prompts": PROMPTS,
        "prompt_tokens": LONG_TOKENS,
        "share_with_a_part": sum(has_part for has_part, _ in found) / len(found),
        "p50_over_alone": quantile(every, 0.5) / quantile(alone, 0.5),
        "step_ms": {
            "alone": asdict(Spread.of([s * 1e3 for s in alone])),
            "reads no part": asdict(Spread.of([s * 1e3 for has, s in found if not has])),
            "reads a part": asdict(Spread.of([s * 1e3 for has, s in found if has])),
        },
    }


def lines(cases: dict[str, Any]) -> Iterable[str]:
    for name, case in cases.items():
        parts = ", ".join(f"{kind} {ms:.1f}" for kind, ms in case["milliseconds"].items())
        yield f"{name}: {case['step_ms']['median']:.1f} ms a step ({parts})"


def main() -> None:
    kept = Kept("step-times", threads=torch.get_num_threads())
    memory.keep_freed()  # as the engine process does
    with tempfile.TemporaryDirectory() as scratch:
        model = load(scratch)
        cases = {name: measured(model, *rows) for name, rows in CASES.items()}
        reading, watching = beside_a_prompt(model), watched(model)
    print("\n".join(lines(cases)))
    print(json.dumps({"watched": watching, "reading": reading}, indent=2))
    times = {"size": SIZE, "steps": STEPS, "cases": cases}
    kept.end({"step-times": times, "step-watched": watching, "step-reading": reading})


if __name__ == "__main__":
    main()
