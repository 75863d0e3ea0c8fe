"""Tensors without a known configuration: common names give the parts, and overrides say how the SAE computes."""

from __future__ import annotations

from itertools import islice

from steerserve.errors import Refusal
from steerserve.rules.saes.shapes import NAMES
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats import saelens
from steerserve.worker.sae.formats.description import (
    GATED,
    Description,
    parts_by_name,
    stored_k,
    whole_k,
)
from steerserve.worker.sae.formats.shapes import shapes_of
from steerserve.worker.sae.formats.sources import Fields, SourceFiles

SHOWN = 6
"""The most tensors that the message of a refusal names. Its details list all."""


def describe(files: SourceFiles) -> Description | None:
    """The parts that common tensor names give. Without a configuration the activation stays unknown.

    Raises:
        Refusal: SAE_LOAD_FAILED, with the names of the tensors, when they are not those of an SAE; with the names of
            the files, when several files could be the SAE.
    """
    tensors = files.single()
    if tensors is None:
        several = files.candidates()
        if len(several) > 1:
            raise Refusal(
                "SAE_LOAD_FAILED",
                f"several files could be the SAE; name one of {', '.join(several[:20])}",
                files=several[:20],
            )
        return None
    parts = parts_by_name(tensors, NAMES)
    if "W_enc" not in parts or "W_dec" not in parts:
        keys = shapes_of(tensors)
        stored = ", ".join(f"{name} {shape}" for name, shape in islice(keys.items(), SHOWN))
        stored += f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
        raise Refusal(
            "SAE_LOAD_FAILED",
            f"{tensors.path.name} has no encoder and decoder under a known name; it holds {stored or 'no tensor'}",
            tensors=keys,
        )
    own = Fields(tensors.path.name, dict(tensors.config or {}))
    if own.has(*saelens.MARKS) and parts.get("W_enc") == "W_enc":
        return saelens.describe_tensors(files, tensors, own)
    return _described(files, tensors, parts, own)


def _described(
    files: SourceFiles, tensors: Tensors, parts: dict[str, str], own: Fields
) -> Description:
    zeros = [part for part in ("b_enc", "b_dec") if part not in parts]
    is_gated = all(part in parts for part in GATED)
    warnings = [f"the checkpoint has no {part}; zeros are used" for part in zeros if not is_gated]
    return Description(
        format="unknown",
        tensors=tensors,
        parts=parts,
        architecture="unknown",
        activation=None,
        k=stored_k(tensors) or whole_k(own.values.get("k")),
        subtract_b_dec=None if "b_dec" in parts else False,
        transposed=frozenset(p for p in ("W_enc", "W_dec") if parts[p].endswith("weight")),
        optional=frozenset(zeros),
        layer=files.layer,
        l0=files.l0,
        warnings=tuple(warnings),
    )
