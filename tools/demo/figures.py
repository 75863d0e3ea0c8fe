"""The figures of the demo: the proof that a feature steers, the report and the data folder's note.

This module defines the measurements and the form of the report. The tests use the bounds below.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo.corpus import render, topic_share
from tools.demo.grammar import TOPICS
from tools.demo.steering import StorySampling, continuation_loss, sample

SHARE_BEFORE_LIMIT = 0.25
SHARE_AFTER_AIM = 0.75
PROOF_SAMPLES = 40
PROOF_SEED = 20_000
PROMPTS: tuple[dict[str, Any], ...] = (
    {"kind": "chat", "messages": [{"role": "user", "content": "Tell me a story."}]},
    {"kind": "text", "text": "One day"},
)

README = """\
# The demo model's data

What is here: a Llama-architecture model of {parameters:,} parameters that writes little stories and
answers little chats (`model/`), two sparse autoencoders on its residual stream (`saes/`, SAELens
layout, with labels), what their features do over an example corpus (`corpus.msgpack.xz`, made by
`python -m tools.demo.corpus_results`), and the figures measured when they were made (`report.json`).

How it was made: `python -m tools.demo.build` regenerates everything in this folder from seeds,
on two CPU cores, in about {minutes:.0f} minutes. The corpus is spun from a grammar written for this
project; no other text, model or data set went in.

Held-out loss {loss:.3f} nats per token. The proof: adding feature {feature} of `{sae}` at strength
{strength:g} raises the share of stories with sea words from {before} to {after}.

Licence: Apache-2.0, as the rest of steerserve.
"""


def prompt_ids(prompt: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The token ids of a prompt, with BOS."""
    if prompt["kind"] == "chat":
        text = render(prompt["messages"], add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokenizer(prompt["text"])["input_ids"]


@dataclass(frozen=True, slots=True)
class Draws:
    """Stories drawn from one prompt, their mean loss in nats per token, and the share of stories that ended."""

    texts: list[str]
    loss: float
    ended: float


@dataclass(frozen=True, slots=True)
class StorySampler:
    """Draws the stories of every measurement, from the model, its tokenizer and the sampling options."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    sampling: StorySampling

    def draws(
        self, number: int, layer: int = 0, vector: Tensor | None = None, rows: int = PROOF_SAMPLES
    ) -> Draws:
        """Draw stories from prompt `number`, with `vector` [d_in] added after a layer."""
        ids = prompt_ids(PROMPTS[number], self.tokenizer)
        vectors = None if vector is None else vector.expand(rows, -1)
        drawn = sample(self.model, ids, rows, self.sampling, PROOF_SEED + number, layer, vectors)
        losses = continuation_loss(self.model, ids, drawn)
        ended = sum(row[-1] == self.model.config.eos_token_id for row in drawn) / rows
        texts = self.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        return Draws(texts, sum(losses) / rows, ended)

    def unsteered(self) -> list[Draws]:
        """Draw stories from each prompt without steering."""
        return [self.draws(number) for number in range(len(PROMPTS))]

    def answers(self, question: str, count: int, seed: int) -> list[str]:
        """Draw answers to a question, which is the only message of its chat."""
        prompt = {"kind": "chat", "messages": [{"role": "user", "content": question}]}
        ids = prompt_ids(prompt, self.tokenizer)
        drawn = sample(self.model, ids, count, self.sampling, seed)
        return self.tokenizer.batch_decode(drawn, skip_special_tokens=True)

    def abilities(self) -> dict[str, float]:
        """The share of requested stories with words of their topic, and the share of requested cards that are JSON
        objects."""
        kept, parsed = 0.0, 0.0
        for number, (name, topic) in enumerate(TOPICS.items()):
            stories = self.answers(f"Tell me a story about {topic.phrase}.", 8, 30_000 + number)
            kept += topic_share(stories, name) / len(TOPICS)
            cards = self.answers(f"Give me a JSON card about {topic.phrase}.", 4, 40_000 + number)
            parsed += sum(map(is_json_object, cards)) / len(cards) / len(TOPICS)
        return {"asked_topic_share": round(kept, 4), "json_card_share": round(parsed, 4)}


def is_json_object(text: str) -> bool:
    """Whether the text is one JSON object and nothing else."""
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


def prove(
    measure: StorySampler, topic: str, unsteered: Sequence[Draws], layer: int, vector: Tensor
) -> list[dict[str, Any]]:
    """The shares and losses of each prompt, without steering and with `vector` [d_in] added after a layer."""
    rows = []
    for number, before in enumerate(unsteered):
        after = measure.draws(number, layer, vector)
        rows.append(
            {
                "prompt": PROMPTS[number],
                "seed": PROOF_SEED + number,
                "share_before": topic_share(before.texts, topic),
                "share_after": topic_share(after.texts, topic),
                "loss_before": round(before.loss, 4),
                "loss_after": round(after.loss, 4),
                "ended_before": before.ended,
                "ended_after": after.ended,
                "example_after": after.texts[0],
            }
        )
    return rows


def holds(rows: Sequence[dict[str, Any]], bound: float) -> bool:
    """Whether every prompt meets the shares and the fluency bound."""
    return all(
        row["share_before"] < SHARE_BEFORE_LIMIT
        and row["share_after"] > SHARE_AFTER_AIM
        and row["loss_after"] <= bound
        for row in rows
    )


def machine() -> dict[str, Any]:
    """The processor, its cores and the library versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write report.json and README.md into the data folder."""
    report["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    proof, seconds = report["proof"], report["wall_seconds"]
    note = README.format(
        parameters=report["model"]["parameters"],
        minutes=sum(seconds.values()) / 60,
        loss=report["model"]["held_out_loss"],
        feature=proof["feature_idx"],
        sae=proof["sae"],
        strength=proof["strength"],
        before=" and ".join(f"{row['share_before']:.0%}" for row in proof["prompts"]),
        after=" and ".join(f"{row['share_after']:.0%}" for row in proof["prompts"]),
    )
    (folder / "README.md").write_text(note, encoding="utf-8")
