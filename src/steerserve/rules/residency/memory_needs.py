"""The memory that a model needs, and the part of it that one device would hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

PREFILL_TOKENS = 1024
"""Tokens of one prefill pass, which takes more working memory than any other pass. The batch prefills short prompts
together up to this many tokens, and a longer prompt in parts of this many."""

LENGTH_STEP = 32
"""The length of the KV cache is a multiple of this many tokens, so that kernels see few shapes."""

LOGIT_ROWS = 32
"""The number of rows whose logits are counted. They are sampled together, in float32."""

_LOGIT_COPIES = 3
_HIDDEN_COPIES = 8
"""Tensors of tokens x hidden that live at once in a layer: the stream, its norm, queries, keys, values, attention."""
_MLP_COPIES = 3


@dataclass(frozen=True, slots=True)
class Needs:
    """The memory that a model takes, in bytes.

    `first` is the weights that run before the layers, and a tied output head. `last` is the weights that run behind
    the layers. `kv_per_token` is the KV cache of one token in one layer; the cache is made in
    whole steps of `kv_step` tokens. `kv_named` is the size of the cache of all layers where KV_CACHE_MB sets one, else
    0. `note` says how the weights are counted, where a reader of their size in the files would expect another size.
    """

    layers: tuple[int, ...]
    first: int = 0
    last: int = 0
    kv_per_token: int = 0
    kv_step: int = 1
    kv_named: int = 0
    min_context: int = 0
    model_max_context: int = 0
    working: int = 0
    working_tokens: int = 0
    staging: int = 0
    note: str = ""

    @property
    def weights(self) -> int:
        return self.first + sum(self.layers) + self.last

    @property
    def kv_tokens_named(self) -> int | None:
        """The tokens that a cache of the set size holds; None if no size is set, or the model has no cache."""
        each = self.kv_per_token * len(self.layers)
        if not self.kv_named or not each:
            return None
        return self.kv_named // each // self.kv_step * self.kv_step

    def kv_bytes(self, layers: int) -> int:
        """Bytes of the KV cache of so many layers: their part of the set size, and at least the size for the least
        context."""
        tokens = -(-self.min_context // self.kv_step) * self.kv_step
        least = self.kv_per_token * layers * tokens
        if self.kv_tokens_named is None:
            return least
        return max(least, self.kv_named * layers // len(self.layers))


@dataclass(frozen=True, slots=True)
class Device:
    """A place for weights. `label` is `cuda:N` or `cpu`, and `index` the number of the card. `free_mb` includes the
    memory that an unload gives back. `total_mb` is the whole memory, None if it is not known."""

    label: str
    name: str
    free_mb: int
    context_mb: int = 0
    index: int | None = None
    total_mb: int | None = None

    @property
    def emptied(self) -> Device:
        """The same device with all its memory free."""
        return self if self.total_mb is None else replace(self, free_mb=self.total_mb)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a model that one device would hold, in MiB."""

    device: Device
    layers: int
    weights_mb: int
    kv_mb: int
    working_mb: int
    staging_mb: int

    @property
    def needed_mb(self) -> int:
        """The sum, with the context of a card; 0 for a device that gets no part."""
        parts = self.weights_mb + self.kv_mb + self.working_mb + self.staging_mb
        return parts + self.device.context_mb if parts else 0

    @property
    def fits(self) -> bool:
        return self.needed_mb <= self.device.free_mb

    def described(self) -> dict[str, object]:
        return {
            "device": self.device.label,
            "name": self.device.name,
            "free_mb": self.device.free_mb,
            "weights_mb": self.weights_mb,
            "kv_mb": self.kv_mb,
            "working_mb": self.working_mb,
            "staging_mb": self.staging_mb,
            "context_mb": self.device.context_mb,
            "needed_mb": self.needed_mb,
        }


def working_bytes(
    hidden: int,
    intermediate: int,
    vocabulary: int,
    width: int,
    tokens: int,
    *,
    is_int8: bool = False,
) -> int:
    """An estimate of the bytes that a prefill pass over `tokens` tokens takes beside weights and KV cache.

    The tensors of one layer live at once: tokens x (8 x hidden + 3 x intermediate) x width. Sampling holds the logits
    of 32 rows, once in the model's dtype and three times in float32. 8-bit products are computed in 32-bit integers and
    scaled in float32, which takes 16 bytes more for each value of the widest tensor.
    """
    layer = tokens * (_HIDDEN_COPIES * hidden + _MLP_COPIES * intermediate) * width
    if is_int8:
        layer += tokens * max(hidden, intermediate) * 16
    return layer + LOGIT_ROWS * vocabulary * (width + 4 * _LOGIT_COPIES)
