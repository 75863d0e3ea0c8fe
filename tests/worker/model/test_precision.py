"""Checkpoints at 8 and 4 bits, and checkpoints that were quantized before: they load, steer, score and embed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from steerserve.messages import Overlay, Suppressed
from steerserve.worker.model import packing
from steerserve.worker.model.attention import PartedAttention
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.coded import CodedWeight
from steerserve.worker.model.layers import decoder_layers
from steerserve.worker.model.placement import spread
from steerserve.worker.model.precision import machine
from tests.refusals import refusal_of
from tests.worker import models
from tests.worker.running import (
    Bench,
    alone,
    generated,
    hooked,
    next_logits,
    open_checkpoint,
    random_sae,
    site_of,
    words,
)

WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
"""4 bits come in blocks of 64."""
KEY = "sae@0"
CONFIGS = {
    "Q8": BitsAndBytesConfig(load_in_8bit=True),
    "Q4": BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    ),
}
Opened = Callable[[str], Checkpoint]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save("llama", tmp_path_factory.mktemp("wide") / "llama", **WIDE)


@pytest.fixture(scope="module")
def opened(wide: Path) -> Iterator[Opened]:
    """The wide checkpoint at a precision, loaded once."""
    held: dict[str, Checkpoint] = {}

    def at(quantization: str) -> Checkpoint:
        if quantization not in held:
            held[quantization] = open_checkpoint(wide, quantization)
        return held[quantization]

    yield at
    held.clear()


def code_of(load: Callable[[], object]) -> str:
    refusal = refusal_of(load)
    return refusal.code


def bytes_of(model: Checkpoint) -> int:
    return sum(model.weights.values())


def is_coded(layer: Any) -> bool:
    """Whether a linear layer is held in 8 or 4 bits, by compiled functions or by bitsandbytes."""
    held = list(packing.native_weights(layer))
    return isinstance(held[0], CodedWeight) if held else layer.weight.dtype.itemsize == 1


# ---------------------------------------------------------------- on load


@pytest.mark.parametrize(("quantization", "name"), [("Q8", "int8"), ("Q4", "nf4")])
def test_weights_shrink_and_the_answers_stay_close(
    opened: Opened, quantization: str, name: str
) -> None:
    plain, quantized = opened("FP16"), opened(quantization)
    assert quantized.held.name == name
    assert quantized.parameters == plain.parameters
    assert quantized.dtype == plain.dtype
    assert bytes_of(quantized) < 0.6 * bytes_of(plain)
    ids = plain.encode(words(30), special=True)
    ours, truth = next_logits(quantized, ids), next_logits(plain, ids)
    assert torch.corrcoef(torch.stack([ours, truth]))[0, 1] > 0.7
    assert not torch.equal(ours, truth)


@pytest.mark.parametrize("variant", ["gpt2", "opt", "gemma2", "phi3", "gpt_oss", "mixtral"])
@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_other_architectures_load_quantized(
    tmp_path: Path, variant: str, quantization: str
) -> None:
    model = open_checkpoint(models.save(variant, tmp_path / variant, **WIDE), quantization)
    assert alone(model, words(20), max_tokens=4).finish


@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_an_architecture_without_plain_linear_modules_is_refused(
    tmp_path: Path, quantization: str
) -> None:
    folder = models.save("falcon", tmp_path / "falcon", hidden_size=128)
    assert code_of(lambda: open_checkpoint(folder, quantization)) == "UNSUPPORTED_QUANTIZATION"


def test_a_shape_that_four_bits_do_not_fit_stays_plain(tmp_path: Path) -> None:
    fields = {**WIDE, "intermediate_size": 200}
    model = open_checkpoint(models.save("llama", tmp_path / "odd", **fields), "Q4")
    layer = decoder_layers(model.model, model.layers)[1][0]
    assert not is_coded(layer.mlp.down_proj)
    assert is_coded(layer.self_attn.q_proj)
    assert alone(model, words(20), max_tokens=4).finish


def test_two_bits_are_refused(wide: Path) -> None:
    assert code_of(lambda: open_checkpoint(wide, "Q2")) == "UNSUPPORTED_QUANTIZATION"


@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_a_wrong_mask_is_seen_at_load_whatever_the_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    folder = models.save("mistral", tmp_path / "mistral", **WIDE)
    masks = Checkpoint.masks

    def without_window(model: Checkpoint, positions: Tensor, length: int) -> Any:
        model.window = None
        return masks(model, positions, length)

    monkeypatch.setattr(Checkpoint, "masks", without_window)
    # compiled functions read no masks
    monkeypatch.setattr(PartedAttention, "window", lambda *_: 0)
    model = open_checkpoint(folder, quantization)
    assert not model.row_steps.are_batched
    assert "do not give right logits" in model.row_steps.reason


@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_no_line_is_written_per_layer_and_call(
    wide: Path, quantization: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_checkpoint(wide, quantization)
    assert [record for record in caplog.records if record.name.startswith("bitsandbytes")] == []


# ---------------------------------------------------------------- what one does with them


@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_a_batch_writes_what_each_row_writes_alone(opened: Opened, quantization: str) -> None:
    model = opened(quantization)
    bench = Bench(model)
    answers = [bench.ask(i, words(20, i), seed=3, temperature=0.9) for i in range(3)]
    bench.run()
    assert [a.tokens for a in answers] == [
        alone(model, words(20, i), seed=3, temperature=0.9).tokens for i in range(3)
    ]


@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_steering_adds_the_delta_of_the_feature(opened: Opened, quantization: str) -> None:
    model = opened(quantization)
    sae = random_sae(model.hidden_size)
    seen: list[Tensor] = []
    bench = Bench(model)
    with (
        bench.attached(KEY, sae),
        hooked(site_of(model), lambda hidden: seen.append(hidden[0, 0].float().clone())),
    ):
        for request, plan in ((1, Suppressed()), (2, Overlay(0, {KEY: {5: 2.0}}))):
            bench.ask(request, words(20), plan=plan, max_tokens=1)
            bench.run()
    assert torch.allclose(seen[1] - seen[0], 2.0 * sae.W_dec[5], atol=2e-2)


@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_values_of_zero_are_the_unsteered_model_bit_for_bit(
    opened: Opened, quantization: str
) -> None:
    model = opened(quantization)
    bench = Bench(model)
    with bench.attached(KEY, random_sae(model.hidden_size)):
        answer = bench.ask(1, words(20), plan=Overlay(0, {KEY: {5: 0.0}}), seed=1, temperature=1.0)
        bench.run()
    assert answer.tokens == alone(model, words(20), seed=1, temperature=1.0).tokens


@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_scores_and_embeddings_are_those_of_a_plain_pass(opened: Opened, quantization: str) -> None:
    model = opened(quantization)
    bench = Bench(model)
    bench.score(1, words(20), top=3)
    bench.run()
    bench.embed(2, words(30))
    bench.run()
    ids = model.encode(words(20), special=True)
    truth = next_logits(model, ids).log_softmax(-1)
    assert bench.scores[1, 0].best.token == int(truth.argmax())
    assert bench.scores[1, 0].best.logprob == pytest.approx(float(truth.max()), abs=1e-3)
    assert bench.vectors[2, 0].shape == (model.hidden_size,)


# ---------------------------------------------------------------- quantized before


@pytest.mark.shows("models.18")
@pytest.mark.parametrize(("stored", "name"), [("Q8", "int8"), ("Q4", "nf4")])
@pytest.mark.parametrize("asked", ["FP16", "Q4", "Q2"])
def test_a_checkpoint_that_was_quantized_loads_as_it_is(
    opened: Opened, wide: Path, tmp_path: Path, stored: str, name: str, asked: str
) -> None:
    source = AutoModelForCausalLM.from_pretrained(wide, quantization_config=CONFIGS[stored])
    source.save_pretrained(tmp_path)
    models.tokenizer().save_pretrained(tmp_path)
    again = open_checkpoint(tmp_path, asked)
    assert again.held.name == name
    ids = again.encode(words(30), special=True)
    difference = next_logits(again, ids) - next_logits(opened(stored), ids)
    assert difference.abs().max() < 1e-2


def fine_grained(source: Path, target: Path, block: int = 64) -> Path:
    """The checkpoint with 8-bit floating-point weights in its layers and one scale per block."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    for name in [n for n in tensors if "proj" in n]:
        weight = tensors[name].float()
        rows, columns = weight.shape[0] // block, weight.shape[1] // block
        blocks = weight.reshape(rows, block, columns, block)
        scale = blocks.abs().amax((1, 3)) / 448.0
        stored = (blocks / scale[:, None, :, None]).reshape(weight.shape)
        tensors[name] = stored.to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    file = target / "config.json"
    quantized = {"quant_method": "fp8", "weight_block_size": [block, block]}
    config = {**json.loads(file.read_text()), "quantization_config": quantized}
    file.write_text(json.dumps(config))
    return target


@pytest.mark.shows("models.18")
def test_eight_bit_floats_become_bfloat16_on_a_host(tmp_path: Path) -> None:
    wide = models.save("llama", tmp_path / "plain", dtype=torch.bfloat16, **WIDE)
    model = open_checkpoint(fine_grained(wide, tmp_path / "fp8"))
    assert (model.held.name, model.dtype) == ("fp8->bfloat16", torch.bfloat16)
    assert {p.dtype for p in model.model.parameters()} == {torch.bfloat16}
    plain = load_file(wide / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].float()
    ours = decoder_layers(model.model, model.layers)[1][0].mlp.up_proj.weight.float()
    assert (ours - plain).abs().max() < 0.1 * plain.abs().max()
    assert alone(model, words(20), max_tokens=4).finish


class Payload:
    """What a hostile pickle runs when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("protocol", ["zip", "plain"])
def test_a_pickle_that_would_run_code_fails_the_load_and_runs_nothing(
    wide: Path, tmp_path: Path, protocol: str
) -> None:
    folder, trace = tmp_path / "hostile", tmp_path / "trace"
    folder.mkdir()
    for file in wide.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    # as many bytes as the parameters need, because a file that cannot hold them is refused before it is read
    hostile = {"model.embed_tokens.weight": Payload(trace), "rest": torch.zeros(1 << 20)}
    if protocol == "zip":
        torch.save(hostile, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(hostile))
    with pytest.raises(Exception, match=r"(?i)weights.only|unsupported|unpickl"):
        open_checkpoint(folder)
    assert not trace.exists()


# ---------------------------------------------------------------- over several devices


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_split_covers_every_parameter_and_keeps_shared_weights_together(
    tmp_path: Path, is_tied: bool
) -> None:
    fields = {**WIDE, "num_hidden_layers": 4, "tie_word_embeddings": is_tied}
    folder = models.save("llama", tmp_path / "m", **fields)
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = spread(model, ["a", "a", "b", "b"])
    for name, _ in model.named_parameters():
        assert sum(name == path or name.startswith(f"{path}.") for path in found) == 1, name
    assert [found[f"model.layers.{i}"] for i in range(4)] == ["a", "a", "b", "b"]
    assert (found["model.embed_tokens"], found["model.norm"]) == ("a", "b")
    assert found["lm_head"] == ("a" if is_tied else "b")


@pytest.mark.parametrize("variant", ["gpt2", "opt", "gpt_neox", "gemma3", "phi"])
def test_a_split_covers_other_architectures(folder: Callable[[str], Path], variant: str) -> None:
    model = open_checkpoint(folder(variant)).model
    layers = len(decoder_layers(model, model.config.num_hidden_layers)[1])
    found = spread(model, ["a"] * (layers - 1) + ["b"])
    for name, _ in model.named_parameters():
        assert sum(name == path or name.startswith(f"{path}.") for path in found) == 1, name


def test_a_split_of_another_number_of_layers_is_refused(wide: Path) -> None:
    load = lambda: open_checkpoint(wide, devices=("cpu", "meta", "meta"))  # noqa: E731
    assert code_of(load) == "MODEL_LOAD_FAILED"


class Begun(Exception):
    pass


def test_the_cards_that_are_named_decide_and_the_first_is_the_current_one(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def capability(card: torch.device) -> tuple[int, int]:
        seen.append(f"asked {card}")
        return (7, 0) if card.index == 0 else (9, card.index)

    def begun(*_: object) -> None:
        raise Begun

    monkeypatch.setattr(torch.cuda, "set_device", lambda card: seen.append(f"set {card}"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    devices = ["cuda:2", "cuda:2"]
    with pytest.raises(Begun):
        Checkpoint(
            wide, quantization="FP16", trust_remote_code=False, report=begun, devices=devices
        )
    assert seen == ["set cuda:2", "asked cuda:2"]
    named = [torch.device("cuda:2"), torch.device("cuda:1")]
    assert (machine(named).has_card, machine(named).capability) == (True, (9, 1))
    host = machine([torch.device("cpu")])
    assert (host.has_card, host.capability) == (False, None)


@pytest.mark.parametrize("quantization", ["FP16", "Q8", "Q4"])
def test_a_named_device_gives_the_same_text(opened: Opened, wide: Path, quantization: str) -> None:
    model = open_checkpoint(wide, quantization, devices=("cpu",))
    assert [str(d) for d in model.devices] == ["cpu"]
    with capture_logs():
        ours = alone(model, words(20), seed=5)
    assert ours.tokens == alone(opened(quantization), words(20), seed=5).tokens
    if quantization == "FP16":
        assert alone(model, words(20)).tokens == generated(model, words(20), 16)
