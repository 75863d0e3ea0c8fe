"""Commands to the engine. Every command has an `id`, which its answer repeats.

A command that asks and changes no state is a `Question[...]` of the answer to it. `Engine.ask` gives it its `id`.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from steerserve.messages.events import (
    Contexts,
    Done,
    Explored,
    Fitted,
    Inspected,
    LensInspected,
    Measured,
    Promoted,
    Statistics,
)
from steerserve.messages.requests import Request
from steerserve.messages.state import State
from steerserve.messages.values import Message, SaeSource

_Answer = TypeVar("_Answer")


class Question(Message, Generic[_Answer], frozen=True):
    """A question to the engine, with the class of its answer."""

    id: int = 0


class Load(Message, frozen=True):
    """Load a checkpoint folder; an engine process loads one. A `kv_cache_mb` of 0 derives the size of the KV cache from
    the free memory; a `prefix_cache_mb` of None derives the size of the kept prefixes from the size of the KV cache.
    `grammar_cache` is the number of compiled grammars that are kept.

    `devices` is empty where the engine chooses, one device for everything, or the device of each decoder layer.
    `working_mb` is the memory that passes are expected to take beside weights and KV cache. After
    `idle_cache_release_s` seconds without work, the engine gives back the memory that it keeps for later tensors; with
    a value below 0 it never does. A step with a part of a prompt takes about `max_step_ms` milliseconds at most.
    `seeded_rows` and `cuda_graphs` are the settings of these names. `data_folder` is the data folder of the service.
    """

    id: int
    path: str
    quantization: str
    trust_remote_code: bool
    threads: int
    kv_cache_mb: int
    min_context: int
    prefix_cache_mb: int | None = None
    grammar_cache: int = 32
    devices: list[str] = []
    working_mb: int = 0
    idle_cache_release_s: float = -1.0
    max_step_ms: float = 200.0
    seeded_rows: str = "auto"
    cuda_graphs: str = "off"
    data_folder: str = ""


class Measure(Question[Measured], frozen=True):
    """Read how many bytes the allocator holds on the cards of the model, and how many are reserved beside SAEs."""


class Inspect(Question[Inspected], frozen=True, kw_only=True):
    """Read the claims of an SAE checkpoint; no model is needed."""

    source: SaeSource


class InspectLens(Question[LensInspected], frozen=True, kw_only=True):
    """Read the facts of a trained lens from the headers of its files; no model is needed. `path` is its folder or its
    file."""

    path: str


class Apply(Message, frozen=True):
    """Come into this state, from the next forward pass on. An engine that refuses stays in the state that it holds."""

    id: int
    state: State


class ReadStatistics(Question[Statistics], frozen=True):
    """Read the statistics since the last reset, of `features` or of all features that were active. With a `metric`,
    only the `k` features with the largest metric are read, ties by index. The metric is `mean`, `max`, `active_ratio`,
    or `count`, which is the number of tokens at which a feature was active."""

    features: list[int] | None = None
    metric: str | None = None
    k: int = 10


class ReadContexts(Question[Contexts], frozen=True, kw_only=True):
    """Read the text around the kept tokens at which `feature` had its `k` largest values."""

    feature: int
    k: int


class ResetStatistics(Question[Done], frozen=True):
    """Clear the statistics that monitoring has counted."""


class Explore(Question[Explored], frozen=True, kw_only=True):
    """Read the geometry of the attached SAE `key`, or of the SAE at `source`: facts of each of `features`, and as many
    neighbours of the first of them as `nearest` says. The neighbours are the features whose decoder directions have the
    largest cosine with its decoder direction, or with `direction` where that is given: float32, little-endian,
    [d_in]."""

    key: str | None = None
    source: SaeSource | None = None
    features: list[int] = []
    nearest: int = 0
    direction: bytes | None = None


class Fit(Question[Fitted], frozen=True, kw_only=True):
    """Fit a direction that tells positive from negative examples. `states` are their values at `layer`, [n, width] as
    little-endian float32. Held-out examples do not shape the direction. With `is_paired`, the k-th positive example and
    the k-th negative one are a pair. The method `probe` is logistic regression with a bias. With `is_compared` the
    direction is compared with those of shuffled labels, with random ones, and with those of two halves of the
    examples."""

    layer: int
    states: bytes
    is_positive: list[bool]
    is_held_out: list[bool]
    is_paired: bool
    method: Literal["mean_difference", "pca", "logistic", "probe"]
    seed: int
    is_compared: bool = True


class Promote(Question[Promoted], frozen=True, kw_only=True):
    """Read which tokens directions of the residual stream promote most and suppress most, `top` each: those of
    `features` of the attached SAE `key`, or `directions`, which are little-endian float32 [n, hidden]. An engine
    answers the first of them, as many as do not hold up the running batch for long, and at least one. The texts of the
    tokens are answered where `is_spelled`."""

    key: str | None = None
    features: list[int] = []
    directions: bytes = b""
    top: int
    is_spelled: bool = False


class Cancel(Message, frozen=True):
    """Forget request `id`; no event follows for it."""

    id: int


class Stop(Message, frozen=True):
    """End the process."""

    id: int = 0


Command = (
    Load
    | Measure
    | Inspect
    | InspectLens
    | Apply
    | ReadStatistics
    | ReadContexts
    | ResetStatistics
    | Explore
    | Promote
    | Fit
    | Request
    | Cancel
    | Stop
)
