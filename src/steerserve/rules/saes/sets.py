"""Attaching several SAEs at once: missing members, the memory that they need, and the dtype of their matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.units import MIB

MAXIMUM = 16
"""The most SAEs in one request."""
WIDTHS: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""The bytes of an element for each dtype that an SAE's matrices may be kept in."""
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

    def details(self) -> dict[str, object]:
        """The member as an entry in the details of a refusal."""
        return {"layer": self.layer, "sae_id": self.sae_id, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a member; `dtype` is the dtype that its matrices will have."""

    d_in: int
    d_sae: int
    dtype: str

    @property
    def projected_bytes(self) -> float:
        """The bytes of encoder and decoder, and a tenth more for the other parameters."""
        return 2 * self.d_in * self.d_sae * WIDTHS.get(self.dtype, _UNKNOWN_WIDTH) * _MARGIN


@dataclass(frozen=True, slots=True)
class Reserves:
    """MiB that stay free beside the SAEs: for the KV cache as far as it may still grow, and for a pass. None where the
    engine did not answer."""

    kv_mb: int | None = None
    working_mb: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """The free memory on a device of a node. So many replicas share it, and each has to hold the SAEs."""

    node: str
    device: str
    free_mb: int
    replicas: int = 1


def kept_in(asked: str | None, model_dtype: str) -> str | None:
    """The dtype to send to the engine; None keeps the dtype of the file. If `model` is asked for and the model has a
    dtype that SAEs cannot have, the result is float16."""
    if asked in (None, STORED):
        return None
    if asked == MODEL:
        return model_dtype if model_dtype in WIDTHS else "float16"
    return asked


def not_ready(status: str, error_message: str | None) -> str | None:
    """Why the weights of a registered SAE with this status are not here; None where they are."""
    if status == "downloading":
        return "it is still being downloaded"
    if status == "error":
        return f"its download failed ({error_message or 'no reason is known'})"
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


def check_members(offenders: Sequence[Offender], code: str) -> None:
    """Refuse a set with members that are missing, or that do not fit the model.

    Raises:
        Refusal: `code` with every such member.
    """
    if offenders:
        why = "; ".join(f"{o.sae_id} at layer {o.layer}: {o.reason}" for o in offenders)
        raise Refusal(code, why, offenders=[o.details() for o in offenders])


def check_memory(
    sizes: Sequence[Size], free_mb: int, device: str, kv_tokens: int, reserves: Reserves
) -> None:
    """Check that all members fit into the free memory. The refusal names the memory that is reserved, but the check
    does not count that memory: the engine counts it when it attaches each member.

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
        kv_reserve_mb=reserves.kv_mb,
        kv_context_tokens=kv_tokens,
        working_reserve_mb=reserves.working_mb,
        available_mb=free_mb,
    )


def check_nodes(
    sizes: Sequence[Size], rooms: Sequence[NodeRoom], kv_tokens: int, reserves: Reserves
) -> None:
    """Check that all members fit into the free memory of every node with a replica, as `check_memory` does.

    Raises:
        Refusal: INSUFFICIENT_MEMORY with the node that lacks most memory, and the reason of each node that lacks some.
    """
    lacks: dict[str, tuple[int, Refusal]] = {}
    for room in rooms:
        try:
            every = [size for size in sizes for _ in range(room.replicas)]
            check_memory(every, room.free_mb, room.device, kv_tokens, reserves)
        except Refusal as lack:
            missing = lack.details["projected_mb"] - room.free_mb
            if missing > lacks.get(room.node, (0, lack))[0]:
                lacks[room.node] = missing, lack
    if not lacks:
        return
    node, (_, worst) = max(lacks.items(), key=lambda item: item[1][0])
    nodes = {name: lack.message for name, (_, lack) in lacks.items()}
    said = "; ".join(f"{name}: {why}" for name, why in sorted(nodes.items()))
    why = f"a replica has no room for the SAEs on its node; {said}"
    raise Refusal(worst.code, why, **(worst.details | {"node": node, "nodes": nodes}))
