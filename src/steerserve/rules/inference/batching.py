"""Which requests run without a slot where continuous batching is enabled."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve.rules.inference.intent import GenerateIntent, Intent

SERIAL = "serial"
BATCHED = "cbm"


@dataclass(frozen=True, slots=True)
class Fixed:
    """The sampling parameters that a server with continuous batching serves without a slot."""

    temperature: float
    top_p: float


def backend(intent: Intent, fixed: Fixed | None) -> str:
    """Where a request runs: `cbm`, without a slot, if it has the fixed sampling parameters and uses no other feature;
    otherwise `serial`. `fixed` is None where every request takes a slot."""
    if fixed is None or not isinstance(intent, GenerateIntent):
        return SERIAL
    sampling = intent.sampling
    is_plain = (
        sampling.temperature == fixed.temperature
        and sampling.top_p == fixed.top_p
        and sampling.repetition_penalty == 1.0
        and not sampling.has_penalty
        and sampling.seed is None
        and intent.n == 1
        and intent.profile is None
        and intent.intensity is None
        and intent.steering is None
        and intent.constraint is None
        and intent.sweep is None
        and not intent.parts
        and intent.replayed is None
    )
    return BATCHED if is_plain else SERIAL
