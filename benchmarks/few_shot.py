"""An evaluation over HTTP: the log-probabilities of continuations of questions that all begin with the same examples.

It is asked as `lm-eval` asks it (tokens, `echo`, `logprobs`), and compared with transformers in this process, which
keeps the keys and values of the examples and reads each question with each continuation.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks import loads, servers
from benchmarks.machine import Spread
from benchmarks.plans import Plan
from benchmarks.service import Wire

EXAMPLES, QUESTION, CONTINUATION = 1000, 32, 4
"""The tokens of the examples, of a question and of a continuation."""
QUESTIONS, CONTINUATIONS = 12, 4
CONNECTIONS = 8
MOST_SECONDS = 300.0
OURS, KEPT, WHOLE = "steerserve, over HTTP", "transformers, examples kept", "transformers"
CLOSE = 0.2
"""The most by which the log-probability of a continuation may differ between the two, in bfloat16."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One continuation: all tokens, and where the continuation begins."""

    tokens: list[int]
    first: int


async def measure(plan: Plan, size: str) -> dict[str, Any]:
    """Continuations per second of each, and the ratios of ours to both of the others, round by round."""
    folder = plan.checkpoint(size)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    rates: dict[str, list[float]] = {name: [] for name in (OURS, KEPT, WHOLE)}
    async with servers.ours(plan.scratch / "few-shot", folder) as server:
        await server.warm()
        for turn in plan.turns(MOST_SECONDS):
            # no round knows the examples of another
            asked = _evaluation(vocabulary, turn)
            rate, ours = await _over_http(server, asked)
            rates[OURS].append(rate)
            with server.paused():
                rate, kept = _in_process(model, asked)
                rates[KEPT].append(rate)
                # every fourth continuation is enough, because each takes as long as any other
                rates[WHOLE].append(_in_process(model, asked[::CONTINUATIONS], is_kept=False)[0])
            _check(ours, kept)
            told = ", ".join(f"{name}: {values[-1]:.1f}/s" for name, values in rates.items())
            plan.say(f"  round {turn + 1}: {told}")
    return {
        "size": size,
        "examples": EXAMPLES,
        "questions": QUESTIONS,
        "question_tokens": QUESTION,
        "continuations": CONTINUATIONS,
        "continuation_tokens": CONTINUATION,
        "connections": CONNECTIONS,
        "aimed_at": KEPT,
        "per_s": {name: asdict(Spread.of(values)) for name, values in rates.items()},
        "ratios": loads.ratios({name: (rates[OURS], rates[name]) for name in (KEPT, WHOLE)}),
    }


def _evaluation(vocabulary: int, seed: int) -> list[Asked]:
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        # the first tokens are single bytes
        return [draw.randrange(256, vocabulary) for _ in range(count)]

    examples, asked = tokens(EXAMPLES), []
    for _ in range(QUESTIONS):
        context = [*examples, *tokens(QUESTION)]
        asked += [
            Asked([*context, *tokens(CONTINUATION)], len(context)) for _ in range(CONTINUATIONS)
        ]
    return asked


async def _over_http(server: servers.Server, asked: Sequence[Asked]) -> tuple[float, list[float]]:
    """Continuations per second, and the log-probability of each."""
    waiting = list(enumerate(asked))[::-1]
    found: dict[int, float] = {}

    async def connection() -> None:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
        while waiting:
            number, one = waiting.pop()
            body = {
                "model": server.fields["model"],
                "prompt": one.tokens,
                "echo": True,
                "logprobs": 1,
                "max_tokens": 1,
                "temperature": 0,
                "seed": 1234,
            }
            (choice,) = json.loads(await wire.post(servers.COMPLETIONS, body))["choices"]
            scores = choice["logprobs"]["token_logprobs"]
            found[number] = sum(scores[one.first : len(one.tokens)])

    since = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    rate = len(asked) / (time.perf_counter() - since)
    return rate, [found[number] for number in range(len(asked))]


@torch.inference_mode()
def _in_process(
    model: Any, asked: Sequence[Asked], *, is_kept: bool = True
) -> tuple[float, list[float]]:
    """Continuations per second, and the log-probability of each. With `is_kept` the examples are read once."""
    since = time.perf_counter()
    kept = DynamicCache(config=model.config)
    if is_kept:
        examples = torch.tensor([asked[0].tokens[:EXAMPLES]])
        model(examples, past_key_values=kept, logits_to_keep=1)
    found = []
    for one in asked:
        start = EXAMPLES if is_kept else 0
        read = torch.tensor([one.tokens[start:-1]])
        size = len(one.tokens) - one.first
        cache = kept if is_kept else None
        logits = model(read, past_key_values=cache, logits_to_keep=size).logits[0].float()
        if is_kept:
            kept.crop(-read.shape[1])
        wanted = torch.tensor(one.tokens[one.first :])[:, None]
        found.append(float(logits.log_softmax(-1).gather(1, wanted).sum()))
    return len(asked) / (time.perf_counter() - since), found


def _check(ours: Sequence[float], theirs: Sequence[float]) -> None:
    """Both have computed the same."""
    assert len(ours) == len(theirs)
    worst = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    assert worst < CLOSE, f"a log-probability differs by {worst:.3f}"
