"""GGUF files of real models through the service: their prompts beside transformers', their answers beside those of
llama.cpp alone, and the distance of both from float32 over the numbers that the file stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tools.real.models import RealModel
from torch import Tensor

from steerserve.rules.models.nearness import WRONG_RATIO
from tests import llama_cpp
from tests.real.asking import GGUF, TOP, RealService, Scores, states
from tests.real.figures import Figures, pooled
from tests.real.reference import Reference

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(llama_cpp.library() is None, reason="llama.cpp cannot be called alone"),
]

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "Answer in one sentence, as a captain would."},
        {"role": "user", "content": "How deep is the harbour?"},
        {"role": "assistant", "content": "Deep enough for you, at 12% more than last year…"},
        {"role": "user", "content": "And the river?\n\n"},
    ],
]
COUNT = 12


@pytest.fixture
def file(service: RealService, real: RealModel) -> RealService:
    """The service with the GGUF file of the model."""
    service.load(real, GGUF)
    return service


def chat_text(reference: Reference, chat: list[dict[str, Any]]) -> str:
    text: str = reference.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    return text


def less_probable(reference: Reference, prompt: list[int], written: list[int]) -> Tensor:
    """By how many nats each written token is less probable in float32 than the most probable one."""
    state = reference.true.states(prompt + written[:-1])[len(prompt) - 1 :]
    logits = torch.cat([part for _, part in reference.true.logits(state)])
    best: Tensor = logits.max(-1).values
    return best - logits.gather(1, torch.tensor(written)[:, None])[:, 0]


def test_a_file_has_the_prompts_and_the_tokens_of_its_checkpoint(
    file: RealService, real: RealModel, reference: Reference, prose: list[str]
) -> None:
    for text in (sample[:4000] for sample in prose[::40]):
        told = file.live.data("POST", "/api/tokenize", {"text": text})
        assert told["ids"] == reference.tokenizer(text)["input_ids"]
    for chat in CHATS if real.is_chat else []:
        told = file.live.data("POST", "/api/tokenize", {"messages": chat})
        text = chat_text(reference, chat)
        assert told["text"] == text
        assert told["ids"] == reference.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_file_writes_what_float32_may_write_and_so_does_llama_cpp_alone(
    file: RealService,
    real: RealModel,
    reference: Reference,
    prose: list[str],
    figures: Figures,
) -> None:
    """llama.cpp rounds what it multiplies by quantized weights, so it is farther from float32 than the library's pass
    in bfloat16, by about twice. Where two tokens are nearly as probable, it may write the other one."""
    texts = [sample[:1200] for sample in prose[5:300:60]]
    texts += [chat_text(reference, chat) for chat in CHATS if real.is_chat]
    parts, short = [], dict[str, list[Tensor]](served=[], alone=[])
    for text in texts:
        prompt = reference.tokenizer(text)["input_ids"]
        (alone,) = llama_cpp.continued(real.gguf, prompt, COUNT, [None])
        answer = file.complete(prompt, max_tokens=COUNT)["choices"][0]["text"]
        written = reference.tokenizer(answer, add_special_tokens=False)["input_ids"]
        short["served"].append(less_probable(reference, prompt, written))
        short["alone"].append(less_probable(reference, prompt, alone.tokens))
        likely = torch.tensor(alone.logprobs, dtype=torch.float32).topk(TOP)
        places = [len(prompt) - 1 + at for at in range(COUNT)]
        scores = Scores(places, likely.indices, likely.values)
        parts.append(scores.off(reference, states(reference, prompt + alone.tokens[:-1])))
    served, plain = (torch.cat(parts) for parts in short.values())
    figures.note(
        real.name,
        f"{GGUF}, nats below the most probable token",
        served=[float(served.mean()), float(served.max())],
        alone=[float(plain.mean()), float(plain.max())],
    )
    assert served.mean() < max(2 * plain.mean(), 0.02)
    assert served.max() < 1.0
    found = figures.compare(real.name, f"{GGUF}, answers", *pooled(parts))
    assert found.served.mean < WRONG_RATIO * found.library.mean
    assert found.served.high < WRONG_RATIO * found.library.high
