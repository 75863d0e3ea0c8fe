"""What the memory left beside a loaded model is given to: the KV cache, kept prefixes, attached SAEs."""

from __future__ import annotations

import torch

from steerserve.engine.worker import memory
from steerserve.engine.worker.checkpoint import Checkpoint
from steerserve.engine.worker.kv import LENGTH_STEP
from steerserve.errors import Refusal

KV_SHARE = 3
"""Without a setting, one part in this many of the free memory is given to the KV cache."""

PREFIX_SHARE = 4
"""Without a setting, kept prefixes may take one part in this many of the KV cache's memory, beside it."""

MIB = 1 << 20


def kv_tokens(model: Checkpoint, named: int, least: int, working: int) -> int:
    """Tokens that the KV cache may hold: `named` bytes of them, or its share of what is free on every device.

    A share that would not hold the `least` tokens is raised to them where they and `working` bytes are free.

    Raises:
        Refusal: INSUFFICIENT_MEMORY when it cannot hold the `least` tokens.
    """
    if named:
        found = _whole(named // max(1, model.kv_bytes_per_token))
    else:
        free = {device: memory.free(device) for device in model.kv_bytes_by_device}
        found = _whole(_tokens_in({d: size // KV_SHARE for d, size in free.items()}, model))
        if found < least:
            spare = {device: max(0, size - working) for device, size in free.items()}
            found = min(_whole(_tokens_in(spare, model)), _whole(least + LENGTH_STEP - 1))
    if found < least:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the KV cache holds {found} tokens here; at least {least} are needed",
            min_context_tokens=least,
            model_max_context_tokens=model.model_max_context,
        )
    return found


def prefix_tokens(model: Checkpoint, kv: int, named_mb: int | None) -> int:
    """Tokens of kept prefixes: `named_mb` MiB of them, or a share of the `kv` tokens of cache."""
    if named_mb is None:
        return kv // PREFIX_SHARE
    return _whole(named_mb * MIB // max(1, model.kv_bytes_per_token))


def check_attach(
    model: Checkpoint, device: torch.device, size: int, kv: int, working: int, held: int
) -> None:
    """Whether an SAE of `size` bytes leaves room for a KV cache of `kv` tokens, `held` of which are allocated, and for
    `working` bytes.

    Raises:
        Refusal: INSUFFICIENT_MEMORY.
    """
    reserve = max(0, kv - held) * model.kv_bytes_by_device.get(device, 0)
    available = memory.free(device)
    if size + reserve + working <= available:
        return
    raise Refusal(
        "INSUFFICIENT_MEMORY",
        f"the SAE takes {_mib(size)} MiB on {device}; {_mib(available)} MiB are free, of which the KV cache and "
        f"the passes need {_mib(reserve + working)}",
        device=str(device),
        projected_mb=_mib(size),
        kv_reserve_mb=_mib(reserve),
        kv_context_tokens=kv,
        working_reserve_mb=_mib(working),
        available_mb=available // MIB,
    )


def _tokens_in(sizes: dict[torch.device, int], model: Checkpoint) -> int:
    """Tokens that fit into so many bytes of each device."""
    return min(sizes[d] // max(1, each) for d, each in model.kv_bytes_by_device.items())


def _whole(tokens: int) -> int:
    return tokens // LENGTH_STEP * LENGTH_STEP


def _mib(size: int) -> int:
    return -(-size // MIB)
