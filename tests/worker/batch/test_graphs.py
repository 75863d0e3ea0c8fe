"""Decode passes on static buffers: they give the bits of plain passes, and whatever goes wrong ends in called passes.

A `Tape` stands for the graphs of a card. The tests with `card` need a card.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor, nn

from steerserve.messages import Overlay, Plan, Suppressed
from steerserve.parts.activations.form import Tap
from steerserve.rules.inference import stepping
from steerserve.rules.inference.stepping import Decoding
from steerserve.rules.steering.edits import Condition, Feature
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.worker.batch import graphs, group
from steerserve.worker.batch.graphs import DecodeGraphs
from steerserve.worker.hooks import table
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae.sites import Site
from tests import asking
from tests.worker.conftest import Folder, Loaded
from tests.worker.hooks.test_edits import asked, direction, edit, of
from tests.worker.hooks.test_steering import sites_of
from tests.worker.running import Answer, Bench, alone, open_checkpoint, random_sae, words
from tests.worker.tape import Tape

KEY = "sae@0"
SAE = random_sae(32)
OTHER = random_sae(32, seed=5)
PLANS: tuple[Plan, ...] = (
    Suppressed(),
    Overlay(0, {KEY: {2: 3.0, 7: -1.0}}),
    Overlay(0, {KEY: {5: -3.0}, "b@1": {1: 2.0}}),
)
STATIC = [
    "called",
    "taped",
    pytest.param(
        "card",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card"),
        ],
    ),
]


@pytest.fixture
def loaded(tapeable: Loaded) -> Loaded:
    """Checkpoints whose passes can be recorded here."""
    return tapeable


class Run:
    """Requests that join, leave and are steered by turns, with the logits of every pass."""

    def __init__(
        self, model: Checkpoint, decoding: str, monkeypatch: pytest.MonkeyPatch, rows: int = 5
    ) -> None:
        monkeypatch.setattr(Bench, "decoding", decoding)
        self.logits: list[Tensor] = []
        sampled = group.sampled

        def noted(logits: Tensor, rows: Any) -> Any:
            self.logits.append(logits.clone())
            return sampled(logits, rows)

        self.bench = Bench(model, 1 << 14)
        with monkeypatch.context() as patch:
            patch.setattr(group, "sampled", noted)
            with self.bench.attached(KEY, SAE, 0), self.bench.attached("b@1", OTHER, 1):
                self.answers = [self._ask(number) for number in range(rows)]
                self.bench.step(4)
                self.bench.steering.set_live(Live(0, True, {KEY: {9: 2.0}}))
                self.answers.append(self.bench.ask(90, words(15, 3), max_tokens=9))
                self.bench.step(2)
                self.bench.batch.cancel(1)
                self.bench.run()
                self.applied = self.bench.steering.applied

    def _ask(self, number: int) -> Answer:
        plan = PLANS[number % len(PLANS)]
        size = 10 + 13 * number
        return self.bench.ask(number, words(size, number), plan=plan, max_tokens=8 + number)

    @property
    def graphs(self) -> DecodeGraphs:
        assert self.bench.graphs is not None
        return self.bench.graphs


@pytest.fixture
def model(
    loaded: Loaded, folder: Folder, request: pytest.FixtureRequest, decoding: str
) -> Checkpoint:
    if decoding == "card":
        return open_checkpoint(folder("llama"), devices=("cuda:0",))
    return loaded("llama")


def is_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    bits = [[tensor.contiguous().view(torch.uint8) for tensor in side] for side in (one, other)]
    return len(one) == len(other) and all(map(torch.equal, *bits))


def is_off(graphs: DecodeGraphs) -> bool:
    return not graphs.takes(1)


@pytest.mark.parametrize("decoding", STATIC)
def test_the_logits_are_the_bits_of_plain_passes(
    model: Checkpoint, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Run(model, "plain", monkeypatch)
    static = Run(model, decoding, monkeypatch)
    assert not is_off(static.graphs)
    assert is_same(static.logits, plain.logits)
    assert static.applied == plain.applied
    assert static.applied[KEY] > 0
    assert (static.graphs.replays > 0) is (decoding != "called")


@pytest.mark.parametrize(
    "variant", ["gpt2", "gemma3", "phi3_longrope", "gpt_oss", "mixtral", "granite"]
)
def test_the_logits_of_replays_are_the_bits_of_calls_in_other_architectures(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Run(loaded(variant), "called", monkeypatch, rows=3)
    taped = Run(loaded(variant), "taped", monkeypatch, rows=3)
    assert not is_off(taped.graphs)
    assert taped.graphs.replays > 0
    assert is_same(taped.logits, called.logits)


@pytest.mark.parametrize("variant", ["llama", "granite", "mixtral"])
def test_at_every_site_steered_rows_have_the_bits_of_called_passes(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(variant)
    for site, layer in sites_of(model):
        runs = []
        for decoding in ("called", "taped"):
            monkeypatch.setattr(Bench, "decoding", decoding)
            bench = Bench(model)
            with bench.attached(KEY, random_sae(site.width), layer, site.name):
                for number, plan in enumerate(PLANS):
                    wanted = Tap(KEY, None, 8, "all", False, 1 << 16)
                    size = 8 + number
                    bench.ask(number, words(size), plan=plan, tap=wanted, max_tokens=5)
                bench.run()
            assert bench.graphs is not None
            assert not bench.changes, site.name
            runs.append(([bench.answers[i, 0].tokens for i in range(3)], bench.readings))
        assert runs[0] == runs[1], site.name
        assert len({tuple(tokens) for tokens in runs[0][0]}) > 1, site.name


@pytest.mark.parametrize("decoding", STATIC)
def test_each_number_of_rows_is_recorded_once_until_the_saes_change(
    model: Checkpoint, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "decoding", decoding)
    bench = Bench(model)
    graphs = bench.graphs
    assert graphs is not None
    passes = 1 if decoding != "called" else 0

    def decoded(request: int, plan: Plan) -> list[int]:
        answer = bench.ask(request, words(20), plan=plan, max_tokens=6)
        bench.run()
        return answer.tokens

    plain = decoded(1, Suppressed())
    assert (graphs.recordings, graphs.replays) == (passes, 4 * passes)
    with bench.attached(KEY, SAE, 0):
        steered = decoded(2, PLANS[1])
        assert steered != plain
        assert (graphs.recordings, graphs.replays) == (2 * passes, 8 * passes)
        assert decoded(3, Suppressed()) == plain
        assert decoded(4, PLANS[1]) == steered
        assert graphs.recordings == 2 * passes
    assert decoded(5, PLANS[1]) == plain
    assert graphs.recordings == 3 * passes


AT = direction(4, layer=1)
EDITED: tuple[Plan, ...] = (
    asked(edit("set", 3, 6.0), of("ablate", AT)),
    Overlay(0, {KEY: {2: 3.0}}),
    asked(edit("set", 5, 4.0, when=Condition(direction(5), above=0.0)), values={1: 2.0}),
    Suppressed(),
)


@pytest.mark.parametrize("decoding", STATIC)
def test_rows_that_edit_are_called_at_their_sites_between_recorded_pieces(
    model: Checkpoint, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for how in ("plain", decoding):
        monkeypatch.setattr(Bench, "decoding", how)
        bench = Bench(model, 1 << 14)
        with bench.attached(KEY, SAE, 0):
            for number, plan in enumerate(EDITED):
                bench.ask(number, words(12 + number), plan=plan, counted=(), max_tokens=12)
            bench.run()
            applied = bench.steering.applied
        answers = [bench.answers[number, 0] for number in range(len(EDITED))]
        acts = [asking.acts(answer.pieces[-1]) for answer in answers]
        found.append(([answer.tokens for answer in answers], acts, applied))
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found[0][0]}) == len(EDITED)
    assert not bench.changes
    assert bench.graphs is not None
    recorded = decoding != "called"
    assert bench.graphs.recordings == recorded
    assert bench.graphs.replays == (11 - 1 - graphs.CALLED_FIRST) * recorded


LATE = Positions(Selection(generated_window=(6, 40)))
GATED = Condition(Feature(KEY, 5), above=0.5)
STEADY: tuple[Plan, ...] = (
    asked(edit("set", 3, 6.0), of("ablate", AT), keeps_norm=True),
    asked(edit("set", 5, 4.0, when=GATED), of("ablate", AT, when=Condition(AT, below=0.0))),
    asked(edit("at_least", 7, 2.0, when=Condition(Feature(KEY, 9), below=0.5)), values={1: 2.0}),
    asked(edit("set", 5, 3.0), of("ablate", direction(6, layer=1), when=GATED)),
    asked(edit("set", 2, 5.0, positions=LATE)),
    Suppressed(),
)


@pytest.mark.parametrize("decoding", STATIC)
def test_what_the_same_rows_do_at_a_site_is_recorded_and_has_the_same_bits(
    model: Checkpoint, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for how in ("plain", decoding):
        monkeypatch.setattr(Bench, "decoding", how)
        bench = Bench(model, 1 << 14)
        with bench.attached(KEY, SAE, 0), bench.attached("b@1", OTHER, 1):
            wanted = Tap("b@1", None, 8, "all", False, 1 << 16)
            for number, plan in enumerate(STEADY):
                bench.ask(number, words(12 + number), plan=plan, tap=wanted, max_tokens=30)
            bench.run()
            applied = bench.steering.applied
        tokens = [bench.answers[number, 0].tokens for number in range(len(STEADY))]
        found.append((tokens, applied, bench.readings))
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found[0][0]}) == len(STEADY)
    assert not bench.changes
    calls = bench.steering.passes.calls
    assert (calls.recordings > 0, calls.replays > 0) == (decoding != "called",) * 2


def test_a_site_that_cannot_be_recorded_is_called(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder of the sites gives other bits, and that of the passes does not."""

    def inexact(call: Any) -> Any:
        func, args, kwargs, returned = call
        if func.overloadpacket.__name__ != "clamp":
            return call
        return (lambda *a: func(*a) + 1), args, kwargs, returned

    monkeypatch.setattr(Tape, "apart", lambda _: Tape(inexact))
    found = []
    for how in ("plain", "taped"):
        monkeypatch.setattr(Bench, "decoding", how)
        bench = Bench(loaded("llama"))
        with bench.attached(KEY, SAE, 0), capture_logs() as logs:
            answer = bench.ask(1, words(12), plan=STEADY[0], max_tokens=20)
            bench.run()
            found.append(answer.tokens)
    assert found[0] == found[1]
    assert [line["event"] for line in logs] == ["sites_not_recorded"]
    assert not bench.changes
    assert bench.graphs is not None
    assert bench.graphs.replays > 0
    assert bench.steering.passes.calls.replays == 0


def test_a_replay_with_another_value_at_a_called_site_is_never_used(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tape computes the norm of the first layer otherwise, so the value at the site differs."""

    def inexact(call: Any) -> Any:
        func, args, kwargs, returned = call
        if func.overloadpacket.__name__ != "hypot":
            return call
        return (lambda *a: func(*a) * 1.00001), args, kwargs, returned

    monkeypatch.setattr("tests.worker.running._recorder", lambda *_: Tape(inexact))
    monkeypatch.setattr(graphs, "CALLED_FIRST", 0)
    found = []
    for how in ("plain", "taped"):
        monkeypatch.setattr(Bench, "decoding", how)
        bench = Bench(loaded("llama"))
        with bench.attached(KEY, SAE, 0):
            answer = bench.ask(1, words(12), plan=EDITED[0], counted=(), max_tokens=6)
            bench.run()
            found.append((answer.tokens, asking.acts(answer.pieces[-1]), bench.steering.applied))
    assert found[0] == found[1]
    (change,) = bench.changes
    assert "other bits than a plain pass at resid_post" in change.reason


def test_a_row_that_is_not_steered_keeps_every_bit_of_a_site() -> None:
    directions = DirectionTable(4, torch.float32, torch.device("cpu"))
    directions.fill([None, "up", None], lambda _: torch.ones(4))
    value = torch.tensor([-0.0, 0.0, float("inf"), float("nan")]).expand(4, 4).clone()[:, None]
    module = nn.Identity()
    site = Site("resid_post", module, "", 4, scale=0.5)
    site.hook(directions.edit)
    changed = module(value)
    assert is_same([changed[[0, 2, 3]]], [value[[0, 2, 3]]])
    assert changed[1, 0, :3].tolist() == [2.0, 2.0, float("inf")]
    assert directions.steered.item() == directions.expected == 1


def test_more_directions_than_a_table_has_slots_take_turns() -> None:
    directions = DirectionTable(2, torch.float32, torch.device("cpu"))
    memory = directions._directions.data_ptr()
    value = torch.zeros(3, 1, 2)
    for number in range(3 * table.DIRECTIONS):
        # the first name is used in every pass, so the table never writes it again
        wanted = ["kept", f"name {number}", None]
        directions.fill(wanted, lambda row, at=number: torch.full((2,), row * 1000.0 + at))
        deltas = directions.edit(value)
        assert deltas.delta[:2, 0, 0].tolist() == [0.0, 1000.0 + number]
        assert deltas.is_added[:, 0, 0].tolist() == [True, True, False]
    assert directions._directions.data_ptr() == memory
    assert directions._directions[0].tolist() == [0.0, 0.0]


def test_a_direction_that_could_not_be_written_takes_no_slot() -> None:
    directions = DirectionTable(2, torch.float32, torch.device("cpu"))
    names = [f"name {number}" for number in range(table.DIRECTIONS)]
    for name in names:
        directions.fill([name], lambda _: torch.ones(2))

    def fails(_: int) -> Tensor:
        raise MemoryError

    with pytest.raises(MemoryError):
        directions.fill(["new"], fails)
    directions.fill([names[-1], "new"], lambda row: torch.full((2,), 7.0))
    assert directions.edit(torch.zeros(2, 1, 2)).delta[:, 0, 0].tolist() == [1.0, 7.0]


@pytest.mark.parametrize("decoding", STATIC)
def test_passes_with_more_steerings_than_slots_in_turn_are_steered_rightly(
    model: Checkpoint, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "DIRECTIONS", 3)
    plans = [Overlay(0, {KEY: {number: 4.0}}) for number in range(7)]

    def texts(how: str) -> list[list[int]]:
        monkeypatch.setattr(Bench, "decoding", how)
        bench, answers = Bench(model), []
        with bench.attached(KEY, SAE, 0):
            for number, plan in enumerate([*plans, *plans[:2]]):
                answers.append(bench.ask(number, words(12), plan=plan, max_tokens=4))
                bench.run()
        return [answer.tokens for answer in answers]

    assert texts(decoding) == texts("plain")


# ---------------------------------------------------------------- what goes wrong


def checked_fall(
    model: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Callable[[], Tape],
    why: str,
    states: Sequence[Decoding] = (Decoding.STATIC,),
) -> Run:
    """A run whose recorder goes wrong gives the bits of plain passes, says so once, and replays nothing more."""
    plain = Run(model, "plain", monkeypatch)
    monkeypatch.setattr("tests.worker.running._recorder", lambda *_: recorder())
    with capture_logs() as logs:
        fallen = Run(model, "taped", monkeypatch)
    assert is_same(fallen.logits, plain.logits)
    assert fallen.applied == plain.applied
    assert not fallen.bench.refused
    assert [state.decoding for state in fallen.bench.changes] == list(states)
    assert is_off(fallen.graphs) is (Decoding.CALLED in states)
    lines = [line for line in logs if line["event"] == "cuda_graphs_off"]
    assert len(lines) == len(states)
    assert all(why in line["why"] for line in lines)
    assert all(why in state.reason for state in fallen.bench.changes)
    return fallen


def test_a_recording_that_fails_ends_in_called_passes(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(call: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    run = checked_fall(loaded("llama"), monkeypatch, lambda: Tape(refuse), "not permitted")
    assert run.graphs.recordings == run.graphs.replays == 0


def test_after_memory_ran_out_passes_are_recorded_again(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "PAUSE_PASSES", 3)
    failures = iter([True])

    def refuse(call: Any) -> Any:
        if next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return call

    plain = Run(loaded("llama"), "plain", monkeypatch)
    monkeypatch.setattr("tests.worker.running._recorder", lambda *_: Tape(refuse))
    taped = Run(loaded("llama"), "taped", monkeypatch)
    assert is_same(taped.logits, plain.logits)
    assert not taped.bench.refused
    changes = [state.decoding for state in taped.bench.changes]
    assert changes == [Decoding.STATIC, Decoding.REPLAYED]
    assert "for 3 passes" in taped.bench.changes[0].reason
    assert taped.graphs.replays > 0


def test_a_model_that_waits_for_a_value_of_the_card_is_not_recorded(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("llama")

    def wait(_: nn.Module, __: Any, out: Tensor) -> None:
        assert out.shape[0] > 0
        assert out.sum().item() < torch.inf

    handle = model.model.model.norm.register_forward_hook(wait)
    try:
        checked_fall(model, monkeypatch, Tape, "not permitted")
    finally:
        handle.remove()


def test_a_replay_with_other_bits_is_never_used(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inexact(call: Any) -> Any:
        func, args, kwargs, returned = call
        if func.overloadpacket.__name__ != "hypot":
            return call
        return (lambda *a: func(*a) * 1.00001), args, kwargs, returned

    run = checked_fall(loaded("llama"), monkeypatch, lambda: Tape(inexact), "bits of a plain pass")
    assert run.graphs.recordings == 0


def test_a_replay_that_does_not_steer_is_never_used(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tape forgets the hooks after some replays, with the count that belongs to them."""
    tape = Tape()
    left = 5

    def forgetful(call: Any) -> Any:
        func, args, kwargs, returned = call
        name = func.overloadpacket.__name__
        if not (name == "where" or (name == "add_" and args[0].dtype == torch.long)):
            return call

        def forgotten(*a: Any) -> Any:
            nonlocal left
            if name == "add_":
                left -= 1
                return a[0] if left < 0 else func(*a)
            return a[2] if left < 0 else func(*a)

        return forgotten, args, kwargs, returned

    tape.alter = forgetful
    run = checked_fall(loaded("llama"), monkeypatch, lambda: tape, "did not steer")
    assert run.graphs.recordings > 0


def test_a_table_without_room_ends_in_called_passes(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Tensor:
        raise MemoryError("there is no room")

    def recorder() -> Tape:
        monkeypatch.setattr(DirectionTable, "__init__", full)
        return Tape()

    states = (Decoding.STATIC, Decoding.CALLED)
    checked_fall(loaded("llama"), monkeypatch, recorder, "there is no room", states)


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize("decoding", STATIC)
def test_a_recorded_pass_holds_no_memory_of_the_rows_that_it_was_recorded_with(
    model: Checkpoint, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "decoding", decoding)
    bench = Bench(model, shares_seeded=False)
    bench.ask(1, words(20), seed=3)
    bench.step(4)
    cache = weakref.ref(bench.batch._seeded[1].cache)
    bench.run()
    gc.collect()
    assert cache() is None
    assert bench.held_bytes == 0


def test_more_rows_than_were_ever_recorded_decode_by_plain_passes(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "decoding", "taped")
    monkeypatch.setattr(stepping, "GRAPH_ROWS", (1, 2))
    bench = Bench(loaded("llama"), 1 << 13)
    answer = bench.ask(1, words(9), n=3, max_tokens=5)
    bench.run()
    assert bench.graphs is not None
    assert bench.graphs.recordings == 0
    assert not is_off(bench.graphs)
    assert answer.tokens == alone(loaded("llama"), words(9), max_tokens=5).tokens
