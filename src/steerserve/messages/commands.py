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
from steerserve.messages.sensing import Reported
from steerserve.messages.state import State
from steerserve.messages.values import (
    Constraint,
    Divergence,
    Echo,
    Logprobs,
    Message,
    Places,
    Plan,
    Pool,
    SaeSource,
    Sampling,
    Suppressed,
    Tap,
    Tokens,
)
from steerserve.rules.inference.lens import AttributedPositions, AttributionMethod
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.vector import Direction

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


class Generate(Message, frozen=True):
    """Complete each prompt `n` times; choice `prompt * n + i` is completion `i` of the prompt. `plans`, where not
    empty, has a plan for each prompt in place of `plan`. `label` names the request in records of monitoring and in
    events of sensing; a request without a label is neither monitored nor sensed. `reported` says what sensing leaves
    out of the prompts. The rows of each `client` take turns with the rows of other clients at joining the batch.

    With `counted`, the end of each choice reports where edits acted: the edits of its plan, and those of `counted`,
    which are the parts of the values that the plan adds. With a `divergence` each choice is compared with the model
    without steering; such a request has no `logprobs`. With `readings`, the projections on these directions are read at
    each position from which a token is drawn. `is_stream` says whether the client gets each token as it comes."""

    id: int
    prompts: list[Tokens]
    n: int
    sampling: Sampling
    plan: Plan
    constraint: Constraint | None = None
    tap: Tap | None = None
    label: str | None = None
    plans: list[Plan] = []
    reported: Reported | None = None
    client: str = ""
    counted: tuple[Edit, ...] | None = None
    logprobs: Logprobs | None = None
    divergence: Divergence | None = None
    readings: tuple[Direction, ...] = ()
    is_stream: bool = False


class Score(Message, frozen=True):
    """Score the candidates for the token after each prompt; one choice per prompt. `plan` steers the prompts.

    The candidates are the tokens `allowed`, or the whole vocabulary. The answer lists all allowed tokens, or the `top`
    most probable of the vocabulary; where `top` is None it lists none. Logits are divided by `temperature`. With an
    `echo` the tokens of the prompts are scored too. With a `pool` each prompt has a vector of activations. `client` is
    as in `Generate`.
    """

    id: int
    prompts: list[Tokens]
    temperature: float
    top: int | None
    allowed: list[int] | None = None
    tap: Tap | None = None
    echo: Echo | None = None
    client: str = ""
    plan: Plan = Suppressed()
    pool: Pool | None = None


class Embed(Message, frozen=True):
    """Compute a vector for each text, unsteered. `client` is as in `Generate`."""

    id: int
    prompts: list[Tokens]
    client: str = ""


class Lens(Message, frozen=True):
    """Read the residual stream after each of `layers` at every token of the one prompt, unsteered, as the model's own
    unembedding reads it. The answer lists the `top` most probable next tokens of each position and layer; a `layers` of
    None means all. Positions times layers may be `max_distributions`, and these times `top` may be `max_entries`.
    `client` is as in `Generate`. `path` is the folder or the file of a trained lens; a `layers` of None then means the
    layers that it has, and the last one."""

    id: int
    prompts: list[Tokens]
    layers: list[int] | None
    top: int
    max_distributions: int
    max_entries: int
    client: str = ""
    path: str | None = None


class Attribute(Message, frozen=True):
    """Attribute the logit of the token `target` after `position` of the one prompt, unsteered, to the features of the
    SAE that is attached as `key` at `layer`: the logit less that of the token `against`, or less the mean over the
    vocabulary. A negative `position` counts from the end. The answer lists the `top` largest contributions by
    magnitude. `client` is as in `Generate`. `steps` is the number of gradients for the method `integrated`."""

    id: int
    prompts: list[Tokens]
    position: int
    target: int
    against: int | None
    key: str
    layer: int
    top: int
    client: str = ""
    method: AttributionMethod = "direct"
    steps: int = 16
    over: AttributedPositions = "position"


class ReadStates(Message, frozen=True):
    """Read the values of `site` at each of `layers` for each prompt, unsteered, at the positions of `places`. `client`
    is as in `Generate`."""

    id: int
    prompts: list[Tokens]
    layers: list[int]
    site: str
    places: Places
    client: str = ""


class ReadActivations(Message, frozen=True):
    """Read all activations of the SAEs that are attached as `keys` for each prompt, unsteered. Position 0 and special
    tokens are left out. `client` is as in `Generate`."""

    id: int
    prompts: list[Tokens]
    keys: list[str]
    client: str = ""


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
    | Generate
    | Score
    | Embed
    | Lens
    | Attribute
    | ReadStates
    | ReadActivations
    | Cancel
    | Stop
)
