"""The machine a run was made on, and its memory bandwidth."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of several measurements, in the unit of the name it stands under."""

    median: float
    least: float
    greatest: float
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def scaled(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.least * factor, self.greatest * factor, self.count)


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that at least this share of the values does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def describe() -> dict[str, Any]:
    return {
        "processor": _cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": psutil.cpu_count(logical=False),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        "load_before": round(psutil.getloadavg()[0], 2),
    }


def read_bandwidth(device: torch.device, rounds: int = 7) -> Spread:
    """Bytes per second that a matrix-vector product reads, which is what decoding one row does."""
    size = 1 << 28 if device.type == "cpu" else 1 << 31
    matrix = torch.ones(size // 4096 // 4, 4096, dtype=torch.float32, device=device)
    vector = torch.ones(4096, dtype=torch.float32, device=device)
    found = []
    for _ in range(rounds + 1):
        since = time.perf_counter()
        torch.mv(matrix, vector)
        synchronise(device)
        found.append(matrix.numel() * 4 / (time.perf_counter() - since))
    return Spread.of(found[1:])


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")
