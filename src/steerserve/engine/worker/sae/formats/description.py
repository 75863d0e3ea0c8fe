"""What a format makes of a checkpoint's files: which tensor is which part, and how it computes.

Every format answers with one `Description`; what an operator overrides, what is claimed and what is loaded come from it in
one way for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from steerserve.engine.wire.messages import Overrides
from steerserve.engine.worker.sae.canonical import ACTIVATIONS, NEEDS_K, NORMALISATIONS
from steerserve.engine.worker.sae.files import Tensors
from steerserve.engine.worker.sae.formats.sources import LARGEST, StatedSize
from steerserve.errors import Refusal
from steerserve.rules import sae_sites

SCALED = "expected_average_only_in"
"""The input is multiplied by one number c = sqrt(d_in) / E||x||, found over the training data."""

GATED = ("b_gate", "b_mag", "r_mag")
TRANSCODER = "a transcoder reads one place and writes another: it is no autoencoder of the place it would be attached to"
CROSS_LAYER = "a cross-layer transcoder writes to many layers: it is no autoencoder of one place"
TEMPORAL = "a temporal SAE attends over the whole sequence: it has no activation of one position to read or steer"


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint as its format describes it.

    Attributes:
        format: name of the format.
        tensors: the opened weights.
        parts: W_enc, W_dec, b_enc, b_dec, threshold, log_threshold, b_gate, b_mag, r_mag, scaling_factor -> the tensor's
            name in the file.
        architecture: as the checkpoint calls it.
        activation: one of ACTIVATIONS; None where it is not known.
        threshold: of every feature, where the file has no tensor of them.
        normalisation: one of NORMALISATIONS, SCALED, or a name that this engine cannot compute.
        norm_factor: the c of SCALED.
        threshold_is_raw: the threshold is compared before the input is scaled, so that it is scaled with it.
        embedding_scale: the activations are read multiplied by this, and it was not there in training.
        subtract_b_dec: None where it is not known.
        transposed: matrices that the format keeps the other way round; asked only where d_in equals d_sae.
        optional: parts that may be missing and are zeros then.
        hook_name, site, layer, model_name, l0, is_centred: what the checkpoint says of its place; None for nothing.
        reason: why it can never be attached.
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


# ---------------------------------------------------------------- what an operator says


def with_overrides(description: Description, by: Overrides) -> Description:
    """The description with what the operator says in its place.

    Raises:
        Refusal: VALIDATION_ERROR for a value that means nothing, or that nothing would read.
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
        # it is compared with the values that are reported
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
        raise _refused(
            "site", f"site {name!r} is neither a hook name that is known nor one of {known}"
        )
    layer = description.layer if layer is None else layer
    return replace(description, site=site, layer=layer, hook_name=name)


def _known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise _refused(name, f"{name} {value!r} is none of {', '.join(known)}")


def _used(name: str, is_used: bool, expected: str) -> None:
    if not is_used:
        raise _refused(name, f"{name} needs a value in range and {expected}")


def _refused(override: str, why: str) -> Refusal:
    place = ["body", "overrides", override]
    return Refusal("VALIDATION_ERROR", why, errors=[{"loc": place, "msg": why}])


def needs(description: Description) -> list[str]:
    """The overrides without which it cannot be computed."""
    found = []
    if description.activation is None:
        found.append("activation")
    if description.activation in NEEDS_K and description.k is None:
        found.append("k")
    has_threshold = {"threshold", "log_threshold"} & set(description.parts)
    if description.activation == "jumprelu" and description.threshold is None and not has_threshold:
        found.append("threshold")
    if description.subtract_b_dec is None:
        found.append("subtract_b_dec")
    if description.normalisation not in (*NORMALISATIONS, SCALED):
        found.append("normalisation")
    return found


# ---------------------------------------------------------------- what formats have in common


def parts_by_name(tensors: Tensors, names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Each part with the first of its names that the file has."""
    return {
        part: next(name for name in known if name in tensors.infos)
        for part, known in names.items()
        if any(name in tensors.infos for name in known)
    }


def stored_number(tensors: Tensors, name: str) -> float | None:
    """A single number that is stored as a tensor, or beside the tensors."""
    info = tensors.infos.get(name)
    if info is not None and info.shape in ((), (1,)):
        return float(tensors.read(name).reshape(()))
    value = tensors.scalars.get(name)
    is_number = isinstance(value, int | float) and abs(value) < LARGEST
    return float(value) if is_number and value is not None else None


def stored_k(tensors: Tensors) -> int | None:
    """k of a top-k activation, of at least 1."""
    return whole_k(stored_number(tensors, "k"))


def whole_k(value: object) -> int | None:
    """The number as a k: a whole one of at least 1; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value < LARGEST:
        return None
    return int(value) if value == int(value) else None
