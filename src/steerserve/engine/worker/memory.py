"""Memory of this machine and process, in bytes."""

from __future__ import annotations

import ctypes

import psutil
import torch

KEPT_BYTES = 1 << 28
"""Tensors up to this size reuse freed memory, and this much of it is kept."""
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def device() -> torch.device:
    """Where the model goes: the first card, or the host."""
    return torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")


def described(where: torch.device) -> dict[str, str]:
    """The device as refusals name it."""
    is_card = where.type == "cuda"
    name = torch.cuda.get_device_name(where) if is_card else "host memory"
    return {"device": str(where), "device_name": name}


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


def keep_freed() -> None:
    """Have the C library keep freed host memory for the next tensor instead of giving it back to the system.

    A decode step makes and drops tensors of rows x vocabulary; fresh pages for each cost several times the arithmetic
    on them. Without glibc it does nothing.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    except (OSError, AttributeError):
        return
