"""Firings over long conversations: each one equals that of an independent pass, whatever is shared, kept or streamed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from steerserve import demo
from tests.conftest import Start
from tests.openai.numpy_pass import (
    PROMPTS,
    STORIES,
    NumpyPass,
    ask,
    encoded,
    gap,
    of_request,
    often,
    spans,
)
from tests.service import Running, add_model, add_sae

pytestmark = pytest.mark.soak
SAE = demo.saes()[1]
NAME = "exact"
ROWS = 16
TOKENS = 400
"""A prompt of the first turn is at least this long, so that its keys and values are kept."""

Answers = list[tuple[str, str, str]]
"""(prompt, request id, text) of each answer."""


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in float32, whose values hardly depend on the shape of a batch."""
    folder = tmp_path_factory.mktemp("models") / NAME
    model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR, dtype=torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(demo.MODEL_DIR).save_pretrained(folder)
    return folder


def long(truth: NumpyPass, number: int) -> str:
    """A prompt of its own with more than TOKENS tokens."""
    text = PROMPTS[number]
    while len(truth.tokenizer(text)["input_ids"]) < TOKENS:
        text += f". {PROMPTS[(7 * len(text) + number) % len(PROMPTS)]}"
    return text


def turn(live: Running, prompts: list[str]) -> Answers:
    """All prompts at once, every other one streamed."""
    with ThreadPoolExecutor(ROWS) as pool:
        streams = [number % 2 == 0 for number in range(len(prompts))]
        made = pool.map(lambda p, s: ask(live, p, stream=s, model=NAME), prompts, streams)
        return [(prompt, *answer) for prompt, answer in zip(prompts, made, strict=True)]


def events(live: Running) -> list[dict[str, Any]]:
    listed = live.data("GET", "/api/sensing/events?limit=500")
    found: list[dict[str, Any]] = listed["events"]
    assert listed["total"] == len(found), "the test compares all events"
    return found


@pytest.mark.parametrize("prefix_cache_mb", [0, None], ids=["without prefixes", "with prefixes"])
def test_firings_of_sixteen_conversations_are_exact(
    exact: Path, start: Start, prefix_cache_mb: int | None
) -> None:
    truth = NumpyPass(exact)
    prompts = [long(truth, number) for number in range(ROWS)]
    states = [truth.states(truth.tokenizer(prompt)["input_ids"], SAE) for prompt in prompts]
    values = np.concatenate([encoded(of_prompt, SAE) for of_prompt in states])
    thetas = {feature: gap(values[:, feature]) for feature in often(values, 2, 0.015)}
    settings = {} if prefix_cache_mb is None else {"prefix_cache_mb": prefix_cache_mb}
    with start(
        sensing_dedup_history=False,
        sensing_max_events_per_request=1000,
        max_concurrent_requests=ROWS,
        **settings,
    ) as live:
        model_id = add_model(live, exact, NAME)
        live.data("POST", f"/api/models/{model_id}/load?wait=true")
        sae_id = add_sae(live, SAE)
        live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": SAE.layer})
        members = [
            {"feature_idx": feature, "strength": 0.0, "max_activation": 10 * theta}
            for feature, theta in thetas.items()
        ]
        document = {"name": "words", "members": members, "sensing": {"min_k": 1}}
        live.data("POST", "/api/clusters/import?activate=true", document)
        cluster_id = live.data("GET", "/api/clusters")["active_cluster_id"]
        assert live.data("POST", f"/api/sensing/{cluster_id}/enable")["armed"]
        answers = turn(live, prompts)
        for _ in range(2):
            fired = check(live, truth, thetas, answers)
            assert fired > ROWS
            live.data("DELETE", "/api/sensing/events")
            answers = turn(live, [f"{p}{text} Then {STORIES[0]}." for p, _, text in answers])
        check(live, truth, thetas, answers)


def check(live: Running, truth: NumpyPass, thetas: dict[int, float], answers: Answers) -> int:
    """Every firing of these answers, at its very position. Returns how many there were."""
    found, count = events(live), 0
    for prompt, request_id, text in answers:
        tokens, size = truth.tokens(prompt, text)
        expected = spans(truth.activations(tokens, SAE), size, thetas, 1)
        told = of_request(found, request_id)
        at = [(event["pos_start"], event["pos_end"], event["phase"]) for event in told]
        assert at == [one[:3] for one in expected]
        for event, (_, _, _, peaks) in zip(told, expected, strict=True):
            assert dict(event["fired_members"]) == pytest.approx(peaks, rel=1e-3)
        count += len(expected)
    return count
