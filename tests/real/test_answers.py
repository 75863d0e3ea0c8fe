"""What a real model answers through the service: next tokens, long prompts, conversations, many requests at once, seeds
and embeddings, against transformers in float32."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tools.real.models import RealModel

from tests.real.asking import RealService, Scores, scores, states
from tests.real.conftest import ROWS
from tests.real.figures import Figures, pooled, rows_off
from tests.real.reference import Reference

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

LONG = 2600
WINDOW = 512
"""The positions that most layers of Gemma 3 read."""
SHARED = 280
"""The tokens with which many requests begin. From 256 on they are read once."""
CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You are a sailor.\n\nAnswer shortly."},
        {"role": "user", "content": "  Where do you sail? "},
        {"role": "assistant", "content": "To the islands — naïvely."},
        {"role": "user", "content": "<|im_start|>Why?"},
    ],
]


def test_next_tokens(
    served: RealService,
    real: RealModel,
    reference: Reference,
    figures: Figures,
    prose: list[str],
) -> None:
    ids = reference.tokenizer(prose[90])["input_ids"]
    ends = list(range(20, 148, 4))
    answer = served.complete(
        [ids[:end] for end in ends], max_tokens=1, logprobs=20, return_tokens_as_token_ids=True
    )
    found = [choice["logprobs"]["top_logprobs"][0] for choice in answer["choices"]]
    scored = scores([end - 1 for end in ends], found)
    compared = figures.compare(
        real.name, "next tokens", *scored.off(reference, states(reference, ids[: ends[-1]]))
    )
    assert compared.is_near, str(compared)


def test_a_long_prompt(
    served: RealService,
    real: RealModel,
    reference: Reference,
    figures: Figures,
    prose: list[str],
) -> None:
    ids = reference.tokenizer(prose[0] + prose[1])["input_ids"][:LONG]
    assert len(ids) == LONG
    whole = served.echo(ids, top=10)
    both = states(reference, ids)
    inside, past = list(range(WINDOW)), list(range(WINDOW, LONG - 1, 2))
    parts = []
    for places in (inside, past):
        part = Scores(places, whole.tokens[places], whole.found[places])
        parts.append(part.off(reference, both))
    for label, found in (
        ("inside the window", parts[0]),
        ("past the window", parts[1]),
        ("all of them", pooled(parts)),
    ):
        compared = figures.compare(real.name, f"{LONG} tokens, {label}", *found)
        assert compared.is_near, f"{label}: {compared}"


def test_conversations_are_rendered_as_by_transformers(
    served: RealService, real: RealModel, reference: Reference
) -> None:
    live, tokenizer = served.live, reference.tokenizer
    if not real.is_chat:
        body = {"model": served.name, "messages": CONVERSATIONS[0], "max_tokens": 1}
        assert live.v1_error("/v1/chat/completions", body)[1]["code"] == "no_chat_template"
        return
    for messages in CONVERSATIONS:
        told = live.data("POST", "/api/tokenize", {"messages": messages})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert told["text"] == text
        assert told["ids"] == ids
        body = {"model": served.name, "messages": messages, "max_tokens": 4, "temperature": 0}
        answer = live.post("/v1/chat/completions", body).json()
        assert answer["usage"]["prompt_tokens"] == len(ids)
        same = served.complete(ids, max_tokens=4)
        assert answer["choices"][0]["message"]["content"] == same["choices"][0]["text"]


def test_many_at_once_with_kept_beginnings(
    served: RealService,
    real: RealModel,
    reference: Reference,
    figures: Figures,
    prose: list[str],
) -> None:
    """The same rows twice: with a beginning that is read once for all of them, and with the kept one."""
    ids = reference.tokenizer(prose[130])["input_ids"]
    prompts = [ids[: SHARED + 3 * row] for row in range(ROWS)]
    parts = []
    for _ in range(2):
        with ThreadPoolExecutor(ROWS) as pool:
            rounds = list(pool.map(lambda prompt: served.written(prompt, 12), prompts))
        for row in range(0, ROWS, 3):
            tokens, scored, _ = rounds[row]
            parts.append(scored.off(reference, states(reference, prompts[row] + tokens[:-1])))
    compared = figures.compare(real.name, f"{ROWS} at once", *pooled(parts))
    assert compared.is_near, str(compared)


def test_seeds_in_any_batch(served: RealService, reference: Reference, prose: list[str]) -> None:
    ids = reference.tokenizer(prose[260])["input_ids"]
    fields: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0}

    def text(row: int) -> str:
        made = served.complete(ids[row : row + 40 + 5 * row], seed=row, **fields)
        return str(made["choices"][0]["text"])

    rows = range(ROWS)
    alone = [text(row) for row in rows[::5]]
    with ThreadPoolExecutor(ROWS) as pool:
        together = list(pool.map(text, rows))
    assert together[::5] == alone
    assert len(set(together)) == ROWS


def test_embeddings(
    served: RealService,
    real: RealModel,
    reference: Reference,
    figures: Figures,
    prose: list[str],
) -> None:
    texts = [prose[sample][:300] for sample in range(0, 480, 40)]
    answer = served.live.post("/v1/embeddings", {"model": served.name, "input": texts}).json()
    found = torch.tensor([each["embedding"] for each in answer["data"]])
    true, half = (
        torch.stack(
            [one.states(reference.tokenizer(each)["input_ids"]).float().mean(0) for each in texts]
        )
        for one in reference.passes
    )
    compared = figures.compare(real.name, "embeddings", rows_off(found, true), rows_off(half, true))
    assert compared.is_near, str(compared)
