"""Kept prefixes: a next turn computes only what is new, gives the same text, and never borrows from other steering."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve.messages import Follow, Overlay, Plan, Suppressed
from steerserve.parts.activations.form import Tap
from steerserve.rules.steering.live import Live
from steerserve.worker.batch import group as group_module
from steerserve.worker.batch.prefix import LEAST, LEAST_EXACT, Prefixes, Signature, Text
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import Held, KvCache
from tests.worker.running import (
    Answer,
    Bench,
    Counted,
    altered,
    generated_after,
    logits_noted,
    open_checkpoint,
    random_sae,
)

PLAIN = Signature(((float("inf"), ()),))
STEERED = Signature(((float("inf"), "other steering"),))

Folder = Callable[[str], Path]
Loaded = Callable[[str], Checkpoint]
CONTEXT = 2048
KINDS = ["llama", "gemma3", "mistral", "qwen3", "phi", "gpt_neox"]
KEY, OTHER_KEY = "sae@0", "other@1"
SAE, OTHER_SAE = random_sae(32), random_sae(32, seed=9)
ONE = {3: 2.0, 7: -1.5, 40: 0.25}
OTHER = {5: -3.0, 11: 2.5}


def tokens(count: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(5, 300) for _ in range(count)]


def text(signature: Signature, ids: list[int]) -> Text:
    return Text(signature, np.asarray(ids, dtype=np.int64))


def keep(store: Prefixes, signature: Signature, ids: list[int], exact: int | None = None) -> None:
    """Keep a text whose keys tell their positions, and take a byte for each token."""

    def take(start: int, end: int) -> Held:
        keys = torch.tensor([position % 128 for position in range(start, end)], dtype=torch.int8)
        return {0: (keys[None, :, None], keys.new_zeros(1, end - start, 0))}

    store.keep(text(signature, ids), len(ids) if exact is None else exact, take)


@pytest.fixture(scope="module")
def wide(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Checkpoints whose positions are computed, with room for long conversations."""
    root = tmp_path_factory.mktemp("wide")
    held: dict[str, Checkpoint] = {}

    def of(variant: str) -> Checkpoint:
        if variant not in held:
            path = altered(folder(variant), root / variant, max_position_embeddings=CONTEXT)
            held[variant] = open_checkpoint(path)
        return held[variant]

    return of


@pytest.fixture
def model(wide: Loaded) -> Checkpoint:
    return wide("llama")


def without_store(model: Checkpoint, ids: list[int], **fields: Any) -> list[int]:
    bench = Bench(model, kv_tokens=16_384)
    answer = bench.ask(1, "", ids=ids, **fields)
    bench.run()
    return answer.tokens


def next_turn(answer: Answer, more: list[int]) -> list[int]:
    return [*answer.row.prompt, *answer.tokens, *more]


# ---------------------------------------------------------------- what is computed again


@pytest.mark.parametrize("variant", KINDS)
def test_a_next_turn_computes_only_what_is_new_and_gives_the_same_text(
    wide: Loaded, variant: str
) -> None:
    model = wide(variant)
    bench = Counted(model)
    answer, given = bench.turn(1, tokens(300))
    assert given == 300
    for request in (2, 3):
        ids = next_turn(answer, tokens(20, request))
        # the last sampled token was never read, so it is computed with what is new
        read = len(answer.row.prompt) + len(answer.tokens) - 1
        answer, given = bench.turn(request, ids)
        assert given == len(ids) - read
        assert answer.tokens == generated_after(model, ids, 16)


@pytest.mark.parametrize("variant", KINDS)
def test_a_prompt_asked_again_computes_its_last_block_only(wide: Loaded, variant: str) -> None:
    bench = Counted(wide(variant))
    first, _ = bench.turn(1, tokens(300))
    for request in (2, 3):
        again, given = bench.turn(request, tokens(300))
        # exact keys and values are taken over in whole blocks of 32
        assert given == 300 - 288
        assert again.tokens == first.tokens


def test_a_prompt_that_leaves_a_kept_text_early_uses_what_is_in_common(model: Checkpoint) -> None:
    bench = Counted(model)
    bench.turn(1, tokens(400))
    ids = [*tokens(400)[:350], *tokens(30, 7)]
    answer, given = bench.turn(2, ids)
    assert given == 380 - 320
    assert answer.tokens == generated_after(model, ids, 16)


@pytest.mark.parametrize(("common", "reused"), [(LEAST_EXACT - 1, 0), (200, 192), (256, 256)])
def test_less_in_common_than_the_least_is_computed_again(
    model: Checkpoint, common: int, reused: int
) -> None:
    """What is reused of exact keys and values is whole blocks of 32."""
    bench = Counted(model)
    first = tokens(400)
    bench.turn(1, first)
    ids = [*first[:common], 4, *tokens(40, 7)]
    assert first[common] != 4
    answer, given = bench.turn(2, ids)
    assert given == len(ids) - reused
    assert answer.tokens == without_store(model, ids)


def test_a_short_text_is_not_kept(model: Checkpoint) -> None:
    bench = Counted(model)
    bench.turn(1, tokens(LEAST - 20), max_tokens=20)
    assert bench.kept == 0
    bench.turn(2, tokens(LEAST - 20), max_tokens=21)
    assert bench.kept == LEAST


def test_of_a_beginning_that_is_short_and_not_exact_the_exact_part_is_used() -> None:
    store = Prefixes(4000)
    base = tokens(400)
    keep(store, PLAIN, [*base[:100], 4, *tokens(200, 1)], exact=40)
    found = store.find(text(PLAIN, base))
    assert found is not None
    assert (found.tokens, found.exact) == (40, 40)
    keep(store, PLAIN, base[:300], exact=8)
    found = store.find(text(PLAIN, base))
    assert found is not None
    assert (found.tokens, found.exact) == (300, 40)


@pytest.mark.parametrize("cuts", list(permutations((260, 380, 300))), ids=str)
def test_the_longest_prefix_in_common_is_found(cuts: tuple[int, ...]) -> None:
    store = Prefixes(4000)
    base = tokens(400)
    for i, cut in enumerate(cuts):
        keep(store, PLAIN, [*base[:cut], 4, *tokens(60, i + 1)])
    found = store.find(text(PLAIN, base))
    assert found is not None
    assert found.tokens == 380
    assert [token for node, size in found.parts for token in node.tokens[:size]] == base[:380]


def test_every_choice_and_prompt_of_a_request_may_use_a_prefix(model: Checkpoint) -> None:
    bench = Counted(model)
    first, _ = bench.turn(1, tokens(300))
    answer = bench.ask(2, "", ids=next_turn(first, tokens(20, 2)), n=3)
    bench.take()
    bench.run()
    assert bench.take() == 3 * 21
    expected = generated_after(model, answer.row.prompt, 16)
    assert [bench.answers[2, i].tokens for i in range(3)] == [expected] * 3


def test_without_room_for_prefixes_nothing_is_kept(model: Checkpoint) -> None:
    bench = Counted(model, prefix_tokens=0)
    bench.turn(1, tokens(300))
    assert bench.turn(2, tokens(300))[1] == 300


# ---------------------------------------------------------------- beside others, in parts


@pytest.mark.parametrize("variant", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("part", [64, 1024])
def test_rows_with_and_without_a_prefix_give_their_own_text_beside_each_other(
    wide: Loaded, variant: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    model = wide(variant)
    bench = Counted(model)
    first, _ = bench.turn(1, tokens(300))
    second, _ = bench.turn(2, tokens(300, 5))
    bench.take()
    prompts = {
        3: tokens(40, 3),
        4: next_turn(first, tokens(150, 4)),
        5: tokens(90, 5),
        6: next_turn(second, tokens(9, 6)),
        7: next_turn(first, tokens(2, 7)),
        8: tokens(30, 8),
    }
    answers = {3: bench.ask(3, "", ids=prompts[3], max_tokens=40)}
    bench.step(2)
    answers |= {i: bench.ask(i, "", ids=ids) for i, ids in prompts.items() if i > 3}
    bench.run()
    assert not bench.refused
    # the last sampled token of each first turn is computed with what is new, by the first row that has it
    # and the prompt of 90 tokens begins like the second first turn: exact ones are used in whole blocks
    assert bench.take() == 40 + 151 + (90 - 64) + 10 + 2 + 30
    for i, answer in answers.items():
        assert answer.tokens == generated_after(model, prompts[i], 40 if i == 3 else 16), i


def test_what_is_new_may_itself_be_prefilled_in_parts(
    model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Counted(model)
    first, _ = bench.turn(1, tokens(300))
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 32)
    ids = next_turn(first, tokens(200, 2))
    bench.take()
    answer = bench.ask(2, "", ids=ids)
    bench.run()
    assert bench.given == [32] * 6 + [9]
    assert answer.tokens == generated_after(model, ids, 16)


def test_a_kept_prefix_is_not_changed_by_the_rows_that_use_it(model: Checkpoint) -> None:
    bench = Counted(model)
    bench.turn(1, tokens(300))
    for request in range(2, 6):
        ids = [*tokens(300)[:290], *tokens(60, request)]
        answer, given = bench.turn(request, ids)
        assert given == 350 - 288
        assert answer.tokens == generated_after(model, ids, 16)


def test_no_order_of_turns_changes_a_text(
    model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 100)
    draw = random.Random(3)
    bench = Counted(model, prefix_tokens=1500)
    talks = [tokens(260 + 40 * i, i) for i in range(4)]
    live = [Live(), Live(1, True, {KEY: ONE})]
    truth: dict[tuple[int, int, bool], list[int]] = {}
    asked: dict[int, tuple[int, int, bool]] = {}
    cancelled: set[int] = set()
    with bench.attached(KEY, SAE):
        bench.steering.set_live(live[1])
        for request in range(30):
            asked[request] = (draw.randrange(4), draw.choice((0, 30, 120)), draw.random() < 0.5)
            talk, more, steered = asked[request]
            plan: Plan = Follow() if steered else Suppressed()
            bench.ask(request, "", ids=[*talks[talk], *tokens(more, talk)], plan=plan, max_tokens=6)
            if draw.random() < 0.2:
                cancelled.add(request - 1)
                bench.batch.cancel(request - 1)
            bench.step(draw.randrange(6))
            assert bench.kept <= 1500
        bench.run()
        computed = bench.take()
        assert not bench.refused
        for request, case in asked.items():
            answer = bench.answers[request, 0]
            assert answer.finish or request in cancelled
            if not answer.finish:
                continue
            if case not in truth:
                # a seed keeps a request away from every prefix, and greedy is greedy
                alone, _ = bench.turn(
                    99, answer.row.prompt, plan=answer.row.plan, max_tokens=6, seed=1
                )
                truth[case] = alone.tokens
            assert answer.tokens == truth[case]
    whole = sum(len(bench.answers[request, 0].row.prompt) for request in asked)
    assert computed < whole * 3 / 4


def test_a_row_that_is_cancelled_breaks_no_prefix(
    model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Counted(model)
    first, _ = bench.turn(1, tokens(300))
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 32)
    ids = next_turn(first, tokens(100, 2))
    kept = bench.kept
    for request, steps in ((2, 1), (3, 2), (4, 3)):
        bench.ask(request, "", ids=ids)
        bench.step(steps)
        bench.batch.cancel(request)
        assert bench.batch.is_idle
        assert bench.held_bytes == 0
        assert bench.kept == kept
    answer, given = bench.turn(5, ids)
    assert given == 101
    assert answer.tokens == generated_after(model, ids, 16)


# ---------------------------------------------------------------- seeds


def recorded(
    bench: Counted, requests: list[tuple[list[int], int | None]]
) -> tuple[list[list[int]], list[Tensor]]:
    """The answers to requests one after the other, and the logits of every pass of those with a seed."""
    logits: list[Tensor] = []
    answers = []
    for request, (ids, seed) in enumerate(requests):
        with logits_noted(bench.model) as passes:
            answer, _ = bench.turn(request, ids, seed=seed, temperature=1.0 if seed else 0.0)
        logits += passes if seed else []
        answers.append(answer.tokens)
    return answers, logits


def test_a_seeded_request_is_bitwise_that_of_an_engine_without_a_store(model: Checkpoint) -> None:
    requests: list[tuple[list[int], int | None]] = [
        (tokens(300), None),
        (tokens(300), 7),
        ([*tokens(300), *tokens(40, 2)], 7),
        ([*tokens(300), *tokens(40, 2)], 7),
    ]
    with_store, without = Counted(model), Counted(model, prefix_tokens=0)
    found, logits = recorded(with_store, requests)
    expected, plain = recorded(without, requests)
    assert found == expected
    assert found[2] == found[3]
    assert len(logits) == len(plain) > 3
    assert all(torch.equal(a, b) for a, b in zip(logits, plain, strict=True))


def test_a_seeded_request_keeps_and_uses_what_prefill_computed(model: Checkpoint) -> None:
    bench = Counted(model)
    first, _ = bench.turn(1, tokens(300), seed=7)
    assert bench.kept == 300
    assert bench.turn(2, tokens(300))[1] == 12
    # what decode passes computed is of use to requests without a seed only
    second, _ = bench.turn(3, next_turn(first, tokens(30, 2)))
    ids = next_turn(second, tokens(30, 3))
    assert bench.turn(4, ids, seed=7)[1] == len(ids) - 288
    assert bench.turn(5, ids)[1] < 40


def test_a_seeded_request_uses_nothing_where_the_bits_of_a_row_are_not_its_own(
    model: Checkpoint,
) -> None:
    bench = Counted(model, shares_seeded=False)
    bench.turn(1, tokens(300))
    assert bench.turn(2, tokens(300))[1] == 1
    assert bench.turn(3, tokens(300), seed=7)[1] == 300
    bench.score(4, "", ids=tokens(300))
    bench.run()
    assert bench.take() == 300


# ---------------------------------------------------------------- steering

ON = Live(1, True, {KEY: ONE})
OFF = Live(1, False, {KEY: ONE})


def overlay(values: dict[int, float], key: str = KEY, epoch: int = 1) -> Overlay:
    return Overlay(epoch, {key: values})


# live values and plan of a text that is kept, those of the next, and whether it may use it
SHARED: dict[str, tuple[tuple[Live, Plan], tuple[Live, Plan], bool]] = {
    "unsteered twice": ((Live(), Follow()), (Live(), Suppressed()), True),
    "the same live values": ((ON, Follow()), (ON, Follow()), True),
    "the same values later": ((ON, Follow()), (Live(9, True, {KEY: dict(ONE)}), Follow()), True),
    "overlay and live values": ((Live(1), overlay(ONE)), (ON, Follow()), True),
    "live values and overlay": ((ON, Follow()), (Live(1), overlay(ONE)), True),
    "a stale overlay follows": (
        (Live(2, True, {KEY: OTHER}), overlay(ONE)),
        (Live(2, True, {KEY: OTHER}), Follow()),
        True,
    ),
    "disabled is unsteered": ((OFF, Follow()), (ON, Suppressed()), True),
    "zeros are unsteered": ((Live(1), overlay({3: 0.0})), (Live(1), Follow()), True),
    "zeros beside values": ((Live(1), overlay({**ONE, 9: 0.0})), (ON, Follow()), True),
    "steered, then not": ((ON, Follow()), (ON, Suppressed()), False),
    "steered, then disabled": ((ON, Follow()), (OFF, Follow()), False),
    "not, then steered": ((ON, Suppressed()), (ON, Follow()), False),
    "other values": ((ON, Follow()), (Live(2, True, {KEY: OTHER}), Follow()), False),
    "a little other values": ((ON, Follow()), (ON, overlay({**ONE, 3: 2.0001})), False),
    "fewer features": ((ON, Follow()), (ON, overlay({3: 2.0})), False),
    "a stale overlay": ((Live(1), overlay(ONE)), (Live(2), overlay(ONE)), False),
    "by another SAE": ((Live(1), overlay(ONE)), (Live(1), overlay(ONE, OTHER_KEY)), False),
    "by both SAEs": (
        (Live(1), overlay(ONE)),
        (Live(1), Overlay(1, {KEY: ONE, OTHER_KEY: ONE})),
        False,
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_a_prefix_is_used_exactly_under_the_steering_that_made_it(
    model: Checkpoint, case: str
) -> None:
    kept, asked, is_reused = SHARED[case]
    bench, plain = Counted(model), Counted(model, prefix_tokens=0)
    found = []
    for each in (bench, plain):
        with each.attached(KEY, SAE), each.attached(OTHER_KEY, OTHER_SAE, 1):
            for request, (live, plan) in enumerate((kept, asked)):
                each.steering.set_live(live)
                found.append(each.turn(request, tokens(300), plan=plan, max_tokens=8))
    (first, _), (second, given), (expected, _), (expected_next, _) = found
    assert given == (12 if is_reused else 300)
    assert first.tokens == expected.tokens
    assert second.tokens == expected_next.tokens


def test_a_prefix_under_one_sae_is_not_used_under_another_at_the_same_key(
    model: Checkpoint,
) -> None:
    bench, plain = Counted(model), Counted(model, prefix_tokens=0)
    found = []
    for each in (bench, plain):
        for request, sae in enumerate((SAE, OTHER_SAE)):
            with each.attached(KEY, sae):
                found.append(each.turn(request, tokens(300), plan=overlay(ONE, epoch=0)))
    (_, _), (second, given), (_, _), (expected, _) = found
    assert given == 300
    assert second.tokens == expected.tokens


def test_an_unsteered_prefix_outlives_an_attach(model: Checkpoint) -> None:
    bench = Counted(model)
    bench.turn(1, tokens(300))
    with bench.attached(KEY, SAE):
        bench.steering.set_live(ON)
        answer, given = bench.turn(2, tokens(300), plan=Suppressed())
    assert given == 12
    assert answer.tokens == generated_after(model, tokens(300), 16)


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("last", [ON, Live(2)], ids=["back", "on"])
def test_a_text_whose_steering_changed_on_the_way_is_not_kept(
    model: Checkpoint, steps: int, last: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the prompt takes five passes, so that the change falls between its parts or between tokens
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 64)
    bench = Counted(model)
    with bench.attached(KEY, SAE):
        bench.steering.set_live(ON)
        bench.ask(1, "", ids=tokens(300))
        bench.step(steps)
        bench.steering.set_live(Live(5, True, {KEY: OTHER}))
        bench.step()
        bench.steering.set_live(last)
        bench.run()
        # a prompt that was read whole before the change is kept, and used under its steering
        assert bench.kept == (300 if steps == 8 else 0)
        answer, given = bench.turn(2, tokens(300))
        assert given == (12 if steps == 8 and last is ON else 300)
        expected = Counted(model, prefix_tokens=0)
        with expected.attached(OTHER_KEY, SAE):
            expected.steering.set_live(Live(1, last.enabled, {OTHER_KEY: ONE}))
            # the first bench's hook adds nothing outside its own passes
            assert answer.tokens == expected.turn(1, tokens(300))[0].tokens


def test_a_text_during_which_an_sae_came_or_went_is_not_kept(model: Checkpoint) -> None:
    bench = Counted(model)
    bench.ask(1, "", ids=tokens(300))
    bench.step(3)
    with bench.attached(KEY, SAE):
        bench.run()
        assert bench.kept == 300
        bench.ask(2, "", ids=tokens(300), plan=overlay(ONE, epoch=0))
        bench.step(3)
    bench.run()
    assert bench.kept == 600


# ---------------------------------------------------------------- rows that stand apart


def reading(bench: Counted, request: int, ids: list[int]) -> None:
    bench.ask(request, "", ids=ids, tap=Tap(KEY, None, 3, "all", False, 65_536))


def embedding(bench: Counted, request: int, ids: list[int]) -> None:
    bench.embed(request, "", ids=ids)


@pytest.mark.parametrize("apart", [reading, embedding])
def test_a_row_that_needs_every_token_neither_uses_nor_keeps_a_prefix(
    model: Checkpoint, apart: Callable[[Counted, int, list[int]], None]
) -> None:
    bench = Counted(model)
    with bench.attached(KEY, SAE):
        apart(bench, 1, tokens(300))
        bench.run()
        assert bench.kept == 0
        bench.turn(2, tokens(300))
        apart(bench, 3, tokens(300))
        bench.run()
        assert bench.take() == 300
    if apart is reading:
        assert len(bench.readings[3]) == 300 + 15


# ---------------------------------------------------------------- memory


def test_the_store_stays_within_its_bound_and_drops_what_was_used_longest_ago() -> None:
    store = Prefixes(1000)
    texts = {name: tokens(300, name) for name in range(4)}
    for name in range(3):
        keep(store, PLAIN, texts[name])
    assert store.tokens == store.bytes == 900
    assert store.find(text(PLAIN, texts[0]))
    keep(store, PLAIN, texts[3])
    assert store.tokens == store.bytes == 900
    found = {name for name, ids in texts.items() if store.find(text(PLAIN, ids))}
    assert found == {0, 2, 3}


def test_a_beginning_in_common_is_held_once() -> None:
    store = Prefixes(2000)
    base = tokens(600)
    keep(store, PLAIN, base[:300])
    keep(store, STEERED, base[:300])
    keep(store, PLAIN, [*base[:290], *tokens(20, 2)])
    assert store.tokens == 300 + 300 + 20
    keep(store, PLAIN, base)
    assert store.tokens == store.bytes == 600 + 300 + 20
    assert store.find(text(STEERED, base))


def test_what_is_kept_is_what_was_taken_at_its_position() -> None:
    """Nodes are cut where texts part, and every token keeps its own keys and values."""
    store, draw = Prefixes(10_000), random.Random(2)
    base = tokens(700)
    for number in range(12):
        cut = draw.randrange(260, 700)
        ids = [*base[:cut], *tokens(40, number)]
        keep(store, PLAIN, ids)
        found = store.find(text(PLAIN, ids))
        assert found is not None
        held = torch.cat([node.held[0][0][:, :size] for node, size in found.parts], dim=1)
        assert held[0, :, 0].tolist() == [position % 128 for position in range(len(ids))]


def test_exact_keys_and_values_are_told_from_others() -> None:
    store, base = Prefixes(10_000), tokens(600)
    keep(store, PLAIN, base, exact=400)
    whole, exact = store.find(text(PLAIN, base)), store.find(text(PLAIN, base), is_exact=True)
    assert whole is not None
    assert exact is not None
    assert (whole.tokens, whole.exact) == (600, 400)
    assert (exact.tokens, exact.exact) == (400, 400)
    keep(store, PLAIN, base)
    exact = store.find(text(PLAIN, base), is_exact=True)
    assert exact is not None
    assert exact.tokens == 600


def test_no_order_of_keeping_and_finding_exceeds_the_bound() -> None:
    draw = random.Random(1)
    store = Prefixes(1200)
    texts = [tokens(700, name) for name in range(3)]
    for _ in range(300):
        ids, size = draw.choice(texts), draw.randrange(LEAST, 700)
        steering = draw.choice([PLAIN, STEERED])
        if draw.random() < 0.5:
            keep(store, steering, ids[:size], exact=draw.choice((0, 260, size)))
            assert store.find(text(steering, ids[:size]))
        else:
            store.find(text(steering, ids))
        assert store.tokens <= 1200
        assert store.bytes == store.tokens == sum(len(node.tokens) for node in store.nodes())
    store.clear()
    assert store.tokens == store.bytes == 0
    assert not store.find(text(STEERED, texts[0]))


@pytest.mark.parametrize(("size", "expected"), [(LEAST - 1, False), (LEAST, True), (901, False)])
def test_a_text_may_be_kept_when_it_is_long_enough_and_fits(size: int, expected: bool) -> None:
    assert Prefixes(1800).may_keep(size, 2, LEAST) is expected


def test_the_store_of_a_batch_stays_within_its_bound(model: Checkpoint) -> None:
    bench = Counted(model, prefix_tokens=700)
    for request in range(4):
        bench.turn(request, tokens(300, request))
        assert bench.kept == min(2, request + 1) * 315
    assert bench.turn(9, tokens(300, 3))[1] == 12
    assert bench.turn(10, tokens(300, 0))[1] == 300


def test_an_idle_batch_holds_no_cache_beside_its_prefixes(model: Checkpoint) -> None:
    bench = Counted(model)
    for request in range(3):
        bench.turn(request, tokens(300, request))
        assert bench.held_bytes == 0
    prefixes = bench.batch._shared._reuse.prefixes
    size = sum(tensor.untyped_storage().nbytes() for tensor in prefixes.tensors())
    assert size == prefixes.bytes == bench.kept * model.kv_bytes_per_token


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("action", ["copy_tokens", "put"])
def test_memory_that_runs_out_over_a_prefix_never_leaves_the_step(
    model: Checkpoint, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    bench = Counted(model)
    bench.turn(1, tokens(300))
    neighbour = bench.ask(2, "", ids=tokens(20, 2), max_tokens=30)
    bench.step(2)
    with monkeypatch.context() as patched:
        patched.setattr(KvCache, action, fail)
        answer = bench.ask(3, "", ids=tokens(300), max_tokens=4)
        bench.step(6)
    bench.run()
    assert neighbour.tokens == generated_after(model, tokens(20, 2), 30)
    if action == "copy_tokens":
        assert answer.finish == "length"
    else:
        assert answer.finish == "length" or bench.refused[3].code == "INSUFFICIENT_MEMORY"
