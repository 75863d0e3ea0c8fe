"""The shipped demo files: sizes, shapes, the tokenizer, and the figures they were built to meet."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tools.demo.co_activation import soon, spearman
from tools.demo.corpus import SPECIAL_TOKENS, render, take, topic_share
from tools.demo.documents import EFFECT_OVER_CONTROL, LEAST_EFFECT
from tools.demo.figures import holds, prompt_ids
from tools.demo.language_model import load_model, token_losses
from tools.demo.sae import load_sae, residuals, sae_figures
from tools.demo.steering import StorySampling, sample
from transformers import AutoTokenizer, LlamaForCausalLM

from steerserve import demo

SAES = demo.saes()
SAE_IDS = [sae.name for sae in SAES]
TOKENIZER = AutoTokenizer.from_pretrained(demo.MODEL_DIR)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return load_model(demo.MODEL_DIR)


def test_everything_together_is_under_twelve_megabytes() -> None:
    files = [path for path in demo.DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 12_000_000


def test_the_layout() -> None:
    assert {path.name for path in demo.MODEL_DIR.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert SAE_IDS == ["resid_post_layer_2", "resid_post_layer_3"]
    for sae in SAES:
        assert {path.name for path in sae.path.iterdir()} == {
            "cfg.json",
            "sae_weights.safetensors",
            "labels.json",
        }


def test_the_weights_are_bfloat16_and_the_architecture_is_llama() -> None:
    config = json.loads((demo.MODEL_DIR / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 1024
    assert config["tie_word_embeddings"]
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    with safe_open(demo.MODEL_DIR / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in list(file.keys())} == {torch.bfloat16}


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips(text: str) -> None:
    if any(token in text for token in SPECIAL_TOKENS):
        return
    ids = TOKENIZER(text)["input_ids"]
    assert ids.count(TOKENIZER.bos_token_id) == 1
    assert ids[0] == TOKENIZER.bos_token_id
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


def test_the_chat_template_says_what_the_corpus_was_rendered_with() -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi\n"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Tell me a story."},
    ]
    for prompted in (False, True):
        text = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompted)
        assert text == render(chat, prompted)
        ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        assert ids.count(TOKENIZER.bos_token_id) == 1


def test_the_chat_template_bears_other_roles_and_content_parts() -> None:
    chat: list[dict[str, Any]] = [
        {"role": "developer", "content": "D"},
        {"role": "tool", "content": "T"},
        {"role": "function", "content": [{"type": "text", "text": "F"}]},
        {"role": "assistant", "content": None},
    ]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == ("<s><|system|>D</s><|user|>T</s><|user|>F</s><|assistant|></s><|assistant|>")


@pytest.mark.parametrize("sae", SAES, ids=SAE_IDS)
def test_the_saes_have_the_claimed_shapes_and_unit_decoder_rows(sae: demo.DemoSae) -> None:
    config = json.loads((sae.path / "cfg.json").read_text())
    made = load_sae(sae.path)
    d_in, d_sae = config["d_in"], config["d_sae"]
    assert d_sae >= 1024
    assert made.W_enc.shape == (d_in, d_sae)
    assert made.W_dec.shape == (d_sae, d_in)
    assert made.b_enc.shape == (d_sae,)
    assert made.b_dec.shape == (d_in,)
    assert (made.threshold is not None) == (config["architecture"] == "jumprelu")
    assert made.threshold is None or made.threshold.shape == (d_sae,)
    torch.testing.assert_close(made.W_dec.norm(dim=1), torch.ones(d_sae), atol=1e-4, rtol=0)
    assert config["metadata"]["hook_name"] == f"blocks.{sae.layer}.hook_resid_post"
    assert config["metadata"]["model_name"] == demo.MODEL_NAME


@pytest.mark.parametrize("sae", SAES, ids=SAE_IDS)
def test_the_labels_name_features_that_exist(sae: demo.DemoSae) -> None:
    d_sae = json.loads((sae.path / "cfg.json").read_text())["d_sae"]
    labels = demo.labels(sae)
    assert len(labels) > d_sae / 2
    for feature, entry in labels.items():
        assert 0 <= feature < d_sae
        assert entry["label"]
        assert entry["max_activation"] > 0
        assert 0 < entry["frequency"] <= 1
        assert -200 <= entry.get("strength", 0) <= 200


def test_the_report_meets_the_aims() -> None:
    report = demo.report()
    assert report["model"]["held_out_loss"] < 1.0
    by_position = report["model"]["loss_by_position"]
    assert by_position["positions_768_to_1023"] < by_position["positions_1_to_256"] + 0.1
    assert set(report["saes"]) == set(SAE_IDS)
    for numbers in report["saes"].values():
        assert numbers["fvu"] < 0.1
        assert numbers["l0"] < 32
        assert numbers["dead_share"] < 0.1
    assert report["abilities"]["asked_topic_share"] > 0.9


def test_the_proof_holds_and_its_feature_is_found_by_label() -> None:
    report, proof = demo.report(), demo.proof()
    assert proof["topic"] == "sea"
    assert holds(proof["prompts"], report["fluency"]["bound"])
    sae = next(sae for sae in SAES if sae.name == proof["sae"])
    entry = demo.labels(sae)[proof["feature_idx"]]
    assert entry["label"] == "sea"
    assert entry["strength"] == proof["strength"]
    assert len(report["topics"]) >= 5


def test_the_model_has_learnt_the_corpus_up_to_the_last_position(model: LlamaForCausalLM) -> None:
    documents = take(99, 40)
    ids = TOKENIZER([doc.text for doc in documents], add_special_tokens=False)["input_ids"]
    row = torch.tensor([[token for document in ids for token in document][:1024]])
    with torch.no_grad():
        assert float(token_losses(model, row)[0, -256:].mean()) < 1.0


@pytest.mark.parametrize("sae", SAES, ids=SAE_IDS)
def test_the_saes_explain_the_residual_stream(model: LlamaForCausalLM, sae: demo.DemoSae) -> None:
    documents = take(98, 30)
    ids = TOKENIZER([doc.text for doc in documents], add_special_tokens=False)["input_ids"]
    x, _tokens = residuals(model, ids, [sae.layer])
    numbers = sae_figures(load_sae(sae.path), x[sae.layer])
    assert numbers["fvu"] < 0.12
    assert numbers["l0"] < 32


def test_the_sea_feature_still_steers(model: LlamaForCausalLM) -> None:
    proof = demo.proof()
    sae = next(sae for sae in SAES if sae.name == proof["sae"])
    vector = proof["strength"] * load_sae(sae.path).W_dec[proof["feature_idx"]]
    sampling = StorySampling(**{**proof["sampling"], "max_new_tokens": 80})
    ids = prompt_ids(proof["prompts"][0]["prompt"], TOKENIZER)
    plain = sample(model, ids, 16, sampling, seed=1)
    steered = sample(model, ids, 16, sampling, 1, proof["layer"], vector.expand(16, -1))
    share = [topic_share(TOKENIZER.batch_decode(rows), "sea") for rows in (plain, steered)]
    assert share[0] < 0.4
    assert share[1] > 0.6


def test_the_example_documents_are_of_the_shipped_saes_and_their_edges_are_measured() -> None:
    cluster, circuit = (json.loads(path.read_text()) for path in (demo.CLUSTER, demo.CIRCUIT))
    labels = {sae.layer: demo.labels(sae) for sae in SAES}
    members = [(cluster["sae"]["layer"], one) for one in cluster["members"]]
    members += [(one["layer"], one["feature"]) for one in circuit["members"]]
    for layer, member in members:
        assert member["label"] == labels[layer][member["feature_idx"]]["label"]
        assert member["label"].startswith("sea")
        assert member["max_activation"] > 0
    assert circuit["edges"]
    for edge in circuit["edges"]:
        assert edge["rung"] == 2
        assert edge["effect_size"] >= LEAST_EFFECT
        assert edge["effect_size"] >= EFFECT_OVER_CONTROL * abs(edge["effect_of_control"])


def test_an_edge_is_measured_over_the_next_tokens_of_one_document() -> None:
    fires = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0], dtype=torch.bool)
    assert soon(fires, [4, 8]).tolist() == [True, True, False, False, True, True, False, False]
    before = [False, False, False, True, False, False, False, True]
    assert soon(fires, [4, 8], is_before=True).tolist() == before
    assert spearman(
        torch.tensor([1.0, 2.0, 2.0, 5.0]), torch.tensor([0.0, 3.0, 3.0, 9.0])
    ) == pytest.approx(1)
