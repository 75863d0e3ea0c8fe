"""Steering: exactly the sum of value x decoder row, exactly for the rows that asked, exactly while they asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Follow, Overlay, Plan, Suppressed
from steerserve.rules.saes.sites import EMBED, RESID_MID, RESID_POST, RESID_PRE
from steerserve.rules.steering.live import Live
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.hooks.places import NO_CATCHES
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows.steering import RowSteering
from steerserve.worker.sae import sites
from steerserve.worker.sae.sites import Site
from tests.worker.running import (
    Bench,
    generated,
    hooked,
    random_sae,
    recomputed,
    site_of,
    words,
)

Loaded = Callable[[str], Checkpoint]
KEY = "sae@0"
SAE = random_sae(32)
ONE = {3: 2.0, 7: -1.5, 40: 0.25}
OTHER = {5: -3.0, 11: 2.5}


def delta_of(values: dict[int, float]) -> Tensor:
    return sum((value * SAE.W_dec[i] for i, value in values.items()), torch.zeros(SAE.d_in))


def overlay(values: dict[int, float], epoch: int = 0) -> Overlay:
    return Overlay(epoch, {KEY: values})


@contextmanager
def steered_bench(
    model: Checkpoint, site: str = RESID_POST, layer: int = 0, **options: Any
) -> Iterator[Bench]:
    bench = Bench(model, **options)
    bench.steering.attach(KEY, SAE, site_of(model, layer, site))
    try:
        yield bench
    finally:
        bench.steering.detach(KEY)


def steered_alone(model: Checkpoint, prompt: str, plan: Plan, **fields: Any) -> list[int]:
    with steered_bench(model) as bench:
        answer = bench.ask(1, prompt, plan=plan, **fields)
        bench.run()
        return answer.tokens


# ---------------------------------------------------------------- what is added


# falcon's layers return a tuple, the others a tensor; phi and gpt2 pass the hidden states by position; granite scales
# what it adds to the stream
ARCHITECTURES = ["llama", "gpt2", "falcon", "gemma3", "phi", "granite", "opt"]


def sites_of(model: Checkpoint) -> Iterator[tuple[Site, int]]:
    """Every site the model offers, in its last layer where there is one, and the layer."""
    for name in sites.widths(model.model, model.layers):
        layer = 0 if name == EMBED else model.layers - 1
        yield site_of(model, layer, name), layer


@contextmanager
def recorded(site: Site) -> Iterator[list[Tensor]]:
    """The site's values of every pass while open, each with all its rows."""
    found: list[Tensor] = []
    handle = site.hook(lambda value: found.append(value.clone()))
    try:
        yield found
    finally:
        handle.remove()


@pytest.mark.parametrize("variant", ARCHITECTURES)
def test_the_stream_moves_by_the_sum_of_value_times_decoder_row_at_every_position(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    tried = []
    for site, layer in sites_of(model):
        sae, bench = random_sae(site.width), Bench(model)
        delta = sum((v * sae.W_dec[i] for i, v in ONE.items()), torch.zeros(site.width))
        with (
            recorded(site) as first,
            bench.attached(KEY, sae, layer, site.name),
            recorded(site) as second,
        ):
            answer = bench.ask(1, words(30), plan=overlay(ONE), max_tokens=5)
            bench.run()
            assert bench.steering.applied == {KEY: 5}
        tokens = [*answer.row.prompt, *answer.tokens][:-1]
        with recorded(site) as plain:
            model.model(input_ids=torch.tensor([tokens]), use_cache=False)
        sizes = [len(answer.row.prompt), 1, 1, 1, 1]
        # which of several hooks at a site acts first depends on the site; passes are padded behind the row and its
        # tokens
        seen = [
            torch.cat([h[:1, :size] for h, size in zip(passes, sizes, strict=True)], dim=1)
            for passes in (first, second)
        ]
        before, after = sorted(seen, key=lambda value: float((value - plain[0]).abs().max()))
        torch.testing.assert_close(before, plain[0], atol=1e-4, rtol=1e-4, msg=site.name)
        moved = (after - before) - delta
        assert float(moved.abs().max()) < 1e-3, site.name
        tried.append(site.name)
    assert {RESID_PRE, RESID_POST} <= set(tried)


@pytest.mark.parametrize("variant", ARCHITECTURES)
def test_at_every_site_the_cache_changes_nothing_in_a_steered_text(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    plain = generated(model, words(30), 8)
    changed = []
    for site, layer in sites_of(model):
        sae, bench = random_sae(site.width), Bench(model)
        with bench.attached(KEY, sae, layer, site.name):
            answer = bench.ask(1, words(30), plan=overlay(ONE), max_tokens=8)
            bench.run()
        delta = sae.direction(ONE)
        handle = site.hook(lambda value, delta=delta: delta.expand_as(value))
        try:
            assert recomputed(model, words(30), 8) == answer.tokens, site.name
        finally:
            handle.remove()
        changed.append(answer.tokens != plain)
    assert sum(changed) > len(changed) / 2


@pytest.mark.parametrize("variant", ARCHITECTURES)
def test_at_every_site_rows_of_a_batch_equal_their_own_solo_runs(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    plans = [overlay(ONE), Suppressed(), overlay(OTHER)]
    for site, layer in sites_of(model):
        sae = random_sae(site.width)
        texts = []
        for together in (False, True):
            bench = Bench(model)
            with bench.attached(KEY, sae, layer, site.name):
                answers = []
                for i, plan in enumerate(plans):
                    # of different lengths, so that two of the three are padded
                    answers.append(bench.ask(i, words(16 + 7 * i, i), plan=plan, max_tokens=5))
                    if not together:
                        bench.run()
                bench.run()
            texts.append([answer.tokens for answer in answers])
        assert texts[0] == texts[1], site.name


def test_rows_steered_at_different_layers_by_different_saes_share_a_pass(
    llama: Checkpoint,
) -> None:
    other = random_sae(32, seed=9)
    plans = [
        Overlay(0, {KEY: ONE, "b@1": OTHER}),
        Overlay(0, {"b@1": ONE}),
        Suppressed(),
        Overlay(0, {KEY: OTHER}),
    ]
    texts = []
    for together in (False, True):
        bench = Bench(llama)
        with bench.attached(KEY, SAE, 0), bench.attached("b@1", other, 1, RESID_MID):
            answers = []
            for i, plan in enumerate(plans):
                answers.append(bench.ask(i, words(16 + 7 * i, i), plan=plan))
                if not together:
                    bench.run()
            bench.run()
            texts.append([answer.tokens for answer in answers])
    assert texts[0] == texts[1]
    assert texts[0][2] == generated(llama, words(30, 2), 16)
    assert len({tuple(t) for t in texts[0]}) == 4


def test_clamping_with_the_error_kept_is_adding_per_token_what_is_missing(
    llama: Checkpoint,
) -> None:
    """x + (a* - a(x)) d equals decoding the clamped features and adding what the SAE leaves unexplained."""
    (x,) = residuals(llama, words(30))
    features, x_hat = SAE.reconstruct(x)
    clamped = features.clone()
    clamped[:, 3] = 5.0
    spliced = clamped @ SAE.W_dec + SAE.b_dec + (x - x_hat)
    added = torch.stack(
        [row + SAE.direction({3: 5.0 - float(f[3])}) for row, f in zip(x, features, strict=True)]
    )
    torch.testing.assert_close(spliced, added, atol=1e-4, rtol=1e-4)


def residuals(model: Checkpoint, text: str) -> list[Tensor]:
    with recorded(site_of(model)) as found:
        model.model(input_ids=torch.tensor([model.encode(text, special=True)]), use_cache=False)
    return [value[0] for value in found]


def test_the_tuple_and_the_tensor_output_are_both_covered(loaded: Loaded) -> None:
    kinds = {}
    for variant in ("llama", "falcon"):
        model = loaded(variant)
        seen: list[type] = []
        handle = site_of(model).module.register_forward_hook(
            lambda _, __, output, seen=seen: seen.append(type(output))
        )
        model.model(input_ids=torch.tensor([[5, 6]]))
        handle.remove()
        kinds[variant] = seen[0]
    assert kinds == {"llama": Tensor, "falcon": tuple}


def test_each_row_of_a_pass_gets_its_own_delta(llama: Checkpoint) -> None:
    before: list[Tensor] = []
    after: list[Tensor] = []
    with (
        hooked(site_of(llama), lambda h: before.append(h.clone())),
        steered_bench(llama) as bench,
        hooked(site_of(llama), lambda h: after.append(h.clone())),
    ):
        for i, plan in enumerate((overlay(ONE), Suppressed(), overlay(OTHER))):
            bench.ask(i, words(12, i), plan=plan, max_tokens=1)
        bench.step()
    assert before[0].shape[0] == 3
    deltas = torch.stack([delta_of(ONE), torch.zeros(SAE.d_in), delta_of(OTHER)])[:, None]
    torch.testing.assert_close(after[0] - before[0], deltas.expand_as(before[0]), atol=1e-4, rtol=0)
    assert torch.equal(after[0][1], before[0][1])


def test_two_saes_add_up(llama: Checkpoint) -> None:
    second = random_sae(32, seed=9)
    values = {KEY: ONE, "b@0": {4: 1.5}}
    before: list[Tensor] = []
    after: list[Tensor] = []
    with (
        hooked(site_of(llama), lambda h: before.append(h.clone())),
        steered_bench(llama) as bench,
    ):
        bench.steering.attach("b@0", second, site_of(llama))
        with hooked(site_of(llama), lambda h: after.append(h.clone())):
            bench.ask(1, words(12), plan=Overlay(0, values), max_tokens=1)
            bench.run()
        bench.steering.detach("b@0")
    expected = delta_of(ONE) + 1.5 * second.W_dec[4]
    torch.testing.assert_close(
        after[0] - before[0], expected.expand_as(before[0]), atol=1e-4, rtol=0
    )


def test_a_delta_is_never_written_into_the_shared_stream(llama: Checkpoint) -> None:
    kept: list[Tensor] = []
    copies: list[Tensor] = []

    def keep(hidden: Tensor) -> None:
        kept.append(hidden)
        copies.append(hidden.clone())

    with hooked(site_of(llama), keep), steered_bench(llama) as bench:
        bench.ask(1, words(12), plan=overlay(ONE), max_tokens=3)
        bench.run()
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


# ---------------------------------------------------------------- nothing is nothing


def nothing() -> dict[str, tuple[Live, Plan]]:
    on = {KEY: ONE}
    return {
        "no values": (Live(), Follow()),
        "value zero": (Live(1, True, {KEY: {3: 0.0}}), Follow()),
        "disabled": (Live(1, False, on), Follow()),
        "suppressed": (Live(1, True, on), Suppressed()),
        "empty overlay": (Live(1, True, on), Overlay(1, {})),
        "overlay of zeros": (Live(1, True, on), Overlay(1, {KEY: {3: 0.0, 4: -0.0}})),
        "another SAE's values": (Live(1, True, {"other@1": ONE}), Follow()),
    }


@pytest.mark.parametrize("case", nothing())
def test_a_row_without_steering_is_bitwise_the_model_without_hooks(
    llama: Checkpoint, case: str
) -> None:
    live, plan = nothing()[case]
    plain = logits_of(llama)
    with steered_bench(llama) as bench:
        bench.steering.set_live(live)
        rows = [RowSteering(plan), RowSteering(plan)]
        planned = bench.steering.planner.plan_pass(rows, [(0, 1)] * 2, NO_CATCHES)
        with bench.steering.passes.steered(planned):
            hooked_logits = logits_of(llama)
        assert bench.steering.applied == {KEY: 0}
    assert torch.equal(plain, hooked_logits)


def logits_of(model: Checkpoint) -> Tensor:
    prompts = [model.encode(words(size), special=True) for size in (30, 12)]
    cache = model.cache()
    slots = [cache.open(64) for _ in prompts]
    first = model.prefill(cache, slots, prompts, start=0).logits
    second = model.decode_step(cache, slots, [4, 5], [len(p) for p in prompts]).logits
    return torch.stack([first, second])


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize("variant", ["llama", "gpt2", "falcon", "mistral"])
def test_two_overlays_in_one_batch_each_equal_their_own_solo_run(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    plans = [overlay(ONE), overlay(OTHER), Suppressed(), overlay({0: 4.0})]
    solo = [steered_alone(model, words(20, i), plan) for i, plan in enumerate(plans)]
    with steered_bench(model) as bench:
        answers = []
        for i, plan in enumerate(plans):
            answers.append(bench.ask(i, words(20, i), plan=plan))
            bench.step(i)
        bench.run()
    assert [answer.tokens for answer in answers] == solo


def test_a_suppressed_row_beside_steered_ones_is_unsteered(llama: Checkpoint) -> None:
    with steered_bench(llama) as bench:
        bench.steering.set_live(Live(1, True, {KEY: OTHER}))
        suppressed = bench.ask(1, words(20), plan=Suppressed())
        followed = bench.ask(2, words(25), plan=Follow())
        bench.ask(3, words(30), plan=overlay(ONE, epoch=1))
        bench.run()
    assert suppressed.tokens == generated(llama, words(20), 16)
    assert followed.tokens != generated(llama, words(25), 16)


def test_seeded_rows_are_steered_like_others(llama: Checkpoint) -> None:
    seeded = steered_alone(llama, words(30), overlay(ONE), seed=3)
    assert seeded == steered_alone(llama, words(30), overlay(ONE))


# ---------------------------------------------------------------- live values


@pytest.mark.shows("steering.1")
def test_a_row_follows_live_values_from_the_next_pass_on(llama: Checkpoint) -> None:
    before: list[Tensor] = []
    after: list[Tensor] = []
    with (
        hooked(site_of(llama), lambda h: before.append(h.clone())),
        steered_bench(llama) as bench,
        hooked(site_of(llama), lambda h: after.append(h.clone())),
    ):
        bench.ask(1, words(20), max_tokens=4)
        bench.step()
        for epoch, values in enumerate((ONE, OTHER, {}), start=1):
            bench.steering.set_live(Live(epoch, bool(values), {KEY: values}))
            bench.step()
    moved = [(a - b)[0, -1] for a, b in zip(after, before, strict=True)]
    expected = [torch.zeros(SAE.d_in), delta_of(ONE), delta_of(OTHER), torch.zeros(SAE.d_in)]
    torch.testing.assert_close(moved, expected, atol=1e-4, rtol=0)


def test_an_overlay_yields_to_live_values_after_the_epoch_moved(llama: Checkpoint) -> None:
    with steered_bench(llama) as bench:
        bench.steering.set_live(Live(5, True, {KEY: {0: 1.0}}))
        overlaid = bench.ask(1, words(20), plan=overlay(ONE, epoch=5), max_tokens=24)
        bench.step(6)
        bench.steering.set_live(Live(6, True, {KEY: OTHER}))
        bench.run()
    with steered_bench(llama) as bench:
        bench.steering.set_live(Live(5, True, {KEY: ONE}))
        followed = bench.ask(1, words(20), plan=Follow(), max_tokens=24)
        bench.step(6)
        bench.steering.set_live(Live(6, True, {KEY: OTHER}))
        bench.run()
    assert overlaid.tokens == followed.tokens
    assert overlaid.tokens != steered_alone(llama, words(20), overlay(ONE), max_tokens=24)


def test_a_disabled_live_state_takes_a_stale_overlay_along(llama: Checkpoint) -> None:
    with steered_bench(llama) as bench:
        bench.steering.set_live(Live(6, False, {KEY: OTHER}))
        answer = bench.ask(1, words(20), plan=overlay(ONE, epoch=5))
        bench.run()
    assert answer.tokens == generated(llama, words(20), 16)


# ---------------------------------------------------------------- the count


def test_applied_counts_the_passes_in_which_something_was_added(llama: Checkpoint) -> None:
    passes: list[int] = []
    handle = llama.model.register_forward_pre_hook(lambda *_: passes.append(1))
    with steered_bench(llama) as bench:
        assert bench.steering.applied == {KEY: 0}
        steered = bench.ask(1, words(20), plan=overlay(ONE), max_tokens=9)
        bench.run()
        assert bench.steering.applied == {KEY: len(passes)} == {KEY: len(steered.tokens)}
        bench.ask(2, words(20), plan=Suppressed(), max_tokens=9)
        bench.run()
        assert bench.steering.applied == {KEY: len(steered.tokens)}
    handle.remove()


def test_applied_counts_a_pass_once_however_many_rows_are_steered(llama: Checkpoint) -> None:
    with steered_bench(llama) as bench:
        short = bench.ask(1, words(20), plan=overlay(ONE), max_tokens=5)
        bench.ask(2, words(21), plan=overlay(OTHER), max_tokens=5)
        bench.ask(3, words(22), plan=Suppressed(), max_tokens=20)
        bench.run()
        assert bench.steering.applied == {KEY: len(short.tokens)}


# ---------------------------------------------------------------- failures


@contextmanager
def failing(model: Checkpoint, error: Exception, when: Callable[[Tensor], bool]) -> Iterator[None]:
    """While open, forward passes whose hidden states fit `when` break in the last layer."""

    def fail(hidden: Tensor) -> None:
        if when(hidden):
            raise error

    with hooked(site_of(model, model.layers - 1, RESID_PRE), fail):
        yield


def test_a_broken_pass_refuses_its_own_group_only_and_leaves_no_steering(
    llama: Checkpoint,
) -> None:
    with steered_bench(llama, shares_seeded=False) as bench:
        for i in (1, 2):
            bench.ask(i, words(20, i), plan=overlay(ONE))
        seeded = bench.ask(3, words(30), plan=Suppressed(), seed=4)
        bench.step(2)
        # the pass of both, and then the pass of each
        first = iter([True, True, True])
        with failing(llama, RuntimeError("broken"), lambda _: next(first, False)):
            bench.step()
        assert {i: r.code for i, r in bench.refused.items()} == dict.fromkeys(
            (1, 2), "INTERNAL_ERROR"
        )
        assert "broken" not in bench.refused[1].message
        assert not bench.live_rows(1)
        assert not bench.live_rows(2)
        after = bench.ask(4, words(20), plan=Suppressed())
        bench.run()
        assert seeded.tokens == generated(llama, words(30), 16)
        assert after.tokens == generated(llama, words(20), 16)
        assert bench.held_bytes == 0


@pytest.mark.parametrize("plan", [overlay(ONE), Follow()], ids=["overlay", "live"])
def test_a_pass_that_breaks_inside_leaves_no_delta_behind(llama: Checkpoint, plan: Plan) -> None:
    plain = logits_of(llama)
    with steered_bench(llama) as bench:
        bench.steering.set_live(Live(0, True, {KEY: OTHER}))
        bench.ask(1, words(20), plan=plan)
        bench.step(2)
        with failing(llama, RuntimeError("broken"), lambda _: True):
            bench.step()
        assert list(bench.refused) == [1]
        # the hook is still there: only what it would add is gone
        assert torch.equal(logits_of(llama), plain)


def test_a_broken_prefill_leaves_the_rows_that_decode_unchanged(llama: Checkpoint) -> None:
    bench = Bench(llama)
    running = [bench.ask(i, words(20, i)) for i in (1, 2)]
    bench.step(3)
    bench.ask(3, words(50))
    with failing(llama, RuntimeError("broken"), lambda hidden: hidden.shape[1] > 1):
        bench.step()
    assert list(bench.refused) == [3]
    bench.run()
    assert [a.tokens for a in running] == [generated(llama, words(20, i), 16) for i in (1, 2)]


def test_memory_that_runs_out_is_refused_with_what_would_help(llama: Checkpoint) -> None:
    bench = Bench(llama)
    bench.ask(1, words(20), max_tokens=9)
    with failing(llama, torch.OutOfMemoryError("no memory"), lambda _: True):
        bench.step()
    refused = bench.refused[1]
    assert refused.code == "INSUFFICIENT_MEMORY"
    assert refused.details["prompt_tokens"] == len(llama.encode(words(20), special=True))
    assert refused.details["max_new_tokens"] == 9
    assert bench.batch.is_idle


def test_values_that_overflow_refuse_their_row_and_leave_its_neighbour_unchanged(
    llama: Checkpoint,
) -> None:
    with steered_bench(llama) as bench:
        bench.ask(1, words(20), plan=overlay({3: 3e38, 7: 3e38}))
        neighbour = bench.ask(2, words(21), plan=Suppressed())
        bench.run()
    assert bench.refused[1].code == "NON_FINITE_LOGITS"
    assert neighbour.tokens == generated(llama, words(21), 16)


def test_values_that_overflowed_are_not_read_by_the_row_that_comes_next(
    llama: Checkpoint,
) -> None:
    with steered_bench(llama) as bench:
        neighbour = bench.ask(1, words(21), plan=Suppressed(), max_tokens=40)
        bench.ask(2, words(20), plan=overlay({3: 3e38, 7: 3e38}))
        while 2 not in bench.refused:
            bench.step()
        following = bench.ask(3, words(8), plan=Suppressed())
        bench.run()
    assert neighbour.tokens == generated(llama, words(21), 40)
    assert following.tokens == generated(llama, words(8), 16)


# ---------------------------------------------------------------- attaching


def test_detaching_removes_the_hook(llama: Checkpoint) -> None:
    module = site_of(llama).module
    before = len(module._forward_hooks)
    with steered_bench(llama) as bench:
        assert len(module._forward_hooks) == before + 1
    assert len(module._forward_hooks) == before
    assert bench.steering.applied == {}
    answer = bench.ask(1, words(20), plan=overlay(ONE))
    bench.run()
    assert answer.tokens == generated(llama, words(20), 16)


def test_detaching_while_a_row_runs_ends_its_steering(llama: Checkpoint) -> None:
    with steered_bench(llama) as bench:
        answer = bench.ask(1, words(20), plan=overlay(ONE))
        bench.step(4)
        bench.steering.detach(KEY)
        bench.run()
        assert answer.finish == "length"
        bench.steering.attach(KEY, SAE, site_of(llama))
        assert bench.steering.applied == {KEY: 0}


def test_an_sae_attached_anew_under_a_key_steers_by_its_own_rows(llama: Checkpoint) -> None:
    first = steered_alone(llama, words(20), overlay(ONE))
    other = random_sae(32, seed=5)
    with steered_bench(llama) as bench:
        bench.ask(1, words(20), plan=overlay(ONE))
        bench.run()
        bench.steering.detach(KEY)
        bench.steering.attach(KEY, other, site_of(llama))
        answer = bench.ask(2, words(20), plan=overlay(ONE))
        bench.run()
    assert answer.tokens != first


@pytest.mark.parametrize("variant", ["llama"])
def test_32_requests_with_32_overlays_share_every_pass_and_write_what_each_writes_alone(
    loaded: Loaded, variant: str
) -> None:
    model = loaded(variant)
    plans = [overlay({i: 3.0 + i / 8, 47 - i: -2.0}) for i in range(32)]
    alone = [steered_alone(model, words(12, i), plan, max_tokens=6) for i, plan in enumerate(plans)]
    with steered_bench(model) as bench:
        answers = [
            bench.ask(i, words(12, i), plan=plan, max_tokens=6) for i, plan in enumerate(plans)
        ]
        bench.run()
        assert [answer.tokens for answer in answers] == alone
        # every request alone would take 6 passes
        assert bench.steering.applied == {KEY: 6}
    assert len({tuple(tokens) for tokens in alone}) > 16


# ---------------------------------------------------------------- the encoder that reads


@pytest.mark.parametrize("share", [3.5, 4.5])
def test_an_encoder_is_packed_only_where_the_memory_has_plenty_of_room(
    llama: Checkpoint, share: float
) -> None:
    free = share * SAE.W_enc.nbytes

    def check_room(_: torch.device, size: int) -> None:
        if size > free:
            raise Refusal("INSUFFICIENT_MEMORY", "no room")

    saes = HookedSaes(llama.dtype, check_room)
    saes.attach(KEY, SAE, site_of(llama))
    try:
        reader, held = saes.sae(KEY), saes.held(KEY)
    finally:
        saes.detach(KEY)
    assert (reader.packed is not None) == (share > 4 and torch.backends.mkldnn.is_available())
    assert held.packed is None
