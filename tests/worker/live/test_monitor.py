"""Monitoring: exactly the features of the last text token of each choice, counted exactly, and changing nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.errors import Refusal
from steerserve.messages import (
    RECORD_MAXIMUM,
    Contexts,
    Overlay,
    ReadContexts,
    ReadStatistics,
    Recorded,
    Statistics,
    Suppressed,
)
from steerserve.parts.activations.form import Tap
from steerserve.rules.saes.sites import MLP_OUT, RESID_POST
from steerserve.rules.steering.live import Live
from steerserve.worker.batch import group as group_module
from steerserve.worker.batch import part_reads
from steerserve.worker.batch import prefix as prefix_module
from steerserve.worker.live import monitor as monitor_module
from steerserve.worker.live.counts import RunningCounts
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae.canonical import Sae
from tests import asking
from tests.refusals import refusal_of
from tests.worker.running import (
    FIELDS,
    Answer,
    Bench,
    Counted,
    generated,
    logits_noted,
    passed,
    random_sae,
    site_of,
    states_of,
    words,
)
from tests.worker.saes import arrays, attaching, config_v6, reference, source, write

Loaded = Callable[[str], Checkpoint]
KEY = "sae@0"
SAE = random_sae(32)
ONE = {3: 2.0, 7: -1.5, 40: 0.25}
BOS, EOS = 0, 1


@contextmanager
def monitored(
    bench: Bench, sae: Sae = SAE, *, features: list[int] | None = None, top_k: int = 5, **at: Any
) -> Iterator[Bench]:
    with bench.attached(KEY, sae, **at):
        bench.watch(KEY, features, top_k)
        yield bench


@contextmanager
def bench_with_contexts(
    model: Checkpoint, size: int, features: list[int] | None
) -> Iterator[Bench]:
    """A bench that keeps the contexts of the last `size` monitored tokens."""
    bench = Bench(model)
    with bench.attached(KEY, SAE):
        bench.watch(KEY, features, contexts=size)
        yield bench


def states(model: Checkpoint, tokens: list[int], site: str = RESID_POST) -> np.ndarray:
    """The values [T, width] at a site of layer 0, by one plain pass."""
    return states_of(model, tokens, 0, site).double().numpy()


def encoded(x: np.ndarray, sae: Sae = SAE) -> np.ndarray:
    """Features [n, d_sae] of a ReLU SAE in float64."""
    pre = x @ sae.W_enc.double().numpy() + sae.b_enc.double().numpy()
    return np.maximum(pre, 0)


def observed(model: Checkpoint, answer: Answer) -> np.ndarray:
    """Features of the last token of the prompt, and of every one after it that was read."""
    tokens = passed(answer)
    return encoded(states(model, tokens))[len(answer.row.prompt) - 1 :]


def statistics(bench: Bench, features: list[int] | None = None, **how: Any) -> Statistics:
    return bench.monitor.read(ReadStatistics(9, features, **how))


def check_record(record: Recorded, truth: np.ndarray, *, top_k: int = 5) -> None:
    """The record lists the whole encoding [d_sae] at its token: what fired, the largest first."""
    found = np.zeros(len(truth))
    for index, value in record.activations:
        found[index] = value
    np.testing.assert_allclose(found, truth, atol=1e-3)
    values = [value for _, value in record.activations]
    assert values == sorted(values, reverse=True)
    assert min(values) > 0
    assert record.fired == len(values)
    assert record.top_k == record.activations[:top_k]


def check_statistics(found: Statistics, truth: np.ndarray) -> None:
    """What was counted is that of these tokens' features [n, d_sae]."""
    assert found.tokens == len(truth)
    assert found.activations == int((truth > 0).sum())
    assert [f.feature_idx for f in found.features] == np.flatnonzero((truth > 0).any(0)).tolist()
    for each in found.features:
        column = truth[:, each.feature_idx]
        assert each.count == len(truth)
        assert (each.mean, each.std) == pytest.approx((column.mean(), column.std()), abs=1e-3)
        assert (each.min, each.max) == pytest.approx((column.min(), column.max()), abs=1e-3)
        assert each.active_ratio == pytest.approx((column > 0).mean())


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("variant", ["llama", "gpt2", "falcon", "gemma3"])
@pytest.mark.parametrize("max_tokens", [1, 7])
def test_a_choice_that_ended_is_recorded_at_the_last_token_that_was_read(
    loaded: Loaded, variant: str, max_tokens: int
) -> None:
    model = loaded(variant)
    with monitored(Bench(model)) as bench:
        answer = bench.ask(4, words(30), max_tokens=max_tokens, label="chatcmpl-4")
        bench.run()
    tokens = passed(answer)
    (record,) = bench.records
    assert (record.id, record.label, record.key, record.choice) == (4, "chatcmpl-4", KEY, 0)
    assert (record.position, record.token) == (len(tokens) - 1, tokens[-1])
    check_record(record, encoded(states(model, tokens))[-1])


def test_every_choice_has_a_record_of_its_own(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench:
        bench.ask(1, [words(20), words(33, 4)], n=2, temperature=1.0, label="a")
        bench.ask(2, words(25), seed=5, n=2, temperature=1.0, label="b", max_tokens=9)
        bench.ask(3, words(25), max_tokens=4)
        bench.run()
    assert sorted((r.label, r.choice) for r in bench.records) == [
        *(("a", i) for i in range(4)),
        *(("b", i) for i in range(2)),
    ]
    for record in bench.records:
        tokens = passed(bench.answers[record.id, record.choice])
        # a sampled choice may end on special tokens, which are not recorded
        last = max(at for at, token in enumerate(tokens) if token not in _specials(bench))
        assert (record.position, record.token) == (last, tokens[last])
        check_record(record, encoded(states(llama, tokens))[last])


def test_a_record_comes_with_the_step_in_which_its_choice_ends(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench:
        bench.ask(1, words(20), max_tokens=3, label="short")
        bench.ask(2, words(20), max_tokens=6, label="long")
        came = []
        for _ in range(6):
            bench.step()
            came.append([r.label for r in bench.records])
    assert came == [[], [], ["short"], ["short"], ["short"], ["short", "long"]]


def test_the_steering_of_the_sae_itself_is_not_in_what_it_is_seen_to_read(
    llama: Checkpoint,
) -> None:
    with monitored(Bench(llama)) as bench:
        answer = bench.ask(1, words(30), plan=Overlay(0, {KEY: ONE}), label="a")
        bench.run()
    (record,) = bench.records
    check_record(record, encoded(states(llama, passed(answer)))[-1])
    assert bench.steering.applied == {}


def test_only_the_largest_of_very_many_are_told_but_all_are_counted(llama: Checkpoint) -> None:
    wide = random_sae(32, d_sae=4 * RECORD_MAXIMUM)
    with monitored(Bench(llama), wide, top_k=7) as bench:
        answer = bench.ask(1, words(30), label="a")
        bench.run()
    (record,) = bench.records
    truth = encoded(states(llama, passed(answer)), wide)[-1]
    assert record.fired == int((truth > 0).sum()) > RECORD_MAXIMUM
    assert len(record.activations) == RECORD_MAXIMUM
    largest = np.sort(truth)[::-1][:RECORD_MAXIMUM]
    assert [v for _, v in record.activations] == pytest.approx(largest, abs=1e-3)
    assert record.top_k == record.activations[:7]


@pytest.mark.parametrize("features", [None, [40, 3, 1, 7, 9]])
def test_features_below_zero_are_told_by_their_size_and_counted_as_active(
    llama: Checkpoint, features: list[int] | None
) -> None:
    bias = torch.zeros(48)
    bias[3], bias[1], bias[40], bias[7] = -5.0, -3.0, 3.0, 4.0
    blind = torch.zeros_like(SAE.W_enc)
    signed = replace(SAE, activation="abstopk", k=4, W_enc=blind, b_enc=bias)
    with monitored(Bench(llama), signed, features=features, top_k=2) as bench:
        bench.ask(1, words(30), max_tokens=6, label="a")
        bench.run()
        found = statistics(bench)
    (record,) = bench.records
    active = [(3, -5.0), (7, 4.0), (1, -3.0), (40, 3.0)]
    assert record.activations == active + ([] if features is None else [(9, 0.0)])
    assert record.top_k == active[:2]
    assert record.fired == 4
    assert found.activations == 4 * 6
    assert [(f.feature_idx, f.active_ratio) for f in found.features] == [
        (1, 1.0),
        (3, 1.0),
        (7, 1.0),
        (40, 1.0),
    ]


# opt's MLP sees its rows without the axis of the batch, granite scales what it adds, falcon writes on into it
@pytest.mark.parametrize("variant", ["llama", "opt", "granite", "falcon"])
def test_an_sae_at_another_site_is_seen_to_read_that_site(loaded: Loaded, variant: str) -> None:
    model = loaded(variant)
    with monitored(Bench(model), site=MLP_OUT) as bench:
        answers = [bench.ask(i, words(20 + 9 * i, i), label="a") for i in (1, 2)]
        bench.run()
    for record, answer in zip(sorted(bench.records, key=lambda r: r.id), answers, strict=True):
        check_record(record, encoded(states(model, passed(answer), MLP_OUT))[-1])


def test_a_tap_and_monitoring_read_the_same(llama: Checkpoint) -> None:
    tap = Tap(KEY, None, SAE.d_sae, "last", True, 1 << 16)
    with monitored(Bench(llama)) as bench:
        bench.ask(1, words(30), plan=Overlay(0, {KEY: ONE}), tap=tap, label="a")
        bench.run()
    (reading,) = bench.readings[1]
    (record,) = bench.records
    assert (reading.position, reading.token) == (record.position, record.token)
    assert dict(reading.features) == pytest.approx(dict(record.activations), abs=1e-5)


# ---------------------------------------------------------------- what is never observed


def test_only_generation_with_a_label_is_monitored(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench:
        bench.ask(1, words(30))
        bench.score(2, words(30))
        bench.embed(3, words(30))
        bench.run()
        assert statistics(bench).tokens == 0
    assert bench.records == []


@pytest.mark.parametrize("special", [BOS, EOS])
def test_special_tokens_are_left_out(llama: Checkpoint, special: int) -> None:
    with monitored(Bench(llama)) as bench:
        answer = bench.ask(1, "", ids=[50, 51, special], max_tokens=4, label="a")
        bench.run()
        found = statistics(bench)
    tokens = passed(answer)
    text = [at for at in range(2, len(tokens)) if tokens[at] not in (BOS, EOS)]
    check_statistics(found, encoded(states(llama, tokens))[text])
    assert len(text) < 4


@pytest.mark.parametrize("size", [1, 2])
def test_the_first_position_is_left_out_whatever_its_token(loaded: Loaded, size: int) -> None:
    model = loaded("gpt2")
    with monitored(Bench(model)) as bench:
        once = bench.ask(1, "", ids=[50, 51][:size], max_tokens=1, label="once")
        bench.run()
        assert [r.position for r in bench.records] == ([] if size == 1 else [1])
        answer = bench.ask(2, "", ids=[50, 51][:size], max_tokens=4, label="a")
        bench.run()
        found = statistics(bench)
    assert once.finish
    truth = encoded(states(model, passed(answer)))[1:]
    expected = truth if size == 1 else np.concatenate([truth[:1], truth])
    check_statistics(found, expected)


def test_a_choice_that_ends_on_special_tokens_is_recorded_at_its_last_text(
    llama: Checkpoint,
) -> None:
    plain = Bench(llama)
    tokens = plain.ask(1, words(30), max_tokens=8).tokens
    plain.run()
    tokens = plain.answers[1, 0].tokens
    with monitored(Bench(llama)) as bench:
        # the tokens that the model will write from the fourth on become special ones
        bench.monitor._special |= frozenset(tokens[3:]) - frozenset(tokens[:3])
        answer = bench.ask(1, words(30), max_tokens=8, label="a")
        bench.run()
        seen = statistics(bench).tokens
    (record,) = bench.records
    size = len(answer.row.prompt)
    text = [at for at in range(size - 1, size + 7) if passed(answer)[at] not in _specials(bench)]
    assert record.position == text[-1] < len(passed(answer)) - 1
    assert seen == len(text)
    check_record(record, encoded(states(llama, passed(answer)))[text[-1]])


def _specials(bench: Bench) -> frozenset[int]:
    return bench.monitor._special


def test_a_choice_of_nothing_but_a_special_token_is_recorded_there_and_not_counted(
    llama: Checkpoint,
) -> None:
    with monitored(Bench(llama)) as bench:
        bench.ask(1, "", ids=[50, BOS], max_tokens=1, label="a")
        bench.ask(2, "", ids=[50, 51], max_tokens=1, label="b")
        bench.run()
        assert statistics(bench).tokens == 1
    assert [(one.label, one.position, one.token) for one in bench.records] == [
        ("a", 1, BOS),
        ("b", 1, 51),
    ]


def test_a_request_that_is_cancelled_or_refused_has_no_record(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monitored(Bench(llama)) as bench:
        bench.ask(1, words(20), label="cancelled")
        bench.ask(2, words(21), plan=Overlay(0, {KEY: {3: 3e38, 7: 3e38}}), label="refused")
        kept = bench.ask(3, words(22), label="kept")
        bench.step(3)
        bench.batch.cancel(1)
        bench.run()
        found = statistics(bench)
    assert [r.label for r in bench.records] == ["kept"]
    assert list(bench.refused) == [2]
    check_record(bench.records[0], encoded(states(llama, passed(kept)))[-1])
    # what the model did read of the others was counted, all of it finite
    assert found.tokens > len(kept.tokens)
    assert all(np.isfinite([f.mean, f.std, f.min, f.max]).all() for f in found.features)


def test_a_choice_that_ended_has_no_record_when_its_request_is_refused_in_that_step(
    llama: Checkpoint,
) -> None:
    with monitored(Bench(llama)) as bench:
        bench.ask(1, [words(20), words(25)], max_tokens=1, label="a")
        bench.ask(2, words(20), max_tokens=1, label="b")
        bench.batch.step()
        bench.batch.cancel(1)
        assert [r.label for r in bench.monitor.events()] == ["b"]


def test_values_that_overflow_stay_out_of_the_figures(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench, bench.attached("other@0", random_sae(32, seed=4)):
        bench.watch("other@0", None, 5)
        # the SAE that is attached first is added before the watched one reads
        bench.ask(1, words(21), plan=Overlay(0, {KEY: {3: 3e38, 7: 3e38, 9: 3e38}}), label="a")
        fine = bench.ask(2, words(22), plan=Suppressed(), label="b")
        bench.run()
        found = statistics(bench)
    assert list(bench.refused) == [1]
    check_statistics(
        found,
        encoded(states(llama, passed(fine)), random_sae(32, seed=4))[len(fine.row.prompt) - 1 :],
    )


def test_features_that_overflow_stay_out_of_figures_and_records(llama: Checkpoint) -> None:
    # every value the SAE reads is finite still; what it makes of them is not
    steep = replace(random_sae(32, seed=4), W_enc=random_sae(32, seed=4).W_enc * 1e16)
    with monitored(Bench(llama)) as bench, bench.attached("other@0", steep):
        bench.watch("other@0", None, 5)
        plan = Overlay(0, {KEY: {3: 1e24, 7: 1e24}})
        far = bench.ask(1, words(21), plan=plan, label="far")
        bench.run()
        assert (far.finish, bench.records, statistics(bench).tokens) == ("length", [], 0)
        bench.ask(2, words(22), plan=Suppressed(), label="fine")
        bench.run()
        found = statistics(bench)
    assert [r.label for r in bench.records] == ["fine"]
    assert all(np.isfinite([f.mean, f.std, f.min, f.max]).all() for f in found.features)


# ---------------------------------------------------------------- statistics


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_statistics_are_those_of_every_token_that_was_observed(
    llama: Checkpoint, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "CHUNK", chunk)
    with monitored(Bench(llama)) as bench:
        answers = [bench.ask(i, words(20 + i, i), max_tokens=5 + 6 * i, label="a") for i in (1, 2)]
        bench.step(4)
        statistics(bench)  # asking in between changes nothing
        answers.append(bench.ask(3, words(40), seed=3, label="b"))
        bench.run()
        found = statistics(bench)
    check_statistics(found, np.concatenate([observed(llama, answer) for answer in answers]))


def test_tokens_that_no_client_waits_for_are_encoded_in_whole_chunks(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "CHUNK", 4)
    sizes: list[int] = []

    def encode(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return SAE.encode(rows)

    with monitored(Bench(llama)) as bench:
        whole = bench.monitor.whole
        assert whole is not None
        bench.monitor.watch(replace(whole, encode=encode))
        answers = [bench.ask(i, words(20), max_tokens=9, label="a") for i in range(3)]
        bench.step(8)
        assert not bench.records
        assert set(sizes) == {4}
        bench.run()
        check_statistics(
            statistics(bench), np.concatenate([observed(llama, one) for one in answers])
        )


@pytest.mark.parametrize("part", [16, 1024])
def test_a_long_prompt_counts_once_however_it_is_cut(
    llama: Checkpoint, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    with monitored(Bench(llama)) as bench:
        answer = bench.ask(1, words(90), max_tokens=3, label="a")
        bench.run()
        check_statistics(statistics(bench), observed(llama, answer))


def test_a_kept_prefix_changes_nothing_that_is_observed(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_module, "LEAST", 32)
    with monitored(bench := Counted(llama)):
        first, _ = bench.turn(1, [2 + i for i in range(60)], max_tokens=4, label="a")
        bench.monitor.reset()
        history = [*passed(first), 70, 71]
        second, given = bench.turn(2, history, max_tokens=3, label="b")
        found = statistics(bench)
    assert given == 2
    check_statistics(found, observed(llama, second))


def contexts(bench: Bench, feature: int, k: int = 3) -> Contexts:
    return bench.monitor.read_contexts(ReadContexts(9, feature=feature, k=k), bench.model.decode)


@pytest.mark.parametrize("features", [None, [3, 5, 9]])
def test_the_strongest_contexts_of_the_last_tokens_are_kept(
    llama: Checkpoint, features: list[int] | None
) -> None:
    with bench_with_contexts(llama, 6, features) as bench:
        answer = bench.ask(1, words(20), max_tokens=12, label="a")
        bench.run()
        truth = observed(llama, answer)[-6:]
        feature = max(features or range(truth.shape[1]), key=lambda one: float(truth[:, one].max()))
        best = int(truth[:, feature].argmax())
        found = contexts(bench, feature, 1)
        assert found.kept == 6
        (context,) = found.contexts
        assert context.activation == pytest.approx(truth[best, feature], abs=1e-3)
        tokens = [*answer.row.prompt, *answer.tokens]
        position = len(tokens) - 1 - 6 + best
        assert (context.label, context.position) == ("a", position)
        assert context.window.token_ids == tokens[position - 16 : position + 17]
        assert len(contexts(bench, feature, 9).contexts) == int((truth[:, feature] > 0).sum())
        bench.monitor.reset()
        assert contexts(bench, feature) == Contexts(9, 0, [])


def test_a_reset_counts_from_nothing(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench:
        answer = bench.ask(1, words(20), max_tokens=6, label="a")
        bench.step(3)
        bench.monitor.reset()
        assert statistics(bench) == Statistics(9, [], 0, 0)
        bench.run()
        check_statistics(statistics(bench), observed(llama, answer)[3:])
    assert len(bench.records) == 1


def test_count_ranks_features_by_how_often_they_were_active() -> None:
    counts = RunningCounts(4, torch.device("cpu"))
    counts.add(torch.tensor([[0.0, 1.0, -2.0, 0.0], [0.0, 1.0, 0.0, 3.0], [0.0, 1, 0, 5]]), None)
    assert [f.feature_idx for f in counts.read(None, "count", 2)] == [1, 3]
    # seen more often, active no more often
    counts.add(torch.tensor([[0.0]] * 50), torch.tensor([2]))
    best = counts.read(None, "count", 3)
    assert [(f.feature_idx, f.count) for f in best] == [(1, 3), (3, 3), (2, 53)]


@pytest.mark.parametrize("metric", ["mean", "max", "active_ratio", "count"])
def test_the_best_features_by_a_metric_come_first_and_equals_by_index(
    llama: Checkpoint, metric: str
) -> None:
    with monitored(Bench(llama)) as bench:
        bench.ask(1, words(30), label="a")
        bench.run()
        every = statistics(bench).features
        found = statistics(bench, metric=metric, k=6).features
        named = statistics(bench, [5, 40, 2, 40], metric=metric, k=2).features

    def rank(each: m.FeatureCount) -> float:
        shown = "active_ratio" if metric == "count" else metric
        return float(getattr(each, shown))

    assert found == sorted(every, key=lambda f: (-rank(f), f.feature_idx))[:6]
    # a ratio has many equals
    assert metric not in ("active_ratio", "count") or len({rank(f) for f in found}) < 6
    assert len(named) == 2
    assert {f.feature_idx for f in named} < {2, 5, 40}


def test_features_that_were_named_are_told_even_if_they_never_fired(llama: Checkpoint) -> None:
    silent = replace(SAE, b_enc=torch.where(torch.arange(48) == 11, -1e6, SAE.b_enc))
    with monitored(Bench(llama), silent) as bench:
        bench.ask(1, words(30), max_tokens=4, label="a")
        bench.run()
        (found,) = statistics(bench, [11]).features
        every = statistics(bench).features
        refusal = refusal_of(statistics, bench, [11, 48])
    assert found == m.FeatureCount(11, 4, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert 11 not in {f.feature_idx for f in every}
    assert refusal.code == "INVALID_FEATURE_INDEX"


@pytest.mark.parametrize("cuts", [[1] * 50, [64, 1, 7, 128], [200]])
@pytest.mark.parametrize("offset", [0.0, 1e5])
@pytest.mark.parametrize("width", [3, 32])
def test_counting_in_pieces_loses_nothing_even_far_from_zero(
    cuts: list[int], offset: float, width: int
) -> None:
    draw = np.random.default_rng(0)
    values = (draw.normal(size=(sum(cuts), width)) + offset).astype(np.float32)
    values[::3, 1] = 0.0
    counts = RunningCounts(width, torch.device("cpu"))
    first = 0
    for size in cuts:
        counts.add(torch.from_numpy(values[first : first + size]), None)
        first += size
    exact = values.astype(np.float64)
    every = counts.read(None, None, width)
    assert [each.feature_idx for each in every] == list(range(width))
    for i, each in enumerate(every):
        assert each.active_ratio == (exact[:, i] != 0).mean()
        assert each.mean == pytest.approx(exact[:, i].mean(), rel=1e-12, abs=1e-7)
        assert each.std == pytest.approx(exact[:, i].std(), rel=1e-6)
        assert (each.min, each.max) == (exact[:, i].min(), exact[:, i].max())


# ---------------------------------------------------------------- chosen features


def test_only_the_features_that_were_chosen_are_told_zeros_with_them(llama: Checkpoint) -> None:
    chosen = [40, 3, 17, 0, 29, 8, 3]
    with monitored(Bench(llama), features=chosen, top_k=2) as bench:
        answer = bench.ask(1, words(30), label="a")
        bench.run()
        found = statistics(bench)
        others = statistics(bench, [1, 40])
    truth = observed(llama, answer)
    (record,) = bench.records
    assert dict(record.activations) == pytest.approx({i: truth[-1, i] for i in chosen}, abs=1e-3)
    values = [value for _, value in record.activations]
    assert values == sorted(values, reverse=True)
    assert 0.0 in values
    assert record.fired == int((truth[-1, sorted(set(chosen))] > 0).sum())
    assert record.top_k == record.activations[:2]
    mask = np.zeros(48, bool)
    mask[chosen] = True
    check_statistics(found, truth * mask)
    # what was not watched was not observed, so nothing is known of it
    assert [f.feature_idx for f in others.features] == [40]


def test_the_choice_of_a_top_k_sae_is_made_among_all_its_features(llama: Checkpoint) -> None:
    top = replace(SAE, activation="topk", k=4)
    chosen = list(range(0, 48, 2))
    with monitored(Bench(llama), top, features=chosen) as bench:
        answer = bench.ask(1, words(30), label="a")
        bench.run()
    whole = encoded(states(llama, passed(answer)))[-1]
    kept = [i for i in np.argsort(-whole)[:4] if i in chosen and whole[i] > 0]
    assert {i for i, v in bench.records[0].activations if v} == set(kept)


def test_other_features_go_on_from_what_was_counted(llama: Checkpoint) -> None:
    with monitored(Bench(llama), features=[3, 17]) as bench:
        first = bench.ask(1, words(30), max_tokens=5, label="a")
        bench.run()
        bench.watch(KEY, None, 5)
        second = bench.ask(2, words(33), max_tokens=7, label="b")
        bench.run()
        found = {f.feature_idx: f for f in statistics(bench, list(range(48))).features}
    one, two = observed(llama, first), observed(llama, second)
    both = np.concatenate([one, two])
    assert (found[3].count, found[3].mean) == (12, pytest.approx(both[:, 3].mean(), abs=1e-3))
    assert (found[4].count, found[4].mean) == (7, pytest.approx(two[:, 4].mean(), abs=1e-3))


@pytest.mark.parametrize("features", [[48], [0, -1]])
def test_a_feature_that_is_not_there_is_refused_and_changes_nothing(
    llama: Checkpoint, features: list[int]
) -> None:
    with monitored(Bench(llama)) as bench:
        assert refusal_of(bench.watch, KEY, features, 5).code == "INVALID_FEATURE_INDEX"
        bench.ask(1, words(30), label="a")
        bench.run()
    assert bench.records[0].fired > 2


# ---------------------------------------------------------------- on and off


def test_monitoring_begins_and_ends_while_choices_run(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        answer = bench.ask(1, words(20), max_tokens=10, label="a")
        bench.step(3)
        bench.watch(KEY, None, 5)
        bench.step(4)
        bench.watch(None)
        bench.run()
        check_statistics(statistics(bench), observed(llama, answer)[3:7])
        assert bench.records == []
        bench.watch(KEY, None, 5)
        assert statistics(bench).tokens == 4


def test_what_was_seen_before_monitoring_began_again_is_no_record(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench:
        answer = bench.ask(1, words(20), max_tokens=10, label="a")
        bench.step(4)
        before = len(passed(answer)) - 1
        bench.watch(None)
        bench.watch(KEY, None, 5)
        bench.monitor._special = frozenset(range(320))
        bench.run()
    assert [one.position for one in bench.records] == [before + 1]


def test_a_detached_sae_is_monitored_no_more_and_forgotten(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench:
        answer = bench.ask(1, words(20), max_tokens=12, label="a")
        bench.step(4)
        assert statistics(bench).tokens == 4
        bench.step()
        bench.steering.detach(KEY)
        bench.step(2)
        assert statistics(bench) == Statistics(9, [], 0, 0)
        bench.steering.attach(KEY, random_sae(32, seed=4), site_of(llama))
        bench.run()
        assert bench.records == []
        assert statistics(bench).tokens == 0
    assert answer.finish == "length"


def test_the_steered_sae_that_is_not_watched_may_go(llama: Checkpoint) -> None:
    with monitored(Bench(llama)) as bench:
        with bench.attached("other@0", random_sae(32, seed=4)):
            answer = bench.ask(1, words(20), max_tokens=6, label="a")
            bench.step(3)
        bench.run()
        check_statistics(statistics(bench), observed(llama, answer))


def test_nothing_attached_is_nothing_to_watch(llama: Checkpoint) -> None:
    bench = Bench(llama)
    assert refusal_of(bench.watch, KEY, None, 5).code == "SAE_NOT_ATTACHED"
    bench.watch(None)
    assert statistics(bench) == Statistics(9, [], 0, 0)


# ---------------------------------------------------------------- changes nothing


def logits_of(model: Checkpoint, *, is_monitored: bool, **request: Any) -> list[Tensor]:
    """The logits of every pass over a labelled request that joins another."""
    bench = Bench(model, step_seconds=3600.0)  # a busy machine cuts the prompt no finer
    with bench.attached(KEY, SAE), logits_noted(model) as found:
        bench.watch(KEY if is_monitored else None, None, 5)
        bench.ask(1, words(30), max_tokens=20, label="a")
        bench.step(2)
        bench.ask(2, words(40), label="b", **request)
        bench.run()
        assert bool(bench.records) == is_monitored
    return found


@pytest.mark.parametrize("plan", [Overlay(0, {KEY: ONE}), Suppressed()], ids=["steered", "plain"])
@pytest.mark.parametrize("seed", [None, 11])
def test_monitoring_changes_no_bit_of_any_logits(
    llama: Checkpoint, plan: m.Plan, seed: int | None
) -> None:
    request = {"plan": plan, "seed": seed, "temperature": 0.0 if seed is None else 1.0}
    expected = logits_of(llama, is_monitored=False, **request)
    found = logits_of(llama, is_monitored=True, **request)
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_only_reads_counts_as_no_application_of_steering(llama: Checkpoint) -> None:
    tap = Tap(KEY, None, 5, "all", False, 1 << 16)
    with monitored(Bench(llama)) as bench:
        bench.steering.set_live(Live(1, True, {KEY: ONE}))
        bench.ask(1, words(30), plan=Suppressed(), tap=tap, label="a")
        bench.score(2, words(30))
        bench.embed(3, words(30))
        bench.run()
        assert bench.steering.applied == {KEY: 0}
    assert bench.records
    assert bench.readings[1]
    assert set(bench.scores) == {(2, 0)}
    assert set(bench.vectors) == {(3, 0)}


class BrokenSae(Sae):
    def encode(self, x: Tensor) -> Tensor:
        raise RuntimeError("broken")


def test_an_encoding_that_fails_harms_nobody_and_is_logged(llama: Checkpoint) -> None:
    broken = BrokenSae(**{f.name: getattr(SAE, f.name) for f in fields(Sae) if f.init})
    with capture_logs() as logged, monitored(Bench(llama), broken) as bench:
        answer = bench.ask(1, words(30), label="a")
        bench.run()
        assert statistics(bench).tokens == 0
    assert answer.finish
    assert bench.refused == {}
    assert bench.records == []
    assert {entry["event"] for entry in logged} == {"monitoring_failed"}


class Unreadable(Tensor):
    """A site's value that cannot be copied from."""

    def __getitem__(self, key: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")


def test_what_cannot_be_caught_harms_nobody_and_is_logged(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, passes = part_reads._Copy.copy, []

    def unreadable(self: Any, number: int, value: Tensor, *more: Any) -> None:
        passes.append(1)
        # the third pass of the first request and the last of it are unreadable
        value = value.as_subclass(Unreadable) if len(passes) in (3, 6) else value
        copy(self, number, value, *more)

    monkeypatch.setattr(part_reads._Copy, "copy", unreadable)
    with capture_logs() as logged, monitored(Bench(llama)) as bench:
        answer = bench.ask(1, words(20), max_tokens=6, label="a")
        bench.run()
        fine = bench.ask(2, words(21), max_tokens=4, label="b")
        bench.run()
        found = statistics(bench)
    assert bench.refused == {}
    assert answer.tokens == generated(llama, words(20), 6)
    # the token that would have been its record was not seen, and an earlier one is not it
    assert [r.label for r in bench.records] == ["b"]
    seen = np.delete(observed(llama, answer), [2, 5], axis=0)
    check_statistics(found, np.concatenate([seen, observed(llama, fine)]))
    # services of other tests of this process may log beside
    events = [entry["event"] for entry in logged if entry["event"] != "queue_has_room"]
    assert events == ["monitoring_failed"] * 2


def test_a_pass_that_fails_leaves_nothing_observed(llama: Checkpoint) -> None:
    def fail(_: Tensor) -> None:
        raise RuntimeError("broken")

    with monitored(Bench(llama)) as bench:
        bench.ask(1, words(20), label="a")
        handle = site_of(llama, 1).hook(fail)
        with capture_logs():
            bench.step()
        handle.remove()
        assert list(bench.refused) == [1]
        # a pass of somebody else's, such as the self-check of another SAE
        llama.model(input_ids=torch.tensor([[5, 6]]), use_cache=False)
        answer = bench.ask(2, words(22), max_tokens=4, label="b")
        bench.run()
        check_statistics(statistics(bench), observed(llama, answer))
    assert [r.label for r in bench.records] == ["b"]


# ---------------------------------------------------------------- through a real engine process


@pytest.fixture
async def engine(engine: CheckpointEngine, folder: Callable[[str], Path]) -> CheckpointEngine:
    await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    return engine


async def test_an_engine_tells_records_before_the_answer_ends_and_what_it_counted(
    engine: CheckpointEngine, llama: Checkpoint, tmp_path: Path
) -> None:
    values = arrays("standard", d_in=32)
    path = write(tmp_path, config_v6("standard", d_in=32), values)
    records: list[Recorded] = []
    engine.on_record = records.append
    with pytest.raises(Refusal) as absent:
        await engine.change(m.setting(monitored=m.Monitored(KEY)))
    await engine.change(attaching(path))
    with pytest.raises(Refusal) as outside:
        await engine.change(m.setting(monitored=m.Monitored(KEY, [64])))
    await engine.change(m.setting(monitored=m.Monitored(KEY, top_k=3)))
    sampling = m.Sampling(temperature=0.0, max_tokens=6)
    tokens = llama.encode(words(30), special=True)
    async for event in engine.run(
        asking.generate(0, [m.Text(words(30))], sampling, m.Follow(), label="cmpl-1")
    ):
        if isinstance(event, m.Piece) and event.finish:
            assert [r.label for r in records] == ["cmpl-1"]
    (record,) = records
    counted = await engine.ask(m.ReadStatistics())
    best = await engine.ask(m.ReadStatistics(metric="mean", k=4))
    await engine.ask(m.ResetStatistics())
    after = await engine.ask(m.ReadStatistics())
    await engine.change(m.setting(monitored=None))
    async for _ in engine.run(
        asking.generate(0, [m.Text(words(30))], sampling, m.Follow(), label="cmpl-2")
    ):
        pass
    assert len(records) == 1
    await engine.change(lambda state: state.detached(KEY))

    assert (absent.value.code, outside.value.code) == ("SAE_NOT_ATTACHED", "INVALID_FEATURE_INDEX")
    assert record.position == len(tokens) + 4
    bench = Bench(llama)
    answer = bench.ask(1, words(30), max_tokens=6)
    bench.run()
    truth, _ = reference(states(llama, passed(answer))[len(tokens) - 1 :], values, "standard")
    check_record(record, truth[-1], top_k=3)
    check_statistics(counted, truth)
    means = truth.mean(0)
    assert [f.feature_idx for f in best.features] == np.argsort(-means, kind="stable")[:4].tolist()
    assert (after.tokens, after.features) == (0, [])


async def test_an_engine_explores_what_is_attached_or_lies_on_disk(
    engine: CheckpointEngine, tmp_path: Path
) -> None:
    values = arrays("jumprelu", d_in=32)
    path = write(tmp_path, config_v6("jumprelu", d_in=32), values)
    await engine.change(attaching(path))
    attached = await engine.ask(m.Explore(features=[7, 0], nearest=5, key=KEY))
    with pytest.raises(Refusal) as outside:
        await engine.ask(m.Explore(features=[64], key=KEY))
    empty = await Launcher("CRITICAL", "json").launch()
    try:
        stored = await empty.ask(m.Explore(features=[7, 0], nearest=5, source=source(path)))
        with pytest.raises(Refusal) as outside_too:
            await empty.ask(m.Explore(features=[0, 64], source=source(path)))
        with pytest.raises(Refusal) as unread:
            await empty.ask(m.Explore(features=[0], source=source(tmp_path / "nowhere")))
    finally:
        await empty.stop()
    assert (attached.features, attached.nearest) == (stored.features, stored.nearest)
    assert (outside.value.code, outside_too.value.code) == ("INVALID_FEATURE_INDEX",) * 2
    assert unread.value.code == "SAE_LOAD_FAILED"
    rows = values["W_dec"].astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    for fact, i in zip(attached.features, (7, 0), strict=True):
        assert fact.feature_idx == i
        assert fact.decoder_norm == pytest.approx(norms[i], rel=1e-5)
        assert fact.encoder_norm == pytest.approx(np.linalg.norm(values["W_enc"][:, i]), rel=1e-5)
        assert fact.encoder_bias == pytest.approx(values["b_enc"][i])
        assert fact.threshold == pytest.approx(values["threshold"][i])
    cosines = rows @ rows[7] / norms / norms[7]
    cosines[7] = -np.inf
    order = np.argsort(-cosines)[:5]
    assert [i for i, _ in attached.nearest] == order.tolist()
    assert [c for _, c in attached.nearest] == pytest.approx(cosines[order], abs=1e-5)
