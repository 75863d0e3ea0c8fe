"""How a checkpoint recommends to sample, in its `generation_config.json`."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The sampling that a checkpoint recommends, as the fields of a request. The temperature 0 is greedy."""

    temperature: float
    top_p: float


GREEDY = GenerationConfig(0.0, 1.0)


def recommended(do_sample: object, temperature: object, top_p: object) -> GenerationConfig:
    """The sampling of a generation config with these members, None for one that it lacks. Without `do_sample` and
    without a temperature or a `top_p` it is greedy, as in transformers. A member outside of the bounds of a request is
    taken as missing."""
    given = _within(temperature, 2.0), _within(top_p, 1.0)
    if do_sample is False or (do_sample is None and given == (None, None)):
        return GREEDY
    return GenerationConfig(*(1.0 if one is None else one for one in given))


def _within(value: object, most: float) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0.0 <= value <= most:  # type: ignore[arg-type, operator]
        return None
    return float(value)  # type: ignore[arg-type]
