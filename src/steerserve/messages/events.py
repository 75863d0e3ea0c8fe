"""Events from the engine: answers to commands, and the outcomes of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import structs

from steerserve.messages.sensing import SensedEdges, SensedSpans, Window
from steerserve.messages.values import ChatTemplate, Message
from steerserve.nouns.lens.rules import AttributionMethod, LensKind
from steerserve.rules.inference.stepping import CompiledFunctions, CudaGraphs, RowSteps, SeededRows
from steerserve.rules.models.generation_config import GenerationConfig
from steerserve.rules.models.nearness import Exactness
from steerserve.rules.saes.sites import ModelSite, widths

FinishReason = Literal["stop", "length"]

LOADING_TOKENIZER = "loading_tokenizer"
"""The stage of a load in which the tokenizer is read, which takes long where its vocabulary is large."""

LOADING_WEIGHTS = "loading_weights"
"""The stage of a load in which the weights are read. The stages before read the configuration and the tokenizer."""

FETCHING_FILES = "fetching_files"
"""The stage before all others in which a node fetches the files of the model that it lacks. Its time does not count as
time of the load."""


class Progress(Message, frozen=True):
    """A load reached `stage`; `percent` is 0 to 100."""

    id: int
    stage: str
    percent: float


class Loaded(Message, frozen=True):
    """Facts of the loaded model. Sizes are in tokens, features and MiB; `quantization` is the form in which it is held.
    `sites` has the sites of the model. `row_steps` says whether rows share passes, and `seeded_rows` whether seeded
    rows do; None where there are none. Engines with the same `probe` compute the same logits, bit for bit; it is empty
    where this was not tried out. `cuda_graphs` says how decode passes are run; None for a model without such passes.
    `compiled_functions` is None for a model on cards. `generation_config` is None for a model that writes no text, and
    for a file that recommends no sampling."""

    id: int
    architecture: str
    parameters: int
    dtype: str
    device: str
    memory_mb: int
    context_length: int
    layers: int
    hidden_size: int
    vocabulary: int
    kv_tokens: int
    kv_bytes_per_token: int
    chat_template: ChatTemplate | None = None
    is_embedding_only: bool = False
    memory_by_device_mb: dict[str, int] = {}
    gpu_indices: list[int] = []
    supports_embeddings: bool = True
    quantization: str = ""
    sites: list[ModelSite] = []
    row_steps: RowSteps | None = None
    seeded_rows: SeededRows | None = None
    probe: str = ""
    cuda_graphs: CudaGraphs | None = None
    compiled_functions: CompiledFunctions | None = None
    exactness: Exactness | None = None
    generation_config: GenerationConfig | None = None
    warnings: list[str] = []

    @property
    def site_widths(self) -> dict[str, int]:
        """The width of every site that an SAE may read and write here, by its name."""
        return widths(self.sites)


class DeviceMemory(Message, frozen=True):
    """Bytes on one device, as the engine measured them. `weights` are the parameters and buffers of the model as they
    are held, `cache` the keys and values that are allocated, `saes` the attached SAEs. `process` is all that the
    process of the engine holds there: its resident memory on the host (`cpu`), the memory of its allocator on a card.
    None is what the engine does not tell."""

    device: str
    weights: int | None
    cache: int | None
    saes: int | None
    process: int | None


class Measured(Message, frozen=True):
    """Memory in bytes. `devices` has the bytes allocated and reserved on each card (`cuda:N`); it is empty on a host
    without cards. `kv_reserve` is the memory that the KV cache may still take on all devices; `working` is the memory
    that a pass takes on one device. `parts` names the parts of the memory on each device of the model and on the host;
    it is empty without a model."""

    id: int
    devices: dict[str, tuple[int, int]] = {}
    kv_reserve: int = 0
    working: int = 0
    parts: list[DeviceMemory] = []


class Claims(Message, frozen=True):
    """The facts that an SAE checkpoint states about itself, read from its headers; None where it states nothing.

    `reason` says why the SAE can never be attached (a transcoder, a cross-layer transcoder). `needs` names the
    overrides without which the SAE cannot be attached (`activation`, ...). `tensors` has the shapes of the tensors.
    `tensors`, `normalisation` and `dtype` are as stored.
    """

    format: str
    architecture: str
    d_in: int
    d_sae: int
    dtype: str
    hook_name: str | None
    site: str | None
    layer: int | None
    model_name: str | None
    l0: float | None
    size_bytes: int
    normalisation: str = "none"
    is_centred: bool | None = None
    reason: str | None = None
    needs: list[str] = []
    warnings: list[str] = []
    tensors: dict[str, list[int]] = {}


class Inspected(Message, frozen=True):
    id: int
    claims: Claims


class LensInspected(Message, frozen=True, kw_only=True):
    """The facts of a trained lens. `layers` are the layers whose stream it maps, and `width` is the width of the
    stream. `model_layers` is the number of layers of the model, `model_name` its name, and `unembed_hash` the hash of
    its output embedding; each is None where the files do not say it. `size_bytes` is the size of the tensors."""

    id: int = 0
    kind: LensKind
    layers: list[int]
    width: int
    model_layers: int | None
    model_name: str | None
    unembed_hash: str | None
    size_bytes: int


class Attached(Message, frozen=True):
    """The facts of an SAE that was attached. `check` holds the figures of the self-check where it ran. `dtype` is the
    dtype in which the matrices are kept; `site` is the site that the SAE reads and writes. `is_calibrated` is False
    where a norm factor is not known. `k` is how many features the SAE chooses at each token; None where their number
    is free."""

    layer_module_path: str
    memory_mb: int
    d_in: int
    d_sae: int
    warnings: list[str]
    check: dict[str, float]
    dtype: str = "float32"
    site: str = "resid_post"
    is_calibrated: bool = True
    k: int | None = None


class Applied(Message, frozen=True):
    """The engine holds the state. `facts` are those of all attached SAEs, by their keys."""

    id: int
    facts: dict[str, Attached]


class FeatureCount(Message, frozen=True):
    """One feature over the `count` tokens at which it was observed. `std` is the standard deviation of the population.
    `active_ratio` is the share of these tokens at which the feature was active (not 0)."""

    feature_idx: int
    count: int
    mean: float
    std: float
    min: float
    max: float
    active_ratio: float


class Statistics(Message, frozen=True):
    """`tokens` is the number of tokens observed since the last reset; `activations` is the number of active features
    (not 0), summed over these tokens. `lost_requests` are the completions whose tokens are missing, because they ran on
    replicas that ended by themselves."""

    id: int
    features: list[FeatureCount]
    tokens: int
    activations: int
    lost_requests: int = 0


class FeatureContext(Message, frozen=True):
    """A monitored token at `position` of a choice, the value of a feature there, and the text around the token. `label`
    names the request."""

    label: str
    choice: int
    position: int
    activation: float
    window: Window


class Contexts(Message, frozen=True):
    """The contexts of a feature, the largest value first. `kept` tokens have contexts in all."""

    id: int
    kept: int
    contexts: list[FeatureContext]


class FeatureFacts(Message, frozen=True):
    """Norms of one feature's decoder row and encoder column, its threshold (jumprelu) and encoder bias."""

    feature_idx: int
    decoder_norm: float
    encoder_norm: float
    encoder_bias: float
    threshold: float | None


class Explored(Message, frozen=True):
    """`nearest` has [feature, cosine] of the neighbours, the largest cosine first."""

    id: int
    features: list[FeatureFacts]
    nearest: list[tuple[int, float]]


class Fitted(Message, frozen=True):
    """A direction [width] as little-endian float32, and a bias, which is 0 but for a probe. `scores` are those of all
    examples along the direction, with the bias; `shuffled` those along each of several directions that were fitted to
    shuffled labels, and `random` those along each of several random directions that point to the positives.
    `split_cosine` is the cosine between the directions of two halves of the examples, and `residual_norm` the mean
    length of all examples."""

    id: int
    direction: bytes
    bias: float
    scores: list[float]
    shuffled: list[list[float]]
    random: list[list[float]]
    split_cosine: float | None
    residual_norm: float


class Promoted(Message, frozen=True):
    """What each of the first `count` directions adds to the logits of tokens. `tokens` are little-endian int32 and
    `values` little-endian float32, each [count, 2, top]: the tokens with the largest values, the largest first, then
    those with the smallest, the smallest first. `texts` has the texts of these tokens."""

    id: int
    count: int
    top: int
    tokens: bytes
    values: bytes
    texts: dict[int, str] = {}


class Recorded(Message, frozen=True):
    """The record of monitoring at the last token of a choice that ended. `position` counts from the beginning of the
    prompt. `activations` has the active features (not 0), or all features that the target names, as [index, value]: the
    largest by magnitude first, equals by index, RECORD_MAXIMUM at most. `fired` is the number of active features."""

    id: int
    label: str
    key: str
    choice: int
    position: int
    token: int
    activations: list[tuple[int, float]]
    top_k: list[tuple[int, float]]
    fired: int


RECORD_MAXIMUM = 1000


class Done(Message, frozen=True):
    """A command without a result was carried out."""

    id: int


class Refused(Message, frozen=True):
    """The command or request ended with a code of the error table."""

    id: int
    code: str
    message: str
    param: str | None = None
    details: dict[str, object] = {}


class Started(Message, frozen=True):
    """Every check that needs the model has passed. `prompt_tokens` has an entry per prompt. `unused` are the locations
    of the fields of the request that the model does not use."""

    id: int
    prompt_tokens: list[int]
    unused: tuple[str, ...] = ()


RUNS_MAXIMUM = 1000
"""The most runs of positions at which one edit is said to have acted."""


class EditActs(Message, frozen=True):
    """Where the edit `number` acted in one choice. `evaluated` counts the positions at which the edit was evaluated,
    and `acted` those at which it changed the value of a site; `first` and `last` are the first and the last of these.
    `max_change` is the largest |change| / |x| of one site. `at` has these positions as runs [first, last], None where
    there are more than RUNS_MAXIMUM of them."""

    number: int
    evaluated: int
    acted: int
    first: int | None
    last: int | None
    max_change: float
    at: list[tuple[int, int]] | None = []


class TokenScore(Message, frozen=True):
    """One candidate for the next token: its text, and its log-probability among the candidates."""

    token: int
    text: str
    logprob: float


def without_blanks(scores: Sequence[TokenScore]) -> list[TokenScore]:
    """Candidates without the blanks with which their texts begin."""
    return [structs.replace(one, text=one.text.removeprefix(" ")) for one in scores]


class Distribution(Message, frozen=True):
    """The log-probability of a token, and the most probable tokens in its place, most probable first."""

    logprob: float
    top: list[TokenScore]


class Piece(Message, frozen=True):
    """New text of one choice. `finish` is None, `stop` or `length`; `tokens` counts the choice's tokens so far. With
    the last piece, `is_changed` says whether an operator changed the choice's steering while it ran. `parts` has what
    parts of the request give with this token, by their names."""

    id: int
    choice: int
    text: str
    tokens: int
    finish: FinishReason | None = None
    is_changed: bool = False
    parts: dict[str, msgspec.Raw] = {}


class PromptToken(Message, frozen=True):
    """One token of a scored prompt: its log-probability after the tokens before it, and the most probable tokens at its
    place, most probable first, with the token itself as the last where it is none of them. The first token of a prompt
    follows nothing, so its `logprob` is None."""

    token: int
    text: str
    logprob: float | None
    top: list[TokenScore]


class Scored(Message, frozen=True):
    """One scored prompt: its most probable candidate, and the candidates listed, most probable first. `prompt` has the
    tokens of the prompt, and is empty where they are not asked for. `prompt_text` is the text of a prompt that came as
    token ids. `parts` is as in `Piece`."""

    id: int
    choice: int
    best: TokenScore
    top: list[TokenScore]
    prompt: list[PromptToken] = []
    prompt_text: str = ""
    parts: dict[str, msgspec.Raw] = {}


class Embedded(Message, frozen=True):
    """The vector of one text: little-endian float32."""

    id: int
    choice: int
    vector: bytes


class LensToken(Message, frozen=True):
    """One of the most probable next tokens: its text, and its probability over the whole vocabulary."""

    token: int
    text: str
    probability: float


class LensLayer(Message, frozen=True):
    """The most probable next tokens at each position of a prompt, the most probable first, as the unembedding reads
    them from the stream after `layer`."""

    layer: int
    positions: list[list[LensToken]]


class LensRead(Message, frozen=True):
    """What a lens read of one prompt. `tokens` has the tokens of the prompt, each with its text."""

    id: int
    choice: int
    tokens: list[tuple[int, str]]
    layers: list[LensLayer]
    kind: Literal["logit"] | LensKind = "logit"


class FeatureContribution(Message, frozen=True):
    """What one feature, at this activation and at the token `position`, adds to a difference of logits."""

    feature: int
    activation: float
    contribution: float
    position: int


class Attributed(Message, frozen=True):
    """A difference of logits after `position` of one prompt, attributed to features.

    `token`, `target` and `against` are tokens with their texts; `against` is None where the mean over the vocabulary is
    taken off. `features` has the largest contributions by magnitude, equals by index; `total` is the sum over all
    `active` features. `whole` is the difference of the model's own logits; `uncapped` is the difference before the
    softcap; None where the model has none. With gradients, `effect` is by how much the difference falls where all
    active features are taken away, and `error` the contribution of what the SAE does not rebuild.
    """

    id: int
    choice: int
    position: int
    token: tuple[int, str]
    target: tuple[int, str]
    against: tuple[int, str] | None
    features: list[FeatureContribution]
    active: int
    total: float
    whole: float
    uncapped: float | None
    method: AttributionMethod = "direct"
    effect: float | None = None
    error: float | None = None


class StatesRead(Message, frozen=True):
    """The values of a site at several layers of one prompt, [layers, width] as little-endian float32: the mean over
    `positions` positions."""

    id: int
    choice: int
    positions: int
    states: bytes


class FeatureValues(Message, frozen=True):
    """The activations of one SAE at some positions of a prompt that are not 0, grouped by feature, as little-endian
    numbers: the `features` that have any (uint32, rising) with how many each has (`counts`, uint32), then for all of
    them one after the other the `positions` (uint32, rising within a feature) and the `values` (float32)."""

    features: bytes = b""
    counts: bytes = b""
    positions: bytes = b""
    values: bytes = b""


class ActivationsRead(Message, frozen=True):
    """The activations of one prompt at `positions` positions, for each SAE that was asked for. `seconds` is how long
    the engine worked for this prompt; a pass that it shared with other prompts counts by its part."""

    id: int
    choice: int
    positions: int
    saes: list[FeatureValues]
    seconds: float = 0.0


class PartsRead(Message, frozen=True):
    """A piece of what the parts of a request read of one prompt, by their names. With the last piece, `seconds` is as
    in `ActivationsRead`."""

    id: int
    choice: int
    parts: dict[str, msgspec.Raw]
    is_last: bool
    seconds: float = 0.0


class Patched(Message, frozen=True):
    """The metric of the clean and of the corrupt text, of each cell, and of each patch of a text into itself. `seconds`
    is how long the engine worked."""

    id: int
    choice: int
    clean: float
    corrupt: float
    cells: list[float]
    noise: list[float]
    seconds: float = 0.0


ReadOutcome = Scored | Embedded | LensRead | Attributed | StatesRead | ActivationsRead | Patched
"""The one outcome of a choice that is only read."""

Outcome = Piece | ReadOutcome | PartsRead


class Stepped(Message, frozen=True):
    """One step of the engine: its outcomes, and for each attached SAE the number of passes in which its steering was
    added."""

    outcomes: list[Outcome]
    applied: dict[str, int]


class ThreadsChanged(Message, frozen=True):
    """The engine computes with `threads` threads from now on, and with `most` where no other process takes a
    processor. It answers no command, so its id is 0."""

    threads: int
    most: int
    id: int = 0


class GraphsChanged(Message, frozen=True):
    """Decode passes are run in this way from now on. The event answers no command, so its id is 0."""

    cuda_graphs: CudaGraphs
    id: int = 0


class TurnsChanged(Message, frozen=True):
    """The longest turns of the engine's main thread so far, by the name of the command, or of the part of a step: the
    seconds of each, and the seconds that the thread had a processor. The event answers no command, so its id is 0."""

    longest: dict[str, tuple[float, float]]
    id: int = 0


Event = (
    Progress
    | Loaded
    | Measured
    | Inspected
    | LensInspected
    | Applied
    | Statistics
    | Contexts
    | Explored
    | Promoted
    | Fitted
    | Recorded
    | SensedSpans
    | SensedEdges
    | Done
    | Refused
    | Started
    | Stepped
    | ThreadsChanged
    | GraphsChanged
    | TurnsChanged
)


def is_last(event: Outcome) -> bool:
    """Whether the choice ends with this event."""
    if isinstance(event, Piece):
        return bool(event.finish)
    if isinstance(event, PartsRead):
        return event.is_last
    return isinstance(event, ReadOutcome)
