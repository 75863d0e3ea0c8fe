"""Tensors that say nothing of themselves: their parts are told by common names, how they compute by the operator."""

from __future__ import annotations

from steerserve.engine.worker.sae.files import Tensors
from steerserve.engine.worker.sae.formats import saelens
from steerserve.engine.worker.sae.formats.found import Fields, Found
from steerserve.engine.worker.sae.formats.reading import (
    GATED,
    Reading,
    parts_by_name,
    stored_k,
    whole_k,
)
from steerserve.engine.worker.sae.formats.shapes import listed
from steerserve.errors import Refusal
from steerserve.rules.sae_shapes import NAMES


def read(found: Found) -> Reading | None:
    """The parts found by name; without a configuration the activation stays unknown.

    Raises:
        Refusal: SAE_LOAD_FAILED when the tensors are not those of an SAE, naming them; or when several files could be
            meant.
    """
    tensors = found.single()
    if tensors is None:
        several = found.candidates()
        if len(several) > 1:
            raise Refusal(
                "SAE_LOAD_FAILED",
                f"several files could be the SAE; name one of {', '.join(several[:20])}",
                files=several[:20],
            )
        return None
    parts = parts_by_name(tensors, NAMES)
    if "W_enc" not in parts or "W_dec" not in parts:
        keys = listed(tensors)
        found_keys = ", ".join(f"{name} {shape}" for name, shape in keys.items()) or "no tensor"
        raise Refusal(
            "SAE_LOAD_FAILED",
            f"{tensors.path.name} has no encoder and decoder that are known by name; it holds {found_keys}",
            tensors=keys,
        )
    own = Fields(tensors.path.name, dict(tensors.config or {}))
    if own.has(*saelens.MARKS) and parts.get("W_enc") == "W_enc":
        return saelens.describe(found, tensors, own)
    return _described(found, tensors, parts, own)


def _described(found: Found, tensors: Tensors, parts: dict[str, str], own: Fields) -> Reading:
    zeros = [part for part in ("b_enc", "b_dec") if part not in parts]
    is_gated = all(part in parts for part in GATED)
    warnings = [f"the checkpoint has no {part}; taken as zeros" for part in zeros if not is_gated]
    return Reading(
        format="unknown",
        tensors=tensors,
        parts=parts,
        architecture="unknown",
        activation=None,
        k=stored_k(tensors) or whole_k(own.values.get("k")),
        subtract_b_dec=None if "b_dec" in parts else False,
        transposed=frozenset(p for p in ("W_enc", "W_dec") if parts[p].endswith("weight")),
        optional=frozenset(zeros),
        layer=found.layer,
        l0=found.l0,
        warnings=tuple(warnings),
    )
