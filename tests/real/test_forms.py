"""Real models in every precision: which ways compute them, the scores of texts, and greedy texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import bitsandbytes.functional as bnb
import pytest
import torch
from tools.real.models import RealModel
from torch import Tensor

from tests.real.asking import RealService, states
from tests.real.figures import Figures, pooled
from tests.real.reference import Reference

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

WRITTEN = 64
SCORED = 260
HEAD = "lm_head"


def eight_bits(weight: Tensor) -> Tensor:
    """The numbers that the codes of LLM.int8 stand for."""
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    return codes.float() * scales[:, None] / 127


def four_bits(weight: Tensor) -> Tensor:
    """The numbers that the codes of nf4 with quantized scales stand for."""
    packed, state = bnb.quantize_4bit(weight.bfloat16(), quant_type="nf4", compress_statistics=True)
    state.dtype = torch.float32
    made: Tensor = bnb.dequantize_4bit(packed, state)
    return made


def head_of_eight_bits(weight: Tensor) -> Tensor:
    """The output head in 8 bits, with a scale for each token."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scales.clamp_min(2.0**-126)).round() * scales


@pytest.fixture(scope="module", params=["FP16", "Q8", "Q4"])
def form(
    request: pytest.FixtureRequest, service: RealService, real: RealModel, reference: Reference
) -> Iterator[str]:
    """The precision in which the model is loaded. The reference has the weights that its codes stand for."""
    name: str = request.param
    service.load(real, name)
    with ExitStack() as stack:
        if name != "FP16":
            change = eight_bits if name == "Q8" else four_bits
            stack.enter_context(reference.weights(lambda label: label != HEAD, change))
        if name != "FP16" and _is_compiled(service):
            stack.enter_context(reference.weights(lambda label: label == HEAD, head_of_eight_bits))
        yield name


def _is_compiled(service: RealService) -> bool:
    health = service.live.data("GET", "/api/health/inference")
    return bool(health["compiled_functions"]["are_used"])


def test_no_fast_way_is_switched_off(
    service: RealService, real: RealModel, reference: Reference, figures: Figures, form: str
) -> None:
    health = service.live.data("GET", "/api/health/inference")
    compiled, exactness = health["compiled_functions"], health["exactness"]
    figures.note(real.name, f"{form}, fast ways", **compiled, exactness=exactness)
    if not compiled["are_used"]:
        pytest.skip(compiled["reason"])
    assert compiled["refused"] == []
    assert compiled["layers"] == reference.layers
    assert health["row_steps"]["are_batched"]
    assert health["seeded_rows"]["are_shared"]
    assert exactness["positions"] >= 300
    assert exactness["is_near"], exactness


def test_scores_of_texts(
    service: RealService,
    real: RealModel,
    reference: Reference,
    figures: Figures,
    prose: list[str],
    form: str,
) -> None:
    if form == "FP16":
        pytest.skip("compared over a longer text by test_answers.py")
    parts = []
    for sample in (20, 120, 320, 420):
        ids = reference.tokenizer(prose[sample])["input_ids"][:SCORED]
        parts.append(service.echo(ids).off(reference, states(reference, ids)))
    found = figures.compare(real.name, f"{form}, scores", *pooled(parts))
    assert found.is_near, str(found)


def test_greedy_texts(
    service: RealService,
    real: RealModel,
    reference: Reference,
    figures: Figures,
    prose: list[str],
    form: str,
) -> None:
    """A token is float32's own, or one that float32 puts less far below its own than bfloat16 is from float32."""
    tokenizer = reference.tokenizer
    prompts = [tokenizer(prose[sample])["input_ids"][:40] for sample in (60, 200)]
    if real.is_chat:
        asked = [{"role": "user", "content": "What is the capital of France?"}]
        rendered = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        prompts.append(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    parts, behind, others = [], [], 0
    for prompt in prompts:
        tokens, scored, _ = service.written(prompt, WRITTEN)
        both = states(reference, prompt + tokens[:-1])
        parts.append(scored.off(reference, both))
        ((_, logits),) = reference.true.logits(both[0][scored.places])
        own = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        behind.append(logits.max(-1).values - own)
        others += int((behind[-1] > 0).sum())
    found = figures.compare(real.name, f"{form}, greedy texts", *pooled(parts))
    margin = float(torch.cat(behind).max())
    figures.note(real.name, f"{form}, other tokens than float32", tokens=others, margin=margin)
    assert found.is_near, str(found)
    assert margin <= 2 * found.library.high
