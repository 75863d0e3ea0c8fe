"""The parts of commands and events: prompts, sampling, steering plans, sources of SAEs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers
from steerserve.rules.steering.positions import Span


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of every message."""


class Text(Message, frozen=True):
    """A prompt that goes to the model verbatim; `special` adds the tokenizer's special tokens. `is_chat` says that the
    text is a rendered conversation. `contents` are the characters of its messages' contents, where they are asked
    for. `unused` are the locations of the variables that the template does not read."""

    text: str
    special: bool = True
    is_chat: bool = False
    contents: tuple[Span, ...] = ()
    unused: tuple[str, ...] = ()


class Tokens(Message, frozen=True):
    """A prompt as token ids, as the engine gets it. `is_chat` says that it was a conversation. `place` is where the
    client's request has the ids (`prompt[1]`); None where the service has tokenized a text. `spans` are the contents
    of the messages of a conversation, where an edit asks for them. `unused` is that of its `Text`."""

    ids: list[int]
    is_chat: bool = False
    place: str | None = None
    spans: tuple[Span, ...] = ()
    unused: tuple[str, ...] = ()


class ChatTemplate(Message, frozen=True):
    """The chat template of a model, and the texts of the special tokens that templates know by name (`bos_token`)."""

    source: str
    tokens: dict[str, str] = {}


class Chat(Message, frozen=True):
    """A conversation: role and content of each message, rendered by the model's own template with `variables`. It is
    rendered before an engine gets it. `client` names who asks (`rules/clients.py`). With `is_located`, the contents of
    the messages are found in the prompt. With `is_strict`, a variable that the template does not read is refused."""

    messages: list[dict[str, Any]]
    variables: dict[str, object] = {}
    client: str = ""
    is_located: bool = False
    is_strict: bool = False


Prompt = Text | Chat | Tokens
"""A prompt as a client brings it."""


class Sampling(Message, frozen=True):
    """How tokens are chosen. A `repetition_penalty` of 1 does nothing; a `max_tokens` of None takes
    `default_max_tokens`."""

    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    default_max_tokens: int = 512
    stops: list[str] = []
    seed: int | None = None


class Overlay(Message, frozen=True):
    """Steering of one request in place of the live values, while the live epoch is still `epoch`; with None as the
    epoch, to the end of the request. `edits` are in the order of `ordered`. `modifiers` hold for the
    values and the edits together."""

    epoch: int | None
    values: dict[str, dict[int, float]]
    edits: tuple[Edit, ...] = ()
    modifiers: Modifiers = NO_MODIFIERS


class Suppressed(Message, frozen=True):
    """No steering at all, whatever the live values are."""


class Follow(Message, frozen=True):
    """The live steering, forward pass by forward pass. `epoch` is the epoch in which the request was planned."""

    epoch: int | None = None


Plan = Follow | Overlay | Suppressed


class Places(Message, frozen=True):
    """The positions of a prompt that are read as one vector: the last one (`last`), the mean over all (`mean`), the
    mean over the content of the last message (`completion`), or the position `index`, where a negative one counts from
    the end (`index`). Position 0 and special tokens are left out, unless `has_special`; `index` names its position
    whatever its token is."""

    how: Literal["last", "mean", "completion", "index"]
    index: int = -1
    has_special: bool = False


class Echo(Message, frozen=True):
    """The tokens of the prompts of a scoring request are scored too. The answer has at most `max_entries` scores.
    `max_tokens` is 0 where the token after the prompt is not asked for."""

    max_tokens: int
    max_entries: int


class Overrides(Message, frozen=True):
    """Facts of an SAE that an operator states in place of the facts in its files. A field that is None takes the fact
    in the files.

    `normalisation` is one of `none`, `layer_norm`, `constant_norm_rescale`, `expected_average_only_in`; `norm_factor`
    is the scalar c = sqrt(d_in) / E||x|| of `expected_average_only_in`. `site` is a hook name or one of
    `rules.sae_sites.SITES`.
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
    """An SAE on disk: the folder or the one file `path`. Where the files do not state layer, width or site, these are
    read from `name`: `owner/repo/path/in/it`, or the path itself."""

    path: str
    name: str
    overrides: Overrides = Overrides()
