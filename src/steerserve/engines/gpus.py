"""The cards of this machine, read through the driver's own library (NVML), which makes no context on a card."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Protocol, TypeVar

import pynvml

from steerserve.rules.residency.gpus import Card, CardProcess, torch_indices

Fact = TypeVar("Fact")
HIDDEN = "the driver does not tell the memory of single processes"


def read(
    environ: Mapping[str, str] = os.environ, nvml: ModuleType = pynvml
) -> tuple[list[Card], str | None]:
    """Every card, and the reason why there are none or why some are missing. It blocks for milliseconds to seconds.

    Args:
        environ: the environment of the engine process, which decides which cards the tensor library sees.
        nvml: the module `pynvml`, or one like it.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], f"no card can be read: {error}"
    try:
        return _Reader(nvml).all(environ)
    except nvml.NVMLError as error:
        return [], f"no card can be read: {error}"
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def package_version(package: str) -> str | None:
    """The version of an installed package, read without an import; None where it is not installed."""
    with suppress(PackageNotFoundError):
        return version(package)
    return None


class Memory(Protocol):
    """The memory of a card in bytes."""

    total: int
    used: int
    free: int


@dataclass(frozen=True, slots=True)
class _Reader:
    nvml: ModuleType

    def all(self, environ: Mapping[str, str]) -> tuple[list[Card], str | None]:
        uuids = [self._uuid(index) for index in range(self.nvml.nvmlDeviceGetCount())]
        indices = torch_indices(uuids, environ)
        cards, missing = [], []
        for index, uuid in enumerate(uuids):
            try:
                cards.append(self._card(index, uuid, indices.get(uuid)))
            except self.nvml.NVMLError as error:
                missing.append(f"card {index} cannot be read: {error}")
        if not cards and not missing:
            return [], "the driver lists no card"
        return cards, "; ".join(missing) or None

    def _uuid(self, index: int) -> str:
        """The id of a card. A lost card gets an id of its own, so that the other cards keep their places."""
        try:
            return str(self.nvml.nvmlDeviceGetUUID(self.nvml.nvmlDeviceGetHandleByIndex(index)))
        except self.nvml.NVMLError:
            return f"lost-{index}"

    def _card(self, index: int, uuid: str, torch_index: int | None) -> Card:
        handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        memory = self._memory(handle)
        processes, reason = self._processes(handle)
        usage = self._try(self.nvml.nvmlDeviceGetUtilizationRates, handle)
        capability = self._try(self.nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return Card(
            smi_index=index,
            uuid=uuid,
            name=self.nvml.nvmlDeviceGetName(handle),
            total_mb=memory.total >> 20,
            used_mb=memory.used >> 20,
            free_mb=memory.free >> 20,
            torch_index=torch_index,
            processes=processes,
            processes_reason=reason,
            utilization=None if usage is None else usage.gpu,
            temperature=self._try(
                self.nvml.nvmlDeviceGetTemperature, handle, self.nvml.NVML_TEMPERATURE_GPU
            ),
            capability=None if capability is None else (capability[0], capability[1]),
        )

    def _memory(self, handle: object) -> Memory:
        """Memory in bytes. The second version of the call leaves the driver's own memory out of `used`, as the driver's
        own tool does."""
        memory = self._try(
            self.nvml.nvmlDeviceGetMemoryInfo, handle, version=self.nvml.nvmlMemory_v2
        )
        found: Memory = memory or self.nvml.nvmlDeviceGetMemoryInfo(handle)
        return found

    def _processes(self, handle: object) -> tuple[tuple[CardProcess, ...] | None, str | None]:
        try:
            processes = self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self.nvml.NVMLError as error:
            return None, f"the driver does not list processes: {error}"
        processes = tuple(
            CardProcess(
                process.pid, None if process.usedGpuMemory is None else process.usedGpuMemory >> 20
            )
            for process in processes
        )
        return processes, HIDDEN if any(p.used_mb is None for p in processes) else None

    def _try(self, ask: Callable[..., Fact], *args: object, **named: object) -> Fact | None:
        """The driver's answer; None where this card does not have the fact."""
        try:
            return ask(*args, **named)
        except self.nvml.NVMLError:
            return None
