"""A checkpoint as its format describes it: which tensor is which part of the SAE, and how the SAE computes.

Every format answers with one `Description`. Overrides, claims and the loaded SAE are made from it, the same way for all
formats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from steerserve.errors import Refusal
from steerserve.messages import Overrides
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.canonical import ACTIVATIONS, NEEDS_K, NORMALISATIONS
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats.sources import LARGEST, StatedSize

SCALED = "expected_average_only_in"
"""The input is multiplied by one number c = sqrt(d_in) / E||x||, measured on the training data."""

GATED = ("b_gate", "b_mag", "r_mag")
TRANSCODER = "a transcoder reads one place and writes another: it is no autoencoder of one place"
CROSS_LAYER = "a cross-layer transcoder writes to many layers: it is no autoencoder of one place"
TEMPORAL = "a temporal SAE attends over the whole sequence: it has no activation of one position to read or steer"


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint as its format describes it.

    Attributes:
        format: the name of the format.
        tensors: the opened weights.
        parts: a part (W_enc, W_dec, b_enc, b_dec, threshold, log_threshold, b_gate, b_mag, r_mag, scaling_factor) ->
            the name of its tensor in the file.
        architecture: the checkpoint's own word for its kind.
        activation: one of ACTIVATIONS; None where it is not known.
        threshold: one threshold for all features, where the file has no tensor of thresholds.
        normalisation: one of NORMALISATIONS, SCALED, or the name of one that this engine cannot compute.
        norm_factor: the c of SCALED.
        threshold_is_raw: the threshold belongs to inputs that are not scaled; it is multiplied by c when the SAE is
            built.
        embedding_scale: the model multiplies its embeddings by this number, and the training did not.
        subtract_b_dec: None where it is not known.
        transposed: matrices that the format stores transposed. This decides only where d_in equals d_sae.
        optional: parts that may be missing; zeros take their place.
        hook_name, site, layer, model_name, l0, is_centred: the place of the SAE; None where the checkpoint does not
        say. reason: why the SAE can never be attached; None where it can.
        stated_sizes: d_in and d_sae as the configuration states them; the tensors must agree.
    """

    format: str
    tensors: Tensors
    parts: Mapping[str, str]
    architecture: str
    activation: str | None
    k: int | None = None
    threshold: float | None = None
    normalisation: str = "none"
    norm_factor: float | None = None
    threshold_is_raw: bool = False
    embedding_scale: float = 1.0
    subtract_b_dec: bool | None = False
    scale_by_decoder_norm: bool = False
    select_by_decoder_norm: bool = False
    transposed: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    hook_name: str | None = None
    site: str | None = None
    layer: int | None = None
    model_name: str | None = None
    l0: float | None = None
    is_centred: bool | None = None
    reason: str | None = None
    stated_sizes: tuple[StatedSize, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)


# ---------------------------------------------------------------- overrides of an operator


def with_overrides(description: Description, by: Overrides) -> Description:
    """The description with the operator's overrides in place of the checkpoint's own values.

    Raises:
        Refusal: VALIDATION_ERROR for an unknown value, and for a value that this SAE would not use.
    """
    if by.activation is not None:
        _known("activation", by.activation, ACTIVATIONS)
        description = replace(description, activation=by.activation, architecture=by.activation)
    if by.normalisation is not None:
        _known("normalisation", by.normalisation, (*NORMALISATIONS, SCALED))
        factor = description.norm_factor if by.normalisation == description.normalisation else None
        description = replace(description, normalisation=by.normalisation, norm_factor=factor)
    if by.k is not None:
        _used("k", description.activation in (None, *NEEDS_K) and by.k >= 1, "a top-k activation")
        description = replace(description, k=by.k, l0=float(by.k))
    if by.threshold is not None:
        is_jump = description.activation in (None, "jumprelu") and math.isfinite(by.threshold)
        _used("threshold", is_jump, "the activation jumprelu")
        kept = {
            n: t for n, t in description.parts.items() if n not in ("threshold", "log_threshold")
        }
        # the operator gives the threshold in the unit of the reported values, so that nothing scales it
        description = replace(
            description,
            threshold=by.threshold,
            parts=kept,
            threshold_is_raw=False,
            select_by_decoder_norm=False,
        )
    if by.norm_factor is not None:
        is_scaled = description.normalisation == SCALED and 0 < by.norm_factor < math.inf
        _used("norm_factor", is_scaled, f"the normalisation {SCALED}")
        description = replace(description, norm_factor=by.norm_factor)
    if by.subtract_b_dec is not None:
        description = replace(description, subtract_b_dec=by.subtract_b_dec)
    if by.is_centred is not None:
        description = replace(description, is_centred=by.is_centred)
    return _placed(description, by.site) if by.site is not None else description


def _placed(description: Description, name: str) -> Description:
    if name in sae_sites.SITES:
        return replace(description, site=name)
    site, layer = sae_sites.locate(name, description.model_name)
    if site is None:
        known = ", ".join(sae_sites.SITES)
        raise _refused("site", f"site {name!r} is neither a known hook name nor one of {known}")
    layer = description.layer if layer is None else layer
    return replace(description, site=site, layer=layer, hook_name=name)


def _known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise _refused(name, f"{name} {value!r} is none of {', '.join(known)}")


def _used(name: str, is_used: bool, expected: str) -> None:
    if not is_used:
        raise _refused(name, f"{name} needs a value in range and {expected}")


def _refused(override: str, why: str) -> Refusal:
    return refuse_value(["body", "overrides", override], why)


def needs(description: Description) -> list[str]:
    """The overrides without which the SAE cannot be computed."""
    missing = []
    if description.activation is None:
        missing.append("activation")
    if description.activation in NEEDS_K and description.k is None:
        missing.append("k")
    has_threshold = {"threshold", "log_threshold"} & set(description.parts)
    if description.activation == "jumprelu" and description.threshold is None and not has_threshold:
        missing.append("threshold")
    if description.subtract_b_dec is None:
        missing.append("subtract_b_dec")
    if description.normalisation not in (*NORMALISATIONS, SCALED):
        missing.append("normalisation")
    return missing


# ---------------------------------------------------------------- what formats have in common


def parts_by_name(tensors: Tensors, names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Each part with the first of its possible names that the file has."""
    return {
        part: next(name for name in known if name in tensors.infos)
        for part, known in names.items()
        if any(name in tensors.infos for name in known)
    }


def stored_number(tensors: Tensors, name: str) -> float | None:
    """A single number that is stored as a tensor, or as a plain value beside the tensors."""
    info = tensors.infos.get(name)
    if info is not None and info.shape in ((), (1,)):
        return float(tensors.read(name).reshape(()))
    value = tensors.scalars.get(name)
    is_number = isinstance(value, int | float) and abs(value) < LARGEST
    return float(value) if is_number and value is not None else None


def stored_k(tensors: Tensors) -> int | None:
    """k of a top-k activation, at least 1; None where the file has none."""
    return whole_k(stored_number(tensors, "k"))


def whole_k(value: object) -> int | None:
    """The value as a k, a whole number of at least 1; None for any other value."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value < LARGEST:
        return None
    return int(value) if value == int(value) else None
