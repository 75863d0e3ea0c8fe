"""Memory of this machine and process, in bytes."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil
import torch
from torch import Tensor, nn

from steerserve.errors import Refusal

KEPT_BYTES = 1 << 28
"""Tensors up to this many bytes reuse freed memory, and this many freed bytes are kept for them."""
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_HOST_REFUSAL = re.compile(r"can't allocate memory|not enough memory")
_CARD = re.compile(r"GPU (\d+)")


def device() -> torch.device:
    """The device to which the model goes: the first card, or the host."""
    return torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")


def described(where: torch.device) -> dict[str, str]:
    """The field of refusals that names the device."""
    is_card = where.type == "cuda"
    name = torch.cuda.get_device_name(where) if is_card else "host memory"
    return {"device": str(where), "device_name": name}


def free(where: torch.device) -> int:
    """Bytes that can still be allocated on the device, including those that the allocator holds unused."""
    if where.type == "cuda":
        kept = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
        return int(torch.cuda.mem_get_info(where)[0]) + int(kept)
    return int(psutil.virtual_memory().available)


def measured(devices: Sequence[torch.device]) -> dict[str, tuple[int, int]]:
    """Bytes allocated and reserved on each card among the devices."""
    return {
        str(d): (int(torch.cuda.memory_allocated(d)), int(torch.cuda.memory_reserved(d)))
        for d in devices
        if d.type == "cuda"
    }


@dataclass(frozen=True)
class Native:
    """Memory of the host that a library holds outside of tensors: `nbytes` bytes."""

    nbytes: int

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


Held = Tensor | Native


def tensors_in(value: object, depth: int) -> Iterator[Tensor]:
    """The tensors within a value, in its lists, mappings and fields, at most `depth` levels deep."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (nn.Module, str, type)):
        if isinstance(value, Mapping):
            inner: Iterable[object] = value.values()
        elif isinstance(value, (list, tuple)):
            inner = value
        else:
            inner = getattr(value, "__dict__", {}).values()
        for each in inner:
            yield from tensors_in(each, depth - 1)


def bytes_by_device(held: Iterable[Held]) -> dict[torch.device, int]:
    """The bytes that are held on each device. Of tensors that begin at the same address, the largest counts."""
    largest: dict[tuple[torch.device, int], int] = {}
    for each in held:
        is_plain = isinstance(each, Tensor) and each.layout == torch.strided
        # a weight in the layout of the processor's kernels has no address
        place = each.device, cast(Tensor, each).data_ptr() if is_plain else id(each)
        largest[place] = max(each.nbytes, largest.get(place, 0))
    sizes: dict[torch.device, int] = {}
    for (where, _), size in largest.items():
        sizes[where] = sizes.get(where, 0) + size
    return sizes


def is_exhausted(error: BaseException) -> bool:
    """Whether the error says that memory ran out. On the host the library raises a plain RuntimeError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_HOST_REFUSAL.search(str(error)))


def exhausted(error: BaseException, usual: torch.device) -> torch.device:
    """The device that ran out of memory; `usual` where the error names none."""
    card = _CARD.search(str(error)) if usual.type == "cuda" else None
    return torch.device("cuda", int(card[1])) if card else usual


@contextmanager
def bounded(work: str, room: int) -> Iterator[None]:
    """Bound the memory that this process may take beyond what it has, in bytes, while the block runs.

    Raises:
        Refusal: MODEL_LOAD_FAILED when the block needs more. Code outside of Python may end the process instead.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit(room)
    try:
        yield
    except MemoryError:
        raise Refusal(
            "MODEL_LOAD_FAILED", f"{work} takes more than {room >> 20} MiB of memory"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit(room: int) -> None:
    """Bound the address space of this process to its present size and `room` bytes more."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = psutil.Process().memory_info().vms + room
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def recover(error: BaseException) -> None:
    """After memory ran out: drop the tensors that the frames of the error still hold, and give unused memory back."""
    if not is_exhausted(error):
        return
    held: BaseException | None = error
    while held is not None:
        held.__traceback__ = None
        held = held.__context__
    give_back()


def give_back() -> None:
    """Give the memory that is kept for later tensors back to the system."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # without glibc
        return


def free_product_buffers() -> None:
    """Free the buffers that MKL, in the tensor library, keeps for float32 products. Without MKL this function does
    nothing. No other thread may multiply meanwhile."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with suppress(OSError, AttributeError):
        ctypes.CDLL(str(library)).mkl_serv_free_buffers()


def held(where: torch.device) -> int:
    """The number of bytes that this process holds on the device."""
    if where.type == "cuda":
        return int(torch.cuda.memory_reserved(where))
    return int(psutil.Process().memory_info().rss)


def keep_freed() -> None:
    """Have the C library keep freed host memory for the next tensor instead of giving it back to the system.

    A decode step allocates and drops tensors of rows x vocabulary; fresh pages for each cost several times as much as
    the arithmetic on them. Without glibc this function does nothing.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    except (OSError, AttributeError):
        return
