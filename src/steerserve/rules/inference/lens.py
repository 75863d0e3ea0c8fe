"""The lens and attribution: which layers a request may name, and how much of a difference is explained."""

from __future__ import annotations

from collections.abc import Sequence

from steerserve.errors import Refusal
from steerserve.rules.saes.sites import MLP_OUT, RESID_POST


def check_layers(layers: Sequence[int] | None, count: int) -> None:
    """Check the layers that a request names, for a model with `count` layers.

    Raises:
        Refusal: INVALID_PARAMETER for a layer outside the model, or named twice.
    """
    for place, layer in enumerate(layers or ()):
        param = f"layers[{place}]"
        if not 0 <= layer < count:
            why = f"{param}: the layers of the model are [0, {count}); {layer} is not"
            raise Refusal("INVALID_PARAMETER", why, param=param, layers=count)
        if layer in (layers or ())[:place]:
            raise Refusal("INVALID_PARAMETER", f"{param}: {layer} is there twice", param=param)


def is_direct_only(site: str, layer: int, layers: int) -> bool:
    """Whether parts of the model behind this site may read it, so that its values act on the logits by other paths than
    the direct one."""
    return layer < layers - 1 or site not in (RESID_POST, MLP_OUT)


def explained(total: float, whole: float) -> float | None:
    """The share of the whole that the total is; None where the whole is 0."""
    return total / whole if whole else None
