"""Shares out the memory beside a loaded model to the KV cache, kept prefixes and attached SAEs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from steerserve.errors import Refusal
from steerserve.messages import Claims
from steerserve.rules.residency.memory_needs import LENGTH_STEP
from steerserve.rules.units import MIB
from steerserve.worker import memory
from steerserve.worker.model.checkpoint import Checkpoint

KV_SHARE = 3
"""Without a setting, the KV cache is given one part in this many of the free memory."""

PREFIX_SHARE = 4
"""Without a setting, kept prefixes may take one part in this many of the KV cache's memory, beside it."""

SAE_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""The dtypes that the matrices of an SAE may be kept in, with the bytes of a weight."""


def kv_tokens(model: Checkpoint, named: int, least: int, working: int) -> int:
    """Tokens that the KV cache may hold: as many as fit into `named` bytes, or into its share of the free memory of
    every device where `named` is 0.

    A share that is too small for `least` tokens is raised to `least` tokens, if that memory and `working` bytes are
    free.

    Raises:
        Refusal: INSUFFICIENT_MEMORY when the KV cache cannot hold the `least` tokens.
    """
    if named:
        tokens = _whole(named // max(1, model.kv_bytes_per_token))
    else:
        free = {device: memory.free(device) for device in model.kv_bytes_by_device}
        tokens = _whole(_tokens_in({d: size // KV_SHARE for d, size in free.items()}, model))
        if tokens < least:
            spare = {device: max(0, size - working) for device, size in free.items()}
            tokens = min(_whole(_tokens_in(spare, model)), _whole(least + LENGTH_STEP - 1))
    if tokens < least:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the KV cache holds {tokens} tokens here; at least {least} are needed",
            min_context_tokens=least,
            model_max_context_tokens=model.model_max_context,
        )
    return tokens


def prefix_tokens(model: Checkpoint, kv: int, named_mb: int | None) -> int:
    """The most tokens of kept prefixes: those that `named_mb` MiB hold, or a share of the `kv` tokens of cache."""
    if named_mb is None:
        return kv // PREFIX_SHARE
    return _whole(named_mb * MIB // max(1, model.kv_bytes_per_token))


@dataclass(frozen=True, slots=True)
class SaeRoom:
    """The memory for SAEs beside a loaded model. `kv_reserves` has, for each device, the number of bytes that the KV
    cache of `kv_tokens` tokens may still take there. `working` is the number of bytes that a pass takes."""

    kv_tokens: int = 0
    kv_reserves: Mapping[torch.device, int] = field(default_factory=dict)
    working: int = 0

    @classmethod
    def beside(cls, model: Checkpoint, kv: int, held: int, working: int) -> SaeRoom:
        """The room beside a model whose KV cache may have `kv` tokens, of which `held` are allocated."""
        coming = max(0, kv - held)
        reserves = {device: coming * each for device, each in model.kv_bytes_by_device.items()}
        return cls(kv, reserves, working)

    @property
    def kv_reserve(self) -> int:
        """Bytes that the KV cache may still take, on all devices."""
        return sum(self.kv_reserves.values())

    def check_free(self, device: torch.device, size: int) -> None:
        """Check that an SAE of `size` bytes leaves the reserved memory of the device free.

        Raises:
            Refusal: INSUFFICIENT_MEMORY.
        """
        reserve = self.kv_reserves.get(device, 0) + self.working
        available = memory.free(device)
        if size + reserve > available:
            raise self.refusal(
                f"the SAE takes {_mib(size)} MiB on {device}; {_mib(available)} MiB are free, of which the KV cache "
                f"and the passes need {_mib(reserve)}",
                device,
                size,
                available,
            )

    def check_read(self, size: int) -> None:
        """Check that the host has memory for `size` bytes of a checkpoint while the checkpoint is read.

        Raises:
            Refusal: INSUFFICIENT_MEMORY.
        """
        host = torch.device("cpu")
        available = memory.free(host)
        if size > available:
            why = f"the SAE takes {_mib(size)} MiB while it is read; {_mib(available)} MiB are free on {host}"
            raise self.refusal(why, host, size, available)

    def refusal(self, why: str, device: torch.device, size: int, available: int) -> Refusal:
        """The refusal of an SAE of `size` bytes for which the device has no room, with the figures."""
        return Refusal(
            "INSUFFICIENT_MEMORY",
            why,
            device=str(device),
            projected_mb=_mib(size),
            kv_reserve_mb=_mib(self.kv_reserves.get(device, 0)),
            kv_context_tokens=self.kv_tokens,
            working_reserve_mb=_mib(self.working),
            available_mb=available // MIB,
        )


def sae_bytes(claims: Claims, dtype: str | None = None) -> int:
    """Bytes of an SAE whose matrices are kept in `dtype`, or as they are stored."""
    return encoder_bytes(claims, dtype) + claims.d_in * claims.d_sae * _weight(claims, dtype)


def encoder_bytes(claims: Claims, dtype: str | None = None) -> int:
    """Bytes of the encoder: one matrix, and biases and thresholds in float32."""
    matrix = claims.d_in * claims.d_sae * _weight(claims, dtype)
    return matrix + 4 * (claims.d_in + 2 * claims.d_sae)


def sae_dtype(
    claims: Claims, asked: str | None, check: Callable[[str | None], None]
) -> tuple[str | None, list[str]]:
    """The dtype in which an SAE's matrices are kept, and warnings about the dtype. None is the dtype of the file.

    The dtype is the one `asked` for. Without one, it is the dtype of the file where `check` does not refuse that, and
    otherwise half precision.

    Raises:
        Refusal: INSUFFICIENT_MEMORY.
    """
    try:
        check(asked)
        return asked, []
    except Refusal as refusal:
        if asked is not None or _weight(claims, None) == SAE_DTYPES["float16"]:
            raise
        try:
            check("float16")
        except Refusal:
            # this refusal names the size of the file as it is, which the operator knows
            raise refusal from None
    half, whole = _mib(sae_bytes(claims, "float16")), _mib(sae_bytes(claims))
    return "float16", [
        f"kept in the dtype that fits: {half} MiB in half precision, where {claims.dtype} would take {whole} MiB"
    ]


def _weight(claims: Claims, dtype: str | None) -> int:
    """The number of bytes of one weight. Weights in a dtype that is not one of SAE_DTYPES become float32."""
    return SAE_DTYPES.get(dtype or claims.dtype, 4)


def _tokens_in(sizes: dict[torch.device, int], model: Checkpoint) -> int:
    """Tokens that fit into so many bytes of each device."""
    return min(sizes[d] // max(1, each) for d, each in model.kv_bytes_by_device.items())


def _whole(tokens: int) -> int:
    return tokens // LENGTH_STEP * LENGTH_STEP


def _mib(size: int) -> int:
    return -(-size // MIB)
