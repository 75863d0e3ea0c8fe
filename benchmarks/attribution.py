"""Compares attribution with true ablation: `python -m benchmarks.attribution [--sae FOLDER]`.

For each prompt, the features that are most active at the last token are taken away one at a time, in float32, by the
library's own model with a hook of this program. What that takes from the logit of the next token is the truth. The
contributions of each method, as the service answers them, are correlated with it, and so are the ablations by the
library's model in bfloat16.

The pairs are the demo and, with `--sae`, SmolLM2-135M-Instruct with an SAE for it.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.service import Running, add_model, add_sae, running
from tools.real import text
from tools.real.models import SMOLLM2
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.kept import Kept
from steerserve import demo
from steerserve.messages import SaeSource
from steerserve.worker.sae import formats

PROMPTS = 20
FEATURES = 50
WORDS = 24
LEAST = 5
"""The fewest active features at a token that are correlated."""

METHODS: dict[str, dict[str, Any]] = {
    "direct": {},
    "gradient": {"method": "gradient"},
    "integrated": {"method": "integrated", "steps": 16},
}
STORIES = (
    "Once upon a time there was a little",
    "The old fisherman went down to the",
    "Lily and her mother walked to the",
    "The dog ran after the ball and",
    "Tom was sad because he lost his",
    "The boats came back to the",
    "Every morning the bird sang in the",
    "The girl found a red box under the",
    "He looked at the sky and saw a big",
    "The cat did not want to",
    "They played in the park until it was",
    "Mia asked her brother to",
    "In the garden there was a small",
    "The king gave the boy a",
    "She put the cake on the",
    "The bear was hungry and wanted to eat some",
    "Ben said that he was very",
    "It started to rain, so they went",
    "The teacher told the children a",
    "At night the stars were",
)


@dataclass(frozen=True)
class Pair:
    """A model with an SAE behind one of its layers, and prompts for it."""

    name: str
    model: Path
    sae: Path
    layer: int
    prompts: Sequence[str]


class Ablations:
    """The library's model in one dtype, whose stream behind a layer is changed at the last token of a prompt."""

    def __init__(self, pair: Pair, dtype: torch.dtype) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(pair.model, dtype=dtype).eval()
        self._layer = self._model.get_submodule("model.layers")[pair.layer]

    @torch.no_grad()
    def effects(self, ids: list[int], target: int, written: Tensor) -> list[float]:
        """By how much the logit of `target`, less the mean logit, falls without each of `written` [n, hidden]."""
        tokens, count = torch.tensor([ids]), len(written) + 1
        before = self._model(input_ids=tokens[:, :-1], use_cache=True).past_key_values
        held = copy.deepcopy(before)
        held.batch_repeat_interleave(count)
        change = torch.cat([torch.zeros_like(written[:1]), -written])

        def move(_: object, __: object, output: Any) -> Any:
            found = output[0] if isinstance(output, tuple) else output
            moved = (found.float() + change[:, None]).to(found.dtype)
            return (moved, *output[1:]) if isinstance(output, tuple) else moved

        hook = self._layer.register_forward_hook(move)
        last = tokens[:, -1:].expand(count, 1)
        logits = self._model(input_ids=last, past_key_values=held).logits[:, -1].float()
        hook.remove()
        numbers = logits[:, target] - logits.mean(-1)
        return (numbers[0] - numbers[1:]).tolist()

    @torch.no_grad()
    def stream(self, ids: list[int]) -> Tensor:
        """The stream [hidden] behind the layer at the last token."""
        kept: list[Tensor] = []

        def keep(_: object, __: object, output: Any) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        hook = self._layer.register_forward_hook(keep)
        self._model(input_ids=torch.tensor([ids]))
        hook.remove()
        return kept[0][0, -1].float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sae", type=Path, help="an SAE for SmolLM2-135M-Instruct")
    parser.add_argument("--layer", type=int, default=14, help="the layer of this SAE")
    parser.add_argument("--out", type=Path, help="the file to write")
    chosen = parser.parse_args()
    of_demo = demo.saes()[1]
    pairs = [Pair("demo", demo.MODEL_DIR, of_demo.path, of_demo.layer, STORIES)]
    if chosen.sae is not None:
        real = Pair("SmolLM2-135M-Instruct", SMOLLM2.checkpoint, chosen.sae, chosen.layer, brown())
        pairs.append(real)
    kept = Kept("attribution", chosen.out, prompts=PROMPTS, features=FEATURES)
    kept.end({"pairs": {pair.name: measured(pair) for pair in pairs}})


def brown() -> list[str]:
    """The first words of a long paragraph of each of some samples of the Brown corpus."""
    found = []
    for sample in list(text.samples().values())[:: 500 // PROMPTS]:
        longest = max(sample.splitlines()[:40], key=len)
        found.append(" ".join(longest.split()[:WORDS]))
    return found[:PROMPTS]


def measured(pair: Pair) -> dict[str, Any]:
    """The correlations of each method with true ablation, over the prompts."""
    sae = formats.load(SaeSource(str(pair.sae), pair.name))
    exact, rough = Ablations(pair, torch.float32), Ablations(pair, torch.bfloat16)
    found: dict[str, list[float]] = {name: [] for name in (*METHODS, "ablation in bfloat16")}
    explained: dict[str, list[float]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory() as home, running(Path(home)) as live:
        attach(live, pair)
        for prompt in pair.prompts:
            ids, target = next_token(live, prompt)
            answers = {name: asked(live, prompt, target, how) for name, how in METHODS.items()}
            features = sorted(answers["direct"]["features"], key=lambda one: -one["activation"])
            active = {one["index"]: one["activation"] for one in features[:FEATURES]}
            if len(active) < LEAST:
                continue
            scale = sae.row_scale(exact.stream(ids)[None]).flatten()
            rows = sae.written(list(active)) * torch.tensor([*active.values()])[:, None] * scale
            truth = exact.effects(ids, target, rows)
            for name, answer in answers.items():
                made = {one["index"]: one["contribution"] for one in answer["features"]}
                found[name].append(pearson([made[index] for index in active], truth))
                explained[name].append(answer["explained"])
            found["ablation in bfloat16"].append(pearson(rough.effects(ids, target, rows), truth))
    return {
        name: {
            "pearson_median": statistics.median(each),
            "pearson_least": min(each),
            "prompts": len(each),
            **({"explained_median": statistics.median(explained[name])} if name in METHODS else {}),
        }
        for name, each in found.items()
    }


def attach(live: Running, pair: Pair) -> None:
    model = add_model(live, pair.model)
    live.data("POST", f"/api/models/{model}/load?wait=true")
    sae_id = add_sae(live, pair.sae)
    live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": pair.layer})


def next_token(live: Running, prompt: str) -> tuple[list[int], int]:
    """The tokens of a prompt, and the most probable next one."""
    found = live.data("POST", "/api/lens", {"text": prompt, "top": 1})
    last = found["layers"][-1]["positions"][-1][0]
    return [one["token_id"] for one in found["tokens"]], int(last["token_id"])


def asked(live: Running, prompt: str, target: int, how: dict[str, Any]) -> dict[str, Any]:
    body = {"text": prompt, "position": -1, "target_token": target, "top": 1000, **how}
    return dict(live.data("POST", "/api/attribution", body))


def pearson(found: Sequence[float], true: Sequence[float]) -> float:
    return statistics.correlation(found, true)


if __name__ == "__main__":
    main()
