"""Sites on tiny random models of every family: the values obey the algebra of the architecture, and so does steering."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from steerserve.errors import Refusal
from steerserve.rules.saes.sites import EDITABLE, READABLE, ModelSite
from steerserve.worker.model.attention import attending_plainly
from steerserve.worker.model.layers import decoder_layers
from steerserve.worker.sae import sites
from steerserve.worker.sae.families import FAMILIES
from tests.refusals import refusal_of
from tests.worker.models import CONTEXT, VARIANTS, VOCABULARY

LAYERS, HIDDEN, ROWS, T = 3, 32, 2, 7
IDS = torch.randint(2, VOCABULARY, (ROWS, T), generator=torch.Generator().manual_seed(1))

_PLAIN: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "initializer_range": 0.25,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_GPT2 = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4, "n_positions": CONTEXT, "n_inner": 48}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mlp_only_layers": [0, 1, 2],
}
_OPT = {"ffn_dim": 48, "word_embed_proj_dim": HIDDEN, "init_std": 0.25}
_NEO = {
    "num_layers": LAYERS,
    "num_heads": 4,
    "attention_types": [[["global", "local", "global"], 1]],
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        kind: (kind, {})
        for kind in "llama mistral ministral ministral3 qwen2 qwen3 gemma vaultgemma phi phi3 olmo olmo2 olmo3 stablelm "
        "smollm3 seed_oss arcee helium glm glm4 ernie4_5 hunyuan_v1_dense apertus nemotron exaone4 starcoder2 cohere "
        "cohere2 persimmon gpt_neox".split()
    },
    **{
        kind: (kind, _EXPERTS)
        for kind in "mixtral qwen2_moe qwen3_moe olmoe phimoe gpt_oss".split()
    },
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 8}),
    "granite": ("granite", {"residual_multiplier": 0.5, "embedding_multiplier": 3.0}),
    "granitemoe": (
        "granitemoe",
        {**_EXPERTS, "residual_multiplier": 0.25, "embedding_multiplier": 3.0},
    ),
    "qwen3_next": ("qwen3_next", {**_EXPERTS, **_LINEAR}),
    "qwen3_5": ("qwen3_5_text", _LINEAR),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**_EXPERTS, **_LINEAR}),
    "gpt2": ("gpt2", _GPT2),
    "gpt_bigcode": ("gpt_bigcode", _GPT2),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "codegen": ("codegen", {**_GPT2, "rotary_dim": 4}),
    "gpt_neo": ("gpt_neo", _NEO),
    "gpt_neox_sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "stablelm_parallel": ("stablelm", {"use_parallel_residual": True}),
    "opt": ("opt", _OPT),
    "opt_post_norm": ("opt", {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "falcon": VARIANTS["falcon"],
    "falcon_alibi": VARIANTS["falcon_alibi"],
    "falcon_sequential": ("falcon", {"alibi": True, "parallel_attn": False, "multi_query": False}),
    "bloom": ("bloom", {"n_layer": LAYERS, "n_head": 4}),
    "bloom_sliced": (
        "bloom",
        {"n_layer": LAYERS, "n_head": 4, "pretraining_tp": 2, "slow_but_exact": True},
    ),
    "bloom_post_norm": (
        "bloom",
        {"n_layer": LAYERS, "n_head": 4, "apply_residual_connection_post_layernorm": True},
    ),
    "mpt": ("mpt", {"d_model": HIDDEN, "n_layers": LAYERS, "n_heads": 4, "max_seq_len": CONTEXT}),
}

ADDED = {"attn_out", "mlp_out"}
_PARALLEL = "phi cohere cohere2 gptj codegen gpt_neox stablelm_parallel falcon falcon_alibi"
_SPARSE = "qwen3_5_moe mixtral qwen2_moe qwen3_moe olmoe phimoe gpt_oss granitemoe"
LACKING: dict[str, frozenset[str]] = {
    **dict.fromkeys(_PARALLEL.split(), frozenset({"resid_mid"})),
    **dict.fromkeys(_SPARSE.split(), frozenset({"mlp_neurons"})),
    "opt_post_norm": frozenset({"resid_mid", "embed", *ADDED}),
    "bloom_post_norm": frozenset({"resid_mid", *ADDED}),
    "bloom_sliced": frozenset({"resid_mid", "hook_z", "mlp_neurons", *ADDED}),
}
"""What an architecture has no place for."""


@cache
def model_of(name: str) -> Any:
    kind, fields = MODELS[name]
    plain = {k: v for k, v in _PLAIN.items() if not (k == "head_dim" and kind == "falcon")}
    if name in ("llama", "gemma2", "gemma3", "qwen3"):
        plain["head_dim"] = 16  # the heads together are wider than the stream
    config = CONFIG_MAPPING[kind](**{**plain, **fields, "num_hidden_layers": LAYERS})
    with torch.random.fork_rng():
        torch.manual_seed(sum(name.encode()))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():  # norms, biases and sinks that do something
            parameter.data += torch.randn_like(parameter) * 0.05
    return model


def find(name: str, site: str, layer: int = 1) -> sites.Site:
    return sites.find(model_of(name), LAYERS, site, layer)


def offered(name: str) -> set[str]:
    return set(sites.widths(model_of(name), LAYERS))


@contextmanager
def caught(name: str, *wanted: tuple[str, int]) -> Iterator[dict[tuple[str, int], Tensor]]:
    """The values at sites, by (site, layer), while open."""
    found: dict[tuple[str, int], Tensor] = {}

    def keep(place: tuple[str, int]) -> Callable[[Tensor], None]:
        def edit(value: Tensor) -> None:
            assert place not in found, "the hook ran twice in one pass"
            found[place] = value.clone()

        return edit

    with ExitStack() as stack:
        for place in wanted:
            stack.callback(find(name, *place).hook(keep(place)).remove)
        yield found


def run(name: str, ids: Tensor = IDS, **fields: Any) -> Any:
    with torch.inference_mode():
        return model_of(name)(input_ids=ids, use_cache=False, **fields)


def values(name: str, *wanted: tuple[str, int], ids: Tensor = IDS) -> dict[tuple[str, int], Tensor]:
    with caught(name, *wanted) as found:
        run(name, ids)
    return found


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-4)


def test_every_family_of_the_table_is_tried() -> None:
    tried = {kind for kind, _ in MODELS.values()}
    assert set(FAMILIES) <= tried


@pytest.mark.parametrize("name", MODELS)
def test_each_architecture_offers_what_it_has_and_refuses_the_rest(name: str) -> None:
    lacking = LACKING.get(name, frozenset())
    widths = sites.widths(model_of(name), LAYERS)
    assert set(widths) == set(EDITABLE) - lacking
    for site in lacking:
        refusal = refusal_of(find, name, site, 0)
        assert refusal.code == "SAE_INCOMPATIBLE"
        assert refusal.details["architecture"] in refusal.message
        assert site in refusal.message


@pytest.mark.parametrize("name", MODELS)
def test_a_value_is_rows_by_tokens_by_width(name: str) -> None:
    widths = sites.widths(model_of(name), LAYERS)
    found = values(name, *((site, 0 if site == "embed" else 1) for site in widths))
    for (site, _), value in found.items():
        assert value.shape == (ROWS, T, widths[site]), site


@pytest.mark.parametrize("name", MODELS)
def test_the_residual_stream_is_that_of_the_model(name: str) -> None:
    every = range(LAYERS)
    with caught(
        name, *(("resid_post", i) for i in every), *(("resid_pre", i) for i in every)
    ) as at:
        hidden = run(name, output_hidden_states=True).hidden_states
    for layer in range(LAYERS - 1):
        assert torch.equal(at["resid_post", layer], hidden[layer + 1])
        assert torch.equal(at["resid_post", layer], at["resid_pre", layer + 1])
    assert torch.equal(at["resid_pre", 0], hidden[0])


@pytest.mark.parametrize("name", [n for n in MODELS if "attn_out" not in LACKING.get(n, ())])
def test_what_attention_and_mlp_add_makes_the_stream(name: str) -> None:
    layer = 1
    wanted = ["resid_pre", "attn_out", "mlp_out", "resid_post"]
    mid = ["resid_mid"] if "resid_mid" in offered(name) else []
    found = values(name, *((site, layer) for site in wanted + mid))
    pre, attention, mlp, post = (found[site, layer] for site in wanted)
    assert attention.abs().max() > 1e-3
    assert mlp.abs().max() > 1e-3
    close(pre + attention + mlp, post)
    if mid:
        close(found["resid_mid", layer], pre + attention)
        close(found["resid_mid", layer] + mlp, post)


def pre_norm(name: str) -> Tensor:
    """What the layer's first norm makes of the stream."""
    block = find(name, "resid_post").module
    return project(block.input_layernorm, values(name, ("resid_pre", 1))["resid_pre", 1])


def project(module: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return module(x)


@pytest.mark.parametrize("name", [n for n in MODELS if "hook_z" not in LACKING.get(n, ())])
def test_what_comes_before_a_projection_gives_what_comes_after_it(name: str) -> None:
    own = [
        s for s in ("hook_z", "attn_raw", "mlp_neurons", "mlp_raw", "mlp_in") if s in offered(name)
    ]
    found = values(name, *((site, 1) for site in own))
    attention = project(find(name, "hook_z").module, found["hook_z", 1])
    if name == "bloom_post_norm":
        close(attention + pre_norm(name), found["attn_raw", 1])
        return
    if name == "bloom":  # whose modules add the residual themselves
        found |= values(name, ("attn_out", 1), ("mlp_out", 1))
        found["attn_raw", 1], found["mlp_raw", 1] = found["attn_out", 1], found["mlp_out", 1]
    if name == "mpt":
        found["mlp_raw", 1] = values(name, ("mlp_out", 1))["mlp_out", 1]
    close(attention, found["attn_raw", 1])
    if "mlp_neurons" in own:
        down = find(name, "mlp_neurons").module
        close(project(down, found["mlp_neurons", 1]), found["mlp_raw", 1])


LEARNED_POSITIONS = {
    "gpt2": "wpe",
    "gpt_bigcode": "wpe",
    "gpt_neo": "wpe",
    "opt": "embed_positions",
}


@pytest.mark.parametrize("name", [n for n in MODELS if "embed" not in LACKING.get(n, ())])
def test_the_embedding_and_its_positions_are_the_first_stream(name: str) -> None:
    found = values(name, ("embed", 0), ("resid_pre", 0))
    stream = found["resid_pre", 0]
    if name in LEARNED_POSITIONS:
        module = next(
            m
            for path, m in model_of(name).named_modules()
            if path.endswith(LEARNED_POSITIONS[name])
        )
        offset = 2 if name == "opt" else 0
        stream = stream - module.weight[offset : offset + T]
    close(found["embed", 0], stream)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("gemma2", HIDDEN**0.5), ("gemma3", HIDDEN**0.5), ("granite", 3.0), ("llama", 1)],
)
def test_the_embedding_has_the_factor_that_the_model_gives_it(name: str, factor: float) -> None:
    table = model_of(name).get_input_embeddings().weight
    close(values(name, ("embed", 0))["embed", 0], table[IDS] * factor)


FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")


@pytest.mark.parametrize("name", [n for n in MODELS if n != "opt_post_norm"])
def test_the_last_stream_is_what_the_final_norm_reads(name: str) -> None:
    with caught(name, ("resid_post", LAYERS - 1)) as at:
        out = run(name, output_hidden_states=True)
    trunk = model_of(name).get_submodule(find(name, "resid_post").path.split(".")[0])
    trunk = getattr(trunk, "decoder", trunk)
    norm = next(getattr(trunk, n) for n in FINAL_NORMS if hasattr(trunk, n))
    last = project(norm, at["resid_post", LAYERS - 1])
    close(last, out.hidden_states[-1])
    if name in ("llama", "gpt2", "gpt_neox", "bloom", "olmo2"):
        close(project(model_of(name).lm_head, last), out.logits)


@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "gpt2", "gpt_neox", "opt", "bloom", "gpt_oss", "granite"]
)
def test_a_text_read_in_parts_has_the_values_of_the_whole(name: str) -> None:
    """A prefill in two parts and two decode steps, over the model's own cache."""
    wanted = [(site, 0 if site == "embed" else 1) for site in sorted(offered(name))]
    whole = values(name, *wanted)
    cache: Any = None
    parts: list[dict[tuple[str, int], Tensor]] = []
    for ids in (IDS[:, :3], IDS[:, 3:5], IDS[:, 5:6], IDS[:, 6:]):
        with caught(name, *wanted) as found, torch.inference_mode():
            cache = model_of(name)(
                input_ids=ids, past_key_values=cache, use_cache=True
            ).past_key_values
        parts.append(found)
    for place in wanted:
        close(torch.cat([part[place] for part in parts], 1), whole[place])


@pytest.mark.parametrize("name", MODELS)
def test_a_site_is_named_by_the_path_of_its_module(name: str) -> None:
    model = model_of(name)
    for site in offered(name):
        found = find(name, site, 0 if site == "embed" else 1)
        assert model.get_submodule(found.path) is found.module
        assert found.device == torch.device("cpu")
        assert found.name == site


# ---------------------------------------------------------------- what is only read


def listed(name: str) -> dict[str, list[ModelSite]]:
    """The sites of an architecture, each with its forms."""
    found: dict[str, list[ModelSite]] = {}
    for one in sites.listed(model_of(name), LAYERS):
        found.setdefault(one.site, []).append(one)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_list_of_sites_says_what_each_layer_has(name: str) -> None:
    has = listed(name)
    assert {site for site in has if has[site][0].can_write} == offered(name)
    assert has["logits"][0].layers is None
    for site, layer in ((s, n) for s in READABLE if s != "logits" for n in range(LAYERS)):
        forms = [one for one in has.get(site, []) if layer in (one.layers or ())]
        try:
            found = find(name, site, layer)
        except Refusal:
            assert forms == []
            continue
        (form,) = forms
        assert form.module_path.format(layer=layer) == found.path
        assert (form.width or 0, form.heads or 0) == (found.width, found.heads)


@pytest.mark.parametrize("name", _SPARSE.split())
def test_the_logits_of_experts_are_the_products_of_their_router(name: str) -> None:
    found = values(name, ("router_logits", 1), ("mlp_in", 1))
    router: Any = find(name, "router_logits").module
    bias = getattr(router, "bias", None)
    expected = torch.nn.functional.linear(found["mlp_in", 1], router.weight, bias)
    assert found["router_logits", 1].shape == (ROWS, T, 4)
    close(found["router_logits", 1], expected)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_next"])
def test_a_layer_without_experts_has_no_logits_of_them(name: str) -> None:
    with pytest.raises(Refusal, match="its MLP has no experts"):
        find(name, "router_logits", 1)


HEADS = ("q", "k", "v")
_WITH_HEADS = [name for name in MODELS if name != "bloom_sliced"]
_NOT_PLAIN = "falcon_alibi falcon_sequential bloom bloom_sliced bloom_post_norm mpt gpt_oss gemma2"
"""Whose scores have a bias of positions, a cap, or a sink."""


def heads(name: str, site: str, value: Tensor) -> Tensor:
    """The values [rows, heads, T, dim] of a site with heads; a head of keys for each head of queries."""
    own = find(name, site).heads
    shaped = value.unflatten(2, (own, -1)).transpose(1, 2)
    return shaped.repeat_interleave(find(name, "q").heads // own, 1)


def pattern_of(name: str, queries: Tensor, keys: Tensor) -> Tensor:
    """The pattern [rows, heads, T, T] of queries and keys [rows, heads, T, dim]."""
    module: Any = find(name, "q").module
    scale = getattr(module, "scaling", queries.shape[-1] ** -0.5)
    if name in ("gpt_neo", "opt", "opt_post_norm"):
        scale = 1.0  # there is none, or the queries have it already
    scores = queries @ keys.transpose(2, 3) * scale
    return scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)


def attended(name: str) -> dict[str, Tensor]:
    """What attention of layer 1 multiplies, in the plain way."""
    with attending_plainly(model_of(name)):
        found = values(name, *((site, 1) for site in (*HEADS, "pattern", "hook_z")))
    assert found["pattern", 1].shape == (ROWS, T, find(name, "pattern").heads, T)
    shaped = {site: heads(name, site, found[site, 1]) for site in HEADS}
    return {**shaped, "pattern": found["pattern", 1].transpose(1, 2), "z": found["hook_z", 1]}


@pytest.mark.parametrize("name", _WITH_HEADS)
def test_the_pattern_and_the_values_of_heads_give_what_heads_put_out(name: str) -> None:
    found = attended(name)
    assert torch.equal(found["pattern"].triu(1), torch.zeros_like(found["pattern"]))
    if name != "gpt_oss":
        close(found["pattern"].sum(-1), torch.ones(found["pattern"].shape[:3]))
    out = (found["pattern"] @ found["v"]).transpose(1, 2).flatten(2)
    if name in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):  # whose heads have gates
        assert out.shape == found["z"].shape
        return
    close(out, found["z"])


@pytest.mark.parametrize("name", [n for n in _WITH_HEADS if n not in _NOT_PLAIN.split()])
def test_the_products_of_queries_and_keys_give_the_pattern(name: str) -> None:
    found = attended(name)
    close(pattern_of(name, found["q"], found["k"]), found["pattern"])


@pytest.mark.parametrize("name", _WITH_HEADS)
def test_attention_goes_on_with_what_is_added_to_queries_keys_and_values(name: str) -> None:
    plain = attended(name)
    places = [(site, 1) for site in (*HEADS, "pattern", "hook_z")]
    deltas = {site: delta_of(find(name, site).width, seed) for seed, site in enumerate(HEADS)}
    with ExitStack() as stack:
        stack.enter_context(attending_plainly(model_of(name)))
        found = stack.enter_context(caught(name, *places))
        for site, delta in deltas.items():
            stack.enter_context(steered(name, site, 1, delta))
        run(name)
    for site, delta in deltas.items():
        close(heads(name, site, found[site, 1]), plain[site] + heads(name, site, delta))
    pattern = found["pattern", 1].transpose(1, 2)
    assert (pattern - plain["pattern"]).abs().max() > 1e-4
    if name not in _NOT_PLAIN.split():
        q, k = (heads(name, site, found[site, 1]) for site in ("q", "k"))
        close(pattern_of(name, q, k), pattern)
    if name not in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):  # whose heads have gates
        out = (pattern @ heads(name, "v", found["v", 1])).transpose(1, 2).flatten(2)
        close(out, found["hook_z", 1])


@pytest.mark.parametrize("name", _WITH_HEADS)
def test_keys_and_values_are_those_of_the_librarys_cache_bit_for_bit(name: str) -> None:
    parts = []
    cache: Any = None
    for ids in (IDS[:, :3], IDS[:, 3:6], IDS[:, 6:]):
        with caught(name, ("k", 1), ("v", 1)) as found, torch.inference_mode():
            out = model_of(name)(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(found)
    held = cache.layers[1]
    for site, expected in (("k", held.keys), ("v", held.values)):
        read = torch.cat([part[site, 1] for part in parts], 1)
        assert torch.equal(read, expected.transpose(1, 2).flatten(2)), site


# ---------------------------------------------------------------- steering


def delta_of(width: int, seed: int = 0) -> Tensor:
    """One delta for each row."""
    return torch.randn(ROWS, 1, width, generator=torch.Generator().manual_seed(seed)) * 0.3


@contextmanager
def steered(name: str, site: str, layer: int, delta: Tensor | None) -> Iterator[None]:
    handle = find(name, site, layer).hook(lambda _: delta)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("name", [n for n in MODELS if "attn_out" not in LACKING.get(n, ())])
def test_what_is_added_at_a_site_is_added_to_the_stream(name: str) -> None:
    """At the places behind the MLP the stream moves by exactly that; before it, the MLP answers to it as well."""
    layer, delta = 1, delta_of(HIDDEN)
    is_parallel = "resid_mid" in LACKING.get(name, ())
    at = [("resid_post", layer), ("mlp_out", layer)]
    plain = values(name, *at)
    for site in ("resid_post", "mlp_out", "attn_out", "resid_mid", "resid_pre"):
        if site not in offered(name):
            continue
        with steered(name, site, layer, delta):
            moved = values(name, *at)
        change = moved["resid_post", layer] - plain["resid_post", layer]
        mlp = moved["mlp_out", layer] - plain["mlp_out", layer]
        if site == "resid_post":
            close(moved["resid_post", layer], plain["resid_post", layer] + delta)
        elif site == "mlp_out" or (site == "attn_out" and is_parallel):
            close(change, delta.expand_as(change))
        elif site in ("attn_out", "resid_mid"):
            assert mlp.abs().max() > 1e-4, "the MLP reads the steered stream"
            close(change, delta + mlp)
        else:
            assert (change - delta - mlp).abs().max() > 1e-4, "attention reads the steered stream"


@pytest.mark.parametrize("name", MODELS)
def test_what_is_added_at_a_site_is_added_to_its_value(name: str) -> None:
    for site, width in sites.widths(model_of(name), LAYERS).items():
        layer = 0 if site == "embed" else 1
        delta = delta_of(width)
        plain = values(name, (site, layer))[site, layer]
        before: list[Tensor] = []
        after: list[Tensor] = []
        place = find(name, site, layer)

        def edit(value: Tensor, before: list[Tensor] = before, delta: Tensor = delta) -> Tensor:
            before.append(value.clone())
            return delta

        def look(value: Tensor, after: list[Tensor] = after) -> None:
            after.append(value.clone())

        is_newest_first = site == "resid_pre" or not (place.is_input or site.startswith("resid"))
        order: list[sites.AtSite] = [look, edit] if is_newest_first else [edit, look]
        handles = [place.hook(hook) for hook in order]
        run(name)
        for handle in handles:
            handle.remove()
        assert torch.equal(before[0], plain), site
        close(after[0], plain + delta)


@pytest.mark.parametrize("name", MODELS)
def test_a_hook_that_adds_nothing_leaves_the_model_bit_for_bit(name: str) -> None:
    plain = run(name).logits
    for site in offered(name):
        with steered(name, site, 0 if site == "embed" else 1, None):
            assert torch.equal(run(name).logits, plain), site
    assert torch.equal(run(name).logits, plain)


@pytest.mark.parametrize("site", ["resid_pre", "resid_post"])
def test_plain_residual_sites_add_bit_for_bit(site: str) -> None:
    delta = delta_of(HIDDEN)
    plain = values("llama", (site, 1))[site, 1]
    place = find("llama", site)
    seen: list[Tensor] = []
    with steered("llama", site, 1, delta):
        wrong_end = (
            place.module.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
            if site == "resid_pre"
            else place.module.register_forward_hook(lambda _, __, out: seen.append(out.clone()))
        )
        run("llama")
        wrong_end.remove()
    assert torch.equal(seen[0], plain + delta)


@pytest.mark.parametrize(("early", "late"), [("resid_pre", "resid_mid"), ("attn_out", "resid_mid")])
@pytest.mark.parametrize("is_late_first", [True, False])
@pytest.mark.parametrize("name", ["llama", "gemma2", "opt", "granite"])
def test_a_site_sees_what_was_added_before_it_whoever_came_first(
    name: str, early: str, late: str, is_late_first: bool
) -> None:
    delta = delta_of(HIDDEN)
    with steered(name, early, 1, delta):
        expected = values(name, (late, 1))[late, 1]
    seen: list[Tensor] = []
    hooks = [(early, lambda _: delta), (late, lambda value: seen.append(value.clone()))]
    handles = [find(name, s, 1).hook(edit) for s, edit in (hooks[::-1] if is_late_first else hooks)]
    run(name)
    for handle in handles:
        handle.remove()
    close(seen[0], expected)


def test_a_delta_of_another_dtype_leaves_the_stream_in_its_own() -> None:
    with (
        steered("llama", "resid_post", 1, delta_of(HIDDEN).double()),
        caught("llama", ("resid_pre", 2)) as at,
    ):
        run("llama")
    assert at["resid_pre", 2].dtype == torch.float32


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_a_removed_hook_leaves_nothing_behind(name: str) -> None:
    model = model_of(name)
    before = hooks_of(model)
    for site in offered(name):
        handle = find(name, site, 0).hook(lambda _: None)
        assert hooks_of(model) > before
        handle.remove()
    assert hooks_of(model) == before


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("layer", [-1, LAYERS, 1000])
@pytest.mark.parametrize("site", ["resid_post", "embed"])
def test_a_layer_that_the_model_lacks_is_refused(site: str, layer: int) -> None:
    refusal = refusal_of(find, "llama", site, layer)
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert str(layer) in refusal.message


def test_the_embedding_is_at_layer_0_only() -> None:
    refusal = refusal_of(find, "llama", "embed", 1)
    assert "layer 0" in refusal.message


def test_a_layer_of_another_kind_of_attention_has_no_heads_to_read() -> None:
    assert find("qwen3_next", "hook_z", 1).path == "model.layers.1.self_attn.o_proj"
    for site in ("hook_z", "attn_out", "attn_raw", "resid_mid"):
        with pytest.raises(Refusal, match="no softmax attention"):
            find("qwen3_next", site, 0)
    assert find("qwen3_next", "mlp_out", 0).width == HIDDEN


def test_an_unknown_architecture_offers_the_stream_around_its_layers_only() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of("llama").model
            self.config = model_of("llama").config.__class__(hidden_size=HIDDEN)
            self.config.model_type = "other"

        def get_input_embeddings(self) -> nn.Module:
            return self.model.embed_tokens

        def get_output_embeddings(self) -> None:
            return None

    assert sites.widths(Other(), LAYERS) == dict.fromkeys(
        ["resid_pre", "resid_post", "embed"], HIDDEN
    )
    with pytest.raises(Refusal, match="other offers no site 'mlp_out'"):
        sites.find(Other(), LAYERS, "mlp_out", 0)


def test_a_name_that_is_no_site_is_refused() -> None:
    assert refusal_of(find, "llama", "nowhere").code == "SAE_INCOMPATIBLE"


def test_two_lists_of_as_many_layers_are_not_guessed_between() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
            self.two = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    with pytest.raises(Refusal, match="no list of 3 decoder layers"):
        decoder_layers(Two(), 3)


def test_a_model_with_a_vision_tower_is_hooked_in_its_text_tower() -> None:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = {**_PLAIN, "query_pre_attn_scalar": 8}
    config = CONFIG_MAPPING["gemma3"](text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = AutoModelForCausalLM.from_config(config).eval()
    site = sites.find(model, LAYERS, "mlp_out", 2)
    assert site.path == "model.language_model.layers.2.post_feedforward_layernorm"
    assert sites.widths(model, LAYERS).keys() == EDITABLE.keys()
    seen: list[Tensor] = []
    site.hook(lambda value: seen.append(value))
    with torch.inference_mode():
        model(input_ids=IDS)
    assert seen[0].shape == (ROWS, T, HIDDEN)


@pytest.mark.parametrize(
    ("name", "has"),
    [
        *dict.fromkeys(
            "gpt2 gpt_neo gpt_neox opt bloom phi falcon mpt olmo cohere".split(), True
        ).items(),
        *dict.fromkeys(
            "llama mistral qwen3 gemma gemma2 gemma3 olmo2 phi3 gpt_oss granite".split(), False
        ).items(),
    ],
)
def test_layer_norm_is_told_from_rms_norm(name: str, has: bool) -> None:
    assert sites.has_layer_norm(model_of(name), LAYERS) is has
