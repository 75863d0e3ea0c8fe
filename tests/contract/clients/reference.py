"""What transformers computes for the demo model, as JSON on standard output. The clients that score compare with it.

Run with the project's own environment, which has the tensor library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from steerserve import demo

STORIES = Path(__file__).parent / "stories.json"
STORY = "Tell me a story."
TEXTS = ["The old fisherman walked down to the sea.", "One day the farmer went to the barn."]


class Reference:
    """The demo model as transformers runs it."""

    def __init__(self) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
        self.model: Any = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR)

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """Log-probabilities [T, vocabulary] after each token."""
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0].float()
        return logits.log_softmax(-1)

    def likelihood(self, context: str, continuation: str) -> float:
        """The log-probability of a continuation, summed over its tokens."""
        begun = len(self.tokenizer(context)["input_ids"])
        ids = self.tokenizer(context + continuation)["input_ids"]
        after = self.logprobs(ids)
        return sum(float(after[at - 1, ids[at]]) for at in range(begun, len(ids)))

    def whole(self, text: str) -> float:
        """The log-probability of a text behind the token that begins every text."""
        ids = self.tokenizer(text)["input_ids"]
        after = self.logprobs(ids)
        return sum(float(after[at, token]) for at, token in enumerate(ids[1:]))

    def chat(self, text: str) -> dict[str, float]:
        """The most probable first tokens of the answer to a message."""
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        best = self.logprobs(ids)[-1].topk(20)
        return {
            self.tokenizer.decode([token]): value
            for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        }


def main() -> None:
    transformers_logging.disable_progress_bar()
    reference = Reference()
    stories = json.loads(STORIES.read_text())
    told = {
        "stories": [
            [reference.likelihood(one["query"], f" {choice}") for choice in one["choices"]]
            for one in stories
        ],
        "texts": {text: reference.whole(text) for text in TEXTS},
        "chat": {STORY: reference.chat(STORY)},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
