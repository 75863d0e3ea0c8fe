"""The wire between the control plane and the engine: commands down, events up; the only types both processes share.

Every command carries an `id` that its answer repeats. Frames are a 4-byte big-endian length and a MessagePack body.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of every message."""


# ------------------------------------------------------------------ values


class Text(Message, frozen=True):
    """A prompt that goes to the model verbatim; `special` adds the tokenizer's special tokens."""

    text: str
    special: bool = True


class Chat(Message, frozen=True):
    """A conversation: role and content of each message, rendered by the model's own template with `variables`."""

    messages: list[dict[str, Any]]
    variables: dict[str, Any] = {}


class Sampling(Message, frozen=True):
    """How tokens are chosen. `repetition_penalty` 1 is none; `max_tokens` None takes the default."""

    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    default_max_tokens: int = 512
    stops: list[str] = []
    seed: int | None = None


class Overlay(Message, frozen=True):
    """Steering of one request in place of the live values, while the live epoch is still `epoch`."""

    epoch: int
    values: dict[str, dict[int, float]]


class Suppressed(Message, frozen=True):
    """No steering at all, whatever is live."""


class Follow(Message, frozen=True):
    """The live steering, forward pass by forward pass."""


Plan = Follow | Overlay | Suppressed


class Tap(Message, frozen=True):
    """Activations to read at the attached SAE `key`; see `rules/activations` for what the values mean."""

    key: str
    features: list[int] | None
    top_k: int
    positions: str | tuple[int, int]
    is_before: bool
    max_entries: int


class Overrides(Message, frozen=True):
    """What an operator says of an SAE in place of what its files say; None leaves it to the files.

    `normalisation` is one of `none`, `layer_norm`, `constant_norm_rescale`, `expected_average_only_in`; `norm_factor` is
    the scalar c = sqrt(d_in) / E||x|| of the last. `site` is a hook name or one of `rules.sae_sites.SITES`.
    """

    activation: str | None = None
    k: int | None = None
    threshold: float | None = None
    subtract_b_dec: bool | None = None
    normalisation: str | None = None
    norm_factor: float | None = None
    site: str | None = None
    is_centred: bool | None = None


class SaeSource(Message, frozen=True):
    """An SAE on disk: the folder or the one file `path`. `name` is what layer, width and site may be read from where
    the files do not say them: `owner/repo/path/in/it`, or the path itself."""

    path: str
    name: str
    overrides: Overrides = Overrides()


class Constraint(Message, frozen=True):
    """What each choice must be: `schema` is a JSON Schema as JSON text, None for any JSON object."""

    schema: str | None = None


# ------------------------------------------------------------------ commands


class Load(Message, frozen=True):
    """Load a checkpoint folder; one per engine process. `kv_cache_mb` 0 derives it from free memory, and
    `prefix_cache_mb` None from that; `grammar_cache` compiled grammars are kept.

    `devices` says where: nothing leaves it to the engine, one device holds everything, else it is the device of each
    decoder layer. `working_mb` is what passes are expected to take beside weights and KV cache. After
    `idle_cache_release_s` seconds without work, memory that is kept for later tensors is given back; below 0, never.
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
    """Read what the allocator holds on the cards that the model lies on."""

    id: int


class Inspect(Message, frozen=True):
    """Read what an SAE checkpoint holds, without a model."""

    id: int
    source: SaeSource


class Attach(Message, frozen=True):
    """Put an SAE at a layer under `key`; `check` runs the self-check on a short text. `dtype` is what its matrices are
    kept in (`float32`, `bfloat16`, `float16`); None keeps that of the file."""

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
    encoded; `top_k` is how many of the largest a record names. What was counted before stays until `ResetStatistics`."""

    id: int
    key: str | None
    features: list[int] | None = None
    top_k: int = 10


class ReadStatistics(Message, frozen=True):
    """What was counted since the last reset: of the `features` named, else of all that were active; with `metric` (`mean`,
    `max`, `active_ratio`, or `count`: the tokens at which it was active) only the best `k` of them, ties by index."""

    id: int
    features: list[int] | None = None
    metric: str | None = None
    k: int = 10


class ResetStatistics(Message, frozen=True):
    id: int


class Explore(Message, frozen=True):
    """Geometry of an SAE's decoder: of the attached one `key`, else of the one at `source`. Facts of the `features` named,
    and with `nearest` the features whose decoder directions have the largest cosine with that of the first of them."""

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
    """Complete each prompt `n` times; choice `prompt * n + i`. `plans` has one for each prompt, in place of `plan`. `label`
    names the request in what monitoring records; without one it is not monitored."""

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

    `top` alternatives are listed, and with `allowed` every one of its tokens; none at all where `top` is None. Logits are
    divided by `temperature`.
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


# ------------------------------------------------------------------ events


class Progress(Message, frozen=True):
    """A load reached `stage`; `percent` 0 to 100."""

    id: int
    stage: str
    percent: float


class Loaded(Message, frozen=True):
    """Facts of the loaded model. Sizes in tokens, features and MiB; `quantization` is what it is held as. `site_widths` has
    the width of every site that an SAE may read and write here, by its name in `rules.sae_sites.SITES`."""

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
    has_chat_template: bool
    is_embedding_only: bool = False
    memory_by_device_mb: dict[str, int] = {}
    gpu_indices: list[int] = []
    supports_embeddings: bool = True
    quantization: str = ""
    site_widths: dict[str, int] = {}


class Measured(Message, frozen=True):
    """Bytes allocated and reserved by card (`cuda:N`); nothing on a host without cards."""

    id: int
    devices: dict[str, tuple[int, int]]


class Claims(Message, frozen=True):
    """What an SAE checkpoint says of itself, read from headers. None where it says nothing.

    `reason` says why it can never be attached (a transcoder, a cross-layer transcoder); `needs` names the overrides without
    which it cannot (`activation`, ...); `tensors` has the shapes as stored; `normalisation` and `dtype` are as stored.
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


class Attached(Message, frozen=True):
    """`check` holds l0, fvu, residual_norm and decoder norms where the self-check ran; `dtype` is what the matrices are
    kept in, `site` where the SAE reads and writes. `is_calibrated` is False where a norm factor is not known."""

    id: int
    layer_module_path: str
    memory_mb: int
    d_in: int
    d_sae: int
    warnings: list[str]
    check: dict[str, float]
    dtype: str = "float32"
    site: str = "resid_post"
    is_calibrated: bool = True


class FeatureCount(Message, frozen=True):
    """One feature over the `count` tokens at which it was observed: `std` is that of the population, `active_ratio` the
    share of them at which it was active (not 0)."""

    feature_idx: int
    count: int
    mean: float
    std: float
    min: float
    max: float
    active_ratio: float


class Statistics(Message, frozen=True):
    """`tokens` were observed since the last reset; `activations` counts the active features (not 0) of all of them."""

    id: int
    features: list[FeatureCount]
    tokens: int
    activations: int


class FeatureFacts(Message, frozen=True):
    """Norms of one feature's decoder row and encoder column, its threshold (jumprelu) and encoder bias."""

    feature_idx: int
    decoder_norm: float
    encoder_norm: float
    encoder_bias: float
    threshold: float | None


class Explored(Message, frozen=True):
    """`nearest` has [feature, cosine], the largest first, the feature asked about left out."""

    id: int
    features: list[FeatureFacts]
    nearest: list[tuple[int, float]]


class Recorded(Message, frozen=True):
    """What monitoring saw at the last token of one choice that ended: `position` within prompt and completion, the active
    features (not 0; or all those named) as [index, value], the largest by magnitude first, equals by index, at most
    RECORD_MAXIMUM of `fired`."""

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
    details: dict[str, Any] = {}


class Started(Message, frozen=True):
    """Every check that needs the model has passed; one entry per prompt."""

    id: int
    prompt_tokens: list[int]


class Piece(Message, frozen=True):
    """New text of one choice. `finish` is None, `stop` or `length`; `tokens` counts the choice's tokens so far."""

    id: int
    choice: int
    text: str
    tokens: int
    finish: str | None = None


class TokenScore(Message, frozen=True):
    """One candidate for the next token: its text, and its log-probability among the candidates."""

    token: int
    text: str
    logprob: float


class Scored(Message, frozen=True):
    """One scored prompt: its most probable candidate, and the candidates listed, most probable first."""

    id: int
    choice: int
    best: TokenScore
    top: list[TokenScore]


class Embedded(Message, frozen=True):
    """The vector of one text: little-endian float32."""

    id: int
    choice: int
    vector: bytes


class Reading(Message, frozen=True):
    """Features at one position: [index, value], the largest by magnitude first, equals by index."""

    position: int
    token: int
    features: list[tuple[int, float]]


class Activated(Message, frozen=True):
    """What a tap read; it comes before the end of its choice."""

    id: int
    readings: list[Reading]
    choice: int = 0


Outcome = Piece | Scored | Embedded | Activated


class Stepped(Message, frozen=True):
    """One turn of the engine: what came of it, and what each attached SAE's hook has done since it was attached."""

    outcomes: list[Outcome]
    applied: dict[str, int]


Event = (
    Progress
    | Loaded
    | Measured
    | Inspected
    | Attached
    | Statistics
    | Explored
    | Recorded
    | Done
    | Refused
    | Started
    | Stepped
)


def is_last(event: Outcome) -> bool:
    """Whether its choice ends with it."""
    return isinstance(event, Scored | Embedded) or (isinstance(event, Piece) and bool(event.finish))


# ------------------------------------------------------------------ frames

LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode


def frame(message: Command | Event) -> bytes:
    """The message as bytes on the wire."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
