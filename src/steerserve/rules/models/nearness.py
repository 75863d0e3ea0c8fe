"""Whether a way of computing a model is as near to the truth as another one. The truth is what the same weights give in
float32, and a distance is measured over many positions of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MEAN_RATIO, HIGH_RATIO = 1.1, 1.25
"""By how much the distance of a fast way from the truth may exceed that of the model's own code, over a whole model."""

MODULE_MEAN_RATIO, MODULE_HIGH_RATIO = 1.5, 2.0
"""The same for one module of the model, over fewer positions: a single large activation weighs more there."""

WRONG_RATIO = 4.0
"""A way whose distance exceeds that of the model's own code by so much computes something else."""

FOLDER = "checks"
"""The folder of the records of checks, in that of the compiled functions."""

ROUNDING = {"float32": 2.0**-18, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance that a result may have in each precision however near the own code is: the rounding of a few sums."""

WRONG_ROUNDING = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.05}
"""As `ROUNDING`, over the layers of a whole model."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Relative differences from float32 over some positions: their mean, and the 99 % quantile."""

    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class RefusedFunction:
    """A module that keeps the library's code though there is a function for its kind, with the distances of both from
    float32. They are None where the function does not take what this module is given."""

    module: str
    found: Distance | None
    own: Distance | None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of a decode pass of one row, measured at the load: as the model is served, and with the functions
    that were refused in their places."""

    served_ms: float
    fast_ms: float


@dataclass(slots=True)
class Functions:
    """How many modules have a function of the service, how many layers run their decode passes in one call, and which
    modules keep the library's code. `times` is None where no function was refused for its distance, and where rows are
    stepped one at a time."""

    modules: int = 0
    layers: int = 0
    refused: list[RefusedFunction] = field(default_factory=list)
    times: StepTimes | None = None


@dataclass(frozen=True, slots=True)
class Exactness:
    """The distances from float32 of the passes by which a model is served and of the library's own pass, over so many
    positions of natural text, and whether the first is as near as the second."""

    positions: int
    served: Distance
    library: Distance
    is_near: bool


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of passes in which the bits of a row are the same: prefill passes have a multiple of `width` tokens a
    row, decode passes a multiple of `row_step` rows. `varies` says what changes the bits all the same."""

    width: int
    row_step: int
    varies: str | None


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks of the model in a folder found. `reads_parts` says whether its attention reads the parts of the
    cache, which the code of some models does not do rightly."""

    folder: str
    reads_parts: bool
    functions: Functions
    exactness: Exactness
    shapes: Shapes

    def odd(self) -> list[str]:
        """What is slower or less exact than it could be, a line each."""
        lines = [_told(each) for each in self.functions.refused]
        if (times := self.functions.times) is not None:
            lines.append(
                f"a token takes {times.served_ms:.3g} ms, with the refused functions {times.fast_ms:.3g} ms"
            )
        if not self.exactness.is_near:
            served, library = self.exactness.served, self.exactness.library
            lines.append(
                f"served {served.mean:.2g} from float32, where the library's own pass is {library.mean:.2g} from it"
            )
        return [f"{self.folder}: {line}" for line in lines]


def _told(refused: RefusedFunction) -> str:
    if refused.found is None or refused.own is None:
        return f"{refused.module} keeps the library's code, because it has another form"
    return (
        f"{refused.module} keeps the library's code: the fast function is {refused.found.mean:.2g} from float32, the "
        f"library's code {refused.own.mean:.2g}"
    )


def distance_of(each: Sequence[float]) -> Distance:
    """The distance over positions, each with its own. A number that is none counts as infinite."""
    ordered = sorted(value if value == value else math.inf for value in each)
    return Distance(sum(ordered) / len(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1])


def is_near(found: Distance, own: Distance, dtype: str) -> bool:
    """Whether a fast way of a whole model is as near to the truth as its own code."""
    return _within(found, own, MEAN_RATIO, HIGH_RATIO, ROUNDING[dtype])


def is_module_near(found: Distance, own: Distance, dtype: str) -> bool:
    """Whether the fast function of one module is as near to the truth as its own."""
    return _within(found, own, MODULE_MEAN_RATIO, MODULE_HIGH_RATIO, ROUNDING[dtype])


def is_right(found: Distance, own: Distance, dtype: str) -> bool:
    """Whether passes compute what the model's own code computes, up to rounding."""
    return _within(found, own, WRONG_RATIO, WRONG_RATIO, WRONG_ROUNDING[dtype])


def _within(found: Distance, own: Distance, mean: float, high: float, least: float) -> bool:
    return found.mean <= max(mean * own.mean, least) and found.high <= max(high * own.high, least)
