"""An independent pass of the demo model, with its SAEs in numpy, and the firings that follow from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from steerserve import demo
from tests.service import Running

ROUNDING = 1.5 * 2**-8
"""The relative rounding of the values of the model, with room for what processors do differently."""

TRIES = 12
"""How often values are rounded otherwise, to see whether the same features fire."""

COUNT = 24
"""The completion tokens of each answer."""

OPENINGS = (
    *("One day", "Far out", "My dog", "Two birds", "Rain fell", "Her boat", "Cold wind", "Soon"),
    *("Then", "Once", "After that", "Every morning", "In the garden", "At night", "We saw", "He"),
    "Nobody",
)
STORIES = (
    "the old fisherman went to the harbour with his boat",
    "a garden and a warm kitchen were waiting for Anna",
    "the birds sang in the forest near the river",
)
PROMPTS = [f"{opening} {STORIES[i % 3]}" for i, opening in enumerate(OPENINGS)]
"""Prompts that share no more than their first token."""

Values = NDArray[np.float32]
Spans = list[tuple[int, int, str, dict[int, float]]]


class NumpyPass:
    """The demo model, and its SAEs in numpy: the k largest pre-activations rectified, or those above their
    thresholds."""

    def __init__(self, folder: Path = demo.MODEL_DIR) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder)

    def tokens(self, prompt: str, completion: str) -> tuple[list[int], int]:
        """The tokens that the model has read for this answer, and how many of them are of the prompt."""
        first = list(self.tokenizer(prompt)["input_ids"])
        rest = list(self.tokenizer(completion, add_special_tokens=False)["input_ids"])
        return [*first, *rest[:-1]], len(first)

    def states(self, tokens: Sequence[int], sae: demo.DemoSae) -> Values:
        """The values [T, d_in] that an SAE reads of unsteered tokens."""
        with torch.inference_mode():
            states = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        values: Values = states[sae.layer + 1][0].float().numpy()
        return values

    def activations(self, tokens: Sequence[int], sae: demo.DemoSae) -> Values:
        """Every feature [T, d_sae] of unsteered tokens."""
        return encoded(self.states(tokens, sae), sae)

    def is_clear(self, tokens: Sequence[int], sae: demo.DemoSae, thetas: dict[int, float]) -> bool:
        """Whether the same features fire where the values are rounded otherwise, as in another shape of a batch."""
        states, draw = self.states(tokens, sae), np.random.default_rng(0)
        features = list(thetas)
        limits = np.array([thetas[feature] for feature in features])
        fires = encoded(states, sae)[:, features] > limits
        for _ in range(TRIES):
            noise = 1 + ROUNDING * draw.standard_normal(states.shape, dtype=np.float32)
            if ((encoded(states * noise, sae)[:, features] > limits) != fires).any():
                return False
        return True


def encoded(states: Values, sae: demo.DemoSae) -> Values:
    """All features [T, d_sae] of values [T, d_in]."""
    weights = load_file(sae.path / "sae_weights.safetensors")
    pre = (states - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]
    values: Values = np.maximum(pre, 0)
    config = json.loads((sae.path / "cfg.json").read_text())
    if config["architecture"] == "topk":
        np.put_along_axis(values, np.argsort(-pre, axis=1)[:, config["k"] :], 0, axis=1)
    else:
        values[pre <= weights["threshold"]] = 0
    return values


def spans(values: Values, prompt: int, thetas: dict[int, float], min_k: int) -> Spans:
    """The spans of a cluster with these thresholds, by brute force."""
    found = Spans()
    for at, row in enumerate(values):
        fired = {f: float(row[f]) for f, theta in thetas.items() if row[f] > theta}
        if len(fired) < min_k:
            continue
        if found and found[-1][1] == at - 1:
            start, _, phase, peaks = found.pop()
            both = {f: max(fired.get(f, 0.0), peaks.get(f, 0.0)) for f in {*fired, *peaks}}
            found.append((start, at, phase, both))
        else:
            found.append((at, at, "prefill" if at < prompt else "decode", fired))
    return found


def gap(values: Values) -> float:
    """A threshold below half of the activations that no activation is near, because another shape of a batch rounds
    activations otherwise."""
    ordered = np.unique(values[values > 1.0])
    ordered = ordered[: max(2, len(ordered) // 2)]
    at = int(np.argmax(np.diff(ordered)))
    return float((ordered[at] + ordered[at + 1]) / 2)


def often(values: Values, count: int, share: float = 1.0) -> list[int]:
    """The features that fire most often, in at most this share of the positions, and not at the first one."""
    fires = (values > 1.0).mean(0)
    wanted = np.where((fires <= share) & (values[0] == 0), fires, 0)
    return [int(feature) for feature in np.argsort(-wanted)[:count]]


def ask(
    live: Running, prompt: str, *, stream: bool = False, model: str = demo.MODEL_NAME
) -> tuple[str, str]:
    """The id and the text of a greedy answer."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": COUNT,
        "temperature": 0,
        "stream": stream,
    }
    if not stream:
        answer = live.post("/v1/completions", body).json()
        return answer["id"], answer["choices"][0]["text"]
    chunks = [chunk for chunk in live.stream("/v1/completions", body) if isinstance(chunk, dict)]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    return chunks[0]["id"], text


def events(live: Running, sensing: str, **query: Any) -> list[dict[str, Any]]:
    """The events that a route of sensing lists, newest first."""
    asked = "&".join(f"{name}={value}" for name, value in ({"limit": 500} | query).items())
    found: list[dict[str, Any]] = live.data("GET", f"{sensing}/events?{asked}")["events"]
    return found


def of_request(found: list[dict[str, Any]], request_id: str) -> list[dict[str, Any]]:
    """The events of one request, oldest first."""
    return [event for event in reversed(found) if event["request_id"] == request_id]
