"""Raw activations that a job reads: prompts are read and nothing is written, and the values come in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from steerserve.messages import Overlay, Suppressed, Tokens
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawChunk, RawReads
from steerserve.rules.saes.sites import RESID_POST
from steerserve.rules.steering.positions import ALL, Positions, Selection, Span
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from tests.parts.activations_raw.test_row import KEY, SAE, at, close, numbers, own, reads
from tests.refusals import refusal_of
from tests.worker.running import Bench, generated, site_of, words

PIECE = 1 << 20
TEXTS = [Tokens(list(range(5, 25))), Tokens([3, 9, 4]), Tokens(list(range(40, 110)))]


def of_job(*places: tuple[str, int | None], piece_bytes: int = PIECE, **changed: Any) -> RawReads:
    return reads(*places, piece_bytes=piece_bytes, max_bytes=0, all_max_bytes=0, **changed)


def whole(bench: Bench, choice: int, request: int = 1) -> tuple[list[RawChunk], list[int]]:
    """The pieces of a row, and the positions of all of them."""
    pieces = bench.pieces[request, choice]
    assert [one.is_last for one in pieces] == [False] * (len(pieces) - 1) + [True]
    read = [ACTIVATIONS_RAW.read(one.parts) for one in pieces]
    chunks = [one for one in read if one is not None]
    assert len(chunks) == len(read)
    return chunks, [position for chunk in chunks for position in chunk.positions]


def joined(chunks: list[RawChunk], place: int) -> np.ndarray[Any, Any]:
    """The values of a site in all pieces of a row."""
    return np.concatenate([numbers(chunk, place) for chunk in chunks])


@pytest.mark.parametrize("piece_bytes", [1, 3000, PIECE])
def test_the_pieces_of_a_prompt_are_the_values_of_a_hook(
    llama: Checkpoint, piece_bytes: int
) -> None:
    """Beside a row that writes. Each piece has whole positions, and at least one."""
    bench, places = Bench(llama), [(RESID_POST, 0), ("mlp_out", 1)]
    bench.read_raw(1, TEXTS, of_job(*places, piece_bytes=piece_bytes))
    other = bench.ask(2, words(9), max_tokens=12, plan=Suppressed())
    bench.run()
    size = 4 * sum(site_of(llama, layer, site).width for site, layer in places)
    for choice, text in enumerate(TEXTS):
        chunks, positions = whole(bench, choice)
        assert positions == list(range(len(text.ids)))
        assert len(chunks) == -(-len(text.ids) // max(1, piece_bytes // size))
        for place, expected in enumerate(own(llama, text.ids, *places)):
            read = joined(chunks, place)
            close(read, expected)
            told = chunks[-1].sums[place]
            exact = read.astype(np.float64)
            np.testing.assert_allclose(np.frombuffer(told.values), exact.sum(0), rtol=1e-12)
            assert told.lengths == pytest.approx(np.linalg.norm(exact, axis=1).sum())
        assert all(not chunk.sums for chunk in chunks[:-1])
        assert bench.pieces[1, choice][-1].seconds > 0
    assert other.tokens == generated(llama, words(9), 12)


def test_logits_and_heads_of_a_prompt_come_in_pieces_too(llama: Checkpoint) -> None:
    """A pass whose logits are read goes on behind the last site."""
    bench, layer = Bench(llama), 1
    for request, places in enumerate(
        [[("q", layer), ("k", layer)], [(RESID_POST, 0), ("logits", None)], [("logits", None)]]
    ):
        bench.read_raw(request, TEXTS, of_job(*places, piece_bytes=3000))
    bench.run()
    for choice, text in enumerate(TEXTS):
        chunks, positions = whole(bench, choice, 0)
        assert positions == list(range(len(text.ids)))
        for place, expected in enumerate(own(llama, text.ids, ("q", layer), ("k", layer))):
            close(joined(chunks, place).reshape(len(positions), -1), expected)
        with torch.inference_mode():
            out = llama.model(input_ids=torch.tensor([text.ids]), use_cache=False).logits[0]
        for request, place in ((1, 1), (2, 0)):
            chunks, positions = whole(bench, choice, request)
            assert positions == list(range(len(text.ids)))
            close(joined(chunks, place), out)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (at("last_prompt"), [[19], [2], [69]]),
        (at(prompt_positions=(-1, 5)), [[5, 19], [2], [5, 69]]),
        (at(tokens=(9,)), [[4], [1], []]),
        (at(roles=("user",)), [[2, 3], [], []]),
        (Positions(Selection(names=("all",)), Selection(names=("prompt",))), [[19], [2], [69]]),
    ],
)
def test_positions_that_a_prompt_lacks_are_left_out(
    llama: Checkpoint, positions: Positions, expected: list[list[int]]
) -> None:
    bench = Bench(llama)
    texts = [Tokens(TEXTS[0].ids, spans=(Span("user", 2, 4),)), *TEXTS[1:]]
    bench.read_raw(1, texts, of_job((RESID_POST, 1), positions=positions))
    bench.read_raw(2, texts, of_job((RESID_POST, 1), positions=ALL))
    bench.run()
    for choice, wanted in enumerate(expected):
        chunks, read = whole(bench, choice)
        every, _ = whole(bench, choice, 2)
        assert read == wanted
        assert np.array_equal(numbers(chunks[0]), numbers(every[0])[wanted])


def test_an_edited_model_is_read_after_its_edits(llama: Checkpoint) -> None:
    plan, later = Overlay(None, {KEY: {3: 2.0, 7: -1.5}}), (RESID_POST, llama.layers - 1)
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        bench.read_raw(1, TEXTS, of_job((RESID_POST, 1), later), plan)
        bench.read_raw(2, TEXTS, of_job((RESID_POST, 1), later))
        bench.run()
    delta = sum(v * SAE.W_dec[i] for i, v in plan.values[KEY].items())
    for choice in range(len(TEXTS)):
        (steered,), (plain,) = whole(bench, choice)[0], whole(bench, choice, 2)[0]
        expected = numbers(plain) + np.asarray(delta)
        close(numbers(steered), expected)
        if later != (RESID_POST, 1):
            assert not np.array_equal(numbers(steered, 1), numbers(plain, 1))


def test_a_job_keeps_no_beginning_of_its_prompts(llama: Checkpoint) -> None:
    bench = Bench(llama, prefix_tokens=1024)
    bench.read_raw(1, [Tokens(list(range(5, 105)))], of_job((RESID_POST, 1)))
    bench.run()
    prefixes = bench.batch._shared._reuse.prefixes
    assert prefixes is not None
    assert prefixes.tokens == 0


def test_a_pass_over_rows_of_jobs_ends_at_the_last_site_that_one_reads(llama: Checkpoint) -> None:
    """Unless another row is in the pass, or a row reads nothing in it."""
    last, rest = llama.layers - 1, at(prompt_positions=(-1,))
    called: list[int] = []
    hook = site_of(llama, last).hook(lambda value: called.append(value.shape[1]))
    try:
        alone = Bench(llama)
        alone.read_raw(1, TEXTS, of_job((RESID_POST, 0)))
        alone.read_raw(2, TEXTS, of_job(("mlp_out", 0)))
        alone.run()
        assert called == []
        beside = Bench(llama)
        beside.read_raw(1, TEXTS, of_job((RESID_POST, 0)))
        beside.read_raw(2, TEXTS, of_job((RESID_POST, last), positions=rest))
        beside.ask(3, words(9), max_tokens=2)
        beside.run()
        assert called
    finally:
        hook.remove()
    for choice, text in enumerate(TEXTS):
        (first,), (second,) = whole(alone, choice)[0], whole(beside, choice)[0]
        close(numbers(first), numbers(second))
        (end,) = whole(beside, choice, 2)[0]
        (expected,) = own(llama, text.ids, (RESID_POST, last))
        close(numbers(end)[0], expected[-1])


def test_a_long_prompt_that_is_read_in_parts_has_the_values_of_one_pass(llama: Checkpoint) -> None:
    """A part of it in which nothing is wanted is read to the last layer."""
    long, short = [Tokens([5 + at % 90 for at in range(size)]) for size in (200, 9)]
    bench, deep = Bench(llama), (RESID_POST, llama.layers - 1)
    bench.ask(1, words(20), max_tokens=30)
    bench.step()
    bench.batch._shared._step_seconds = 1e-9
    bench.read_raw(2, [long], of_job(deep, positions=at("last_prompt")))
    bench.read_raw(3, [short], of_job((RESID_POST, 0)))
    bench.run()
    ((end,), _), ((first,), _) = whole(bench, 0, 2), whole(bench, 0, 3)
    for text, place, read in ((long, deep, end), (short, (RESID_POST, 0), first)):
        (expected,) = own(llama, text.ids, place)
        values = numbers(read)
        close(values, expected[-len(values) :])


def test_what_the_model_does_not_have_is_refused_by_its_place(llama: Checkpoint) -> None:
    where = "return_activations_raw.sites[0]"
    for form, place in (
        (of_job(("mlp_neurons", 7)), f"{where}.site"),
        (of_job(("hook_z", 1), heads=(99,)), f"{where}.heads"),
    ):
        refused = refusal_of(Bench(llama).read_raw, 1, TEXTS, form)
        assert (refused.code, refused.param) == ("INVALID_PARAMETER", place)


def test_a_value_that_the_type_cannot_hold_ends_its_request_alone(llama: Checkpoint) -> None:
    huge, bench = Overlay(None, {KEY: {3: 1e7}}), Bench(llama)
    with bench.attached(KEY, SAE, 1):
        bench.read_raw(1, TEXTS, of_job((RESID_POST, 1), dtype="float16"), huge)
        bench.read_raw(2, TEXTS, of_job((RESID_POST, 1), dtype="float16"))
        bench.run()
    (refused,) = bench.refused.values()
    assert (refused.id, refused.code) == (1, "NON_FINITE")
    assert whole(bench, 2, 2)[1] == list(range(70))


def test_a_cancelled_job_leaves_the_batch_at_once(llama: Checkpoint) -> None:
    bench = Bench(llama)
    bench.read_raw(1, TEXTS, of_job((RESID_POST, 1), piece_bytes=1))
    while not bench.pieces:
        bench.step()
    bench.batch.cancel(1)
    assert bench.live_rows(1) == []
    assert bench.batch.is_idle


def test_reading_with_sites_of_every_kind(llama: Checkpoint) -> None:
    has = sites.widths(llama.model, llama.layers)
    places = [(site, 0) for site in has]
    bench = Bench(llama)
    bench.read_raw(1, TEXTS[:1], of_job(*places))
    bench.run()
    (chunk,), _ = whole(bench, 0)
    for place, expected in enumerate(own(llama, TEXTS[0].ids, *places)):
        close(numbers(chunk, place).reshape(len(expected), -1), expected)
