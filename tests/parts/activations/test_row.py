"""Activations: what a request is told of an SAE is its encoding of the hidden states that were really there, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from steerserve import messages as m
from steerserve.engines.checkpoint.client import Launcher
from steerserve.messages import Follow, Overlay, Piece, Plan, Refused, Scored, Suppressed, is_last
from steerserve.parts import encoded
from steerserve.parts.activations.form import Reading, Tap
from steerserve.rules.steering.live import Live
from steerserve.worker import memory
from steerserve.worker.batch import group as group_module
from steerserve.worker.batch import part_reads
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows.goals import Ending
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import RESID_POST, RESID_PRE
from tests import asking
from tests.refusals import refusal_of, refused
from tests.worker.running import (
    FIELDS,
    Answer,
    Bench,
    generated,
    hooked,
    passed,
    random_sae,
    site_of,
    words,
)
from tests.worker.saes import arrays, attaching, config_v6, reference, write

Loaded = Callable[[str], Checkpoint]
KEY = "sae@1"
SAE = random_sae(32)
ONE = {3: 2.0, 7: -1.5, 40: 0.25}
OVERLAY = Overlay(0, {KEY: ONE})
PROMPT = words(40)
IDS = list(range(5, 45))
ENTRIES = 65_536


def tap(positions: str | tuple[int, int] = "all", **changed: Any) -> Tap:
    values = {"features": None, "top_k": 48, "is_before": False, "max_entries": ENTRIES, **changed}
    return Tap(KEY, positions=positions, **values)


def states(
    model: Checkpoint, tokens: list[int], values: dict[int, float], site: str = RESID_POST
) -> tuple[Tensor, Tensor]:
    """Hidden states [T, d_in] at layer 1 before and after these values steer it, by one plain pass over the tokens."""
    delta = sum((value * SAE.W_dec[i] for i, value in values.items()), torch.zeros(SAE.d_in))
    found: list[Tensor] = []

    def edit(hidden: Tensor) -> Tensor:
        found.append(hidden[0].clone())
        return hidden + delta

    with hooked(site_of(model, 1, site), edit):
        model.model(input_ids=torch.tensor([tokens]), use_cache=False)
    return found[0], found[0] + delta


def check(
    readings: list[Reading], hidden: Tensor, tokens: list[int], positions: range | None = None
) -> None:
    """The readings are the whole encoding of `hidden` [T, d_in] at these positions, or at all of these tokens, largest
    first and without zeros."""
    positions = range(len(tokens)) if positions is None else positions
    assert [r.position for r in readings] == list(positions)
    assert [r.token for r in readings] == [tokens[at] for at in positions]
    for reading in readings:
        truth = SAE.encode(hidden[reading.position])
        assert len(reading.features) == len({i for i, _ in reading.features})
        values = [value for _, value in reading.features]
        assert values == sorted(values, reverse=True)
        assert min(values) > 0
        found = torch.zeros(SAE.d_sae)
        for index, value in reading.features:
            found[index] = value
        torch.testing.assert_close(found, truth, atol=1e-3, rtol=1e-4)


def tapped(
    model: Checkpoint, wanted: Tap, plan: Plan = OVERLAY, **request: Any
) -> tuple[Bench, Answer]:
    """A bench that answered one tapped request, with the SAE attached at layer 1."""
    bench = Bench(model)
    with bench.attached(KEY, SAE, 1):
        answer = bench.ask(1, PROMPT, plan=plan, tap=wanted, **{"max_tokens": 10, **request})
        bench.run()
    assert not bench.refused
    return bench, answer


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("variant", ["llama", "gpt2", "falcon", "gemma3", "phi"])
@pytest.mark.parametrize("site", [RESID_POST, RESID_PRE])
@pytest.mark.parametrize("is_before", [True, False])
def test_readings_are_the_encoding_of_the_states_before_or_after_steering(
    loaded: Loaded, variant: str, site: str, is_before: bool
) -> None:
    model = loaded(variant)
    bench = Bench(model)
    with bench.attached(KEY, SAE, 1, site):
        answer = bench.ask(1, PROMPT, plan=OVERLAY, tap=tap(is_before=is_before), max_tokens=8)
        bench.run()
    before, after = states(model, passed(answer), ONE, site)
    check(bench.readings[1], before if is_before else after, passed(answer))


@pytest.mark.parametrize("part", [16, 1024])
@pytest.mark.parametrize("max_tokens", [1, 10])
@pytest.mark.parametrize(
    "positions", ["last", "prompt", "completion", "all", (0, 1), (14, 18), (25, 10_000), (900, 999)]
)
def test_exactly_the_positions_asked_for_and_passed_are_read(
    llama: Checkpoint,
    positions: str | tuple[int, int],
    max_tokens: int,
    part: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    bench, answer = tapped(llama, tap(positions), max_tokens=max_tokens)
    prompt, end = len(answer.row.prompt), len(passed(answer))
    assert end == prompt + max_tokens - 1
    expected = {
        "last": range(end - 1, end),
        "prompt": range(prompt),
        "completion": range(prompt, end),
        "all": range(end),
    }
    asked = (
        expected[positions]
        if isinstance(positions, str)
        else range(min(positions[0], end), min(positions[1], end))
    )
    _, after = states(llama, passed(answer), ONE)
    check(bench.readings[1], after, passed(answer), asked)


@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma3", "falcon"])
@pytest.mark.parametrize("part", [16, 1024])
def test_readings_beside_rows_of_other_lengths_are_the_rows_own(
    loaded: Loaded, variant: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    model = loaded(variant)
    bench = Bench(model)
    plans: dict[int, tuple[Plan, dict[int, float]]] = {
        2: (OVERLAY, ONE),
        3: (Suppressed(), {}),
        4: (Overlay(0, {KEY: {5: -3.0}}), {5: -3.0}),
    }
    with bench.attached(KEY, SAE, 1):
        bench.ask(1, words(7), max_tokens=6)
        bench.step(3)
        answers = {
            i: bench.ask(i, words(70 - 20 * i // 2, i), plan=plan, tap=tap(), max_tokens=3 * i)
            for i, (plan, _) in plans.items()
        }
        bench.ask(5, words(55), max_tokens=20)
        bench.score(6, [words(12), words(30)])
        bench.embed(7, words(20))
        bench.run()
    assert not bench.refused
    assert set(bench.readings) == set(plans)
    for i, (_, values) in plans.items():
        _, after = states(model, passed(answers[i]), values)
        check(bench.readings[i], after, passed(answers[i]))


def test_readings_follow_the_live_values_of_each_pass(llama: Checkpoint) -> None:
    found: list[Tensor] = []
    bench = Bench(llama)
    with (
        bench.attached(KEY, SAE, 1),
        hooked(site_of(llama, 1), lambda hidden: found.append(hidden[0].clone())),
    ):
        answer = bench.ask(1, PROMPT, plan=Follow(), tap=tap(), max_tokens=4)
        bench.step()
        for epoch, values in enumerate((ONE, {5: -3.0}, {}), start=1):
            bench.steering.set_live(Live(epoch, bool(values), {KEY: values}))
            bench.step()
    # passes are padded behind the tokens of the row
    found[0] = found[0][: len(answer.row.prompt)]
    check(bench.readings[1], torch.cat(found), passed(answer))


def test_a_scored_prompt_is_read_unsteered_at_every_token(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 16)
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        bench.steering.set_live(Live(1, True, {KEY: ONE}))
        for i, positions in enumerate(("all", "last", "completion"), start=1):
            (row,) = bench.score(i, PROMPT, tap=tap(positions))
        outcomes = [o for _ in range(20) for o in bench.step()]
    before, _ = states(llama, row.prompt, {})
    end = len(row.prompt)
    for i, positions in enumerate((range(end), range(end - 1, end), range(0)), start=1):
        check(bench.readings[i], before, row.prompt, positions)
        (scored,) = (o for o in outcomes if o.id == i)
        assert isinstance(scored, Scored)
        assert asking.told(scored, "activations") == bench.readings[i]


@pytest.mark.parametrize("ends", ["stop string", "end token"])
def test_a_text_that_stops_early_is_read_up_to_its_last_but_one_token(
    llama: Checkpoint, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = tapped(llama, tap(), max_tokens=24)
    stops = []
    if ends == "stop string":
        stops = [llama.decode(whole.tokens[8:11])]
    else:
        monkeypatch.setattr(llama, "end_tokens", frozenset({whole.tokens[9]}))
    bench, answer = tapped(llama, tap(), max_tokens=24, stops=stops)
    assert answer.finish == "stop"
    assert len(answer.tokens) < 24
    _, after = states(llama, passed(answer), ONE)
    check(bench.readings[1], after, passed(answer))


def test_many_positions_are_encoded_in_pieces_as_at_once(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "ENCODE_BYTES", 7 * 4 * SAE.d_sae)
    bench, answer = tapped(llama, tap())
    _, after = states(llama, passed(answer), ONE)
    check(bench.readings[1], after, passed(answer))


def test_two_requests_may_read_the_same_sae_in_different_ways(llama: Checkpoint) -> None:
    bench = Bench(llama)
    wanted = {1: tap("prompt", is_before=True), 2: tap("completion"), 3: tap("last")}
    with bench.attached(KEY, SAE, 1):
        answers = {i: bench.ask(i, PROMPT, plan=OVERLAY, tap=t) for i, t in wanted.items()}
        bench.run()
    tokens = passed(answers[1])
    assert passed(answers[2]) == passed(answers[3]) == tokens
    before, after = states(llama, tokens, ONE)
    prompt = len(answers[1].row.prompt)
    check(bench.readings[1], before, tokens, range(prompt))
    check(bench.readings[2], after, tokens, range(prompt, len(tokens)))
    check(bench.readings[3], after, tokens, range(len(tokens) - 1, len(tokens)))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("is_before", [True, False])
def test_only_the_sae_that_was_named_is_read_before_or_after_its_own_steering(
    llama: Checkpoint, order: int, is_before: bool
) -> None:
    bench = Bench(llama)
    other = random_sae(32, seed=9)
    plan = Overlay(0, {KEY: ONE, "other@1": {4: 1.5}})
    here: list[tuple[str, Sae]] = [(KEY, SAE), ("other@1", other)]
    (first, one), (second, two) = here[::order]
    with bench.attached(first, one, 1), bench.attached(second, two, 1):
        answer = bench.ask(1, PROMPT, plan=plan, tap=tap(is_before=is_before), max_tokens=1)
        bench.run()
    before, after = states(llama, passed(answer), ONE)
    # hooks act in the order of attaching: what was attached before is in the stream already
    there = torch.zeros(32) if order == 1 else 1.5 * other.W_dec[4]
    check(bench.readings[1], (before if is_before else after) + there, passed(answer))


def test_readings_come_with_the_end_of_the_text(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        bench.ask(1, PROMPT, tap=tap(), max_tokens=3)
        outcomes = [outcome for _ in range(3) for outcome in bench.step()]
    assert [type(outcome) for outcome in outcomes] == [Piece, Piece, Piece]
    assert [isinstance(o, Piece) and o.finish for o in outcomes] == [None, None, "length"]
    assert [asking.told(o, "activations") is not None for o in outcomes] == [False, False, True]


# ---------------------------------------------------------------- position by position


def told(outcome: Ending) -> list[object]:
    """The positions of the readings that come with a piece of text, where there are any, and how it ends the text."""
    assert isinstance(outcome, Piece)
    read = asking.told(outcome, "activations")
    positions = [] if read is None else [[reading.position for reading in read]]
    return [*positions, outcome.finish]


@pytest.mark.parametrize("part", [16, 1024])
@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("all", [list(range(40)), None, [40], None, [41], "length"]),
        ("prompt", [list(range(40)), None, None, "length"]),
        ("completion", [None, [40], None, [41], "length"]),
        ("last", [None, None, [41], "length"]),
        ((38, 41), [[38, 39], None, [40], None, "length"]),
    ],
)
def test_with_a_streamed_tap_a_token_is_followed_by_the_readings_of_its_position(
    llama: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    part: int,
    positions: str | tuple[int, int],
    expected: list[object],
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        wanted = tap(positions, is_streamed=True)
        answer = bench.ask(1, "", ids=IDS, plan=OVERLAY, tap=wanted, max_tokens=3)
        outcomes = [outcome for _ in range(8) for outcome in bench.step()]
    assert [one for outcome in outcomes for one in told(outcome)] == expected
    tokens = passed(answer)
    read = [reading.position for reading in bench.readings[1]]
    _, after = states(llama, tokens, ONE)
    for reading in bench.readings[1]:
        check([reading], after, tokens, range(reading.position, reading.position + 1))
        assert reading.text == llama.decode_token(reading.token)
    assert read == sorted(set(read))


def test_streamed_readings_beside_other_rows_are_the_rows_own(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        plain = bench.ask(1, words(20), max_tokens=10)
        one = bench.ask(2, words(30, 1), plan=OVERLAY, tap=tap(is_streamed=True), max_tokens=6)
        two = bench.ask(3, words(16, 2), tap=tap("completion", is_streamed=True), max_tokens=8)
        whole = bench.ask(4, words(16, 2), tap=tap("completion"), max_tokens=8)
        bench.run()
    assert plain.tokens == generated(llama, words(20), 10)
    _, after = states(llama, passed(one), ONE)
    check(bench.readings[2], after, passed(one))
    assert two.tokens == whole.tokens
    assert at_each(bench.readings[3]).keys() == at_each(bench.readings[4]).keys()
    assert {reading.text for reading in bench.readings[4]} == {""}


def test_a_streamed_tap_changes_no_token_and_a_stop_string_keeps_its_readings(
    llama: Checkpoint,
) -> None:
    _, plain = tapped(llama, tap())
    bench, streamed = tapped(llama, tap(is_streamed=True))
    assert streamed.tokens == plain.tokens
    stop = plain.text[2:6]
    bench, stopped = tapped(llama, tap(is_streamed=True), stops=[stop])
    assert stopped.finish == "stop"
    assert [r.position for r in bench.readings[1]] == list(range(len(passed(stopped))))


# ---------------------------------------------------------------- which features


def at_each(readings: list[Reading]) -> dict[int, list[tuple[int, float]]]:
    return {reading.position: reading.features for reading in readings}


@pytest.mark.parametrize("top_k", [2, 48])
def test_named_features_are_the_only_candidates_and_listed_even_at_zero(
    llama: Checkpoint, top_k: int
) -> None:
    named = [40, 3, 17, 0, 29]
    every, _ = tapped(llama, tap())
    some, _ = tapped(llama, tap(features=named, top_k=top_k))
    zeros = 0
    for at, features in at_each(every.readings[1]).items():
        whole = {**dict.fromkeys(named, 0.0), **{i: v for i, v in features if i in named}}
        found = at_each(some.readings[1])[at]
        largest = sorted(whole.values(), reverse=True)[:top_k]
        assert [v for _, v in found] == pytest.approx(largest, abs=1e-4)
        assert all(whole[i] == pytest.approx(v, abs=1e-4) for i, v in found)
        assert len({i for i, _ in found}) == min(top_k, len(named))
        zeros += sum(v == 0 for _, v in found)
    assert zeros


def signed(bias: dict[int, float], k: int) -> Sae:
    """An SAE whose pre-activations are this bias alone, the k largest kept by magnitude."""
    values = torch.zeros(SAE.d_sae)
    for index, value in bias.items():
        values[index] = value
    blind = torch.zeros_like(SAE.W_enc)
    return replace(SAE, activation="abstopk", k=k, W_enc=blind, b_enc=values)


@pytest.mark.parametrize(
    ("features", "top_k", "expected"),
    [
        (None, 2, [(3, -5.0), (7, 4.0)]),
        (None, 48, [(3, -5.0), (7, 4.0), (1, -3.0), (40, 3.0)]),
        ([40, 9, 3, 1, 2], 3, [(3, -5.0), (1, -3.0), (40, 3.0)]),
        ([40, 9, 3, 2], 3, [(3, -5.0), (40, 3.0), (2, 0.0)]),
    ],
)
def test_features_below_zero_are_ranked_by_their_size_and_equals_by_index(
    llama: Checkpoint,
    features: list[int] | None,
    top_k: int,
    expected: list[tuple[int, float]],
) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, signed({3: -5.0, 1: -3.0, 40: 3.0, 7: 4.0}, 4), 1):
        bench.ask(1, PROMPT, tap=tap("last", features=features, top_k=top_k))
        bench.run()
    (reading,) = bench.readings[1]
    assert reading.features == expected


# ---------------------------------------------------------------- what it takes


def of_class(kind: Callable[..., Sae], **changed: Any) -> Sae:
    """The SAE as one of another class, with these parameters."""
    return kind(**{f.name: getattr(SAE, f.name) for f in fields(Sae) if f.init} | changed)


class Watched(Sae):
    """An SAE that notes how many rows it is given at once."""

    given: ClassVar[list[int]] = []

    def encode(self, x: Tensor) -> Tensor:
        self.given.append(len(x))
        return super().encode(x)


@pytest.mark.parametrize(
    ("activation", "features", "at_once"),
    [("relu", None, 4), ("relu", [3, 5], 6), ("abstopk", None, 4), ("abstopk", [3, 5], 4)],
)
def test_no_more_rows_are_encoded_at_once_than_their_features_have_room(
    llama: Checkpoint,
    activation: str,
    features: list[int] | None,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # room for four rows of every feature: a choice among all of them needs them all, whichever are asked for
    monkeypatch.setattr(encoded, "ENCODE_BYTES", 4 * 4 * SAE.d_sae)
    watched = of_class(Watched, activation=activation, k=4)
    monkeypatch.setattr(Watched, "given", [])
    bench = Bench(llama)
    with bench.attached(KEY, watched, 1):
        bench.ask(1, PROMPT, tap=tap("prompt", features=features, top_k=2))
        bench.run()
    assert max(Watched.given) == at_once
    assert sum(Watched.given) == len(bench.readings[1])


def test_the_columns_of_the_features_asked_for_are_taken_out_once(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    whole = Sae.narrowed

    def counted(self: Sae, features: Any) -> Sae:
        taken.append(len(features))
        return whole(self, features)

    monkeypatch.setattr(Sae, "narrowed", counted)
    monkeypatch.setattr(encoded, "ENCODE_POSITIONS", 4)
    tapped(llama, tap(features=[3, 5, 7], top_k=2), max_tokens=24)
    assert taken == [3]


# ---------------------------------------------------------------- changes nothing


def recorded(model: Checkpoint, wanted: Tap | None, **request: Any) -> tuple[Answer, list[Tensor]]:
    """An answer beside another row, and the logits of every pass."""
    logits: list[Tensor] = []
    handle = model.model.get_output_embeddings().register_forward_hook(
        lambda _, __, output: logits.append(output.clone())
    )
    bench = Bench(model, step_seconds=3600.0)  # a busy machine cuts the prompt no finer
    try:
        with bench.attached(KEY, SAE, 1):
            bench.ask(1, words(30), max_tokens=20)
            bench.step(2)
            answer = bench.ask(2, PROMPT, tap=wanted, **request)
            bench.run()
    finally:
        handle.remove()
    return answer, logits


@pytest.mark.parametrize("plan", [OVERLAY, Suppressed()], ids=["steered", "plain"])
@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_tap_changes_no_bit_of_any_logits(
    llama: Checkpoint, plan: Plan, seed: int | None, is_before: bool
) -> None:
    request = {"plan": plan, "seed": seed, "temperature": 0.0 if seed is None else 1.0}
    plain, expected = recorded(llama, None, **request)
    with_tap, found = recorded(llama, tap(is_before=is_before), **request)
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert with_tap.tokens == plain.tokens
    assert with_tap.text == plain.text


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("positions", "most"),
    [
        ("last", lambda prompt: 1),
        ("prompt", lambda prompt: prompt),
        ("completion", lambda prompt: 10),
        ("all", lambda prompt: prompt + 10),
        ((5, 12), lambda prompt: 7),
        ((5, 10_000), lambda prompt: prompt + 5),
        ((9_000, 10_000), lambda prompt: 0),
    ],
    ids=["last", "prompt", "completion", "all", "inside", "over the end", "behind"],
)
def test_the_worst_case_of_entries_is_bounded(
    llama: Checkpoint, positions: str | tuple[int, int], most: Callable[[int], int]
) -> None:
    entries = most(len(llama.encode(PROMPT, special=True))) * 4
    tapped(llama, tap(positions, top_k=4, max_entries=entries))
    if not entries:
        return
    bench = Bench(llama)
    wanted = tap(positions, top_k=4, max_entries=entries - 1)
    with bench.attached(KEY, SAE, 1):
        refusal = refusal_of(bench.ask, 1, PROMPT, tap=wanted, max_tokens=10)
    assert refusal.code == "SAE_ACTIVATIONS_REFUSED"
    assert refusal.details["entries"] == entries
    assert bench.batch.is_idle


def test_the_entries_of_a_scored_prompt_are_bounded(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        refusal = refusal_of(bench.score, 1, PROMPT, tap=tap("prompt", top_k=4, max_entries=20))
    assert refusal.code == "SAE_ACTIVATIONS_REFUSED"
    assert bench.batch.is_idle


def test_an_sae_that_is_gone_is_refused_by_code(llama: Checkpoint) -> None:
    bench = Bench(llama)
    assert refusal_of(bench.ask, 1, PROMPT, tap=tap()).code == "SAE_NOT_ATTACHED"


class BrokenSae(Sae):
    def encode(self, x: Tensor) -> Tensor:
        raise RuntimeError("broken")


BROKEN = of_class(BrokenSae)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("positions", ["all", "last", "prompt"])
def test_an_encoding_that_fails_ends_its_own_request_only(
    llama: Checkpoint, positions: str, is_streamed: bool
) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1), bench.attached("broken@1", BROKEN, 1), capture_logs():
        plain = bench.ask(1, words(20))
        broken = Tap("broken@1", None, 5, positions, False, ENTRIES, is_streamed)
        bench.ask(2, PROMPT, tap=broken)
        bench.score(3, PROMPT, tap=Tap("broken@1", None, 5, positions, False, ENTRIES))
        fine = bench.ask(4, PROMPT, plan=OVERLAY, tap=tap())
        bench.run()
    assert {i: r.code for i, r in bench.refused.items()} == dict.fromkeys((2, 3), "INTERNAL_ERROR")
    assert "broken" not in bench.refused[2].message
    assert set(bench.readings) == {4}
    assert plain.tokens == generated(llama, words(20), 16)
    _, after = states(llama, passed(fine), ONE)
    check(bench.readings[4], after, passed(fine))
    assert bench.held_bytes == 0


def test_a_request_whose_activations_fail_is_logged_once_and_never_ends_as_if_it_were_whole(
    llama: Checkpoint,
) -> None:
    bench = Bench(llama)
    broken = Tap("broken@1", None, 5, "all", False, ENTRIES)
    with bench.attached("broken@1", BROKEN, 1), capture_logs() as logged:
        bench.ask(1, PROMPT, tap=broken, max_tokens=5)
        bench.score(2, PROMPT, tap=broken)
        outcomes = [outcome for _ in range(8) for outcome in bench.step()]
    assert set(bench.refused) == {1, 2}
    ends = [o for o in outcomes if not isinstance(o, Refused) and is_last(o)]
    assert ends == []
    assert [entry["log_level"] for entry in logged].count("error") == 2


class Exhausted(Sae):
    def encode(self, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no memory")


def test_memory_that_runs_out_over_encoding_is_that_requests_and_given_back(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(memory, "give_back", lambda: given_back.append(1))
    bench = Bench(llama)
    with bench.attached(KEY, of_class(Exhausted), 1), capture_logs():
        plain = bench.ask(1, words(20))
        bench.ask(2, PROMPT, tap=tap("last"), max_tokens=9)
        bench.score(3, PROMPT, tap=tap())
        bench.run()
    assert {i: r.code for i, r in bench.refused.items()} == dict.fromkeys(
        (2, 3), "INSUFFICIENT_MEMORY"
    )
    assert bench.refused[2].details["device"] == "cpu"
    assert len(given_back) == 2
    assert plain.tokens == generated(llama, words(20), 16)


class Unkept(Tensor):
    """A site's value of which no part can be kept."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.clone, Tensor.add):
            raise torch.OutOfMemoryError("no memory")
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("plan", [OVERLAY, Suppressed()], ids=["steered", "plain"])
def test_a_tap_that_cannot_keep_what_it_sees_ends_its_own_request_only(
    llama: Checkpoint, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    see = part_reads._Copy.copy

    def unkept(self: Any, number: int, value: Tensor, *more: Any) -> None:
        see(self, number, value.as_subclass(Unkept), *more)

    monkeypatch.setattr(part_reads._Copy, "copy", unkept)
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1), capture_logs():
        plain = bench.ask(1, words(20), plan=Suppressed())
        bench.ask(2, PROMPT, plan=plan, tap=tap())
        bench.run()
    assert {i: r.code for i, r in bench.refused.items()} == {2: "INSUFFICIENT_MEMORY"}
    assert plain.tokens == generated(llama, words(20), 16)


# ---------------------------------------------------------------- an SAE that goes while a row runs


@pytest.mark.parametrize("positions", ["all", "last", "completion"])
def test_readings_after_the_sae_is_gone_keep_the_positions_they_were_taken_at(
    llama: Checkpoint, positions: str
) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        answer = bench.ask(1, PROMPT, plan=Suppressed(), tap=tap(positions), max_tokens=10)
        bench.step(4)
        bench.steering.detach(KEY)
        bench.run()
    prompt = len(answer.row.prompt)
    read = prompt + 3
    before, _ = states(llama, passed(answer), {})
    asked = {
        "all": range(read),
        "last": range(read - 1, read),
        "completion": range(prompt, read),
    }
    check(bench.readings[1], before, passed(answer), asked[positions])


def test_another_sae_attached_under_the_key_is_not_read_by_the_first_ones_weights(
    llama: Checkpoint,
) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        answer = bench.ask(1, PROMPT, plan=Suppressed(), tap=tap(), max_tokens=10)
        bench.step(4)
        bench.steering.detach(KEY)
        with bench.attached(KEY, random_sae(32, seed=9), 0):
            bench.run()
    before, _ = states(llama, passed(answer), {})
    check(bench.readings[1], before, passed(answer), range(len(answer.row.prompt) + 3))


# ---------------------------------------------------------------- through a real engine process


async def test_an_engine_tells_readings_and_refuses_a_tap_on_nothing(
    folder: Callable[[str], Path], llama: Checkpoint, tmp_path: Path
) -> None:
    values = arrays("standard", d_in=32)
    path = write(tmp_path, config_v6("standard", d_in=32), values)
    sampling = m.Sampling(temperature=0.0, max_tokens=8)
    wanted = [tap((5, 9), top_k=64), tap("last", top_k=64)]

    async def drained(which: Tap) -> list[Any]:
        stream = engine.run(asking.generate(0, [m.Text(PROMPT)], sampling, Follow(), tap=which))
        return [event async for event in stream]

    engine = await Launcher("CRITICAL", "json").launch()
    try:
        await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
        gone = await refused(drained(wanted[0]))
        await engine.change(attaching(path, 1))
        found = [await drained(which) for which in wanted]
    finally:
        await engine.stop()
    assert gone.code == "SAE_NOT_ATTACHED"
    ids = [*llama.encode(PROMPT, special=True), *generated(llama, PROMPT, 8)][:-1]
    before, _ = states(llama, ids, {})
    for events, positions in zip(found, (range(5, 9), range(len(ids) - 1, len(ids))), strict=True):
        assert isinstance(events[-1], Piece)
        (readings,) = [read for e in events if (read := asking.told(e, "activations")) is not None]
        assert readings == asking.told(events[-1], "activations")
        assert [(r.position, r.token) for r in readings] == [(at, ids[at]) for at in positions]
        for reading in readings:
            truth, _ = reference(before[reading.position].numpy()[None], values, "standard")
            dense = np.zeros(len(truth[0]))
            for index, value in reading.features:
                dense[index] = value
            np.testing.assert_allclose(dense, truth[0], atol=1e-3)
