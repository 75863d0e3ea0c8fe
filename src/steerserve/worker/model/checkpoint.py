"""A transformers checkpoint: load it, and run prefill and decode passes over a `KvCache`.

It owns the model, its tokenizer and its masks; it knows nothing of requests, sampling or steering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack, cast

import structlog
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from steerserve.errors import Refusal
from steerserve.rules.inference import stepping
from steerserve.rules.inference.stepping import RowSteps
from steerserve.rules.models.architecture import first_range, max_context
from steerserve.rules.models.generation_config import GenerationConfig, recommended
from steerserve.rules.models.nearness import Checked, Exactness, Shapes
from steerserve.rules.residency.heartbeat import Activity
from steerserve.worker import memory
from steerserve.worker.model import (
    agreement,
    attention,
    forwards,
    invariance,
    kept_checks,
    step_times,
    whole_layers,
)
from steerserve.worker.model.agreement import Agreement, BytesByDevice, Disagreement
from steerserve.worker.model.attention import SLIDING, PartedAttention
from steerserve.worker.model.kv import CacheSlot, KvCache, never
from steerserve.worker.model.plain import PlainPasses, beat_per_layer
from steerserve.worker.model.results import PassResult
from steerserve.worker.model.transformer import (
    CONTEXT_TOKENS,
    LoadOptions,
    Transformer,
    decode,
    special_tokens,
    token_text,
)

log = structlog.get_logger(__name__)


class Checkpoint(Transformer):
    """A loaded causal language model. `varies` says what changes the last bits of a row's logits; None where nothing
    does. Decode passes have a multiple of `row_step` rows, and prefill passes a multiple of `width` tokens a row.

    Rows of more than `batched_context` tokens are stepped one at a time by the passes `alone`, which are None where
    there are no such rows. `row_steps` says why.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION, MODEL_LOAD_FAILED.
    """

    is_alone = False
    takes_parts = True
    state_tokens = 0

    def __init__(self, path: Path, **options: Unpack[LoadOptions]) -> None:
        super().__init__(path, AutoModelForCausalLM, **options)
        text = self.config.get_text_config(decoder=True)
        self.layers = int(text.num_hidden_layers)
        self.hidden_size = int(text.hidden_size)
        self.vocabulary = self.output_vocabulary
        self.model_max_context = max_context(text)
        self.window: int | None = getattr(text, "sliding_window", None)
        self.kinds = attention.layer_kinds(text, self.layers)
        self.is_eager = self.model.config._attn_implementation == "eager"
        self.attention: PartedAttention | None = None
        self.end_tokens = self._end_tokens()
        self.special_tokens = special_tokens(self.tokenizer, self.end_tokens)
        self._texts: dict[int, str] = {}
        self._unread: dict[int, Tensor | dict[str, Tensor]] = {}
        options["report"]("checking", 90.0)
        self.row_step = 1
        self.width = stepping.WIDTH
        self.varies: str | None = None
        self.alone: PlainPasses | None = None
        self.batched_context = self.model_max_context
        self.row_steps = stepping.BATCHED
        self.exactness: Exactness | None = None
        self.kv_bytes_by_device = self._check(first_range(text))
        memory.free_product_buffers()  # those of the passes in float32

    @property
    def kv_bytes_per_token(self) -> int:
        """The number of bytes that a token takes in the cache, over all devices."""
        return sum(self.kv_bytes_by_device.values())

    @property
    def row_tokens(self) -> int:
        """The tokens of cache that a row takes beside its own tokens."""
        return self.alone.state_tokens if self.alone is not None else 0

    # ------------------------------------------------------------- text

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of tokens, without special tokens unless told otherwise."""
        return decode(self.tokenizer, ids, skip_special=skip_special)

    def decode_token(self, token: int) -> str:
        """The text of a token inside a text, even of a special one; empty for an id that the tokenizer does not
        know."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = token_text(self.tokenizer, token)
        return text

    def decode_next(self, prompt: Sequence[int]) -> Callable[[int], str]:
        """Decodes the token that follows a prompt, as the first piece of its answer has it."""
        if self.decode(prompt[-CONTEXT_TOKENS:]):
            return self.decode_token
        return lambda token: self.decode([token], skip_special=False)

    @cached_property
    def hidden_texts(self) -> dict[int, str]:
        """The texts of the special tokens that no answer shows."""
        hidden = (token for token in self.special_tokens if not self.decode([token, token]))
        return {token: self.decode_token(token) for token in hidden}

    # ------------------------------------------------------------- passes

    def cache(self, limit: int = 0) -> KvCache:
        """An empty cache for passes of this model. Up to `limit` tokens, room is made ahead of its use."""
        return KvCache(limit, reads_parts=self.attention is not None)

    def prefill(
        self,
        cache: KvCache,
        slots: Sequence[CacheSlot],
        rows: Sequence[Sequence[int]],
        *,
        start: int | Sequence[int],
        with_sums: bool = False,
        wanted: Sequence[int] | None = None,
        must_stop: Callable[[], bool] = never,
    ) -> PassResult:
        """Write the tokens of `rows` into their slots, at positions from `start` on, a number for each row or one for
        all.

        With `wanted`, the result has every row's logits after its token with this number and all that follow it. With
        `with_sums`, it has sums. Rows are padded on the right to a multiple of the model's width, and no token sees the
        padding behind it.

        Raises:
            PassEnded: `must_stop` said so between two layers, or a hook ended the pass.
        """
        sizes = [len(ids) for ids in rows]
        # the padding would take part in the rounding of the row
        step = 1 if self.rounds_rows else self.width
        width = stepping.up(max(sizes), step)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        for i, ids in enumerate(rows):
            tokens[i, : sizes[i]] = torch.tensor(ids)
        self.pulse.passing(Activity.PREFILL)
        starts = [start] * len(rows) if isinstance(start, int) else list(start)
        end = max(starts) + width
        is_padded = self.device.type == "cpu" and self.width == stepping.WIDTH
        read = stepping.up(end, stepping.KEYS) if is_padded else end
        if not any(starts) and self.device.type != "cpu":
            read = 0  # the fused kernels of GPUs take the causal flag, and no mask
        cache.begin_prefill(slots, sizes, starts, read)
        first = torch.tensor(starts, device=self.device)[:, None]
        positions = first + torch.arange(width, device=self.device)
        masked = positions if len(set(starts)) > 1 else positions[:1]
        masks = self.masks(masked, read) if read else None
        counts = torch.tensor(sizes) if with_sums else None
        firsts = [size - 1 for size in sizes] if wanted is None else wanted
        picked = [
            (row, at)
            for row, (first, size) in enumerate(zip(firsts, sizes, strict=True))
            for at in range(first, size)
        ]
        pick = torch.tensor(picked).unbind(1)
        inputs = cache, tokens, positions, masks, must_stop
        found, sums = self._forward(*inputs, pick=pick, sizes=counts)
        logits = found[:, -1]
        if wanted is None:
            return PassResult(logits, sums=sums)
        every = logits.split([size - first for first, size in zip(wanted, sizes, strict=True)])
        return PassResult(torch.stack([its[-1] for its in every]), every, sums)

    @property
    def has_whole_layers(self) -> bool:
        """Whether layers run as compiled calls in decode passes. A hook inside attention switches that off."""
        return any(map(whole_layers.is_whole, self.model.modules()))

    def decode_step(
        self,
        cache: KvCache,
        slots: Sequence[CacheSlot],
        tokens: Sequence[int],
        positions: Sequence[int],
        must_stop: Callable[[], bool] = never,
    ) -> PassResult:
        """Write one token per row at the row's position. The rows are in the order of `kv.order`; the pass has a
        multiple of `row_step` rows.

        Raises:
            PassEnded: as `prefill`.
        """
        count = len(tokens)
        rows = stepping.up(count, self.row_step)
        new = torch.zeros(rows, 1, dtype=torch.long)
        new[:count, 0] = torch.tensor(tokens)
        at = torch.zeros(rows, 1, dtype=torch.long)
        at[:count, 0] = torch.tensor(positions)
        self.begin_decode(cache, slots, positions)
        return PassResult(self.decode_pass(cache, new, at.to(self.device), must_stop)[:count])

    def begin_decode(
        self, cache: KvCache, slots: Sequence[CacheSlot], positions: Sequence[int]
    ) -> None:
        """Prepare the parts of the cache for the decode passes that follow."""
        self.pulse.passing(Activity.DECODE)
        cache.begin_decode(slots, positions, self.device)
        if self.attention is not None:
            parts = cache.parts
            self.attention.set_masks(
                lambda: attention.part_masks(parts, self.kinds, self.window, self._added)
            )

    def decode_pass(
        self,
        cache: KvCache,
        tokens: Tensor,
        positions: Tensor,
        must_stop: Callable[[], bool] = never,
    ) -> Tensor:
        """The logits [rows, vocabulary] of a decode pass over tokens [rows, 1] at positions [rows, 1]. The rows of
        `begin_decode` come first."""
        if self.attention is None:
            masks = self.masks(positions, max(part.shelf.capacity for part in cache.parts))
        else:
            masks = self._unread_masks(len(positions))
        logits, _ = self._forward(cache, tokens, positions, masks, must_stop)
        return logits[:, -1]

    def _forward(
        self,
        cache: KvCache,
        tokens: Tensor,
        positions: Tensor,
        masks: Tensor | dict[str, Tensor] | None,
        must_stop: Callable[[], bool],
        *,
        pick: Sequence[Tensor] | None = None,
        sizes: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The logits [rows, T, vocabulary] of a pass over tokens [rows, T], or [n, 1, vocabulary] of those that `pick`
        names; and the sums of `call`."""
        cache.beat, cache.must_stop, cache.attention = self.pulse.beat, must_stop, self.attention
        if self.attention is not None:
            self.attention.cache = cache
        try:
            out, sums = self.call(
                pick=pick,
                sizes=sizes,
                input_ids=tokens.to(self.device),
                position_ids=positions,
                attention_mask=masks,
                past_key_values=cache,
                use_cache=True,
            )
        finally:
            if self.attention is not None:
                self.attention.cache = None
        return cast(Tensor, out.logits).to(self.device), sums

    def call(
        self, *, pick: Sequence[Tensor] | None, sizes: Tensor | None = None, **inputs: object
    ) -> tuple[Any, Tensor | None]:
        """What the model gives for these inputs. With `pick`, the rows [n] and places [n] of tokens, there are logits
        of these tokens only. With `sizes` [rows], also the last hidden layer summed over the first tokens of each row,
        [rows, hidden] in float32."""
        if pick is None and sizes is None:
            return self.model(**inputs), None
        sums: list[Tensor] = []

        def keep_picked(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            """Before the output embedding: keep [n, 1, hidden] of [rows, T, hidden]."""
            hidden = inputs[0]
            if sizes is not None:
                places = torch.arange(hidden.shape[1], device=hidden.device)
                real = (places[None] < sizes.to(hidden.device)[:, None]).to(torch.float32)
                sums.append(torch.einsum("rth,rt->rh", hidden.float(), real).to(self.device))
            if pick is None:
                return None
            rows, at = (index.to(hidden.device) for index in pick)
            return (hidden[rows, at][:, None],)

        hook = self.model.get_output_embeddings().register_forward_pre_hook(keep_picked)
        try:
            out = self.model(**inputs)
        finally:
            hook.remove()
        return out, sums[0] if sums else None

    def masks(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
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

    def _unread_masks(self, rows: int) -> Tensor | dict[str, Tensor]:
        """What a decode pass gives the model where attention reads the masks of the parts: the library would make masks
        of its own if there were none."""
        masks = self._unread.get(rows)
        if masks is None:
            none = torch.zeros(rows, 1, dtype=torch.long, device=self.device)
            masks = self._unread[rows] = self.masks(none, 1)
        return masks

    def _in_form(self, allowed: Tensor) -> Tensor:
        if not self.is_eager:
            return allowed
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(allowed, dtype=self.dtype).masked_fill(~allowed, lowest)

    def _added(self, allowed: Tensor) -> Tensor:
        """The mask of a decode pass. A processor's kernel adds it to the scores, and would convert it anew in each
        layer."""
        if self.is_eager or allowed.device.type != "cpu":
            return self._in_form(allowed)
        return torch.zeros_like(allowed, dtype=self.dtype).masked_fill(~allowed, -torch.inf)

    # ------------------------------------------------------------- facts

    def _end_tokens(self) -> frozenset[int]:
        """The tokens that end a completion: the end tokens of the generation config, and the tokenizer's EOS."""
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        ends = configured if isinstance(configured, list) else [configured]
        return frozenset(int(e) for e in [*ends, self.tokenizer.eos_token_id] if e is not None)

    @property
    def generation_config(self) -> GenerationConfig:
        """The sampling that the checkpoint recommends."""
        said = self.model.generation_config
        named = (getattr(said, name, None) for name in ("do_sample", "temperature", "top_p"))
        return recommended(*named)

    @torch.inference_mode()
    def _check(self, first: int | None) -> BytesByDevice:
        """Choose the passes by which rows are stepped. `first` is the length from which on a row must be stepped alone.
        Returns the bytes of KV per token by device.

        Raises:
            Refusal: MODEL_LOAD_FAILED when no passes give the logits of a plain pass, because every answer would be
                wrong, and when these logits are no numbers.
        """
        if self.checked is not None and first is None:
            if self.checked.reads_parts:
                self.attention = attention.install(self.model, self.kinds, self.window)
            self._tell(self.checked.exactness)
            sizes = agreement.token_bytes(self)
            shapes = self.checked.shapes
            self.width, self.row_step, self.varies = shapes.width, shapes.row_step, shapes.varies
            return sizes
        try:
            compared = Agreement(self)
            self._check_numbers(compared.broken())
            try:
                sizes = self._check_batch(compared)
            except Disagreement as why:
                self.batched_context = 0
                self.alone = agreement.plain_passes(self, compared)
                reason = f"passes over several rows do not give right logits ({why})"
                self.row_steps = RowSteps(False, f"{self.alone.described}, because {reason}")
                log.warning("rows_stepped_alone", architecture=self.config.model_type, why=str(why))
                sizes = self.alone.kv_bytes_by_device
            else:
                self._check_rows()
                self._keep_checks()
                self._check_long(compared, first)
        except Disagreement as why:
            raise Refusal(
                "MODEL_LOAD_FAILED",
                f"this architecture's plain forward pass cannot be reproduced: {why}",
            ) from why
        if self.alone is not None:
            beat_per_layer(self.model, self.layers, lambda: self.pulse.beat())
        return sizes

    def _check_numbers(self, broken: Sequence[int]) -> None:
        """Refuse a model whose logits of the tokens `broken` are no numbers in a plain pass.

        Raises:
            Refusal: MODEL_LOAD_FAILED.
        """
        if broken:
            raise Refusal(
                "MODEL_LOAD_FAILED",
                f"the checkpoint has weights that are NaN or too large: a plain forward pass gives NaN as the logit of "
                f"{len(broken)} of {self.vocabulary} tokens, the first is token {broken[0]}",
                tokens=len(broken),
                first_token_id=broken[0],
            )

    def _check_batch(self, compared: Agreement) -> BytesByDevice:
        """Compare passes over several rows. Returns the bytes of KV per token by device.

        Raises:
            Disagreement.
        """
        if not self.kinds:
            raise Disagreement("its layers have a state or masks of their own")
        self.attention = attention.install(self.model, self.kinds, self.window)
        if self.attention is not None:
            with suppress(Disagreement):
                return self._judged(compared)
            # the model's code does not take its attention from the library as others do
            attention.uninstall(self.model, self.attention)
            self.attention = None
        return self._judged(compared)

    def _judged(self, compared: Agreement) -> BytesByDevice:
        """Compare passes of the batch. Returns the bytes of KV per token by device.

        Raises:
            Disagreement.
        """
        sizes, exactness = compared.batch()
        if self.functions.times is None:
            self.functions.times = step_times.measure(self)
        if compared.knows_truth:
            self._tell(exactness)
        return sizes

    def _keep_checks(self) -> None:
        """Keep what the checks found for the next load, where they know the truth."""
        if self.exactness is not None:
            reads_parts = self.attention is not None
            shapes = Shapes(self.width, self.row_step, self.varies)
            checked = Checked(str(self.path), reads_parts, self.functions, self.exactness, shapes)
            kept_checks.keep(self.checks_key, checked)

    def _tell(self, exactness: Exactness) -> None:
        """Tell a model that is served less exactly than by the library."""
        self.exactness = exactness
        if not exactness.is_near:
            served, library = exactness.served, exactness.library
            log.warning(
                "passes_less_exact",
                off=served.mean,
                library_off=library.mean,
                high=served.high,
                library_high=library.high,
            )

    def _check_rows(self) -> None:
        """Find the numbers of which the rows of decode passes and the tokens of prefill passes are multiples, and what
        changes the last bits of a row's logits."""
        may_be_any = self.attention is not None and forwards.attends(self.model, self.layers)
        for self.width in (*(stepping.WIDTHS if may_be_any else ()), stepping.WIDTH):
            for self.row_step in stepping.ROW_STEPS:
                self.varies = invariance.varies(self)
                if self.varies is None:
                    return
        self.row_step = 1

    def _check_long(self, compared: Agreement, first: int | None) -> None:
        """Find how rows of more than `first` tokens are stepped. The passes of the batch are padded, and no padding may
        be beyond `first`."""
        if first is None:
            return
        self.batched_context = min(self.model_max_context, first // stepping.WIDTH * stepping.WIDTH)
        try:
            self.alone = agreement.plain_passes(self, compared)
        except Disagreement:
            self.model_max_context = self.batched_context
            return
        self.alone.takes_parts = False
        self.row_steps = RowSteps(
            True,
            f"rows of up to {self.batched_context} tokens share passes; longer rows are stepped one at a time, because "
            "the model turns their positions by other angles",
        )
