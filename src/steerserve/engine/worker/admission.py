"""A generation command to rows of the batch: tokens, limits, and every refusal that needs the model's facts."""

from __future__ import annotations

import torch

from steerserve.engine.messages import Chat, Generate, Sampling, Text
from steerserve.engine.worker import sampling
from steerserve.engine.worker.batch import Row
from steerserve.engine.worker.checkpoint import Checkpoint
from steerserve.engine.worker.text import TextStream
from steerserve.errors import Refusal

LENGTH_MARGIN = 4
"""How many times its longest token's length a token may stand for after a tokenizer's own normalisation."""


def rows_of(command: Generate, model: Checkpoint, context: int, kv_tokens: int) -> list[Row]:
    """The rows of a request, `n` per prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, NO_CHAT_TEMPLATE, INVALID_PARAMETER (an empty prompt, or messages that the
            template refuses), INSUFFICIENT_MEMORY (seeded rows that can never be in the cache together).
    """
    rows: list[Row] = []
    for index, prompt in enumerate(command.prompts):
        _check_length(prompt, model, context)
        if isinstance(prompt, Chat):
            ids = model.encode_chat(prompt.messages)
        else:
            ids = model.encode(prompt.text, special=True)
        if not ids:
            raise Refusal("INVALID_PARAMETER", f"prompt {index} has no tokens", param="prompt")
        limit = max_tokens(command.sampling, len(ids), context)
        for i in range(command.n):
            rows.append(_row(command, model, index * command.n + i, i, ids, limit))
    together = sum(row.need for row in rows)
    if command.sampling.seed is not None and len(rows) * max(row.need for row in rows) > kv_tokens:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the choices of a seeded request run together and need {together} tokens of KV cache; "
            f"{kv_tokens} are there",
            device=str(model.device),
            prompt_tokens=max(len(row.prompt) for row in rows),
            max_new_tokens=max(row.max_tokens for row in rows),
            batch_rows=len(rows),
        )
    return rows


def max_tokens(wanted: Sampling, prompt_tokens: int, context: int) -> int:
    """Completion tokens of a prompt: what the request names, or the default lowered to what the context leaves.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED when the prompt leaves no room, or not the room that was named.
    """
    named = wanted.max_tokens
    asked = named if named is not None else 1
    if prompt_tokens + asked > context:
        raise Refusal(
            "CONTEXT_LENGTH_EXCEEDED",
            f"the prompt has {prompt_tokens} tokens"
            + (f" and max_tokens is {named}" if named is not None else "")
            + f"; together that exceeds the context of {context} tokens",
            max_context_tokens=context,
            requested_tokens=prompt_tokens + (named or 0),
            prompt_tokens=prompt_tokens,
            max_tokens=named,
        )
    return named if named is not None else min(wanted.default_max_tokens, context - prompt_tokens)


def _check_length(prompt: Text | Chat, model: Checkpoint, context: int) -> None:
    """A text that cannot possibly fit is refused before it is tokenized, which would hold up every other row.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, with the least number of tokens it can have.
    """
    texts = [prompt.text] if isinstance(prompt, Text) else [m["content"] for m in prompt.messages]
    least = sum(len(text) for text in texts) // (LENGTH_MARGIN * model.longest_token)
    if least > context:
        raise Refusal(
            "CONTEXT_LENGTH_EXCEEDED",
            f"the prompt has at least {least} tokens; the context is {context} tokens",
            max_context_tokens=context,
            requested_tokens=least,
            prompt_tokens=least,
            max_tokens=None,
        )


def _row(
    command: Generate, model: Checkpoint, choice: int, repeat: int, ids: list[int], limit: int
) -> Row:
    wanted = command.sampling
    seen = None
    if wanted.repetition_penalty != 1.0:
        seen = torch.zeros(model.vocabulary, dtype=torch.bool, device=model.device)
        seen[torch.tensor(ids, device=model.device)] = True
    return Row(
        request=command.id,
        choice=choice,
        prompt=ids,
        max_tokens=limit,
        # the prompts of one request are seeded alike, its repeats differ
        sampler=sampling.Choice(
            wanted.temperature,
            wanted.top_p,
            wanted.repetition_penalty,
            sampling.generator(wanted.seed, repeat),
            seen,
        ),
        plan=command.plan,
        text=TextStream(model.decode, ids, wanted.stops),
    )
