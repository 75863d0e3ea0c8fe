"""Where a load would go: headers, cards and settings come together here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from safetensors.torch import save_file

from steerserve.control.residency import fitting
from steerserve.errors import Refusal
from steerserve.files.weights import Weights, read_weights
from steerserve.rules.residency.gpus import Card, CardProcess
from steerserve.rules.residency.memory_fit import ModelPlacement
from steerserve.rules.residency.placement import GpuRequest, parse
from steerserve.rules.units import MIB
from steerserve.settings import Settings
from tests.control.conftest import refused

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
LAYERS = 4


def checkpoint(path: Path, **config: Any) -> Weights:
    """Two MiB of weights in each of four layers, and two in the embedding and the head each."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    tensors = {
        f"model.layers.{i}.mlp.up_proj.weight": torch.zeros(1024, 1024, dtype=torch.bfloat16)
        for i in range(LAYERS)
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.zeros(1024, 1024, dtype=torch.bfloat16)
    save_file(tensors, path / "model.safetensors")
    return read_weights(path)


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return checkpoint(tmp_path / "m")


def settings(**fields: Any) -> Settings:
    return Settings(transformers_cuda_context_mb=100, transformers_min_context=1024, **fields)


def cards(*free: int, total: int = 10_000) -> list[Card]:
    return [
        Card(i, f"GPU-{i}", f"card {i}", total, total - mb, mb, torch_index=i)
        for i, mb in enumerate(free)
    ]


async def planned(
    weights: Weights,
    *free: int,
    quantization: str = "FP16",
    wanted: GpuRequest | None = None,
    returns: dict[str, int] | None = None,
    host: int = 10_000,
) -> fitting.Fit:
    return await fitting.plan(
        weights,
        quantization,
        wanted or GpuRequest(),
        returns or {},
        settings(),
        cards=cards(*free),
        free_host_mb=lambda: host,
    )


async def test_a_model_goes_to_the_card_with_most_room(weights: Weights) -> None:
    found = (await planned(weights, 1000, 2000)).plan
    (share,) = found.shares
    assert (share.device.label, share.device.name) == ("cuda:1", "card 1")
    # two bytes for keys and values of 2 heads of 128, in four layers, for 1,024 tokens
    assert (share.weights_mb, share.kv_mb, share.device.context_mb) == (12, 4, 100)
    assert found.gpu_indices == [1]


async def test_what_the_resident_model_holds_comes_back(weights: Weights) -> None:
    assert (await refused(planned(weights, 50))).code == "INSUFFICIENT_MEMORY"
    found = (await planned(weights, 50, returns={"cuda:0": 500})).plan
    assert found.shares[0].device.free_mb == 550


async def test_no_more_comes_back_than_a_card_has(weights: Weights) -> None:
    found = (await planned(weights, 9_000, returns={"cuda:0": 5_000})).plan
    assert found.shares[0].device.free_mb == 10_000


async def test_a_host_without_cards_uses_its_memory(weights: Weights) -> None:
    found = await planned(weights, returns={"cpu": 100}, host=1_000)
    assert found.plan.devices == ["cpu"]
    assert found.plan.shares[0].device.free_mb == 1_100
    assert found.plan.shares[0].device.context_mb == 0
    assert (await refused(planned(weights, host=10))).details["short_devices"] == ["cpu"]


async def test_a_refusal_says_when_weights_count_as_float32(tmp_path: Path) -> None:
    half = checkpoint(tmp_path / "half", dtype="float16")
    with pytest.raises(Refusal, match="its float16 weights count as float32, in which a processor"):
        await planned(half, host=10)
    for free, stored in (([50], half), ([], checkpoint(tmp_path / "bfloat16"))):
        assert "float32" not in (await refused(planned(stored, *free, host=10))).message


async def test_a_card_that_is_not_there_is_refused(weights: Weights) -> None:
    for free in ((), (1000,)):
        assert (await refused(planned(weights, *free, wanted=parse(1)))).code == "GPU_NOT_FOUND"


async def test_a_precision_that_cannot_be_applied_is_refused_before_memory(
    weights: Weights,
) -> None:
    refusal = await refused(planned(weights, 1, quantization="Q2"))
    assert refusal.code == "UNSUPPORTED_QUANTIZATION"


async def test_fewer_bits_need_less_and_take_staging(weights: Weights) -> None:
    needed = {}
    for quantization in ("FP16", "Q8", "Q4"):
        (share,) = (await planned(weights, 5000, quantization=quantization)).plan.shares
        needed[quantization] = share.weights_mb
        assert (share.staging_mb > 0) == (quantization != "FP16")
    # the embedding and the head stay: 4 MiB; the layers' 8 MiB become 4 and 2, and their scales
    assert needed == {"FP16": 12, "Q8": 9, "Q4": 7}


async def test_the_least_context_is_no_longer_than_the_models(tmp_path: Path) -> None:
    short = checkpoint(tmp_path / "short", max_position_embeddings=128)
    needs = fitting.needs(short, (await planned(short, 5000)).held, 4096)
    assert (needs.min_context, needs.model_max_context) == (128, 128)


async def test_an_encoder_keeps_no_cache(tmp_path: Path) -> None:
    encoder = checkpoint(tmp_path / "bert", architectures=["BertModel"])
    (share,) = (await planned(encoder, 5000)).plan.shares
    assert share.kv_mb == 0


async def test_an_encoder_is_never_split(tmp_path: Path) -> None:
    encoder = checkpoint(tmp_path / "bert", architectures=["BertModel"])
    needed = (await planned(encoder, 5000)).plan.shares[0].needed_mb
    found = (await planned(encoder, 5000, 5000, wanted=parse("all"))).plan
    assert (found.mode, len(found.layer_devices)) == ("single", 1)
    assert (await refused(planned(encoder, needed - 1, needed - 1))).code == "INSUFFICIENT_MEMORY"


async def test_counting_is_done_beside_the_loop(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, counted = [], fitting.needs

    def noted(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return counted(*args, **options)

    monkeypatch.setattr(fitting, "needs", noted)
    await planned(weights, 5000)
    assert threads
    assert threading.current_thread() not in threads


async def test_pickled_weights_are_placed_by_their_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * (12 * MIB))
    (share,) = (await planned(read_weights(tmp_path), 5000)).plan.shares
    assert share.weights_mb == 12


def test_estimates_follow_the_table_of_previews() -> None:
    billion = 10**9
    sizes = {q: fitting.estimate(billion, q) for q in ("Q2", "Q4", "Q8", "FP16")}
    assert sizes == {"Q2": 287, "Q4": 573, "Q8": 1145, "FP16": 2289}


def test_the_estimate_of_a_checkpoint_never_refuses(weights: Weights, tmp_path: Path) -> None:
    sizes = [fitting.estimated_memory_mb(weights, q) for q in ("FP16", "Q8", "Q4", "Q2")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 15
    odd = checkpoint(tmp_path / "odd", quantization_config={"quant_method": "homemade"})
    assert fitting.estimated_memory_mb(odd, "Q4") == 15


def test_an_ended_engine_gives_back_its_card_and_its_own_host_memory() -> None:
    found = fitting.returned(os.getpid(), {"cuda:0": 1000, "cpu": 5}, 100)
    assert found["cuda:0"] == 1100
    assert found["cpu"] > 5
    assert fitting.returned(None, {}, 100) == {}
    assert fitting.returned(2**22 + 1, {}, 100) == {}


async def test_a_driver_that_hangs_is_given_up() -> None:
    let_go = threading.Event()

    def hangs() -> tuple[list[Card], None]:
        let_go.wait()
        return [], None

    try:
        refusal = await refused(fitting.cards_now(hangs, patience=0.01))
        (thread,) = [t for t in threading.enumerate() if t.name == "cards-for-a-load"]
        assert thread.daemon
    finally:
        let_go.set()
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "does not answer" in refusal.message


async def test_a_driver_that_fails_is_told() -> None:
    def fails() -> tuple[list[Card], None]:
        raise ZeroDivisionError

    refusal = await refused(fitting.cards_now(fails))
    assert refusal.message == "the cards cannot be read: ZeroDivisionError"


def placed(needed_mb: int, *devices: str) -> ModelPlacement:
    """The placement of a model that needs so many MiB, on these devices."""
    return ModelPlacement(
        mode="shard" if devices[1:] else "single",
        reason="",
        requested=None,
        required_mb=needed_mb,
        capacity_mb=needed_mb,
        devices=list(devices),
        gpu_indices=[],
        memory_by_device_mb={},
    )


PLACED_ON_ONE = placed(700, "cuda:1")
PLACED_ON_TWO = structs.replace(
    placed(900, "cuda:0", "cuda:1"), planned_mb_by_device={"cuda:0": 300, "cuda:1": 200}
)


def test_what_nobody_measured_comes_back_as_it_was_planned() -> None:
    given = [fitting.returned(None, {}, 100, placement=p) for p in (PLACED_ON_ONE, PLACED_ON_TWO)]
    assert given == [{"cuda:1": 700}, {"cuda:0": 400, "cuda:1": 300}]
    measured = fitting.returned(None, {"cuda:1": 50}, 100, placement=PLACED_ON_ONE)
    assert measured == {"cuda:1": 150}
    assert fitting.returned(None, {}, 100, placement=placed(700, "cpu")) == {}


@pytest.fixture
def child() -> Any:
    with subprocess.Popen(
        [sys.executable, "-c", "held = b'x' * (64 << 20); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_the_driver_knows_what_an_engine_and_its_children_hold(child: Any) -> None:
    first, second = cards(1000, 1000)
    own, below, other = (
        CardProcess(os.getpid(), 500),
        CardProcess(child.pid, 250),
        CardProcess(1, 4000),
    )
    known = [replace(first, processes=(own, below, other)), replace(second, processes=(other,))]
    found = fitting.returned(os.getpid(), {"cuda:0": 5}, 100, placement=PLACED_ON_ONE, cards=known)
    # of the second card nothing is told: it may be that the driver counts processes otherwise
    assert (found["cuda:0"], found["cuda:1"]) == (750, 700)
    silent = replace(first, processes=(own, CardProcess(child.pid, None)))
    found = fitting.returned(os.getpid(), {"cuda:0": 5}, 100, cards=[silent])
    assert found["cuda:0"] == 105


def test_the_host_memory_of_children_comes_back_too(child: Any) -> None:
    whole = fitting.returned(os.getpid(), {}, 100)["cpu"]
    child.communicate(b"\n")
    assert whole - fitting.returned(os.getpid(), {}, 100)["cpu"] >= 60


def test_an_estimate_takes_the_card_that_the_tensor_library_is_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = checkpoint(tmp_path / "single", dtype="float32")
    sizes = {}
    for is_built in (False, True):
        monkeypatch.setattr(fitting, "built_for_cards", lambda is_built=is_built: is_built)
        sizes[is_built] = fitting.estimated_memory_mb(single, "FP16")
    # half precision on a card, float32 on the host
    assert sizes == {False: 29, True: 15}
