"""A transformers checkpoint: load it, and run prefill and decode passes over a `KvCache`.

It owns the model, its tokenizer and its masks; it knows nothing of requests, sampling or steering.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from steerserve.engine.worker import memory
from steerserve.engine.worker.model import attention, invariance
from steerserve.engine.worker.model.attention import FULL, SLIDING
from steerserve.engine.worker.model.kv import CacheSlot, KvCache
from steerserve.engine.worker.model.transformer import (
    Report,
    Transformer,
    configuration,
    first_line,
)
from steerserve.errors import Refusal
from steerserve.rules import stepping
from steerserve.rules.architecture import max_context
from steerserve.rules.precision import Scheme
from steerserve.rules.signs import Activity

_CHECK_TOKENS = 24
_TOLERANCE = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
_QUANTIZED_TOLERANCE = 0.2
"""The kernels of quantized weights may compute in half precision, whatever the dtype of the model is."""
_INT8_TOLERANCE = 0.5
"""With 8-bit weights, activations are rounded to 8 bits too, except for columns with an outlier in any row of the pass.
Two correct passes with different rows may therefore differ by that rounding."""
_LAYER_TYPES = frozenset({FULL, SLIDING})

_OWN_MASKS = frozenset({"gpt_neo"})
"""Architectures that compute their own masks from the length of the cache. The masks are wrong where the cache is
longer than its rows, and the cache here is longer than its rows."""


class Checkpoint(Transformer):
    """A loaded causal language model. `varies` says what changes the last bits of a row's logits; None where nothing
    does. Decode passes have a multiple of `row_step` rows.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION, MODEL_LOAD_FAILED.
    """

    def __init__(
        self,
        path: Path,
        *,
        quantization: str,
        trust_remote_code: bool,
        report: Report,
        devices: Sequence[str] = (),
    ) -> None:
        config = configuration(path, trust_remote_code)
        if config.model_type in _OWN_MASKS:
            raise _not_served(f"{config.model_type} makes attention masks of its own")
        super().__init__(
            path,
            AutoModelForCausalLM,
            config,
            quantization=quantization,
            devices=devices,
            trust_remote_code=trust_remote_code,
            report=report,
        )
        text = self.config.get_text_config(decoder=True)
        self.layers = int(text.num_hidden_layers)
        self.hidden_size = int(text.hidden_size)
        self.vocabulary = self.output_vocabulary
        self.model_max_context = max_context(text)
        self.window: int | None = getattr(text, "sliding_window", None)
        self.kinds = self._attention_types(text)
        self.is_eager = self.model.config._attn_implementation == "eager"
        self._attention = attention.install(self.model, self.kinds)
        self.end_tokens = self._end_tokens()
        self._last: Tensor | None = None
        self._sizes: Tensor | None = None
        self.sums: Tensor | None = None
        self.every: Tensor | None = None
        self._texts: dict[int, str] = {}
        self.model.get_output_embeddings().register_forward_pre_hook(self._keep_last)
        report("checking", 90.0)
        self.row_step = 1
        self.kv_bytes_by_device = self._check()
        self.varies = self._check_rows()

    @property
    def kv_bytes_per_token(self) -> int:
        """The number of bytes that a token takes in the cache, over all devices."""
        return sum(self.kv_bytes_by_device.values())

    # ------------------------------------------------------------- text

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of tokens, without special tokens unless told otherwise."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        decode = self.tokenizer.decode if backend is None else backend.decode
        return str(decode(list(ids), skip_special_tokens=skip_special))

    def decode_token(self, token: int) -> str:
        """The text of one token, even of a special one; empty for an id that the tokenizer does not know."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = str(self.tokenizer.decode([token]))
        return text

    # ------------------------------------------------------------- passes

    def cache(self, limit: int = 0) -> KvCache:
        """An empty cache for passes of this model. Up to `limit` tokens, room is made ahead of its use."""
        return KvCache(limit, reads_parts=self._attention is not None)

    def prefill(
        self,
        cache: KvCache,
        slots: Sequence[CacheSlot],
        rows: Sequence[Sequence[int]],
        *,
        start: int,
        with_sums: bool = False,
        with_all: bool = False,
    ) -> Tensor:
        """Write the tokens of `rows` into their slots, at positions from `start` on. Returns the logits [rows,
        vocabulary] after each row's last token.

        With `with_all`, `every` then holds the logits after every token, [rows, width, vocabulary].
        With `with_sums`, `sums` then holds the last hidden layer summed over each row's tokens, [rows, hidden] in
        float32. Rows are padded on the right to a multiple of WIDTH. Causal attention hides the padding from the tokens
        before it. With `start` > 0 there is one row.
        """
        sizes = [len(ids) for ids in rows]
        # with 8-bit weights the padding would take part in the rounding of the row
        width = stepping.up(max(sizes), 1 if self.held.name == "int8" else stepping.WIDTH)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        for i, ids in enumerate(rows):
            tokens[i, : sizes[i]] = torch.tensor(ids)
        self.pulse.passing(Activity.PREFILL)
        end = start + width
        read = stepping.up(end, stepping.KEYS) if self.device.type == "cpu" else end
        if not start and self.device.type != "cpu":
            read = 0  # the fused kernels of cards take the causal flag, and no mask
        cache.begin_prefill(slots, sizes, start, read)
        positions = torch.arange(start, end, device=self.device)[None].expand(len(rows), -1)
        masks = self._masks(positions[:1], read) if read else None
        counts = torch.tensor(sizes) if with_sums else None
        last = torch.tensor(sizes) - 1
        if not with_all:
            return self._forward(cache, tokens, positions, masks, last=last, sizes=counts)[:, -1]
        self.every = self._forward(cache, tokens, positions, masks, last=None, sizes=counts)
        return self.every[torch.arange(len(rows)), last]

    def decode_step(
        self,
        cache: KvCache,
        slots: Sequence[CacheSlot],
        tokens: Sequence[int],
        positions: Sequence[int],
    ) -> Tensor:
        """Write one token per row at the row's position. Returns the logits [rows, vocabulary]. The rows are in the
        order of `kv.order`; the pass has a multiple of `row_step` rows."""
        self.pulse.passing(Activity.DECODE)
        count = len(tokens)
        rows = stepping.up(count, self.row_step)
        new = torch.zeros(rows, 1, dtype=torch.long)
        new[:count, 0] = torch.tensor(tokens)
        at = torch.zeros(rows, 1, dtype=torch.long)
        at[:count, 0] = torch.tensor(positions)
        at = at.to(self.device)
        cache.begin_decode(slots, positions, self.device)
        if self._attention is None:
            masks = self._masks(at, max(slot.capacity for slot in slots))
        else:
            self._attention.masks = attention.part_masks(
                cache.parts, self.kinds, self.window, self._in_form
            )
            masks = self._masks(at, 1)
        return self._forward(cache, new, at, masks, last=None)[:count, -1]

    def _forward(
        self,
        cache: KvCache,
        tokens: Tensor,
        positions: Tensor,
        masks: Any,
        *,
        last: Tensor | None,
        sizes: Tensor | None = None,
    ) -> Tensor:
        """The logits [rows, T, vocabulary] of a pass over tokens [rows, T]; T is 1 where `last` names one token of each
        row. With `sizes` [rows], `sums` is set."""
        self._last, self._sizes = last, sizes
        cache.beat = self.pulse.beat
        if self._attention is not None:
            self._attention.cache = cache
        try:
            out = self.model(
                input_ids=tokens.to(self.device),
                position_ids=positions,
                attention_mask=masks,
                past_key_values=cache,
                use_cache=True,
            )
        finally:
            self._last = self._sizes = None
            if self._attention is not None:
                self._attention.cache = None
        return cast(Tensor, out.logits).to(self.device)

    def _keep_last(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Before the output embedding: keep [rows, 1, hidden] of [rows, T, hidden], each row's last token."""
        hidden = inputs[0]
        if self._sizes is not None:
            places = torch.arange(hidden.shape[1], device=hidden.device)
            real = (places[None] < self._sizes.to(hidden.device)[:, None]).to(torch.float32)
            self.sums = torch.einsum("rth,rt->rh", hidden.float(), real).to(self.device)
        if self._last is None:
            return None
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        return (hidden[rows, self._last.to(hidden.device)][:, None],)

    def _masks(self, positions: Tensor, length: int) -> Any:
        """Attention masks [rows, 1, T, length] for queries at `positions` [rows, T], one per layer type."""
        held = torch.arange(length, device=self.device)
        full = held[None, None] <= positions[:, :, None]
        masks: dict[str, Tensor] = {}
        for kind in sorted(set(self.kinds)):
            allowed = full
            if kind == SLIDING and self.window:
                allowed = full & (held[None, None] > positions[:, :, None] - self.window)
            masks[kind] = self._in_form(allowed[:, None])
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _in_form(self, allowed: Tensor) -> Tensor:
        if not self.is_eager:
            return allowed
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(allowed, dtype=self.dtype).masked_fill(~allowed, lowest)

    # ------------------------------------------------------------- facts

    def _attention_types(self, text: Any) -> tuple[str, ...]:
        """The type of each layer."""
        types = getattr(text, "layer_types", None)
        if types is None:
            return (SLIDING if self.window else FULL,) * self.layers
        unknown = sorted(set(types) - _LAYER_TYPES)
        if unknown:
            raise _not_served(f"it has layers of type {', '.join(unknown)}")
        return tuple(types)

    def _end_tokens(self) -> frozenset[int]:
        """The tokens that end a completion: the end tokens of the generation config, and the tokenizer's EOS."""
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        ends = configured if isinstance(configured, list) else [configured]
        return frozenset(int(e) for e in [*ends, self.tokenizer.eos_token_id] if e is not None)

    @torch.inference_mode()
    def _check(self) -> dict[torch.device, int]:
        """Check that passes over the cache equal one plain pass on this architecture. Returns the bytes of KV per token
        by device.

        Raises:
            Refusal: MODEL_LOAD_FAILED when the passes differ, because every answer would be wrong.
        """
        if self._attention is not None:
            with suppress(ValueError, TypeError, RuntimeError, LookupError, AttributeError):
                off, bytes_by_device = self._check_error()
                if off <= self._tolerance:
                    return bytes_by_device
            # the model's code does not take its attention from the library as others do
            attention.uninstall(self.model, self._attention)
            self._attention = None
        try:
            off, bytes_by_device = self._check_error()
        except (ValueError, TypeError, RuntimeError, LookupError) as error:
            if memory.is_exhausted(error):
                raise
            # an architecture that does not accept these masks, these positions or this cache may raise any of these
            # errors
            raise _not_served(first_line(error)) from error
        if not off <= self._tolerance:
            raise _not_served(f"the relative error of its logits is {off:.3g}")
        return bytes_by_device

    def _check_rows(self) -> str | None:
        """Find the number of rows of which decode passes have a multiple. Returns what changes the last bits of a row's
        logits; None where nothing does."""
        found = None
        for self.row_step in stepping.ROW_STEPS:
            found = invariance.varies(self)
            if found is None:
                return None
        self.row_step = 1
        return found

    @property
    def _tolerance(self) -> float:
        if self.held.name == "int8":
            return _INT8_TOLERANCE
        if self.held.scheme in (Scheme.NF4, Scheme.AS_STORED):
            return _QUANTIZED_TOLERANCE
        return _TOLERANCE[self.dtype]

    def _check_error(self) -> tuple[float, dict[torch.device, int]]:
        """The largest difference between the logits of the running batch and of a plain pass, in standard deviations
        of the plain logits; and the bytes of KV per token by device."""
        source = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (_CHECK_TOKENS,), generator=source).tolist()
        plain = (
            self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False)
            .logits[0, -1]
            .to(self.device)
        )
        cache = self.cache()
        cut = _CHECK_TOKENS - 2
        slots = [cache.open(64), cache.open(64)]
        self.prefill(cache, slots, [ids[:cut], ids[: cut - 3]], start=0)
        self.decode_step(cache, slots, [ids[cut], ids[cut - 3]], [cut, cut - 3])
        cache.grow(slots[0], 96)
        slots.reverse()
        stepped = self.decode_step(cache, slots, [ids[cut - 2], ids[cut + 1]], [cut - 2, cut + 1])[
            1
        ]
        error = (stepped - plain).float().abs().max() / plain.float().std().clamp_min(1e-6)
        return error.item(), cache.bytes_by_device


def _not_served(why: str) -> Refusal:
    return Refusal(
        "MODEL_LOAD_FAILED",
        f"the running batch does not reproduce this architecture's plain forward pass: {why}",
    )
