"""Sites that are only read: what attention multiplies and computes, the logits of experts, and the logits. They are
those that the library's own code computes, in the architectures of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Echo, Suppressed
from steerserve.worker.model.attention import attending_plainly
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from tests.parts.activations_raw.test_row import (
    IDS,
    at,
    beside_another,
    close,
    found,
    numbers,
    own,
    reads,
)
from tests.worker.models import ALONE, SERVED
from tests.worker.running import Bench, generated, passed, words

Loaded = Callable[[str], Checkpoint]
HEADS = ("q", "k", "v")
NONE = "mamba mamba2 rwkv jamba lfm2 falcon_h1 minimax recurrent_gemma openai_gpt".split()
"""Architectures whose heads are not known here."""
WITH_HEADS = [name for name in (*SERVED, *ALONE) if name not in NONE]


def layer_of(model: Checkpoint, site: str) -> int:
    """The last layer that has a site."""
    listed = sites.listed(model.model, model.layers)
    return max(layer for one in listed if one.site == site for layer in one.layers or ())


@pytest.mark.parametrize("name", WITH_HEADS)
def test_queries_keys_and_values_are_those_that_attention_multiplies(
    loaded: Loaded, name: str
) -> None:
    """In prefill and in decode steps."""
    model = loaded(name)
    layer = layer_of(model, "q")
    places = [(site, layer) for site in HEADS]
    answer, chunk = beside_another(model, 40, reads(*places))
    for place, expected in enumerate(own(model, passed(answer), *places)):
        heads = sites.find(model.model, model.layers, *places[place]).heads
        read = numbers(chunk, place)
        assert read.shape == (len(expected), heads, expected.shape[1] // heads)
        close(read, expected.unflatten(1, (heads, -1)))
    assert answer.tokens == generated(model, words(40), 6)


@pytest.mark.parametrize("name", ["llama_wide", "gemma2"])
def test_what_a_compiled_attention_multiplies_gives_what_it_puts_out(
    loaded: Loaded, name: str
) -> None:
    """The queries are those of the compiled function, in float32, and not those of other code."""
    model = loaded(name)
    layer, count = 1, 20
    asked = reads(*((site, layer) for site in (*HEADS, "hook_z")))
    bench = Bench(model)
    answer = bench.ask(1, "", ids=list(range(5, 5 + count)), max_tokens=8, raw=asked)
    bench.run()
    chunk = found(answer.pieces)
    q, k, v, z = (torch.from_numpy(numbers(chunk, n).copy()).transpose(0, 1) for n in range(4))
    module: Any = sites.find(model.model, model.layers, "q", layer).module
    k, v = (one.repeat_interleave(len(q) // len(one), 0) for one in (k, v))
    scores = q @ k.transpose(1, 2) * module.scaling
    if cap := getattr(module, "attn_logit_softcapping", None):
        scores = cap * torch.tanh(scores / cap)
    hidden = torch.ones(scores.shape[1:]).triu(1).bool()
    out = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    rounding = torch.finfo(model.dtype).eps
    torch.testing.assert_close(out, z, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("name", WITH_HEADS)
def test_the_pattern_is_that_of_the_librarys_plain_attention(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    layer = layer_of(model, "pattern")
    answer, chunk = beside_another(model, 40, reads(("pattern", layer), ("v", layer)))
    count = len(passed(answer))
    pattern = numbers(chunk)
    heads = sites.find(model.model, model.layers, "q", layer).heads
    assert pattern.shape == (count, heads, count)
    assert not np.triu(pattern.transpose(1, 0, 2), 1).any()
    with attending_plainly(model.model), torch.inference_mode():
        ids = torch.tensor([passed(answer)])
        out = model.model(input_ids=ids, use_cache=False, output_attentions=True)
    expected = [one for one in out.attentions if one is not None][-1]
    close(pattern, expected[0].transpose(0, 1))


@pytest.mark.parametrize(
    "name", "llama gemma2 granite cohere gpt2 phi3_longrope falcon_alibi mamba openai_gpt".split()
)
def test_the_logits_are_those_of_the_model(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    answer, chunk = beside_another(model, 20, reads(("logits", None)))
    with torch.inference_mode():
        ids = torch.tensor([passed(answer)])
        logits = model.model(input_ids=ids, use_cache=False).logits[0]
    close(numbers(chunk), logits)
    assert numbers(chunk)[len(answer.row.prompt) - 1 :].argmax(-1).tolist() == answer.tokens


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_the_logits_of_experts_are_those_of_the_router(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    kept: list[Tensor] = []
    router = sites.find(model.model, model.layers, "router_logits", 1).module
    bench = Bench(model)
    answer = bench.ask(
        2, words(20), max_tokens=6, plan=Suppressed(), raw=reads(("router_logits", 1))
    )
    bench.run()
    hook = router.register_forward_hook(lambda _, __, out: kept.append(out[0]))
    with torch.inference_mode():
        ids = torch.tensor([passed(answer)])
        model.model(input_ids=ids, use_cache=False)
    hook.remove()
    close(numbers(found(answer.pieces)), kept[0])


def test_heads_that_are_named_and_sites_of_all_kinds_come_together(llama: Checkpoint) -> None:
    whole = reads(("pattern", 1), ("q", 1), ("k", 1), ("logits", None), ("resid_post", 1))
    bench = Bench(llama)
    first = bench.ask(1, "", ids=IDS, max_tokens=3, raw=whole)
    some = bench.ask(
        2, "", ids=IDS, max_tokens=3, raw=reads(("pattern", 1), ("q", 1), heads=(3, 1))
    )
    keys = bench.ask(3, "", ids=IDS, max_tokens=3, raw=reads(("k", 1), heads=(1,)))
    bench.run()
    assert bench.refused == {}
    every, chunk = found(first.pieces), found(some.pieces)
    assert np.array_equal(numbers(chunk), numbers(every)[:, [3, 1]])
    assert np.array_equal(numbers(chunk, 1), numbers(every, 1)[:, [3, 1]])
    close(numbers(found(keys.pieces)), numbers(every, 2)[:, [1]])
    assert [one.shape for one in every.values] == [(4, 14), (4, 8), (2, 8), (320,), (32,)]


@pytest.mark.parametrize("site", ["pattern", "logits", "q"])
@pytest.mark.parametrize(
    "positions", [at("last_prompt"), at("output"), at("prompt"), at("generated")]
)
def test_only_the_positions_that_are_named_are_read(
    llama: Checkpoint, site: str, positions: Any
) -> None:
    layer = None if site == "logits" else 1
    bench, kept = Bench(llama, prefix_tokens=256), {}
    for number, form in enumerate(
        (reads((site, layer)), reads((site, layer), positions=positions))
    ):
        answer = bench.ask(number, "", ids=IDS, max_tokens=4, raw=form)
        bench.run()
        kept[number] = found(answer.pieces)
    every, chunk = kept[0], kept[1]
    assert 0 < len(chunk.positions) < len(every.positions)
    # a row that begins with a kept prefix has passes of other sizes
    close(numbers(chunk), numbers(every)[list(chunk.positions)])


def test_a_scored_prompt_has_its_logits_and_its_pattern_and_its_echo(llama: Checkpoint) -> None:
    bench = Bench(llama)
    raw = reads(("logits", None), ("pattern", 0))
    bench.score(1, "", ids=IDS, raw=raw, echo=Echo(max_tokens=100, max_entries=10_000))
    bench.score(2, "", ids=IDS, raw=reads(("logits", None), positions=at("last_prompt")))
    bench.score(3, "", ids=IDS, echo=Echo(max_tokens=100, max_entries=10_000))
    bench.run()
    chunk, last = found([bench.scores[1, 0]]), found([bench.scores[2, 0]])
    with torch.inference_mode():
        logits = llama.model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    close(numbers(chunk), logits)
    close(numbers(last), logits[-1:])
    assert numbers(chunk, 1).shape == (len(IDS), 4, len(IDS))
    for one, other in zip(bench.scores[1, 0].prompt, bench.scores[3, 0].prompt, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_a_long_prompt_is_read_in_parts_and_all_its_logits_are_there(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steerserve.worker.batch.planned.ECHO_LOGITS", 32 * llama.vocabulary)
    ids = [5 + n % 300 for n in range(90)]
    bench = Bench(llama)
    answer = bench.ask(1, "", ids=ids, max_tokens=2, raw=reads(("logits", None), ("q", 0)))
    bench.run()
    chunk = found(answer.pieces)
    assert list(chunk.positions) == list(range(91))
    assert numbers(chunk).shape == (91, llama.vocabulary)


def test_neighbours_of_a_pattern_keep_their_bits(llama: Checkpoint) -> None:
    def logits(*, with_pattern: bool) -> np.ndarray[Any, Any]:
        bench = Bench(llama)
        if with_pattern:
            bench.ask(9, words(30), max_tokens=12, raw=reads(("pattern", 0), ("pattern", 1)))
        answer = bench.ask(1, words(20), max_tokens=8, seed=1, raw=reads(("logits", None)))
        bench.ask(2, words(24), max_tokens=8)
        bench.run()
        return numbers(found(answer.pieces))

    assert np.array_equal(logits(with_pattern=True), logits(with_pattern=False))


def test_the_scores_of_a_prompt_must_fit_into_memory(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steerserve.worker.memory.free", lambda _: 1000)
    with pytest.raises(Refusal, match="the attention of a prompt of 12 tokens takes 6912 bytes"):
        Bench(llama).ask(1, "", ids=IDS, raw=reads(("pattern", 0)))


@pytest.mark.parametrize("name", ["mamba", "jamba", "openai_gpt"])
def test_an_architecture_without_known_heads_refuses_them(loaded: Loaded, name: str) -> None:
    with pytest.raises(Refusal, match="only the residual stream"):
        Bench(loaded(name)).ask(1, words(9), raw=reads(("q", 0)))
