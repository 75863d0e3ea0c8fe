"""Commands to the engine. Every command has an `id`, which its answer repeats."""

from __future__ import annotations

from steerserve.engine.wire.values import (
    Chat,
    Constraint,
    Message,
    Plan,
    SaeSource,
    Sampling,
    Tap,
    Text,
)


class Load(Message, frozen=True):
    """Load a checkpoint folder; one per engine process. `kv_cache_mb` 0 derives it from free memory, and
    `prefix_cache_mb` None from that; `grammar_cache` compiled grammars are kept.

    `devices` is empty where the engine chooses, one device for everything, or the device of each decoder layer.
    `working_mb` is the memory that passes are expected to take beside weights and KV cache. After
    `idle_cache_release_s` seconds without work, memory that is kept for later tensors is given back; never if below 0.
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


class Measure(Message, frozen=True):
    """Read how many bytes the allocator holds on the cards of the model, and how many are reserved beside SAEs."""

    id: int


class Inspect(Message, frozen=True):
    """Read the claims of an SAE checkpoint; no model is needed."""

    id: int
    source: SaeSource


class Attach(Message, frozen=True):
    """Put an SAE at a layer under `key`; `check` runs the self-check on a short text. `dtype` is the dtype of its
    matrices (`float32`, `bfloat16`, `float16`); None keeps that of the file."""

    id: int
    key: str
    source: SaeSource
    layer: int
    dtype: str | None = None
    check: bool = True


class Detach(Message, frozen=True):
    id: int
    key: str


class Monitor(Message, frozen=True):
    """Watch the features of the SAE `key` in every generation, or none where it is None. `features` restricts what is
    encoded; `top_k` is how many of the largest a record names. The statistics stay until `ResetStatistics`."""

    id: int
    key: str | None
    features: list[int] | None = None
    top_k: int = 10


class ReadStatistics(Message, frozen=True):
    """Read the statistics since the last reset: those of `features`, or of all features that were active. With
    `metric` (`mean`, `max`, `active_ratio`, or `count`: the tokens at which a feature was active), only those of the
    `k` largest, ties by index."""

    id: int
    features: list[int] | None = None
    metric: str | None = None
    k: int = 10


class ResetStatistics(Message, frozen=True):
    id: int


class Explore(Message, frozen=True):
    """Read the geometry of the attached SAE `key`, or of the SAE at `source`: facts of `features`, and the `nearest`
    features, whose decoder directions have the largest cosine with that of the first feature named."""

    id: int
    key: str | None
    source: SaeSource | None
    features: list[int]
    nearest: int = 0


class Steer(Message, frozen=True):
    """Replace the live steering; acts from the next forward pass.

    `values` maps the key of an attached SAE (`sae_id@layer`) to feature index -> value.
    """

    id: int
    epoch: int
    enabled: bool
    values: dict[str, dict[int, float]]


class Generate(Message, frozen=True):
    """Complete each prompt `n` times; choice `prompt * n + i`. `plans` has one for each prompt, in place of `plan`.
    `label` names the request in records of monitoring; a request without a label is not monitored."""

    id: int
    prompts: list[Text | Chat]
    n: int
    sampling: Sampling
    plan: Plan
    constraint: Constraint | None = None
    tap: Tap | None = None
    label: str | None = None
    plans: list[Plan] = []


class Score(Message, frozen=True):
    """The distribution of the token after each prompt, unsteered; one choice per prompt.

    `top` alternatives are listed, and with `allowed` every one of its tokens; none at all where `top` is None. Logits
    are divided by `temperature`.
    """

    id: int
    prompts: list[Text | Chat]
    temperature: float
    top: int | None
    allowed: list[int] | None = None
    tap: Tap | None = None


class Embed(Message, frozen=True):
    """A vector for each text, unsteered."""

    id: int
    prompts: list[Text]


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
    | Attach
    | Detach
    | Monitor
    | ReadStatistics
    | ResetStatistics
    | Explore
    | Steer
    | Generate
    | Score
    | Embed
    | Cancel
    | Stop
)
