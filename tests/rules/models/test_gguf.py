"""What the names of GGUF files say, what is offered of a repository, and the arithmetic of context and cards."""

from __future__ import annotations

import dataclasses
import time

import pytest

from steerserve.rules.models.gguf import choose, classify, precision_of, tensor_split, variants
from steerserve.rules.models.gguf_header import (
    BATCH,
    EMBED_BATCH,
    Header,
    kv_bytes_per_token,
    logits_bytes,
    longest_context,
    pass_tokens,
    room,
)
from tests.refusals import refusal_of

LABELS = {
    "Llama-3.2-1B-Instruct-Q4_K_M.gguf": "Q4_K_M",
    "llama-2-7b-chat.Q4_K_M.gguf": "Q4_K_M",
    "qwen2.5-0.5b-instruct-q4_k_m.gguf": "Q4_K_M",
    "qwen2-0_5b-instruct-fp16.gguf": "F16",
    "Qwen3-8B-UD-Q4_K_XL.gguf": "UD-Q4_K_XL",
    "UD-Q4_K_XL/DeepSeek-V3-UD-Q4_K_XL-00001-of-00008.gguf": "UD-Q4_K_XL",
    "Q4_K_M/Model-Q4_K_M-00001-of-00003.gguf": "Q4_K_M",
    "BF16/Model-BF16-00002-of-00004.gguf": "BF16",
    "gpt-oss-20b-mxfp4.gguf": "MXFP4",
    "gpt-oss-20b-MXFP4_MOE.gguf": "MXFP4_MOE",
    "model.i1-IQ2_XXS.gguf": "IQ2_XXS",
    "model-IQ4_NL.gguf": "IQ4_NL",
    "gemma-2-9b-it-Q6_K_L.gguf": "Q6_K_L",
    "model-Q4_0_4_4.gguf": "Q4_0_4_4",
    "model-q8_0.gguf": "Q8_0",
    "ggml-model-f16.gguf": "F16",
    "model-bf16-Q4_K_M.gguf": "Q4_K_M",
    "model-Q2_K.gguf": "Q2_K",
    "model-Q2_K_L.gguf": "Q2_K_L",
    "model.gguf": None,
    "tinyllama-1.1b-chat-v1.0.Q5_K_S.gguf": "Q5_K_S",
    "Phi-3-mini-4k-instruct-q4.gguf": None,
    "bitnet-TQ1_0.gguf": "TQ1_0",
    "sub/Q8_0/weights-00001-of-00002.gguf": "Q8_0",
    "Q8_0/deep/weights.gguf": "Q8_0",
    "Model-IQ3_M.gguf": "IQ3_M",
    "model-Q3_K_XL.gguf": "Q3_K_XL",
    "gemma-3-4b-it-q4_0.gguf": "Q4_0",
    "x.Q8_K_XL.gguf": "Q8_K_XL",
    "model_Q4_K_M.gguf": "Q4_K_M",
    "QWQ-32B-IQ4_XS.gguf": "IQ4_XS",
    "F16.gguf": "F16",
    "model-F32.GGUF": "F32",
    "llama-nvfp4.gguf": "NVFP4",
    "MQ4_K_M.gguf": None,
    "Q4_K_MX.gguf": None,
    "model-Q4_K_M-imatrix.gguf": "Q4_K_M",
    "straße-Q8_0.gguf": "Q8_0",
}


@pytest.mark.parametrize(("path", "label"), LABELS.items())
def test_a_label_is_the_last_one_of_the_name(path: str, label: str | None) -> None:
    named = classify(path)
    assert (named.kind, named.label) == ("model", label)


KINDS = {
    "mmproj-F16.gguf": "projector",
    "Qwen2-VL-mmproj-f16.gguf": "projector",
    "model-vision-adapter.gguf": "projector",
    "imatrix.dat": "other",
    "imatrix_unsloth.gguf_file": "other",
    "Model-imatrix.gguf": "importance_matrix",
    "ggml-vocab-llama.gguf": "vocabulary",
    "adapter-lora-F16.gguf": "adapter",
    "README.md": "other",
    "model.gguf.part1of2": "other",
    "flora-Q4_K_M.gguf": "model",
}


@pytest.mark.parametrize(("path", "kind"), KINDS.items())
def test_what_is_no_model_is_told_by_its_name(path: str, kind: str) -> None:
    assert classify(path).kind == kind


def test_variants_are_whole_and_the_smallest_comes_first() -> None:
    found = variants(
        [
            ("README.md", 5),
            ("a-Q8_0.gguf", 80),
            ("a-Q4_K_M.gguf", 40),
            ("F16/a-F16-00002-of-00002.gguf", 70),
            ("F16/a-F16-00001-of-00002.gguf", 90),
            ("mmproj-F16.gguf", 3),
            ("Q2_K/a-Q2_K-00001-of-00003.gguf", 1),
            ("Q2_K/a-Q2_K-00003-of-00003.gguf", 1),
            ("x.gguf", 200),
        ]
    )
    assert [(v.name, v.total_bytes) for v in found.variants] == [
        ("Q4_K_M", 40),
        ("Q8_0", 80),
        ("F16", 160),
        ("x", 200),
    ]
    whole = found.variants[2]
    assert [f.path for f in whole.files] == [
        "F16/a-F16-00001-of-00002.gguf",
        "F16/a-F16-00002-of-00002.gguf",
    ]
    assert whole.is_split
    assert whole.quant_parsed
    assert not found.variants[3].quant_parsed
    (problem,) = found.problems
    assert (problem.kind, problem.name, len(problem.paths)) == ("incomplete", "Q2_K", 2)
    assert [f.path for f in found.companions] == ["mmproj-F16.gguf"]


@pytest.mark.parametrize(
    "paths",
    [
        ["a-Q8_0.gguf", "b-Q8_0.gguf"],
        ["a-q8_0.gguf", "sub/a-Q8_0.gguf"],
        ["a-Q8_0.gguf", "a-Q8_0-00001-of-00001.gguf"],
    ],
)
def test_one_label_for_two_models_is_ambiguous(paths: list[str]) -> None:
    found = variants([("c-Q4_0.gguf", 1), *((path, 9) for path in paths)])
    assert [v.name for v in found.variants] == ["Q4_0"]
    (problem,) = found.problems
    assert (problem.kind, problem.name) == ("ambiguous", "Q8_0")
    assert sorted(problem.paths) == sorted(paths)


def test_a_label_is_chosen_exactly_but_for_its_case() -> None:
    found = variants([("a-Q2_K.gguf", 1), ("a-Q2_K_L.gguf", 2), ("a-UD-Q4_K_XL.gguf", 3)])
    assert choose(found, "q2_k").files[0].path == "a-Q2_K.gguf"
    assert choose(found, "ud-q4_k_xl").label == "UD-Q4_K_XL"
    for wrong in ("Q4_K_XL", "Q2", "", "q2_k%"):
        refusal = refusal_of(choose, found, wrong)
        assert (refusal.code, refusal.param) == ("VALIDATION_ERROR", "gguf_label")
        assert refusal.details["available"] == ["Q2_K", "Q2_K_L", "UD-Q4_K_XL"]


PRECISIONS = {
    "FP16": "F16 BF16 F32 FP16 F64",
    "Q8": "Q8_0 Q6_K Q6_K_L Q5_K_S Q5_1 UD-Q8_K_XL",
    "Q4": "Q4_K_M Q4_0 IQ4_XS IQ3_M Q3_K_XL UD-Q3_K_XL MXFP4 MXFP4_MOE NVFP4 Q4_0_4_4",
    "Q2": "Q2_K IQ2_XXS IQ1_S UD-IQ1_M TQ1_0 TQ2_0 Q1_0",
}


@pytest.mark.parametrize(
    ("label", "precision"), [(one, p) for p, labels in PRECISIONS.items() for one in labels.split()]
)
def test_a_precision_is_the_bits_of_a_weight(label: str, precision: str) -> None:
    assert precision_of(label) == precision
    assert precision_of(label.lower()) == precision


def test_what_names_no_label_is_unquantized() -> None:
    assert precision_of(None) == precision_of("unknown") == "FP16"


def test_proportions_are_one_for_each_card() -> None:
    assert tensor_split("", 0) is None
    assert tensor_split("  ", 4) is None
    assert tensor_split("3,1", 2) == (3.0, 1.0)
    assert tensor_split(" 0.5 , 0 ,1e1", 3) == (0.5, 0.0, 10.0)


@pytest.mark.shows("resource-errors.6")
@pytest.mark.parametrize(
    "text", ["1", "1,1,1", "1,", "a,b", "-1,2", "nan,1", "inf,1", "0,0", "1;1", "1e308,1e308"]
)
def test_proportions_that_fit_no_cards_are_refused(text: str) -> None:
    refusal = refusal_of(tensor_split, text, 2)
    assert refusal.code == "INVALID_GGUF_TENSOR_SPLIT"
    assert refusal.details == {"cards": 2}


# ------------------------------------------------------------- the room for context

HEADER = Header(
    architecture="llama", name=None, parameters=1, context_length=131_072, layers=4, hidden_size=256,
    heads=4, kv_heads=(2, 2, 0, 1), key_length=64, value_length=32, vocabulary=10, longest_token=4,
    label="Q8_0", chat_template=None, bos_id=1, eos_id=2, bos_token="<s>", eos_token="</s>",
    is_embedding_only=False, shards=1, size_bytes=1, missing_bytes=0, tensor_bytes=1, embedding_bytes=1,
)  # fmt: skip
EACH = 5 * (64 + 32) * 2


def test_a_token_takes_the_heads_of_every_layer() -> None:
    assert kv_bytes_per_token(HEADER, "f16") == EACH
    assert kv_bytes_per_token(HEADER, "q8_0") == 5 * (64 + 32) * 34 // 32


def given(kv_tokens: int, **fields: int) -> tuple[int, int]:
    wanted = {"ceiling": 0, "slots": 4, "least": 4096, **fields}
    found = room(HEADER, kv_bytes=kv_tokens * EACH, cache_type="f16", **wanted)
    return found.context, found.pool


def test_the_context_is_the_least_of_file_setting_and_memory() -> None:
    assert given(10**7) == (131_072, 4 * 131_072)
    assert given(10**7, ceiling=32_768) == (32_768, 4 * 32_768)
    assert given(10**7, ceiling=10_000) == (10_000, 4 * 10_240)
    assert given(50_000, ceiling=32_768) == (32_768, 49_920)
    assert given(20_000, ceiling=32_768) == (19_968, 19_968)


def test_less_than_the_least_context_is_refused() -> None:
    assert given(4096) == (4096, 4096)
    refusal = refusal_of(given, 4095)
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert refusal.details["min_context_tokens"] == 4096
    # a model or a setting with less needs no more
    assert given(600, ceiling=512) == (512, 512)


def test_a_model_without_a_cache_is_bounded_by_the_setting_alone() -> None:
    recurrent = dataclasses.replace(HEADER, kv_heads=(0, 0, 0, 0), context_length=None)
    found = room(recurrent, kv_bytes=0, cache_type="f16", ceiling=1000, slots=2, least=4096)
    assert (found.context, found.pool) == (1000, 2048)


ENCODER = dataclasses.replace(HEADER, is_embedding_only=True, context_length=8192)


def test_a_pass_is_a_whole_text_where_texts_are_embedded() -> None:
    assert pass_tokens(HEADER, 8192, embeds=False) == BATCH
    assert pass_tokens(HEADER, 8192, embeds=True) == EMBED_BATCH
    assert pass_tokens(HEADER, 700, embeds=True) == 700
    # half a GiB of logits for 1,000 tokens
    wide = dataclasses.replace(HEADER, vocabulary=(1 << 29) // 4000)
    assert pass_tokens(wide, 8192, embeds=True) == 1000
    assert logits_bytes(wide, 1000, embeds=True) == 8000 * wide.vocabulary
    assert logits_bytes(wide, 1000, embeds=False) == 0


def test_an_encoder_takes_its_whole_context_in_one_pass_and_has_no_logits() -> None:
    assert pass_tokens(ENCODER, 8192, embeds=True) == 8192
    assert logits_bytes(ENCODER, 8192, embeds=True) == 0


def test_a_context_is_what_file_and_ceiling_allow() -> None:
    assert longest_context(ENCODER, 0, 4096) == 8192
    assert longest_context(ENCODER, 1000, 4096) == 1000
    silent = dataclasses.replace(ENCODER, context_length=None)
    assert longest_context(silent, 32_768, 4096) == BATCH
    assert longest_context(dataclasses.replace(HEADER, context_length=None), 0, 4096) == 4096


def test_names_that_count_a_hundred_thousand_files_cost_no_time() -> None:
    """A listing may have many such names, and none of the models is whole."""
    files = [(f"m{n}-Q8_0-00001-of-99999.gguf", 1) for n in range(2000)]
    started = time.thread_time()
    offers = variants(files)
    assert time.thread_time() - started < 5
    assert (len(offers.variants), len(offers.problems)) == (0, 2000)
