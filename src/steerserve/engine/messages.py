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
    """Read what an SAE folder holds, without a model."""

    id: int
    path: str


class Attach(Message, frozen=True):
    """Put an SAE at a layer under `key`; `check` runs the self-check on a short text."""

    id: int
    key: str
    path: str
    layer: int
    check: bool = True


class Detach(Message, frozen=True):
    id: int
    key: str


class Steer(Message, frozen=True):
    """Replace the live steering; acts from the next forward pass.

    `values` maps the key of an attached SAE (`sae_id@layer`) to feature index -> value.
    """

    id: int
    epoch: int
    enabled: bool
    values: dict[str, dict[int, float]]


class Generate(Message, frozen=True):
    """Complete each prompt `n` times; choice `prompt * n + i`."""

    id: int
    prompts: list[Text | Chat]
    n: int
    sampling: Sampling
    plan: Plan
    constraint: Constraint | None = None
    tap: Tap | None = None


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
    Load | Measure | Inspect | Attach | Detach | Steer | Generate | Score | Embed | Cancel | Stop
)


# ------------------------------------------------------------------ events


class Progress(Message, frozen=True):
    """A load reached `stage`; `percent` 0 to 100."""

    id: int
    stage: str
    percent: float


class Loaded(Message, frozen=True):
    """Facts of the loaded model. Sizes in tokens, features and MiB; `quantization` is what it is held as."""

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


class Measured(Message, frozen=True):
    """Bytes allocated and reserved by card (`cuda:N`); nothing on a host without cards."""

    id: int
    devices: dict[str, tuple[int, int]]


class Claims(Message, frozen=True):
    """What an SAE checkpoint says of itself, read without its tensors. None where it says nothing."""

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


class Inspected(Message, frozen=True):
    id: int
    claims: Claims


class Attached(Message, frozen=True):
    """`check` holds l0, fvu, residual_norm and decoder norms where the self-check ran."""

    id: int
    layer_module_path: str
    memory_mb: int
    d_in: int
    d_sae: int
    warnings: list[str]
    check: dict[str, float]


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
    """Features at one position: [index, value], the largest first."""

    position: int
    token: int
    features: list[tuple[int, float]]


class Activated(Message, frozen=True):
    """What a tap read; it comes before the end of its choice."""

    id: int
    readings: list[Reading]


Outcome = Piece | Scored | Embedded | Activated


class Stepped(Message, frozen=True):
    """One turn of the engine: what came of it, and what each attached SAE's hook has done since it was attached."""

    outcomes: list[Outcome]
    applied: dict[str, int]


Event = Progress | Loaded | Measured | Inspected | Attached | Done | Refused | Started | Stepped


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
