"""A transformers checkpoint: load it, and run prefill and decode passes over a `SlotCache`.

It owns the model, its tokenizer and its masks; it knows nothing of requests, sampling or steering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from steerserve.engine.worker import memory
from steerserve.engine.worker.kv import SlotCache
from steerserve.errors import Refusal

LENGTH_STEP = 32
"""Decode reads the cache in lengths of this many tokens, so that kernels see few shapes."""

_CHECK_TOKENS = 24
_TOLERANCE = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

_OWN_MASKS = frozenset({"gpt_neo"})
"""Architectures that cut their own masks from the cache's length, wrongly for a cache that is longer than its rows."""

Report = Callable[[str, float], None]


class Checkpoint:
    """A loaded causal language model.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION, MODEL_LOAD_FAILED.
    """

    def __init__(
        self, path: Path, *, quantization: str, trust_remote_code: bool, report: Report
    ) -> None:
        if quantization != "FP16":
            raise Refusal(
                "UNSUPPORTED_QUANTIZATION",
                f"{quantization} cannot be applied by this engine; register the model as FP16",
                quantization=quantization,
            )
        common: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        self.config = AutoConfig.from_pretrained(path, **common)
        if self.config.model_type in _OWN_MASKS:
            raise _not_served(f"{self.config.model_type} makes attention masks of its own")
        self.device = memory.device()
        report("loading_tokenizer", 5.0)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path, **common)
        report("loading_weights", 10.0)
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=self._dtype(), low_cpu_mem_usage=True, **common
        )
        report("moving_to_device", 80.0)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.dtype: torch.dtype = next(self.model.parameters()).dtype
        text = self.config.get_text_config(decoder=True)
        self.layers = int(text.num_hidden_layers)
        self.hidden_size = int(text.hidden_size)
        self.vocabulary = int(self.model.get_output_embeddings().weight.shape[0])
        self.model_max_context = _max_context(text)
        self.window: int | None = getattr(text, "sliding_window", None)
        self.layer_types = self._attention_types(text)
        self.is_eager = self.model.config._attn_implementation == "eager"
        self.end_tokens = self._end_tokens()
        self.longest_token = max((len(t) for t in self.tokenizer.get_vocab()), default=1)
        self._last: Tensor | None = None
        self.model.get_output_embeddings().register_forward_pre_hook(self._keep_last)
        report("checking", 90.0)
        self.kv_bytes_per_token = self._check()

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    # ------------------------------------------------------------- text

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """A conversation as tokens: the template rendered once, with at most one BOS.

        A trailing assistant message is continued: what stands before it is rendered with the generation prompt, and
        its own text follows raw.

        Raises:
            Refusal: NO_CHAT_TEMPLATE; INVALID_PARAMETER when the template refuses the messages.
        """
        if not self.has_chat_template:
            raise Refusal("NO_CHAT_TEMPLATE", "the model has no chat template; use /v1/completions")
        messages = list(messages)
        partial = ""
        if len(messages) > 1 and messages[-1]["role"] == "assistant":
            partial = messages.pop()["content"] or ""
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            # templates raise whatever their author chose; the messages are what the client can change
            raise Refusal(
                "INVALID_PARAMETER",
                f"the model's chat template refuses these messages: {_first_line(error)}",
                param="messages",
            ) from error
        bos = self.tokenizer.bos_token
        return self.encode(text + partial, special=not (bos and text.startswith(bos)))

    def decode(self, ids: list[int]) -> str:
        """Text of tokens, special ones left out."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            return str(backend.decode(ids, skip_special_tokens=True))
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    # ------------------------------------------------------------- passes

    def prefill(
        self, cache: SlotCache, rows: Sequence[Sequence[int]], *, row: int, start: int
    ) -> Tensor:
        """Write the tokens of `rows` at positions from `start` on; logits [rows, vocabulary] after each last token.

        Rows are padded on the right: causal attention keeps the padding from the tokens before it, and decode
        overwrites it. With `start` > 0 there is one row.
        """
        sizes = [len(ids) for ids in rows]
        width = max(sizes)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        for i, ids in enumerate(rows):
            tokens[i, : sizes[i]] = torch.tensor(ids)
        cache.begin_prefill(row, start)
        positions = torch.arange(start, start + width, device=self.device)[None].expand(
            len(rows), -1
        )
        masks = None if start == 0 else self._masks(positions, start + width)
        return self._forward(cache, tokens, positions, masks, last=torch.tensor(sizes) - 1)

    def decode_step(
        self, cache: SlotCache, tokens: Sequence[int], positions: Sequence[int]
    ) -> Tensor:
        """One token per row at its position; logits [rows, vocabulary]."""
        at = torch.tensor(positions, device=self.device)
        length = min(_round_up(max(positions) + 1), cache.length)
        cache.begin_decode(at, length)
        masks = self._masks(at[:, None], length)
        return self._forward(cache, torch.tensor(tokens)[:, None], at[:, None], masks, last=None)

    def _forward(
        self, cache: SlotCache, tokens: Tensor, positions: Tensor, masks: Any, last: Tensor | None
    ) -> Tensor:
        self._last = None if last is None else last.to(self.device)
        try:
            out = self.model(
                input_ids=tokens.to(self.device),
                position_ids=positions,
                attention_mask=masks,
                past_key_values=cache,
                use_cache=True,
            )
        finally:
            self._last = None
        return out.logits[:, -1]

    def _keep_last(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Before the output embedding: keep [rows, 1, hidden] of [rows, T, hidden], each row's last token."""
        if self._last is None:
            return None
        hidden = inputs[0]
        return (hidden[torch.arange(hidden.shape[0], device=hidden.device), self._last][:, None],)

    def _masks(self, positions: Tensor, length: int) -> Any:
        """Attention masks [rows, 1, T, length] for queries at `positions` [rows, T], one per layer type."""
        held = torch.arange(length, device=self.device)
        full = held[None, None] <= positions[:, :, None]
        masks: dict[str, Tensor] = {}
        for kind in self.layer_types:
            allowed = full
            if kind == "sliding_attention" and self.window:
                allowed = full & (held[None, None] > positions[:, :, None] - self.window)
            masks[kind] = self._in_form(allowed[:, None])
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _in_form(self, allowed: Tensor) -> Tensor:
        if not self.is_eager:
            return allowed
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(allowed, dtype=self.dtype).masked_fill(~allowed, lowest)

    # ------------------------------------------------------------- facts

    def _dtype(self) -> torch.dtype:
        """bfloat16 and, on a host without a card, float32 stay as stored; all else is half precision on a card and
        float32 on a host, which computes no faster in float16."""
        stored = (
            getattr(self.config.get_text_config(decoder=True), "dtype", None) or self.config.dtype
        )
        if stored == torch.bfloat16:
            return torch.bfloat16
        return torch.float16 if self.device.type == "cuda" else torch.float32

    def _attention_types(self, text: Any) -> tuple[str, ...]:
        types = getattr(text, "layer_types", None)
        if types is None:
            return ("sliding_attention",) if self.window else ("full_attention",)
        unknown = sorted(set(types) - _LAYER_TYPES)
        if unknown:
            raise _not_served(f"it has layers of type {', '.join(unknown)}")
        return tuple(sorted(set(types)))

    def _end_tokens(self) -> frozenset[int]:
        """Tokens that end a completion: those of the generation config and the tokenizer's EOS."""
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        ends = configured if isinstance(configured, list) else [configured]
        return frozenset(int(e) for e in [*ends, self.tokenizer.eos_token_id] if e is not None)

    @torch.inference_mode()
    def _check(self) -> int:
        """Whether passes over the cache equal one plain pass on this architecture; bytes of KV per token.

        Raises:
            Refusal: MODEL_LOAD_FAILED when they do not, because every answer would be wrong.
        """
        try:
            off, bytes_per_token = self._check_error()
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            # what an architecture raises when it cannot take these masks, positions or cache
            raise _not_served(_first_line(error)) from error
        if not off <= _TOLERANCE[self.dtype]:
            raise _not_served(f"the relative error of its logits is {off:.3g}")
        return bytes_per_token

    def _check_error(self) -> tuple[float, int]:
        """How far the running batch's logits are from a plain pass, in their standard deviations; bytes of KV per
        token."""
        source = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (_CHECK_TOKENS,), generator=source).tolist()
        plain = self.model(
            input_ids=torch.tensor([ids], device=self.device), use_cache=False
        ).logits[0, -1]
        cache = SlotCache()
        cache.resize(2, LENGTH_STEP)
        cut = _CHECK_TOKENS - 2
        self.prefill(cache, [ids[:cut], ids[: cut - 3]], row=0, start=0)
        self.decode_step(cache, [ids[cut], ids[cut - 3]], [cut, cut - 3])
        stepped = self.decode_step(cache, [ids[cut + 1], ids[cut - 2]], [cut + 1, cut - 2])[0]
        error = (stepped - plain).float().abs().max() / plain.float().std().clamp_min(1e-6)
        return error.item(), cache.bytes_per_token


def _max_context(text: Any) -> int:
    """Tokens of context that the model is served with.

    A longrope model changes the rotary factors of a whole pass once any row is longer than it was first trained for,
    its neighbours' too; it is served up to that length.
    """
    longest = int(getattr(text, "max_position_embeddings", 0) or 0) or 2048
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        original = rope.get("original_max_position_embeddings")
        original = original or getattr(text, "original_max_position_embeddings", None)
        return min(longest, int(original)) if original else longest
    return longest


def _not_served(why: str) -> Refusal:
    return Refusal(
        "MODEL_LOAD_FAILED",
        f"the running batch does not reproduce this architecture's plain forward pass: {why}",
    )


def _round_up(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
