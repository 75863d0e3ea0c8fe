"""What requests ask for beyond plain text: scoring, masks, and the second turn of a conversation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from benchmarks.engine import KV_TOKENS, Bench
from benchmarks.machine import Spread
from steerserve import messages as m
from steerserve.parts.response_format.form import RESPONSE_FORMAT, ResponseFormat
from steerserve.worker import memory
from steerserve.worker.batch import admission
from steerserve.worker.batch.batch import Batch
from steerserve.worker.rows.constrain import Grammars

PROMPTS = 32
SHORTEST, LONGEST = 24, 384
PEER_ROWS = (4, 8, 16)
ROUNDS = 4
HISTORY = 1000
TURN = 24
MASKED_ROWS = (1, 8)
MASKED_STEPS = 24
SCHEMA = """{"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array",
 "items": {"type": "string"}}, "notes": {"type": "string", "minLength": 400}},
 "required": ["name", "tags", "notes"], "additionalProperties": false}"""


def _texts() -> list[str]:
    source = random.Random(0)
    return ["x" * source.randint(SHORTEST, LONGEST) for _ in range(PROMPTS)]


class Scoring:
    """One scoring request, and the same prompts in plain batched forward passes."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._texts = _texts()
        model = bench.model
        self._ids = sorted((model.encode(t, special=True) for t in self._texts), key=len)

    @torch.inference_mode()
    def ours(self) -> float:
        """Seconds of a request with every prompt."""
        model = self._bench.model
        batch = Batch(model, self._bench.steering, self._bench.readers, KV_TOKENS)

        def run() -> None:
            goal, prompts = m.Score(top=5), [self._bench.tokens(t) for t in self._texts]
            request = m.Request(id=1, goal=goal, prompts=prompts)
            context, saes = model.model_max_context, self._bench.steering
            rows = admission.scoring_rows(request, goal, model, context, saes)
            batch.add(admission.shortest_first(rows), is_seeded=False)
            while not batch.is_idle:
                batch.step()

        return self._bench.timed(run)

    @torch.inference_mode()
    def plain(self, rows: int) -> float:
        """Seconds of forward passes over `rows` prompts each, sorted by length, no cache, and the same top 5."""

        def run() -> None:
            for first in range(0, len(self._ids), rows):
                self._pass(self._ids[first : first + rows])

        return self._bench.timed(run)

    def _pass(self, ids: list[list[int]]) -> None:
        model = self._bench.model
        width = max(map(len, ids))
        tokens = torch.zeros(len(ids), width, dtype=torch.long)
        mask = torch.zeros(len(ids), width, dtype=torch.long)
        for i, row in enumerate(ids):
            tokens[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        plain = self._bench.plain
        body, head = plain.get_decoder(), plain.get_output_embeddings()
        hidden = body(
            tokens.to(model.device), attention_mask=mask.to(model.device), use_cache=False
        ).last_hidden_state
        last = torch.tensor([len(row) - 1 for row in ids])
        logits = head(hidden[torch.arange(len(ids)), last]).float()
        logits.log_softmax(-1).topk(5).values.tolist()


class Masks:
    """Decode steps with a response format on every row, beside plain ones."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        model = bench.model
        self._grammars = Grammars(model.tokenizer, model.vocabulary, model.end_tokens)

    @torch.inference_mode()
    def ratios(self, rows: int) -> list[float]:
        """Time of a constrained step over that of a plain one, pair by pair."""
        plain, masked = self._started(rows, False), self._started(rows, True)
        found = []
        for i in range(MASKED_STEPS):
            order = (plain, masked) if i % 2 else (masked, plain)
            seconds = {id(batch): self._bench.timed(batch.step) for batch in order}
            found.append(seconds[id(masked)] / seconds[id(plain)])
        return found

    def _started(self, rows: int, is_masked: bool) -> Batch:
        model = self._bench.model
        batch = Batch(model, self._bench.steering, self._bench.readers, KV_TOKENS)
        sampling = m.Sampling(temperature=0.8, top_p=0.9, max_tokens=160)
        goal, prompts = m.Generate(sampling=sampling), [self._bench.tokens("x" * 8)] * rows
        request, compiled = m.Request(id=1, goal=goal, prompts=prompts), {}
        if is_masked:
            request = structs.replace(request, parts=RESPONSE_FORMAT.ask(ResponseFormat(SCHEMA)))
            compiled[RESPONSE_FORMAT.name] = self._grammars.compile(SCHEMA).result()
        batch.add(
            admission.rows_of(
                request,
                goal,
                model,
                model.model_max_context,
                KV_TOKENS,
                self._bench.steering,
                compiled=compiled,
            ),
            is_seeded=False,
        )
        batch.step()
        return batch


class SecondTurn:
    """Seconds to the first token of a conversation's second turn, with and without the kept first one."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @torch.inference_mode()
    def seconds(self, prefix_tokens: int, turn: int) -> float:
        model = self._bench.model
        batch = Batch(model, self._bench.steering, self._bench.readers, KV_TOKENS, prefix_tokens)
        history = chr(ord("a") + turn) * HISTORY
        self._begin(batch, history, 2)
        while not batch.is_idle:
            batch.step()
        self._begin(batch, history + "z" * TURN, 2)

        def first_token() -> None:
            while not batch.step():
                pass

        return self._bench.timed(first_token)

    def _begin(self, batch: Batch, text: str, max_tokens: int) -> None:
        model = self._bench.model
        sampling = m.Sampling(temperature=0.0, max_tokens=max_tokens)
        goal, prompts = m.Generate(sampling=sampling), [self._bench.tokens(text)]
        request = m.Request(id=1, goal=goal, prompts=prompts, plan=m.Follow())
        context, saes = model.model_max_context, self._bench.steering
        rows = admission.rows_of(request, goal, model, context, KV_TOKENS, saes)
        batch.add(rows, is_seeded=False)


def _turns() -> Iterator[int]:
    """Round 0 warms up and is not counted."""
    return iter(range(ROUNDS + 1))


def measure(folder: Path) -> dict[str, Any]:
    """Scoring beside plain passes, constrained beside plain steps, reused beside computed prefixes."""
    memory.keep_freed()
    bench = Bench(folder)
    scoring, masks, second = Scoring(bench), Masks(bench), SecondTurn(bench)
    ours: list[float] = []
    plain: dict[int, list[float]] = {rows: [] for rows in PEER_ROWS}
    kept: list[float] = []
    computed: list[float] = []
    for turn in _turns():
        found = scoring.ours(), {rows: scoring.plain(rows) for rows in PEER_ROWS}
        turns = second.seconds(KV_TOKENS, turn), second.seconds(0, turn)
        if turn:
            ours.append(found[0])
            for rows, seconds in found[1].items():
                plain[rows].append(seconds)
            kept.append(turns[0])
            computed.append(turns[1])
    best = min(PEER_ROWS, key=lambda rows: Spread.of(plain[rows]).median)
    ratios = [p / o for p, o in zip(plain[best], ours, strict=True)]
    return {
        "scoring_prompts": PROMPTS,
        "scoring_prompt_tokens": [SHORTEST, LONGEST],
        "scoring_seconds": asdict(Spread.of(ours)),
        "plain_seconds_by_rows": {str(n): asdict(Spread.of(s)) for n, s in plain.items()},
        "scoring_over_best_plain_throughput": asdict(Spread.of(ratios)),
        "masked_step_ratio": {
            str(rows): asdict(Spread.of(masks.ratios(rows))) for rows in MASKED_ROWS
        },
        "history_tokens": HISTORY,
        "second_turn_seconds_kept": asdict(Spread.of(kept)),
        "second_turn_seconds_computed": asdict(Spread.of(computed)),
        "second_turn_sooner": Spread.of(computed).median / Spread.of(kept).median,
    }
