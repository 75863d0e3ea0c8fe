"""The proof: turning the sea feature up over the API sends the demo model's stories to sea, and keeps them fluent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from steerserve import demo
from steerserve.demo.corpus import topic_share
from tests.service import Running, running

STORIES = 40
PROOF = demo.proof()
SAMPLING = {
    "temperature": PROOF["sampling"]["temperature"],
    "top_p": PROOF["sampling"]["top_p"],
    "max_tokens": int(PROOF["sampling"]["max_new_tokens"]),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """What `steerserve demo` makes ready: the demo model with its SAE attached."""
    with running(tmp_path_factory.mktemp("demo"), demo=True) as live:
        while not live.data("GET", "/api/health/ready")["sae_attached"]:
            pass
        yield live


def stories(live: Running, prompt: dict[str, Any]) -> list[str]:
    """Forty sampled stories from a prompt without a topic, in seeded batches."""
    texts: list[str] = []
    while len(texts) < STORIES:
        count = min(8, STORIES - len(texts))
        fields = SAMPLING | {"seed": len(texts), "model": demo.MODEL_NAME}
        if prompt["kind"] == "chat":
            body = fields | {"messages": prompt["messages"], "n": count}
            answer = live.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            texts += [c["message"]["content"] for c in answer.json()["choices"]]
        else:
            for offset in range(count):
                body = fields | {"prompt": prompt["text"], "seed": len(texts) + 1000 * offset}
                answer = live.http.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
                texts.append(answer.json()["choices"][0]["text"])
    return texts


def mean_loss(texts: list[str]) -> float:
    """Nats per token of the texts, as told by the unsteered model."""
    tokenizer = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR, dtype=torch.float32)
    messages = [{"role": "user", "content": "Tell me a story."}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    losses = []
    with torch.inference_mode():
        for text in texts:
            ids = prompt + tokenizer(text, add_special_tokens=False)["input_ids"]
            logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
            target = torch.tensor(ids[len(prompt) :])
            losses.append(float(torch.nn.functional.cross_entropy(logits, target)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("prompt", [row["prompt"] for row in PROOF["prompts"]])
def test_the_sea_feature_sends_stories_to_sea_and_zero_is_bitwise_nothing(
    served: Running, prompt: dict[str, Any]
) -> None:
    steering = "/api/saes/steering"
    before = stories(served, prompt)
    served.data("POST", steering, {"feature_idx": PROOF["feature_idx"], "value": PROOF["strength"]})
    after = stories(served, prompt)
    served.data("POST", steering, {"feature_idx": PROOF["feature_idx"], "value": 0})
    zero = stories(served, prompt)
    served.data("DELETE", steering)
    print(json.dumps({"before": topic_share(before, "sea"), "after": topic_share(after, "sea")}))
    assert topic_share(before, "sea") < 0.25
    assert topic_share(after, "sea") > 0.75
    assert zero == before
    if prompt["kind"] == "chat":
        assert mean_loss(after) <= demo.report()["fluency"]["bound"]
