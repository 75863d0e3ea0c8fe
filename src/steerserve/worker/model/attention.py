"""Attention of decode passes over the shelves of a `KvCache`: each row reads a cache of its own size, and not one as
long as the longest row's.

The library lets a model use another attention function under a name
(https://huggingface.co/docs/transformers/attention_interface). The function here calls the function that the library
chose for the model, once for each shelf.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from steerserve.worker.model import operands
from steerserve.worker.model.kv import KvCache, ShelfPart

FULL = "full_attention"
SLIDING = "sliding_attention"

_KINDS = frozenset({FULL, SLIDING})

_OWN_MASKS = frozenset({"gpt_neo"})
"""Architectures that compute their own masks from the length of the cache. The masks are wrong where the cache is
longer than its rows, and the cache of the batch is longer than its rows."""

_EAGER = "eager"
SDPA = "sdpa"
_LIBRARY = (_EAGER, SDPA)

_HALF = (torch.bfloat16, torch.float16)

_IGNORED = frozenset({"scaling", "dropout", "sliding_window", "position_ids", "use_cache"})
"""What the library's function does not read under a mask in a pass without gradients, but for the scaling."""

Masks = Sequence[Mapping[str, Tensor]]
"""For each part of a decode pass, the mask [n, 1, 1, capacity] of each type of layer."""


Attend = Callable[..., tuple[Tensor, object]]
"""An attention function of the library: its result, and the weights where they are asked for."""

Between = Callable[[KvCache], Tensor]
"""A call of attention between two pieces of a recorded pass. It first writes the keys and values of the pass."""


class PartedAttention:
    """The attention function of one model. `cache` is the cache of the pass that runs; None outside of passes. `kinds`
    has the type of each layer. `cut` is there while a pass is recorded; it gets each call of attention, and returns the
    tensor that holds the result of the call at each replay."""

    def __init__(self, library: str, kinds: Sequence[str], window: int | None = None) -> None:
        self.library = library
        self.kinds = kinds
        self._window = window or 0
        self.cache: KvCache | None = None
        self._make: Callable[[], Masks] = tuple
        self._masks: Masks | None = None
        self.cut: Callable[[Between], Tensor] | None = None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, object]:
        query = operands.tell_query(module, query)
        cache = self.cache
        if cache is None or not cache.parts:
            if attention_mask is not None and self._is_plain(query, args, kwargs):
                scaling = cast("float | None", kwargs.get("scaling"))
                return _grouped(query, key, value, attention_mask, scaling), None
            attend = self._function(module)
            return attend(module, query, key, value, attention_mask, *args, **kwargs)
        layer = cache.layer
        if self.cut is None:
            return self._parted(cache, layer, module, query, args, kwargs), None
        keys, values = cache.new

        def between(cache: KvCache) -> Tensor:
            cache.write(layer, keys, values)
            return self._parted(cache, layer, module, query, args, kwargs)

        return self.cut(between), None

    def set_masks(self, make: Callable[[], Masks]) -> None:
        """The decode passes that follow have the masks that `make` makes. Compiled passes never read them."""
        self._make, self._masks = make, None

    @property
    def masks(self) -> Masks:
        """The masks of the decode pass that runs."""
        if self._masks is None:
            self._masks = self._make()
        return self._masks

    @property
    def is_plain(self) -> bool:
        """Whether the pass that runs is a decode pass in which a function may take the place of the library's."""
        cache = self.cache
        return cache is not None and bool(cache.parts) and self.cut is None

    @property
    def is_plain_prompt(self) -> bool:
        """Whether the pass that runs is a prefill pass in which a function may take the place of the library's."""
        return self.cache is not None and self.cache.is_prefill

    def window(self, layer: int) -> int:
        """How many of the last tokens a row sees in this layer; 0 for all."""
        return self._window if self.kinds[layer] == SLIDING else 0

    def _parted(
        self,
        cache: KvCache,
        layer: int,
        module: nn.Module,
        query: Tensor,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Tensor:
        """Attention over each shelf [rows, 1, heads, dim]."""
        attend = self._function(module)
        is_plain = self._is_plain(query, args, kwargs)
        found = []
        for part, masks in zip(cache.parts, self.masks, strict=True):
            mask = masks[self.kinds[layer]]
            mask = mask.to(query.device if mask.dtype == torch.bool else query)
            keys, values = part.shelf.keys[layer], part.shelf.values[layer]
            if part.count < keys.shape[0]:
                keys, values = keys[: part.count], values[: part.count]
            rows = _spread(part.own_rows(query), part)
            if is_plain:
                out = _attended(
                    rows, keys, values, mask, cast("float | None", kwargs.get("scaling"))
                )
            else:
                if self.library == SDPA and _is_slow(rows, keys):
                    rows = rows.expand(-1, -1, 2, -1)
                out = attend(module, rows, keys, values, mask, *args, **kwargs)[0][:, :1]
            found.append(out if part.is_whole else out[part.places.to(out.device)])
        missing = query.shape[0] - cache.parts[-1].last
        if missing:
            found.append(found[0].new_zeros(missing, *found[0].shape[1:]))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _is_plain(
        self, query: Tensor, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> bool:
        """Whether the library's function would do no more than call the kernel of the processor."""
        return (
            self.library == SDPA
            and query.device.type == "cpu"
            and not args
            and kwargs.keys() <= _IGNORED
        )

    def _function(self, module: nn.Module) -> Attend:
        if self.library == _EAGER:
            return cast(Attend, sys.modules[type(module).__module__].eager_attention_forward)
        return cast(Attend, ALL_ATTENTION_FUNCTIONS[self.library])


def layer_kinds(text: PreTrainedConfig, layers: int) -> tuple[str, ...]:
    """The kind of attention of each layer, by the configuration of the language model; none where passes over several
    rows cannot give right logits."""
    if text.model_type in _OWN_MASKS:
        return ()
    types = getattr(text, "layer_types", None)
    if types is None:
        return (SLIDING if getattr(text, "sliding_window", None) else FULL,) * layers
    return tuple(types) if set(types) <= _KINDS else ()


def install(
    model: PreTrainedModel, kinds: Sequence[str], window: int | None = None
) -> PartedAttention | None:
    """Have the model use a `PartedAttention`; None where its code does not take its attention from the library.

    `kinds` has the type of each layer: FULL or SLIDING, which sees `window` tokens.
    """
    library = str(model.config._attn_implementation)
    if library not in _LIBRARY or not model._can_set_attn_implementation():
        return None
    attention = PartedAttention(library, kinds, window)
    name = f"steerserve_{id(attention)}"
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[library])
    model.set_attn_implementation(name)
    return attention


def uninstall(model: PreTrainedModel, attention: PartedAttention) -> None:
    """Have the model use the library's own function again."""
    model.set_attn_implementation(attention.library)


@contextmanager
def attending_plainly(model: PreTrainedModel) -> Iterator[None]:
    """While open, the layers compute attention in the plain way, by products and a softmax, and give its
    probabilities."""
    configs = [model.config, model.config.get_text_config(decoder=True)]
    held = [(config, config._attn_implementation) for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = _EAGER
        yield
    finally:
        for config, library in held:
            config._attn_implementation_internal = library


def _spread(rows: Tensor, part: ShelfPart) -> Tensor:
    """The queries [n, heads, 1, dim] at the places of their rows on the shelf [count, heads, 1, dim]."""
    if part.is_whole:
        return rows
    out = rows.new_zeros(part.count, *rows.shape[1:])
    out[part.places.to(rows.device)] = rows
    return out


def _attended(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Attention [n, 1, heads, dim] of one query a head [n, heads, 1, dim]. The query heads that share a head of keys
    are the queries of that head, as in the library's function, which calls more operators."""
    count, heads, dim = query.shape[0], query.shape[1], query.shape[3]
    grouped = query.reshape(count, keys.shape[1], -1, dim)
    is_slow = _is_slow(query, keys)
    if is_slow:
        grouped = grouped.expand(-1, -1, 2, -1)
    out = functional.scaled_dot_product_attention(
        grouped, keys, values, attn_mask=mask, scale=scaling
    )
    return (out[:, :, :1] if is_slow else out).reshape(count, 1, heads, values.shape[3])


def _grouped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Attention [b, T, heads, dim] of queries [b, heads, T, dim] under a mask. The library's function copies each head
    of keys for every query head that shares it. The processor's kernel gives the same bits without copies."""
    out = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous()


def _is_slow(rows: Tensor, keys: Tensor) -> bool:
    """Whether the kernel needs three times as long for these queries as for each of them twice: a processor's kernel
    for half precision, with a single query for each head of keys."""
    return rows.device.type == "cpu" and rows.dtype in _HALF and rows.shape[1] == keys.shape[1]


def part_masks(
    parts: Sequence[ShelfPart],
    kinds: Sequence[str],
    window: int | None,
    form: Callable[[Tensor], Tensor],
) -> Masks:
    """The masks of a decode pass. A row sees the tokens up to its own position; with a window, the last ones of them.
    Places of the shelf that take no part in the pass see their first token only."""
    masks = []
    for part in parts:
        at = part.positions
        if not part.is_whole:
            at = at.new_zeros(part.count)
            at[part.places] = part.positions
        held = torch.arange(part.shelf.capacity, device=at.device)
        allowed = held <= at[:, None]
        own = {}
        for kind in set(kinds):
            seen = allowed
            if kind == SLIDING and window:
                seen = allowed & (held > at[:, None] - window)
            own[kind] = form(seen[:, None, None])
        masks.append(own)
    return masks
