"""The page docs/real-models.md, run as it is written: from nothing to a lever on a real model with a real SAE."""

from __future__ import annotations

import base64
import math
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from benchmarks.kept import Kept
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tools.real import train_sae
from tools.real.models import SMOLLM2

from steerserve.client import Client
from tests.contract.clients import pages
from tests.real.figures import KEEP

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = "../real-models.md"
LAYER = 14
DIRECTIONS = 20
ODDS = {
    "concept": "music song songs concert orchestra piano band jazz opera singer melody violin guitar symphony",
    "control": "car road roads market army table team bread court farmer valley rifle hammer harvest",
}
"""Words of one token each. The effect of a direction is the share of the concept's words in the probability of both."""
PROMPTS = [
    "Last summer we went to hear the",
    "She had always loved the",
    "He wrote a book about the",
    "They talked all night about",
    "On the table there was a",
    "The children were waiting for the",
    "In the evening he thought of the",
    "The old man was known for his",
]


def commands() -> list[str]:
    return [text.strip() for _, text in pages.blocks(PAGE, "sh")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service that the page starts, on a free port and with a data folder of its own."""
    *_, start = commands()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program, *arguments = [str(Path(word).expanduser()) for word in shlex.split(start)]
    assert program == ".venv/bin/steerserve"
    process = subprocess.Popen(
        [sys.executable, "-m", "steerserve", *arguments, "--port", str(port)],
        env=os.environ | {"STEERSERVE_HOME": str(tmp_path_factory.mktemp("walk"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    told: list[str] = []
    while "steerserve steer --off" not in "".join(told[-1:]):
        told.append(process.stdout.readline())
        assert told[-1], told
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    reader.start()
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    assert process.wait(60) == 0
    reader.join(10)
    process.stdout.close()


def test_it_is_fetched_converted_and_trained_as_the_page_says() -> None:
    fetch, train, start = commands()
    told = subprocess.run(
        [sys.executable, *shlex.split(fetch)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(SMOLLM2.checkpoint) in told
    target = train.removeprefix("make ")
    recipe = re.search(rf"^{target}: .*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == "$(BIN)/python -m tools.real.train_sae"
    folder = train_sae.sae()
    for made in (SMOLLM2.checkpoint, folder):
        assert f"~/.cache/steerserve-real/{made.name}" in start
    figures = train_sae.figures(folder)
    assert figures["fvu"] <= 0.25
    assert figures["dead_share"] < 0.05


def test_a_concept_in_words_leads_to_a_lever_above_all_random_directions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSERVE_URL", url)
    names = pages.run(PAGE, url)
    index, strength, effects = names["index"], names["strength"], names["measured"]
    client: Client = names["client"]
    monitored = client.saes.attachment()
    client.close()
    assert monitored.layer == LAYER
    (row,) = [row for row in effects[index].rows if row.strength == strength]
    assert row.works
    assert effects[index].plain.share_with_words <= 0.125
    assert names["answer"].text
    rows = load_file(train_sae.sae() / "sae_weights.safetensors")["W_dec"]
    drawn = np.random.default_rng(0).standard_normal((DIRECTIONS, rows.shape[1]))
    others = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    with httpx2.Client(base_url=url, timeout=300) as http:
        plain = concept_share(http, None)
        steered = concept_share(http, strength * rows[index])
        by_chance = [concept_share(http, strength * other) for other in others]
    print(f"words of the concept: {plain:.3f} plain, {steered:.3f} steered, random {by_chance}")
    assert steered > plain
    assert steered > max(by_chance)
    if KEEP:
        found = {number: one.rows for number, one in effects.items()}
        beside = {number: one.random for number, one in effects.items()}
        Kept("real-sae").end(
            {
                "sae": train_sae.figures(train_sae.sae()),
                "lever": {"index": index, "strength": strength},
                "rows": [
                    measured(number, one, other)
                    for number in found
                    for one, other in zip(found[number], beside[number], strict=True)
                ],
                "concept_share": {"plain": plain, "steered": steered, "random": by_chance},
                "answer": names["answer"].text,
            }
        )


def measured(index: int, row: Any, beside: Any) -> dict[str, Any]:
    return {
        "feature": index,
        "strength": row.strength,
        "share": row.share_with_words,
        "random_share": beside.share_with_words,
        "works": row.works,
        "damage": row.damage.nll_over_plain,
    }


def concept_share(http: httpx2.Client, direction: np.ndarray | None) -> float:
    """The mean share of the concept's words in the probability of both lists of words, after the prompts."""
    tokenizer = Tokenizer.from_file(str(SMOLLM2.checkpoint / "tokenizer.json"))
    tokens = {name: one_token_each(tokenizer, words.split()) for name, words in ODDS.items()}
    body: dict[str, Any] = {
        **{"model": SMOLLM2.checkpoint.name, "prompt": PROMPTS, "max_tokens": 1, "temperature": 0},
        **{"logprobs": 1, "allowed_token_ids": [*tokens["concept"], *tokens["control"]]},
        "return_tokens_as_token_ids": True,
    }
    if direction is not None:
        data = base64.b64encode(direction.astype("<f4").tobytes()).decode()
        vector = {"layer": LAYER, "site": "resid_post", "data": data}
        body["score_steered"] = True
        body["interventions"] = {"edits": [{"op": "add", "vector": vector, "value": 1}]}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    shares = []
    for choice in answer.json()["choices"]:
        (found,) = choice["logprobs"]["top_logprobs"]
        shares.append(sum(math.exp(found[f"token_id:{token}"]) for token in tokens["concept"]))
    return sum(shares) / len(shares)


def one_token_each(tokenizer: Any, words: Sequence[str]) -> list[int]:
    ids = [tokenizer.encode(f" {word}", add_special_tokens=False).ids for word in words]
    assert all(len(one) == 1 for one in ids)
    return [one for (one,) in ids]
