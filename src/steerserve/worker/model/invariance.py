"""Whether the logits of a row depend on the row alone. This is checked on the loaded model: on its weights, dtype,
device and threads.

A library may choose another kernel for another shape of a pass, and another kernel sums in another order. Passes have
shapes for which the usual kernels are the same (`rules/inference/stepping.py`); whether they are is tried out here, bit
for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steerserve.rules.inference import stepping
from steerserve.worker.model.kv import CacheSlot, KvCache, order

if TYPE_CHECKING:
    from steerserve.worker.model.checkpoint import Checkpoint

PROMPT = 72
"""The tokens of the row that is compared. Its last tokens fill a part of their pass only."""

OTHER = 40
"""The tokens of the other rows."""

PROMPTS = 4
"""The prompts that are prefilled in one pass."""

CROWDS = ((1, 4, 11), (2, 6, 70))
"""The numbers of other rows in decode passes: with a prompt that is read beside others, and in parts."""

PARTS = {1: (23, PROMPT - 1), 2: (22, PROMPT - 2), stepping.WIDTH: (stepping.WIDTH,)}
"""Where the prompt is cut that is read in parts, by the width of passes. Another prompt begins beside the second."""


AnyPasses = Any
"""A `Checkpoint`, or passes over one row each with a cache of their own."""


@torch.inference_mode()
def varies(model: Checkpoint) -> str | None:
    """What changes the last bits of a row's logits; None where nothing did that was tried."""
    prompt, token = _row(model.vocabulary)
    read, written = _alone(model, prompt, token)
    for counts, what in zip(CROWDS, ("other prompts", "the parts of the prompt"), strict=True):
        logits, *others = _beside(model, prompt, token, counts, is_in_parts=counts == CROWDS[1])
        if not torch.equal(logits, read):
            return f"{what} in its prefill pass"
        for count, found in zip(counts, others, strict=True):
            if not torch.equal(found, written):
                return f"{count} other rows in its decode pass"
    return None


@torch.inference_mode()
def probe(model: AnyPasses) -> str:
    """A digest of the logits of the compared row: equal where weights, hardware and libraries give equal bits."""
    digest = hashlib.sha256()
    for logits in _alone(model, *_row(model.vocabulary)):
        digest.update(logits.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _row(vocabulary: int) -> tuple[list[int], int]:
    """The prompt that is compared, and the token after it."""
    source = torch.Generator().manual_seed(1)
    *prompt, token = torch.randint(0, vocabulary, (PROMPT + 1,), generator=source).tolist()
    return prompt, token


def _alone(model: AnyPasses, prompt: list[int], token: int) -> tuple[Tensor, Tensor]:
    """The logits after the prompt, and after the token, without other rows."""
    cache = model.cache()
    slot = _room(cache)
    read = model.prefill(cache, [slot], [prompt], start=0).logits[0]
    return read, model.decode_step(cache, [slot], [token], [PROMPT]).logits[0]


def _beside(
    model: Checkpoint, prompt: list[int], token: int, counts: Sequence[int], *, is_in_parts: bool
) -> Iterator[Tensor]:
    """The logits after the prompt, which is read in parts or beside other prompts, and after the token, in decode
    passes with so many other rows."""
    cache = model.cache()
    alike = [_room(cache) for _ in range(PROMPTS - 1)]
    others = [*alike[:1], *(cache.open(64) for _ in range(max(counts) - 1))]
    own = _room(cache)
    model.prefill(cache, others[1:2], [prompt[:OTHER]], start=0)
    held = cache.copy_tokens(others[1], OTHER)
    if is_in_parts:
        first, *cuts = PARTS[model.width]
        model.prefill(cache, [own], [prompt[:first]], start=0)
        slots, beside, before = [alike[1], own], [prompt[:OTHER]], [0]
        for start, end in pairwise((first, *cuts, PROMPT)):
            parts = [*beside, prompt[start:end]]
            read = model.prefill(cache, slots, parts, start=[*before, start]).logits
            slots, beside, before = [own], [], []
        yield read[-1]
    else:
        prompts = [*[list(reversed(prompt))] * len(alike), prompt]
        yield model.prefill(cache, [*alike, own], prompts, start=0).logits[-1]
    for slot in others:
        cache.put(slot, held, OTHER)
    for count in counts:
        slots = sorted([own, *others[:count]], key=order)
        tokens = [token if slot is own else prompt[0] for slot in slots]
        places = [PROMPT if slot is own else OTHER for slot in slots]
        yield model.decode_step(cache, slots, tokens, places).logits[slots.index(own)]


def _room(cache: KvCache) -> CacheSlot:
    """Room for the prompt and the token after it."""
    return cache.open(stepping.capacity(PROMPT + 1, stepping.up(PROMPT + 1, stepping.WIDTH)))
