"""What an architecture's name says a checkpoint can do."""

from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from steerserve.rules import architecture

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
    with pytest.raises(Refusal) as refused:
        architecture.check_generates("org/encoder", name)
    assert refused.value.row.v1 == 400
    assert refused.value.param == "model"
    assert refused.value.details["architecture"] == name
    for word in ("org/encoder", name, "/v1/embeddings"):
        assert word in refused.value.message


def test_a_checkpoint_that_names_no_architecture_is_taken_as_a_language_model() -> None:
    assert not architecture.is_embedding_only(None)
    architecture.check_generates("m", None)


@pytest.mark.parametrize("name", ["ForCausalLMEncoder", "LMHeadModelForTokenClassification", ""])
def test_only_the_end_of_the_name_counts(name: str) -> None:
    assert architecture.is_embedding_only(name)


@pytest.mark.parametrize("name", ["BertGenerationDecoder", "GPT2LMHeadCustomModel"])
def test_a_causal_head_of_an_older_name_can_generate(name: str) -> None:
    assert not architecture.is_embedding_only(name)
