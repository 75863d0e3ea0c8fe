"""What an architecture's name says a checkpoint can do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from steerserve.rules.models import architecture
from tests.refusals import refusal_of

GENERATES = (
    "LlamaForCausalLM Gemma2ForCausalLM GPTNeoXForCausalLM Qwen3MoeForCausalLM BertForCausalLM "
    "GPT2LMHeadModel OpenAIGPTLMHeadModel XLNetLMHeadModel XLMWithLMHeadModel BertLMHeadModel "
    "QWenLMHeadModel Gemma3ForConditionalGeneration T5ForConditionalGeneration ChatGLMModel "
    "ChatGLMForConditionalGeneration MambaForCausalLM RwkvForCausalLM Phi3SmallForCausalLM"
).split()
ONLY_EMBEDS = (
    "BertModel RobertaModel XLMRobertaModel NomicBertModel MPNetModel DistilBertModel LlamaModel "
    "MistralModel T5EncoderModel T5Model ModernBertModel BertForMaskedLM "
    "BertForSequenceClassification Qwen2ForSequenceClassification CLIPTextModel GPT2Model"
).split()


@pytest.mark.parametrize("name", GENERATES)
def test_a_head_that_says_the_next_token_can_generate(name: str) -> None:
    assert not architecture.is_embedding_only(name)
    architecture.check_generates("m", name)


@pytest.mark.parametrize("name", ONLY_EMBEDS)
def test_a_checkpoint_without_such_a_head_is_refused_by_model(name: str) -> None:
    assert architecture.is_embedding_only(name)
    refusal = refusal_of(architecture.check_generates, "org/encoder", name)
    assert refusal.row.v1 == 400
    assert refusal.param == "model"
    assert refusal.details["architecture"] == name
    for word in ("org/encoder", name, "/v1/embeddings"):
        assert word in refusal.message


def test_a_checkpoint_that_names_no_architecture_is_taken_as_a_language_model() -> None:
    assert not architecture.is_embedding_only(None)
    architecture.check_generates("m", None)


@pytest.mark.parametrize("name", ["ForCausalLMEncoder", "LMHeadModelForTokenClassification", ""])
def test_only_the_end_of_the_name_counts(name: str) -> None:
    assert architecture.is_embedding_only(name)


@pytest.mark.parametrize("name", ["BertGenerationDecoder", "GPT2LMHeadCustomModel"])
def test_a_causal_head_of_an_older_name_can_generate(name: str) -> None:
    assert not architecture.is_embedding_only(name)


LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("fields", "longest", "first"),
    [
        ({}, 2048, None),
        ({"max_position_embeddings": 256}, 256, None),
        ({"max_position_embeddings": 256, "rope_parameters": {"rope_type": "linear"}}, 256, None),
        ({"max_position_embeddings": 256, "rope_parameters": LONG}, 256, 64),
        ({"max_position_embeddings": 64, "rope_parameters": LONG}, 64, None),
        (
            {
                "max_position_embeddings": 256,
                "rope_parameters": {"rope_type": "longrope"},
                "original_max_position_embeddings": 128,
            },
            256,
            128,
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, 2048, None),
    ],
)
def test_the_context_is_whole_and_a_first_range_is_named(
    fields: dict[str, Any], longest: int, first: int | None
) -> None:
    text = SimpleNamespace(**fields)
    assert architecture.max_context(text) == longest
    assert architecture.first_range(text) == first
