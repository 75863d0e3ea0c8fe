"""What it spares that the choices of a short prompt read it once: `python -m benchmarks.choices [--quick]`.

SmolLM2-135M-Instruct answers four questions of a few words, each with eight choices, over HTTP: in turns by a service
as it is, and by one that shares no beginnings (`PREFIX_CACHE_MB=0`). Each turn has other questions. Then both continue
eight equal prompts of few tokens, which says from which length on it pays to wait for another row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tests.service import Running, add_model, running
from tools.real.models import SMOLLM2

from benchmarks.kept import Kept
from benchmarks.machine import Spread

QUESTIONS, CHOICES, TOKENS, ROUNDS = 4, 8, 24, 8
LENGTHS, EQUAL, WRITTEN = (5, 9, 13, 17, 33), 8, 2
FIRST_TOKEN, APART = 100, 40
"""The id of the first token of a prompt of the first turn, and how far the prompts of two turns are apart."""
PLACES = "house garden river market harbour castle forest kitchen village bridge".split()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    rounds = 2 if parser.parse_args(arguments).quick else ROUNDS
    kept = Kept("choices", threads=2)
    with started() as shared, started(prefix_cache_mb=0) as apart:
        answered(shared, -1)
        answered(apart, -1)
        pairs = []
        for turn in range(rounds):
            order = (shared, apart) if turn % 2 else (apart, shared)
            seconds = {id(live): answered(live, turn) for live in order}
            pairs.append((seconds[id(shared)], seconds[id(apart)]))
        few = {size: short(shared, apart, size, rounds) for size in LENGTHS}
    found = {
        "questions": QUESTIONS,
        "choices": CHOICES,
        "tokens": TOKENS,
        "shared_s": asdict(Spread.of([one for one, _ in pairs])),
        "apart_s": asdict(Spread.of([other for _, other in pairs])),
        "rate_over_apart": asdict(Spread.of([other / one for one, other in pairs])),
        "prompts_of_few_tokens": few,
    }
    kept.end({"choices": found})
    print(found)


@contextmanager
def started(**settings: int) -> Iterator[Running]:
    """A service that has loaded the model."""
    with running(Path(tempfile.mkdtemp()), torch_threads=2, **settings) as live:
        live.data("POST", f"/api/models/{add_model(live, SMOLLM2.checkpoint)}/load?wait=true")
        yield live


def answered(live: Running, turn: int) -> float:
    """The seconds until all questions of a turn are answered, which are asked at once."""

    def ask(number: int) -> None:
        place = PLACES[number]
        text = f"Tell me what day {turn + 2} was like in the {place} where you live."
        body = {
            "model": SMOLLM2.checkpoint.name,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS,
            "n": CHOICES,
            "seed": turn + 1,
        }
        answer = live.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text

    begun = time.perf_counter()
    with ThreadPoolExecutor(QUESTIONS) as pool:
        list(pool.map(ask, range(QUESTIONS)))
    return time.perf_counter() - begun


def short(shared: Running, apart: Running, size: int, rounds: int) -> dict[str, float]:
    """How many times as fast eight equal prompts of so many tokens are with sharing as without."""
    rates = []
    for turn in range(-1, rounds):
        first = FIRST_TOKEN + APART * (turn + 1) + 1000 * size
        body = {
            "model": SMOLLM2.checkpoint.name,
            "prompt": [list(range(first, first + size))] * EQUAL,
            "max_tokens": WRITTEN,
            "seed": 1,
        }
        seconds = {}
        for live in (shared, apart) if turn % 2 else (apart, shared):
            begun = time.perf_counter()
            answer = live.post("/v1/completions", body)
            assert answer.status_code == 200, answer.text
            seconds[id(live)] = time.perf_counter() - begun
        if turn >= 0:
            rates.append(seconds[id(apart)] / seconds[id(shared)])
    return asdict(Spread.of(rates))


if __name__ == "__main__":
    main()
