"""Decoder layers that run a decode pass in one compiled call: the bits of their modules, with and without hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from steerserve.worker.model import whole_layers
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import KvCache
from steerserve.worker.model.results import PassEnded
from steerserve.worker.sae.sites import Change, Moved, find
from tests.worker import models
from tests.worker.compiled import OWN_PRODUCTS
from tests.worker.running import open_checkpoint

pytestmark = OWN_PRODUCTS

WIDE = {"hidden_size": 256, "intermediate_size": 520, "head_dim": 64}
"""Wide enough for two threads, with a last panel that is not full."""

INSIDE = (
    "input_layernorm",
    "self_attn",
    "self_attn.q_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
OF_HEADS = ("self_attn.q_norm", "self_attn.k_norm")
BEHIND = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
MORE_INSIDE = {"qwen3": OF_HEADS, "gemma2": BEHIND, "gemma3": (*OF_HEADS, *BEHIND)}
VARIANTS = [
    "llama",
    "mistral",
    "qwen2",
    "qwen2 Q8",
    "qwen2 Q4",
    "qwen2 float32",
    "qwen3",
    "qwen3 Q8",
    "gemma2",
    "gemma3",
    "gemma3 float16",
]
PROMPTS = [[20 + row + 3 * at for at in range(5 + 9 * row)] for row in range(4)]
TOKENS = (7, 8, 9)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """The checkpoint of a variant in bfloat16, with biases where it has some; in 8 or 4 bits, or stored in another dtype,
    where the name says so ("llama Q8", "llama float16")."""
    held: dict[str, Checkpoint] = {}

    def of(name: str) -> Checkpoint:
        if name not in held:
            variant, _, form = name.partition(" ")
            dtype = getattr(torch, form) if form in ("float16", "float32") else torch.bfloat16
            folder = saved(variant, tmp_path_factory.mktemp(variant), dtype)
            held[name] = open_checkpoint(folder, form if form in ("Q8", "Q4") else "FP16")
        return held[name]

    return of


def saved(variant: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    wide: dict[str, Any] = dict(WIDE)
    if variant in MORE_INSIDE:
        wide["head_dim"] = 128
    if variant.startswith("gemma"):
        wide["query_pre_attn_scalar"] = 128
    if variant == "gemma2":
        wide["attn_logit_softcapping"] = 2.0
    models.save(variant, folder, dtype=dtype, **{**wide, "initializer_range": 0.08})
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=source))
    model.save_pretrained(folder)
    return folder


def begun(model: Checkpoint, prompts: list[list[int]], capacity: int = 64) -> tuple[KvCache, Any]:
    cache = model.cache()
    slots = [cache.open(capacity) for _ in prompts]
    for slot, ids in zip(slots, prompts, strict=True):
        model.prefill(cache, [slot], [ids], start=0)
    return cache, slots


def decoded(model: Checkpoint, prompts: list[list[int]], threads: int = 1) -> Tensor:
    """The logits [steps, rows, vocabulary] of decode passes after prompts."""
    cache, slots = begun(model, prompts)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return torch.stack(
            [
                model.decode_step(
                    cache, slots, [token] * len(slots), [len(ids) + step for ids in prompts]
                ).logits
                for step, token in enumerate(TOKENS)
            ]
        )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_tells_that_its_layers_run_whole(
    opened: Callable[[str], Checkpoint], variant: str
) -> None:
    assert opened(variant).has_whole_layers


@contextmanager
def seen(module: Any) -> Iterator[list[int]]:
    """Counts the calls of a module."""
    calls: list[int] = []
    handle = module.register_forward_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_a_hook_on_any_module_of_a_layer_is_called_and_changes_no_bit(
    variant: str, opened: Callable[[str], Checkpoint]
) -> None:
    model = opened(variant)
    layers = model.model.model.layers
    assert all(type(layer).forward.__module__ == whole_layers.__name__ for layer in layers)
    found = decoded(model, PROMPTS)
    for name in (*INSIDE, *MORE_INSIDE.get(variant.partition(" ")[0], ())):
        with seen(layers[1].get_submodule(name)) as calls:
            assert torch.equal(decoded(model, PROMPTS), found), name
        assert len(calls) == len(PROMPTS) + len(TOKENS)
    with seen(layers[1]) as calls:
        assert torch.equal(decoded(model, PROMPTS), found)
    assert len(calls) == len(PROMPTS) + len(TOKENS)


CUT = ("hook_z", "attn_out", "attn_raw", "resid_mid", "mlp_in", "mlp_neurons", "mlp_out", "mlp_raw")


@contextmanager
def edited(model: Checkpoint, names: Sequence[str], seen: list[Tensor]) -> Iterator[None]:
    """While open, the values of sites of the second layer are copied, and those of the second row are changed."""

    def edit(value: Tensor) -> Change:
        seen.append(value.clone())
        change = torch.zeros_like(value, dtype=torch.float32)
        if len(value) > 1:
            change[1] = 0.25 * value[1].float().flip(-1)
        return Moved((), change)

    with ExitStack() as stack:
        for name in names:
            site = find(model.model, model.layers, name, 1)
            stack.callback(site.hook(edit).remove)
        yield


@contextmanager
def by_modules(model: Checkpoint) -> Iterator[None]:
    """While open, the layers run through their modules."""
    layers: Any = model.model.model.layers
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(seen(layer.input_layernorm))
        yield


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_a_cut_layer_gives_its_sites_the_values_of_the_modules_and_takes_their_changes(
    variant: str, threads: int, opened: Callable[[str], Checkpoint]
) -> None:
    model = opened(variant)
    plain = decoded(model, PROMPTS, threads)
    for names in (*((name,) for name in CUT), CUT):
        values: list[list[Tensor]] = [[], []]
        with by_modules(model), edited(model, names, values[0]):
            expected = decoded(model, PROMPTS, threads)
        with edited(model, names, values[1]), no_modules(model):
            found = decoded(model, PROMPTS, threads)
        assert torch.equal(found, expected), names
        assert (found != plain).any(-1).any(0).tolist() == [False, True, False, False], names
        assert len(values[0]) == (len(PROMPTS) + len(TOKENS)) * len(names)
        for own, other in zip(*values, strict=True):
            assert torch.equal(own, other), names


@contextmanager
def no_modules(model: Checkpoint) -> Iterator[None]:
    """While open, a decode pass of a layer through its modules raises an error."""
    layers: Any = model.model.model.layers
    gate = type(layers[0].mlp).forward

    def refuse(self: Any, x: Tensor) -> Tensor:
        assert x.shape[1] > 1, "a decode pass has run through the modules"
        return cast(Tensor, gate(self, x))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(layers[0].mlp), "forward", refuse)
        yield


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_a_row_has_the_same_bits_alone_and_beside_rows_with_one_thread_and_with_more(
    variant: str, opened: Callable[[str], Checkpoint]
) -> None:
    model = opened(variant)
    assert (model.width, model.row_step, model.varies) == (1, 1, None)
    found = decoded(model, PROMPTS * 3)
    for threads in (2, 3):
        assert torch.equal(decoded(model, PROMPTS * 3, threads), found)
    for row, ids in enumerate(PROMPTS):
        assert torch.equal(decoded(model, [ids]), found[:, row : row + 1])
        assert torch.equal(decoded(model, [ids], 2), found[:, row : row + 1])
        assert torch.equal(decoded(model, [ids, PROMPTS[0]], 2)[:, :1], found[:, row : row + 1])


@torch.inference_mode()
def test_rows_of_caches_of_several_sizes_share_a_pass(opened: Callable[[str], Checkpoint]) -> None:
    model = opened("qwen2")
    expected = decoded(model, PROMPTS[:2])[0]
    cache, slots = begun(model, PROMPTS[:1], 32)
    slots.append(cache.open(64))
    model.prefill(cache, slots[1:], PROMPTS[1:2], start=0)
    places = [len(ids) for ids in PROMPTS[:2]]
    found = model.decode_step(cache, slots, [TOKENS[0]] * 2, places).logits
    assert torch.equal(found, expected)


@torch.inference_mode()
def test_a_pass_that_was_stopped_between_layers_gives_the_same_bits_when_it_runs_again(
    opened: Callable[[str], Checkpoint],
) -> None:
    model = opened("llama")
    expected = decoded(model, PROMPTS[:1])[0]
    cache, slots = begun(model, PROMPTS[:1])
    given = cache, slots, [TOKENS[0]], [len(PROMPTS[0])]
    answers = iter([False, True])
    with pytest.raises(PassEnded):
        model.decode_step(*given, lambda: next(answers))
    assert torch.equal(model.decode_step(*given).logits, expected)


@pytest.mark.parametrize(
    ("variant", "stored"),
    [
        *((v, torch.bfloat16) for v in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")),
        ("llama", torch.float16),
        ("gemma3", torch.float32),
    ],
)
@torch.inference_mode()
def test_decode_passes_are_as_near_to_float64_as_those_of_the_library(
    variant: str, stored: torch.dtype, tmp_path: Path
) -> None:
    folder = saved(variant, tmp_path, stored)
    model = open_checkpoint(folder)
    computed = torch.bfloat16 if stored == torch.bfloat16 else torch.float32
    library: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=computed)
    exact: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    ours, theirs = 0.0, 0.0
    found = decoded(model, PROMPTS)
    for row, ids in enumerate(PROMPTS):
        whole = torch.tensor([[*ids, *TOKENS]])
        true = exact(whole).logits[0, -len(TOKENS) :]
        ours += float((found[:, row].double() - true).square().sum())
        theirs += float((library(whole).logits[0, -len(TOKENS) :].double() - true).square().sum())
    assert ours <= 1.2 * theirs
