"""The checks of a model at its load: which functions its modules get, what health is told, and what the next load
repeats."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import Tensor
from transformers import AutoModelForCausalLM

from steerserve.rules.models import known_faults
from steerserve.rules.models.known_faults import KnownFault
from steerserve.rules.models.nearness import StepTimes
from steerserve.worker.model import (
    agreement,
    comparing,
    forwards,
    invariance,
    packing,
    step_times,
    transformer,
    truth,
)
from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker import models
from tests.worker.running import next_logits, open_checkpoint

IDS = list(range(20, 60))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache folder in which no earlier load has kept anything; the compiled library is the one of all tests."""
    kernels = Path(platformdirs.user_cache_dir("steerserve")) / "kernels"
    mine = tmp_path / "cache" / "steerserve" / "kernels"
    mine.mkdir(parents=True)
    for library in kernels.glob("*.so"):
        os.link(library, mine / library.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def wide_passes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The modules that were computed in float32."""
    computed: list[object] = []
    real = truth.in_float32

    def counted(model: Any) -> Any:
        computed.append(model)
        return real(model)

    monkeypatch.setattr(truth, "in_float32", counted)
    return computed


def wrong_in(layer: str, real: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The function of an attention that computes something else in the layer of this name, and notes that."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        attended, weights = real(self, *args, **kwargs)
        if self.place == layer:
            calls.append(layer)
            attended = attended * 1.1
        return attended, weights

    return forward


def test_a_layer_whose_function_is_refused_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = models.save("llama", tmp_path / "llama", dtype=torch.bfloat16)
    real = forwards.Comparison.add

    def add(self: Any, name: str, module: Any, forward: Any) -> None:
        module.place = name
        real(self, name, module, forward)

    monkeypatch.setattr(forwards.Comparison, "add", add)
    calls: list[str] = []
    wrong = wrong_in("model.layers.1.self_attn", forwards._attend, calls)
    monkeypatch.setattr(forwards, "_attend", wrong)
    model = open_checkpoint(folder)
    (refused,) = model.functions.refused
    assert refused.module == "model.layers.1.self_attn"
    assert refused.found is not None
    assert refused.own is not None
    assert refused.found.mean > 0.05 > refused.own.mean
    kinds = {name: type(module) for name, module in model.model.named_modules()}
    given = {name for name, kind in kinds.items() if hasattr(kind, "_library_kind")}
    assert {"model.layers.0.self_attn", "model.layers.1.input_layernorm"} <= given
    assert "model.layers.1.self_attn" not in given
    library: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.inference_mode():
        plain = library(torch.tensor([IDS])).logits[0, -1].float()
    assert (next_logits(model, IDS).float() - plain).std() < 0.05 * plain.std()
    # what it costs is measured with the function in its place, and only then
    times = model.functions.times
    assert times is not None
    assert times.served_ms > 0
    assert times.fast_ms > 0
    with torch.inference_mode():
        assert step_times.measure(model, lambda: float(len(calls))) == StepTimes(0.0, 1000.0)
    assert open_checkpoint(folder).functions == model.functions


def test_the_next_load_repeats_what_was_found_until_a_file_changes(
    wide_passes: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compared: list[object] = []
    real = invariance.varies
    monkeypatch.setattr(
        invariance, "varies", lambda model: (compared.append(model), real(model))[1]
    )
    folder = models.save("llama", tmp_path / "llama", dtype=torch.bfloat16)
    first = open_checkpoint(folder)
    assert wide_passes
    assert compared
    wide_passes.clear()
    compared.clear()
    second = open_checkpoint(folder)
    assert not wide_passes
    assert not compared
    assert (second.width, second.row_step) == (first.width, first.row_step)
    assert second.varies == first.varies
    assert second.functions == first.functions
    assert second.exactness == first.exactness
    assert second.kv_bytes_by_device == first.kv_bytes_by_device
    assert torch.equal(next_logits(second, IDS), next_logits(first, IDS))
    os.utime(folder / "model.safetensors", (1, 1))
    open_checkpoint(folder)
    assert wide_passes


@pytest.mark.parametrize("is_onednn", [False, True], ids=["as chosen", "oneDNN"])
def test_a_model_says_how_exactly_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_onednn: bool
) -> None:
    """Weights in the layout of oneDNN, which the library cannot widen as they are, are read in float32 too."""
    if is_onednn:
        if not packing._has_kernels(torch.bfloat16):
            pytest.skip("oneDNN has no kernels for bfloat16 on this processor")
        monkeypatch.setattr(packing, "_multiplies_faster", lambda: False)
    model = open_checkpoint(models.save("qwen3", tmp_path / "qwen3", dtype=torch.bfloat16))
    assert isinstance(model.model.lm_head.packed, Tensor) or not is_onednn
    exactness = model.exactness
    assert exactness is not None
    assert exactness.is_near
    assert 0 < exactness.served.mean <= 1.1 * exactness.library.mean


def largest_difference(model: Checkpoint) -> float:
    """The largest difference of the logits of passes with a cache from those of a plain pass of the library over 24
    random tokens, as a part of their standard deviation. Up to 0.2, a model was once taken for the same."""
    draw = torch.Generator().manual_seed(1)
    ids = [0, *torch.randint(2, models.VOCABULARY, (24,), generator=draw).tolist()[1:]]
    with comparing.own_code(model.model):
        plain = model.model(input_ids=torch.tensor([ids])).logits[0].float()
    cache, cut = model.cache(), 12
    slot = cache.open(len(ids))
    made = [model.prefill(cache, [slot], [ids[:cut]], start=0).logits]
    made += [
        model.decode_step(cache, [slot], [ids[at]], [at]).logits for at in range(cut, len(ids))
    ]
    between = (torch.cat(made).float() - plain[cut - 1 :]).abs()
    return float(between.max() / plain.std())


@pytest.mark.parametrize(("is_trained", "is_large"), [(False, False), (True, True)])
def test_activations_as_in_trained_models_are_no_reason_to_refuse_a_way(
    tmp_path: Path, is_trained: bool, is_large: bool
) -> None:
    """Random weights are too tame to tell a check of roundings from a check against float32."""
    size: dict[str, Any] = {"hidden_size": 64, "head_dim": 16, "is_trained": is_trained}
    model = open_checkpoint(models.save("llama", tmp_path / "llama", dtype=torch.bfloat16, **size))
    assert (largest_difference(model) > 0.2) is is_large
    assert model.row_steps.are_batched
    assert model.functions.refused == []
    assert model.functions.modules > 0
    assert model.exactness is not None
    assert model.exactness.is_near
    held = model.model.get_input_embeddings()(torch.tensor([0])).float().abs()[0]
    assert bool(held.max() > 100 * held.median()) is is_trained


def test_passes_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = agreement.Agreement._compare
    seen: list[Any] = []

    def turned(self: Any, states: dict[int, Tensor]) -> Any:
        if not seen:  # the running batch is compared first
            seen.append(states)
            states = {place: state.roll(1) for place, state in states.items()}
        return real(self, states)

    monkeypatch.setattr(agreement.Agreement, "_compare", turned)
    folder = models.save("llama", tmp_path / "llama")
    model = open_checkpoint(folder)
    assert seen
    assert model.attention is None
    # nor by the next load, which makes no comparison
    assert open_checkpoint(folder).attention is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_pass_in_float32_is_that_of_a_model_in_float32(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    for variant in ("llama", "qwen3", "gpt2", "mixtral", "gpt_neox", "olmo2"):
        folder = models.save(variant, tmp_path / f"{variant}-{dtype}", dtype=dtype)
        library: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        half: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        ids = torch.tensor([IDS])
        with torch.inference_mode():
            plain = library(ids).logits
            with truth.in_float32(half):
                wide = half(ids).logits
        torch.testing.assert_close(wide, plain, rtol=1e-4, atol=1e-4)


def test_a_large_model_on_the_host_is_compared_over_fewer_tokens() -> None:
    sizes = [10**8, 10**9, 3 * 10**9, 70 * 10**9]
    assert [truth.positions(size, is_on_host=True) for size in sizes] == [300, 300, 100, 48]
    assert truth.positions(sizes[-1], is_on_host=False) == 300


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("expected BFloat16, got Float")],
)
def test_where_no_pass_in_float32_can_be_made_a_model_serves_and_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: RuntimeError
) -> None:
    real = agreement.Agreement._plain

    def exhausted(self: Any, count: int) -> Tensor:
        if torch.overrides._get_current_function_mode_stack():
            raise error
        return real(self, count)

    monkeypatch.setattr(agreement.Agreement, "_plain", exhausted)
    model = open_checkpoint(models.save("qwen2", tmp_path / "qwen2", dtype=torch.bfloat16))
    assert model.exactness is None
    assert model.row_steps.are_batched
    assert next_logits(model, IDS).isfinite().all()


def test_the_checks_leave_a_module_the_function_that_moves_values_to_its_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Accelerate gives such functions to the modules of a model on several devices."""
    read = transformer._read

    def read_with_hook(*args: Any, **options: Any) -> Any:
        model, report = read(*args, **options)
        add_hook_to_module(model.get_output_embeddings(), AlignDevicesHook("cpu"))
        return model, report

    monkeypatch.setattr(transformer, "_read", read_with_hook)
    model = open_checkpoint(models.save("llama", tmp_path / "llama", dtype=torch.bfloat16))
    assert "forward" in vars(model.model.get_output_embeddings())


def test_a_load_warns_of_what_the_installed_libraries_compute_wrong_for_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = type(models.tokenizer()).__name__
    where = {
        "model_type": ["llama"],
        "dtype": ["bfloat16"],
        "rope": ["default"],
        "tokenizer": [f"{kind} byte-level"],
        "device": ["cpu"],
    }

    def fault(what: str, **other: list[str]) -> KnownFault:
        return KnownFault("torch", "2.0", what, "do this", "https://example.org/1", where | other)

    table = (fault("sums are wrong"), fault("else", model_type=["gpt2"]), fault("x", rope=["yarn"]))
    monkeypatch.setattr(known_faults, "known_faults", lambda: table)
    model = open_checkpoint(models.save("llama", tmp_path / "llama", dtype=torch.bfloat16))
    (warning,) = model.warnings
    assert warning == (
        f"torch {torch.__version__} is known to compute wrong for this model: sums are wrong. Do this "
        "(https://example.org/1)"
    )
