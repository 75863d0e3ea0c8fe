"""Documents written at random under their constraints, many rows at once, as the batch would step them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from steerserve.worker.rows.constrain import Grammars, RowConstraint, mask
from tests.worker import models

CLOSERS = ('"', "}", "]", "<eos>")
LEANING = 3.0
"""How much likelier a token that closes something is, so that documents come to an end."""


def grammars(
    tokenizer: PreTrainedTokenizerFast | None = None, padding: int = 11, kept: int = 32
) -> Grammars:
    """Of the tiny byte-level tokenizer, with logits that are wider than it."""
    tokenizer = tokenizer or models.tokenizer()
    end = tokenizer.eos_token_id
    return Grammars(tokenizer, len(tokenizer) + padding, frozenset([end]), kept)


def write(
    source: Grammars,
    rows: list[RowConstraint],
    steps: int,
    seed: int = 0,
    tokenizer: Any = None,
) -> list[str | None]:
    """The text of each row, or None where it has not come to an end within `steps` tokens."""
    tokenizer = tokenizer or models.tokenizer()
    dice = torch.Generator().manual_seed(seed)
    closers = tokenizer.convert_tokens_to_ids(list(CLOSERS))
    written: list[list[int]] = [[] for _ in rows]
    done: set[int] = set()
    for _ in range(steps):
        left = [i for i in range(len(rows)) if i not in done]
        if not left:
            break
        logits = torch.rand(len(left), source.width, generator=dice).log().neg().log().neg()
        logits[:, closers] += LEANING
        masked, refusals = mask(logits, [rows[i] for i in left])
        assert not refusals, refusals
        for i, token in zip(left, masked.argmax(-1).tolist(), strict=True):
            rows[i].advance(token)
            if token not in source.end_tokens:
                written[i].append(token)
            if rows[i].is_complete:
                done.add(i)
    return [tokenizer.decode(tokens) if i in done else None for i, tokens in enumerate(written)]
