"""Whether an SAE fits the loaded model at a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from steerserve.errors import Refusal


class Attached(Protocol):
    """What the rules need to know of one attached SAE; `key` is its name in the engine."""

    @property
    def key(self) -> str: ...
    @property
    def sae_id(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def d_sae(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """`errors` refuse the attach, `warnings` travel with it."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def is_compatible(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class Claim:
    """What the SAE says of itself; None where it says nothing."""

    d_in: int
    layer: int | None
    model_name: str | None
    site: str | None


def compatibility(
    claim: Claim, layer: int, *, hidden_size: int, layers: int, model_names: tuple[str, ...]
) -> Verdict:
    """(1) The layer exists and the SAE reads the residual stream's width. (2) Another layer or model family than it
    was trained on, or an unknown site, is a warning."""
    errors: list[str] = []
    warnings: list[str] = []
    if not 0 <= layer < layers:
        errors.append(f"layer {layer} is outside [0, {layers}) of the loaded model")
    if claim.d_in != hidden_size:
        errors.append(
            f"the SAE reads {claim.d_in} features but the model's hidden size is {hidden_size}"
        )
    if claim.layer is not None and claim.layer != layer:
        warnings.append(f"the SAE was trained on layer {claim.layer}, not {layer}")
    if claim.model_name and not any(_same_family(claim.model_name, n) for n in model_names):
        warnings.append(
            f"the SAE was trained on {claim.model_name!r}; the loaded model is {model_names[0]!r}"
        )
    if claim.site is None:
        warnings.append(
            "the SAE does not say where it reads; taken as the residual after the layer"
        )
    return Verdict(tuple(errors), tuple(warnings))


def check(verdict: Verdict, claim: Claim, hidden_size: int) -> None:
    """Raises:
    Refusal: SAE_INCOMPATIBLE with every error.
    """
    if not verdict.is_compatible:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            "; ".join(verdict.errors),
            errors=list(verdict.errors),
            d_in=claim.d_in,
            hidden_size=hidden_size,
        )


def _same_family(claimed: str, name: str) -> bool:
    a, b = claimed.lower().rpartition("/")[2], name.lower().rpartition("/")[2]
    return a in b or b in a
