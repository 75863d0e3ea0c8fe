"""Several SAEs attached at once: which are not there, what they would take, and what their matrices are kept in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.units import MIB

MAXIMUM = 16
"""SAEs in one request."""
WIDTHS: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element by what an SAE's matrices may be kept in."""
MODEL, STORED = "model", "stored"
DTYPES = (*WIDTHS, MODEL, STORED)
_MARGIN = 1.1
_UNKNOWN_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Offender:
    """A member that cannot be attached, and why."""

    sae_id: str
    layer: int
    reason: str

    def told(self) -> dict[str, Any]:
        return {"layer": self.layer, "sae_id": self.sae_id, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Size:
    """What a member is made of; `dtype` is what its matrices will be kept in."""

    d_in: int
    d_sae: int
    dtype: str

    @property
    def projected_bytes(self) -> float:
        """Encoder and decoder, and a tenth for the rest."""
        return 2 * self.d_in * self.d_sae * WIDTHS.get(self.dtype, _UNKNOWN_WIDTH) * _MARGIN


def kept_in(asked: str | None, model_dtype: str) -> str | None:
    """The dtype that the engine is told, None for that of the file. A model in a dtype that no SAE is kept in gives
    float16."""
    if asked in (None, STORED):
        return None
    if asked == MODEL:
        return model_dtype if model_dtype in WIDTHS else "float16"
    return asked


def not_ready(status: str, error_message: str | None) -> str | None:
    """Why a registered SAE of this status has no weights here; None where it has."""
    if status == "downloading":
        return "it is still being downloaded"
    if status == "error":
        return f"its download did not end ({error_message or 'no reason is known'})"
    return None


def check_files(sae_id: str, status: str, error_message: str | None, action: str) -> None:
    """Whether the weights of a registered SAE are here; `action` is what a client wanted to do with them.

    Raises:
        Refusal: MODEL_BUSY while the SAE is downloaded, as for a model; SAE_LOAD_FAILED when its download failed.
    """
    reason = not_ready(status, error_message)
    if reason is not None:
        code = "MODEL_BUSY" if status == "downloading" else "SAE_LOAD_FAILED"
        message = f"the SAE cannot be {action}: {reason}"
        raise Refusal(code, message, sae_id=sae_id, status=status)


def check_complete(offenders: Sequence[Offender]) -> None:
    """Raises:
    Refusal: SAE_SET_INCOMPLETE naming every member that is not there.
    """
    if offenders:
        raise Refusal(
            "SAE_SET_INCOMPLETE", _sentence(offenders), offenders=[o.told() for o in offenders]
        )


def check_compatible(offenders: Sequence[Offender]) -> None:
    """Raises:
    Refusal: SAE_INCOMPATIBLE naming every member that does not fit the model.
    """
    if offenders:
        raise Refusal(
            "SAE_INCOMPATIBLE", _sentence(offenders), offenders=[o.told() for o in offenders]
        )


def check_memory(sizes: Sequence[Size], free_mb: int, device: str, kv_tokens: int) -> None:
    """Whether all of them fit into what is free. What the KV cache and the passes need beside them is the engine's to
    count, for each as it is attached; here nothing is held back for it.

    Raises:
        Refusal: INSUFFICIENT_MEMORY.
    """
    projected = int(-(-sum(size.projected_bytes for size in sizes) // MIB))
    if projected <= free_mb:
        return
    raise Refusal(
        "INSUFFICIENT_MEMORY",
        f"the {len(sizes)} SAEs take {projected} MiB on {device}; {free_mb} MiB are free",
        device=device,
        projected_mb=projected,
        kv_reserve_mb=0,
        kv_context_tokens=kv_tokens,
        working_reserve_mb=0,
        available_mb=free_mb,
    )


def _sentence(offenders: Sequence[Offender]) -> str:
    return "; ".join(f"{o.sae_id} at layer {o.layer}: {o.reason}" for o in offenders)
