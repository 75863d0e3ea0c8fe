"""Memory of this machine and process, in bytes."""

from __future__ import annotations

import psutil
import torch


def device() -> torch.device:
    """Where the model goes: the first card, or the host."""
    return torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")


def free(where: torch.device) -> int:
    """Bytes that can still be taken on the device."""
    if where.type == "cuda":
        return int(torch.cuda.mem_get_info(where)[0])
    return int(psutil.virtual_memory().available)


def held(where: torch.device) -> int:
    """Bytes this process holds on the device."""
    if where.type == "cuda":
        return int(torch.cuda.memory_reserved(where))
    return int(psutil.Process().memory_info().rss)
