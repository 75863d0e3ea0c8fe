"""A command to rows of the batch: tokens, limits, and every refusal that needs the model's facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from steerserve.engine import messages as m
from steerserve.engine.worker import memory, sampling
from steerserve.engine.worker.checkpoint import Checkpoint
from steerserve.engine.worker.constrain import Constraint
from steerserve.engine.worker.rows import Pooling, Row, Scoring, Writing
from steerserve.engine.worker.taps import TapReader
from steerserve.engine.worker.text import TextStream
from steerserve.errors import Refusal
from steerserve.rules import activations

LENGTH_MARGIN = 4
"""How many times its longest token's length a token may stand for after a tokenizer's own normalisation."""

OpenTap = Callable[[m.Tap, int], TapReader]
"""A tap and the number of prompt tokens -> its reader."""


class Tokens(Protocol):
    """What turns prompts into tokens: a language model or an encoder."""

    longest_token: int

    def encode(self, text: str, *, special: bool) -> list[int]: ...
    def encode_chat(
        self, messages: Sequence[dict[str, Any]], variables: dict[str, Any] | None = None
    ) -> list[int]: ...


def rows_of(
    command: m.Generate,
    model: Checkpoint,
    context: int,
    kv_tokens: int,
    *,
    constrain: Callable[[], Constraint] | None = None,
    open_tap: OpenTap | None = None,
) -> list[Row]:
    """The rows of a request, `n` per prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, NO_CHAT_TEMPLATE, INVALID_PARAMETER (an empty prompt, or messages that the
            template refuses), SAE_ACTIVATIONS_REFUSED, INSUFFICIENT_MEMORY (seeded rows that can never be in the
            cache together).
    """
    rows: list[Row] = []
    for index, prompt in enumerate(command.prompts):
        with _Place(command.prompts, index) as where:
            ids = _encoded(prompt, model, context, "INVALID_PARAMETER")
            limit = max_tokens(command.sampling, len(ids), context)
            for i in range(command.n):
                goal = _writing(command.sampling, model, i, ids, constrain)
                row = Row(command.id, index * command.n + i, ids, command.plan, goal, limit)
                row.where = where
                row.tap = _tap(command.tap, row, open_tap)
                row.may_reuse = command.sampling.seed is None and row.tap is None
                rows.append(row)
    together = len(rows) * max(row.need for row in rows)
    if command.sampling.seed is not None and together > kv_tokens:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the choices of a seeded request run together and need {together} tokens of KV cache; "
            f"{kv_tokens} are there",
            **memory.described(model.device),
            prompt_tokens=max(len(row.prompt) for row in rows),
            max_new_tokens=max(row.max_tokens for row in rows),
            batch_rows=len(rows),
        )
    return rows


def scoring_rows(
    command: m.Score, model: Checkpoint, context: int, *, open_tap: OpenTap | None = None
) -> list[Row]:
    """One unsteered row per prompt.

    Raises:
        Refusal: INVALID_SCORING_REQUEST (an id outside the vocabulary, an empty prompt), CONTEXT_LENGTH_EXCEEDED,
            NO_CHAT_TEMPLATE, INVALID_PARAMETER, SAE_ACTIVATIONS_REFUSED.
    """
    outside = [i for i in command.allowed or () if i >= model.vocabulary]
    if outside:
        raise Refusal(
            "INVALID_SCORING_REQUEST",
            f"token id {outside[0]} is outside the vocabulary of {model.vocabulary} tokens",
            param="allowed_token_ids",
            token_id=outside[0],
            vocabulary=model.vocabulary,
        )
    allowed = None if command.allowed is None else torch.tensor(command.allowed).to(model.device)
    rows = []
    for index, prompt in enumerate(command.prompts):
        with _Place(command.prompts, index) as where:
            ids = _encoded(prompt, model, context, "INVALID_SCORING_REQUEST")
            max_tokens(m.Sampling(max_tokens=1), len(ids), context)
            goal = Scoring(command.temperature, command.top, allowed, model.decode_token)
            row = Row(command.id, index, ids, m.Suppressed(), goal, where=where)
            row.tap = _tap(command.tap, row, open_tap)
            rows.append(row)
    return rows


def pooling_rows(command: m.Embed, model: Tokens, context: int) -> list[Row]:
    """One unsteered row per text.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (a text without tokens).
    """
    rows = []
    for index, prompt in enumerate(command.prompts):
        with _Place(command.prompts, index, "input") as where:
            ids = _encoded(prompt, model, context, "INVALID_PARAMETER")
            max_tokens(m.Sampling(max_tokens=0), len(ids), context)
            rows.append(Row(command.id, index, ids, m.Suppressed(), Pooling(), where=where))
    return rows


def shortest_first(rows: list[Row]) -> list[Row]:
    """Reads of one request in an order that wastes little padding: their answers carry their place."""
    return sorted(rows, key=lambda row: len(row.prompt))


def max_tokens(wanted: m.Sampling, prompt_tokens: int, context: int) -> int:
    """Completion tokens of a prompt: what the request names, or the default lowered to what the context leaves.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED when the prompt leaves no room, or not the room that was named.
    """
    named = wanted.max_tokens
    asked = named if named is not None else 1
    if prompt_tokens + asked > context:
        raise Refusal(
            "CONTEXT_LENGTH_EXCEEDED",
            # the words by which client libraries know this refusal
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{prompt_tokens + (named or 0)} tokens ({prompt_tokens} in the prompt, "
            f"{named or 0} for the completion).",
            max_context_tokens=context,
            requested_tokens=prompt_tokens + (named or 0),
            prompt_tokens=prompt_tokens,
            max_tokens=named,
        )
    return named if named is not None else min(wanted.default_max_tokens, context - prompt_tokens)


class _Place:
    """Names the offending prompt in what is refused inside the block."""

    def __init__(
        self, prompts: Sequence[m.Text | m.Chat], index: int, field: str = "prompt"
    ) -> None:
        self._is_one = len(prompts) == 1
        if isinstance(prompts[index], m.Chat):
            self._where = f"extra_messages[{index - 1}]" if index else "messages"
        else:
            self._where = field if self._is_one else f"{field}[{index}]"

    def __enter__(self) -> str | None:
        """The prompt's name among several."""
        return None if self._is_one else self._where

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Refusal):
            return
        message = error.message if self._is_one else f"{self._where}: {error.message}"
        param = error.param if self._is_one and error.param != "prompt" else self._where
        raise Refusal(error.code, message, param=param, **error.details) from error


def _encoded(prompt: m.Text | m.Chat, model: Tokens, context: int, empty: str) -> list[int]:
    """The tokens of a prompt; `empty` is the code that refuses one without any."""
    _check_length(prompt, model, context)
    if isinstance(prompt, m.Chat):
        ids = model.encode_chat(prompt.messages, prompt.variables)
    else:
        ids = model.encode(prompt.text, special=prompt.special)
    if not ids:
        raise Refusal(empty, "the prompt has no tokens", param="prompt")
    return ids


def _check_length(prompt: m.Text | m.Chat, model: Tokens, context: int) -> None:
    """A text that cannot possibly fit is refused before it is tokenized, which would hold up every other row.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, with the least number of tokens it can have.
    """
    texts = [prompt.text] if isinstance(prompt, m.Text) else [c["content"] for c in prompt.messages]
    least = sum(len(text) for text in texts) // (LENGTH_MARGIN * model.longest_token)
    if least > context:
        raise Refusal(
            "CONTEXT_LENGTH_EXCEEDED",
            f"This model's maximum context length is {context} tokens. However, your prompt has at "
            f"least {least} tokens.",
            max_context_tokens=context,
            requested_tokens=least,
            prompt_tokens=least,
            max_tokens=None,
        )


def _tap(tap: m.Tap | None, row: Row, open_tap: OpenTap | None) -> TapReader | None:
    if tap is None:
        return None
    assert open_tap is not None
    activations.check_entries(
        tap.positions, tap.top_k, len(row.prompt), row.max_tokens, tap.max_entries
    )
    return open_tap(tap, len(row.prompt))


def _writing(
    wanted: m.Sampling,
    model: Checkpoint,
    repeat: int,
    ids: list[int],
    constrain: Callable[[], Constraint] | None,
) -> Writing:
    seen = None
    if wanted.repetition_penalty != 1.0:
        seen = torch.zeros(model.vocabulary, dtype=torch.bool, device=model.device)
        seen[torch.tensor(ids, device=model.device)] = True
    # the prompts of one request are seeded alike, its repeats differ
    choice = sampling.Choice(
        wanted.temperature,
        wanted.top_p,
        wanted.repetition_penalty,
        sampling.generator(wanted.seed, repeat),
        seen,
    )
    text = TextStream(model.decode, ids, wanted.stops)
    return Writing(choice, text, constrain() if constrain else None)
