"""Sensing: the firings of a row are those of an independent computation over its hidden states, however rows are
stepped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from steerserve.messages import (
    ArmedCircuit,
    ArmedCluster,
    CircuitEdge,
    CircuitFeature,
    ClusterMember,
    Overlay,
    SensedEdges,
    SensedSpans,
    Tokens,
)
from steerserve.rules.residency.memory_needs import PREFILL_TOKENS
from steerserve.worker.live import armed as armed_module
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae.canonical import Sae
from tests.refusals import refusal_of
from tests.worker.running import (
    Answer,
    Bench,
    Counted,
    altered,
    hooked,
    open_checkpoint,
    passed,
    random_sae,
    site_of,
    words,
)

Folder = Callable[[str], Path]
KEY, OTHER = "sae@0", "other@1"
SAE, OTHER_SAE = random_sae(32), random_sae(32, seed=9)
FEATURES = (3, 40, 7)
TOPK = Sae(SAE.W_enc, SAE.b_enc, SAE.W_dec, SAE.b_dec, activation="topk", k=12)


def cluster(theta: float = 1.0, **changed: Any) -> ArmedCluster:
    values: dict[str, Any] = {
        "subject": "prof_1",
        "title": "weather",
        "key": KEY,
        "members": [ClusterMember(feature, theta) for feature in FEATURES],
        "min_k": 2,
        "max_events": 100,
        "context_tokens": 4,
    }
    return ArmedCluster(**values | changed)


def circuit(theta: float = 1.0, **changed: Any) -> ArmedCircuit:
    features = [
        CircuitFeature(KEY, 0, 3, theta),
        CircuitFeature(OTHER, 1, 5, theta),
        CircuitFeature(OTHER, 1, 11, theta),
    ]
    edges = [
        CircuitEdge("3@0->5@1", 0, 1, 2, "causally validated (edge)", "computed"),
        CircuitEdge("3@0->11@1", 0, 2, 0, "associated"),
        CircuitEdge("5@1->11@1", 1, 2, 0, "associated"),
    ]
    values: dict[str, Any] = {
        "subject": "circ_1",
        "title": "rain",
        "features": features,
        "edges": edges,
        "max_lag": 3,
        "max_events": 200,
        "context_tokens": 4,
    }
    return ArmedCircuit(**values | changed)


# ------------------------------------------------------------- the independent computation


def hidden(model: Checkpoint, tokens: Sequence[int], layer: int) -> NDArray[np.float32]:
    """Hidden states [T, d_in] behind a layer, by one plain pass over the tokens without steering."""
    found: list[NDArray[np.float32]] = []
    with hooked(site_of(model, layer), lambda value: found.append(value[0].float().numpy())):
        model.model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
    return found[0]


def encoded(states: NDArray[np.float32], sae: Sae) -> NDArray[np.float32]:
    """All activations [T, d_sae], in numpy."""
    pre = states @ sae.W_enc.numpy() + sae.b_enc.numpy()
    values = np.maximum(pre, 0)
    if sae.k is not None:
        order = np.argsort(-pre, axis=1)[:, sae.k :]
        np.put_along_axis(values, order, 0, axis=1)
    return values


def expected_spans(
    values: NDArray[np.float32], prompt: int, theta: float = 1.0, min_k: int = 2, skip: int = 0
) -> list[tuple[int, int, str, dict[int, float]]]:
    spans: list[tuple[int, int, str, dict[int, float]]] = []
    for position in range(skip, len(values)):
        fired = {f: float(values[position, f]) for f in FEATURES if values[position, f] > theta}
        if len(fired) < min_k:
            continue
        if spans and spans[-1][1] == position - 1:
            start, _, phase, peaks = spans.pop()
            fired = {f: max(fired.get(f, 0), peaks.get(f, 0)) for f in {*fired, *peaks}}
            spans.append((start, position, phase, fired))
        else:
            spans.append((position, position, "prefill" if position < prompt else "decode", fired))
    return spans


def same_spans(told: SensedSpans, expected: list[tuple[int, int, str, dict[int, float]]]) -> None:
    assert [(s.start, s.end, s.phase) for s in told.spans] == [e[:3] for e in expected]
    for span, (_, _, _, peaks) in zip(told.spans, expected, strict=True):
        assert dict(span.fired) == pytest.approx(peaks, abs=2e-3)
        assert span.score == pytest.approx(max(peaks.values()), abs=2e-3)


def check(
    model: Checkpoint, told: SensedSpans, answer: Answer, sae: Sae = SAE, skip: int = 0
) -> None:
    values = encoded(hidden(model, passed(answer), 0), sae)
    same_spans(told, expected_spans(values, len(answer.row.prompt), skip=skip))


def spans_of(bench: Bench) -> dict[tuple[int, int], SensedSpans]:
    return {(told.id, told.choice): told for told in bench.spans}


# ------------------------------------------------------------- clusters


def armed(bench: Bench, circuits: Sequence[ArmedCircuit] = (), **changed: Any) -> None:
    bench.sensing.arm(cluster(**changed), circuits, bench.steering)


def test_the_firings_of_a_row_are_those_of_its_hidden_states(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        answer = bench.ask(1, words(60), label="one", max_tokens=24)
        bench.run()
    (told,) = bench.spans
    assert told.label == "one"
    assert told.subject == "prof_1"
    assert told.overhead_ms > 0
    assert {span.phase for span in told.spans} == {"prefill", "decode"}
    check(llama, told, answer)


def test_each_row_of_a_shared_batch_has_its_own_firings(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=16_384)
    with bench.attached(KEY, SAE):
        armed(bench)
        answers = {
            i: bench.ask(i, words(20 + 7 * i, 11 * i), label=f"r{i}", max_tokens=12)
            for i in range(8)
        }
        bench.step(3)
        for i in range(8, 16):
            answers[i] = bench.ask(i, words(20 + 7 * i, 11 * i), label=f"r{i}", max_tokens=12)
        bench.run()
    told = spans_of(bench)
    assert {told[i, 0].label for i in answers} == {f"r{i}" for i in range(16)}
    for i, answer in answers.items():
        check(llama, told[i, 0], answer)
    assert sum(len(one.spans) for one in bench.spans) > 16


def test_the_values_are_read_before_the_steering_of_their_own_sae(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        plan = Overlay(0, {KEY: {3: 8.0, 40: -6.0}})
        answer = bench.ask(1, words(60), label="one", plan=plan, max_tokens=1)
        bench.run()
    check(llama, bench.spans[0], answer)


def test_a_seeded_row_is_sensed_too(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        answer = bench.ask(1, words(60), label="one", seed=7, temperature=1.0, max_tokens=12)
        bench.run()
    check(llama, bench.spans[0], answer)


def test_an_activation_that_chooses_among_all_features_is_encoded_whole(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armed_module, "ENCODE_BYTES", 4 * 48 * 3)
    bench = Bench(llama)
    with bench.attached(KEY, TOPK):
        armed(bench)
        answer = bench.ask(1, words(60), label="one", max_tokens=12)
        bench.run()
    check(llama, bench.spans[0], answer, TOPK)


@pytest.mark.shows("scoring-mode.19")
def test_what_has_no_label_and_what_is_scored_is_not_sensed(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        bench.ask(1, words(60))
        bench.score(2, words(60))
        bench.embed(3, words(60))
        bench.run()
    assert bench.spans == []


def test_a_member_with_an_infinite_threshold_never_fires(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        members = [ClusterMember(3, math.inf), ClusterMember(40, 1.0)]
        armed(bench, members=members, min_k=1)
        bench.ask(1, words(60), label="one")
        bench.run()
    assert {index for span in bench.spans[0].spans for index, _ in span.fired} == {40}


def test_the_choices_of_a_prompt_report_the_prompt_once(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench, history=1)
        bench.ask(1, words(60), n=2, label="one", temperature=1.0, max_tokens=12)
        bench.run()
    told = spans_of(bench)
    prompt = len(bench.answers[1, 0].row.prompt)
    check(llama, told[1, 0], bench.answers[1, 0])
    check(llama, told[1, 1], bench.answers[1, 1], skip=prompt)


def test_history_is_skipped_until_the_cluster_is_armed_again(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench, history=1)
        first = bench.ask(1, words(60), label="one", max_tokens=8)
        bench.run()
        more = Tokens([*first.row.prompt, *first.tokens, *first.row.prompt[:20]])
        second = bench.ask(2, [more], label="two", max_tokens=8)  # type: ignore[list-item]
        bench.run()
        armed(bench, history=2)
        third = bench.ask(3, [more], label="three", max_tokens=8)  # type: ignore[list-item]
        bench.run()
    told = spans_of(bench)
    check(llama, told[1, 0], first)
    check(llama, told[2, 0], second, skip=len(passed(first)))
    check(llama, told[3, 0], third)


def test_an_event_has_its_window_and_its_text(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        answer = bench.ask(1, words(60), label="one", max_tokens=12)
        bench.run()
    tokens = [*answer.row.prompt, *answer.tokens]
    for span in bench.spans[0].spans:
        assert span.window.token_ids == tokens[max(0, span.start - 4) : span.end + 5]
        assert span.window.parts is not None
        inside = llama.decode(tokens[span.start : span.end + 1], False)
        assert span.window.parts[1].strip() == inside.strip()
        assert span.summary.startswith("weather: ")


def test_a_row_that_began_keeps_its_thresholds_and_a_disarmed_one_ends(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        rearmed = bench.ask(1, words(60), label="one", max_tokens=12)
        bench.step(4)
        armed(bench, min_k=3)
        later = bench.ask(2, words(60), label="two", max_tokens=12)
        bench.run()
        check(llama, spans_of(bench)[1, 0], rearmed)
        values = encoded(hidden(llama, passed(later), 0), SAE)
        same_spans(spans_of(bench)[2, 0], expected_spans(values, len(later.row.prompt), min_k=3))
        armed(bench)
        disarmed = bench.ask(3, words(60), label="three", max_tokens=12)
        bench.step(4)
        bench.sensing.arm(None, (), bench.steering)
        bench.run()
    sensed = len(disarmed.row.prompt) + 3
    values = encoded(hidden(llama, passed(disarmed), 0), SAE)[:sensed]
    same_spans(spans_of(bench)[3, 0], expected_spans(values, len(disarmed.row.prompt)))


def test_a_cancelled_row_tells_what_fired_until_then(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        answer = bench.ask(1, words(60), label="one", max_tokens=20)
        bench.step(5)
        bench.batch.cancel(1)
        bench.hear()
    check(llama, bench.spans[0], answer)


def test_detaching_the_sae_disarms_its_cluster(llama: Checkpoint) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        bench.steering.detach(KEY)
        bench.ask(1, words(60), label="one")
        bench.run()
    assert bench.spans == []


def test_a_feature_that_the_sae_does_not_have_is_refused_before_anything_is_armed(
    llama: Checkpoint,
) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        for index in (-1, SAE.d_sae):
            refusal = refusal_of(armed, bench, members=[ClusterMember(index, 1.0)])
            assert refusal.code == "INVALID_FEATURE_INDEX"
        answer = bench.ask(1, words(60), label="one", max_tokens=4)
        bench.run()
        check(llama, bench.spans[0], answer)


def test_a_pass_is_sent_to_the_host_in_one_transfer(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers: list[int] = []
    plain = torch.Tensor.cpu

    def counted(value: torch.Tensor) -> torch.Tensor:
        transfers.append(len(value))
        return plain(value)

    bench = Bench(llama)
    with bench.attached(KEY, SAE), bench.attached(OTHER, OTHER_SAE, 1):
        armed(bench, [circuit()])
        answers = [bench.ask(i, words(60, i), label="r", max_tokens=40) for i in range(4)]
        monkeypatch.setattr(torch.Tensor, "cpu", counted)
        bench.run()
    read_by_all = sum(len(passed(answer)) for answer in answers)
    assert sum(transfers) == read_by_all
    assert len(transfers) <= 1 + read_by_all // 64


def test_a_failure_of_sensing_ends_no_request(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory for this")

    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        monkeypatch.setattr(armed_module.SensedSite, "activations", fail)
        answer = bench.ask(1, words(60), label="one", max_tokens=12)
        bench.run()
    assert answer.finish
    assert bench.spans[0].spans == []


def test_active_features_are_counted_only_where_all_features_are_monitored(
    llama: Checkpoint,
) -> None:
    bench = Bench(llama)
    with bench.attached(KEY, SAE):
        armed(bench)
        bench.ask(1, words(60), label="one", max_tokens=4)
        bench.run()
        assert {span.ambient for span in bench.spans[0].spans} == {None}
        bench.watch(KEY)
        answer = bench.ask(2, words(60), label="two", max_tokens=4)
        bench.run()
    values = encoded(hidden(llama, passed(answer), 0), SAE)
    for span in bench.spans[1].spans:
        assert span.ambient == int((values[span.start] > 0).sum())


# ------------------------------------------------------------- circuits


def expected_edges(
    values: dict[str, NDArray[np.float32]], prompt: int, one: ArmedCircuit
) -> list[tuple[str, int, int, str]]:
    """Every pair of positions by brute force, in the order of the downstream position."""
    length = len(values[KEY])
    found = []
    for down_at in range(length):
        for edge in one.edges:
            up, down = one.features[edge.up], one.features[edge.down]
            if not values[down.key][down_at, down.feature] > down.theta:
                continue
            window = range(max(0, down_at - one.max_lag), down_at)
            fired = [at for at in window if values[up.key][at, up.feature] > up.theta]
            if fired:
                phase = "prefill" if down_at < prompt else "decode"
                found.append((edge.name, fired[-1], down_at, phase))
    return sorted(found)


def check_edges(model: Checkpoint, told: SensedEdges, answer: Answer, one: ArmedCircuit) -> None:
    tokens = passed(answer)
    values = {
        KEY: encoded(hidden(model, tokens, 0), SAE),
        OTHER: encoded(hidden(model, tokens, 1), OTHER_SAE),
    }
    observed = [(e.edge.name, e.up.position, e.down.position, e.phase) for e in told.edges]
    assert sorted(observed) == expected_edges(values, len(answer.row.prompt), one)
    for edge in told.edges:
        for fire, key in ((edge.up, KEY if edge.up.layer == 0 else OTHER), (edge.down, OTHER)):
            truth = values[key][fire.position, fire.feature]
            assert fire.activation == pytest.approx(float(truth), abs=2e-3)


def test_the_edges_of_a_circuit_fire_as_by_brute_force(llama: Checkpoint) -> None:
    bench = Bench(llama, kv_tokens=16_384)
    with bench.attached(KEY, SAE), bench.attached(OTHER, OTHER_SAE, 1):
        armed(bench, [circuit()])
        answers = [
            bench.ask(i, words(20 + 9 * i, 13 * i), label=f"r{i}", max_tokens=12) for i in range(4)
        ]
        bench.run()
    told = {one.id: one for one in bench.edges}
    for i, answer in enumerate(answers):
        check_edges(llama, told[i], answer, circuit())
        check(llama, spans_of(bench)[i, 0], answer)
    assert {e.phase for one in bench.edges for e in one.edges} == {"prefill", "decode"}
    for edge in told[3].edges:
        tokens = [*answers[3].row.prompt, *answers[3].tokens]
        window = tokens[max(0, edge.up.position - 4) : edge.down.position + 5]
        assert edge.window.token_ids == window


def test_circuits_share_nothing_but_the_pass(llama: Checkpoint) -> None:
    bench = Bench(llama)
    other = circuit(subject="circ_2", max_lag=1, max_events=2)
    with bench.attached(KEY, SAE), bench.attached(OTHER, OTHER_SAE, 1):
        bench.sensing.arm(None, [circuit(), other], bench.steering)
        answer = bench.ask(1, words(60), label="one", max_tokens=12)
        bench.run()
    one, two = bench.edges
    check_edges(llama, one, answer, circuit())
    assert two.subject == "circ_2"
    assert [edge.is_truncated for edge in two.edges] == [False, True]
    assert two.truncated_layers == [1]


# ------------------------------------------------------------- kept prefixes and long prompts


@pytest.fixture(scope="module")
def wide(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("wide") / "llama"
    return open_checkpoint(altered(folder("llama"), path, max_position_embeddings=2048))


def conversation(model: Checkpoint, bench: Counted) -> list[Answer]:
    """Three turns, each of which begins with the turn before; the last two prompts are nearly the same."""
    ids = model.encode(words(1400), special=True)[:400]
    answers: list[Answer] = []
    for request, more in enumerate(([], ids[5:40], ids[9:50])):
        before = [*answers[-1].row.prompt, *answers[-1].tokens] if answers else ids
        answer, _ = bench.turn(request, [*before, *more], label=f"t{request}", max_tokens=8)
        answers.append(answer)
    return answers


@pytest.mark.parametrize("history", [0, 1])
@pytest.mark.parametrize("prefix_tokens", [0, 8192])
def test_firings_with_a_kept_prefix_equal_those_without(
    wide: Checkpoint, prefix_tokens: int, history: int
) -> None:
    bench = Counted(wide, prefix_tokens)
    with bench.attached(KEY, SAE), bench.attached(OTHER, OTHER_SAE, 1):
        armed(bench, [circuit(max_events=10_000)], history=history, max_events=1000)
        answers = conversation(wide, bench)
    told = spans_of(bench)
    for i, answer in enumerate(answers):
        skip = len(passed(answers[i - 1])) if history and i else 0
        check(wide, told[i, 0], answer, skip=skip)
        check_edges(wide, bench.edges[i], answer, circuit(max_events=10_000))


def test_a_row_uses_a_prefix_of_its_own_arming_only(wide: Checkpoint) -> None:
    bench = Counted(wide)
    ids = wide.encode(words(1400), special=True)[:400]
    with bench.attached(KEY, SAE):
        given = []
        for request, step in enumerate(("none", "armed", "armed", "again", "none", "none")):
            if step == "again" or (step == "armed" and request == 1):
                armed(bench)
            elif step == "none" and request:
                bench.sensing.arm(None, (), bench.steering)
            _, count = bench.turn(request, ids, label="r", max_tokens=4)
            given.append(count)
    # exact keys and values are taken over in whole blocks of 32
    assert given == [400, 400, 16, 400, 16, 16]
    sensed = spans_of(bench)
    assert sensed[2, 0].spans[:9] == sensed[1, 0].spans[:9] == sensed[3, 0].spans[:9]


def test_a_prompt_in_parts_is_sensed_as_a_whole(wide: Checkpoint) -> None:
    bench = Bench(wide, kv_tokens=16_384)
    ids = wide.encode(words(6000), special=True)[:1500]
    with bench.attached(KEY, SAE):
        armed(bench, max_events=5000)
        answer = bench.ask(1, "", ids=ids, label="one", max_tokens=4)
        bench.run()
    (told,) = bench.spans
    check(wide, told, answer)
    assert all(before.end + 1 < after.start for before, after in pairwise(told.spans))


def test_a_row_that_follows_at_once_has_all_firings_of_the_beginning_it_takes_over(
    wide: Checkpoint,
) -> None:
    bench = Counted(wide)
    # the last part of the beginning is too short to be encoded by itself
    ids = wide.encode(words(6000), special=True)[: PREFILL_TOKENS + 60]
    with bench.attached(KEY, SAE):
        armed(bench, max_events=5000)
        answers = [bench.ask(i, "", ids=[*ids, ids[i]], label="r", max_tokens=4) for i in range(2)]
        bench.run()
    assert bench.take() < 2 * len(ids)
    told = spans_of(bench)
    for i, answer in enumerate(answers):
        check(wide, told[i, 0], answer)
