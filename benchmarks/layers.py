"""Measures how text suffers when one or two layers of the demo model are steered: `python -m benchmarks.layers`.

Stories are drawn from the demo model while a feature of layer 2, a feature of layer 3, or both are added at one
strength. The unsteered model then scores the stories in nats per token: the more a story falls apart, the higher its
loss. The four texts in `measured_hazard` are what the refusal of contended circuits reports
(`nouns/circuits/rules/hazards.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tools.demo import figures
from tools.demo import language_model as lm
from tools.demo.steering import StorySampling, continuation_loss, sample, steered
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.kept import Kept
from steerserve import demo

SEED, ROWS = 41, 20
STRENGTHS = (5.0, 20.0, 50.0)
PAIRS = (("winter", "sea"), ("hospital", "forest"), ("castle", "train"), ("farm", "desert"))
"""A topic whose feature is on layer 2, and a topic whose feature is on layer 3."""


@dataclass(frozen=True, slots=True)
class Direction:
    """The decoder row of a feature, [d_in], and the layer after which it is added."""

    layer: int
    row: Tensor


class Stories:
    """Draws stories from the demo model and scores them."""

    def __init__(self) -> None:
        self._model = lm.load_model(demo.MODEL_DIR)
        tokenizer = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
        self._prompts = [figures.prompt_ids(prompt, tokenizer) for prompt in figures.PROMPTS]

    def loss(self, directions: Sequence[Direction], strength: float) -> float:
        """The mean loss of stories that are drawn under these directions, in nats per token."""
        losses: list[float] = []
        for number, prompt in enumerate(self._prompts):
            with ExitStack() as held:
                for direction in directions:
                    vectors = (strength * direction.row).expand(ROWS, -1)
                    held.enter_context(steered(self._model, direction.layer, vectors))
                drawn = sample(self._model, prompt, ROWS, StorySampling(), SEED + number)
            losses += continuation_loss(self._model, prompt, drawn)
        return statistics.fmean(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the JSON result")
    kept = Kept("layers", parser.parse_args().out, samples=ROWS * len(figures.PROMPTS))
    torch.manual_seed(SEED)
    rows = measured()
    hazard = texts(rows, kept.started)
    print(json.dumps(hazard, indent=2))
    kept.end({"rows": rows, "measured_hazard": hazard})


def measured() -> list[dict[str, Any]]:
    """For each strength the mean losses over all pairs: unsteered, with each layer alone, with both layers."""
    stories, pairs = Stories(), directions()
    plain = stories.loss((), 0.0)
    rows = []
    for strength in STRENGTHS:
        lower = [stories.loss([low], strength) for low, _ in pairs]
        upper = [stories.loss([high], strength) for _, high in pairs]
        both = [stories.loss(pair, strength) for pair in pairs]
        rows.append(
            {
                "strength": strength,
                "unsteered": round(plain, 3),
                "one_layer": round(statistics.fmean(lower + upper), 3),
                "two_layers": round(statistics.fmean(both), 3),
            }
        )
        print(rows[-1], flush=True)
    return rows


def directions() -> list[tuple[Direction, Direction]]:
    """The decoder rows of PAIRS."""
    decoders = {
        sae.layer: load_file(sae.path / "sae_weights.safetensors")["W_dec"].float()
        for sae in demo.saes()
    }
    features = {(one["topic"], one["layer"]): one["feature_idx"] for one in demo.report()["topics"]}
    low, high = sorted(decoders)
    return [
        (
            Direction(low, decoders[low][features[first, low]]),
            Direction(high, decoders[high][features[second, high]]),
        )
        for first, second in PAIRS
    ]


def texts(rows: Sequence[dict[str, Any]], started: datetime) -> dict[str, str]:
    """What the refusal of contended circuits reports."""
    first, *others = rows
    plain = first["unsteered"]
    more = "; ".join(
        f"at strength {row['strength']:g} {row['one_layer']:.2f} with one layer and {row['two_layers']:.2f} with two"
        for row in others
    )
    return {
        "source": f"benchmarks/layers.py on the demo model, {started:%Y-%m-%d}",
        "one_layer_at_strength_5": _text(first["one_layer"], plain),
        "two_layers_at_strength_5": _text(first["two_layers"], plain),
        "note": (
            f"Losses are nats per token under the unsteered model, {plain:.2f} for unsteered text; {more}. "
            "The figures are of one small model and indicate only that effects on several layers add up."
        ),
    }


def _text(loss: float, plain: float) -> str:
    return f"the loss of the text is {loss:.2f} nats per token, {loss - plain:+.2f} against unsteered text"


if __name__ == "__main__":
    main()
