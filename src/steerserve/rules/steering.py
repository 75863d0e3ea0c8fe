"""Live steering as a value: edits, bounds, auto-enable, the epoch, and what a row of the batch really gets.

A key names one attached SAE (`sae_id@layer`). Every edit returns a new value; the epoch grows by one exactly when an
edit changed something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from steerserve.errors import Refusal

MINIMUM = -200.0
MAXIMUM = 200.0
BATCH_MAXIMUM = 1000

Values = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Live:
    """What every request is steered by unless its own plan says otherwise."""

    epoch: int = 0
    enabled: bool = False
    values: Mapping[str, Values] = field(default_factory=dict)

    def of(self, key: str) -> Values:
        return self.values.get(key, {})


def key_of(sae_id: str, layer: int) -> str:
    """The name of one attachment."""
    return f"{sae_id}@{layer}"


def check_index(index: int, d_sae: int) -> None:
    """A feature index lies in [0, d_sae).

    Raises:
        Refusal: INVALID_FEATURE_INDEX naming the index and `d_sae`.
    """
    if not 0 <= index < d_sae:
        raise Refusal(
            "INVALID_FEATURE_INDEX",
            f"feature index {index} is outside [0, {d_sae}) of the attached SAE",
            feature_idx=index,
            d_sae=d_sae,
        )


def check_value(value: float) -> None:
    """A value set directly lies in [-200, 200]; it is rejected outside, never clamped.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    if not (math.isfinite(value) and MINIMUM <= value <= MAXIMUM):
        shown = value if math.isfinite(value) else str(value)
        raise Refusal(
            "VALIDATION_ERROR",
            f"steering value {value} is outside [{MINIMUM:g}, {MAXIMUM:g}]",
            errors=[{"loc": ["body", "value"], "msg": "outside [-200, 200]", "input": shown}],
        )


def set_values(live: Live, key: str, d_sae: int, edits: Values) -> Live:
    """Set some features of one SAE, merging into those already set; setting any value enables.

    All-or-nothing: one bad index or value raises and nothing changes.
    """
    for index, value in edits.items():
        check_index(index, d_sae)
        check_value(value)
    if not edits:
        return live
    merged = {**live.of(key), **edits}
    return _changed(live, replace(live, enabled=True, values={**live.values, key: merged}))


def enable(live: Live) -> Live:
    return _changed(live, replace(live, enabled=True))


def disable(live: Live) -> Live:
    """Stop applying; the values are kept."""
    return _changed(live, replace(live, enabled=False))


def remove(live: Live, key: str, d_sae: int, index: int) -> Live:
    """Forget one feature; forgetting the last one also disables. A feature that is not set changes nothing."""
    check_index(index, d_sae)
    rest = {i: v for i, v in live.of(key).items() if i != index}
    if len(rest) == len(live.of(key)):
        return live
    return _changed(live, _with(live, key, rest))


def clear(live: Live, key: str) -> Live:
    """Forget every feature of one SAE, and disable when none is left anywhere."""
    return _changed(live, _with(live, key, {}))


def effective(
    live: Live, overlay: Mapping[str, Values] | None, planned_on: int, key: str
) -> Values:
    """What one row gets at `key`: its overlay while the epoch is the one it was planned on, else the live values.

    Values of 0 are left out, so that an SAE turned to 0 is the model without any hook, bit for bit.
    """
    if overlay is not None and live.epoch == planned_on:
        chosen: Values = overlay.get(key, {})
    else:
        chosen = live.of(key) if live.enabled else {}
    return {i: v for i, v in chosen.items() if v != 0.0}


def _with(live: Live, key: str, values: Values) -> Live:
    every = {k: v for k, v in live.values.items() if k != key}
    if values:
        every[key] = values
    return replace(live, values=every, enabled=live.enabled and bool(every))


def _changed(before: Live, after: Live) -> Live:
    same = before.enabled == after.enabled and before.values == after.values
    return before if same else replace(after, epoch=before.epoch + 1)
