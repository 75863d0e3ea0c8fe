"""The demo language model: its shape, how documents become rows of tokens, and its training.

This module owns the packing of rows and the optimiser loop. It knows nothing of SAEs. A row starts at a document's BOS
and is filled with whole documents, of which the last is cut, so that every position up to the end of the row is
trained.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo.corpus import BOS, CorpusDocument

CONTEXT = 1024


def model_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Five layers of width 192, six query heads on two key-value heads, tied embeddings."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def encode(
    documents: Sequence[CorpusDocument], tokenizer: PreTrainedTokenizerFast
) -> list[list[int]]:
    """The token ids of each document, whose text already has BOS and EOS."""
    texts = [document.text for document in documents]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def rows(ids: Sequence[list[int]], length: int, seed: int) -> Iterator[list[int]]:
    """Yield rows of exactly `length` tokens without end, with the documents in a new order on each pass over them."""
    rng = random.Random(seed)
    row: list[int] = []
    while True:
        for place in rng.sample(range(len(ids)), len(ids)):
            row.extend(ids[place])
            if len(row) >= length:
                yield row[:length]
                row = []


def batches(ids: Sequence[list[int]], length: int, size: int, seed: int) -> Iterator[Tensor]:
    """Yield int64 batches [size, length] without end."""
    stream = rows(ids, length, seed)
    while True:
        yield torch.tensor([next(stream) for _ in range(size)])


def special_ids(model: LlamaForCausalLM) -> tuple[int, int, int]:
    """The ids of BOS, EOS and padding."""
    bos, eos, pad = (
        getattr(model.config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    )
    return int(bos), int(eos), int(pad)


def token_losses(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Cross entropy in nats of each next token: float32 [batch, length - 1]."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    targets = tokens[:, 1:]
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none"
    )
    return flat.view(targets.shape)


def training_loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Mean cross entropy of a batch [batch, length]; a BOS is never a target."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = token_losses(model, tokens)
    wanted = tokens[:, 1:].ne(special_ids(model)[0])
    return (losses * wanted).sum() / wanted.sum()


def _optimiser(model: LlamaForCausalLM, peak: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2]
    vectors = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)


def _rate(step: int, steps: int, peak: float) -> float:
    """Learning rate: a short linear rise, then a cosine to a fiftieth of the peak."""
    rise = min(1.0, (step + 1) / max(1, steps // 30))
    fall = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * rise * (0.02 + 0.98 * fall)


def train(
    ids: Sequence[list[int]],
    config: LlamaConfig,
    phases: Sequence[tuple[int, int, int]],
    peak: float,
    seed: int,
    say: Callable[[str], None],
) -> LlamaForCausalLM:
    """Train a model. `phases` are (steps, rows per batch, row length), which run one after another."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).train()
    optimiser = _optimiser(model, peak)
    steps, step, began = sum(phase[0] for phase in phases), 0, time.monotonic()
    for number, (count, size, length) in enumerate(phases):
        stream = batches(ids, length, size, seed + number)
        for _ in range(count):
            for group in optimiser.param_groups:
                group["lr"] = _rate(step, steps, peak)
            loss = training_loss(model, next(stream))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
            if step % 100 == 0:
                spent = time.monotonic() - began
                say(f"step {step}/{steps} loss {loss.item():.3f} after {spent:.0f} s")
    return model.eval()


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write config.json, generation_config.json and bfloat16 model.safetensors."""
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=True,
        temperature=0.8,
        top_p=0.95,
    )
    model.bfloat16().save_pretrained(str(folder))


def load_model(folder: Path) -> LlamaForCausalLM:
    """The model in `folder`, whose weights are rounded to bfloat16, in float32."""
    return LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, ids: Sequence[list[int]]) -> float:
    """Mean cross entropy in nats per token over documents, each in its own row."""
    total, count = 0.0, 0
    for start in range(0, len(ids), 32):
        part = [document[:CONTEXT] for document in ids[start : start + 32]]
        width = max(map(len, part))
        pad = special_ids(model)[2]
        tokens = torch.tensor([document + [pad] * (width - len(document)) for document in part])
        wanted = tokens[:, 1:].ne(pad)
        total += float((token_losses(model, tokens) * wanted).sum())
        count += int(wanted.sum())
    return total / count


@torch.no_grad()
def loss_by_position(model: LlamaForCausalLM, ids: Sequence[list[int]]) -> dict[str, float]:
    """Mean loss of packed 1,024-token rows in the first and in the last 256 positions."""
    tokens = next(batches(ids, CONTEXT, 16, seed=0))
    wanted = tokens[:, 1:].ne(special_ids(model)[0])
    losses = token_losses(model, tokens) * wanted
    first, last = slice(0, 256), slice(CONTEXT - 257, CONTEXT - 1)
    return {
        "positions_1_to_256": float(losses[:, first].sum() / wanted[:, first].sum()),
        "positions_768_to_1023": float(losses[:, last].sum() / wanted[:, last].sum()),
    }


def plain(text: str) -> str:
    """A document's text without BOS, for the tokenizer's training."""
    return text.removeprefix(BOS)
