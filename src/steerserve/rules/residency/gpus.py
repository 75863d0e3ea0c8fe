"""The cards of this machine as values, and the index under which the tensor library sees each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class CardProcess:
    """The MiB that one process holds on a card; None if the driver does not tell."""

    pid: int
    used_mb: int | None


@dataclass(frozen=True, slots=True)
class Card:
    """One card, in MiB, percent and degrees Celsius. A figure that could not be measured is None.

    `smi_index` is the driver's index. `torch_index` is the tensor library's index, None if the library does not see the
    card. `capability` is the compute capability (major, minor).
    """

    smi_index: int
    uuid: str
    name: str
    total_mb: int
    used_mb: int
    free_mb: int
    torch_index: int | None
    processes: tuple[CardProcess, ...] | None = None
    processes_reason: str | None = None
    utilization: int | None = None
    temperature: int | None = None
    capability: tuple[int, int] | None = None


def torch_indices(uuids: Sequence[str], environ: Mapping[str, str]) -> dict[str, int]:
    """The index of each card that the tensor library sees. `uuids` are in the order of the cards' buses.

    CUDA_VISIBLE_DEVICES: (1) unset shows all; (2) an entry is an index or the beginning of one UUID; (3) the first
    entry that names no card hides itself and all after it, so an empty text and -1 hide all; (4) a card named twice
    hides all; (5) a MIG entry names a part of a card, never a card.
    """
    if VISIBLE not in environ:
        return {uuid: index for index, uuid in enumerate(uuids)}
    seen: dict[str, int] = {}
    for entry in environ[VISIBLE].split(","):
        uuid = _named(entry.strip(), uuids)
        if uuid is None:
            break
        if uuid in seen:
            return {}
        seen[uuid] = len(seen)
    return seen


def _named(entry: str, uuids: Sequence[str]) -> str | None:
    if entry.isascii() and entry.isdigit():
        return uuids[int(entry)] if len(entry) < 6 and int(entry) < len(uuids) else None
    fitting = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
