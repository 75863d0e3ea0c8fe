"""Whether a model fits the memory, and on which devices. Both are decided before anything is loaded or unloaded."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from steerserve.control.residency.gpu_driver import PATIENCE, ReadCards, ask
from steerserve.engines.gpus import package_version
from steerserve.errors import Refusal
from steerserve.files.weights import Weights
from steerserve.rules.models import precision
from steerserve.rules.models.architecture import is_embedding_only
from steerserve.rules.models.compilers import compiler
from steerserve.rules.models.precision import Held, Machine, Scheme
from steerserve.rules.residency import memory_fit
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.memory_fit import ModelPlacement, PlacementPlan
from steerserve.rules.residency.memory_needs import (
    LENGTH_STEP,
    PREFILL_TOKENS,
    Device,
    Needs,
    working_bytes,
)
from steerserve.rules.residency.placement import GpuRequest, select
from steerserve.rules.units import MIB
from steerserve.settings import Settings

HOST = "cpu"
_HEADROOM = 1.2
"""Estimates for records multiply the weights by this factor, for the KV cache of a short context, working memory and
the context of a card."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the weights go, and the precision at which the engine will hold them."""

    plan: PlacementPlan
    held: Held


async def plan(
    weights: Weights,
    quantization: str,
    wanted: GpuRequest,
    returns_mb: Mapping[str, int],
    settings: Settings,
    *,
    cards: Sequence[Card],
    free_host_mb: Callable[[], int] | None = None,
) -> Fit:
    """Place a model in the memory that is free now: on these GPUs, or on the host where the list is empty.

    `returns_mb` has the MiB that come back by device (`cuda:N` or `cpu`) when the resident model is unloaded; see
    `returned`.

    Raises:
        Refusal: GPU_NOT_FOUND, UNSUPPORTED_QUANTIZATION, INSUFFICIENT_MEMORY, SPLIT_NOT_HONOURED.
    """
    chosen = select(wanted, cards)
    context = settings.transformers_cuda_context_mb
    devices = [device(card, context, returns_mb) for card in chosen]
    devices = devices or [host(free_host_mb, returns_mb)]
    return await placed(weights, quantization, wanted, chosen, devices, settings)


async def placed(
    weights: Weights,
    quantization: str,
    wanted: GpuRequest,
    cards: Sequence[Card],
    devices: Sequence[Device],
    settings: Settings,
) -> Fit:
    """Place a model on these devices, which are the given GPUs, or the memory of a host without a GPU.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION, INSUFFICIENT_MEMORY, SPLIT_NOT_HONOURED.
    """
    held = precision.choose(quantization, weights.dtype, weights.quantized, machine(cards))

    def work() -> PlacementPlan:
        needed = needs(
            weights,
            held,
            settings.transformers_min_context,
            settings.kv_cache_mb,
            is_on_host=not cards,
        )
        return memory_fit.plan(needed, devices, wanted)

    # counting tens of thousands of tensors takes a quarter of a second
    return Fit(await asyncio.to_thread(work), held)


async def cards_now(read_cards: ReadCards, patience: float = PATIENCE) -> list[Card]:
    """All GPUs of the machine, read now.

    Raises:
        Refusal: MODEL_LOAD_FAILED when the driver fails or does not answer in time.
    """
    try:
        answer = await asyncio.wait_for(ask(read_cards, "cards-for-a-load"), patience)
    except TimeoutError:
        why = f"the driver of the cards does not answer within {patience:g} s"
        raise Refusal("MODEL_LOAD_FAILED", why) from None
    if answer.has_failed:
        raise Refusal("MODEL_LOAD_FAILED", answer.reason or "")
    return list(answer.cards)


def needs(
    weights: Weights,
    held: Held,
    least_context: int,
    kv_cache_mb: int = 0,
    *,
    is_on_host: bool = False,
) -> Needs:
    """The memory that a checkpoint takes when it is held as `held` says.

    The context has `least_context` tokens, or fewer where the model cannot have so many. The KV cache has `kv_cache_mb`
    MiB; with 0 it has the size that this context takes. On the host, an output head that shares its tensor with the
    token embedding is held a second time, packed for products.
    """
    shape = weights.shape
    layers, first, last = _weight_bytes(weights, held)
    embeds = is_embedding_only(weights.architecture)
    if is_on_host and weights.is_tied and not embeds:
        last += precision.head_bytes(shape.vocabulary, shape.hidden, held)
    if embeds:  # an embedding-only model runs on one device, so its layers are not spread
        layers, first, last = (), first + sum(layers) + last, 0
    least = min(least_context, shape.max_context)
    tokens = min(PREFILL_TOKENS, shape.max_context)
    return Needs(
        layers=layers,
        first=first,
        last=last,
        kv_per_token=0 if embeds else shape.kv_values * held.width,
        kv_step=LENGTH_STEP,
        kv_named=kv_cache_mb * MIB,
        min_context=least,
        model_max_context=shape.max_context,
        working=working_bytes(
            shape.hidden,
            shape.intermediate,
            0 if embeds else shape.vocabulary,
            held.width,
            tokens,
            is_int8=held.name == "int8" and not held.is_packed,
        ),
        working_tokens=tokens,
        staging=precision.staging_bytes(weights.tensors, held),
        note=_widened(weights.dtype, held) if is_on_host else "",
    )


def _widened(stored: str | None, held: Held) -> str:
    """Says that a processor holds the weights in more bytes than the files do; empty where it does not."""
    if stored != "float16" or held.name != "float32":
        return ""
    return f"its {stored} weights count as {held.name}, in which a processor computes with them"


def machine(cards: Sequence[Card]) -> Machine:
    """The precisions that these GPUs and the installed packages can run."""
    capabilities = [card.capability for card in cards]
    known = [capability for capability in capabilities if capability is not None]
    return Machine(
        has_card=bool(cards),
        capability=min(known) if known and len(known) == len(cards) else None,
        packages=frozenset(p for p in precision.PACKAGES if importlib.util.find_spec(p)),
        has_compiler=_has_compiler(),
    )


def _has_compiler() -> bool:
    return compiler(shutil.which) is not None


def estimate(parameters: int, quantization: str) -> int:
    """MiB of memory for a plain checkpoint of so many parameters, as records and previews show: its weights and a
    fifth."""
    return -(-int(parameters * _BYTES[quantization] * _HEADROOM) // MIB)


def estimated_memory_mb(weights: Weights, quantization: str) -> int:
    """MiB of memory for a checkpoint on this machine, from the weights that it stores. Q2 of a plain checkpoint counts
    as Q4. A tensor library that is built for GPUs counts as a GPU."""
    has_card = built_for_cards()
    asked = "Q4" if quantization == "Q2" else quantization
    # an estimate refuses nothing; the load names the packages that are missing
    able = Machine(has_card, None, precision.PACKAGES, _has_compiler())
    try:
        held = precision.choose(asked, weights.dtype, weights.quantized, able)
    except Refusal:
        dtype = precision.compute_dtype(weights.dtype, has_card=has_card)
        held = Held(dtype, dtype, Scheme.AS_STORED)
    layers, first, last = _weight_bytes(weights, held)
    return -(-int((first + sum(layers) + last) * _HEADROOM) // MIB)


def returned(
    pid: int | None,
    memory_by_device_mb: Mapping[str, int],
    context_mb: int,
    *,
    placement: ModelPlacement | None = None,
    cards: Sequence[Card] = (),
) -> dict[str, int]:
    """The MiB by device that come back when an engine and the processes it started end. Blocks for milliseconds.

    For a GPU, the figure is what the driver reports for these processes. If the driver does not tell, the figure is
    what the engine measured at its load, else what the `placement` of the resident model planned. On the host, only the
    private memory of the processes counts, because the pages of a mapped checkpoint are available already.
    """
    freed_mb = _planned(placement, context_mb) if placement else {}
    freed_mb |= {d: mb + context_mb for d, mb in memory_by_device_mb.items() if d != HOST}
    processes = _family(pid)
    pids = {process.pid for process in processes}
    for card in cards:
        figures = [p.used_mb for p in card.processes or () if p.pid in pids]
        known = [mb for mb in figures if mb is not None]
        if card.torch_index is not None and known and len(known) == len(figures):
            freed_mb[f"cuda:{card.torch_index}"] = sum(known)
    if processes:
        freed_mb[HOST] = sum(_own_bytes(process) for process in processes) // MIB
    return freed_mb


def device(card: Card, context_mb: int, returns_mb: Mapping[str, int]) -> Device:
    """A GPU as a place for weights. Its free memory includes what an unload gives back, and is at most its whole
    memory."""
    label = f"cuda:{card.torch_index}"
    free = min(card.total_mb, card.free_mb + returns_mb.get(label, 0))
    return Device(label, card.name, free, context_mb, card.smi_index, card.total_mb)


def host(free_host_mb: Callable[[], int] | None, returns_mb: Mapping[str, int]) -> Device:
    """The host's memory as a place for weights. `free_host_mb` tells the free MiB; without it the system does."""
    memory = psutil.virtual_memory()
    free = free_host_mb() if free_host_mb else memory.available // MIB
    return Device(HOST, "host memory", free + returns_mb.get(HOST, 0), total_mb=memory.total // MIB)


def built_for_cards() -> bool:
    """Whether the tensor library is built for GPUs. Its version says so; the library itself is never imported here."""
    version = package_version("torch")
    return version is not None and not version.endswith("+cpu")


# ---------------------------------------------------------------- inside

_BYTES = {"FP16": 2.0, "Q8": 1.0, "Q4": 0.5, "Q2": 0.25}


def _planned(placement: ModelPlacement, context_mb: int) -> dict[str, int]:
    """The MiB that a placement planned for each card. For a split model these are the weights and the context of the
    card."""
    parts = placement.planned_mb_by_device
    if parts:
        return {label: mb + context_mb for label, mb in parts.items() if label != HOST}
    return {label: placement.required_mb for label in placement.devices[:1] if label != HOST}


def _family(pid: int | None) -> list[psutil.Process]:
    """The process and all its descendants; an empty list when the process has ended."""
    if pid is not None:
        with suppress(psutil.Error):
            parent = psutil.Process(pid)
            return [parent, *parent.children(recursive=True)]
    return []


def _own_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        held = process.memory_info()
        return int(max(0, held.rss - getattr(held, "shared", 0)))
    return 0


def _weight_bytes(weights: Weights, held: Held) -> tuple[tuple[int, ...], int, int]:
    """Bytes of each layer, of everything that runs before the layers, and of the output head where it is a tensor of
    its own."""
    count = weights.shape.layers
    if not weights.tensors:
        return _even(weights, held, count)
    layers = [0] * count
    first = last = 0
    head = weights.head
    for tensor in weights.tensors:
        size = precision.held_bytes(tensor, held)
        if tensor is head and held.is_packed and len(tensor.shape) == 2:
            size = precision.head_bytes(*tensor.shape, held)
        if tensor.layer is not None and tensor.layer < count:
            layers[tensor.layer] += size
        elif tensor is head:
            last += size
        else:
            first += size
    return tuple(layers), first, last


def _even(weights: Weights, held: Held, count: int) -> tuple[tuple[int, ...], int, int]:
    """The same for pickled weights, whose tensors are not known. Their bytes are spread evenly over the layers, and
    count as half precision unless the configuration says float32 or names no dtype."""
    stored = 4 if weights.dtype in (None, "float32") else 2
    size = weights.pickled_bytes * held.width // stored
    return tuple([size // count] * count) if count else (), size % count if count else size, 0
