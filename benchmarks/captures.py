"""What a capture costs beside plain prefill: `python -m benchmarks.captures [--tokens N]`.

SmolLM2-135M-Instruct reads contexts of 512 tokens of the Brown corpus over HTTP, in turns: as scoring requests of eight
prompts, which is plain prefill; and as a capture of the residual stream at four layers, the last one among them, so
that no layer is left out. Both read the same tokens, and no others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.service import Running, add_model, running
from tools.real import text
from tools.real.models import SMOLLM2

from benchmarks.kept import Kept
from benchmarks.machine import Spread

CONTEXT, TOGETHER, ROUNDS = 512, 8, 4
LAYERS = (7, 14, 21, 29)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000, help="of all rounds")
    tokens = parser.parse_args(arguments).tokens
    kept = Kept("captures", threads=2)
    home = Path(tempfile.mkdtemp())
    # a kept beginning would not be read again
    settings = {"torch_threads": 2, "captures_max_mb": 8192, "prefix_cache_mb": 0}
    with running(home, **settings) as live:
        live.http.timeout = None  # a round takes minutes
        live.data("POST", f"/api/models/{add_model(live, SMOLLM2.checkpoint)}/load?wait=true")
        texts = contexts(live, tokens // ROUNDS // CONTEXT)
        captured(live, "warm", texts[:TOGETHER])
        plain(live, texts[:TOGETHER])
        pairs = []
        for turn in range(ROUNDS):
            if turn % 2:
                prefill = plain(live, texts)
                capture = captured(live, f"turn {turn}", texts)
            else:
                capture = captured(live, f"turn {turn}", texts)
                prefill = plain(live, texts)
            pairs.append((capture, prefill))
    read = len(texts) * CONTEXT
    found = {
        "tokens_of_a_round": read,
        "layers": LAYERS,
        "capture_tokens_per_s": asdict(Spread.of([read / its for its, _ in pairs])),
        "prefill_tokens_per_s": asdict(Spread.of([read / other for _, other in pairs])),
        "capture_over_prefill": asdict(Spread.of([other / its for its, other in pairs])),
    }
    kept.end({"captures": found})
    print(found)


def contexts(live: Running, count: int) -> list[list[int]]:
    """The tokens of contexts of the corpus."""
    ids: list[int] = []
    for sample in text.samples().values():
        ids += live.data("POST", "/api/tokenize", {"text": sample})["ids"]
        if len(ids) >= count * CONTEXT:
            break
    return [ids[first * CONTEXT : (first + 1) * CONTEXT] for first in range(count)]


def plain(live: Running, prompts: Sequence[list[int]]) -> float:
    """The seconds of scoring requests."""
    begun = time.perf_counter()
    for first in range(0, len(prompts), TOGETHER):
        body = {"model": SMOLLM2.checkpoint.name, "prompt": prompts[first : first + TOGETHER]}
        answer = live.post("/v1/completions", body | {"max_tokens": 1, "logprobs": 1})
        assert answer.status_code == 200, answer.text
    return time.perf_counter() - begun


def captured(live: Running, name: str, prompts: Sequence[list[int]]) -> float:
    """The seconds of a capture of these contexts."""
    texts = [live.data("POST", "/api/detokenize", {"ids": ids})["text"] for ids in prompts]
    body = {
        "name": name,
        "texts": texts,
        "sites": [{"site": "resid_post", "layers": list(LAYERS)}],
        "context": CONTEXT,
    }
    begun = time.perf_counter()
    job = live.data("POST", "/api/captures?wait=true", body)["job"]
    seconds = time.perf_counter() - begun
    assert job["state"] == "done", job["error"]
    return seconds * len(prompts) * CONTEXT / int(job["result"]["tokens"])


if __name__ == "__main__":
    main()
